"""Runs one launch of a kernel on NumPy arrays, on the CPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpufold.plan import Plan

from .build import KERNELS, Defines, build_kernel, build_runtime

NDArray = np.ndarray[Any, Any]
Argument = NDArray | bytes | int
Size3 = tuple[int, int, int]
Mode = Literal["plain", "observed", "shuffled"]

POISON = 0xFF
"""Every byte of unwritten memory: NaN as a float, -1 as an integer, no bool at all."""

GUARD = 4096
"""Bytes on either side of an array that nothing may touch."""

ALIGNMENT = 256
"""What a GPU's allocator aligns to."""


class Fault(Exception):
    """The kernel did what it must not do; the message says what, and where in its source."""


# ---- the structs of host/module.h


class _Parameter(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("pointer", ctypes.c_uint32))


class _Module(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("parameter_count", ctypes.c_uint32),
        ("image_begin", ctypes.c_void_p),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("argument", ctypes.c_uint32),
        ("writable", ctypes.c_uint32),
        ("first", ctypes.c_void_p),
        ("elements", ctypes.c_void_p),
        ("writes", ctypes.c_void_p),
    )


class Accesses(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("requests", "lanes", "bytes", "sectors", "lines", "l2_sectors", "memory_sectors")
    )


class Counters(ctypes.Structure):
    _fields_ = (
        ("loads", Accesses),
        ("stores", Accesses),
        ("atomics", Accesses),
        ("shared_requests", ctypes.c_uint64),
        ("shared_wavefronts", ctypes.c_uint64),
        ("shared_bytes", ctypes.c_uint64),
    )


class Caches(ctypes.Structure):
    _fields_ = (("l1_bytes", ctypes.c_uint64), ("l2_bytes", ctypes.c_uint64), ("blocks_at_a_time", ctypes.c_uint32))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.POINTER(_Module)),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint64),
        ("message", ctypes.c_void_p),
        ("message_size", ctypes.c_uint32),
        ("array_count", ctypes.c_uint32),
        ("arrays", ctypes.POINTER(_Array)),
        ("caches", ctypes.POINTER(Caches)),
        ("traffic", ctypes.POINTER(Counters)),
    )


# ---- kernels


@dataclass(frozen=True)
class Kernel:
    """A kernel in this process: its library, what it takes, and the library of the scheduler that runs it."""

    path: Path
    library: ctypes.CDLL
    runtime: ctypes.CDLL
    module: Any
    parameters: tuple[_Parameter, ...]


_running = threading.Lock()  # the scheduler has one launch at a time


@cache
def _open(path: Path, runtime_path: Path) -> Kernel:
    library = ctypes.CDLL(str(path))
    library.hostcuda_module.restype = ctypes.POINTER(_Module)
    module = library.hostcuda_module()
    parameters = tuple(module.contents.parameters[: module.contents.parameter_count])
    return Kernel(path, library, ctypes.CDLL(str(runtime_path)), module, parameters)


def _lines(path: Path, message: str) -> str:
    """Replace the code offsets {hex} of a message by where they are in the source."""

    def line(found: re.Match[str]) -> str:
        command = ["addr2line", "--inlines", "--exe", str(path), found[1]]
        places = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        named = [re.sub(r" \(discriminator.*", "", Path(place).name) for place in places if ":" in place]
        return ", inlined in ".join(dict.fromkeys(place for place in named if not place.startswith("entry.cpp")))

    return re.sub(r"\{([0-9a-f]+)\}", line, message)


# ---- arrays


def poison(dtype: np.dtype[Any]) -> NDArray:
    """Give one element of unwritten memory."""
    return np.frombuffer(bytes([POISON]) * dtype.itemsize, dtype)


