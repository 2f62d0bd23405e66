"""Tiles of an image: planes first, then sections of the axes; and how many threads they are worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpufold.cores import cache_bytes
from gpufold.cpu.arithmetic import ALL, Array
from gpufold.geometry import Axis, Size
from gpufold.geometry.tiles import crowding, cut_into_tiles
from gpufold.threads import for_each, is_short, on_threads

CACHE_BYTES = cache_bytes()
"""Of a core, for what it works on at a time."""

KEPT_BYTES = CACHE_BYTES // 4
"""Of the pixels of a tile, or of a part of a view, that stay in a core's cache from tap to tap."""

SMALL_ELEMENTS = 1 << 14
"""Column elements up to which starting array operations takes longer than to add each by its index."""

TILE_ELEMENTS = 1 << 19
"""Pixels of a tile at most: its scratch is all a call needs."""

STEP_ELEMENTS = 1 << 14
"""Of columns in an array operation, from which it takes long beside starting it: that is Python's, one at a time."""

TILE_STEPS = 8
"""Array operations on a tile besides those that add or move columns."""


def for_each_tile(
    work: Callable[..., None], columns: Array, image: Array, axes: tuple[Axis, ...], limit: int, *more: Any
) -> None:
    """Call work(columns, pixels, axes, *more) for tiles of `limit` pixels at most."""
    size = max(columns.nbytes, image.nbytes)
    if image.size <= limit and is_short(size):
        return work(columns, image, axes, *more)

    def on(threads: int) -> None:
        most = min(limit, -(-image.size // threads))
        taps = (ALL,) * len(axes)
        strides = (image.strides, strides_of_blocks(columns))
        cut = cut_into_tiles(image.shape, axes, most, *strides)
        if len(cut) % threads and len(cut) < 4 * threads:  # threads would wait for the last of few
            cut = cut_into_tiles(image.shape, axes, max(1, most // 2), *strides)
        parts = [(columns[(*each.pixels[:2], *taps, *each.blocks)], image[each.pixels], each.axes) for each in cut]
        for_each(work, [(*part, *more) for part in parts], threads)

    on_threads((work, axes, columns.dtype, columns.shape, columns.strides, image.strides), size, on)


def strides_of_blocks(columns: Array) -> Size:
    """Return the strides of split columns along the axes that an image has: (N, C, *blocks)."""
    return columns.strides[:2] + columns.strides[1 + columns.ndim // 2 :]


def kept_bytes(array: Array) -> int:
    """Return how many bytes of an array's rows stay in a core's cache."""
    return KEPT_BYTES // crowding(array.shape, array.strides)


def pixels_of(elements: int, columns: Array, image: Array) -> int:
    """Return how many pixels so many column elements land on."""
    return max(1, elements * image.size // max(1, columns.size))
