"""The kernel variants of batch_to_space and space_to_batch, whose blocks are as long as their stride.

Pixel p of an axis is phase (p + pad) % block of block (p + pad) // block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.geometry import SpaceGeometry
from gpufold.gpu.parameters import are_contiguous, contiguous_strides, divisor, offset, offset_bits, wide
from gpufold.gpu.plan import LaunchShape, Plan, Problem, make_plan, planes_per_thread, resident_blocks
from gpufold.gpu.variants import unfold
from gpufold.gpu.variants.views import (
    LINE_BYTES,
    MOVING_THREADS,
    PACKED_REGISTERS,
    PLANES_PER_THREAD,
    WARP,
    WIDEST_WORD,
    View,
    ViewAxis,
    device_threads,
    word_elements,
    word_types,
)


def view_of(problem: Problem) -> View:
    """Describe a call, simplified: the batch as blocks whose stride is their size, space as the array they tile."""
    geometry, writes_blocks = problem.geometry, problem.call.operation == "space_to_batch"
    assert isinstance(geometry, SpaceGeometry)
    batch, space = (problem.output, problem.input) if writes_blocks else (problem.input, problem.output)
    phase_strides = (geometry.batch * batch.strides[0] * step for step in contiguous_strides(geometry.block_shape))
    axes = zip(geometry.axes, space.strides[1:], phase_strides, batch.strides[1:], strict=True)
    view = View(
        itemsize=problem.element.itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        writes_blocks=writes_blocks,
        batch=1,
        planes=geometry.batch,
        array_batch=0,
        array_plane=space.strides[0],
        blocks_batch=0,
        blocks_plane=batch.strides[0],
        axes=tuple(ViewAxis.of(axis, *strides) for axis, *strides in axes),
    )
    return view.simplified().with_rows_as_planes()


# ---------------------------------------------------------------------------------------------
# batch_to_space

PIECE_BYTES = 128
SPACE_OTHERS = 28
"""Guesses: most bytes of a piece of the packed kernel, unless a block has more, and registers of a thread besides its
words and one per address."""

SPACE_WORDS = 48
"""Most 4-byte words of a piece, if rows can be shared so: with more, the compiler may spill."""

SPACE_PARTS = 8
"""Most parts of a block, each a piece: with more, the lanes of a warp would load few neighbouring elements."""

SPACE_LOADS = 32
"""Most loads of a thread before smaller pieces are better."""

SPACE_TILES = 32 << 10
"""Most bytes of shared memory of a thread block; larger tiles halve its threads."""


def _plan(
    problem: Problem,
    variant: str,
    last_places: int,
    reason: str,
    most_planes: int = PLANES_PER_THREAD,
    shared_bytes: int = 0,
    **defines: Any,
) -> Plan:
    """Plan threads along the pixels of all axes but the last, which is cut into `last_places` places."""
    view = view_of(problem)
    axes = view.axes
    places = (*(axis.size for axis in axes[:-1]), last_places)
    planes = planes_per_thread(view.planes, prod(places), most_planes, device_threads(problem.device))
    groups = -(-view.planes // planes)
    threads, in_block = prod(places) * groups, defines.get("THREADS", MOVING_THREADS)
    bits = offset_bits(
        threads + MOVING_THREADS,
        view.planes,
        2 * max((axis.blocks + 1) * axis.kernel for axis in axes),
        sum((axis.blocks + 1) * abs(axis.block_stride) + axis.kernel * abs(axis.tap_stride) for axis in axes),
        sum(axis.size * abs(axis.pixel_stride) for axis in axes),
    )
    return make_plan(
        problem,
        variant,
        LaunchShape(threads, in_block, in_block, places, groups, bits, shared_bytes),
        reason,
        {**word_types(view.itemsize), "SPATIAL_RANK": len(axes), **defines},
        {
            "crop": offset([axis.pad for axis in axes]),
            "grid_step": offset([axis.block_stride for axis in axes]),
            "phase_step": offset([axis.tap_stride for axis in axes]),
            "pixel_step": offset([axis.pixel_stride for axis in axes]),
            "block": divisor(view.kernel),
            "places": divisor(places),
            "width": offset(axes[-1].size),
            "planes": offset(view.planes),
            "planes_per_thread": offset(planes),
            "threads": offset(threads),
            "batch_plane_step": wide(view.blocks_plane),
            "space_plane_step": wide(view.array_plane),
        },
    )


def index_map(problem: Problem) -> Plan:
    """Plan one thread per pixel: serves any call, and is fast if the last axis has few phases or is not split."""
    view = view_of(problem)
    last = view.axes[-1]
    reason = (
        f"the last axis is not split, so {view.itemsize} bytes move as one word"
        if last.is_unit
        else f"the last axis is split into {last.kernel} phases, whose loads share cache lines"
    )
    return _plan(problem, "index_map", last.size, reason)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """How threads of the packed kernel share a row: in whole blocks, or in parts of a block's phases."""

    itemsize: int
    count: int
    """Pieces of a row."""
    parts: int
    """Parts of a block; 1 for whole blocks."""
    phases: int
    blocks: int
    """Blocks of a piece; 1 if it is a part."""
    loaded: int
    """Elements of a word that is loaded."""
    anywhere: bool
    """Whether a thread's elements may begin anywhere in a word; it then loads one more word."""
    whole: bool
    """Whether all pieces are words of 16 bytes."""

    @property
    def words(self) -> int:
        """Words of 4 bytes in a piece."""
        return self.blocks * self.phases * self.itemsize // 4

    @property
    def loads(self) -> int:
        """Loads of a thread."""
        return self.phases * (self.blocks // self.loaded + self.anywhere)

    @property
    def registers(self) -> int:
        """Registers of the loaded words."""
        return self.loads * -(-self.loaded * self.itemsize // 4)


def _pieces(problem: Problem, view: View) -> Iterator[_Pieces]:
    """Yield the ways to share rows in pieces of 4-byte words, with at least one word in the last piece of a row."""
    last, itemsize = view.axes[-1], view.itemsize
    of_word, aligned = 4 // itemsize, view.blocks_at_once(problem.input.alignment)
    shape, steps = problem.input.shape, problem.input.strides
    extent = 1 + sum((count - 1) * step for count, step in zip(shape, steps, strict=True))
    in_words = last.block_stride == 1 and min(steps) >= 0 and extent == prod(shape)  # no word reaches out of the array
    in_words = in_words and word_elements(itemsize, problem.input.alignment, [extent]) >= of_word
    in_row = 1 << (-(-last.size // last.kernel) - 1).bit_length()  # rounded up, so that rows of most sizes are alike
    most = min(max(of_word, PIECE_BYTES // (last.kernel * itemsize)), max(of_word, in_row))
    for parts in (parts for parts in range(1, min(last.kernel, SPACE_PARTS) + 1) if last.kernel % parts == 0):
        phases = last.kernel // parts
        for blocks in range(1, 1 + (most if parts == 1 else 1)):
            pixels, loaded = blocks * phases, gcd(aligned, blocks)
            rest = last.size % pixels
            whole = rest == 0 and blocks & (blocks - 1) == 0
            whole = whole and gcd(pixels * itemsize, problem.output.alignment) % WIDEST_WORD == 0
            pieces = _Pieces(itemsize, -(-last.size // pixels), parts, phases, blocks, loaded, False, whole)
            choices = [pieces]
            if in_words and loaded < of_word and blocks % of_word == 0:
                choices.append(replace(pieces, loaded=of_word, anywhere=True))
            if pixels % of_word == 0 and (rest == 0 or rest >= of_word):
                yield from (pieces for pieces in choices if pieces.registers <= PACKED_REGISTERS)


def packed(problem: Problem) -> Plan:
    """Plan one thread per piece of a row of contiguous space; a warp stores its pieces as one run."""
    view = view_of(problem)
    last, itemsize = view.axes[-1], view.itemsize
    if last.is_unit:
        raise Unsupported("packed needs a last axis that is split")
    if itemsize > 4:
        raise Unsupported(f"packed puts words of 4 bytes together, not elements of {itemsize}")
    shape, steps = problem.output.shape, problem.output.strides
    if not are_contiguous(shape, steps):
        raise Unsupported(f"packed needs contiguous space, not steps of {steps}")
    pieces = min(_pieces(problem, view), key=_by_size, default=None)
    if pieces is None:
        raise Unsupported(
            f"packed keeps blocks of the last axis, or up to {SPACE_PARTS} equal parts of one, in "
            f"{PACKED_REGISTERS} registers and as words of 4 bytes, not blocks of {last.kernel} elements of {itemsize} "
            f"bytes in rows of {last.size}"
        )
    tile = 4 * WARP * pieces.words + LINE_BYTES
    threads = MOVING_THREADS
    while threads // WARP * tile > SPACE_TILES:
        threads //= 2
    return _plan(
        problem,
        "packed",
        pieces.count,
        f"the last axis is split into {last.kernel} phases, which threads pack and warps store as runs of words",
        most_planes=1,
        shared_bytes=threads // WARP * tile,
        THREADS=threads,
        PHASES=pieces.phases,
        BLOCKS=pieces.blocks,
        LOADED=pieces.loaded,
        LOADED_ANYWHERE=int(pieces.anywhere),
        BEGINS_BLOCKS=int(pieces.parts == 1 and last.pad % last.kernel == 0),
        WHOLE=int(pieces.whole),
        RESIDENT_BLOCKS=resident_blocks(threads, pieces.registers + pieces.loads + SPACE_OTHERS),
    )


def _by_size(pieces: _Pieces) -> tuple[int, ...]:
    """Order pieces: first few words and loads, then whole blocks, wide stores and loads, and large pieces."""
    too_many = max(0, pieces.words - SPACE_WORDS) + max(0, pieces.loads - SPACE_LOADS)
    return too_many, pieces.parts, not pieces.whole, -pieces.loaded, -pieces.words


# ---------------------------------------------------------------------------------------------
# space_to_batch


def per_block(problem: Problem) -> Plan:
    """Plan one thread per block: serves any call, and is fast if blocks are small."""
    return unfold.per_block(problem, view_of(problem))
