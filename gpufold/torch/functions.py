"""The functions of gpufold for tensors: each describes its call, then computes or records it."""

from __future__ import annotations

from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gpufold import blocks, calls, outside, sliding, space
from gpufold.arrays import check_bytes
from gpufold.calls import Mode
from gpufold.coverage import filled
from gpufold.dispatch import FunctionT, Like
from gpufold.geometry import Sizes, over_the_end, sequence
from gpufold.given import is_separable, word
from gpufold.operations import OPERATIONS
from gpufold.outside import BY_INDEX, extended
from gpufold.torch import executing, operators, tensors
from gpufold.torch.door import public
from gpufold.torch.operators import SIZES
from gpufold.torch.rules import compute
from gpufold.torch.tensors import described, is_traced
from gpufold.weights import least_weight, of_elements
from gpufold.windows import axes_of_window, check_block_weights

BY_INDEX_OF = SimpleNamespace(minimum=torch.minimum, moveaxis=torch.movedim)  # torch.moveaxis has no rule for batches

AXES_BY = {"col2im": "output_size", "im2col": "kernel_size"}
"""The sizes with one value per spatial axis; `block_shape` in other operations."""

SAID = """As `gpufold.{name}`, with gradients. `{first}`, a window and the contiguous result are on one device. A window
may require a gradient in a sum; in a mean that is a ValueError.
"""


