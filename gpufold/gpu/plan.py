"""A GPU launch as data: a call, its arrays and a device's properties become a `Plan`.

Everything here is pure. The modules of `gpufold.gpu.variants` make plans. `gpufold.gpu.launch` runs them on a GPU, and
`bench/hostcuda`, the host build of the kernels, on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from gpufold.calls import Call, FusedOps, Unsupported
from gpufold.elements import ELEMENT_TYPES, ElementType
from gpufold.geometry import Geometry, Size, SpaceGeometry
from gpufold.gpu.parameters import Field, contiguous_strides, pack


@dataclass(frozen=True, slots=True)
class Device:
    """Properties of a GPU that plans depend on."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int = 2048
    l2_bytes: int = 50 << 20
    """Size of the L2 cache, which is flushed between samples of a race."""


H200 = Device("NVIDIA H200", (9, 0), multiprocessors=132)
"""The default device of plans without a GPU; the defaults of `Device` are its properties."""


MAX_ALIGNMENT = 256
"""CuPy's allocator aligns to this; more makes no difference to a kernel."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array as a kernel sees it: shape and strides in elements, and the alignment of its first byte."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int = MAX_ALIGNMENT

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], alignment: int = MAX_ALIGNMENT) -> Operand:
        """Describe a C-contiguous array."""
        return cls(shape, contiguous_strides(shape), alignment)


def operand_of(operation: str, name: str, shape: Size, strides: Size, alignment: int, itemsize: int) -> Operand:
    """Describe an array by its strides in bytes; raise if its elements are misaligned."""
    if any(stride % itemsize for stride in strides) or alignment < itemsize:
        raise Unsupported(
            f"{operation}: {name} has elements of {itemsize} bytes that do not lie on multiples of their size "
            f"(strides {strides}, first byte on a multiple of {alignment}); pass a copy"
        )
    return Operand(shape, tuple(stride // itemsize for stride in strides), alignment)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a plan depends on."""

    call: Call
    input: Operand
    output: Operand
    device: Device = H200
    weight_out: Operand | None = None
    """The array to which weights are added, if any."""

    @property
    def geometry(self) -> Geometry:
        return self.call.geometry

    @property
    def element(self) -> ElementType:
        return self.call.element

    @property
    def fusion(self) -> FusedOps:
        return self.call.fusion

    @property
    def any_order(self) -> bool:
        """Whether elements may be added in any order: sums are exact, or `deterministic` is False."""
        return self.element.exact or not self.call.deterministic


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch of one kernel: kernel(input, output, [positions,] window, [weight_out,] [scratch,] parameters).

    Blocks at positions of their own have positions. The window is a struct of pointers to weights, or of a null one.

    Scratch memory, if any, is filled by earlier launches: kernel(positions, scratch, parameters).

    Creating a plan raises Unsupported if it exceeds the limits of a launch.
    """

    operation: str
    variant: str
    file: str
    """File name in kernels/."""
    symbol: str
    """The extern "C" __global__ function in it."""
    defines: tuple[tuple[str, str], ...]
    """The compile-time specialisation: macros and their values, which come before the source."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: bytes = field(repr=False)
    """The kernel's parameter struct, passed by value after the pointers."""
    bytes_moved: int
    """Minimum memory traffic: each input and output byte once, and positions and the sectors under their blocks."""
    reason: str
    """Why this variant, in a sentence."""
    atomic_output: bool = False
    """Whether the kernel adds to output elements repeatedly, instead of writing each once."""
    reads_output: bool = False
    """Whether the result depends on the previous values of the output."""
    shared_bytes: int = 0
    """Bytes of shared memory that the kernel declares."""
    scratch_bytes: int = 0
    """Bytes of memory that only this launch and its prologue use."""
    zeroed_bytes: int = 0
    """Bytes at the start of the scratch memory that must be zero before the prologue."""
    prologue: tuple[Plan, ...] = field(default=(), repr=False)
    """The launches that fill the scratch memory, in order."""

    def __post_init__(self) -> None:
        """Compare the launch with the limits of every GPU."""
        for needed, available, what in (
            (self.shared_bytes, MAX_SHARED_BYTES, "bytes of shared memory"),
            (self.argument_bytes, MAX_ARGUMENT_BYTES, "bytes of arguments"),
        ):
            if needed > available:
                raise Unsupported(f"{self.variant} would need {needed} {what}, of which there are {available}")

    @property
    def argument_bytes(self) -> int:
        """Bytes of the kernel's arguments: pointers to arrays and to a window's weights, then the parameters."""
        defines = dict(self.defines)
        weights = int(defines["WINDOW_AXES"]) if defines.get("WINDOW") == "separable" else 1
        positions = self.operation in ("add_blocks", "take_blocks")
        pointers = 2 + positions + weights + (defines.get("WEIGHT_OUT") == "1") + (self.scratch_bytes > 0)
        return POINTER_BYTES * pointers + len(self.parameters)

    @property
    def zero_output(self) -> bool:
        """Whether the output must be zero before the kernel starts."""
        return self.atomic_output and not self.reads_output


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """How threads share items, which are numbered as (batch, group of channels, *extents)."""

    items: int
    per_block: int
    """Items of a thread block."""
    threads: int
    """Threads of a thread block, compiled in."""
    extents: Size
    channel_groups: int
    bits: int
    """Bits of an Offset."""
    shared_bytes: int = 0
    rows: int = 1
    """Rows of thread blocks; each row has all items."""


