"""Errors in units of the last place of an output, or in another unit of each cell."""

import math
from typing import NamedTuple

import torch


class Worst(NamedTuple):
    error: float  # inf where one is finite and the other is not
    expected: float
    got: float
    unit: float  # of the cell


def spacing(dtype: torch.dtype, values: torch.Tensor) -> torch.Tensor:
    """The distance between neighbours at FP64 values: constant below the smallest normal."""
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps
    _, exponents = torch.frexp(values)  # 2^(e-1) <= |value| < 2^e
    ulp = torch.ldexp(torch.full_like(values, info.eps), exponents - 1)
    return torch.where(values == 0, smallest, ulp.clamp(min=smallest))


def worst(expected: torch.Tensor, got: torch.Tensor, units: torch.Tensor) -> Worst:
    """The largest error against exact FP64 values that the dtype of `got` can hold."""
    limit = torch.finfo(got.dtype).max
    held = expected.abs() <= limit
    errors = (got.double() - expected).abs() / units
    errors = torch.where(errors.isnan(), math.inf, errors)
    errors = torch.where(held, errors, 0.0)
    at = int(errors.argmax())
    return Worst(*(float(t.flatten()[at]) for t in (errors, expected, got, units)))
