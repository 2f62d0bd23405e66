"""Tiles of an image: planes first, then sections of the axes."""

from __future__ import annotations

from math import prod

from gpufold.cpu.arithmetic import ALL, Array
from gpufold.geometry import Axis, Size
from gpufold.geometry.tiles import Tile, cut_into_tiles
from gpufold.threads import get_num_threads

TILE_ELEMENTS = 1 << 19
"""Pixels of a tile at most: its scratch stays in the caches, and is all a call needs."""

THREADED_ELEMENTS = 1 << 20
"""Column elements from which a call is worth spreading over threads."""

SCATTERED_ELEMENTS = 1 << 17
"""Column elements of a tile, where they are shorter: taps are then scattered, and should find it in the caches."""


def cut(columns: Array, tile: Tile) -> Array:
    """Return the columns that reach a tile."""
    return columns[(*tile.pixels[:2], *(ALL,) * len(tile.axes), *tile.blocks)]


def tiles_of(shape: Size, axes: tuple[Axis, ...], limit: int) -> tuple[Tile, ...]:
    """Cut an image (N, C, *size) into tiles of `limit` pixels at most, and at least one for each thread."""
    return cut_into_tiles(shape, axes, min(limit, -(-prod(shape) // get_num_threads())))
