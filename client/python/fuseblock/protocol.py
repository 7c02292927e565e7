"""The wire contract's messages and methods, made at import from descriptors.binpb.

The descriptors live in a pool of their own. So this package needs no generated code (which ties the
protobuf version), and its messages never clash with those of another package in the same process
that has loaded a file of the same name, such as grpc.health.v1 or google.rpc.
"""

from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Method(NamedTuple):
    """One RPC: its path and its messages' classes."""

    path: str
    request: Any
    response: Any


_pool = descriptor_pool.DescriptorPool()
_files = descriptor_pb2.FileDescriptorSet.FromString(
    (Path(__file__).parent / "descriptors.binpb").read_bytes()
)
for _file in _files.file:
    _pool.AddSerializedFile(_file.SerializeToString())

if hasattr(message_factory, "GetMessageClass"):
    _message_class = message_factory.GetMessageClass
else:  # protobuf before 4.22
    _message_class = message_factory.MessageFactory(_pool).GetPrototype


def message(name: str) -> Any:
    """The class of the message with that full name."""
    return _message_class(_pool.FindMessageTypeByName(name))


def method(service: str, name: str) -> Method:
    """The method of the service with that full name."""
    found = _pool.FindServiceByName(service).FindMethodByName(name)
    return Method(
        f"/{service}/{name}",
        _message_class(found.input_type),
        _message_class(found.output_type),
    )


def enum_names(name: str, prefix: str) -> dict[int, str]:
    """Number -> value name without its prefix: {1: "FP32"}."""
    values = _pool.FindEnumTypeByName(name).values
    return {v.number: v.name.removeprefix(prefix) for v in values}


RUN_BLOCK = method("fuseblock.v1.BlockService", "RunBlock")
LIST_BLOCKS = method("fuseblock.v1.BlockService", "ListBlocks")
GET_BLOCK = method("fuseblock.v1.BlockService", "GetBlock")
HEALTH_CHECK = method("grpc.health.v1.Health", "Check")

Tensor = message("fuseblock.v1.Tensor")
Status = message("google.rpc.Status")
ErrorInfo = message("google.rpc.ErrorInfo")
RetryInfo = message("google.rpc.RetryInfo")

DATA_TYPES = enum_names("fuseblock.v1.DataType", "DATA_TYPE_")
DATA_TYPE_NUMBERS = {name: number for number, name in DATA_TYPES.items()}
BLOCK_STATES = enum_names("fuseblock.v1.BlockState", "BLOCK_STATE_")
HEALTH_STATES = enum_names("grpc.health.v1.HealthCheckResponse.ServingStatus", "")
