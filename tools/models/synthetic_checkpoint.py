#!/usr/bin/env python3
"""Writes a seeded synthetic checkpoint of SmolLM2-135M's architecture (numpy only).

For machines that can't reach the package index.

    python synthetic_checkpoint.py OUT [--dtype bfloat16] [--seed 1]
        [--layers 30] [--vocabulary 49152]

Weights are normal with a standard deviation of 1/sqrt(inputs), so that activations keep their
scale through the layers; norm weights lie around 1. The same seed gives the same bytes for the
same dtype.
No tokenizer: token ids are the text. OUT appears only when it is complete.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors_writer import CODES, encode, with_progress, write_safetensors

HIDDEN, INTERMEDIATE = 576, 1536
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64


def shapes(layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, HIDDEN)}
    for i in range(layers):
        out |= {
            f"model.layers.{i}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
                "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
                "post_attention_layernorm": (HIDDEN,),
                "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
                "mlp.up_proj": (INTERMEDIATE, HIDDEN),
                "mlp.down_proj": (HIDDEN, INTERMEDIATE),
            }.items()
        }
    return out | {"model.norm.weight": (HIDDEN,)}


def config(layers: int, vocabulary: int, dtype: str) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": vocabulary,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": dtype,
    }


def values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """FP32 values that depend on the seed, the name and the shape only."""
    random = np.random.Generator(np.random.PCG64([seed, *name.encode()]))
    x = random.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return 1 + x / 8
    return x / np.sqrt(np.float32(shape[1])) if "embed" not in name else x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--dtype", choices=CODES, default="bfloat16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--vocabulary", type=int, default=49152)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tensors = shapes(args.layers, args.vocabulary)

    def payloads() -> Iterator[bytes]:
        for name in with_progress(tensors, "drawing"):
            yield encode(values(name, tensors[name], args.seed), args.dtype)

    with tempfile.TemporaryDirectory(dir=args.out.parent) as scratch:
        partial = Path(scratch) / "checkpoint"
        partial.mkdir()
        for file, content in (
            ("config.json", config(args.layers, args.vocabulary, args.dtype)),
            ("synthetic.json", {"seed": args.seed}),  # tells it from a trained model
        ):
            text = json.dumps(content, indent=2)
            (partial / file).write_text(text + "\n", encoding="utf-8")
        write_safetensors(partial / "model.safetensors", tensors, payloads(), args.dtype)
        shutil.rmtree(args.out, ignore_errors=True)
        partial.rename(args.out)


if __name__ == "__main__":
    main()
