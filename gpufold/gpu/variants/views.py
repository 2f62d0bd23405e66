"""An array and its blocks as kernels see them, by their strides; `View.simplified` is for calls that only copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, inf, prod

from gpufold.geometry import Axis, Size
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import Device

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

MIN_WAVES = 4
"""Guess: how many times a launch fills the device before its threads take more work each."""

MOVING_THREADS = 256
"""Threads of a thread block in kernels that copy elements; compiled in."""


@dataclass(frozen=True, slots=True)
class ViewAxis:
    """A spatial axis, with strides in elements: tap k of block b is pixel b*stride + k*dilation - pad."""

    size: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    blocks: int
    pixel_stride: int
    tap_stride: int
    block_stride: int

    @classmethod
    def of(cls, axis: Axis, *strides: int) -> ViewAxis:
        """Describe an axis whose pixels, taps and blocks have these strides."""
        dilation = axis.bounded.dilation
        return cls(axis.size, axis.kernel, axis.stride, dilation, axis.pad_begin, axis.blocks, *strides)

    @property
    def dilated_kernel(self) -> int:
        """Pixels from the first to the last tap of a block, both included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def blocks_reach(self) -> int:
        """Count the pixels from the first of the first block to the last of the last one."""
        return (self.blocks - 1) * self.stride + self.dilated_kernel

    @property
    def padded_size(self) -> int:
        """Count the pixels from the first of the first block to the last of the array or of the last block."""
        return max(self.pad + self.size, self.blocks_reach)

    @property
    def is_padded(self) -> bool:
        """Whether any tap of a block lies outside the array."""
        return self.pad > 0 or self.blocks_reach > self.size

    @property
    def reach(self) -> int:
        """Bound how far from pixel 0 any tap can be, in pixels."""
        return self.pad + self.size + self.blocks * self.stride + self.kernel * self.dilation

    @property
    def is_unit(self) -> bool:
        """Whether every pixel is a block."""
        return self.kernel == 1 and self.stride == 1

    @property
    def covers_rows(self) -> bool:
        """Whether rows can be merged with the next outer axis: they have no pads and no remainder."""
        return self.pad == 0 and self.size == self.blocks * self.stride and self.dilated_kernel <= self.stride

    @property
    def tap_step(self) -> int:
        """Distance of adjacent taps that land on the same pixel."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def block_step(self) -> int:
        """Distance of the blocks of adjacent taps that land on the same pixel."""
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def taps_per_pixel(self) -> int:
        """Bound the number of taps that land on one pixel."""
        return -(-self.kernel // self.tap_step)


@dataclass(frozen=True, slots=True)
class View:
    """An array (batch, planes, *size) and blocks (batch, planes, *kernel, *blocks), with strides in elements."""

    itemsize: int
    alignment: int
    """Alignment of both arrays' first bytes."""
    writes_blocks: bool
    """Whether blocks are extracted from the array, rather than assembled into it."""
    batch: int
    planes: int
    array_batch: int
    array_plane: int
    blocks_batch: int
    blocks_plane: int
    axes: tuple[ViewAxis, ...]

    @property
    def kernel(self) -> Size:
        return tuple(axis.kernel for axis in self.axes)

    @property
    def blocks(self) -> Size:
        return tuple(axis.blocks for axis in self.axes)

    @property
    def tap_strides(self) -> Size:
        return tuple(axis.tap_stride for axis in self.axes)

    @property
    def taps(self) -> int:
        """Taps of a block."""
        return prod(self.kernel)

    @property
    def taps_are_closest(self) -> bool:
        """Whether neighbouring taps are nearer to each other in memory than neighbouring blocks."""
        taps = (abs(axis.tap_stride) for axis in self.axes if axis.kernel > 1)
        blocks = (abs(axis.block_stride) for axis in self.axes if axis.blocks > 1)
        return min(taps, default=inf) < min(blocks, default=inf)

    @property
    def taps_are_even(self) -> bool:
        """Whether the taps of a block are evenly apart in memory, all axes as one."""
        steps = zip(self.axes, contiguous_strides(self.kernel), strict=True)
        return all(axis.kernel == 1 or axis.tap_stride == step * self.tap_stride for axis, step in steps)

    @property
    def tap_stride(self) -> int:
        """Elements between adjacent taps of a block, if these are evenly apart."""
        return next((axis.tap_stride for axis in reversed(self.axes) if axis.kernel > 1), 0)

    @property
    def array_strides(self) -> list[int]:
        """Strides of the array's planes and batch, if there are several."""
        strides = (self.planes, self.array_plane), (self.batch, self.array_batch)
        return [stride for count, stride in strides if count > 1]

    @property
    def blocks_strides(self) -> list[int]:
        """Strides of the blocks' planes and batch, if there are several."""
        strides = (self.planes, self.blocks_plane), (self.batch, self.blocks_batch)
        return [stride for count, stride in strides if count > 1]

    def pixels_at_once(self, alignment: int, *multiples: int) -> int:
        """Count the pixels of the widest word that is aligned in every row and divides `multiples`."""
        *outer, last = self.axes
        steps = [last.size, *(axis.pixel_stride for axis in outer), *self.array_strides]
        return word_elements(self.itemsize, alignment, [*multiples, *steps]) if last.pixel_stride == 1 else 1

    def blocks_at_once(self, alignment: int) -> int:
        """Count the neighbouring blocks whose elements of a phase are one aligned word."""
        *outer, last = self.axes
        if last.block_stride != 1 or last.pad % last.kernel:
            return 1
        steps = [last.blocks, last.pad // last.kernel, self.tap_stride, *(axis.block_stride for axis in outer)]
        return word_elements(self.itemsize, alignment, [*steps, *self.blocks_strides])

    def simplified(self) -> View:
        """Merge contiguous axes, then make elements as wide as possible.

        Unsplit axes first make a long row for wide elements, then planes; only the rest joins a split axis.
        """
        return (
            self._with_merged_axes(into_split=False)._with_merged_planes()._with_merged_axes(into_split=True)._widened()
        )

    def _with_merged_axes(self, into_split: bool) -> View:
        merged: list[ViewAxis] = []
        for axis in reversed(self.axes):
            inner = merged[-1] if merged else None
            if (
                inner is not None
                and axis.is_unit
                and (inner.is_unit or into_split)
                and inner.covers_rows
                and axis.pixel_stride == inner.size * inner.pixel_stride
                and axis.block_stride == inner.blocks * inner.block_stride
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

    def _with_merged_planes(self) -> View:
        """Merge leading unsplit axes into the planes."""
        view = self
        while len(view.axes) > 1:
            axis = view.axes[0]
            if not (axis.is_unit and axis.covers_rows and view._planes_join(axis)):
                break
            view = replace(
                view,
                planes=view.planes * axis.size,
                array_plane=axis.pixel_stride,
                blocks_plane=axis.block_stride,
                axes=view.axes[1:],
            )
        return view.with_batch_as_planes()

    def _planes_join(self, axis: ViewAxis) -> bool:
        """Return whether each plane begins where the first axis of the previous plane ends."""
        return self.planes == 1 or (
            self.array_plane == axis.size * axis.pixel_stride and self.blocks_plane == axis.blocks * axis.block_stride
        )

    def with_batch_as_planes(self) -> View:
        """Merge the batch into the planes, if they are evenly apart."""
        apart = self.planes * self.array_plane, self.planes * self.blocks_plane
        if self.batch == 1 or (self.array_batch, self.blocks_batch) != apart:
            return self
        return replace(self, batch=1, planes=self.batch * self.planes, array_batch=0, blocks_batch=0)

    def with_rows_as_planes(self) -> View:
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
            array_plane=axis.stride * axis.pixel_stride,
            blocks_plane=axis.block_stride,
            axes=(replace(axis, size=axis.stride, blocks=1), *inner),
        )

    def _widened(self) -> View:
        """Treat neighbouring pixels of an unsplit last axis as one element."""
        *outer, last = self.axes
        if not (last.is_unit and last.pixel_stride == last.block_stride == 1):
            return self
        multiples = [last.size, last.pad, *([last.blocks] if self.writes_blocks else [])]
        for axis in outer:
            multiples += [axis.pixel_stride, axis.block_stride, *([axis.tap_stride] if axis.kernel > 1 else [])]
        multiples += [*self.array_strides, *self.blocks_strides]
        count = word_elements(self.itemsize, self.alignment, multiples)
        return replace(
            self,
            itemsize=self.itemsize * count,
            array_batch=self.array_batch // count,
            array_plane=self.array_plane // count,
            blocks_batch=self.blocks_batch // count,
            blocks_plane=self.blocks_plane // count,
            axes=(
                *(
                    replace(
                        axis,
                        pixel_stride=axis.pixel_stride // count,
                        tap_stride=axis.tap_stride // count,
                        block_stride=axis.block_stride // count,
                    )
                    for axis in outer
                ),
                replace(last, size=last.size // count, pad=last.pad // count, blocks=-(-last.blocks // count)),
            ),
        )


def word_elements(itemsize: int, alignment: int, multiples: list[int]) -> int:
    """Count the elements of the widest word that divides all offsets and the alignment of the arrays."""
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
    return MIN_WAVES * device.multiprocessors * device.threads_per_multiprocessor
