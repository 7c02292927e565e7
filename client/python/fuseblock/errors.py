"""Exceptions by the reason that the server gives::

FuseblockError
  Refused          the server is alive and declines for load: try again after retry_after
    Unavailable    it drains, has lost its device, or can't be reached
  Expired          the deadline passed (also a TimeoutError)
  BlockNotFound    no such block or revision (also a LookupError)
  BlockNotReady    it is loading or failed
  InvalidRequest   a tensor's name, dtype, shape or size does not fit (also a ValueError)
  AccessDenied     the token is missing, wrong, or lacks the right
  Cancelled        by the caller
  InternalError    a fault of the server
"""

import grpc
from google.protobuf.message import DecodeError

from fuseblock import protocol


class FuseblockError(Exception):
    """What a call came to.

    Attributes:
        reason: The server's reason, "QUEUE_FULL"; where it gave none, the gRPC code's name.
        code: The gRPC code's name, "RESOURCE_EXHAUSTED".
        message: The server's message for people.
        retry_after: Seconds after which a retry can succeed; None when the server advises none.
        metadata: More about the error, by name.
    """

    def __init__(
        self,
        reason: str,
        code: str,
        message: str,
        retry_after: float | None = None,
        metadata: dict[str, str] | None = None,
    ):
        self.reason = reason
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.metadata = metadata or {}
        retry = "" if retry_after is None else f" (retry after {retry_after:g} s)"
        super().__init__(f"{reason}: {message}{retry}")


class Refused(FuseblockError):
    """The server is alive and declines for load."""


class Unavailable(Refused):
    """The server drains, has lost its device, or can't be reached."""


class Expired(FuseblockError, TimeoutError):
    """The deadline passed before the answer."""


class BlockNotFound(FuseblockError, LookupError):
    """There is no such block or revision."""


class BlockNotReady(FuseblockError):
    """The block is loading or failed; the message says which."""


class InvalidRequest(FuseblockError, ValueError):
    """A tensor's name, dtype, shape or size does not fit; the message says expected and given."""


class AccessDenied(FuseblockError):
    """The token is missing, wrong, or lacks the right."""


class Cancelled(FuseblockError):
    """The caller cancelled."""


class InternalError(FuseblockError):
    """A fault of the server."""


_BY_REASON: dict[str, type[FuseblockError]] = {
    "QUEUE_FULL": Refused,
    "MEMORY": Refused,
    "QUOTA": Refused,
    "DEADLINE_INFEASIBLE": Refused,
    "EXPIRED": Expired,
    "DRAINING": Unavailable,
    "DEVICE_LOST": Unavailable,
    "BLOCK_NOT_FOUND": BlockNotFound,
    "BLOCK_NOT_READY": BlockNotReady,
    "BAD_TENSOR": InvalidRequest,
    "TOO_LARGE": InvalidRequest,
    "UNAUTHENTICATED": AccessDenied,
    "PERMISSION_DENIED": AccessDenied,
    "CANCELLED": Cancelled,
}

# For answers without details: from gRPC itself, or a proxy.
_BY_CODE: dict[str, type[FuseblockError]] = {
    "RESOURCE_EXHAUSTED": InvalidRequest,  # gRPC's own limit of the message's size
    "DEADLINE_EXCEEDED": Expired,
    "UNAVAILABLE": Unavailable,
    "NOT_FOUND": BlockNotFound,
    "FAILED_PRECONDITION": BlockNotReady,
    "INVALID_ARGUMENT": InvalidRequest,
    "UNAUTHENTICATED": AccessDenied,
    "PERMISSION_DENIED": AccessDenied,
    "CANCELLED": Cancelled,
}


def from_rpc_error(error: grpc.RpcError) -> FuseblockError:
    """The typed exception of a failed call, with the reason and delay of its status details."""
    code = error.code().name
    reason, retry_after, metadata = "", None, {}
    for type_url, value in _details(error):
        kind = type_url.rpartition("/")[2]
        if kind == "google.rpc.ErrorInfo":
            info = protocol.ErrorInfo.FromString(value)
            reason, metadata = info.reason, dict(info.metadata)
        elif kind == "google.rpc.RetryInfo":
            delay = protocol.RetryInfo.FromString(value).retry_delay
            retry_after = delay.seconds + delay.nanos / 1e9
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, InternalError)
    return kind(reason or code, code, error.details() or "", retry_after, metadata)


def _details(error: grpc.RpcError) -> list[tuple[str, bytes]]:
    """The details' types and bytes; none where a proxy has damaged them."""
    packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    try:
        return [(any_.type_url, any_.value) for any_ in protocol.Status.FromString(packed).details]
    except DecodeError:
        return []
