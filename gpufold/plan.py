"""What a GPU launch needs, as data: a geometry, an element type and device facts become a Plan.

Everything here is pure. Two executors run the same plan: `gpufold.launch` on a GPU and the host
build of the kernels, `tests/hostcuda`, on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass


class Unsupported(ValueError):
    """A kernel variant that was asked for by name cannot serve this call; the message says why."""


@dataclass(frozen=True, slots=True)
class Device:
    """The facts about a GPU that choices depend on."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int = 2048


H200 = Device("NVIDIA H200", (9, 0), multiprocessors=132)
"""The device that predictions are made for where there is none."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array as a kernel sees it: shape and strides in elements, and the alignment of its first byte."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of one kernel: kernel(input, output, parameters)."""

    operation: str
    variant: str
    source: str
    """File name in kernels/."""
    symbol: str
    """The extern "C" __global__ function in it."""
    defines: tuple[tuple[str, str], ...]
    """The compile-time specialisation, passed as -DNAME=VALUE."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: bytes
    """The kernel's parameter struct, passed by value after the input and output pointers."""
    zero_output: bool
    """Whether the kernel adds into an output that must be zero before it starts."""
    bytes_moved: int
    """The floor: each input and output byte once."""
    reason: str
    """Why this variant, in a sentence."""
