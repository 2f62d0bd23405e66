"""On a GPU: every variant gives the NumPy path's answer, in the current stream, and takes nothing but its result.

Deterministic variants give its bits. The tests that `make sanitize` runs have `sanitize` in their names.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from cases import (
    CASES,
    DTYPES,
    EMPTY_CASES,
    FUSIONS,
    INEXACT,
    POSITIONS_CASES,
    SPACE_CASES,
    Case,
    SpaceCase,
    assert_same_bits,
    random_case,
    random_space_case,
    values,
    window_of,
)

import gpufold
from gpufold.plan import ELEMENT_TYPES
from gpufold.sources import KERNELS

GARBAGE = 0xA5
"""What every byte of an output holds before a call."""


@dataclass(frozen=True)
class Call:
    """A call of a public function on a NumPy array, to be repeated on the GPU."""

    operation: str
    data: np.ndarray[Any, Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operation} of {self.data.dtype} {self.data.shape}, {self.arguments}, {self.options}"

    def on(self, data, **options):
        """Call with other data of the same shape."""
        return getattr(gpufold, self.operation)(data, *self.arguments, **self.options, **options)

    def exact(self, variant):
        """Whether a variant gives the same bits on every run."""
        return variant != "atomic" or ELEMENT_TYPES[self.data.dtype.name].exact


def calls_of(case, dtype, seed=0):
    """Both operations of a problem."""
    if isinstance(case, SpaceCase):
        margins = (case.block_shape, case.crops_begin, case.crops_end)
        return (
            Call("batch_to_space", values(case.batch_shape, dtype, seed), margins),
            Call("space_to_batch", values(case.space_shape, dtype, seed), margins),
        )
    columns, image = values(case.columns_shape, dtype, seed), values(case.image_shape, dtype, seed)
    return (
        Call("col2im", columns, (case.output_size, case.kernel_size), case.arguments),
        Call("im2col", image, (case.kernel_size,), case.arguments),
    )


EVERY_OPERATION = (
    *calls_of(Case("sliding", (9, 13), (3, 2), (2, 1), (1, 2), (1, 0), (0, 2), channels=5), np.dtype(np.float32)),
    *calls_of(SpaceCase("space", (8, 3, 5, 6), (1, 1, 2, 2), (0, 0, 1, 0), (0, 0, 0, 2)), np.dtype(np.float32)),
)

SHORT_CASES = (
    Case("planes", (7, 9), (3, 3), 1, 1, 1, 1, channels=5),
    Case("words", (6, 16), (3, 4), 2, 1, 1, 1, batch=1, channels=4),
    Case("staged-cells", (3, 5 * 40 + 2), (2, 7), (1, 5), 1, 1, 1, batch=1, channels=2),
    Case("phases", (1600,), (400,), 160, 1, 200, 200, batch=1, channels=1),
    Case("many-taps", (5, 9), (20, 18), 1, 1, (15, 13), (14, 14), batch=1, channels=1),
    SpaceCase("interleave", (8, 3, 5, 8), (1, 1, 2, 2), (0, 0, 1, 0), (0, 0, 0, 2)),
    SpaceCase("wide-block", (33, 2, 5), (1, 1, 33), (0, 0, 7), (0, 0, 3)),
    SpaceCase("channels-last", (8, 3, 5, 3), (1, 2, 2, 1), (0, 1, 0, 0), (0, 0, 1, 0)),
)
"""Few and small, yet they run every kernel: compute-sanitizer slows each many times."""

SHORT_DTYPES = tuple(np.dtype(name) for name in ("uint8", "float16", "int32", "float32", "complex128"))


@pytest.fixture
def cupy():
    """CuPy, with nothing of another test under way or in the memory pool."""
    import cupy

    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy


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
        bound = taps * (kind.eps * call.on(abs(data)) + kind.tiny)
        assert (abs(got - want) <= bound).all(), message


def check_variants(cupy, call, names=None):
    """Run the variants that serve a call into garbage, and compare; give their names."""
    want, data = call.on(call.data), cupy.asarray(call.data)
    served = []
    for variant in names or ("auto", *gpufold.variants(call.operation)):
        out = spoil(cupy.empty(want.shape, want.dtype))
        with suppress(gpufold.Unsupported):
            assert call.on(data, out=out, variant=variant) is out
            assert_answer(call, variant, cupy.asnumpy(out), want, call.data)
            served.append(variant)
    assert served[: not names] == ([] if names else ["auto"])
    assert_same_bits(cupy.asnumpy(data), call.data, "the input is as it was")
    return served


# ---------------------------------------------------------------------------------------------
# Answers


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *EMPTY_CASES, *SPACE_CASES], ids=str)
def test_every_variant_is_the_numpy_path(cupy, case):
    dtype = DTYPES[[*CASES, *EMPTY_CASES, *SPACE_CASES].index(case) % len(DTYPES)]
    for call in (*calls_of(case, dtype), *calls_of(case, np.dtype(np.float32))):
        check_variants(cupy, call)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SHORT_CASES, ids=str)
def test_every_dtype_is_the_numpy_path(cupy, case, dtype):
    for call in calls_of(case, dtype):
        check_variants(cupy, call)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(40))
def test_random_problems_are_the_numpy_path(cupy, seed):
    dtype = DTYPES[seed % len(DTYPES)]
    for call in (*calls_of(random_case(seed), dtype, seed), *calls_of(random_space_case(seed), dtype, seed)):
        check_variants(cupy, call)


@pytest.mark.gpu
@pytest.mark.many
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_many_random_problems_are_the_numpy_path(cupy, seed):
    test_random_problems_are_the_numpy_path(cupy, seed)


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


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHORT_CASES, ids=str)
def test_deterministic_variants_repeat_their_bits(cupy, case):
    for call in calls_of(case, np.dtype(np.float32)):
        data = cupy.asarray(call.data)
        first = cupy.asnumpy(call.on(data))
        for _ in range(20):
            assert_same_bits(cupy.asnumpy(call.on(data)), first, call)


# ---------------------------------------------------------------------------------------------
# Layouts: a view of more room; the room's other elements stay as they are

LAYOUTS = {
    "backwards": (1, lambda room: room[(slice(None, None, -1),) * room.ndim]),
    "gaps-in-rows": (2, lambda room: room[tuple(slice(None, extent // 2) for extent in room.shape[:-1])][..., ::2]),
    "gaps-everywhere": (2, lambda room: room[(slice(1, None, 2),) * room.ndim]),
    "off-by-one": (2, lambda room: room[tuple(slice(1, 1 + extent // 2) for extent in room.shape)]),
}


def in_layout(host, layout):
    """The room for an array in a layout, with the array in it and garbage around."""
    times, view = LAYOUTS[layout]
    room = np.full([times * extent for extent in host.shape], GARBAGE, np.uint8).astype(host.dtype)
    view(room)[...] = host
    return room


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", SHORT_DTYPES, ids=str)
@pytest.mark.parametrize("case", SHORT_CASES, ids=str)
def test_inputs_and_outputs_of_any_strides_are_used_in_place(cupy, case, dtype, layout):
    _, view = LAYOUTS[layout]
    for call in calls_of(case, dtype):
        want = call.on(call.data)
        data = view(cupy.asarray(in_layout(call.data, layout)))
        for variant in ("auto", *gpufold.variants(call.operation)):
            room = cupy.asarray(in_layout(np.zeros_like(want), layout))
            with suppress(gpufold.Unsupported):
                call.on(data, out=view(room), variant=variant)
                got, expected = cupy.asnumpy(room), in_layout(want, layout)
                if call.exact(variant):
                    assert_same_bits(got, expected, f"{variant}: {call}")
                else:
                    assert_answer(call, variant, view(got), want, call.data)


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHORT_CASES, ids=str)
def test_transposed_inputs_need_no_copy(cupy, case):
    for call in calls_of(case, np.dtype(np.float32)):
        order = tuple(reversed(range(call.data.ndim)))
        turned = cupy.asarray(np.ascontiguousarray(call.data.transpose(order))).transpose(order)
        assert_same_bits(cupy.asnumpy(call.on(turned)), call.on(call.data), call)


@pytest.mark.gpu
def test_one_plane_can_stand_for_all(cupy):
    for call in EVERY_OPERATION:
        first = call.data[:1]
        data = cupy.broadcast_to(cupy.asarray(first), call.data.shape)
        want = call.on(np.broadcast_to(first, call.data.shape))
        assert_same_bits(cupy.asnumpy(call.on(data)), want, call)


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
@pytest.mark.parametrize("call", EVERY_OPERATION, ids=lambda call: call.operation)
def test_a_call_waits_for_its_stream_and_the_caller_for_nothing(cupy, call):
    """Behind a gate the stream receives the data and the call; everything else in the device ends before it opens."""
    want, source = call.on(call.data), cupy.asarray(call.data)
    for variant in ("auto", *gpufold.variants(call.operation)):
        data, out = cupy.zeros_like(source), cupy.empty(want.shape, want.dtype)
        try:
            call.on(data, out=out, variant=variant)  # loads the kernel, which may wait for the device
        except gpufold.Unsupported:
            continue
        spoil(out)
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, Gate(stream):
            data.data.copy_from_device_async(source.data, source.nbytes, stream)
            call.on(data, out=out, variant=variant)
            assert not stream.done, "the call waited for its own result"
            cupy.cuda.Stream.null.synchronize()
        stream.synchronize()
        assert_answer(call, variant, cupy.asnumpy(out), want, call.data)


@pytest.mark.gpu
@pytest.mark.parametrize("call", EVERY_OPERATION, ids=lambda call: call.operation)
def test_a_captured_call_replays_on_other_data(cupy, call):
    other = values(call.data.shape, call.data.dtype, seed=99)
    for variant in ("auto", *gpufold.variants(call.operation)):
        data, out = cupy.asarray(call.data), cupy.empty_like(cupy.asarray(call.on(call.data)))
        try:
            call.on(data, out=out, variant=variant)
        except gpufold.Unsupported:
            continue
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)  # allocating or waiting is an error
            call.on(data, out=out, variant=variant)
            graph = stream.end_capture()
            for host in (call.data, other, call.data):
                data.set(host, stream)
                spoil(out)
                graph.launch(stream)
                stream.synchronize()
                assert_answer(call, variant, cupy.asnumpy(out), call.on(host), host)


@pytest.mark.gpu
def test_after_a_warmup_the_first_call_only_launches(cupy, monkeypatch):
    from gpufold import launch

    case = Case("compiled-by-no-other-test", (11, 19), (5, 7), (2, 3), 1, (1, 4), (2, 3))
    for call in calls_of(case, np.dtype(np.float32)):
        launch._module.cache_clear()
        launch._function.cache_clear()
        launch._prepare.cache_clear()
        plan = gpufold.warmup(call.operation, (call.data.shape, "float32"), *call.arguments, **call.options)
        assert plan == gpufold.explain(call.operation, cupy.asarray(call.data), *call.arguments, **call.options).plan
        with monkeypatch.context() as patch:
            patch.setattr(cupy, "RawModule", lambda *_, **__: pytest.fail("compiled again"))
            data, want = cupy.asarray(call.data), call.on(call.data)
            out = spoil(cupy.empty(want.shape, want.dtype))
            cupy.cuda.Device().synchronize()
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
                call.on(data, out=out)
                stream.end_capture().launch(stream)
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


def by_blocks(array, operation, channels, height, width):
    """View an array of 2x2 blocks, whichever side of an operation it is, as (channels, height/2, 2, width/2, 2)."""
    if operation == "image":
        return array.reshape(channels, height // 2, 2, width // 2, 2)
    if operation == "columns":
        return array.reshape(channels, 2, 2, height // 2, width // 2).transpose(0, 3, 1, 4, 2)
    return array.reshape(2, 2, channels, height // 2, width // 2).transpose(2, 3, 0, 4, 1)


SIDES = {
    "col2im": ("columns", "image"),
    "im2col": ("image", "columns"),
    "batch_to_space": ("batch", "image"),
    "space_to_batch": ("image", "batch"),
}


def shape_of(side, channels, height, width):
    return {
        "image": (1, channels, height, width),
        "columns": (1, 4 * channels, height * width // 4),
        "batch": (4, channels, height // 2, width // 2),
    }[side]


@pytest.mark.gpu
@pytest.mark.parametrize("extents", [(2052, 1024, 1024), (1, 46_344, 46_344)], ids=["many-planes", "one-plane"])
@pytest.mark.parametrize(
    ("operation", "variant"),
    [(operation, variant) for operation in SIDES for variant in ("auto", *gpufold.variants(operation))],
)
def test_past_two_to_the_31_elements(cupy, operation, variant, extents):
    """Marked elements at both ends arrive at their places, and nothing anywhere else."""
    dtype = np.dtype(np.int32 if variant == "atomic" else np.uint8)
    needed = int(2.1 * dtype.itemsize * np.prod(extents, dtype=np.int64))
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < needed:
        pytest.xfail(f"needs {needed:,} bytes of GPU memory, {free:,} are free")
    source, target = SIDES[operation]
    data = cupy.zeros(shape_of(source, *extents), dtype)
    result = cupy.empty(shape_of(target, *extents), dtype)
    assert data.size > 2**31
    spoil(result)
    marks = np.random.default_rng(5).integers(1, 100, (2, 8, 2, extents[2] // 2, 2)).astype(dtype)
    by_blocks(data, source, *extents)[0, :8] = cupy.asarray(marks[0])
    by_blocks(data, source, *extents)[-1, -8:] = cupy.asarray(marks[1])
    arguments, options = {
        "col2im": ((extents[1:], (2, 2)), {"strides": 2}),
        "im2col": (((2, 2),), {"strides": 2}),
    }.get(operation, (((1, 1, 2, 2),), {}))
    try:
        getattr(gpufold, operation)(data, *arguments, **options, out=result, variant=variant)
    except gpufold.Unsupported:
        if variant == "auto":
            raise
        return
    arrived = by_blocks(result, target, *extents)
    np.testing.assert_array_equal(cupy.asnumpy(arrived[0, :8]), marks[0])
    np.testing.assert_array_equal(cupy.asnumpy(arrived[-1, -8:]), marks[1])
    flat = result.ravel()
    step = 2**28
    nonzero = sum(int(cupy.count_nonzero(flat[start : start + step])) for start in range(0, flat.size, step))
    assert nonzero == marks.size


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
def test_an_output_inside_the_input_is_refused(cupy):
    data = cupy.zeros((1, 4, 4), np.float32)
    with pytest.raises(ValueError, match="out must share no memory with image"):
        gpufold.im2col(data, (1, 1), out=data.reshape(1, 1, 16)[0])


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
        with pytest.raises(ValueError, match="variant must be auto or one of"):
            gpufold.col2im(data, (4, 4), (2, 2), variant="quick")
        with pytest.raises(ValueError, match=r"more than the \d+ that an array can have"):
            gpufold.im2col(data[None], (1, 1), pads_begin=2**62)
    assert hook.sizes == []


# ---------------------------------------------------------------------------------------------
# Means, windows, accumulation, blocks in a layout of their own


def fused_calls(case, dtype, fusion):
    """col2im, with an image to add to or None, and im2col with the same window."""
    reduction, kind, accumulate = fusion
    window = window_of(kind, case.kernel_size, dtype)
    columns, image = values(case.columns_shape, dtype), values(case.image_shape, dtype, 1)
    fold = case.arguments | {"reduction": reduction, "window": window}
    yield Call("col2im", columns, (case.output_size, case.kernel_size), fold), image if accumulate else None
    yield Call("im2col", image, (case.kernel_size,), case.arguments | {"window": window}), None


def check_fused(cupy, call, before):
    """Compare every variant that serves a call, window and what is added to on the GPU too, with the NumPy path."""
    options = {} if before is None else {"accumulate": True}
    want = call.on(call.data, **options, out=None if before is None else before.copy())
    window = call.options["window"]
    if window is not None:
        window = tuple(map(cupy.asarray, window)) if isinstance(window, tuple) else cupy.asarray(window)
    on_gpu = Call(call.operation, call.data, call.arguments, call.options | {"window": window})
    for variant in ("auto", *gpufold.variants(call.operation)):
        out = spoil(cupy.empty(want.shape, want.dtype)) if before is None else cupy.asarray(before)
        with suppress(gpufold.Unsupported):
            on_gpu.on(cupy.asarray(call.data), **options, out=out, variant=variant)
            if call.exact(variant):
                assert_same_bits(cupy.asnumpy(out), want, f"{variant}: {call}")


@pytest.mark.gpu
@pytest.mark.parametrize("fusion", FUSIONS, ids=str)
@pytest.mark.parametrize("case", SHORT_CASES[:5], ids=str)
def test_fusions_are_the_numpy_path(cupy, case, fusion):
    for dtype in INEXACT:
        for call, before in fused_calls(case, dtype, fusion):
            check_fused(cupy, call, before)


@pytest.mark.gpu
@pytest.mark.parametrize("fusion", [("mean", "full", True), ("least_squares", "separable", False)], ids=str)
@pytest.mark.parametrize("case", SHORT_CASES[:5], ids=str)
def test_sanitize_fusions(cupy, case, fusion):
    with cupy.cuda.using_allocator(None):
        for dtype in (np.dtype(np.float16), np.dtype(np.float32)):
            for call, before in fused_calls(case, dtype, fusion):
                check_fused(cupy, call, before)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SHORT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "block", "steps"),
    [
        ((9,), (3,), 2),
        ((5, 33, 35), (8, 8), 1),
        ((2, 3, 64, 48), (16, 16), (8, 16)),
        ((2, 2, 2, 7, 8, 9), (3, 2, 4), 2),
    ],
    ids=str,
)
def test_blocks_are_the_numpy_path(cupy, shape, block, steps, dtype):
    array = values(shape, dtype)
    taken = Call("array_to_blocks", array, (block, steps))
    put = Call("blocks_to_array", taken.on(array), (shape, block, steps))
    for call in (taken, put):
        check_variants(cupy, call)
    backwards = tuple(reversed(range(array.ndim - len(block)))) + tuple(range(array.ndim - len(block), array.ndim))
    turned = array.transpose(backwards)
    got = gpufold.array_to_blocks(cupy.asarray(array).transpose(backwards), block, steps)
    assert_same_bits(cupy.asnumpy(got), gpufold.array_to_blocks(turned, block, steps))


def check_blocks_at_positions(cupy, case, dtype):
    """Both variants, blocks and window on the GPU, positions there and on the host."""
    out, blocks = values(case.shape, dtype), values(case.blocks_shape, dtype, 1)
    window = window_of("separable", case.block, dtype) if dtype in INEXACT else None
    want = gpufold.add_blocks(out.copy(), blocks, case.positions, window)
    weights = window and tuple(map(cupy.asarray, window))
    for variant in ("auto", *gpufold.variants("add_blocks")):
        for positions in (cupy.asarray(case.positions), case.positions.tolist()):
            got = cupy.asarray(out)
            with suppress(gpufold.Unsupported):
                assert gpufold.add_blocks(got, cupy.asarray(blocks), positions, weights, variant=variant) is got
                if variant != "atomic" or ELEMENT_TYPES[dtype.name].exact:
                    assert_same_bits(cupy.asnumpy(got), want, f"{variant}: {case} {dtype}")
                else:
                    bound = 1e-4 * abs(want).max() if want.size else 0
                    np.testing.assert_allclose(cupy.asnumpy(got), want, rtol=0, atol=bound)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", POSITIONS_CASES, ids=str)
def test_blocks_at_positions_are_the_numpy_path(cupy, case, dtype):
    check_blocks_at_positions(cupy, case, dtype)


@pytest.mark.gpu
def test_blocks_at_positions_can_be_captured_in_a_graph(cupy):
    """Positions are never looked at by the host, so that other ones serve the same graph."""
    case = POSITIONS_CASES[10]
    zeros, blocks = np.zeros(case.shape, np.float32), values(case.blocks_shape, np.float32)
    out, tiles, positions = cupy.asarray(zeros), cupy.asarray(blocks), cupy.asarray(case.positions)
    gpufold.add_blocks(out, tiles, positions)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        gpufold.add_blocks(out, tiles, positions)
        graph = stream.end_capture()
        for places in (case.positions + 1, case.positions):
            positions.set(places, stream)
            out.set(zeros, stream)
            graph.launch(stream)
            stream.synchronize()
            assert_same_bits(cupy.asnumpy(out), gpufold.add_blocks(zeros.copy(), blocks, places))


@pytest.mark.gpu
def test_a_captured_window_is_not_converted(cupy):
    """A graph would convert it anew, into memory that has long been another array's."""
    axes = tuple(map(cupy.asarray, window_of("separable", (3, 4), np.float32)))
    doubled = tuple(map(cupy.asarray, window_of("separable", (3, 4), np.float64)))
    columns = cupy.asarray(values((2, 24, 6), np.float32))
    out = cupy.empty((2, 2, 4, 6), np.float32)
    fold = partial(gpufold.col2im, columns, (4, 6), (3, 4), out=out)
    want = cupy.asnumpy(fold(window=axes))
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        with pytest.raises(ValueError, match="window must be contiguous and of float32 while a CUDA graph"):
            fold(window=doubled)
        fold(window=axes)
        graph = stream.end_capture()
        spoil(out)
        graph.launch(stream)
        stream.synchronize()
    assert_same_bits(cupy.asnumpy(out), want)


