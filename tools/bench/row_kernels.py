"""The row kernels as the benchmarks see them: operands, PyTorch's function, fewest bytes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

ROPE_THETA = 10000.0
EPS = 1e-5  # both as tests/bench/rows_library.cc
VOCABULARY = 32768
PEER_ERROR_MAX = 0.05
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
    torch: Callable[..., torch.Tensor | Tensors]  # the same function
    outputs: int = 1  # each of the case's shape and dtype
    # What PyTorch's function takes, made before the timing.
    peer_inputs: Callable[[Tensors], Tensors] = lambda inputs: inputs
    # For torch.compile the function of our operands, where it does without some of those.
    fused: Callable[..., torch.Tensor | Tensors] | None = None
    # The same function of our operands, where PyTorch's takes others or loses digits even in FP64.
    exact: Callable[..., torch.Tensor | Tensors] | None = None
    # What an error counts in, times the dtype's epsilon; without it an output's own last place.
    scale: Callable[..., torch.Tensor] | None = None
    # Ours, where some lie elsewhere than PyTorch's.
    our_inputs: Callable[[Tensors], Tensors] = lambda inputs: inputs
    timed: bool = True  # whether this module's benchmarks measure its speed
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
    numerics: tuple[Shape, ...] = ((256, 577), (64, 4096), (8, 30001))


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def add_rms_norm(x: torch.Tensor, r: torch.Tensor, weight: torch.Tensor) -> Tensors:
    h = x + r
    return functional.rms_norm(h, h.shape[-1:], weight, EPS), h


def later_columns(x: torch.Tensor) -> torch.Tensor:
    """True where a causal row may not look."""
    queries, keys = x.shape[-2:]
    whole = torch.ones(queries, keys, dtype=torch.bool, device=x.device)
    return whole.triu(keys - queries + 1)


def softmax_without(x: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.masked_fill(masked, -math.inf), dim=-1)


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    return softmax_without(x, later_columns(x))


def bytes_of_kept_scores(inputs: Tensors) -> int:
    (x,) = inputs
    queries, keys = x.shape[-2:]
    kept = sum(max(0, query + 1 + keys - queries) for query in range(queries))
    return x.numel() // (queries * keys) * kept * x.element_size()


def bytes_of_looked_up_rows(inputs: Tensors) -> int:
    ids, table = inputs
    return size_of([ids]) + ids.numel() * table.shape[1] * table.element_size()


def gelu_erf_exactly(x: torch.Tensor) -> torch.Tensor:
    """By erfc, which keeps its digits where 1 + erf cancels."""
    return 0.5 * x * torch.special.erfc(-x * math.sqrt(0.5))


def gelu_tanh_exactly(x: torch.Tensor) -> torch.Tensor:
    """1 + tanh(u) is 2 sigmoid(2u), which does not cancel."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def swiglu_clamped(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up[..., ::2].clamp(max=7), gate_up[..., 1::2].clamp(-7, 7)
    return (up + 1) * (gate * torch.sigmoid(1.702 * gate))


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def layer_norm_terms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sum of the sizes of what is added: x, the parts of the mean, and bias."""
    scale = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)
    return (x.abs() + x.abs().mean(-1, keepdim=True)) * scale * weight.abs() + bias.abs()


def rope_terms(where: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    a, b = q.abs().chunk(2, dim=-1)
    cos, sin = (table.abs() for table in angles(where, q.shape[-1]))
    return q.abs() * cos + torch.cat((b, a), -1) * sin


def mask(draw: Draw) -> torch.Tensor:
    """Added to scores: about a tenth of the columns are taken out."""
    taken_out = torch.rand(*draw.shape, device=draw.device) < 0.1
    return draw.normal().masked_fill(taken_out, -math.inf)


def positions(draw: Draw) -> torch.Tensor:
    return torch.arange(draw.shape[0], device=draw.device)


def angles(where: torch.Tensor, head_dim: int) -> Tensors:
    """cos and sin in FP64, [tokens, 1, head_dim], for pairs (i, i + head_dim / 2)."""
    pairs = torch.arange(0, head_dim, 2, device=where.device, dtype=torch.float64)
    turned = where.double()[:, None, None] * ROPE_THETA ** (-pairs / head_dim)
    both = torch.cat((turned, turned), -1)
    return both.cos(), both.sin()


def turn(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = q.chunk(2, dim=-1)
    return q * cos + torch.cat((-b, a), -1) * sin


def rope_exactly(where: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return turn(q, *angles(where, q.shape[-1]))


def rope_peer_inputs(inputs: Tensors) -> Tensors:
    """As models do it: cos and sin are made once for all layers, in the dtype."""
    where, q = inputs
    return q, *(table.to(q.dtype) for table in angles(where, q.shape[-1]))


KERNELS: dict[str, RowKernel] = {
    "add_residual": RowKernel(lambda d: (d.normal(), d.normal()), torch.add),
    "silu": RowKernel(lambda d: (d.normal(),), functional.silu),
    "gelu_erf": RowKernel(lambda d: (d.normal(),), functional.gelu, exact=gelu_erf_exactly),
    "gelu_tanh": RowKernel(
        lambda d: (d.normal(),),
        lambda x: functional.gelu(x, approximate="tanh"),
        exact=gelu_tanh_exactly,
    ),
    "swiglu": RowKernel(
        lambda d: (d.normal(), d.normal()), lambda gate, up: functional.silu(gate) * up
    ),
    "swiglu_clamped": RowKernel(
        lambda d: (d.normal(*d.shape[:-1], 2 * d.shape[-1]),), swiglu_clamped
    ),
    "geglu": RowKernel(
        lambda d: (d.normal(), d.normal()),
        lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
        exact=lambda gate, up: gelu_tanh_exactly(gate) * up,
    ),
    "rms_norm": RowKernel(lambda d: (d.normal(), d.weight()), rms_norm),
    "add_rms_norm": RowKernel(
        lambda d: (d.normal(), d.normal(), d.weight()), add_rms_norm, outputs=2
    ),
    "layer_norm": RowKernel(
        lambda d: (d.normal(), d.weight(), d.weight("bias")), layer_norm, scale=layer_norm_terms
    ),
    "softmax": RowKernel(lambda d: (d.normal(),), lambda x: functional.softmax(x, -1)),
    "softmax_masked": RowKernel(
        lambda d: (d.normal(), mask(d)), lambda x, mask: functional.softmax(x + mask, -1)
    ),
    "rope": RowKernel(
        lambda d: (positions(d), d.normal()),
        turn,
        exact=rope_exactly,
        scale=rope_terms,
        peer_inputs=rope_peer_inputs,
        large=(8192, 32, 128),
        small=((256, 32, 128),),
        cpu=((512, 32, 128), (64, 9, 64)),
        numerics=((256, 9, 64), (2048, 4, 128)),
    ),
    "causal_softmax": RowKernel(
        lambda d: (d.normal(),),
        softmax_without,
        peer_inputs=lambda inputs: (*inputs, later_columns(*inputs)),
        fused=causal_softmax,
        exact=causal_softmax,
        read_bytes=bytes_of_kept_scores,
        large=(16, 2048, 2048),
        small=((16, 256, 256), (1, 576, 576)),
    ),
    # Products are timed by their own benchmarks. K is the number of columns, half as many outputs.
    "linear": RowKernel(
        lambda d: (
            d.normal(*d.shape[:-1], 2 * d.shape[-1]),
            d.normal(d.shape[-1], 2 * d.shape[-1]),
        ),
        functional.linear,
        our_inputs=lambda inputs: (inputs[0], inputs[1].cpu()),  # the weight is host memory
        scale=lambda x, weight: functional.linear(x.abs(), weight.abs()),
        timed=False,
        numerics=((64, 288), (33, 2048)),
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
        numerics=((256, 577),),
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


def compiled(kernel: str) -> Callable[..., torch.Tensor | Tensors]:
    """PyTorch's function compiled anew for one shape, of compiled_inputs."""
    function = KERNELS[kernel].fused or KERNELS[kernel].torch

    def call(*operands: torch.Tensor) -> torch.Tensor | Tensors:
        return function(*operands)  # in a frame of ours: its own library's are left alone

    torch._dynamo.reset()
    return torch.compile(call, dynamic=False, fullgraph=True)


def compiled_inputs(kernel: str, inputs: Tensors) -> Tensors:
    return inputs if KERNELS[kernel].fused else KERNELS[kernel].peer_inputs(inputs)


def as_tuple(result: torch.Tensor | Tensors) -> Tensors:
    return result if isinstance(result, tuple) else (result,)


def exact(kernel: str, inputs: Tensors) -> Tensors:
    """The function in FP64 of the same values."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    return as_tuple((KERNELS[kernel].exact or KERNELS[kernel].torch)(*wide))


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


def require_peer(kernel: str, found: Tensors, expected: Tensors) -> None:
    """That a peer computes the same function, however often it rounds on the way."""
    error = relative_error(found, expected)
    if error > PEER_ERROR_MAX:
        raise RuntimeError(f"{kernel}: the peer computes something else: error {error:.3g}")
