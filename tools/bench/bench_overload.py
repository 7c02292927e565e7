#!/usr/bin/env python3
"""Overload: an open loop at 2, 4 and 10 times what the server can do, each request with a deadline.

The block is a feed-forward network heavy enough that its capacity is at most 5 % of what a bare
gRPC echo answers, so that what is measured is admission and not the transport. Capacity (a closed
loop) and load take turns, since what a machine can do drifts, and a load is held against the mean
of what was measured before and after it; goodput is what was answered in time until the last
request was sent and the last answer came. A second client, which does next to nothing, sends a few
requests beside the load: its refusals tell how long a refusal takes where the client is not busy
itself. How long the same client waits for a refusal of a server with nothing else to do says what
the machine makes of that. Writes evidence/records/overload.json.

Clients are on other machines in life, and their work is not the server's: the server (and the
echo) has the first half of this machine's cores for itself, the clients the second. The record
says how many, and how much of theirs the clients used ("clients_share").
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_peers import SEED, Case, Turns, echo, measure, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("evidence", "tests/load")]

import record as records  # noqa: E402
import serving  # noqa: E402

HIDDEN, INTERMEDIATE, DTYPE = 512, 131072, "bf16"
CASE = Case("bench.layers.0.mlp", HIDDEN, DTYPE, tokens=32, inflight=16, channels=4)
LOADS = (2, 4, 10)
DEADLINE_MS = 1000
PROBES_PER_S = 50
ROUNDS = 7
CAPACITY_SECONDS = 2.0  # of a turn
SETTINGS = {"devices": "cpu", "engine.max_batch_tokens": 64, "admission.max_request_tokens": 64}

CAPACITY_SHARE_MAX = 0.05  # of the echo's rate
GOODPUT_MIN = 0.95  # of the capacity
REFUSAL_P99_MS_MAX = 5.0
GROWTH_MAX = 0.02  # of the memory after the first third
# Reasons of a request that was let in and then came to nothing in time.
LATE = ("EXPIRED", "DEADLINE_EXCEEDED")


def halves_of_cores() -> tuple[set[int], set[int]]:
    """The server's cores and the clients'."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("at least 2 cores are needed: the server's and the clients'")
    half = len(cores) // 2
    return set(cores[:half]), set(cores[half:])


@contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """Programs that this thread starts meanwhile run on those cores, all their life."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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


class Client:
    """The client programs and the server that they call."""

    def __init__(self, programs: Path, server: serving.Server) -> None:
        self.programs = programs
        self.server = server

    def capacity(self, echo_at: str) -> tuple[float, float]:
        """Requests a second, and the echo's."""
        turns = Turns(rounds=1, seconds=CAPACITY_SECONDS)
        client = self.programs / "fuseblock_bench_rpc"
        report = measure(client, echo_at, self.server.address, CASE, turns)
        return report["server"]["requests_per_s"][0], report["echo"]["requests_per_s"][0]

    def open_loop(self, rate: float, seconds: float, channels: int, block: str = CASE.block):
        """Starts one; report() waits for it."""
        words = (self.server.address, block, CASE.tokens, CASE.columns, CASE.dtype, rate, seconds)
        command = [self.programs / "fuseblock_bench_open_loop", *words, DEADLINE_MS, channels]
        return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)

    def refusals_when_idle(self, seconds: float) -> float:
        """The p99 of refusals, in ms, of a server that does nothing else."""
        answers = report(self.open_loop(PROBES_PER_S, seconds, 1, CASE.block + ".none"))
        latencies = [us for each in answers["answers_us"].values() for us in each]
        return quantile(latencies, 0.99) / 1000


def report(process: subprocess.Popen) -> dict[str, Any]:
    return json.loads(process.communicate()[0])


def quantile(values: list[float], at: float) -> float:
    return sorted(values)[min(len(values) - 1, int(at * len(values)))] if values else 0


@dataclass
class Rounds:
    """What was seen of one load, by round and in all."""

    capacity: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)
    clients_share: list[float] = field(default_factory=list)
    sent: int = 0
    sent_late_us: float = 0  # the worst round's p99
    answers_us: dict[str, list[float]] = field(default_factory=dict)
    probes_us: dict[str, list[float]] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    shed: float = 0

    def add(self, load: dict[str, Any], probe: dict[str, Any]) -> None:
        both = (load, probe)
        in_time = sum(len(each["answers_us"].get("OK", [])) for each in both)
        took = max(max(each["seconds"], each["answered_seconds"]) for each in both)
        self.goodput.append(in_time / took)
        cpu = sum(each["cpu_seconds"] for each in both)
        self.clients_share.append(cpu / load["seconds"] / len(os.sched_getaffinity(0)))
        self.sent += load["sent"] + probe["sent"]
        self.sent_late_us = max(self.sent_late_us, load["late_us_p99"])
        for seen, each in ((self.answers_us, load), (self.probes_us, probe)):
            for name, latencies in each["answers_us"].items():
                seen.setdefault(name, []).extend(latencies)

    def count(self, name: str) -> int:
        return len(self.answers_us.get(name, [])) + len(self.probes_us.get(name, []))


def run_loads(client: Client, echo_at: str, times: int, seconds: float) -> Rounds:
    """Offers so many times the capacity, which is measured anew before and after each round."""
    rounds = Rounds()
    shed_before = sheds(client.server)
    capacity, echoed = client.capacity(echo_at)
    for _ in range(ROUNDS):
        before = capacity
        rounds.echo.append(echoed)
        with watched_memory(client.server) as memory:
            load = client.open_loop(times * capacity, seconds / ROUNDS, CASE.channels)
            probe = client.open_loop(PROBES_PER_S, seconds / ROUNDS, 1)
            rounds.add(report(load), report(probe))
        rounds.memory += memory
        capacity, echoed = client.capacity(echo_at)
        rounds.capacity.append((before + capacity) / 2)
    time.sleep(0.5)  # until the server has counted what clients gave up
    rounds.shed = sheds(client.server) - shed_before
    return rounds


