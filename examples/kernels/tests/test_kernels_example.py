"""Installs the build under test, and builds and runs the examples against the install tree."""

import os
import subprocess
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1]


def test_the_examples_build_outside_the_tree_and_run(tmp_path):
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
    gate = tmp_path / "b/normalise_and_gate"
    done = subprocess.run([gate, "cpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "differs from the CPU's by 0 at most" in done.stdout
    done = subprocess.run([gate, "tpu:0"], capture_output=True, text=True, check=False)
    assert (done.returncode, "no device tpu:0" in done.stderr) == (1, True)
