"""NumPy arrays, torch tensors and raw bytes to and from the wire's tensors, values unchanged.

torch and ml_dtypes are looked for only when the caller's tensors are theirs.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuseblock import protocol

_NUMPY = {
    "float32": "FP32",
    "float16": "FP16",
    "bfloat16": "BF16",  # ml_dtypes'
    "int32": "INT32",
    "int64": "INT64",
}
_NUMPY_NAMES = {wire: name for name, wire in _NUMPY.items()}


@dataclass(frozen=True)
class RawTensor:
    """A tensor as bytes, for dtypes that the caller's arrays don't have (BF16 without ml_dtypes).

    Attributes:
        dtype: "FP32", "FP16", "BF16", "INT32" or "INT64".
        shape: Extents, outermost first.
        data: Row-major, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def is_integer(tensor: Any) -> bool:
    """Whether it holds token ids."""
    return to_wire("", tensor, with_data=False).data_type in (
        protocol.DATA_TYPE_NUMBERS["INT32"],
        protocol.DATA_TYPE_NUMBERS["INT64"],
    )


def to_wire(name: str, tensor: Any, with_data: bool = True) -> Any:
    """A fuseblock.v1.Tensor. TypeError when the kind or dtype is not one that the wire has."""
    if isinstance(tensor, RawTensor):
        dtype, shape, data = tensor.dtype, tensor.shape, tensor.data
    elif _is_torch(tensor):
        dtype, shape = _NUMPY.get(str(tensor.dtype).removeprefix("torch.")), tuple(tensor.shape)
        data = _torch_bytes(tensor) if dtype and with_data else b""
    elif isinstance(tensor, np.ndarray):
        dtype, shape = _NUMPY.get(tensor.dtype.name), tensor.shape
        data = _numpy_bytes(tensor) if dtype and with_data else b""
    else:
        raise TypeError(
            f"{name}: expected a NumPy array, torch tensor or RawTensor, "
            f"got {type(tensor).__name__}"
        )
    if dtype not in protocol.DATA_TYPE_NUMBERS:
        given = getattr(tensor, "dtype", dtype)
        raise TypeError(f"{name}: expected one of {', '.join(_NUMPY)}, got {given}")
    return protocol.Tensor(
        name=name, data_type=protocol.DATA_TYPE_NUMBERS[dtype], shape=shape, data=data
    )


def from_wire(wire: Any, like: Any) -> Any:
    """The tensor of the same kind as `like` (and on its torch device), writable."""
    dtype, shape = protocol.DATA_TYPES[wire.data_type], tuple(wire.shape)
    if isinstance(like, RawTensor):
        return RawTensor(dtype, shape, wire.data)
    if _is_torch(like):
        import torch

        kind = getattr(torch, _NUMPY_NAMES[dtype])
        if not wire.data:  # torch.frombuffer takes no empty buffer
            return torch.empty(shape, dtype=kind, device=like.device)
        flat = torch.frombuffer(bytearray(wire.data), dtype=kind)
        return flat.reshape(shape).to(like.device)
    return np.frombuffer(bytearray(wire.data), _numpy_dtype(dtype)).reshape(shape)


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")  # a torch tensor exists only where torch was imported
    return torch is not None and isinstance(tensor, torch.Tensor)


def _torch_bytes(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _numpy_bytes(array: np.ndarray) -> bytes:
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


def _numpy_dtype(dtype: str) -> np.dtype:
    if dtype != "BF16":
        return np.dtype(_NUMPY_NAMES[dtype]).newbyteorder("<")
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            "the answer is BF16, which NumPy lacks: install ml_dtypes, or send a torch tensor or "
            "RawTensor"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)
