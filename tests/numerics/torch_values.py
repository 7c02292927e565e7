#!/usr/bin/env python3
"""Writes torch_values*.safetensors: what PyTorch and transformers' eager code compute.

Needed only to regenerate the files: python3 tests/numerics/torch_values.py. The seed and the
versions go into the file's metadata. Per case and dtype: the inputs and the output, all in the
dtype.
"""

import pathlib

import safetensors.torch
import torch
import transformers
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssExperts
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

SEED = 20240607
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
EPS = {LlamaRMSNorm: 1e-5, Olmo2RMSNorm: 1e-6, GemmaRMSNorm: 1e-6}  # as in cases.cc's modes


def norm(kind, weight, x):
    module = kind(x.shape[-1], eps=EPS[kind])
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module(x)


def cases(dtype, generator):
    def draw(*shape, scale=1.0):
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    x, r = draw(3, 130), draw(3, 130)
    yield "add_residual", {"x": x, "r": r, "z": x + r}
    x = draw(3, 259, scale=4.0)
    yield "silu", {"x": x, "y": torch.nn.functional.silu(x)}
    gate, up = draw(3, 259, scale=3.0), draw(3, 259, scale=2.0)
    yield "swiglu_hf", {"gate": gate, "up": up, "y": torch.nn.functional.silu(gate) * up}
    for columns in (65, 576):
        x, r = draw(2, columns, scale=3.0), draw(2, columns)
        w = (1 + 0.3 * torch.randn(columns, generator=generator)).to(dtype)
        delta = draw(columns, scale=0.3)
        yield f"rms_norm_first_{columns}", {"x": x, "weight": w, "y": norm(LlamaRMSNorm, w, x)}
        yield f"rms_norm_once_{columns}", {"x": x, "weight": w, "y": norm(Olmo2RMSNorm, w, x)}
        yield (
            f"rms_norm_offset_{columns}",
            {"x": x, "weight": delta, "y": norm(GemmaRMSNorm, delta, x)},
        )
        h = x + r
        yield (
            f"add_rms_norm_first_hf_{columns}",
            {"x": x, "r": r, "weight": w, "y": norm(LlamaRMSNorm, w, h), "residual_out": h},
        )
    table = draw(37, 96)
    ids = torch.randint(0, 37, (11,), generator=generator)
    scale = torch.tensor(96**0.5, dtype=dtype)  # as Gemma's: the factor is stored in the dtype
    yield (
        "embedding_scaled",
        {
            "ids": ids,
            "table": table,
            "scale": scale.float().reshape(1),
            "y": torch.nn.functional.embedding(ids, table) * scale,
        },
    )


def gelu_cases(dtype, generator):
    x = (torch.randn(3, 259, generator=generator) * 2).to(dtype)
    yield "erf", {"x": x, "y": torch.nn.functional.gelu(x)}
    yield "tanh", {"x": x, "y": torch.nn.functional.gelu(x, approximate="tanh")}


def swiglu_clamped_cases(dtype, generator):
    """In FP32 from the dtype's inputs, rounded once: eager code rounds every intermediate."""
    gate_up = (torch.randn(3, 2 * 259, generator=generator) * 4).to(dtype)
    gate_up[0, :8] = torch.tensor([7, 7, 9, -9, -30, 20, 6.5, -7])
    experts = GptOssExperts(GptOssConfig(hidden_size=1, intermediate_size=1, num_local_experts=1))
    yield "clamped", {"gate_up": gate_up, "y": experts._apply_gate(gate_up.float()).to(dtype)}


def row_cases(dtype, generator):
    def draw(*shape, scale=1.0, mean=0.0):
        return (torch.randn(*shape, generator=generator) * scale + mean).to(dtype)

    for columns in (65, 576):
        x, w, b = draw(2, columns, scale=3.0, mean=5.0), draw(columns), draw(columns)
        yield (
            f"layer_norm_{columns}",
            {
                "x": x,
                "weight": w,
                "bias": b,
                "y": torch.nn.functional.layer_norm(x, (columns,), w, b, 1e-5),
            },
        )
        x = draw(2, columns, scale=4.0)
        yield f"softmax_{columns}", {"x": x, "y": torch.softmax(x, -1)}
        # Zeros and infinities, so that the sum is exact.
        out = torch.rand(2, columns, generator=generator) < 0.4
        mask = torch.zeros(2, columns, dtype=dtype).masked_fill(out, -torch.inf)
        yield (
            f"softmax_masked_{columns}",
            {"x": x, "mask": mask, "y": torch.softmax(x + mask, -1)},
        )


def causal_cases(dtype, generator):
    """As transformers' eager attention: the mask added as -inf, softmax in FP32, stored."""
    for queries, keys in ((33, 33), (5, 70), (1, 17)):
        x = (torch.randn(queries, keys, generator=generator) * 3).to(dtype)
        mask = torch.full((queries, keys), -torch.inf, dtype=dtype).triu(keys - queries + 1)
        y = torch.softmax(x + mask, dim=-1, dtype=torch.float32).to(dtype)
        yield f"{queries}x{keys}", {"x": x, "y": y}


def reduce_cases(dtype, generator):
    """Quarters, whose FP32 sums are exact in any order."""
    for columns in (7, 32, 300):
        x = (torch.randint(-64, 65, (5, columns), generator=generator) / 4).to(dtype)
        yield f"sum_{columns}", {"x": x, "y": x.sum(-1, keepdim=True)}
        yield f"max_{columns}", {"x": x, "y": x.amax(-1, keepdim=True)}


# The end of each file's name, and what is in it.
GROUPS = {
    "": cases,
    "_gelu": gelu_cases,
    "_swiglu_clamped": swiglu_clamped_cases,
    "_rows": row_cases,
    "_causal": causal_cases,
    "_reduce": reduce_cases,
}


def write(group):
    tensors = {}
    for label, dtype in DTYPES.items():
        generator = torch.Generator().manual_seed(SEED)
        for name, values in GROUPS[group](dtype, generator):
            for operand, value in values.items():
                tensors[f"{name}.{label}.{operand}"] = value.contiguous().clone()
    # One key: their order in the file is not fixed, and the file must come out the same again.
    metadata = {
        "source": f"torch {torch.__version__}, transformers {transformers.__version__}, seed {SEED}"
    }
    path = pathlib.Path(__file__).with_name(f"torch_values{group}.safetensors")
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    print(path, path.stat().st_size, metadata)


if __name__ == "__main__":
    for group in GROUPS:
        write(group)
