"""Blocks added and taken at positions of their own, on the NumPy path and by the kernels."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from math import prod

import definition
import numpy as np
import pytest
from cases import (
    FAR,
    INEXACT,
    assert_same_bits,
    garbage,
    values,
    window_of,
)
from cases import POSITIONS_CASES as CASES
from executors import Call, in_layout, operand, run

import gpufold
from bench import hostcuda
from gpufold import calls
from gpufold.calls import MODES
from gpufold.cpu import placing, tiles
from gpufold.gpu import parameters
from gpufold.gpu.plan import Operand
from gpufold.gpu.registry import choose


def problem(case, dtype, seed=0):
    return values(case.shape, dtype, seed), values(case.blocks_shape, dtype, seed + 1), case.positions


# ---------------------------------------------------------------------------------------------
# The NumPy path


@pytest.mark.parametrize("layout", range(8))
def test_a_new_array_or_out_has_the_sums_and_the_array_stays_as_it_is(layout):
    rng, case = random.Random(layout), CASES[layout]
    array, blocks, positions = problem(case, np.dtype(np.float32))
    want = definition.add_blocks(array, blocks, positions)
    given, out = in_layout(rng, array), in_layout(rng, values(case.shape, np.float32, 5))
    assert_same_bits(gpufold.add_blocks(given, blocks, positions), want)
    assert gpufold.add_blocks(given, blocks, positions, out=out) is out
    assert_same_bits(out, want)
    assert_same_bits(given, array)
    assert gpufold.add_blocks(given, blocks, positions, out=given) is given
    assert_same_bits(given, want)


@pytest.mark.parametrize("dtype", INEXACT, ids=str)
def test_what_falls_outside_leaves_negative_zeros_as_they_are(dtype):
    out, blocks = -np.zeros((4, 5), dtype), -np.zeros((40, 3, 3), dtype)
    gpufold.add_blocks_(out, blocks, [(-2, 0), (2, 4)] * 20)
    assert_same_bits(out, -np.zeros((4, 5), dtype))


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("small", [True, False], ids=["by index", "sliced"])
def test_positions_are_looked_for_in_few_of_many_tiles(small, lead, monkeypatch):
    """Each of many tiles once looked at all of the positions."""
    seen, add_to_tile = [], placing._add_to_tile
    monkeypatch.setattr(placing, "_are_small", lambda blocks, rank: small)
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 400)
    monkeypatch.setattr(placing, "_add_to_tile", lambda *given: seen.append(len(given[-1][0])) or add_to_tile(*given))
    rng = np.random.default_rng(0)
    out, blocks = values((*lead, 80, 70), np.float16), values((400, *lead, 2, 3), np.float16, 1)
    positions = rng.integers(-2, 82, (400, 2)).clip(None, (81, 71))
    want = definition.add_blocks(out, blocks, positions)
    assert_same_bits(gpufold.add_blocks_(out, blocks, positions), want)
    assert len(seen) > 8
    assert sum(seen) <= 1.5 * 400 * (lead[0] if lead else 1)


LAYOUTS = {
    "backwards": lambda array, room, dtype: array[::-1],
    "backwards along every axis": lambda array, room, dtype: array[::-1, ::-1],
    "every other": lambda array, room, dtype: array[::2, ::-2],
    "transposed": lambda array, room, dtype: array.T,
    "a field of packed records": lambda array, room, dtype: np.ndarray((1000, 1000), dtype, room, 1, (7000, 7)),
    "an odd number of bytes from there": lambda array, room, dtype: np.ndarray((1000, 999), dtype, room, 3, (8000, 8)),
}
"""Views of an array of every eighth byte of a room, or of the room itself."""


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_blocks_are_added_and_taken_in_any_layout_without_a_copy_of_the_array(layout, dtype):
    """All of a reversed view was once copied for a few small blocks."""
    room = np.zeros((1000, 1000, 8), np.uint8)
    array = LAYOUTS[layout](room.view(dtype)[..., 0], room, dtype)
    rng = np.random.default_rng(1)
    array[...] = rng.integers(-9, 9, array.shape)
    positions = rng.integers(-2, min(array.shape), (100, 2))
    blocks = rng.integers(-9, 9, (100, 3, 3)).astype(array.dtype)
    plain = np.ascontiguousarray(array)
    gpufold.take_blocks(plain, positions, (3, 3))  # what is imported at a first call
    tracemalloc.start()
    try:
        taken = gpufold.take_blocks(array, positions, (3, 3))
        near = gpufold.take_blocks(array, positions, (3, 3), mode="edge")
        _, take_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        gpufold.add_blocks_(array, blocks, positions)
        _, add_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert_same_bits(taken, definition.take_blocks(plain, positions, (3, 3)))
    assert_same_bits(near, definition.take_blocks(plain, positions, (3, 3), mode="edge"))
    assert_same_bits(np.ascontiguousarray(array), definition.add_blocks(plain, blocks, positions))
    assert take_peak < 200_000
    assert add_peak < 8 * tiles.TILE_ELEMENTS + 200_000


def test_few_blocks_of_many_planes_are_not_added_plane_by_plane(monkeypatch):
    """Blocks of one column each were once taken for small, however many planes they have."""
    out, blocks = np.zeros((20_000, 8, 3), np.float32), np.ones((100, 20_000, 4, 1), np.float32)
    monkeypatch.delattr(placing, "_scatter")
    gpufold.add_blocks_(out, blocks, [(1, 1)] * 100)
    assert (out[:, 1:5, 1] == 100).all()
    assert (gpufold.take_blocks(out, [(1, 1)] * 100, (4, 1)) == 100).all()


def test_nothing_to_add_leaves_everything():
    out = np.ones((3, 4))
    for blocks, positions in (
        (np.ones((0, 2, 2)), np.empty((0, 2), int)),
        (np.ones((2, 0, 2)), [(0, 0), (1, 1)]),
        (np.ones((1, 2, 2)), [(9, 9)]),
    ):
        assert gpufold.add_blocks_(out, blocks, positions) is out
        assert (out == 1).all()
    assert gpufold.add_blocks_(np.ones((0, 4)), np.ones((1, 2, 2)), [(0, 0)]).shape == (0, 4)


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


@pytest.mark.parametrize("kind", ["none", "separable", "full"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_taking_blocks_is_adjoint_to_adding_them(case, kind):
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
@pytest.mark.parametrize("variant", ["gather", "lists"])
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

    def scratch_of(plan):
        scratch = np.full(plan.scratch_bytes, before, np.uint8)
        scratch[: plan.zeroed_bytes] = 0
        return scratch

    monkeypatch.setattr(hostcuda.execute, "scratch_of", scratch_of)
    monkeypatch.setattr(parameters, "INT32_MAX", 1 << 21)
    size, count = (3, 70), 300
    positions = np.random.default_rng(0).integers([0, 0], size, (count, 2))
    positions[25:] = [-side - 7 for side in block]
    blocks = np.broadcast_to(values((count, 1, 1), np.float32), (count, *block))
    out = values(size, np.float32, 1)
    want = gpufold.add_blocks_(out.copy(), blocks, positions)
    plan, arrays = run(Call("add_blocks", out, (blocks, positions)), "lists")
    assert (dict(plan.defines)["OFFSET"], dict(plan.defines)["NOTE"]) == ("int", note)
    assert_same_bits(arrays.result, want)


@pytest.mark.hostcuda
@pytest.mark.nvrtc
@pytest.mark.parametrize("variant", ["gather", "lists"])
def test_what_no_block_covers_is_left_alone(variant):
    out, blocks = np.zeros((64, 640), np.float32), np.ones((2, 4, 5), np.float32)
    positions = np.array([(3, 7), (5, 9)])
    plan = choose(calls.add_blocks(out, blocks, positions, variant=variant), operand(blocks), operand(out))
    moved = hostcuda.work(plan, blocks, out, None, positions).counters
    assert moved.stores.bytes == 4 * np.count_nonzero(out) == 4 * (2 * 4 * 5 - 2 * 3)
    assert out.sum() == blocks.sum()


@pytest.mark.hostcuda
def test_an_array_without_elements_gives_zeros():
    _, arrays = run(Call("take_blocks", np.ones((0, 5), np.float32), (np.array([(0, 0), (-1, 2)]), (3, 4))), "direct")
    assert not arrays.result.any()


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
