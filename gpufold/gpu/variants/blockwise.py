"""The kernel variants of blocks_to_array and array_to_blocks: those of col2im and im2col, on arrays seen as theirs."""

from __future__ import annotations

from dataclasses import replace

from gpufold.calls import Unsupported
from gpufold.geometry import BlocksGeometry, blocks_as_columns
from gpufold.gpu.plan import Operand, Plan, Problem, Variant
from gpufold.gpu.variants import col2im, im2col


def as_col2im(problem: Problem) -> Problem:
    """Return a call of blocks_to_array as one of col2im."""
    assert isinstance(problem.geometry, BlocksGeometry)
    sliding, *strides = blocks_as_columns(problem.geometry, problem.input.strides, problem.output.strides)
    shapes = sliding.split_columns_shape, sliding.image_shape  # without a batch where there is none
    alignments = problem.input.alignment, problem.output.alignment
    columns, image = (
        Operand(shape, steps[-len(shape) :], alignment)
        for shape, steps, alignment in zip(shapes, strides, alignments, strict=True)
    )
    fusion = problem.fusion
    if fusion.window == "separable":  # which has weights for the axes of the call
        fusion = fusion._replace(window_axes=len(problem.geometry.axes))
    return replace(problem, call=problem.call._replace(geometry=sliding, fusion=fusion), input=columns, output=image)


def as_im2col(problem: Problem) -> Problem:
    """Return a call of array_to_blocks as one of im2col."""
    turned = as_col2im(replace(problem, input=problem.output, output=problem.input))
    return replace(turned, input=turned.output, output=turned.input)


def _blocks_to_array(variant: Variant) -> Variant:
    return lambda problem: _named(variant, as_col2im(problem), "col2im", "blocks_to_array")


def _array_to_blocks(variant: Variant) -> Variant:
    return lambda problem: _named(variant, as_im2col(problem), "im2col", "array_to_blocks")


def _named(variant: Variant, problem: Problem, planned: str, operation: str) -> tuple[Plan, ...]:
    """Plan under the name of the operation that was called."""
    try:
        plans = variant(problem)
        return tuple([replace(plan, operation=operation) for plan in (plans if isinstance(plans, tuple) else (plans,))])
    except Unsupported as unsupported:
        raise Unsupported(str(unsupported).replace(planned, operation, 1)) from None


TO_ARRAY = {name: _blocks_to_array(variant) for name, variant in col2im.VARIANTS.items()}
TO_BLOCKS = {name: _array_to_blocks(variant) for name, variant in im2col.VARIANTS.items()}
