#!/usr/bin/env python3
"""The row kernels on one GPU beside PyTorch eager and torch.compile, in one process.

All by replaying CUDA graphs in shuffled turns, each graph over as many sets of random operands as
pass the L2 (at most SETS_MAX), each call writing outputs of its own. The floor of a case is the
bytes that it must read and write over the rate of an elementwise copy of 16384 x 8192 BF16 in the
same run. Every case's result is held to FP64 before it is timed. Writes
evidence/records/gpu_memory_bound.json; cases of the same commit and GPU that an earlier run left
there stay, and those that it lacks come first, so that a run goes on where the last one ended.

With --profile each kernel runs once, after a launch of PyTorch's as a mark, for a profiler.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "evidence"), str(ROOT / "tools" / "bench")]
import bars  # noqa: E402
import record as records  # noqa: E402
import timing  # noqa: E402
from row_kernels import (  # noqa: E402
    DTYPES,
    KERNELS,
    Draw,
    Tensors,
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

ID = "gpu_memory_bound"
SEED = 20240611
BYTES_TO_PASS_THE_L2 = 4 * (64 << 20)
SETS_MAX = 128
ROUNDS = 15
TURN_SECONDS = 0.016
COPY_SHAPE = (16384, 8192)


class Case(NamedTuple):
    kernel: str
    shape: tuple[int, ...]
    dtype: str

    def name(self) -> str:
        return records.case_name({"case": case_of(*self)})


def all_cases() -> list[Case]:
    """BF16 in all shapes; FP16 and FP32 in the two largest. The most telling first."""
    timed = {name: kernel for name, kernel in KERNELS.items() if kernel.timed}
    found = [Case(name, kernel.large, "bf16") for name, kernel in timed.items()]
    found += [Case(name, kernel.small[0], "bf16") for name, kernel in timed.items()]
    found += [
        Case(name, shape, "bf16") for name, kernel in timed.items() for shape in kernel.small[1:]
    ]
    found += [
        Case(name, shape, dtype)
        for dtype in ("fp16", "fp32")
        for name, kernel in timed.items()
        for shape in (kernel.large, kernel.small[0])
    ]
    return found


class Sets:
    """As many sets of a case's operands as pass the L2, and the calls on them."""

    def __init__(self, library: RowsLibrary, case: Case, count_max: int = SETS_MAX) -> None:
        self.kernel = KERNELS[case.kernel]
        self.dtype = DTYPES[case.dtype]
        draw = Draw(case.shape, self.dtype, "cuda:0")
        self.inputs = [self.kernel.inputs(draw)]
        self.outputs = [self._outputs(case.shape)]
        self.bytes = self.kernel.read_bytes(self.inputs[0]) + size_of(self.outputs[0])
        count = max(2, min(SETS_MAX, -(-BYTES_TO_PASS_THE_L2 // self.bytes)))
        for _ in range(1, min(count, count_max)):
            self.inputs.append(self.kernel.inputs(draw))
            self.outputs.append(self._outputs(case.shape))
        self._calls = [
            library.bind(case.kernel, *operands)
            for operands in zip(self.inputs, self.outputs, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.inputs)

    def _outputs(self, shape: tuple[int, ...]) -> Tensors:
        return tuple(
            torch.full(shape, float("nan"), dtype=self.dtype, device="cuda:0")
            for _ in range(self.kernel.outputs)
        )

    def run(self) -> None:
        for call in self._calls:
            call()


def peer(function: Callable[..., Any], operands: list[Tensors]) -> Callable[[], list[Any]]:
    """A call on each set, whose outputs all live at once, as ours do."""
    return lambda: [function(*inputs) for inputs in operands]


def take_turns(replays: dict[str, Callable[[], None]], calls: int) -> timing.Samples:
    return timing.take_turns(replays, calls, rounds=ROUNDS, turn_seconds=TURN_SECONDS, seed=SEED)


def copy_rate() -> float:
    """TB/s, read plus written, of the better of two elementwise copies, warm."""
    source = torch.randn(*COPY_SHAPE, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    replays = {
        "add": timing.capture(lambda: torch.add(source, 1, out=target)),
        "copy": timing.capture(lambda: target.copy_(source)),
    }
    for _ in range(3):  # lets the clocks settle
        samples = take_turns(replays, 1)
    us = min(statistics.median(values) for values in samples.values())
    return round(2e-6 * size_of([source]) / us, 3)


def measure(library: RowsLibrary, case: Case, copy_tb_s: float) -> tuple[dict, timing.Samples]:
    """One case: its result for the record, and all samples."""
    sets = Sets(library, case)
    sets.run()
    expected = exact(case.kernel, sets.inputs[0])
    error = require_right(case.kernel, sets.dtype, sets.outputs[0], expected)
    compiled_once = compiled(case.kernel)
    of_compiled = [compiled_inputs(case.kernel, inputs) for inputs in sets.inputs]
    require_peer(case.kernel, as_tuple(compiled_once(*of_compiled[0])), expected)
    del expected
    of_eager = [sets.kernel.peer_inputs(inputs) for inputs in sets.inputs]
    replays = {
        "fuseblock": timing.capture(sets.run),
        "torch_eager": timing.capture(peer(sets.kernel.torch, of_eager)),
        "torch_compile": timing.capture(peer(compiled_once, of_compiled)),
    }
    samples = take_turns(replays, len(sets))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    mine = samples["fuseblock"]
    result: dict[str, Any] = {
        "case": case_of(*case),
        "value": round(medians.pop("fuseblock"), 3),
        "unit": "us",
        "min": round(min(mine), 3),
        "max": round(max(mine), 3),
        "samples": len(mine),
        "bytes": sets.bytes,
        "sets": len(sets),
        "floor": round(sets.bytes / copy_tb_s * 1e-6, 3),
        "peers": {name: round(value, 3) for name, value in medians.items()},
        "relative_error": float(f"{error:.3g}"),
    }
    bars.judge(result, bars.GPU)
    return result, samples


def write(record: dict[str, Any], samples: dict[str, timing.Samples], out: Path) -> None:
    kept = records.merge(record)
    order = {case.name(): i for i, case in enumerate(all_cases())}
    record["results"].sort(key=lambda result: order.get(records.case_name(result), len(order)))
    names = [records.case_name(result) for result in record["results"]]
    record["holds"] = bars.holds(record, list(order), names)
    for path in (records.write(record), records.write_samples(ID, samples, kept)):
        shutil.copy(path, out)


def chosen(library: RowsLibrary, word: str) -> list[Case]:
    """The cases whose "kernel/shape/dtype" holds the word, those not measured yet first."""
    path = records.RECORDS / f"{ID}.json"
    old = json.loads(path.read_text()) if path.exists() else {"commit": "", "results": []}
    done = {records.case_name(result) for result in old["results"]}
    if old["commit"] != records.commit():
        done = set()
    known = set(library.kernels())
    cases = [
        case
        for case in all_cases()
        if case.kernel in known and word in f"{case.kernel}/{label(case.shape)}/{case.dtype}"
    ]
    return sorted(cases, key=lambda case: case.name() in done)


def run_all(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    library = RowsLibrary(arguments.library)
    copy_tb_s = copy_rate()
    print(f"copy: {copy_tb_s} TB/s on {torch.cuda.get_device_name()}", flush=True)
    record = records.new_record(
        ID,
        "./dev gpu bench --filter memory",
        config={"rounds": ROUNDS, "turn_seconds": TURN_SECONDS, "sets_max": SETS_MAX},
        seeds=[SEED],
        more_versions={"torch": torch.__version__, "cuda": torch.version.cuda},
    )
    record["ceilings"] = {"copy_tb_s": copy_tb_s}
    samples: dict[str, timing.Samples] = {}
    slowest, failed = 0.0, 0
    cases = chosen(library, arguments.filter)
    for number, case in enumerate(cases):
        case_begun = time.monotonic()
        if case_begun - begun + 1.5 * slowest + 5 > arguments.seconds:
            print(f"left out for want of time: {len(cases) - number} cases")
            break
        torch.manual_seed(SEED)
        try:
            result, samples[case.name()] = measure(library, case, copy_tb_s)
        except Exception as error:  # the other cases are still worth their time
            failed += 1
            print(f"FAILED {case.name()}: {error!r:.300}", flush=True)
            continue
        finally:
            torch.cuda.empty_cache()
        record["results"].append(result)
        if number > 2:  # the first also start the compiler
            slowest = max(slowest, time.monotonic() - case_begun)
        peers = "  ".join(f"{name[6:]} {value:8.2f}" for name, value in result["peers"].items())
        print(
            f"{case.kernel:15} {label(case.shape):13} {case.dtype}  us {result['value']:8.2f}  "
            f"floor {result['floor']:8.2f}  {peers}  {result['bar']['measure']} "
            f"{result['bar']['reached']:.3f} of {result['bar']['at_least']:.2f} "
            f"{'' if result['holds'] else 'MISSED'}",
            flush=True,
        )
    record["ceilings"]["copy_tb_s_at_the_end"] = copy_rate()
    write(record, samples, arguments.out)
    library.close()
    return 1 if failed else 0


def run_profile(arguments: argparse.Namespace) -> int:
    """Each kernel once at its large shape; what ran goes to profile_cases.json."""
    library = RowsLibrary(arguments.library)
    mark = torch.zeros(32, device="cuda")
    ran = []
    for name in library.kernels():
        case = Case(name, KERNELS[name].large, "bf16")
        if arguments.filter not in name or not KERNELS[name].timed:
            continue
        torch.manual_seed(SEED)
        sets = Sets(library, case, count_max=2)
        sets.run()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        mark.fill_(1)
        sets.run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        ran.append({"case": case_of(*case), "calls": len(sets), "bytes": sets.bytes})
        del sets
        torch.cuda.empty_cache()
    (arguments.out / "profile_cases.json").write_text(json.dumps(ran, indent=1) + "\n")
    library.close()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libfuseblock_rows.so")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--filter", default="", help="part of KERNEL/SHAPE/DTYPE")
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    arguments.out.mkdir(parents=True, exist_ok=True)
    return run_profile(arguments) if arguments.profile else run_all(arguments)


if __name__ == "__main__":
    sys.exit(main())
