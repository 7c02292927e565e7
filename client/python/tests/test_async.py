"""Futures against a server of the test's own, whose calls wait until they are told to answer."""

import threading
from collections.abc import Iterator
from concurrent import futures

import fuseblock
import grpc
import numpy as np
import pytest
from fuseblock import Client, protocol

HANG_SECONDS = 60  # a bound on a hang, not a measure


class Waiting(grpc.GenericRpcHandler):
    """RunBlock: answers its one input as y, or ends as cancelled, whichever comes first."""

    def __init__(self):
        self.arrived = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.metadata: dict[str, str] = {}
        self._calls: list[threading.Event] = []

    def answer(self) -> None:
        for call in self._calls:
            call.set()

    def service(self, details):
        self.metadata = dict(details.invocation_metadata)
        return grpc.unary_unary_rpc_method_handler(
            self.run,
            request_deserializer=protocol.RUN_BLOCK.request.FromString,
            response_serializer=protocol.RUN_BLOCK.response.SerializeToString,
        )

    def run(self, request, context):
        call = threading.Event()
        self._calls.append(call)
        if not context.add_callback(call.set):  # the call has ended already
            call.set()
        self.arrived.release()
        call.wait()
        if not context.is_active():
            self.cancelled.release()
        response = protocol.RUN_BLOCK.response(outputs=request.inputs, revision="1")
        response.outputs[0].name = "y"
        return response


@pytest.fixture
def waiting() -> Iterator[tuple[Waiting, str]]:
    handler = Waiting()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    handler.answer()
    server.stop(None).wait()


def wait(semaphore: threading.Semaphore) -> bool:
    return semaphore.acquire(timeout=HANG_SECONDS)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_future_waits_for_its_answer(waiting):
    handler, address = waiting
    with Client(address, token="secret") as client:
        future = client.run_async("b", X)
        assert wait(handler.arrived)
        assert not future.done()
        handler.answer()
        np.testing.assert_array_equal(future.result(HANG_SECONDS), X)
    assert handler.metadata["authorization"] == "Bearer secret"


def test_a_cancelled_future_cancels_its_call(waiting):
    handler, address = waiting
    with Client(address) as client:
        future = client.run_async("b", X)
        assert wait(handler.arrived)
        assert future.cancel()
        assert wait(handler.cancelled)
        with pytest.raises(futures.CancelledError):
            future.result(HANG_SECONDS)


def test_a_deadline_ends_a_future(waiting):
    handler, address = waiting
    with Client(address) as client:
        future = client.run_async("b", X, timeout=0.2)
        with pytest.raises(fuseblock.Expired):
            future.result(HANG_SECONDS)


def test_closing_the_client_ends_its_futures(waiting):
    handler, address = waiting
    client = Client(address)
    pending = [client.run_async("b", X) for _ in range(2)]
    for _ in pending:
        assert wait(handler.arrived)
    client.close()
    for future in pending:
        with pytest.raises(fuseblock.Cancelled):
            future.result(HANG_SECONDS)
        assert wait(handler.cancelled)
