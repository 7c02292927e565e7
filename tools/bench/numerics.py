#!/usr/bin/env python3
"""The largest error of each row kernel and dtype against FP64, beside PyTorch's on the same inputs.

In ULP of the output, or where the output is a sum of terms that may cancel in parts of the sum of
their sizes, over row lengths and kinds of values, on the CPU or on a GPU. Beside it the bound that
the numerical ladder derives and tests (tests/numerics), where that is a number of ULP.
Writes evidence/records/numerics.json, or gpu_numerics.json.
"""

import argparse
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "evidence"))
import record as records  # noqa: E402
from row_kernels import DTYPES, KERNELS, Draw, RowKernel, as_tuple, exact, label  # noqa: E402
from rows_library import RowsLibrary  # noqa: E402
from ulp import Worst, spacing, worst  # noqa: E402

SEED = 20240613
# Above PyTorch's own error, in ULP of the output.
MORE_THAN_PEER_MAX = 1.0


class Near(Draw):
    """Magnitudes near 1."""


class Wide(Draw):
    """Magnitudes from 2^-12 to 2^6, both signs."""

    def normal(self, *shape: int) -> torch.Tensor:
        shape = shape or self.shape
        scale = torch.exp2(18 * torch.rand(*shape, device=self.device) - 12)
        return (torch.randn(*shape, device=self.device) * scale).to(self.dtype)


class Shifted(Draw):
    """A mean that is large beside the spread."""

    def normal(self, *shape: int) -> torch.Tensor:
        return (torch.randn(*(shape or self.shape), device=self.device) + 30).to(self.dtype)


NONE = Worst(-1, 0, 0, 1)
VALUES = {"near 1": Near, "wide": Wide, "shifted": Shifted}


def largest(run: Callable[..., Any], inputs: tuple, expected: tuple, units: tuple) -> Worst:
    found = as_tuple(run(*inputs))
    return max(worst(e, g, unit) for e, g, unit in zip(expected, found, units, strict=True))


def units_of(kernel: RowKernel, dtype: torch.dtype, inputs: tuple, expected: tuple) -> tuple:
    """What an error of each cell of each output counts in."""
    if kernel.scale is None:
        return tuple(spacing(dtype, e) for e in expected)
    info = torch.finfo(dtype)
    return (
        (info.eps * kernel.scale(*(x.double() for x in inputs))).clamp(min=info.tiny * info.eps),
    )


def ours(library: RowsLibrary, kernel: str, shape: tuple[int, ...], dtype: torch.dtype):
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        device = inputs[0].device
        outputs = tuple(
            torch.full(shape, float("nan"), dtype=dtype, device=device)
            for _ in range(KERNELS[kernel].outputs)
        )
        call = library.bind(kernel, KERNELS[kernel].our_inputs(inputs), outputs)
        call()
        return outputs

    return run


def measure(library: RowsLibrary, name: str, dtype: str, device: str, bound: float) -> dict:
    """One kernel and dtype: its worst cell, where that was, PyTorch's worst."""
    kernel = KERNELS[name]
    mine, peer, where, cells = NONE, NONE, "", 0
    for shape in kernel.numerics:
        for kind, draw in VALUES.items():
            torch.manual_seed(SEED)
            inputs = kernel.inputs(draw(shape, DTYPES[dtype], device))
            expected = exact(name, inputs)
            units = units_of(kernel, DTYPES[dtype], inputs, expected)
            run = ours(library, name, shape, DTYPES[dtype])
            found = largest(run, inputs, expected, units)
            if found > mine:
                mine, where = found, f"{label(shape)}, {kind}"
            theirs = largest(kernel.torch, kernel.peer_inputs(inputs), expected, units)
            peer = max(peer, theirs)
            cells += math.prod(shape) * kernel.outputs
    expected_at = torch.tensor(mine.expected, dtype=torch.float64)
    ulp = float(spacing(DTYPES[dtype], expected_at)) / mine.unit
    return {
        "case": {"kernel": name, "dtype": dtype, "backend": torch.device(device).type},
        "value": float(f"{mine.error:.4g}"),
        "unit": "ULP" if kernel.scale is None else "eps * sum of |terms|",
        "samples": cells,
        "bound": float(f"{bound:.4g}") if math.isfinite(bound) else None,
        "peers": {"torch_eager": float(f"{peer.error:.4g}")},
        "worst": {"at": where, "expected": mine.expected, "got": mine.got},
        "holds": mine.error <= bound and mine.error <= peer.error + MORE_THAN_PEER_MAX * ulp,
    }


def bounds(program: str) -> dict[tuple[str, str], float]:
    columns = {shape[-1] for kernel in KERNELS.values() for shape in kernel.numerics}
    lines = subprocess.run(
        [program, *map(str, sorted(columns))], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {(kernel, dtype): float(ulp) for kernel, dtype, ulp in map(str.split, lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libfuseblock_rows.so")
    parser.add_argument("--bounds", required=True, help="the program numerics_bounds")
    parser.add_argument("--device", required=True, choices=("cpu", "cuda:0"))
    parser.add_argument("--filter", default="", help="part of KERNEL/DTYPE")
    parser.add_argument("--out", type=Path, help="a folder for a copy of the record")
    arguments = parser.parse_args()
    on_gpu = arguments.device != "cpu"
    record = records.new_record(
        "gpu_numerics" if on_gpu else "numerics",
        "./dev gpu bench --filter numerics" if on_gpu else "./dev bench numerics",
        config={"values": list(VALUES), "more_than_peer_max": MORE_THAN_PEER_MAX},
        seeds=[SEED],
        more_versions={"torch": torch.__version__},
    )
    library = RowsLibrary(arguments.library)
    allowed = bounds(arguments.bounds)
    for name in library.kernels():
        for dtype in DTYPES:
            if arguments.filter not in f"{name}/{dtype}":
                continue
            bound = allowed.get((name, dtype), math.inf)
            with torch.inference_mode():
                result = measure(library, name, dtype, arguments.device, bound)
            record["results"].append(result)
            print(
                f"{name:15} {dtype}  ULP {result['value']:8.4g}  "
                f"bound {bound:8.4g}  "
                f"eager {result['peers']['torch_eager']:8.4g}  {result['worst']['at']:20} "
                f"{'' if result['holds'] else 'MISSED'}",
                flush=True,
            )
    library.close()
    records.merge(record)
    record["results"].sort(key=records.case_name)
    record["holds"] = all(result["holds"] for result in record["results"])
    path = records.write(record)
    if arguments.out:
        shutil.copy(path, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
