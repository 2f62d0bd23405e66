"""On a GPU: every variant gives the NumPy path's answer, in the current stream, and takes nothing but its result.

Deterministic variants give its bits. The tests that `make sanitize` runs have `sanitize` in their names.

In one process most of the time goes into compiling: `-n 14` of pytest-xdist divides it. Tests of many GB wait for each
other all the same, and one that leaves the device in error ends its process in its own name. Without a GPU,
tests/test_fake_cupy.py runs this file on the host build of the kernels.
"""

from __future__ import annotations

import ctypes
import gc
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import (
    AVERAGE_CASES,
    BLOCKS_CASES,
    DTYPES,
    POSITIONS_CASES,
    SPACE_CASES,
    Case,
    PositionsCase,
    SpaceCase,
    assert_same_bits,
    garbage,
    random_case,
    random_space_case,
    values,
    window_of,
)
from executors import ONE_THREAD, Call, arrays_of, blocks_calls, calls_of, plans_of
from numpy.lib.array_utils import byte_bounds
from processes import alone, end_where_the_device_is_dead
from test_kernels import ROWS, bound_of, drawn, drawn_call, expected, laid_out

import gpufold
from gpufold.calls import MODES, Fusion
from gpufold.calls import Call as Description
from gpufold.geometry import add_blocks_geometry
from gpufold.gpu import parameters
from gpufold.gpu.plan import H200, Operand
from gpufold.gpu.registry import candidates, choose, problem_of
from gpufold.gpu.sources import KERNELS
from gpufold.gpu.variants import tile_lists

GARBAGE = 0xA5
"""What every byte of an output holds before a call."""


SLIDING = Case("sliding", (9, 13), (3, 2), (2, 1), (1, 2), (1, 0), (0, 2), channels=5)

EVERY_OPERATION = (
    *calls_of(SLIDING, np.dtype(np.float32)),
    *calls_of(SpaceCase("space", (8, 3, 5, 6), (1, 1, 2, 2), (0, 0, 1, 0), (0, 0, 0, 2)), np.dtype(np.float32)),
    *blocks_calls((2, 3, 12, 40), (5, 6), (2, 3), np.dtype(np.float32)),
)


def weighted_calls():
    """Means, least squares and windows of every operation that takes them."""
    fold, unfold = calls_of(SLIDING, np.dtype(np.float32))
    taps = SLIDING.kernel_size
    mean = {"window": window_of("separable", taps, np.float32), "reduction": "mean", "fill_value": 0}
    yield replace(fold, options=fold.options | mean)
    yield replace(fold, options=fold.options | {"window": window_of("full", taps, np.float32)})
    yield replace(unfold, options=unfold.options | {"window": window_of("separable", taps, np.float32)})
    window = window_of("full", (5, 6), np.float32)
    yield from blocks_calls((3, 12, 40), (5, 6), 3, np.dtype(np.float32), window=window, reduction="least_squares")


EVERY_CALL = (*EVERY_OPERATION, *weighted_calls())
"""With and without weights."""


def name_of(call):
    """Say which operation a call is of, and what is fused into it."""
    window = call.options.get("window")
    kind = "" if window is None else "-separable" if isinstance(window, tuple) else "-full"
    reduction = call.options.get("reduction")
    return f"{call.operation}{kind}{'' if reduction is None else f'-{reduction}'}"


SHORT_CASES = (
    Case("planes", (7, 9), (3, 3), 1, 1, 1, 1, channels=5),
    Case("words", (6, 16), (3, 4), 2, 1, 1, 1, batch=1, channels=4),
    Case("rows-of-words", (4, 16), (3, 3), 1, 1, 1, 1, batch=1, channels=5),
    Case("staged-cells", (3, 5 * 40 + 2), (2, 7), (1, 5), 1, 1, 1, batch=1, channels=2),
    Case("phases", (1600,), (400,), 160, 1, 200, 200, batch=1, channels=1),
    Case("many-taps", (5, 9), (20, 18), 1, 1, (15, 13), (14, 14), batch=1, channels=1),
    SpaceCase("interleave", (8, 3, 5, 8), (1, 1, 2, 2), (0, 0, 1, 0), (0, 0, 0, 2)),
    SpaceCase("wide-block", (33, 2, 5), (1, 1, 33), (0, 0, 7), (0, 0, 3)),
    SpaceCase("channels-last", (8, 3, 5, 3), (1, 2, 2, 1), (0, 1, 0, 0), (0, 0, 1, 0)),
)
"""Few and small, yet they run every kernel: compute-sanitizer slows each many times."""


@pytest.fixture(autouse=True)
def _named_by_its_own_error(request):
    """End the process where a test leaves the device in error, before the next test has to answer for it."""
    yield
    if "cupy" in request.fixturenames:
        import cupy

        error = cupy.cuda.runtime.CUDARuntimeError
        end_where_the_device_is_dead(request, lambda: cupy.cuda.Device().synchronize(), error)


@pytest.fixture
def cupy():
    """CuPy, with nothing of another test under way or in the memory pool."""
    import cupy

    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy


@pytest.fixture
def most_of_the_memory(cupy):
    """Let no other test of many GB run at a time, whatever the number of processes, and leave nothing in the pool."""
    with alone("gpufold-tests-of-many-gigabytes"):
        yield
        cupy.cuda.Device().synchronize()
        cupy.get_default_memory_pool().free_all_blocks()


def captured(cupy, work):
    """Return a stream and a graph of what work queues on it, which is launched after.

    Allocating or waiting within is an error. The capture ends with the work, even by an error, or every later call
    would fail. As a function, it has ended when its caller lets go of an earlier stream and graph: CUDA does not say
    whether these may be destroyed while another stream captures.
    """
    gc.collect()
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        try:
            work()
        except BaseException:
            with suppress(cupy.cuda.runtime.CUDARuntimeError):  # the error that is under way says more
                stream.end_capture()
            raise
        return stream, stream.end_capture()


def served(call, data, out):
    """Run the variants that serve a call once, which may compile and wait for the device; yield their names."""
    for variant in ("auto", *gpufold.variants(call.operation)):
        with suppress(gpufold.Unsupported):
            call.on(data, out=out, variant=variant)
            yield variant


def spoil(array):
    """Fill the memory of a contiguous array with garbage, in the current stream."""
    array.data.memset_async(GARBAGE, array.nbytes)
    return array


def assert_answer(call, variant, got, want, data):
    """Same bits; where the order is open, within the bound of two sums of as many terms.

    Atomic additions in global memory take denormals for zero.
    """
    message = f"{variant}: {call}"
    if call.exact(variant):
        assert_same_bits(got, want, message)
    else:
        assert (got.shape, got.dtype) == (want.shape, want.dtype), message
        kind, taps = np.finfo(want.dtype), np.prod(call.arguments[1])
        bound = taps * (kind.eps * call.with_magnitudes().on(abs(data)) + kind.tiny)
        assert (abs(got - want) <= bound).all(), message


def check_variants(cupy, call, names=None):
    """Run the variants that serve a call into garbage, and compare; give their names."""
    want, data, weighted = call.on(call.data), cupy.asarray(call.data), call.with_window(cupy)
    served = []
    for variant in names or ("auto", *gpufold.variants(call.operation)):
        out = spoil(cupy.empty(want.shape, want.dtype))
        with suppress(gpufold.Unsupported):
            assert weighted.on(data, out=out, variant=variant) is out
            assert_answer(call, variant, cupy.asnumpy(out), want, call.data)
            served.append(variant)
    assert served[: not names] == ([] if names else ["auto"])
    assert_same_bits(cupy.asnumpy(data), call.data, "the input is as it was")
    return served


