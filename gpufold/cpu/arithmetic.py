"""What is done to elements: additions of parts of arrays, and products and quotients that are rounded once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Index: TypeAlias = tuple[Any, ...]

ALL = slice(None)


def add_pairs(total: Array, terms: Array, weights: Array | None, pairs: Iterable[tuple[Index, Index]]) -> None:
    """Add terms, weighted, into parts of a total, in the order given."""
    scratch: Array = np.empty(0, total.dtype)
    for into, term in pairs:
        part, terms_here = total[into], terms[term]
        if weights is not None:
            if scratch.size < terms_here.size:
                scratch = np.empty(terms_here.size, total.dtype)
            products = scratch[: terms_here.size].reshape(terms_here.shape, copy=False)
            multiply(terms_here, weights[term], products)
            terms_here = products
        np.add(part, terms_here, part)


def multiply(elements: Array, weights: Array, products: Array) -> None:
    """Multiply by real weights, component by component, rounded once to the products' dtype."""
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
