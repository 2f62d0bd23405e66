"""What is fused into sums and moves: reductions, and windows as the CPU and the kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpufold.arrays import check_library, check_no_capture, device_of, is_kernel_ready, kernel_ready
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
) -> tuple[Fusion, tuple[Any, ...] | None]:
    """Check what a call wants besides a plain sum; give it with the window's weights, see `as_window`."""
    if reduction == "sum" and window is None and not accumulate:
        return PLAIN, None
    if reduction not in REDUCTIONS:
        raise ValueError(f"{operation}: reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if reduction != "sum" and weight_dtype(data.dtype) is None:
        raise TypeError(
            f"{operation}: reduction {reduction!r} needs data of floats or complex numbers, got dtype {data.dtype}; "
            f"convert it with data.astype"
        )
    if accumulate and out is None:
        raise ValueError(f"{operation}: accumulate=True adds to out, but out is None; pass the array to add to")
    if accumulate and not can_be_added(data.dtype):
        raise TypeError(f"{operation}: accumulate=True needs data that can be added, got dtype {data.dtype}")
    kind, weights = as_window(operation, library, window, kernel_size, data.dtype)
    for array in weights or () if library is not np else ():
        if array.device != data.device:
            raise ValueError(
                f"{operation}: window must be on the device of the data, {data.device}, got {array.device}"
            )
    return Fusion(str(reduction), kind, bool(accumulate)), weights


def as_window(
    operation: str, library: ModuleType, window: Any, kernel_size: Size, dtype: np.dtype[Any]
) -> tuple[str, tuple[Any, ...] | None]:
    """Check a window against the block it is for; give its kind, of `gpufold.plan.WINDOWS`, and its weights.

    The weights are arrays that kernels can read, of the dtype that goes with the data's: one of shape `kernel_size`,
    or, for a separable window, one for each axis. Those of the call itself, where they are such arrays.

    >>> as_window("col2im", np, (np.ones(2), np.arange(3)), (2, 3), np.dtype(np.float32))
    ('separable', (array([1., 1.], dtype=float32), array([0., 1., 2.], dtype=float32)))
    """
    if window is None:
        return "none", None
    wanted = weight_dtype(dtype)
    if wanted is None:
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
    converted = False
    for name, weights, shape in zip(names, axes, shapes, strict=True):
        check_library(operation, name, weights, library, "the data")
        if weights.shape != shape:
            raise ValueError(
                f"{operation}: {name} must have the shape {shape} of the block's taps, got {weights.shape}: "
                f"kernel_size={kernel_size}"
            )
        if not is_kernel_ready(library, weights, wanted):
            converted = True
            if weights.dtype.kind not in "fiu" and weights.dtype.name != "bfloat16":
                raise TypeError(f"{operation}: {name} must hold real numbers, got dtype {weights.dtype}")
    kind = "full" if whole and len(kernel_size) > 1 else "separable"
    if not converted:
        return kind, tuple(axes)
    with device_of(library, axes[0]):
        check_no_capture(operation, library, "window", f"contiguous, aligned and of {wanted}")
        return kind, tuple(kernel_ready(library, weights, wanted) for weights in axes)


@lru_cache(maxsize=256)
def can_be_added(dtype: np.dtype[Any]) -> bool:
    """Whether there are sums of a dtype."""
    return dtype.name in ELEMENT_TYPES


@lru_cache(maxsize=256)
def weight_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Give the dtype of the weights that go with a dtype; None where there are none."""
    element = ELEMENT_TYPES.get(dtype.name)
    return np.dtype(element.weight) if element is not None and element.weight else None


def weights_of_taps(kind: str, weights: tuple[npt.NDArray[Any], ...], kernel_size: Size) -> npt.NDArray[Any]:
    """Give the weight of every tap of a block, on the CPU; a separable window's axes multiply in their order."""
    with np.errstate(all="ignore"):  # as in sums
        taps = reduce(np.multiply.outer, weights) if kind == "separable" else weights[0]
    assert taps.size == prod(kernel_size)
    return taps.reshape(kernel_size)
