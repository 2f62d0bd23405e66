"""The adjoint of each operation, expressed in calls of operations, for gradients and vmap of torch and JAX.

    col2im          <-> im2col         y = A (w x), x' = w A^T y', w' = sum over planes and blocks of x A^T y'
    blocks_to_array <-> array_to_blocks
    batch_to_space  <-> space_to_batch
    add_blocks      <-> take_blocks
    average         <-> average

Every operation is linear in its data, and the adjoint of its adjoint is the operation again. A mean treats its
divisors, the sums of weights, as constants: its window has no gradient, unlike the weights of `average`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gpufold.calls import TAKING, Call, FusedOps
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import Axis, BlocksGeometry, Geometry, PositionsGeometry, Size, SlidingGeometry, SpaceGeometry
from gpufold.weights import counted

ADJOINTS = {
    "col2im": "im2col",
    "blocks_to_array": "array_to_blocks",
    "batch_to_space": "space_to_batch",
    "add_blocks": "take_blocks",
    "average": "average",
}
ADJOINTS |= {adjoint: operation for operation, adjoint in ADJOINTS.items()}


@dataclass(frozen=True)
class Library:
    """Functions of an array library that the adjoints need; each library represents a window in its own way."""

    where: Callable[..., Any]
    sign: Callable[..., Any]
    stack: Callable[..., Any]
    concatenate: Callable[..., Any]
    moveaxis: Callable[..., Any]
    broadcast_to: Callable[..., Any]
    split: Callable[[Any, Sequence[int], int], Sequence[Any]]
    """Splits an array into parts of the given sizes along an axis."""
    apply: Callable[..., Any]
    """Computes a call differentiably: (call, data, window, positions, out)."""
    axes_of: Callable[[Call, Any], tuple[Any, ...]]
    """Returns the arrays of a window; an empty tuple if there is no window."""
    window_of: Callable[[Sequence[Any]], Any]
    """Returns the window that consists of these arrays."""
    cast: Callable[[Any, str], Any]
    """Returns an array of the named dtype."""
    full: Callable[[Size, int, str, Any], Any]
    """Returns an array of a shape, filled with a value, of the named dtype, on the device of another."""
    arange: Callable[[int, Any], Any]
    """Returns the first integers, of the dtype and on the device of an array."""
    paired: Callable[[Any], Any]
    """Returns an array's conjugate or the array itself, whichever the library multiplies complex gradients by."""
    constant: str
    """How to pass a window without a gradient, for messages."""


def check_gradient(xp: Library, operation: str, reduction: str) -> None:
    """Raise if a window requires a gradient that its reduction does not have."""
    if reduction != "sum":
        raise ValueError(
            f"{operation}: window may require a gradient only with reduction='sum', got {reduction!r}; "
            f"pass {xp.constant}"
        )


# ---------------------------------------------------------------------------------------------
# Gradients of data


def transpose(xp: Library, call: Call, gradient: Any, window: Any, positions: Any) -> Any:
    """Compute the adjoint of a call: the gradient of its data from that of its result."""
    if window is not None and call.fusion.reduction != "sum":
        call, window = _as_counted(xp, call, window)
    geometry, gradient = call.geometry, _divided(xp, call, gradient, window)
    adjoint = Call(ADJOINTS[call.operation], geometry, call.dtype, FusedOps(window=call.fusion.window))
    if call.operation != "take_blocks":
        return xp.apply(adjoint, gradient, window, positions)
    assert isinstance(geometry, PositionsGeometry)
    adjoint = adjoint._replace(fusion=adjoint.fusion._replace(accumulate=True))
    if call.fusion.mode == "edge":
        return _transpose_of_edge(xp, adjoint, gradient, window, positions)
    return xp.apply(adjoint, gradient, window, positions, xp.full(geometry.array_shape, 0, call.dtype, gradient))


