"""The public functions on blocks at positions of their own."""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpufold import calls, outside
from gpufold.arrays import (
    Array,
    ArrayT,
    Window,
    as_positions,
    check_apart,
    check_library,
    copy_into,
    copy_of,
    device_of,
    is_same,
    library_of,
)
from gpufold.blocks import array_to_blocks
from gpufold.calls import Call, Mode, Variant
from gpufold.compute import compute, prepare, run
from gpufold.dispatch import dispatched
from gpufold.elements import sum_dtype
from gpufold.geometry import LastBlock, Sizes, grid_of_blocks
from gpufold.names import answers
from gpufold.outside import BY_INDEX
from gpufold.weights import least_weight, of_elements, weighed
from gpufold.windows import weights_of_blocks


@dispatched
def add_blocks(
    array: Array[ArrayT],
    blocks: Array[Any],
    positions: Any,
    window: Window | None = None,
    *,
    weights: Any = None,
    out: Array[ArrayT] | None = None,
    variant: Variant = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Return an array with blocks added, each at a position of its own: ptychography, irregular tiles, particles.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> picture = np.zeros((3, 6), np.float32)
    >>> tiles = np.ones((2, 2, 3), np.float32)
    >>> gpufold.add_blocks(picture, tiles, [(0, 0), (1, 2)])
    array([[1., 1., 1., 0., 0., 0.],
           [1., 1., 2., 1., 1., 0.],
           [0., 0., 1., 1., 1., 0.]], dtype=float32)

    Element ``t`` of block ``p`` is added to ``array[..., positions[p] + t]``; what falls outside is dropped, so that
    positions may be anything, negative ones too. Blocks are added one after another in their order: the result has the
    same bits on every run, on the CPU and the GPU, and positions on a GPU are never looked at by the CPU. Integers
    wrap, bool is a logical or, float16 and bfloat16 are summed in float32 and rounded once a call, or not at all where
    `array` is float32: it may be wider than the blocks, which then count as if they were converted first.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        Array of shape (*lead, *size) to add to, with any number of leading axes, of any layout in memory and of the
        dtypes of `col2im` but strings; it shares no memory with the other arrays.
    blocks : numpy.ndarray or cupy.ndarray
        Blocks of shape (P, *lead, *block_shape), of any layout, and of `array`'s dtype or of one that it holds, such as
        uint8 for float32 and uint32, or float32 for float64: they are converted as they are added, without a copy.
    positions : numpy.ndarray, cupy.ndarray or sequence of sequences of int
        Where in `array` each block's first element lies, of shape (P, rank), in elements along the last `rank` axes of
        `array`, those with positions; integers.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a block's elements, as in `col2im` of `array`'s dtype, multiplied in as the blocks are added.
    weights : numpy.ndarray or cupy.ndarray, optional
        A real weight of each block, of shape (P,): an element is multiplied by its block's times the window's, of the
        dtype that a window has. The product is made before the addition, on a GPU of all blocks in memory of its own.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype: `array` itself, or one that shares no memory with the others.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.
    deterministic : bool
        False also allows kernels that add in an order that changes from run to run.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The sums, of the library, device and dtype of `array`.

    Raises
    ------
    TypeError
        An argument has the wrong type, such as positions that are no integers, or its dtype is not supported.
    ValueError
        Shapes, devices or memory do not fit together; nothing has been added then.
    gpufold.Unsupported
        `variant` names a kernel that cannot serve the call; it is a ValueError.

    See Also
    --------
    add_blocks_ : Adds to `array` itself, and the weights to another array in the same pass.

    Notes
    -----
    With ``positions[p] = p * strides`` it is `blocks_to_array` with ``accumulate=True``, in another order of
    additions.
    """
    library = library_of("add_blocks", "array", array)
    check_library("add_blocks", "blocks", blocks, library, "array")
    places = as_positions("add_blocks", library, positions, array, "array")
    call = calls.add_blocks(array, blocks, places, window, variant=variant, deterministic=deterministic)
    sums: Any = copy_of(library, array) if out is None else out
    by_block = weights_of_blocks(call, library, weights, blocks)
    factors = prepare(call, library, blocks, sums, window, places)
    if out is not None and not is_same(library, out, array):
        check_apart("add_blocks", library, "out", out, [("array", array)])
        copy_into(library, out, array)
    _run(call, library, (blocks, sums, places, None), factors, by_block)
    result: ArrayT = sums
    return result


@dispatched
def add_blocks_(
    array: Array[ArrayT],
    blocks: Array[Any],
    positions: Any,
    window: Window | None = None,
    *,
    weights: Any = None,
    weight_out: Array[Any] | None = None,
    variant: Variant = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Add blocks into an array in place, each at a position of its own: `add_blocks` with ``out=array``.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> signal, weight, window = np.zeros(6), np.zeros(6), np.array([1.0, 2.0, 1.0])
    >>> gpufold.add_blocks_(signal, np.full((2, 3), 5.0), [(0,), (2,)], window, weight_out=weight)
    array([ 5., 10., 10., 10.,  5.,  0.])
    >>> gpufold.average(signal, weight)
    array([5., 5., 5., 5., 5., 0.])

    Parameters
    ----------
    array, blocks, positions, window, weights, variant, deterministic
        As in `add_blocks`, but that `array` is written to.
    weight_out : numpy.ndarray or cupy.ndarray, optional
        Array of shape (*size) to which the weights of `window` and `weights`, or ones, are added at the same positions
        in the same pass, for `average`: of the dtype that a window has for `array`, float32 or, for float64 and
        complex128, float64. It shares no memory with the other arrays. Nothing is added where `array` or `blocks` has
        no element. A weight other than zero then counts as 2**-96 at least (2**-960 in double precision), so that
        underflow uncovers no element.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        `array`.

    Raises
    ------
    TypeError, ValueError
        As in `add_blocks`.
    """
    try:
        library = library_of("add_blocks", "array", array)
        check_library("add_blocks", "blocks", blocks, library, "array")
        places = as_positions("add_blocks", library, positions, array, "array")
        if weight_out is not None:
            check_library("add_blocks", "weight_out", weight_out, library, "array")
        call = calls.add_blocks(
            array, blocks, places, window, weight_out=weight_out, variant=variant, deterministic=deterministic
        )
        by_block = weights_of_blocks(call, library, weights, blocks)
        factors = prepare(call, library, blocks, array, window, places, weight_out)
    except (TypeError, ValueError, MemoryError) as error:
        said = str(error).replace("add_blocks: out ", "add_blocks: array ").replace("add_blocks: ", "add_blocks_: ", 1)
        raise type(error)(said) from None
    _run(call, library, (blocks, array, places, weight_out), factors, by_block)
    result: Any = array
    return result  # type: ignore[no-any-return]


def _run(call: Call, library: ModuleType, arrays: tuple[Any, ...], window: Any, weights: Any) -> None:
    """Add blocks that were checked; those with weights of their own are weighed first, some at a time."""
    blocks, array, places, weight_out = arrays
    if weights is None:
        run(call, library, blocks, array, window, places, weight_out)
        return
    geometry: Any = call.geometry
    least = 0.0 if weight_out is None else least_weight(call.element.weight_bytes, "mean")
    sums = array.astype(wide) if (wide := sum_dtype(np.dtype(call.dtype))) != array.dtype else array
    count = max(1, WEIGHED_ELEMENTS // max(1, prod(geometry.blocks_shape[1:]))) if library is np else len(blocks)
    options: dict[str, Any] = {"variant": call.variant, "deterministic": call.deterministic}
    with np.errstate(all="ignore"):  # as in sums
        for start in range(0, len(blocks), max(1, count)):
            part, taken = slice(start, start + count), places[start : start + count]
            each = of_elements(library, weights[part], window or (), blocks.ndim, least)
            terms = weighed(library, blocks[part].astype(wide), each)
            run(calls.add_blocks(sums, terms, taken, **options), library, terms, sums, None, taken)
            if weight_out is not None:
                each = each.reshape(len(each), *each.shape[1 + len(geometry.lead) :])
                ones = library.broadcast_to(each, (len(each), *geometry.block_shape))
                run(calls.add_blocks(weight_out, ones, taken, **options), library, ones, weight_out, None, taken)
        if sums is not array:
            array[...] = sums


WEIGHED_ELEMENTS = 1 << 20
"""Of blocks with weights of their own that the CPU weighs at a time."""


@dispatched
def take_blocks(
    array: Array[ArrayT],
    positions: Any,
    block_shape: Sizes,
    *,
    window: Window | None = None,
    mode: Mode = "constant",
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Take blocks out of an array, each at a position of its own: the adjoint of `add_blocks`.

    ``(*lead, *size), (P, rank) -> (P, *lead, *block_shape)``

    >>> import numpy as np, gpufold
    >>> picture = np.arange(12).reshape(3, 4)
    >>> gpufold.take_blocks(picture, [(0, 1), (2, -1)], (2, 3))
    array([[[1, 2, 3],
            [5, 6, 7]],
    <BLANKLINE>
           [[0, 8, 9],
            [0, 0, 0]]])

    Element ``t`` of block ``p`` is ``array[..., positions[p] + t]``; what lies outside is as `mode` says, so that
    positions may be anything, negative ones too. Positions on a GPU are never looked at by the CPU. Elements are moved,
    and computed with only where a window is multiplied in.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        Array of shape (*lead, *size), with any number of leading axes, of any layout in memory and of the dtypes of
        `col2im`.
    positions : numpy.ndarray, cupy.ndarray or sequence of sequences of int
        Where in `array` each block's first element lies, as in `add_blocks`.
    block_shape : int or sequence of int
        Elements of a block along each axis with positions, at least 1; one int means the same on every axis.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a block's elements, as in `col2im`; every element of the array is multiplied by its own and
        rounded once.
    mode : str
        What the elements of a block are that lie outside of the array, along every axis by itself, as in `numpy.pad`:
        "constant", zero, whatever the window; "edge", the nearest element; "reflect", "symmetric" or "wrap", for which
        blocks are taken by an index of every element, without a kernel.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype, sharing no memory with the other arrays; every element is
        overwritten.
    chunks
        As in `col2im`.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The blocks, of the library, device and dtype of `array`.

    Raises
    ------
    TypeError
        An argument has the wrong type, such as positions that are no integers, or its dtype is not supported.
    ValueError
        Shapes, devices or memory do not fit together; nothing has been written then.
    gpufold.Unsupported
        `variant` names a kernel that cannot serve the call; it is a ValueError.

    Notes
    -----
    With ``positions[p] = p * strides`` it is `array_to_blocks`.
    """
    library = library_of("take_blocks", "array", array)
    places = as_positions("take_blocks", library, positions, array, "array")
    call = calls.take_blocks(array, places, block_shape, window=window, mode=mode, variant=variant)
    if call.fusion.mode in BY_INDEX:
        prepare(call, library, array, out, window, places)
        block = call.geometry.block_shape  # type: ignore[union-attr]
        with device_of(library, array):
            taken: Any = outside.taken(library, library.arange, array_to_blocks, array, places, block, mode, window)
        if out is not None:
            copy_into(library, out, taken)
            taken = out
        return taken  # type: ignore[no-any-return]
    blocks: ArrayT = compute(call, library, array, out, window, places)
    return blocks


@dispatched
def average(
    numerator: Array[ArrayT],
    weight: Array[Any],
    *,
    out: Array[ArrayT] | None = None,
    variant: Variant = "auto",
) -> ArrayT:
    """Divide sums by the sums of their weights, as `reduction="mean"` does: zero where nothing landed.

    ``(*lead, *size), (*size) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> gpufold.average(np.array([[6.0, 1.0, 0.0], [2.0, 5.0, 9.0]]), np.array([2.0, 0.5, 0.0]))
    array([[ 3.,  2.,  0.],
           [ 1., 10.,  0.]])

    Parameters
    ----------
    numerator : numpy.ndarray or cupy.ndarray
        Sums of shape (*lead, *size), of floats or complex numbers and of any layout in memory.
    weight : numpy.ndarray or cupy.ndarray
        Real weights of numerator's last axes, for all leading axes alike; they are converted to float32, or float64 for
        float64 and complex128.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype: `numerator` itself, or one that shares no memory with the others.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The quotients, of numerator's dtype, each rounded once; zero where a weight is smaller in magnitude than the
        smallest normal number of its dtype.

    Raises
    ------
    TypeError, ValueError
        As in `add_blocks`.
    """
    library = library_of("average", "numerator", numerator)
    check_library("average", "weight", weight, library, "numerator")
    call = calls.average(numerator, weight, variant=variant)
    quotients: ArrayT = compute(call, library, numerator, out, weight)
    return quotients


@answers
def grid_positions(
    size: Sizes, block_shape: Sizes, strides: Sizes, *, last: LastBlock = "shift"
) -> npt.NDArray[np.int64]:
    """Return the positions of blocks that cover an array, for `take_blocks` and `add_blocks`.

    >>> import gpufold
    >>> gpufold.grid_positions((7, 5), (4, 5), 2).tolist()  # the last block of the first axis would start at 4
    [[0, 0], [2, 0], [3, 0]]
    >>> [gpufold.grid_positions((11,), 4, 3, last=last).ravel().tolist() for last in ("even", "over", "drop")]
    [[0, 2, 5, 7], [0, 3, 6, 9], [0, 3, 6]]

    Parameters
    ----------
    size : int or sequence of int
        Elements of the array along each axis that gets positions, at least 1.
    block_shape : int or sequence of int
        Elements of a block along each axis, at least 1; one int means the same on every axis, here and below.
    strides : int or sequence of int
        Elements from one block to the next, at least 1; strides larger than a block leave gaps.
    last : str
        What becomes of the end of an axis, on which blocks at multiples of the stride do not end. "shift" has a block
        at every stride until one would reach beyond the end, which is moved in, as MONAI's sliding windows are.
        "even" has as many, but spaces them evenly from the begin to the end, as nnU-Net does: at multiples of their
        distance in double precision, rounded half to even. "over" leaves that block where it is, hanging over the end,
        as Demucs does. "drop" leaves it out.

    Returns
    -------
    numpy.ndarray
        Positions of shape (P, rank), int64, in lexicographic order.

    Raises
    ------
    TypeError
        Sizes are no integers.
    ValueError
        Sizes are out of range or do not fit together; `last` is none of the above; an axis is smaller than a block,
        but for "over"; there are more positions than an array can have.
    """
    axes = grid_of_blocks(size, block_shape, strides, last)
    count, outer = prod(axis.blocks for axis in axes), 1
    try:
        grid: npt.NDArray[np.int64] = np.empty((count, len(axes)), np.int64)
        for number, (blocks, step, end) in enumerate(axes):
            begins = np.arange(blocks)
            if last == "even":
                begins = np.rint(begins * step).astype(np.int64)
            else:
                begins *= int(step)
            begins[-1] = end
            grid.reshape(outer, blocks, -1, len(axes))[..., number] = begins[:, None]
            outer *= blocks
    except MemoryError as error:
        raise MemoryError(f"grid_positions: {error}") from None
    return grid
