#!/usr/bin/env python3
"""The feed-forward on one GPU, beside PyTorch eager and torch.compile, in one process.

y = x + down(silu(gate(n)) * up(n)), n = RMSNorm(x), the same with GELU, and the feed-forward
without gate, norm and residual, y = down(gelu(up(x) + b1)) + b2. Each contender runs the same
layers, each with weights of its own, more of them than the L2 holds, as one CUDA graph; the
contenders' replays take turns in a shuffled order. The floor is the larger of bytes over the read
ceiling of that size's weights and FLOP over the matrix ceiling, all measured in the same run. FP16
runs beside eager alone: that it is as fast as BF16 is what it is measured for.

Writes evidence/records/gpu_ffn.json, whose cases are merged with those that the record already has
from the same commit and GPU, and the raw samples beside it. What does not fit into --seconds is
left out; with --missing the next run measures only that.
"""

import argparse
import ctypes
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("evidence", "tools/bench")]
import bars  # noqa: E402
import record as records  # noqa: E402
import timing  # noqa: E402

SEED = 20240607
L2_BYTES = 64 << 20
ROUNDS = 5
TURN_SECONDS = 0.4
DTYPES = {"bf16": (torch.bfloat16, 2), "f16": (torch.float16, 1)}  # ours as its library numbers it
COMPILED = "bf16"  # half a minute a case


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


@dataclass(frozen=True)
class Form:
    """What stands between the products: with a gate, on the path of norm and residual stream, or
    without one, alone and with biases."""

    activation: Callable[[torch.Tensor], torch.Tensor]
    number: int  # ours
    gated: bool

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2


SWIGLU = "swiglu"
FORMS = {
    SWIGLU: Form(functional.silu, 0, gated=True),
    "geglu_tanh": Form(gelu_tanh, 1, gated=True),
    "gelu_tanh": Form(gelu_tanh, 1, gated=False),
}
# In the order in which they are measured while time is left.
CASES = [
    (SWIGLU, 4096, 14336, "bf16", [1, 16, 64, 256, 1024, 4096, 4, 8, 32, 128]),
    (SWIGLU, 8192, 28672, "bf16", [1, 16, 64, 256, 1024, 4096, 4, 8, 32, 128]),
    (SWIGLU, 2048, 8192, "bf16", [1, 16, 256]),
    (SWIGLU, 576, 1536, "bf16", [1, 16, 256]),
    (SWIGLU, 4096, 14336, "f16", [1, 16, 64, 128, 256, 1024, 4096]),
    (SWIGLU, 8192, 28672, "f16", [1, 64, 256, 1024]),
    ("geglu_tanh", 4096, 14336, "bf16", [1, 16, 64, 256, 1024]),
    ("gelu_tanh", 4096, 16384, "bf16", [1, 16, 64, 256, 1024]),
]


def case_of(form: str, hidden: int, intermediate: int, tokens: int, dtype: str) -> dict[str, Any]:
    """SwiGLU's cases go without its name."""
    case = {"hidden": hidden, "intermediate": intermediate, "tokens": tokens, "dtype": dtype}
    return case if form == SWIGLU else case | {"form": form}


def name_of(*case: Any) -> str:
    return records.case_name({"case": case_of(*case)})


class Library:
    """Our feed-forward behind the C functions of tests/gpu/ffn_library.cc."""

    def __init__(self, path: str) -> None:
        self._c = ctypes.CDLL(path)
        self._c.fuseblock_ffn_create.restype = ctypes.c_void_p
        self._c.fuseblock_ffn_create.argtypes = (
            [ctypes.c_int] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 6
        )
        self._c.fuseblock_ffn_destroy.argtypes = [ctypes.c_void_p]
        self._c.fuseblock_ffn_workspace_bytes.restype = ctypes.c_size_t
        self._c.fuseblock_ffn_workspace_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._c.fuseblock_ffn_run.argtypes = [ctypes.c_void_p, ctypes.c_int64] + [
            ctypes.c_void_p
        ] * 4
        self._c.fuseblock_read.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]

    def create(
        self,
        dtype: int,
        activation: int,
        hidden: int,
        intermediate: int,
        *weights: torch.Tensor | None,
    ) -> ctypes.c_void_p:
        """Weights: norm, gate, up, up's bias, down, down's bias."""
        on_host = [None if w is None else w.contiguous().cpu() for w in weights]
        block = self._c.fuseblock_ffn_create(
            dtype,
            activation,
            hidden,
            intermediate,
            *(None if w is None else w.data_ptr() for w in on_host),
        )
        if not block:
            raise RuntimeError("fuseblock_ffn_create failed")
        return block

    def destroy(self, block: int) -> None:
        self._c.fuseblock_ffn_destroy(block)

    def workspace(self, block: int, rows: int) -> torch.Tensor:
        size = self._c.fuseblock_ffn_workspace_bytes(block, rows)
        return torch.empty(size + 256, dtype=torch.uint8, device="cuda")

    def run(self, block: int, x: torch.Tensor, y: torch.Tensor, workspace: torch.Tensor) -> None:
        aligned = (workspace.data_ptr() + 255) // 256 * 256
        stream = torch.cuda.current_stream().cuda_stream
        if self._c.fuseblock_ffn_run(
            block, x.shape[0], x.data_ptr(), y.data_ptr(), aligned, stream
        ):
            raise RuntimeError("fuseblock_ffn_run failed")

    def read_ways(self) -> int:
        return self._c.fuseblock_read_ways()

    def read(self, data: torch.Tensor, way: int, sink: torch.Tensor) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        size = data.numel() * data.element_size()
        if self._c.fuseblock_read(data.data_ptr(), size, way, sink.data_ptr(), stream):
            raise RuntimeError("fuseblock_read failed")


