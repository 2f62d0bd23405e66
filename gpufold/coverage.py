"""Elements that no block covers: an average raises, or fills them with the caller's value."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpufold.geometry import BlocksGeometry, SlidingGeometry, over_the_end
from gpufold.given import device_of_cupy


def check_covered(operation: str, geometry: Any, reduction: str) -> None:
    """Raise if sliding blocks leave elements of an average's array uncovered."""
    if not geometry.covers_all and 0 not in geometry.array_shape:
        number, axis = next((number, axis) for number, axis in enumerate(geometry.axes) if axis.uncovered)
        lead = len(geometry.lead)
        where = f"spatial axis {number} ({'image' if operation == 'col2im' else 'array'} axis {lead + number})"
        pieces = axis.uncovered
        pixels = [range(axis.size)[each] if isinstance(each, slice) else each for each in pieces]
        first, count = min(each[0] for each in pixels), sum(map(len, pixels))
        pad_end = over_the_end(axis.size + axis.pad_begin, axis.kernel, axis.stride)
        cure = f"pads_end={pad_end}" if operation == "col2im" else "last='over' or at grid_positions"
        if axis.dilation != 1 or axis.stride > axis.kernel:
            cure = "smaller strides" if axis.stride > axis.kernel else "smaller dilations"
        raise ValueError(
            f"{operation}: blocks must cover every element with reduction={reduction!r}, got {count} of "
            f"{axis.size} uncovered on {where}, from {first} on; use blocks with {cure}, or fill_value=0 to "
            "fill them"
        )


def filled(geometry: object, result: Any, fill_value: complex | None) -> Any:
    """Return a result, of any library, with a value in its uncovered elements, which are zero so far."""
    if fill_value is None or fill_value == 0:
        return result
    assert isinstance(geometry, BlocksGeometry | SlidingGeometry)
    for after, axis in enumerate(reversed(geometry.axes)):
        for pixels in axis.uncovered:
            result = put(result, (..., pixels, *(slice(None),) * after), fill_value)
    return result


def put(result: Any, where: Any, fill_value: complex) -> Any:
    """Return an array, of any library, with a value at an index; mutable arrays are changed in place."""
    number = np.asarray(fill_value)
    with np.errstate(over="ignore"):  # it becomes infinite
        if isinstance(result, np.ndarray):
            if getattr(where[-1], "dtype", None) == np.bool:  # without an index of each element
                np.copyto(result, number.astype(result.dtype), where=where[-1])
            else:
                result[where] = fill_value
            return result
        if hasattr(result, "at"):
            return result.at[where].set(number.astype(result.dtype))
        name = str(result.dtype).removeprefix("torch.")
        number = number.astype("float32" if name == "bfloat16" else name)
    with device_of_cupy(result):
        result[where] = result.new_tensor(number) if hasattr(result, "new_tensor") else number.item()
    return result
