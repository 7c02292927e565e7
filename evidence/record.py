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


def commit() -> str:
    """The commit of the sources; of a bundle that was built elsewhere, the one that it says
    (tools/gpu/run.sh), with "-dirty" behind it when its sources differed from that."""
    return os.environ.get("FUSEBLOCK_BUNDLE_COMMIT") or output_of("git", "rev-parse", "HEAD")


def modified() -> bool:
    """Whether the sources differed from the commit when this was measured."""
    if "FUSEBLOCK_BUNDLE_COMMIT" in os.environ:
        return commit().endswith("-dirty")
    return bool(output_of("git", "status", "--porcelain", "--", "kernels", "server"))


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
        "commit": commit(),
        "modified": modified(),
        "command": command,
        "hardware": hardware(),
        "versions": versions(**(more_versions or {})),
        "config": config or {},
        "seeds": seeds or [],
        "holds": False,
        "ceilings": {},
        "results": [],
    }


def case_name(result: dict[str, Any]) -> str:
    return " ".join(str(value) for value in result["case"].values())


def origin(record: dict[str, Any]) -> tuple[str | None, ...]:
    """What results must share to stand in one record."""
    return record["commit"], *(record["hardware"].get(part) for part in ("cpu", "gpu"))


def merge(record: dict[str, Any]) -> set[str]:
    """Adds the cases that an earlier run of the same commit on the same hardware left in the file.

    The names of the cases added.
    """
    path = RECORDS / f"{record['id']}.json"
    if not path.exists():
        return set()
    old = json.loads(path.read_text())
    if origin(old) != origin(record):
        return set()
    new = {case_name(result) for result in record["results"]}
    kept = [result for result in old["results"] if case_name(result) not in new]
    record["results"] += kept
    return {case_name(result) for result in kept}


def write_samples(
    identifier: str, samples: dict[str, dict[str, list[float]]], kept: set[str]
) -> Path:
    """Raw samples beside the record: case, contender, values; of kept cases those in the file."""
    path = RECORDS / f"{identifier}.samples.json"
    old = json.loads(path.read_text()) if kept and path.exists() else {}
    merged = {name: by_name for name, by_name in old.items() if name in kept} | samples
    lines = []
    for name, by_name in merged.items():
        rounded = {key: [round(value, 3) for value in values] for key, values in by_name.items()}
        lines.append(f"{json.dumps(name)}: {json.dumps(rounded)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path


def write(record: dict[str, Any]) -> Path:
    RECORDS.mkdir(parents=True, exist_ok=True)
    path = RECORDS / f"{record['id']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
