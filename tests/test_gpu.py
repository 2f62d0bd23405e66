"""On a GPU: every variant gives the NumPy path's answer, in the current stream, and takes nothing but its result.

Deterministic variants give its bits.

In one process most of the time goes into compiling: `-n 14` of pytest-xdist divides it. Tests of many GB wait for each
other all the same, and one that leaves the device in error ends its process in its own name. Without a GPU,
tests/test_fake_cupy.py runs this file on the host build of the kernels.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import prod
from operator import attrgetter

import cases
import numpy as np
import pytest
from cases import DTYPES, POSITIONS_CASES, BlocksCase, Case, SpaceCase, assert_same_bits, garbage, values, window_of
from executors import GIVEN, ONE_THREAD, Call, arrays_of, calls_of, plans_of, wide_offsets
from numpy.lib.array_utils import byte_bounds
from test_kernels import ROWS, assert_answer, compare, drawn, drawn_call, expected, laid_out

import gpufold
from bench import hostcuda
from gpufold.calls import MODES
from gpufold.gpu.plan import H200
from gpufold.gpu.registry import candidates, choose
from gpufold.gpu.sources import KERNELS

GARBAGE = 0xA5
"""What every byte of an output holds before a call."""

SLIDING = Case("sliding", (9, 13), (3, 2), (2, 1), (1, 2), (1, 0), (0, 2), channels=5)
SPACE = SpaceCase("space", (8, 3, 5, 6), (1, 1, 2, 2), (0, 0, 1, 0), (0, 0, 0, 2))
BLOCKS = BlocksCase("blocks", (2, 3, 12, 40), (5, 6), (2, 3))
EVERY_OPERATION = tuple(call for case in (SLIDING, SPACE, BLOCKS) for call in calls_of(case, np.float32))
FOLD, UNFOLD, *_, TOGETHER, APART = EVERY_OPERATION
WINDOW = {kind: window_of(kind, SLIDING.kernel_size, np.float32) for kind in ("separable", "full")}
OF_BLOCKS = window_of("full", BLOCKS.block, np.float32)
EVERY_CALL = (
    *EVERY_OPERATION,
    FOLD.with_options(window=WINDOW["separable"], reduction="mean", fill_value=0),
    FOLD.with_options(window=WINDOW["full"]),
    UNFOLD.with_options(window=WINDOW["separable"]),
    APART.with_options(window=OF_BLOCKS),
    TOGETHER.with_options(window=OF_BLOCKS, reduction="least_squares", fill_value=0),
    *(call for case in POSITIONS_CASES[9:12] for call in calls_of(case, np.float32)),
    Call("average", values((2, 9), np.float32), (np.arange(9, dtype=np.float32),)),
)
"""With and without weights, and at positions: in overflowing tiles, of several tiles and of several planes."""
TAKEN_BEYOND = calls_of(POSITIONS_CASES[11], np.float32)[1].with_options(mode="edge")

SHORT_CASES = (
    Case("planes", (7, 7), (3, 3), 1, 1, 1, 1, channels=5),
    Case("words", (6, 16), (3, 4), 2, 1, 1, 1, batch=1, channels=4),
    Case("parts", (3, 5 * 40 + 2), (2, 7), (1, 5), 1, 1, 1, batch=1, channels=2),
    Case("phases", (1600,), (400,), 160, 1, 200, 200, batch=1, channels=1),
    Case("many-taps", (5, 9), (20, 18), 1, 1, (15, 13), (14, 14), batch=1, channels=1),
    SpaceCase("interleave", (8, 3, 5, 8), (1, 1, 2, 2), (0, 0, 1, 0), (0, 0, 0, 2)),
    SpaceCase("wide-block", (33, 2, 5), (1, 1, 33), (0, 0, 7), (0, 0, 3)),
    SpaceCase("channels-last", (8, 3, 5, 3), (1, 2, 2, 1), (0, 1, 0, 0), (0, 0, 1, 0)),
    BlocksCase("dense", (2, 12, 40), (5, 6), (1, 1)),
    *(POSITIONS_CASES[number] for number in (3, 9, 11, 14)),  # far outside, overflowing, of planes and leading axes
    Case("many-planes", (30, 31), (3, 3), channels=64),
    Case("many-planes-of-words", (32, 40), (4, 4), 4, channels=64),
)
"""Few and small, yet they run every kernel: compute-sanitizer slows each many times."""


@pytest.fixture(autouse=True)
def _named_by_its_own_error(request):
    """End the process where a test leaves the device in error, before the next test has to answer for it.

    CUDA's sticky errors, such as an access to memory that is not there, fail every later call of a process: all tests
    that follow would be red and the cause one of many. Under pytest-xdist the worker dies, which is reported as a crash
    of this test, and another worker takes the rest; without it the session ends. An error that does not stay fails this
    test alone.
    """
    yield
    if "cupy" not in request.fixturenames:
        return
    import cupy

    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        message = f"{request.node.nodeid} left the device in error: {error}"
        with suppress(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.Device().synchronize()
            pytest.fail(message)
        if not hasattr(request.config, "workerinput"):
            pytest.exit(f"{message}; nothing can run on it any more", returncode=1)
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{message}; its process ends", file=sys.stderr, flush=True)
        os._exit(1)


@pytest.fixture
def cupy():
    """CuPy, with nothing of another test under way or in the memory pool."""
    import cupy

    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy


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


# ---- A smoke: every kernel function once

FUNCTIONS = sorted(
    name
    for path in KERNELS.glob("*.cu")
    for name in re.findall(r"__global__ [^(]*?(?:__launch_bounds__\(.*?\)\s*)?(\w+)\(", path.read_text())
)
"""The functions that are launched."""


@cache
def launches():
    """The calls that launch a function, each with a variant and the device to plan it for, by the function's name.

    The first one of each variant, in the dtype that is the cheapest to compile, and of those that list blocks another
    one with overflowing tiles.
    """
    found = {name: {} for name in FUNCTIONS}
    calls = [call for dtype in ("int32", "float32", "uint8") for case in SHORT_CASES for call in calls_of(case, dtype)]
    for call, device in product((*calls, EVERY_CALL[-1]), (H200, ONE_THREAD)):
        for variant in gpufold.variants(call.operation):
            with suppress(gpufold.Unsupported):
                for plan in plans_of(call, variant, arrays_of(call), device):
                    overflowing = bool(plan.prologue) and len(call.read) > 1000
                    for symbol in symbols_of(plan):
                        found[symbol].setdefault((variant, overflowing), (call, variant, device))
    return {name: tuple(calls.values()) for name, calls in found.items()}


def symbols_of(plan):
    return [step.symbol for step in (*plan.prologue, plan)]


@pytest.mark.gpu
@pytest.mark.parametrize("function", FUNCTIONS)
def test_smoke(cupy, monkeypatch, function):
    """Planned as for the device whose size has the planner take the function; any GPU can run it."""
    from gpufold.gpu import launch

    calls = launches()[function]
    assert len(calls) == 2 or (calls and not function.startswith(("bins_", "add_blocks_binned")))
    for call, variant, device in calls:

        def decide(problem, device=device):
            plans = [plan for plan in candidates(replace(problem, device=device)) if function in symbols_of(plan)]
            return launch.tuning.Decision(plans[0], {}, False)

        monkeypatch.setattr(launch.tuning, "decide", decide)
        launch._prepare.cache_clear()
        with cupy.cuda.using_allocator(None):
            got = call.with_arrays_of(cupy).on(cupy.asarray(call.data), variant=variant)
            assert_answer(call, variant, cupy.asnumpy(got))
    launch._prepare.cache_clear()


# ---- Answers: the rows of tests/test_kernels.py


class Room:
    """An array where another lies: of the same strides, and at the same offset from an allocation."""

    def __init__(self, cupy, host):
        self.host = host
        low, high = byte_bounds(hostcuda.owner_of(host))
        self.bytes = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
        self.memory, self.offset = cupy.asarray(self.bytes), host.__array_interface__["data"][0] - low
        self.array = cupy.ndarray(host.shape, host.dtype, self.memory.data + self.offset, host.strides)

    def bring_back(self, where):
        """Bring the elements back to the host, once all around them is as it was."""
        memory = self.memory.get()
        self.host[...] = np.ndarray(self.host.shape, self.host.dtype, memory, self.offset, self.host.strides)
        assert (self.bytes == memory).all(), f"{where}: what lies around is written"


@pytest.mark.gpu
@pytest.mark.parametrize("number", [*range(3), *(pytest.param(n, marks=pytest.mark.many) for n in range(3, 20))])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_variant_is_the_numpy_path(cupy, row, number):
    """By the public function, on arrays where the draw puts them, into garbage.

    Arrays are allocated one by one, for in a memory pool's blocks an access past the end goes unseen.
    """
    from gpufold.gpu import launch

    what = drawn(row, number)
    what = what._replace(mode=MODES[what.seed % len(MODES)])
    call, before, view = drawn_call(row, what)
    arrays, wanted, there = arrays_of(call, before), expected(call, before), call.with_arrays_of(cupy)
    offsets = wide_offsets(choose, launch._prepare) if what.wide else nullcontext()
    with offsets, cupy.cuda.using_allocator(None):
        for variant in ("auto", *gpufold.variants(row.operation)):
            laid = laid_out(call, arrays, view, what, variant, natural=False)
            if before is None and row.operation != "add_blocks":
                laid.result[...] = garbage(laid.result.shape, laid.result.dtype)
            read, written = Room(cupy, laid.input), {"result": Room(cupy, laid.result)}
            if laid.weight_out is not None:
                written["weight_out"] = Room(cupy, laid.weight_out)
            given = {name: room.array for name, room in written.items()}
            with suppress(gpufold.Unsupported):
                there.into(read=read.array, variant=variant, **given)
                where = f"{row} {number}: {what}\n"
                for room in written.values():
                    room.bring_back(where)
                compare(call, before, what, variant, laid, wanted, where)


LARGE_CASES = (
    Case("three-by-three", (112, 112), (3, 3), 1, 1, 1, 1, batch=16, channels=64),
    Case("words", (112, 112), (3, 3), 2, 1, 1, 1, batch=8, channels=64),
    Case("patches", (512, 512), (16, 16), 16, batch=8, channels=3),
    Case("half-overlap", (512, 512), (16, 16), 8, batch=2, channels=3),
    Case("audio", (128_000,), (400,), 160, 1, 200, 200, batch=8, channels=1),
    Case("small-map-many-taps", (64, 64), (32, 32), batch=4, channels=1),
    SpaceCase("nchw", (16, 32, 56, 56), (1, 1, 2, 2), (0, 0, 1, 1), (0, 0, 1, 1)),
    SpaceCase("patches", (256, 3, 28, 28), (1, 1, 16, 16), (0, 0, 0, 3), (0, 0, 5, 0)),
)
"""They fill the device: with as many thread blocks under way as it holds, and others waiting."""

REPEATED = {
    **{str(case): partial(calls_of, case, np.float32) for case in SHORT_CASES},
    **{f"fills-the-device-{case}": partial(calls_of, case, np.float32) for case in LARGE_CASES},
    "windows": lambda: EVERY_CALL[len(EVERY_OPERATION) :],
}
"""What makes the calls, whose elements take long to draw."""


@pytest.mark.gpu
@pytest.mark.parametrize("make_calls", REPEATED.values(), ids=REPEATED)
def test_every_call_gives_the_same_bits_every_time(cupy, make_calls):
    """Repetitions are compared on the device: only what differs is ever brought to the host."""
    for call in make_calls():
        there, data, want = call.with_arrays_of(cupy), cupy.asarray(call.data), call.on(call.data)
        out, again = cupy.asarray(want), cupy.asarray(want)
        for variant in served(there, data, out):
            assert there.on(data, out=spoil(out), variant=variant) is out
            assert_answer(call, variant, cupy.asnumpy(out), want)
            bits = f"u{out.itemsize}"
            for _ in range(20) if call.exact(variant) else ():
                there.on(data, out=spoil(again), variant=variant)
                if int(cupy.count_nonzero(again.view(bits) != out.view(bits))):
                    assert_same_bits(cupy.asnumpy(again), cupy.asnumpy(out), f"{variant}: {call}")


# ---- Windows that are converted on the device


def strided(cupy, host):
    """An array with the elements of another, backwards and with gaps in memory; a copy to it would be contiguous."""
    return cupy.asarray(np.repeat(host[..., ::-1], 2, axis=-1))[..., ::-2]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint8, np.float16], ids=lambda dtype: dtype.__name__)
def test_windows_of_other_dtypes_and_strides_are_converted(cupy, dtype):
    full, first, second = (values(shape, dtype, 3) for shape in (SLIDING.kernel_size, *SLIDING.kernel_size))
    if dtype == np.float64:
        full[0, :2], first[0], second[:2] = (1e-40, 1e-50), -3e-41, (2e-39, 1e-320)  # denormal, and less, in float32
    for call, window in product((FOLD, UNFOLD), (full, (first, second))):
        there = call.with_options(window=window).with_window(partial(strided, cupy))
        want = call.on(call.data, window=window)
        assert_same_bits(cupy.asnumpy(there.on(cupy.asarray(call.data))), want, f"{call} {dtype}")


# ---- Streams, graphs, devices, threads


@contextmanager
def held_up(stream):
    """Let a stream wait until the block ends."""
    opened = threading.Event()
    stream.launch_host_func(lambda opened: opened.wait(60), opened)
    yield
    opened.set()


def arrays_on(cupy, call):
    """Return what a call reads on the device, its data first, and the call of these."""
    there, data = call.with_arrays_of(cupy), cupy.asarray(call.data)
    return [data, *(each for each in there.arguments if isinstance(each, cupy.ndarray))], there


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_CALL, ids=attrgetter("operation"))
def test_a_call_waits_for_its_stream_and_the_caller_for_nothing(cupy, call):
    """While it is held up the stream receives all that is read, positions too, and the call; all else has ended."""
    arrays, there = arrays_on(cupy, call)
    sources = [each.copy() for each in arrays]
    data, out = arrays[0], cupy.asarray(call.on(call.data))
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.get_default_memory_pool()
    for variant in served(there, data, out):
        for array in arrays:
            array.data.memset_async(0, array.nbytes)
        cupy.cuda.Device().synchronize()
        with stream:  # whose part of the pool has the memory for lists then
            there.on(data, out=out, variant=variant)
            spoil(out)
        stream.synchronize()
        allocated = pool.total_bytes()
        with stream, held_up(stream):
            for array, source in zip(arrays, sources, strict=True):
                array.data.copy_from_device_async(source.data, source.nbytes, stream)
            there.on(data, out=out, variant=variant)
            assert pool.total_bytes() == allocated, "the device was asked for memory, which may wait for all it does"
            assert not stream.done, "the call waited for its own result"
            cupy.cuda.Stream.null.synchronize()
        stream.synchronize()
        assert_answer(call, variant, cupy.asnumpy(out))


@pytest.mark.gpu
@pytest.mark.parametrize("call", [*EVERY_CALL, FOLD.with_options(accumulate=True)], ids=attrgetter("operation"))
def test_a_captured_call_replays_on_other_data(cupy, call):
    """Positions are never looked at by the host, so that other ones serve the same graph; its lists are its own.

    Where it adds, it adds to what is there at each launch.
    """
    arrays, there = arrays_on(cupy, call)
    data, out = arrays[0], cupy.zeros(call.described().result_shape, call.described().dtype)
    moved = tuple(each + 1 if getattr(each, "dtype", None) == np.int64 else each for each in call.arguments)
    other = replace(call, data=values(call.data.shape, call.data.dtype, seed=99), arguments=moved)
    for variant in served(there, data, out):
        stream, graph = captured(cupy, partial(there.on, data, out=out, variant=variant))
        with stream:
            for turn, each in enumerate((call, other, call)):
                given = [each.data, *(argument for argument in each.arguments if isinstance(argument, np.ndarray))]
                before = values(out.shape, out.dtype, turn)
                for array, host in zip([*arrays, out], [*given, before], strict=True):
                    array.set(host, stream)
                graph.launch(stream)
                stream.synchronize()
                assert_answer(each, variant, cupy.asnumpy(out), each.on(each.data, out=before.copy()), before)


@pytest.mark.gpu
def test_after_a_warmup_the_first_call_only_launches(cupy, monkeypatch):
    from gpufold.gpu import launch

    case = Case("compiled-by-no-other-test", (11, 19), (5, 7), (2, 3), 1, (1, 4), (2, 3))
    for call in calls_of(case, np.float32):
        launch._function.cache_clear()
        launch._prepare.cache_clear()
        plan = gpufold.warmup(call.operation, (call.data.shape, "float32"), *call.arguments, **call.options)
        assert plan == gpufold.explain(call.operation, cupy.asarray(call.data), *call.arguments, **call.options).plan
        with monkeypatch.context() as patch:
            patch.setattr(cupy, "RawKernel", lambda *_, **__: pytest.fail("compiled again"))
            data, out = cupy.asarray(call.data), spoil(cupy.asarray(call.on(call.data)))
            stream, graph = captured(cupy, partial(call.on, data, out=out))
            graph.launch(stream)
            stream.synchronize()
        assert_answer(call, "auto", cupy.asnumpy(out))


@pytest.mark.gpu
def test_a_first_call_in_a_capture_names_warmup_where_cuda_refuses_to_load_its_kernel(cupy):
    """Newer drivers may load it; whichever they do, the call after the capture computes."""
    case = Case("called-by-no-other-test", (13, 17), (3, 6), (2, 5), 1, (1, 4), (2, 3))
    for call in calls_of(case, np.float32):
        data, out = cupy.asarray(call.data), spoil(cupy.asarray(call.on(call.data)))
        try:
            stream, graph = captured(cupy, partial(call.on, data, out=out))
        except RuntimeError as error:
            assert "gpufold.warmup" in str(error)  # noqa: PT017  there may be none
            call.on(data, out=out)
        else:
            graph.launch(stream)
            stream.synchronize()
        assert_answer(call, "auto", cupy.asnumpy(out))


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_OPERATION, ids=attrgetter("operation"))
def test_each_device_computes_what_lies_on_it_and_into_nothing_elsewhere(cupy, call):
    devices, want = range(cupy.cuda.runtime.getDeviceCount()), call.on(call.data)
    for number, current in product(devices, devices):
        with cupy.cuda.Device(number):
            data = cupy.asarray(call.data)
        with cupy.cuda.Device(current):
            result = call.on(data)
            assert cupy.cuda.runtime.getDevice() == current
            assert result.device == data.device
            assert_same_bits(cupy.asnumpy(result), want, f"device {number}: {call}")
            if number != current:
                with pytest.raises(ValueError, match="out must be on the device of"):
                    call.on(data, out=cupy.empty(want.shape, want.dtype))


OFF_THE_CURRENT_DEVICE = {
    "weights": lambda image, tiles, places, weights: gpufold.add_blocks(image, tiles, places, weights=weights),
    "fill_value": lambda image, tiles, *_: gpufold.blocks_to_array(
        tiles.reshape(3, 1, 4, 5), (13, 5), (4, 5), strides=(4, 5), reduction="mean", fill_value=7
    ),
    "Stitcher": lambda image, tiles, places, weights: stitched(tiles, places, weights),
    "map_tiles": lambda image, *_: gpufold.map_tiles(lambda tiles: tiles, image, (4, 5), strides=(3, 4)),
}


def stitched(tiles, places, weights):
    stitcher = gpufold.Stitcher((20, 30), (4, 5), reduction="mean")
    stitcher.add(tiles, places, weights=weights)
    return stitcher.result()


@pytest.mark.gpu
@pytest.mark.parametrize("call", OFF_THE_CURRENT_DEVICE)
def test_what_takes_several_steps_takes_them_all_on_the_device_of_its_arrays(cupy, call):
    arrays = (
        np.arange(600, dtype=np.float32).reshape(20, 30),
        np.arange(60, dtype=np.float32).reshape(3, 4, 5),
        np.array([[0, 0], [3, 4], [7, 7]]),
        np.array([1, 2, 3], np.float32),
    )
    with cupy.cuda.Device(cupy.cuda.runtime.getDeviceCount() - 1):
        there = [cupy.asarray(array) for array in arrays]
    result = OFF_THE_CURRENT_DEVICE[call](*there)
    assert result.device == there[0].device
    assert_same_bits(cupy.asnumpy(result), OFF_THE_CURRENT_DEVICE[call](*arrays))


@pytest.mark.gpu
def test_many_threads_call_at_once(cupy):
    problems = [
        call
        for seed in range(12)
        for case in (cases.random_case(seed), cases.random_space_case(seed))
        for call in calls_of(case, DTYPES[seed % len(DTYPES)])
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


# ---- Memory


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_OPERATION, ids=attrgetter("operation"))
def test_a_call_allocates_its_result_alone_and_keeps_nothing(cupy, call):
    data, out, sizes = cupy.asarray(call.data), cupy.asarray(call.on(call.data)), []
    pool = cupy.get_default_memory_pool()

    def noted(size):
        sizes.append(size)
        return pool.malloc(size)

    gc.collect()  # what earlier tests left in cycles
    used = pool.used_bytes()
    for variant in served(call, data, out):
        with cupy.cuda.using_allocator(noted):
            result = call.on(data, variant=variant)
            call.on(data, out=result, variant=variant)
        assert sizes == [result.nbytes], variant
        sizes.clear()
        del result
        assert pool.used_bytes() == used, variant


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


# ---- Past 2**31 elements: zeros but for marks at both ends, which arrive at their places, and nothing anywhere else


@pytest.fixture
def most_of_the_memory(cupy):
    """Let no other test of many GB run at a time, whatever the number of processes, and leave nothing in the pool."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        cupy.cuda.Device().synchronize()
        cupy.get_default_memory_pool().free_all_blocks()


