"""Fused arithmetic: weights, means and their divisors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, TypeAlias

import numpy as np

from gpufold.calls import PLAIN, Call, FusedOps
from gpufold.cpu.arithmetic import ALL, Array, Factors, Index, divide, shorten_buffers
from gpufold.cpu.cells import fold_cells
from gpufold.cpu.indexed import are_few, fold_indexed
from gpufold.cpu.large import fold_blocks
from gpufold.cpu.tiles import TILE_ELEMENTS, parts_of
from gpufold.elements import ELEMENT_TYPES, is_string
from gpufold.geometry import Axes, Axis, Size
from gpufold.keeping import kept
from gpufold.weights import at_least, counted, least_weight, product_of, smallest

SMALL_BYTES = 1 << 17
"""Most bytes of a window, and of the divisors of a plane, that are kept for further calls."""

WEIGHT_BYTES = 4 << 20
"""Bytes of a block's weights above which those of its axes are multiplied in parts; a third, if they are raised."""

Weights: TypeAlias = tuple[Array, ...] | None
"""The weights of a window, as `gpufold.windows.as_weights` returns them."""


@dataclass(slots=True)
class FusedArithmetic:
    """The fused arithmetic of a call: its `FusedOps`, with a window's weights in the shape of a block."""

    move: bool = False
    """Whether elements are stored, not added, because no two share a pixel."""
    weights: Array | None = None
    """Weights of the taps of a block."""
    factors: Factors | None = None
    """Factors of the weights of a large block, in place of `weights`."""
    by_axis: tuple[Array, ...] | None = None
    """Weights of each axis of a separable window; a mean divides by the products of their sums."""
    reduction: str = "sum"
    accumulate: bool = False
    divisors: tuple[Axes, tuple[Array, Array | None]] | None = None
    """The axes and divisors of the previous tile, which are reused for other planes; see `average`."""


SUM, MOVE = FusedArithmetic(), FusedArithmetic(move=True)


def fused_arithmetic(fusion: FusedOps, window: Weights, columns: Array, axes: Axes) -> FusedArithmetic:
    """Return the arithmetic of a call, with weights in the shape of a block of split columns; strings move."""
    if fusion is PLAIN or fusion == PLAIN:
        return MOVE if is_string(columns.dtype) else SUM
    weights, factors, by_axis, least = None, None, None, 0.0
    if window is not None:
        if fusion.reduction == "mean":
            with np.errstate(all="ignore"):  # as in sums
                window = counted(np, window, fusion.reduction)
        elif fusion.reduction == "least_squares":
            least = least_weight(window[0].itemsize, fusion.reduction)
        if fusion.window == "separable":
            ones = np.ones(1, window[0].dtype)  # for axes of one tap, which a view of blocks may have in front
            window = (*(ones,) * (len(axes) - len(window)), *window)
            by_axis = window if fusion.reduction == "mean" else None
        kernel, apart = tuple(axis.kernel for axis in axes), all(axis.dilation for axis in axes)
        factors = weights_of_block(window, kernel, least, apart)
        if len(factors.arrays) == 1:
            (weights,), factors = factors.arrays, None
    return FusedArithmetic(False, weights, factors, by_axis, fusion.reduction, fusion.accumulate)


