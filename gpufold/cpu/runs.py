"""Tiles by runs: a tap is one contiguous addition over a whole plane, or over many planes.

The sums of a large plane are stored phase by phase, in rows as long as those of blocks. A run that passes an end of its
rows lands in the rows next to them. What is there is kept meanwhile, and cells beyond the end of a row take its place.

Other planes are copied first, with zeros before and after the blocks of a tap. Every block is added at a fixed distance
from its place, so a tap is one run over a plane, or over many small ones side by side. A block passes the end of its
row only if it lands in the padding, where the copy has a zero; a zero changes no sum that starts from +0. So taps a
stride apart are one reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, groupby, pairwise, product
from math import gcd, prod
from operator import mul, sub
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import ALL, Array, Factors, Index, add_pairs, copy_rows, multiply, shorten_buffers
from gpufold.cpu.cells import fold_cells, store, taps_are_closest
from gpufold.elements import sum_dtype
from gpufold.geometry import Axes, Axis, Size
from gpufold.geometry.cells import MANY_OPERATIONS, Segment, groups_of, outside_of
from gpufold.keeping import kept

FLAT_RUN, LARGE_PLANE = 32, 10000
"""Least blocks of a plane for a long inner loop, and least bytes of its sums for which runs are likely to be faster
than a copy, unless they reach whole rows."""

COPIED_BYTES, LEAST_BLOCKS = max(tiles.CACHE_BYTES, 1 << 21), 16
"""Most bytes of the copy of a plane's columns, twice as many if they are copied only once; least blocks of a tile whose
columns are copied, because blocks along its edges are cut."""

MANY_PLANES = 5 << 19
"""Bytes of the columns of several planes that are copied together, so that Python, in which threads wait for one
another, takes few steps."""

FETCHED, READ_BYTES = 2 * tiles.LINE_BYTES, tiles.CACHE_BYTES // 2
"""Most bytes of a block whose taps are copied from where they lie; then most bytes of all columns. Beyond both, blocks
with rows shorter than a cache line are first copied as they lie: else every tap would read all cache lines again."""

MANY_TAPS = 1 << 12
"""Most taps of an axis whose layout is computed, tap by tap."""

FEW_CELLS, NEEDLESS = 256, 1.25
"""Least cells of a plane that has runs of its own, so that columns are read in order; most blocks that are copied along
the first axis for each that lands in the image."""

FEW_ZEROED = 16
"""Most blocks of a row that are set to zero one by one, each in all rows: faster than a loop over a few per row."""

_UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


def ways_to_run(columns: Array, image: Array, axes: Axes, limit: int) -> list[tuple[int, Callable[..., None]]]:
    """Return the ways to add runs, each with the most pixels of a tile, the likely faster first.

    Runs go along whole planes if they are long, and along copies: of tiles, if the copy of a plane would be large.
    """
    half = tiles.pixels_of(_most_copied(columns, image, axes) // 2, columns, image)  # rows of sums may be longer
    copies: list[tuple[int, Callable[..., None]]] = []
    if _is_copied(columns, image, axes):
        copies = [(limit, fold_copied)]
    elif half > LEAST_BLOCKS * prod(axis.kernel for axis in axes):
        copies = [(half, fold_copied)]
    if not _are_long(columns.dtype, columns.strides, axes):
        return copies
    last, plane = axes[-1], prod(axis.blocks for axis in axes) * axes[-1].stride
    whole = last.dilated_kernel <= last.stride or plane * sum_dtype(image.dtype).itemsize >= LARGE_PLANE
    return [(limit, fold_runs), *copies] if whole else [*copies, (limit, fold_runs)]


def _most_copied(columns: Array, image: Array, axes: Axes) -> int:
    """Return how many elements the copy of a plane may have: half of them if they are also widened, or put in order."""
    size = sum_dtype(image.dtype).itemsize
    twice = columns.itemsize < size or taps_are_closest(columns.strides, axes)
    return COPIED_BYTES * (1 if twice else 2) // size


def _is_copied(columns: Array, image: Array, axes: Axes) -> bool:
    """Return whether the copy of a plane, and its sums, are small and take few array operations."""
    dilated = prod(min(axis.stride, axis.kernel) for axis in axes if axis.dilation > 1)
    if dilated > MANY_OPERATIONS or max(axis.kernel for axis in axes) > MANY_TAPS:
        return False
    layout = _layout(axes, 1)
    elements = max(layout.elements, prod(axis.stride for axis in axes) * layout.run)
    return elements <= _most_copied(columns, image, axes)


@kept
def _are_long(dtype: np.dtype[np.generic], strides: Size, axes: Axes) -> bool:
    """Return whether runs along whole planes are long, and pass the ends of rows by less than half a row."""
    last, before = axes[-1], axes[-1].pad_begin // axes[-1].stride
    passed = max(before, (last.dilated_kernel - 1) // last.stride - before)
    long = prod(axis.blocks for axis in axes[-2:]) >= FLAT_RUN and 2 * passed <= last.blocks
    follow = len(axes) == 1 or axes[-2].blocks == 1 or strides[-2] == last.blocks * strides[-1]
    return long and follow and strides[-1] <= dtype.itemsize  # the rows of a plane's blocks are contiguous


def _fold(copies: bool, columns: Array, image: Array, axes: Axes, weights: Array | None) -> None:
    """Add split columns into an image, every element of which is written, by runs of whole planes or of copies.

    Where runs are short, planes are copied; where a plane's copy would be large, it is added by cells.
    """
    if not columns.size:
        return fold_cells(columns, image, axes, weights)
    if len(axes) == 1:  # a single axis is a single row
        columns, image, axes = columns[:, :, None, :, None, :], image[:, :, None], (_UNIT_AXIS, *axes)
        weights = weights if weights is None else weights[:, :, None, :, None, :]
    if not copies and _are_long(columns.dtype, columns.strides, axes):
        return _fold_planes(columns, image, axes, weights)
    way = _fold_copied if _is_copied(columns, image, axes) else fold_cells
    way(columns, image, axes, weights)


fold_runs, fold_copied = partial(_fold, False), partial(_fold, True)


class _Runs(NamedTuple):
    """The runs of whole planes, and the layout of their sums (N, C, *phases, *cells), whose rows are one axis."""

    shape: Size
    """(*phases, *cells). A row has as many cells as blocks, from the first cell with pixels on."""
    before: int
    """Cells that runs land on before the first row, and after the last one."""
    after: int
    beyond: int
    """Cells with pixels beyond the end of each row."""
    runs: tuple[tuple[Index, Index, Index, int], ...]
    """Indices of the sums and of the columns of a run, then of its rows, and by how many cells it passes their ends."""


@kept
def _runs(axes: Axes) -> _Runs:
    *outer, last = axes
    pitch, skipped, size = last.blocks, last.pad_begin // last.stride, last.blocks * last.stride
    last = last._replace(size=size, pad_begin=skipped * last.stride)
    last = last._replace(pad_end=last.dilated_kernel - last.stride - last.pad_begin)
    whole = [Segment(ALL, 0, -(-axis.size // axis.stride), min(axis.stride, axis.size)) for axis in (*outer, last)]
    by_axis = [tuple(groups_of(axis, piece, True)) for axis, piece in zip((*outer, last), whole, strict=True)]
    passed = [group.cells.start - group.blocks.start for group in by_axis[-1]]
    before, runs = max(0, *(-each for each in passed)), []
    for groups, cells in zip(product(*by_axis), cycle(passed), strict=False):
        *others, row, _ = groups
        start, stop = (before + number * pitch + cells for number in (row.cells.start, row.cells.stop))
        source = slice(row.blocks.start * pitch, row.blocks.stop * pitch)
        sums = (ALL, ALL, *(group.phases for group in groups), *(group.cells for group in others))
        terms = (ALL, ALL, *(group.taps for group in groups), *(group.blocks for group in others), source)
        runs.append(((*sums, slice(start, stop)), terms, (*sums, row.cells), cells))
    beyond = -(-(axes[-1].pad_begin + axes[-1].size) // last.stride) - skipped - pitch
    shape = (*(piece.width for piece in whole), *(piece.cells for piece in whole))
    return _Runs(shape, before, max(0, *passed), max(0, beyond), tuple(runs))


def _fold_planes(columns: Array, image: Array, axes: Axes, weights: Array | None) -> None:
    """Add split columns whose last two axes are one run into an image, every element of which is written."""
    shorten_buffers(columns)
    layout, dtype = _runs(axes), image.dtype
    *outer, last = axes
    columns = columns.reshape(*columns.shape[:-2], -1, copy=False)
    factors = Factors() if weights is None else Factors([weights.reshape(columns.shape, copy=False)])
    shape: Size = (*columns.shape[:2], *layout.shape)
    *others, rows, pitch = shape
    sums: Array = np.zeros((*others, layout.before + rows * pitch + layout.after), dtype)
    beyond: Array = np.zeros((*others, rows, layout.beyond), dtype)

    def cells(first: int, count: int) -> Array:
        """View cells of every row, from one on."""
        steps = (*sums.strides[:-1], pitch * dtype.itemsize, dtype.itemsize)
        return np.ndarray((*others, rows, count), dtype, sums, (layout.before + first) * dtype.itemsize, steps)

    def pairs() -> Iterator[tuple[Index, Index]]:
        for into, terms, place, passed in layout.runs:
            if not passed:
                yield into, terms
                continue
            reached = (cells(pitch, passed) if passed > 0 else cells(passed, -passed))[place]
            missing = beyond[..., : max(0, passed)][place]
            exchanged, known = reached[..., : missing.shape[-1]], np.empty(reached.shape, dtype)
            copy_rows(reached, known)
            copy_rows(missing, exchanged)
            yield into, terms
            copy_rows(exchanged, missing)
            copy_rows(known, reached)

    add_pairs(sums, columns, factors, pairs())
    begin = last.pad_begin % last.stride
    end = min(last.size, pitch * last.stride - begin)
    for some, pixels, start in ((cells(0, pitch), image[..., :end], begin), (beyond, image[..., end:], 0)):
        if pixels.size:
            store(some, pixels, (*outer, last._replace(size=pixels.shape[-1])), (*(0,) * len(outer), start))


_View: TypeAlias = tuple[int, Size, Size]
"""A view of each row of an array: first element, shape and strides in elements."""


class _Layout(NamedTuple):
    """The layout of a copy of the columns of some planes side by side, and of their sums. There are several of both."""

    copy: _View
    """(planes, *taps, *blocks)"""
    copies: tuple[tuple[Index, Index], ...]
    """Indices in the copies, and the indices of the columns that are copied there."""
    zeros: tuple[Index, ...]
    """Indices in the copies that are set to zero, because they pass the end of an axis but the first."""
    added: tuple[tuple[_View, Index], ...]
    """Views (*taps a stride apart, *phases, run) of the copies, and the indices of these phases in the sums."""
    sums: _View
    """(planes, *phases, *cells)"""
    elements: int
    """Elements of the copy."""
    run: int
    """Elements of a phase's sums."""
    direct: bool
    """Whether sums lie as the pixels of contiguous planes do."""


