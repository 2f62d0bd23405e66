"""The operators of torch's library, which compilers trace: opaque, so that results have the bits of eager calls.

Each takes `(data, window, positions, out, sizes..., reduction, separable, variant, deterministic)`, where the window is
joined to one tensor (see `gpufold.torch.rules.joined`) and `out` is what add_blocks adds to, which stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpufold import calls
from gpufold.arrays import misshapen_weights
from gpufold.calls import Call, Fusion
from gpufold.elements import check_dtype
from gpufold.geometry import GEOMETRIES, SpaceGeometry
from gpufold.operations import OPERATIONS
from gpufold.torch import rules
from gpufold.torch.tensors import DTYPES, execute

SIZES = {
    "col2im": ("output_size", "kernel_size", "strides", "dilations", "pads_begin", "pads_end"),
    "im2col": ("kernel_size", "strides", "dilations", "pads_begin", "pads_end"),
    "blocks_to_array": ("output_shape", "block_shape", "block_strides"),
    "array_to_blocks": ("block_shape", "block_strides"),
    "add_blocks": (),
    "batch_to_space": ("block_shape", "crops_begin", "crops_end"),
    "space_to_batch": ("block_shape", "pads_begin", "pads_end"),
}
"""The sizes that each operator takes, one value per axis."""

_library = torch.library.Library("gpufold", "DEF")


def call_of(operation: str, arguments: tuple[Any, ...]) -> Call:
    """Describe a call of an operator; sizes may be symbols."""
    data, window, positions, out, *sizes, reduction, separable, variant, deterministic = arguments
    dtype = DTYPES.get(data.dtype)
    name = OPERATIONS[operation].data
    if dtype is None:
        check_dtype(operation, name, str(data.dtype).removeprefix("torch."))
    assert dtype is not None
    accumulate = operation == "add_blocks"
    calls.checked(operation, name, dtype, reduction=reduction, window=window, accumulate=accumulate)
    shapes = (data.shape,) if out is None else (out.shape, data.shape, positions.shape)
    integers = (*map(tuple, shapes), *map(tuple, sizes))
    check: Any = GEOMETRIES[operation]
    if not all(type(number) is int for numbers in integers for number in numbers):
        check = check.__wrapped__
    geometry = check(*integers)
    kind = "none" if window is None else "separable" if separable else "full"
    call = Call(operation, geometry, dtype.name, Fusion(reduction, kind, accumulate), variant, deterministic)
    if window is not None:
        _check_joined(call, window)
    return call


def _check_joined(call: Call, window: Tensor) -> None:
    assert not isinstance(call.geometry, SpaceGeometry)
    block_shape = call.geometry.block_shape
    wanted = (sum(block_shape),) if call.fusion.window == "separable" else block_shape
    if tuple(window.shape) != wanted:
        raise misshapen_weights(call, "window", tuple(window.shape), wanted)


def _define(operation: str) -> None:
    """Define an operator: on tensors, on fake ones, its gradients and its vmap."""

    def compute(*arguments: Any) -> Tensor:
        call = call_of(operation, arguments)
        data, window, positions, out = arguments[:4]
        return execute(call, data, rules.separated(call, window), positions, out)

    def fake(*arguments: Any) -> Tensor:
        data: Tensor = arguments[0]
        shape = getattr(call_of(operation, arguments).geometry, OPERATIONS[operation].result)
        return data.new_empty(shape)

    def differentiate(*arguments: Any) -> Tensor:
        result: Tensor = rules.Linear.apply(*arguments[:4], call_of(operation, arguments))
        return result

    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:
        tensors = [
            tensor if dim is None else tensor.select(dim, 0)
            for tensor, dim in zip(arguments[:4], in_dims[:4], strict=True)
        ]
        return rules.batched(info, in_dims, arguments[:4], call_of(operation, (*tensors, *arguments[4:])))

    sizes = "".join(f"SymInt[] {name}, " for name in SIZES[operation])
    schema = (
        f"{operation}(Tensor data, Tensor? window, Tensor? positions, Tensor? out, {sizes}str reduction, "
        f"bool separable, str variant, bool deterministic) -> Tensor"
    )
    name = f"gpufold::{operation}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(operation, compute, key)
    torch.library.register_fake(name, fake, lib=_library)
    for key in ("Autograd", "FuncTorchDynamicLayerFrontMode"):
        _library.impl(operation, differentiate, key)
    torch.library.register_vmap(name, vmap, lib=_library)


for _operation in SIZES:
    _define(_operation)


def per_axis(value: Any, rank: int) -> list[Any]:
    """Return one integer per axis, symbols included."""
    return [value] * rank if isinstance(value, int | torch.SymInt) else list(value)


# ---------------------------------------------------------------------------------------------
# Calls that are traced: what they are given goes to an operator, whose fake implementation checks it


def trace(
    operation: str,
    given: tuple[Any, ...],
    sizes: tuple[Any, ...],
    rank: int,
    choices: tuple[str, str, bool],
) -> Tensor:
    """Call an operator with (data, window[, positions, out]) and sizes of that many axes, as they are given."""
    data, window, *others = given
    positions, out = others or (None, None)
    reduction, variant, deterministic = choices
    separable = False
    if window is not None:
        axes = (window,) if isinstance(window, Tensor) else tuple(window)
        separable = not isinstance(window, Tensor) or window.ndim == 1
        if reduction != "sum" and torch.is_grad_enabled() and any([each.requires_grad for each in axes]):
            raise rules.no_gradient(operation, reduction)
        window = rules.joined(data, axes)
    lists = [per_axis(value, rank) for value in sizes]
    result: Tensor = getattr(torch.ops.gpufold, operation).default(
        data, window, positions, out, *lists, reduction, separable, variant, deterministic
    )
    return result


def trace_space(operation: str, data: Tensor, sizes: tuple[Any, ...], variant: str) -> Tensor:
    """Call an operator between batch and space, where one int for margins spares the batch axis."""
    block_shape, *margins = sizes
    rank = data.ndim
    lists = [[0, *[margin] * (rank - 1)] if isinstance(margin, int | torch.SymInt) else margin for margin in margins]
    return trace(operation, (data, None), (block_shape, *lists), rank, ("sum", variant, True))


def as_positions(positions: Any, out: Tensor) -> Tensor:
    """Return positions as a tensor beside `out`."""
    if not isinstance(positions, Tensor):
        return torch.tensor(positions, dtype=torch.int64, device=out.device)
    return positions.to(torch.int64).contiguous()
