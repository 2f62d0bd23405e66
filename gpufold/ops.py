"""The public functions: arguments to geometry, an array for the result, and the CPU or the GPU to fill it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpufold import planners
from gpufold.arrays import ArrayT, library_of, result_array, result_dtype
from gpufold.blocks import array_to_blocks_geometry, blocks_to_array_geometry
from gpufold.filling import fill
from gpufold.geometry import (
    BlocksGeometry,
    Geometry,
    PositionsGeometry,
    Size,
    SlidingGeometry,
    SpaceGeometry,
    as_integers,
    batch_to_space_geometry,
    columns_geometry,
    image_geometry,
    positions_geometry,
    space_to_batch_geometry,
)
from gpufold.plan import H200, PLAIN, Device, Fusion, Operand, Plan
from gpufold.planners import Explanation, variants
from gpufold.windows import as_fusion


def col2im(
    data: ArrayT,
    output_size: Any,
    kernel_size: Any,
    *,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    reduction: str = "sum",
    window: Any = None,
    out: ArrayT | None = None,
    accumulate: bool = False,
    variant: str = "auto",
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
        lands, and where the sum of weights is smaller in magnitude than the smallest normal number of their dtype.
        For a separable window the sum is the product of the sums along the axes. Floats and complex numbers only.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a block's taps, of shape `kernel_size`, or a sequence of one 1-D array per axis, whose product
        a weight is; of the same library as `data`. They are converted to float32, or float64 for float64 and
        complex128. Floats and complex numbers only.
    out : numpy.ndarray or cupy.ndarray, optional
        Array for the result, of its shape and dtype, sharing no memory with `data`; every element is overwritten.
    accumulate : bool
        Add the result to what is in `out` instead of overwriting it: last, in the type the sum is made in.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.
    deterministic : bool
        False lets "auto" choose GPU kernels that add in no fixed order, where they are faster.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The image, of the library, device and dtype of `data`; on a GPU computed in the current stream.

    Raises
    ------
    TypeError
        An argument is of the wrong type: sizes that are not integers, an unsupported dtype, a foreign kind of array,
        strings in overlapping blocks, a mean or a window of integers.
    ValueError
        Sizes are out of range or do not fit together, `out` does not fit, or the named variant cannot serve the
        call (`gpufold.Unsupported`). Nothing is written in that case.

    Notes
    -----
    Implements OpenVINO Col2Im-15 and ONNX Col2Im-18, for any number of spatial axes.
    """
    operation = "col2im"
    library = library_of(operation, "data", data)
    geometry = _col2im_geometry(data.shape, output_size, kernel_size, strides, dilations, pads_begin, pads_end)
    if data.dtype.kind in "SUT" and library is np and geometry.blocks_overlap:
        raise TypeError(
            f"{operation}: data of strings must not overlap, for strings cannot be added; got dtype "
            f"{data.dtype} and blocks that overlap: {geometry}"
        )
    fusion, weights = as_fusion(operation, library, data, geometry.kernel_size, reduction, window, out, accumulate)
    image: ArrayT = result_array(operation, library, "data", data, geometry.image_shape, out, variant, weights)
    return fill(operation, library, data, image, geometry, variant, deterministic, fusion, weights)


