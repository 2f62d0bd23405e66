"""Gradients: every operation is linear in its data, and its adjoint is another operation, whose gradient is it again.

`apply` computes such a call by the way that fits: by the kernel where nothing asks for a further gradient, through an
`autograd.Function` where something does, and by an operator of torch's library while a compiler traces.

    col2im        <-> im2col           y = A (w x), x' = w A^T y', w' = sum over planes and blocks of x A^T y'
    blocks_to_array <-> array_to_blocks
    batch_to_space  <-> space_to_batch
    add_blocks      <-> take_blocks
    average         <-> average

A mean multiplies by the reciprocal of the sums of weights, a constant: such windows have no gradient. The weights of an
average, which are a tensor of their own, have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import _C, Tensor
from torch._C import _functorch
from torch._functorch.autograd_function import generate_single_level_function
from torch._functorch.eager_transforms import _maybe_unwrap_functional_tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from gpufold.calls import Call, Fusion
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import Axis, BlocksGeometry, Geometry, PositionsGeometry, Size, SlidingGeometry, SpaceGeometry
from gpufold.operations import OPERATIONS
from gpufold.torch.tensors import (
    WEIGHTS,
    alive,
    check_stored,
    execute,
    has_gradient,
    is_traced,
    is_transformed,
    name_of,
    narrowed,
    ready_weights,
    resolved,
)
from gpufold.weights import counted

ADJOINTS = {
    "col2im": "im2col",
    "blocks_to_array": "array_to_blocks",
    "batch_to_space": "space_to_batch",
    "add_blocks": "take_blocks",
    "average": "average",
}
ADJOINTS |= {adjoint: operation for operation, adjoint in ADJOINTS.items()}

TAKING = ("im2col", "array_to_blocks", "take_blocks")
"""The operations whose results are blocks: their windows weigh what comes out."""


def differentiate(
    call: Call, data: Tensor, axes: Sequence[Tensor], positions: Tensor | None, out: Tensor | None
) -> Tensor:
    """Compute a call whose gradients or tangents are asked for, on tensors that were checked."""
    if call.source:  # narrower data count as if they were converted first
        call, data = call._replace(source=""), data.to(getattr(torch, call.dtype))
    if call.fusion.reduction != "sum" and has_gradient(*axes):
        raise no_gradient(call.operation, call.fusion.reduction)
    return apply(call, data, joined(data, axes) if axes else None, positions, out)


def no_gradient(operation: str, reduction: str) -> ValueError:
    """Return what to raise where a gradient is asked for that there is none of."""
    return ValueError(
        f"{operation}: window requires a gradient, which there is under reduction='sum' alone, got {reduction!r}; "
        f"pass window.detach()"
    )


def joined(data: Tensor, axes: Sequence[Tensor]) -> Tensor:
    """Return a window as one tensor of weights: that of the block's shape, or those of the axes in a row."""
    axes = [narrowed(each, WEIGHTS[name_of(data.dtype)]) for each in axes]
    return axes[0] if len(axes) == 1 else torch.cat(axes)


