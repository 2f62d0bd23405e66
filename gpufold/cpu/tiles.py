"""Tiles of an image: planes first, then sections of the axes; and how many threads they are worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpufold.cores import cache_bytes
from gpufold.cpu.arithmetic import ALL, Array
from gpufold.geometry import Axis
from gpufold.geometry.tiles import cut_into_tiles
from gpufold.threads import for_each, is_short, on_threads

CACHE_BYTES = cache_bytes()
"""Of a core, for what it works on at a time."""

SMALL_ELEMENTS = 1 << 14
"""Column elements up to which starting array operations takes longer than to add each by its index."""

TILE_ELEMENTS = 1 << 19
"""Pixels of a tile at most: its scratch is all a call needs."""

STEP_ELEMENTS = 1 << 14
"""Of columns in an array operation, from which it takes long beside starting it: that is Python's, one at a time."""

LINE_BYTES = 64
"""Of a cache."""

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
        channels_last = channels_are_last(image, 2) or channels_are_last(columns, image.ndim)
        cut = cut_into_tiles(image.shape, axes, most, channels_last)
        if len(cut) % threads and len(cut) < 4 * threads:  # threads would wait for the last of few
            cut = cut_into_tiles(image.shape, axes, max(1, most // 2), channels_last)
        taps = (ALL,) * len(axes)
        parts = [(columns[(*each.pixels[:2], *taps, *each.blocks)], image[each.pixels], each.axes) for each in cut]
        for_each(work, [(*part, *more) for part in parts], threads)

    on_threads((work, axes, columns.dtype, columns.shape, columns.strides, image.strides), size, on)


def channels_are_last(array: Array, first: int) -> bool:
    """Return whether channels, lines of the cache of them, lie closer in memory than all axes from the first on."""
    channels, step = array.shape[1], abs(array.strides[1])
    others = [abs(each) for each, extent in zip(array.strides[first:], array.shape[first:], strict=True) if extent > 1]
    return channels * step >= LINE_BYTES and step < min(others, default=0)


def pixels_of(elements: int, columns: Array, image: Array) -> int:
    """Return how many pixels so many column elements land on."""
    return max(1, elements * image.size // max(1, columns.size))
