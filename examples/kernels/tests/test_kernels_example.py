"""Installs the build under test, and builds and runs the example against the install tree."""

import os
import subprocess
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1]


def test_the_example_builds_outside_the_tree_and_runs(tmp_path):
    build = os.environ["FUSEBLOCK_BUILD"]
    prefix = tmp_path / "prefix"
    for command in (
        ["cmake", "--install", build, "--prefix", prefix],
        ["cmake", "-S", EXAMPLE, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", tmp_path / "b"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    for program in ("fuseblock-server", "fuseblock"):
        subprocess.run([prefix / "bin" / program, "--help"], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "b/ffn_path"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rms_norm" in done.stdout
    assert "the last row alone has the same bits" in done.stdout
