#!/usr/bin/env python3
"""Batching on against off: callers of the engine in one process, without RPC.

Runs fuseblock_bench_batching (tests/bench/batching_bench.cc) on the 4096/14336 FFN path and writes
evidence/records/batching.json and a copy into --out. Smaller sizes and --device cpu are for trying
it out: they write to --out alone.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "evidence")]

import record as records  # noqa: E402

HIDDEN, INTERMEDIATE = 4096, 14336
# What the claim is about: many callers of one token each.
BAR = {"mix": "one_token", "callers": 64}
BAR_RATIO = 10


def results_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each mix and number of callers; `value` is the rate with batching on."""
    rows: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for turn in report["results"]:
        rows.setdefault((turn["mix"], turn["callers"]), {})[turn["batching"]] = turn
    results = []
    for (mix, callers), sides in rows.items():
        on, off = sides["on"], sides["off"]
        rate = statistics.median(on["requests_per_s"])
        rate_off = statistics.median(off["requests_per_s"])
        results.append(
            {
                "case": {
                    "mix": mix,
                    "callers": callers,
                    "block": "ffn_path",
                    "hidden": report["hidden"],
                    "intermediate": report["intermediate"],
                    "dtype": report["dtype"],
                    "device": report["device"],
                },
                "value": round(rate, 1),
                "unit": "requests/s",
                "min": round(min(on["requests_per_s"]), 1),
                "max": round(max(on["requests_per_s"]), 1),
                "p50_us": round(on["p50_us"], 1),
                "p99": round(on["p99_us"], 1),
                "tokens_per_batch": round(on["tokens_per_batch"], 1),
                "peers": {"off": round(rate_off, 1)},
                "off_p50_us": round(off["p50_us"], 1),
                "off_p99_us": round(off["p99_us"], 1),
                "ratio": round(rate / rate_off, 2) if rate_off else None,
                "compared": on["compared"] + off["compared"],
                "differences": on["differences"] + off["differences"],
            }
        )
    return results


def holds(report: dict[str, Any], results: list[dict[str, Any]]) -> bool:
    bar = [r for r in results if all(r["case"][key] == value for key, value in BAR.items())]
    return (
        all(r["compared"] and not r["differences"] for r in results)
        and report["allocations_while_serving"] == 0
        and bool(bar)
        and all((r["ratio"] or 0) >= BAR_RATIO for r in bar)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, required=True, help="fuseblock_bench_batching")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--intermediate", type=int, default=INTERMEDIATE)
    parser.add_argument("--callers", default="1,16,64,256")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1, help="of each turn")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    options = {
        name: str(getattr(arguments, name))
        for name in ("device", "hidden", "intermediate", "callers", "rounds", "seconds")
    }
    record = records.new_record(
        "batching", "./dev gpu bench --filter batching", config=options, seeds=[17]
    )
    command = [str(arguments.program)]
    for name, value in options.items():
        command += [f"--{name}", value]
    # What it measured is shown as it comes; a difference ends it with exit code 1, and is recorded.
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not run.stdout:
        print(f"{arguments.program.name} exited with {run.returncode}", file=sys.stderr)
        return 1
    report = json.loads(run.stdout)
    record["config"] |= {
        "lanes": report["lanes"],
        "graph_bytes": report["graph_bytes"],
        "allocations_while_serving": report["allocations_while_serving"],
    }
    record["results"] = results_of(report)
    record["holds"] = holds(report, record["results"])
    for result in record["results"]:
        print(json.dumps(result))
    if arguments.device.startswith("cuda") and arguments.hidden == HIDDEN:
        shutil.copy(records.write(record), arguments.out)
    else:
        (arguments.out / "batching.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
