"""Whether answers keep their bits: on repeat, and among other requests."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from fuseblock import Client, RawTensor

REPEATS = 10
REQUESTS, TOKENS_MAX = 64, 300


@dataclass(frozen=True)
class Bits:
    """How many answers were compared, how many tokens they held, how many differed."""

    answers: int
    tokens: int
    different: int


def repeated(client: Client, block: str, x: RawTensor) -> Bits:
    """The same request again and again."""
    first = client.run(block, x).data
    again = [client.run(block, x).data for _ in range(REPEATS)]
    return Bits(REPEATS, REPEATS * x.shape[0], sum(data != first for data in again))


def among_others(
    client: Client, block: str, encode: Callable[[np.ndarray], RawTensor], hidden: int
) -> Bits:
    """Requests of 0 to 300 tokens, each first alone and then all at once."""
    random = np.random.Generator(np.random.PCG64(2))
    sizes = [0, 1, TOKENS_MAX, *random.integers(0, TOKENS_MAX + 1, REQUESTS - 3)]
    rows = random.standard_normal((max(sizes), hidden), np.float32)
    requests = [encode(np.roll(rows, i, axis=0)[:size]) for i, size in enumerate(sizes)]
    alone = [client.run(block, x, timeout=60).data for x in requests]
    futures = [client.run_async(block, x, timeout=60) for x in requests]
    together = [future.result().data for future in futures]
    different = sum(a != b for a, b in zip(alone, together, strict=True))
    return Bits(len(sizes), int(sum(sizes)), different)
