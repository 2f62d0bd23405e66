"""The public functions that move blocks between the batch and space."""

from __future__ import annotations

from typing import Any

from gpufold import calls
from gpufold.arrays import Array, ArrayT, library_of
from gpufold.calls import Variant
from gpufold.compute import compute
from gpufold.dispatch import dispatched
from gpufold.geometry import Extents, Sizes


@dispatched
def batch_to_space(
    data: Array[ArrayT],
    block_shape: Extents,
    crops_begin: Sizes = 0,
    crops_end: Sizes = 0,
    *,
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Move blocks of the batch axis into the spatial axes, and crop.

    ``(B*prod(block_shape), D_1, ...) -> (B, D_1*block_shape[1] - crops_begin[1] - crops_end[1], ...)``

    >>> import numpy as np, gpufold
    >>> data = np.arange(12).reshape(4, 1, 3)
    >>> gpufold.batch_to_space(data, (1, 2, 2), (0, 0, 1), (0, 0, 0))
    array([[[ 3,  1,  4,  2,  5],
            [ 9,  7, 10,  8, 11]]])

    Elements are moved, never computed with.

    Parameters
    ----------
    data : numpy.ndarray or cupy.ndarray
        Array of shape (batch, D_1, ..., D_{n-1}) with n >= 2, of any layout in memory and of the dtypes of `col2im`.
    block_shape : sequence of int
        Block along each axis of `data`, at least 1, and 1 on axis 0; their product divides the batch.
    crops_begin, crops_end : int or sequence of int
        Elements to crop from the begin and end of each axis of the result, at least 0, and 0 on axis 0; one int
        means the same on every axis but axis 0. Crops may leave nothing of an axis.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype, sharing no memory with `data`; every element is overwritten.
    chunks
        As in `col2im`.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The result, of the library, device and dtype of `data`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    Notes
    -----
    Implements OpenVINO BatchToSpace-2, for any rank.
    """
    library = library_of("batch_to_space", "data", data)
    call = calls.batch_to_space(data, block_shape, crops_begin, crops_end, variant=variant)
    space: ArrayT = compute(call, library, data, out)
    return space


@dispatched
def space_to_batch(
    data: Array[ArrayT],
    block_shape: Extents,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    *,
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Pad the spatial axes with zeros and move their blocks into the batch axis: undoes `batch_to_space`.

    ``(B, E_1, ...) -> (B*prod(block_shape), (E_1 + pads_begin[1] + pads_end[1]) / block_shape[1], ...)``

    >>> import numpy as np, gpufold
    >>> data = np.arange(1, 6).reshape(1, 5)
    >>> gpufold.space_to_batch(data, (1, 2), (0, 1), (0, 0))
    array([[0, 2, 4],
           [1, 3, 5]])

    Elements are moved, never computed with.

    Parameters
    ----------
    data : numpy.ndarray or cupy.ndarray
        Array of shape (B, E_1, ..., E_{n-1}) with n >= 2, of any layout in memory and of the dtypes of `col2im`.
    block_shape : sequence of int
        Block along each axis of `data`, at least 1, and 1 on axis 0.
    pads_begin, pads_end : int or sequence of int
        Zeros in front of and behind each axis, at least 0, and 0 on axis 0; one int means the same on every axis
        but axis 0. With them every axis is a multiple of its block.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype, sharing no memory with `data`; every element is overwritten.
    chunks
        As in `col2im`.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The result, of the library, device and dtype of `data`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    Notes
    -----
    Implements OpenVINO SpaceToBatch-2, for any rank.
    """
    library = library_of("space_to_batch", "data", data)
    call = calls.space_to_batch(data, block_shape, pads_begin, pads_end, variant=variant)
    batch: ArrayT = compute(call, library, data, out)
    return batch
