"""Tiles stitched as they come: sums, weights and their quotient, whole or slab by slab."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpufold.arrays import device_of, library_of, native
from gpufold.elements import ELEMENT_TYPES, WIDER, check_dtype, name_of
from gpufold.geometry import as_integers
from gpufold.positions import add_blocks, average


class Stitcher:
    """Average tiles that come in batches into one array: what follows the network in sliding-window inference.

    >>> import numpy as np, gpufold
    >>> picture = np.arange(48.0, dtype=np.float32).reshape(6, 8)
    >>> positions = gpufold.grid_positions((6, 8), (4, 4), 3)
    >>> stitcher = gpufold.Stitcher((6, 8), (4, 4))
    >>> for batch in np.array_split(positions, 2):
    ...     stitcher.add(gpufold.take_blocks(picture, batch, (4, 4)), batch)
    >>> np.array_equal(stitcher.result(), picture)
    True

    Every element of the result is the mean of the tiles' elements that lie on it, weighted by the window, and zero
    where none does. Tiles are added in their order: the bits do not depend on how they are batched.

    Parameters
    ----------
    shape : sequence of int
        Shape (*lead, *size) of the result.
    block_shape : sequence of int
        Elements of a tile along each of the last axes, at least 1.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a tile's elements, as in `add_blocks`, of the library of the tiles.
    slabs : bool
        Keep no more than the rows, along the first axis of `size`, that tiles still reach: tiles then come in ascending
        order of their first coordinate, and `finished` gives the rows that no later tile can reach.

    Raises
    ------
    TypeError, ValueError
        Sizes are no integers, out of range or do not fit together.
    """

    def __init__(self, shape: Any, block_shape: Any, *, window: Any = None, slabs: bool = False) -> None:
        extents, block = (
            as_integers("Stitcher", name, given) for name, given in (("shape", shape), ("block_shape", block_shape))
        )
        extents, block = ((given,) if isinstance(given, int) else given for given in (extents, block))
        if not block or len(block) > len(extents) or min(block) < 1 or min(extents) < 0:
            raise ValueError(
                "Stitcher: shape must be (*lead, *size) of extents of at least 0, and block_shape have one value of at "
                f"least 1 for each axis of size, at least one, got shape={extents} and block_shape={block}"
            )
        self._lead, self._size = extents[: len(extents) - len(block)], extents[len(extents) - len(block) :]
        self._block, self._window, self._slabs = block, window, slabs
        self._begin = 0
        """The first row of the sums."""
        self._reached = -block[0]
        """The first coordinate of the last tile."""
        self._sums: Any = None
        self._weight: Any = None

    def add(self, blocks: Any, positions: Any) -> None:
        """Add a batch of tiles.

        Parameters
        ----------
        blocks : numpy.ndarray or cupy.ndarray
            Tiles of shape (P, *lead, *block_shape), of floats or complex numbers. The first batch decides where the
            sums live, and their dtype: float32 for float16 and bfloat16, else that of the tiles.
        positions : numpy.ndarray, cupy.ndarray or sequence of sequences of int
            As in `add_blocks`; with `slabs=True` in the memory of the host.

        Raises
        ------
        TypeError
            An argument has the wrong type or dtype.
        ValueError
            Shapes, devices or memory do not fit together, or with `slabs=True` a tile begins before another that came
            earlier; nothing has been added then.
        """
        library = library_of("Stitcher.add", "blocks", blocks)
        check_dtype("Stitcher.add", "blocks", blocks.dtype)
        name = name_of(blocks.dtype)
        if not ELEMENT_TYPES[name].weight:
            raise TypeError(
                f"Stitcher.add: blocks must be of floats or complex numbers, got dtype {blocks.dtype}; "
                "convert them with blocks.astype"
            )
        if blocks.shape[1:] != (*self._lead, *self._block):
            raise ValueError(
                f"Stitcher.add: blocks must be (number of positions, *lead, *block_shape) = (number of positions, "
                f"{', '.join(map(str, (*self._lead, *self._block)))}), got shape {blocks.shape}"
            )
        rows, places, reached = self._size[0], positions, self._reached
        if self._slabs:
            places, reached = self._in_order(positions)
            rows = max(0, min(self._size[0], reached + self._block[0]) - self._begin)
        elif library is not np and isinstance(positions, np.ndarray):
            places = positions.tolist()
        dtype = np.dtype(WIDER[name]) if ELEMENT_TYPES[name].is_half else native(blocks.dtype)
        sums, weight = self._sums, self._weight
        with device_of(library, blocks):
            if sums is None or sums.shape[len(self._lead)] < rows:
                kind = dtype if sums is None else sums.dtype
                sums = _grown(library, sums, (*self._lead, rows, *self._size[1:]), kind, len(self._lead))
                weight = _grown(library, weight, (rows, *self._size[1:]), ELEMENT_TYPES[kind.name].weight, 0)
            ones = library.broadcast_to(library.asarray(np.ones(1, weight.dtype)), (len(blocks), *self._block))
            add_blocks(sums, blocks, places, self._window)
            add_blocks(weight, ones, places, self._window)
        self._sums, self._weight, self._reached = sums, weight, reached

    def _in_order(self, positions: Any) -> tuple[Any, int]:
        """Return positions from the first row of the sums on, as a list, and the first coordinate of the last."""
        if hasattr(positions, "dtype") and not isinstance(positions, np.ndarray):
            raise TypeError(
                "Stitcher.add: positions must be in the memory of the host with slabs=True, a numpy.ndarray or a "
                f"sequence, got {type(positions).__module__}.{type(positions).__qualname__}"
            )
        places = np.asarray(positions)
        if places.size == 0:
            return places.astype(np.int64).reshape(-1, len(self._size)), self._reached
        if places.ndim != 2 or places.dtype.kind not in "iu":
            return positions, self._reached  # which add_blocks refuses
        first = [min(max(place, -self._block[0]), self._size[0]) for place in places[:, 0].tolist()]
        if first != sorted(first) or first[0] < self._reached:
            raise ValueError(
                "Stitcher.add: positions must come in ascending order of their first coordinate with slabs=True, got "
                f"{places[:, 0].tolist()} after {self._reached}"
            )
        rest = places[:, 1:].tolist()
        return [[row - self._begin, *others] for row, others in zip(first, rest, strict=True)], first[-1]

    def result(self) -> Any:
        """Return the average of the tiles that were added, which may go on; the rest, with `slabs=True`.

        Returns
        -------
        numpy.ndarray or cupy.ndarray, or tuple
            The average; with `slabs=True` ``(start, slab)`` as from `finished`, of all rows not given before.

        Raises
        ------
        ValueError
            No tile was added.
        """
        if self._slabs:
            return self._give(self._size[0])
        self._check_begun("result")
        return average(self._sums, self._weight)

    def finished(self) -> tuple[int, Any]:
        """Return ``(start, slab)``: the rows that no later tile can reach and that were not given before.

        Returns
        -------
        tuple of int and numpy.ndarray or cupy.ndarray
            The number of the slab's first row, and the average of its rows, of which there may be none.

        Raises
        ------
        ValueError
            `slabs` is False, or no tile was added.
        """
        if not self._slabs:
            raise ValueError("Stitcher.finished: there are slabs with slabs=True only; result() gives the whole array")
        return self._give(max(0, self._reached))

    def _give(self, end: int) -> tuple[int, Any]:
        """Take the rows before one out of the sums, and return the first of them and their average."""
        self._check_begun("finished" if end < self._size[0] else "result")
        library, lead, begin = library_of("Stitcher", "sums", self._sums), len(self._lead), self._begin
        count = max(0, end - begin)
        given, kept = (slice(None),) * lead + (slice(0, count),), (slice(None),) * lead + (slice(count, None),)
        with device_of(library, self._sums):
            shape = (*self._lead, count, *self._size[1:])
            slab = _grown(library, self._sums[given], shape, self._sums.dtype, lead)
            weight = _grown(library, self._weight[:count], shape[lead:], self._weight.dtype, 0)
            self._sums, self._weight = self._sums[kept].copy(), self._weight[count:].copy()
        self._begin += count
        if count:  # whatever comes later begins below
            self._reached = max(self._reached, self._begin)
        return begin, average(slab, weight, out=slab)

    def _check_begun(self, method: str) -> None:
        if self._sums is None:
            raise ValueError(f"Stitcher.{method}: no tile was added, so that nothing says where the result would be")


def _grown(library: Any, array: Any, shape: tuple[int, ...], dtype: Any, axis: int) -> Any:
    """Return zeros in which an array, if there is one, is the first part along an axis."""
    zeros = library.zeros(shape, dtype)
    if array is not None and prod(array.shape):
        zeros[(slice(None),) * axis + (slice(0, array.shape[axis]),)] = array
    return zeros
