"""What the row kernels are held to, as data, and what a measured case makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FLOATS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Bar:
    """At least that of the measure in every case of these kernels and shapes (empty: of all)."""

    measure: str  # "share_of_floor": floor / time; "ratio": best peer / time; or "ratio to PEER"
    at_least: float
    kernels: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()

    def applies(self, case: dict[str, Any]) -> bool:
        return (not self.kernels or case["kernel"] in self.kernels) and (
            not self.shapes or case["shape"] in self.shapes
        )


# The first that applies counts.
GPU = (
    Bar("share_of_floor", 0.95, shapes=("16384x8192",)),
    Bar("share_of_floor", 0.90, ("rope", "embedding"), ("8192x32x128", "8192x4096")),
    Bar("share_of_floor", 0.85, ("causal_softmax",), ("16x2048x2048",)),
    Bar("ratio to torch_compile", 1.0),
)
CPU = (
    Bar("ratio", 1.0, ("embedding", "add_residual")),
    Bar("ratio", 1.5),
)


def reached(result: dict[str, Any], measure: str) -> float:
    if measure == "share_of_floor":
        return result["floor"] / result["value"]
    if measure == "ratio":
        return min(result["peers"].values()) / result["value"]
    return result["peers"][measure.removeprefix("ratio to ")] / result["value"]


def judge(result: dict[str, Any], bars: Sequence[Bar]) -> None:
    """Gives a result its ratio, its bar and whether it holds."""
    bar = next(bar for bar in bars if bar.applies(result["case"]))
    value = reached(result, bar.measure)
    result["ratio"] = round(reached(result, "ratio"), 3)
    result["bar"] = {"measure": bar.measure, "at_least": bar.at_least, "reached": round(value, 3)}
    result["holds"] = value >= bar.at_least


def holds(record: dict[str, Any], wanted: Sequence[str], names: Sequence[str]) -> bool:
    """Whether all wanted cases are in the record and hold. Those missing are written into it."""
    record["missing"] = sorted(set(wanted) - set(names))
    return not record["missing"] and all(result["holds"] for result in record["results"])