# ---------------------------------------------------------------------------------------------
# A smoke: every kernel function once

SMOKE_CASES = (
    *SHORT_CASES,
    Case("many-planes", (30, 31), (3, 3), channels=64),
    Case("many-planes-of-words", (32, 40), (4, 4), 4, channels=64),
)

HUNDREDS = PositionsCase("hundreds-in-a-tile", (9, 12), (3, 2), 300)
PLACED = POSITIONS_CASES[3], POSITIONS_CASES[9], HUNDREDS, POSITIONS_CASES[11], POSITIONS_CASES[14]
"""Blocks far outside, in crowded tiles, of several planes and of several leading axes."""

FUNCTIONS = sorted(
    name
    for path in KERNELS.glob("*.cu")
    for name in re.findall(r"__global__ [^(]*?(?:__launch_bounds__\(.*?\)\s*)?(\w+)\(", path.read_text())
)
"""The functions that are launched."""


def smoke_calls():
    """Few calls that run every kernel function, the cheapest dtype to compile first."""
    for dtype in map(np.dtype, (np.int32, np.float32, np.uint8)):
        for case in SMOKE_CASES:
            yield from calls_of(case, dtype)
        fold, _ = calls_of(SMOKE_CASES[-1], dtype)
        yield replace(fold, data=np.ascontiguousarray(fold.data.swapaxes(1, 2)).swapaxes(1, 2))
        yield from blocks_calls((2, 12, 40), (5, 6), 1, dtype)
        for case in PLACED:
            array = values(case.shape, dtype)
            yield Call("add_blocks", array, (values(case.blocks_shape, dtype, 1), case.positions))
            yield Call("take_blocks", array, (case.positions, case.block))
    yield Call("average", values((2, 9), np.float32), (np.arange(9, dtype=np.float32),))


@cache
def launches():
    """The calls that launch a function, each with a variant and the device to plan it for, by the function's name.

    The first one of each variant, and of those that list blocks another one with crowded tiles.
    """
    found = {name: {} for name in FUNCTIONS}
    for call, device in product(smoke_calls(), (H200, ONE_THREAD)):
        for variant in gpufold.variants(call.operation):
            with suppress(gpufold.Unsupported):
                for plan in plans_of(call, variant, arrays_of(call), device):
                    crowded = bool(plan.prologue) and call.data.shape == PLACED[1].shape
                    for symbol in symbols_of(plan):
                        found[symbol].setdefault((variant, crowded), (call, variant, device))
    return {name: tuple(calls.values()) for name, calls in found.items()}


def symbols_of(plan):
    return [step.symbol for step in (*plan.prologue, plan)]


def test_the_smoke_runs_every_kernel_function():
    """Needs no GPU."""
    assert FUNCTIONS
    assert all(launches().values())
    assert all(len(launches()[name]) == 2 for name in FUNCTIONS if name.startswith(("bins_", "add_blocks_lists")))


def test_tiles_are_crowded_by_more_blocks_than_are_noted_and_than_are_compared():
    """Needs no GPU: what compute-sanitizer sees lists no block, lists and compares them, and lists and marks them."""
    most = set()
    for case in PLACED:
        blocks, array = map(Operand.contiguous, (case.blocks_shape, case.shape))
        geometry = add_blocks_geometry(case.shape, case.blocks_shape, case.positions.shape)
        call = Description("add_blocks", geometry, "int32", Fusion("sum", "none", True))
        for share in tile_lists.shares_of(problem_of(call, blocks, array)):
            side, along = (each[-len(case.block) :] for each in (share.bins.side, share.bins.along))
            for tile in np.ndindex(along):
                first = np.multiply(tile, side)
                meets = (case.positions < first + side) & (case.positions + case.block > first)
                most.add(int(meets.all(axis=1).sum()))
    assert any(0 < count <= tile_lists.NOTED for count in most)
    assert any(tile_lists.NOTED < count <= tile_lists.CROWD for count in most)
    assert any(count > tile_lists.CROWD for count in most)


@pytest.mark.gpu
@pytest.mark.parametrize("function", FUNCTIONS)
def test_smoke(cupy, monkeypatch, function):
    """Planned as for the device whose size has the planner take the function; any GPU can run it."""
    from gpufold.gpu import launch

    for call, variant, device in launches()[function]:

        def decide(problem, device=device):
            plans = [plan for plan in candidates(replace(problem, device=device)) if function in symbols_of(plan)]
            return launch.tuning.Decision(plans[0], {}, False)

        monkeypatch.setattr(launch.tuning, "decide", decide)
        launch._prepare.cache_clear()
        want = call.on(call.data.copy())
        with cupy.cuda.using_allocator(None):
            arguments = [cupy.asarray(each) if isinstance(each, np.ndarray) else each for each in call.arguments]
            order = np.argsort([-step for step in call.data.strides], kind="stable")  # of the axes in memory
            data = cupy.asarray(np.ascontiguousarray(call.data.transpose(order))).transpose(*np.argsort(order).tolist())
            assert data.strides == call.data.strides
            got = replace(call, arguments=tuple(arguments)).on(data, variant=variant)
            assert_answer(call, variant, cupy.asnumpy(got), want, call.data)
    launch._prepare.cache_clear()


# ---------------------------------------------------------------------------------------------
# Answers: the rows of tests/test_kernels.py


@dataclass
class Room:
    """An array where another lies: of the same strides, and at the same offset from an allocation."""

    cupy: Any
    host: np.ndarray

    def __post_init__(self):
        owner = self.host
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        low, high = byte_bounds(owner)
        self.bytes = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
        self.memory, self.offset = self.cupy.asarray(self.bytes), self.host.__array_interface__["data"][0] - low
        self.array = self.cupy.ndarray(
            self.host.shape, self.host.dtype, self.memory.data + self.offset, self.host.strides
        )

    def result(self, where):
        """Return the elements on the host, once all around them is as it was."""
        memory = self.memory.get()
        got = np.ndarray(self.host.shape, self.host.dtype, memory, self.offset, self.host.strides)
        self.host[...] = got
        assert (self.bytes == memory).all(), f"{where}: what lies around is written"
        return got


