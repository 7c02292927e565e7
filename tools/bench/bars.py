"""What kernels are held to, as data, and what a measured case makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FLOATS = ("bf16", "fp16", "fp32")
# What a result says of the least time that its case can take.
_BOUNDS = {
    "share_of_floor": "floor",
    "share_of_read": "read_us",
    "share_of_peak": "multiply_us",
}


@dataclass(frozen=True)
class Bar:
    """At least that of the measure in every case that has one of these values in each of these."""

    measure: str  # of _BOUNDS: that bound / time; "ratio": best peer / time; or "ratio to PEER"
    at_least: float
    where: Mapping[str, tuple] = field(default_factory=dict)

    def applies(self, case: dict[str, Any]) -> bool:
        return all(case.get(name) in values for name, values in self.where.items())


# Of each list the first that applies counts.
GPU = (
    Bar("share_of_floor", 0.95, {"shape": ("16384x8192",)}),
    Bar(
        "share_of_floor",
        0.90,
        {"kernel": ("rope", "embedding"), "shape": ("8192x32x128", "8192x4096")},
    ),
    Bar("share_of_floor", 0.85, {"kernel": ("causal_softmax",), "shape": ("16x2048x2048",)}),
    Bar("ratio to torch_compile", 1.0),
)
CPU = (
    Bar("ratio", 1.0, {"kernel": ("embedding", "add_residual")}),
    Bar("ratio", 1.5),
)


def _feed_forward(hidden: int, *steps: tuple[tuple[int, ...], str, float]) -> tuple[Bar, ...]:
    return tuple(
        Bar(measure, at_least, {"hidden": (hidden,), "dtype": ("bf16",), "tokens": tokens})
        for tokens, measure, at_least in steps
    )


# Few tokens are held to the time that reading the weights takes, many to torch.compile; FP16 to our
# own BF16. Forms other than SwiGLU are named by their cases.
_OTHER_FORMS = ("geglu_tanh", "gelu_tanh")
FEED_FORWARD_GPU = (
    Bar("share_of_floor", 0.95, {"form": _OTHER_FORMS, "tokens": (1, 16)}),
    Bar("share_of_floor", 0.90, {"form": _OTHER_FORMS, "tokens": (64,)}),
    Bar("ratio to torch_compile", 1.0, {"form": _OTHER_FORMS}),
    *_feed_forward(
        4096,
        ((1, 4, 8), "share_of_floor", 0.96),
        ((16, 32), "share_of_floor", 0.95),
        ((64,), "share_of_floor", 0.93),
        ((128,), "share_of_floor", 0.86),
        ((256,), "ratio to torch_compile", 1.08),
        ((1024, 4096), "ratio to torch_compile", 1.0),
    ),
    *_feed_forward(
        8192,
        ((1, 4, 8), "share_of_floor", 0.99),
        ((16, 32), "share_of_floor", 0.98),
        ((64,), "share_of_floor", 0.96),
        ((128,), "share_of_floor", 0.80),
        ((256,), "ratio to torch_compile", 1.05),
        ((1024, 4096), "ratio to torch_compile", 1.0),
    ),
    *_feed_forward(2048, ((1, 16, 256), "ratio to torch_compile", 1.25)),
    *_feed_forward(576, ((1, 16, 256), "ratio to torch_compile", 1.25)),
    Bar("ratio to our_bf16", 0.98, {"dtype": ("f16",)}),
)


# Of these all that apply count: on the CPU a path may have to beat its peers and come near what
# bounds it.
_LARGE = (2048, 4096)
FEED_FORWARD_CPU = (
    Bar("ratio", 0.97),
    Bar("share_of_read", 0.93, {"hidden": _LARGE, "tokens": (1,)}),
    Bar("share_of_read", 0.87, {"hidden": _LARGE, "tokens": (4,)}),
    Bar("ratio", 1.1, {"hidden": (4096,), "dtype": ("bf16",), "tokens": (1,)}),
    Bar("ratio to torch_eager", 1.1, {"tokens": (1, 4, 16, 64)}),
    Bar("share_of_peak", 0.93, {"tokens": (256,)}),
)


def reached(result: dict[str, Any], measure: str) -> float:
    if measure in _BOUNDS:
        return result[_BOUNDS[measure]] / result["value"]
    if measure == "ratio":
        return min(result["peers"].values()) / result["value"]
    name = measure.removeprefix("ratio to ")
    # Our own other time is no peer. Without it nothing is reached.
    return result["peers"].get(name, result.get(name, 0)) / result["value"]


def judge(result: dict[str, Any], bars: Sequence[Bar]) -> None:
    """Gives a result its ratio, its bar and whether it holds."""
    bar = next(bar for bar in bars if bar.applies(result["case"]))
    value = reached(result, bar.measure)
    result["ratio"] = round(reached(result, "ratio"), 3)
    result["bar"] = {"measure": bar.measure, "at_least": bar.at_least, "reached": round(value, 3)}
    result["holds"] = value >= bar.at_least


def judge_by_all(result: dict[str, Any], bars: Sequence[Bar]) -> None:
    """Gives a result its ratio, all its bars, those that it misses and whether it holds."""
    result["ratio"] = round(reached(result, "ratio"), 3)
    result["bars"] = [
        {
            "measure": bar.measure,
            "at_least": bar.at_least,
            "reached": round(reached(result, bar.measure), 3),
        }
        for bar in bars
        if bar.applies(result["case"])
    ]
    result["missed"] = [
        f"{bar['measure']} {bar['reached']} < {bar['at_least']}"
        for bar in result["bars"]
        if bar["reached"] < bar["at_least"]
    ]
    result["holds"] = not result["missed"]


def holds(record: dict[str, Any], wanted: Sequence[str], names: Sequence[str]) -> bool:
    """Whether all wanted cases are in the record and hold. Those missing are written into it."""
    record["missing"] = sorted(set(wanted) - set(names))
    return not record["missing"] and all(result["holds"] for result in record["results"])
