#!/usr/bin/env python3
"""Makes data/smollm2: what transformers computes in a few layers of a real checkpoint.

    make_golden_real.py CHECKPOINT [--out DIR] [--prompt TEXT] [--layers 0,14,29]

CHECKPOINT: a folder with config.json, model.safetensors and the tokenizer, of a family of
make_golden.py. Writes golden_float32.safetensors and golden_bfloat16.safetensors with that script's
names: for each layer its input, its attention's output, its norms' outputs and its feed-forward,
and the final norm. The weights are not copied: the demo compares with the checkpoint it serves.
"""

import argparse
import json
from pathlib import Path

import transformers
from make_golden import DTYPES, LAYERS, run, versions
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "The quick brown fox jumps over the lazy dog; 12 of 345 did."
STORED = ("float32", "bfloat16")


def wanted(key: str, layers: set[int]) -> bool:
    """Whether the demo needs the tensor: what another one holds as well is left out."""
    if key == "input_ids" or key.startswith("norm.model.norm."):
        return True
    parts = key.removeprefix(f"norm.{LAYERS}.").removeprefix("layer.").split(".")
    if key.startswith("probe.") or int(parts[0]) not in layers:
        return False
    # Norms' inputs are the layer's and the feed-forward's; queries' and keys' norms are not served.
    if key.startswith("norm."):
        return parts[1].endswith("layernorm") and parts[-1] == "output"
    return parts[1:] != ["output"]  # it is the feed-forward's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data/smollm2")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--layers", default="0,14,29")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    layers = {int(layer) for layer in args.layers.split(",")}
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    ids = tokenizer(args.prompt, return_tensors="pt").input_ids
    args.out.mkdir(parents=True, exist_ok=True)
    for name in STORED:
        model = AutoModelForCausalLM.from_pretrained(
            args.checkpoint, dtype=DTYPES[name], attn_implementation="eager"
        ).eval()
        tensors = run(model, ids, DTYPES[name])
        kept = {key: value for key, value in tensors.items() if wanted(key, layers)}
        meta = {
            "checkpoint": args.checkpoint.name,
            "prompt": args.prompt,
            "dtype": name,
            **versions(),
        }
        target = args.out / f"golden_{name}.safetensors"
        save_file(kept, target, {"golden": json.dumps(meta)})
        print(f"{target}: {len(kept)} tensors, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