def im2col(
    image: ArrayT,
    kernel_size: Any,
    *,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    window: Any = None,
    out: ArrayT | None = None,
    variant: str = "auto",
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
    operation = "im2col"
    library = library_of(operation, "image", image)
    geometry = _im2col_geometry(image.shape, kernel_size, strides, dilations, pads_begin, pads_end)
    fusion, weights = as_fusion(operation, library, image, geometry.kernel_size, window=window)
    columns: ArrayT = result_array(operation, library, "image", image, geometry.columns_shape, out, variant, weights)
    return fill(operation, library, image, columns, geometry, variant, True, fusion, weights)


def batch_to_space(
    data: ArrayT,
    block_shape: Any,
    crops_begin: Any = 0,
    crops_end: Any = 0,
    *,
    out: ArrayT | None = None,
    variant: str = "auto",
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
    operation = "batch_to_space"
    library = library_of(operation, "data", data)
    geometry = _batch_to_space_geometry(data.shape, block_shape, crops_begin, crops_end)
    space: ArrayT = result_array(operation, library, "data", data, geometry.space_shape, out, variant)
    return fill(operation, library, data, space, geometry, variant, True)


def space_to_batch(
    data: ArrayT,
    block_shape: Any,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    *,
    out: ArrayT | None = None,
    variant: str = "auto",
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
    operation = "space_to_batch"
    library = library_of(operation, "data", data)
    geometry = _space_to_batch_geometry(data.shape, block_shape, pads_begin, pads_end)
    batch: ArrayT = result_array(operation, library, "data", data, geometry.batch_shape, out, variant)
    return fill(operation, library, data, batch, geometry, variant, True)


# ---------------------------------------------------------------------------------------------
# What a call would run


def explain(
    operation: str,
    data: Any,
    *arguments: Any,
    variant: str = "auto",
    deterministic: bool = True,
    device: Device | None = None,
    **options: Any,
) -> Explanation:
    """Say which kernel a call on the GPU runs, why, and why not the others; nothing is computed.

    >>> import numpy as np, gpufold
    >>> why = gpufold.explain("col2im", ((8, 576, 3136), "float32"), (56, 56), (3, 3), pads_begin=1, pads_end=1)
    >>> why.plan.operation, why.plan.bytes_moved
    ('col2im', 64225280)
    >>> "atomic" in why.alternatives
    True

    Parameters
    ----------
    operation : str
        One of those that `gpufold.variants` knows, such as "col2im" or "array_to_blocks".
    data : numpy.ndarray, cupy.ndarray or (shape, dtype)
        The call's first array, or what a C-contiguous one would be; a NumPy array stands for a CuPy array like it.
    *arguments, **options
        The call's other arguments; `add_blocks`' blocks and positions may be (shape, dtype) too.
    variant, deterministic
        As in the call.
    device : gpufold.plan.Device, optional
        The GPU to plan for; absent, that of a CuPy array, else an NVIDIA H200.

    Returns
    -------
    gpufold.planners.Explanation
        The plan and, by name of variant, why it was not taken; printing it says all.

    Raises
    ------
    TypeError, ValueError
        As the call would, and ValueError where its result has no element.
    """
    geometry, dtype, input, output, fusion = _described(operation, data, arguments, options)
    if device is None:
        device = H200
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(data, cupy.ndarray):
            from gpufold import launch

            device = launch.device(data.device.id)
    return planners.explain(operation, geometry, dtype, input, output, device, variant, deterministic, fusion)


def warmup(
    operation: str,
    data: Any,
    *arguments: Any,
    variant: str = "auto",
    deterministic: bool = True,
    **options: Any,
) -> Plan:
    """Compile the kernel of a call for the current CUDA device, so that the call itself only launches it.

    ``gpufold.warmup("col2im", ((8, 576, 3136), "float32"), (56, 56), (3, 3), pads_begin=1, pads_end=1)``
    serves every batch and image size: only a new kernel size, stride, dilation, dtype or layout compiles again.

    Parameters
    ----------
    operation, data, *arguments, variant, deterministic, **options
        As in `explain`.

    Returns
    -------
    gpufold.plan.Plan
        What was compiled.

    Raises
    ------
    TypeError, ValueError
        As the call would, and ValueError where its result has no element.
    ImportError
        CuPy is not installed.
    """
    geometry, dtype, input, output, fusion = _described(operation, data, arguments, options)
    from gpufold import launch

    return launch.warmup(operation, geometry, dtype, input, output, variant, deterministic, fusion)


def _described(
    operation: str, data: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Geometry, str, Operand, Operand, Fusion]:
    """Check a call that is only described; give its geometry, dtype, the arrays as kernels see them, and its fusion."""
    variants(operation)
    input, dtype = _described_array(operation, "data", data)
    fused = {name: options[name] for name in _FUSED.get(operation, ()) if name in options}
    sizes = {name: value for name, value in options.items() if name not in fused}
    geometry: Geometry
    if operation == "add_blocks":
        geometry, output, input = _described_blocks(input, dtype, *arguments, **sizes)
        fused["accumulate"] = True
    else:
        geometry = GEOMETRIES[operation](input.shape, *arguments, **sizes)
        output = Operand.contiguous(getattr(geometry, _RESULTS[operation]))
    fusion = PLAIN if isinstance(geometry, SpaceGeometry) else _described_fusion(operation, dtype, geometry, **fused)
    if not prod(output.shape):
        raise ValueError(f"{operation}: the result of shape {output.shape} has no element, so nothing is launched")
    return geometry, result_dtype(operation, "data", dtype, False).name, input, output, fusion


def _described_array(operation: str, name: str, array: Any) -> tuple[Operand, np.dtype[Any]]:
    """Give an array, or what (shape, dtype) describes, as kernels see it."""
    if isinstance(array, tuple):
        shape, dtype = as_integers(operation, f"{name}'s shape", array[0]), np.dtype(array[1])
        return Operand.contiguous((shape,) if isinstance(shape, int) else shape), dtype
    library_of(operation, name, array)
    return Operand(array.shape, tuple(stride // array.dtype.itemsize for stride in array.strides)), array.dtype


def _described_blocks(
    out: Operand, dtype: np.dtype[Any], blocks: Any, positions: Any
) -> tuple[PositionsGeometry, Operand, Operand]:
    """Check a described call of add_blocks, whose first array is `out`; give it and the blocks as kernels see them."""
    input, blocks_dtype = _described_array("add_blocks", "blocks", blocks)
    if blocks_dtype != dtype:
        raise TypeError(f"add_blocks: out must have the result's dtype {blocks_dtype}, got {dtype}")
    places, _ = _described_array("add_blocks", "positions", positions)
    geometry = positions_geometry(out.shape, input.shape, places.shape)
    if not prod(input.shape):
        raise ValueError(f"add_blocks: blocks of shape {input.shape} have no element, so nothing is launched")
    return geometry, out, input


_RESULTS = {
    "col2im": "image_shape",
    "im2col": "columns_shape",
    "batch_to_space": "space_shape",
    "space_to_batch": "batch_shape",
    "blocks_to_array": "array_shape",
    "array_to_blocks": "blocks_shape",
}
"""What a geometry calls the shape of an operation's result."""

_FUSED = {
    "col2im": ("reduction", "window", "accumulate"),
    "im2col": ("window",),
    "blocks_to_array": ("reduction", "window", "accumulate"),
    "array_to_blocks": ("window",),
    "add_blocks": ("window",),
}
"""The arguments of a call that say what is fused."""


def _described_fusion(
    operation: str,
    dtype: np.dtype[Any],
    geometry: SlidingGeometry | BlocksGeometry | PositionsGeometry,
    reduction: str = "sum",
    window: Any = None,
    accumulate: bool = False,
) -> Fusion:
    """Check what a call that is only described wants fused; its window may be of either library."""
    kernel_size = geometry.kernel_size if isinstance(geometry, SlidingGeometry) else geometry.block_shape
    first = window[0] if isinstance(window, Sequence) and window else window
    library = np if first is None else library_of(operation, "window", first)
    data = SimpleNamespace(dtype=dtype, device=getattr(first, "device", None))
    fusion, _ = as_fusion(
        operation, library, data, kernel_size, reduction, window, data if accumulate else None, accumulate
    )
    return fusion


# ---------------------------------------------------------------------------------------------
# What the four share


def _col2im_geometry(
    shape: Size,
    output_size: Any,
    kernel_size: Any,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
) -> SlidingGeometry:
    return columns_geometry(
        shape,
        as_integers("col2im", "output_size", output_size),
        as_integers("col2im", "kernel_size", kernel_size),
        as_integers("col2im", "strides", strides),
        as_integers("col2im", "dilations", dilations),
        as_integers("col2im", "pads_begin", pads_begin),
        as_integers("col2im", "pads_end", pads_end),
    )


def _im2col_geometry(
    shape: Size, kernel_size: Any, strides: Any = 1, dilations: Any = 1, pads_begin: Any = 0, pads_end: Any = 0
) -> SlidingGeometry:
    return image_geometry(
        shape,
        as_integers("im2col", "kernel_size", kernel_size),
        as_integers("im2col", "strides", strides),
        as_integers("im2col", "dilations", dilations),
        as_integers("im2col", "pads_begin", pads_begin),
        as_integers("im2col", "pads_end", pads_end),
    )


def _batch_to_space_geometry(shape: Size, block_shape: Any, crops_begin: Any = 0, crops_end: Any = 0) -> SpaceGeometry:
    return batch_to_space_geometry(
        shape,
        as_integers("batch_to_space", "block_shape", block_shape),
        as_integers("batch_to_space", "crops_begin", crops_begin),
        as_integers("batch_to_space", "crops_end", crops_end),
    )


def _space_to_batch_geometry(shape: Size, block_shape: Any, pads_begin: Any = 0, pads_end: Any = 0) -> SpaceGeometry:
    return space_to_batch_geometry(
        shape,
        as_integers("space_to_batch", "block_shape", block_shape),
        as_integers("space_to_batch", "pads_begin", pads_begin),
        as_integers("space_to_batch", "pads_end", pads_end),
    )


GEOMETRIES: dict[str, Callable[..., Geometry]] = {
    "col2im": _col2im_geometry,
    "im2col": _im2col_geometry,
    "batch_to_space": _batch_to_space_geometry,
    "space_to_batch": _space_to_batch_geometry,
    "blocks_to_array": blocks_to_array_geometry,
    "array_to_blocks": array_to_blocks_geometry,
}