def result_of(times: int, seen: Rounds, idle_ms: float) -> dict[str, Any]:
    answered = seen.answers_us.get("OK", [])
    late = sum(seen.count(name) for name in LATE)
    names = {*seen.answers_us, *seen.probes_us} - {"OK", *LATE}
    refused = {name: seen.count(name) for name in sorted(names)}
    refusals = [us for name in names for us in seen.probes_us.get(name, [])]
    refusal_ms = quantile(refusals, 0.99) / 1000
    ratios = [
        goodput / capacity for goodput, capacity in zip(seen.goodput, seen.capacity, strict=True)
    ]
    steady = seen.memory[len(seen.memory) // 3 :]
    growth = (max(steady) - steady[0]) / steady[0]
    capacity, echoed = statistics.median(seen.capacity), statistics.median(seen.echo)
    ratio = statistics.median(ratios)
    checks = {
        "goodput": ratio >= GOODPUT_MIN,
        "deadline": late <= 0.01 * (seen.count("OK") + late),
        "refusals": bool(refusals) and refusal_ms < REFUSAL_P99_MS_MAX,
        "memory": growth <= GROWTH_MAX,
        "counters": seen.shed >= sum(refused.values()),
        "heavy": capacity <= CAPACITY_SHARE_MAX * echoed,
    }
    return {
        "case": {"offered": times, "block": "mlp", "tokens": CASE.tokens, "dtype": CASE.dtype},
        "value": round(statistics.median(seen.goodput), 2),
        "unit": "requests/s",
        "capacity": round(capacity, 2),
        "ratio": round(ratio, 3),
        "ratios": [round(each, 3) for each in ratios],
        "samples": seen.sent,
        "p50": round(quantile(answered, 0.5) / 1000, 2),
        "p99": round(quantile(answered, 0.99) / 1000, 2),
        "max": round(max(answered, default=0) / 1000, 2),
        "deadline_ms": DEADLINE_MS,
        "late": late,
        "refused": refused,
        "shed_total": seen.shed,
        "refusal_p99_ms": round(refusal_ms, 2),
        "idle_refusal_p99_ms": round(idle_ms, 2),
        "clients_share": round(statistics.median(seen.clients_share), 4),
        "sent_late_us_p99": seen.sent_late_us,
        "memory_bytes": {"start": steady[0], "max": max(steady), "growth": round(growth, 4)},
        "peers": {"echo": round(echoed, 1)},
        "checks": checks,
        "holds": all(checks.values()),
    }


def show(result: dict[str, Any]) -> None:
    failed = [name for name, held in result["checks"].items() if not held]
    print(
        f"{result['case']['offered']:>3}x: {result['value']:.1f}/s of {result['capacity']:.1f} "
        f"({result['ratio']:.3f} of {min(result['ratios'])}..{max(result['ratios'])}), p99 "
        f"{result['p99']:.0f} ms of {DEADLINE_MS}, late {result['late']}, refused "
        f"{result['refused']} of which p99 {result['refusal_p99_ms']} ms (idle "
        f"{result['idle_refusal_p99_ms']}), clients took {100 * result['clients_share']:.1f} % "
        f"of their cores, memory +{100 * result['memory_bytes']['growth']:.2f} % "
        f"{'MISSED ' + ', '.join(failed) if failed else ''}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=Path, required=True, help="fuseblock-server")
    parser.add_argument("--clients", type=Path, required=True, help="folder of fuseblock_bench_*")
    parser.add_argument("--seconds", type=float, default=35, help="of each load, in all rounds")
    parser.add_argument("--suffix", default="", help="of the records' names: another machine's")
    arguments = parser.parse_args()
    server_cores, client_cores = halves_of_cores()
    config = {
        "seconds": arguments.seconds,
        "rounds": ROUNDS,
        "block": f"mlp {HIDDEN}/{INTERMEDIATE} {DTYPE}, {CASE.tokens} tokens a request",
        "deadline_ms": DEADLINE_MS,
        "clients": "same host, cores of their own",
        "cores": {"server": len(server_cores), "clients": len(client_cores)},
    } | SETTINGS
    name = "overload" + arguments.suffix
    record = records.new_record(name, "./dev bench overload", config, seeds=[SEED])
    settings = [word for name, to in SETTINGS.items() for word in ("--set", f"{name}={to}")]
    with on(client_cores), tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        write_checkpoint(Path(folder), HIDDEN, INTERMEDIATE, DTYPE)
        with on(server_cores):
            server = running.enter_context(
                serving.server(arguments.server, "--model", f"bench={folder}", *settings)
            )
            echo_at = running.enter_context(echo(arguments.clients / "fuseblock_bench_echo"))
        client = Client(arguments.clients, server)
        for times in LOADS:
            idle_ms = client.refusals_when_idle(arguments.seconds / ROUNDS)
            seen = run_loads(client, echo_at, times, arguments.seconds)
            result = result_of(times, seen, idle_ms)
            record["results"].append(result)
            show(result)
    record["holds"] = all(result["holds"] for result in record["results"])
    path = records.write(record)
    print(f"{path.relative_to(ROOT)}: {'holds' if record['holds'] else 'REFUTED'}")
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