def _transpose_of_edge(xp: Library, adjoint: Call, gradient: Any, window: Any, positions: Any) -> Any:
    """Add blocks to an array with margins as wide as a block, then add the sums in the margins to its edges.

    Positions further out are clipped to the margins, because all elements there belong to the same edge.
    """
    geometry = adjoint.geometry
    assert isinstance(geometry, PositionsGeometry)
    if 0 in geometry.size:
        return xp.full(geometry.array_shape, 0, adjoint.dtype, gradient)
    sides = list(zip(geometry.size, geometry.block_shape, strict=True))
    places = xp.stack([positions[:, axis].clip(-taps, extent) + taps for axis, (extent, taps) in enumerate(sides)], 1)
    wide = replace(geometry, size=tuple([extent + 2 * taps for extent, taps in sides]))
    dtype, element = adjoint.dtype, ELEMENT_TYPES[adjoint.dtype]
    sums_dtype = element.weight if element.is_half else dtype
    adjoint = adjoint._replace(geometry=wide, dtype=sums_dtype)
    sums = xp.full(wide.array_shape, 0, sums_dtype, gradient)
    sums = xp.apply(adjoint, xp.cast(gradient, sums_dtype), window, places, sums)
    for axis, (extent, taps) in enumerate(sides, len(geometry.lead)):
        begin, inner, end = xp.split(sums, (taps, extent, taps), axis)
        first, rest = xp.split(inner, (1, extent - 1), axis)
        inner = xp.concatenate((first + begin.sum(axis, keepdims=True), rest), axis)
        rest, last = xp.split(inner, (extent - 1, 1), axis)
        sums = xp.concatenate((rest, last + end.sum(axis, keepdims=True)), axis)
    return xp.cast(sums, dtype)


def _as_counted(xp: Library, call: Call, window: Any) -> tuple[Call, Any]:
    """Return an average's call and window, with the weights as an average counts them."""
    axes = counted(xp, xp.axes_of(call, window), call.fusion.reduction)
    if call.fusion.reduction == "least_squares":
        call = call._replace(fusion=call.fusion._replace(window="full"))
    return call, xp.window_of(axes)


def _divided(xp: Library, call: Call, gradient: Any, window: Any) -> Any:
    """Multiply a gradient by the reciprocals of the divisors of an average."""
    if call.fusion.reduction == "sum":
        return gradient
    element = ELEMENT_TYPES[call.dtype]
    reciprocals = _reciprocals(xp, call, gradient, window)
    if element.is_half:
        return xp.cast(xp.cast(gradient, element.weight) * reciprocals, call.dtype)
    return gradient * reciprocals


def _reciprocals(xp: Library, call: Call, like: Any, window: Any) -> Any:
    """Return the reciprocal of each pixel's divisor, of shape (*size); zero if the divisor is too small."""
    geometry, dtype = call.geometry, ELEMENT_TYPES[call.dtype].weight
    assert isinstance(geometry, SlidingGeometry | BlocksGeometry)

    def folded(axes: tuple[Axis, ...], weights: Any) -> Any:
        plane = SlidingGeometry((1,), axes)
        kind = "none" if weights is None else "separable" if len(axes) == 1 else "full"
        if weights is not None and call.fusion.reduction == "least_squares":
            weights = weights * weights
        ones = xp.broadcast_to(xp.full((), 1, dtype, like), plane.blocks_shape)
        sums = Call("col2im", plane, dtype, FusedOps(window=kind))
        return xp.apply(sums, ones, None if weights is None else xp.window_of((weights,)))[0]

    weights = xp.axes_of(call, window)
    if call.fusion.window == "full":
        divisor = folded(geometry.axes, weights[0])
    else:
        divisor = xp.full((), 1, dtype, like)
        for axis, each in zip(geometry.axes, weights or (None,) * len(geometry.axes), strict=True):
            divisor = divisor.reshape(*divisor.shape, 1) * folded((axis,), each)
    uncovered = abs(divisor) < float(np.finfo(dtype).tiny)
    return xp.where(uncovered, 0.0, 1.0 / xp.where(uncovered, 1.0, divisor))


