"""Reads a checkpoint folder with NumPy: config.json and a memory-mapped model.safetensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np

_STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


class SafetensorsFile:
    """A safetensors file. Tensors are read when asked for, so opening costs nothing."""

    def __init__(self, path: Path):
        self._bytes = np.memmap(path, np.uint8, "r")
        length = int(self._bytes[:8].view("<u8")[0])
        self._header = json.loads(self._bytes[8 : 8 + length].tobytes())
        self.metadata: dict[str, str] = self._header.pop("__metadata__", {})
        self._data = self._bytes[8 + length :]

    def __contains__(self, name: str) -> bool:
        return name in self._header

    def __iter__(self):
        return iter(self._header)

    def dtype(self, name: str) -> str:
        """As stored: "F32", "F16", "BF16", "I64"."""
        return self._header[name]["dtype"]

    def stored(self, name: str) -> np.ndarray:
        """The tensor without a copy; BF16 as its bits in uint16."""
        entry = self._header[name]
        begin, end = entry["data_offsets"]
        return self._data[begin:end].view(_STORED[entry["dtype"]]).reshape(entry["shape"])

    def float32(self, name: str) -> np.ndarray:
        """The tensor in FP32; BF16 and FP16 widen exactly."""
        stored = self.stored(name)
        if self.dtype(name) == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(stored, np.float32)


class Checkpoint:
    """A folder with config.json and model.safetensors, as Hugging Face lays it out."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        self.tensors = SafetensorsFile(folder / "model.safetensors")

    def weight(self, module: str) -> np.ndarray:
        """The module's weight in FP32: weight("model.layers.0.self_attn.q_proj")."""
        return self.tensors.float32(f"{module}.weight")
