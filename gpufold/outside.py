"""What lies outside of an array: `numpy.pad`'s modes by index, on arrays of any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

BY_INDEX = ("reflect", "symmetric", "wrap")
"""The modes in which blocks are taken by an index of every element, and by no kernel."""


def period_of(extent: int, mode: str) -> int:
    """Return after how many elements an axis repeats itself."""
    return extent if mode == "wrap" else max(1, 2 * extent - 2 * (mode == "reflect"))


def folded(library: Any, along: Any, extent: int, mode: str) -> Any:
    """Return where integers of any size lie along an axis that repeats itself as a mode says.

    >>> import numpy as np
    >>> [folded(np, np.arange(-3, 6), 3, mode).tolist() for mode in ("reflect", "symmetric")]
    [[1, 2, 1, 0, 1, 2, 1, 0, 1], [2, 1, 0, 0, 1, 2, 2, 1, 0]]
    """
    period = period_of(extent, mode)
    along = along % period
    return along if mode == "wrap" else library.minimum(along, period - (mode == "symmetric") - along)


def taken(
    library: Any,
    arange: Callable[[int], Any],
    to_blocks: Callable[..., Any],
    array: Any,
    positions: Any,
    block: Sequence[int],
    mode: str,
) -> Any:
    """Return blocks (P, *lead, *block) of an array that goes on beyond its ends, weighted as `to_blocks` does."""
    rank = len(block)
    lead = array.ndim - rank
    index = []
    for axis, (extent, side) in enumerate(zip(array.shape[lead:], block, strict=True)):
        begin = positions[:, axis, None] % period_of(extent, mode)  # small, to be added to
        along = folded(library, begin + arange(side), extent, mode)
        index.append(along.reshape(-1, *(1,) * axis, side, *(1,) * (rank - 1 - axis)))
    blocks = library.moveaxis(array[(..., *index)], lead, 0)
    return to_blocks(blocks, block, strides=block).reshape(blocks.shape)
