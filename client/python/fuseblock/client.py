"""The client of a Fuseblock server: runs blocks, lists them, asks for health.

    import numpy as np
    from fuseblock import Client

    with Client("127.0.0.1:8001") as client:
        y = client.run("smollm2.layers.0.mlp", np.zeros((4, 576), np.float32))

A client holds one connection and may be shared by threads.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fuseblock import protocol, tensors
from fuseblock.errors import from_rpc_error


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a block.

    Attributes:
        name: "x", "residual", "ids", "y" or "residual_out".
        dtypes: Accepted, or the one given: "FP32", "FP16", "BF16", "INT32", "INT64".
        shape: Extents; -1 stands for any leading axes.
        optional: Whether a request may leave it out.
    """

    name: str
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    optional: bool


@dataclass(frozen=True)
class BlockInfo:
    """What the server says of a block; the fields are those of fuseblock.v1.BlockInfo."""

    name: str
    kind: str
    revisions: tuple[str, ...]
    current_revision: str
    state: str
    state_reason: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    formula: str
    rounding: str
    content_hash: str
    hidden_size: int
    intermediate_size: int
    backends: tuple[str, ...]
    weight_bytes: int
    max_request_tokens: int
    family: str


@dataclass(frozen=True)
class Answer:
    """A call's outputs and what the server says of how it made them.

    Attributes:
        outputs: By name, in the block's order, of the inputs' kind.
        backend: "cpu", "cuda:0".
        revision: The revision that answered.
        timings: Microseconds by phase ("queue", "batch", "h2d", "compute", "d2h", "encode"); empty
            unless asked for.
    """

    outputs: dict[str, Any]
    backend: str
    revision: str
    timings: dict[str, float]


