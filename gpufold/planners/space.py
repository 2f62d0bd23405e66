"""The kernel variants of batch_to_space and space_to_batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from gpufold.geometry import SpaceGeometry
from gpufold.plan import (
    ELEMENT_TYPES,
    MAX_GRID_ROWS,
    Plan,
    Problem,
    Unsupported,
    Variant,
    divisor,
    grid_blocks,
    offset_bits,
    offset_type,
    pack,
    parameter_type,
)
from gpufold.planners import unfold
from gpufold.planners.unfold import (
    LONG_ROW_BYTES,
    PLANES_PER_THREAD,
    STAGED_ROW_BYTES,
    STAGED_TAPS,
    THREADS_PER_BLOCK,
    WIDEST_WORD,
    Unfold,
    UnfoldAxis,
    chunk_size,
    planes_per_thread,
    tile_bytes,
    word_elements,
    word_types,
)

INDEX_MAP_BLOCK = 8
"""Phases of the last axis from which batch_to_space stages its loads, where each of a warp's loads would be that many
runs: a prediction."""


# ---------------------------------------------------------------------------------------------
# space_to_batch: sliding blocks whose stride is their size


def _space_to_batch(problem: Problem) -> Unfold:
    geometry = problem.geometry
    assert isinstance(geometry, SpaceGeometry)
    itemsize = ELEMENT_TYPES[problem.dtype].itemsize
    return Unfold(
        operation="space_to_batch",
        itemsize=itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        batch=1,
        planes=geometry.batch,
        image_batch_step=0,
        image_plane_step=problem.input.strides[0],
        columns_batch_step=0,
        columns_plane_step=problem.output.strides[0],
        tap_step=geometry.batch * problem.output.strides[0],
        axes=tuple(
            UnfoldAxis(size, block, block, 1, pad, count, pixel_step, position_step)
            for size, block, pad, count, pixel_step, position_step in zip(
                geometry.space_size,
                geometry.block,
                geometry.margin_begin,
                geometry.grid,
                problem.input.strides[1:],
                problem.output.strides[1:],
                strict=True,
            )
        ),
        bytes_moved=(prod(problem.input.shape) + prod(problem.output.shape)) * itemsize,
    )


def space_to_batch_direct(problem: Problem) -> Plan:
    """Plan one thread per block: any call, fast while blocks are small."""
    return unfold.direct(_space_to_batch(problem), problem.device)


def space_to_batch_staged(problem: Problem) -> Plan:
    """Plan one warp per 32 blocks through shared memory: large blocks."""
    return unfold.staged(_space_to_batch(problem), problem.device)


def prefer_for_space_to_batch(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    return unfold.prefer(_space_to_batch(problem))


# ---------------------------------------------------------------------------------------------
# batch_to_space


@dataclass(frozen=True, slots=True)
class BlockAxis:
    """A spatial axis: pixel e is phase (e + crop) % block of block number (e + crop) // block."""

    size: int
    block: int
    crop: int
    grid: int
    grid_step: int
    phase_step: int
    pixel_step: int

    @property
    def is_unit(self) -> bool:
        return self.block == 1

    @property
    def covers_rows(self) -> bool:
        """Whether no crop keeps rows from being walked as one with the axis outside."""
        return self.size == self.grid * self.block


