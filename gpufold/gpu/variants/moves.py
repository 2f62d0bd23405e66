"""Copies between an array and blocks in the fewest words: the basis of plans of im2col, space_to_batch, batch_to_space.

A call becomes `Moves`: an array (batch, planes, *size) and blocks (batch, planes, *kernel, *blocks), each with strides
in elements. `simplified` merges contiguous axes and treats neighbouring elements as one word.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from gpufold.geometry import SpaceGeometry
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import Device, Problem

WIDEST_WORD = 16
"""Bytes of the widest load and store."""

LINE_BYTES, SECTOR_BYTES = 128, 32
"""Bytes of a cache line, and of a sector."""

WARP = 32
"""Threads of a warp."""

PACKED_REGISTERS = 128
"""Guess: most registers for the loaded words of a thread that packs elements."""

LONG_RUN_BYTES = 512
"""Guess: least bytes of a run whose stores waste few sectors at its ends."""

PLANES_PER_THREAD = 8
"""Most planes that share a thread's index arithmetic."""

WAVES = 4
"""Guess: how many times a launch fills the device before its threads take more work each."""


@dataclass(frozen=True, slots=True)
class MovedAxis:
    """A spatial axis: tap k of block b is pixel b*stride + k*dilation - pad."""

    size: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    blocks: int
    pixel_step: int
    tap_step: int
    block_step: int

    @property
    def reach(self) -> int:
        """Bound how far from pixel 0 any tap can be, in pixels."""
        return self.pad + self.size + self.blocks * self.stride + self.kernel * self.dilation

    @property
    def blocks_reach(self) -> int:
        """Count the pixels from the first of the first block to the last of the last one."""
        return (self.blocks - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    @property
    def is_unit(self) -> bool:
        """Whether every pixel is a block."""
        return self.kernel == 1 and self.stride == 1

    @property
    def covers_rows(self) -> bool:
        """Whether rows can be merged with the next outer axis: they have no pads and no remainder."""
        return (
            self.pad == 0 and self.size == self.blocks * self.stride and (self.kernel - 1) * self.dilation < self.stride
        )


@dataclass(frozen=True, slots=True)
class Moves:
    """A call as copies, with strides in elements."""

    itemsize: int
    alignment: int
    """Alignment of both arrays' first bytes."""
    writes_blocks: bool
    """Whether blocks are extracted from the array, rather than assembled into it."""
    batch: int
    planes: int
    array_batch_step: int
    array_plane_step: int
    blocks_batch_step: int
    blocks_plane_step: int
    axes: tuple[MovedAxis, ...]

    @property
    def taps(self) -> int:
        """Taps of a block."""
        return prod(axis.kernel for axis in self.axes)

    @property
    def tap_step(self) -> int:
        """Elements between adjacent taps of a block, if the axes of taps are evenly apart."""
        return next((axis.tap_step for axis in reversed(self.axes) if axis.kernel > 1), 0)

    @property
    def array_steps(self) -> list[int]:
        """Strides of the array's planes and batch, if there are several."""
        steps = (self.planes, self.array_plane_step), (self.batch, self.array_batch_step)
        return [step for count, step in steps if count > 1]

    @property
    def blocks_steps(self) -> list[int]:
        """Strides of the blocks' planes and batch, if there are several."""
        steps = (self.planes, self.blocks_plane_step), (self.batch, self.blocks_batch_step)
        return [step for count, step in steps if count > 1]

    def pixels_at_once(self, alignment: int, *multiples: int) -> int:
        """Count the pixels of the widest word that is aligned in every row and divides `multiples`."""
        *outer, last = self.axes
        steps = [last.size, *(axis.pixel_step for axis in outer), *self.array_steps]
        return word_elements(self.itemsize, alignment, [*multiples, *steps]) if last.pixel_step == 1 else 1

    def blocks_at_once(self, alignment: int) -> int:
        """Count the neighbouring blocks whose elements of a phase are one aligned word."""
        *outer, last = self.axes
        if last.block_step != 1 or last.pad % last.kernel:
            return 1
        steps = [last.blocks, last.pad // last.kernel, self.tap_step, *(axis.block_step for axis in outer)]
        return word_elements(self.itemsize, alignment, [*steps, *self.blocks_steps])

    def simplified(self) -> Moves:
        """Merge contiguous axes, then make elements as wide as possible.

        Unsplit axes first make a long row for wide elements, then planes; only the rest joins a split axis.
        """
        return (
            self._with_merged_axes(into_split=False)._with_merged_planes()._with_merged_axes(into_split=True)._widened()
        )

    def _with_merged_axes(self, into_split: bool) -> Moves:
        merged: list[MovedAxis] = []
        for axis in reversed(self.axes):
            inner = merged[-1] if merged else None
            if (
                inner is not None
                and axis.is_unit
                and (inner.is_unit or into_split)
                and inner.covers_rows
                and axis.pixel_step == inner.size * inner.pixel_step
                and axis.block_step == inner.blocks * inner.block_step
            ):
                merged[-1] = replace(
                    inner,
                    size=axis.size * inner.size,
                    blocks=axis.blocks * inner.blocks,
                    pad=axis.pad * inner.size,
                )
            else:
                merged.append(axis)
        return replace(self, axes=tuple(reversed(merged)))

    def _with_merged_planes(self) -> Moves:
        """Merge leading unsplit axes into the planes."""
        moves = self
        while len(moves.axes) > 1:
            axis = moves.axes[0]
            if not (axis.is_unit and axis.covers_rows and moves._planes_join(axis)):
                break
            moves = replace(
                moves,
                planes=moves.planes * axis.size,
                array_plane_step=axis.pixel_step,
                blocks_plane_step=axis.block_step,
                axes=moves.axes[1:],
            )
        return moves.with_batch_as_planes()

    def _planes_join(self, axis: MovedAxis) -> bool:
        """Return whether each plane begins where the first axis of the previous plane ends."""
        return self.planes == 1 or (
            self.array_plane_step == axis.size * axis.pixel_step
            and self.blocks_plane_step == axis.blocks * axis.block_step
        )

    def with_batch_as_planes(self) -> Moves:
        """Merge the batch into the planes, if they are evenly apart."""
        if self.batch == 1 or (
            self.array_batch_step == self.planes * self.array_plane_step
            and self.blocks_batch_step == self.planes * self.blocks_plane_step
        ):
            return replace(self, batch=1, planes=self.batch * self.planes)
        return self

    def with_rows_as_planes(self) -> Moves:
        """Merge the blocks of the first axis into the planes, if planes are too few to share index arithmetic.

        The axis keeps one block with its taps. Threads then store block by block, so the runs of a block must be long.
        """
        axis, *inner = self.axes
        run = prod(axis.blocks for axis in inner) if self.writes_blocks else axis.kernel * prod(a.size for a in inner)
        few = self.planes < PLANES_PER_THREAD and self._planes_join(axis)
        if not (few and inner and run * self.itemsize >= LONG_RUN_BYTES and axis.covers_rows):
            return self
        return replace(
            self,
            planes=self.planes * axis.blocks,
            array_plane_step=axis.stride * axis.pixel_step,
            blocks_plane_step=axis.block_step,
            axes=(replace(axis, size=axis.stride, blocks=1), *inner),
        )

    def _widened(self) -> Moves:
        """Treat neighbouring pixels of an unsplit last axis as one element."""
        *outer, last = self.axes
        if not (last.is_unit and last.pixel_step == last.block_step == 1):
            return self
        multiples = [last.size, last.pad, *([last.blocks] if self.writes_blocks else [])]
        for axis in outer:
            multiples += [axis.pixel_step, axis.block_step, *([axis.tap_step] if axis.kernel > 1 else [])]
        multiples += [*self.array_steps, *self.blocks_steps]
        count = word_elements(self.itemsize, self.alignment, multiples)
        return replace(
            self,
            itemsize=self.itemsize * count,
            array_batch_step=self.array_batch_step // count,
            array_plane_step=self.array_plane_step // count,
            blocks_batch_step=self.blocks_batch_step // count,
            blocks_plane_step=self.blocks_plane_step // count,
            axes=(
                *(
                    replace(
                        axis,
                        pixel_step=axis.pixel_step // count,
                        tap_step=axis.tap_step // count,
                        block_step=axis.block_step // count,
                    )
                    for axis in outer
                ),
                replace(last, size=last.size // count, pad=last.pad // count, blocks=-(-last.blocks // count)),
            ),
        )


def word_elements(itemsize: int, alignment: int, multiples: list[int]) -> int:
    """Count the elements of the widest word that divides all offsets and the alignment of the arrays.

    >>> word_elements(itemsize=2, alignment=256, multiples=[12, 36])
    4
    """
    return gcd(max(1, gcd(alignment, WIDEST_WORD) // itemsize), *multiples)


def word_types(itemsize: int) -> dict[str, str]:
    """Return the types of a kernel that copies elements of a size."""
    scalar = f"Word<{itemsize}>"
    return {"SCALAR": scalar, "ACCUMULATOR": scalar}


def chunk_size(length: int, most: int) -> int:
    """Cut a length into as few chunks as possible and return their size, as even as possible.

    >>> chunk_size(11, 8), chunk_size(400, 32)
    (6, 31)
    """
    chunks = -(-length // most)
    return -(-length // chunks)


def device_threads(device: Device) -> int:
    """Count the threads that keep a device busy."""
    return WAVES * device.multiprocessors * device.threads_per_multiprocessor


MOVING_THREADS = 256
"""Threads of a thread block in kernels that copy elements; compiled in."""


def space_moves(problem: Problem) -> Moves:
    """Describe a call, simplified: the batch as blocks whose stride is their size, space as the array they tile."""
    geometry, writes_blocks = problem.geometry, problem.call.operation == "space_to_batch"
    assert isinstance(geometry, SpaceGeometry)
    batch, space = (problem.output, problem.input) if writes_blocks else (problem.input, problem.output)
    tap_steps = (geometry.batch * batch.strides[0] * step for step in contiguous_strides(geometry.block_shape))
    axes = zip(geometry.axes, space.strides[1:], tap_steps, batch.strides[1:], strict=True)
    moves = Moves(
        itemsize=problem.element.itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        writes_blocks=writes_blocks,
        batch=1,
        planes=geometry.batch,
        array_batch_step=0,
        array_plane_step=space.strides[0],
        blocks_batch_step=0,
        blocks_plane_step=batch.strides[0],
        axes=tuple(
            MovedAxis(axis.size, axis.kernel, axis.stride, 1, axis.pad_begin, axis.blocks, *steps)
            for axis, *steps in axes
        ),
    )
    return moves.simplified().with_rows_as_planes()
