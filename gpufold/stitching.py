"""Tiles stitched as they come: sums, weights and their quotient, whole or slab by slab."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpufold import extras
from gpufold.arrays import device_of, library_of
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
    window : numpy.ndarray, cupy.ndarray, torch.Tensor or sequence of them, optional
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
        self._home: _Home | None = None
        """Where the sums live: that of the first batch."""
        self._sums: Any = None
        self._weight: Any = None

    def add(self, blocks: Any, positions: Any) -> None:
        """Add a batch of tiles.

        Parameters
        ----------
        blocks : numpy.ndarray, cupy.ndarray or torch.Tensor
            Tiles of shape (P, *lead, *block_shape), of floats or complex numbers. The first batch decides where the
            sums live, and their dtype: float32 for float16 and bfloat16, else that of the tiles. The average of tensors
            has their gradients.
        positions : numpy.ndarray, cupy.ndarray, torch.Tensor or sequence of sequences of int
            As in `add_blocks`; with `slabs=True` in the memory of the host.

        Raises
        ------
        TypeError
            An argument has the wrong type or dtype.
        ValueError
            Shapes, devices or memory do not fit together, or with `slabs=True` a tile begins before another that came
            earlier; nothing has been added then.
        """
        given = _home_of(blocks)
        home, element = self._home or given, ELEMENT_TYPES[given.dtype]
        if not element.weight:
            raise TypeError(
                f"Stitcher.add: blocks must be of floats or complex numbers, got dtype {given.dtype}; convert them"
            )
        if tuple(blocks.shape[1:]) != (*self._lead, *self._block):
            raise ValueError(
                f"Stitcher.add: blocks must be (number of positions, *lead, *block_shape) = (number of positions, "
                f"{', '.join(map(str, (*self._lead, *self._block)))}), got shape {tuple(blocks.shape)}"
            )
        rows, places, reached = self._size[0], positions, self._reached
        if self._slabs:
            places, reached = self._in_order(positions)
            rows = max(0, min(self._size[0], reached + self._block[0]) - self._begin)
        lead, sums, weight = len(self._lead), self._sums, self._weight
        with home.device:
            if sums is None:
                dtype = WIDER[home.dtype] if element.is_half else home.dtype
                sums = home.zeros((*self._lead, rows, *self._size[1:]), dtype=home.dtype_of(dtype))
                weight = home.zeros(sums.shape[lead:], dtype=home.dtype_of(element.weight))
            elif sums.shape[lead] < rows:
                sums, weight = _grown(home, sums, rows, lead), _grown(home, weight, rows, 0)
            home.add_blocks(sums, blocks, places, self._window, weight_out=weight)
        self._home, self._sums, self._weight, self._reached = home, sums, weight, reached

    def _in_order(self, positions: Any) -> tuple[Any, int]:
        """Return positions from the first row of the sums on, as a list, and the first coordinate of the last."""
        if getattr(positions, "is_cpu", False):  # a tensor
            positions = positions.numpy()
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
        numpy.ndarray, cupy.ndarray or torch.Tensor, or tuple
            The average; with `slabs=True` ``(start, slab)`` as from `finished`, of all rows not given before.

        Raises
        ------
        ValueError
            No tile was added.
        """
        if self._slabs:
            return self._give(self._size[0])
        return self._begun("result").average(self._sums, self._weight)

    def finished(self) -> tuple[int, Any]:
        """Return ``(start, slab)``: the rows that no later tile can reach and that were not given before.

        Returns
        -------
        tuple of int and numpy.ndarray, cupy.ndarray or torch.Tensor
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
        home = self._begun("finished" if end < self._size[0] else "result")
        lead, begin, count = len(self._lead), self._begin, max(0, end - self._begin)
        given, kept = (slice(None),) * lead + (slice(0, count),), (slice(None),) * lead + (slice(count, None),)
        with home.device:
            slab, weight = _grown(home, self._sums[given], count, lead), _grown(home, self._weight[:count], count, 0)
            rest = max(0, self._weight.shape[0] - count)
            self._sums = _grown(home, self._sums[kept], rest, lead)
            self._weight = _grown(home, self._weight[count:], rest, 0)
        self._begin += count
        if count:  # whatever comes later begins below
            self._reached = max(self._reached, self._begin)
        return begin, home.average(slab, weight)

    def _begun(self, method: str) -> _Home:
        """Return where the sums live."""
        if self._home is None:
            raise ValueError(f"Stitcher.{method}: no tile was added, so that nothing says where the result would be")
        return self._home


class _Home(NamedTuple):
    """Where the sums of tiles live: their library's functions, gpufold's for its arrays, and their device."""

    dtype: str
    """NumPy's name for the dtype of the tiles."""
    dtype_of: Callable[[str], Any]
    zeros: Callable[..., Any]
    add_blocks: Callable[..., Any]
    average: Callable[[Any, Any], Any]
    device: AbstractContextManager[Any]


def _home_of(blocks: Any) -> _Home:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(blocks, torch.Tensor):
        ours = extras.load("torch")
        name = ours.tensors.described("Stitcher.add", "blocks", blocks).dtype.name
        zeros, dtype_of = partial(torch.zeros, device=blocks.device), partial(getattr, torch)
        return _Home(name, dtype_of, zeros, ours.add_blocks_, ours.average, nullcontext())
    library = library_of("Stitcher.add", "blocks", blocks)
    check_dtype("Stitcher.add", "blocks", blocks.dtype)
    name, device = name_of(blocks.dtype), device_of(library, blocks)
    return _Home(name, np.dtype, library.zeros, _add_arrays, average, device)


def _add_arrays(out: Any, blocks: Any, positions: Any, window: Any, *, weight_out: Any) -> None:
    """Add blocks, whose positions may be in the memory of the host where they are a GPU's."""
    if isinstance(positions, np.ndarray) and not isinstance(out, np.ndarray):
        positions = positions.tolist()
    add_blocks(out, blocks, positions, window, weight_out=weight_out)


def _grown(home: _Home, array: Any, rows: int, axis: int) -> Any:
    """Return an array of that many rows along an axis, first those of another and then zeros."""
    zeros = home.zeros((*array.shape[:axis], rows, *array.shape[axis + 1 :]), dtype=array.dtype)
    zeros[(slice(None),) * axis + (slice(0, array.shape[axis]),)] = array
    return zeros