class Placed:
    """An array copied to where a GPU would have it, between guards.

    Strides stay. The first byte of the memory that the array is a view of lies on a multiple of ALIGNMENT, so that
    a view with an offset is as misaligned as it would be on a GPU. Bytes between the array's elements are guarded too.
    """

    def __init__(self, array: NDArray) -> None:
        address = array.__array_interface__["data"][0]
        steps = [max(size - 1, 0) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        low = address + sum(step for step in steps if step < 0)
        self.span = sum(map(abs, steps)) + array.itemsize
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        misalignment = low - owner.__array_interface__["data"][0]
        self.memory = np.full(GUARD + ALIGNMENT + self.span + GUARD, POISON, np.uint8)
        self.start = self.memory.__array_interface__["data"][0]
        front = GUARD + (misalignment - self.start - GUARD) % ALIGNMENT
        self.offset = front + address - low
        self.array = array
        self.view = np.ndarray(array.shape, array.dtype, self.memory, self.offset, array.strides)
        self.view[...] = array
        self.pointer = ctypes.c_void_p(self.start + self.offset)

    def per_byte(self) -> tuple[NDArray, NDArray]:
        """Give zeros, one per byte of the memory, and those of them that are in the array's elements."""
        memory = np.zeros(self.memory.size, np.uint8)
        shape, strides = (*self.array.shape, self.array.itemsize), (*self.array.strides, 1)
        return memory, np.ndarray(shape, np.uint8, memory, self.offset, strides)

    def check_unchanged(self, name: str) -> None:
        if self.view.tobytes() != self.array.tobytes():
            raise Fault(f"{name}: the kernel wrote to an array that it may only read")

    def copy_back(self, name: str) -> None:
        self.array[...] = self.view
        self.view[...] = poison(self.array.dtype)
        touched = np.flatnonzero(self.memory != POISON)
        if touched.size:
            raise Fault(
                f"{name}: the kernel wrote outside the array, at byte {touched[0] - self.offset} from its first"
            )


# ---- launches


def launch(
    source: Path,
    symbol: str,
    defines: Defines,
    grid: Size3,
    block: Size3,
    arguments: Sequence[Argument],
    *,
    mode: Mode = "plain",
    seed: int = 0,
    writes_once: bool = False,
    caches: Caches | None = None,
) -> Counters:
    """Launch a kernel as cuLaunchKernel would: arrays for pointers, bytes for structs, ints for integers.

    Parameters
    ----------
    mode
        "plain": as fast as it gets. "observed": every access is checked. "shuffled": as observed, and the threads
        take their turns in an order drawn from `seed`.
    writes_once
        Whether each byte of each array that the kernel may write has to be written exactly once; looked at where
        accesses are observed.
    caches
        What to count the traffic with (see traffic.py); the counters stay zero without it.
    """
    build = "plain" if mode == "plain" else "observed"
    kernel = _open(build_kernel(source, symbol, defines, build), build_runtime(build))
    if len(arguments) != len(kernel.parameters):
        raise TypeError(f"{symbol} takes {len(kernel.parameters)} arguments, given are {len(arguments)}")
    placed = {i: Placed(argument) for i, argument in enumerate(arguments) if isinstance(argument, np.ndarray)}
    writable = {i: array for i, array in placed.items() if kernel.parameters[i].pointer == 2}
    elements, writes = {}, {}
    if build == "observed":
        for i, array in placed.items():
            elements[i], belonging = array.per_byte()
            belonging[...] = 1
        if writes_once:
            writes = {i: array.per_byte() for i, array in writable.items()}
    values = [
        placed[i].pointer if isinstance(argument, np.ndarray) else _value(symbol, i, argument, kernel.parameters[i])
        for i, argument in enumerate(arguments)
    ]
    arrays = [
        _Array(
            array.start,
            array.start + array.memory.size,
            i,
            i in writable,
            array.pointer,
            elements[i].ctypes.data if i in elements else None,
            writes[i][0].ctypes.data if i in writes else None,
        )
        for i, array in placed.items()
    ]
    message = ctypes.create_string_buffer(4096)
    counters = Counters()
    what = _Launch(
        kernel.module,
        (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)),
        grid,
        block,
        seed + 1 if mode == "shuffled" else 0,
        ctypes.addressof(message),
        len(message),
        len(arrays),
        (_Array * len(arrays))(*arrays),
        ctypes.pointer(caches) if caches else None,
        ctypes.pointer(counters) if caches else None,
    )
    with _running:
        kernel.runtime.hostcuda_launch(ctypes.byref(what))
    if message.value:
        raise Fault(f"{symbol}: {_lines(kernel.path, message.value.decode())}")
    for i, array in placed.items():
        name = f"{symbol}: argument {i}"
        if i not in writable:
            array.check_unchanged(name)
            continue
        array.copy_back(name)
        if i in writes:
            missing = np.argwhere((writes[i][1] == 0).any(axis=-1))
            if len(missing):
                first = tuple(map(int, missing[0]))
                raise Fault(f"{name}: {len(missing)} elements were never written, the first is {first}")
    return counters


def _value(symbol: str, index: int, argument: bytes | int, parameter: _Parameter) -> ctypes.Array[ctypes.c_char]:
    size = parameter.size
    data = argument if isinstance(argument, bytes) else argument.to_bytes(size, "little", signed=argument < 0)
    if len(data) != size or parameter.pointer:
        takes = "a pointer" if parameter.pointer else f"{size} bytes"
        raise TypeError(f"{symbol}: argument {index} is {takes}, given are {len(data)} bytes")
    return ctypes.create_string_buffer(data, size)


def run(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    *,
    mode: Mode = "plain",
    seed: int = 0,
    kernels: Path = KERNELS,
    caches: Caches | None = None,
) -> Counters:
    """Execute a plan, from the sources in the folder `kernels`, and check what every plan promises.

    The output starts as POISON, or as zero where the plan asks for it.
    """
    output_array[...] = np.zeros((), output_array.dtype) if plan.zero_output else poison(output_array.dtype)
    return launch(
        kernels / plan.source,
        plan.symbol,
        plan.defines,
        plan.grid,
        plan.block,
        (input_array, output_array, plan.parameters),
        mode=mode,
        seed=seed,
        writes_once=not plan.zero_output,
        caches=caches,
    )