def on_tensors(function: FunctionT, example: str) -> FunctionT:
    """Return a function of gpufold for tensors.

    Its arguments describe a call, which is computed or, during tracing, recorded as an operator.
    """
    name, like = function.__name__, Like(function, "torch.Tensor")
    first, places, known = like.first, like.places, like.known
    defaults = {each: it.default for each, it in signature(function).parameters.items() if it.default is not it.empty}
    describe, axes_by = OPERATIONS[name].describe, AXES_BY.get(name, "block_shape")

    def computed(*given: Any, **named: Any) -> Tensor:
        data = given[0] if given else named.pop(first, None)
        if len(given) > len(places) or not named.keys() <= known:
            raise like.refused()
        if is_traced(data):
            return recorded(data, given[1:], named)
        call = call_of(data, given[1:], named)
        if call.fusion.mode != "constant":
            check_bytes(call, call.result_shape, call.element.itemsize)
            mode, (call, margins) = call.fusion.mode, call.extended
            data = _extended(data, margins, mode)
        result = compute(call, data, named.get("window"))
        return filled(call.geometry, result, named["fill_value"]) if "fill_value" in named else result

    def call_of(data: Tensor, given: tuple[Any, ...], named: dict[str, Any]) -> calls.Call:
        if "dtype" in named:
            named = named | {"dtype": tensors.dtype_given(named["dtype"])}
        return describe(described(name, first, data), *given, **named)

    def recorded(data: Tensor, given: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        """Call the operator; sizes may be symbols."""
        values = {**defaults, **dict(zip(places[1:], given, strict=False)), **named}
        if operators.are_known((data,), [values[size] for size in SIZES[name]]):
            call = call_of(data, given, named)
            if values.get("window") is not None:
                axes_of_window(call, values["window"], "torch.as_tensor")
        if values.get("last", "drop") not in ("drop", "over") or values.get("fill_value"):
            raise TypeError(f"{name}: under a compiler, last must be 'drop' or 'over' and fill_value None or 0")
        over = values.get("last") == "over"
        mode = word(name, "mode", values["mode"], calls.MODES) if "mode" in known else "constant"
        if "last" in known and operators.is_integer(block := values["block_shape"]):
            values["block_shape"] = operators.per_axis(block, len(values.get("output_shape", data.shape)))
        if over and mode != "constant":
            block, over = values["block_shape"], False
            strides = operators.per_axis(values["strides"], len(block))
            axes = zip(data.shape[data.ndim - len(block) :], block, strides, strict=True)
            data = _extended(data, [(0, over_the_end(*each)) for each in axes], mode)
        sizes = (*[values[each] for each in SIZES[name]],)
        if "window" not in values:
            return operators.trace_space(name, data, sizes, values["variant"])
        choices = values.get("reduction", "sum"), values["variant"], values.get("deterministic", True)
        if operators.is_integer(values[axes_by]):
            sequence(name, axes_by, int(values[axes_by]))  # raises
        rank, dtype, fills = len(values[axes_by]), values.get("dtype"), values.get("fill_value") is not None
        return operators.trace(name, (data, values["window"]), sizes, rank, choices, dtype, filled=fills, over=over)

    computed.__doc__ = example
    like.dress(computed, SAID)
    taken: Any = public(computed)
    return taken  # type: ignore[no-any-return]


def _extended(array: Tensor, margins: Any, mode: str) -> Tensor:
    """Return an array padded as far as blocks extend beyond its ends; margins may be symbols."""
    tensors.check_read("array_to_blocks", array=array)
    result: Tensor = extended(torch, partial(torch.arange, device=array.device), array, margins, mode)
    return result


col2im = on_tensors(
    sliding.col2im,
    """
    >>> import torch, gpufold.torch
    >>> columns = torch.ones(4, 9, dtype=torch.int32)  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.torch.col2im(columns, (4, 4), (2, 2))[0, 0].tolist()
    [1, 2, 2, 1]
    """,
)

im2col = on_tensors(
    sliding.im2col,
    """
    >>> import torch, gpufold.torch
    >>> gpufold.torch.im2col(torch.arange(5).reshape(1, 5), (3,))
    tensor([[0, 1, 2],
            [1, 2, 3],
            [2, 3, 4]])
    """,
)

blocks_to_array = on_tensors(
    blocks.blocks_to_array,
    """
    >>> import torch, gpufold.torch
    >>> blocks = gpufold.torch.array_to_blocks(torch.arange(7.0), (3,), strides=(2,))
    >>> gpufold.torch.blocks_to_array(blocks, (7,), (3,), strides=(2,), reduction="mean")
    tensor([0., 1., 2., 3., 4., 5., 6.])
    """,
)

array_to_blocks = on_tensors(
    blocks.array_to_blocks,
    """
    >>> import torch, gpufold.torch
    >>> gpufold.torch.array_to_blocks(torch.arange(7), (3,), strides=(2,))
    tensor([[0, 1, 2],
            [2, 3, 4],
            [4, 5, 6]])
    """,
)

batch_to_space = on_tensors(
    space.batch_to_space,
    """
    >>> import torch, gpufold.torch
    >>> gpufold.torch.batch_to_space(torch.arange(12).reshape(4, 1, 3), (1, 2, 2), crops_begin=(0, 0, 1))
    tensor([[[ 3,  1,  4,  2,  5],
             [ 9,  7, 10,  8, 11]]])
    """,
)

space_to_batch = on_tensors(
    space.space_to_batch,
    """
    >>> import torch, gpufold.torch
    >>> gpufold.torch.space_to_batch(torch.arange(1, 6).reshape(1, 5), (1, 2), pads_begin=(0, 1), pads_end=(0, 0))
    tensor([[0, 2, 4],
            [1, 3, 5]])
    """,
)


@public
def add_blocks(
    array: Tensor,
    blocks: Tensor,
    positions: Any,
    *,
    window: Any = None,
    weights: Tensor | None = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Scatter-add blocks to a tensor, and return the sums: as `gpufold.add_blocks`, with gradients.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> tiles = torch.ones(2, 2, 3)
    >>> gpufold.torch.add_blocks(torch.zeros(3, 6), tiles, [(0, 0), (1, 2)])
    tensor([[1., 1., 1., 0., 0., 0.],
            [1., 1., 2., 1., 1., 0.],
            [0., 0., 1., 1., 1., 0.]])

    Tensors are on one device, and so is the contiguous result. `array`, `blocks` and a window have gradients. Positions
    are a sequence, or a tensor on that device. A tensor's values are never copied to the host.
    """
    if weights is not None:
        terms, _, places = _weighed("add_blocks", array, blocks, positions, window, weights)
        sums = add_blocks(array.to(terms.dtype), terms, places, variant=variant, deterministic=deterministic)
        return sums.to(array.dtype)
    if is_traced(array, blocks):
        places = operators.as_positions("add_blocks", positions, array)
        if operators.are_known((array, blocks, places)):
            _addition("add_blocks", array, blocks, places, window, (variant, deterministic))
        return operators.trace("add_blocks", (blocks, window, places, array), (), 0, ("sum", variant, deterministic))
    call, places = _addition("add_blocks", array, blocks, positions, window, (variant, deterministic))
    return compute(call, blocks, window, places, array)


@public
def add_blocks_(
    array: Tensor,
    blocks: Tensor,
    positions: Any,
    *,
    window: Any = None,
    weights: Tensor | None = None,
    weight_out: Tensor | None = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Scatter-add blocks to a tensor in place: as `gpufold.add_blocks_`, with gradients.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> image = torch.zeros(6)
    >>> gpufold.torch.add_blocks_(image, torch.ones(2, 3), [(0,), (2,)]) is image
    True
    >>> image
    tensor([1., 1., 2., 1., 1., 0.])

    Tensors are as in `gpufold.torch.add_blocks`. A leaf that requires a gradient is a ValueError. With gradients this
    is ``array.copy_(add_blocks(array, ...))`` and allocates a tensor. A window's gradient includes `weight_out`.
    """
    choices = variant, deterministic
    if weights is not None or is_traced(array, blocks):
        positions = operators.as_positions("add_blocks_", positions, array)
        if operators.are_known((array, blocks, positions)):
            _addition("add_blocks_", array, blocks, positions, window, choices, weight_out)
    else:
        call, positions = _addition("add_blocks_", array, blocks, positions, window, choices, weight_out)
        if executing.add_in_place(call, array, blocks, window, positions, weight_out):
            return array
    array, weight_out = tensors.alive(array), tensors.alive(weight_out)
    sums, ones, new_weights = array, None, None
    if weight_out is not None:
        tensors.check_tensor("add_blocks_", "weight_out", weight_out)
        calls.check_weight_sums(*map(tensors.name_of, (array.dtype, blocks.dtype, weight_out.dtype)))
        if array.numel():
            ones = weight_out.new_ones(()).expand(blocks.shape[0], *blocks.shape[1 + array.ndim - weight_out.ndim :])
    if weights is not None:
        summed = ones is not None
        blocks, each, positions = _weighed("add_blocks_", array, blocks, positions, window, weights, summed)
        sums, window = array.to(blocks.dtype), None
        if ones is not None:
            ones = each.reshape(len(each), *each.shape[1 + blocks.ndim - ones.ndim :]).expand_as(ones)
    elif ones is not None and window is not None:
        window = tensors.counted_sums("add_blocks_", tensors.weights_of(window), ones.dtype)
    add = partial(add_blocks, positions=positions, window=window, variant=variant, deterministic=deterministic)
    sums = add(sums, blocks).to(array.dtype)
    if weight_out is not None and ones is not None:
        new_weights = add(weight_out, ones)
    return executing.written_over(array, sums, weight_out, new_weights)


def _weighed(
    name: str, array: Tensor, blocks: Tensor, positions: Any, window: Any, weights: Tensor, summed: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weighted blocks in the dtype of their sums, the weights of their elements, and positions."""
    for argument, tensor in (("array", array), ("blocks", blocks), ("weights", weights)):
        tensors.check_tensor(name, argument, tensor)
    check_block_weights(name, weights, tensors.name_of(array.dtype), len(blocks))
    traced = is_traced(array, blocks)
    convert = operators.as_positions if traced else partial(tensors.as_positions, like="array")
    places = convert(name, positions, array)
    axes, block = tensors.weights_of(window), tuple(blocks.shape[blocks.ndim - places.shape[-1] :])
    wanted = [(extent,) for extent in block] if is_separable(window) else [block]
    for each in axes:
        tensors.check_real(name, "window", each)
        tensors.check_read(name, window=each)
    tensors.check_read(name, array=array, blocks=blocks, weights=weights)
    if not traced:
        for argument, tensor in (("weights", weights), *(("window", each) for each in axes)):
            tensors.check_like(name, argument, tensor, array, "array")
    if axes and [tuple(each.shape) for each in axes] != wanted:
        raise ValueError(f"{name}: window must have the shape {block} of a block, or be one array per axis")
    dtype = tensors.WEIGHTS[tensors.name_of(array.dtype)]
    axes = tuple([tensors.ready_weights(each, dtype) for each in axes])
    least = least_weight(dtype.itemsize, "mean") if summed else 0.0
    factors = of_elements(torch, tensors.ready_weights(weights, dtype), axes, blocks.ndim, least)
    terms = blocks.to(array.dtype if array.dtype.is_complex else dtype)
    return tensors.weighed(terms, factors), factors, places


def _addition(
    name: str, array: Tensor, blocks: Tensor, positions: Any, window: Any, choices: tuple[str, bool], sums: Any = None
) -> tuple[calls.Call, Tensor]:
    """Describe a call that adds blocks, and return it and the positions as a tensor."""
    into, given = described(name, "array", array), described(name, "blocks", blocks)
    places = tensors.as_positions(name, positions, array, "array")
    of_weights = None if sums is None else described(name, "weight_out", sums)
    variant, deterministic = choices
    call = calls.add_blocks(
        into, given, places, window, weight_out=of_weights, variant=variant, deterministic=deterministic
    )
    return call, places


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
    """Extract blocks of a tensor at arbitrary positions: as `gpufold.take_blocks`, with gradients.

    ``(*lead, *size), (P, rank) -> (P, *lead, *block_shape)``

    >>> import torch, gpufold.torch
    >>> image = torch.arange(12).reshape(3, 4)
    >>> gpufold.torch.take_blocks(image, torch.tensor([[0, 1], [2, -1]]), (2, 3))
    tensor([[[1, 2, 3],
             [5, 6, 7]],
    <BLANKLINE>
            [[0, 8, 9],
             [0, 0, 0]]])

    Tensors are as in `gpufold.torch.add_blocks`. All modes have gradients.
    """
    said: Any = mode
    by_index = isinstance(said, str) and said in BY_INDEX
    if by_index or is_traced(array):
        places = operators.as_positions("take_blocks", positions, array)
        if operators.are_known((array, places), (block_shape,)):
            given = described("take_blocks", "array", array)
            calls.take_blocks(given, places, block_shape, window=window, mode=mode, variant=variant)
        if not by_index:
            given_to, tail = (array, window, places, None), (mode, variant, True)
            return operators.trace("take_blocks", given_to, (block_shape,), places.shape[-1], tail)
        tensors.check_read("take_blocks", array=array, positions=places)
        arange, block = partial(torch.arange, device=array.device), operators.per_axis(block_shape, places.shape[1])
        weighted = partial(array_to_blocks, window=window)
        taken: Tensor = outside.taken(BY_INDEX_OF, arange, weighted, array, places, block, mode)
        return taken
    given = described("take_blocks", "array", array)
    places = tensors.as_positions("take_blocks", positions, array, "array")
    call = calls.take_blocks(given, places, block_shape, window=window, mode=mode, variant=variant)
    return compute(call, array, window, places)


@public
def average(numerator: Tensor, weight: Tensor, *, variant: str = "auto") -> Tensor:
    """Divide sums by the sums of their weights: as `gpufold.average`, with gradients of both.

    ``(*lead, *size), (*size) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.average(torch.tensor([[6.0, 1.0, 0.0], [2.0, 5.0, 9.0]]), torch.tensor([2.0, 0.5, 0.0]))
    tensor([[ 3.,  2.,  0.],
            [ 1., 10.,  0.]])

    Gradients are zero if the weight is.
    """
    if is_traced(numerator, weight):
        if operators.are_known((numerator, weight)):
            calls.average(
                described("average", "numerator", numerator), described("average", "weight", weight), variant=variant
            )
        return operators.trace("average", (numerator, weight), (), 0, ("sum", variant, True))
    given = described("average", "numerator", numerator)
    return compute(calls.average(given, described("average", "weight", weight), variant=variant), numerator, weight)