DEFAULTS = {
    "SCALAR": "float",
    "ACCUMULATOR": "float",
    "RESULT": "SCALAR",
    "WEIGHT": "float",
    "WINDOW": "none",
    "WINDOW_AXES": 1,
    "REDUCTION": "sum",
    "ACCUMULATE": "false",
}
"""Default macros of the headers in kernels/; a plan defines all others."""


def specialisation(defines: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return all macros of a kernel; sequences in `defines` have one value per axis."""
    return tuple(
        (name, ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value))
        for name, value in {**DEFAULTS, **defines}.items()
    )


KERNELS_OF = {"blocks_to_array": "col2im", "array_to_blocks": "im2col"}
"""Operations that use the kernels of another one, on views of their arrays."""


def make_plan(
    problem: Problem,
    variant: str,
    shape: LaunchShape,
    reason: str,
    defines: Mapping[str, Any],
    members: Mapping[str, Field],
    **facts: Any,
) -> Plan:
    """Make a plan with the macros and launch of all kernels; `facts` are other fields of the Plan.

    `members` are the kernel's parameter struct. The default of `bytes_moved` counts the arrays.
    """
    operation, integer = problem.call.operation, {32: "int", 64: "long long"}[shape.bits]
    name = f"{KERNELS_OF.get(operation, operation)}_{variant}"
    return Plan(
        operation,
        variant,
        facts.pop("file", f"{name}.cu"),
        facts.pop("symbol", name),
        specialisation({"OFFSET": integer, "THREADS": shape.threads, **defines}),
        grid_of(shape.items, shape.per_block, shape.rows),
        (shape.threads, 1, 1),
        pack(shape.bits, **members),
        facts.pop("bytes_moved", None) or _bytes_moved(problem),
        reason,
        shared_bytes=shape.shared_bytes,
        **facts,
    )


def _bytes_moved(problem: Problem) -> int:
    """Count the minimum traffic: both arrays once, the output twice if it is added to, and a window's weights."""
    call, fusion = problem.call, problem.fusion
    read = prod(problem.input.shape) * call.data_element.itemsize
    written = (2 if fusion.accumulate else 1) * prod(problem.output.shape) * call.element.itemsize
    if isinstance(call.geometry, SpaceGeometry) or fusion.window == "none":
        return read + written
    taps = call.geometry.block_shape[-fusion.window_axes :]  # all if it is 0
    return read + written + (prod if fusion.window == "full" else sum)(taps) * call.element.weight_bytes


Variant: TypeAlias = Callable[[Problem], Plan | tuple[Plan, ...]]
"""Plans one kernel variant, or raises Unsupported with the reason; the first of several plans is the heuristics'."""

Preferences: TypeAlias = Callable[[Problem], Iterator[tuple[str, str]]]
"""Yields the preferred variants, best first: names and reasons, which are empty if the plan has a reason.

Some may be unable to serve the problem.
"""


# ---------------------------------------------------------------------------------------------
# Atomic additions


def check_atomics(dtype: str) -> None:
    """Raise if atomic additions cannot make the sums of a dtype."""
    if ELEMENT_TYPES[dtype].is_half:
        raise Unsupported(f"atomic adds in memory, where {dtype} sums would be rounded at every addition")
    if dtype != "bool" and ELEMENT_TYPES[dtype].itemsize < 4:
        raise Unsupported(f"atomic has no atomic addition of {dtype}, whose elements share a word")


# ---------------------------------------------------------------------------------------------
# Limits of a launch

MAX_GRID = 2**31 - 1
MAX_GRID_ROWS = 65535
"""Thread blocks that one launch can have along x, and along y."""

MAX_SHARED_BYTES = 48 * 1024
"""Shared memory that a kernel can declare for a thread block."""

MAX_ARGUMENT_BYTES = 4096
"""Arguments of one launch, on every GPU and with every driver."""

POINTER_BYTES = 8


def grid_of(items: int, per_block: int, rows: int = 1) -> tuple[int, int, int]:
    """Return a grid of thread blocks with `per_block` items each."""
    blocks = -(-items // per_block)
    if blocks > MAX_GRID:
        raise Unsupported(f"{blocks} thread blocks of {per_block} items are more than one launch can have")
    return blocks, rows, 1


def planes_per_thread(planes: int, places: int, most: int, threads: int) -> int:
    """Return the planes that share a thread's index arithmetic: the most that leave enough threads and few idle."""
    count = most
    while count > 1 and (2 * -(-planes // count) * count > 3 * planes or -(-planes // count) * places < threads):
        count //= 2
    return count


REGISTERS, REGISTERS_AT_ONCE = 1 << 16, 8
"""Registers of a multiprocessor of any GPU, and the multiple in which its threads get them."""
THREADS_OF_ANY, BLOCKS_OF_ANY = 1024, 16
"""Threads and thread blocks that a multiprocessor of every GPU holds; the compiler ignores larger launch bounds."""


def resident_blocks(threads: int, registers: int) -> int:
    """Return the thread blocks per multiprocessor of a kernel's launch bounds, from the registers of a thread."""
    registers = -(-registers // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    return max(1, min(BLOCKS_OF_ANY, THREADS_OF_ANY // threads, REGISTERS // (threads * registers)))
