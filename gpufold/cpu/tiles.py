"""Tiles of an image, cut along planes first and then along the spatial axes, and their distribution over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpufold.cores import cache_bytes
from gpufold.cpu.arithmetic import ALL, Array, Index
from gpufold.geometry import Axis, Size
from gpufold.geometry.tiles import crowding, cut_into_tiles
from gpufold.keeping import kept
from gpufold.threads import for_each, is_short, on_threads

CACHE_BYTES = cache_bytes()
"""Bytes of a core's cache."""

KEPT_BYTES = CACHE_BYTES // 4
"""Bytes of the pixels of a tile, or of a part of a view, that stay in a core's cache from tap to tap."""

SMALL_ELEMENTS = 1 << 14
"""Most column elements for which indexing is faster than array operations."""

TILE_ELEMENTS = 1 << 19
"""Most pixels of a tile, which bounds the scratch memory of a call."""


def for_each_tile(
    work: Callable[..., None],
    columns: Array,
    image: Array,
    axes: tuple[Axis, ...],
    ways: Sequence[tuple[int, *tuple[Any, ...]]],
    *more: Any,
) -> None:
    """Call work(columns, pixels, axes, *how, *more) for tiles, with the fastest of the ways (most pixels, *how)."""

    def on(threads: int, limit: int, *how: Any) -> None:
        on_tiles(threads, limit, work, columns, image, axes, *how, *more)

    size = max(columns.nbytes, image.nbytes)
    if is_short(size):
        return on(1, *ways[0])
    kind = (work, axes, columns.dtype, columns.shape, image.strides, columns.strides)
    on_threads(kind, size, on, *ways)


def on_tiles(
    threads: int,
    limit: int,
    work: Callable[..., None],
    columns: Array,
    image: Array,
    axes: tuple[Axis, ...],
    *more: Any,
) -> None:
    """Call work(columns, pixels, axes, *more) for tiles of at most `limit` pixels, on `threads` threads."""
    if threads == 1 and image.size <= limit:
        return work(columns, image, axes, *more)
    parts = _parts(image.shape, axes, limit, threads, image.strides, strides_of_blocks(columns))
    for_each(work, [(columns[blocks], image[pixels], some, *more) for blocks, pixels, some in parts], threads)


@kept
def _parts(
    shape: Size, axes: tuple[Axis, ...], limit: int, threads: int, *strides: Size
) -> tuple[tuple[Index, Index, tuple[Axis, ...]], ...]:
    """Return the tiles of an image for a number of threads: the indices of columns and pixels, and the axes."""
    taps = (ALL,) * len(axes)
    cut = cut_into_tiles(shape, axes, limit, threads, *strides)
    return tuple([((*each.pixels[:2], *taps, *each.blocks), each.pixels, each.axes) for each in cut])


def strides_of_blocks(columns: Array) -> Size:
    """Return the strides of split columns along the axes that an image has: (N, C, *blocks)."""
    return columns.strides[:2] + columns.strides[1 + columns.ndim // 2 :]


def kept_bytes(shape: Size, strides: Size) -> int:
    """Return how many bytes of an array's rows stay in a core's cache."""
    return KEPT_BYTES // crowding(shape, strides)


def pixels_of(elements: int, columns: Array, image: Array) -> int:
    """Return how many pixels a number of column elements lands on."""
    return max(1, elements * image.size // max(1, columns.size))
