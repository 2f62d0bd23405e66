"""Sections of an image, each a problem of its own."""

from __future__ import annotations

from itertools import product
from math import gcd, prod
from typing import NamedTuple

from gpufold.geometry.axes import Axis
from gpufold.geometry.integers import Size
from gpufold.keeping import kept

LINE_BYTES, SETS_BYTES = 64, 1 << 12
"""Of a line of a cache, which fetches two at a time; and from one line to the next in the same set of it."""


class Tile(NamedTuple):
    """Some planes of an image and a section of it, as a problem of its own."""

    pixels: tuple[slice, ...]
    blocks: tuple[slice, ...]
    axes: tuple[Axis, ...]


def cut_into_tiles(shape: Size, axes: tuple[Axis, ...], limit: int, *strides: Size) -> list[Tile]:
    """Cut an image into tiles of at most `limit` pixels, as `parts_of` does: into whole cells and lines of a cache."""
    cells = (1, 1, *(axis.stride for axis in axes))
    units = tuple(-(-few // cell) * cell for few, cell in zip(lines_of(shape, *strides), cells, strict=True))
    tiles = []
    for pixels in parts_of(shape, limit, units):
        sections = [axis.section(piece.start, piece.stop) for axis, piece in zip(axes, pixels[2:], strict=True)]
        blocks = tuple(slice(blocks.start, blocks.stop) for _, blocks in sections)
        tiles.append(Tile(pixels, blocks, tuple(axis for axis, _ in sections)))
    return tiles


@kept
def parts_of(shape: Size, limit: int, units: Size = ()) -> tuple[tuple[slice, ...], ...]:
    """Cut an array from the outermost axis inwards until each part has at most `limit` elements, in whole units."""
    steps = []
    for number, (extent, unit) in enumerate(zip(shape, units or (1,) * len(shape), strict=True)):
        fit = max(1, limit // prod(shape[number + 1 :]))
        step = extent if fit >= extent else max(unit, fit // unit * unit)
        pieces = -(-extent // step)
        step = -(-extent // pieces // unit) * unit  # of equal length, rather than a short one at the end
        steps.append([slice(start, min(start + step, extent)) for start in range(0, extent, step)])
        limit = max(1, limit // min(step, extent))
    return tuple(product(*steps))


@kept
def lines_of(shape: Size, *strides: Size) -> Size:
    """Return the units in which parts of arrays with such strides, in bytes, use lines of a cache as a whole.

    These are several elements along the axis whose neighbours lie closest, unless that is the last.
    """
    units = [1] * len(shape)
    for steps in strides:
        apart = [(abs(step), number) for number, step in enumerate(steps) if step and shape[number] > 1]
        step, closest = min(apart, default=(LINE_BYTES, 0))
        if closest + 1 < len(shape) and step < LINE_BYTES:
            units[closest] = 2 * LINE_BYTES // step
    return tuple(units)


@kept
def crowding(shape: Size, strides: Size) -> int:
    """Return in one of how many sets of a cache rows of an array lie: many, where their steps are many lines."""
    step = next((abs(step) for step, extent in zip(strides[::-1], shape[::-1], strict=True) if step and extent > 1), 1)
    return max(1, gcd(step, SETS_BYTES) // LINE_BYTES)
