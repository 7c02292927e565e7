"""The install tree of the build under test, and programs built against it from outside the tree."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent


def run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def install_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix that the build of FUSEBLOCK_BUILD was installed to."""
    prefix = tmp_path_factory.mktemp("install") / "prefix"
    run("cmake", "--install", os.environ["FUSEBLOCK_BUILD"], "--prefix", prefix)
    return prefix


@pytest.fixture(scope="session")
def build_example(
    install_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Builds the example of that folder against the install tree; gives where its programs are."""

    def build(folder: str) -> Path:
        out = tmp_path_factory.mktemp(folder)
        run(
            "cmake", "-S", EXAMPLES / folder, "-B", out, f"-DCMAKE_PREFIX_PATH={install_tree}",
            "-DCMAKE_BUILD_TYPE=Release",
        )  # fmt: skip
        run("cmake", "--build", out)
        return out

    return build
