#!/usr/bin/env python3
"""The ledger of published claims: lists them, runs one again, writes the README's tables.

ledger.py                  every claim: does it hold, how old, which commit and machine, is it stale
ledger.py ID               runs the claim's command again
ledger.py tables [--check] writes the tables in README.md from the records, or says that they differ
"""

import datetime
import json
import re
import subprocess
import sys
import tomllib
from typing import Any

from record import ROOT, output_of

LEDGER = ROOT / "evidence" / "ledger.toml"
README = ROOT / "README.md"
# <!-- table: ID --> ... <!-- end of table -->
TABLE = re.compile(r"(<!-- table: ([\w.]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def claims() -> dict[str, dict[str, Any]]:
    return tomllib.loads(LEDGER.read_text())


def record_of(claim: dict[str, Any]) -> dict[str, Any] | None:
    path = ROOT / "evidence" / claim["record"]
    return json.loads(path.read_text()) if path.exists() else None


def machine(record: dict[str, Any]) -> str:
    hardware = record["hardware"]
    cpu = f"{hardware['cpu']}, {hardware['cores']} cores"
    # A GPU host's CPU may be all that was measured.
    name = cpu if record["config"].get("devices") == "cpu" else hardware.get("gpu") or cpu
    return re.sub(r" *(\((R|TM)\)|NVIDIA|CPU|Processor)", "", name).strip()


def stale(claim: dict[str, Any], record: dict[str, Any]) -> str:
    """Whether what the claim depends on changed since the record's commit."""
    commit = record["commit"]
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if known.returncode != 0:
        return "commit unknown"
    changed = output_of("git", "diff", "--name-only", commit, "--", *claim["depends"]).splitlines()
    return f"stale ({len(changed)} files)" if changed else "current"


def age(record: dict[str, Any]) -> str:
    then = datetime.datetime.fromisoformat(record["date"])
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    passed = datetime.datetime.now(datetime.UTC) - then
    return f"{passed.days} d" if passed.days else f"{passed.seconds // 3600} h"


def row_of(name: str, claim: dict[str, Any]) -> list[str]:
    record = record_of(claim)
    if record is None:
        return [name, claim["kind"], "no record", "", "", "", "", claim["claim"]]
    holds = "holds" if record["holds"] else "REFUTED"
    return [name, claim["kind"], holds, stale(claim, record), age(record), record["commit"][:9],
            machine(record), claim["claim"]]  # fmt: skip


def show() -> int:
    titles = ["ID", "KIND", "STATE", "SOURCES", "AGE", "COMMIT", "MACHINE", "CLAIM"]
    rows = [titles] + [row_of(name, claim) for name, claim in claims().items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    return 1 if any("REFUTED" in row for row in rows) else 0


def run_again(name: str) -> int:
    known = claims()
    if name not in known:
        print(f"no claim '{name}'; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    claim = known[name]
    print(f"{claim['claim']}\nrefuted by: {claim['threshold']}\n$ {claim['command']}", flush=True)
    status = subprocess.run(claim["command"], shell=True, cwd=ROOT, check=False).returncode
    record = record_of(claim)
    print(f"{name}: {'holds' if record and record['holds'] else 'does not hold'}")
    return status


def lookup(result: dict[str, Any], path: str) -> Any:
    """A value by its dotted path; None where a result lacks it."""
    value: Any = result
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def spell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def table_of(name: str, claim: dict[str, Any]) -> str:
    """The Markdown table of a claim: [ID.table] names its columns and, in `only`, its rows;
    table = "ID" has those of another claim."""
    record = record_of(claim)
    if record is None:
        return "Not measured yet.\n"
    spec = claim["table"]
    if isinstance(spec, str):
        spec = claims()[spec]["table"]
    rows = [
        result
        for result in record["results"]
        if all(lookup(result, path) == value for path, value in spec.get("only", {}).items())
    ]
    titles, paths = zip(*spec["columns"], strict=True)
    lines = ["| " + " | ".join(titles) + " |", "|" + "---:|" * len(titles)]
    lines += ["| " + " | ".join(spell(lookup(row, path)) for path in paths) + " |" for row in rows]
    changed = ", modified" if record.get("modified") else ""
    source = (
        f"{machine(record)}, {record['date'][:10]}, commit {record['commit'][:9]}{changed}: "
        f"`./dev evidence {name}` measures it again."
    )
    if not record["holds"]:
        source += f" The claim is refuted as long as there is {claim['threshold']}."
    return "\n".join([*lines, "", source, ""])


def tables(check: bool) -> int:
    known = claims()
    old = README.read_text()
    new = TABLE.sub(lambda m: f"{m[1]}{table_of(m[2], known[m[2]])}{m[4]}", old)
    if check:
        if new != old:
            print("README.md's tables differ from the records; run: ./dev evidence tables")
        return int(new != old)
    README.write_text(new)
    print(f"{len(TABLE.findall(new))} tables written")
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            return show()
        case ["tables"]:
            return tables(check=False)
        case ["tables", "--check"]:
            return tables(check=True)
        case [name] if re.fullmatch(r"\w+", name):
            return run_again(name)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
