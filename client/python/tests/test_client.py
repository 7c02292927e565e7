"""The client against a real server."""

import asyncio

import fuseblock
import ml_dtypes
import numpy as np
import pytest
from checkpoint import Checkpoint
from fuseblock import Client, RawTensor

HIDDEN = 576


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_embed_gives_the_checkpoints_rows(client, server):
    table = Checkpoint(server.checkpoint).weight("model.embed_tokens")
    for dtype in (np.int32, np.int64):
        ids = np.array([[3, 1023, 0], [7, 7, 12]], dtype)
        y = client.run("m32.embed", ids)
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y, table[ids])


@pytest.mark.parametrize("shape", [(4, HIDDEN), (2, 3, HIDDEN), (1, HIDDEN), (0, HIDDEN)])
@pytest.mark.parametrize(("model", "dtype"), [("m32", np.float32), ("m", ml_dtypes.bfloat16)])
def test_shape_and_dtype_come_back(client, model, dtype, shape):
    x = rows(*shape).astype(dtype)
    y = client.run(f"{model}.layers.0.mlp", x)
    assert (y.shape, y.dtype, type(y)) == (x.shape, x.dtype, np.ndarray)
    assert y.flags.writeable


def test_a_residual_is_added_and_comes_back(client):
    x, residual = rows(5, HIDDEN), rows(5, HIDDEN, seed=1)
    y, residual_out = client.run("m32.layers.1.ffn_norm", x, residual=residual)
    np.testing.assert_array_equal(residual_out, x + residual)
    np.testing.assert_array_equal(y, client.run("m32.layers.1.ffn_norm", x + residual))
    path = client.run("m32.layers.1.ffn_path", x, residual=residual)
    np.testing.assert_array_equal(path, client.run("m32.layers.1.ffn_path", x + residual))


def test_every_kind_of_tensor_gives_the_same_bits(client):
    x = rows(3, HIDDEN)
    y = client.run("m32.layers.0.mlp", x)
    wide = np.zeros((3, 2 * HIDDEN), np.float32)
    wide[:, ::2] = x
    for same in (x.astype(">f4"), wide[:, ::2], np.asfortranarray(x)):
        np.testing.assert_array_equal(client.run("m32.layers.0.mlp", same), y)
    raw = client.run("m32.layers.0.mlp", RawTensor("FP32", x.shape, x.tobytes()))
    assert raw == RawTensor("FP32", x.shape, y.tobytes())


def test_call_tells_who_answered_and_how_long_it_took(client):
    answer = client.call("m32.layers.0.mlp", {"x": rows(2, HIDDEN)}, timings=True, priority=0)
    assert (answer.backend, answer.revision, list(answer.outputs)) == ("cpu", "1", ["y"])
    assert answer.timings["compute"] > 0
    assert {"queue", "batch", "encode"} <= set(answer.timings)
    assert client.call("m32.layers.0.mlp", {"x": rows(2, HIDDEN)}).timings == {}


def test_run_async_gives_futures(client):
    inputs = [rows(n, HIDDEN, seed=n) for n in (1, 40, 7)]
    futures = [client.run_async("m32.layers.0.ffn_path", x) for x in inputs]
    for x, future in zip(inputs, futures, strict=True):
        np.testing.assert_array_equal(future.result(60), client.run("m32.layers.0.ffn_path", x))

    async def in_a_coroutine():
        return await asyncio.wrap_future(client.run_async("m32.layers.0.mlp", inputs[0]))

    expected = client.run("m32.layers.0.mlp", inputs[0])
    np.testing.assert_array_equal(asyncio.run(in_a_coroutine()), expected)
    with pytest.raises(fuseblock.BlockNotFound):
        client.run_async("m32.layers.0.nothing", inputs[0]).result(60)


def test_blocks_and_describe(client):
    names = [block.name for block in client.blocks("m32.")]
    assert names == sorted(names)
    assert "m32.embed" in names
    assert "m32.layers.1.ffn_path" in names
    block = client.describe("m32.layers.1.ffn_path")
    assert block == next(b for b in client.blocks() if b.name == block.name)
    assert (block.kind, block.state, block.rounding) == ("ffn_path", "READY", "hf")
    assert (block.hidden_size, block.intermediate_size) == (HIDDEN, 1536)
    x, residual = block.inputs
    assert (x.name, x.dtypes, x.shape, x.optional) == ("x", ("FP32",), (-1, HIDDEN), False)
    assert (residual.name, residual.optional) == ("residual", True)


def test_health(client):
    assert client.health() == "SERVING"
    assert client.health("m.layers.0.mlp") == "SERVING"
    with pytest.raises(fuseblock.BlockNotFound):
        client.health("m.layers.0.nothing")


def test_errors_carry_the_servers_reason(client):
    with pytest.raises(fuseblock.BlockNotFound) as not_found:
        client.run("m32.layers.99.mlp", rows(1, HIDDEN))
    assert (not_found.value.reason, not_found.value.code) == ("BLOCK_NOT_FOUND", "NOT_FOUND")
    assert isinstance(not_found.value, LookupError)
    assert "m32.layers.99.mlp" in not_found.value.message
    with pytest.raises(fuseblock.InvalidRequest) as bad_shape:
        client.run("m32.layers.0.mlp", rows(4, HIDDEN - 1))
    assert bad_shape.value.reason == "BAD_TENSOR"
    assert "576" in bad_shape.value.message
    assert "575" in bad_shape.value.message
    assert isinstance(bad_shape.value, ValueError)
    with pytest.raises(fuseblock.InvalidRequest) as bad_dtype:
        client.run("m.layers.0.mlp", rows(4, HIDDEN))
    assert "BF16" in bad_dtype.value.message
    assert "FP32" in bad_dtype.value.message
    with pytest.raises(fuseblock.BlockNotFound):
        client.run("m32.layers.0.mlp", rows(1, HIDDEN), revision="7")


def test_a_deadline_that_has_passed(client):
    with pytest.raises((fuseblock.Expired, fuseblock.Refused)) as late:
        client.run("m32.layers.0.mlp", rows(4000, HIDDEN), timeout=1e-6)
    assert late.value.code in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")


def test_an_unreachable_server():
    with Client("127.0.0.1:1") as client, pytest.raises(fuseblock.Unavailable) as gone:
        client.blocks(timeout=20)
    assert gone.value.code == "UNAVAILABLE"
    assert gone.value.retry_after is None


@pytest.mark.parametrize("x", [[1.0, 2.0], np.zeros((1, HIDDEN)), np.zeros((1, 1), bool), None])
def test_kinds_and_dtypes_that_the_wire_lacks_are_refused_here(client, x):
    with pytest.raises(TypeError, match="expected"):
        client.run("m32.layers.0.mlp", x)
