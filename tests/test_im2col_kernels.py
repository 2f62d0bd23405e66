"""The im2col kernels, run on the CPU: every variant takes every pixel from where the formula says, bit for bit."""

from __future__ import annotations

import random
from math import prod

import hostcuda
import numpy as np
import numpy.typing as npt
import pytest

from gpufold import plan as planning
from gpufold.geometry import SlidingGeometry, image_geometry
from gpufold.plan import Device, Operand, Plan, Unsupported, choose, variants

Array = npt.NDArray[np.generic]

ONE_MULTIPROCESSOR = Device("a small one", (9, 0), multiprocessors=1, threads_per_multiprocessor=32)
"""So small that threads take several planes each, as they do on a large device for large arrays."""

DTYPES = ("uint8", "float16", "float32", "complex64", "complex128")


def im2col_by_definition(image: Array, geometry: SlidingGeometry) -> Array:
    """Take tap k of block l from pixel l*stride + k*dilation - pad_begin, zero outside the image."""
    shape = geometry.split_columns_shape
    batch, channel, *index = np.indices(shape)
    taps, blocks = index[: len(geometry.axes)], index[len(geometry.axes) :]
    inside = np.ones(shape, bool)
    pixels = []
    for axis, tap, block in zip(geometry.axes, taps, blocks, strict=True):
        pixel = block * axis.stride + tap * axis.dilation - axis.pad_begin
        inside &= (pixel >= 0) & (pixel < axis.size)
        pixels.append(pixel.clip(0, axis.size - 1))
    images = image.reshape(*shape[:2], *geometry.image_size)
    return np.where(inside, images[(batch, channel, *pixels)], image.dtype.type(0)).reshape(geometry.columns_shape)


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


def check(geometry: SlidingGeometry, image: Array, variant: str, device: Device = ONE_MULTIPROCESSOR) -> Plan:
    """Run one variant and compare every byte; Unsupported passes through."""
    columns = np.empty(geometry.columns_shape, image.dtype)
    plan = choose(
        "im2col", geometry, image.dtype.name, operand(image), Operand.contiguous(columns.shape), device, variant
    )
    hostcuda.run(plan, image, columns)
    wanted = im2col_by_definition(image, geometry)
    bits = f"V{image.itemsize}"
    different = np.argwhere(columns.view(bits) != wanted.view(bits))
    assert not len(different), (
        f"{len(different)} differ, the first at {different[0]}: {geometry} {plan} {plan.parameters!r}"
    )
    return plan


# Name: image shape, kernel, strides, dilations, pads begin, pads end.
CASES = {
    "3x3": ((2, 3, 7, 9), (3, 3), 1, 1, 1, 1),
    "many-channels-small-map": ((2, 37, 7, 7), (3, 3), 1, 1, 1, 1),
    "rectangular-dilated-asymmetric": ((2, 3, 11, 14), (3, 2), (2, 1), (2, 3), (1, 0), (3, 2)),
    "unbatched": ((5, 6, 8), (2, 3), 1, 1, 0, 1),
    "strides-leave-pixels-out": ((1, 2, 13, 17), (2, 2), 5, 1, 0, 0),
    "dilation-0": ((1, 2, 6, 7), (3, 2), (1, 2), 0, 1, 0),
    "dilated-stride-2": ((1, 3, 16, 16), (2, 2), 2, 2, 0, 0),
    "patches-16": ((1, 3, 32, 80), (16, 16), 16, 1, 0, 0),
    "patches-16-stride-8-padded": ((1, 2, 40, 44), (16, 16), 8, 1, (3, 5), (2, 0)),
    "patches-14-odd-rows": ((2, 1, 29, 43), (14, 14), 14, 1, 0, 0),
    "1d-400-160": ((2, 2, 2000), (400,), 160, 1, 200, 200),
    "1d-kernel-37-stride-9-dilation-2": ((1, 3, 300), (37,), 9, 2, 4, 7),
    "1d-many-blocks": ((1, 5, 1000), (3,), 1, 1, 1, 1),
    "kernel-1x1": ((3, 4, 6, 8), (1, 1), 1, 1, 0, 0),
    "kernel-3x1-keeps-rows": ((2, 3, 6, 8), (3, 1), 1, 1, 1, 0),
    "kernel-1-stride-3": ((2, 3, 9, 11), (1, 1), 3, 1, 0, 0),
    "kernel-1-padded": ((2, 3, 4, 8), (1, 1), 1, 1, (0, 4), (1, 4)),
    "one-block": ((2, 3, 3, 5), (3, 5), 1, 1, 0, 0),
    "pads-wider-than-the-image": ((1, 2, 2, 3), (2, 2), 1, 1, (5, 7), (6, 4)),
    "one-pixel": ((1, 1, 1), (1,), 1, 1, 0, 0),
    "3d": ((2, 3, 5, 6, 7), (3, 2, 3), (1, 2, 1), (1, 1, 2), (1, 0, 2), (0, 1, 1)),
    "3d-stride-is-kernel": ((1, 2, 4, 6, 24), (2, 3, 8), (2, 3, 8), 1, 0, 0),
    "3d-unit-axis-outside": ((2, 3, 4, 6, 8), (1, 2, 2), (1, 2, 2), 1, (2, 0, 0), (1, 0, 0)),
    "4d": ((1, 2, 3, 4, 3, 5), (2, 1, 2, 3), (1, 2, 1, 2), 1, (0, 1, 1, 0), (1, 0, 0, 2)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_variant_takes_every_bit_from_its_pixel(case):
    shape, *arguments = case
    geometry = image_geometry(shape, *arguments)
    for dtype in DTYPES:
        image = random_bits(shape, dtype)
        check(geometry, image, "auto")
        for variant in variants("im2col"):
            try:
                check(geometry, image, variant)
            except Unsupported as refusal:
                assert variant == "staged" and geometry.kernel_size[-1] == 1, refusal
