#!/usr/bin/env python3
"""Runs clang-tidy over the sources that changed since it last passed on them.

What passed is remembered by content: a hash of .clang-tidy, the source and every file of this
repository that it includes (as the build recorded). A time bound keeps it useful on small machines:
what it did not reach is counted in the last line, and is looked at first the next time.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fuseblock" / "tidy"
FOLDERS = ("kernels", "server", "client", "examples")


def included_files(build: Path) -> dict[str, list[Path]]:
    """For each object file: the files of this repository that it was made from."""
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True
    ).stdout
    out: dict[str, list[Path]] = {}
    for line in listing.splitlines():
        if line and not line.startswith(" "):
            current = out.setdefault(line.split(":")[0], [])
        elif line.strip():
            path = Path(os.path.normpath(build / line.strip()))
            if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "build"):
                current.append(path)
    return out


def key_of(source: Path, files: list[Path]) -> str:
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    for path in sorted({source, *files}):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def tidy(source: Path, build: Path) -> tuple[bool, str]:
    # GCC's own warning flags mean nothing to Clang: they are not findings.
    run = subprocess.run(
        [
            "clang-tidy-14",
            "-p",
            build,
            "--quiet",
            "--extra-arg=-Wno-unknown-warning-option",
            source,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode == 0, run.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="a build folder, built")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=1800, help="start no new file after this")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    deps = included_files(build)
    todo = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(os.path.normpath(Path(entry["directory"]) / entry["file"]))
        if source.suffix != ".cc" or not source.is_relative_to(ROOT):
            continue
        if source.relative_to(ROOT).parts[0] not in FOLDERS:
            continue
        objects = [name for name in deps if entry["command"].endswith(f" -c {entry['file']}")
                   and f" -o {name} " in entry["command"]]  # fmt: skip
        files = deps[objects[0]] if objects else []
        todo.append((source, CACHE / key_of(source, files)))
    CACHE.mkdir(parents=True, exist_ok=True)
    known = sum(mark.exists() for _, mark in todo)
    todo = [(source, mark) for source, mark in todo if not mark.exists()]
    deadline = time.monotonic() + arguments.seconds
    findings, looked_at = 0, 0

    def one(item: tuple[Path, Path]) -> tuple[Path, bool, str] | None:
        source, mark = item
        if time.monotonic() > deadline:
            return None
        clean, output = tidy(source, build)
        if clean:
            mark.touch()
        return source, clean, output

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(one, todo):
            if result is None:
                continue
            source, clean, output = result
            looked_at += 1
            print(source.relative_to(ROOT), "ok" if clean else "FINDINGS", flush=True)
            if not clean:
                findings += 1
                print(output, flush=True)
    late = len(todo) - looked_at
    print(f"clang-tidy: {looked_at} looked at, {known} unchanged since they passed, "
          f"{late} left for want of time, {findings} with findings")  # fmt: skip
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