class Client:
    """A connection to a server.

    Args:
        target: "HOST:PORT", "unix:PATH", or any gRPC target.
        token: Sent as a bearer token.
        ca: PEM file, or its bytes, of the authority that signed the server's certificate; TLS is
            used when it is given. b"" stands for the system's authorities.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:8001",
        token: str | None = None,
        ca: str | os.PathLike[str] | bytes | None = None,
    ):
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if ca is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            roots = ca if isinstance(ca, bytes) else Path(ca).read_bytes()
            credentials = grpc.ssl_channel_credentials(roots or None)
            self._channel = grpc.secure_channel(target, credentials, options)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        self._run_block = self._method(protocol.RUN_BLOCK)
        self._list_blocks = self._method(protocol.LIST_BLOCKS)
        self._get_block = self._method(protocol.GET_BLOCK)
        self._check_health = self._method(protocol.HEALTH_CHECK)

    def close(self) -> None:
        """Ends the connection; calls in flight are cancelled."""
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(
        self,
        block: str,
        x: Any,
        *,
        residual: Any = None,
        timeout: float | None = None,
        revision: str = "",
    ) -> Any:
        """Runs a block.

        Args:
            block: "smollm2.layers.0.mlp".
            x: Activations [..., hidden], or token ids [...] of an integer dtype for `embed`: a
                NumPy array (BF16 by ml_dtypes), a torch tensor or a RawTensor. The dtype must be
                one that the block serves: nothing is converted.
            residual: Added to x first, where the block takes it; of x's shape and dtype.
            timeout: Seconds for the whole call; the server drops work that can't make it.
            revision: The revision to run; by default the one that the server has set to answer.

        Returns:
            The output, of x's kind, dtype and shape. Where the block gives two (a norm with a
            residual), the tuple (y, residual_out).

        Raises:
            FuseblockError: One of its subclasses.
            TypeError: x is of a kind or dtype that the wire doesn't have.
        """
        answer = self.call(block, _inputs(x, residual), timeout=timeout, revision=revision)
        return _unpack(answer)

    def run_async(
        self,
        block: str,
        x: Any,
        *,
        residual: Any = None,
        timeout: float | None = None,
        revision: str = "",
    ) -> Future:
        """`run` without waiting: a future of its result. Cancelling it cancels the call.

        In a coroutine: `await asyncio.wrap_future(client.run_async(...))`.
        """
        inputs = _inputs(x, residual)
        request = _request(block, inputs, revision)
        call = self._run_block.future(request, timeout=timeout, metadata=self._metadata)
        future: Future = Future()

        def finish(_: Any) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(_unpack(_answer(call.result(), call, x)))
            except grpc.RpcError as error:
                future.set_exception(from_rpc_error(error))
            except Exception as error:
                future.set_exception(error)

        call.add_done_callback(finish)
        future.add_done_callback(lambda f: f.cancelled() and call.cancel())
        return future

    def call(
        self,
        block: str,
        inputs: Mapping[str, Any],
        *,
        timeout: float | None = None,
        revision: str = "",
        priority: int | None = None,
        timings: bool = False,
    ) -> Answer:
        """Runs a block on inputs by name, and tells how it was answered.

        Args:
            block: The block's name.
            inputs: By name; the outputs are of the first one's kind.
            timeout: Seconds for the whole call.
            revision: As for `run`.
            priority: 0 (highest) to 3; by default the server's, 1.
            timings: Whether to ask for the time of each phase.
        """
        metadata = list(self._metadata)
        if priority is not None:
            metadata.append(("fuseblock-priority", str(priority)))
        if timings:
            metadata.append(("fuseblock-timings", "1"))
        request = _request(block, inputs, revision)
        try:
            response, call = self._run_block.with_call(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        return _answer(response, call, next(iter(inputs.values())))

    def blocks(self, prefix: str = "", *, timeout: float | None = None) -> list[BlockInfo]:
        """The blocks that are served or loading, by name; only those that start with the prefix."""
        request = protocol.LIST_BLOCKS.request(prefix=prefix)
        response = self._invoke(self._list_blocks, request, timeout)
        return [_block_info(block) for block in response.blocks]

    def describe(
        self, block: str, *, revision: str = "", timeout: float | None = None
    ) -> BlockInfo:
        """One block: its tensors, formula, revisions and state."""
        request = protocol.GET_BLOCK.request(block=block, revision=revision)
        return _block_info(self._invoke(self._get_block, request, timeout).block)

    def health(self, block: str = "", *, timeout: float | None = None) -> str:
        """ "SERVING" or "NOT_SERVING": of the block, or of the server. BlockNotFound if unknown."""
        request = protocol.HEALTH_CHECK.request(service=block)
        response = self._invoke(self._check_health, request, timeout)
        return protocol.HEALTH_STATES[response.status]

    def _method(self, method: protocol.Method) -> Any:
        return self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    def _invoke(self, method: Callable[..., Any], request: Any, timeout: float | None) -> Any:
        try:
            return method(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


def _inputs(x: Any, residual: Any) -> dict[str, Any]:
    inputs = {"ids" if tensors.is_integer(x) else "x": x}
    if residual is not None:
        inputs["residual"] = residual
    return inputs


def _request(block: str, inputs: Mapping[str, Any], revision: str) -> Any:
    wire = [tensors.to_wire(name, tensor) for name, tensor in inputs.items()]
    return protocol.RUN_BLOCK.request(block=block, revision=revision, inputs=wire)


def _answer(response: Any, call: Any, like: Any) -> Answer:
    trailing = dict(call.trailing_metadata() or ())
    return Answer(
        outputs={t.name: tensors.from_wire(t, like) for t in response.outputs},
        backend=response.backend,
        revision=response.revision,
        timings=_timings(trailing.get("fuseblock-timings", "")),
    )


def _timings(text: str) -> dict[str, float]:
    """ "queue=12.5,compute=80" -> microseconds by phase."""
    pairs = (item.partition("=") for item in text.replace(";", ",").split(",") if item.strip())
    return {name.strip(): float(value) for name, _, value in pairs}


def _unpack(answer: Answer) -> Any:
    outputs = tuple(answer.outputs.values())
    return outputs[0] if len(outputs) == 1 else outputs


def _block_info(block: Any) -> BlockInfo:
    def specs(items: Any) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                spec.name,
                tuple(protocol.DATA_TYPES[number] for number in spec.data_types),
                tuple(spec.shape),
                spec.optional,
            )
            for spec in items
        )

    plain = (
        "name kind current_revision state_reason formula rounding content_hash hidden_size "
        "intermediate_size weight_bytes max_request_tokens family"
    )
    return BlockInfo(
        revisions=tuple(block.revisions),
        state=protocol.BLOCK_STATES[block.state],
        inputs=specs(block.inputs),
        outputs=specs(block.outputs),
        backends=tuple(block.backends),
        **{field: getattr(block, field) for field in plain.split()},
    )
