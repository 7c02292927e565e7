"""Torch tensors to the wire and back; collected where torch is installed."""

import pytest
import torch
from fuseblock import protocol, tensors

DTYPES = {
    "FP32": torch.float32,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "INT32": torch.int32,
    "INT64": torch.int64,
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 4), (2, 3, 4)])
def test_there_and_back(name, shape):
    x = torch.arange(-5, torch.Size(shape).numel() - 5).reshape(shape).to(DTYPES[name])
    wire = protocol.Tensor.FromString(tensors.to_wire("x", x).SerializeToString())
    assert protocol.DATA_TYPES[wire.data_type] == name
    back = tensors.from_wire(wire, x)
    assert (back.dtype, back.shape, back.device) == (x.dtype, x.shape, x.device)
    assert torch.equal(back, x)


def test_a_view_is_sent_in_row_major_order():
    x = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    assert torch.equal(tensors.from_wire(tensors.to_wire("x", x), x), x)
