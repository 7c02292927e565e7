#!/usr/bin/env python3
"""Checks the repository against rules.py: directions of includes, places of libraries, file sizes,
opening comments, words that no file may say. Prints every violation; exit code 1 when there is one.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import rules

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
OWN_HEADER = re.compile(r'#include "([^"]+)"$')
SOURCES = {".cc", ".h", ".cu", ".cuh"}
TREES = ("kernels/", "server/", "client/")


def files_of(root: Path) -> list[str]:
    """Paths of tracked files and of new ones that git does not ignore."""
    listing = subprocess.run(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return sorted(path for path in set(listing) if (root / path).is_file())


def allowed_includes(path: str) -> list[str] | None:
    for pattern, allowed in rules.INCLUDES:
        if match := re.match(pattern, path):
            return [entry.format(**match.groupdict()) for entry in allowed]
    return None


def check_includes(path: str, text: str) -> Iterator[str]:
    allowed = allowed_includes(path)
    for bracket, header in INCLUDE.findall(text):
        if bracket == '"' and rules.OURS.match(header) and allowed is not None:
            if not any(re.match(entry, header) for entry in allowed):
                yield f'includes "{header}", which its place in the house does not allow'
        for name, pattern, places in rules.LIBRARIES:
            if re.match(pattern, header) and not rules.OURS.match(header.removesuffix(".pb.h")):
                if not re.match(places, path):
                    yield f"includes {name} ({header}), whose place is {places}"


def check_opening(path: str, text: str) -> Iterator[str]:
    suffix = Path(path).suffix
    opens_with = rules.OPENS_WITH.get(suffix)
    lines = text.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    if lines and OWN_HEADER.match(lines[0]) and path.endswith((".cc", ".cu")):
        if Path(path).stem.startswith(Path(OWN_HEADER.match(lines[0]).group(1)).stem):
            return  # the header beside it says what it is for
    if opens_with and text.strip() and not (lines and lines[0].startswith(opens_with)):
        yield "does not open with what it is for"


def check(path: str, content: bytes) -> Iterator[str]:
    if rules.DATA.match(path) or b"\0" in content[:4096]:
        return
    text = content.decode("utf-8", "replace")
    count = text.count("\n")
    if Path(path).suffix in {*SOURCES, ".py", ".sh", ".proto", ""} and count > rules.LINES_MAX:
        if Path(path).name != "LICENSE":
            yield f"has {count} lines, {rules.LINES_MAX} at most"
    yield from check_opening(path, text)
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, why in rules.FORBIDDEN:
            if found := pattern.search(line):
                yield f"line {number}: {found.group()!r} is {why}"
    if Path(path).suffix in SOURCES and path.startswith(TREES):
        yield from check_includes(path, text)


def main() -> int:
    root = Path(__file__).resolve().parents[2]
    files = files_of(root)
    violations = [
        f"{path}: {what}" for path in files for what in check(path, (root / path).read_bytes())
    ]
    for violation in violations:
        print(violation)
    print(f"tidy: {len(files)} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
