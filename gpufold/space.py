"""The public functions between batch and space: `batch_to_space` and `space_to_batch`."""

from __future__ import annotations

from typing import Any

from gpufold import calls
from gpufold.arrays import Array, ArrayT
from gpufold.calls import Variant
from gpufold.compute import compute
from gpufold.dispatch import dispatched
from gpufold.geometry import Extents, Sizes


@dispatched
def batch_to_space(
    data: Array[ArrayT],
    block_shape: Extents,
    *,
    crops_begin: Sizes = 0,
    crops_end: Sizes = 0,
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Rearrange blocks of the batch into the spatial axes, and crop.

    ``(B*prod(block_shape), D_1, ...) -> (B, D_1*block_shape[1] - crops_begin[1] - crops_end[1], ...)``

    >>> import numpy as np, gpufold
    >>> data = np.arange(12).reshape(4, 1, 3)
    >>> gpufold.batch_to_space(data, (1, 2, 2), crops_begin=(0, 0, 1), crops_end=(0, 0, 0))
    array([[[ 3,  1,  4,  2,  5],
            [ 9,  7, 10,  8, 11]]])

    Image ``k*B + b`` of `data` has the elements ``k`` of the blocks of image ``b``, in lexicographic order.

    Parameters
    ----------
    data : numpy.ndarray or cupy.ndarray
        Array of shape (batch, D_1, ..., D_{n-1}) with n >= 2, in any memory layout, of the dtypes of `col2im`.
    block_shape : sequence of int
        Block size along each axis of `data`, at least 1; 1 for the batch, which comes first. The product divides the
        batch. TensorFlow's 2 for channels-last images is (1, 2, 2, 1).
    crops_begin, crops_end : sequence of int or 0
        Elements to crop from the start and end of each axis of the result, 0 for the batch. The default crops nothing.
    out, chunks, variant
        As in `col2im`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The result, of the device and dtype of `data`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    See Also
    --------
    space_to_batch : The inverse.

    Notes
    -----
    Implements OpenVINO BatchToSpace-2, for any rank.
    """
    call = calls.batch_to_space(data, block_shape, crops_begin, crops_end, variant=variant)
    return compute(call, data, out)


@dispatched
def space_to_batch(
    data: Array[ArrayT],
    block_shape: Extents,
    *,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Pad the spatial axes with zeros and rearrange their blocks into the batch: the inverse of `batch_to_space`.

    ``(B, E_1, ...) -> (B*prod(block_shape), (E_1 + pads_begin[1] + pads_end[1]) / block_shape[1], ...)``

    >>> import numpy as np, gpufold
    >>> data = np.arange(1, 6).reshape(1, 5)
    >>> gpufold.space_to_batch(data, (1, 2), pads_begin=(0, 1), pads_end=(0, 0))
    array([[0, 2, 4],
           [1, 3, 5]])

    Image ``k*B + b`` of the result has the elements ``k`` of the blocks of image ``b``, in lexicographic order.

    Parameters
    ----------
    data : numpy.ndarray or cupy.ndarray
        Array of shape (B, E_1, ..., E_{n-1}) with n >= 2, in any memory layout, of the dtypes of `col2im`.
    block_shape : sequence of int
        Block size along each axis of `data`, at least 1; 1 for the batch, which comes first.
    pads_begin, pads_end : sequence of int or 0
        Zeros before and after each axis, 0 for the batch. Padded axes are multiples of their block. The default pads
        nothing.
    out, chunks, variant
        As in `col2im`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The result, of the device and dtype of `data`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    See Also
    --------
    batch_to_space : The inverse.

    Notes
    -----
    Implements OpenVINO SpaceToBatch-2, for any rank.
    """
    call = calls.space_to_batch(data, block_shape, pads_begin, pads_end, variant=variant)
    return compute(call, data, out)