def separated(call: Call, window: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors of a joined window as kernels can read them."""
    if window is None:
        return ()
    window = ready_weights(window, WEIGHTS[call.dtype])
    if call.fusion.window != "separable":
        return (window,)
    axes: tuple[Tensor, ...] = torch.split(window, list(block_shape_of(call.geometry)))
    return axes


def as_counted(call: Call, window: Tensor) -> tuple[Call, Tensor]:
    """Return a call of an average and its joined window, the weights as they count."""
    axes = counted(torch, separated(call, window), call.fusion.reduction)
    if call.fusion.reduction == "least_squares":
        return call._replace(fusion=call.fusion._replace(window="full")), axes[0]
    return call, axes[0] if len(axes) == 1 else torch.cat(axes)


def block_shape_of(geometry: Geometry) -> Size:
    """Return the shape of a block that a window weighs, and of an average's weights."""
    assert not isinstance(geometry, SpaceGeometry)
    return geometry.block_shape


def apply(
    call: Call,
    data: Tensor,
    window: Tensor | None = None,
    positions: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute a call on tensors that were checked, its window joined, by the way that fits."""
    data, window, positions, out = given = [*map(alive, (data, window, positions, out))]
    if is_traced(data) or any([each is not None and _functorch.is_legacy_batchedtensor(each) for each in given]):
        return operator(call, data, window, positions, out)
    if not (is_transformed() or has_gradient(data, window, out)):
        return execute(call, resolved(data), separated(call, window), positions, out)
    return linear(data, window, positions, out, call)


def operator(call: Call, data: Tensor, window: Tensor | None, positions: Tensor | None, out: Tensor | None) -> Tensor:
    """Call the operator of torch's library."""
    result: Tensor = getattr(torch.ops.gpufold, call.operation).default(
        data,
        window,
        positions,
        out,
        *sizes_of(call),
        call.fusion.mode if call.operation == "take_blocks" else call.fusion.reduction,
        call.fusion.window == "separable",
        call.variant,
        call.deterministic,
    )
    return result


def sizes_of(call: Call) -> list[list[int]]:
    """Return the sizes of a call as the operator of its name takes them."""
    geometry = call.geometry
    if isinstance(geometry, SlidingGeometry):
        sizes = [list(each) for each in zip(*geometry.axes, strict=True)]
        return sizes if call.operation == "col2im" else sizes[1:]
    if isinstance(geometry, BlocksGeometry):
        sizes = [list(geometry.block_shape), [axis.stride for axis in geometry.axes]]
        return [list(geometry.array_shape), *sizes] if call.operation == "blocks_to_array" else sizes
    if isinstance(geometry, SpaceGeometry):
        return [[1, *geometry.block], [0, *geometry.margin_begin], [0, *geometry.margin_end]]
    return [list(block_shape_of(geometry))] if call.operation == "take_blocks" else []


# ---------------------------------------------------------------------------------------------
# What gradients and tangents are made of


def transpose(call: Call, gradient: Tensor, window: Tensor | None, positions: Tensor | None) -> Tensor:
    """Compute the adjoint of a call under a sum."""
    geometry = call.geometry
    adjoint = Call(ADJOINTS[call.operation], geometry, call.dtype, Fusion(window=call.fusion.window))
    if call.operation != "take_blocks":
        return apply(adjoint, gradient, window, positions)
    assert isinstance(geometry, PositionsGeometry)
    adjoint = adjoint._replace(fusion=adjoint.fusion._replace(accumulate=True))
    if call.fusion.mode == "edge":
        return transpose_of_edge(adjoint, gradient, window, positions)
    return apply(adjoint, gradient, window, positions, gradient.new_zeros(geometry.array_shape))


def transpose_of_edge(adjoint: Call, gradient: Tensor, window: Tensor | None, positions: Tensor | None) -> Tensor:
    """Add blocks to an array with a block's margin on each side, and the sums in the margins to its edges.

    Positions further out are moved to where a block lies in the margin: it is the same edge's.
    """
    geometry = adjoint.geometry
    assert isinstance(geometry, PositionsGeometry)
    assert positions is not None
    if 0 in geometry.size:
        return gradient.new_zeros(geometry.array_shape)
    sides = list(zip(geometry.size, geometry.block_shape, strict=True))
    places = torch.stack(
        [positions[:, axis].clamp(-taps, extent) + taps for axis, (extent, taps) in enumerate(sides)], 1
    )
    wide = replace(geometry, size=tuple([extent + 2 * taps for extent, taps in sides]))
    sums_dtype = WEIGHTS[adjoint.dtype] if ELEMENT_TYPES[adjoint.dtype].is_half else gradient.dtype
    adjoint = adjoint._replace(geometry=wide, dtype=name_of(sums_dtype))
    sums = gradient.new_zeros(wide.array_shape, dtype=sums_dtype)
    sums = apply(adjoint, gradient.to(sums_dtype), window, places, sums)
    for axis, (extent, taps) in enumerate(sides, len(geometry.lead)):
        begin, inner, end = sums.split((taps, extent, taps), axis)
        first, rest = inner.split((1, extent - 1), axis)
        inner = torch.cat((first + begin.sum(axis, keepdim=True), rest), axis)
        rest, last = inner.split((extent - 1, 1), axis)
        sums = torch.cat((rest, last + end.sum(axis, keepdim=True)), axis)
    return sums.to(gradient.dtype)


def divide(call: Call, gradient: Tensor, window: Tensor | None) -> Tensor:
    """Multiply by the reciprocals of what the sums were divided by."""
    if call.fusion.reduction == "sum":
        return gradient
    reciprocal = reciprocals(call, gradient, window)
    if ELEMENT_TYPES[call.dtype].is_half:
        return (gradient.to(reciprocal.dtype) * reciprocal).to(gradient.dtype)
    return gradient * reciprocal


def reciprocals(call: Call, like: Tensor, window: Tensor | None) -> Tensor:
    """Return one through what each pixel's sum is divided by, zero where that is too small: of the spatial axes."""
    geometry = call.geometry
    assert isinstance(geometry, SlidingGeometry | BlocksGeometry)
    dtype = WEIGHTS[name_of(like.dtype)]

    def folded(axes: tuple[Axis, ...], weights: Tensor | None) -> Tensor:
        plane = SlidingGeometry(None, 1, axes)
        kind = "none" if weights is None else "separable" if len(axes) == 1 else "full"
        sums = Call("col2im", plane, name_of(dtype), Fusion(window=kind))
        if weights is not None and call.fusion.reduction == "least_squares":
            weights = weights * weights
        ones = like.new_ones((), dtype=dtype).expand(prod(plane.block_shape), prod(plane.num_blocks))
        return apply(sums, ones, weights)[0]

    if call.fusion.window == "full":
        divisor = folded(geometry.axes, window)
    else:
        divisor = like.new_ones((), dtype=dtype)
        weights = separated(call, window) or (None,) * len(geometry.axes)
        for axis, each in zip(geometry.axes, weights, strict=True):
            divisor = divisor.unsqueeze(-1) * folded((axis,), each)
    uncovered = divisor.abs() < torch.finfo(dtype).tiny
    return torch.where(uncovered, 0.0, torch.where(uncovered, 1.0, divisor).reciprocal())


def gradient_of_window(call: Call, data: Tensor, gradient: Tensor, window: Tensor, positions: Tensor | None) -> Tensor:
    """Sum what each tap was multiplied with over all planes and blocks."""
    plain = call._replace(fusion=call.fusion._replace(window="none"))
    if call.operation == "average":
        blocks, gradients = change_by_weight(call, data, window), gradient
    elif call.operation in TAKING:
        blocks, gradients = apply(plain, data, None, positions), gradient
    else:
        blocks, gradients = data, transpose(plain, gradient, None, positions)
    if blocks.is_complex():
        products = (blocks.conj() * gradients).real
    else:
        products = blocks.to(window.dtype) * gradients.to(window.dtype)
    return by_axis(call, sum_of_blocks(call.geometry, products), window)


def sum_of_blocks(geometry: Geometry, blocks: Tensor) -> Tensor:
    """Sum blocks over all planes and blocks, tap by tap."""
    shape = block_shape_of(geometry)
    if isinstance(geometry, SlidingGeometry):
        taps, count = prod(shape), prod(geometry.num_blocks)
        return blocks.reshape(geometry.planes, taps, count).sum((0, 2)).reshape(shape)
    leading = list(range(blocks.ndim - len(shape)))
    return blocks.sum(leading) if leading else blocks


def by_axis(call: Call, gradient: Tensor, window: Tensor) -> Tensor:
    """Return the gradient of a joined window from that of the product of its axes."""
    if call.fusion.window != "separable":
        return gradient
    axes = separated(call, window)
    shares = []
    for axis in range(len(axes)):
        share = gradient
        for other, weights in enumerate(axes):
            if other != axis:
                share = (share * weights.reshape(-1, *(1,) * (len(axes) - 1 - other))).sum(other, keepdim=True)
        shares.append(share.reshape(-1))
    return torch.cat(shares)


def change_by_weight(call: Call, data: Tensor, weight: Tensor) -> Tensor:
    """Return the derivatives of an average by its weights: minus the average, divided by the weights once more."""
    return -apply(call, apply(call, data, weight), weight)


def batched(
    size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None], call: Call
) -> tuple[Tensor, int]:
    """Compute a call for a batch of tensors: the rule of vmap."""
    data, window, positions, out = tensors
    assert data is not None
    data_dim, window_dim, positions_dim, out_dim = in_dims[:4]
    if window_dim is not None or positions_dim is not None:

        def selected(row: int) -> list[Any]:
            return [
                tensor if dim is None or tensor is None else tensor.select(dim, row)
                for tensor, dim in zip(tensors, in_dims[:4], strict=True)
            ]

        return torch.stack([apply(call, *selected(row)) for row in range(size)]), 0
    geometry = call.geometry
    if isinstance(geometry, SpaceGeometry):  # an axis more, that has blocks of one
        wider = replace(
            geometry,
            block=(1, *geometry.block),
            margin_begin=(0, *geometry.margin_begin),
            margin_end=(0, *geometry.margin_end),
            grid=(size, *geometry.grid),
        )
        return apply(call._replace(geometry=wider), data.movedim(data_dim, 1)), 1
    if not isinstance(geometry, SlidingGeometry):  # an axis more in front of the array's
        call = call._replace(geometry=replace(geometry, lead=(size, *geometry.lead)))
        if out is None:
            first = 1 if call.operation == "take_blocks" else 0
            return apply(call, data.movedim(data_dim, 0), window, positions), first
        data = data.unsqueeze(1).expand(-1, size, *data.shape[1:]) if data_dim is None else data.movedim(data_dim, 1)
        out = out.expand(size, *out.shape) if out_dim is None else out.movedim(out_dim, 0)
        return apply(call, data, window, positions, out), 0
    data = data.movedim(data_dim, 0)
    if geometry.batch is None:
        return apply(call._replace(geometry=replace(geometry, batch=size)), data, window), 0
    flat = call._replace(geometry=replace(geometry, batch=size * geometry.batch))
    return apply(flat, data.flatten(0, 1), window).unflatten(0, (size, geometry.batch)), 0


# ---------------------------------------------------------------------------------------------
# The Function


class Linear(torch.autograd.Function):
    """A call, linear in its data, in its window and in what it adds to; of an average's weights, by their quotient."""

    @staticmethod
    def forward(
        data: Tensor, window: Tensor | None, positions: Tensor | None, out: Tensor | None, call: Call
    ) -> Tensor:
        if is_traced(data):
            with _C._AutoDispatchBelowAutograd():
                return operator(call, data, window, positions, out)
        return execute(call, resolved(data), separated(call, window), positions, out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        data, window, positions, _, ctx.call = inputs
        ctx.set_materialize_grads(False)  # a tangent of zeros is none: a window under a mean has none
        tangents = forward_ad._current_level >= 0 or _C._len_torch_dispatch_stack() > 0  # which a compiler looks for
        kept = data if window is not None and (ctx.needs_input_grad[1] or tangents) else None, window, positions
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * 5
        call: Call = ctx.call
        data, window, positions = saved(ctx)
        needs_data, needs_window, _, needs_out, _ = ctx.needs_input_grad
        if needs_window and call.fusion.reduction != "sum":
            raise no_gradient(call.operation, call.fusion.reduction)
        if window is not None and call.fusion.reduction != "sum":
            call, window = as_counted(call, window)
        divided = divide(call, gradient, window) if needs_data or needs_window else gradient
        of_data = transpose(call, divided, window, positions) if needs_data else None
        of_window = gradient_of_window(call, data, divided, window, positions) if needs_window else None
        return of_data, of_window, None, gradient if needs_out else None, None

    @staticmethod
    def jvp(ctx: Any, data_tangent: Any, window_tangent: Any, _: Any, out_tangent: Any, __: Any) -> Tensor:
        call: Call = ctx.call
        data, window, positions = saved(ctx)

        def applied(given: Tensor, weights: Tensor | None, into: Tensor | None = None) -> Tensor:
            if call.operation == "add_blocks" and into is None:
                into = given.new_zeros(call.result_shape)
            return apply(call, given, weights, positions, into)

        tangents = [] if data_tangent is not None or out_tangent is None else [out_tangent.clone()]
        if data_tangent is not None:
            tangents.append(applied(data_tangent, window, out_tangent))
        if window_tangent is not None:
            if call.fusion.reduction != "sum":
                raise no_gradient(call.operation, call.fusion.reduction)
            if call.operation == "average":
                tangents.append((change_by_weight(call, data, window) * window_tangent).to(data.dtype))
            else:
                tangents += [applied(data, each) for each in tangents_of(call, window, window_tangent)]
        return sum(tangents[1:], tangents[0])


def saved(ctx: Any) -> tuple[Any, ...]:
    """Return the data, window and positions that were saved, of which none may have been freed since."""
    tensors: tuple[Any, ...] = ctx.saved_tensors
    operation = ctx.call.operation
    for name, tensor in zip((OPERATIONS[operation].data, "window", "positions"), tensors, strict=True):
        if tensor is not None and not is_traced(tensor):
            check_stored(operation, name, tensor)
    return tensors


_record = super(torch.autograd.Function, Linear).apply
"""Applies the Function outside of torch.func's transforms, and looks at no signature as `Linear.apply` does."""


def linear(data: Tensor, window: Tensor | None, positions: Tensor | None, out: Tensor | None, call: Call) -> Tensor:
    """Apply the Function as the innermost transform of torch.func wants it, where one is under way."""
    inputs: list[Any] = [data, window, positions, out]
    if not _C._are_functorch_transforms_active():
        result: Tensor = _record(*inputs, call)
        return result
    inputs = [*map(alive, inputs)]
    transform = retrieve_current_functorch_interpreter()
    kind, level = transform.key(), transform.level()
    if kind == _functorch.TransformType.Vmap:
        split = [(None, None) if each is None else _functorch._unwrap_batched(each, level) for each in inputs]
        unwrapped, dims = zip(*split, strict=True)
        with transform.lower():
            if dims == (None,) * 4:
                return apply(call, *unwrapped)
            result, dim = batched(transform.batch_size(), dims, unwrapped, call)
        return _functorch._add_batch_dim(result, dim, level)
    if kind == _functorch.TransformType.Functionalize:
        views = transform.functionalize_add_back_views()
        unwrapped = tuple([_maybe_unwrap_functional_tensor(each, reapply_views=views) for each in inputs])
        with transform.lower():
            result = apply(call, *unwrapped)
        return _functorch._wrap_functional_tensor(result, level)

    def forward(*given: Any) -> Tensor:
        unwrapped = [each if each is None else _functorch._unwrap_for_grad(each, level) for each in given[:4]]
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), transform.lower():
            result = apply(call, *unwrapped)
        return _functorch._wrap_for_grad(result, level)

    of_level: Any = generate_single_level_function(transform, Linear)
    of_level.forward = staticmethod(forward)  # torch's own has no rule for a functionalize outside
    with enable_single_level_autograd_function():
        result = of_level.apply(*inputs, call)
    return result


def tangents_of(call: Call, window: Tensor, tangent: Tensor) -> list[Tensor]:
    """Return joined windows whose sum is the tangent of a window: of a separable one, one for each axis."""
    axes, changes = separated(call, window), separated(call, tangent)
    if len(axes) == 1:
        return [tangent]
    return [torch.cat((*axes[:i], changes[i], *axes[i + 1 :])) for i in range(len(axes))]