def check_row(cupy, row, number):
    """Run the variants of a row by the public function, on arrays where the draw puts them, into garbage."""
    from gpufold.gpu import launch

    what = drawn(row, number)
    what = what._replace(mode=MODES[what.seed % len(MODES)])
    call, before, view = drawn_call(row, what)
    arrays, (want, want_weight) = arrays_of(call, before), expected(call, before)
    options = call.with_window(cupy).options
    with pytest.MonkeyPatch.context() as patch:
        if what.wide:
            patch.setattr(parameters, "INT32_MAX", 0)
        for cached in (choose, launch._prepare) if what.wide else ():
            cached.cache_clear()
        for variant in ("auto", *gpufold.variants(row.operation)):
            laid = laid_out(call, arrays, view, what, variant, natural=False)
            if before is None and row.operation != "add_blocks":
                laid.result[...] = garbage(laid.result.shape, laid.result.dtype)
            read, result, where = Room(cupy, laid.input), Room(cupy, laid.result), f"{variant}: {row} {number} {what}"
            weight, given = None, {"variant": variant}
            if laid.weight_out is not None:
                weight = Room(cupy, laid.weight_out)
                given["weight_out"] = weight.array
            arguments = list(call.arguments)
            if laid.positions is not None:
                place = row.operation == "add_blocks"
                arguments[place] = cupy.asarray(laid.positions) if number % 2 else laid.positions.tolist()
            with suppress(gpufold.Unsupported):
                if row.operation == "add_blocks":
                    gpufold.add_blocks_(result.array, read.array, *arguments[1:], **options | given)
                else:
                    if row.operation == "average":
                        arguments = map(cupy.asarray, arguments)
                    getattr(gpufold, row.operation)(read.array, *arguments, **options, **given, out=result.array)
                got = result.result(where)
                if not call.exact(variant):
                    if what.windows != "awkward":
                        assert (abs(got - want) <= bound_of(call, before, want)).all(), where
                    continue
                assert_same_bits(got, want, where)
                if weight is not None:
                    assert_same_bits(weight.result(where), want_weight, where)
        for cached in (choose, launch._prepare) if what.wide else ():
            cached.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("number", [*range(3), *(pytest.param(n, marks=pytest.mark.many) for n in range(3, 20))])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_variant_is_the_numpy_path(cupy, row, number):
    check_row(cupy, row, number)


SMALL_ROWS = [row for row in ROWS if row.variant or row.case in (*SPACE_CASES, *BLOCKS_CASES, *PLACED, *AVERAGE_CASES)]
"""Small, yet they run every kernel: compute-sanitizer slows each many times."""


@pytest.mark.gpu
@pytest.mark.parametrize("row", SMALL_ROWS, ids=str)
def test_sanitize_every_variant(cupy, row):
    """Arrays are allocated one by one, for in a memory pool's blocks an access past the end goes unseen."""
    with cupy.cuda.using_allocator(None):
        for number in range(2):
            check_row(cupy, row, number)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        Case("resnet", (56, 56), (3, 3), 1, 1, 1, 1, batch=8, channels=64),
        Case("words", (112, 112), (3, 3), 2, 1, 1, 1, batch=8, channels=64),
        Case("patches", (512, 512), (16, 16), 16, batch=8, channels=3),
        Case("half-overlap", (512, 512), (16, 16), 8, batch=2, channels=3),
        Case("audio", (128_000,), (400,), 160, 1, 200, 200, batch=8, channels=1),
        Case("small-map-many-taps", (64, 64), (32, 32), batch=1, channels=1),
        SpaceCase("nchw", (16, 32, 56, 56), (1, 1, 2, 2), (0, 0, 1, 1), (0, 0, 1, 1)),
        SpaceCase("patches", (256, 3, 28, 28), (1, 1, 16, 16), (0, 0, 0, 3), (0, 0, 5, 0)),
    ],
    ids=str,
)
def test_problems_that_fill_the_device_are_the_numpy_path(cupy, case):
    for call in calls_of(case, np.dtype(np.float32)):
        check_variants(cupy, call)


@pytest.mark.gpu
def test_what_is_not_deterministic_is_near(cupy):
    case = Case("auto-takes-atomics", (64, 64), (32, 32), batch=1, channels=1)
    call = calls_of(case, np.dtype(np.float32))[0]
    got = call.on(cupy.asarray(call.data), deterministic=False)
    assert_answer(call, "atomic", cupy.asnumpy(got), call.on(call.data), call.data)


def check_repeats(cupy, compute, message):
    """Compare twenty results with the first, on the device: only what differs is ever brought to the host."""
    first = compute()
    bits = first.view(f"u{first.itemsize}")
    for _ in range(20):
        again = compute()
        if int(cupy.count_nonzero(again.view(bits.dtype) != bits)):
            assert_same_bits(cupy.asnumpy(again), cupy.asnumpy(first), message)


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHORT_CASES, ids=str)
def test_deterministic_variants_repeat_their_bits(cupy, case):
    for call in calls_of(case, np.dtype(np.float32)):
        data = cupy.asarray(call.data)
        check_repeats(cupy, lambda call=call, data=data: call.on(data), call)


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_CALL[len(EVERY_OPERATION) :], ids=name_of)
def test_weighted_calls_repeat_their_bits(cupy, call):
    data, weighted = cupy.asarray(call.data), call.with_window(cupy)
    check_repeats(cupy, lambda: weighted.on(data), call)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["gather", "lists"])
@pytest.mark.parametrize("case", POSITIONS_CASES[9:13], ids=str)
def test_blocks_at_positions_repeat_their_bits(cupy, case, variant):
    """In crowded tiles, of several tiles, several planes and a volume, each of which many blocks overlap."""
    before, blocks = cupy.asarray(values(case.shape, np.float32)), cupy.asarray(values(case.blocks_shape, np.float32))
    positions = cupy.asarray(case.positions)
    check_repeats(cupy, lambda: gpufold.add_blocks_(before.copy(), blocks, positions, variant=variant), case)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        Case("three-by-three", (112, 112), (3, 3), 1, 1, 1, 1, batch=16, channels=64),
        Case("small-map-many-taps", (64, 64), (32, 32), batch=4, channels=1),
    ],
    ids=str,
)
def test_large_problems_repeat_their_bits(cupy, case):
    """With as many thread blocks under way as the device holds, and others waiting."""
    for call in calls_of(case, np.dtype(np.float32)):
        data = cupy.asarray(call.data)
        check_repeats(cupy, lambda call=call, data=data: call.on(data), call)


# ---------------------------------------------------------------------------------------------
# Layouts: a view of more room; the room's other elements stay as they are


def turned(cupy, host):
    """An array with the elements of another and its axes in memory in the opposite order."""
    order = tuple(reversed(range(host.ndim)))
    return cupy.asarray(np.ascontiguousarray(host.transpose(order))).transpose(order)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint8, np.float16], ids=lambda dtype: dtype.__name__)
def test_windows_of_other_dtypes_and_strides_are_converted(cupy, dtype):
    rng = np.random.default_rng(3)
    fold, unfold = calls_of(SLIDING, np.dtype(np.float32))
    full = (rng.random((6, 4)) * 9).astype(dtype)[::-2, ::2]
    axes = tuple((rng.random(2 * taps) * 9).astype(dtype)[::-2] for taps in SLIDING.kernel_size)
    for call in (fold, unfold):
        for window in (full, axes):
            weighted = replace(call, options=call.options | {"window": window})
            want = weighted.on(call.data)
            # The views are taken on the device, since a copy to it is contiguous.
            if isinstance(window, tuple):
                on_gpu = tuple(strided(cupy, weights) for weights in window)
            else:
                on_gpu = strided(cupy, window)
            got = replace(call, options=call.options | {"window": on_gpu}).on(cupy.asarray(call.data))
            assert_same_bits(cupy.asnumpy(got), want, f"{call} {dtype}")


