"""The public functions on blocks in a layout of their own, one block after another."""

from __future__ import annotations

from typing import Any

from gpufold import calls
from gpufold.arrays import Array, ArrayT, Window, library_of
from gpufold.calls import Reduction, Variant
from gpufold.compute import compute, filled
from gpufold.dispatch import dispatched
from gpufold.geometry import Extents, LastSlidingBlock, Sizes


@dispatched
def array_to_blocks(
    array: Array[ArrayT],
    block_shape: Extents,
    strides: Sizes = 1,
    *,
    window: Window | None = None,
    last: LastSlidingBlock = "drop",
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Take sliding blocks out of an array, each a contiguous piece of the result: `im2col` with the taps last.

    ``(*lead, *size) -> (*lead, *num_blocks, *block_shape)``, where ``num_blocks`` is
    ``(size - block_shape) // strides + 1`` along each spatial axis.

    >>> import numpy as np, gpufold
    >>> gpufold.array_to_blocks(np.arange(7), (3,), (2,))
    array([[0, 1, 2],
           [2, 3, 4],
           [4, 5, 6]])

    Elements are moved, and computed with only where a window is multiplied in. Blocks of ``last="over"`` cover all:

    >>> gpufold.array_to_blocks(np.arange(6), (3,), (2,), last="over")
    array([[0, 1, 2],
           [2, 3, 4],
           [4, 5, 0]])

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray
        Array of shape (*lead, *size), with any number of leading axes, of any layout in memory and of the dtypes of
        `col2im`.
    block_shape : sequence of int
        Elements of a block along each spatial axis, at least 1; its length says how many of the array's last axes are
        spatial.
    strides : int or sequence of int
        Elements from one block to the next, at least 1; one int means the same on every axis.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a block's elements, as in `col2im`; every element is multiplied by its own and rounded once.
    last : str
        What becomes of the end of an axis on which blocks at multiples of the stride do not end. "drop" has no block
        that reaches beyond it, and the elements there in none; "over" has one more, which hangs over: what lies outside
        is zero. `numpy.pad` has other borders, and `take_blocks` at `grid_positions` other places of the last block.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype, sharing no memory with `array`; every element is overwritten.
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
    TypeError, ValueError
        As in `col2im`.

    Notes
    -----
    Name and layout are those of sigpy's function, whose ``blk_shape`` and ``blk_strides`` are these two.
    """
    library = library_of("array_to_blocks", "array", array)
    call = calls.array_to_blocks(array, block_shape, strides, window=window, last=last, variant=variant)
    blocks: ArrayT = compute(call, library, array, out, window)
    return blocks


@dispatched
def blocks_to_array(
    blocks: Array[ArrayT],
    output_shape: Extents,
    block_shape: Extents,
    strides: Sizes = 1,
    *,
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
    """Put sliding blocks back together, adding or averaging where they overlap: `col2im` with the taps last.

    ``(*lead, *num_blocks, *block_shape) -> output_shape``, which is ``(*lead, *size)``, where ``num_blocks`` is
    ``(size - block_shape) // strides + 1`` along each spatial axis.

    >>> import numpy as np, gpufold
    >>> array = np.arange(7.0)
    >>> blocks = gpufold.array_to_blocks(array, (3,), (2,))
    >>> gpufold.blocks_to_array(blocks, (7,), (3,), (2,))
    array([0., 1., 4., 3., 8., 5., 6.])
    >>> gpufold.blocks_to_array(blocks, (7,), (3,), (2,), reduction="mean")
    array([0., 1., 2., 3., 4., 5., 6.])

    Elements are added in the order of `col2im`, with the same bits on every run; blocks of any layout in memory are
    read where they are, such as a transposed or sliced view.

    Parameters
    ----------
    blocks : numpy.ndarray or cupy.ndarray
        Blocks of shape (*lead, *num_blocks, *block_shape), of the dtypes of `col2im`.
    output_shape : sequence of int
        The result's shape (*lead, *size): the blocks' leading axes, any number of them, and the spatial ones.
    block_shape : sequence of int
        Elements of a block along each spatial axis, at least 1; its length says how many axes are spatial.
    strides : int or sequence of int
        Elements from one block to the next, at least 1; one int means the same on every axis.
    last : str
        As in `array_to_blocks`: what of a block hangs over the end is dropped.
    reduction, window, dtype, out, accumulate, fill_value, chunks, variant, deterministic
        As in `col2im`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The array, of the library and device of `blocks`, and of their dtype or `dtype`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    Notes
    -----
    Name and layout are those of sigpy's function, whose ``blk_shape`` and ``blk_strides`` are these two.
    """
    library = library_of("blocks_to_array", "blocks", blocks)
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
    array: ArrayT = filled(call, compute(call, library, blocks, out, window), fill_value)
    return array
