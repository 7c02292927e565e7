#!/usr/bin/env python3
"""The ledger: tables come from records, staleness from git, and the shipped ledger is complete."""

import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "evidence"))

import ledger  # noqa: E402

RECORD = {
    "id": "ffn",
    "date": "2026-01-02T03:04:05Z",
    "commit": "0123456789abcdef",
    "holds": True,
    "hardware": {"cpu": "Some(R) CPU", "cores": 2},
    "config": {},
    "results": [
        {"case": {"tokens": 1, "dtype": "bf16"}, "value": 12.345, "peers": {"eager": 1500.0}},
        {"case": {"tokens": 4096, "dtype": "bf16"}, "value": 2.0, "peers": {}},
        {"case": {"tokens": 1, "dtype": "fp32"}, "value": 99.0},
    ],
}
CLAIM = {
    "record": "records/ffn.json",
    "depends": ["kernels"],
    "table": {
        "columns": [["Tokens", "case.tokens"], ["us", "value"], ["eager", "peers.eager"]],
        "only": {"case.dtype": "bf16"},
    },
}
FIELDS = {"claim", "kind", "command", "threshold", "record", "needs", "depends"}
KINDS = {"math", "contract", "optimisation", "production"}


class Ledger(unittest.TestCase):
    def test_a_table_has_the_chosen_rows_and_says_where_they_come_from(self) -> None:
        with mock.patch.object(ledger, "record_of", return_value=RECORD):
            lines = ledger.table_of("ffn", CLAIM).splitlines()
        self.assertEqual(lines[0], "| Tokens | us | eager |")
        self.assertEqual(lines[2:4], ["| 1 | 12.3 | 1,500 |", "| 4,096 | 2 | – |"])
        self.assertEqual(len(lines), 6)  # the FP32 row is left out
        for word in ("2026-01-02", "012345678", "./dev evidence ffn"):
            self.assertIn(word, lines[5])

    def test_the_machine_is_what_was_measured(self) -> None:
        hardware = RECORD["hardware"] | {"gpu": "NVIDIA H200"}
        for config, name in (({}, "H200"), ({"devices": "cpu"}, "Some, 2 cores")):
            record = RECORD | {"hardware": hardware, "config": config}
            self.assertEqual(ledger.machine(record), name)

    def test_a_table_may_have_another_claims_columns(self) -> None:
        twin = CLAIM | {"table": "ffn"}
        with (
            mock.patch.object(ledger, "record_of", return_value=RECORD),
            mock.patch.object(ledger, "claims", return_value={"ffn": CLAIM, "twin": twin}),
        ):
            own, same = ledger.table_of("ffn", CLAIM), ledger.table_of("twin", twin)
        self.assertEqual(same, own.replace("evidence ffn", "evidence twin"))

    def test_a_claim_without_a_record_publishes_no_number(self) -> None:
        with mock.patch.object(ledger, "record_of", return_value=None):
            self.assertEqual(ledger.table_of("ffn", CLAIM), "Not measured yet.\n")

    def test_a_record_of_an_unknown_commit_is_not_current(self) -> None:
        self.assertEqual(ledger.stale(CLAIM, RECORD), "commit unknown")

    def test_every_claim_is_complete(self) -> None:
        for name, claim in ledger.claims().items():
            with self.subTest(claim=name):
                self.assertLessEqual(FIELDS, set(claim))
                self.assertIn(claim["kind"], KINDS)
                for path in claim["depends"]:
                    self.assertTrue((ROOT / path).exists(), path)
                if record := ledger.record_of(claim):
                    self.assertEqual(record["id"], Path(claim["record"]).stem)
                    self.assertIsInstance(record["holds"], bool)

    def test_every_record_has_a_claim(self) -> None:
        claimed = {claim["record"] for claim in ledger.claims().values()}
        for path in (ROOT / "evidence/records").glob("*.json"):
            if path.name.endswith(".samples.json"):  # beside its record
                continue
            self.assertIn(f"records/{path.name}", claimed)


if __name__ == "__main__":
    unittest.main()
