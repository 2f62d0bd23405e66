"""The batch_to_space and space_to_batch kernels, run on the CPU: every variant moves every element where the
specification puts it, bit for bit.
"""

from __future__ import annotations

import random
from math import prod

import hostcuda
import numpy as np
import numpy.typing as npt
import pytest

from gpufold import plan as planning
from gpufold.geometry import SpaceGeometry, batch_to_space_geometry, space_to_batch_geometry
from gpufold.plan import Device, Operand, Plan, Unsupported, choose, explain, variants

Array = npt.NDArray[np.generic]

ONE_MULTIPROCESSOR = Device("a small one", (9, 0), multiprocessors=1, threads_per_multiprocessor=32)
"""So small that threads take several planes each, as they do on a large device for large arrays."""

DTYPES = {1: "uint8", 2: "float16", 4: "float32", 8: "complex64", 16: "complex128"}


def batch_to_space_by_definition(data: Array, geometry: SpaceGeometry) -> Array:
    """Take pixel e from block (e + crop) // block of the batch, phase (e + crop) % block."""
    image, *pixel = np.indices(geometry.space_shape)
    padded = [e + crop for e, crop in zip(pixel, geometry.margin_begin, strict=True)]
    blocks = [e // block for e, block in zip(padded, geometry.block, strict=True)]
    phases = [e % block for e, block in zip(padded, geometry.block, strict=True)]
    return data[(np.ravel_multi_index(phases, geometry.block) * geometry.batch + image, *blocks)]


def space_to_batch_by_definition(data: Array, geometry: SpaceGeometry) -> Array:
    """Put the phases of the padded image behind one another along the batch."""
    margins = list(zip(geometry.margin_begin, geometry.margin_end, strict=True))
    padded = np.pad(data, [(0, 0), *margins])
    batch, *blocks = np.indices(geometry.batch_shape)
    phases = np.unravel_index(batch // geometry.batch, geometry.block)
    pixels = [d * block + phase for d, block, phase in zip(blocks, geometry.block, phases, strict=True)]
    return padded[(batch % geometry.batch, *pixels)]


DEFINITIONS = {"batch_to_space": batch_to_space_by_definition, "space_to_batch": space_to_batch_by_definition}


def random_bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Elements of every bit pattern, so NaN with payloads, infinities, -0.0 and denormals among them."""
    size = prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape)


def operand(array: Array) -> Operand:
    """Describe an array whose memory starts on a multiple of 256 bytes, as a GPU's allocations do."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Operand(array.shape, strides, (offset & -offset) or 256)


def plan_of(operation: str, geometry: SpaceGeometry, data: Array, variant: str, device: Device) -> Plan:
    shape = geometry.space_shape if operation == "batch_to_space" else geometry.batch_shape
    name = "float32" if data.dtype.kind == "V" else data.dtype.name
    return choose(operation, geometry, name, operand(data), Operand.contiguous(shape), device, variant)


def check(
    operation: str, geometry: SpaceGeometry, data: Array, variant: str, device: Device = ONE_MULTIPROCESSOR
) -> Plan:
    """Run one variant and compare every byte; Unsupported passes through."""
    plan = plan_of(operation, geometry, data, variant, device)
    shape = geometry.space_shape if operation == "batch_to_space" else geometry.batch_shape
    result = np.empty(shape, data.dtype)
    hostcuda.run(plan, data, result)
    wanted = DEFINITIONS[operation](data, geometry)
    bits = f"V{data.itemsize}"
    different = np.argwhere(result.view(bits) != wanted.view(bits))
    assert not len(different), (
        f"{len(different)} differ, the first at {different[0]}: {geometry} {plan} {plan.parameters!r}"
    )
    return plan


# Name: data shape, block shape, margins begin, margins end, without the batch axis but for the shape.
BATCH_TO_SPACE_CASES = {
    "openvino-2d": ((10, 2), (5,), (2,), (0,)),
    "openvino-5d": ((48, 3, 3, 1, 3), (2, 4, 3, 1), (0, 0, 1, 0), (0, 0, 1, 0)),
    "nchw-2x2": ((12, 5, 7, 6), (1, 2, 2), (0, 0, 0), (0, 0, 0)),
    "nchw-2x2-many-planes": ((20, 3, 4, 8), (1, 2, 2), (0, 0, 0), (0, 0, 0)),
    "nchw-crop-odd": ((8, 3, 5, 7), (1, 2, 2), (0, 1, 1), (0, 0, 2)),
    "nchw-crop-more-than-a-block": ((8, 3, 5, 7), (1, 2, 2), (0, 3, 5), (0, 4, 3)),
    "nchw-crop-whole-blocks": ((4, 3, 4, 24), (1, 2, 2), (0, 0, 16), (0, 0, 0)),
    "nchw-4x3": ((12, 2, 3, 11), (1, 4, 3), (0, 1, 1), (0, 2, 1)),
    "nchw-4x4": ((32, 3, 2, 9), (1, 4, 4), (0, 0, 0), (0, 0, 0)),
    "nhwc-2x2": ((8, 3, 5, 16), (2, 2, 1), (1, 0, 0), (0, 1, 0)),
    "nhwc-rgb": ((8, 3, 5, 3), (2, 2, 1), (1, 0, 0), (0, 1, 0)),
    "nhwc-crop-channels": ((4, 3, 5, 20), (2, 2, 1), (0, 0, 4), (0, 0, 4)),
    "unit-with-crop-outside-a-split-axis": ((6, 5, 4), (1, 3), (2, 0), (1, 0)),
    "crop-only": ((3, 5, 9), (1, 1), (1, 2), (0, 3)),
    "copy": ((3, 5, 8), (1, 1), (0, 0), (0, 0)),
    "one-element": ((1, 1), (1,), (0,), (0,)),
    "one-pixel-left": ((6, 2, 3), (2, 3), (1, 4), (2, 4)),
    "wide-block": ((33, 2, 5), (1, 33), (0, 7), (0, 3)),
    "very-wide-block": ((100, 2, 3), (1, 100), (1, 101), (0, 1)),
    "rows-of-many-blocks": ((5, 1, 70), (1, 5), (0, 2), (0, 1)),
    "rank-6": ((24, 2, 3, 2, 2, 3), (2, 1, 3, 1, 2), (1, 0, 2, 0, 1), (0, 1, 1, 1, 0)),
}

SPACE_TO_BATCH_CASES = {
    "openvino-2d": ((2, 8), (5,), (2,), (0,)),
    "openvino-5d": ((2, 6, 10, 1, 3), (2, 4, 3, 1), (0, 0, 1, 0), (0, 2, 1, 0)),
    "nchw-2x2": ((3, 5, 14, 12), (1, 2, 2), (0, 0, 0), (0, 0, 0)),
    "nchw-pads": ((2, 3, 5, 7), (1, 2, 2), (0, 1, 2), (0, 2, 3)),
    "nchw-4x3-pads-more-than-a-block": ((2, 3, 6, 5), (1, 4, 3), (0, 5, 0), (0, 1, 7)),
    "nhwc-2x2": ((2, 5, 7, 16), (2, 2, 1), (1, 0, 0), (0, 1, 0)),
    "nhwc-rgb": ((2, 5, 7, 3), (2, 2, 1), (0, 1, 0), (1, 0, 0)),
    "nhwc-pad-channels": ((2, 4, 4, 20), (2, 2, 1), (0, 0, 4), (0, 0, 4)),
    "unit-with-pad-outside-a-split-axis": ((2, 3, 12), (1, 3), (2, 0), (1, 0)),
    "pad-only": ((3, 5, 9), (1, 1), (1, 2), (0, 3)),
    "copy": ((3, 5, 8), (1, 1), (0, 0), (0, 0)),
    "one-element": ((1, 1), (1,), (0,), (0,)),
    "block-wholly-in-the-padding": ((1, 2, 2), (3, 2), (4, 3), (3, 1)),
    "nothing-but-padding": ((2, 0, 3), (2, 1), (2, 1), (2, 0)),
    "wide-block": ((2, 3, 66), (1, 33), (0, 30), (0, 3)),
    "very-wide-block": ((1, 2, 300), (1, 100), (0, 0), (0, 0)),
    "rank-6": ((2, 3, 2, 3, 2, 5), (2, 1, 3, 1, 2), (1, 0, 2, 0, 1), (0, 1, 1, 1, 0)),
}

CASES = [
    pytest.param("batch_to_space", batch_to_space_geometry, *case, id=f"batch_to_space-{name}")
    for name, case in BATCH_TO_SPACE_CASES.items()
] + [
    pytest.param("space_to_batch", space_to_batch_geometry, *case, id=f"space_to_batch-{name}")
    for name, case in SPACE_TO_BATCH_CASES.items()
]


@pytest.mark.parametrize(("operation", "checked", "shape", "block", "begin", "end"), CASES)
def test_every_variant_moves_every_bit_where_it_belongs(operation, checked, shape, block, begin, end):
    geometry = checked(shape, (1, *block), (0, *begin), (0, *end))
    for dtype in DTYPES.values():
        data = random_bits(shape, dtype)
        served = ["auto"]
        check(operation, geometry, data, "auto")
        for variant in variants(operation):
            try:
                check(operation, geometry, data, variant)
            except Unsupported as refusal:
                assert str(refusal).startswith(
                    f"{operation}: {variant} " if variant != "staged" else f"{operation}: staged"
                )
            else:
                served.append(variant)
        assert len(served) > 1
