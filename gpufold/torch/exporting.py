"""Calls as operators of aten and ONNX, for exporters and for backends that know no other operators.

`decomposed` reduces windows, means, dtypes and layouts to sums of columns, for which aten and ONNX have operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gpufold import geometry
from gpufold.elements import ELEMENT_TYPES
from gpufold.torch.tensors import is_in_aten, name_of
from gpufold.weights import counted, product_of

Sizes: TypeAlias = list[Any]  # ints, symbols or torch.jit.trace's tensors, one per axis
Weigh: TypeAlias = Callable[[Tensor, Sizes], Tensor]  # multiplies columns by the weights of a block
Fold: TypeAlias = Callable[..., Tensor]  # sums columns (N, C*taps, blocks) into an image, by the sizes of `col2im`


def decompositions() -> dict[Any, Callable[..., Tensor]]:
    """Return decompositions of gpufold's operators into aten's, for `ExportedProgram.run_decompositions`.

    2-D folds with symmetric padding become aten.col2im, 2-D unfolds aten.im2col; others become elementary operators.
    add_blocks and take_blocks have no decomposition.

    >>> import torch, gpufold.torch
    >>> class Model(torch.nn.Module):
    ...     def forward(self, columns):
    ...         return gpufold.torch.fold(columns, 4, 2)
    >>> program = torch.export.export(Model(), (torch.ones(1, 4, 9),))
    >>> program = program.run_decompositions(gpufold.torch.decompositions())
    >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    ['aten.col2im.default']

    See Also
    --------
    torch.export.ExportedProgram.run_decompositions : Takes the table.
    """
    functions = {name: partial(decomposed, fold_by_aten, name) for name in IN_ATEN} | {"im2col": _im2col_by_aten}
    return {getattr(torch.ops.gpufold, name).default: function for name, function in functions.items()}


def _im2col_by_aten(image: Tensor, *arguments: Any) -> Tensor:
    window, _, _, kernel, strides, dilations, begins, ends, _, separable, *_ = arguments
    if not is_in_aten(image, len(kernel), dilations, begins, ends):
        return decomposed(fold_by_aten, "im2col", image, *arguments)
    columns = torch.ops.aten.im2col(image, kernel, dilations, begins, strides)
    return _weighed(window, separable, columns, kernel)


def decomposed(fold: Fold, operation: str, *arguments: Any) -> Tensor:
    """Compute an operator of gpufold by operators of aten, with sums of columns by `fold`."""
    data, window, _, _, *sizes, reduction, separable, _, _, _, over = arguments
    function = partial(IN_ATEN[operation], over=True) if over else IN_ATEN[operation]
    if operation == "average":
        return function(data, window)
    if operation in ("col2im", "blocks_to_array"):
        return function(partial(_reduced, fold, window, separable, reduction), data, *sizes)
    if operation in ("im2col", "array_to_blocks"):
        return function(partial(_weighed, window, separable), data, *sizes)
    return function(data, *sizes)


def _axes_of(window: Tensor, kernel: Sizes, separable: bool) -> Sequence[Tensor]:
    """Return the tensors of a joined window."""
    return window.split(list(kernel)) if separable else (window,)


def _weighed(window: Tensor | None, separable: bool, columns: Tensor, kernel: Sizes) -> Tensor:
    """Return columns times their weights, products of half precision rounded once."""
    if window is None:
        return columns
    weights = product_of(torch, _axes_of(window, kernel, separable)).reshape(-1, 1)
    each = columns.reshape(-1, prod(kernel), columns.shape[-1]).to(_dtype_of_sums(columns.dtype)) * weights
    return each.to(columns.dtype).reshape(columns.shape)


def _reduced(
    fold: Fold, window: Tensor | None, separable: bool, reduction: str, columns: Tensor, *sizes: Any
) -> Tensor:
    """Sum weighted columns in the dtype of sums, and divide the sums."""
    dtype, kernel = columns.dtype, sizes[1]
    columns = columns.to(_dtype_of_sums(dtype))
    if window is not None and reduction != "sum":
        axes = counted(torch, _axes_of(window, kernel, separable), reduction)
        separable = separable and reduction == "mean"
        window = torch.cat(axes) if separable else axes[0]
    image = fold(_weighed(window, separable, columns, kernel), *sizes)
    if reduction != "sum":
        ones = torch.ones((1, prod(kernel), columns.shape[2]), dtype=columns.abs().dtype, device=columns.device)
        squared = window if window is None or reduction == "mean" else window * window
        image = _average(image, fold(_weighed(squared, separable, ones, kernel), *sizes))
    return image != 0 if dtype is torch.bool else image.to(dtype)


def _dtype_of_sums(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums; bool is counted."""
    return torch.float32 if dtype is torch.bool or ELEMENT_TYPES[name_of(dtype)].is_half else dtype


