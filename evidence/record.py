"""What every record holds besides its results: when, on which commit, machine and versions.

A measuring program calls new_record(), fills "results" and calls write(). A program that is not
Python prints its results as JSON and has a few lines of Python around it.
"""

import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "evidence" / "records"


def output_of(*command: str) -> str:
    """What a program prints, or nothing where it is not there."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip()


def hardware() -> dict[str, Any]:
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found: dict[str, Any] = {
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
    }
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if gpus:
        names = [line.split(", ") for line in gpus.splitlines()]
        found |= {"gpu": names[0][0], "gpus": len(names), "driver": names[0][1]}
    return found


def versions(**more: str) -> dict[str, str]:
    system = re.search(r'^PRETTY_NAME="(.*)"$', Path("/etc/os-release").read_text(), re.MULTILINE)
    found = {
        "os": system.group(1) if system else platform.platform(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiler": output_of("g++", "-dumpfullversion"),
        "grpc": output_of("pkg-config", "--modversion", "grpc++"),
    }
    return {name: value for name, value in (found | more).items() if value}


def new_record(
    identifier: str,
    command: str,
    config: dict[str, Any] | None = None,
    seeds: list[int] | None = None,
    more_versions: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "id": identifier,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": output_of("git", "rev-parse", "HEAD"),
        # True: the sources differed from the commit when this was measured.
        "modified": bool(output_of("git", "status", "--porcelain", "--", "kernels", "server")),
        "command": command,
        "hardware": hardware(),
        "versions": versions(**(more_versions or {})),
        "config": config or {},
        "seeds": seeds or [],
        "holds": False,
        "ceilings": {},
        "results": [],
    }


def write(record: dict[str, Any]) -> Path:
    RECORDS.mkdir(parents=True, exist_ok=True)
    path = RECORDS / f"{record['id']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
