"""What is fused into sums and moves: reductions, and windows as the CPU and the kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpufold.arrays import check_library, check_no_capture, device_of
from gpufold.geometry import Size
from gpufold.plan import ELEMENT_TYPES, PLAIN, REDUCTIONS, Fusion


def as_fusion(
    operation: str,
    library: ModuleType,
    data: Any,
    kernel_size: Size,
    reduction: object = "sum",
    window: Any = None,
    out: Any = None,
    accumulate: object = False,
) -> tuple[Fusion, Any]:
    """Check what a call wants besides a plain sum; give it with the window's weights, see `as_window`."""
    if reduction == "sum" and window is None and not accumulate:
        return PLAIN, None
    if reduction not in REDUCTIONS:
        raise ValueError(f"{operation}: reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    element = ELEMENT_TYPES.get(data.dtype.name)
    if reduction != "sum" and (element is None or not element.weight):
        raise TypeError(
            f"{operation}: reduction {reduction!r} needs data of floats or complex numbers, got dtype {data.dtype}; "
            f"convert it with data.astype"
        )
    if accumulate and out is None:
        raise ValueError(f"{operation}: accumulate=True adds to out, but out is None; pass the array to add to")
    if accumulate and element is None:
        raise TypeError(f"{operation}: accumulate=True needs data that can be added, got dtype {data.dtype}")
    kind, weights = as_window(operation, library, window, kernel_size, data.dtype)
    if weights is not None and library is not np and weights.device != data.device:
        raise ValueError(f"{operation}: window must be on the device of the data, {data.device}, got {weights.device}")
    return Fusion(str(reduction), kind, bool(accumulate)), weights


def as_window(
    operation: str, library: ModuleType, window: Any, kernel_size: Size, dtype: np.dtype[Any]
) -> tuple[str, Any]:
    """Check a window against the block it is for; give its kind, of `gpufold.plan.WINDOWS`, and its weights.

    The weights are one contiguous array of the dtype that goes with the data's: of shape `kernel_size`, or, for a
    separable window, of the weights of each axis after those of the axis before.

    >>> kind, weights = as_window("col2im", np, (np.ones(2), np.arange(3)), (2, 3), np.dtype(np.float32))
    >>> kind, weights
    ('separable', array([1., 1., 0., 1., 2.], dtype=float32))
    """
    if window is None:
        return "none", None
    element = ELEMENT_TYPES.get(dtype.name)
    if element is None or not element.weight:
        raise TypeError(f"{operation}: window needs data of floats or complex numbers, got dtype {dtype}")
    whole = not isinstance(window, Sequence)
    axes = [window] if whole else list(window)
    names = ["window"] if whole else [f"window[{axis}]" for axis in range(len(axes))]
    shapes = [kernel_size] if whole else [(taps,) for taps in kernel_size]
    if len(axes) != len(shapes):
        raise ValueError(
            f"{operation}: window must be one array of the block's shape {kernel_size}, or one array per axis, "
            f"{len(shapes)} in all, got {len(axes)}"
        )
    for name, weights, shape in zip(names, axes, shapes, strict=True):
        check_library(operation, name, weights, library, "the data")
        if weights.shape != shape:
            raise ValueError(
                f"{operation}: {name} must have the shape {shape} of the block's taps, got {weights.shape}: "
                f"kernel_size={kernel_size}"
            )
        if weights.dtype.kind not in "fiu" and weights.dtype.name != "bfloat16":
            raise TypeError(f"{operation}: {name} must hold real numbers, got dtype {weights.dtype}")
    kind = "full" if whole and len(kernel_size) > 1 else "separable"
    first = axes[0]
    if len(axes) == 1 and first.dtype == element.weight and first.flags.c_contiguous:
        return kind, first
    with device_of(library, first):
        check_no_capture(operation, library, "window", f"one contiguous array of {element.weight}")
        axes = [library.ascontiguousarray(weights, element.weight) for weights in axes]
        return kind, axes[0] if len(axes) == 1 else library.concatenate(axes)


def with_added_axes(operation: str, library: ModuleType, weights: Any, added_axes: int) -> Any:
    """Give a separable window's weights for blocks with further axes of one tap in front."""
    if not added_axes:
        return weights
    with device_of(library, weights):
        check_no_capture(operation, library, "the arrays", "of leading axes that lie as one in memory, with a window,")
        return library.concatenate([library.ones(added_axes, weights.dtype), weights])


def weights_of_axes(weights: npt.NDArray[Any], kernel_size: Size) -> list[npt.NDArray[Any]]:
    """Take the weights of a separable window apart again, on the CPU."""
    return np.split(weights, list(accumulate(kernel_size))[:-1])


def weights_of_taps(kind: str, weights: npt.NDArray[Any], kernel_size: Size) -> npt.NDArray[Any]:
    """Give the weight of every tap of a block, on the CPU; a separable window's axes multiply in their order."""
    if kind == "separable":
        weights = reduce(np.multiply.outer, weights_of_axes(weights, kernel_size))
    assert weights.size == prod(kernel_size)
    return weights.reshape(kernel_size)
