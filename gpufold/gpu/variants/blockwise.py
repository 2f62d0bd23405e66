"""Views of blocks_to_array and array_to_blocks as col2im and im2col, whose kernels they use."""

from __future__ import annotations

from dataclasses import replace

from gpufold.geometry import BlocksGeometry, blocks_as_columns
from gpufold.gpu.plan import Operand, Problem


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
