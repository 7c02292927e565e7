#!/usr/bin/env python3
"""The entry script: help names every command; a step fails loudly and leaves nothing running."""

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def bash(script: str, logs: str) -> subprocess.Popen:
    """A script that has what a command of ./dev has."""
    prologue = f"set -euo pipefail\nFUSEBLOCK_ROOT={ROOT}\nFUSEBLOCK_LOGS={logs}\n"
    prologue += f"source {ROOT}/tools/dev/lib/steps.sh\n"
    return subprocess.Popen(
        ["bash", "-c", prologue + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


class Dev(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.logs = folder.name

    def test_help_names_every_command_with_its_summary(self) -> None:
        shown = subprocess.run([ROOT / "dev"], capture_output=True, text=True, check=True).stdout
        for command in (ROOT / "tools/dev/commands").glob("*.sh"):
            self.assertRegex(shown, rf"(?m)^  {command.stem} +\w")

    def test_an_unknown_command_is_a_usage_error(self) -> None:
        run = subprocess.run([ROOT / "dev", "../x"], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 2)
        self.assertIn("no command '../x'", run.stderr)

    def test_a_step_is_one_line_and_its_output_is_in_the_log(self) -> None:
        process = bash("step 'Saying it' echo hello; echo after", self.logs)
        shown, _ = process.communicate()
        self.assertEqual(process.returncode, 0)
        self.assertRegex(shown, r"^  Saying it +[\d.]+ s\nafter\n$")
        self.assertEqual((Path(self.logs) / "saying-it.log").read_text(), "hello\n")

    def test_a_failed_step_ends_the_command_with_its_status_and_log(self) -> None:
        process = bash(
            "broken() { echo the reason; return 3; }\nstep it broken; echo no", self.logs
        )
        shown, _ = process.communicate()
        self.assertEqual(process.returncode, 3)
        self.assertIn("the reason", shown)
        self.assertIn("failed after", shown)
        self.assertNotIn("no\n", shown)

    def test_an_interrupted_step_takes_its_processes_with_it(self) -> None:
        # The step says who it is and then waits for ever; nothing but the interrupt ends it.
        pipe = Path(self.logs) / "pid"
        os.mkfifo(pipe)
        script = f"waits() {{ echo $BASHPID > {pipe}; exec tail -f /dev/null; }}\nstep wait waits"
        process = bash(script, self.logs)
        pid = int(pipe.read_text())
        process.send_signal(signal.SIGTERM)
        process.communicate()
        self.assertEqual(process.returncode, 143)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists() and self.state(pid) != "Z":
            self.assertLess(time.monotonic(), deadline, "the step's process lives on")

    @staticmethod
    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "Z"


if __name__ == "__main__":
    unittest.main()
