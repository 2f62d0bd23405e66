"""Weights of windows and of blocks: checks, and conversion for kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from gpufold.arrays import (
    aligned,
    check_device,
    check_library,
    check_no_capture,
    check_no_temporaries,
    check_real,
    device_of,
    is_kernel_ready,
    kernel_ready,
)
from gpufold.calls import Call
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import PositionsGeometry, Size
from gpufold.given import is_separable, shown

PLAIN_VALUES = (int, float, list, tuple)
"""Types of the elements of a list that should be an array."""


def as_weights(call: Call, library: ModuleType, window: Any, data: Any) -> tuple[Any, ...]:
    """Check a window against its block, and return its weights on the device of the data.

    They are arrays that kernels can read, of the call's dtype of weights: one of the block's shape or, for a separable
    window, one per axis. Arrays that kernels can already read are not copied.

    >>> from gpufold import calls
    >>> window, data = (np.ones(2), np.arange(3)), np.ones((6, 4), np.float32)
    >>> as_weights(calls.col2im(data, (3, 4), (2, 3), window=window), np, window, data)
    (array([1., 1.], dtype=float32), array([0., 1., 2.], dtype=float32))
    """
    operation, wanted = call.operation, call.element.weight_dtype
    axes = axes_of_window(call, window, "numpy.asarray" if library is np else "cupy.asarray")
    converted = False
    for axis, weights in enumerate(axes):
        if (
            type(weights) is library.ndarray
            and (library is np or weights.device == data.device)
            and is_kernel_ready(library, weights, wanted)
        ):
            continue
        name = name_of_axis(call, window, axis)
        check_library(operation, name, weights, library, "the data")
        check_device(operation, library, name, weights, "the data", data)
        check_real(operation, name, weights.dtype)
        converted = True
    if not converted:
        return tuple(axes)
    with device_of(library, axes[0]), np.errstate(all="ignore"):  # as in sums
        check_no_capture(operation, library, name_of_weights(call), f"contiguous, aligned and of {wanted}")
        convert = kernel_ready if operation == "average" else narrowed
        return tuple(convert(library, weights, wanted) for weights in axes)


def narrowed(library: ModuleType, weights: Any, wanted: Any) -> Any:
    """Return weights as kernels read them; no nonzero weight becomes zero."""
    weights = aligned(library, weights)  # the comparison below needs it too
    ready = kernel_ready(library, weights, wanted)
    if weights.dtype.kind != "f" or weights.itemsize <= ready.itemsize:
        return ready
    if library is np:
        vanished = ready == 0  # also if the thread flushes denormals
        if np.count_nonzero(vanished) + np.count_nonzero(weights) == weights.size:
            return ready
    else:  # CuPy's comparisons flush denormals, unlike the kernels
        vanished = abs(weights) <= np.finfo(wanted).smallest_subnormal / weights.dtype.type(2)
    least = library.copysign(np.finfo(wanted).tiny, weights).astype(wanted)
    return library.where(vanished & (weights != 0), least, ready)


def weights_of_blocks(call: Call, library: ModuleType, weights: Any, blocks: Any) -> Any:
    """Check the weights of blocks, and return them in the dtype of a window's."""
    operation, wanted = call.operation, call.element.weight_dtype
    check_library(operation, "weights", weights, library, "blocks")
    check_block_weights(operation, weights, call.dtype, len(blocks))
    check_device(operation, library, "weights", weights, "blocks", blocks)
    with device_of(library, blocks), np.errstate(all="ignore"):
        check_no_temporaries(operation, library, "weights")
        return narrowed(library, weights, wanted)


def check_block_weights(operation: str, weights: Any, dtype: str, count: int) -> None:
    """Raise unless there is one real weight per block, and blocks are of floats or complex numbers."""
    if not ELEMENT_TYPES[dtype].weight:
        raise TypeError(
            f"{operation}: weights need blocks of floats or complex numbers, got dtype {dtype}; convert them"
        )
    if tuple(weights.shape) != (count,):
        raise ValueError(
            f"{operation}: weights must have the shape {(count,)}, one for each block, got {tuple(weights.shape)}"
        )
    known = getattr(weights.dtype, "name", str(weights.dtype).removeprefix("torch."))
    if known == "bool" or known not in ELEMENT_TYPES or known.startswith("complex"):
        raise TypeError(f"{operation}: weights must hold real numbers, got dtype {known}")


