#!/usr/bin/env python3
"""The row kernels on this CPU beside PyTorch eager and torch.compile, in one process.

Contenders take turns in shuffled rounds on one set of random operands, which the caches may hold,
as they do between the layers of a model. The floor is a copy of as many bytes in the same turns.
The process keeps to as many cores as it uses threads, each thread to one of them, and a turn begins
when the threads of the one before have come to rest. Every case's result is held to FP64 before it
is timed. Writes evidence/records/cpu_memory_bound.json; cases of the same commit and machine that
an earlier run left there stay.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "evidence"))
import bars  # noqa: E402
import record as records  # noqa: E402
from cpu_turns import CORES, await_rest, spread_threads  # noqa: E402
from row_kernels import (  # noqa: E402
    DTYPES,
    KERNELS,
    Draw,
    as_tuple,
    case_of,
    compiled,
    compiled_inputs,
    exact,
    label,
    require_peer,
    require_right,
    size_of,
)
from rows_library import RowsLibrary  # noqa: E402

ID = "cpu_memory_bound"
SEED = 20240612
ROUNDS = 21
TURN_SECONDS = 0.01
THREADS = (1, 2)


class Case(NamedTuple):
    kernel: str
    shape: tuple[int, ...]
    dtype: str
    threads: int

    def described(self) -> dict[str, Any]:
        return case_of(*self[:3]) | {"threads": self.threads}

    def name(self) -> str:
        return records.case_name({"case": self.described()})


def all_cases() -> list[Case]:
    return [
        Case(name, shape, dtype, threads)
        for threads in THREADS
        for name, kernel in KERNELS.items()
        if kernel.timed
        for shape in kernel.cpu
        for dtype in ("fp32", "bf16")
    ]


def take_turns(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Samples of microseconds a call for each contender, in shuffled turns of equal length."""

    def turn(call: Callable[[], Any], count: int) -> float:
        done, elapsed, part = 0, 0.0, max(1, count // 32)
        await_rest()
        for _ in range(part):
            call()  # wakes its threads
        begun = time.perf_counter()
        # Threads that wait for one another can take a thousand times longer on a busy machine.
        while done < count and elapsed < 3 * TURN_SECONDS:
            for _ in range(part):
                call()
            done += part
            elapsed = time.perf_counter() - begun
        return elapsed * 1e6 / done

    counts = {}
    for name, call in calls.items():
        turn(call, 3)
        counts[name] = max(3, int(TURN_SECONDS * 1e6 / turn(call, 3)))
    spread_threads(torch.get_num_threads())
    order = random.Random(SEED)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        names = list(calls)
        order.shuffle(names)
        for name in names:
            samples[name].append(turn(calls[name], counts[name]))
    return samples


def measure(library: RowsLibrary, case: Case) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """One case: its result for the record, and all samples."""
    kernel, dtype = KERNELS[case.kernel], DTYPES[case.dtype]
    inputs = kernel.inputs(Draw(case.shape, dtype, "cpu"))
    outputs = tuple(
        torch.full(case.shape, float("nan"), dtype=dtype) for _ in range(kernel.outputs)
    )
    ours = library.bind(case.kernel, inputs, outputs)
    ours()
    expected = exact(case.kernel, inputs)
    error = require_right(case.kernel, dtype, outputs, expected)
    eager, compiled_once = kernel.torch, compiled(case.kernel)
    of_eager, of_compiled = kernel.peer_inputs(inputs), compiled_inputs(case.kernel, inputs)
    require_peer(case.kernel, as_tuple(compiled_once(*of_compiled)), expected)
    moved = kernel.read_bytes(inputs) + size_of(outputs)
    source = torch.randint(0, 100, (moved // 2,), dtype=torch.uint8)
    target = torch.empty_like(source)
    samples = take_turns(
        {
            "fuseblock": ours,
            "torch_eager": lambda: eager(*of_eager),
            "torch_compile": lambda: compiled_once(*of_compiled),
            "copy": lambda: target.copy_(source),
        }
    )
    medians = {name: statistics.median(values) for name, values in samples.items()}
    mine = samples["fuseblock"]
    result: dict[str, Any] = {
        "case": case.described(),
        "value": round(medians.pop("fuseblock"), 2),
        "unit": "us",
        "min": round(min(mine), 2),
        "max": round(max(mine), 2),
        "samples": len(mine),
        "bytes": moved,
        "floor": round(medians.pop("copy"), 2),
        "peers": {name: round(value, 2) for name, value in medians.items()},
        "relative_error": float(f"{error:.3g}"),
    }
    bars.judge(result, bars.CPU)
    return result, samples


def keep_to(threads: int) -> None:
    os.sched_setaffinity(0, CORES[:threads])
    torch.set_num_threads(threads)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libfuseblock_rows.so")
    parser.add_argument("--threads", type=int, required=True, choices=THREADS)
    parser.add_argument("--filter", default="", help="part of KERNEL/SHAPE/DTYPE")
    arguments = parser.parse_args()
    record = records.new_record(
        ID,
        "./dev bench memory",
        config={"rounds": ROUNDS, "turn_seconds": TURN_SECONDS, "operands": "one set"},
        seeds=[SEED],
        more_versions={"torch": torch.__version__},
    )
    keep_to(arguments.threads)
    library = RowsLibrary(arguments.library, arguments.threads)
    known = library.kernels()
    samples: dict[str, dict[str, list[float]]] = {}
    for case in all_cases():
        word = f"{case.kernel}/{label(case.shape)}/{case.dtype}"
        if (
            case.threads != arguments.threads
            or case.kernel not in known
            or arguments.filter not in word
        ):
            continue
        torch.manual_seed(SEED)
        with torch.inference_mode():
            result, samples[case.name()] = measure(library, case)
        record["results"].append(result)
        peers = "  ".join(f"{name[6:]} {value:8.1f}" for name, value in result["peers"].items())
        print(
            f"{case.kernel:15} {label(case.shape):11} {case.dtype} {case.threads} threads  "
            f"us {result['value']:8.1f}  copy {result['floor']:7.1f}  {peers}  ratio "
            f"{result['ratio']:5.2f} of {result['bar']['at_least']} "
            f"{'' if result['holds'] else 'MISSED'}",
            flush=True,
        )
    library.close()
    kept = records.merge(record)
    order = {case.name(): i for i, case in enumerate(all_cases())}
    record["results"].sort(key=lambda result: order.get(records.case_name(result), len(order)))
    names = [records.case_name(result) for result in record["results"]]
    record["holds"] = bars.holds(record, list(order), names)
    records.write(record)
    records.write_samples(ID, samples, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
