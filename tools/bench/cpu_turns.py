"""Threads at rest and in place, so that contenders in one process can take turns on its cores."""

import contextlib
import os
import threading
import time
from pathlib import Path

REST_SECONDS_MAX = 10.0  # that threads may spin after their work, on a busy machine too
CORES = sorted(os.sched_getaffinity(0))


def other_threads() -> list[Path]:
    own = str(threading.get_native_id())
    return [task for task in Path("/proc/self/task").iterdir() if task.name != own]


def spread_threads(threads: int) -> None:
    """This thread to the first core; those that help it, whosever they are, to the others."""
    cores = CORES[:threads]
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[:1])
        for task in other_threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(task.name), cores[1:])


def runs(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False


def await_rest() -> None:
    """Until no other thread of this process runs: OpenMP's spin for some 15 ms after their work, on
    a core that is the next contender's.
    """
    late = time.monotonic() + REST_SECONDS_MAX
    while any(map(runs, other_threads())):
        if time.monotonic() > late:
            raise RuntimeError("a thread spins without end: is OMP_WAIT_POLICY active?")
        time.sleep(0.001)
