"""What the tests of the kernels share: arrays of every bit pattern and layout, and a run on the CPU."""

from __future__ import annotations

from math import prod

import numpy as np

from bench import hostcuda
from gpufold.calls import Call
from gpufold.gpu import registry
from gpufold.gpu.plan import H200, Device, Operand

ONE_THREAD = Device("a tiny one", (9, 0), multiprocessors=1, threads_per_multiprocessor=1)
"""So small that its threads serve as many planes and taps as they can, as for large arrays on a large device."""

DEVICES = (H200, ONE_THREAD)

DTYPES = ("uint8", "float16", "float32", "complex64", "complex128")
"""One of each size: the kernels know no more of an element."""


def random_bits(shape, dtype, seed=0):
    """Elements of every bit pattern, so NaN with payloads, infinities, -0.0 and denormals among them."""
    size = prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape)


def operand(array):
    """Describe an array whose memory starts on a multiple of 256 bytes, as a GPU's allocations do."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Operand(array.shape, strides, (offset & -offset) or 256)


def in_layout(rng, array):
    """The same elements at other places: another order of axes, gaps, or backwards."""
    kind = rng.randrange(4)
    if kind == 0:
        order = rng.sample(range(array.ndim), array.ndim)
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    if kind == 1:
        gaps = np.empty([extent * rng.choice((1, 2)) for extent in array.shape], array.dtype)
        gaps = gaps[tuple(slice(None, None, n // m) for n, m in zip(gaps.shape, array.shape, strict=True))]
        gaps[...] = array
        return gaps
    if kind == 2:
        backwards = tuple(slice(None, None, rng.choice((1, -1))) for _ in array.shape)
        return np.ascontiguousarray(array[backwards])[backwards]
    return array


def plan_for(operation, geometry, data, result, variant, device=H200):
    return registry.choose(
        Call(operation, geometry, data.dtype.name, variant=variant), operand(data), operand(result), device
    )


def check(operation, geometry, data, want, variant, device=H200, result=None, **run):
    """Run a variant and compare every bit with `want`; where it is Unsupported that is raised. Gives its plan.

    `run` goes to hostcuda.run: the mode and the seed.
    """
    if result is None:
        result = np.empty(want.shape, want.dtype)
    plan = plan_for(operation, geometry, data, result, variant, device)
    hostcuda.run(plan, data, result, **run)
    got, expected = (np.ascontiguousarray(array).view(f"V{data.itemsize}") for array in (result, want))
    wrong = np.argwhere(got != expected)
    assert not len(wrong), f"{len(wrong)} of {got.size} wrong, first at {wrong[0]}: {plan}\n{geometry}"
    return plan
