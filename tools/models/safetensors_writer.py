"""Writes safetensors files from FP32 arrays, rounded to the dtype asked for (numpy only)."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def encode(values: np.ndarray, dtype: str) -> bytes:
    """FP32 values as little-endian bytes of `dtype`, rounded to nearest even. Takes no NaN."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype != "bfloat16":
        return values.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(
    path: Path, shapes: dict[str, tuple[int, ...]], payloads: Iterable[bytes], dtype: str
) -> None:
    """Writes the tensors of `shapes`, whose bytes `payloads` yields in the same order.

    The header needs only the shapes, so payloads are made one at a time and never held together.
    """
    size = {"F32": 4, "F16": 2, "BF16": 2}[CODES[dtype]]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + size * int(np.prod(shape))
        header[name] = {
            "dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]
        }  # fmt: skip
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    written = 0
    with open(path, "wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for payload in payloads:
            written += out.write(payload)
    if written != end:
        raise ValueError(f"{path}: expected {end} bytes of tensors, got {written}")


def with_progress(items: dict[str, object], what: str) -> Iterator[str]:
    """The names, one by one, with a counter on standard error when that is a terminal."""
    for i, name in enumerate(items, 1):
        if sys.stderr.isatty():
            print(f"\r  {what} {i}/{len(items)} tensors", end="", file=sys.stderr, flush=True)
        yield name
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
