"""Plans kernels/col2im_gather_blocks.cu, whose warps bring whole blocks to tiles of the image."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from gpufold.calls import Unsupported
from gpufold.geometry import Axis, Size
from gpufold.gpu.parameters import are_contiguous, divisor, int32, offset, offset_bits
from gpufold.gpu.plan import LaunchShape, Plan, Problem
from gpufold.gpu.variants.columns import block_step, view_of, weight_bytes
from gpufold.gpu.variants.moves import LINE_BYTES, WARP, WIDEST_WORD
from gpufold.gpu.variants.sums import OPERATION, largest_offset, plans_of, sum_plan

BLOCKS_COLUMNS = 512, 128
"""Pixels of a tile along a row, at most: longer rows read fewer blocks twice, shorter ones leave room for more of
them, and to lanes that stage less to do."""
BLOCKS_WARPS = 22
"""Of a multiprocessor, among which its shared memory is divided: a tile's sums have the share of a warp."""
BLOCKS_STAGED_BYTES = 4 * 1024
"""What the taps of a batch may take of it besides."""
BLOCKS_MAX_SPAN = 1 << 14
"""Blocks along an axis from the first to the last that reach a pixel: a thread block walks over all of them."""
BLOCKS_LANE_TAPS = 8
"""Taps of a lane, at most, whose sums it has in registers: a word, or several where taps are staged."""
BLOCKS_ROWS = 4
"""Rows of taps of a group where they are not staged, or as many as fill a cache line: with more of them more lanes are
idle at the ends of a tile, with fewer strips are shorter, which share blocks."""
BLOCKS_BATCH_TAPS, BLOCKS_BATCH_BYTES, BLOCKS_STAGED_BATCH = 72, 240, 8
"""Taps that a lane has in flight, their bytes, and the blocks they are of where they are staged."""


