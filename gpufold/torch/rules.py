"""Gradients: every operation is linear in its data, and its adjoint is another operation, whose gradient is it again.

`apply` computes a call by the way that fits: by the kernel where nothing asks for a gradient, through an
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
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from gpufold.calls import Call, Fusion
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import (
    Axis,
    BlocksGeometry,
    Geometry,
    PositionsGeometry,
    Size,
    SlidingGeometry,
    SpaceGeometry,
)
from gpufold.operations import OPERATIONS
from gpufold.torch.guards import seen_of
from gpufold.torch.tensors import (
    PLAIN_TYPES,
    WEIGHTS,
    check_dense,
    check_like,
    check_no_overlap,
    checked_positions,
    checked_window,
    execute,
    execute_into,
    name_of,
    ready,
    resolved,
    share_memory,
    weights_of,
)

ADJOINTS = {
    "col2im": "im2col",
    "im2col": "col2im",
    "blocks_to_array": "array_to_blocks",
    "array_to_blocks": "blocks_to_array",
    "batch_to_space": "space_to_batch",
    "space_to_batch": "batch_to_space",
    "add_blocks": "take_blocks",
    "take_blocks": "add_blocks",
    "average": "average",
}

TAKING = ("im2col", "array_to_blocks", "take_blocks")
"""The operations whose results are blocks: their windows weigh what comes out."""


def is_traced(*tensors: Any) -> bool:
    """Return whether something records operators instead of computing: a compiler, a mode, a subclass of tensors.

    A transform of torch.func under a mode takes its own turn first, for which operators have no rules.
    """
    if (
        is_compiling()
        or _C._is_tracing()
        or (_C._len_torch_dispatch_stack() > 0 and not _C._are_functorch_transforms_active())
    ):
        return True
    for tensor in tensors:  # a generator takes a microsecond
        if type(tensor) in PLAIN_TYPES:
            if tensor.is_meta:
                return True
        elif isinstance(tensor, Tensor):
            return True
    return False


def is_plain(*tensors: Tensor | None) -> bool:
    """Return whether nothing asks for a gradient, a tangent or a transform of functions."""
    if _C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return False
    return True


def compute(
    call: Call, data: Tensor, window: Any = None, positions: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Compute a call on what its caller gave.

    Shapes and dtypes agree. Whether its tensors are on one device is still to be checked, and whether positions and the
    window, a tensor or a sequence of them, are what kernels can read.
    """
    axes = weights_of(window)
    given = (data, *axes) if positions is None else (data, positions, *axes)
    given = given if out is None else (out, *given)
    seen = seen_of(call)
    if (guards := seen.guards).hold(given):
        return execute(call, data, axes, positions, out, guards)
    check_dense(call.operation, OPERATIONS[call.operation].data, data)
    if out is not None:
        check_dense(call.operation, "out", out)
        check_like(call.operation, "blocks", data, out, "out")
    if positions is not None:
        positions = checked_positions(call.operation, positions, data, "array" if out is None else "out")
    axes = checked_window(call, data, window)
    if is_plain(data, out, *axes):
        data = resolved(data)
        seen.see(given, (data, positions, out, *axes))
        return execute(call, data, axes, positions, out)
    if call.source:  # narrower data count as if they were converted first
        call, data = call._replace(source=""), data.to(getattr(torch, call.dtype))
    if not axes:
        return apply(call, data, None, positions, out)
    if call.fusion.reduction != "sum" and torch.is_grad_enabled() and any(each.requires_grad for each in axes):
        raise no_gradient(call.operation, call.fusion.reduction)
    return apply(call, data, joined(data, axes), positions, out)


def compute_in_place(
    call: Call, out: Tensor, blocks: Tensor, window: Any, positions: Tensor, weight_out: Tensor | None
) -> Tensor:
    """Add blocks into a tensor, and their weights into another; gradients take the way over new tensors."""
    axes, written = weights_of(window), (out,) if weight_out is None else (out, weight_out)
    given = (*written, blocks, positions, *axes)
    seen = seen_of(call, True)
    if (guards := seen.guards).hold(given) and guards.apart(given, len(written)):
        execute_into(call, blocks, out, axes, positions, weight_out, guards)
    else:
        check_dense("add_blocks_", "out", out)
        check_like("add_blocks_", "blocks", blocks, out, "out")
        positions = checked_positions("add_blocks_", positions, out, "out")
        axes = checked_window(call, blocks, window)
        check_written("out", out, (blocks, positions, *axes))
        if weight_out is not None:
            check_like("add_blocks_", "weight_out", weight_out, out, "out")
            check_written("weight_out", weight_out, (blocks, positions, *axes))
            check_apart("weight_out", weight_out, "out", out)
        lazy = any([resolved(tensor) is not tensor for tensor in written])
        if lazy or not is_plain(blocks, *written, *axes):
            plain = call._replace(fusion=call.fusion._replace(weight_out=False))
            out.copy_(compute(plain, blocks, window, positions, out))
            if weight_out is not None and out.numel() and blocks.numel():
                add_weights(plain, weight_out, window, positions)
            return out
        blocks = resolved(blocks)
        seen.see(given, (*written, blocks, positions, *axes))
        execute_into(call, blocks, out, axes, positions, weight_out)
    count_write(out)
    if weight_out is not None:
        count_write(weight_out)
    return out


def count_write(tensor: Tensor) -> None:
    """Tell autograd that a tensor was written into; tensors of inference mode count no writes."""
    if not tensor.is_inference():
        increment_version(tensor)


