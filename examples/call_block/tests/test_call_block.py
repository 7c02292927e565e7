"""Builds the example against the install tree and runs it against a server."""

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / folder) for folder in ("client/python", "client/python/tests")]

from fuseblock import Client  # noqa: E402
from serving import serving  # noqa: E402

HIDDEN = 576


def test_the_example_prints_what_the_server_answers(build_example, tmp_path):
    program = build_example("call_block") / "call_block"
    tool = ROOT / "tools/models/synthetic_checkpoint.py"
    sizes = ["--layers", "1", "--vocabulary", "64"]
    subprocess.run([sys.executable, tool, tmp_path / "checkpoint", *sizes], check=True)
    dtypes = {"m32": ("FP32", np.float32), "m16": ("BF16", ml_dtypes.bfloat16)}
    models = {
        name: {"path": tmp_path / "checkpoint", "dtype": dtype}
        for name, (dtype, _) in dtypes.items()
    }

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)

    with serving(models, tmp_path / "log") as address:
        for name, (_, dtype) in dtypes.items():
            block = f"{name}.layers.0.ffn_path"
            done = call(address, block)
            assert done.returncode == 0, done.stderr
            x = ((np.arange(4 * HIDDEN) % 17 - 8) / 8).reshape(4, HIDDEN).astype(dtype)
            with Client(address) as client:
                y = client.run(block, x)
            shown = "y[0, :4] = " + " ".join(f"{value:g}" for value in y[0, :4].astype(float))
            assert shown in done.stdout.splitlines()
            assert "answered by cpu, revision 1" in done.stdout
        missing = call(address, "m32.layers.7.mlp")
        assert missing.returncode == 1
        assert missing.stderr.startswith("call_block: BLOCK_NOT_FOUND ")
    assert call().returncode == 2
