#!/usr/bin/env python3
"""Requests through the real server on a GPU host: the 4096/14336 FFN path, with its phase split.

Writes a one-layer checkpoint of seeded random weights, serves it, and lets `fuseblock bench` call
the block with one token and more, one request and 64 in flight. Client and server share the host.
Writes evidence/records/gpu_rpc.json and a copy into --out.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("evidence", "tests/load", "tools/models")]

import record as records  # noqa: E402
import serving  # noqa: E402
from safetensors_writer import encode, write_safetensors  # noqa: E402

SEED = 1
HIDDEN, INTERMEDIATE, VOCABULARY = 4096, 14336, 256
CASES = [(1, 1), (16, 1), (256, 1), (1, 64), (16, 64)]  # tokens, requests in flight
BLOCK = "bench.layers.0.ffn_path"


def write_checkpoint(folder: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        layer + "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        layer + "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "model.norm.weight": (HIDDEN,),
    }
    random = np.random.default_rng(SEED)
    payloads = (
        encode(random.standard_normal(shape, np.float32) * shape[-1] ** -0.5, "bfloat16")
        for shape in shapes.values()
    )
    write_safetensors(folder / "model.safetensors", shapes, payloads, "bfloat16")


def bench(client: Path, address: str, tokens: int, inflight: int, seconds: float) -> dict[str, Any]:
    command = [client, "--server", address, "--json", "bench", BLOCK, "--tokens", str(tokens)]
    command += ["--concurrency", str(inflight), "--duration", str(seconds)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"fuseblock bench exited with {run.returncode}: {run.stderr}")
    return json.loads(run.stdout)


def result_of(tokens: int, inflight: int, report: dict[str, Any]) -> dict[str, Any]:
    latency = report["latency_us"]
    phases = {name: round(d["p50"], 1) for name, d in report.get("phases_us", {}).items()}
    return {
        "case": {
            "block": "ffn_path",
            "hidden": HIDDEN,
            "intermediate": INTERMEDIATE,
            "dtype": "bf16",
            "tokens": tokens,
            "inflight": inflight,
            "payload_bytes": tokens * HIDDEN * 2,
            "backend": report["backend"],
        },
        "value": round(latency["p50"], 1),
        "unit": "us",
        "p99": round(latency["p99"], 1),
        "samples": report["requests"],
        "requests_per_s": round(report["requests_per_s"], 1),
        "phases_us_p50": phases,
        "compute_share": round(phases.get("compute", 0) / latency["p50"], 3),
        "errors": report["errors"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, required=True, help="fuseblock-server")
    parser.add_argument("--client", type=Path, required=True, help="the command fuseblock")
    parser.add_argument("--seconds", type=float, default=5, help="of load for each case")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    record = records.new_record(
        "gpu_rpc",
        "./dev gpu bench --filter rpc",
        config={"seconds": arguments.seconds, "client": "same host"},
        seeds=[SEED],
    )
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        with serving.server(arguments.server, "--model", f"bench={folder}") as server:
            for tokens, inflight in CASES:
                report = bench(
                    arguments.client, server.address, tokens, inflight, arguments.seconds
                )
                record["results"].append(result_of(tokens, inflight, report))
                print(json.dumps(record["results"][-1]), flush=True)
    record["holds"] = all(
        not r["errors"] and r["case"]["backend"].startswith("cuda") for r in record["results"]
    )
    shutil.copy(records.write(record), arguments.out)
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
