"""The public functions on columns, (kernel elements, blocks): `col2im` and `im2col`."""

from __future__ import annotations

from typing import Any, overload

from gpufold import calls
from gpufold.arrays import Array, ArrayT, Floats, Integers, Window
from gpufold.calls import Average, Reduction, Variant
from gpufold.compute import compute
from gpufold.coverage import filled
from gpufold.dispatch import dispatched
from gpufold.geometry import Extents, Sizes


@overload  # averages and weighted sums of integers are floats
def col2im(
    data: Integers, output_size: Extents, kernel_size: Sizes, *, strides: Sizes = 1, dilations: Sizes = 1,
    pads_begin: Sizes = 0, pads_end: Sizes = 0, reduction: Average, window: Window | None = None, dtype: None = None,
    out: Floats | None = None, accumulate: bool = False, fill_value: complex | None = None, chunks: Any = "auto",
    variant: Variant = "auto", deterministic: bool = True,
) -> Floats: ...  # fmt: skip
@overload
def col2im(
    data: Integers, output_size: Extents, kernel_size: Sizes, *, strides: Sizes = 1, dilations: Sizes = 1,
    pads_begin: Sizes = 0, pads_end: Sizes = 0, reduction: Reduction = "sum", window: Window, dtype: None = None,
    out: Floats | None = None, accumulate: bool = False, fill_value: complex | None = None, chunks: Any = "auto",
    variant: Variant = "auto", deterministic: bool = True,
) -> Floats: ...  # fmt: skip
@overload
def col2im(
    data: Array[ArrayT], output_size: Extents, kernel_size: Sizes, *, strides: Sizes = 1, dilations: Sizes = 1,
    pads_begin: Sizes = 0, pads_end: Sizes = 0, reduction: Reduction = "sum", window: Window | None = None,
    dtype: None = None, out: Array[ArrayT] | None = None, accumulate: bool = False, fill_value: complex | None = None,
    chunks: Any = "auto", variant: Variant = "auto", deterministic: bool = True,
) -> ArrayT: ...  # fmt: skip
@overload
def col2im(
    data: Array[Any], output_size: Extents, kernel_size: Sizes, *, strides: Sizes = 1, dilations: Sizes = 1,
    pads_begin: Sizes = 0, pads_end: Sizes = 0, reduction: Reduction = "sum", window: Window | None = None,
    dtype: Any, out: Array[Any] | None = None, accumulate: bool = False, fill_value: complex | None = None,
    chunks: Any = "auto", variant: Variant = "auto", deterministic: bool = True,
) -> Any: ...  # fmt: skip
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
    """Fold columns of sliding blocks into an image, summing or averaging overlaps.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((output_size + pads_begin + pads_end - dilations*(kernel_size - 1) - 1) / strides) + 1``.

    >>> import numpy as np, gpufold
    >>> columns = np.ones((4, 9), np.int32)  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.col2im(columns, (4, 4), (2, 2))
    array([[[1, 2, 2, 1],
            [2, 4, 4, 2],
            [2, 4, 4, 2],
            [1, 2, 2, 1]]], dtype=int32)

    Kernel element ``k`` of block ``b`` is added to pixel ``b*strides + k*dilations - pads_begin`` of each axis.
    Elements outside the image are dropped; pixels that no block covers are zero. Row ``c*prod(kernel_size) + k`` holds
    element ``k`` of channel ``c``, elements and blocks in lexicographic order. Sums are made in that order: results are
    bitwise reproducible, on the CPU and the GPU. Integers wrap, bool is a logical or, float16 and bfloat16 are summed
    in float32.

    Parameters
    ----------
    data : numpy.ndarray or cupy.ndarray
        Columns of shape (N, C*prod(kernel_size), L) or (C*prod(kernel_size), L), in any memory layout: bool, integers,
        float16, bfloat16, float32, float64, complex64, complex128. Strings on the CPU, if no two blocks overlap. Arrays
        of torch, JAX and dask give results of their kind: see `gpufold.torch`, `gpufold.jax` and `gpufold.dask`.
    output_size : sequence of int
        Image size along each spatial axis, height before width, at least 1. Its length is the number of spatial axes.
    kernel_size : int or sequence of int
        Elements of a block along each spatial axis, at least 1. An int means the same on every axis, here and below.
    strides : int or sequence of int
        Pixels between adjacent blocks, at least 1.
    dilations : int or sequence of int
        Pixels between adjacent kernel elements, at least 0.
    pads_begin, pads_end : int or sequence of int
        Padding before and after the image along each axis, at least 0.
    reduction : str
        How overlaps combine: "sum", "mean" or "least_squares". A mean divides each pixel by the number of elements
        added to it, which inverts `im2col`, or, with a window, by the sum of their weights. Least squares divides by
        the sum of squared weights: it inverts `im2col` with the same window, as in an inverse short-time Fourier
        transform. Pixels that only zero weights reach are zero. No other covered pixel underflows: nonzero weights
        count as at least 2**-96 in a mean and 2**-48 in least squares, with ten times these exponents in double
        precision.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights by which the elements of a block are multiplied: an array of shape `kernel_size`, or a sequence of
        one 1-D array per axis for a separable window. They are converted to float32, or to float64 for results of
        float64 or complex128. The default gives all elements equal weight.
    dtype : dtype, optional
        Dtype of the result, which must hold that of `data`: uint32 for uint8, float32 for float16, float64 for int32.
        As if ``data.astype(dtype)`` had been passed, without the copy. The default is the dtype of `data`, but float32
        or, from 32 bits on, float64 for a mean, least squares or window of integers and bool;
        ``numpy.rint(result).astype(data.dtype)`` rounds these back.
    out : numpy.ndarray or cupy.ndarray, optional
        Output array of the result's shape and dtype that shares no memory with the other arrays.
    accumulate : bool
        Whether to add the result to `out` instead of overwriting it.
    fill_value : number, optional
        Value of pixels that no block covers. By default they are zero in a sum, and a ValueError in a mean or least
        squares. It cannot be combined with `accumulate`.
    chunks
        Chunks of the result of a dask array: see the function of the same name in `gpufold.dask`.
    variant : str
        Name of a GPU kernel, one of `gpufold.variants`. The default chooses by the call.
    deterministic : bool
        Whether sums have a fixed order. False allows GPU kernels without one, if they are faster.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The image, on the device of `data`. On a GPU it is computed in the current stream.

    Raises
    ------
    TypeError
        An argument has the wrong type: sizes that are not integers, an unsupported dtype or array type, strings in
        overlapping blocks, or a `dtype` that does not hold the data's or has integers for a mean or window.
    ValueError
        Sizes are out of range or inconsistent, `out` does not fit, or the variant cannot serve the call
        (`gpufold.Unsupported`). Nothing is written then.

    See Also
    --------
    im2col : Extract the columns.
    blocks_to_array : The same for a block-major layout and any leading axes.
    add_blocks : Scatter-add blocks at arbitrary positions.
    gpufold.torch.fold : The same with torch's arguments.

    Notes
    -----
    Implements OpenVINO Col2Im-15 and ONNX Col2Im-18, for 1 to 31 spatial axes.
    """
    call = calls.col2im(
        data,
        output_size,
        kernel_size,
        strides,
        dilations,
        pads_begin,
        pads_end,
        reduction=reduction,
        window=window,
        dtype=dtype,
        accumulate=accumulate,
        fill_value=fill_value,
        variant=variant,
        deterministic=deterministic,
    )
    image: ArrayT = compute(call, data, out, window)
    return image if fill_value is None else filled(call.geometry, image, fill_value)


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
    """Extract sliding blocks of an image as columns: the adjoint of `col2im`.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((size + pads_begin + pads_end - dilations*(kernel_size - 1) - 1) / strides) + 1``.

    >>> import numpy as np, gpufold
    >>> image = np.arange(9).reshape(1, 3, 3)
    >>> gpufold.im2col(image, (2, 2))
    array([[0, 1, 3, 4],
           [1, 2, 4, 5],
           [3, 4, 6, 7],
           [4, 5, 7, 8]])

    Kernel element ``k`` of block ``b`` is pixel ``b*strides + k*dilations - pads_begin`` of each axis, or zero outside
    the image. Values are copied; arithmetic happens only with a window.

    Parameters
    ----------
    image : numpy.ndarray or cupy.ndarray
        Image of shape (N, C, *size) or (C, *size), in any memory layout, of the dtypes of `col2im`.
    kernel_size : sequence of int
        Elements of a block along each spatial axis, height before width, at least 1. Its length is the number of
        spatial axes, the last ones of `image`.
    strides, dilations, pads_begin, pads_end : int or sequence of int
        As in `col2im`.
    window, out, chunks, variant
        As in `col2im`. With a window, `image` must have floats or complex numbers.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The columns, of the device and dtype of `image`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.

    See Also
    --------
    col2im : Fold the columns into an image.
    array_to_blocks : The same in a block-major layout, for any leading axes.
    numpy.lib.stride_tricks.sliding_window_view : A view of all blocks at stride 1.
    """
    call = calls.im2col(image, kernel_size, strides, dilations, pads_begin, pads_end, window=window, variant=variant)
    return compute(call, image, out, window)