def check_written(name: str, tensor: Tensor, read: Sequence[Tensor]) -> None:
    """Raise where a tensor may not be written into, or shares memory with blocks, positions or weights."""
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            f"add_blocks_: {name} is a leaf that requires a gradient, which nothing may write into; call "
            "add_blocks, which returns a new tensor, or add under torch.no_grad()"
        )
    check_no_overlap(name, tensor)
    for index, each in enumerate(read):
        check_apart(name, tensor, ("blocks", "positions", "window")[min(index, 2)], each)


def check_apart(name: str, tensor: Tensor, other: str, read: Tensor) -> None:
    """Raise where a tensor that is written into shares memory with one that is read."""
    if share_memory(tensor, read):
        raise ValueError(f"add_blocks_: {name} must share no memory with {other}, got tensors that overlap")


def add_weights(call: Call, weight_out: Tensor, window: Any, positions: Tensor) -> None:
    """Add a window, or one, at the positions of blocks."""
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    ones = weight_out.new_ones(()).expand(geometry.count, *geometry.block_shape)
    call = call._replace(geometry=replace(geometry, lead=()), dtype=call.element.weight, source="")
    weight_out.copy_(compute(call, ones, window, positions, weight_out))


def no_gradient(operation: str, reduction: str) -> ValueError:
    """Return what to raise where a gradient is asked for that there is none of."""
    return ValueError(
        f"{operation}: window requires a gradient, which there is under reduction='sum' alone, got {reduction!r}; "
        f"pass window.detach()"
    )


def joined(data: Tensor, axes: Sequence[Tensor]) -> Tensor:
    """Return a window as one tensor of weights: that of the block's shape, or those of the axes in a row."""
    dtype = WEIGHTS[name_of(data.dtype)]
    return axes[0].to(dtype) if len(axes) == 1 else torch.cat([each.to(dtype) for each in axes])


def separated(call: Call, window: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors of a joined window as kernels can read them."""
    if window is None:
        return ()
    window = ready(window, WEIGHTS[call.dtype])
    if call.fusion.window != "separable":
        return (window,)
    axes: tuple[Tensor, ...] = torch.split(window, list(block_shape_of(call.geometry)))
    return axes


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
    if is_traced(data) or _C._functorch.is_legacy_batchedtensor(data):
        return operator(call, data, window, positions, out)
    if is_plain(data, window, out):
        return execute(call, resolved(data), separated(call, window), positions, out)
    result: Tensor = Linear.apply(data, window, positions, out, call)
    return result


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
# What both the Function and the operators do


def save(ctx: Any, call: Call, data: Tensor, window: Tensor | None, positions: Tensor | None) -> None:
    """Keep what gradients and tangents need: the data only where the window has any, or a compiler looks for some."""
    ctx.call = call
    tangents = forward_ad._current_level >= 0 or _C._len_torch_dispatch_stack() > 0
    kept = data if window is not None and (ctx.needs_input_grad[1] or tangents) else None, window, positions
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)


def gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of data, window and out."""
    call: Call = ctx.call
    data, window, positions = ctx.saved_tensors
    needs_data, needs_window, _, needs_out, *_ = ctx.needs_input_grad
    if needs_window and call.fusion.reduction != "sum":
        raise no_gradient(call.operation, call.fusion.reduction)
    divided = divide(call, gradient, window) if needs_data or needs_window else gradient
    return (
        transpose(call, divided, window, positions) if needs_data else None,
        gradient_of_window(call, data, divided, window, positions) if needs_window else None,
        gradient if needs_out else None,
    )


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
    assert axes is not None
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
    info: Any, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None], call: Call
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

        return torch.stack([apply(call, *selected(row)) for row in range(info.batch_size)]), 0
    size, geometry = info.batch_size, call.geometry
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
        data, window, positions, _, call = inputs
        ctx.set_materialize_grads(False)  # a tangent of zeros is none: a window under a mean has none
        save(ctx, call, data, window, positions)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * 5
        of_data, of_window, of_out = gradients(ctx, gradient)
        return of_data, of_window, None, of_out, None

    @staticmethod
    def jvp(ctx: Any, data_tangent: Any, window_tangent: Any, _: Any, out_tangent: Any, __: Any) -> Tensor:
        call: Call = ctx.call
        data, window, positions = ctx.saved_tensors
        tangents = []
        if data_tangent is not None:
            into = None if call.operation != "add_blocks" else out_tangent
            if call.operation == "add_blocks" and into is None:
                into = data_tangent.new_zeros(call.geometry.array_shape)  # type: ignore[union-attr]
            tangents.append(apply(call, data_tangent, window, positions, into))
        elif out_tangent is not None:
            tangents.append(out_tangent.clone())
        if window_tangent is not None:
            if call.fusion.reduction != "sum":
                raise no_gradient(call.operation, call.fusion.reduction)
            into = None if call.operation != "add_blocks" else data.new_zeros(call.geometry.array_shape)  # type: ignore[union-attr]
            if call.operation == "average":
                tangents.append((change_by_weight(call, data, window) * window_tangent).to(data.dtype))
            else:
                changes = tangents_of(call, window, window_tangent)
                tangents += [apply(call, data, each, positions, into) for each in changes]
        return sum(tangents[1:], tangents[0])

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return batched(info, in_dims, inputs[:4], inputs[4])


def tangents_of(call: Call, window: Tensor, tangent: Tensor) -> list[Tensor]:
    """Return joined windows whose sum is the tangent of a window: of a separable one, one for each axis."""
    axes, changes = separated(call, window), separated(call, tangent)
    assert axes is not None
    assert changes is not None
    if len(axes) == 1:
        return [tangent]
    return [torch.cat((*axes[:i], changes[i], *axes[i + 1 :])) for i in range(len(axes))]
