"""The functions of gpufold for tensors: each describes its call, then computes or records it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gpufold import blocks, calls, outside, positions, sliding, space
from gpufold.arrays import check_bytes, extended_call
from gpufold.coverage import filled
from gpufold.dispatch import FunctionT, Like, linked
from gpufold.elements import check_sums, check_weight_sums
from gpufold.given import is_separable, word
from gpufold.operations import OPERATIONS
from gpufold.outside import BY_INDEX
from gpufold.torch import executing, operators, tensors
from gpufold.torch.autograd import compute
from gpufold.torch.door import overridable
from gpufold.torch.operators import ARRAYS, SIZES
from gpufold.torch.tensors import described, is_traced
from gpufold.weights import least_weight
from gpufold.windows import axes_of_window, check_block_weights

BY_INDEX_OF = SimpleNamespace(minimum=torch.minimum, moveaxis=torch.movedim)  # torch.moveaxis has no rule for batches

SAID = "As `gpufold.{name}`, with gradients. The tensors of a call and the contiguous result are on one device. "
OF_WINDOWS = "A window may require a gradient; in a mean that is a ValueError. "
OF_POSITIONS = "Positions are a sequence or a NumPy array, or a tensor on that device: it is not copied to the host."


def on_tensors(function: FunctionT, more: str = "") -> FunctionT:
    """Return a function of gpufold for tensors, with `more` in its docstring.

    Its arguments describe a call, which is computed or, during tracing, recorded as an operator.
    """
    name, like = function.__name__, Like(function, "torch.Tensor")
    most, known, describe = len(like.places), like.known, OPERATIONS[name].describe
    arrays = ARRAYS[name]  # the first arguments: `elements` of them, then positions if any
    placed, count = "positions" in arrays, len(arrays)
    elements, of_data = count - placed, arrays.index(OPERATIONS[name].data)
    defaults = {each: it.default for each, it in signature(function).parameters.items() if it.default is not it.empty}

    def computed(*given: Any, **named: Any) -> Tensor:
        if len(given) > most or not named.keys() <= known:
            raise like.refused()
        by_block = named.pop("weights", None)
        if len(given) < count:
            if any([each not in named for each in arrays[len(given) :]]):
                describe(*given, **named)  # raises
            given = (*given, *[named.pop(each) for each in arrays[len(given) :]])
        window, places = named.get("window"), None
        traced = is_traced(*given[:elements])
        if placed or window is not None:
            traced = traced or tensors.is_wrapped(*given[elements:count], by_block, *tensors.weights_of(window))
        if placed:
            convert = operators.as_positions if traced else tensors.as_positions
            places = convert(name, given[elements], given[0])
        if by_block is not None:  # blocks are multiplied first
            terms, _ = _weighed(traced, given[0], given[1], places, named.pop("window", None), by_block)
            return computed(given[0].to(terms.dtype), terms, places, **named).to(given[0].dtype)
        if traced:
            return recorded(given, places, named)
        call = call_of(given, places, named)
        data, window = given[of_data], given[1] if name == "average" else named.get("window")
        if (mode := call.fusion.mode) != "constant":
            check_bytes(call, call.result_shape, call.element.itemsize)
            if not placed:
                call, margins = extended_call(call, call.element.itemsize)
                data = tensors.extended(data, margins, mode)
            elif mode in BY_INDEX and 0 not in call.result_shape:
                return _taken(data, places, call.geometry.block_shape, window, mode)
        result = compute(call, data, window, places, given[0] if of_data else None)
        return filled(call.geometry, result, named["fill_value"]) if "fill_value" in named else result

    def call_of(given: tuple[Any, ...], places: Any, named: dict[str, Any]) -> calls.Call:
        first = described(name, arrays[0], given[0])
        others = given[count:] if places is None else (places, *given[count:])
        if elements > 1:
            others = described(name, arrays[1], given[1]), *others
        if isinstance(dtype := named.get("dtype"), torch.dtype):
            named = named | {"dtype": tensors.DTYPES.get(dtype, dtype)}
        return describe(first, *others, **named)

    def recorded(given: tuple[Any, ...], places: Any, named: dict[str, Any]) -> Tensor:
        """Call the operator; sizes may be symbols."""
        values = {**defaults, **dict(zip(like.places[: len(given)], given, strict=True)), **named}
        if any([each not in values for each in like.places]):
            describe(*given, **named)  # raises
        if operators.are_known((*given[:elements], places), [values[size] for size in SIZES[name]]):
            call = call_of(given, places, named)
            check_bytes(call, call.result_shape, call.element.itemsize)
            if values.get("window") is not None:
                axes_of_window(call, values["window"], "torch.as_tensor")
        if name == "take_blocks" and word(name, "mode", values["mode"], calls.MODES) in BY_INDEX:
            block = operators.per_axis(values["block_shape"], places.shape[-1])
            return _taken(given[0], places, block, values["window"], values["mode"])
        return operators.record(name, values, places)

    said = SAID + OF_WINDOWS * ("window" in known) + OF_POSITIONS * placed + more
    taken: Any = overridable(like.dress(computed, said))
    return taken  # type: ignore[no-any-return]


def _taken(array: Tensor, places: Tensor, block: Sequence[Any], window: Any, mode: str) -> Tensor:
    """Return blocks of an array that is extended in a mode without a kernel."""
    tensors.check_read("take_blocks", array=array, positions=places)
    places = tensors.as_int64("take_blocks", places)
    arange, weighted = partial(torch.arange, device=array.device), partial(array_to_blocks, window=window)
    result: Tensor = outside.taken(BY_INDEX_OF, arange, weighted, array, places, block, mode)
    return result


col2im, im2col = on_tensors(sliding.col2im), on_tensors(sliding.im2col)
blocks_to_array, array_to_blocks = on_tensors(blocks.blocks_to_array), on_tensors(blocks.array_to_blocks)
batch_to_space, space_to_batch = on_tensors(space.batch_to_space), on_tensors(space.space_to_batch)
add_blocks, take_blocks = on_tensors(positions.add_blocks), on_tensors(positions.take_blocks)
average = on_tensors(positions.average, "Gradients are zero if the weight is.")


@overridable
@linked
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
    traced = is_traced(array, blocks)
    convert = operators.as_positions if traced else tensors.as_positions
    places = convert("add_blocks_", positions, array)
    if not traced or operators.are_known((array, blocks, places)):
        into, given = described("add_blocks_", "array", array), described("add_blocks_", "blocks", blocks)
        sums = None if weight_out is None else described("add_blocks_", "weight_out", weight_out)
        call = calls.add_blocks(
            into, given, places, window=window, weight_out=sums, variant=variant, deterministic=deterministic
        )
        direct = not (traced or weights is not None)
        if direct and executing.add_in_place(call, array, blocks, window, places, weight_out):
            return array
    if not traced and tensors.is_wrapped(positions, weights, weight_out, *tensors.weights_of(window)):
        traced, places = True, operators.as_positions("add_blocks_", positions, array)
    array, weight_out = tensors.alive(array), tensors.alive(weight_out)
    sums, ones, new_weights = array, None, None
    if weight_out is not None:
        tensors.check_tensor("add_blocks_", "weight_out", weight_out)
        check_weight_sums(*map(tensors.name_of, (array.dtype, blocks.dtype, weight_out.dtype)))
        if not traced:
            tensors.check_like("add_blocks_", "weight_out", weight_out, array, "array")
        if weight_out is array:
            raise ValueError("add_blocks_: weight_out must share no memory with array, got the same tensor")
        if array.numel():
            ones = weight_out.new_ones(()).expand(blocks.shape[0], *blocks.shape[1 + array.ndim - weight_out.ndim :])
    if weights is not None:
        axes = [("window", each) for each in tensors.weights_of(window)]
        if not traced:
            places = tensors.checked_positions("add_blocks_", places, array, "array")
        read = [("blocks", blocks), ("positions", places), ("weights", weights), *axes]
        blocks, each = _weighed(traced, array, blocks, places, window, weights, summed=ones is not None)
        if not traced:
            tensors.check_written(array, weight_out, read)
        sums, window = array.to(blocks.dtype), None
        if ones is not None:
            ones = each.reshape(each.shape[0], *each.shape[1 + blocks.ndim - ones.ndim :]).expand_as(ones)
    elif ones is not None and window is not None:
        window = tensors.counted_sums("add_blocks_", tensors.weights_of(window), ones.dtype)
    options: dict[str, Any] = {"window": window, "variant": variant, "deterministic": deterministic}
    add: Any = partial(add_blocks, positions=places, **options)
    sums = add(sums, blocks).to(array.dtype)
    if weight_out is not None and ones is not None:
        new_weights = add(weight_out, ones)
    return executing.written_over(array, sums, weight_out, new_weights)


def _weighed(
    traced: bool, array: Tensor, blocks: Tensor, places: Tensor, window: Any, weights: Tensor, summed: bool = False
) -> tuple[Tensor, Tensor]:
    """Return weighted blocks in the dtype of their sums, and the weights of their elements."""
    name = "add_blocks"
    for argument, tensor in (("array", array), ("blocks", blocks), ("weights", weights)):
        tensors.check_tensor(name, argument, tensor)
    of_blocks, of_array = tensors.name_of(blocks.dtype), tensors.name_of(array.dtype)
    calls.check_dtype(name, "blocks", of_blocks)
    check_sums(name, of_blocks, of_array, "array must have the dtype of blocks or a wider one:")
    tensors.check_beside(name, "blocks", blocks, "array", array)
    check_block_weights(name, weights, of_array, blocks.shape[0])
    tensors.check_read(name, array=array, blocks=blocks, weights=weights)
    axes, block = tensors.weights_of(window), tuple(blocks.shape[blocks.ndim - places.shape[-1] :])
    for each in axes:
        tensors.check_real(name, "window", each)
        tensors.check_read(name, window=each)
    if not traced:
        for argument, tensor in (("weights", weights), *(("window", each) for each in axes)):
            tensors.check_like(name, argument, tensor, array, "array")
    wanted = [(side,) for side in block] if is_separable(window) else [block]
    if axes and [tuple(each.shape) for each in axes] != wanted:
        raise ValueError(f"{name}: window must have the shape {block} of a block, or be one array per axis")
    dtype = tensors.WEIGHTS[of_array]
    least = least_weight(dtype.itemsize, "mean") if summed else 0.0
    return tensors.weighed(blocks, weights, axes, array.dtype if array.dtype.is_complex else dtype, least)
