"""Add or extract large blocks one after another; many weights are multiplied where they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from gpufold.cpu.arithmetic import ALL, Array, Factors, Index, add_pairs
from gpufold.geometry import Axes, Axis


def fold_blocks(columns: Array, image: Array, axes: Axes, weights: Factors | Array | None) -> None:
    """Add split columns into an image, every element of which is written."""
    if isinstance(weights, Factors):
        factors = _spread(weights, columns)
    else:
        factors = Factors() if weights is None else Factors([weights])
    image[...] = np.zeros((), image.dtype)
    add_pairs(image, columns, factors, _blocks_of(axes))


def unfold_blocks(image: Array, columns: Array, axes: Axes, weights: Factors) -> Iterator[tuple[Array, Factors, Array]]:
    """Yield what to multiply: elements of an image, their weights, and the split columns that they are stored in."""
    spread = _spread(weights, columns)
    for pixels, terms in _blocks_of(axes):
        yield image[pixels], spread.part(terms), columns[terms]


def _spread(weights: Factors, columns: Array) -> Factors:
    """View factors in the shape of split columns."""
    return weights.part((..., *(None,) * (columns.ndim // 2 - 1))).over(columns.shape)


def _along(axis: Axis) -> Iterator[tuple[slice, slice, int]]:
    """Yield the pixels and taps of each block that lies at least partly inside, and its number, the last one first."""
    for block in reversed(range(axis.blocks)):
        if taps := axis.turned.reach(block):
            first, last = axis.pixel(block, taps[0]), axis.pixel(block, taps[-1])
            yield slice(first, last + 1, axis.dilation), slice(taps.start, taps.stop), block


def _blocks_of(axes: Axes) -> Iterator[tuple[Index, Index]]:
    """Yield the indices of the pixels of each block inside an image, and of its elements in the split columns.

    Blocks are in descending order: the taps of a pixel are then in ascending order.
    """
    for blocks in product(*map(_along, axes)):
        pixels, taps, numbers = zip(*blocks, strict=True)
        yield (ALL, ALL, *pixels), (ALL, ALL, *taps, *numbers)
