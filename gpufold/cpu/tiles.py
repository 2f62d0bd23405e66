"""Tiles of an image: planes first, then sections of the axes, each a problem of its own."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from gpufold.cpu.arithmetic import ALL, Array, Index
from gpufold.geometry import Axis, Size
from gpufold.threads import get_num_threads

TILE_ELEMENTS = 1 << 19
"""Pixels of a tile at most: its scratch stays in the caches, and is all a call needs."""

THREADED_ELEMENTS = 1 << 20
"""Column elements from which a call is worth spreading over threads."""

SCATTERED_ELEMENTS = 1 << 17
"""Column elements of a tile, where they are shorter: taps are then scattered, and should find it in the caches."""


class Tile(NamedTuple):
    """Some planes of an image and a section of it, as a problem of its own."""

    pixels: Index
    blocks: tuple[slice, ...]
    axes: tuple[Axis, ...]


def cut(columns: Array, tile: Tile) -> Array:
    """Return the columns that reach a tile."""
    return columns[(*tile.pixels[:2], *(ALL,) * len(tile.axes), *tile.blocks)]


def tiles_of(shape: Size, axes: tuple[Axis, ...], limit: int) -> tuple[Tile, ...]:
    """Cut an image (N, C, *size) into tiles of `limit` pixels at most, and at least one for each thread."""
    return cut_into_tiles(shape, axes, min(limit, -(-prod(shape) // get_num_threads())))


@lru_cache(maxsize=256)
def cut_into_tiles(shape: Size, axes: tuple[Axis, ...], limit: int) -> tuple[Tile, ...]:
    """Cut from the outermost axis inwards until a tile has at most `limit` pixels; along an axis, by whole cells."""
    units = (1, 1, *(axis.stride for axis in axes))
    steps = []
    for number, (extent, unit) in enumerate(zip(shape, units, strict=True)):
        inner = prod(shape[number + 1 :])
        fit = max(1, limit // inner)
        step = extent if fit >= extent else max(unit, fit // unit * unit)
        pieces = -(-extent // step)
        step = -(-extent // pieces // unit) * unit  # of equal length, rather than a short one at the end
        steps.append([slice(start, min(start + step, extent)) for start in range(0, extent, step)])
        limit = max(1, limit // step)
    tiles = []
    for pixels in product(*steps):
        sections = [axis.section(piece.start, piece.stop) for axis, piece in zip(axes, pixels[2:], strict=True)]
        blocks = tuple(slice(blocks.start, blocks.stop) for _, blocks in sections)
        tiles.append(Tile(pixels, blocks, tuple(axis for axis, _ in sections)))
    return tuple(tiles)
