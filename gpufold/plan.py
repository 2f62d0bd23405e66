"""What a GPU launch needs, as data: a geometry, an element type and device facts become a Plan.

Everything here is pure. Two executors run the same plan: `gpufold.launch` on a GPU and the host
build of the kernels, `tests/hostcuda`, on a CPU. `gpufold.planners` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from gpufold.geometry import Geometry, SlidingGeometry


class Unsupported(ValueError):
    """A kernel variant that was asked for by name cannot serve this call; the message says why."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """How the kernels see a dtype: its C++ type, the type it is summed in, and whether sums are exact."""

    scalar: str
    accumulator: str
    itemsize: int
    exact: bool
    """Additions give the same bits in any order."""
    weight: str = ""
    """The dtype of a window's weights and of divisors; empty where there is neither, integers and bool."""

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of a sum."""
        return 1 if self.accumulator == "bool" else max(4, self.itemsize)


ELEMENT_TYPES = {
    "bool": ElementType("Boolean", "bool", 1, exact=True),
    "int8": ElementType("unsigned char", "unsigned int", 1, exact=True),
    "uint8": ElementType("unsigned char", "unsigned int", 1, exact=True),
    "int16": ElementType("unsigned short", "unsigned int", 2, exact=True),
    "uint16": ElementType("unsigned short", "unsigned int", 2, exact=True),
    "int32": ElementType("unsigned int", "unsigned int", 4, exact=True),
    "uint32": ElementType("unsigned int", "unsigned int", 4, exact=True),
    "int64": ElementType("unsigned long long", "unsigned long long", 8, exact=True),
    "uint64": ElementType("unsigned long long", "unsigned long long", 8, exact=True),
    "float16": ElementType("Float16", "float", 2, exact=False, weight="float32"),
    "bfloat16": ElementType("BFloat16", "float", 2, exact=False, weight="float32"),
    "float32": ElementType("float", "float", 4, exact=False, weight="float32"),
    "float64": ElementType("double", "double", 8, exact=False, weight="float64"),
    "complex64": ElementType("Complex<float>", "Complex<float>", 8, exact=False, weight="float32"),
    "complex128": ElementType("Complex<double>", "Complex<double>", 16, exact=False, weight="float64"),
}
"""Every dtype that the kernels serve, by NumPy's name for it; the types are those of kernels/common.cuh."""

WEIGHT_TYPES = {"": "float", "float32": "float", "float64": "double"}
"""The C++ type of a weight's dtype; where there are no weights, what the kernels then make nothing of."""


@dataclass(frozen=True, slots=True)
class Device:
    """The facts about a GPU that choices depend on."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int = 2048
    copy_bandwidth: float = 4.3e12
    """Bytes per second, read and written together, that a copy is assumed to reach; the default is an H200's.

    0 where the driver does not say how fast the memory is: then no time is predicted.
    """


H200 = Device("NVIDIA H200", (9, 0), multiprocessors=132)
"""The device that predictions are made for where there is none."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array as a kernel sees it: shape and strides in elements, and the alignment of its first byte."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int = 256

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], alignment: int = 256) -> Operand:
        """Describe a C-contiguous array.

        >>> Operand.contiguous((2, 3, 4)).strides
        (12, 4, 1)
        """
        return cls(shape, contiguous_strides(shape), alignment)


REDUCTIONS = ("sum", "mean", "least_squares")
"""What becomes of the taps that land on a pixel: see `gpufold.col2im`."""

