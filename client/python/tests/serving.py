"""Starts a real server for tests.

Its program is FUSEBLOCK_BUILD/server/fuseblock-server, or else the newest one under build/.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuseblock import Client

ROOT = Path(__file__).resolve().parents[3]
HANG_SECONDS = 120  # a bound on a hang, not a measure


def program() -> Path:
    if folder := os.environ.get("FUSEBLOCK_BUILD"):
        return Path(folder) / "server/fuseblock-server"
    built = sorted(ROOT.glob("build/*/server/fuseblock-server"), key=lambda p: p.stat().st_mtime)
    if not built:
        raise FileNotFoundError("no fuseblock-server: run ./dev test, or set FUSEBLOCK_BUILD")
    return built[-1]


@contextmanager
def serving(models: dict[str, dict[str, object]], log: Path) -> Iterator[str]:
    """Serves the models ({"m": {"path": ..., "dtype": "FP32"}}) on the CPU; gives the address.

    At the end the server must drain and exit with 0.
    """
    settings = {
        "server.address": "127.0.0.1:0", "metrics.address": "", "admin.address": "127.0.0.1:0",
        "devices": "cpu",
    }  # fmt: skip
    for name, keys in models.items():
        settings |= {f"models.{name}.{key}": str(value) for key, value in keys.items()}
    command = [str(program())]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield _ready_address(process, log)
        process.terminate()
        if process.wait(HANG_SECONDS) != 0:
            raise RuntimeError(f"the server ended badly:\n{log.read_text()}")
    finally:
        process.kill()
        process.wait()


def _ready_address(process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + HANG_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
        if not (found := re.search(r"listening on (\S+:\d+)", log.read_text())):
            continue
        with Client(found[1]) as client:
            if client.health(timeout=HANG_SECONDS) == "SERVING":
                return found[1]
    raise RuntimeError(f"the server did not become ready:\n{log.read_text()}")