# ---------------------------------------------------------------------------------------------
# Gradients of windows


def gradients_of_window(
    xp: Library, call: Call, data: Any, gradient: Any, window: Any, positions: Any, wanted: Sequence[int] | None = None
) -> list[Any]:
    """Return the gradients of the wanted arrays of a window: for each tap, a sum over all planes and blocks.

    The other arrays need no gradient. A wanted array needs no value if no other array is wanted.
    """
    check_gradient(xp, call.operation, call.fusion.reduction)
    plain = call._replace(fusion=call.fusion._replace(window="none"))
    if call.operation == "average":
        blocks, gradients = change_by_weight(xp, call, data, window), gradient
    elif call.operation in TAKING:
        blocks, gradients = xp.apply(plain, data, None, positions), gradient
    else:
        blocks, gradients = data, transpose(xp, plain, gradient, None, positions)
    dtype = ELEMENT_TYPES[call.dtype].weight
    if "complex" in call.dtype:
        products = (xp.paired(blocks) * gradients).real
    else:
        products = xp.cast(blocks, dtype) * xp.cast(gradients, dtype)
    sums = _sum_of_blocks(call.geometry, products)
    if call.fusion.window != "separable":
        return [sums]
    axes = xp.axes_of(call, window)
    return [_of_axis(sums, axes, axis) for axis in (range(len(axes)) if wanted is None else wanted)]


def _sum_of_blocks(geometry: Geometry, blocks: Any) -> Any:
    """Sum blocks over all planes and blocks, tap by tap."""
    shape = geometry.block_shape
    if isinstance(geometry, SlidingGeometry):
        taps, count = prod(shape), prod(geometry.num_blocks)
        return blocks.reshape(geometry.planes, taps, count).sum((0, 2)).reshape(shape)
    leading = tuple(range(blocks.ndim - len(shape)))
    return blocks.sum(leading) if leading else blocks


def _of_axis(gradient: Any, axes: Sequence[Any], axis: int) -> Any:
    """Return the gradient of one axis's weights, from the gradient of the product over all axes."""
    for other, weights in enumerate(axes):
        if other != axis:
            weights = weights.reshape(-1, *(1,) * (len(axes) - 1 - other))
            gradient = (gradient * weights).sum(other, keepdims=True)
    return gradient.reshape(-1)


def change_by_weight(xp: Library, call: Call, data: Any, window: Any) -> Any:
    """Return the derivatives of an average by its weights: minus the average, divided by the weights once more."""
    if call.element.is_half:  # whose range the derivatives may leave, though they are of the weights' dtype
        call, data = call._replace(dtype=call.element.weight), xp.cast(data, call.element.weight)
    return -xp.apply(call, xp.apply(call, data, window), window)


def tangent(xp: Library, call: Call, operands: Sequence[Any], changes: Sequence[Any]) -> Any:
    """Compute the tangent of a call's result from the tangents of its operands (data, window, positions, out).

    A window's tangent is a sequence, one item per array. None stands for zero; at least one tangent is given.
    """
    (data, window, positions, _), (of_data, of_axes, _, of_out) = operands, changes

    def applied(given: Any, weights: Any, into: Any = None) -> Any:
        if call.operation == "add_blocks" and into is None:
            into = xp.full(call.result_shape, 0, call.dtype, given)
        return xp.apply(call, given, weights, positions, into)

    terms = [] if of_out is None else [of_out]
    if of_data is not None:
        terms = [applied(of_data, window, of_out)]
    for axis, change in enumerate(of_axes or ()):
        if change is None:
            continue
        check_gradient(xp, call.operation, call.fusion.reduction)
        if call.operation == "average":
            terms.append(xp.cast(change_by_weight(xp, call, data, window) * change, call.dtype))
        else:
            axes = xp.axes_of(call, window)
            terms.append(applied(data, xp.window_of((*axes[:axis], change, *axes[axis + 1 :]))))
    return sum(terms[1:], terms[0])


