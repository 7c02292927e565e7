"""Tensors to the wire and back, without a server."""

import ml_dtypes
import numpy as np
import pytest
from fuseblock import RawTensor, protocol, tensors

DTYPES = {
    "FP32": np.float32,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT32": np.int32,
    "INT64": np.int64,
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3, 4)])
def test_numpy_there_and_back(name, shape):
    x = np.arange(-5, np.prod(shape, dtype=int) - 5).reshape(shape).astype(DTYPES[name])
    wire = protocol.Tensor.FromString(tensors.to_wire("x", x).SerializeToString())
    assert protocol.DATA_TYPES[wire.data_type] == name
    assert wire.data == x.tobytes()
    back = tensors.from_wire(wire, x)
    assert (back.dtype, back.shape) == (x.dtype, x.shape)
    assert back.tobytes() == x.tobytes()


@pytest.mark.parametrize("name", DTYPES)
def test_raw_bytes_there_and_back(name):
    x = np.arange(6).astype(DTYPES[name])
    raw = RawTensor(name, (2, 3), x.tobytes())
    assert tensors.from_wire(tensors.to_wire("x", raw), raw) == raw


def test_integers_are_told_from_activations():
    assert tensors.is_integer(np.zeros(1, np.int32))
    assert tensors.is_integer(RawTensor("INT64", (0,), b""))
    assert not tensors.is_integer(np.zeros(1, np.float16))


def test_an_unknown_raw_dtype_is_refused():
    with pytest.raises(TypeError, match="FP64"):
        tensors.to_wire("x", RawTensor("FP64", (1,), bytes(8)))