def _fold_copied(columns: Array, image: Array, axes: Axes, weights: Array | None) -> None:
    """Add split columns into an image, every element of which is written, from copies of some planes at a time."""
    first: Index = (0, 0, ..., *(0,) * len(axes))
    of_tap = None if weights is None else weights[first].reshape(-1, 1)
    if of_tap is not None and not np.isfinite(of_tap).all():  # the zeros between blocks would become NaN
        return fold_cells(columns, image, axes, weights)
    if all(array.strides[0] == array.shape[1] * array.strides[1] for array in (columns, image)):
        columns, image = (array.reshape(1, -1, *array.shape[2:], copy=False) for array in (columns, image))
    planes, dtype, taps = image.shape[1], image.dtype, tuple(range(1, 1 + len(axes)))
    most = max(1, MANY_PLANES // (dtype.itemsize * _layout(axes, 1).elements))
    count = -(-planes // -(-planes // most))
    small = prod(-(-axis.size // axis.stride) for axis in axes) < FEW_CELLS
    mixed = abs(columns.strides[1]) < abs(columns.strides[-1])  # as with channels last
    together = count if small or mixed or columns.nbytes <= tiles.CACHE_BYTES else 1
    layout, zero, separate = _layout(axes, together), np.zeros((), dtype), count // together
    block, row = (dtype.itemsize * prod(axis.kernel for axis in some) for some in (axes, axes[-1:]))
    waits = block > FETCHED and row < tiles.LINE_BYTES and taps_are_closest(columns.strides, axes)
    scratch = np.empty_like(columns[0, :count]) if waits and columns.nbytes > READ_BYTES else None
    copied: Array = np.zeros((separate, layout.elements), dtype)
    copy = _view(copied, layout.copy)
    sums: Array = np.zeros((separate, *(axis.stride for axis in axes), layout.run), dtype)
    cells, direct = _view(sums, layout.sums), layout.direct and image.flags.c_contiguous
    shape, begin = (separate, together, *columns.shape[2:]), tuple(axis.pad_begin % axis.stride for axis in axes)
    if of_tap is not None:  # all places of a tap are multiplied in one loop
        places = copied[:, layout.copy[0] :].view(copied.real.dtype).reshape(separate, len(of_tap), -1, copy=False)
    rows_follow = all(part.strides[-2] == part.shape[-1] * part.strides[-1] for part in (columns, copy))

    def rows(part: Array) -> Array:
        return part.reshape(*part.shape[:-2], -1, copy=False) if rows_follow else part

    copies = [(rows(copy[place]), some) for place, some in layout.copies]
    zeros, added = [copy[place] for place in layout.zeros], [(_view(copied, v), sums[p]) for v, p in layout.added]
    for source, pixels in zip(columns, image, strict=True):
        for start in (min(plane, planes - count) for plane in range(0, planes, count)):  # the last ones may repeat some
            few = slice(start, start + count)
            terms = source[few]
            if scratch is not None:
                scratch[...] = terms
                terms = scratch
            terms = terms.reshape(shape)
            for place, some in copies:
                multiply(terms[some].reshape(place.shape), None, place)
            if of_tap is not None:
                np.multiply(places, of_tap, places, casting="unsafe")
            for beyond in zeros:
                beyond[...] = zero
            into = pixels[few].reshape(separate, together, *pixels.shape[1:], copy=False)
            for alike, total in added:
                sums_of = into.reshape(total.shape, copy=False) if direct else total
                np.add.reduce(alike, axis=taps, dtype=dtype, out=sums_of, initial=zero)
            if not direct:
                store(cells, into, axes, begin)


def _view(array: Array, view: _View) -> Array:
    first, shape, steps = view
    size, strides = array.itemsize, (array.strides[0], *(step * array.itemsize for step in steps))
    return np.ndarray((len(array), *shape), array.dtype, array, first * size, strides)


@kept
def _layout(axes: Axes, planes: int) -> _Layout:
    """Lay out planes in rows of cells, from the first cell with pixels on, or of blocks if these are more.

    Along the first axis, the blocks of a tap are copied in one piece, with zeros before and after them. Between several
    planes, or if many land outside, there is no room for zeros: those inside are copied to the cells where they land.
    """
    rank, rest = len(axes), (ALL,) * (len(axes) - 1)
    kernel, strides, pads = zip(*((axis.kernel, axis.stride, axis.pad_begin) for axis in axes), strict=True)
    first = [pad // stride for pad, stride in zip(pads, strides, strict=True)]  # counted from where the padding begins
    cells = [(axis.pad_begin + axis.size - 1) // axis.stride + 1 - cell for axis, cell in zip(axes, first, strict=True)]
    cells[-1] = -(-axes[-1].size // strides[-1])  # another one shares its place with the next row's first
    landing = list(_landing(axes[0]))
    needed = sum((taps.stop - taps.start) * (inside.stop - inside.start) for taps, inside, _ in landing)
    placed = planes > 1 or kernel[0] * axes[0].blocks > NEEDLESS * needed
    blocks = [cells[0] if placed else axes[0].blocks, *(axis.blocks for axis in axes[1:])]
    extents = [max(several, count) for several, count in zip(blocks, cells, strict=True)]
    steps, of_taps, of_phases = ([prod(n[i:]) for i in range(1, 1 + rank)] for n in (extents, kernel, strides))
    moves = [0, *steps[1:]] if placed else steps
    reached = [(axis.kernel - 1) * axis.dilation // axis.stride * move for axis, move in zip(axes, moves, strict=True)]
    begin, plane = sum(map(mul, first, moves)), cells[0] * steps[0]
    whole = prod(strides) == 1 and extents[1:] == [axis.size for axis in axes[1:]]
    direct = whole and planes * plane > 1  # NumPy would sum a single element's taps pairwise
    more = int(not direct)  # the last cell of a row may begin with pixels of the next
    before, run = max(0, sum(reached) - begin), planes * plane + more
    pitch = max((planes - 1) * plane + blocks[0] * steps[0] + before, begin + run)
    apart, phase_steps = [step * pitch for step in of_taps], [step * run for step in of_phases]
    copies: list[tuple[Index, Index]] = [((...,), (...,))]
    if placed:
        copies = [
            (
                (ALL, ALL, taps, ..., slice(inside.start + cell - first[0], inside.stop + cell - first[0]), *rest),
                (ALL, ALL, taps, ..., inside, *rest),
            )
            for taps, inside, cell in landing
            if inside.start < inside.stop
        ]
    zeros: list[Index] = []
    for number, axis in enumerate(axes[1:], 1):
        for taps, outside in outside_of(axis, axis.blocks <= FEW_ZEROED and number == rank - 1):
            index: list[Any] = [ALL] * (2 + 2 * rank)
            index[2 + number], index[2 + rank + number] = taps, outside
            zeros.append(tuple(index))
    added = []
    for parts in product(*map(_taps_alike, axes)):
        firsts, phases, begins, counts, jumps, further = zip(*parts, strict=True)
        start = before + begin + sum(map(mul, firsts, apart)) - sum(map(mul, begins, moves))
        # positive and descending, so added in order, if taps share a pixel: their blocks are at most an extent apart
        again = map(sub, map(mul, jumps, apart), map(mul, further, moves))
        shape = (*counts, *(phase.stop - phase.start for phase in phases), run)
        added.append(((start, shape, (*again, *apart, 1)), (ALL, *phases)))
    return _Layout(
        copy=(before, (planes, *kernel, *blocks), (plane, *apart, *steps)),
        copies=tuple(copies),
        zeros=tuple(zeros),
        added=tuple(added),
        sums=(0, (planes, *strides, cells[0], *extents[1:-1], extents[-1] + more), (plane, *phase_steps, *steps)),
        elements=before + kernel[0] * apart[0],
        run=run,
        direct=direct,
    )


def _landing(axis: Axis) -> Iterator[tuple[slice, slice, int]]:
    """Yield the taps of an axis, grouped if they reach the same cells; their blocks inside; the cell of the first."""

    def key(tap: int) -> tuple[range, int]:
        return axis.reach(tap), tap * axis.dilation // axis.stride

    for (inside, cell), alike in groupby(range(axis.kernel), key):
        tap, *more = alike
        start, stop = (min(end, axis.blocks) for end in (inside.start, inside.stop))
        yield slice(tap, tap + 1 + len(more)), slice(start, stop), cell


def _taps_alike(axis: Axis) -> list[tuple[int, slice, int, int, int, int]]:
    """Return the taps of an axis, grouped if they reach adjacent phases.

    A group is its first tap, its phases, the cell where its first block begins, how often the phases recur, and after
    how many taps and cells.
    """
    common = gcd(axis.stride, axis.dilation)
    jump, further = axis.stride // common, axis.dilation // common
    ends: Sequence[int] = range(1 + min(jump, axis.kernel))
    if axis.dilation == 1:
        ends = sorted({0, axis.kernel % jump, ends[-1]})
    begins = [divmod(tap * axis.dilation, axis.stride) for tap in ends]
    return [
        (tap, slice(phase, phase + end - tap), cell, -((tap - axis.kernel) // jump), jump, further)
        for (tap, end), (cell, phase) in zip(pairwise(ends), begins, strict=False)
    ]
