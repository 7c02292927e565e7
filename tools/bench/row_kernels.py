"""The row kernels as the benchmarks see them: operands, PyTorch's function, fewest bytes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

EPS = 1e-5  # as tests/bench/rows_library.cc
VOCABULARY = 32768
Shape = tuple[int, ...]
Tensors = tuple[torch.Tensor, ...]


class Draw:
    """Random operands of one case. `shared` ones are the same in each of its sets."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self._shared: dict[str, torch.Tensor] = {}

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*(shape or self.shape), device=self.device, dtype=self.dtype)

    def shared(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def weight(self, name: str = "weight") -> torch.Tensor:
        return self.shared(name, lambda: self.normal(self.shape[-1]))

    def distinct_ids(self, below: int) -> torch.Tensor:
        count = math.prod(self.shape[:-1])
        return torch.randperm(below, device=self.device)[:count].reshape(self.shape[:-1])


def size_of(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class RowKernel:
    inputs: Callable[[Draw], Tensors]  # in the order of the kernel's header
    torch: Callable[..., torch.Tensor | Tensors]  # the same function of the same operands
    outputs: int = 1  # each of the case's shape and dtype
    # Bytes that must be read of these inputs, where that is not all of them.
    read_bytes: Callable[[Tensors], int] = size_of
    large: Shape = (16384, 8192)
    small: tuple[Shape, ...] = (
        (256, 4096),
        (16, 4096),
        (1, 4096),
        (256, 576),
        (16, 576),
        (1, 576),
    )
    cpu: tuple[Shape, ...] = ((512, 4096), (64, 576))


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def add_rms_norm(x: torch.Tensor, r: torch.Tensor, weight: torch.Tensor) -> Tensors:
    h = x + r
    return functional.rms_norm(h, h.shape[-1:], weight, EPS), h


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    queries, keys = x.shape[-2:]
    masked = torch.ones(queries, keys, dtype=torch.bool, device=x.device).triu(keys - queries + 1)
    return torch.softmax(x.masked_fill(masked, -math.inf), dim=-1)


def bytes_of_kept_scores(inputs: Tensors) -> int:
    (x,) = inputs
    queries, keys = x.shape[-2:]
    kept = sum(max(0, query + 1 + keys - queries) for query in range(queries))
    return x.numel() // (queries * keys) * kept * x.element_size()


def bytes_of_looked_up_rows(inputs: Tensors) -> int:
    ids, table = inputs
    return size_of([ids]) + ids.numel() * table.shape[1] * table.element_size()


KERNELS: dict[str, RowKernel] = {
    "add_residual": RowKernel(lambda d: (d.normal(), d.normal()), torch.add),
    "silu": RowKernel(lambda d: (d.normal(),), functional.silu),
    "gelu_erf": RowKernel(lambda d: (d.normal(),), functional.gelu),
    "gelu_tanh": RowKernel(
        lambda d: (d.normal(),), lambda x: functional.gelu(x, approximate="tanh")
    ),
    "swiglu": RowKernel(
        lambda d: (d.normal(), d.normal()), lambda gate, up: functional.silu(gate) * up
    ),
    "rms_norm": RowKernel(lambda d: (d.normal(), d.weight()), rms_norm),
    "add_rms_norm": RowKernel(
        lambda d: (d.normal(), d.normal(), d.weight()), add_rms_norm, outputs=2
    ),
    "causal_softmax": RowKernel(
        lambda d: (d.normal(),),
        causal_softmax,
        read_bytes=bytes_of_kept_scores,
        large=(16, 2048, 2048),
        small=((16, 256, 256), (1, 576, 576)),
    ),
    "embedding": RowKernel(
        lambda d: (
            d.distinct_ids(VOCABULARY),
            d.shared("table", lambda: d.normal(VOCABULARY, d.shape[-1])),
        ),
        functional.embedding,
        read_bytes=bytes_of_looked_up_rows,
        large=(8192, 4096),
        small=((256, 576),),
    ),
}

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def label(shape: Shape) -> str:
    return "x".join(map(str, shape))


def case_of(kernel: str, shape: Shape, dtype: str) -> dict[str, str | int]:
    return {
        "kernel": kernel,
        "rows": math.prod(shape[:-1]),
        "cols": shape[-1],
        "dtype": dtype,
        "shape": label(shape),
    }


def torch_function(kernel: str) -> Callable[..., torch.Tensor | Tensors]:
    """PyTorch's function in a frame of our own: torch.compile leaves its own library's alone."""
    function = KERNELS[kernel].torch

    def call(*operands: torch.Tensor) -> torch.Tensor | Tensors:
        return function(*operands)

    return call


def compiled(kernel: str) -> Callable[..., torch.Tensor | Tensors]:
    """The same compiled anew, for one shape."""
    torch._dynamo.reset()
    return torch.compile(torch_function(kernel), dynamic=False, fullgraph=True)


def as_tuple(result: torch.Tensor | Tensors) -> Tensors:
    return result if isinstance(result, tuple) else (result,)


def exact(kernel: str, inputs: Tensors) -> Tensors:
    """The function in FP64 of the same values."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    return as_tuple(KERNELS[kernel].torch(*wide))


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest over the outputs of |found - expected| / |expected|, in norms; inf for NaN."""
    errors = [
        float((f.double() - e).norm() / e.norm()) for f, e in zip(found, expected, strict=True)
    ]
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def error_allowed(dtype: torch.dtype) -> float:
    """Of a right result: its one rounding to the dtype, and sixteen FP32 roundings before it."""
    return 0.5 * torch.finfo(dtype).eps + 16 * torch.finfo(torch.float32).eps


def require_right(kernel: str, dtype: torch.dtype, found: Tensors, expected: Tensors) -> float:
    error = relative_error(found, expected)
    if error > error_allowed(dtype):
        raise RuntimeError(f"{kernel}: relative error {error:.3g} is no rounding of {dtype}")
    return error
