"""What gpufold.jax does on a CUDA device, without one: JAX's program for a GPU on the fake CuPy, hostcuda/fake_cupy.py.

XLA's buffers on the CPU pass for a device's, by the interfaces that a callback for a GPU has.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_same_bits
from fronts import (
    ADDED,
    DEVICE,
    EVERY,
    HANDLE,
    in_dtypes,
    launched_on_fake_cupy,
    named,
    operation_of,
    synchronize,
    x64,
)
from jax.interpreters import mlir
from test_jax import SEVEN, traced

import gpufold
from bench.hostcuda import fake_cupy
from gpufold.jax import primitive

pytestmark = [pytest.mark.peer("cupy"), pytest.mark.hostcuda]


class Buffer:
    """A buffer of XLA's on a GPU: what is asked of it is where it is."""

    def __init__(self, buffer):
        self.array = np.asarray(buffer)
        fake_cupy.lend(self.array.ctypes.data, self.array.nbytes or 1, DEVICE)

    def __dlpack_device__(self):
        return 2, DEVICE

    @property
    def __cuda_array_interface__(self):
        assert self.array.dtype.name != "bfloat16", "the interface has no such elements"
        return {"shape": self.array.shape, "data": (self.array.ctypes.data, False), "version": 3}


@pytest.fixture
def launches(monkeypatch):
    """The launches of JAX's programs."""
    on_gpu = primitive.on_gpu

    def callback(call, _, result, *operands):
        buffers = [*map(Buffer, (result, *operands))]
        assert all(each.array.flags.c_contiguous for each in buffers)
        on_gpu(call, SimpleNamespace(stream=HANDLE), *buffers)
        assert fake_cupy.get_device() == 0, "the thread's device is what it was"
        synchronize()

    def lowered_for(compute):
        mlir.register_lowering(primitive.call_p, mlir.lower_fun(compute, multiple_results=False), platform="cpu")
        jax.clear_caches()

    monkeypatch.setattr(primitive, "on_gpu", callback)
    with launched_on_fake_cupy(monkeypatch) as seen:
        lowered_for(primitive._for_gpu)
        with x64(True):
            yield seen
        lowered_for(primitive._for_cpu)


@pytest.mark.some(9, all=5)
@in_dtypes(SEVEN)
def test_results_have_the_bits_of_the_numpy_path(launches, operation, dtype):
    arrays = operation.arrays(dtype)
    given = traced(arrays)
    assert_same_bits(jax.jit(operation)(*given), operation(*arrays))
    assert launches
    assert {each[:2] for each in launches} == {(DEVICE, HANDLE)}
    for array, before in zip(given, arrays, strict=True):
        assert_same_bits(array, before)


@pytest.mark.some(9, all=5)
@named(EVERY)
def test_gradients_and_batches_are_launched_too(launches, operation):
    arrays = operation.arrays("float32", lead=(2,))
    given = traced(arrays)
    assert_same_bits(jax.vmap(operation)(*given), np.stack([operation(*row) for row in zip(*arrays, strict=True)]))
    before = len(launches)
    numbers = tuple(range(operation.differentiable))
    gradients = jax.grad(lambda *row: (operation(*row) ** 2).sum(), numbers)(*(each[0] for each in given))
    assert all(np.isfinite(each).all() for each in gradients)
    assert len(launches) > before


def test_positions_of_32_bits_are_read_as_of_64(launches):
    operation = operation_of("take_blocks-edge")
    arrays = operation.arrays("float32")
    with x64(False):
        assert_same_bits(operation(*traced(arrays)), operation(*arrays))


def test_nothing_is_launched_where_there_is_nothing_to_do(launches):
    out, blocks = jnp.ones(ADDED["array"]), jnp.zeros((0, *ADDED["blocks"][1:]))
    assert_same_bits(gpufold.jax.add_blocks(out, blocks, jnp.zeros((0, 2), int)), np.ones(ADDED["array"]))
    assert gpufold.jax.take_blocks(out, jnp.zeros((0, 2), int), (2, 2)).shape == (0, 2, 2, 2)
    assert not launches


def test_a_variant_is_taken_by_its_name(launches):
    columns = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    got = gpufold.jax.col2im(jnp.asarray(columns), (4, 4), (2, 2), variant="gather")
    assert_same_bits(got, gpufold.col2im(columns, (4, 4), (2, 2)))
    with pytest.raises(ValueError, match="col2im: variant must be one of auto, gather"):
        gpufold.jax.col2im(jnp.asarray(columns), (4, 4), (2, 2), variant="fastest")
