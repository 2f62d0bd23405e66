"""The kernels that take sliding blocks out of an image, for im2col and for space_to_batch alike.

A call becomes an `Unfold`, words for both: an image (batch, planes, *size) and columns
(batch, planes, *kernel, *positions), every array by its steps in elements. `simplified` merges axes that are walked as
one and widens the elements; `direct` and `staged` plan the two kernels of kernels/unfold.cuh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from gpufold.plan import (
    INT32_MAX,
    MAX_GRID_ROWS,
    Device,
    Plan,
    Unsupported,
    divisor,
    grid_blocks,
    offset_bits,
    offset_type,
    pack,
    parameter_type,
)

THREADS_PER_BLOCK = 256

WAVES = 4
"""Full loads of the device that a launch keeps before its threads take more work each: a prediction."""

PLANES_PER_THREAD = 8
OVERLAPPING_PLANES_PER_THREAD = 4
"""Planes that share a thread's index arithmetic at most; where blocks overlap, more planes keep more columns in flight
and drive the image out of the L2 cache before the next block reads it again: predictions."""

WIDEST_WORD = 16
"""Bytes of the widest load and store."""

DIRECT_TAPS = 8
"""Taps that a thread of the direct kernels holds at once, by a prediction of its registers."""

LONG_ROW_BYTES = 512
"""Stores in runs from this length on waste few of their sectors at the ends: a prediction."""

STAGED_ROW_BYTES = 128
STAGED_TAPS = 16
"""Bounds of a staged tile's row: a cache line, and as many loads as a thread has registers for, by a prediction."""

STAGED_LANE_BYTES = 32
"""Bytes between neighbouring blocks from which loads are staged, a sector: a prediction."""


@dataclass(frozen=True, slots=True)
class UnfoldAxis:
    """A spatial axis: tap k of position l is pixel l*stride + k*dilation - pad."""

    size: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    positions: int
    pixel_step: int
    position_step: int

    @property
    def reach(self) -> int:
        """Bound how far from pixel 0 any tap can be, in pixels."""
        return self.pad + self.size + self.positions * self.stride + self.kernel * self.dilation

    @property
    def covers_rows(self) -> bool:
        """Whether neither pads nor a remainder keep rows from being walked as one with the axis outside."""
        return (
            self.pad == 0
            and self.size == self.positions * self.stride
            and (self.kernel - 1) * self.dilation < self.stride
        )

    @property
    def is_unit(self) -> bool:
        """Whether every pixel is a position of its own."""
        return self.kernel == 1 and self.stride == 1


