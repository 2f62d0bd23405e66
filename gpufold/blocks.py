"""The public functions on blocks in a block-major layout: `array_to_blocks` and `blocks_to_array`."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, overload

import numpy as np

from gpufold import calls
from gpufold.arrays import (
    Array,
    ArrayT,
    Floats,
    Integers,
    Window,
    check_bytes,
    check_no_temporaries,
    device_of,
    extended_call,
    library_of,
)
from gpufold.calls import Average, Call, Mode, Reduction, Variant
from gpufold.compute import compute
from gpufold.coverage import filled
from gpufold.cpu.tiles import PADDED_BYTES
from gpufold.dispatch import dispatched
from gpufold.geometry import Extents, LastSlidingBlock, Sizes
from gpufold.outside import extended, in_memory_of

MOST_ROWS, LEAST_INSIDE = 4, 2
"""Rows of blocks, of which a CPU extracts as many beyond the end of a large array by position at most; least ratio of
all blocks to those."""


@dispatched
def array_to_blocks(
    array: Array[ArrayT],
    block_shape: Sizes,
    *,
    strides: Sizes = 1,
    window: Window | None = None,
    last: LastSlidingBlock = "drop",
    mode: Mode = "constant",
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Extract sliding blocks of an array in a block-major layout: each block is contiguous in the result.

    ``(*lead, *size) -> (*lead, *num_blocks, *block_shape)``, where ``num_blocks`` is
    ``(size - block_shape) // strides + 1`` along each spatial axis.

    >>> import numpy as np, gpufold
    >>> gpufold.array_to_blocks(np.arange(7), (3,), strides=(2,))
    array([[0, 1, 2],
           [2, 3, 4],
           [4, 5, 6]])

    Values are copied; arithmetic happens only with a window.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        Array of shape (*lead, *size) with any number of leading axes, in any memory layout, of the dtypes of `col2im`.
    block_shape : int or sequence of int
        Elements of a block along each spatial axis, at least 1. Its length is the number of spatial axes, the last ones
        of `array`. An int means a block along every axis of `array`.
    strides : int or sequence of int
        Elements between adjacent blocks, at least 1. An int means the same on every axis.
    window, out, chunks, variant
        As in `col2im`. With a window, `array` must have floats or complex numbers.
    last : str
        How to place the last block if strides do not divide the axis. "drop" omits a block that does not fit, and the
        elements there. "over" adds a block that extends beyond the end, filled according to `mode`. Use `take_blocks`
        at `grid_positions` for other placements.
    mode : str
        How elements beyond the end are filled, as in `take_blocks`: "constant" (zero), "edge", "reflect", "symmetric"
        or "wrap". If a block extends beyond the array, all but "constant" pad a copy of it; a large NumPy array with
        few such blocks is not copied.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The blocks, of the device and dtype of `array`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    See Also
    --------
    blocks_to_array : Reassemble the blocks.
    im2col : The same as columns, with dilation and padding.
    take_blocks : Extract blocks at arbitrary positions.

    Notes
    -----
    Like sigpy's functions of these names: their ``blk_shape`` is `block_shape`, and ``blk_strides`` is `strides`.
    """
    call = calls.array_to_blocks(array, block_shape, strides, window=window, last=last, mode=mode, variant=variant)
    if call.fusion.mode != "constant":
        check_bytes(call, call.result_shape, array.dtype.itemsize)
        known, (call, margins) = call, extended_call(call, array.dtype.itemsize)
        library = library_of("array_to_blocks", "array", array)
        large = array.dtype.itemsize * prod(call.geometry.array_shape) > PADDED_BYTES
        if library is np and large and _are_few_beyond(known):
            blocks: ArrayT = _extended_by_position(known, array, out, window)
            return blocks
        with device_of(library, array), in_memory_of("array_to_blocks", library):
            check_no_temporaries("array_to_blocks", library, f"mode {mode!r}")
            array = extended(library, library.arange, array, margins, mode)
    return compute(call, array, out, window)


