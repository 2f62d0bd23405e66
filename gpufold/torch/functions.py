"""The functions on tensors by gpufold's names: description of the call, then the way that computes it."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from gpufold import calls
from gpufold.calls import Mode, Reduction
from gpufold.geometry import Extents, Sizes
from gpufold.torch import operators, tensors
from gpufold.torch.door import public
from gpufold.torch.rules import differentiate
from gpufold.torch.tensors import described, is_traced

compute, compute_in_place = partial(tensors.compute, differentiate), partial(tensors.compute_in_place, differentiate)


@public
def col2im(
    data: Tensor,
    output_size: Extents,
    kernel_size: Sizes,
    *,
    strides: Sizes = 1,
    dilations: Sizes = 1,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    reduction: Reduction = "sum",
    window: Any = None,
    dtype: Any = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Put sliding blocks back together into an image: as `gpufold.col2im`, but on tensors, with gradients.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``, or both without ``N``.

    >>> import torch, gpufold.torch
    >>> columns = torch.ones(4, 9, dtype=torch.int32)  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.torch.col2im(columns, (4, 4), (2, 2))[0, 0].tolist()
    [1, 2, 2, 1]

    Arguments are those of `gpufold.col2im` but `out` and `accumulate`. `data` is on the CPU or a CUDA device, where the
    contiguous result is too and a window has to be; a window has a gradient under a sum, else a ValueError says so.
    """
    steps = kernel_size, strides, dilations, pads_begin, pads_end
    if is_traced(data):
        tail = reduction, variant, deterministic
        return operators.trace("col2im", (data, window), (output_size, *steps), len(output_size), tail, dtype)
    given = described("col2im", "data", data)
    call = calls.col2im(
        given,
        output_size,
        *steps,
        reduction=reduction,
        window=window,
        dtype=tensors.dtype_given(dtype),
        variant=variant,
        deterministic=deterministic,
    )
    return compute(call, data, window)


@public
def im2col(
    image: Tensor,
    kernel_size: Extents,
    *,
    strides: Sizes = 1,
    dilations: Sizes = 1,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    window: Any = None,
    variant: str = "auto",
) -> Tensor:
    """Take sliding blocks out of an image: as `gpufold.im2col`, but on tensors, with gradients.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``, or both without ``N``.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.im2col(torch.arange(9).reshape(1, 3, 3), (2, 2))
    tensor([[0, 1, 3, 4],
            [1, 2, 4, 5],
            [3, 4, 6, 7],
            [4, 5, 7, 8]])

    Arguments are those of `gpufold.im2col` but `out`. `image` is on the CPU or a CUDA device, where the contiguous
    result is too and a window has to be, which has a gradient where it requires one.
    """
    steps = strides, dilations, pads_begin, pads_end
    if is_traced(image):
        tail = "sum", variant, True
        return operators.trace("im2col", (image, window), (kernel_size, *steps), len(kernel_size), tail)
    call = calls.im2col(described("im2col", "image", image), kernel_size, *steps, window=window, variant=variant)
    return compute(call, image, window)


