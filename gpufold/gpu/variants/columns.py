"""Columns and image of col2im and im2col as the blocks and the array of a View, and their fused arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd, prod

from gpufold.calls import PLAIN
from gpufold.geometry import BlocksGeometry, SlidingGeometry, blocks_as_columns
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import Operand, Problem
from gpufold.gpu.variants.views import View, ViewAxis


def as_columns(problem: Problem) -> Problem:
    """Return a problem with blocks viewed as columns, and the array as an image; others unchanged."""
    geometry, fusion = problem.geometry, problem.fusion
    if not isinstance(geometry, BlocksGeometry):
        return problem
    gathers = problem.call.operation == "blocks_to_array"
    blocks, array = (problem.input, problem.output) if gathers else (problem.output, problem.input)
    sliding, *strides = blocks_as_columns(geometry, blocks.strides, array.strides)
    shapes = sliding.split_columns_shape, sliding.array_shape  # without a batch axis if there is none
    columns, image = (
        Operand(shape, steps[-len(shape) :], operand.alignment)
        for shape, steps, operand in zip(shapes, strides, (blocks, array), strict=True)
    )
    if fusion.window == "separable":  # weights are for the axes of the call
        fusion = fusion._replace(window_axes=len(geometry.axes))
    call = problem.call._replace(geometry=sliding, fusion=fusion)
    input, output = (columns, image) if gathers else (image, columns)
    return replace(problem, call=call, input=input, output=output)


@lru_cache(maxsize=256)
def view_of(problem: Problem) -> View:
    """Name every stride, and merge batch and channels into planes if the strides allow it.

    The strides of a single batch or channel are 0, which every word divides.
    """
    geometry, writes_blocks = problem.geometry, problem.call.operation in ("im2col", "array_to_blocks")
    assert isinstance(geometry, SlidingGeometry)
    image, columns = (problem.input, problem.output) if writes_blocks else (problem.output, problem.input)
    rank, batch, channels = len(geometry.axes), geometry.batch, geometry.channels
    if columns.shape == geometry.split_columns_shape:
        columns_batch, columns_channel, *strides = columns.strides
    else:
        *lead, row, block = columns.strides
        columns_batch = lead[0] if lead else 0
        columns_channel = row * prod(geometry.block_shape)
        strides = [row * step for step in contiguous_strides(geometry.block_shape)]
        strides += [block * step for step in contiguous_strides(geometry.num_blocks)]
    *lead, image_channel = image.strides[:-rank]
    image_batch = lead[0] if lead else 0
    if channels == 1:
        batch, channels, columns_channel, image_channel = 1, batch, columns_batch, image_batch
    axes = zip(geometry.axes, image.strides[-rank:], strides[:rank], strides[rank:], strict=True)
    view = View(
        problem.element.itemsize,
        gcd(problem.input.alignment, problem.output.alignment),
        writes_blocks,
        batch,
        channels,
        image_batch if batch > 1 else 0,
        image_channel if channels > 1 else 0,
        columns_batch if batch > 1 else 0,
        columns_channel if channels > 1 else 0,
        tuple(ViewAxis.of(axis, *strides) for axis, *strides in axes),
    )
    return view.with_batch_as_planes()


def fusion_defines(problem: Problem) -> dict[str, str]:
    """Return the macros of the fused arithmetic, if there is any."""
    fusion, geometry = problem.fusion, problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    if fusion == PLAIN:
        return {}
    return {
        **({"WINDOW_AXES": str(fusion.window_axes or len(geometry.axes))} if fusion.window == "separable" else {}),
        "REDUCTION": fusion.reduction,
        "WINDOW": fusion.window,
        "ACCUMULATE": "true" if fusion.accumulate else "false",
        "WEIGHT": problem.element.weight_type,
    }