WINDOWS = ("none", "separable", "full")
"""No window, one of an array of weights per axis, or one of a weight per tap of a block."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """What a kernel does to elements on their way, besides adding or moving them."""

    reduction: str = "sum"
    window: str = "none"
    accumulate: bool = False
    """Whether the result is added to what is in the output already."""
    window_axes: int = 0
    """The last axes, for which a separable window has weights; those before have one tap. 0 says all."""


PLAIN = Fusion()


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a choice depends on."""

    geometry: Geometry
    dtype: str
    input: Operand
    output: Operand
    device: Device = H200
    deterministic: bool = True
    fusion: Fusion = PLAIN


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of one kernel: kernel(input, output, [positions,] [weights,] parameters).

    It keeps within what a GPU can launch, or raises Unsupported as it is made.
    """

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
    parameters: bytes = field(repr=False)
    """The kernel's parameter struct, passed by value after the pointers."""
    bytes_moved: int
    """The floor: each input and output byte once."""
    reason: str
    """Why this variant, in a sentence."""
    takes_window: bool = False
    """Whether a struct of pointers to a window's weights comes before the parameters: a null where there is none."""
    scatters: bool = False
    """Whether the kernel adds to an element of the output as often as it likes, instead of writing it once."""
    skips: bool = False
    """Whether it leaves elements of the output as they are, instead of writing each."""
    reads_output: bool = False
    """Whether what is in the output before the launch counts."""
    shared_bytes: int = 0
    """Bytes of shared memory that the kernel declares."""

    def __post_init__(self) -> None:
        """Compare what the launch needs with what every GPU has."""
        for needed, available, what in (
            (self.shared_bytes, MAX_SHARED_BYTES, "bytes of shared memory"),
            (self.argument_bytes, MAX_ARGUMENT_BYTES, "bytes of arguments"),
            (self.grid[0], MAX_GRID, "thread blocks"),
            (self.grid[1], MAX_GRID_ROWS, "rows of thread blocks"),
        ):
            if needed > available:
                raise Unsupported(
                    f"{self.operation}: {self.variant} would need {needed} {what}, of which there are {available}"
                )

    @property
    def argument_bytes(self) -> int:
        """Bytes of the kernel's arguments: pointers to arrays and to a window's weights, then the parameters."""
        defines = dict(self.defines)
        weights = int(defines["WINDOW_AXES"]) if defines.get("WINDOW") == "separable" else 1
        pointers = 2 + (self.operation == "add_blocks") + (weights if self.takes_window else 0)
        return POINTER_BYTES * pointers + len(self.parameters)

    @property
    def zero_output(self) -> bool:
        """Whether the output must be zero before the kernel starts."""
        return self.scatters and not self.reads_output


Variant: TypeAlias = Callable[[Problem], Plan]
"""Gives the plan of one kernel variant or raises Unsupported with the reason."""

Preferences: TypeAlias = Callable[[Problem], Iterator[tuple[str, str]]]
"""Yields the names of variants predicted to be fast, the fastest first, each with why; empty where its plan says it.

One that does not serve the problem may be among them.
"""


# ---------------------------------------------------------------------------------------------
# Fusions


def fusion_defines(problem: Problem) -> dict[str, str]:
    """Say what is fused into the sums, where that is anything."""
    fusion = problem.fusion
    if fusion == PLAIN:
        return {}
    return {
        **({"WINDOW_AXES": str(len(_windowed_taps(problem)))} if fusion.window == "separable" else {}),
        "REDUCTION": fusion.reduction,
        "WINDOW": fusion.window,
        "ACCUMULATE": "true" if fusion.accumulate else "false",
        "WEIGHT": WEIGHT_TYPES[ELEMENT_TYPES[problem.dtype].weight],
    }


def _windowed_taps(problem: Problem) -> tuple[int, ...]:
    """Give the taps of the axes that a separable window has weights for."""
    assert isinstance(problem.geometry, SlidingGeometry)
    return problem.geometry.kernel_size[-problem.fusion.window_axes :]  # from the first on where it is 0


def sliding_bytes(problem: Problem) -> int:
    """Count the floor: columns and image once, the image twice where it is added to, and the window."""
    geometry, element = problem.geometry, ELEMENT_TYPES[problem.dtype]
    assert isinstance(geometry, SlidingGeometry)
    images = 2 if problem.fusion.accumulate else 1
    weights = {"none": 0, "separable": sum(_windowed_taps(problem)), "full": prod(geometry.kernel_size)}
    return (prod(geometry.columns_shape) + images * prod(geometry.image_shape)) * element.itemsize + weights[
        problem.fusion.window
    ] * (np.dtype(element.weight).itemsize if element.weight else 0)


# ---------------------------------------------------------------------------------------------
# Atomic additions


