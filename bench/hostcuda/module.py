"""The structs of host/module.h, and the libraries that use them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .build import build_runtime

ELEMENT, KNOWN, ONCE = 1, 2, 4
"""Flags of a byte: Array.flags."""


class Module(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("parameter_sizes", ctypes.POINTER(ctypes.c_uint32)),
        ("parameter_count", ctypes.c_uint32),
        ("image_begin", ctypes.c_void_p),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
    )


class Array(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("argument", ctypes.c_uint32),
        ("writable", ctypes.c_uint32),
        ("first", ctypes.c_void_p),
        ("flags", ctypes.c_void_p),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.POINTER(Module)),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint64),
        ("arrays", ctypes.POINTER(Array)),
        ("array_count", ctypes.c_uint32),
    )


_one_at_a_time = threading.Lock()
"""Lock of the launch, which the scheduler keeps in global variables."""


@cache
def runtime() -> ctypes.CDLL:
    """Load what runs kernels and machine code."""
    library = ctypes.CDLL(str(build_runtime()), ctypes.RTLD_GLOBAL)
    for function in (library.hostcuda_launch, library.hostcuda_machine_launch, library.hostcuda_machine_operations):
        function.restype = ctypes.c_char_p
    return library


class Kernel:
    """A kernel in this process, which stays loaded as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._runtime, self.library = runtime(), ctypes.CDLL(str(path))  # whose symbols are the runtime's
        self.library.hostcuda_module.restype = ctypes.POINTER(Module)
        self._module = self.library.hostcuda_module()

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        values: Sequence[bytes],
        arrays: Sequence[Array] = (),
        seed: int = 0,
    ) -> str:
        """Launch as cuLaunchKernel would, with arguments as bytes; return what it did wrong.

        An observed build checks accesses to the arrays. A seed other than zero shuffles the threads.
        """
        facts = self._module.contents
        given, wanted = list(map(len, values)), facts.parameter_sizes[: facts.parameter_count]
        if given != wanted:
            return f"arguments have {given} bytes, and the kernel takes {wanted}"
        kept = [ctypes.create_string_buffer(value, len(value)) for value in values]
        addresses = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
        what = Launch(self._module, addresses, grid, block, seed, (Array * len(arrays))(*arrays), len(arrays))
        with _one_at_a_time:
            return self._runtime.hostcuda_launch(ctypes.byref(what)).decode()


load = cache(Kernel)
