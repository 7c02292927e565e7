#!/usr/bin/env python3
"""Overload: an open loop at 2, 4 and 10 times what the server can do, each request with a deadline.

The block is a feed-forward network heavy enough that its capacity is at most 5 % of what a bare
gRPC echo answers, so that what is measured is admission and not the transport. A second client,
which does next to nothing, sends a few requests beside the load: its refusals tell how long a
refusal takes where the client is not busy itself. Writes evidence/records/overload.json.

Clients and server share the machine, so the load takes time away from the block: the record says
how much of all cores the clients used ("clients_share"), and the bar is held against the whole
capacity all the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpc_peers import SEED, Case, Turns, echo, measure, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("evidence", "tests/load")]

import record as records  # noqa: E402
import serving  # noqa: E402

HIDDEN, INTERMEDIATE, DTYPE = 512, 65536, "bf16"
CASE = Case("bench.layers.0.mlp", HIDDEN, DTYPE, tokens=32, inflight=16, channels=4)
LOADS = (2, 4, 10)
DEADLINE_MS = 1000
PROBES_PER_S = 20
SETTINGS = {"devices": "cpu", "engine.max_batch_tokens": 64, "admission.max_request_tokens": 64}

CAPACITY_SHARE_MAX = 0.05  # of the echo's rate
GOODPUT_MIN = 0.95  # of the capacity
REFUSAL_P99_MS_MAX = 5.0
GROWTH_MAX = 0.02  # of the memory after the first third
# Reasons of a request that was let in and then came to nothing in time.
LATE = ("EXPIRED", "DEADLINE_EXCEEDED")


@contextmanager
def watched_memory(server: serving.Server) -> Iterator[list[int]]:
    """The server's memory, five times a second, while the block runs."""
    seen: list[int] = []
    end = threading.Event()

    def watch() -> None:
        while not end.wait(0.2):
            seen.append(server.resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        end.set()
        watcher.join()


def sheds(server: serving.Server) -> float:
    lines = server.metric_lines()
    return sum(float(at.split()[-1]) for at in lines if at.startswith("fuseblock_shed_total{"))


def open_loop(client: Path, server: serving.Server, rate: float, seconds: float, channels: int):
    words = (server.address, CASE.block, CASE.tokens, CASE.columns, CASE.dtype, rate, seconds)
    command = [client, *words, DEADLINE_MS, channels]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)


def run_load(
    client: Path, server: serving.Server, times: int, capacity: float, seconds: float
) -> dict[str, Any]:
    """Offers so many times the capacity and says what came of it."""
    shed_before = sheds(server)
    with watched_memory(server) as memory:
        load = open_loop(client, server, times * capacity, seconds, CASE.channels)
        probe = open_loop(client, server, PROBES_PER_S, seconds, 1)
        reports = [json.loads(each.communicate()[0]) for each in (load, probe)]
    time.sleep(0.5)  # until the server has counted what clients gave up
    return result_of(times, capacity, reports, sheds(server) - shed_before, memory)


