"""The blocks in FP64, with a bound on how far right implementations can lie from one another.

Every rounding adds to the bound, cell by cell, so it counts what was really rounded and summed. Two
tracks run side by side and the smaller one holds:

    worst case   triangle inequality: a sum of K products rounds K times, each time by at most u of
                 what was summed so far; two values at distance e > 0, stored in the dtype, lie
                 within e + 1 ULP.
    spread       roundings are independent with mean 0, and sums run in any order: the partial sums'
                 mean square over all orders is total^2 / 3 + sum of squares / 6. The bound is
                 lambda = 6 spreads, which a cell exceeds with a probability below 4e-8 (Hoeffding's
                 inequality; for rounding errors: Higham and Mary, 2019).

u is the unit roundoff of FP32, in which sums run. `sides` is 2 to compare two implementations (the
server's and transformers') and 1 to compare one with the exact value.
"""

from dataclasses import dataclass

import numpy as np

U = 2.0**-24
LAMBDA = 6.0
PRECISION = {"FP32": 24, "BF16": 8}  # significand bits
LEAST_EXPONENT = -126
SILU_ULPS = 4  # of the exponential and the division, in FP32, on each side
SILU_SLOPE = 1.1  # |silu'| is at most 1.0998


def ulp(x: np.ndarray, dtype: str) -> np.ndarray:
    """The distance between x's neighbours in the dtype."""
    least = np.ldexp(1.0, LEAST_EXPONENT)
    exponent = np.frexp(np.maximum(np.abs(x), least))[1] - 1
    return np.ldexp(1.0, exponent - PRECISION[dtype] + 1)


@dataclass(frozen=True)
class Bounded:
    """A tensor and how far it may be off.

    Attributes:
        value: In FP64.
        bound: Of the difference, cell by cell.
        spread: Of the part of the difference that is independent from cell to cell.
        common: Spread of the relative difference that a row's cells share.
    """

    value: np.ndarray
    bound: np.ndarray
    spread: np.ndarray
    common: np.ndarray | float = 0.0


def exact(value: np.ndarray) -> Bounded:
    return Bounded(value, np.zeros_like(value), np.zeros_like(value))


class Arithmetic:
    """The blocks' formulas with `hf` rounding in one dtype."""

    def __init__(self, dtype: str, sides: int, eps: float):
        self._dtype, self._sides, self._eps = dtype, sides, eps

    def add(self, x: np.ndarray, residual: np.ndarray) -> Bounded:
        """h = x + residual: one rounding of exact inputs, so equal on both sides."""
        return self._stored(exact(x + residual))

    def norm(self, x: Bounded, weight: np.ndarray) -> Bounded:
        """RMSNorm: normalised, stored, times the weight, stored."""
        squares = (x.value**2).sum(-1, keepdims=True)
        columns = x.value.shape[-1]
        inverse = 1 / np.sqrt(squares / columns + self._eps)
        # Of the inverse, relative: differences of x move the sum of squares by 2 x e; its terms are
        # all positive, so its own roundings do not grow by cancellation; the root halves both; then
        # the root and the division round.
        total = np.maximum(squares, columns * self._eps)  # a zero row has no differences either
        moved = np.sqrt((x.value**2 * x.spread**2).sum(-1, keepdims=True)) / total
        moved_worst = (np.abs(x.value) * x.bound).sum(-1, keepdims=True) / total
        worst = self._sides * (columns / 2 + 2) * U + moved_worst
        common = np.sqrt(self._sides * (columns / 3 / 4 + 2) * U**2 + moved**2)
        n = x.value * inverse
        relative = np.minimum(worst, LAMBDA * common)
        n = self._stored(Bounded(n, x.bound * inverse + np.abs(n) * relative, x.spread * inverse))
        scale = np.abs(weight)
        y = Bounded(n.value * weight, n.bound * scale, n.spread * scale, common)
        return self._stored(y)

    def mlp(self, x: Bounded, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> Bounded:
        """down(silu(gate(x)) * up(x)), every intermediate stored."""
        g, u = self._linear(x, gate), self._linear(x, up)
        s = g.value / (1 + np.exp(-np.clip(g.value, -700, None)))
        own = self._sides * SILU_ULPS * U * np.abs(s)
        silu = self._stored(
            Bounded(s, SILU_SLOPE * g.bound + own, np.hypot(SILU_SLOPE * g.spread, own))
        )
        left, right = np.abs(silu.value), np.abs(u.value)
        product = Bounded(
            silu.value * u.value,
            left * u.bound + right * silu.bound + silu.bound * u.bound,
            np.hypot(left * u.spread, right * silu.spread),
        )
        return self._linear(self._stored(product), down)

    def ffn_path(self, h: Bounded, branch: Bounded) -> Bounded:
        """y = h + branch, stored."""
        spread = np.hypot(h.spread, branch.spread)
        return self._stored(Bounded(h.value + branch.value, h.bound + branch.bound, spread))

    def _linear(self, x: Bounded, weight: np.ndarray) -> Bounded:
        value, magnitude = x.value @ weight.T, np.abs(weight)
        terms, sides = weight.shape[1], self._sides
        squares = x.value**2 @ (weight**2).T
        variance = sides * U**2 * terms * (value**2 / 3 + squares / 6)
        variance += x.spread**2 @ (weight**2).T + (x.common * value) ** 2
        spread = np.sqrt(variance)
        worst = x.bound @ magnitude.T + sides * terms * U * (np.abs(x.value) @ magnitude.T)
        return self._stored(Bounded(value, np.minimum(worst, LAMBDA * spread), spread))

    def _stored(self, x: Bounded) -> Bounded:
        """x rounded to the dtype: on both sides, or on ours only."""
        step = ulp(np.abs(x.value) + x.bound, self._dtype)
        step = step / 2 if self._sides == 1 else np.where(x.bound > 0, step, 0)
        return Bounded(x.value, x.bound + step, np.hypot(x.spread, step), x.common)
