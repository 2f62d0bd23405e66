"""Blocks by slices: each is one addition, of all its taps in all planes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpufold.cpu.arithmetic import Array, Index, add_pairs
from gpufold.geometry import Axis, Size


def fold_slices(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    """Add split columns into an image, the last block first, so that the taps of a pixel come in ascending order."""
    rank = len(axes)
    blocks_first = (*range(2 + rank, 2 + 2 * rank), *range(2 + rank))
    numbers = np.indices([axis.blocks for axis in axes]).reshape(rank, -1).T[::-1]
    strides, pads = ([getattr(axis, name) for axis in axes] for name in ("stride", "pad_begin"))
    weights = None if weights is None else weights.transpose(blocks_first)
    image[...] = 0
    add_slices(image, columns.transpose(blocks_first), weights, numbers.tolist(), numbers * strides - pads)


def placed(first: Array, block: Size, size: Size) -> Iterator[tuple[int, Index, Index]]:
    """Yield the number of each block that meets an array, the pixels that it meets, and with which taps."""
    for number, pixel in enumerate(first.tolist()):
        spans = [(p, max(p, 0), min(p + taps, end)) for p, taps, end in zip(pixel, block, size, strict=True)]
        if all(start < stop for _, start, stop in spans):
            taps = (slice(start - p, stop - p) for p, start, stop in spans)
            yield number, (..., *(slice(start, stop) for _, start, stop in spans)), (..., *taps)


def add_slices(total: Array, blocks: Array, weights: Array | None, numbers: list[list[int]], first: Array) -> None:
    """Add blocks, by their numbers along its first axes, at their first pixels (count, rank), one after another."""
    rank = first.shape[1]
    met = placed(first, blocks.shape[-rank:], total.shape[-rank:])
    pairs = ((pixels, (*numbers[number], *taps)) for number, pixels, taps in met)
    if total.dtype.kind == "c" and blocks.shape[-1] >= 128:
        np.setbufsize(16)  # the least, until errstate ends: NumPy copies complex rows into buffers that are larger
    add_pairs(total, blocks, weights, pairs)
