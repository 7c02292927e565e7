#!/usr/bin/env python3
"""Writes torch_linear_gelu.safetensors: PyTorch's gelu(linear(x)) in both forms.

Needed only to regenerate the file: python3 tests/numerics/products/torch_linear_gelu.py. The seed
and the version go into the file's metadata. Per dtype: the inputs, what PyTorch computes of them in
FP64 (rounded to FP32), and what it computes in the dtype, which rounds the product before GELU.
"""

import pathlib

import safetensors.torch
import torch
from torch.nn.functional import gelu, linear

SEED = 20240613
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
M, N, K = 4, 67, 65  # more than one panel, an odd K


def main():
    tensors = {}
    for label, dtype in DTYPES.items():
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(M, K, generator=generator).to(dtype)
        weight = (2 * torch.randn(N, K, generator=generator) * K**-0.5).to(dtype)
        bias = torch.randn(N, generator=generator).to(dtype)
        tensors |= {f"{label}.x": x, f"{label}.weight": weight, f"{label}.bias": bias}
        for form, approximate in (("erf", "none"), ("tanh", "tanh")):
            exact = gelu(
                linear(x.double(), weight.double(), bias.double()), approximate=approximate
            )
            tensors[f"{label}.{form}_exact"] = exact.float()
            tensors[f"{label}.{form}"] = gelu(linear(x, weight, bias), approximate=approximate)
    metadata = {"seed": str(SEED), "torch": torch.__version__}
    path = pathlib.Path(__file__).with_name("torch_linear_gelu.safetensors")
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    print(path, path.stat().st_size, metadata)


if __name__ == "__main__":
    main()
