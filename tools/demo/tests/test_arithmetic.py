"""The demo's bounds: right arithmetic stays within them, and each planted fault is seen."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "examples/generate"), str(ROOT / "client/python")]

from arithmetic import Arithmetic, Bounded, exact, ulp  # noqa: E402
from deviations import Deviation, decode, encode  # noqa: E402

HIDDEN, INNER, ROWS, EPS = 96, 160, 12, 1e-5
DTYPES = {"FP32": np.float32, "BF16": ml_dtypes.bfloat16}


def values(*shape: int, seed: int) -> np.ndarray:
    """FP64 values that are exact in BF16."""
    x = np.random.default_rng(seed).standard_normal(shape)
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


WEIGHTS = {
    "norm": (1 + values(HIDDEN, seed=1) / 8).astype(ml_dtypes.bfloat16).astype(np.float64),
    "gate": values(INNER, HIDDEN, seed=2) / 8,
    "up": values(INNER, HIDDEN, seed=3) / 8,
    "down": values(HIDDEN, INNER, seed=4) / 8,
}


def path_in(
    dtype: str, x: np.ndarray, residual: np.ndarray, order: np.ndarray, **fault
) -> np.ndarray:
    """The FFN path as an implementation computes it: FP32 sums in that order, `hf` rounding."""
    kind = DTYPES[dtype]

    def stored(value: np.ndarray) -> np.ndarray:
        return value.astype(kind).astype(np.float32)

    def product(rows: np.ndarray, name: str) -> np.ndarray:
        weight = fault.get(name, WEIGHTS[name]).astype(np.float32)
        terms = order[order < weight.shape[1]]
        total = np.zeros((len(rows), len(weight)), np.float32)
        for k in terms:
            total += np.outer(rows[:, k], weight[:, k])
        return stored(total)

    h = stored(x.astype(np.float32) + residual.astype(np.float32))
    mean = (h * h).mean(-1, keepdims=True, dtype=np.float32)
    n = stored(h / np.sqrt(mean + np.float32(fault.get("eps", EPS))))
    n = stored(n * fault.get("norm", WEIGHTS["norm"]).astype(np.float32))
    g, u = product(n, "gate"), product(n, "up")
    s = stored(g / (1 + np.exp(-g)))
    return stored(h + product(stored(s * u), "down")).astype(np.float64)


def bounded(dtype: str, sides: int, x: np.ndarray, residual: np.ndarray) -> Bounded:
    do = Arithmetic(dtype, sides, EPS)
    h = do.add(x, residual)
    mlp = do.mlp(do.norm(h, WEIGHTS["norm"]), WEIGHTS["gate"], WEIGHTS["up"], WEIGHTS["down"])
    return do.ffn_path(h, mlp)


INPUTS = (values(ROWS, HIDDEN, seed=5), values(ROWS, HIDDEN, seed=6))
FORWARD = np.arange(INNER)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(5))
def test_two_orders_of_summation_stay_within_the_bound(dtype, seed):
    order = np.random.default_rng(seed).permutation(INNER)
    one, other = (path_in(dtype, *INPUTS, o) for o in (FORWARD, order))
    difference = np.abs(one - other)
    assert (difference <= bounded(dtype, 2, *INPUTS).bound).all()
    assert dtype == "BF16" or difference.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_implementation_stays_within_the_bound_of_the_exact_value(dtype):
    expected = bounded(dtype, 1, *INPUTS)
    error = np.abs(path_in(dtype, *INPUTS, FORWARD) - expected.value)
    assert (error <= expected.bound).all()
    assert error.max() > expected.bound.max() / 100  # the bound is of the error's size


@pytest.mark.parametrize("seed", range(20))
def test_a_rounded_sum_moves_the_whole_row_of_its_norm(seed):
    """The sum's rounding also changes the mean square, by more than the last ULP forgives."""
    x, residual = values(64, HIDDEN, seed=100 + seed), values(64, HIDDEN, seed=200 + seed)
    do = Arithmetic("BF16", 1, EPS)
    expected = do.norm(do.add(x, residual), WEIGHTS["norm"])
    h = (x + residual).astype(ml_dtypes.bfloat16).astype(np.float64)
    n = (h / np.sqrt((h * h).mean(-1, keepdims=True) + EPS)).astype(ml_dtypes.bfloat16)
    got = (n.astype(np.float64) * WEIGHTS["norm"]).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert (np.abs(got - expected.value) <= expected.bound).all()


def swapped_column(name: str) -> np.ndarray:
    weight = WEIGHTS[name].copy()
    weight[:, [3, 4]] = weight[:, [4, 3]]
    return weight


FAULTS = {
    "eps left out": {"eps": 0.0},
    "two columns of gate swapped": {"gate": swapped_column("gate")},
    "two columns of down swapped": {"down": swapped_column("down")},
    "gate and up swapped": {"gate": WEIGHTS["up"], "up": WEIGHTS["gate"]},
    "norm weight left out": {"norm": np.ones(HIDDEN)},
    "one weight of up off by a BF16 ULP": {
        "up": np.where(np.arange(HIDDEN) == 7, WEIGHTS["up"] * (1 + 2**-7), WEIGHTS["up"])
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_outside_the_bound(fault):
    right, bound = path_in("FP32", *INPUTS, FORWARD), bounded("FP32", 2, *INPUTS).bound
    wrong = path_in("FP32", *INPUTS, FORWARD, **FAULTS[fault])
    assert (np.abs(wrong - right) > bound).any()


def test_ulp_is_the_distance_to_the_next_value():
    x = np.array([1.0, 1.5, 2.0, 3.9, 1e-3, -7.0], np.float32)
    np.testing.assert_array_equal(ulp(x, "FP32"), np.spacing(np.abs(x)))
    assert ulp(np.array([1.0]), "BF16") == 2**-7
    assert ulp(np.array([0.0]), "FP32") == 2**-149


def test_a_deviation_counts_a_nan_as_outside():
    d = Deviation()
    one = np.ones((1, 4))
    d.add(np.array([[1, 1, np.nan, 1]]), one, one, "FP32")
    assert d.outside == 1
    d.add(one + 2**-23, one, one, "FP32")
    assert d.outside == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_encoded_without_loss(dtype):
    x = values(3, 5, seed=9)
    np.testing.assert_array_equal(decode(encode(x, dtype)), x)
    assert encode(x, dtype).data == x.astype(DTYPES[dtype]).tobytes()


def test_exact_inputs_give_equal_sums_on_both_sides():
    h = Arithmetic("FP32", 2, EPS).add(*INPUTS)
    assert not h.bound.any()
    assert exact(h.value).bound.sum() == 0
