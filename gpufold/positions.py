"""The public functions on blocks at arbitrary positions."""

from __future__ import annotations

from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpufold import calls, outside
from gpufold.arrays import (
    Array,
    ArrayT,
    Positions,
    Shaped,
    Window,
    as_int64,
    as_positions,
    check_apart,
    check_bytes,
    check_library,
    check_no_temporaries,
    copy_into,
    copy_of,
    device_of,
    is_same,
    library_of,
    new_result,
)
from gpufold.blocks import array_to_blocks
from gpufold.calls import Call, Mode, Variant
from gpufold.compute import compute, launcher, prepare, run
from gpufold.cpu.tiles import parts_of
from gpufold.dispatch import dispatched
from gpufold.elements import sum_dtype
from gpufold.geometry import Extents, LastBlock, Sizes, grid_of_blocks
from gpufold.names import suggests_keywords
from gpufold.operations import OPERATIONS
from gpufold.outside import BY_INDEX
from gpufold.weights import BlockWeights, least_weight, of_elements, weighed
from gpufold.windows import rows_of_window, weights_of_blocks


@dispatched
def add_blocks(
    array: Array[ArrayT],
    blocks: Array[Any],
    positions: Positions,
    *,
    window: Window | None = None,
    weights: Shaped | None = None,
    out: Array[ArrayT] | None = None,
    variant: Variant = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Scatter-add blocks to an array at arbitrary positions, and return the sums.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> image = np.zeros((3, 6), np.float32)
    >>> tiles = np.ones((2, 2, 3), np.float32)
    >>> gpufold.add_blocks(image, tiles, [(0, 0), (1, 2)])
    array([[1., 1., 1., 0., 0., 0.],
           [1., 1., 2., 1., 1., 0.],
           [0., 0., 1., 1., 1., 0.]], dtype=float32)

    Element ``t`` of block ``p`` is added to ``array[..., positions[p] + t]``. Elements outside `array` are dropped;
    positions may be negative. Blocks are added in their order: results are bitwise reproducible, on the CPU and the
    GPU. GPU positions are never copied to the host, so calls do not synchronise. Integers wrap, bool is a logical or,
    float16 and bfloat16 are summed in float32 and rounded once per call, unless `array` is float32.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        Array of shape (*lead, *size) to add to, with any number of leading axes, in any memory layout, of the dtypes of
        `col2im` except strings. It shares no memory with the other arrays.
    blocks : numpy.ndarray or cupy.ndarray
        Blocks of shape (P, *lead, *block_shape), of a dtype that `array`'s holds, such as uint8 for float32 or uint32.
        They are converted as they are added, without a copy.
    positions : numpy.ndarray, cupy.ndarray or sequence of sequences of int
        Index in `array` of the first element of each block, of shape (P, rank), along the last `rank` axes; integers.
        Of shape (P,) only along the last axis: a single position on two axes is ``[(y, x)]``.
    weights : numpy.ndarray or cupy.ndarray, optional
        One real weight per block, of shape (P,), in addition to the window. On a GPU the weighted blocks are a
        temporary array, of which CuPy sets subnormal numbers to zero.
    out : numpy.ndarray or cupy.ndarray, optional
        Output array of the result's shape and dtype: `array` itself, or one that shares no memory with the others.
    window, variant, deterministic
        As in `col2im`. With a window or `weights`, `array` must have floats or complex numbers.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The sums, of the device and dtype of `array`.

    Raises
    ------
    TypeError
        An argument has the wrong type or dtype, such as positions that are not integers.
    ValueError
        Shapes, devices or memory are inconsistent, or `variant` cannot serve the call (`gpufold.Unsupported`). Nothing
        has been added then.

    See Also
    --------
    add_blocks_ : Add in place, and add the weights to another array in the same pass.
    take_blocks : Extract blocks at positions: the adjoint.
    grid_positions : Positions of tiles that cover an array.
    blocks_to_array : Sum blocks of a grid, in another order of additions.
    Stitcher : Average blocks that come in batches.
    numpy.add.at : Scatter-add single elements.
    """
    options = {"window": window, "variant": variant, "deterministic": deterministic}
    library, call, places, by_block = _described(array, blocks, positions, weights, options)
    sums: Any = copy_of(library, array) if out is None else out
    factors = prepare(call, library, blocks, sums, window, places)
    if out is not None and by_block is not None:
        check_apart("add_blocks", library, "out", out, [("weights", by_block.weights)])
    if out is not None and not is_same(library, out, array):
        check_apart("add_blocks", library, "out", out, [("array", array)])
        if library is not np and 0 not in (*call.result_shape, *call.data_shape):
            launcher().check(call, blocks, out)
        copy_into(library, out, array)
    if by_block is None:
        run(call, library, blocks, sums, factors, places)
    else:
        add_weighted(call, library, (blocks, sums, places, None), factors, by_block)
    return sums  # type: ignore[no-any-return]


@dispatched
def add_blocks_(
    array: Array[ArrayT],
    blocks: Array[Any],
    positions: Positions,
    *,
    window: Window | None = None,
    weights: Shaped | None = None,
    weight_out: Array[Any] | None = None,
    variant: Variant = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Scatter-add blocks to an array in place, and their weights to another: `add_blocks` with ``out=array``.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> signal, weight, window = np.zeros(6), np.zeros(6), np.array([1.0, 2.0, 1.0])
    >>> gpufold.add_blocks_(signal, np.full((2, 3), 5.0), [(0,), (2,)], window=window, weight_out=weight)
    array([ 5., 10., 10., 10.,  5.,  0.])
    >>> gpufold.average(signal, weight)
    array([5., 5., 5., 5., 5., 0.])

    Parameters
    ----------
    array, blocks, positions, window, weights, variant, deterministic
        As in `add_blocks`; `array` is changed.
    weight_out : numpy.ndarray or cupy.ndarray, optional
        Array of shape (*size) to which the weights of `window` and `weights`, or ones, are added in the same pass, for
        `average`: float32, or float64 if `array` is float64 or complex128. It shares no memory with the other arrays.
        Nonzero weights then count as at least 2**-96 (2**-960 in double precision), so covered elements do not
        underflow. It stays as it is if `array` has no elements.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        `array`.

    Raises
    ------
    TypeError, ValueError
        As in `add_blocks`.

    See Also
    --------
    average : Divide the sums by the weights.
    """
    try:
        options = {"window": window, "weight_out": weight_out, "variant": variant, "deterministic": deterministic}
        library, call, places, by_block = _described(array, blocks, positions, weights, options)
        factors = prepare(call, library, blocks, array, window, places, weight_out)
        for name, each in () if by_block is None else (("array", array), ("weight_out", weight_out)):
            if each is not None:
                check_apart("add_blocks", library, name, each, [("weights", by_block.weights)])
        if by_block is None:
            run(call, library, blocks, array, factors, places, weight_out)
        else:
            add_weighted(call, library, (blocks, array, places, weight_out), factors, by_block)
    except (TypeError, ValueError, MemoryError) as error:
        said = str(error).replace("add_blocks: out ", "add_blocks: array ").replace("add_blocks: ", "add_blocks_: ", 1)
        if said == str(error):  # not gpufold's: CuPy's error of too little memory cannot be made from a message
            raise
        raise type(error)(said) from None
    return array  # type: ignore[return-value]


def _described(
    array: Any, blocks: Any, positions: Any, weights: Any, options: dict[str, Any]
) -> tuple[ModuleType, Call, Any, Any]:
    """Check a call; return its library, description, positions and weights of blocks as kernels read them."""
    library = library_of("add_blocks", "array", array)
    check_library("add_blocks", "blocks", blocks, library, "array")
    places = as_positions("add_blocks", library, positions, array, converted=False)
    if options.get("weight_out") is not None:
        check_library("add_blocks", "weight_out", options["weight_out"], library, "array")
    call = calls.add_blocks(array, blocks, places, **options)
    if weights is None:
        return library, call, places, None
    least = 0.0 if options.get("weight_out") is None else least_weight(call.element.weight_bytes, "mean")
    return library, call, places, BlockWeights(weights_of_blocks(call, library, weights, blocks), least)


def add_weighted(call: Call, library: ModuleType, arrays: tuple[Any, ...], window: Any, by_block: BlockWeights) -> None:
    """Add checked blocks, in (blocks, array, positions, weight_out), with a window, if any, and one weight per block.

    On a GPU the blocks are multiplied first.
    """
    blocks, array, places, weight_out = arrays
    if not array.size or not blocks.size:
        return
    if library is np:
        OPERATIONS["add_blocks"].on_cpu(call, blocks, array, window, places, weight_out, by_block)
        return
    geometry: Any = call.geometry
    with device_of(library, array):
        sums = array.astype(wide) if (wide := sum_dtype(np.dtype(call.dtype))) != array.dtype else array
        each = of_elements(library, by_block.weights, window or (), blocks.ndim, by_block.least)
        each = each * each if by_block.squared else each
        added = [(weighed(library, blocks.astype(wide), each), sums)]
        if weight_out is not None:
            each = each.reshape(len(each), *each.shape[1 + len(geometry.lead) :])
            added.append((library.broadcast_to(each, (len(each), *geometry.block_shape)), weight_out))
        options: dict[str, Any] = {"variant": call.variant, "deterministic": call.deterministic}
        described = [(calls.add_blocks(into, terms, places, **options), terms, into) for terms, into in added]
        for each in described:
            launcher().check(*each)
        for call, terms, into in described:
            run(call, library, terms, into, None, places)
        if sums is not array:
            array[...] = sums


TAKEN_ELEMENTS = 1 << 17
"""Elements that the CPU takes by index at a time."""


@dispatched
def take_blocks(
    array: Array[ArrayT],
    positions: Positions,
    block_shape: Sizes,
    *,
    window: Window | None = None,
    mode: Mode = "constant",
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Extract blocks of an array at arbitrary positions: the adjoint of `add_blocks`.

    ``(*lead, *size), (P, rank) -> (P, *lead, *block_shape)``

    >>> import numpy as np, gpufold
    >>> image = np.arange(12).reshape(3, 4)
    >>> gpufold.take_blocks(image, [(0, 1), (2, -1)], (2, 3))
    array([[[1, 2, 3],
            [5, 6, 7]],
    <BLANKLINE>
           [[0, 8, 9],
            [0, 0, 0]]])

    Element ``t`` of block ``p`` is ``array[..., positions[p] + t]``. Outside `array`, `mode` determines its value;
    positions may be negative. GPU positions are never copied to the host, so calls do not synchronise. Values are
    copied; arithmetic happens only with a window.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        Array of shape (*lead, *size) with any number of leading axes, in any memory layout, of the dtypes of `col2im`.
    positions : numpy.ndarray, cupy.ndarray or sequence of sequences of int
        Index in `array` of the first element of each block, as in `add_blocks`.
    block_shape : int or sequence of int
        Elements of a block along each axis with positions, at least 1. An int means the same on every axis.
    mode : str
        Value of elements outside `array`, along each axis, as in `numpy.pad`: "constant" for zero, "edge" for the
        nearest element, "reflect", "symmetric" or "wrap". The last three gather by an index of every element, without a
        kernel: on a GPU of all blocks, on a CPU of those beyond `array`.
    window, out, chunks, variant
        As in `col2im`. With a window, `array` must have floats or complex numbers.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The blocks, of the device and dtype of `array`.

    Raises
    ------
    TypeError, ValueError
        As in `add_blocks`.

    See Also
    --------
    add_blocks : Scatter-add blocks at positions: the adjoint.
    grid_positions : Positions of tiles that cover an array.
    array_to_blocks : Extract blocks on a grid.
    """
    library = library_of("take_blocks", "array", array)
    places = as_positions("take_blocks", library, positions, array, converted=False)
    call = calls.take_blocks(array, places, block_shape, window=window, mode=mode, variant=variant)
    if call.fusion.mode in BY_INDEX and 0 not in call.result_shape:
        prepare(call, library, array, out, window, places)
        check_bytes(call, call.result_shape, array.dtype.itemsize)
        result: Any = new_result(call, library, array, call.result_shape) if out is None else out
        with device_of(library, array), outside.in_memory_of("take_blocks", library):
            check_no_temporaries("take_blocks", library, f"mode {mode!r}")
            _take_by_index(call, library, array, places, window, result)
        return result  # type: ignore[no-any-return]
    return compute(call, array, out, window, places)


def _take_by_index(call: Call, library: ModuleType, array: Any, places: Any, window: Any, result: Any) -> None:
    """Extract blocks in a mode without a kernel.

    A CPU extracts blocks inside the array without an index, and of the others some planes and rows at a time.
    """
    geometry: Any = call.geometry
    mode, (length, *row) = call.fusion.mode, geometry.block_shape
    if library is not np:
        weighted = partial(array_to_blocks, window=window)
        taken = outside.taken(library, library.arange, weighted, array, places, geometry.block_shape, mode)
        return copy_into(library, result, taken)
    room = np.subtract(geometry.size, geometry.block_shape)
    beyond = np.logical_or.reduce([(along < 0) | (along > most) for along, most in zip(places.T, room, strict=True)])
    if not beyond.all():
        compute(call._replace(fusion=call.fusion._replace(mode="constant")), array, result, window, places)
    periods, cut = [outside.period_of(extent, mode) for extent in geometry.size], (len(places), *geometry.lead, length)
    for part, *lead, rows in parts_of(cut, max(1, TAKEN_ELEMENTS // prod(row))):
        if not (numbers := part.start + np.flatnonzero(beyond[part])).size:
            continue
        first = as_int64(np, places[numbers]) % periods  # near the array: sums do not overflow
        first += [rows.start, *(0 for _ in row)]
        weighted = partial(array_to_blocks, window=rows_of_window(window, rows))
        block = (rows.stop - rows.start, *row)
        result[(numbers, *lead, rows)] = outside.taken(np, np.arange, weighted, array[(*lead, ...)], first, block, mode)


@dispatched
def average(
    numerator: Array[ArrayT],
    weight: Array[Any],
    *,
    out: Array[ArrayT] | None = None,
    variant: Variant = "auto",
) -> ArrayT:
    """Divide sums by the sums of their weights, as `reduction="mean"` does.

    ``(*lead, *size), (*size) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> gpufold.average(np.array([[6.0, 1.0, 0.0], [2.0, 5.0, 9.0]]), np.array([2.0, 0.5, 0.0]))
    array([[ 3.,  2.,  0.],
           [ 1., 10.,  0.]])

    Parameters
    ----------
    numerator : numpy.ndarray or cupy.ndarray
        Sums of shape (*lead, *size), of floats or complex numbers, in any memory layout.
    weight : numpy.ndarray or cupy.ndarray
        Real weights of shape (*size), broadcast over the leading axes. They are converted to float32, or to float64 for
        float64 and complex128.
    out : numpy.ndarray or cupy.ndarray, optional
        Output array of the result's shape and dtype: `numerator` itself, or one that shares no memory with the others.
    variant
        As in `col2im`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The quotients, of numerator's dtype, each rounded once. They are zero if the magnitude of the weight is below
        the smallest normal number.

    Raises
    ------
    TypeError, ValueError
        As in `add_blocks`.

    See Also
    --------
    add_blocks_ : Sum blocks and weights.
    Stitcher : Sum and divide batches of blocks.
    """
    library = library_of("average", "numerator", numerator)
    check_library("average", "weight", weight, library, "numerator")
    call = calls.average(numerator, weight, variant=variant)
    return compute(call, numerator, out, weight)


@suggests_keywords
def grid_positions(
    size: Extents, block_shape: Sizes, *, strides: Sizes, last: LastBlock = "shift"
) -> npt.NDArray[np.int64]:
    """Return the positions of blocks that cover an array, for `take_blocks` and `add_blocks`.

    >>> import gpufold
    >>> gpufold.grid_positions((7, 5), (4, 5), strides=2).tolist()  # the last block is shifted from 4 to 3
    [[0, 0], [2, 0], [3, 0]]
    >>> [gpufold.grid_positions((11,), 4, strides=3, last=last).ravel().tolist() for last in ("even", "over", "drop")]
    [[0, 2, 5, 7], [0, 3, 6, 9], [0, 3, 6]]

    Parameters
    ----------
    size : sequence of int
        Size of the array along each axis with positions, at least 1.
    block_shape : int or sequence of int
        Elements of a block along each axis, at least 1. An int means the same on every axis, here and below.
    strides : int or sequence of int
        Elements between adjacent blocks, at least 1. Strides larger than a block leave gaps.
    last : str
        How to place the last block if strides do not divide the axis. "shift" moves it inside, as MONAI does. "even"
        spaces as many blocks evenly, as nnU-Net does: at multiples of their distance in double precision, rounded half
        to even. "over" lets it extend beyond the end, as Demucs does; it lies wholly beyond if strides skip elements
        there. "drop" omits it.

    Returns
    -------
    numpy.ndarray
        Positions of shape (P, rank), int64, in lexicographic order.

    Raises
    ------
    TypeError
        Sizes are not integers.
    ValueError
        Sizes are out of range or inconsistent, an axis is smaller than a block and `last` is not "over", or there are
        more positions than an array can have.

    See Also
    --------
    take_blocks : Extract blocks at these positions.
    Stitcher : Average blocks at these positions.
    map_tiles : Extract, apply a function and average in one call.
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
