"""Arrays as on a GPU: aligned, surrounded by other memory, and full of garbage."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

NDArray = np.ndarray[Any, Any]

POISON = 0xFF
"""Every byte of unwritten memory: NaN as a float, -1 as an integer, invalid as a bool."""

GUARD = 4096
"""Bytes on either side of an array that nothing may touch."""

ALIGNMENT = 256
"""Alignment of a GPU's allocator."""


class Fault(Exception):
    """An error of a kernel; the message says what it did, and where in its source."""


def poison(dtype: np.dtype[Any]) -> NDArray:
    """Return an element of unwritten memory."""
    return np.frombuffer(bytes([POISON]) * dtype.itemsize, dtype)


class Placed:
    """An array copied to memory like a GPU's, between guards.

    Strides stay. The first byte of the memory that the array is a view of lies on a multiple of ALIGNMENT, so that
    a view with an offset is as misaligned as it would be on a GPU. Bytes between the array's elements are guarded too.
    """

    def __init__(self, array: NDArray) -> None:
        address = array.__array_interface__["data"][0]
        steps = [max(size - 1, 0) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        low = address + sum(step for step in steps if step < 0)
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self.misalignment = (low - owner.__array_interface__["data"][0]) % ALIGNMENT
        self.span = sum(map(abs, steps)) + array.itemsize
        self.memory = np.full(GUARD + ALIGNMENT + self.span + GUARD, POISON, np.uint8)
        self.start = self.memory.__array_interface__["data"][0]
        self.front = GUARD + (self.misalignment - self.start - GUARD) % ALIGNMENT
        self.offset = self.front + address - low
        self.array = array
        self.view = np.ndarray(array.shape, array.dtype, self.memory, self.offset, array.strides)
        self.view[...] = array
        self.pointer = ctypes.c_void_p(self.start + self.offset)

    @property
    def between_guards(self) -> NDArray:
        """Every byte from the first to the last one of the array."""
        return self.memory[self.front : self.front + self.span]

    def per_byte(self) -> tuple[NDArray, NDArray]:
        """Return zeros, one per byte of the memory, and a view of those in the array's elements."""
        memory = np.zeros(self.memory.size, np.uint8)
        shape, strides = (*self.array.shape, self.array.itemsize), (*self.array.strides, 1)
        return memory, np.ndarray(shape, np.uint8, memory, self.offset, strides)

    def check_unchanged(self, name: str) -> None:
        if self.view.tobytes() != self.array.tobytes():
            raise Fault(f"{name} is const, and the kernel wrote to it")

    def copy_back(self, name: str) -> None:
        self.array[...] = self.view
        self.view[...] = poison(self.array.dtype)
        touched = np.flatnonzero(self.memory != POISON)
        if touched.size:
            raise Fault(f"the kernel wrote outside {name}, at byte {touched[0] - self.offset} from its first")