def strided(cupy, host):
    """An array with the elements of another, backwards and with gaps in memory."""
    room = np.zeros([2 * extent for extent in host.shape], host.dtype)
    view = (slice(None, None, -2),) * host.ndim
    room[view] = host
    on_gpu = cupy.asarray(room)[view]
    assert not on_gpu.flags.c_contiguous
    return on_gpu


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint64], ids=lambda dtype: dtype.__name__)
def test_positions_of_other_dtypes_and_strides_are_converted(cupy, dtype):
    case = POSITIONS_CASES[10]
    low = 0 if np.dtype(dtype).kind == "u" else -20
    positions = np.random.default_rng(4).integers(low, 100, (len(case.positions), 2)).astype(dtype)
    if dtype == np.uint64:
        positions[3] = 2**64 - 1  # far outside, though it is -1 in 64 bits with a sign
    blocks = values(case.blocks_shape, np.float32)
    want = gpufold.add_blocks_(np.zeros(case.shape, np.float32), blocks, positions)
    for places in (cupy.asarray(positions), turned(cupy, positions), strided(cupy, positions), positions.tolist()):
        if dtype == np.uint64 and isinstance(places, list):
            continue  # beyond the integers that a list may hold
        got = gpufold.add_blocks_(cupy.zeros(case.shape, np.float32), cupy.asarray(blocks), places)
        assert_same_bits(cupy.asnumpy(got), want, f"{type(places)} of {dtype}")


# ---------------------------------------------------------------------------------------------
# Arrays that other libraries made, aligned to their elements alone


def through_interface(cupy, array):
    """What CuPy makes of an array of a library that knows the CUDA array interface."""
    other = SimpleNamespace(__cuda_array_interface__=array.__cuda_array_interface__, owner=array)
    return cupy.asarray(other)


def through_dlpack(cupy, array):
    return cupy.from_dlpack(array)


def through_torch(cupy, array):
    import torch

    if not torch.cuda.is_available():
        pytest.xfail("needs a torch that is built for CUDA")
    return cupy.from_dlpack(torch.from_dlpack(array))


IMPORTS = [through_interface, through_dlpack, pytest.param(through_torch, marks=pytest.mark.peer("torch"))]


def at_odd_offset(cupy, host, imported, offset):
    """An array with the elements of another, imported from a larger one at an offset in elements."""
    room = cupy.zeros(host.size + offset + 3, host.dtype)
    room[offset : offset + host.size] = cupy.asarray(host).ravel()
    cupy.cuda.Device().synchronize()
    return imported(cupy, room[offset : offset + host.size]).reshape(host.shape)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.complex64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("imported", IMPORTS)
def test_imported_arrays_at_odd_offsets_are_used_in_place(cupy, imported, dtype, offset):
    for case in (SHORT_CASES[1], SHORT_CASES[5]):
        for call in calls_of(case, np.dtype(dtype)):
            want = call.on(call.data)
            for variant in ("auto", *gpufold.variants(call.operation)):
                data = at_odd_offset(cupy, call.data, imported, offset)
                out = at_odd_offset(cupy, np.zeros_like(want), imported, offset)
                assert data.data.ptr % (data.itemsize * 8) == data.itemsize * offset
                with suppress(gpufold.Unsupported):
                    assert call.on(data, out=out, variant=variant) is out
                    assert_answer(call, variant, cupy.asnumpy(out), want, call.data)


@pytest.mark.gpu
@pytest.mark.parametrize("imported", IMPORTS)
def test_imported_views_that_overlap_are_refused(cupy, imported):
    room = cupy.zeros(64 + 4, np.float32)
    data = imported(cupy, room[:64]).reshape(1, 4, 4, 4)
    out = imported(cupy, room[4:]).reshape(1, 4, 16)
    with pytest.raises(ValueError, match="out must share no memory with image"):
        gpufold.im2col(data, (1, 1), out=out)
    assert not int(cupy.count_nonzero(room))


@pytest.mark.gpu
def test_elements_off_their_own_size_are_refused(cupy):
    """A GPU cannot load them, and the error would end the process."""
    room = cupy.zeros(4 * 36 + 4, np.uint8)
    data = cupy.ndarray((4, 9), np.float32, room.data + 1)
    with pytest.raises(gpufold.Unsupported, match="do not lie on multiples of their size"):
        gpufold.col2im(data, (4, 4), (2, 2))


# ---------------------------------------------------------------------------------------------
# Streams, graphs, devices, threads


class Gate:
    """Holds a stream up until it is opened."""

    def __init__(self, stream):
        self._opened = threading.Event()
        stream.launch_host_func(lambda opened: opened.wait(60), self._opened)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._opened.set()


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_CALL, ids=name_of)
def test_a_call_waits_for_its_stream_and_the_caller_for_nothing(cupy, call):
    """Behind a gate the stream receives the data and the call; everything else in the device ends before it opens."""
    want, source, weighted = call.on(call.data), cupy.asarray(call.data), call.with_window(cupy)
    data, out = cupy.zeros_like(source), cupy.empty(want.shape, want.dtype)
    for variant in served(weighted, data, out):
        data.data.memset_async(0, data.nbytes)
        spoil(out)
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, Gate(stream):
            data.data.copy_from_device_async(source.data, source.nbytes, stream)
            weighted.on(data, out=out, variant=variant)
            assert not stream.done, "the call waited for its own result"
            cupy.cuda.Stream.null.synchronize()
        stream.synchronize()
        assert_answer(call, variant, cupy.asnumpy(out), want, call.data)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["auto", *gpufold.variants("add_blocks")])
def test_blocks_at_positions_wait_for_their_stream_and_the_caller_for_nothing(cupy, variant):
    """Behind a gate the stream receives the blocks and their positions, which nobody has looked at before."""
    case = POSITIONS_CASES[11]
    before, blocks = values(case.shape, np.int32), values(case.blocks_shape, np.int32, 1)
    want = gpufold.add_blocks_(before.copy(), blocks, case.positions)
    sources = cupy.asarray(blocks), cupy.asarray(case.positions)
    out, tiles, positions = cupy.asarray(before), *map(cupy.zeros_like, sources)
    cupy.cuda.Device().synchronize()
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.get_default_memory_pool()
    with stream:  # whose part of the pool has the memory for lists then
        gpufold.add_blocks_(out, tiles, positions, variant=variant)  # adds zeros
    stream.synchronize()
    allocated = pool.total_bytes()
    with stream, Gate(stream):
        for to, source in zip((tiles, positions), sources, strict=True):
            to.data.copy_from_device_async(source.data, source.nbytes, stream)
        gpufold.add_blocks_(out, tiles, positions, variant=variant)
        assert pool.total_bytes() == allocated, "the device was asked for memory, which may wait for all that it does"
        assert not stream.done, "the call waited for its own result"
        cupy.cuda.Stream.null.synchronize()
    stream.synchronize()
    assert_same_bits(cupy.asnumpy(out), want, variant)


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_CALL, ids=name_of)
def test_a_captured_call_replays_on_other_data(cupy, call):
    other, weighted = values(call.data.shape, call.data.dtype, seed=99), call.with_window(cupy)
    data, out = cupy.asarray(call.data), cupy.asarray(call.on(call.data))
    for variant in served(weighted, data, out):
        stream, graph = captured(cupy, partial(weighted.on, data, out=out, variant=variant))
        with stream:
            for host in (call.data, other, call.data):
                data.set(host, stream)
                spoil(out)
                graph.launch(stream)
                stream.synchronize()
                assert_answer(call, variant, cupy.asnumpy(out), call.on(host), host)


