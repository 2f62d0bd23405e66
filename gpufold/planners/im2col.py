"""The kernel variants of im2col."""

from __future__ import annotations

from math import gcd, prod

from gpufold.geometry import SlidingGeometry
from gpufold.plan import ELEMENT_TYPES, Plan, Problem, Variant, fusion_defines, sliding_bytes
from gpufold.planners import unfold
from gpufold.planners.unfold import Unfold, UnfoldAxis


def _unfold(problem: Problem) -> Unfold:
    geometry = problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    itemsize = ELEMENT_TYPES[problem.dtype].itemsize
    rank = len(geometry.axes)
    *image_batch, image_channel = problem.input.strides[:-rank]
    *columns_batch, row, position = problem.output.strides
    return Unfold(
        operation="im2col",
        itemsize=itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        batch=1 if geometry.batch is None else geometry.batch,
        planes=geometry.channels,
        image_batch_step=image_batch[0] if image_batch else 0,
        image_plane_step=image_channel,
        columns_batch_step=columns_batch[0] if columns_batch else 0,
        columns_plane_step=prod(geometry.kernel_size) * row,
        tap_step=row,
        axes=tuple(
            UnfoldAxis(
                axis.size,
                axis.kernel,
                axis.stride,
                axis.dilation,
                axis.pad_begin,
                axis.blocks,
                step,
                prod(geometry.num_blocks[number + 1 :]) * position,
            )
            for number, (axis, step) in enumerate(zip(geometry.axes, problem.input.strides[-rank:], strict=True))
        ),
        bytes_moved=sliding_bytes(problem),
        element_types=_element_types(problem),
        takes_window=True,
    )


def _element_types(problem: Problem) -> tuple[tuple[str, str], ...]:
    """Name the types of elements that are multiplied; none where they are only moved."""
    if problem.fusion.window == "none":
        return ()
    element, fused = ELEMENT_TYPES[problem.dtype], fusion_defines(problem)
    return (
        ("SCALAR", element.scalar),
        ("ACCUMULATOR", element.accumulator),
        ("WINDOW", fused["WINDOW"]),
        ("WEIGHT", fused["WEIGHT"]),
    )


def direct(problem: Problem) -> Plan:
    """Plan one thread per block position: any call, fast while neighbouring blocks are near."""
    return unfold.direct(_unfold(problem), problem.device)


def staged(problem: Problem) -> Plan:
    """Plan one warp per 32 block positions through shared memory: large strides."""
    return unfold.staged(_unfold(problem), problem.device)


def choose(problem: Problem) -> Plan:
    """Take the variant for a call whose caller left it open."""
    return unfold.choose(_unfold(problem), problem.device)


VARIANTS: dict[str, Variant] = {"direct": direct, "staged": staged}
