"""Blocks taken at positions of their own: the definition, its laws, and both kernels, on the NumPy path and alone."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import definition
import numpy as np
import pytest
from cases import (
    FAR,
    assert_same_bits,
    garbage,
    values,
    window_of,
)
from cases import POSITIONS_CASES as CASES
from executors import Call, run

import gpufold
from bench import hostcuda
from gpufold import calls
from gpufold.calls import MODES
from gpufold.cpu import placing
from gpufold.gpu.plan import Operand
from gpufold.gpu.registry import choose

WINDOWS = ("none", "separable", "full")


# ---------------------------------------------------------------------------------------------
# The NumPy path


@pytest.mark.parametrize("mode", MODES)
def test_many_blocks_larger_than_the_array_are_taken_at_once(mode, monkeypatch):
    """They were taken one by one, where none fits into the array."""
    monkeypatch.delattr(placing, "_take_one_by_one")
    array, positions = values((2, 2, 5), np.float32), np.random.default_rng(0).integers(-4, 6, (3000, 2))
    got = gpufold.take_blocks(array, positions, (3, 2), mode=mode)
    assert_same_bits(got, definition.take_blocks(array, positions, (3, 2), mode=mode))


@pytest.mark.parametrize("dtype", ["U3", "S3", ">f4", ">i2"])
@pytest.mark.parametrize("small", [True, False], ids=["by rows", "one by one"])
@pytest.mark.parametrize("mode", MODES)
def test_strings_and_foreign_byte_orders_move(dtype, mode, small, monkeypatch):
    monkeypatch.setattr(placing, "_are_small", lambda blocks, rank: small)
    array = np.arange(20).reshape(4, 5).astype(dtype)
    want = definition.take_blocks(array, [(-1, 3), (2, 2)], (2, 3), mode=mode)
    assert_same_bits(gpufold.take_blocks(array, [(-1, 3), (2, 2)], (2, 3), mode=mode), want)


def test_nothing_to_take():
    assert gpufold.take_blocks(np.ones((3, 4)), np.empty((0, 2), int), 2).shape == (0, 2, 2)
    assert gpufold.take_blocks(np.ones((0, 3, 4)), [(0, 0)], 2, mode="edge").shape == (1, 0, 2, 2)
    out = garbage((1, 2, 2), np.dtype(np.float32))
    assert not gpufold.take_blocks(np.ones((0, 4), np.float32), [(0, 0)], 2, out=out).any()


# ---------------------------------------------------------------------------------------------
# Laws


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_adjoint_to_adding_blocks(case, kind):
    """<take(x), y> = <x, add(y)>, in integers, which are exact."""
    rng = np.random.default_rng(0)
    array, blocks = (rng.integers(-9, 10, shape).astype(float) for shape in (case.shape, case.blocks_shape))
    window = window_of(kind, case.block, np.float64)
    if window is not None:
        window = tuple(map(np.rint, window)) if isinstance(window, tuple) else np.rint(8 * window)
    left = (gpufold.take_blocks(array, case.positions, case.block, window=window) * blocks).sum()
    right = (array * gpufold.add_blocks_(np.zeros(case.shape), blocks, case.positions, window=window)).sum()
    assert left == right


# ---------------------------------------------------------------------------------------------
# The kernels, run on the CPU


@pytest.mark.hostcuda
def test_an_array_without_elements_gives_zeros():
    _, arrays = run(Call("take_blocks", np.ones((0, 5), np.float32), (np.array([(0, 0), (-1, 2)]), (3, 4))), "direct")
    assert not arrays.result.any()


@pytest.mark.hostcuda
@pytest.mark.parametrize("kind", ["separable", "full"])
def test_no_weight_counts_outside_of_the_array(kind):
    weights = np.array([np.nan, np.inf, -1.0], np.float32)
    window = (weights, weights[::-1]) if kind == "separable" else np.outer(weights, weights)
    array, positions = values((5, 6), np.float32), np.array([(-1, 2), (3, 4), (2, -2), (9, 9), (1, 1)])
    call = Call("take_blocks", array, (positions, (3, 3)), {"window": window})
    with np.errstate(all="ignore"):
        assert_same_bits(run(call, "direct")[1].result, call.on(array))


@pytest.mark.hostcuda
@pytest.mark.nvrtc
def test_what_lies_outside_is_not_loaded_and_planes_share_positions():
    case = replace(CASES[11], lead=(8,))
    call = calls.take_blocks(np.empty(case.shape, np.float32), case.positions, case.block, variant="direct")
    plan = choose(call, Operand.contiguous(case.shape), Operand.contiguous(case.blocks_shape))
    assert (dict(plan.defines)["PLANES"], dict(plan.defines)["ELEMENTS"]) == ("8", "1")
    blocks = np.empty(case.blocks_shape, np.float32)
    far = np.full_like(case.positions, FAR - 1)
    moved = hostcuda.work(plan, values(case.shape, np.float32), blocks, None, far).counters
    assert moved.loads.bytes == 2 * 8 * prod((40, 8, 8)), "positions alone, one for all planes"
    assert moved.stores.bytes == blocks.nbytes


@pytest.mark.hostcuda
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_planes_of_which_no_thread_gets_an_equal_share(dtype):
    """Seventeen: some threads lack one."""
    case = replace(CASES[11], lead=(17,))
    call = Call("take_blocks", values(case.shape, dtype), (case.positions, case.block))
    plan, arrays = run(call, "direct", executor="observed")
    assert dict(plan.defines)["ALL_PLANES"] == "0"
    assert_same_bits(arrays.result, call.on(call.data))