@pytest.mark.gpu
def test_a_captured_call_adds_to_what_is_there_at_each_launch(cupy):
    fold, _ = calls_of(SLIDING, np.dtype(np.float32))
    data, before = cupy.asarray(fold.data), values(SLIDING.image_shape, np.float32, 7)
    out = cupy.asarray(before)
    for variant in served(replace(fold, options=fold.options | {"accumulate": True}), data, out):
        stream, graph = captured(cupy, partial(fold.on, data, out=out, variant=variant, accumulate=True))
        with stream:
            out.set(before, stream)
            want = before.copy()
            for _ in range(3):
                graph.launch(stream)
                fold.on(fold.data, out=want, accumulate=True)
            stream.synchronize()
            if fold.exact(variant):
                assert_same_bits(cupy.asnumpy(out), want, variant)
            else:
                np.testing.assert_allclose(cupy.asnumpy(out), want, rtol=0, atol=1e-5 * abs(want).max())


@pytest.mark.gpu
def test_after_a_warmup_the_first_call_only_launches(cupy, monkeypatch):
    from gpufold.gpu import launch

    case = Case("compiled-by-no-other-test", (11, 19), (5, 7), (2, 3), 1, (1, 4), (2, 3))
    for call in calls_of(case, np.dtype(np.float32)):
        launch._function.cache_clear()
        launch._prepare.cache_clear()
        plan = gpufold.warmup(call.operation, (call.data.shape, "float32"), *call.arguments, **call.options)
        assert plan == gpufold.explain(call.operation, cupy.asarray(call.data), *call.arguments, **call.options).plan
        with monkeypatch.context() as patch:
            patch.setattr(cupy, "RawKernel", lambda *_, **__: pytest.fail("compiled again"))
            data, want = cupy.asarray(call.data), call.on(call.data)
            out = spoil(cupy.empty(want.shape, want.dtype))
            stream, graph = captured(cupy, partial(call.on, data, out=out))
            graph.launch(stream)
            stream.synchronize()
        assert_same_bits(cupy.asnumpy(out), want, call)


@pytest.mark.gpu
def test_a_first_call_in_a_capture_names_warmup_where_cuda_refuses_to_load_its_kernel(cupy):
    """Newer drivers may load it; whichever they do, the call after the capture computes."""
    case = Case("called-by-no-other-test", (13, 17), (3, 6), (2, 5), 1, (1, 4), (2, 3))
    for call in calls_of(case, np.dtype(np.float32)):
        data, want = cupy.asarray(call.data), call.on(call.data)
        out = spoil(cupy.empty(want.shape, want.dtype))
        try:
            stream, graph = captured(cupy, partial(call.on, data, out=out))
        except RuntimeError as error:
            assert "gpufold.warmup" in str(error)  # noqa: PT017  there may be none
            call.on(data, out=out)
        else:
            graph.launch(stream)
            stream.synchronize()
        assert_same_bits(cupy.asnumpy(out), want, call)


@pytest.mark.gpu
def test_each_device_computes_what_lies_on_it(cupy):
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(number):
            arrays = [cupy.asarray(call.data) for call in EVERY_OPERATION]
        for current in range(cupy.cuda.runtime.getDeviceCount()):
            with cupy.cuda.Device(current):
                for call, data in zip(EVERY_OPERATION, arrays, strict=True):
                    result = call.on(data)
                    assert cupy.cuda.runtime.getDevice() == current
                    assert result.device == data.device
                    assert_same_bits(cupy.asnumpy(result), call.on(call.data), f"device {number}: {call}")


@pytest.mark.gpu
def test_many_threads_call_at_once(cupy):
    problems = [
        call
        for seed in range(12)
        for call in (
            *calls_of(random_case(seed), DTYPES[seed % len(DTYPES)], seed),
            *calls_of(random_space_case(seed), DTYPES[seed % len(DTYPES)], seed),
        )
    ]
    wanted = [call.on(call.data) for call in problems]
    current = cupy.cuda.runtime.getDevice()

    def repeat(thread):
        with cupy.cuda.Device(current), cupy.cuda.Stream(non_blocking=True) as stream:
            for number in np.random.default_rng(thread).permutation(len(problems)):
                call = problems[number]
                result = call.on(cupy.asarray(call.data))
                assert_same_bits(cupy.asnumpy(result), wanted[number], f"thread {thread}: {call}")
            stream.synchronize()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(repeat, range(16)))


# ---------------------------------------------------------------------------------------------
# Memory


def counting_hook(cupy):
    """A hook that notes the size of every block taken from the memory pool."""

    class Hook(cupy.cuda.MemoryHook):
        name = "count"

        def __init__(self):
            self.sizes = []

        def malloc_preprocess(self, **what):
            self.sizes.append(what["size"])

    return Hook()


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_OPERATION, ids=lambda call: call.operation)
def test_a_call_allocates_its_result_alone(cupy, call):
    data = cupy.asarray(call.data)
    for variant in ("auto", *gpufold.variants(call.operation)):
        try:
            for _ in range(2):
                with counting_hook(cupy) as hook:
                    result = call.on(data, variant=variant)
                assert hook.sizes == [result.nbytes], variant
                with counting_hook(cupy) as hook:
                    call.on(data, out=result, variant=variant)
                assert hook.sizes == [], variant
        except gpufold.Unsupported:
            continue


@pytest.mark.gpu
def test_repeated_calls_keep_their_memory(cupy):
    pool = cupy.get_default_memory_pool()
    gc.collect()  # what earlier tests left in cycles would be freed at some turn
    calls = [(call, cupy.asarray(call.data), call.on(call.data)) for call in EVERY_OPERATION]
    sizes = []
    for turn in range(2000):
        for call, data, want in calls:
            result = call.on(data)
            if turn % 200 == 0:
                assert_same_bits(cupy.asnumpy(result), want, f"turn {turn}: {call}")
        del result
        sizes.append((pool.used_bytes(), pool.total_bytes()))
    assert len(set(sizes[100:])) == 1, sizes[::100]


@pytest.mark.gpu
def test_out_of_memory_leaves_nothing_behind(cupy):
    call = EVERY_OPERATION[0]
    data, large = cupy.asarray(call.data), cupy.zeros((4, 2**20), np.float32)
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=2**20)
    with cupy.cuda.using_allocator(pool.malloc):
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            gpufold.batch_to_space(large, (1, 4))
        assert pool.used_bytes() == 0
        assert_same_bits(cupy.asnumpy(call.on(data)), call.on(call.data), call)


# ---------------------------------------------------------------------------------------------
# Past 2**31 elements