@dataclass(frozen=True, slots=True)
class BlocksLanes:
    """How the lanes of a warp of kernels/col2im_gather_blocks.cu share out a block's taps."""

    vector: int
    """Taps of a word."""
    taps: int
    """Taps of a lane."""
    in_row: int
    """Lanes of a row of taps."""
    rows: int
    """Of taps, of a group of lanes."""
    batch: int
    """Blocks at a time."""
    staged: int
    """Taps in shared memory, or 1 where lanes load those that they add up."""

    @property
    def groups(self) -> int:
        return WARP // (self.rows * self.in_row)

    def batches(self, row: Axis, strip: int) -> int:
        """Count the batches of a chain of the blocks that reach a strip."""
        return -(-self._in_chain(row, strip) // self.batch)

    def spare(self, row: Axis, strip: int) -> int:
        """Count the places between the sums of rows, for the pixels before and after a strip that batches reach."""
        reach, step = self._reach(row), block_step(row)
        walked = min(step, self._reaching(row, strip)) + (self.batches(row, strip) * self.batch - 1) * step
        before = max(0, walked * row.stride - strip)
        return max(reach, before) if self.batches(row, strip) > 1 else reach + before  # one batch uses both at once

    def _reach(self, row: Axis) -> int:
        return (self.in_row * self.taps - 1) * row.dilation

    def _reaching(self, row: Axis, strip: int) -> int:
        return (strip - 1 + self._reach(row)) // row.stride + 1

    def _in_chain(self, row: Axis, strip: int) -> int:
        return (self._reaching(row, strip) - 1) // block_step(row) + 1

    def strip_places(self, row: Axis, strip: int, tile_rows: int) -> int:
        """Count the places from the sums of one strip to those of the next."""
        places = tile_rows * (strip + self.spare(row, strip) | 1)
        return places + (self.rows * self.in_row - places) % WARP  # the groups' lanes meet in no bank

    def places(self, row: Axis, strip: int, tile_rows: int) -> int:
        """Count a tile's places for sums."""
        return self.spare(row, strip) + self.groups * self.strip_places(row, strip, tile_rows)


def _blocks_lanes(problem: Problem) -> BlocksLanes:
    view, itemsize = view_of(problem), problem.call.source_element.itemsize
    row, tap_rows = view.axes[-1], prod(view.kernel[:-1])
    vector, row_bytes = _vector(problem), row.kernel * itemsize
    taps = vector
    while taps < BLOCKS_LANE_TAPS and -(-row.kernel // taps) > WARP:
        taps *= 2
    rows = min(tap_rows, max(BLOCKS_ROWS, LINE_BYTES // row_bytes), max(1, WARP // -(-row.kernel // taps)))
    staged = vector * itemsize < WIDEST_WORD or rows * row_bytes < LINE_BYTES
    if staged:
        taps = _multiple(-(-row.kernel // -(-row.kernel // BLOCKS_LANE_TAPS)), vector)
    in_row = -(-row.kernel // taps)
    if in_row > WARP:
        raise Unsupported(
            f"{OPERATION}: gather_blocks shares out a row of taps to the lanes of a warp, {WARP * taps} at most, "
            f"but kernel_size is {row.kernel} on the last axis"
        )
    places, batch = 1, min(BLOCKS_BATCH_TAPS // taps, BLOCKS_BATCH_BYTES // (taps * itemsize))
    if staged:
        rows = -(-tap_rows // -(-tap_rows // (WARP // in_row)))
        places = WARP // (rows * in_row) * rows * row.kernel
        batch = max(1, min(batch, BLOCKS_STAGED_BATCH, BLOCKS_STAGED_BYTES // (places * itemsize)))
        places *= batch
    return BlocksLanes(vector, taps, in_row, rows, batch, places)


def _blocks_sums(problem: Problem) -> int:
    """Return the places that a tile has for sums, which are compiled in."""
    return problem.device.shared_bytes // BLOCKS_WARPS // view_of(problem).element.accumulator_bytes


def _tile_boxes(problem: Problem, lanes: BlocksLanes) -> list[Size]:
    """Return extents of tiles, the highest first that leave one for every multiprocessor.

    They are as many rows of each length as there are places for, or a row alone. Rows share the blocks that reach more
    than one of them; more of them than a group has rows of taps save little.
    """
    view, sums = view_of(problem), _blocks_sums(problem)
    *outer, row = view.axes
    most = sums if lanes.staged > 1 else lanes.rows

    def places(box: Size) -> int:
        return lanes.places(row, box[-1] // lanes.groups, prod(box[:-1]))

    def of_row(columns: int) -> Size:
        box = (*(1,) * len(outer), -(-row.size // (-(-row.size // columns) * lanes.groups)) * lanes.groups)
        return box if columns <= lanes.groups or places(box) <= sums else of_row(columns // 2)

    def highest(box: Size) -> Size:
        while True:
            for number in sorted(range(len(outer)), key=lambda number: (box[number], -number)):
                higher = (*box[:number], box[number] + 1, *box[number + 1 :])
                fits = box[number] < outer[number].size and prod(higher[:-1]) <= most and places(higher) <= sums
                if fits and outer[number].dilated_kernel > 1:
                    box = higher
                    break
            else:
                return box

    def tiles(box: Size) -> int:
        return view.planes * prod(-(-axis.size // extent) for axis, extent in zip(view.axes, box, strict=True))

    rows = [of_row(columns) for columns in BLOCKS_COLUMNS]
    if (needed := places(rows[-1])) > sums:
        raise Unsupported(
            f"{OPERATION}: gather_blocks keeps sums of pixels and of those that their blocks reach, {sums} at most, "
            f"but kernel_size {row.kernel} and dilations {row.dilation} make it {needed} on the last axis"
        )
    boxes = dict.fromkeys((*map(highest, rows), rows[-1]))
    return sorted(boxes, key=lambda box: (-min(problem.device.multiprocessors, tiles(box)), -prod(box[:-1])))


def _blocks_shared_bytes(problem: Problem, lanes: BlocksLanes) -> int:
    """Count the bytes of the tiles of kernels/col2im_gather_blocks.cu."""
    view, fusion, sums = view_of(problem), problem.fusion, _blocks_sums(problem)
    divides_by_taps = fusion.reduction != "sum" and (
        fusion.window == "full"
        or (fusion.window == "separable" and (len(view.axes) == 1 or fusion.reduction == "least_squares"))
    )
    itemsize = problem.call.source_element.itemsize
    end = widest = 0
    for alignment, size in (
        (view.element.accumulator_bytes, view.element.accumulator_bytes * sums),
        (weight_bytes(problem), weight_bytes(problem) * (sums if divides_by_taps else 1)),
        (itemsize * lanes.vector, itemsize * lanes.staged),
    ):
        end = _multiple(end, alignment) + size
        widest = max(widest, alignment)
    return _multiple(end, widest)


def _multiple(number: int, of: int) -> int:
    """Round up to a multiple."""
    return -(-number // of) * of


def _vector(problem: Problem) -> int:
    """Return the elements of the widest word that divides a row of taps and is aligned in every block."""
    view = view_of(problem)
    itemsize = problem.call.source_element.itemsize
    strides = (*view.block_strides, view.columns_channel, view.columns_batch)
    apart = gcd(view.kernel[-1] * itemsize, problem.input.alignment, *(stride * itemsize for stride in strides))
    return max(1, gcd(apart, WIDEST_WORD) // itemsize)


def gather_blocks(problem: Problem) -> tuple[Plan, ...]:
    """Plan for kernels/col2im_gather_blocks.cu."""
    view = view_of(problem)
    row = view.axes[-1]
    kernel = tuple(axis.kernel for axis in view.axes)
    if not are_contiguous(kernel, view.tap_strides):
        raise Unsupported(
            f"{OPERATION}: gather_blocks loads rows of taps in whole blocks, so a block's taps must be "
            f"contiguous in the columns, but their strides are {view.tap_strides} elements"
        )
    for number, axis in enumerate(view.axes):
        if axis.dilation == 0 and axis.kernel > 1:
            raise Unsupported(
                f"{OPERATION}: gather_blocks takes one tap of a block for each pixel, but dilations is 0 on "
                f"axis {number}, where every tap lands on the same"
            )
        if (span := (axis.kernel - 1) * axis.dilation // axis.stride) > BLOCKS_MAX_SPAN:
            raise Unsupported(
                f"{OPERATION}: gather_blocks walks over {BLOCKS_MAX_SPAN} blocks at most between those that reach a "
                f"pixel, but kernel_size {axis.kernel} and dilations {axis.dilation} put {span} there on axis {number}"
            )
    lanes = _blocks_lanes(problem)

    def plan(box: Size) -> Plan:
        strip = box[-1] // lanes.groups
        extents = tuple(-(-axis.size // extent) for axis, extent in zip(view.axes, box, strict=True))
        items = view.planes * prod(extents)
        steps = (box[-1] + (row.kernel + lanes.taps) * row.dilation) // row.stride + lanes.batch * block_step(row)
        beyond = 2 * steps * max(abs(view.block_strides[-1]), row.stride) + max(box)
        bits = offset_bits(OPERATION, largest_offset(view) + beyond, items)
        return sum_plan(
            problem,
            "gather_blocks",
            LaunchShape(items, 1, WARP, extents, view.channels, bits, _blocks_shared_bytes(problem, lanes)),
            f"each warp moves the sums of {' x '.join(map(str, box))} pixels along their blocks",
            {
                "box": offset(box),
                "strip": divisor(strip),
                "strip_sums": int32(lanes.strip_places(row, strip, prod(box[:-1]))),
                "spare": int32(lanes.spare(row, strip)),
            },
            LANE_TAPS=lanes.taps,
            ROWS=lanes.rows,
            VECTOR=lanes.vector,
            BATCH=lanes.batch,
            STAGED=lanes.staged,
            PITCH=prod(kernel) if view.block_strides[-1] == prod(kernel) else 0,
            PIXELS=_blocks_sums(problem),
        )

    return plans_of(plan, _tile_boxes(problem, lanes))