def _average(sums: Tensor, weight: Tensor) -> Tensor:
    uncovered = weight.abs() < torch.finfo(weight.dtype).tiny
    quotients = sums.to(_dtype_of_sums(sums.dtype)) / torch.where(uncovered, torch.ones_like(weight), weight)
    return torch.where(uncovered, torch.zeros_like(quotients), quotients).to(sums.dtype)


def _to_image(fold: Fold, data: Tensor, *sizes: Sizes) -> Tensor:
    return fold(data, *sizes) if data.ndim == 3 else fold(data.unsqueeze(0), *sizes).squeeze(0)


def _to_array(fold: Fold, blocks: Tensor, shape: Sizes, kernel: Sizes, strides: Sizes, over: bool = False) -> Tensor:
    rank, lead = len(kernel), len(shape) - len(kernel)
    columns = blocks.permute(*range(lead), *range(lead + rank, lead + 2 * rank), *range(lead, lead + rank))
    columns = columns.reshape(-1, prod(kernel), prod(blocks.shape[lead : lead + rank]))
    strides, ends = _over_the_ends(shape[lead:], kernel, strides, over)
    whole = [extent + end for extent, end in zip(shape[lead:], ends, strict=True)]
    image = fold(columns, whole, kernel, strides, [1] * rank, [0] * rank, [0] * rank).reshape([*shape[:lead], *whole])
    return image[(..., *map(slice, shape[lead:]))].contiguous() if over else image


def _over_the_ends(size: Sizes, kernel: Sizes, strides: Sizes, over: bool) -> tuple[Sizes, Sizes]:
    """Return strides, and how far blocks extend beyond the ends; strides past a known axis are shortened to it."""
    if not over:
        return strides, [0] * len(kernel)
    strides = [
        min(stride, max(1, extent)) if type(extent) is int else stride
        for stride, extent in zip(strides, size, strict=True)
    ]
    return strides, [over_the_end(*each) for each in zip(size, kernel, strides, strict=True)]


