"""Elements outside an array: `numpy.pad`'s modes as indices, for arrays of any library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

BY_INDEX = ("reflect", "symmetric", "wrap")
"""Modes without a kernel: blocks are extracted by an index of every element."""

Margins: TypeAlias = Iterable[tuple[int, int]]
"""Elements before the begin and beyond the end of the last axes."""


@contextmanager
def in_memory_of(operation: str, library: Any) -> Iterator[None]:
    """Prefix NumPy's errors of too little memory with the name of the operation; CuPy's have a type of their own."""
    try:
        yield
    except MemoryError as error:
        if library.__name__ != "numpy":
            raise
        raise MemoryError(f"{operation}: {error}") from None


def period_of(extent: int, mode: str) -> int:
    """Return the period, in elements, of an axis that is extended in a mode."""
    return extent if mode == "wrap" else max(1, 2 * extent - 2 * (mode == "reflect"))


def _remainder(along: Any, period: Any) -> Any:
    """Return coordinates modulo a period, which is a symbol if sizes are traced: torch exports no remainder by one."""
    return along % (period if isinstance(period, int) else along.new_full((), period))


def folded(library: Any, along: Any, extent: int, mode: str) -> Any:
    """Return the indices of coordinates, of any size, along an axis that is extended in a mode.

    >>> import numpy as np
    >>> [folded(np, np.arange(-3, 6), 3, mode).tolist() for mode in ("reflect", "symmetric")]
    [[1, 2, 1, 0, 1, 2, 1, 0, 1], [2, 1, 0, 0, 1, 2, 2, 1, 0]]
    """
    period = period_of(extent, mode)
    along = _remainder(along, period)
    return along if mode == "wrap" else library.minimum(along, period - int(mode == "symmetric") - along)


def index_of(library: Any, along: Any, extent: int, mode: str) -> Any:
    """Return the indices of coordinates near an axis that is extended in any mode but "constant"."""
    return along.clip(0, extent - 1) if mode == "edge" else folded(library, along, extent, mode)


def extended(library: Any, arange: Callable[[int, int], Any], array: Any, margins: Margins, mode: str) -> Any:
    """Return an array padded at both ends of its last axes, in any mode but "constant".

    >>> import numpy as np
    >>> [extended(np, np.arange, np.arange(3), [(1, 2)], mode).tolist() for mode in ("edge", "reflect", "wrap")]
    [[0, 0, 1, 2, 2, 2], [1, 0, 1, 2, 1, 0], [2, 0, 1, 2, 0, 1]]
    """
    for after, (begin, end) in enumerate(reversed(tuple(margins))):
        if not (begin or end):
            continue
        extent, axis = array.shape[-1 - after], -1 - after
        ends = []
        for along in (arange(-begin, 0), arange(extent, extent + end)):
            index = index_of(library, along, extent, mode)
            ends.append(array[(..., index, *(slice(None),) * after)])
        array = library.concatenate([ends[0], array, ends[1]], axis)
    return array


def taken(
    library: Any,
    arange: Callable[[int], Any],
    to_blocks: Callable[..., Any],
    array: Any,
    positions: Any,
    block: Sequence[int],
    mode: str,
) -> Any:
    """Return blocks (P, *lead, *block) of an array that is extended in a mode, weighted as `to_blocks` does."""
    rank = len(block)
    lead = array.ndim - rank
    index = []
    for axis, (extent, side) in enumerate(zip(array.shape[lead:], block, strict=True)):
        begin = _remainder(positions[:, axis, None], period_of(extent, mode))  # small, so that sums do not overflow
        along = folded(library, begin + arange(side), extent, mode)
        index.append(along.reshape(-1, *(1,) * axis, side, *(1,) * (rank - 1 - axis)))
    blocks = library.moveaxis(array[(..., *index)], lead, 0)
    return to_blocks(array=blocks, block_shape=block, strides=block).reshape(blocks.shape)
