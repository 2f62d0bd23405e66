"""The kernel variant of average, which divides an array by weights for its last axes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import mul

from gpufold.geometry import AverageGeometry, merged_axes
from gpufold.gpu.parameters import divisor, offset, offset_bits, offset_type, pack
from gpufold.gpu.plan import Plan, Problem, Variant, grid_of

THREADS = 256
THREAD_BYTES = 32
MAX_ELEMENTS = 4
"""Prediction: what a thread has in flight, at most."""


def direct(problem: Problem) -> Plan:
    """Plan for kernels/average_direct.cu."""
    geometry, element = problem.geometry, problem.element
    assert isinstance(geometry, AverageGeometry)
    input, output = problem.input, problem.output
    axes = merged_axes(geometry.array_shape, input.strides, output.strides) or [(1, 0, 0)]
    extents, sources, targets = zip(*axes, strict=True)
    items, weights = prod(extents), prod(geometry.block_shape)
    elements = min(MAX_ELEMENTS, THREAD_BYTES // element.itemsize)
    reach = [sum(map(mul, extents, map(abs, steps))) for steps in (sources, targets)]
    bits = offset_bits("average", items + THREADS * elements, *reach)
    return Plan(
        "average",
        "direct",
        "average_direct.cu",
        "average_direct",
        (
            ("SCALAR", element.scalar),
            ("ACCUMULATOR", element.accumulator),
            ("WEIGHT", element.weight_type),
            ("OFFSET", offset_type(bits)),
            ("RANK", str(len(axes))),
            ("WINDOW", "full"),
            ("THREADS", str(THREADS)),
            ("ELEMENTS", str(elements)),
        ),
        grid_of("average", items, THREADS * elements),
        (THREADS, 1, 1),
        pack(
            bits,
            items=offset(items),
            numerator_stride=offset(sources),
            result_stride=offset(targets),
            by_extent=divisor(extents),
            by_weights=divisor(weights),
        ),
        2 * items * element.itemsize + weights * element.weight_bytes,
        "each thread divides a few elements, neighbouring threads neighbouring ones",
        takes_window=True,
    )


VARIANTS: dict[str, Variant] = {"direct": direct}


def prefer(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the one variant that there is."""
    yield "direct", ""
