"""Blocks with their taps last, and blocks at positions: what is special of their kernels, run on the CPU."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from cases import BLOCKS_CASES, FAR, POSITIONS_CASES, assert_same_bits, values, window_of
from executors import Arrays, Call, operand, run

import gpufold
from bench import hostcuda
from gpufold import calls
from gpufold.gpu import parameters
from gpufold.gpu.plan import Operand
from gpufold.gpu.registry import choose

# ---- Blocks with their taps last


@pytest.mark.hostcuda
@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
def test_leading_axes_apart_have_no_weights(reduction):
    """They are axes of one tap to the kernels, where batch and channels are too few to count them."""
    (case,) = (case for case in BLOCKS_CASES if case.name == "three-leading")
    blocks, array = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
    blocks = np.ascontiguousarray(blocks.swapaxes(0, 2)).swapaxes(0, 2)
    window = window_of("separable", case.block, np.float32)
    fill_value = None if reduction == "sum" else 0
    options = {"strides": case.strides, "reduction": reduction, "window": window, "fill_value": fill_value}
    folds = Call("blocks_to_array", blocks, (case.shape, case.block), options)
    for variant in ("gather", "gather_pixels"):
        plan, arrays = run(folds, variant)
        assert (dict(plan.defines)["WINDOW_AXES"], dict(plan.defines)["KERNEL"]) == ("2", "1,3,4")
        assert_same_bits(arrays.result, folds.on(blocks), variant)
    taken = Call("array_to_blocks", array, (case.block,), {"strides": case.strides, "window": window})
    _, arrays = run(taken, "taps")
    assert_same_bits(arrays.result, taken.on(array))


@pytest.mark.hostcuda
@pytest.mark.parametrize("executor", ["plain", pytest.param("sanitized", marks=pytest.mark.all)])
def test_weights_may_lie_anywhere(executor):
    """Pixels that get whole words of taps get whole words of weights too, where these are aligned."""
    case = BLOCKS_CASES[7]
    blocks, weights = values(case.blocks_shape, np.float32), values((17,), np.float32, 1)
    for window in (weights[:16].reshape(4, 4), weights[1:].reshape(4, 4), (weights[4:8], weights[5:9])):
        options = {"reduction": "mean", "window": window, "fill_value": 0}
        call = Call("blocks_to_array", blocks, (case.shape, case.block), {"strides": case.strides} | options)
        plan, arrays = run(call, "gather_pixels", executor=executor)
        assert plan.symbol == "col2im_gather_words"
        assert_same_bits(arrays.result, call.on(blocks))


# ---- Blocks at positions


@pytest.mark.hostcuda
@pytest.mark.parametrize("variant", ["output_driven", "binned"])
def test_blocks_beside_a_pixel_leave_the_sign_of_its_weight(variant):
    """A thread has pixels of several rows; of a block that covers some of them, nothing is added to the others."""
    zeros, positions = np.full((8, 8), -0.0, np.float32), np.array([[0, 0], [2, 1], [5, 0]])
    out, weight, window = zeros.copy(), zeros.copy(), zeros[:3, :3].copy()
    ones, options = np.ones((3, 3, 3), np.float32), {"window": window, "weight_out": weight}
    _, arrays = run(Call("add_blocks", out, (ones, positions), options), variant)
    assert_same_bits(arrays.result, zeros)
    assert_same_bits(arrays.weight_out, zeros)


@pytest.mark.hostcuda
@pytest.mark.parametrize(("block", "note"), [((30, 30), "unsigned"), ((70, 70), "unsigned long long")])
@pytest.mark.parametrize("before", [0, 0x5A])
def test_a_tile_gets_what_was_noted_of_it_in_this_call(block, note, before, monkeypatch):
    """Whatever the scratch memory holds, and where notes have more bits than offsets."""
    monkeypatch.setattr(hostcuda.execute, "POISON", before)
    monkeypatch.setattr(parameters, "INT32_MAX", 1 << 21)
    size, count = (3, 70), 300
    positions = np.random.default_rng(0).integers([0, 0], size, (count, 2))
    positions[25:] = [-side - 7 for side in block]
    blocks = np.broadcast_to(values((count, 1, 1), np.float32), (count, *block))
    out = values(size, np.float32, 1)
    want = gpufold.add_blocks_(out.copy(), blocks, positions)
    plan, arrays = run(Call("add_blocks", out, (blocks, positions)), "binned")
    assert (dict(plan.defines)["OFFSET"], dict(plan.defines)["SLOT"]) == ("int", note)
    assert_same_bits(arrays.result, want)


@pytest.mark.hostcuda
@pytest.mark.nvrtc
@pytest.mark.parametrize("variant", ["output_driven", "binned"])
def test_what_no_block_covers_is_left_alone(variant):
    out, blocks = np.zeros((64, 640), np.float32), np.ones((2, 4, 5), np.float32)
    positions = np.array([(3, 7), (5, 9)])
    plan = choose(calls.add_blocks(out, blocks, positions, variant=variant), operand(blocks), operand(out))
    moved = hostcuda.work(plan, Arrays(blocks, out, None, positions))[-1]
    assert moved.stores.bytes == 4 * np.count_nonzero(out) == 4 * (2 * 4 * 5 - 2 * 3)
    assert out.sum() == blocks.sum()


@pytest.mark.hostcuda
@pytest.mark.nvrtc
def test_what_lies_outside_is_not_loaded_and_planes_share_positions():
    case = replace(POSITIONS_CASES[11], lead=(8,))
    call = calls.take_blocks(np.empty(case.shape, np.float32), case.positions, case.block, variant="per_element")
    plan = choose(call, Operand.contiguous(case.shape), Operand.contiguous(case.blocks_shape))
    assert (dict(plan.defines)["PLANES"], dict(plan.defines)["ELEMENTS"]) == ("4", "1")
    blocks = np.empty(case.blocks_shape, np.float32)
    far = np.full_like(case.positions, FAR - 1)
    moved = hostcuda.work(plan, Arrays(values(case.shape, np.float32), blocks, None, far))[-1]
    assert moved.loads.bytes == 2 * 2 * 8 * prod((40, 8, 8)), "positions alone, one for four planes"
    assert moved.stores.bytes == blocks.nbytes
