"""Client of Fuseblock, a server of fused transformer blocks."""

from fuseblock.client import Answer, BlockInfo, Client, TensorSpec
from fuseblock.errors import (
    AccessDenied,
    BlockNotFound,
    BlockNotReady,
    Cancelled,
    Expired,
    FuseblockError,
    InternalError,
    InvalidRequest,
    Refused,
    Unavailable,
)
from fuseblock.tensors import RawTensor

__all__ = [
    "AccessDenied",
    "Answer",
    "BlockInfo",
    "BlockNotFound",
    "BlockNotReady",
    "Cancelled",
    "Client",
    "Expired",
    "FuseblockError",
    "InternalError",
    "InvalidRequest",
    "RawTensor",
    "Refused",
    "TensorSpec",
    "Unavailable",
]
