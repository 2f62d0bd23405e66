"""Sections of an image, each a problem of its own."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import NamedTuple

from gpufold.geometry.axes import Axis
from gpufold.geometry.integers import Size
from gpufold.keeping import kept


class Tile(NamedTuple):
    """Some planes of an image and a section of it, as a problem of its own."""

    pixels: tuple[slice, ...]
    blocks: tuple[slice, ...]
    axes: tuple[Axis, ...]


@kept
def cut_into_tiles(shape: Size, axes: tuple[Axis, ...], limit: int, channels_last: bool = False) -> tuple[Tile, ...]:
    """Cut an image into tiles of at most `limit` pixels, as `parts_of` does; along an axis, by whole cells."""
    tiles = []
    for pixels in parts_of(shape, limit, channels_last, (1, 1, *(axis.stride for axis in axes))):
        sections = [axis.section(piece.start, piece.stop) for axis, piece in zip(axes, pixels[2:], strict=True)]
        blocks = tuple(slice(blocks.start, blocks.stop) for _, blocks in sections)
        tiles.append(Tile(pixels, blocks, tuple(axis for axis, _ in sections)))
    return tuple(tiles)


@kept
def parts_of(
    shape: Size, limit: int, channels_last: bool = False, units: Size | None = None
) -> tuple[tuple[slice, ...], ...]:
    """Cut an array from the outermost axis inwards until each part has at most `limit` elements, in whole units.

    Where channels, the second axis, are last in memory, those of a pixel stay together as long as they can.
    """
    order = (0, *range(2, len(shape)), 1) if channels_last else tuple(range(len(shape)))
    steps: list[list[slice]] = [[]] * len(shape)
    for place, number in enumerate(order):
        extent, unit = shape[number], units[number] if units else 1
        inner = prod(shape[inward] for inward in order[place + 1 :])
        fit = max(1, limit // inner)
        step = extent if fit >= extent else max(unit, fit // unit * unit)
        pieces = -(-extent // step)
        step = -(-extent // pieces // unit) * unit  # of equal length, rather than a short one at the end
        steps[number] = [slice(start, min(start + step, extent)) for start in range(0, extent, step)]
        limit = max(1, limit // min(step, extent))
    return tuple(product(*steps))