def over_the_end(extent: Any, block: Any, stride: Any) -> Any:
    """Return how far blocks extend beyond the end of an axis, of which torch.jit.trace has the extent as a tensor."""
    if not isinstance(extent, Tensor):
        return geometry.over_the_end(extent, block, stride)
    return ((extent - block + stride - 1) // stride).clamp(min=0) * stride + block - extent


def _to_columns(weigh: Weigh, image: Tensor, kernel: Sizes, *steps: Sizes) -> Tensor:
    lead = image.ndim - len(kernel)
    columns = _taken(image, kernel, *steps)
    count = prod(columns.shape[lead + len(kernel) :])
    return weigh(columns.reshape(*image.shape[: lead - 1], image.shape[lead - 1] * prod(kernel), count), kernel)


def _to_blocks(weigh: Weigh, array: Tensor, kernel: Sizes, strides: Sizes, over: bool = False) -> Tensor:
    rank, lead = len(kernel), array.ndim - len(kernel)
    strides, ends = _over_the_ends(array.shape[lead:], kernel, strides, over)
    steps = kernel, strides, [1] * rank, [0] * rank, ends
    columns = _taken(array, *steps)
    weighed = weigh(columns.reshape(-1, prod(kernel), prod(columns.shape[lead + rank :])), kernel)
    weighed = weighed.reshape(columns.shape)
    if over:  # zeros have no weight
        weighed = weighed.where(_taken(torch.ones_like(array, dtype=torch.bool), *steps), 0)
    return weighed.permute(*range(lead), *range(lead + rank, lead + 2 * rank), *range(lead, lead + rank)).contiguous()


def _places(taps: Any, blocks: Any, stride: Any, dilation: Any, device: torch.device) -> Tensor:
    """Return the indices of the taps of blocks along a padded axis, tap by tap."""
    first = torch.arange(taps, device=device) * dilation
    return (first.unsqueeze(1) + torch.arange(blocks, device=device) * stride).reshape(-1)


def _taken(image: Tensor, kernel: Sizes, strides: Sizes, dilations: Sizes, begins: Sizes, ends: Sizes) -> Tensor:
    """Return the blocks of an image, of shape (*lead, *kernel, *num_blocks)."""
    lead = image.ndim - len(kernel)
    image = _padded(image, begins, ends)
    for axis in reversed(range(len(kernel))):
        dim, shape = lead + axis, list(image.shape)
        blocks = (shape[dim] - dilations[axis] * (kernel[axis] - 1) - 1) // strides[axis] + 1
        places = _places(kernel[axis], blocks, strides[axis], dilations[axis], image.device)
        image = image.index_select(dim, places).reshape([*shape[:dim], kernel[axis], blocks, *shape[dim + 1 :]])
    return image.permute(*range(lead), *range(lead, image.ndim, 2), *range(lead + 1, image.ndim, 2))


def _padded(image: Tensor, begins: Sizes, ends: Sizes) -> Tensor:
    """Return an image with zeros around its last axes."""
    margins = [*chain.from_iterable(zip(reversed(begins), reversed(ends), strict=True))]
    if all(type(margin) is int and margin == 0 for margin in margins):
        return image
    if image.dtype is torch.bool:  # ONNX's Pad does not support it
        return torch.nn.functional.pad(image.to(torch.uint8), margins).to(torch.bool)
    return torch.nn.functional.pad(image, margins)


def _to_space(data: Tensor, block: Sizes, begins: Sizes, ends: Sizes) -> Tensor:
    rank = data.ndim - 1
    shape = [data.shape[0] // prod(block), *(size * each for size, each in zip(data.shape[1:], block[1:], strict=True))]
    split = data.reshape([*block[1:], shape[0], *data.shape[1:]])
    space = split.permute(rank, *chain.from_iterable((rank + 1 + axis, axis) for axis in range(rank))).reshape(shape)
    margins = zip(begins[1:], ends[1:], shape[1:], strict=True)
    return space[(slice(None), *(slice(begin, size - end) for begin, end, size in margins))].contiguous()


def _to_batch(data: Tensor, block: Sizes, begins: Sizes, ends: Sizes) -> Tensor:
    padded = _padded(data, begins[1:], ends[1:])
    rank = padded.ndim - 1
    grid = [size // each for size, each in zip(padded.shape[1:], block[1:], strict=True)]
    split = padded.reshape([padded.shape[0], *chain.from_iterable(zip(grid, block[1:], strict=True))])
    order = *range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank, 2)
    return split.permute(order).reshape([padded.shape[0] * prod(block), *grid])


IN_ATEN: dict[str, Callable[..., Tensor]] = {
    "col2im": _to_image,
    "im2col": _to_columns,
    "blocks_to_array": _to_array,
    "array_to_blocks": _to_blocks,
    "average": _average,
    "batch_to_space": _to_space,
    "space_to_batch": _to_batch,
}


# ---------------------------------------------------------------------------------------------
# Sums of columns


def fold_by_aten(
    columns: Tensor, size: Sizes, kernel: Sizes, strides: Sizes, dilations: Sizes, begins: Sizes, ends: Sizes
) -> Tensor:
    """Sum columns by aten.col2im, or axis by axis with index_add."""
    if is_in_aten(columns, len(size), dilations, begins, ends):
        return torch.ops.aten.col2im(columns, size, kernel, dilations, begins, strides)
    rank = len(size)
    padded = [sum(extents) for extents in zip(size, begins, ends, strict=True)]
    counts = [
        (extent - dilation * (taps - 1) - 1) // stride + 1
        for extent, taps, stride, dilation in zip(padded, kernel, strides, dilations, strict=True)
    ]
    image = columns.reshape([columns.shape[0], columns.shape[1] // prod(kernel), *kernel, *counts])
    image = image.permute(0, 1, *chain.from_iterable((2 + axis, 2 + rank + axis) for axis in range(rank)))
    for axis in reversed(range(rank)):
        dim, shape = 2 + 2 * axis, list(image.shape)
        places = _places(kernel[axis], counts[axis], strides[axis], dilations[axis], columns.device)
        flat = image.reshape([*shape[:dim], kernel[axis] * counts[axis], *shape[dim + 2 :]])
        sums = flat.new_zeros([*shape[:dim], padded[axis], *shape[dim + 2 :]]).index_add(dim, places, flat)
        image = sums.narrow(dim, begins[axis], size[axis])
    return image.contiguous()


def as_onnx_has_them(fold: Fold) -> Fold:
    """Return a function that sums columns within the limits of ONNX's Col2Im: two or more axes, no dilation of 0."""

    def folded(
        columns: Tensor, size: Sizes, kernel: Sizes, strides: Sizes, dilations: Sizes, *margins: Sizes
    ) -> Tensor:
        alike = [axis for axis, dilation in enumerate(dilations) if type(dilation) is int and dilation == 0]
        if alike:  # their taps land on one pixel
            taps = columns.reshape([columns.shape[0], -1, *kernel, columns.shape[2]])
            columns = taps.sum([2 + axis for axis in alike], keepdim=True, dtype=columns.dtype)
            columns = columns.flatten(1, -2)
            kernel = [1 if axis in alike else each for axis, each in enumerate(kernel)]
            dilations = [each or 1 for each in dilations]
        if len(size) > 1:
            return fold(columns, size, kernel, strides, dilations, *margins)
        more = [[1, *each] for each in (size, kernel, strides, dilations)], [[0, *each] for each in margins]
        return fold(columns, *chain(*more)).squeeze(2)

    return folded


@as_onnx_has_them
def fold_by_onnx(
    columns: Tensor, size: Sizes, kernel: Sizes, strides: Sizes, dilations: Sizes, begins: Sizes, ends: Sizes
) -> Tensor:
    """Sum columns by ONNX's Col2Im, for the exporter based on torch.export."""
    if is_in_aten(columns, len(size), dilations, begins, ends):
        return torch.ops.aten.col2im(columns, size, kernel, dilations, begins, strides)
    attributes = attributes_of(strides, dilations, begins, ends)
    shape = columns.shape[0], columns.shape[1] // prod(kernel), *size
    inputs = columns, *(torch.tensor(each, dtype=torch.int64) for each in (size, kernel))
    result: Tensor = torch.onnx.ops.symbolic("Col2Im", inputs, attributes, dtype=columns.dtype, shape=shape, version=18)
    return result


def attributes_of(strides: Any, dilations: Any, begins: Any, ends: Any) -> dict[str, Any]:
    """Return the attributes of ONNX's Col2Im, or raise if they are not constants."""
    for name, values in {"strides": strides, "dilations": dilations, "pads_begin": begins, "pads_end": ends}.items():
        if not isinstance(values, list | tuple) or not all([type(each) is int for each in values]):
            raise TypeError(f"col2im: {name} must not follow the input's size: they are constants in ONNX")
    return {"strides": strides, "dilations": dilations, "pads": [*begins, *ends]}


@cache
def register_with_torchscript() -> None:
    """Register the ONNX form of sums of columns with the exporter based on torch.jit.trace."""
    torch.onnx.register_custom_op_symbolic("gpufold::col2im", _symbolic, 18)


def _symbolic(graph: Any, columns: Any, *arguments: Any) -> Any:
    from torch.onnx import symbolic_helper as helper

    def shape(value: Any) -> Any:
        if not helper._is_packed_list(value):
            return graph.op("Constant", value_t=torch.tensor(helper._get_const(value, "is", "output_size")))
        one = graph.op("Constant", value_t=torch.tensor([1]))
        return graph.op("Concat", *[graph.op("Reshape", each, one) for each in helper._unpack_list(value)], axis_i=0)

    size, kernel, *steps = arguments[3:9]
    attributes = attributes_of(*[helper._maybe_get_const(each, "is") for each in steps])
    named = {f"{name}_i": values for name, values in attributes.items()}
    kind = columns.type().with_sizes([None] * (2 + len(attributes["strides"])))  # what follows needs the rank
    return graph.op("Col2Im", columns, shape(size), shape(kernel), **named).setType(kind)
