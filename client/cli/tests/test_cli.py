"""The command `fuseblock` against a real server: what it prints, writes and exits with."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [
    str(ROOT / folder) for folder in ("client/python", "client/python/tests", "examples/generate")
]

from checkpoint import SafetensorsFile  # noqa: E402
from fuseblock import Client  # noqa: E402
from serving import program, serving  # noqa: E402

HIDDEN = 576


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cli")
    tool = ROOT / "tools/models/synthetic_checkpoint.py"
    sizes = ["--layers", "2", "--vocabulary", "1024"]
    subprocess.run([sys.executable, tool, folder / "checkpoint", *sizes], check=True)
    models = {
        name: {"path": folder / "checkpoint", "dtype": dtype}
        for name, dtype in (("m", "BF16"), ("m32", "FP32"))
    }
    with serving(models, folder / "log") as address:
        yield address


def run(*arguments: object, server: str = "") -> subprocess.CompletedProcess[str]:
    command = program().parents[1] / "client/cli/fuseblock"
    environment = {k: v for k, v in os.environ.items() if k != "FUSEBLOCK_SERVER"}
    if server:
        environment["FUSEBLOCK_SERVER"] = server
    return subprocess.run(
        [command, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def succeed(*arguments: object, server: str = "") -> str:
    done = run(*arguments, server=server)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # no terminal, no colour
    return done.stdout


def test_blocks_are_listed_by_kind_and_one_by_one(address):
    short = succeed("blocks", server=address).splitlines()
    assert short[0].split()[:2] == ["BLOCK", "KIND"]
    assert any(
        line.split()[:3] == ["m32.layers.{0-1}.ffn_path", "ffn_path", "FP32"] for line in short
    )
    every = succeed("blocks", "m32.", "--all", server=address)
    assert "m32.layers.1.mlp" in every
    assert "m.layers" not in every
    listed = json.loads(succeed("--json", "blocks", server=address))
    with Client(address) as client:
        assert [b["name"] for b in listed] == [b.name for b in client.blocks()]


def test_a_block_is_described(address):
    text = succeed("describe", "m.layers.0.ffn_path", server=address)
    assert "residual [*, 576] BF16, optional" in text
    block = json.loads(succeed("--json", "describe", "m.layers.0.ffn_path", server=address))
    with Client(address) as client:
        info = client.describe("m.layers.0.ffn_path")
    assert block["formula"] == info.formula
    assert block["content_hash"] == info.content_hash
    assert block["inputs"][1] == {
        "name": "residual", "dtypes": ["BF16"], "shape": [-1, HIDDEN], "optional": True
    }  # fmt: skip


def test_health_is_the_exit_code(address):
    assert succeed("health", server=address) == "SERVING\n"
    assert succeed("--server", address, "health", "m.embed") == "SERVING\n"
    unknown = run("health", "m.nothing", server=address)
    assert unknown.returncode == 1
    assert unknown.stdout == ""


@pytest.mark.parametrize(("model", "dtype"), [("m32", np.float32), ("m", ml_dtypes.bfloat16)])
def test_run_writes_what_the_python_client_gets(address, tmp_path, model, dtype):
    random = np.random.default_rng(0)
    x, residual = (random.standard_normal((2, 3, HIDDEN), np.float32).astype(dtype) for _ in "xr")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "r.npy", residual)
    inputs = ["-i", tmp_path / "x.npy", "-i", f"residual={tmp_path / 'r.npy'}"]
    with Client(address) as client:
        y, h = client.run(f"{model}.layers.1.ffn_norm", x, residual=residual)
    text = succeed(
        "run", f"{model}.layers.1.ffn_norm", *inputs, "-o", f"y={tmp_path / 'y.npy'}",
        "-o", tmp_path / "all.safetensors", server=address,
    )  # fmt: skip
    assert "y [2, 3, 576]" in text
    assert "answered by cpu, revision 1" in text
    written = np.load(tmp_path / "y.npy")
    assert written.shape == y.shape
    assert written.tobytes() == y.tobytes()
    everything = SafetensorsFile(tmp_path / "all.safetensors")
    assert set(everything) == {"y", "residual_out"}
    assert everything.stored("y").tobytes() == y.tobytes()
    assert everything.stored("residual_out").tobytes() == h.tobytes()


def test_run_takes_a_safetensors_and_ids(address, tmp_path):
    np.save(tmp_path / "ids.npy", np.array([5, 0, 1023], np.int32))
    out = tmp_path / "x.safetensors"
    succeed("run", "m32.embed", "-i", tmp_path / "ids.npy", "-o", out, server=address)
    # The output is called y: name it as the next block's input.
    again = succeed("--json", "run", "m32.layers.0.mlp", "-i", f"x={out}", server=address)
    result = json.loads(again)
    assert result["outputs"][0]["shape"] == [3, HIDDEN]
    assert result["outputs"][0]["min"] < result["outputs"][0]["max"]
    assert result["timings_us"]["compute"] > 0


@pytest.mark.parametrize(("ending", "start"), [("html", b"<!doctype html>"), ("png", b"\x89PNG")])
def test_bench_measures_and_plots(address, tmp_path, ending, start):
    plot = tmp_path / f"plot.{ending}"
    result = json.loads(succeed(
        "--json", "bench", "m32.layers.0.ffn_path", "--tokens", "0-20", "--concurrency", 4,
        "--duration", 1, "--warmup", 0.1, "--residual", "--plot", plot, server=address,
    ))  # fmt: skip
    assert result["requests"] > 0
    assert result["errors"] == {}
    assert result["backend"] == "cpu"
    latency = result["latency_us"]
    assert latency["count"] == result["requests"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p999"]
    assert set(result["phases_us"]) >= {"queue", "batch", "compute", "encode"}
    assert plot.read_bytes().startswith(start)


def test_bench_at_a_rate_sends_what_is_due(address):
    result = json.loads(succeed(
        "--json", "bench", "m32.layers.0.attn_norm", "--rate", 50, "--concurrency", 8,
        "--duration", 2, "--warmup", 0, server=address,
    ))  # fmt: skip
    assert 0 < result["requests"] <= 101


def test_bench_counts_refusals_by_reason(address):
    done = run(
        "--json", "bench", "m32.layers.0.mlp", "--tokens", 5000, "--duration", 0.2, server=address
    )
    assert done.returncode == 1  # nothing was answered well
    assert list(json.loads(done.stdout)["errors"]) == ["TOO_LARGE"]


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[tuple[str, str, Path]]:
    """A server of its own: its address, its admin port and the folder of its checkpoint."""
    tool = ROOT / "tools/models/synthetic_checkpoint.py"
    sizes = ["--layers", "1", "--vocabulary", "64"]
    subprocess.run([sys.executable, tool, tmp_path / "checkpoint", *sizes], check=True)
    models = {"m": {"path": tmp_path / "checkpoint", "dtype": "FP32", "parts": "mlp"}}
    with serving(models, tmp_path / "log") as address:
        log = (tmp_path / "log").read_text()
        admin = re.search(r"listening on (\S+) service=admin", log).group(1)
        yield address, admin, tmp_path / "checkpoint"


def test_admin_loads_switches_and_unloads(operated):
    address, admin, checkpoint = operated

    def operate(*arguments: object) -> str:
        return succeed("admin", "--admin", admin, *arguments)

    def answering() -> str:
        block = json.loads(succeed("--json", "describe", "m.layers.0.mlp", server=address))
        return block["current_revision"]

    text = operate("load", "m", "--path", checkpoint, "--layers", "0")
    assert text.startswith("loaded m revision 2: 1 block, ")
    assert answering() == "2"
    assert operate("set-revision", "m", 1) == "m: revision 1 of 1 block\n"
    assert answering() == "1"
    assert operate("set-revision", "m") == "m: the newest revision of 1 block\n"
    text = operate("shadow", "m", 50, "--revision", 1)
    assert text.startswith("m: 50 % of the requests run again")
    assert operate("shadow", "m", 0) == "m: no shadow runs\n"
    assert json.loads(operate("--json", "unload", "m", "--revision", 1))["blocks"] == 1
    refused = run("admin", "--admin", admin, "unload", "m", "--revision", 1)
    assert refused.returncode == 1
    assert refused.stderr.startswith("fuseblock: BLOCK_NOT_FOUND: block 'm.layers.0.mlp' has no")
    assert "[models.m]" in operate("config")
    record = json.loads(operate("--json", "run-record"))
    assert record["hardware"]["devices"][0]["name"] == "cpu"
    assert record["seeds"] == {}
    assert "hardware.cpu" in operate("run-record")
    assert operate("drain").startswith("drained in ")


def test_kernels_need_no_server():
    kernels = {k["kernel"]: k["implementations"] for k in json.loads(succeed("--json", "kernels"))}
    assert {"rms_norm", "linear", "mlp_swiglu"} <= set(kernels)
    for implementations in kernels.values():
        assert implementations[-1]["name"] == "reference" or implementations[-1]["device"] == "cuda"
        assert any(i["usable"] for i in implementations if i["device"] == "cpu")
        for i in implementations:
            assert i["usable"] == (i["unavailable"] == "")
    assert "rms_norm" in succeed("kernels")


def test_errors_say_the_reason(address, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, HIDDEN - 1), np.float32))
    bad = run("run", "m32.layers.0.mlp", "-i", tmp_path / "x.npy", server=address)
    assert bad.returncode == 1
    assert bad.stderr.startswith("fuseblock: BAD_TENSOR: x: expected")
    missing = run("--json", "describe", "nobody", server=address)
    assert missing.returncode == 1
    assert json.loads(missing.stderr)["error"]["reason"] == "BLOCK_NOT_FOUND"
    no_file = run("run", "m32.layers.0.mlp", "-i", tmp_path / "gone.npy", server=address)
    assert no_file.returncode == 1
    assert "gone.npy: No such file" in no_file.stderr
    nobody = run("--server", "127.0.0.1:1", "--timeout", 5, "blocks")
    assert nobody.returncode == 1
    assert "UNAVAILABLE" in nobody.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["describe"],
        ["run", "m.embed"],
        ["bench", "m.embed", "--tokens", "many"],
        ["bench", "m.embed", "--tokens", "9-3"],
        ["bench", "m.embed", "--concurrency", "0"],
        ["bench", "m.embed", "--plot", "a.pdf"],
        ["blocks", "--colour"],
        ["admin"],
        ["admin", "load"],
        ["admin", "shadow", "m"],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr != ""


def test_the_version_is_the_servers():
    server = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True)
    assert succeed("--version") == server.stdout.replace("fuseblock-server", "fuseblock")
    assert re.fullmatch(r"fuseblock \d+\.\d+\.\d+ \(\S+\)\n", succeed("--version"))


@pytest.mark.parametrize(
    "command", ["", "blocks", "describe", "run", "health", "bench", "kernels", "admin"]
)
def test_help_is_there(command):
    text = succeed(*([command] if command else []), "--help")
    assert "Usage: fuseblock" in text
    assert max(len(line) for line in text.splitlines()) <= 120
