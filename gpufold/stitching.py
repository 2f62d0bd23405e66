"""Average tiles that come in batches: `Stitcher`, in memory, in slabs or as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import wraps
from math import prod
from operator import lt
from threading import RLock
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, SupportsIndex, TypeVar, overload
from weakref import WeakSet

import numpy as np

from gpufold import extras
from gpufold.arrays import Positions, Shaped, Window
from gpufold.backends import Addition, backend_of, copy_of_window
from gpufold.calls import REDUCTIONS, Reduction
from gpufold.coverage import put
from gpufold.dispatch import front_of
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import ENDLESS, SINGLE, Extents, Sizes, stitched_sizes
from gpufold.given import check_number, flag, shown, word
from gpufold.names import suggests_keywords
from gpufold.rows import Rows, TileWeights
from gpufold.weights import BlockWeights, least_weight
from gpufold.windows import first_weights, known_window

Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    ArrayT = WithDefault("ArrayT", default=Any)
    WholeT = WithDefault("WholeT", default=ArrayT)

    class _Of(Generic[ArrayT, WholeT]):
        """For type checkers: Stitcher[A] returns arrays A, and with slabs=True pairs (start, A)."""

else:
    ArrayT = WholeT = Any
    _Of = {(ArrayT, WholeT): object}  # no base: help shows none


def _in_turn(method: Callable[Parameters, ResultT]) -> Callable[Parameters, ResultT]:
    """Let one thread at a time call a stitcher, and none after an interrupted addition.

    The lock is reentrant, because a signal handler must not wait for the call that it interrupts.
    """
    where = f"Stitcher.{method.__name__}"

    @wraps(method)
    def turn(*given: Parameters.args, **named: Parameters.kwargs) -> ResultT:
        stitcher: Any = given[0]
        with stitcher._lock:
            if stitcher._busy:
                raise RuntimeError(
                    f"{where}: another call of this stitcher is still running, interrupted by this signal handler or "
                    "finalizer; call again after it returns"
                )
            stitcher._busy = True
            try:
                if stitcher._open is not None and stitcher._open.torn:
                    raise RuntimeError(
                        f"{where}: an addition was interrupted, so some of its tiles may be missing; "
                        "create a new Stitcher"
                    )
                return method(*given, **named)
            finally:
                stitcher._busy = False

    return turn


_alive: WeakSet[Stitcher] = WeakSet()
"""All stitchers: a forked child frees the locks of threads that it does not have."""


def _free_locks() -> None:
    for stitcher in _alive:
        if stitcher._lock.acquire(blocking=False):
            stitcher._lock.release()
        else:
            stitcher._lock, stitcher._busy = RLock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


class Stitcher(_Of[ArrayT, WholeT]):
    """Average tiles that come in batches, as in sliding-window inference: in memory, in slabs or as a stream.

    ``(P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> image = np.arange(48.0, dtype=np.float32).reshape(6, 8)
    >>> positions = gpufold.grid_positions((6, 8), 4, strides=3)
    >>> stitcher = gpufold.Stitcher((6, 8), 4)
    >>> for batch in np.array_split(positions, 2):
    ...     stitcher.add(gpufold.take_blocks(image, batch, 4), batch)
    >>> np.array_equal(stitcher.result(), image)
    True

    Each element of the result is the mean of the tiles that cover it, weighted by the window, or zero without any tile.
    Tiles are added in their order, so the result does not depend on batch size.

    Methods are thread-safe. A stitcher can be pickled between two batches. Type checkers know the arrays of
    ``Stitcher[numpy.ndarray]``, as in an annotation of a variable.

    Parameters
    ----------
    output_shape : sequence of int or None
        Shape (*lead, *size) of the result. The first extent of `size` may be None for an unbounded axis, as of a stream
        of frames; `slabs` is then True.
    block_shape : int or sequence of int
        Elements of a tile along each axis of `size`, the last ones, at least 1. An int means the same on every axis of
        `output_shape`, or on those from None on. Parts of a tile outside the result are dropped.
    window : numpy.ndarray, cupy.ndarray, torch.Tensor, jax.Array or sequence of them, or str, optional
        Real weights of a tile's elements, as in `add_blocks`, of NumPy or the library of the tiles; they are copied. A
        name such as "hann" stands for the window of `scipy.signal.get_window`, along every axis, and needs SciPy. That
        of "hann" begins with 0: an element that only zeros cover has no weight, and its average is `fill_value`.
    reduction : str
        How overlaps combine: "mean" divides by the sum of the weights, or by the number of tiles without a window;
        "least_squares" by the sum of their squares, as in an inverse short-time Fourier transform; "sum" by nothing.
    slabs : bool
        Whether to keep only the rows, along the first axis of `size`, that later tiles can overlap. Tiles must then
        come in ascending order of their first coordinate, and `finished` returns finished rows.

    Raises
    ------
    TypeError, ValueError
        Sizes are not integers, out of range or inconsistent, the window does not fit the block, or the reduction is
        unknown.

    See Also
    --------
    map_tiles : Extract tiles, apply a function and average in one call.
    grid_positions : Positions of tiles that cover an array.
    blocks_to_array : Average all tiles of a grid at once.
    gpufold.dask.stitch : All tiles of a dask array at once, with chunks of your choice.
    """

    @overload
    def __init__(
        self: Stitcher[Any, Any], output_shape: Extents, block_shape: Sizes, *, window: Window | str | None = None,
        reduction: Reduction = "mean", slabs: Literal[False] = False,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Stitcher[Any, tuple[int, Any]], output_shape: Extents | Sequence[SupportsIndex | None],
        block_shape: Sizes, *, window: Window | str | None = None, reduction: Reduction = "mean", slabs: bool = False,
    ) -> None: ...  # fmt: skip
    @suggests_keywords
    def __init__(
        self,
        output_shape: Extents | Sequence[SupportsIndex | None],
        block_shape: Sizes,
        *,
        window: Window | str | None = None,
        reduction: Reduction = "mean",
        slabs: bool = False,
    ) -> None:
        self._lead, self._size, self._block = stitched_sizes(output_shape, block_shape)
        self._reduction = word("Stitcher", "reduction", reduction, REDUCTIONS)
        if window is not None:
            window = copy_of_window("Stitcher", known_window("Stitcher", window, self._block))
        self._window = window
        self._slabs = flag("Stitcher", "slabs", slabs) or self._size[0] == ENDLESS
        self._begin = 0
        """The first row that was not returned."""
        self._end = 0
        """The row after the last one that a tile covers."""
        self._reached = -self._block[0]
        """The first coordinate of the last tile."""
        self._open: Any = None
        """The rows that were not returned, or all rows without slabs; None before the first batch."""
        self._take_turns()

    def __repr__(self) -> str:
        size = tuple(None if extent == ENDLESS else extent for extent in self._size)
        slabs = ", slabs=True" if self._slabs and None not in size else ""
        return f"Stitcher({(*self._lead, *size)}, {self._block}, reduction={self._reduction!r}{slabs})"

    def _take_turns(self) -> None:
        self._lock, self._busy = RLock(), False
        _alive.add(self)

    @_in_turn
    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_busy")}
        return state | {"_open": deepcopy(self._open)}  # other threads add to it once the lock is free

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._take_turns()

    def __copy__(self) -> Stitcher:
        return deepcopy(self)  # stitchers that share rows would add to each other's

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)

    @property
    @_in_turn
    def progress(self) -> float:
        """Fraction of finished rows, from 0 to 1, with `slabs=True`.

        Raise ValueError without slabs, and for an unbounded axis.
        """
        if not self._slabs or self._size[0] == ENDLESS:
            raise ValueError(f"Stitcher.progress: slabs must be True and all axes bounded, got {self!r}")
        return max(self._begin, self._reached) / self._size[0] if self._size[0] else 1.0

    @suggests_keywords
    @_in_turn
    def add(
        self, blocks: Shaped, positions: Positions, *, window: Window | None = None, weights: Shaped | None = None
    ) -> None:
        """Add a batch of tiles.

        Parameters
        ----------
        blocks : numpy.ndarray, cupy.ndarray, torch.Tensor, jax.Array or dask.array.Array
            Tiles of shape (P, *lead, *tile), of the dtypes of `add_blocks`; `tile` is at most `block_shape`. The first
            batch determines the device of the sums and their dtype: that of the tiles, float32 for float16 and
            bfloat16. Averages and weighted sums of integers are float32, or float64 from 32 bits on. Sums of tensors
            have gradients. Whole tiles that are dask arrays are averaged lazily, as by `gpufold.dask.stitch`.
        positions : numpy.ndarray, cupy.ndarray, torch.Tensor, jax.Array or sequence of sequences of int
            Index of the first element of each tile along the axes of `size`, of shape (P, rank), as in `add_blocks`;
            with `slabs=True` in host memory.
        window : numpy.ndarray, cupy.ndarray, torch.Tensor, jax.Array or sequence of them, or str, optional
            Weights for this batch, of the shape `tile`, one array per axis, or a name. The default is the stitcher's
            window; a smaller tile uses its start.
        weights : numpy.ndarray, cupy.ndarray, torch.Tensor or jax.Array, optional
            One real weight per tile, of shape (P,), in addition to the window. CuPy sets subnormal ones to zero.

        Raises
        ------
        TypeError
            An argument has the wrong type or dtype.
        ValueError
            Shapes, devices or memory are inconsistent, or with `slabs=True` tiles are out of order. Nothing has been
            added then.
        RuntimeError
            An earlier addition was interrupted and may be incomplete, or this call interrupts another one of the same
            thread.
        """
        if front_of(type(blocks)).endswith("dask"):
            return self._add_lazily(blocks, positions, window, weights)
        backend = backend_of(blocks)
        shape, lead = backend.shape, len(self._lead)
        count, tile = shape[:1], shape[1 + lead :]
        if shape[1 : 1 + lead] != self._lead or len(tile) != len(self._block) or any(map(lt, self._block, tile)):
            raise ValueError(
                f"Stitcher.add: blocks must be (number of positions, *lead, *tile) with lead {self._lead} and tiles of "
                f"{self._block} or less, got shape {shape}"
            )
        if window is not None:
            window = known_window("Stitcher.add", window, tile)
        elif self._window is not None and tile != self._block:
            window = first_weights(self._window, tile)
        windowed = window is not None or self._window is not None
        averaged = windowed or weights is not None or self._reduction != "sum"
        kept = self._open or Rows(backend, self._lead, self._size[1:], self._reduction != "sum", averaged)
        kept.check(backend, averaged)
        factors: TileWeights | None = None
        if window is not None:
            factors = TileWeights(backend, window, tile, kept.dtype, self._reduction)
        elif windowed:
            factors = kept.weights = kept.weights or TileWeights(
                backend, self._window, tile, kept.dtype, self._reduction
            )
        places = backend.positions(positions, self._slabs)
        if not shape[0] and not prod(places.shape):
            places = places.reshape(0, len(tile))
        if tuple(places.shape) != (*count, len(tile)):
            hint = ""
            if count == (1,) and tuple(places.shape) == (len(tile), 1):
                hint = f"; {SINGLE}"
            elif len(places.shape) == 2 and places.shape[1] != len(tile):
                hint = f"; block_shape {self._block} has one value per axis of positions"
            raise ValueError(
                f"Stitcher.add: positions must be (number of blocks, number of spatial axes) = {(*count, len(tile))} "
                f"for blocks of shape {shape}, got shape {tuple(places.shape)}{hint}"
            )
        rows, reached, end = self._size[0], self._reached, self._end
        if self._slabs:
            if shape[0]:
                places, reached = self._in_order(places)
                end = max(end, min(rows, reached + tile[0]))
            rows = max(0, end - self._begin)
        with backend.device:
            kept.hold(backend, rows, self._size[0] - self._begin)
            sums, weight = kept.views(rows)
            places = backend.to_device(places)
            window = None if factors is None else factors.factors
            by_block = None
            if weights is not None:
                least = 0.0 if weight is None else least_weight(ELEMENT_TYPES[kept.dtype].weight_bytes, self._reduction)
                by_block = BlockWeights(backend.weights_of_blocks(weights, kept.dtype), least)
            of_means = weight if self._reduction == "mean" else None
            additions = [Addition(sums, blocks, window, of_means, by_block)]
            if self._reduction == "least_squares":
                ones = backend.ones(weight, (*count, *tile))
                if by_block is None:
                    additions.append(Addition(weight, ones, None if factors is None else factors.squares))
                else:
                    additions.append(Addition(weight, ones, window, by_block=by_block._replace(squared=True)))
            for addition in additions:
                backend.check(addition)
            kept.torn = True  # from here on, an interrupt leaves a partial addition
            for addition in additions:
                backend.add(addition, places)
        self._open, self._reached, self._end = kept, reached, end
        kept.torn = False

    def _add_lazily(self, blocks: Any, positions: Positions, window: Any, weights: Any) -> None:
        """Keep a batch that is a dask array; the result is then a dask array."""
        tiles = self._open
        if self._slabs or window is not None or weights is not None or isinstance(tiles, Rows):
            raise TypeError(
                "Stitcher.add: blocks must be in memory with slabs=True, a window or weights per batch, or after "
                "blocks in memory, got a dask array; use gpufold.dask.stitch"
            )
        if tiles is None:
            options = {"window": self._window, "reduction": self._reduction}
            tiles = extras.load("dask").stitching.LazyTiles((*self._lead, *self._size), self._block, options)
        tiles.add(blocks, positions)
        self._open = tiles

    def _in_order(self, places: Any) -> tuple[Any, int]:
        """Return positions relative to the first row not returned yet, and the first coordinate of the last tile."""
        first = places[:, 0].tolist()
        least, most = -self._block[0], self._size[0]
        before = self._reached
        for number, row in enumerate(first):
            first[number] = row = least if row < least else min(row, most)
            if row < before:
                raise ValueError(
                    "Stitcher.add: positions must come in ascending order of their first coordinate with slabs=True, "
                    f"and after rows that were returned, got {row} after {before}"
                )
            before = row
        places = places.copy()
        places[:, 0] = [row - self._begin for row in first]
        return places, before

    @_in_turn
    def result(self, *, fill_value: complex | None = 0) -> WholeT:
        """Return the average of all tiles so far, or of the remaining rows with `slabs=True`.

        Parameters
        ----------
        fill_value : number or None
            Value of elements of an average that no tile covers with nonzero weight. The default is zero, because more
            tiles may come. NaN marks them. None raises, as a check of NOLA (nonzero overlap-add) does.

        Returns
        -------
        numpy.ndarray, cupy.ndarray, torch.Tensor, jax.Array or dask.array.Array, or tuple
            The average. With `slabs=True` ``(start, slab)`` as from `finished`, of all rows not returned before; an
            unbounded axis ends with the last tile.

        Raises
        ------
        ValueError
            No tile was added, `fill_value` is None and elements are uncovered, or it is not 0 for dask arrays. No row
            counts as returned then.
        RuntimeError
            As in `add`.
        """
        whole: Any = self._size[0]
        if self._open is not None and not isinstance(self._open, Rows):
            if fill_value != 0:
                raise ValueError(f"Stitcher.result: fill_value must be 0 for dask arrays, got {shown(fill_value)}")
            whole = self._open.result()
        elif self._slabs:
            whole = self._given("result", self._end if whole == ENDLESS else whole, fill_value)
        else:
            whole = self._divided("result", whole, fill_value)
        return whole  # type: ignore[no-any-return]

    @_in_turn
    def finished(self, *, fill_value: complex | None = 0) -> tuple[int, ArrayT]:
        """Return ``(start, slab)``: the finished rows that were not returned before.

        Parameters
        ----------
        fill_value : number or None
            As in `result`.

        Returns
        -------
        tuple of int and numpy.ndarray, cupy.ndarray, torch.Tensor or jax.Array
            Index of the slab's first row, and the average of its rows; there may be none.

        Raises
        ------
        ValueError
            `slabs` is False, no tile was added, or `fill_value` is None and elements are uncovered.
        RuntimeError
            As in `add`.
        """
        if not self._slabs:
            raise ValueError("Stitcher.finished: slabs must be True, got False; result() returns the whole array")
        return self._given("finished", self._reached, fill_value)

    def _given(self, method: str, end: int, fill_value: complex | None) -> tuple[int, Any]:
        """Return the first row that was not returned, and the average from there to row `end`; drop these rows."""
        begin, count = self._begin, max(0, end - self._begin)
        slab = self._divided(method, count, fill_value)
        reached = max(self._reached, begin + count)  # later tiles begin there or after it
        if count:
            assert self._open is not None
            self._open.drop(count)
            self._begin, self._reached = begin + count, reached
        return begin, slab

    def _divided(self, method: str, count: int, fill_value: complex | None) -> Any:
        """Return the sums of the first rows, divided according to the reduction, as a new array."""
        if self._open is None:
            raise ValueError(f"Stitcher.{method}: no tile was added, so the library of the result is unknown")
        if fill_value is not None:
            check_number(f"Stitcher.{method}", "fill_value", fill_value, self._open.dtype)
        backend = backend_of(self._open.sums, self._open.kind)
        with backend.device:
            self._open.hold(backend, count, count)
            sums, weight = self._open.views(count)
            result = backend.average(sums, weight)
            if fill_value != 0 and weight is not None and 0 not in result.shape:
                tiny = float(np.finfo(ELEMENT_TYPES[self._open.dtype].weight).tiny)
                bare = (weight < tiny) & (weight > -tiny)
                if fill_value is not None:
                    result = put(result, (..., bare), fill_value)
                elif bare.any():
                    raise ValueError(
                        f"Stitcher.{method}: tiles must cover every element with nonzero weight (the NOLA condition), "
                        f"got {int(bare.sum())} elements uncovered or with zero weight; use a window without "
                        "zeros, or fill_value=0 to fill them"
                    )
            return result