def _are_few_beyond(call: Call) -> bool:
    """Return whether few blocks, of all, extend beyond the end."""
    geometry: Any = call.geometry
    axes = geometry.axes
    count = prod(axis.blocks for axis in axes)
    beyond = count - prod(axis.blocks - (axis.pad_end > 0) for axis in axes)
    return bool(beyond <= min(MOST_ROWS * max(axis.blocks for axis in axes), count // LEAST_INSIDE))


def _extended_by_position(call: Call, array: Any, out: Any, window: Any) -> Any:
    """Extract blocks of an array of NumPy without a padded copy: those beyond its end by their positions."""
    from gpufold.positions import take_blocks  # which imports this module

    geometry: Any = call.geometry
    mode: Any = call.fusion.mode
    axes, lead = geometry.axes, array.ndim - len(geometry.axes)
    result = compute(call._replace(fusion=call.fusion._replace(mode="constant")), array, out, window)
    starts = [range(0, axis.blocks * axis.stride, axis.stride) for axis in axes]
    for number, axis in enumerate(axes):
        if not axis.pad_end or not result.size:
            continue
        beyond = [each[-1:] if other == number else each for other, each in enumerate(starts)]
        longest = max(range(len(axes)), key=lambda other: len(beyond[other]))
        for place in product(*[each[:1] if other == longest else each for other, each in enumerate(beyond)]):
            index: list[Any] = [start // each.stride for start, each in zip(place, axes, strict=True)]
            index[longest] = slice(index[longest], None)
            blocks = np.moveaxis(result[(*(slice(None),) * lead, *index)], lead, 0)
            positions = np.array([(*place[:longest], start, *place[longest + 1 :]) for start in beyond[longest]])
            try:
                take_blocks(array, positions, geometry.block_shape, window=window, mode=mode, out=blocks)
            except MemoryError as error:
                raise MemoryError(str(error).replace("take_blocks", "array_to_blocks", 1)) from None
    return result


@overload  # averages and weighted sums of integers are floats
def blocks_to_array(
    blocks: Integers, output_shape: Extents, block_shape: Sizes, *, strides: Sizes = 1, reduction: Average,
    window: Window | None = None, dtype: None = None, out: Floats | None = None, accumulate: bool = False,
    last: LastSlidingBlock = "drop", fill_value: complex | None = None, chunks: Any = "auto", variant: Variant = "auto",
    deterministic: bool = True,
) -> Floats: ...  # fmt: skip
@overload
def blocks_to_array(
    blocks: Integers, output_shape: Extents, block_shape: Sizes, *, strides: Sizes = 1, reduction: Reduction = "sum",
    window: Window, dtype: None = None, out: Floats | None = None, accumulate: bool = False,
    last: LastSlidingBlock = "drop", fill_value: complex | None = None, chunks: Any = "auto", variant: Variant = "auto",
    deterministic: bool = True,
) -> Floats: ...  # fmt: skip
@overload
def blocks_to_array(
    blocks: Array[ArrayT], output_shape: Extents, block_shape: Sizes, *, strides: Sizes = 1,
    reduction: Reduction = "sum", window: Window | None = None, dtype: None = None, out: Array[ArrayT] | None = None,
    accumulate: bool = False, last: LastSlidingBlock = "drop", fill_value: complex | None = None, chunks: Any = "auto",
    variant: Variant = "auto", deterministic: bool = True,
) -> ArrayT: ...  # fmt: skip
@overload
def blocks_to_array(
    blocks: Array[Any], output_shape: Extents, block_shape: Sizes, *, strides: Sizes = 1, reduction: Reduction = "sum",
    window: Window | None = None, dtype: Any, out: Array[Any] | None = None, accumulate: bool = False,
    last: LastSlidingBlock = "drop", fill_value: complex | None = None, chunks: Any = "auto", variant: Variant = "auto",
    deterministic: bool = True,
) -> Any: ...  # fmt: skip
@dispatched
def blocks_to_array(
    blocks: Array[ArrayT],
    output_shape: Extents,
    block_shape: Sizes,
    *,
    strides: Sizes = 1,
    reduction: Reduction = "sum",
    window: Window | None = None,
    dtype: Any = None,
    out: Array[ArrayT] | None = None,
    accumulate: bool = False,
    last: LastSlidingBlock = "drop",
    fill_value: complex | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Reassemble an array from sliding blocks in a block-major layout, summing or averaging overlaps.

    ``(*lead, *num_blocks, *block_shape) -> output_shape``, which is ``(*lead, *size)``, where ``num_blocks`` is
    ``(size - block_shape) // strides + 1`` along each spatial axis.

    >>> import numpy as np, gpufold
    >>> array = np.arange(7.0)
    >>> blocks = gpufold.array_to_blocks(array, (3,), strides=(2,))
    >>> gpufold.blocks_to_array(blocks, (7,), (3,), strides=(2,))
    array([0., 1., 4., 3., 8., 5., 6.])
    >>> gpufold.blocks_to_array(blocks, (7,), (3,), strides=(2,), reduction="mean")
    array([0., 1., 2., 3., 4., 5., 6.])

    Sums are made in the order of `col2im` and are bitwise reproducible. Views, such as a transposed or sliced array,
    are read without a copy.

    Parameters
    ----------
    blocks : numpy.ndarray or cupy.ndarray
        Blocks of shape (*lead, *num_blocks, *block_shape), of the dtypes of `col2im`.
    output_shape : sequence of int
        Shape (*lead, *size) of the result, with the leading axes of the blocks.
    block_shape, strides, last
        As in `array_to_blocks`, with `output_shape` for the shape of its array; elements beyond the end are dropped.
    reduction, window, dtype, out, accumulate, fill_value, chunks, variant, deterministic
        As in `col2im`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The array, on the device of `blocks`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    See Also
    --------
    array_to_blocks : Extract the blocks.
    col2im : The same from columns, with dilation and padding.
    Stitcher : Average blocks that come in batches, at arbitrary positions.
    """
    call = calls.blocks_to_array(
        blocks,
        output_shape,
        block_shape,
        strides,
        reduction=reduction,
        window=window,
        dtype=dtype,
        accumulate=accumulate,
        last=last,
        fill_value=fill_value,
        variant=variant,
        deterministic=deterministic,
    )
    array: ArrayT = compute(call, blocks, out, window)
    return array if fill_value is None else filled(call.geometry, array, fill_value)