# ---------------------------------------------------------------------------------------------
# Batches: vmap


def batched(xp: Library, size: int, dims: tuple[Any, Any], arrays: Sequence[Any], call: Call) -> tuple[Any, int]:
    """Compute a call for a batch of (data, window, positions, out) as one call on a larger array: the rule of vmap.

    `dims` are the batch axes of data and out; the batch shares one window and one array of positions.
    """
    (data, window, positions, out), (data_dim, out_dim) = arrays, dims
    geometry = call.geometry
    if isinstance(geometry, SpaceGeometry):  # one more axis, with blocks of 1
        wider = replace(geometry, axes=(Axis(size, 1, 1, 1, 0, 0), *geometry.axes))
        return xp.apply(call._replace(geometry=wider), xp.moveaxis(data, data_dim, 1)), 1
    if not isinstance(geometry, SlidingGeometry) or len(geometry.lead) == 1:  # one more leading axis
        call = call._replace(geometry=replace(geometry, lead=(size, *geometry.lead)))
        if out is None:
            first = 1 if call.operation == "take_blocks" else 0
            return xp.apply(call, xp.moveaxis(data, data_dim, 0), window, positions), first
        if data_dim is None:
            count, *rest = data.shape
            data = xp.broadcast_to(data.reshape(count, 1, *rest), (count, size, *rest))
        else:
            data = xp.moveaxis(data, data_dim, 1)
        out = xp.broadcast_to(out, (size, *out.shape)) if out_dim is None else xp.moveaxis(out, out_dim, 0)
        return xp.apply(call, data, window, positions, out), 0
    data, flat = xp.moveaxis(data, data_dim, 0), replace(geometry, lead=(size * geometry.batch, geometry.channels))
    result = xp.apply(call._replace(geometry=flat), data.reshape(size * geometry.batch, *data.shape[2:]), window)
    return result.reshape(size, geometry.batch, *result.shape[1:]), 0


def batched_positions(
    xp: Library, size: int, dims: tuple[Any, Any, Any], arrays: Sequence[Any], call: Call
) -> tuple[Any, int]:
    """Compute a call as `batched` does, where each of the batch has positions of its own; the batch shares a window.

    `dims` are the batch axes of data, positions and out. The batch becomes the first axis with positions, with blocks
    of 1.
    """
    (data, window, positions, out), (data_dim, positions_dim, out_dim) = arrays, dims
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    lead, block, count = geometry.lead, geometry.block_shape, geometry.count

    def moved(array: Any, dim: int | None, axis: int) -> Any:
        return xp.moveaxis(xp.broadcast_to(array, (size, *array.shape)) if dim is None else array, dim or 0, axis)

    places = moved(positions, positions_dim, 0)
    if data_dim is None and out is None:  # more blocks of one array
        call, places = call._replace(geometry=replace(geometry, count=size * count)), places.reshape(-1, len(block))
        return xp.apply(call, data, window, places).reshape(size, count, *lead, *block), 0
    numbers = xp.broadcast_to(xp.arange(size, places)[:, None, None], (size, count, 1))
    places = xp.concatenate((numbers, places), -1).reshape(-1, 1 + len(block))
    if window is not None:
        one = xp.full((1,), 1, call.element.weight, data)
        separable = call.fusion.window == "separable"
        window = xp.window_of([one, *xp.axes_of(call, window)] if separable else [xp.axes_of(call, window)[0][None]])
    call = call._replace(geometry=PositionsGeometry(size * count, lead, (size, *geometry.size), (1, *block)))
    if out is None:
        taken = xp.apply(call, moved(data, data_dim, len(lead)), window, places)
        return taken.reshape(size, count, *lead, *block), 0
    blocks = moved(data, data_dim, 0).reshape(size * count, *lead, 1, *block)
    return xp.apply(call, blocks, window, places, moved(out, out_dim, len(lead))), len(lead)
