"""What a call on the GPU would run: to be read, or compiled ahead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpufold import planners
from gpufold.arrays import library_of, result_dtype
from gpufold.blocks import array_to_blocks_geometry, blocks_to_array_geometry
from gpufold.geometry import (
    BlocksGeometry,
    Geometry,
    PositionsGeometry,
    SlidingGeometry,
    SpaceGeometry,
    as_integers,
    positions_geometry,
)
from gpufold.plan import H200, PLAIN, Device, Fusion, Operand, Plan
from gpufold.planners import Explanation, variants
from gpufold.sliding import col2im_geometry, im2col_geometry
from gpufold.space import batch_to_space_geometry, space_to_batch_geometry
from gpufold.windows import as_fusion


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
        geometry = _GEOMETRIES[operation](input.shape, *arguments, **sizes)
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


_GEOMETRIES: dict[str, Callable[..., Geometry]] = {
    "col2im": col2im_geometry,
    "im2col": im2col_geometry,
    "batch_to_space": batch_to_space_geometry,
    "space_to_batch": space_to_batch_geometry,
    "blocks_to_array": blocks_to_array_geometry,
    "array_to_blocks": array_to_blocks_geometry,
}

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
