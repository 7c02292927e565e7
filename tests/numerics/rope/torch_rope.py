#!/usr/bin/env python3
"""Writes torch_rope.safetensors: rotary embeddings as transformers computes them.

Needed only to regenerate the file: python3 tests/numerics/rope/torch_rope.py. The seed and the
versions go into the file's metadata. Stored are the inverse frequencies and attention factors of
each scaling (in FP32, as transformers computes them), and per pairing and dtype: the inputs, what
transformers' functions give with FP64 angles and values (rounded to FP32), and what they give in
the dtype, cos and sin cast to it.
"""

import pathlib

import safetensors.torch
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_neighbours
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as turn_halves

SEED = 20240608
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
POSITIONS = [0, 1, 17, 4095, 131071, 1000000]
HEADS, KV_HEADS, HEAD_DIM, ROTARY, THETA = 3, 1, 20, 16, 10000.0

# As rope_test.cc's kScalings: name, type, rotary dims, theta, the type's parameters.
SCALINGS = [
    ("linear", "linear", 64, 10000.0, {"factor": 4.0}),
    (
        "llama3",
        "llama3",
        128,
        500000.0,
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    ("yarn", "yarn", 128, 10000.0, {"factor": 16.0, "original_max_position_embeddings": 4096}),
    (
        "yarn_untruncated",
        "yarn",
        64,
        150000.0,
        {
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    ),
    (
        "yarn_given_attention_factor",
        "yarn",
        96,
        1000000.0,
        {
            "factor": 4.0,
            "attention_factor": 1.5,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
            "original_max_position_embeddings": 32768,
        },
    ),
]


def scaling_values(kind, dims, theta, parameters):
    config = transformers.LlamaConfig(
        head_dim=dims,
        hidden_size=dims,
        num_attention_heads=1,
        max_position_embeddings=int(
            parameters["factor"] * parameters.get("original_max_position_embeddings", 2048)
        ),
        rope_parameters={"rope_type": kind, "rope_theta": theta, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu")


def turned(pairing, x, positions, dtype):
    """x turned in `dtype` from angles in FP32, or in FP64 throughout."""
    angle_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, ROTARY, 2, dtype=angle_dtype) / ROTARY
    angles = positions.to(angle_dtype)[:, None] / THETA**exponents
    x = x.to(dtype)
    rotary, rest = x[..., :ROTARY], x[..., ROTARY:]
    if pairing == "halves":
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(dtype)[None], angles.sin().to(dtype)[None]
        rotary, _ = turn_halves(rotary[None], rotary[None], cos, sin, unsqueeze_dim=2)
    else:
        cos, sin = angles.cos().to(dtype)[None], angles.sin().to(dtype)[None]
        rotary = turn_neighbours(rotary[None], sin, cos)
    return torch.cat((rotary[0], rest), dim=-1)


def main():
    tensors = {}
    for name, kind, dims, theta, parameters in SCALINGS:
        inverse, attention_factor = scaling_values(kind, dims, theta, parameters)
        tensors[f"{name}.inverse_frequencies"] = inverse.float()
        tensors[f"{name}.attention_factor"] = torch.tensor([attention_factor])
    positions = torch.tensor(POSITIONS)
    for pairing in ("halves", "neighbours"):
        for label, dtype in DTYPES.items():
            generator = torch.Generator().manual_seed(SEED)
            shape = (len(POSITIONS), HEADS + KV_HEADS, HEAD_DIM)
            x = torch.randn(*shape, generator=generator).to(dtype)
            prefix = f"{pairing}.{label}"
            tensors[f"{prefix}.x"] = x
            tensors[f"{prefix}.exact"] = turned(pairing, x, positions, torch.float64).float()
            tensors[f"{prefix}.eager"] = turned(pairing, x, positions, dtype)
    tensors = {
        name: value.flatten(1) if value.ndim == 3 else value for name, value in tensors.items()
    }
    metadata = {
        "source": f"torch {torch.__version__}, transformers {transformers.__version__}, seed {SEED}"
    }
    path = pathlib.Path(__file__).with_name("torch_rope.safetensors")
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    print(path, path.stat().st_size, metadata)


if __name__ == "__main__":
    main()
