"""What is done to elements: additions of parts of arrays, and products and quotients that are rounded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpufold.elements import is_narrow, widened
from gpufold.geometry import Size

Array: TypeAlias = npt.NDArray[Any]
Index: TypeAlias = tuple[Any, ...]

ALL = slice(None)

LONG_ROW, MANY_ELEMENTS, SHORT_AXIS = 512, 1 << 14, 16
"""Bytes of a row up to which it is copied as one element sooner than by a loop, of how many elements in all; and
elements of an axis up to which it makes no inner loop."""

BUFFER_BYTES = 1 << 12
"""Of a buffer of a ufunc."""

PRODUCTS = 1 << 17
"""Elements that are weighed before they are added: few enough for the cache of a core."""


def shorten_buffers(elements: Array) -> None:
    """Have ufuncs read and write rows of many elements where they lie, until `numpy.errstate`, which is entered, ends.

    NumPy copies rows to buffers where several have room in one, which takes longer than a loop for each unless rows are
    short. Where arrays differ in what lies side by side, and in reductions, buffers are the faster.
    """
    if elements.size > MANY_ELEMENTS:
        np.setbufsize(max(16, BUFFER_BYTES // elements.itemsize // 16 * 16))  # of sixteens of elements


def add_pairs(total: Array, terms: Array, weights: Array | None, pairs: Iterable[tuple[Index, Index]]) -> None:
    """Add terms, weighed, into parts of a total, in the order given; weights have the shape of the terms."""
    scratch: Array = np.empty(0, total.dtype)
    # where arrays differ in what lies side by side, NumPy's inner loop is along their last axis: not along a short one
    turned = total.ndim > 1 and total.shape[-1] < SHORT_AXIS and abs(total.strides[-1]) > abs(total.strides[-2])
    for into, term in pairs:
        arrays = [total[into], terms[term]] if weights is None else [total[into], terms[term], weights[term]]
        if turned:
            arrays = [array.swapaxes(-1, -2) for array in arrays]
        plain = weights is None and not is_narrow(arrays[1], arrays[0])
        for part, few, *others in [arrays] if plain else runs_of(*arrays):
            if others:
                if scratch.size < few.size:
                    scratch = np.empty(few.size, total.dtype)
                products = scratch[: few.size].reshape(few.shape, copy=False)
                multiply(few, others[0], products)
            np.add(part, products if others else few if plain else widened(few), part)


def runs_of(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Cut arrays of one shape into runs of about `PRODUCTS` elements, of which those of the second lie together."""
    shape, steps = arrays[0].shape, arrays[0].size // PRODUCTS
    if steps < 2:
        yield arrays
        return
    apart = [extent > 1 and abs(step) for extent, step in zip(shape, arrays[1].strides, strict=True)]
    axis = max(range(len(shape)), key=lambda number: (apart[number], shape[number]))
    length = -(-shape[axis] // min(steps, shape[axis]))
    for start in range(0, shape[axis], length):
        part = (ALL,) * axis + (slice(start, start + length),)
        yield from runs_of(*[array[part] for array in arrays])


def spread(weights: Array | None, columns: Array) -> Array | None:
    """View the weights of a block, which are contiguous, in the shape of split columns, by zero strides."""
    if weights is None:
        return None
    return np.ndarray(columns.shape, weights.dtype, weights, 0, (0, 0, *weights.strides, *(0,) * weights.ndim))


def repeated(array: Array, shape: Size) -> Array:
    """View a contiguous array in a shape that has more axes in front, by zero strides."""
    return np.ndarray(shape, array.dtype, array, 0, (*(0,) * (len(shape) - array.ndim), *array.strides))


@cache
def _as_one(row: int) -> np.dtype[Any]:
    """Return the dtype of a row of so many bytes."""
    return np.dtype(f"u{row}" if row in (1, 2, 4, 8) else (np.void, row))


def copy_rows(elements: Array, copy: Array) -> None:
    """Copy elements; rows that are contiguous in both, along any axis, as one element each, not by a loop of NumPy."""
    if elements.size > MANY_ELEMENTS and elements.ndim > 1:
        size, moves = elements.itemsize, elements.dtype == copy.dtype and not elements.dtype.hasobject
        strides, copy_strides = elements.strides, copy.strides
        for axis in range(elements.ndim - 1, -1, -1) if moves else ():
            row = size * elements.shape[axis]
            if strides[axis] == size == copy_strides[axis] and size < row <= LONG_ROW:
                as_one = _as_one(row)
                copy.swapaxes(axis, -1).view(as_one)[...] = elements.swapaxes(axis, -1).view(as_one)
                return
    copy[...] = elements


def multiply(elements: Array, weights: Array | None, products: Array) -> None:
    """Multiply by real weights, component by component, rounded once to the products' dtype; without weights copy."""
    if is_narrow(elements, products):
        elements = widened(elements)
    if weights is None:
        copy_rows(elements, products)
        return
    for part, result in _parts(elements, products):
        np.multiply(part, weights, result, casting="unsafe")


def divide(elements: Array, divisor: Array, quotients: Array | None = None) -> None:
    """Divide by real numbers, component by component, in place or rounded once to the quotients' dtype."""
    for part, quotient in _parts(elements, elements if quotients is None else quotients):
        np.divide(part, divisor, quotient, casting="unsafe")


def _parts(elements: Array, results: Array) -> tuple[tuple[Array, Array], ...]:
    """Return the real and imaginary parts, or the real ones as they are."""
    if elements.dtype.kind != "c":
        return ((elements, results),)
    return ((elements.real, results.real), (elements.imag, results.imag))
