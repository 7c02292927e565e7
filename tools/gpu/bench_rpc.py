#!/usr/bin/env python3
"""Requests through the real server on a GPU host: the 4096/14336 FFN path beside a bare gRPC echo.

Writes a one-layer checkpoint of seeded random weights, serves it, and lets one client program call
server and echo in turns: one token at a time, 64 clients of one token, messages of 4 MiB. Where
the bar is the echo's time and the kernels', there is also what an echo takes that is busy for as
long as the kernels. Client and servers share the host. Writes evidence/records/gpu_rpc.json with
its raw samples, and copies into --out.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("evidence", "tests/load", "tools/bench")]

import record as records  # noqa: E402
import serving  # noqa: E402
from rpc_peers import (  # noqa: E402
    SEED,
    Case,
    Turns,
    echo,
    measure,
    result_of,
    samples_of,
    write_checkpoint,
)

HIDDEN, INTERMEDIATE, DTYPE = 4096, 14336, "bf16"
BLOCK = "bench.layers.0.ffn_path"
CONNECTIONS = 8  # of more than one request in flight


def case_of(tokens: int, inflight: int) -> Case:
    return Case(BLOCK, HIDDEN, DTYPE, tokens, inflight, min(inflight, CONNECTIONS))


# p50_us: at most bar times (the echo's + the kernels' time). requests_per_s: at least bar times the
# echo's; of 4 MiB each, that is bytes/s as well. No bar: for the record.
CASES: list[tuple[Case, str, float | None]] = [
    (case_of(1, 1), "p50_us", 1.25),
    (case_of(16, 1), "p50_us", None),
    (case_of(256, 1), "p50_us", None),
    (case_of(1, 64), "requests_per_s", 0.9),
    (case_of(16, 64), "requests_per_s", None),
    (case_of(512, 16), "requests_per_s", 0.9),
]


def judged(case: Case, report: dict[str, Any], measured: str, bar: float | None) -> dict[str, Any]:
    # What events around the kernels measured, which waiting and copying are no part of.
    kernel_us = report["phases_us_p50"]["compute"]
    allowed_us = kernel_us if measured == "p50_us" else 0
    result = result_of(case, report, measured, bar or 1, host="gpu", allowed_us=allowed_us)
    result["kernel_us"] = kernel_us
    if bar is None:
        del result["bar"], result["holds"]
    return result


def measure_busy_echo(
    arguments: argparse.Namespace, case: Case, server: str, kernel_us: float
) -> dict[str, Any]:
    """In turns with the server once more, whose numbers are part of it."""
    turns = Turns(arguments.rounds, arguments.seconds)
    with echo(arguments.echo, kernel_us) as echo_at:
        return measure(arguments.client, echo_at, server, case, turns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, required=True, help="fuseblock-server")
    parser.add_argument("--client", type=Path, required=True, help="fuseblock_bench_rpc")
    parser.add_argument("--echo", type=Path, required=True, help="fuseblock_bench_echo")
    parser.add_argument("--rounds", type=int, default=9, help="of one turn each")
    parser.add_argument("--seconds", type=float, default=0.7, help="of a turn")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    turns = Turns(arguments.rounds, arguments.seconds)
    config = {"rounds": turns.rounds, "seconds": turns.seconds, "client": "same host"}
    record = records.new_record("gpu_rpc", "./dev gpu bench --filter rpc", config, seeds=[SEED])
    samples: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), HIDDEN, INTERMEDIATE, DTYPE)
        model = ("--model", f"bench={folder}")
        with (
            serving.server(arguments.server, *model) as ours,
            echo(arguments.echo) as echo_at,
        ):
            for case, measured, bar in CASES:
                report = measure(arguments.client, echo_at, ours.address, case, turns)
                result = judged(case, report, measured, bar)
                if measured == "p50_us" and bar is not None:
                    busy = measure_busy_echo(arguments, case, ours.address, result["kernel_us"])
                    result["peers"]["busy_echo"] = round(
                        statistics.median(busy["echo"]["p50_us"]), 1
                    )
                    samples[f"{records.case_name(result)} busy echo"] = samples_of(busy)
                record["results"].append(result)
                samples[records.case_name(result)] = samples_of(report)
                print(json.dumps(result), flush=True)
            devices = {
                line.split('device="')[1].split('"')[0]
                for line in ours.metric_lines()
                if line.startswith("fuseblock_device_healthy{") and line.endswith(" 1")
            }
            fallbacks = sum(
                float(line.split()[-1])
                for line in ours.metric_lines()
                if line.startswith("fuseblock_fallback_total{")
            )
    record["config"]["devices"] = sorted(devices)
    on_gpu = any(device.startswith("cuda") for device in devices) and fallbacks == 0
    record["holds"] = on_gpu and all(r.get("holds", True) for r in record["results"])
    shutil.copy(records.write_samples("gpu_rpc", samples, set()), arguments.out)
    shutil.copy(records.write(record), arguments.out)
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