def result_of(
    times: int,
    capacity: float,
    reports: list[dict[str, Any]],
    shed: float,
    memory: list[int],
) -> dict[str, Any]:
    load, probe = reports
    counts: dict[str, int] = {}
    for report in reports:
        for name, answers in report["answers"].items():
            counts[name] = counts.get(name, 0) + answers["count"]
    answered = load["answers"].get("OK", {"count": 0, "p50_us": 0, "p99_us": 0, "max_us": 0})
    goodput = counts.get("OK", 0) / load["seconds"]
    late = sum(counts.get(name, 0) for name in LATE)
    refused = {n: c for n, c in counts.items() if n not in ("OK", *LATE)}
    refusals_us = [
        answers["p99_us"] for name, answers in probe["answers"].items() if name in refused
    ]
    steady = memory[len(memory) // 3 :]
    growth = (max(steady) - steady[0]) / steady[0]
    checks = {
        "goodput": goodput >= GOODPUT_MIN * capacity,
        "deadline": late <= 0.01 * (counts.get("OK", 0) + late),
        "refusals": bool(refusals_us) and max(refusals_us) < REFUSAL_P99_MS_MAX * 1000,
        "memory": growth <= GROWTH_MAX,
        "counters": shed >= sum(refused.values()),
    }
    return {
        "case": {"offered": times, "block": "mlp", "tokens": CASE.tokens, "dtype": CASE.dtype},
        "value": round(goodput, 2),
        "unit": "requests/s",
        "capacity": round(capacity, 2),
        "ratio": round(goodput / capacity, 3),
        "samples": load["sent"] + probe["sent"],
        "p50": round(answered["p50_us"] / 1000, 2),
        "p99": round(answered["p99_us"] / 1000, 2),
        "max": round(answered["max_us"] / 1000, 2),
        "deadline_ms": DEADLINE_MS,
        "late": late,
        "refused": refused,
        "shed_total": shed,
        "refusal_p99_ms": round(max(refusals_us, default=0) / 1000, 2),
        "clients_share": round(
            sum(r["cpu_seconds"] for r in reports) / load["seconds"] / (os.cpu_count() or 1), 4
        ),
        "sent_late_us_p99": load["late_us_p99"],
        "memory_bytes": {"start": steady[0], "max": max(steady), "growth": round(growth, 4)},
        "checks": checks,
        "holds": all(checks.values()),
    }


def show(result: dict[str, Any]) -> None:
    failed = [name for name, held in result["checks"].items() if not held]
    print(
        f"{result['case']['offered']:>3}x: {result['value']:.1f}/s of {result['capacity']:.1f} "
        f"({result['ratio']:.3f}), p99 {result['p99']:.0f} ms of {DEADLINE_MS}, late "
        f"{result['late']}, refused {result['refused']} of which p99 "
        f"{result['refusal_p99_ms']} ms, clients took {100 * result['clients_share']:.1f} % "
        f"of the cores, memory +{100 * result['memory_bytes']['growth']:.2f} % "
        f"{'MISSED ' + ', '.join(failed) if failed else ''}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="a build folder")
    parser.add_argument("--seconds", type=float, default=20, help="of each load")
    arguments = parser.parse_args()
    tests = arguments.build / "tests/bench"
    config = {
        "seconds": arguments.seconds,
        "block": f"mlp {HIDDEN}/{INTERMEDIATE} {DTYPE}, {CASE.tokens} tokens a request",
        "deadline_ms": DEADLINE_MS,
        "clients": "same host",
    } | SETTINGS
    record = records.new_record("overload", "./dev bench overload", config, seeds=[SEED])
    settings = [word for name, to in SETTINGS.items() for word in ("--set", f"{name}={to}")]
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), HIDDEN, INTERMEDIATE, DTYPE)
        model = ("--model", f"bench={folder}")
        with serving.server(
            arguments.build / "server/fuseblock-server", *model, *settings
        ) as server:
            for times in LOADS:
                # Anew before each load: what the machine can do drifts.
                with echo(tests / "fuseblock_bench_echo") as echo_at:
                    turns = Turns(rounds=3, seconds=min(3.0, arguments.seconds / 4))
                    alone = measure(
                        tests / "fuseblock_bench_rpc", echo_at, server.address, CASE, turns
                    )
                capacity = sorted(alone["server"]["requests_per_s"])[1]
                echoed = sorted(alone["echo"]["requests_per_s"])[1]
                result = run_load(
                    tests / "fuseblock_bench_open_loop",
                    server,
                    times,
                    capacity,
                    arguments.seconds,
                )
                result["peers"] = {"echo": echoed}
                result["checks"]["heavy"] = capacity <= CAPACITY_SHARE_MAX * echoed
                result["holds"] = all(result["checks"].values())
                record["results"].append(result)
                show(result)
    record["holds"] = all(result["holds"] for result in record["results"])
    path = records.write(record)
    print(f"{path.relative_to(ROOT)}: {'holds' if record['holds'] else 'REFUTED'}")
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
