"""Our feed-forward path on the CPU behind the C functions of tests/bench/ffn_library.cc."""

import ctypes
from collections.abc import Callable

import torch
from ffn_peers import Layer, in_turn
from rows_library import DTYPES

WORKSPACE_ALIGNMENT = 256


class FfnLibrary:
    def __init__(self, path: str, threads: int) -> None:
        c = ctypes.CDLL(path)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        signatures = {
            "team_create": (pointer, [ctypes.c_int]),
            "team_destroy": (None, [pointer]),
            "create": (
                pointer,
                [pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64] + [pointer] * 4,
            ),
            "destroy": (None, [pointer]),
            "workspace_bytes": (size, [pointer, ctypes.c_int64]),
            "run": (ctypes.c_int, [pointer, pointer, ctypes.c_int64] + [pointer] * 3),
            "memory_create": (pointer, [size]),
            "memory_data": (pointer, [pointer]),
            "memory_destroy": (None, [pointer]),
            "read": (ctypes.c_uint64, [pointer, pointer, size]),
            "peak": (ctypes.c_double, [pointer, ctypes.c_int]),
        }
        self._c = {}
        for name, (result, arguments) in signatures.items():
            function = c[f"fuseblock_ffn_{name}"]
            function.restype, function.argtypes = result, arguments
            self._c[name] = function
        self._team = self._c["team_create"](threads)
        self._blocks: list[int] = []
        self._memory: list[int] = []

    def close(self) -> None:
        for block in self._blocks:
            self._c["destroy"](block)
        for memory in self._memory:
            self._c["memory_destroy"](memory)
        self._c["team_destroy"](self._team)

    def add(self, layer: Layer) -> None:
        intermediate, hidden = layer.gate.shape
        pointers = [tensor.data_ptr() for tensor in layer]
        dtype = DTYPES[layer.norm.dtype]
        block = self._c["create"](self._team, dtype, hidden, intermediate, *pointers)
        if not block:
            raise RuntimeError("fuseblock_ffn_create failed")
        self._blocks.append(block)

    def call(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Runs the next of the layers that were added."""
        tokens = x.shape[0]
        y = torch.empty_like(x)
        size = self._c["workspace_bytes"](self._blocks[0], tokens)
        memory = torch.empty(size + WORKSPACE_ALIGNMENT, dtype=torch.uint8)
        workspace = memory.data_ptr() + -memory.data_ptr() % WORKSPACE_ALIGNMENT
        run = self._c["run"]

        def layer(block: int) -> torch.Tensor:
            if run(self._team, block, tokens, x.data_ptr(), y.data_ptr(), workspace):
                raise RuntimeError("fuseblock_ffn_run failed")
            return y

        call = in_turn(self._blocks, layer)
        call.memory = memory  # type: ignore[attr-defined]  # lives as long as the call
        return call

    def read(self, weights: list[list[torch.Tensor]]) -> Callable[[], int]:
        """Reads as many bytes as the next set of weights has, of random memory of its own."""
        regions = []
        for tensors in weights:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            memory = self._c["memory_create"](size)
            if not memory:
                raise RuntimeError("fuseblock_ffn_memory_create failed")
            self._memory.append(memory)
            data, begin = self._c["memory_data"](memory), 0
            for tensor in tensors:
                length = tensor.numel() * tensor.element_size()
                ctypes.memmove(data + begin, tensor.data_ptr(), length)
                begin += length
            regions.append((data, size))
        return in_turn(regions, lambda region: self._c["read"](self._team, *region))

    def peak(self, dtype: torch.dtype) -> float:
        """FLOP/s of the fastest unit for products of the dtype."""
        return self._c["peak"](self._team, dtype == torch.bfloat16)
