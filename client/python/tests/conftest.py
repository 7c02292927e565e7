"""A real server over a small synthetic checkpoint, for all tests of this folder.

Its program is FUSEBLOCK_BUILD/server/fuseblock-server, or else the newest one under build/.
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "examples/generate")]

from fuseblock import Client  # noqa: E402

collect_ignore = [] if importlib.util.find_spec("torch") else ["test_torch.py"]

START_SECONDS = 120  # a bound on a hang, not a measure
LAYERS = 2


def server_program() -> Path:
    if folder := os.environ.get("FUSEBLOCK_BUILD"):
        return Path(folder) / "server/fuseblock-server"
    built = sorted(ROOT.glob("build/*/server/fuseblock-server"), key=lambda p: p.stat().st_mtime)
    if not built:
        pytest.fail("no fuseblock-server is built: run ./dev test, or set FUSEBLOCK_BUILD")
    return built[-1]


@dataclass
class Server:
    """A running server."""

    address: str
    checkpoint: Path


def start(arguments: list[str], log: Path) -> tuple[subprocess.Popen, str]:
    """The process, and the address on which it serves once it is ready."""
    command = [
        str(server_program()), *arguments,
        "--set", "server.address=127.0.0.1:0", "--set", "metrics.address=",
        "--set", "admin.address=", "--set", "devices=cpu",
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"listening on (\S+:\d+)", log.read_text()):
            with Client(found[1]) as client:
                while time.monotonic() < deadline:
                    if client.health(timeout=START_SECONDS) == "SERVING":
                        return process, found[1]
                    time.sleep(0.02)
        time.sleep(0.02)
    process.kill()
    pytest.fail(f"the server did not become ready:\n{log.read_text()}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the checkpoint as `m` (BF16) and `m32` (FP32), both with `hf` rounding."""
    folder = tmp_path_factory.mktemp("server")
    checkpoint = folder / "checkpoint"
    tool = ROOT / "tools/models/synthetic_checkpoint.py"
    subprocess.run([sys.executable, tool, checkpoint, "--layers", str(LAYERS)], check=True)
    arguments = []
    for name, dtype in (("m", "bf16"), ("m32", "fp32")):
        for key, value in (("path", checkpoint), ("dtype", dtype), ("rounding", "hf")):
            arguments += ["--set", f"models.{name}.{key}={value}"]
    process, address = start(arguments, folder / "server.log")
    yield Server(address, checkpoint)
    process.terminate()
    assert process.wait(START_SECONDS) == 0, (folder / "server.log").read_text()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
