"""The largest error of every part against the expected outputs, beside its derived bound."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from arithmetic import ulp
from cases import Case, golden_cases, synthetic_cases
from checkpoint import Checkpoint
from fuseblock import Client, RawTensor
from terminal import clear_progress, heading, paint, progress, verdict

MODELS = {"FP32": "smollm2-fp32", "BF16": "smollm2"}
PARTS = ("embed", "attn_norm", "ffn_norm", "mlp", "ffn_path", "final_norm")


def encode(values: np.ndarray, dtype: str) -> RawTensor:
    """Values that are exact in the dtype (or FP32 to be cut to BF16) as a tensor's bytes."""
    single = np.ascontiguousarray(values, "<f4")
    if dtype == "FP32":
        return RawTensor("FP32", single.shape, single.tobytes())
    return RawTensor("BF16", single.shape, (single.view("<u4") >> 16).astype("<u2").tobytes())


def decode(tensor: RawTensor) -> np.ndarray:
    if tensor.dtype == "BF16":
        bits16 = np.frombuffer(tensor.data, "<u2").astype(np.uint32)
        return (bits16 << 16).view(np.float32).astype(np.float64).reshape(tensor.shape)
    return np.frombuffer(tensor.data, "<f4").astype(np.float64).reshape(tensor.shape)


@dataclass
class Deviation:
    """The largest error among a part's outputs, in ULP, and the bound where it stands."""

    ulps: float = 0
    bound_ulps: float = 0
    cells: int = 0
    equal: int = 0
    outside: int = 0

    def add(self, got: np.ndarray, expected: np.ndarray, bound: np.ndarray, dtype: str) -> None:
        error = np.abs(got - expected)
        # ULP of the value, or of the row's typical value where the value itself cancelled away.
        typical = np.median(np.abs(expected), axis=-1, keepdims=True)
        unit = ulp(np.maximum(np.abs(expected), typical), dtype)
        worst = np.argmax(error / unit)
        self.cells += error.size
        self.equal += int((error == 0).sum())
        self.outside += int((~(error <= bound)).sum())  # a NaN is outside
        if not (error / unit).flat[worst] <= self.ulps or self.cells == error.size:
            self.ulps = float((error / unit).flat[worst])
            self.bound_ulps = float((bound / unit).flat[worst])


def wire_inputs(case: Case, dtype: str) -> dict[str, RawTensor]:
    return {
        name: RawTensor("INT64", value.shape, value.astype("<i8").tobytes())
        if name == "ids"
        else encode(value, dtype)
        for name, value in case.inputs.items()
    }


def deviations(
    client: Client, model: str, cases: Iterable[Case], dtype: str
) -> tuple[dict[str, Deviation], str]:
    """By part, and the backend that answered."""
    found = {part: Deviation() for part in PARTS}
    backend = ""
    for case in cases:
        progress(f"comparing {model}.{case.block}")
        answer = client.call(f"{model}.{case.block}", wire_inputs(case, dtype), timeout=60)
        backend = answer.backend
        for name, expected in case.outputs.items():
            got = decode(answer.outputs[name])
            part = found[case.block.rpartition(".")[2]]
            part.add(got, expected.value, expected.bound, dtype)
    clear_progress()
    return found, backend


def report_numbers(client: Client, checkpoint: Checkpoint, golden: Path | None) -> bool:
    reference = "FP64" if golden is None else "transformers"
    heading(
        f"Largest error against {reference}, in ULP",
        "of the value, or of its row's median where it cancels",
    )
    print(
        paint(
            "2", f"{'':12}{'FP32':>10}{'bound':>9}{'equal':>8}{'BF16':>14}{'bound':>9}{'equal':>8}"
        )
    )
    columns = {}
    for dtype, model in MODELS.items():
        cases = (
            synthetic_cases(checkpoint, dtype)
            if golden is None
            else golden_cases(checkpoint, golden, dtype)
        )
        columns[dtype], backend = deviations(client, model, cases, dtype)
    all_ok = True
    for part in PARTS:
        line = f"{part:12}"
        for dtype, width in (("FP32", 10), ("BF16", 14)):
            d = columns[dtype][part]
            share = f"{d.equal / d.cells:.1%}"
            line += f"{d.ulps:>{width}.1f}{d.bound_ulps:>9.1f}{share:>8}"
        ok = all(columns[dtype][part].outside == 0 for dtype in MODELS)
        all_ok &= ok
        print(f"{line}  {verdict(ok)}")
    cells = sum(d.cells for column in columns.values() for d in column.values())
    print(
        f"{cells:,} values from backend {paint('1', backend)}, each within its bound: "
        f"{verdict(all_ok)}"
    )
    return all_ok