def name_of_weights(call: Call) -> str:
    """Return the name of the argument that holds weights."""
    return "weight" if call.operation == "average" else "window"


@lru_cache(maxsize=256)
def _shapes_of_axes(block_shape: Size) -> tuple[Size, ...]:
    return tuple((taps,) for taps in block_shape)


def axes_of_window(call: Call, window: Any, convert: str = "numpy.asarray") -> Sequence[Any]:
    """Return the arrays of a window, of any library; raise if one has the wrong shape.

    There is one array of the block's shape or, for a separable window, one array per axis.
    """
    block_shape = call.geometry.block_shape
    axes: Sequence[Any] = (window,)
    shapes: Sequence[Size] = (block_shape,)
    if is_separable(window):
        axes, shapes = window, _shapes_of_axes(block_shape)
        if isinstance(window, str):
            raise TypeError(
                f"{call.operation}: window must be an array of weights or one per axis, got {shown(window)}; "
                f"scipy.signal.get_window makes weights of that name"
            )
        if len(window) and isinstance(window[0], PLAIN_VALUES):
            raise TypeError(
                f"{call.operation}: window must be an array of weights, or a sequence of one array per axis, got "
                f"{shown(window)}; convert it with {convert}(window), or each axis's weights"
            )
        if len(window) != len(block_shape):
            raise ValueError(
                f"{call.operation}: window must be one array of the block's shape {block_shape}, or one array per "
                f"axis, {len(block_shape)} in all, got {len(window)}"
            )
    for axis, weights in enumerate(axes):
        shape = getattr(weights, "shape", None)
        if shape != shapes[axis] and isinstance(shape, tuple):
            raise misshapen_weights(call, name_of_axis(call, window, axis), tuple(shape), shapes[axis])
    return axes


def name_of_axis(call: Call, window: Any, axis: int) -> str:
    """Return the name of an array of a window, for messages."""
    return f"window[{axis}]" if is_separable(window) else name_of_weights(call)


def misshapen_weights(call: Call, name: str, shape: Size, wanted: Size) -> ValueError:
    """Return the error for an array of a window with the wrong shape."""
    hint = (
        "; for the weights of each axis, give a sequence of arrays"
        if len(shape) == 1 < len(wanted) and shape[0] in wanted
        else ""
    )
    return ValueError(
        f"{call.operation}: {name} must have the shape {wanted} for blocks of shape {call.geometry.block_shape}, got "
        f"{shape}{hint}"
    )


def known_window(where: str, window: Any, block: Size) -> Any:
    """Return a window that fits a block, or raise; a str is the name of one of SciPy's windows, for every axis."""
    if isinstance(window, str):
        try:
            from scipy.signal import get_window

            return tuple([get_window(window, side) for side in block])
        except (ImportError, ValueError) as error:
            raise type(error)(
                f"{where}: window {shown(window)} must be one of scipy.signal.get_window: {error}"
            ) from None
    call = Call(where, PositionsGeometry(0, (), block, block), "float32")
    try:
        axes = axes_of_window(call, window)
    except RuntimeError as error:  # of torch: a nested tensor has no shape
        raise TypeError(
            f"{where}: window must be a dense tensor, got a nested one; pass each of window.unbind() by itself"
        ) from error
    for axis, weights in enumerate(axes):
        if not hasattr(weights, "shape"):
            name = name_of_axis(call, window, axis)
            raise TypeError(f"{where}: {name} must be an array, got {type(weights).__qualname__}")
    return window


def first_weights(window: Any, tile: Size) -> Any:
    """Return the start of a window, for a smaller tile."""
    if is_separable(window):
        return tuple(weights[:side] for weights, side in zip(window, tile, strict=True))
    return window[tuple(map(slice, tile))]


def rows_of_window(window: Any, rows: slice) -> Any:
    """Return some rows of a window: its elements along the first axis of a block."""
    if is_separable(window):
        return (window[0][rows], *window[1:])
    return None if window is None else window[rows]