AS_IT_IS = (0, 1, 2, 3, 4)
ON_A_GRID = {
    "col2im": (0, 2, 4, 1, 3),
    "im2col": AS_IT_IS,
    "blocks_to_array": (0, 1, 3, 2, 4),
    "array_to_blocks": AS_IT_IS,
    "batch_to_space": (2, 4, 0, 1, 3),
    "space_to_batch": AS_IT_IS,
}
"""In which order what an operation reads has the axes (channels, height/2, 2, width/2, 2) in memory."""


def on_a_grid(cupy, extents, operation, dtype, **options):
    """The first and last rows of an array of these extents that is taken into blocks of 2x2, or made of them."""
    channels, height, width = extents
    cases = (
        Case("grid", (height, width), (2, 2), 2, batch=1, channels=channels),
        BlocksCase("grid", (1, *extents), (2, 2), (2, 2)),
        SpaceCase("grid", (4, channels, height // 2, width // 2), (1, 1, 2, 2), (0,) * 4, (0,) * 4),
    )
    (case,) = (case for case in cases if operation in case.operations)
    places, arrays, rows = [], [], min(8, height // 2)
    for each in sorted(case.operations, key=lambda name: name != operation):  # whose result the other reads
        arrays.append(cupy.zeros(GIVEN[each](case)[0], dtype))
        sizes = [(channels, height // 2, 2, width // 2, 2)[axis] for axis in ON_A_GRID[each]]
        by_blocks = arrays[-1].reshape(sizes).transpose(*np.argsort(ON_A_GRID[each]).tolist())
        places.append((by_blocks[0, :rows], by_blocks[-1, -rows:]))
    (data, result), (_, arguments, steps) = arrays, GIVEN[operation](case)
    if not options.get("accumulate"):
        spoil(result)
    return *places, result, partial(getattr(gpufold, operation), data, *arguments, **steps, **options, out=result)


def at_positions(cupy, extents, operation, dtype, many=False, **options):
    """Blocks at both corners of an array of these extents, or, as many as these say, of a small one; others outside."""
    lead, size, count, block = extents[: extents[0] > 1], extents[1:], 5, (8, 8)
    if many:
        lead, (count, *block) = (), extents
        size = 2 * block[0], block[1]
    array, blocks = cupy.zeros((*lead, *size), dtype), cupy.zeros((count, *lead, *block), dtype)
    positions = np.full((count, 2), -max(block))
    positions[0], positions[1], positions[-2] = 2**63 - 1, 0, np.subtract(size, block)
    first, last, (height, width) = [0] * len(lead), [-1] * len(lead), block
    corners = array[(*first, slice(height), slice(width))], array[(*last, slice(-height, None), slice(-width, None))]
    ends = blocks[(1, *first)], blocks[(-2, *last)]
    if operation == "add_blocks":
        return ends, corners, array, partial(gpufold.add_blocks_, array, blocks, cupy.asarray(positions), **options)
    taking = partial(gpufold.take_blocks, array, cupy.asarray(positions), block, out=spoil(blocks), **options)
    return corners, ends, blocks, taking


def check_marks(cupy, of, extents, operation, options):
    """Let a variant refuse what it is named for; auto serves everything."""
    dtype = {"atomic": np.int32, "fused": np.float16}.get(options.get("variant", "fused"), np.uint8)
    given, arrived, result, call = of(cupy, extents, operation, dtype, **options)
    marks = np.random.default_rng(5).integers(1, 50, (2, *given[0].shape)).astype(dtype)
    for place, mark in zip(given, marks, strict=True):
        place[...] = cupy.asarray(mark)
    try:
        call()
    except gpufold.Unsupported:
        assert options.get("variant", "auto") != "auto"
        return
    for place, mark in zip(arrived, marks, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(place), mark)
    flat, step = result.ravel(), 2**28  # in pieces, for CuPy's own reductions take memory and time with 64 bits
    assert marks.size == sum(int(cupy.count_nonzero(flat[at : at + step])) for at in range(0, flat.size, step))


PLANES, PLANE = ((2052, 1024, 1024), (6, 20, 30)), ((1, 46_344, 46_344), (1, 40, 70))
"""Extents past 2**31 elements, and of few on the same terms: many planes, and one."""

MEAN = {"reduction": "mean", "fill_value": 0}
PAST_32_BITS = [
    *(
        (of, extents, operation, {"variant": variant} | many)
        for of, operations, extents, many in (
            *((on_a_grid, ON_A_GRID, extents, {}) for extents in (PLANES, PLANE)),
            *((at_positions, ("add_blocks", "take_blocks"), extents, {}) for extents in (PLANES, PLANE)),
            (at_positions, ("add_blocks", "take_blocks"), PLANES, {"many": True}),
        )
        for operation in operations
        for variant in ("auto", *gpufold.variants(operation))
    ),
    *(
        (on_a_grid, extents, operation, fused)
        for extents in (PLANES, PLANE)
        for operation, fused in (("col2im", MEAN), ("col2im", {"accumulate": True}), ("blocks_to_array", MEAN))
    ),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("of", "extents", "operation", "options"), PAST_32_BITS)
def test_past_two_to_the_31_elements(cupy, most_of_the_memory, of, extents, operation, options):
    assert prod(extents[0]) > 2**31
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 20e9:
        pytest.xfail(f"needs 20 GB of GPU memory, {free:,} bytes are free")
    check_marks(cupy, of, extents[0], operation, options)


@pytest.mark.gpu
@pytest.mark.parametrize(("of", "extents", "operation", "options"), PAST_32_BITS)
def test_what_is_checked_past_two_to_the_31_elements_holds_below(cupy, of, extents, operation, options):
    check_marks(cupy, of, extents[1], operation, options)


# ---- What is made of kernels: chunks of dask


@pytest.mark.gpu
@pytest.mark.peer("dask")
@pytest.mark.parametrize("call", [*EVERY_CALL, TAKEN_BEYOND], ids=attrgetter("operation"))
def test_dask_chunks_on_the_gpu_give_the_same(cupy, call):
    import dask.array as da

    import gpufold.dask

    def lazy(array):  # but for positions, which are not chunked
        is_data = isinstance(array, np.ndarray) and array.dtype.kind == "f"
        return da.from_array(cupy.asarray(array), 7, asarray=False) if is_data else array

    options = call.with_arrays_of(cupy).options
    result = getattr(gpufold.dask, call.operation)(*map(lazy, (call.data, *call.arguments)), **options)
    got = result.compute(scheduler="synchronous")
    assert isinstance(result._meta, cupy.ndarray)
    assert isinstance(got, cupy.ndarray)
    assert_same_bits(cupy.asnumpy(got), call.on(call.data), call)
