"""A real server over a small synthetic checkpoint, for all tests of this folder."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "examples/generate")]

from fuseblock import Client  # noqa: E402
from serving import serving  # noqa: E402

collect_ignore = [] if importlib.util.find_spec("torch") else ["test_torch.py", "test_hf.py"]

LAYERS, VOCABULARY = 2, 1024


@dataclass
class Server:
    """A running server."""

    address: str
    checkpoint: Path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the checkpoint as `m` (BF16) and `m32` (FP32), both with `hf` rounding."""
    folder = tmp_path_factory.mktemp("server")
    checkpoint = folder / "checkpoint"
    tool = ROOT / "tools/models/synthetic_checkpoint.py"
    sizes = ["--layers", str(LAYERS), "--vocabulary", str(VOCABULARY)]
    subprocess.run([sys.executable, tool, checkpoint, *sizes], check=True)
    models = {
        name: {"path": checkpoint, "dtype": dtype, "rounding": "hf"}
        for name, dtype in (("m", "BF16"), ("m32", "FP32"))
    }
    with serving(models, folder / "server.log") as address:
        yield Server(address, checkpoint)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
