"""CUDA graphs of a contender's calls, and their replays timed in turns."""

import random
from collections.abc import Callable

import torch

Samples = dict[str, list[float]]


def capture(run: Callable[[], object]) -> Callable[[], None]:
    """The replay of a graph of what `run` enqueues; what `run` returns lives as long."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    graph.replay()
    torch.cuda.synchronize()

    def replay() -> None:
        graph.replay()

    replay.kept = kept  # type: ignore[attr-defined]
    return replay


def time_replays(replay: Callable[[], None], count: int) -> float:
    """Microseconds of one replay, over `count` of them after as many to warm up."""
    for _ in range(count):
        replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


def take_turns(
    replays: dict[str, Callable[[], None]],
    calls: int,
    *,
    rounds: int,
    turn_seconds: float,
    seed: int,
) -> Samples:
    """Samples of microseconds a call for each contender, in shuffled turns of equal length."""
    order = random.Random(seed)
    counts = {}
    for name, replay in replays.items():
        once = time_replays(replay, 2)
        counts[name] = max(2, int(turn_seconds * 1e6 / 2 / once))
    samples: Samples = {name: [] for name in replays}
    for _ in range(rounds):
        names = list(replays)
        order.shuffle(names)
        for name in names:
            samples[name].append(time_replays(replays[name], counts[name]) / calls)
    return samples
