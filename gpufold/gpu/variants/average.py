"""The kernel variant of average, which divides an array by weights for its last axes."""

from __future__ import annotations

from math import prod
from operator import mul

from gpufold.geometry import AverageGeometry, merged_axes
from gpufold.gpu.parameters import divisor, offset, offset_bits
from gpufold.gpu.plan import LaunchShape, Plan, Problem, make_plan
from gpufold.gpu.variants.views import MOVING_THREADS

THREAD_BYTES = 32
MAX_ELEMENTS = 4
"""Guesses: most bytes and elements that a thread has in flight."""


def elementwise(problem: Problem) -> Plan:
    """Plan for kernels/average_elementwise.cu."""
    geometry, element = problem.geometry, problem.element
    assert isinstance(geometry, AverageGeometry)
    input, output = problem.input, problem.output
    axes = merged_axes(geometry.array_shape, input.strides, output.strides) or [(1, 0, 0)]
    extents, sources, targets = zip(*axes, strict=True)
    items, weights = prod(extents), prod(geometry.block_shape)
    elements = min(MAX_ELEMENTS, THREAD_BYTES // element.itemsize)
    reach = [sum(map(mul, extents, map(abs, steps))) for steps in (sources, targets)]
    bits = offset_bits(items + MOVING_THREADS * elements, *reach)
    return make_plan(
        problem,
        "elementwise",
        LaunchShape(items, MOVING_THREADS * elements, MOVING_THREADS, extents, 1, bits),
        "each thread divides a few elements, neighbouring threads neighbouring ones",
        {
            "SCALAR": element.scalar,
            "ACCUMULATOR": element.accumulator,
            "WEIGHT": element.weight_type,
            "RANK": len(axes),
            "WINDOW": "full",
            "ELEMENTS": elements,
        },
        {
            "items": offset(items),
            "numerator_stride": offset(sources),
            "result_stride": offset(targets),
            "by_extent": divisor(extents),
            "by_weights": divisor(weights),
        },
    )