def check_atomics(operation: str, dtype: str) -> None:
    """Raise where no atomic addition gives the sums of a dtype."""
    if dtype in ("float16", "bfloat16"):
        raise Unsupported(f"{operation}: atomic adds in memory, where {dtype} sums would be rounded at every addition")
    if dtype in ("int8", "uint8", "int16", "uint16"):
        raise Unsupported(f"{operation}: atomic has no atomic addition of {dtype}, whose elements share a word")


# ---------------------------------------------------------------------------------------------
# Numbers for kernels

INT32_MAX = 2**31 - 1
"""Offsets up to here are 32 bits wide; a test lowers it to reach the 64-bit kernels with small arrays."""

INT64_MAX = 2**63 - 1

MAX_GRID = 2**31 - 1
MAX_GRID_ROWS = 65535
"""Thread blocks that one launch can have along x, and along y."""

MAX_SHARED_BYTES = 48 * 1024
"""Shared memory that a kernel can declare for a thread block."""

MAX_ARGUMENT_BYTES = 4096
"""Arguments of one launch, on every GPU and with every driver."""

POINTER_BYTES = 8


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a C-contiguous array.

    >>> contiguous_strides((5, 1, 3))
    (3, 3, 1)
    """
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def span(extents: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Bound the distance in elements between any two elements of an array.

    >>> span((2, 3), (3, -1))
    5
    """
    return sum((extent - 1) * abs(stride) for extent, stride in zip(extents, strides, strict=True))


def offset_bits(operation: str, *largest: int) -> int:
    """Width of a kernel's Offset, from the largest values that it must hold."""
    if max(largest) <= INT32_MAX:
        return 32
    if max(largest) <= INT64_MAX // 2:
        return 64
    raise Unsupported(f"{operation}: offsets up to {max(largest)} do not fit into 64 bits on a GPU")


def offset_type(bits: int) -> str:
    """Name the C++ type that OFFSET is defined as."""
    return {32: "int", 64: "long long"}[bits]


def parameter_type(bits: int, **fields: str | tuple[str, int] | np.dtype[Any]) -> np.dtype[Any]:
    """Lay out a kernel's parameter struct as C++ does, field by field.

    Fields are "offset" (Offset), "divisor" (Divisor), "int", or "long" (long long), or one of these with the
    length of an array, or a struct laid out before.

    >>> parameter_type(32, size=("offset", 3), by_size="divisor", stride="long").itemsize
    32
    """
    offset, unsigned = f"i{bits // 8}", f"u{bits // 8}"
    divisor = np.dtype([("divisor", offset), ("multiplier", unsigned), ("shift", "i4")], align=True)
    types: dict[str, Any] = {"offset": offset, "divisor": divisor, "int": "i4", "long": "i8"}
    layout: list[Any] = [
        (name, types[kind[0]], (kind[1],))
        if isinstance(kind, tuple)
        else (name, types[kind] if isinstance(kind, str) else kind)
        for name, kind in fields.items()
    ]
    return np.dtype(layout, align=True)


def pack(dtype: np.dtype[Any], **values: Any) -> bytes:
    """Fill a parameter struct: every field, by name."""
    if set(values) != set(dtype.names or ()):
        raise TypeError(f"parameters are {dtype.names}, got {tuple(values)}")
    record = np.zeros((), dtype)
    for name, value in values.items():
        record[name] = value
    return record.tobytes()


def divisor(number: int, bits: int) -> tuple[int, int, int]:
    """Give the Divisor of common.cuh: n // number is (high(n * multiplier) + n) >> shift for every n >= 0.

    >>> _, multiplier, shift = divisor(7, 32)
    >>> all(((n * multiplier >> 32) + n) >> shift == n // 7 for n in (0, 6, 7, 2**31 - 1))
    True
    """
    shift = (number - 1).bit_length()
    return number, (1 << bits) * ((1 << shift) - number) // number + 1, shift


def grid_blocks(operation: str, threads: int, per_block: int) -> tuple[int, int, int]:
    """Give the grid of one thread per item."""
    blocks = -(-threads // per_block)
    if blocks > MAX_GRID:
        raise Unsupported(f"{operation}: {blocks} blocks of {per_block} threads are more than one launch can have")
    return blocks, 1, 1
