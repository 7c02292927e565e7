#!/usr/bin/env python3
"""What clients saw of every injected fault: evidence/records/faults.json, from the fault matrix.

usage: faults.py PROGRAM   (build/release/.../engine_fault_matrix_test)
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "evidence"))

import record  # noqa: E402

COUNTS = ("sent", "right", "by_cpu", "refused", "wrong", "lost")


def run(program: str) -> dict[str, Any]:
    """The test's own report, as googletest writes it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run([program, f"--gtest_output=json:{report}"], check=False)
        loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


def result_of(test: dict[str, Any]) -> dict[str, Any]:
    recovery = float(test["recovery_s"])
    return {
        "case": {"fault": test["fault"], "policy": test["policy"], "gpus": int(test["gpus"])},
        "value": int(test["right"]),
        "unit": "right answers",
        **{name: int(test[name]) for name in COUNTS},
        # Of simulated time, from the fault until the device takes work again.
        "recovery_s": None if recovery < 0 else recovery,
        "passed": "failures" not in test,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    report = run(parser.parse_args().program)
    tests = [test for suite in report["testsuites"] for test in suite["testsuite"]]
    out = record.new_record("faults", "./dev bench faults", config={"clients": 4, "requests": 480})
    out["results"] = [result_of(test) for test in tests if "fault" in test]
    out["holds"] = len(out["results"]) == len(tests) > 0 and all(
        one["passed"] and one["wrong"] == one["lost"] == 0 for one in out["results"]
    )
    path = record.write(out)
    print(f"{path}: {len(out['results'])} cases, {'holds' if out['holds'] else 'FAILED'}")
    return 0 if out["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
