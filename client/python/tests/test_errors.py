"""Failed calls as typed exceptions."""

import grpc
import pytest
from fuseblock import errors, protocol


class Failure(grpc.RpcError):
    """What gRPC raises, with the details that the server packs into the trailing metadata."""

    def __init__(self, code, reason="", retry_ms=0):
        self._code = code
        status = protocol.Status(code=code.value[0])
        if reason:
            info = protocol.ErrorInfo(reason=reason, domain="fuseblock", metadata={"block": "m.b"})
            status.details.add(
                type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString()
            )
        if retry_ms:
            retry = protocol.RetryInfo()
            retry.retry_delay.nanos = retry_ms * 1_000_000
            status.details.add(
                type_url="type.googleapis.com/google.rpc.RetryInfo", value=retry.SerializeToString()
            )
        self._trailing = (("other", "x"), ("grpc-status-details-bin", status.SerializeToString()))

    def code(self):
        return self._code

    def details(self):
        return "what happened"

    def trailing_metadata(self):
        return self._trailing


CODES = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (CODES.RESOURCE_EXHAUSTED, "QUEUE_FULL", errors.Refused),
        (CODES.RESOURCE_EXHAUSTED, "MEMORY", errors.Refused),
        (CODES.RESOURCE_EXHAUSTED, "QUOTA", errors.Refused),
        (CODES.RESOURCE_EXHAUSTED, "DEADLINE_INFEASIBLE", errors.Refused),
        (CODES.RESOURCE_EXHAUSTED, "", errors.InvalidRequest),  # gRPC's own size limit
        (CODES.DEADLINE_EXCEEDED, "EXPIRED", errors.Expired),
        (CODES.DEADLINE_EXCEEDED, "", errors.Expired),
        (CODES.UNAVAILABLE, "DRAINING", errors.Unavailable),
        (CODES.UNAVAILABLE, "DEVICE_LOST", errors.Unavailable),
        (CODES.NOT_FOUND, "BLOCK_NOT_FOUND", errors.BlockNotFound),
        (CODES.FAILED_PRECONDITION, "BLOCK_NOT_READY", errors.BlockNotReady),
        (CODES.INVALID_ARGUMENT, "BAD_TENSOR", errors.InvalidRequest),
        (CODES.INVALID_ARGUMENT, "TOO_LARGE", errors.InvalidRequest),
        (CODES.UNAUTHENTICATED, "UNAUTHENTICATED", errors.AccessDenied),
        (CODES.PERMISSION_DENIED, "PERMISSION_DENIED", errors.AccessDenied),
        (CODES.CANCELLED, "", errors.Cancelled),
        (CODES.INTERNAL, "INTERNAL", errors.InternalError),
        (CODES.UNIMPLEMENTED, "", errors.InternalError),
    ],
)
def test_each_reason_has_its_exception(code, reason, kind):
    error = errors.from_rpc_error(Failure(code, reason))
    assert type(error) is kind
    assert error.reason == (reason or code.name)
    assert error.code == code.name
    assert error.message == "what happened"
    assert error.retry_after is None
    assert error.metadata == ({"block": "m.b"} if reason else {})


def test_the_retry_delay_is_kept_and_shown():
    error = errors.from_rpc_error(Failure(CODES.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_ms=250))
    assert error.retry_after == 0.25
    assert str(error) == "QUEUE_FULL: what happened (retry after 0.25 s)"


def test_damaged_details_leave_what_grpc_says():
    failure = Failure(CODES.UNAVAILABLE)
    failure._trailing = (("grpc-status-details-bin", b"\xff\xff damaged"),)
    error = errors.from_rpc_error(failure)
    assert type(error) is errors.Unavailable
    assert (error.reason, error.retry_after) == ("UNAVAILABLE", None)
