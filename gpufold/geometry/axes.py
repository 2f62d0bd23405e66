"""One spatial axis of sliding blocks, and geometries with several axes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpufold.geometry.integers import Size

MANY_PIECES = 64
"""Most pieces of an axis that are filled one by one."""


def hash_once(geometry: Any) -> int:
    """Return a geometry's hash, computed once, because the caches of every call need it."""
    known = geometry.__dict__
    if "hash" not in known:
        known["hash"] = hash(tuple([known[field.name] for field in fields(geometry)]))
    made: int = known["hash"]
    return made


class Axis(NamedTuple):
    """One spatial axis of sliding blocks: tap k of block b lands on pixel b*stride + k*dilation - pad_begin.

    A section of an image (see `section`) may have negative pads; a caller's pads may not be negative.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int

    @property
    def dilated_kernel(self) -> int:
        """Pixels from the first to the last tap of a block, both included."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def padded_size(self) -> int:
        """Pixels of the image with its padding."""
        return self.size + self.pad_begin + self.pad_end

    @property
    def blocks(self) -> int:
        """Blocks that fit along this axis; below 1 if the padded image is smaller than the dilated kernel."""
        return (self.padded_size - self.dilated_kernel) // self.stride + 1

    def pixel(self, block: int, tap: int) -> int:
        """Return the pixel that a tap of a block lands on; outside [0, size) it is in the padding."""
        return block * self.stride + tap * self.dilation - self.pad_begin

    def reach(self, tap: int) -> range:
        """Return the blocks whose tap lands inside the image: consecutive, maybe none."""
        offset = tap * self.dilation - self.pad_begin
        first = max(0, -(offset // self.stride))
        last = min(self.blocks, (self.size - 1 - offset) // self.stride + 1)
        return range(first, max(first, last))

    @property
    def lands(self) -> bool:
        """Whether any tap of any block lands inside the image."""
        axis = self.shorter
        return any(axis.reach(tap) for tap in range(axis.kernel if self.dilation else min(1, axis.kernel)))

    @property
    def apart(self) -> bool:
        """Whether no two taps, of one block or of two, have the same pixel.

        >>> Axis(size=9, kernel=2, stride=2, dilation=3, pad_begin=0, pad_end=0).apart
        True
        """
        common = gcd(self.stride, self.dilation)
        return self.kernel * common <= self.stride or self.blocks * common <= self.dilation

    @property
    def overlap(self) -> Axis:
        """The axis of the taps and blocks whose pixels are also reached by later taps of earlier blocks.

        >>> Axis(size=4, kernel=2, stride=3, dilation=3, pad_begin=1, pad_end=3).overlap
        Axis(size=4, kernel=1, stride=3, dilation=3, pad_begin=-2, pad_end=0)
        """
        common = gcd(self.stride, self.dilation)
        taps, pixels = self.stride // common, self.stride * self.dilation // common
        begin, end = self.pad_begin - pixels, self.pad_end - pixels
        return self._replace(kernel=self.kernel - taps, pad_begin=begin, pad_end=end)

    def section(self, start: int, stop: int) -> tuple[Axis, range]:
        """Return the axis as seen from pixels [start, stop), and the consecutive blocks that reach them.

        The blocks are numbered from the first of that range, so a section is a geometry by itself. If no block
        reaches it, the range is empty and the axis has no block.

        >>> axis, blocks = Axis(size=100, kernel=8, stride=4, dilation=1, pad_begin=0, pad_end=0).section(20, 30)
        >>> blocks, axis.pixel(0, 0)
        (range(4, 8), -4)
        """
        first = max(0, -((self.dilated_kernel - 1 - self.pad_begin - start) // self.stride))
        last = min(self.blocks, (stop - 1 + self.pad_begin) // self.stride + 1)
        blocks = range(first, max(first, last))
        size, pad_begin = stop - start, self.pad_begin + start - first * self.stride
        pad_end = (len(blocks) - 1) * self.stride + self.dilated_kernel - size - pad_begin
        return Axis(size, self.kernel, self.stride, self.dilation, pad_begin, pad_end), blocks

    @property
    def turned(self) -> Axis:
        """The axis with blocks and taps exchanged: tap k of block b is its tap b of block k.

        There is none for dilation 0.

        >>> axis = Axis(size=9, kernel=5, stride=3, dilation=1, pad_begin=0, pad_end=1).turned
        >>> axis.kernel, axis.blocks, axis.pixel(block=4, tap=1)
        (2, 5, 7)
        """
        pad_end = self.pixel(self.blocks - 1, self.kernel - 1) + 1 - self.size
        return Axis(self.size, self.blocks, self.dilation, self.stride, self.pad_begin, pad_end)

    @property
    def shorter(self) -> Axis:
        """The axis itself, or the turned one if that has fewer taps."""
        return self.turned if self.dilation and self.blocks < self.kernel else self

    @property
    def bounded(self) -> Axis:
        """The axis without the distances that no two blocks or taps have: of a single block or a single tap.

        >>> Axis(size=5, kernel=1, stride=2**70, dilation=2**62, pad_begin=0, pad_end=0).bounded
        Axis(size=5, kernel=1, stride=5, dilation=1, pad_begin=0, pad_end=0)
        """
        stride = min(self.stride, self.padded_size) if self.blocks == 1 else self.stride
        return self._replace(stride=stride, dilation=1 if self.kernel == 1 else self.dilation)

    @property
    def uncovered(self) -> list[Any]:
        """The pixels that no tap lands on: slices, or one array of them if the pieces are many."""
        if self.dilation and self.blocks < self.kernel:
            return self.turned.uncovered
        between: list[Any] = []
        gap = max(0, self.stride - self.kernel) if self.dilation == 1 else MANY_PIECES + 1
        if gap <= MANY_PIECES or (self.stride == 1 and self.dilation <= self.blocks):
            begin, last = self.pixel(0, 0), self.pixel(self.blocks - 1, self.kernel - 1)
            ends = [0, min(begin, self.size), max(last + 1, 0), self.size]
            if self.dilation == 1:
                begins = [begin + self.kernel + pixel for pixel in range(gap)]
                starts = [start if start >= 0 else start % self.stride for start in begins]
                between = [slice(start, min(last, self.size), self.stride) for start in starts]
        else:
            bare = np.ones(self.size, bool)
            for tap in range(self.kernel if self.dilation else 1):
                if blocks := self.reach(tap):
                    bare[self.pixel(blocks[0], tap) : self.pixel(blocks[-1], tap) + 1 : self.stride] = False
            begins_and_ends = np.flatnonzero(np.diff(bare, prepend=False, append=False))
            if len(begins_and_ends) > 2 * MANY_PIECES:
                return [np.flatnonzero(bare)]
            ends = begins_and_ends.tolist()
        spans = [*(slice(*span) for span in zip(ends[::2], ends[1::2], strict=True)), *between]
        return [span for span in spans if span.start < span.stop]


Axes: TypeAlias = tuple[Axis, ...]


@dataclass(frozen=True)
class OnAxes:
    """Geometry of blocks that slide along the last axes of an array (*lead, *size)."""

    lead: Size
    axes: Axes

    __hash__ = hash_once

    @cached_property
    def size(self) -> Size:
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def array_shape(self) -> Size:
        return (*self.lead, *self.size)

    @cached_property
    def block_shape(self) -> Size:
        """The kernel: taps of a block along each axis."""
        return tuple(axis.kernel for axis in self.axes)

    @cached_property
    def num_blocks(self) -> Size:
        return tuple(axis.blocks for axis in self.axes)

    @cached_property
    def bounded_axes(self) -> Axes:
        return tuple(axis.bounded for axis in self.axes)

    @cached_property
    def covers_all(self) -> bool:
        """Whether blocks cover every element."""
        return not any(axis.uncovered for axis in self.axes)
