"""Calls on tensors, with gradients, tangents and vmap by the adjoints of `gpufold.adjoints`.

`apply` computes a call directly if no further gradient is needed, through an `autograd.Function` if one is, and by an
operator of torch's library during tracing or under transforms of torch.func, to which torch's dispatcher passes it in
turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import _C, Tensor
from torch._C import _functorch
from torch.autograd import _profiler_enabled as is_profiling
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from gpufold import adjoints
from gpufold.arrays import check_bytes
from gpufold.calls import Call
from gpufold.geometry import BlocksGeometry, SlidingGeometry, SpaceGeometry
from gpufold.operations import OPERATIONS
from gpufold.torch.executing import checked, execute, of_torch, profiled
from gpufold.torch.guards import guard_cache_of
from gpufold.torch.tensors import (
    WEIGHTS,
    alive,
    as_kernel_weights,
    check_stored,
    has_gradient,
    is_traced,
    is_transformed,
    name_of,
    narrowed,
    resolved,
    weights_of,
)


def compute(
    call: Call, data: Tensor, window: Any = None, positions: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Compute a call on the caller's tensors.

    Their shapes and dtypes were checked. Devices, positions and the window, a tensor or a sequence of tensors, are
    checked here.
    """
    axes = () if window is None else weights_of(window)
    given = (data, *axes) if positions is None else (data, positions, *axes)
    given = given if out is None else (out, *given)
    cache = guard_cache_of(call)
    if not (guards := cache.guards).match(given):
        check_bytes(call, call.result_shape, call.element.itemsize)
        positions, axes = checked(call, data, window, positions, out)
        transformed = is_transformed()
        recorded = transformed or has_gradient(data, out, *axes)
        data = data if recorded else resolved(data)
        own = of_torch(call, data) if recorded and not transformed else None
        guards = cache.store(given, (data, positions, out, *axes), recorded, own)
    if guards.of_torch is not None:
        result: Tensor = profiled(call, guards.of_torch, data) if is_profiling() else guards.of_torch(data)
        return result
    if not guards.recorded:
        return execute(call, data, axes, positions, out, guards)
    if call.data_dtype:  # narrower data count as if they were converted first
        call, data = call._replace(data_dtype=""), data.to(getattr(torch, call.dtype))
    if has_gradient(*axes):
        adjoints.check_gradient(TORCH, call.operation, call.fusion.reduction)
    return apply(call, data, joined(call.operation, data, axes) if axes else None, positions, out)


def joined(operation: str, data: Tensor, axes: Sequence[Tensor]) -> Tensor:
    """Return a window as one tensor: of the block's shape, or the concatenated weights of the axes."""
    axes = [narrowed(each, WEIGHTS[name_of(data.dtype)], operation) for each in axes]
    return axes[0] if len(axes) == 1 else torch.cat(axes)


def separated(call: Call, window: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors of a joined window as kernels can read them."""
    if window is None:
        return ()
    window = as_kernel_weights(window, WEIGHTS[call.dtype], call.operation)
    if call.fusion.window != "separable":
        return (window,)
    axes: tuple[Tensor, ...] = torch.split(window, list(call.geometry.block_shape))
    return axes


def apply(
    call: Call, data: Tensor, window: Tensor | None = None, positions: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Compute a call on checked tensors with a joined window: directly, through autograd, or by an operator."""
    data, window, positions, out = given = [*map(alive, (data, window, positions, out))]
    if is_traced(*given) or _C._are_functorch_transforms_active() or any(map(_is_batched, given)):
        return operator(call, data, window, positions, out)
    if not (is_transformed() or has_gradient(data, window, out)):
        return execute(call, resolved(data), separated(call, window), positions, out)
    return linear(data, window, positions, out, call)


def _is_batched(tensor: Tensor | None) -> bool:
    """Return whether a tensor stands for a batch, as in vectorized functions of torch.autograd.functional."""
    return tensor is not None and _functorch.is_legacy_batchedtensor(tensor)


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
        call.filled,
        isinstance(call.geometry, BlocksGeometry) and call.geometry.hangs_over,
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
        _, block, _, _, begin, end = zip(*geometry.axes, strict=True)
        return [[1, *block], [0, *begin], [0, *end]]
    return [list(geometry.block_shape)] if call.operation == "take_blocks" else []


TORCH = adjoints.Library(
    where=torch.where,
    sign=torch.sign,
    stack=torch.stack,
    concatenate=torch.cat,
    moveaxis=torch.movedim,
    broadcast_to=Tensor.expand,
    split=torch.split,
    apply=apply,
    axes_of=separated,
    window_of=lambda axes: axes[0] if len(axes) == 1 else torch.cat(tuple(axes)),
    cast=lambda array, dtype: array.to(getattr(torch, dtype)),
    full=lambda shape, value, dtype, like: like.new_full(shape, value, dtype=getattr(torch, dtype)),
    arange=lambda size, like: torch.arange(size, dtype=like.dtype, device=like.device),
    paired=Tensor.conj,
    constant="window.detach()",
)
"""torch, where a window is joined."""


def row_of(tensors: Sequence[Tensor | None], dims: Sequence[int | None], row: int) -> list[Any]:
    """Return the tensors of one row of a batch, of which each has its batch axis; tensors without one are shared."""
    return [
        tensor if dim is None or tensor is None else tensor.select(dim, row)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]


def batched(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor | None], call: Call) -> tuple[Tensor, int]:
    """Compute a call for a batch of tensors: the rule of vmap."""
    data_dim, window_dim, positions_dim, out_dim = dims
    if window_dim is None and positions_dim is None:
        return adjoints.batched(TORCH, size, (data_dim, out_dim), tensors, call)
    if window_dim is None:
        return adjoints.batched_positions(TORCH, size, (data_dim, positions_dim, out_dim), tensors, call)
    return torch.stack([apply(call, *row_of(tensors, dims, row)) for row in range(size)]), 0


