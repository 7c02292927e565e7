#!/usr/bin/env python3
"""The feed-forward path on this CPU beside other libraries, and beside what bounds it.

y = x + down(silu(gate(n)) * up(n)), n = RMSNorm(x). All contenders run in one process, in shuffled
rounds of turns, on random weights of their own: layers in rotation, so many that no cache holds
them. A process keeps to as many cores as it uses threads, each thread to one of them, and a turn
begins when the threads of the one before have come to rest. In the same rounds a plain loop reads
as many bytes once. The floor is that time, or FLOP over what the CPU's fastest multiplying unit
does on registers alone, whichever is longer. Every contender's result is held to FP32 arithmetic
before it is timed. Writes evidence/records/cpu_ffn.json; cases of the same commit and machine that
an earlier run left there stay, so that a run may measure a part.
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
import ffn_peers as peers  # noqa: E402
import record as records  # noqa: E402
from cpu_turns import CORES, await_rest, spread_threads  # noqa: E402
from ffn_library import FfnLibrary  # noqa: E402

ID = "cpu_ffn"
SEED = 20240612
ROUNDS = (3, 9)  # at least, at most
CASE_SECONDS = 1.2  # after which no further round begins
TURN_SECONDS = 0.01
ROTATED_BYTES = 384 << 20
SIZES = ((576, 1536), (2048, 8192), (4096, 14336))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOKENS = (1, 4, 16, 64, 256)
THREADS = (1, 2)
# Of the largest value: roundings of the dtype on the way, for any order of summing.
ERROR_MAX = {"fp32": 1e-4, "bf16": 3e-2}


class Part(NamedTuple):
    """What one process measures."""

    hidden: int
    intermediate: int
    dtype: str
    threads: int

    def case(self, tokens: int) -> dict[str, Any]:
        return {
            "hidden": self.hidden,
            "intermediate": self.intermediate,
            "dtype": self.dtype,
            "threads": self.threads,
            "tokens": tokens,
        }

    def name(self) -> str:
        return f"{self.hidden}/{self.intermediate}/{self.dtype}/{self.threads}"


PARTS = [Part(*size, dtype, threads) for threads in THREADS for size in SIZES for dtype in DTYPES]


def random_layers(part: Part) -> list[peers.Layer]:
    dtype = DTYPES[part.dtype]
    size = 3 * part.hidden * part.intermediate * dtype.itemsize
    count = -(-ROTATED_BYTES // size)

    def weight(rows: int, cols: int) -> torch.Tensor:
        return (torch.rand(rows, cols) - 0.5).mul_((12 / cols) ** 0.5).to(dtype)

    return [
        peers.Layer(
            (1 + 0.1 * torch.randn(part.hidden)).to(dtype),
            weight(part.intermediate, part.hidden),
            weight(part.intermediate, part.hidden),
            weight(part.hidden, part.intermediate),
        )
        for _ in range(count)
    ]


def take_turns(
    calls: dict[str, Callable[[], Any]], threads: int, layers: dict[str, int]
) -> dict[str, list[float]]:
    """Samples of microseconds a layer, for each contender, in shuffled rounds."""

    def turn(call: Callable[[], Any], count: int) -> float:
        await_rest()
        begun = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begun) * 1e6 / count

    counts = {}
    for name, call in calls.items():
        counts[name] = max(1, round(TURN_SECONDS * 1e6 / turn(call, 1)))
    spread_threads(threads)
    order = random.Random(SEED)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    late = time.monotonic() + CASE_SECONDS
    for rounds in range(ROUNDS[1]):
        if rounds >= ROUNDS[0] and time.monotonic() > late:
            break
        names = list(calls)
        order.shuffle(names)
        for name in names:
            samples[name].append(turn(calls[name], counts[name]) / layers.get(name, 1))
    return samples


class Bench:
    """The contenders of one part."""

    def __init__(self, part: Part, library: FfnLibrary) -> None:
        self.part, self.library = part, library
        self.layers = random_layers(part)
        for layer in self.layers:
            library.add(layer)
        self.read = library.read([list(layer) for layer in self.layers])
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.layers[0])
        self.peak = statistics.median(library.peak(DTYPES[part.dtype]) for _ in range(9))
        self.absent: dict[str, str] = {}
        self.onnx = self.made("onnxruntime", lambda: peers.OnnxModel(self.layers))
        self.ggml = self.made("ggml", lambda: peers.GgmlLayers(self.layers))

    def made(self, name: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except peers.Absent as reason:
            self.absent[name] = str(reason)
            return None

    def contenders(self, x: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
        calls = {
            "fuseblock": self.library.call(x),
            "torch_eager": peers.torch_eager(self.layers, x),
            "torch_compile": peers.torch_compile(self.layers, x),
            "onednn_packed": peers.onednn_packed(self.layers, x),
        }
        if self.onnx is not None:
            calls["onnxruntime"] = lambda: self.onnx.run(x)
        if self.ggml is not None:
            calls["ggml"] = self.ggml.call(x)
        return calls

    def errors(self, calls: dict[str, Callable], x: torch.Tensor) -> dict[str, float]:
        """Each contender's largest error in some rows of the first layer, of the largest value."""
        few = x[:2].float()
        expected = peers.path(few, peers.Layer(*(tensor.float() for tensor in self.layers[0])))
        found = {}
        for name, call in calls.items():
            if name == "onnxruntime" and len(self.layers) > 1:
                continue  # gives the last layer's output alone
            error = (call()[:2].float() - expected).abs().max() / expected.abs().max()
            found[name] = float(f"{error:.3g}")
            if not error <= ERROR_MAX[self.part.dtype]:
                raise RuntimeError(f"{name} is wrong: {error} of the largest value")
        return found

    def measure(self, tokens: int) -> tuple[dict[str, Any], dict[str, list[float]]]:
        x = torch.randn(tokens, self.part.hidden).to(DTYPES[self.part.dtype])
        calls = self.contenders(x)
        errors = self.errors(calls, x)
        samples = take_turns(
            calls | {"read": self.read}, self.part.threads, {"onnxruntime": len(self.layers)}
        )
        if "ggml" in calls:
            calls["ggml"].free()  # type: ignore[attr-defined]
        medians = {name: round(statistics.median(of), 2) for name, of in samples.items()}
        mine = samples["fuseblock"]
        flop = 6 * tokens * self.part.hidden * self.part.intermediate
        result: dict[str, Any] = {
            "case": self.part.case(tokens),
            "value": medians.pop("fuseblock"),
            "unit": "us",
            "min": round(min(mine), 2),
            "max": round(max(mine), 2),
            "samples": len(mine),
            "bytes": self.bytes,
            "read_us": medians.pop("read"),
            "multiply_us": round(flop / self.peak * 1e6, 2),
            "peak_gflop_s": round(self.peak * 1e-9, 1),
            "peers": medians,
            "absent": self.absent,
            "relative_error": errors,
        }
        result["floor"] = max(result["read_us"], result["multiply_us"])
        bars.judge_by_all(result, bars.FEED_FORWARD_CPU)
        return result, samples