def weights_of_block(window: tuple[Array, ...], block_shape: Size, least: float = 0.0, apart: bool = True) -> Factors:
    """Return the weights of the taps of a block: one array, or, if `apart`, one for each axis of a large block."""
    if len(window) == 1 and not least:
        return Factors([window[0].reshape(block_shape)])
    with np.errstate(all="ignore"):  # as in sums
        size = prod(block_shape) * window[0].itemsize
        if apart and len(window) > 1 and size > (WEIGHT_BYTES // 3 if least else WEIGHT_BYTES):
            return factored(along_axes(window, block_shape, least), least)
        weights: Array = product_of(np, window, least)
    return Factors([weights.reshape(block_shape)])


def along_axes(window: tuple[Array, ...], block_shape: Size, least: float) -> list[Array]:
    """View the raised weights of a window in the shape of a block, with new axes where they are the same."""
    raised, rank = [at_least(np, weights, least) for weights in window], len(block_shape)
    if len(raised) < rank:
        return [weights.reshape(block_shape) for weights in raised]
    return [weights[(*(None,) * axis, ALL, *(None,) * (rank - 1 - axis))] for axis, weights in enumerate(raised)]


def factored(arrays: list[Array], least: float, squared: bool = False) -> Factors:
    """Return raised factors; their products are compared with the least magnitude only if one may be below it."""
    smallest_products = accumulate(map(smallest, arrays), mul)
    return Factors(arrays, least * (min(smallest_products) < 2 * least), squared)


def average(total: Array, axes: Axes, fused: FusedArithmetic) -> None:
    """Divide a tile's sums by counts or weights; zero where the divisor is below the smallest normal number."""
    known = fused.divisors
    if known is None or known[0] != axes:
        known = fused.divisors = None  # the previous ones are not kept meanwhile
        if fused.factors is not None:
            divisors = _divisors(axes, fused)
        elif fused.weights is None:
            divisors = _counted(axes, ELEMENT_TYPES[total.dtype.name].weight)
        else:
            size = max(fused.weights.nbytes, fused.weights.itemsize * prod(axis.size for axis in axes))
            divisors = (_known_divisors if size <= SMALL_BYTES else _divisors)(axes, fused)
        known = fused.divisors = axes, divisors
    divide(total, *known[1], total)


def _divisors(axes: Axes, fused: FusedArithmetic) -> tuple[Array, Array | None]:
    return _repeated(axes, lambda few: _sums_of_weights(few, fused))


def _by_weights(axes: Axes, fused: FusedArithmetic) -> tuple[Any, ...]:
    """Return what divisors depend on."""
    weights = fused.by_axis or (fused.weights,)
    return axes, fused.reduction, *[(each.dtype, each.shape, each.tobytes()) for each in weights if each is not None]


_known_divisors = kept(_divisors, by=_by_weights)


@kept
def _counted(axes: Axes, dtype: str) -> tuple[Array, Array | None]:
    """Return how many taps land on each pixel of a plane, as `_covered` returns divisors."""

    def counts_of(few: Axes) -> Array:
        counts = [_counts(axis) for axis in few]
        most = prod(int(count.max()) for count in counts)
        exact = dtype if most <= 1 << np.finfo(dtype).nmant else "float64"
        return reduce(np.multiply.outer, [count.astype(exact) for count in counts]).astype(dtype, copy=False)

    return _repeated(axes, counts_of)


def _repeated(axes: Axes, divisors_of: Callable[[Axes], Array]) -> tuple[Array, Array | None]:
    """Return the divisors of a plane, as `_covered` does, from those of a plane of few blocks.

    Where all blocks exist that may reach a pixel, those a stride apart are reached by the same taps.
    """
    few, repeated = [], []
    for axis in axes:
        first = max(0, axis.dilated_kernel - axis.stride - axis.pad_begin)
        end = min(axis.size, axis.blocks * axis.stride - axis.pad_begin)
        count = max(1, (end - first) // axis.stride)
        few.append(axis._replace(size=axis.size - (count - 1) * axis.stride))
        repeated.append((first, axis.stride, count))
    divisor, bare = _covered(divisors_of(tuple(few)), tuple(few))
    return _lengthened(divisor, repeated), None if bare is None else _lengthened(bare, repeated)


def _lengthened(plane: Array, repeated: list[tuple[int, int, int]]) -> Array:
    """Repeat so many pixels of each axis, from a first one on, so many times."""
    for number, (first, pixels, count) in reversed([*enumerate(repeated)]):  # rows are lengthened while they are few
        if count > 1:
            before, again, after = np.split(plane, (first, first + pixels), number)
            times = [count if axis == number else 1 for axis in range(plane.ndim)]
            plane = np.concatenate([before, np.tile(again, times), after], number)
    return plane


def average_by_weights(call: Call, numerator: Array, result: Array, weights: tuple[Array]) -> None:
    """Divide an array by weights for its last axes; zero where a weight is below the smallest normal number."""
    (divisor,) = weights
    with np.errstate(all="ignore"):
        shorten_buffers(numerator)
        for part in parts_of(divisor.shape, TILE_ELEMENTS) if divisor.ndim else ((),):
            place: Index = (..., *part)
            divide(numerator[place], *_covered(divisor[place]), result[place])


def _covered(divisor: Array, axes: Axes = ()) -> tuple[Array, Array | None]:
    """Return a divisor with 1 in place of what is below the smallest normal number, and a mask of that under blocks."""
    tiny = np.finfo(divisor.dtype).tiny
    bare = (-tiny < divisor) & (divisor < tiny)
    if not bare.any():
        return divisor, None
    divisor = divisor if axes else divisor.copy()  # without axes it is the caller's
    np.copyto(divisor, divisor.dtype.type(1), where=bare)
    if axes:
        bare &= reduce(np.logical_and.outer, [_counts(axis) > 0 for axis in axes])
    return divisor, bare if bare.any() else None


@kept
def _counts(axis: Axis) -> Array:
    """Count the taps that land on each pixel of an axis."""
    return _folded(np.ones(axis.kernel, np.int32), (axis,))


def _sums_of_weights(axes: Axes, fused: FusedArithmetic) -> Array:
    """Return the divisors of a plane's pixels, as a new array."""
    if fused.by_axis is not None:
        shares = [_folded(weights, (axis,)) for axis, weights in zip(axes, fused.by_axis, strict=True)]
        divisor: Array = reduce(np.multiply.outer, shares)
        for number, axis in enumerate(axes):
            # a pixel that no tap reaches along one axis is uncovered, whatever the other axes sum to
            divisor[(ALL,) * number + (_counts(axis) == 0,)] = 0
        return divisor
    if fused.factors is not None:
        ones: Array = np.ones((), fused.factors.arrays[0].dtype)
        columns = np.broadcast_to(ones, (1, 1, *(axis.kernel for axis in axes), *(axis.blocks for axis in axes)))
        plane: Array = np.empty([axis.size for axis in axes], ones.dtype)
        fold_blocks(columns, plane[None, None], axes, fused.factors._replace(squared=True))
        return plane
    assert fused.weights is not None
    weights = fused.weights
    return _folded(weights * weights if fused.reduction == "least_squares" else weights, axes)


def _folded(weights: Array, axes: Axes) -> Array:
    """Fold one plane of equal blocks."""
    rank, blocks = len(axes), tuple(axis.blocks for axis in axes)
    columns = np.broadcast_to(weights.reshape(1, 1, *weights.shape, *(1,) * rank), (1, 1, *weights.shape, *blocks))
    image: Array = np.empty((1, 1, *(axis.size for axis in axes)), weights.dtype)
    (fold_indexed if are_few(columns.size, axes) else fold_cells)(columns, image, axes, None)
    plane: Array = image[0, 0]
    return plane
