"""Add or move columns into an image, and extract them: algorithms that calls try in turn, keeping the fastest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import (
    ALL,
    AnyWeights,
    Array,
    Factors,
    Index,
    copy_rows,
    multiply,
    round_into,
    shorten_buffers,
    spread,
)
from gpufold.cpu.cells import SUMMED_MOVES, adds_rows, fold_cells, taps_are_closest, unfold_cells, ways_to_move
from gpufold.cpu.fused import FusedArithmetic, average
from gpufold.cpu.indexed import are_few, fold_indexed, unfold_indexed
from gpufold.cpu.large import fold_blocks, unfold_blocks
from gpufold.cpu.runs import LEAST_BLOCKS, ways_to_run
from gpufold.cpu.tiles import LINE_BYTES, lines_of, parts_of
from gpufold.elements import can_shift, is_narrow, shifted, sum_dtype, widened
from gpufold.geometry import Axes, Size
from gpufold.geometry.cells import LONG_STRIDE, MANY_OPERATIONS, outside_of, plan_of
from gpufold.keeping import kept
from gpufold.threads import Ways, for_each, is_short

Algorithm: TypeAlias = Callable[[Array, Array, Axes, Any], None]
"""An algorithm: adds weighted split columns into a tile of an image, every element of which it writes."""

WIDENED = 5 << 17
"""Most columns of float16 that are converted at once."""

FEW_LINES, PART_BYTES = 1 << 9, 1 << 17
"""Lines that a core's L1 cache keeps from tap to tap; least bytes of columns for a step of Python."""

SMALL_COPY, MANY_STEPS = 1 << 12, 16
"""Most elements of columns that are faster copied by index than from a view of all blocks; least array operations for
which a padded copy of a small image is faster."""

FEW_TAPS, WRITTEN_BYTES = 3, 1 << 22
"""Most taps of a row that is likely to be copied faster tap by tap, for all blocks, than as a row; then most bytes of a
tile's columns, to which every tap writes."""

LARGE_RANK, LARGE_BLOCK = 3, 1 << 12
"""Least axes and elements of blocks that may be faster added one by one than by cells, which have shorter rows."""


def _kind_of_call(source: Array, result: Array, axes: Axes, how: Any) -> tuple[Any, ...]:
    """Return what the fastest way depends on: the axes, the arrays' memory layouts, and the arithmetic."""
    computed: Any = how is None, isinstance(how, Factors)
    if isinstance(how, FusedArithmetic):
        computed = how.move, how.accumulate, how.reduction, how.weights is None, how.factors is None
    return axes, source.dtype, source.shape, source.strides, result.dtype, result.shape, result.strides, computed


