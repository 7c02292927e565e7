"""Builds and runs the examples against the install tree."""

import subprocess
from pathlib import Path

import pytest


def test_the_installed_programs_start(install_tree):
    for program in ("fuseblock-server", "fuseblock"):
        subprocess.run([install_tree / "bin" / program, "--help"], check=True, capture_output=True)


@pytest.fixture(scope="module")
def programs(build_example) -> Path:
    return build_example("kernels")


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


def test_a_feed_forward_path_runs_outside_the_tree(programs):
    done = run(programs / "ffn_path")
    assert done.returncode == 0, done.stderr
    assert "rms_norm" in done.stdout
    assert "the last row alone has the same bits" in done.stdout


def test_a_tensor_is_normalised_and_gated_outside_the_tree(programs):
    gate = programs / "normalise_and_gate"
    done = run(gate, "cpu")
    assert done.returncode == 0, done.stderr
    assert "differs from the CPU's by 0 at most" in done.stdout
    done = run(gate, "tpu:0")
    assert (done.returncode, "no device tpu:0" in done.stderr) == (1, True)
