"""Runs one launch of a kernel on NumPy arrays, on the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gpufold.plan import Plan

from .build import KERNELS, Defines, build_kernel, build_runtime

Argument = np.ndarray[Any, Any] | bytes | int
Size3 = tuple[int, int, int]

POISON = 0xFF
"""Every byte of unwritten memory: NaN as a float, -1 as an integer, no bool at all."""

GUARD = 4096
"""Bytes on either side of an array that nothing may touch."""

ALIGNMENT = 256
"""What a GPU's allocator aligns to: the owner of an array's memory starts on a multiple of it."""


class Fault(Exception):
    """The kernel did what it must not do; the message says what, and where in its source."""


class _Parameter(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("pointer", ctypes.c_uint32))


class _Module(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("parameter_count", ctypes.c_uint32),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.POINTER(_Module)),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint64),
        ("fault", ctypes.c_char_p),
        ("fault_size", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Kernel:
    """A kernel in this process: its library, what it takes, and the scheduler that runs it."""

    library: ctypes.CDLL
    runtime: ctypes.CDLL
    module: Any
    parameters: tuple[tuple[int, int], ...]
    lock: threading.Lock


_lock = threading.Lock()


@lru_cache(maxsize=4096)
def _open(path: Path, runtime_path: Path) -> Kernel:
    runtime = ctypes.CDLL(str(runtime_path))
    runtime.hostcuda_launch.argtypes = [ctypes.POINTER(_Launch)]
    runtime.hostcuda_launch.restype = None
    library = ctypes.CDLL(str(path))
    library.hostcuda_module.restype = ctypes.POINTER(_Module)
    module = library.hostcuda_module()
    count = module.contents.parameter_count
    parameters = tuple((p.size, p.pointer) for p in module.contents.parameters[:count])
    return Kernel(library, runtime, module, parameters, _lock)


class Placed:
    """An array copied to where a GPU would have it, between guards.

    Strides stay. The first byte of the memory that the array is a view of lies on a multiple of ALIGNMENT, so that
    a view with an offset is as misaligned as it would be on a GPU. Bytes between the array's elements are guarded too.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        address = array.__array_interface__["data"][0]
        reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True) if size]
        low = address + sum(step for step in reach if step < 0)
        high = address + sum(step for step in reach if step > 0) + array.itemsize
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        misalignment = (low - owner.__array_interface__["data"][0]) % ALIGNMENT
        self.memory = np.full(high - low + 2 * GUARD + ALIGNMENT, POISON, np.uint8)
        start = self.memory.__array_interface__["data"][0]
        self.first = GUARD + (misalignment - start - GUARD) % ALIGNMENT
        self.size = high - low
        self.array = array
        self.view = np.ndarray(array.shape, array.dtype, self.memory, self.first + address - low, array.strides)
        self.view[...] = array
        self.pointer = ctypes.c_void_p(start + self.first + address - low)

    def check_unchanged(self, name: str) -> None:
        if self.view.tobytes() != self.array.tobytes():
            raise Fault(f"{name}: the kernel wrote to an array that it may only read")

    def copy_back(self, name: str) -> None:
        self.array[...] = self.view
        self.view[...] = poison(self.array.dtype)
        touched = np.flatnonzero(self.memory != POISON)
        if touched.size:
            raise Fault(f"{name}: the kernel wrote outside the array, at byte {touched[0] - self.first} from its first")


def poison(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytes([POISON]) * dtype.itemsize, dtype)


def launch(
    source: Path,
    symbol: str,
    defines: Defines,
    grid: Size3,
    block: Size3,
    arguments: Sequence[Argument],
    *,
    mode: str = "plain",
    seed: int = 0,
) -> None:
    """Launch a kernel as cuLaunchKernel would: arrays for pointers, bytes for structs, ints for integers."""
    kernel = _open(build_kernel(source, symbol, defines, "plain"), build_runtime("plain"))
    placed = {i: Placed(argument) for i, argument in enumerate(arguments) if isinstance(argument, np.ndarray)}
    values = [
        placed[i].pointer if i in placed else _value(argument, size)
        for i, (argument, (size, _)) in enumerate(zip(arguments, kernel.parameters, strict=True))
    ]
    addresses = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    fault = ctypes.create_string_buffer(4096)
    what = _Launch(
        kernel.module, addresses, grid, block, seed, ctypes.cast(fault, ctypes.c_char_p), ctypes.sizeof(fault)
    )
    with kernel.lock:
        kernel.runtime.hostcuda_launch(what)
    if fault.value:
        raise Fault(fault.value.decode())
    for i, array in placed.items():
        name = f"{symbol}, argument {i}"
        if kernel.parameters[i][1] == 1:
            array.check_unchanged(name)
        else:
            array.copy_back(name)


def _value(argument: bytes | int, size: int) -> ctypes.Array[ctypes.c_char]:
    data = argument if isinstance(argument, bytes) else argument.to_bytes(size, "little", signed=argument < 0)
    if len(data) != size:
        raise TypeError(f"the kernel takes {size} bytes, given are {len(data)}")
    return ctypes.create_string_buffer(data, size)


def run(
    plan: Plan,
    input_array: np.ndarray[Any, Any],
    output_array: np.ndarray[Any, Any],
    *,
    mode: str = "plain",
    seed: int = 0,
    kernels: Path = KERNELS,
) -> None:
    """Execute a plan; the output starts as POISON, or as zero where the plan asks for it."""
    output_array[...] = 0 if plan.zero_output else poison(output_array.dtype)
    arguments = (input_array, output_array, plan.parameters)
    launch(kernels / plan.source, plan.symbol, plan.defines, plan.grid, plan.block, arguments, mode=mode, seed=seed)