def by_blocks(array, side, channels, height, width):
    """View an array of 2x2 blocks, whichever side of an operation it is, as (channels, height/2, 2, width/2, 2)."""
    if side in ("image", "array"):
        return array.reshape(channels, height // 2, 2, width // 2, 2)
    if side == "columns":
        return array.reshape(channels, 2, 2, height // 2, width // 2).transpose(0, 3, 1, 4, 2)
    if side == "blocks":
        return array.transpose(0, 1, 3, 2, 4)
    return array.reshape(2, 2, channels, height // 2, width // 2).transpose(2, 3, 0, 4, 1)


SIDES = {
    "col2im": ("columns", "image"),
    "im2col": ("image", "columns"),
    "batch_to_space": ("batch", "image"),
    "space_to_batch": ("image", "batch"),
    "blocks_to_array": ("blocks", "array"),
    "array_to_blocks": ("array", "blocks"),
}


def shape_of(side, channels, height, width):
    return {
        "image": (1, channels, height, width),
        "columns": (1, 4 * channels, height * width // 4),
        "batch": (4, channels, height // 2, width // 2),
        "array": (channels, height, width),
        "blocks": (channels, height // 2, width // 2, 2, 2),
    }[side]


def arguments_of(operation, extents):
    """What takes an array into blocks of 2x2 that do not overlap, or puts it together from them."""
    return {
        "col2im": ((extents[1:], (2, 2)), {"strides": 2}),
        "im2col": (((2, 2),), {"strides": 2}),
        "blocks_to_array": ((extents, (2, 2)), {"strides": 2}),
        "array_to_blocks": (((2, 2),), {"strides": 2}),
    }.get(operation, (((1, 1, 2, 2),), {}))


def check_marks(cupy, operation, variant, dtype, extents, **fused):
    """Marked elements at both ends arrive at their places, and nothing anywhere else."""
    source, target = SIDES[operation]
    data = cupy.zeros(shape_of(source, *extents), dtype)
    result = cupy.empty(shape_of(target, *extents), dtype)
    if fused.get("accumulate"):
        result.data.memset_async(0, result.nbytes)
    else:
        spoil(result)
    rows, columns = min(8, extents[1] // 2), extents[2] // 2
    marks = np.random.default_rng(5).integers(1, 100, (2, rows, 2, columns, 2)).astype(dtype)
    by_blocks(data, source, *extents)[0, :rows] = cupy.asarray(marks[0])
    by_blocks(data, source, *extents)[-1, -rows:] = cupy.asarray(marks[1])
    arguments, options = arguments_of(operation, extents)
    try:
        getattr(gpufold, operation)(data, *arguments, **options, **fused, out=result, variant=variant)
    except gpufold.Unsupported:
        if variant == "auto":
            raise
        return
    arrived = by_blocks(result, target, *extents)
    np.testing.assert_array_equal(cupy.asnumpy(arrived[0, :rows]), marks[0])
    np.testing.assert_array_equal(cupy.asnumpy(arrived[-1, -rows:]), marks[1])
    assert count_nonzero(cupy, result) == marks.size


def count_nonzero(cupy, array):
    """Count in pieces, for CuPy's own reductions take memory and time with 64 bits."""
    flat, step = array.ravel(), 2**28
    return sum(int(cupy.count_nonzero(flat[start : start + step])) for start in range(0, flat.size, step))


def need(cupy, size):
    """Leave a test that needs more bytes than are free."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < size:
        pytest.xfail(f"needs {size:,} bytes of GPU memory, {free:,} are free")


LARGE_EXTENTS = {"many-planes": (2052, 1024, 1024), "one-plane": (1, 46_344, 46_344)}


@pytest.mark.gpu
@pytest.mark.parametrize("extents", LARGE_EXTENTS.values(), ids=LARGE_EXTENTS)
@pytest.mark.parametrize(
    ("operation", "variant"),
    [(operation, variant) for operation in SIDES for variant in ("auto", *gpufold.variants(operation))],
)
def test_past_two_to_the_31_elements(cupy, most_of_the_memory, operation, variant, extents):
    dtype = np.dtype(np.int32 if variant == "atomic" else np.uint8)
    assert prod(extents) > 2**31
    need(cupy, int(2.1 * dtype.itemsize * prod(extents)))
    check_marks(cupy, operation, variant, dtype, extents)


FUSED = {
    "mean": ("col2im", {"reduction": "mean", "fill_value": 0}),
    "accumulate": ("col2im", {"accumulate": True}),
    "blocks-mean": ("blocks_to_array", {"reduction": "mean", "fill_value": 0}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("extents", LARGE_EXTENTS.values(), ids=LARGE_EXTENTS)
@pytest.mark.parametrize("name", FUSED)
def test_past_two_to_the_31_elements_of_floats_and_fusions(cupy, most_of_the_memory, name, extents):
    operation, fused = FUSED[name]
    need(cupy, int(2.1 * 2 * prod(extents)))
    check_marks(cupy, operation, "auto", np.dtype(np.float16), extents, **fused)


@pytest.mark.gpu
@pytest.mark.parametrize("extents", [(6, 8, 10), (1, 36, 22)], ids=LARGE_EXTENTS)
@pytest.mark.parametrize("operation", SIDES)
def test_what_is_checked_past_two_to_the_31_elements_holds_below(cupy, operation, extents):
    for variant in ("auto", *gpufold.variants(operation)):
        check_marks(cupy, operation, variant, np.dtype(np.int32), extents)
    for name, fused in FUSED.values():
        if name == operation:
            check_marks(cupy, operation, "auto", np.dtype(np.float16), extents, **fused)


def check_marks_at_positions(cupy, variant, dtype, lead, size):
    """Blocks at the first and the last corner arrive there, and nothing anywhere else; the others lie outside."""
    out, blocks = cupy.zeros((*lead, *size), dtype), np.zeros((5, *lead, 8, 8), dtype)
    marks = np.random.default_rng(6).integers(1, 100, (2, 8, 8)).astype(dtype)
    blocks[(1, *[0] * len(lead))], blocks[(3, *[-1] * len(lead))] = marks
    positions = np.array([(-8, 0), (0, 0), size, [side - 8 for side in size], (0, size[1])])
    try:
        gpufold.add_blocks_(out, cupy.asarray(blocks), cupy.asarray(positions), variant=variant)
    except gpufold.Unsupported:
        if variant == "auto":
            raise
        return
    first, last = out[(0,) * len(lead)][:8, :8], out[(-1,) * len(lead)][-8:, -8:]
    np.testing.assert_array_equal(cupy.asnumpy(first), marks[0])
    np.testing.assert_array_equal(cupy.asnumpy(last), marks[1])
    assert count_nonzero(cupy, out) == marks.size


def check_last_of_many_blocks(cupy, variant, dtype, count, side):
    """Of blocks that all land on one square, all but the first and the last are zero."""
    blocks = cupy.zeros((count, side, side), dtype)
    marks = np.random.default_rng(7).integers(1, 50, (2, side, side)).astype(dtype)
    blocks[0], blocks[-1] = map(cupy.asarray, marks)
    out = cupy.zeros((side, side), dtype)
    try:
        gpufold.add_blocks_(out, blocks, cupy.zeros((count, 2), np.int64), variant=variant)
    except gpufold.Unsupported:
        if variant == "auto":
            raise
        return
    np.testing.assert_array_equal(cupy.asnumpy(out), marks.sum(0, dtype=dtype))


def check_first_and_last_taken(cupy, lead, size):
    """Of an array of zeros but for its first and last corner, into blocks that are all zero but for two."""
    array = cupy.zeros((*lead, *size), np.uint8)
    marks = np.random.default_rng(6).integers(1, 100, (2, 8, 8)).astype(np.uint8)
    array[(0,) * len(lead)][:8, :8], array[(-1,) * len(lead)][-8:, -8:] = map(cupy.asarray, marks)
    far = 2**63 - 1
    positions = np.array([(-8, 0), (0, 0), (far, far), [side - 8 for side in size], (0, -far)])
    blocks = gpufold.take_blocks(array, cupy.asarray(positions), 8)
    np.testing.assert_array_equal(cupy.asnumpy(blocks[(1, *[0] * len(lead))]), marks[0])
    np.testing.assert_array_equal(cupy.asnumpy(blocks[(3, *[-1] * len(lead))]), marks[1])
    assert count_nonzero(cupy, blocks) == marks.size


@pytest.mark.gpu
@pytest.mark.parametrize(("lead", "size"), [((2052,), (1024, 1024)), ((), (46_344, 46_344))], ids=LARGE_EXTENTS)
def test_past_two_to_the_31_elements_to_take_blocks_from(cupy, most_of_the_memory, lead, size):
    need(cupy, int(1.1 * prod((*lead, *size))))
    check_first_and_last_taken(cupy, lead, size)


@pytest.mark.gpu
def test_past_two_to_the_31_elements_of_blocks_taken(cupy, most_of_the_memory):
    """The last of many blocks alone lies on what is not zero."""
    need(cupy, int(1.1 * 2052 * 2**20))
    positions, array = cupy.zeros((2052, 2), np.int64), cupy.zeros((1025, 1024), np.uint8)
    positions[-1], array[-1] = 1, 1
    blocks = gpufold.take_blocks(array, positions, 1024)
    assert count_nonzero(cupy, blocks) == count_nonzero(cupy, blocks[-1, -1]) == 1023


@pytest.mark.gpu
@pytest.mark.parametrize(("lead", "size"), [((2052,), (1024, 1024)), ((), (46_344, 46_344))], ids=LARGE_EXTENTS)
@pytest.mark.parametrize("variant", ["auto", *gpufold.variants("add_blocks")])
def test_past_two_to_the_31_elements_to_add_blocks_to(cupy, most_of_the_memory, variant, lead, size):
    dtype = np.dtype(np.int32 if variant == "atomic" else np.uint8)
    need(cupy, int(1.1 * dtype.itemsize * prod((*lead, *size))))
    check_marks_at_positions(cupy, variant, dtype, lead, size)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["auto", *gpufold.variants("add_blocks")])
def test_past_two_to_the_31_elements_of_blocks_at_positions(cupy, most_of_the_memory, variant):
    dtype = np.dtype(np.int32 if variant == "atomic" else np.float16)
    need(cupy, int(1.1 * dtype.itemsize * 2052 * 2**20))
    check_last_of_many_blocks(cupy, variant, dtype, 2052, 1024)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["auto", *gpufold.variants("add_blocks")])
def test_what_is_checked_past_two_to_the_31_elements_of_blocks_holds_below(cupy, variant):
    check_first_and_last_taken(cupy, (3,), (20, 30))
    for dtype in (np.dtype(np.int32), np.dtype(np.float32)):
        check_marks_at_positions(cupy, variant, dtype, (3,), (20, 30))
        check_marks_at_positions(cupy, variant, dtype, (), (40, 70))
        check_last_of_many_blocks(cupy, variant, dtype, 6, 16)


# ---------------------------------------------------------------------------------------------
# Offsets of 64 bits, on small arrays


# ---------------------------------------------------------------------------------------------
# Errors


@pytest.mark.gpu
def test_arrays_of_two_libraries_are_refused(cupy):
    for call in EVERY_OPERATION:
        want = call.on(call.data)
        with pytest.raises(TypeError, match=r"out must be a cupy\.ndarray like .*, got numpy\.ndarray; convert it"):
            call.on(cupy.asarray(call.data), out=want)
        with pytest.raises(TypeError, match=r"out must be a numpy\.ndarray like .*, got cupy\..*ndarray; convert it"):
            call.on(call.data, out=cupy.asarray(want))


@pytest.mark.gpu
def test_an_output_that_does_not_fit_is_refused_and_unchanged(cupy):
    for call in EVERY_OPERATION:
        data, want = cupy.asarray(call.data), call.on(call.data)
        for shape, dtype, error in (
            ((*want.shape[:-1], want.shape[-1] + 1), want.dtype, ValueError),
            (want.shape, np.dtype(np.float64), TypeError),
        ):
            out = spoil(cupy.empty(shape, dtype))
            with pytest.raises(error, match="out must have the result's"):
                call.on(data, out=out)
            assert (cupy.asnumpy(out).view(np.uint8) == GARBAGE).all()


@pytest.mark.gpu
def test_an_output_on_another_device_is_refused(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.xfail("needs two CUDA devices")
    for call in EVERY_OPERATION:
        data, want = cupy.asarray(call.data), call.on(call.data)
        with cupy.cuda.Device(1):
            out = cupy.empty(want.shape, want.dtype)
        with pytest.raises(ValueError, match="out must be on the device of"):
            call.on(data, out=out)


@pytest.mark.gpu
def test_checks_come_before_the_device_is_touched(cupy):
    data = cupy.zeros((4, 9), np.float32)
    with counting_hook(cupy) as hook:
        with pytest.raises(ValueError, match="data axis 1 must be the number of blocks"):
            gpufold.col2im(data, (5, 4), (2, 2))
        with pytest.raises(ValueError, match="variant must be one of auto, "):
            gpufold.col2im(data, (4, 4), (2, 2), variant="quick")
        with pytest.raises(ValueError, match=r"more than the \d+ that an array can have"):
            gpufold.im2col(data[None], (1, 1), pads_begin=2**62)
    assert hook.sizes == []


# ---------------------------------------------------------------------------------------------
# Means, windows, accumulation, blocks in a layout of their own


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_tiles_are_mapped_where_they_are(cupy, mode):
    """Into an array on the device or the host, with a window of SciPy's, and positions of one axis as a vector."""

    def reversed_rows(tiles):
        return tiles[..., ::-1, :]

    image, options = values((3, 20, 26), np.float32), {"window": "hamming", "batch": 3, "mode": mode, "last": "over"}
    want = gpufold.map_tiles(reversed_rows, image, (8, 30), strides=(6, 5), **options)
    got = gpufold.map_tiles(reversed_rows, cupy.asarray(image), (8, 30), strides=(6, 5), **options)
    assert isinstance(got, cupy.ndarray)
    assert_same_bits(cupy.asnumpy(got), want)
    into = np.zeros_like(want)
    assert gpufold.map_tiles(reversed_rows, cupy.asarray(image), (8, 30), strides=(6, 5), out=into, **options) is into
    assert_same_bits(into, want)
    with pytest.raises(ValueError, match="NOLA"):
        gpufold.map_tiles(reversed_rows, cupy.asarray(image), (8, 8), strides=6, window="hann")
    rows = gpufold.take_blocks(cupy.asarray(image), cupy.asarray([-3, 4, 30]), 5, mode=mode)
    assert_same_bits(cupy.asnumpy(rows), gpufold.take_blocks(image, [-3, 4, 30], 5, mode=mode))


@pytest.mark.gpu
@pytest.mark.parametrize("slabs", [False, True])
def test_tiles_are_stitched_where_they_are(cupy, slabs):
    tiles = values((12, 3, 8, 9), np.float16)
    positions = gpufold.grid_positions((20, 30), (8, 9), strides=(6, 7))[:12]
    window = window_of("separable", (8, 9), np.float32)
    ours = gpufold.Stitcher((3, 20, 30), (8, 9), window=window)
    stitcher = gpufold.Stitcher((3, 20, 30), (8, 9), window=tuple(map(cupy.asarray, window)), slabs=slabs)
    rows = []
    for batch in (slice(0, 5), slice(5, 6), slice(6, 12)):
        ours.add(tiles[batch], positions[batch])
        stitcher.add(cupy.asarray(tiles[batch]), positions[batch])
        rows += [stitcher.finished()[1]] if slabs else []
    rows += [stitcher.result()[1] if slabs else stitcher.result()]
    assert_same_bits(np.concatenate([cupy.asnumpy(slab) for slab in rows], 1), ours.result())


@pytest.mark.gpu
def test_an_array_without_elements_gives_blocks_of_zeros(cupy):
    got = gpufold.take_blocks(cupy.empty((0, 4), np.float32), cupy.zeros((3, 2), np.int64), (2, 5))
    assert_same_bits(cupy.asnumpy(got), np.zeros((3, 2, 5), np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["auto", "direct"])
def test_blocks_taken_at_positions_can_be_captured_in_a_graph(cupy, variant):
    """Positions are never looked at by the host, so that other ones serve the same graph; none are converted."""
    case = POSITIONS_CASES[10]
    array = values(case.shape, np.float32)
    image, positions = cupy.asarray(array), cupy.asarray(case.positions)
    narrow = cupy.asarray(case.positions.astype(np.int32))
    out = gpufold.take_blocks(image, positions, case.block, variant=variant)

    def work():
        with pytest.raises(ValueError, match="positions must be a contiguous, aligned array of int64 beside array"):
            gpufold.take_blocks(image, narrow, case.block, out=out, variant=variant)
        gpufold.take_blocks(image, positions, case.block, out=out, variant=variant)

    stream, graph = captured(cupy, work)
    with stream:
        for places in (case.positions + 1, case.positions):
            positions.set(places, stream)
            spoil(out)
            graph.launch(stream)
            stream.synchronize()
            assert_same_bits(cupy.asnumpy(out), gpufold.take_blocks(array, places, case.block))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["gather", "lists"])
@pytest.mark.parametrize("case", [POSITIONS_CASES[9], POSITIONS_CASES[10]], ids=str)
def test_blocks_at_positions_can_be_captured_in_a_graph(cupy, case, variant):
    """Positions are never looked at by the host, so that other ones serve the same graph; its lists are its own."""
    zeros, blocks = np.zeros(case.shape, np.float32), values(case.blocks_shape, np.float32)
    out, tiles, positions = cupy.asarray(zeros), cupy.asarray(blocks), cupy.asarray(case.positions)
    gpufold.add_blocks_(out, tiles, positions, variant=variant)
    stream, graph = captured(cupy, partial(gpufold.add_blocks_, out, tiles, positions, variant=variant))
    with stream:
        for places in (case.positions + 1, case.positions):
            positions.set(places, stream)
            out.set(zeros, stream)
            graph.launch(stream)
            stream.synchronize()
            assert_same_bits(cupy.asnumpy(out), gpufold.add_blocks_(zeros.copy(), blocks, places))


@pytest.mark.gpu
def test_a_captured_window_is_not_converted(cupy):
    """A graph would convert it anew, into memory that has long been another array's."""
    axes = tuple(map(cupy.asarray, window_of("separable", (3, 4), np.float32)))
    doubled = tuple(map(cupy.asarray, window_of("separable", (3, 4), np.float64)))
    columns = cupy.asarray(values((2, 24, 6), np.float32))
    out = cupy.empty((2, 2, 4, 6), np.float32)
    fold = partial(gpufold.col2im, columns, (4, 6), (3, 4), out=out)
    want = cupy.asnumpy(fold(window=axes))

    def work():
        with pytest.raises(ValueError, match="window must be contiguous, aligned and of float32 while a CUDA graph"):
            fold(window=doubled)
        fold(window=axes)

    stream, graph = captured(cupy, work)
    with stream:
        spoil(out)
        graph.launch(stream)
        stream.synchronize()
    assert_same_bits(cupy.asnumpy(out), want)


@pytest.mark.gpu
@pytest.mark.peer("scipy")
@pytest.mark.parametrize(("taps", "hop"), [(256, 64), (400, 160), (2048, 512)])
def test_the_inverse_short_time_fourier_transform_is_cupys(cupy, taps, hop):
    from cupyx.scipy import signal

    sound = cupy.asarray(values((2, 40 * hop), np.float32))
    window = signal.get_window("hann", taps).astype(np.float32)
    _, _, spectra = signal.stft(sound, window=window, nperseg=taps, noverlap=taps - hop)
    _, theirs = signal.istft(spectra, window=window, nperseg=taps, noverlap=taps - hop)
    frames = cupy.fft.irfft(spectra, taps, axis=-2).astype(np.float32) * window.sum()
    length, half = (frames.shape[-1] - 1) * hop, taps // 2
    options = {"strides": hop, "pads_begin": half, "pads_end": half, "window": window, "reduction": "least_squares"}
    ours = gpufold.col2im(frames, (length,), (taps,), **options)[:, 0]
    bound = 1e-5 * float(abs(theirs).max())
    np.testing.assert_allclose(cupy.asnumpy(ours), cupy.asnumpy(theirs), rtol=0, atol=bound)


@pytest.mark.gpu
def test_a_window_of_another_library_is_refused(cupy):
    columns = cupy.zeros((4, 9), np.float32)
    with pytest.raises(TypeError, match=r"window must be a cupy.ndarray like the data, got numpy.ndarray"):
        gpufold.col2im(columns, (4, 4), (2, 2), window=np.ones((2, 2)))


# ---------------------------------------------------------------------------------------------
# dask


def check_dask(library):
    """Compare dask arrays of a library's chunks, cut where blocks overlap, with the eager NumPy path."""
    import dask
    import dask.array as da

    import gpufold.dask

    def chunked(array, chunks):
        return da.from_array(library.asarray(array), chunks=chunks, asarray=False)

    fold, unfold = calls_of(SLIDING, np.dtype(np.float32))
    gather, scatter = blocks_calls((3, 12, 40), (5, 6), 3, np.dtype(np.float32))
    mean = {"window": window_of("separable", SLIDING.kernel_size, np.float32), "reduction": "mean", "fill_value": 0}
    cuts = {"col2im": (1, 8, 9), "im2col": (1, 3, 4, 5), "array_to_blocks": (2, 7, 11), "blocks_to_array": 3}
    with dask.config.set(scheduler="synchronous"):
        for call in (fold, replace(fold, options=fold.options | mean), unfold, gather, scatter):
            lazy = getattr(gpufold.dask, call.operation)
            on_chunks = call.with_window(library)
            result = lazy(chunked(call.data, cuts[call.operation]), *call.arguments, **on_chunks.options)
            got = result.compute()
            assert isinstance(result._meta, library.ndarray)
            assert isinstance(got, library.ndarray)
            assert_same_bits(np.asarray(got) if library is np else library.asnumpy(got), call.on(call.data), call)


@pytest.mark.gpu
@pytest.mark.peer("dask")
def test_dask_chunks_on_the_gpu_give_the_same(cupy):
    check_dask(cupy)


@pytest.mark.peer("dask")
def test_dask_chunks_in_the_memory_of_the_host_give_the_same():
    """Needs no GPU: what the test before this one does is right."""
    check_dask(np)


# ---------------------------------------------------------------------------------------------
# For compute-sanitizer
