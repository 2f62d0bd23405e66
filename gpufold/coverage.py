"""Elements that no block covers: an average that would leave some raises, or fills them with what its caller named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpufold.geometry import BlocksGeometry, SlidingGeometry, over_the_end
from gpufold.given import check_number

if TYPE_CHECKING:
    from gpufold.calls import Call


def check_covered(call: Call, geometry: BlocksGeometry | SlidingGeometry, fill: object) -> None:
    """Raise where an average leaves elements that no block covers, unless what they are was given."""
    operation, fusion = call.operation, call.fusion
    if fill is not None:
        check_number(operation, "fill_value", fill, call.dtype)
        if fusion.accumulate:
            raise ValueError(f"{operation}: accumulate=True leaves what no block covers in out, got a fill_value")
    elif fusion.reduction != "sum" and not (fusion.accumulate or geometry.covers_all):
        if 0 in call.result_shape:
            return
        number, axis = next((number, axis) for number, axis in enumerate(geometry.axes) if axis.uncovered)
        lead = len(call.result_shape) - len(geometry.axes)
        where = f"spatial axis {number} ({'image' if operation == 'col2im' else 'array'} axis {lead + number})"
        spans = axis.uncovered
        count = sum(span.stop - span.start for span in spans)
        pad_end = over_the_end(axis.size + axis.pad_begin, axis.kernel, axis.stride)
        cure = f"pads_end={pad_end}" if operation == "col2im" else "last='over' or at grid_positions"
        if axis.dilation != 1 or axis.stride > axis.kernel:
            cure = "smaller strides" if axis.stride > axis.kernel else "smaller dilations"
        raise ValueError(
            f"{operation}: blocks must cover every element with reduction={fusion.reduction!r}, got {count} of "
            f"{axis.size} uncovered on {where}, from {spans[0].start} on; use blocks with {cure}, or fill_value=0 to "
            "fill them"
        )


def filled(call: Call, result: Any, fill_value: Any) -> Any:
    """Return a result, of any library, with a value where no block covers it, which is zero already."""
    if fill_value is None or fill_value == 0:
        return result
    assert isinstance(call.geometry, BlocksGeometry | SlidingGeometry)
    for after, axis in enumerate(reversed(call.geometry.axes)):
        for span in axis.uncovered:
            where = (..., span, *(slice(None),) * after)
            if hasattr(result, "at"):
                result = result.at[where].set(fill_value)
            else:
                result[where] = fill_value
    return result
