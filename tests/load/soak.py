#!/usr/bin/env python3
"""Mixed load for minutes or hours: ragged requests whose every answer must have the bits that the
same request has alone, beside wrong requests, hopeless deadlines, cancellations and clients that
crash.

What is counted: right answers, declared refusals (with reason), wrong bits (0), other errors (0),
and the server's memory, which at the end must be within 2 % of what it was after two minutes (in a
shorter run, after half of it). At the end the server's counters must agree with each other and with
what clients saw (counters.py). Writes evidence/records/soak.json, the memory over time beside it.
"""

import argparse
import collections
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import serving
from counters import Counters, disagreements
from fuseblock import Client, Expired, FuseblockError, RawTensor, Refused
from record import new_record, write, write_samples

SEED = 7
TOKENS_MAX = 300
SIZES = 40  # distinct requests for each block
BLOCKS = ["smollm2.layers.0.mlp", "smollm2.layers.0.ffn_path", "smollm2.layers.0.ffn_norm"]
CLIENT_PROCESSES = 4
SETTLED_SECONDS = 120
GROWTH_MAX = 0.02
MEMORY_WINDOW_SECONDS = 10  # a median over so long stands for the memory at its end
QUIET_SECONDS_MAX = 30


@dataclass
class Sample:
    """A request and the bytes that it was answered with when it ran alone."""

    block: str
    x: RawTensor
    y: bytes


def activations(rng: np.random.Generator, tokens: int, hidden: int) -> RawTensor:
    bits = rng.standard_normal((tokens, hidden), np.float32).view(np.uint32) >> 16
    return RawTensor("BF16", (tokens, hidden), bits.astype("<u2").tobytes())


def samples_alone(address: str, hidden: int) -> list[Sample]:
    rng = np.random.default_rng(SEED)
    samples = []
    with Client(address) as client:
        for block in BLOCKS:
            for tokens in [0, 1, 2, *rng.integers(3, TOKENS_MAX + 1, SIZES - 3)]:
                x = activations(rng, int(tokens), hidden)
                samples.append(Sample(block, x, client.run(block, x).data))
    return samples


def wrong_request(client: Client, hidden: int, rng: random.Random) -> str:
    """A request that must be refused; returns the reason."""
    bad = RawTensor("BF16", (2, hidden - 1), bytes(4 * (hidden - 1)))
    good = RawTensor("BF16", (2, hidden), bytes(4 * hidden))
    short = RawTensor("BF16", (3, hidden), bytes(4 * hidden))
    other = RawTensor("FP16", (2, hidden), bytes(4 * hidden))
    block, x = rng.choice(
        [(BLOCKS[0], bad), ("smollm2.layers.99.mlp", good), (BLOCKS[0], short), (BLOCKS[1], other)]
    )
    try:
        client.run(block, x, timeout=60)
    except FuseblockError as error:
        if error.reason in ("BAD_TENSOR", "BLOCK_NOT_FOUND"):
            return error.reason
        raise
    raise AssertionError(f"{block} answered a wrong request")


def one_request(client: Client, samples: list[Sample], hidden: int, rng: random.Random) -> str:
    """Sends something and says what it came to."""
    dice = rng.random()
    if dice < 0.05:
        return "refused " + wrong_request(client, hidden, rng)
    sample = rng.choice(samples)
    try:
        if dice < 0.08:
            client.run_async(sample.block, sample.x).cancel()
            return "cancelled"
        timeout = 0.002 if dice < 0.12 else 60
        y = client.run(sample.block, sample.x, timeout=timeout)
        return "right" if y.data == sample.y else "WRONG BITS"
    except (Refused, Expired) as error:
        return f"refused {error.reason}"


def client_thread(
    address: str, samples: list[Sample], hidden: int, seed: int, end: float, counts: dict[str, int]
) -> None:
    rng = random.Random(seed)
    with Client(address) as client:
        while time.monotonic() < end:
            try:
                what = one_request(client, samples, hidden, rng)
            except Exception as error:  # whatever it is, it was not declared
                what = f"ERROR {type(error).__name__}: {error}"[:160]
            counts[what] += 1


def client_process(
    address: str,
    samples: list[Sample],
    hidden: int,
    threads: int,
    seed: int,
    seconds: float,
    results: Any,
    started: Any,
) -> None:
    counts = [collections.Counter() for _ in range(threads)]
    end = time.monotonic() + seconds
    workers = [
        threading.Thread(
            target=client_thread, args=(address, samples, hidden, seed * 1000 + i, end, counts[i])
        )
        for i in range(threads)
    ]
    for worker in workers:
        worker.start()
    started.set()
    for worker in workers:
        worker.join()
    results.put(sum(counts, collections.Counter()))