@public
def blocks_to_array(
    blocks: Tensor,
    output_shape: Extents,
    block_shape: Extents,
    strides: Sizes = 1,
    *,
    reduction: Reduction = "sum",
    window: Any = None,
    dtype: Any = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Put sliding blocks back together: as `gpufold.blocks_to_array`, but on tensors, with gradients.

    ``(*lead, *num_blocks, *block_shape) -> output_shape``, which is ``(*lead, *size)``.

    >>> import torch, gpufold.torch
    >>> blocks = gpufold.torch.array_to_blocks(torch.arange(7.0), (3,), (2,))
    >>> gpufold.torch.blocks_to_array(blocks, (7,), (3,), (2,))
    tensor([0., 1., 4., 3., 8., 5., 6.])
    >>> gpufold.torch.blocks_to_array(blocks, (7,), (3,), (2,), reduction="mean")
    tensor([0., 1., 2., 3., 4., 5., 6.])

    Arguments are those of `gpufold.blocks_to_array` but `out` and `accumulate`; tensors as in `gpufold.torch.col2im`.
    """
    if is_traced(blocks):
        sizes, tail = (output_shape, block_shape, strides), (reduction, variant, deterministic)
        return operators.trace("blocks_to_array", (blocks, window), sizes, len(block_shape), tail, dtype)
    given = described("blocks_to_array", "blocks", blocks)
    call = calls.blocks_to_array(
        given,
        output_shape,
        block_shape,
        strides,
        reduction=reduction,
        window=window,
        dtype=tensors.dtype_given(dtype),
        variant=variant,
        deterministic=deterministic,
    )
    return compute(call, blocks, window)


@public
def array_to_blocks(
    array: Tensor, block_shape: Extents, strides: Sizes = 1, *, window: Any = None, variant: str = "auto"
) -> Tensor:
    """Take sliding blocks out of an array: as `gpufold.array_to_blocks`, but on tensors, with gradients.

    ``(*lead, *size) -> (*lead, *num_blocks, *block_shape)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.array_to_blocks(torch.arange(7), (3,), (2,))
    tensor([[0, 1, 2],
            [2, 3, 4],
            [4, 5, 6]])

    Arguments are those of `gpufold.array_to_blocks` but `out`; tensors as in `gpufold.torch.im2col`.
    """
    if is_traced(array):
        sizes, tail = (block_shape, strides), ("sum", variant, True)
        return operators.trace("array_to_blocks", (array, window), sizes, len(block_shape), tail)
    given = described("array_to_blocks", "array", array)
    return compute(calls.array_to_blocks(given, block_shape, strides, window=window, variant=variant), array, window)


@public
def add_blocks(
    out: Tensor,
    blocks: Tensor,
    positions: Any,
    window: Any = None,
    *,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Return a tensor with blocks added to it: as `gpufold.add_blocks`, but `out` stays as it is, and with gradients.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> tiles = torch.ones(2, 2, 3)
    >>> gpufold.torch.add_blocks(torch.zeros(3, 6), tiles, [(0, 0), (1, 2)])
    tensor([[1., 1., 1., 0., 0., 0.],
            [1., 1., 2., 1., 1., 0.],
            [0., 0., 1., 1., 1., 0.]])

    Arguments are those of `gpufold.add_blocks` but `weight_out`. `out` and `blocks` are on one device, the CPU or a
    CUDA device, where the contiguous result is too, and have gradients, as a window has where it requires one.
    Positions are a tensor there, none of whose values is looked at, or a sequence.
    """
    if is_traced(out, blocks):
        places = operators.as_positions("add_blocks", positions, out)
        return operators.trace("add_blocks", (blocks, window, places, out), (), 0, ("sum", variant, deterministic))
    array, given, places = _described_addition("add_blocks", out, blocks, positions)
    call = calls.add_blocks(array, given, places, window, variant=variant, deterministic=deterministic)
    return compute(call, blocks, window, places, out)


@public
def add_blocks_(
    out: Tensor,
    blocks: Tensor,
    positions: Any,
    window: Any = None,
    *,
    weight_out: Tensor | None = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Add blocks into a tensor in place: as `gpufold.add_blocks`, but on tensors.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> picture = torch.zeros(6)
    >>> gpufold.torch.add_blocks_(picture, torch.ones(2, 3), [(0,), (2,)]) is picture
    True
    >>> picture
    tensor([1., 1., 2., 1., 1., 0.])

    Arguments are those of `gpufold.add_blocks`; tensors as in `gpufold.torch.add_blocks`. A leaf that requires a
    gradient is a ValueError. Where gradients are asked for, it is ``out.copy_(add_blocks(out, ...))``: a new tensor
    more. That of a window goes through `weight_out` too.
    """
    if is_traced(out, blocks):
        options: dict[str, Any] = {"variant": variant, "deterministic": deterministic}
        if weight_out is not None and window is not None:
            window = tensors.counted_sums("add_blocks_", tensors.weights_of(window), weight_out.dtype)
        sums, weights = add_blocks(out, blocks, positions, window, **options), None
        if weight_out is not None:
            tensors.check_tensor("add_blocks_", "weight_out", weight_out)
            calls.check_weight_sums(*map(tensors.name_of, (out.dtype, blocks.dtype, weight_out.dtype)))
            ones = weight_out.new_ones(()).expand(blocks.shape[0], *blocks.shape[1 + out.ndim - weight_out.ndim :])
            weights = add_blocks(weight_out, ones, positions, window, **options)
        return tensors.written_over(out, sums, weight_out, weights)
    array, given, places = _described_addition("add_blocks_", out, blocks, positions)
    weights = None if weight_out is None else described("add_blocks_", "weight_out", weight_out)
    call = calls.add_blocks(
        array, given, places, window, weight_out=weights, variant=variant, deterministic=deterministic
    )
    return compute_in_place(call, out, blocks, window, places, weight_out)


def _described_addition(
    name: str, out: Tensor, blocks: Tensor, positions: Any
) -> tuple[tensors.Described, tensors.Described, Tensor]:
    array, given = described(name, "out", out), described(name, "blocks", blocks)
    return array, given, tensors.as_positions(name, positions, out, "out")


@public
def take_blocks(
    array: Tensor,
    positions: Any,
    block_shape: Sizes,
    *,
    window: Any = None,
    mode: Mode = "constant",
    variant: str = "auto",
) -> Tensor:
    """Take blocks out of a tensor, each at a position of its own: as `gpufold.take_blocks`, but with gradients.

    ``(*lead, *size), (P, rank) -> (P, *lead, *block_shape)``

    >>> import torch, gpufold.torch
    >>> picture = torch.arange(12).reshape(3, 4)
    >>> gpufold.torch.take_blocks(picture, torch.tensor([[0, 1], [2, -1]]), (2, 3))
    tensor([[[1, 2, 3],
             [5, 6, 7]],
    <BLANKLINE>
            [[0, 8, 9],
             [0, 0, 0]]])

    Arguments are those of `gpufold.take_blocks` but `out`; tensors as in `gpufold.torch.add_blocks`. Both modes have
    gradients.
    """
    if is_traced(array):
        places = operators.as_positions("take_blocks", positions, array)
        tail = mode, variant, True
        return operators.trace("take_blocks", (array, window, places, None), (block_shape,), places.shape[-1], tail)
    given = described("take_blocks", "array", array)
    places = tensors.as_positions("take_blocks", positions, array, "array")
    call = calls.take_blocks(given, places, block_shape, window=window, mode=mode, variant=variant)
    return compute(call, array, window, places)


@public
def average(numerator: Tensor, weight: Tensor, *, variant: str = "auto") -> Tensor:
    """Divide sums by the sums of their weights: as `gpufold.average`, but on tensors, with gradients of both.

    ``(*lead, *size), (*size) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.average(torch.tensor([[6.0, 1.0, 0.0], [2.0, 5.0, 9.0]]), torch.tensor([2.0, 0.5, 0.0]))
    tensor([[ 3.,  2.,  0.],
            [ 1., 10.,  0.]])

    Arguments are those of `gpufold.average` but `out`, on one device, the CPU or a CUDA device. Gradients are zero
    where the result is because nothing landed.
    """
    if is_traced(numerator, weight):
        return operators.trace("average", (numerator, weight), (), 0, ("sum", variant, True))
    given = described("average", "numerator", numerator)
    return compute(calls.average(given, described("average", "weight", weight), variant=variant), numerator, weight)


@public
def batch_to_space(
    data: Tensor, block_shape: Extents, crops_begin: Sizes = 0, crops_end: Sizes = 0, *, variant: str = "auto"
) -> Tensor:
    """Move blocks of the batch axis into the spatial axes, and crop: as `gpufold.batch_to_space`, but with gradients.

    ``(B*prod(block_shape), D_1, ...) -> (B, D_1*block_shape[1] - crops_begin[1] - crops_end[1], ...)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.batch_to_space(torch.arange(12).reshape(4, 1, 3), (1, 2, 2), (0, 0, 1))
    tensor([[[ 3,  1,  4,  2,  5],
             [ 9,  7, 10,  8, 11]]])

    Arguments are those of `gpufold.batch_to_space` but `out`; the tensor as in `gpufold.torch.col2im`.
    """
    if is_traced(data):
        return operators.trace_space("batch_to_space", data, (block_shape, crops_begin, crops_end), variant)
    given = described("batch_to_space", "data", data)
    return compute(calls.batch_to_space(given, block_shape, crops_begin, crops_end, variant=variant), data)


@public
def space_to_batch(
    data: Tensor, block_shape: Extents, pads_begin: Sizes = 0, pads_end: Sizes = 0, *, variant: str = "auto"
) -> Tensor:
    """Pad the spatial axes and move their blocks into the batch axis: as `gpufold.space_to_batch`, but with gradients.

    ``(B, E_1, ...) -> (B*prod(block_shape), (E_1 + pads_begin[1] + pads_end[1]) / block_shape[1], ...)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.space_to_batch(torch.arange(1, 6).reshape(1, 5), (1, 2), (0, 1), (0, 0))
    tensor([[0, 2, 4],
            [1, 3, 5]])

    Arguments are those of `gpufold.space_to_batch` but `out`; the tensor as in `gpufold.torch.col2im`.
    """
    if is_traced(data):
        return operators.trace_space("space_to_batch", data, (block_shape, pads_begin, pads_end), variant)
    given = described("space_to_batch", "data", data)
    return compute(calls.space_to_batch(given, block_shape, pads_begin, pads_end, variant=variant), data)