@dataclass(frozen=True, slots=True)
class Unfold:
    """A call in the words of kernels/unfold.cuh; steps are in elements."""

    operation: str
    itemsize: int
    alignment: int
    """Of both arrays' first bytes."""
    batch: int
    planes: int
    image_batch_step: int
    image_plane_step: int
    columns_batch_step: int
    columns_plane_step: int
    tap_step: int
    axes: tuple[UnfoldAxis, ...]
    bytes_moved: int
    element_types: tuple[tuple[str, str], ...] = ()
    """The types to compile and the kind of window, where one is multiplied in; axes and elements then stay apart."""
    takes_window: bool = False
    """Whether the kernel has a window's pointer among its arguments."""

    @property
    def taps(self) -> int:
        """Taps of a block."""
        return prod(axis.kernel for axis in self.axes)

    @property
    def lane_bytes(self) -> float:
        """Bytes of the image between the pixels that neighbouring threads of a warp read, on average."""
        span, lanes = 0, 32
        for axis in reversed(self.axes):
            span += (min(lanes, axis.positions) - 1) * axis.stride * abs(axis.pixel_step)
            lanes = -(-lanes // axis.positions)
        return span * self.itemsize / 31

    @property
    def planes_together(self) -> int:
        overlapping = any(axis.kernel * axis.dilation > axis.stride for axis in self.axes)
        return OVERLAPPING_PLANES_PER_THREAD if overlapping else PLANES_PER_THREAD

    def sharing_step(self, chunk_taps: int) -> int:
        """Count the chunks of taps from one that reads a pixel to the next that reads it for a neighbouring block."""
        *outer, last = self.axes
        chunks_per_row = -(-last.kernel // chunk_taps)
        if outer and outer[-1].kernel > 1:
            return outer[-1].stride // gcd(outer[-1].stride, outer[-1].dilation) * chunks_per_row
        return max(1, last.stride // max(1, chunk_taps * last.dilation))

    def warp_span(self, planes_per_thread: int) -> int:
        """Bound how far apart the planes of a warp's threads are in the image."""
        planes = self.planes if self.batch > 1 else min(self.planes, 32 * planes_per_thread)
        return (min(self.batch, 32) - 1) * abs(self.image_batch_step) + planes * abs(self.image_plane_step)

    def simplified(self) -> Unfold:
        """Merge axes that are walked as one, then make elements as wide as they can be.

        Unsplit axes make a long row for wide elements first, planes next, and only what is left joins a split axis.
        """
        if self.element_types:
            return self._with_batch_as_planes()
        return (
            self._with_merged_axes(into_split=False)._with_merged_planes()._with_merged_axes(into_split=True)._widened()
        )

    def _with_merged_axes(self, into_split: bool) -> Unfold:
        merged: list[UnfoldAxis] = []
        for axis in reversed(self.axes):
            inner = merged[-1] if merged else None
            if (
                inner is not None
                and axis.is_unit
                and (inner.is_unit or into_split)
                and inner.covers_rows
                and axis.pixel_step == inner.size * inner.pixel_step
                and axis.position_step == inner.positions * inner.position_step
            ):
                merged[-1] = replace(
                    inner,
                    size=axis.size * inner.size,
                    positions=axis.positions * inner.positions,
                    pad=axis.pad * inner.size,
                )
            else:
                merged.append(axis)
        return replace(self, axes=tuple(reversed(merged)))

    def _with_merged_planes(self) -> Unfold:
        """Count leading axes that are not taken apart as planes."""
        unfold = self
        while len(unfold.axes) > 1:
            axis = unfold.axes[0]
            if not (
                axis.is_unit
                and axis.covers_rows
                and unfold.image_plane_step == axis.size * axis.pixel_step
                and unfold.columns_plane_step == axis.positions * axis.position_step
            ):
                break
            unfold = replace(
                unfold,
                planes=unfold.planes * axis.size,
                image_plane_step=axis.pixel_step,
                columns_plane_step=axis.position_step,
                axes=unfold.axes[1:],
            )
        return unfold._with_batch_as_planes()

    def _with_batch_as_planes(self) -> Unfold:
        """Count the batch among the planes, where they follow each other evenly."""
        if self.batch == 1 or (
            self.image_batch_step == self.planes * self.image_plane_step
            and self.columns_batch_step == self.planes * self.columns_plane_step
        ):
            return replace(self, batch=1, planes=self.batch * self.planes)
        return self

    def with_rows_as_planes(self) -> Unfold:
        """Where planes are too few to share index arithmetic, count the positions of the first axis among them.

        What remains of the axis is one position with its taps. Threads then store row by row, so rows must be long.
        """
        axis, *inner = self.axes
        row_bytes = prod(axis.positions for axis in inner) * self.itemsize
        collapses = self.planes == 1 or (
            self.image_plane_step == axis.size * axis.pixel_step
            and self.columns_plane_step == axis.positions * axis.position_step
        )
        few = self.planes < PLANES_PER_THREAD
        if not (few and inner and row_bytes >= LONG_ROW_BYTES and axis.covers_rows and collapses):
            return self
        return replace(
            self,
            planes=self.planes * axis.positions,
            image_plane_step=axis.stride * axis.pixel_step,
            columns_plane_step=axis.position_step,
            axes=(replace(axis, size=axis.stride, positions=1), *inner),
        )

    def _widened(self) -> Unfold:
        """Take neighbouring pixels of an unsplit last axis as one element."""
        *outer, last = self.axes
        if not (last.is_unit and last.pixel_step == last.position_step == 1):
            return self
        multiples = [last.size, last.pad, last.positions]
        multiples += [step for axis in outer for step in (axis.pixel_step, axis.position_step)]
        multiples += [self.tap_step] if self.taps > 1 else []
        multiples += [self.image_plane_step, self.columns_plane_step] if self.planes > 1 else []
        multiples += [self.image_batch_step, self.columns_batch_step] if self.batch > 1 else []
        count = word_elements(self.itemsize, self.alignment, multiples)
        return replace(
            self,
            itemsize=self.itemsize * count,
            image_batch_step=self.image_batch_step // count,
            image_plane_step=self.image_plane_step // count,
            columns_batch_step=self.columns_batch_step // count,
            columns_plane_step=self.columns_plane_step // count,
            tap_step=self.tap_step // count,
            axes=(
                *(
                    replace(axis, pixel_step=axis.pixel_step // count, position_step=axis.position_step // count)
                    for axis in outer
                ),
                replace(last, size=last.size // count, pad=last.pad // count, positions=last.positions // count),
            ),
        )


def word_elements(itemsize: int, alignment: int, multiples: list[int]) -> int:
    """Count the elements of the widest word that divides all offsets and the alignment of the arrays.

    >>> word_elements(itemsize=2, alignment=256, multiples=[12, 36])
    4
    """
    count = 1
    while (
        2 * count * itemsize <= WIDEST_WORD
        and alignment % (2 * count * itemsize) == 0
        and all(number % (2 * count) == 0 for number in multiples)
    ):
        count *= 2
    return count


def chunk_size(length: int, most: int) -> int:
    """Cut a length into as few chunks as possible and give their size, as even as possible.

    >>> chunk_size(11, 8), chunk_size(400, 32)
    (6, 31)
    """
    chunks = -(-length // most)
    return -(-length // chunks)


def tile_bytes(width: int, itemsize: int) -> int:
    """Count the shared memory of a thread block's tiles of kernels/tile.cuh, one for each warp."""
    return THREADS_PER_BLOCK * (width | 1) * itemsize


def word_types(itemsize: int) -> tuple[tuple[str, str], ...]:
    """Name the types of a kernel that moves elements of a size."""
    scalar = f"Word<{itemsize}>"
    return ("SCALAR", scalar), ("ACCUMULATOR", scalar)


def device_threads(device: Device) -> int:
    """Count the threads that keep a device busy."""
    return WAVES * device.multiprocessors * device.threads_per_multiprocessor


def planes_per_thread(places: int, planes: int, most: int, device: Device) -> int:
    """Let threads share the index arithmetic of several planes where enough threads remain."""
    count = most
    while count > 1 and (planes < count or places * (planes // count) < device_threads(device)):
        count //= 2
    return count


def _plan(unfold: Unfold, variant: str, device: Device, chunk_taps: int, reason: str) -> Plan:
    axes = unfold.axes
    kernel_width = axes[-1].kernel
    if kernel_width > INT32_MAX:
        raise Unsupported(
            f"{unfold.operation}: {variant} knows the taps of a row as it is compiled, in 32 bits, but the last axis "
            f"has {kernel_width}"
        )
    chunks = unfold.taps // kernel_width * -(-kernel_width // chunk_taps)
    places = unfold.batch * prod(axis.positions for axis in axes)
    together = planes_per_thread(places * chunks, unfold.planes, unfold.planes_together, device)
    groups = -(-unfold.planes // together)
    threads = places * groups
    step = min(chunks, unfold.sharing_step(chunk_taps)) if variant == "staged" else 1
    sharing = -(-chunks // step)
    turns = step * sharing
    grid_rows = min(turns, MAX_GRID_ROWS, max(1, device_threads(device) // threads))
    turns_per_thread = -(-turns // grid_rows)
    if sharing <= 2 * turns_per_thread:  # chunks that share pixels stay together
        turns_per_thread = -(-turns_per_thread // sharing) * sharing
    bits = offset_bits(
        unfold.operation,
        threads + THREADS_PER_BLOCK,
        unfold.planes,
        unfold.taps + chunks,
        turns + turns_per_thread,
        4 * max(axis.reach for axis in axes),
        sum(axis.reach * abs(axis.pixel_step) for axis in axes)
        + (unfold.warp_span(together) if variant == "staged" else 0),
        unfold.taps * abs(unfold.tap_step) + sum(axis.positions * abs(axis.position_step) for axis in axes),
    )
    layout = parameter_type(
        bits,
        size=("offset", len(axes)),
        stride=("offset", len(axes)),
        dilation=("offset", len(axes)),
        pad=("offset", len(axes)),
        pixel_step=("offset", len(axes)),
        position_step=("offset", len(axes)),
        tap_step="offset",
        positions=("divisor", len(axes)),
        kernel=("divisor", len(axes)),
        plane_groups="divisor",
        planes="offset",
        planes_per_thread="offset",
        chunks="offset",
        turns="offset",
        turns_per_thread="offset",
        sharing_chunks="divisor",
        sharing_step="offset",
        threads="offset",
        image_batch_step="long",
        image_plane_step="long",
        columns_batch_step="long",
        columns_plane_step="long",
    )
    parameters = pack(
        layout,
        size=[axis.size for axis in axes],
        stride=[axis.stride for axis in axes],
        dilation=[axis.dilation for axis in axes],
        pad=[axis.pad for axis in axes],
        pixel_step=[axis.pixel_step for axis in axes],
        position_step=[axis.position_step for axis in axes],
        tap_step=unfold.tap_step,
        positions=[divisor(axis.positions, bits) for axis in axes],
        kernel=[divisor(axis.kernel, bits) for axis in axes],
        plane_groups=divisor(groups, bits),
        planes=unfold.planes,
        planes_per_thread=together,
        chunks=chunks,
        turns=turns,
        turns_per_thread=turns_per_thread,
        sharing_chunks=divisor(sharing, bits),
        sharing_step=step,
        threads=threads,
        image_batch_step=unfold.image_batch_step,
        image_plane_step=unfold.image_plane_step,
        columns_batch_step=unfold.columns_batch_step,
        columns_plane_step=unfold.columns_plane_step,
    )
    blocks, _, _ = grid_blocks(unfold.operation, threads, THREADS_PER_BLOCK)
    symbol = f"{unfold.operation}_{variant}"
    return Plan(
        operation=unfold.operation,
        variant=variant,
        source=f"{symbol}.cu",
        symbol=symbol,
        defines=(
            *(unfold.element_types or word_types(unfold.itemsize)),
            ("OFFSET", offset_type(bits)),
            ("SPATIAL_RANK", str(len(axes))),
            ("KERNEL_WIDTH", str(kernel_width)),
            ("CHUNK_TAPS", str(chunk_taps)),
        ),
        grid=(blocks, -(-turns // turns_per_thread), 1),
        block=(THREADS_PER_BLOCK, 1, 1),
        parameters=parameters,
        bytes_moved=unfold.bytes_moved,
        reason=reason,
        takes_window=unfold.takes_window,
        shared_bytes=tile_bytes(chunk_taps, unfold.itemsize) if variant == "staged" else 0,
    )


def direct(unfold: Unfold, device: Device) -> Plan:
    """Plan the kernel in which a thread stores what it loads."""
    unfold = unfold.simplified().with_rows_as_planes()
    taps = DIRECT_TAPS if unfold.itemsize <= 8 else DIRECT_TAPS // 2
    reason = (
        f"neighbouring threads read pixels {unfold.lane_bytes:.0f} bytes apart, near enough for the L1 cache"
        if unfold.lane_bytes < STAGED_LANE_BYTES
        else "it serves every call"
    )
    return _plan(unfold, "direct", device, chunk_size(unfold.axes[-1].kernel, taps), reason)


def staged(unfold: Unfold, device: Device) -> Plan:
    """Plan the kernel that loads along the taps and stores along the positions."""
    unfold = unfold.simplified()
    last = unfold.axes[-1]
    if last.kernel == 1:
        raise Unsupported(f"{unfold.operation}: staged loads need more than one tap along the last axis to run along")
    taps = min(STAGED_TAPS, STAGED_ROW_BYTES // unfold.itemsize)
    return _plan(
        unfold,
        "staged",
        device,
        chunk_size(last.kernel, taps),
        f"neighbouring blocks are {unfold.lane_bytes:.0f} bytes apart, too far to load along them",
    )


def prefer(unfold: Unfold) -> Iterator[tuple[str, str]]:
    """Yield staged loads where that shortens the distance between the pixels that neighbouring threads load."""
    simple = unfold.simplified()
    last = simple.axes[-1]
    tap_bytes = last.dilation * abs(last.pixel_step) * simple.itemsize
    if last.kernel > 1 and simple.lane_bytes >= STAGED_LANE_BYTES and tap_bytes < STAGED_LANE_BYTES:
        yield "staged", ""
    yield "direct", ""
