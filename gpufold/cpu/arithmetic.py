"""Arithmetic on arrays: sums of parts, and products and quotients that are rounded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial, reduce
from itertools import product, takewhile
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gpufold.cores import cache_bytes
from gpufold.elements import is_narrow, narrowed, shifted_back, widened
from gpufold.geometry import Size
from gpufold.weights import times

Array: TypeAlias = npt.NDArray[Any]
Index: TypeAlias = tuple[Any, ...]

ALL = slice(None)

LONG_ROW, SHORT_ROW, MANY_PLACES, MANY_ELEMENTS = 512, 16, 32, 1 << 14
"""Most bytes of a row that is copied as one element; of one that is copied place by place, where single bytes count
twice; most places; most elements of an array that is copied plainly."""

BUFFER_BYTES = 1 << 12
"""Bytes of a ufunc's buffer."""

PRODUCTS, ROUNDED = 1 << 17, cache_bytes() // 8
"""Elements that are multiplied by weights at a time before they are added, and sums that are rounded at a time: few
enough for a core's cache, and enough that threads seldom wait for the interpreter lock."""


def shorten_buffers(elements: Array) -> None:
    """Make ufuncs process long rows without copying them to buffers, until the enclosing `numpy.errstate` ends.

    NumPy copies rows to a buffer if several fit, which takes longer than a loop per row unless rows are short. Buffers
    are faster for reductions and for arrays with different contiguous axes.
    """
    if elements.size > MANY_ELEMENTS:
        np.setbufsize(max(16, BUFFER_BYTES // elements.itemsize // 16 * 16))  # a multiple of 16 elements


class Factors(NamedTuple):
    """Weights whose product multiplies elements."""

    arrays: Sequence[Array] = ()
    """Arrays of one shape, with zero strides where they are broadcast."""
    least: float = 0.0
    """The least magnitude of products of nonzero weights."""
    squared: bool = False
    """Whether the square of the product multiplies elements."""

    def product(self, arrays: Sequence[Array]) -> Array:
        """Return the product of parts of the arrays, of one element along axes where all have zero strides."""
        if len(arrays) == 1 and not self.squared:
            return arrays[0]
        arrays = [each[tuple([ALL if step else slice(1) for step in each.strides])] for each in arrays]
        product = reduce(partial(times, np, least=self.least), arrays)
        return product * product if self.squared else product

    def part(self, index: Index) -> Factors:
        """Return the factors of some elements."""
        return Factors([each[index] for each in self.arrays], self.least, self.squared)

    def over(self, shape: Size) -> Factors:
        """Return the factors in another shape, repeated by zero strides."""
        return self._replace(arrays=[np.broadcast_to(each, shape) for each in self.arrays])


def add_pairs(total: Array, terms: Array, factors: Factors, pairs: Iterable[tuple[Index, Index]]) -> None:
    """Add weighted terms into parts of a total, in the given order; arrays of factors have the shape of the terms."""
    if not factors.arrays and not is_narrow(terms, total):
        for into, term in pairs:
            part = total[into]
            np.add(part, terms[term], part)
        return
    scratch: Array = np.empty(0, total.dtype)
    most = PRODUCTS * 4 // max(4, total.itemsize)
    for into, term in pairs:
        arrays = [each[term] for each in factors.arrays]
        for part, few, *weights in runs_of(total[into], terms[term], *arrays, most=most):
            if weights:
                if scratch.size < few.size:
                    scratch = np.empty(few.size, total.dtype)
                products = scratch[: few.size].reshape(few.shape, copy=False)
                multiply(few, factors.product(weights), products)
            np.add(part, products if weights else widened(few), part)


AnyWeights: TypeAlias = Array | Factors | None


def part_of(weights: AnyWeights, index: Index) -> Array | Factors | None:
    """Return the weights of some elements."""
    if weights is None:
        return None
    return weights.part(index) if isinstance(weights, Factors) else weights[index]


def runs_of(*arrays: Array, most: int = PRODUCTS) -> Iterator[tuple[Array, ...]]:
    """Cut arrays of one shape into runs of about `most` elements, which are close together in the second array."""
    shape, steps = arrays[0].shape, arrays[0].size // most
    if steps < 2:
        yield arrays
        return
    apart = [extent > 1 and abs(step) for extent, step in zip(shape, arrays[1].strides, strict=True)]
    axis = max(range(len(shape)), key=lambda number: (apart[number], shape[number]))
    length = -(-shape[axis] // min(steps, shape[axis]))
    for start in range(0, shape[axis], length):
        part = (ALL,) * axis + (slice(start, start + length),)
        yield from runs_of(*[array[part] for array in arrays], most=most)


def round_into(array: Array, sums: Array, shifted: bool = False) -> None:
    """Store sums, which may be `shifted`, in an array of a narrower dtype, rounded once, some at a time."""
    for part, some in runs_of(array, sums, most=ROUNDED):
        part[...] = shifted_back(some) if shifted else narrowed(some) if is_narrow(part, some) else some


def spread(weights: Array | None, columns: Array) -> Array | None:
    """View the contiguous weights of a block in the shape of split columns, with zero strides."""
    if weights is None:
        return None
    return np.ndarray(columns.shape, weights.dtype, weights, 0, (0, 0, *weights.strides, *(0,) * weights.ndim))


@lru_cache(maxsize=1024)
def dtype_of_row(size: int) -> np.dtype[Any]:
    """Return a dtype with the size of a row, in bytes."""
    return np.dtype(f"u{size}" if size in (1, 2, 4, 8) else (np.void, size))


def copy_rows(elements: Array, copy: Array) -> None:
    """Copy elements; short rows that are contiguous in both arrays, along any axis, are copied as one element each.

    Where only the copy has short rows, maybe along several axes, each place of a row is copied for all rows.
    """
    if elements.size > MANY_ELEMENTS and elements.ndim > 1 and elements.dtype == copy.dtype:
        size, shape = elements.itemsize, elements.shape
        (_, axis), *_ = apart = sorted([(abs(step), n) for n, step in enumerate(copy.strides) if shape[n] > 1])
        contiguous = elements.strides[axis] == size
        together = contiguous and copy.strides[axis] == size and not elements.dtype.hasobject
        if together and size * shape[axis] <= LONG_ROW:
            row = dtype_of_row(size * shape[axis])
            copy.swapaxes(axis, -1).view(row)[...] = elements.swapaxes(axis, -1).view(row)
            return
        short = [axis for _, axis in takewhile(lambda each: max(2, size) * shape[each[1]] <= SHORT_ROW, apart)]
        if short and not contiguous and prod(shape[axis] for axis in short) <= MANY_PLACES:
            places: list[Iterable[Any]] = [range(extent) if n in short else (ALL,) for n, extent in enumerate(shape)]
            for some, part in runs_of(elements, copy):
                for place in product(*places):
                    part[place] = some[place]
            return
    copy[...] = elements


def multiply(elements: Array, weights: AnyWeights, products: Array) -> None:
    """Multiply by real weights, component by component, rounded once to the products' dtype; without weights copy."""
    if isinstance(weights, Factors):
        for some, into, *each in runs_of(elements, products, *weights.arrays):
            multiply(some, weights.product(each), into)
        return
    if is_narrow(elements, products):
        factors = [] if weights is None else [np.broadcast_to(weights, products.shape)]
        for some, into, *each in runs_of(elements, products, *factors):
            multiply(widened(some), each[0] if each else None, into)
        return
    if weights is None:
        copy_rows(elements, products)
        return
    for part, result in _parts(elements, products):
        np.multiply(part, weights, result, casting="unsafe")


def divide(elements: Array, divisor: Array, bare: Array | None, quotients: Array) -> None:
    """Divide by real numbers, component by component, rounded once; store zero where `bare` is true."""
    for part, quotient in _parts(elements, quotients):
        np.divide(part, divisor, quotient, casting="unsafe")
    if bare is not None:
        np.copyto(quotients, np.zeros((), quotients.dtype), where=bare)


def _parts(elements: Array, results: Array) -> tuple[tuple[Array, Array], ...]:
    """Return pairs of real and of imaginary parts; real arrays are one pair."""
    if elements.dtype.kind != "c":
        return ((elements, results),)
    return ((elements.real, results.real), (elements.imag, results.imag))
