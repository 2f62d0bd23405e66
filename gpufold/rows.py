"""The open rows of a Stitcher, which later tiles may overlap: sums, and the weights that divide them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from gpufold.arrays import check_bytes
from gpufold.backends import Addition, Backend
from gpufold.calls import Call
from gpufold.elements import ELEMENT_TYPES, WIDER, stitched_dtype
from gpufold.geometry import PositionsGeometry, Size
from gpufold.weights import at_least, least_weight

SPARE_BYTES = 1 << 16
"""Room behind the open rows: short rows, such as those of sound, are then seldom moved to the front."""


class TileWeights:
    """The weights of a tile, and their squares, as kernels can read them."""

    def __init__(self, backend: Backend, window: Any, tile: Size, dtype: str, reduction: str) -> None:
        call = Call("Stitcher.add", PositionsGeometry(0, (), tile, tile), dtype)
        self.factors: tuple[Any, ...] = backend.weights(call, window)
        if reduction == "least_squares":
            with backend.device:
                sums, weights = backend.zeros(tile, dtype), backend.zeros(tile, call.element.weight)
                origin = backend.to_device(np.zeros((1, len(tile)), np.int64))
                backend.add(Addition(sums, backend.ones(sums, (1, *tile)), self.factors, weights), origin)
                self.factors = (at_least(backend.library, weights, least_weight(call.element.weight_bytes, reduction)),)

    @cached_property
    def squares(self) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):  # as in sums
            return tuple([each * each for each in self.factors])


class Rows:
    """Sums and weights of open rows, in arrays with dropped rows in front and zero rows behind."""

    def __init__(self, backend: Backend, lead: Size, rest: Size, divided: bool, averaged: bool) -> None:
        self.kind, self.dtype = backend.kind, stitched_dtype(backend.dtype, averaged)
        self.torn = False
        """Whether a change of the rows was interrupted."""
        self._check_bytes((*lead, 0, *rest))
        with backend.device:
            self.sums = backend.zeros((*lead, 0, *rest), self.dtype)
            self.weight = backend.zeros((0, *rest), ELEMENT_TYPES[self.dtype].weight) if divided else None
        self.weights: TileWeights | None = None
        """Weights of a whole tile, shared by all batches."""
        self._lead, self._first, self._count = len(lead), 0, 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle; raise if sums have gradients, because the graph cannot be pickled."""
        if any([getattr(array, "requires_grad", False) for array, _ in self._arrays()]):
            raise TypeError(
                "Stitcher: sums that have gradients cannot be pickled or copied; add tiles under torch.no_grad(), or "
                "detached"
            )
        return self.__dict__

    def check(self, backend: Backend, averaged: bool) -> None:
        """Raise unless tiles can be added to the sums."""
        if backend.kind != self.kind:
            raise TypeError(f"Stitcher.add: blocks must be a {self.kind}, got {backend.kind}: the first batch decides")
        if backend.place != self.sums.device:
            raise ValueError(
                f"Stitcher.add: blocks must be on the device {self.sums.device} of the first batch, got {backend.place}"
            )
        if averaged and not ELEMENT_TYPES[self.dtype].weight:
            raise TypeError(
                "Stitcher.add: window and weights need sums of floats or complex numbers, but the first batch, of "
                f"dtype {self.dtype}, had none; convert its blocks"
            )
        if self.dtype not in (backend.dtype, *WIDER[backend.dtype]):
            raise TypeError(
                f"Stitcher.add: blocks must be of dtype {self.dtype}, in which the first batch was summed, or of a "
                f"narrower one, got {backend.dtype}"
            )

    def _check_bytes(self, shape: Size) -> None:
        """Raise if sums would have more bytes than an array can have; the weights have no more."""
        call = Call("Stitcher.add", PositionsGeometry(0, (), shape, ()), self.dtype)
        check_bytes(call, shape, ELEMENT_TYPES[self.dtype].itemsize)

    def hold(self, backend: Backend, count: int, most: int) -> None:
        """Extend the open rows to `count` with zeros, and leave room for more, up to `most`."""
        if count > self._count:
            room = self.sums.shape[self._lead]
            if count > room:
                row = prod(self.sums.shape[: self._lead]) * prod(self.sums.shape[self._lead + 1 :])
                spare = SPARE_BYTES // max(1, row * ELEMENT_TYPES[self.dtype].itemsize)
                self._move_into(backend, min(count + spare, most))
            elif self._first + count > room:
                self._move_to_front()
            self._count = count

    def _arrays(self) -> Iterator[tuple[Any, int]]:
        """Yield each array and the axis of its rows."""
        yield self.sums, self._lead
        if self.weight is not None:
            yield self.weight, 0

    def _move_into(self, backend: Backend, room: int) -> None:
        """Move the rows into arrays with room for more."""
        self._check_bytes((*self.sums.shape[: self._lead], room, *self.sums.shape[self._lead + 1 :]))
        moved = []
        for array, axis in self._arrays():
            larger = backend.zeros((*array.shape[:axis], room, *array.shape[axis + 1 :]), array.dtype)
            _rows(larger, axis, 0, self._count)[...] = _rows(array, axis, self._first, self._first + self._count)
            moved.append(larger)
        self.sums, self.weight, self._first = moved[0], moved[-1] if len(moved) > 1 else None, 0

    def _move_to_front(self) -> None:
        """Move the rows to the front, as many at a time as were dropped, and zero those behind."""
        step, self.torn = self._first, True
        for array, axis in self._arrays():
            for start in range(0, self._count, step):
                stop = min(start + step, self._count)
                _rows(array, axis, start, stop)[...] = _rows(array, axis, start + step, stop + step)
            _rows(array, axis, self._count, self._count + step)[...] = 0
        self._first, self.torn = 0, False

    def views(self, count: int) -> tuple[Any, Any]:
        """Return views of the first rows of the sums and, if there are any, of their weights."""
        first, last = self._first, self._first + count
        sums = _rows(self.sums, self._lead, first, last)
        return sums, None if self.weight is None else self.weight[first:last]

    def drop(self, count: int) -> None:
        """Forget the first rows."""
        self._first += count
        self._count -= count


def _rows(array: Any, axis: int, start: int, stop: int) -> Any:
    """Return a view of some rows."""
    return array[(slice(None),) * axis + (slice(start, stop),)]
