"""The public functions on columns: sliding blocks with their taps before their number."""

from __future__ import annotations

from typing import Any

from gpufold import calls
from gpufold.arrays import Array, ArrayT, Window, library_of
from gpufold.calls import Reduction, Variant
from gpufold.compute import compute, filled
from gpufold.dispatch import dispatched
from gpufold.geometry import Extents, Sizes


@dispatched
def col2im(
    data: Array[ArrayT],
    output_size: Extents,
    kernel_size: Sizes,
    *,
    strides: Sizes = 1,
    dilations: Sizes = 1,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    reduction: Reduction = "sum",
    window: Window | None = None,
    dtype: Any = None,
    out: Array[ArrayT] | None = None,
    accumulate: bool = False,
    fill_value: complex | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Put sliding blocks back together into an image, adding where they overlap.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((output_size + pads_begin + pads_end - dilations*(kernel_size - 1) - 1) / strides) + 1``.

    >>> import numpy as np, gpufold
    >>> columns = np.ones((4, 9), np.int32)  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.col2im(columns, (4, 4), (2, 2))
    array([[[1, 2, 2, 1],
            [2, 4, 4, 2],
            [2, 4, 4, 2],
            [1, 2, 2, 1]]], dtype=int32)

    Tap ``k`` of block ``b`` lands on pixel ``b*strides + k*dilations - pads_begin`` of each axis; what lands outside
    the image is dropped, pixels that no block covers are zero. Rows are ``c*prod(kernel_size)`` plus the tap, taps
    and blocks in lexicographic order, and so are the additions: the result has the same bits on every run, on the
    CPU and the GPU. Integers wrap, bool is a logical or, float16 and bfloat16 are summed in float32 and rounded once.

    A window's weights are multiplied in as the taps are added. A mean divides each pixel by the number of taps that
    land on it, or by the sum of their weights, so that it undoes `im2col` wherever a block covers the image:

    >>> image = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    >>> columns = gpufold.im2col(image, (2, 2))
    >>> np.array_equal(gpufold.col2im(columns, (4, 4), (2, 2), reduction="mean"), image)
    True

    Parameters
    ----------
    data : numpy.ndarray or cupy.ndarray
        Columns of shape (N, C*prod(kernel_size), L) or (C*prod(kernel_size), L), of any layout in memory. bool,
        integers, float16, bfloat16, float32, float64, complex64, complex128; on the CPU strings too, where no two
        blocks overlap.
    output_size : sequence of int
        Pixels of the image along each spatial axis, height before width, at least 1; its length is the number of
        spatial axes, one or more.
    kernel_size : int or sequence of int
        Taps of a block along each spatial axis, at least 1; one int means the same on every axis, here and below.
    strides : int or sequence of int
        Pixels from one block to the next, at least 1.
    dilations : int or sequence of int
        Pixels from one tap to the next, at least 0; 0 lands every tap of the axis on the block's first pixel.
    pads_begin, pads_end : int or sequence of int
        Pixels that the blocks extend over the image's begin and end, at least 0.
    reduction : str
        "sum"; "mean", which divides each pixel by the number of taps that land on it, or by the sum of their weights
        where there is a window; or "least_squares", which divides by the sum of the squared weights, so that it undoes
        `im2col` with the same window, as the inverse short-time Fourier transform does. Pixels are zero where no tap
        lands but with a weight of zero. No covered pixel is lost to underflow: the weight of a tap, unless it
        is zero, counts in a mean as 2**-96 at least, divided among the axes of a separable window, and in least squares
        as 2**-48; in double precision the exponents are ten times these.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a block's taps, of shape `kernel_size`, or a sequence of one 1-D array per axis, whose product
        a weight is; of the same library as `data`. They are converted to float32, or float64 where the result has
        float64 or complex128.
    dtype : dtype, optional
        The result's dtype: that of `data`, or a wider one of its kind or of floats, which holds it: uint32 for uint8,
        float32 for float16, float64 for int32. The result has the bits that ``data.astype(dtype)`` would give, which is
        never made. Means, least squares and windows of integers and bool are of float32, which holds 16 bits exactly,
        or of float64 for wider ones; ``numpy.rint(result).astype(data.dtype)`` rounds them back.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype, sharing no memory with `data`; every element is overwritten.
    accumulate : bool
        Add the result to what is in `out` instead of overwriting it: last, in the type the sum is made in.
    fill_value : number, optional
        What pixels are that no block covers. They are zero in a sum; in a mean or least squares their absence is a
        ValueError, unless it is given.
    chunks
        How the result of a dask array is cut, see `gpufold.dask.col2im`; no other array has any.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.
    deterministic : bool
        False lets "auto" choose GPU kernels that add in no fixed order, where they are faster.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The image, of the library and device of `data`, and of its dtype or `dtype`; on a GPU computed in the current
        stream.

    Raises
    ------
    TypeError
        An argument is of the wrong type: sizes that are not integers, an unsupported dtype, a foreign kind of array,
        strings in overlapping blocks, a `dtype` that does not hold the data's, or of integers for a mean or a window.
    ValueError
        Sizes are out of range or do not fit together, `out` does not fit, or the named variant cannot serve the
        call (`gpufold.Unsupported`). Nothing is written in that case.

    Notes
    -----
    Implements OpenVINO Col2Im-15 and ONNX Col2Im-18, for 1 to 31 spatial axes.
    """
    library = library_of("col2im", "data", data)
    steps = kernel_size, strides, dilations, pads_begin, pads_end
    call = calls.col2im(
        data,
        output_size,
        *steps,
        reduction=reduction,
        window=window,
        dtype=dtype,
        accumulate=accumulate,
        fill_value=fill_value,
        variant=variant,
        deterministic=deterministic,
    )
    image: ArrayT = filled(call, compute(call, library, data, out, window), fill_value)
    return image


@dispatched
def im2col(
    image: Array[ArrayT],
    kernel_size: Extents,
    *,
    strides: Sizes = 1,
    dilations: Sizes = 1,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    window: Window | None = None,
    out: Array[ArrayT] | None = None,
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> ArrayT:
    """Take sliding blocks out of an image: the adjoint of `col2im`.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((size + pads_begin + pads_end - dilations*(kernel_size - 1) - 1) / strides) + 1``.

    >>> import numpy as np, gpufold
    >>> image = np.arange(9).reshape(1, 3, 3)
    >>> gpufold.im2col(image, (2, 2))
    array([[0, 1, 3, 4],
           [1, 2, 4, 5],
           [3, 4, 6, 7],
           [4, 5, 7, 8]])

    Tap ``k`` of block ``b`` is pixel ``b*strides + k*dilations - pads_begin`` of each axis, and zero where that is
    outside the image. Elements are moved, and computed with only where a window is multiplied in.

    Parameters
    ----------
    image : numpy.ndarray or cupy.ndarray
        Image of shape (N, C, *size) or (C, *size), of any layout in memory and of the dtypes of `col2im`.
    kernel_size : sequence of int
        Taps of a block along each spatial axis, height before width, at least 1; its length says how many of the
        image's last axes are spatial.
    strides, dilations, pads_begin, pads_end : int or sequence of int
        As in `col2im`.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a block's taps as in `col2im`; every tap is multiplied by its own and rounded once.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype, sharing no memory with `image`; every element is overwritten.
    chunks
        As in `col2im`.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The columns, of the library, device and dtype of `image`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    Notes
    -----
    The geometry is that of OpenVINO Col2Im-15 and ONNX Col2Im-18.
    """
    library = library_of("im2col", "image", image)
    call = calls.im2col(image, kernel_size, strides, dilations, pads_begin, pads_end, window=window, variant=variant)
    columns: ArrayT = compute(call, library, image, out, window)
    return columns