class Layers:
    """Weights of one size for as many layers as do not fit the L2, for PyTorch and for us."""

    def __init__(
        self, library: Library, form: str, hidden: int, intermediate: int, dtype: str
    ) -> None:
        self.name, self.form = form, FORMS[form]
        self.hidden, self.intermediate, self.dtype = hidden, intermediate, dtype
        self.type, self.number = DTYPES[dtype]
        self.weight_bytes = self.form.matrices * hidden * intermediate * 2
        count = max(8, min(64, -(-4 * L2_BYTES // self.weight_bytes)))
        self.library = library
        self.all: list[torch.Tensor] = []
        self.peers: list[tuple[torch.Tensor, ...]] = []  # of each layer, as the peers take them
        self.ours: list[ctypes.c_void_p] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        hidden, intermediate = self.hidden, self.intermediate
        matrices = self.form.matrices
        rows = torch.randn(matrices * intermediate * hidden, device="cuda", dtype=self.type)
        inner, outer = rows.split([(matrices - 1) * intermediate * hidden, intermediate * hidden])
        inner *= hidden**-0.5
        outer *= intermediate**-0.5
        self.all.append(rows)
        first, down = inner.view(-1, hidden), outer.view(hidden, intermediate)
        if self.form.gated:
            norm = (1 + 0.1 * torch.randn(hidden, device="cuda")).to(self.type)
            gate, up = first.split(intermediate)
            self.peers.append((norm, first, down))
            mine = (norm, gate, up, None, down, None)
        else:
            up_bias, down_bias = (
                torch.randn(size, device="cuda").to(self.type) for size in (intermediate, hidden)
            )
            self.peers.append((first, up_bias, down, down_bias))
            mine = (None, None, first, up_bias, down, down_bias)
        self.ours.append(
            self.library.create(self.number, self.form.number, hidden, intermediate, *mine)
        )

    def __len__(self) -> int:
        return len(self.ours)

    def close(self) -> None:
        for block in self.ours:
            self.library.destroy(block)

    def read_ceiling(self) -> float:
        """Terabytes a second with which these weights can be read, once each."""
        sink = torch.zeros(1, device="cuda", dtype=torch.int32)

        def reader(way: int) -> Callable[[], None]:
            def run() -> None:
                for weights in self.all:
                    self.library.read(weights, way, sink)

            return run

        graphs = {str(way): timing.capture(reader(way)) for way in range(self.library.read_ways())}
        samples = take_turns(graphs, len(self))
        medians = {way: statistics.median(values) for way, values in samples.items()}
        print("read once, us by way:", json.dumps({w: round(us, 2) for w, us in medians.items()}))
        fastest = min(medians.values())
        return self.weight_bytes * 1e-6 / fastest


Function = Callable[..., torch.Tensor]


def eager(form: Form) -> Function:
    def gated(
        x: torch.Tensor, norm: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
    ) -> torch.Tensor:
        gate, up = gate_up.split(gate_up.shape[0] // 2)
        n = functional.rms_norm(x, (x.shape[1],), norm, 1e-5)
        product = form.activation(functional.linear(n, gate)) * functional.linear(n, up)
        return x + functional.linear(product, down)

    return gated if form.gated else dense(form)


def packed(form: Form) -> Function:
    """With one product for gate and up, as torch.compile gets it."""

    def gated(
        x: torch.Tensor, norm: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
    ) -> torch.Tensor:
        n = functional.rms_norm(x, (x.shape[1],), norm, 1e-5)
        gate, up = functional.linear(n, gate_up).chunk(2, dim=-1)
        return x + functional.linear(form.activation(gate) * up, down)

    return gated if form.gated else dense(form)


def dense(form: Form) -> Function:
    def run(
        x: torch.Tensor,
        up: torch.Tensor,
        up_bias: torch.Tensor,
        down: torch.Tensor,
        down_bias: torch.Tensor,
    ) -> torch.Tensor:
        product = form.activation(functional.linear(x, up, up_bias))
        return functional.linear(product, down, down_bias)

    return run


def exact(form: Form, *operands: torch.Tensor) -> torch.Tensor:
    """In FP64 throughout."""
    wide = [t.double() for t in operands]
    if not form.gated:
        return dense(form)(*wide)
    h = wide[0]
    n = h * torch.rsqrt(h.square().mean(1, keepdim=True) + 1e-5) * wide[1]
    gate, up = (n @ wide[2].T).chunk(2, dim=-1)
    return h + (form.activation(gate) * up) @ wide[3].T


def take_turns(replays: dict[str, Callable[[], None]], calls: int) -> timing.Samples:
    return timing.take_turns(replays, calls, rounds=ROUNDS, turn_seconds=TURN_SECONDS, seed=SEED)


def matmul_ceiling() -> float:
    """TFLOP a second of a large BF16 product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    samples = take_turns({"matmul": timing.capture(lambda: a @ b)}, 1)
    return 2e-6 * 8192**3 / statistics.median(samples["matmul"])


def relative_error(y: torch.Tensor, reference: torch.Tensor) -> float:
    return float((y.double() - reference).norm() / reference.norm())


def measure(layers: Layers, tokens: int, found: dict[str, float]) -> tuple[dict[str, Any], dict]:
    """One case: its result for the record, and all samples."""
    hidden, count = layers.hidden, len(layers)
    xs = [torch.randn(tokens, hidden, device="cuda").to(layers.type) for _ in range(count)]
    ys = [torch.full_like(x, float("nan")) for x in xs]
    workspace = layers.library.workspace(layers.ours[0], tokens)

    def ours() -> None:
        for block, x, y in zip(layers.ours, xs, ys, strict=True):
            layers.library.run(block, x, y, workspace)

    def peer(function: Function) -> Callable[[], None]:
        def run() -> None:
            for x, weights in zip(xs, layers.peers, strict=True):
                function(x, *weights)

        return run

    form = layers.form
    first = (xs[0], *layers.peers[0])
    few = slice(0, min(tokens, 64))
    reference = exact(form, first[0][few], *first[1:])
    graphs = {"fuseblock": timing.capture(ours), "torch_eager": timing.capture(peer(eager(form)))}
    errors = {
        "fuseblock": relative_error(ys[0][few], reference),
        "torch_eager": relative_error(eager(form)(*first)[few], reference),
    }
    if layers.dtype == COMPILED:
        torch._dynamo.reset()
        compiled = torch.compile(packed(form), mode="max-autotune-no-cudagraphs", dynamic=False)
        graphs["torch_compile"] = timing.capture(peer(compiled))
        errors["torch_compile"] = relative_error(compiled(*first)[few], reference)
    samples = take_turns(graphs, count)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    mine = samples["fuseblock"]
    bytes_moved = layers.weight_bytes + 2 * tokens * hidden * 2
    flop = 2 * form.matrices * tokens * hidden * layers.intermediate
    floor = max(bytes_moved / found["read_tb_s"], flop / found["matmul_tflop_s"]) * 1e-6
    peers = {name: round(value, 2) for name, value in medians.items() if name != "fuseblock"}
    result = {
        "case": case_of(layers.name, hidden, layers.intermediate, tokens, layers.dtype),
        "value": round(medians["fuseblock"], 2),
        "unit": "us",
        "min": round(min(mine), 2),
        "max": round(max(mine), 2),
        "samples": len(mine),
        "floor": round(floor, 2),
        "share_of_floor": round(floor / medians["fuseblock"], 3),
        "ceilings": found,
        "peers": peers,
        "relative_error": {name: float(f"{value:.3g}") for name, value in errors.items()},
    }
    return result, samples


def judge(record: dict[str, Any]) -> None:
    """Holds every case to its bar: those of FP16 to the same in BF16."""

    def size(case: dict[str, Any]) -> tuple[int, ...]:
        return case["hidden"], case["intermediate"], case["tokens"]

    results = record["results"]
    plain = [r for r in results if "form" not in r["case"]]
    ours = {size(r["case"]): r["value"] for r in plain if r["case"]["dtype"] == "bf16"}
    for result in results:
        if result["case"]["dtype"] == "f16":
            result["our_bf16"] = ours.get(size(result["case"]), 0)
        bars.judge(result, bars.FEED_FORWARD_GPU)
    wanted = [
        name_of(form, hidden, intermediate, tokens, dtype)
        for form, hidden, intermediate, dtype, counts in CASES
        for tokens in counts
    ]
    record["holds"] = bars.holds(record, wanted, [records.case_name(r) for r in results])


def write(record: dict[str, Any], samples: list[tuple], out: Path) -> None:
    kept = records.merge(record)
    record["results"].sort(key=lambda r: (r["case"].get("form", ""), *r["case"].values()))
    judge(record)
    path = records.write(record)
    raw = records.RECORDS / f"{record['id']}.samples.csv"
    with raw.open("a" if kept else "w") as file:
        if not kept:
            file.write("date,hidden,intermediate,tokens,dtype,form,contender,us\n")
        for case_values, by_name in samples:
            for name, values in by_name.items():
                for value in values:
                    case = ",".join(map(str, [*case_values.values(), name]))
                    file.write(f"{record['date']},{case},{value:.3f}\n")
    for file_path in (path, raw):
        shutil.copy(file_path, out)


def cases_left(arguments: argparse.Namespace, record: dict[str, Any]) -> list[tuple]:
    """What to measure, as CASES has it; with --missing what the record lacks."""
    done: set[str] = set()
    if arguments.missing:
        have = {"id": record["id"], "commit": record["commit"], "hardware": record["hardware"]}
        done = records.merge(have | {"results": []})
    left = []
    for form, hidden, intermediate, dtype, token_counts in CASES:
        if arguments.filter not in f"{form}/{hidden}/{intermediate}/{dtype}":
            continue
        tokens = [
            count
            for count in arguments.tokens or token_counts
            if name_of(form, hidden, intermediate, count, dtype) not in done
        ]
        if tokens:
            left.append((form, hidden, intermediate, dtype, tokens))
    return left


def run_all(arguments: argparse.Namespace) -> None:
    begun = time.monotonic()
    library = Library(arguments.library)
    record = records.new_record(
        arguments.record,
        "./dev gpu bench",
        config={"rounds": ROUNDS, "turn_seconds": TURN_SECONDS, "graph": "all layers, no overlap"},
        seeds=[SEED],
        more_versions={"torch": torch.__version__, "cuda": torch.version.cuda},
    )
    found = {"matmul_tflop_s": round(matmul_ceiling(), 3)}
    samples: list[tuple] = []
    slowest = 0.0
    for form, hidden, intermediate, dtype, token_counts in cases_left(arguments, record):
        size = f"{form} {hidden}/{intermediate} {dtype}"
        if time.monotonic() - begun + 1.3 * slowest > arguments.seconds:
            print(f"left out for want of time: {size}")
            continue
        layers = Layers(library, form, hidden, intermediate, dtype)
        found = found | {"read_tb_s": round(layers.read_ceiling(), 3)}
        print("ceilings:", json.dumps(found), torch.cuda.get_device_name(), flush=True)
        for tokens in token_counts:
            case_begun = time.monotonic()
            if case_begun - begun + 1.3 * slowest > arguments.seconds:
                print(f"left out for want of time: {size}, {tokens} tokens")
                continue
            result, by_name = measure(layers, tokens, found)
            record["results"].append(result)
            samples.append((result["case"] | {"form": form}, by_name))
            slowest = max(slowest, time.monotonic() - case_begun)
            print(json.dumps({k: v for k, v in result.items() if k != "unit"}), flush=True)
        layers.close()
        del layers
        torch.cuda.empty_cache()
    record["ceilings"] = found
    write(record, samples, arguments.out)


def run_profile(arguments: argparse.Namespace) -> None:
    """A call of the path for each token count, without peers, for a profiler to look at."""
    layers = Layers(Library(arguments.library), SWIGLU, 4096, 14336, "bf16")
    for tokens in arguments.tokens or (1, 64, 1024):
        x = torch.randn(tokens, 4096, device="cuda").to(layers.type)
        y = torch.empty_like(x)
        workspace = layers.library.workspace(layers.ours[0], tokens)
        layers.library.run(layers.ours[0], x, y, workspace)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        layers.library.run(layers.ours[1], x, y, workspace)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    layers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libfuseblock_gpu_ffn.so")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--filter", default="", help="part of FORM/HIDDEN/INTERMEDIATE/DTYPE")
    parser.add_argument("--missing", action="store_true", help="only what the record lacks")
    parser.add_argument("--record", default="gpu_ffn", help="its name; another for a second run")
    parser.add_argument("--tokens", type=int, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.profile:
        run_profile(arguments)
    else:
        run_all(arguments)


if __name__ == "__main__":
    main()
