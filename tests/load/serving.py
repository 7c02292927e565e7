"""A real server and a real Prometheus for the load tests, on free ports, stopped at the end."""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "evidence")]

READY_SECONDS = 180


@dataclass
class Server:
    """A running server: its addresses and its process."""

    address: str
    metrics: str
    process: subprocess.Popen

    def resident_bytes(self) -> int:
        """Memory that the process holds, as the kernel counts it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE).group(1)) * 1024

    def metric_lines(self) -> list[str]:
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            return answer.read().decode().splitlines()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def wait_until_it_answers(url: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{url} does not answer; its log ends:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(program: Path, *arguments: str) -> Iterator[Server]:
    """The server `program`, ready; at the end it is drained by SIGTERM and must exit with 0."""
    ports = free_port(), free_port()
    address, metrics = (f"127.0.0.1:{port}" for port in ports)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        command = [program, *arguments]
        command += ["--set", f"server.address={address}", "--set", f"metrics.address={metrics}"]
        command += ["--set", "admin.address="]
        with open(log, "w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until_it_answers(f"http://{metrics}/readyz", process, log)
            yield Server(address, metrics, process)
            process.send_signal(signal.SIGTERM)
            status = process.wait(timeout=60)
            if status != 0:
                raise RuntimeError(f"the server's drain exited with {status}:\n{log.read_text()}")
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def prometheus(target: str) -> Iterator[str | None]:
    """Prometheus with the shipped rules, scraping each second; None where it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        yield None
        return
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
        config = config.replace("server:8002", target).replace("5s", "1s")
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(ROOT / "deploy/prometheus/rules.yml", folder)
        log = folder / "prometheus.log"
        with open(log, "w") as output:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address={address}",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until_it_answers(f"http://{address}/-/ready", process, log)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()