@partial(kept, by=_kind_of_call)
def ways_to_fold(columns: Array, image: Array, axes: Axes, fused: FusedArithmetic) -> Ways:
    """Return candidate algorithms, each with the most pixels of a tile.

    Runs go along the blocks. If taps lie closer together, short rows of taps are copied for runs; others are added by
    cells, which cut a block's rows at multiples of the stride, or block after block. Few elements are added by index.
    """
    if fused.factors is not None:
        return Ways((tiles.TILE_ELEMENTS // 4, fold_blocks))
    moved = fused.move or plan_of(axes).apart
    if not moved and (columns.size <= tiles.SMALL_ELEMENTS or are_few(columns.size, axes)):
        pixels = min(tiles.TILE_ELEMENTS, tiles.pixels_of(tiles.TILE_ELEMENTS, columns, image))
        return Ways((pixels, fold_indexed))
    size = sum_dtype(image.dtype).itemsize
    narrow, converted = image.itemsize < size, columns.itemsize < size
    limit = tiles.TILE_ELEMENTS * 8 // max(8, size)
    if converted:  # whole planes at once
        plane = image.size // max(1, prod(image.shape[:2]))
        limit = min(limit // 2, max(plane, tiles.pixels_of(WIDENED, columns, image)))
    most = max(1, min(image.size, 4 * limit // size))  # NumPy may copy what it adds to in place
    if moved:
        scratch = not fused.move and (narrow or fused.accumulate or fused.reduction != "sum")
        pixels = most if scratch else max(1, image.size)
        return Ways(*ways_to_move(columns.shape, columns.strides, axes, pixels, image.itemsize, not fused.move))
    closest, by_runs = taps_are_closest(columns.strides, axes), ways_to_run(columns, image, axes, limit)
    cached = tiles.KEPT_BYTES if len(axes) == 1 else tiles.CACHE_BYTES  # the phases of a single axis are far apart
    at_once = max(cached // ((1 + converted) * size), LEAST_BLOCKS * prod(axis.kernel for axis in axes))
    by_cells = (most if closest else min(most, at_once), fold_cells)  # every tap adds all over a tile's pixels
    if adds_rows(columns, axes) and plan_of(axes, True).turned[-1]:
        return Ways(by_cells)
    long_cells = closest and min(axes[-1].kernel, axes[-1].stride) >= LONG_STRIDE
    large = closest and len(axes) >= LARGE_RANK and prod(axis.kernel for axis in axes) >= LARGE_BLOCK
    by_blocks = [(most, fold_blocks)] if large and all(axis.dilation for axis in axes) else []
    return Ways(*by_blocks, by_cells, *by_runs) if long_cells else Ways(*by_blocks, *by_runs, by_cells)


def fold(columns: Array, image: Array, axes: Axes, fused: FusedArithmetic) -> None:
    """Add split columns (N, C, *kernel, *blocks) into an image (N, C, *size), both in any memory layout."""
    size = max(columns.nbytes, image.nbytes)
    if fused.move and is_short(size):
        (_, move), *_ = ways_to_move(columns.shape, columns.strides, axes, image.size, image.itemsize)
        return move(columns, image, axes, None)

    def on(threads: int, limit: int, algorithm: Algorithm) -> None:
        tiles.on_tiles(threads, limit, _fold_tile, columns, image, axes, algorithm, fused)

    with nullcontext() if fused.move else np.errstate(all="ignore"):
        # sums past the range are IEEE's infinities and NaNs, silently, as on a GPU
        ways_to_fold(columns, image, axes, fused).run(size, on)


def _fold_tile(columns: Array, image: Array, axes: Axes, algorithm: Algorithm, fused: FusedArithmetic) -> None:
    if fused.move:
        return algorithm(columns, image, axes, None)
    accumulator, weights = sum_dtype(image.dtype), fused.factors or spread(fused.weights, columns)
    narrow, moves = accumulator != image.dtype, algorithm in SUMMED_MOVES
    if narrow and moves and weights is None and not fused.accumulate and columns.dtype == image.dtype:
        bits = np.dtype(f"u{image.itemsize}")
        words = image.view(bits)
        algorithm(columns.view(bits), words, axes, None)
        words[words == 1 << 8 * image.itemsize - 1] = 0  # -0.0: sums start from +0
        return
    total = np.empty(image.shape, accumulator) if narrow or fused.accumulate else image
    terms, shifts = columns, False
    if not moves and columns.size <= WIDENED and is_narrow(columns, total):
        bare = narrow and weights is None and fused.reduction == "sum" and not fused.accumulate
        shifts = bare and can_shift(columns)
        terms = shifted(columns) if shifts else widened(columns)
    algorithm(terms, total, axes, weights)
    if fused.reduction != "sum":
        average(total, axes, fused)
    if fused.accumulate:
        np.add(image, total, total if narrow else image)
    if narrow:
        round_into(image, total, shifts)


def unfold(image: Array, columns: Array, axes: Axes, weights: AnyWeights = None) -> None:
    """Extract weighted split columns (N, C, *kernel, *blocks) of an image (N, C, *size), both in any memory layout."""
    with nullcontext() if weights is None else np.errstate(all="ignore"):
        if weights is not None:
            shorten_buffers(columns)

        def on(threads: int, algorithm: _UnfoldAlgorithm, limit: int) -> None:
            algorithm(image, columns, axes, weights, threads, limit)

        _ways_to_unfold(image, columns, axes, weights).run(max(columns.nbytes, image.nbytes), on)


_UnfoldAlgorithm: TypeAlias = Callable[[Array, Array, Axes, Any, int, int], None]
"""An algorithm: takes weighted split columns out of an image, with a number of threads and a limit of its parts."""


@partial(kept, by=_kind_of_call)
def _ways_to_unfold(image: Array, columns: Array, axes: Axes, weights: AnyWeights) -> Ways:
    return Ways(*(_unfold_algorithms(image, columns, axes, weights) or [(unfold_indexed, 0)]))


def _unfold_algorithms(
    image: Array, columns: Array, axes: Axes, weights: AnyWeights
) -> list[tuple[_UnfoldAlgorithm, int]]:
    """Return the algorithms for columns, each with its limit, the likely fastest first; none for few elements."""
    if isinstance(weights, Factors):
        return [(_unfold_large, 0)]
    few, outside = are_few(max(columns.size, image.size), axes), bool(_taps_outside(axes))
    closest, pixels = taps_are_closest(columns.strides, axes), 2 * tiles.TILE_ELEMENTS
    if closest:
        pixels = min(pixels, tiles.pixels_of(WRITTEN_BYTES // columns.itemsize, columns, image))
    by_taps: list[tuple[_UnfoldAlgorithm, int]] = [] if few else [(_unfold_tiles, pixels)]
    plane, copied = image.itemsize * prod(axis.padded_size for axis in axes), list[tuple[_UnfoldAlgorithm, int]]()
    padded = plane * prod(image.shape[:2])
    read_again = padded < columns.nbytes
    if plane <= tiles.PADDED_BYTES and padded <= columns.nbytes and not columns.dtype.hasobject:
        copied = [(_unfold_padded, tiles.PADDED_BYTES // max(1, plane))]
    if outside:
        large = columns.size > tiles.SMALL_ELEMENTS or plan_of(axes).operations >= MANY_STEPS
        if weights is not None or not large:
            return by_taps
        return [*copied, *by_taps] if read_again else [*by_taps, *copied]
    if columns.dtype.hasobject or (few and columns.size <= SMALL_COPY):
        return by_taps  # NumPy makes no view of blocks of objects
    apart = read_again and abs(image.strides[-1]) > image.itemsize  # pixels of a row are apart: channels last
    short = closest and axes[-1].kernel <= FEW_TAPS
    _, most, of_blocks, _ = _view_of(image, columns, axes)
    whole = prod(of_blocks)
    if weights is None:
        views = [(_unfold_view, limit) for limit in dict.fromkeys((most, whole))]
    else:
        views = [(way, whole) for way in (_unfold_weighed, _unfold_view)[:: -1 if len(axes) == 1 else 1]]
    return [*(by_taps if short else ()), *(copied if apart else ()), *views]


def _unfold_tiles(image: Array, columns: Array, axes: Axes, weights: Array | None, threads: int, limit: int) -> None:
    """Copy blocks tile by tile, one tap or one group of taps of all blocks at a time."""
    for index in _taps_outside(axes):
        columns[index] = np.zeros((), columns.dtype)
    if image.size:
        tiles.on_tiles(threads, limit, unfold_cells, columns, image, axes, weights)


def _unfold_large(image: Array, columns: Array, axes: Axes, weights: Factors, threads: int, limit: int) -> None:
    """Copy large blocks one after another."""
    for index in _taps_outside(axes):
        columns[index] = np.zeros((), columns.dtype)
    for_each(multiply, unfold_blocks(image, columns, axes, weights), threads)


def _unfold_padded(image: Array, columns: Array, axes: Axes, weights: Array | None, threads: int, most: int) -> None:
    """Copy blocks from padded copies of up to `most` planes; each thread has its own copy if planes are enough.

    With weights there is no padding: zero times an infinite weight would be NaN.
    """
    inside = (ALL, ALL, *(slice(axis.pad_begin, axis.pad_begin + axis.size) for axis in axes))
    whole = tuple(axis._replace(size=axis.padded_size, pad_begin=0, pad_end=0) for axis in axes)
    parts = parts_of(image.shape[:2], most, (), threads)
    apart = 1 < threads <= len(parts)
    shape = (*image[parts[0]].shape[:2], *(axis.padded_size for axis in axes))
    unused = [np.zeros(shape, image.dtype) for _ in range(threads if apart else 1)]

    def copy(part: Index, threads: int) -> None:
        padded, some = unused.pop(), image[part]
        few = padded[: len(some), : some.shape[1]]
        copy_rows(some, few[inside])
        _unfold_view(few, columns[part], whole, weights, threads, weigh=copy_and_multiply)
        unused.append(padded)

    for_each(copy, [(part, 1 if apart else threads) for part in parts], threads if apart else 1)


def _unfold_view(
    image: Array,
    columns: Array,
    axes: Axes,
    weights: Array | None,
    threads: int,
    most: int | None = None,
    weigh: Callable[..., None] = multiply,
) -> None:
    """Copy blocks that lie inside the image from one view of it, in the columns' shape."""
    steps, in_cache, of_blocks, lines = _view_of(image, columns, axes)
    if image.flags.c_contiguous:  # a faster way to make the view
        view = np.ndarray(columns.shape, image.dtype, image, 0, steps)
    else:
        view = as_strided(image, columns.shape, steps, writeable=False)
    arrays = [array for array in (view, spread(weights, columns), columns) if array is not None]
    move, taps = copy_rows if weights is None else weigh, (ALL,) * len(axes)

    def copy(batch: slice, channels: slice, *blocks: slice) -> None:
        part = (batch, channels, *taps, *blocks)
        move(*[array[part] for array in arrays])

    for_each(copy, parts_of(of_blocks, in_cache if most is None else most, lines, threads), threads)


def copy_and_multiply(elements: Array, weights: Array, products: Array) -> None:
    """Multiply a copy in place, which is faster if it has longer rows than the elements."""
    copy_rows(elements, products)
    multiply(products, weights, products)


_unfold_weighed = partial(_unfold_view, weigh=copy_and_multiply)


@partial(kept, by=lambda image, columns, axes: (image.strides, columns.itemsize, columns.shape, columns.strides, axes))
def _view_of(image: Array, columns: Array, axes: Axes) -> tuple[Size, int, Size, Size]:
    """Return the strides of a view of all blocks of an image, in the columns' shape, and how to cut it.

    That is the most blocks of a part whose lines stay in the cache, the shape (N, C, *blocks), and its `lines_of`.
    """
    of_blocks, taps = (*columns.shape[:2], *columns.shape[2 + len(axes) :]), prod(axis.kernel for axis in axes)
    if axes[-1].stride * abs(image.strides[-1]) >= LINE_BYTES and not taps_are_closest(columns.strides, axes):
        most = max(FEW_LINES, PART_BYTES // columns.itemsize // taps)  # each tap reads a line of every block
    else:  # rows of a block are read in one go
        touched = columns.itemsize * prod(min(axis.kernel, axis.stride) for axis in axes)
        most = max(1, tiles.KEPT_BYTES // min(LINE_BYTES, touched))
    of_taps = [axis.dilation * step for axis, step in zip(axes, image.strides[2:], strict=True)]
    apart = [axis.stride * step for axis, step in zip(axes, image.strides[2:], strict=True)]
    return (*image.strides[:2], *of_taps, *apart), most, of_blocks, lines_of(of_blocks, image.strides)


@kept
def _taps_outside(axes: Axes) -> tuple[Index, ...]:
    """Return the indices of split columns outside the image: of all columns if taps are many, or most lie outside."""
    outside, inside = list[Index](), 1.0
    for number, axis in enumerate(axes):
        if axis.pixel(0, 0) < 0 or axis.pixel(axis.blocks - 1, axis.kernel - 1) >= axis.size:
            few = axis.shorter
            inside *= sum(len(few.reach(tap)) for tap in range(few.kernel)) / max(1, few.kernel * few.blocks)
            for taps, blocks in outside_of(axis):
                index: list[Any] = [ALL] * (2 + 2 * len(axes))
                index[2 + number], index[2 + len(axes) + number] = taps, blocks
                outside.append(tuple(index))
                if len(outside) >= MANY_OPERATIONS:
                    return ((...,),)
    return tuple(outside) if inside > 0.5 else ((...,),)
