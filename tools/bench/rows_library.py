"""The row kernels behind the C functions of tests/bench/rows_library.cc, on PyTorch's tensors."""

import ctypes
import weakref
from collections.abc import Callable, Sequence

import torch

# DType's numbers (kernels/base/dtype.h).
DTYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.int32: 3,
    torch.int64: 4,
}


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("cuda_device", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 8),
    )


def cuda_device(tensor: torch.Tensor) -> int:
    return tensor.device.index if tensor.device.type == "cuda" else -1


def described(tensors: Sequence[torch.Tensor]) -> ctypes.Array:
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("the library takes dense tensors")
    return (Tensor * len(tensors))(
        *(
            Tensor(
                t.data_ptr(),
                DTYPES[t.dtype],
                t.dim(),
                cuda_device(t),
                (ctypes.c_int64 * 8)(*t.shape),
            )
            for t in tensors
        )
    )


class RowsLibrary:
    def __init__(self, path: str, threads: int = 1) -> None:
        self._c = ctypes.CDLL(path)
        self._c.fuseblock_rows_kernel.restype = ctypes.c_char_p
        self._c.fuseblock_rows_kernel.argtypes = [ctypes.c_size_t]
        self._c.fuseblock_rows_team_create.restype = ctypes.c_void_p
        self._c.fuseblock_rows_team_destroy.argtypes = [ctypes.c_void_p]
        tensors = [ctypes.POINTER(Tensor), ctypes.c_size_t]
        self._c.fuseblock_rows_bind.restype = ctypes.c_void_p
        self._c.fuseblock_rows_bind.argtypes = [
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_void_p,
            *tensors,
            *tensors,
        ]
        self._c.fuseblock_rows_release.argtypes = [ctypes.c_void_p]
        self._c.fuseblock_rows_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._team = self._c.fuseblock_rows_team_create(threads)

    def close(self) -> None:
        self._c.fuseblock_rows_team_destroy(self._team)

    def kernels(self) -> list[str]:
        names = []
        while name := self._c.fuseblock_rows_kernel(len(names)):
            names.append(name.decode())
        return names

    def bind(
        self, kernel: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Callable[[], None]:
        """A call that runs the kernel on these tensors: on a GPU on the stream current then."""
        device = outputs[0].device
        on_gpu = device.type == "cuda"
        bound = self._c.fuseblock_rows_bind(
            kernel.encode(),
            cuda_device(outputs[0]),
            self._team,
            described(inputs),
            len(inputs),
            described(outputs),
            len(outputs),
        )
        if not bound:
            raise RuntimeError(f"{kernel} cannot be bound")
        handle, run = ctypes.c_void_p(bound), self._c.fuseblock_rows_run

        def call() -> None:
            stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else None
            if run(handle, stream):
                raise RuntimeError(f"{kernel} failed")

        call.tensors = (inputs, outputs)  # type: ignore[attr-defined]  # live as long as the call
        weakref.finalize(call, self._c.fuseblock_rows_release, handle)
        return call
