#!/usr/bin/env python3
"""Checks that dashboards, rules and their tests name only series that the server exports."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERIES = re.compile(r"(?<![\w:])fuseblock_(\w+)")
MONITORING = [
    *(ROOT / "deploy/grafana/dashboards").glob("*.json"),
    *(ROOT / "deploy/prometheus").glob("*.yml"),
]


def exported() -> set[str]:
    """Names as the server registers them; a histogram stands for its three series."""
    source = (ROOT / "server/observe/metrics.cc").read_text()
    names = set(re.findall(r'(?:Counters|Gauges)\(\s*"(\w+)"', source))
    for name in re.findall(r'Histograms\(\s*"(\w+)"', source):
        names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


class Monitoring(unittest.TestCase):
    def test_every_named_series_is_exported(self) -> None:
        known = exported()
        self.assertIn("requests_total", known)
        self.assertGreaterEqual(len(MONITORING), 4)
        for path in MONITORING:
            for name in set(SERIES.findall(path.read_text())):
                with self.subTest(file=path.name, series=name):
                    self.assertIn(name, known)


if __name__ == "__main__":
    unittest.main()
