"""Tiles of an image: planes first, then sections of the axes."""

from __future__ import annotations

from gpufold.cpu.arithmetic import ALL, Array
from gpufold.geometry import Axis
from gpufold.geometry.tiles import cut_into_tiles
from gpufold.threads import get_num_threads

TILE_ELEMENTS = 1 << 19
"""Pixels of a tile at most: its scratch stays in the caches, and is all a call needs."""

THREADED_ELEMENTS = 1 << 20
"""Column elements from which a call is worth spreading over threads."""

SCATTERED_ELEMENTS = 1 << 17
"""Column elements of a tile, where they are shorter: taps are then scattered, and should find it in the caches."""


def tiles_of(
    columns: Array, image: Array, axes: tuple[Axis, ...], limit: int
) -> list[tuple[Array, Array, tuple[Axis, ...]]]:
    """Cut an image into tiles of `limit` pixels at most, one for each thread at least: columns, pixels and axes."""
    taps = (ALL,) * len(axes)
    cut = cut_into_tiles(image.shape, axes, min(limit, -(-image.size // get_num_threads())))
    return [(columns[(*each.pixels[:2], *taps, *each.blocks)], image[each.pixels], each.axes) for each in cut]