def show(result: dict[str, Any]) -> None:
    case = result["case"]
    others = "  ".join(f"{name} {value:.0f}" for name, value in result["peers"].items())
    print(
        f"{case['hidden']}/{case['intermediate']} {case['dtype']} {case['threads']} threads "
        f"{case['tokens']:3} tokens: us {result['value']:.0f}  read {result['read_us']:.0f}  "
        f"multiply {result['multiply_us']:.0f}  {others}  best/ours {result['ratio']:.2f}"
        + (f"  MISSED {'; '.join(result['missed'])}" if result["missed"] else ""),
        flush=True,
    )


def ceilings(results: list[dict[str, Any]]) -> dict[str, float]:
    """The best that the run saw: reading, and multiplying, by threads."""
    found: dict[str, float] = {}
    for result in results:
        case = result["case"]
        threads = case["threads"]
        rates = {
            f"read_gb_s_{threads}": round(result["bytes"] / result["read_us"] * 1e-3, 1),
            f"{case['dtype']}_gflop_s_{threads}": result["peak_gflop_s"],
        }
        for name, rate in rates.items():
            found[name] = max(found.get(name, 0), rate)
    return found


def write(record: dict[str, Any], samples: dict[str, dict[str, list[float]]]) -> None:
    kept = records.merge(record)
    cases = [part.case(tokens) for part in PARTS for tokens in TOKENS]
    names = [records.case_name({"case": case}) for case in cases]
    order = {name: i for i, name in enumerate(names)}
    record["results"].sort(key=lambda result: order.get(records.case_name(result), len(order)))
    record["ceilings"] = ceilings(record["results"])
    there = {records.case_name(result) for result in record["results"]}
    record["missing"] = [name for name in names if name not in there]
    record["holds"] = not record["missing"] and all(r["holds"] for r in record["results"])
    records.write(record)
    records.write_samples(ID, samples, kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libfuseblock_ffn.so")
    parser.add_argument("--part", required=True, choices=[part.name() for part in PARTS])
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS, choices=TOKENS)
    parser.add_argument("--no-record", action="store_true", help="only print")
    arguments = parser.parse_args()
    part = next(part for part in PARTS if part.name() == arguments.part)
    # Before this process keeps to some of the machine's cores.
    record = records.new_record(
        ID,
        "./dev bench ffn",
        config={
            "rounds": list(ROUNDS),
            "turn_seconds": TURN_SECONDS,
            "rotated_bytes": ROTATED_BYTES,
            "onednn": "PyTorch's, by the operators of its compiler",
        },
        seeds=[SEED],
        more_versions={"torch": torch.__version__} | peers.versions(),
    )
    os.sched_setaffinity(0, CORES[: part.threads])
    torch.set_num_threads(part.threads)
    torch.manual_seed(SEED)
    library = FfnLibrary(arguments.library, part.threads)
    samples = {}
    with torch.inference_mode():
        bench = Bench(part, library)
        for name, reason in bench.absent.items():
            print(f"without {name}: {reason}")
        for tokens in arguments.tokens:
            result, of_case = bench.measure(tokens)
            show(result)
            record["results"].append(result)
            samples[records.case_name(result)] = of_case
    library.close()
    if not arguments.no_record:
        write(record, samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
