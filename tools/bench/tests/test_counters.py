"""The soak's counters: what adds up is accepted, and each way not to is found."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests/load"))

from counters import Counters, disagreements

QUIET = """\
fuseblock_inflight_requests 0
fuseblock_queue_tokens 0
fuseblock_queue_bytes 0
fuseblock_memory_bytes{device="cpu",pool="requests",state="used"} 0
fuseblock_memory_bytes{device="cpu",pool="requests",state="reserved"} 1024
fuseblock_memory_bytes{device="cpu",pool="staging_in",state="used"} 0
"""
SERVED = """\
fuseblock_requests_total{block="m.norm",rpc="RunBlock",code="OK"} 10
fuseblock_requests_total{block="m.norm",rpc="RunBlock",code="RESOURCE_EXHAUSTED"} 3
fuseblock_request_duration_seconds_count{block="m.norm",rpc="RunBlock"} 13
fuseblock_errors_total{category="queue_full"} 3
fuseblock_shed_total{block="m.norm",cause="queue_full"} 3
"""
SEEN = {"right": 10, "refused QUEUE_FULL": 3, "refused DEADLINE_EXCEEDED": 2}


def found(text: str, seen: dict[str, int], crashed: bool = False) -> list[str]:
    after = Counters(text.splitlines())
    return list(disagreements(Counters([]), after, seen, clients_crashed=crashed))


def test_what_adds_up_is_accepted() -> None:
    assert found(QUIET + SERVED, SEEN) == []


@pytest.mark.parametrize(
    ("line", "other", "word"),
    [
        ("inflight_requests 0", "inflight_requests 1", "expected 0"),
        ('pool="requests",state="used"} 0', 'pool="requests",state="used"} 8', "expected 0"),
        ("duration_seconds_count{block", "duration_seconds_bucket{block", "timed"),
        ('cause="queue_full"} 3', 'cause="queue_full"} 2', "queue_full: 2 shed, 3 answered so"),
        ('category="queue_full"} 3', 'category="queue_full"} 2', "3 requests failed, 2 errors"),
        ('category="queue_full"} 3', 'category="queue_full"} 4', "3 shed, 4 answered so"),
    ],
)
def test_each_way_not_to_add_up_is_found(line: str, other: str, word: str) -> None:
    text = QUIET + SERVED
    assert text.count(line) == 1
    assert any(word in what for what in found(text.replace(line, other), SEEN))


def test_errors_of_calls_that_are_no_requests_are_more() -> None:
    assert found(QUIET + SERVED + 'fuseblock_errors_total{category="bad_argument"} 1\n', SEEN) == []


def test_clients_may_have_seen_less_only_when_some_crashed() -> None:
    assert found(QUIET + SERVED, SEEN | {"right": 9}, crashed=True) == []
    assert found(QUIET + SERVED, SEEN | {"right": 9}) != []
    assert found(QUIET + SERVED, SEEN | {"right": 11}, crashed=True) != []
