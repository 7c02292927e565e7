"""The server beside a bare gRPC echo: both started here, called in turns by one client program."""

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("evidence", "tests/load", "tools/models")]

import serving  # noqa: E402
from safetensors_writer import encode, write_safetensors  # noqa: E402

SEED = 1
VOCABULARY = 256
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SIZES = {"fp32": 4, "fp16": 2, "bf16": 2}


def write_checkpoint(folder: Path, hidden: int, intermediate: int, dtype: str) -> None:
    """One Llama layer of seeded random weights."""
    config = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 1,
        "num_attention_heads": max(1, hidden // 128),
        "num_key_value_heads": 1,
        "head_dim": min(hidden, 128),
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
        "torch_dtype": DTYPES[dtype],
    }
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        layer + "input_layernorm.weight": (hidden,),
        layer + "post_attention_layernorm.weight": (hidden,),
        layer + "mlp.gate_proj.weight": (intermediate, hidden),
        layer + "mlp.up_proj.weight": (intermediate, hidden),
        layer + "mlp.down_proj.weight": (hidden, intermediate),
        "model.norm.weight": (hidden,),
    }
    random = np.random.default_rng(SEED)
    payloads = (
        encode(random.standard_normal(shape, np.float32) * shape[-1] ** -0.5, DTYPES[dtype])
        for shape in shapes.values()
    )
    write_safetensors(folder / "model.safetensors", shapes, payloads, DTYPES[dtype])


@contextlib.contextmanager
def echo(program: Path, busy_us: float = 0) -> Iterator[str]:
    """The echo, listening, that is busy for so long with each message; its address."""
    address = f"127.0.0.1:{serving.free_port()}"
    command = [program, address, str(round(busy_us))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield address
    finally:
        process.stdin.close()  # which ends it
        process.wait(timeout=20)


@dataclass
class Case:
    """Requests of one size to one block, that many in flight over that many connections."""

    block: str
    columns: int
    dtype: str
    tokens: int
    inflight: int
    channels: int

    def payload_bytes(self) -> int:
        return self.tokens * self.columns * SIZES[self.dtype]


@dataclass
class Turns:
    """How long a case is measured: rounds of one turn each for echo and server."""

    rounds: int
    seconds: float


def measure(client: Path, echo_at: str, server_at: str, case: Case, turns: Turns) -> dict[str, Any]:
    """What the client program prints for a case."""
    words = (echo_at, server_at, case.block, case.tokens, case.columns, case.dtype, case.inflight)
    words += (case.channels, turns.rounds, turns.seconds)
    command = [str(word) for word in (client, *words)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{client.name} exited with {run.returncode}: {run.stderr}")
    return json.loads(run.stdout)


def samples_of(report: dict[str, Any]) -> dict[str, Any]:
    """Every round's numbers and the histograms of all latencies, for the file beside the record."""
    return {
        f"{who} {what}": report[who][what]
        for who in ("echo", "server")
        for what in ("p50_us", "p99_us", "requests_per_s", "bins_us", "calls")
    }


def result_of(
    case: Case,
    report: dict[str, Any],
    measured: str,
    bar: float,
    host: str = "cpu",
    allowed_us: float = 0,
) -> dict[str, Any]:
    """One entry of a record. measured: p50_us, which must be at most bar times (the echo's and
    allowed_us), or requests_per_s, which must be at least bar times the echo's."""
    ours, peer = report["server"], report["echo"]
    time = measured == "p50_us"
    value = statistics.median(ours[measured])
    echo_value = statistics.median(peer[measured])
    # The median of the rounds' ratios, since both drift with the machine.
    rounds = zip(ours[measured], peer[measured], strict=True)
    reached = statistics.median(mine / (theirs + allowed_us) for mine, theirs in rounds)
    return {
        "case": {
            "host": host,
            "block": case.block.split(".")[-1],
            "columns": case.columns,
            "dtype": case.dtype,
            "tokens": case.tokens,
            "payload_bytes": case.payload_bytes(),
            "inflight": case.inflight,
            "channels": case.channels,
        },
        "value": round(value, 1),
        "unit": "us" if time else "requests/s",
        "min": round(min(ours[measured]), 1),
        "max": round(max(ours[measured]), 1),
        "p50": round(statistics.median(ours["p50_us"]), 1),
        "p99": round(statistics.median(ours["p99_us"]), 1),
        "samples": ours["requests"],
        "requests_per_s": round(statistics.median(ours["requests_per_s"]), 1),
        "bytes_per_s": round(statistics.median(ours["requests_per_s"]) * case.payload_bytes()),
        "phases_us_p50": report["phases_us_p50"],
        "peers": {"echo": round(echo_value, 1)},
        "ratio": round(1 / reached if time else reached, 3),
        "bar": {"at_most" if time else "at_least": bar, "reached": round(reached, 3)},
        "holds": reached <= bar if time else reached >= bar,
    }