def crash_clients(address: str, samples: list[Sample], hidden: int, end: float) -> int:
    """Clients that are killed in the middle of their calls, one after the other."""
    crashes = 0
    spawn = multiprocessing.get_context("spawn")
    nobody_reads = spawn.Queue()
    while time.monotonic() < end - 3:
        started = spawn.Event()
        victim = spawn.Process(
            target=client_process,
            args=(address, samples, hidden, 4, 99, 600, nobody_reads, started),
        )
        victim.start()
        if not started.wait(timeout=60):
            raise RuntimeError("a client that was to crash did not start")
        time.sleep(1)  # of calls, in the middle of which it dies
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        crashes += 1
    return crashes


def watch_memory(server: serving.Server, end: float) -> list[tuple[float, int]]:
    start, seen = time.monotonic(), []
    while time.monotonic() < end:
        seen.append((time.monotonic() - start, server.resident_bytes()))
        time.sleep(1)
    return seen


def drive(
    server: serving.Server, samples: list[Sample], hidden: int, clients: int, seconds: float
) -> tuple[collections.Counter, int, list[tuple[float, int]]]:
    """All the load at once; counts by what requests came to, crashes, memory over time."""
    spawn = multiprocessing.get_context("spawn")
    results, started = spawn.Queue(), spawn.Event()
    threads = clients // CLIENT_PROCESSES
    processes = [
        spawn.Process(
            target=client_process,
            args=(server.address, samples, hidden, threads, i, seconds, results, started),
        )
        for i in range(CLIENT_PROCESSES)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    crashes: list[int] = []
    crasher = threading.Thread(
        target=lambda: crashes.append(crash_clients(server.address, samples, hidden, end))
    )
    crasher.start()
    memory = watch_memory(server, end)
    counts = sum((results.get(timeout=300) for _ in processes), collections.Counter())
    for thread in [*processes, crasher]:
        thread.join()
    return counts, crashes[0], memory


def memory_at(memory: list[tuple[float, int]], seconds: float) -> int:
    """The median of the window that ends then."""
    sizes = [size for at, size in memory if seconds - MEMORY_WINDOW_SECONDS <= at <= seconds]
    return int(statistics.median(sizes))


def counters_when_quiet(server: serving.Server) -> Counters:
    """Once the server has noticed that the last crashed client is gone."""
    end = time.monotonic() + QUIET_SECONDS_MAX
    while True:
        counters = Counters(server.metric_lines())
        if counters.sum("fuseblock_inflight_requests") == 0 or time.monotonic() > end:
            return counters
        time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="a build folder")
    parser.add_argument("--model", type=Path, required=True, help="a BF16 checkpoint")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64, help="concurrent calls")
    arguments = parser.parse_args()
    hidden = json.loads((arguments.model / "config.json").read_text())["hidden_size"]
    config = {
        "minutes": arguments.minutes,
        "clients": arguments.clients,
        "tokens": f"0..{TOKENS_MAX}",
        "growth_max": GROWTH_MAX,
    }
    record = new_record("soak", f"./dev soak {arguments.minutes:g}", config, seeds=[SEED])
    model = ("--model", f"smollm2={arguments.model}", "--set", "models.smollm2.layers=0")
    with serving.server(arguments.build / "server/fuseblock-server", *model) as server:
        samples = samples_alone(server.address, hidden)
        before = Counters(server.metric_lines())
        counts, crashes, memory = drive(
            server, samples, hidden, arguments.clients, arguments.minutes * 60
        )
        after = counters_when_quiet(server)
        odd = list(disagreements(before, after, counts, clients_crashed=crashes > 0))
        # After the storm a request is answered as before it.
        with Client(server.address) as client:
            calm = all(client.run(s.block, s.x).data == s.y for s in samples)
    last = memory[-1][0]
    settled = memory_at(memory, min(SETTLED_SECONDS, last / 2))
    growth = memory_at(memory, last) / settled - 1
    bad = {what: n for what, n in counts.items() if what.startswith(("WRONG", "ERROR"))}
    record["holds"] = not bad and not odd and calm and growth <= GROWTH_MAX and counts["right"] > 0
    record["disagreements"] = odd
    record["results"] = [
        {"case": {"outcome": what}, "value": n, "unit": "requests"}
        for what, n in sorted(counts.items())
    ] + [
        {"case": {"outcome": "crashed clients"}, "value": crashes, "unit": "clients"},
        {"case": {"memory": "start"}, "value": memory[0][1], "unit": "bytes"},
        {"case": {"memory": "settled"}, "value": settled, "unit": "bytes"},
        {"case": {"memory": "end"}, "value": memory_at(memory, last), "unit": "bytes"},
        {"case": {"memory": "growth"}, "value": round(growth, 4), "unit": "of settled"},
        {"case": {"counters": "disagreements"}, "value": len(odd), "unit": ""},
    ]
    for what in odd:
        print(f"counters: {what}")
    write_samples(
        "soak",
        {"memory": {"seconds": [at for at, _ in memory], "bytes": [n for _, n in memory]}},
        set(),
    )
    path = write(record)
    for result in record["results"]:
        print(f"{next(iter(result['case'].values())):<40} {result['value']:>14,} {result['unit']}")
    print(f"{path.relative_to(serving.ROOT)}: {'holds' if record['holds'] else 'REFUTED'}")
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
