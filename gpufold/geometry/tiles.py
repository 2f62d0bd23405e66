"""Tiles of an image: sections that are processed independently."""

from __future__ import annotations

from itertools import product
from math import gcd, prod
from typing import NamedTuple

from gpufold.geometry.axes import Axis
from gpufold.geometry.integers import Size
from gpufold.keeping import kept

LINE_BYTES, SETS_BYTES = 64, 1 << 12
"""Bytes of a cache line (caches fetch two at a time), and between lines of the same cache set."""


EVEN = 1.1
"""Ratio of the longest share to an equal share that counts as even."""


class Tile(NamedTuple):
    """Some planes of an image and a section of them, as an independent problem."""

    pixels: tuple[slice, ...]
    blocks: tuple[slice, ...]
    axes: tuple[Axis, ...]


def cut_into_tiles(shape: Size, axes: tuple[Axis, ...], limit: int, threads: int, *strides: Size) -> list[Tile]:
    """Cut an image into tiles of at most `limit` pixels, of whole cells and cache lines, as `parts_of` does."""
    cells = (1, 1, *(axis.stride for axis in axes))
    units = tuple(-(-few // cell) * cell for few, cell in zip(lines_of(shape, *strides), cells, strict=True))
    tiles = []
    for pixels in parts_of(shape, limit, units, threads):
        sections = [axis.section(piece.start, piece.stop) for axis, piece in zip(axes, pixels[2:], strict=True)]
        blocks = tuple(slice(blocks.start, blocks.stop) for _, blocks in sections)
        tiles.append(Tile(pixels, blocks, tuple(axis for axis, _ in sections)))
    return tiles


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


@kept
def crowding(shape: Size, strides: Size) -> int:
    """Return the factor by which rows of an array use fewer cache sets: large if their strides are many lines."""
    step = next((abs(step) for step, extent in zip(strides[::-1], shape[::-1], strict=True) if step and extent > 1), 1)
    return max(1, gcd(step, SETS_BYTES) // LINE_BYTES)
