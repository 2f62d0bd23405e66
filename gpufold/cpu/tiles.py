"""Tiles of an image, cut along planes first and then along the spatial axes, and their distribution over threads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from gpufold.cores import cache_bytes
from gpufold.cpu.arithmetic import ALL, Array, Index
from gpufold.geometry import Axes, Size
from gpufold.keeping import kept
from gpufold.threads import for_each

CACHE_BYTES = cache_bytes()
"""Bytes of a core's cache."""

KEPT_BYTES = CACHE_BYTES // 4
"""Bytes of the pixels of a tile, or of a part of a view, that stay in a core's cache from tap to tap."""

PADDED_BYTES = 7 << 20
"""Most bytes of a copy of planes, which is made to pad, and to put the pixels of a row side by side."""

LINE_BYTES = 64
"""Bytes of a cache line; caches fetch two at a time."""

SMALL_ELEMENTS = 1 << 14
"""Most column elements for which indexing is faster than array operations."""

TILE_ELEMENTS = 1 << 19
"""Most pixels of a tile, which bounds the scratch memory of a call."""

EVEN = 1.1
"""Ratio of the longest share to an equal share that counts as even."""


def on_tiles(
    threads: int, limit: int, work: Callable[..., None], columns: Array, image: Array, axes: Axes, *more: Any
) -> None:
    """Call work(columns, pixels, axes, *more) for tiles of at most `limit` pixels, on `threads` threads."""
    if threads == 1 and image.size <= limit:
        return work(columns, image, axes, *more)
    of_blocks = columns.strides[:2] + columns.strides[1 + columns.ndim // 2 :]  # (N, C, *blocks), as an image

    def on(blocks: Index, pixels: Index, some: Axes) -> None:
        work(columns[blocks], image[pixels], some, *more)

    for_each(on, _tiles(image.shape, axes, limit, threads, image.strides, of_blocks), threads)


@kept
def _tiles(shape: Size, axes: Axes, limit: int, threads: int, *strides: Size) -> tuple[tuple[Index, Index, Axes], ...]:
    """Cut an image into tiles of at most `limit` pixels, of whole cells and cache lines, as `parts_of` does.

    A tile is the indices of its columns and its pixels, and the axes of an independent problem.
    """
    cells = (1, 1, *(axis.stride for axis in axes))
    lines = lines_of(shape, *strides)
    units = tuple(-(-few // cell) * cell for few, cell in zip(lines, cells, strict=True))
    units = units if prod(units) <= limit else lines
    taps, cut = (ALL,) * len(axes), []
    parts = parts_of(shape, limit, units, threads)
    for pixels in sorted(parts, key=lambda pixels: [piece.start for piece in pixels[2:]]):  # divisors are used again
        sections = [axis.section(piece.start, piece.stop) for axis, piece in zip(axes, pixels[2:], strict=True)]
        blocks = (slice(blocks.start, blocks.stop) for _, blocks in sections)
        cut.append(((*pixels[:2], *taps, *blocks), pixels, tuple(axis for axis, _ in sections)))
    return tuple(cut)


@kept
def parts_of(shape: Size, limit: int, units: Size = (), threads: int = 1) -> tuple[tuple[slice, ...], ...]:
    """Cut an array into a share per thread, and shares from the outermost axis inwards until each part is small.

    A part has at most `limit` elements, in whole units. Shares are sections of one axis: the outermost, unless another
    axis gives more even shares. This keeps parts few and array operations long.
    """
    units, axes = units or (1,) * len(shape), [range(extent) for extent in shape]
    shares = [_pieces(axis, -(-len(axis) // threads), unit) for axis, unit in zip(axes, units, strict=True)]
    uneven = [threads * len(pieces[0]) / len(axis) for pieces, axis in zip(shares, axes, strict=True)]
    shared = uneven.index(min(uneven, key=lambda each: max(each, EVEN)))
    axes[shared], cuts = shares[shared][0], []
    for number, (axis, unit) in enumerate(zip(axes, units, strict=True)):
        fit = max(1, limit // prod(map(len, axes[number + 1 :])))
        step = len(axis) if fit >= len(axis) else max(unit, fit // unit * unit)
        step, sections = len(_pieces(axis, step, unit)[0]), shares[number] if number == shared else [axis]
        cuts.append([slice(start, min(start + step, each.stop)) for each in sections for start in each[::step]])
        limit = max(1, limit // step)
    return tuple(product(*cuts))


def _pieces(section: range, most: int, unit: int) -> list[range]:
    """Cut a section into pieces of at most `most` elements, in whole units and of nearly equal length."""
    pieces = -(-len(section) // most)
    step = -(-len(section) // pieces // unit) * unit
    return [section[start : start + step] for start in range(0, len(section), step)]


@kept
def lines_of(shape: Size, *strides: Size) -> Size:
    """Return the units, in elements per axis, that make parts of arrays use whole cache lines; strides are in bytes.

    Units have several elements along the axis with the smallest stride, unless that is the last axis.
    """
    units = [1] * len(shape)
    for steps in strides:
        apart = [(abs(step), number) for number, step in enumerate(steps) if step and shape[number] > 1]
        step, closest = min(apart, default=(LINE_BYTES, 0))
        if closest + 1 < len(shape) and step < LINE_BYTES:
            units[closest] = 2 * LINE_BYTES // step
    return tuple(units)


def pixels_of(elements: int, columns: Array, image: Array) -> int:
    """Return how many pixels a number of column elements lands on."""
    return max(1, elements * image.size // max(1, columns.size))
