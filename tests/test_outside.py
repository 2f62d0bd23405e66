"""What blocks take beyond the end of an array is what `numpy.pad` has there, in each mode, on arrays of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_same_bits, values
from test_coverage import padded, random_case
from test_kinds import KINDS, every_kind

import gpufold
from gpufold.calls import MODES

PADDED = [mode for mode in MODES if mode != "constant"]


@every_kind
@pytest.mark.parametrize("mode", MODES)
def test_beyond_the_end_is_what_a_padded_array_has(kind, mode):
    it, lasts = KINDS[kind], set()
    for seed in range(12):
        rng, lead, size, block, strides = random_case(seed)
        dtype = rng.choice(["float32", "int8", "complex64"])
        array = values((*lead, *size), dtype, seed)
        window = None if dtype == "int8" else values(block, "float32", seed + 1)
        for last in ("drop", "over") if all(map(int.__le__, block, size)) else ("over",):
            whole = padded(array, size, block, strides, mode) if last == "over" else array
            lasts.add((last, whole.shape == array.shape))
            want = gpufold.array_to_blocks(whole, block, strides=strides, window=window)
            if mode == "constant" and last == "over":  # zero, whatever the weight
                ones = padded(np.ones(array.shape, bool), size, block, strides, mode)
                want[~gpufold.array_to_blocks(ones, block, strides=strides)] = 0
            weights = window if window is None or kind == "dask" else it.to(window)
            got = gpufold.array_to_blocks(it.to(array), block, strides=strides, window=weights, last=last, mode=mode)
            assert_same_bits(np.ascontiguousarray(it.back(got)), want, f"seed {seed}, {last}")
    assert len(lasts) == 3, "drop, and over with and without blocks beyond the end"


def test_a_result_is_written_into_out_and_an_array_is_described():
    array = np.arange(5.0)
    out = np.full((3, 2), np.nan)
    assert gpufold.array_to_blocks(array, (2,), strides=2, last="over", mode="symmetric", out=out) is out
    np.testing.assert_array_equal(out, [[0, 1], [2, 3], [4, 4]])
    options = {"strides": 2, "last": "over", "mode": "wrap"}
    assert gpufold.explain("array_to_blocks", array, (2,), **options).plan == (
        gpufold.explain("array_to_blocks", np.arange(6.0), (2,), strides=2).plan
    )


@pytest.mark.peer("torch")
@pytest.mark.parametrize("mode", PADDED)
def test_tensors_have_gradients_and_are_compiled(mode):
    import torch

    def taken(tensor):
        return gpufold.array_to_blocks(tensor, (3, 4), strides=(2, 3), last="over", mode=mode)

    tensor = torch.from_numpy(values((2, 4, 5), "float64")).requires_grad_()
    torch.autograd.gradcheck(taken, tensor)
    torch._dynamo.reset()
    assert_same_bits(
        torch.compile(taken, backend="eager", fullgraph=True)(tensor).detach().numpy(), taken(tensor).detach().numpy()
    )


@pytest.mark.peer("jax")
@pytest.mark.parametrize("mode", PADDED)
def test_jax_arrays_have_gradients_and_are_traced(mode):
    import jax
    from jax.test_util import check_grads

    def taken(array):
        return gpufold.array_to_blocks(array, (3, 4), strides=(2, 3), last="over", mode=mode)

    array = jax.numpy.asarray(values((2, 4, 5), "float32"))
    check_grads(lambda *given: taken(jax.numpy.asarray(*given)), (array,), 2, rtol=1e-2, atol=1e-2)
    assert_same_bits(np.asarray(jax.jit(jax.vmap(taken))(array[None])), np.asarray(taken(array[None])))