# ---------------------------------------------------------------------------------------------
# The autograd.Function


class LinearFunction(_SingleLevelFunction):
    """A call, linear in its data, its window and `out`; the weights of an average have the derivative of a quotient.

    It is no `torch.autograd.Function`, which inspects signatures and, from torch 2.14 on, sends every call under
    transforms elsewhere.
    """

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(
        data: Tensor, window: Tensor | None, positions: Tensor | None, out: Tensor | None, call: Call
    ) -> Tensor:
        traced = is_traced(data, window, positions, out)
        if traced or _C._are_functorch_transforms_active():  # outer transforms record too
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), _C._AutoDispatchBelowAutograd():
                return operator(call, data, window, positions, out)
        return execute(call, resolved(data), separated(call, window), positions, out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        data, window, positions, _, ctx.call = inputs
        ctx.set_materialize_grads(False)  # no tangent stays None: a mean's window has none
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
        of_data = adjoints.transpose(TORCH, call, gradient, window, positions) if needs_data else None
        of_window = None
        if needs_window:
            of_window = TORCH.window_of(adjoints.gradients_of_window(TORCH, call, data, gradient, window, positions))
        return of_data, of_window, None, gradient if needs_out else None, None

    @staticmethod
    def jvp(ctx: Any, data_tangent: Any, window_tangent: Any, _: Any, out_tangent: Any, __: Any) -> Tensor:
        call: Call = ctx.call
        with forward_ad._set_fwd_grad_enabled(True):  # torch disables it, and tangents are differentiated again
            kept = [None if each is None else forward_ad.unpack_dual(each, level=0).primal for each in saved(ctx)]
            of_axes = None if window_tangent is None else separated(call, window_tangent)
            changes = data_tangent, of_axes, None, out_tangent
            result: Tensor = adjoints.tangent(TORCH, call, (*kept, None), changes)
        return result.clone() if result is out_tangent else result  # a change of the result must not change it


def saved(ctx: Any) -> tuple[Any, ...]:
    """Return the saved data, window and positions; raise if one was freed since."""
    tensors: tuple[Any, ...] = ctx.saved_tensors
    operation = ctx.call.operation
    for name, tensor in zip((OPERATIONS[operation].data, "window", "positions"), tensors, strict=True):
        if tensor is not None and not is_traced(tensor):
            check_stored(operation, name, tensor)
    return tensors


_record = LinearFunction.apply
"""Applies the Function for at most one transform of torch.func."""


def linear(data: Tensor, window: Tensor | None, positions: Tensor | None, out: Tensor | None, call: Call) -> Tensor:
    """Compute a recorded call; under transforms of torch.func, for the one that the dispatcher has reached."""
    allowed = _functorch.get_single_level_autograd_function_allowed()
    _functorch.set_single_level_autograd_function_allowed(True)
    try:
        result: Tensor = _record(data, window, positions, out, call)
        return result
    finally:
        _functorch.set_single_level_autograd_function_allowed(allowed)
