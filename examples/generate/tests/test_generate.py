"""The example's own parts, and its whole text through a real server's blocks."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
sys.path[:0] = [
    str(ROOT / folder)
    for folder in ("examples/generate", "client/python", "client/python/tests", "tools/demo")
]

from attention import Attention, Rotary  # noqa: E402
from checkpoint import Checkpoint  # noqa: E402
from fuseblock import Client  # noqa: E402
from generate import EXPECTED, Model, TextStream, greedy  # noqa: E402
from reference import most_likely  # noqa: E402
from serving import serving  # noqa: E402

HIDDEN, HEADS, KV_HEADS, DIM = 24, 6, 2, 4


class Weights:
    """Stands for a checkpoint folder: seeded projections of one layer."""

    config = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}

    def weight(self, module: str) -> np.ndarray:
        name = module.rpartition(".")[2]
        rows = {"q_proj": HIDDEN, "o_proj": HIDDEN}.get(name, KV_HEADS * DIM)
        seed = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "o_proj": 4}[name]
        return np.random.default_rng(seed).standard_normal((rows, HIDDEN), np.float32)


def attention(positions_max: int = 16) -> Attention:
    return Attention(Weights(), 0, Rotary(DIM, 10000.0, positions_max), positions_max)


def by_the_book(x: np.ndarray) -> np.ndarray:
    """Causal grouped-query attention, token by token and head by head, in FP64."""
    q, k, v, o = (Weights().weight(f"{p}_proj").astype(np.float64) for p in "qkvo")

    def rotated(row: np.ndarray, position: int) -> np.ndarray:
        out = np.empty(DIM)
        for i in range(DIM // 2):
            angle = position * 10000.0 ** (-2 * i / DIM)
            a, b = row[i], row[i + DIM // 2]
            out[i] = a * np.cos(angle) - b * np.sin(angle)
            out[i + DIM // 2] = b * np.cos(angle) + a * np.sin(angle)
        return out

    out = np.empty_like(x)
    for t in range(len(x)):
        heads = []
        for head in range(HEADS):
            rows = slice(head * DIM, (head + 1) * DIM)
            group = slice((head * KV_HEADS // HEADS) * DIM, (head * KV_HEADS // HEADS + 1) * DIM)
            query = rotated(q[rows] @ x[t], t)
            scores = [query @ rotated(k[group] @ x[s], s) / DIM**0.5 for s in range(t + 1)]
            shares = np.exp(np.array(scores) - max(scores))
            shares /= shares.sum()
            heads.append(sum(p * (v[group] @ x[s]) for s, p in enumerate(shares)))
        out[t] = o @ np.concatenate(heads)
    return out


def test_attention_is_the_formula():
    x = np.random.default_rng(5).standard_normal((7, HIDDEN))
    got = attention()(x.astype(np.float32))
    expected = by_the_book(x.astype(np.float32).astype(np.float64))
    # Four products in a row, of at most HIDDEN terms, each rounded in FP32.
    np.testing.assert_allclose(got, expected, rtol=0, atol=4 * HIDDEN * 2**-24 * 100)


def test_the_cache_continues_where_it_stopped():
    x = np.random.default_rng(6).standard_normal((9, HIDDEN), np.float32)
    whole = attention()(x)
    piecewise = attention()
    parts = [piecewise(x[:4]), piecewise(x[4:5]), piecewise(x[5:])]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-4)


def test_rotary_turns_pairs_of_halves():
    x = np.array([[[1.0, 0.0, 0.0, 0.0]]], np.float32)
    turned = Rotary(4, 10000.0, 3)(x, 2)[0, 0]
    np.testing.assert_allclose(turned, [np.cos(2), 0, np.sin(2), 0], atol=1e-6)


def test_text_is_streamed_in_whole_characters():
    data = "a\N{EURO SIGN}b".encode()
    stream = TextStream(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    assert [stream.push(byte) for byte in data] == ["a", "", "", "\N{EURO SIGN}", "b"]


def test_the_stored_margins_leave_no_doubt():
    expected = json.loads(EXPECTED.read_text("utf-8"))
    assert len(expected["tokens"]) == len(expected["margins"]) == 48
    assert min(expected["margins"]) > 100 * expected["logit_noise"]


def test_a_models_tokens_equal_those_in_fp64(tmp_path):
    """The example against a real server, on a small synthetic model."""
    folder, layers = tmp_path / "model", 2
    tool = ROOT / "tools/models/synthetic_checkpoint.py"
    sizes = ["--layers", str(layers), "--vocabulary", "1024"]
    subprocess.run([sys.executable, tool, folder, *sizes], check=True)
    served = {"m": {"path": folder, "dtype": "FP32", "rounding": "hf"}}
    prompt, count = [1, 824, 11], 12
    checkpoint = Checkpoint(folder)
    with serving(served, tmp_path / "log") as address, Client(address) as client:
        model = Model(client, "m", checkpoint, len(prompt) + count)
        tokens = list(greedy(model, prompt, count))
    margin, expected = most_likely(checkpoint, prompt + tokens[:-1], count)
    assert margin > 1e-3  # else the prompt is a poor one
    assert tokens == expected
    assert model.cost.tokens == count
    assert model.cost.rpcs == count * (2 * layers + 2)
