#!/usr/bin/env python3
"""Generates text with a model whose feed-forwards live on a Fuseblock server.

    fuseblock-server --model smollm2=DIR \\
        --set models.smollm2.dtype=FP32 --set models.smollm2.rounding=hf
    pip install ./client/python tokenizers
    python examples/generate/generate.py --model DIR --name smollm2

This process keeps the attention, the KV cache and the choice of the token; the server keeps the
embedding, the norms and the feed-forward paths of all layers, and sees activations only. Per token:

    x = embed(id)
    for each layer:  n = attn_norm(x);  x = ffn_path(x, residual = attention(n))
    logits = final_norm(x) @ embedding^T

The default prompt's tokens are compared with those that transformers generates (expected.json).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from attention import Attention, Rotary
from checkpoint import Checkpoint
from fuseblock import Client, FuseblockError

EXPECTED = Path(__file__).parent / "expected.json"


@dataclass
class Cost:
    """Seconds and calls, in all and inside the server's calls."""

    total_s: float = 0
    rpc_s: float = 0
    rpcs: int = 0
    tokens: int = 0


class Model:
    """A Llama whose row-wise parts run on the server."""

    def __init__(self, client: Client, name: str, checkpoint: Checkpoint, positions_max: int):
        config = checkpoint.config
        if not config["tie_word_embeddings"]:
            raise ValueError("expected a checkpoint whose output layer is its embedding")
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        rotary = Rotary(head_dim, config["rope_theta"], positions_max)
        self._client, self._name = client, name
        self._layers = [
            Attention(checkpoint, i, rotary, positions_max)
            for i in range(config["num_hidden_layers"])
        ]
        self._embedding = checkpoint.weight("model.embed_tokens")
        self.cost = Cost()

    def logits(self, ids: list[int]) -> np.ndarray:
        """The logits after the last of the new tokens; the cache remembers all of them."""
        x = self._run("embed", np.array(ids, np.int64))
        for i, attention in enumerate(self._layers):
            normed = self._run(f"layers.{i}.attn_norm", x)
            x = self._run(f"layers.{i}.ffn_path", x, attention(normed))
        return self._embedding @ self._run("final_norm", x[-1:])[0]

    def _run(self, block: str, x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
        start = time.perf_counter()
        y = self._client.run(f"{self._name}.{block}", x, residual=residual, timeout=60)
        self.cost.rpc_s += time.perf_counter() - start
        self.cost.rpcs += 1
        return y


def greedy(model: Model, prompt: list[int], count: int) -> Iterator[int]:
    """`count` tokens, each the most likely one after those before it."""
    start, ids = time.perf_counter(), prompt
    for _ in range(count):
        ids = [int(np.argmax(model.logits(ids)))]
        model.cost.tokens += 1
        model.cost.total_s = time.perf_counter() - start
        yield ids[0]


class TextStream:
    """Turns tokens into text piece by piece, never splitting a character."""

    def __init__(self, decode: Callable[[list[int]], str]):
        self._decode, self._tokens, self._shown = decode, [], 0

    def push(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):  # the first bytes of a longer character
            return ""
        piece, self._shown = text[self._shown :], len(text)
        return piece


def stream(
    model: Model, prompt: list[int], count: int, decode: Callable[[list[int]], str]
) -> list[int]:
    """Generates and prints as it goes; returns the tokens."""
    text, tokens = TextStream(decode), []
    for token in greedy(model, prompt, count):
        tokens.append(token)
        print(text.push(token), end="", flush=True)
    print(flush=True)
    return tokens


def cost_line(cost: Cost) -> str:
    return (
        f"{cost.tokens} tokens, {cost.tokens / cost.total_s:.1f} tokens/s; "
        f"{cost.rpc_s / cost.total_s:.0%} of the time in {cost.rpcs} calls "
        f"({1e3 * cost.rpc_s / cost.rpcs:.2f} ms each)"
    )


def main() -> int:
    expected = json.loads(EXPECTED.read_text("utf-8"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", default="127.0.0.1:8001")
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--name", default="smollm2", help="the model's name on the server")
    parser.add_argument("--prompt", default=expected["prompt"])
    parser.add_argument("--tokens", type=int, default=len(expected["tokens"]))
    args = parser.parse_args()

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    prompt = tokenizer.encode(args.prompt).ids
    print(args.prompt, end="", flush=True)
    try:
        with Client(args.server) as client:
            checkpoint = Checkpoint(args.model)
            model = Model(client, args.name, checkpoint, len(prompt) + args.tokens)
            tokens = stream(model, prompt, args.tokens, tokenizer.decode)
    except FuseblockError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(cost_line(model.cost))
    if args.prompt != expected["prompt"]:
        return 0
    same = tokens == expected["tokens"][: len(tokens)]
    verdict = "the same tokens as" if same else "NOT the tokens of"
    print(f"{verdict} transformers {expected['transformers']}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
