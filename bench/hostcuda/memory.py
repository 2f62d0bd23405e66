"""Arrays as on a GPU: aligned, surrounded by other memory, and full of garbage."""

from __future__ import annotations

import ctypes
import mmap
from functools import cached_property
from typing import Any

import numpy as np

from .module import ELEMENT, KNOWN, ONCE

NDArray = np.ndarray[Any, Any]

POISON = 0xFF
"""Every byte of unwritten memory: NaN as a float, -1 as an integer, invalid as a bool."""

GUARD = 4096
"""Bytes on either side of an array that nothing may touch."""

ALIGNMENT = 256
"""Alignment of a GPU's allocator."""

FAR = 1 << 26
"""Bytes from plane to plane above which memory between planes is left untouched."""

NO_RESERVE = 0x4000
"""Linux's flag for memory that may be more than the system has."""


class Fault(Exception):
    """An error of a kernel; the message says what it did, and where in its source."""


def poison(dtype: np.dtype[Any]) -> NDArray:
    """Return an element of unwritten memory."""
    return np.frombuffer(bytes([POISON]) * dtype.itemsize, dtype)


def untouched(size: int) -> NDArray:
    """Return memory, from the begin of a page, of which the system provides the pages that are touched."""
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags), np.uint8)


def owner_of(array: NDArray) -> NDArray:
    """Return the array that an array is a view of, or the array itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Placed:
    """An array copied to memory like a GPU's, between guards; child processes share that memory.

    Strides stay. The first byte of the memory that the array is a view of lies on a multiple of ALIGNMENT, so that
    a view with an offset is as misaligned as it would be on a GPU. Bytes between the array's elements are guarded too.
    `writable` says whether kernels may write to it, `once` whether they may write each byte only once, and `known` how
    many of its first elements are no garbage (default: all).
    """

    def __init__(self, array: NDArray, writable: bool = False, once: bool = False, known: int | None = None) -> None:
        address = array.__array_interface__["data"][0]
        steps = [max(size - 1, 0) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        low = address + sum(step for step in steps if step < 0)
        owner = owner_of(array)
        self.span = sum(map(abs, steps)) + array.itemsize
        self.front = GUARD + (low - owner.__array_interface__["data"][0]) % ALIGNMENT
        self.offset = self.front + address - low
        self.memory = untouched(self.front + self.span + GUARD)
        apart = [(abs(step), count) for step, count in zip(array.strides, array.shape, strict=True) if count > 1]
        step, count = max(apart, default=(0, 1))
        step, count = (step, count) if step > FAR else (0, 1)
        plane = self.memory.size - (count - 1) * step
        self.parts = [slice(number * step, number * step + plane) for number in range(count)]
        """The memory of elements and the guards around them, plane by plane if these are far apart."""
        for part in self.parts:
            self.memory[part] = POISON
        self.start = self.memory.__array_interface__["data"][0]
        self.array = array
        self.view = np.ndarray(array.shape, array.dtype, self.memory, self.offset, array.strides)
        self.view[...] = array
        self.pointer = ctypes.c_void_p(self.start + self.offset)
        self.writable, self.once, self.known = writable, once, known

    @cached_property
    def flags(self) -> NDArray:
        """Flags of each byte of the memory, which launches that are observed keep up to date."""
        flags = np.zeros(self.memory.size, np.uint8)
        shape, strides = (*self.array.shape, self.array.itemsize), (*self.array.strides, 1)
        of_elements = np.ndarray(shape, np.uint8, flags, self.offset, strides)
        of_elements[...] = ELEMENT | KNOWN | ONCE * self.once
        if self.known is not None:
            of_elements[self.known :] = ELEMENT
        return flags

    def bring_back(self, name: str) -> None:
        """Copy the elements back if kernels may write to them, and check that nothing else was written."""
        if self.writable:
            self.array[...] = self.view
        elif self.view.tobytes() != self.array.tobytes():
            raise Fault(f"{name} is const, and the kernel wrote to it")
        self.view[...] = poison(self.array.dtype)
        for part in self.parts:
            touched = part.start + np.flatnonzero(self.memory[part] != POISON)
            if touched.size:
                raise Fault(f"the kernel wrote outside {name}, at byte {touched[0] - self.offset} from its first")
