#!/usr/bin/env python3
"""Writes torch_products.safetensors: PyTorch's products and transformers' LlamaMLP on small inputs.

Needed only to regenerate the file: python3 tests/numerics/products/torch_products.py. The seed and
the versions go into the file's metadata. Inputs and outputs are in the case's dtype.
"""

import pathlib

import safetensors.torch
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

SEED = 20240611
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HIDDEN, INTERMEDIATE = 33, 67


def cases(dtype, generator):
    def draw(*shape, scale=1.0):
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    for n, k in ((3, 1536), (67, 129)):  # a long sum; more than one panel and an odd K
        x, w, b = draw(5, k), draw(n, k, scale=k**-0.5), draw(n)
        yield (
            f"linear_{k}",
            {
                "x": x,
                "weight": w,
                "bias": b,
                "y": torch.nn.functional.linear(x, w),
                "y_bias": torch.nn.functional.linear(x, w, b),
            },
        )
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_attention_heads=1, head_dim=2
    )
    module = LlamaMLP(config).to(dtype)
    weights = {
        "gate": draw(INTERMEDIATE, HIDDEN, scale=2 * HIDDEN**-0.5),
        "up": draw(INTERMEDIATE, HIDDEN, scale=HIDDEN**-0.5),
        "down": draw(HIDDEN, INTERMEDIATE, scale=INTERMEDIATE**-0.5),
    }
    for role, weight in weights.items():
        getattr(module, f"{role}_proj").weight = torch.nn.Parameter(weight, requires_grad=False)
    x = draw(5, HIDDEN)
    yield "mlp_hf", {"x": x, **weights, "y": module(x)}


def main():
    tensors = {}
    for label, dtype in DTYPES.items():
        generator = torch.Generator().manual_seed(SEED)
        for name, values in cases(dtype, generator):
            for operand, value in values.items():
                tensors[f"{name}.{label}.{operand}"] = value.detach().contiguous().clone()
    metadata = {
        "seed": str(SEED),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path = pathlib.Path(__file__).with_name("torch_products.safetensors")
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    print(path, path.stat().st_size, metadata)


if __name__ == "__main__":
    main()
