"""Weights that divide sums: nonzero ones have a least magnitude, so that their products do not underflow.

Kernels use the same limits: see kernels/window.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

FEW_WEIGHTS = 1 << 16
"""Weights whose magnitudes are computed at a time."""


class BlockWeights(NamedTuple):
    """One weight for each block, which is multiplied by those of a window."""

    weights: Any
    least: float = 0.0
    """The least magnitude of products of nonzero weights."""
    squared: bool = False
    """Whether the products are squared."""


def least_weight(itemsize: int, reduction: str, axes: int = 1) -> float:
    """Return the least magnitude that nonzero weights count as, in single or double precision.

    It is 2**-96 for a mean, the product of equal least magnitudes of the axes, and 2**-48 for weights that are squared.
    Double precision has ten times the exponent.

    >>> least_weight(4, "mean", axes=3) == 2.0**-32
    True
    """
    exponent = 48 if reduction == "least_squares" else 96 // axes
    return float(2.0 ** (-exponent if itemsize == 4 else -10 * exponent))


def at_least(library: Any, weights: Any, least: float) -> Any:
    """Return weights, of NumPy, CuPy or torch, with nonzero ones raised to a least magnitude.

    >>> at_least(np, np.array([1.0, -1e-9, 0.0]), 0.125)
    array([ 1.   , -0.125,  0.   ])
    """
    if library is np and weights.size > FEW_WEIGHTS and smallest(weights) >= least:
        return weights
    small = abs(weights) < least
    if library is np and np.count_nonzero(small) + np.count_nonzero(weights) == weights.size:
        return weights  # the small ones are zeros
    return library.where(small & (weights != 0), library.sign(weights) * least, weights)


def smallest(weights: Any) -> float:
    """Return the least magnitude of nonzero weights of NumPy, without an array of all magnitudes."""
    least, flat = inf, weights.reshape(-1)
    for start in range(0, flat.size, FEW_WEIGHTS):
        some = abs(flat[start : start + FEW_WEIGHTS])
        least = min(least, float(some.min(where=some > 0, initial=inf)))
    return least


def product_of(library: Any, axes: Sequence[Any], least: float = 0.0) -> Any:
    """Return the weights of a block: the product of its axes' weights, in the order of the axes.

    Nonzero weights and products are raised to the least magnitude.
    """
    axes = [at_least(library, weights, least) for weights in axes] if least else axes
    product = axes[0]
    for weights in axes[1:]:
        product = times(library, product[..., None], weights, least)
    return product


def times(library: Any, first: Any, second: Any, least: float = 0.0) -> Any:
    """Return products of weights; those of nonzero weights are raised to the least magnitude."""
    product = first * second
    small = abs(product) < least if least else None
    if small is None or (library is np and not small.any()):
        return product
    small = small & (first != 0) & (second != 0)
    return library.where(small, library.sign(first) * library.sign(second) * least, product)


def of_elements(library: Any, weights: Any, axes: Sequence[Any], ndim: int, least: float = 0.0) -> Any:
    """Return the weights of the elements of blocks with `ndim` axes: each block's weight times the window.

    >>> of_elements(np, np.array([1.0, 2.0]), [np.array([1.0, 3.0])], 2)
    array([[1., 3.],
           [2., 6.]])
    """
    block: tuple[int, ...] = tuple(axes[0].shape) if len(axes) == 1 else tuple([each.shape[0] for each in axes])
    if len(axes) == 1:
        axes = [axes[0].reshape(-1)]
    product = product_of(library, [weights, *axes], least)
    return product.reshape(weights.shape[0], *(1,) * (ndim - 1 - len(block)), *block)


def weighed(library: Any, blocks: Any, weights: Any) -> Any:
    """Return elements times real weights, which multiply both parts of complex numbers, for NumPy and CuPy."""
    if blocks.dtype.kind != "c":
        return blocks * weights
    parts = library.ascontiguousarray(blocks).view(weights.dtype).reshape(*blocks.shape, 2)
    return (parts * weights[..., None]).view(blocks.dtype)[..., 0]


def counted(library: Any, axes: Sequence[Any], reduction: str) -> tuple[Any, ...]:
    """Return the weights of a window as an average counts them: per axis for a mean, else one array for the block."""
    least = least_weight(axes[0].itemsize, reduction, len(axes))
    if reduction == "mean":
        return tuple([at_least(library, weights, least) for weights in axes])
    return (product_of(library, axes, least),)