@pytest.mark.gpu
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
# For compute-sanitizer


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHORT_CASES, ids=str)
def test_sanitize_every_variant(cupy, case):
    """Arrays are allocated one by one, for in a memory pool's blocks an access past the end goes unseen."""
    dtypes = SHORT_DTYPES if case.name in ("planes", "interleave") else (np.dtype(np.float32), np.dtype(np.int32))
    with cupy.cuda.using_allocator(None):
        for dtype in dtypes:
            for call in calls_of(case, dtype):
                check_variants(cupy, call)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SHORT_DTYPES, ids=str)
def test_sanitize_blocks(cupy, dtype):
    with cupy.cuda.using_allocator(None):
        for call in short_blocks(dtype):
            check_variants(cupy, call)
        for case in (POSITIONS_CASES[3], POSITIONS_CASES[11], POSITIONS_CASES[14]):
            check_blocks_at_positions(cupy, case, dtype)


def short_blocks(dtype):
    """Dense overlaps of blocks in a layout of their own, both ways."""
    array = values((2, 12, 40), dtype)
    taken = Call("array_to_blocks", array, ((5, 6), 1))
    return taken, Call("blocks_to_array", taken.on(array), (array.shape, (5, 6), 1))


def sources_of(call, variant):
    with suppress(gpufold.Unsupported):
        yield gpufold.explain(call.operation, call.data, *call.arguments, **call.options, variant=variant).plan.source


def test_short_cases_run_every_kernel():
    """Needs no GPU: what compute-sanitizer sees leaves no file of kernels/ out."""
    blocks = Call("add_blocks", np.zeros((9, 9), np.int32), (((5, 3, 3), np.int32), ((5, 2), np.int64)))
    planned = {
        source
        for dtype in (np.dtype(np.float32), np.dtype(np.int32))
        for call in (*(call for case in SHORT_CASES for call in calls_of(case, dtype)), *short_blocks(dtype), blocks)
        for variant in gpufold.variants(call.operation)
        for source in sources_of(call, variant)
    }
    assert planned == {path.name for path in KERNELS.glob("*.cu")}


def test_garbage_surrounds_an_array_in_every_layout():
    """Needs no GPU: a layout gives the array back, from a room that is larger where it has gaps."""
    for dtype in DTYPES:
        host = values((3, 4, 5), dtype)
        for layout, (times, view) in LAYOUTS.items():
            room = in_layout(host, layout)
            assert_same_bits(view(room), host, layout)
            assert room.size == host.size * times**3