@dataclass(frozen=True, slots=True)
class Blocks:
    """A batch_to_space call in the words of kernels/batch_to_space.cuh; steps are in elements."""

    itemsize: int
    alignment: int
    """Of both arrays' first bytes."""
    planes: int
    batch_plane_step: int
    space_plane_step: int
    axes: tuple[BlockAxis, ...]

    def simplified(self) -> Blocks:
        """Merge axes that are walked as one, then make elements as wide as they can be.

        Unsplit axes make a long row for wide elements first, planes next, and only what is left joins a split axis.
        """
        return (
            self._with_merged_axes(into_split=False)._with_merged_planes()._with_merged_axes(into_split=True)._widened()
        )

    def _with_merged_axes(self, into_split: bool) -> Blocks:
        merged: list[BlockAxis] = []
        for axis in reversed(self.axes):
            inner = merged[-1] if merged else None
            if (
                inner is not None
                and axis.is_unit
                and (inner.is_unit or into_split)
                and inner.covers_rows
                and axis.pixel_step == inner.size * inner.pixel_step
                and axis.grid_step == inner.grid * inner.grid_step
            ):
                merged[-1] = replace(
                    inner,
                    size=axis.size * inner.size,
                    grid=axis.grid * inner.grid,
                    crop=axis.crop * inner.size,
                )
            else:
                merged.append(axis)
        return replace(self, axes=tuple(reversed(merged)))

    def _with_merged_planes(self) -> Blocks:
        """Count leading axes that are not split as planes."""
        blocks = self
        while len(blocks.axes) > 1:
            axis = blocks.axes[0]
            if not (
                axis.is_unit
                and axis.covers_rows
                and blocks.batch_plane_step == axis.grid * axis.grid_step
                and blocks.space_plane_step == axis.size * axis.pixel_step
            ):
                break
            blocks = replace(
                blocks,
                planes=blocks.planes * axis.size,
                batch_plane_step=axis.grid_step,
                space_plane_step=axis.pixel_step,
                axes=blocks.axes[1:],
            )
        return blocks

    def with_rows_as_planes(self) -> Blocks:
        """Where planes are too few to share index arithmetic, count the blocks of the first axis among them.

        What remains of the axis is one block with its phases. Threads then store block by block, so the rows of one
        must be long.
        """
        axis, *inner = self.axes
        block_bytes = axis.block * prod(axis.size for axis in inner) * self.itemsize
        collapses = self.planes == 1 or (
            self.batch_plane_step == axis.grid * axis.grid_step and self.space_plane_step == axis.size * axis.pixel_step
        )
        few = self.planes < PLANES_PER_THREAD
        if not (few and inner and block_bytes >= LONG_ROW_BYTES and axis.covers_rows and collapses):
            return self
        return replace(
            self,
            planes=self.planes * axis.grid,
            batch_plane_step=axis.grid_step,
            space_plane_step=axis.block * axis.pixel_step,
            axes=(replace(axis, size=axis.block, grid=1), *inner),
        )

    def _widened(self) -> Blocks:
        """Take neighbouring pixels of an unsplit last axis as one element."""
        *outer, last = self.axes
        if not (last.is_unit and last.pixel_step == last.grid_step == 1):
            return self
        multiples = [last.size, last.crop]
        multiples += [step for axis in outer for step in (axis.grid_step, axis.phase_step, axis.pixel_step)]
        multiples += [self.batch_plane_step, self.space_plane_step] if self.planes > 1 else []
        count = word_elements(self.itemsize, self.alignment, multiples)
        return replace(
            self,
            itemsize=self.itemsize * count,
            batch_plane_step=self.batch_plane_step // count,
            space_plane_step=self.space_plane_step // count,
            axes=(
                *(
                    replace(
                        axis,
                        grid_step=axis.grid_step // count,
                        phase_step=axis.phase_step // count,
                        pixel_step=axis.pixel_step // count,
                    )
                    for axis in outer
                ),
                replace(last, size=last.size // count, crop=last.crop // count, grid=last.grid // count),
            ),
        )


def _blocks(problem: Problem) -> Blocks:
    geometry = problem.geometry
    assert isinstance(geometry, SpaceGeometry)
    batch_step, *grid_steps = problem.input.strides
    plane_step, *pixel_steps = problem.output.strides
    blocks = Blocks(
        itemsize=ELEMENT_TYPES[problem.dtype].itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        planes=geometry.batch,
        batch_plane_step=batch_step,
        space_plane_step=plane_step,
        axes=tuple(
            BlockAxis(
                geometry.space_size[axis],
                geometry.block[axis],
                geometry.margin_begin[axis],
                geometry.grid[axis],
                grid_steps[axis],
                prod(geometry.block[axis + 1 :]) * geometry.batch * batch_step,
                pixel_steps[axis],
            )
            for axis in range(len(geometry.block))
        ),
    )
    return blocks.simplified().with_rows_as_planes()


def _plan(
    problem: Problem,
    blocks: Blocks,
    variant: str,
    last_places: int,
    defines: tuple[tuple[str, int], ...],
    reason: str,
    grid_rows: int = 1,
    shared_bytes: int = 0,
) -> Plan:
    operation = "batch_to_space"
    axes = blocks.axes
    places = (*(axis.size for axis in axes[:-1]), last_places)
    together = planes_per_thread(prod(places), blocks.planes, PLANES_PER_THREAD, problem.device)
    threads = prod(places) * -(-blocks.planes // together)
    bits = offset_bits(
        operation,
        threads + THREADS_PER_BLOCK,
        blocks.planes,
        2 * max((axis.grid + 1) * axis.block for axis in axes),
        sum((axis.grid + 1) * abs(axis.grid_step) + axis.block * abs(axis.phase_step) for axis in axes),
        sum(axis.size * abs(axis.pixel_step) for axis in axes)
        + min(blocks.planes, 32 * together) * abs(blocks.space_plane_step) * (variant == "staged"),
    )
    layout = parameter_type(
        bits,
        crop=("offset", len(axes)),
        grid_step=("offset", len(axes)),
        phase_step=("offset", len(axes)),
        pixel_step=("offset", len(axes)),
        block=("divisor", len(axes)),
        places=("divisor", len(axes)),
        width="offset",
        planes="offset",
        planes_per_thread="offset",
        threads="offset",
        batch_plane_step="long",
        space_plane_step="long",
    )
    parameters = pack(
        layout,
        crop=[axis.crop for axis in axes],
        grid_step=[axis.grid_step for axis in axes],
        phase_step=[axis.phase_step for axis in axes],
        pixel_step=[axis.pixel_step for axis in axes],
        block=[divisor(axis.block, bits) for axis in axes],
        places=[divisor(count, bits) for count in places],
        width=axes[-1].size,
        planes=blocks.planes,
        planes_per_thread=together,
        threads=threads,
        batch_plane_step=blocks.batch_plane_step,
        space_plane_step=blocks.space_plane_step,
    )
    x, _, _ = grid_blocks(operation, threads, THREADS_PER_BLOCK)
    symbol = f"{operation}_{variant}"
    return Plan(
        operation=operation,
        variant=variant,
        source=f"{symbol}.cu",
        symbol=symbol,
        defines=(
            *word_types(blocks.itemsize),
            ("OFFSET", offset_type(bits)),
            ("SPATIAL_RANK", str(len(axes))),
            *((name, str(value)) for name, value in defines),
        ),
        grid=(x, grid_rows, 1),
        block=(THREADS_PER_BLOCK, 1, 1),
        parameters=parameters,
        bytes_moved=(prod(problem.input.shape) + prod(problem.output.shape)) * ELEMENT_TYPES[problem.dtype].itemsize,
        reason=reason,
        shared_bytes=shared_bytes,
    )


def index_map(problem: Problem) -> Plan:
    """Plan one thread per pixel: any call, fast while the last axis is not split or into few phases."""
    blocks = _blocks(problem)
    last = blocks.axes[-1]
    reason = (
        f"the last axis is not split, so {blocks.itemsize} bytes move as one word"
        if last.is_unit
        else f"the last axis is split into {last.block} phases, whose loads share cache lines"
    )
    return _plan(problem, blocks, "index_map", last.size, (), reason)


def interleave(problem: Problem) -> Plan:
    """Plan one thread per word of whole blocks, put together in registers."""
    blocks = _blocks(problem)
    last = blocks.axes[-1]
    if last.is_unit:
        raise Unsupported("batch_to_space: interleave needs a last axis that is split")
    if last.pixel_step != 1:
        raise Unsupported(
            f"batch_to_space: interleave needs a contiguous last axis of the output, not a step of {last.pixel_step}"
        )
    if last.block & (last.block - 1) or last.block * blocks.itemsize > WIDEST_WORD:
        raise Unsupported(
            f"batch_to_space: interleave needs blocks of 2, 4, 8 or {WIDEST_WORD} bytes along the last axis, "
            f"not {last.block} elements of {blocks.itemsize} bytes"
        )
    pixels = [last.size, *(axis.pixel_step for axis in blocks.axes[:-1])]
    pixels += [blocks.space_plane_step] if blocks.planes > 1 else []
    word_pixels = word_elements(blocks.itemsize, problem.output.alignment, pixels)
    if word_pixels < last.block:
        raise Unsupported(
            f"batch_to_space: interleave needs rows of whole blocks, aligned to {last.block * blocks.itemsize} bytes"
        )
    count = word_pixels // last.block
    loads = [last.crop // last.block, last.phase_step]
    loads += [step for axis in blocks.axes[:-1] for step in (axis.grid_step, axis.phase_step)]
    loads += [blocks.batch_plane_step] if blocks.planes > 1 else []
    wide = (
        last.crop % last.block == 0
        and last.grid_step == 1
        and word_elements(blocks.itemsize, problem.input.alignment, loads) >= count
    )
    return _plan(
        problem,
        blocks,
        "interleave",
        last.size // word_pixels,
        (("BLOCK_WIDTH", last.block), ("BLOCKS_PER_WORD", count), ("WIDE_LOADS", int(wide))),
        f"rows are whole words of {word_pixels * blocks.itemsize} bytes, each {count} blocks of {last.block}",
    )


def staged(problem: Problem) -> Plan:
    """Plan one warp per 32 blocks through shared memory."""
    blocks = _blocks(problem)
    last = blocks.axes[-1]
    if last.is_unit:
        raise Unsupported("batch_to_space: staged stores need a last axis that is split")
    chunk = chunk_size(last.block, min(STAGED_TAPS, STAGED_ROW_BYTES // blocks.itemsize))
    grid_rows = -(-last.block // chunk)
    if grid_rows > MAX_GRID_ROWS:
        raise Unsupported(f"batch_to_space: staged serves no blocks of {last.block} pixels along the last axis")
    return _plan(
        problem,
        blocks,
        "staged",
        -(-last.size // last.block),
        (("BLOCK_WIDTH", last.block), ("CHUNK_PHASES", chunk)),
        f"the last axis is split into {last.block} phases, too many runs for one load",
        grid_rows=grid_rows,
        shared_bytes=tile_bytes(chunk, blocks.itemsize),
    )


def prefer_for_batch_to_space(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    yield "interleave", ""
    yield "staged" if _blocks(problem).axes[-1].block >= INDEX_MAP_BLOCK else "index_map", ""


BATCH_TO_SPACE: dict[str, Variant] = {"index_map": index_map, "interleave": interleave, "staged": staged}

SPACE_TO_BATCH: dict[str, Variant] = {"direct": space_to_batch_direct, "staged": space_to_batch_staged}
