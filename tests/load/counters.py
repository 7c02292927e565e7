"""Whether a quiet server's counters agree with each other and with what clients saw."""

import re
from collections.abc import Iterator, Mapping

# What a server holds nothing of when no request is in flight.
EMPTY = (
    ("fuseblock_inflight_requests", {}),
    ("fuseblock_queue_tokens", {}),
    ("fuseblock_queue_bytes", {}),
    ("fuseblock_memory_bytes", {"pool": "requests", "state": "used"}),
    ("fuseblock_memory_bytes", {"pool": "staging_in", "state": "used"}),
)
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


class Counters:
    """The samples of one scrape."""

    def __init__(self, lines: list[str]):
        found = (SAMPLE.match(line) for line in lines)
        self.samples = [(m[1], dict(LABEL.findall(m[2] or "")), float(m[3])) for m in found if m]

    def sum(self, name: str, **labels: str) -> float:
        """Over all samples of that name with these labels."""
        return sum(
            value
            for sample, of, value in self.samples
            if sample == name and labels.items() <= of.items()
        )

    def values_of(self, name: str, label: str) -> set[str]:
        return {of[label] for sample, of, _ in self.samples if sample == name}


def disagreements(
    before: Counters, after: Counters, seen: Mapping[str, int], clients_crashed: bool
) -> Iterator[str]:
    """What does not add up, in words. seen: requests by what they came to, "right" or "refused" and
    a reason. Clients that crashed saw nothing of what the server answered them."""

    def grown(name: str, **labels: str) -> float:
        return after.sum(name, **labels) - before.sum(name, **labels)

    for name, labels in EMPTY:
        held = after.sum(name, **labels)
        if held != 0:
            yield f"{name}{labels or ''}: expected 0 of a quiet server, got {held:g}"
    requests = grown("fuseblock_requests_total")
    timed = grown("fuseblock_request_duration_seconds_count")
    if requests != timed:
        yield f"{requests:g} requests counted, {timed:g} timed"
    failed = requests - grown("fuseblock_requests_total", code="OK")
    errors = grown("fuseblock_errors_total")
    # Errors count, too, of calls that are no requests: of GetBlock, of a stream as a whole.
    if errors < failed:
        yield f"{failed:g} requests failed, {errors:g} errors counted"
    for cause in after.values_of("fuseblock_shed_total", "cause"):
        shed = grown("fuseblock_shed_total", cause=cause)
        refused = grown("fuseblock_errors_total", category=cause)
        if shed != refused:
            yield f"{cause}: {shed:g} shed, {refused:g} answered so"

    counted = {"right": grown("fuseblock_requests_total", code="OK")}
    categories = after.values_of("fuseblock_errors_total", "category")
    for what in seen:
        category = what.removeprefix("refused ").lower()
        if what.startswith("refused ") and category in categories:  # else it is the client's own
            counted[what] = grown("fuseblock_errors_total", category=category)
    for what, server in counted.items():
        clients = seen.get(what, 0)
        # At its deadline a client ends a call by itself, before the server says so or not at all.
        if server < clients and what != "refused EXPIRED":
            yield f"{what}: clients saw {clients}, the server counted {server:g}"
        if what == "right" and server > clients and not clients_crashed and "cancelled" not in seen:
            yield f"{what}: the server counted {server:g}, clients saw only {clients}"
