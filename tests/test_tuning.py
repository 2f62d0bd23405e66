"""Races of kernels on the stand-in, by a clock that draws times: whichever wins, the bits are NumPy's."""

from __future__ import annotations

import io
import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 then
import numpy as np
import pytest
from cases import CASES, POSITIONS_CASES, assert_same_bits
from executors import calls_of
from processes import python
from test_gpu import EVERY_CALL, captured

import gpufold
from bench.hostcuda import fake_cupy
from bench.problems import PROBLEMS, of_batch
from gpufold.calls import Call as Description
from gpufold.gpu import launch, registry, tuning
from gpufold.gpu.plan import H200, Operand, Problem
from gpufold.operations import OPERATIONS

pytestmark = pytest.mark.hostcuda


def adding(number, dtype):
    return calls_of(POSITIONS_CASES[number], dtype)[0]


def taking(number, dtype):
    return calls_of(POSITIONS_CASES[number], dtype)[1]


FOLD = calls_of(CASES[0], np.float32)[0]
IN_PLACE, OF_FLOATS = (replace(adding(11, dtype), operation="add_blocks_") for dtype in (np.int32, np.float32))
RACED = (
    *EVERY_CALL,
    adding(3, np.float32),
    adding(11, np.int32),
    adding(11, np.float16),
    taking(11, np.uint8),
    *(call for dtype in ("uint8", "float16", "complex64") for call in calls_of(CASES[2], dtype)),
    replace(FOLD, options=FOLD.options | {"deterministic": True, "dtype": "float64"}),
    # What is added to, which a race must not add to.
    IN_PLACE,
    replace(OF_FLOATS, options={"weight_out": np.zeros((20, 70), np.float32)}),
    replace(FOLD, options=FOLD.options | {"accumulate": True, "out": FOLD.on(FOLD.data)}),
)


@pytest.fixture
def clock(cupy, monkeypatch):
    """A clock that draws times from a seed, and the launches that it was asked for."""

    class Clock:
        measured = 0
        draw = random.Random(0)

        def __call__(self, stream, flushed, size, run):
            self.measured += 1
            run()
            return self.draw.uniform(1e-6, 9e-6)

    monkeypatch.setattr(launch, "clock", drawn := Clock())
    return drawn


def answer(library, call):
    """Call with copies of all arrays in a library; return the result, and what else is written, of NumPy."""
    names = [name for name in ("out", "weight_out") if name in call.options]
    written = {name: library.asarray(call.options[name].copy()) for name in names}
    result = call.with_arrays_of(library).on(library.asarray(call.data.copy()), **written)
    return [fake_cupy.asnumpy(each) for each in (result, *written.values())]


def assert_answer(cupy, call, message=""):
    for got, want in zip(answer(cupy, call), answer(np, call), strict=True):
        assert_same_bits(got, want, message)


@pytest.mark.some(3)
@pytest.mark.parametrize(("seed", "call"), list(enumerate(RACED)), ids=lambda each: getattr(each, "operation", each))
def test_the_bits_are_numpys_before_during_and_after_a_race_whichever_wins(cupy, clock, call, seed):
    clock.draw = random.Random(seed)
    assert_answer(cupy, call, "before")
    assert not clock.measured, "nothing is measured that nobody asked for"
    with gpufold.autotune():
        assert_answer(cupy, call, "in the race")
        measured = clock.measured
        assert_answer(cupy, call, "after it")
    assert_answer(cupy, call, "outside")
    assert clock.measured == measured, "nothing is measured twice"


def test_a_call_that_was_made_before_takes_the_winner(cupy, monkeypatch):
    """What is prepared is remembered, by what was known."""
    launched, run = [], launch.Kernel.launch
    plans = tuple(registry.candidates(problem(FOLD, device(cupy))))
    *_, last = tuning.labels(plans)
    monkeypatch.setattr(launch.Kernel, "launch", lambda kernel, *given: launched.append(kernel) or run(kernel, *given))
    monkeypatch.setattr(tuning, "race", lambda runs, clock: {label: 1.0 if label == last else 2.0 for label in runs})
    answer(cupy, FOLD)
    with gpufold.autotune():
        answer(cupy, FOLD)
    answer(cupy, FOLD)
    rule, winner = (launch.Kernel.of(plan).function for plan in (plans[0], plans[-1]))
    assert [kernel.function for kernel in launched] == [rule, winner, winner]


@pytest.mark.parametrize("closed", [True, False])
def test_a_process_without_a_stderr_tunes_too(cupy, clock, monkeypatch, closed):
    if closed:
        (stderr := io.StringIO()).close()
    monkeypatch.setattr(sys, "stderr", stderr if closed else None)
    with gpufold.autotune():
        answer(cupy, FOLD)
    assert clock.measured
    assert tuning.file_of(device(cupy)).exists()


def test_a_kernel_that_fails_to_compile_is_left_out(cupy, clock, monkeypatch):
    _, other, *_ = plans = tuple(registry.candidates(problem(FOLD, device(cupy))))
    load = launch.load

    def fails(source, defines, symbol):
        if (symbol, defines) == (other.symbol, other.defines):
            raise cupy.cuda.compiler.CompileException("no such instruction")
        return load(source, defines, symbol)

    monkeypatch.setattr(launch, "load", fails)
    with gpufold.autotune():
        assert_answer(cupy, FOLD)
    (seconds,) = tuning.known(device(cupy)).values()
    assert set(seconds) == set(tuning.labels(plans)) - {tuning.labels(plans)[1]}


def test_an_array_with_gaps_is_raced_on_a_copy_of_its_memory(cupy, clock):
    """From its first byte on, where its first element lies last."""
    wide = np.zeros((*IN_PLACE.data.shape, 2), np.int32)
    wide[::-1, ..., 0] = IN_PLACE.data
    spread = cupy.asarray(wide)
    with gpufold.autotune():
        IN_PLACE.with_arrays_of(cupy).on(spread[::-1, ..., 0])
    assert clock.measured
    IN_PLACE.on(wide[::-1, ..., 0])
    assert_same_bits(cupy.asnumpy(spread), wide)


def test_atomics_of_floats_are_raced_only_where_any_order_is_allowed(cupy, clock):
    call = adding(11, np.float32)
    for deterministic, raced in ((True, False), (False, True)):
        with gpufold.autotune():
            answer(cupy, replace(call, options={"deterministic": deterministic}))
        labels = {label for seconds in tuning.known(device(cupy)).values() for label in seconds}
        assert ("atomic" in labels) is raced
        tuning._learned[device(cupy)].clear()


def device(cupy):
    return launch.device(launch.current())


def test_nothing_is_measured_compiled_or_allocated_in_a_capture(cupy, clock):
    data, out = cupy.asarray(FOLD.data), cupy.asarray(FOLD.on(FOLD.data))
    FOLD.on(data, out=out)
    pool = cupy.get_default_memory_pool()
    with gpufold.autotune():
        before = pool.used_bytes(), len(fake_cupy._loaded)
        stream, graph = captured(cupy, lambda: FOLD.on(data, out=out))
        assert (pool.used_bytes(), len(fake_cupy._loaded)) == before
        assert not clock.measured
        graph.launch(stream)
        stream.synchronize()
        FOLD.on(data, out=out)
    assert clock.measured
    assert_same_bits(cupy.asnumpy(out), FOLD.on(FOLD.data))


def test_another_thread_takes_the_rule_while_one_measures(cupy, clock):
    assert tuning.racing.acquire(blocking=False)
    try:
        with gpufold.autotune():
            assert_answer(cupy, FOLD)
        assert not clock.measured
    finally:
        tuning.racing.release()


def test_the_context_holds_for_its_thread_and_its_time(cupy, clock):
    with gpufold.autotune():
        other = threading.Thread(target=answer, args=(cupy, FOLD))
        other.start()
        other.join()
    with gpufold.autotune(timeout=0):
        answer(cupy, FOLD)
    answer(cupy, FOLD)
    assert not clock.measured


def test_where_memory_is_short_the_rule_stays_and_nothing_is_remembered(cupy, clock, monkeypatch):
    def full(size):
        raise cupy.cuda.memory.OutOfMemoryError("none left")

    monkeypatch.setattr(launch, "_scratch", full)
    with gpufold.autotune():
        assert_answer(cupy, adding(11, np.int32))
    assert not tuning.known(device(cupy))


def test_samples_are_taken_in_turns_of_what_does_not_fail_and_the_first_does_not_count():
    def fails():
        raise RuntimeError("no such thing")

    taken, times = [], iter([99.0, 99.0, 5, 1, 4, 2, 3, 3, 2, 4, 1, 5])
    runs = {name: lambda name=name: taken.append(name) for name in "ab"}
    seconds = tuning.race(runs | {"fails": fails}, lambda run: run() or next(times))
    assert taken == ["a", "b"] * 6
    assert seconds == {"a": 3, "b": 3}


def test_a_launch_is_timed_between_events_when_the_cache_is_full_of_other_memory(cupy, monkeypatch):
    log = []
    event = SimpleNamespace(record=lambda stream: log.append("event"), synchronize=lambda: log.append("wait"))
    monkeypatch.setattr(launch.cupy.cuda, "Event", lambda: event)
    monkeypatch.setattr(launch.cupy.cuda, "get_elapsed_time", lambda before, after: 2.0)
    monkeypatch.setattr(launch.cupy.cuda.runtime, "memsetAsync", lambda place, _, size, on: log.append((place, size)))
    stream = SimpleNamespace(ptr=0)
    assert launch.clock(stream, 4096, H200.l2_bytes, lambda: log.append("launch")) == 2e-3
    assert log == [(4096, H200.l2_bytes), "event", "launch", "event", "wait"]


def test_progress_is_printed_where_there_is_a_terminal(cupy, clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    terminal.isatty = lambda: True
    raced(cupy, clock)
    ((_, seconds),) = tuning.known(device(cupy)).items()
    assert all(word in terminal.getvalue() for word in ("gpufold.autotune: col2im ", *seconds))


def test_noise_changes_no_choice():
    plans = list(registry.candidates(problem(FOLD)))
    assert len(plans) > 1
    names = tuning.labels(plans)
    for share, wins in ((0.97, 0), (0.9, 1)):
        seconds = {names[0]: 1.0, names[1]: share}
        assert tuning._by_time(plans, seconds).plan is plans[wins]
    assert tuning._by_time(plans, {"no such variant": 1e-9}).plan is plans[0]


def problem(call, device=H200):
    described = OPERATIONS[call.operation].describe(call.data, *call.arguments, **call.options)
    result = described.result_shape
    return Problem(described, Operand.contiguous(call.data.shape), Operand.contiguous(result), device)


# ---- Files


def raced(cupy, clock):
    path = tuning.file_of(device(cupy))
    with gpufold.autotune():
        answer(cupy, FOLD)
        assert path.is_file(), "each result is written at once"
    return path


DAMAGED = {
    "torn": b'{"key": "x", "sec',
    "foreign": b"\xff\xfe garbage\x00\n[1]\n7\nnull\n",
    "negative": b'{"key": "KEY", "seconds": {"gather": -1.0}}\n',
    "not finite": b'{"key": "KEY", "seconds": {"gather": NaN, "gather_pixels": Infinity}}\n',
    "no numbers": b'{"key": "KEY", "seconds": {"gather": "soon"}}\n{"key": "KEY", "seconds": 3}\n{"key": "KEY"}\n',
    "too large": b'{"key": "KEY", "seconds": {"gather": 1%s}}\n' % (b"0" * 400),
    "deep": b"[" * 100_000,
    "other names": b'{"key": "OTHER", "seconds": {"no_variant": 1e-9}}\n',
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_changes_nothing_but_speed(cupy, clock, kind):
    path = raced(cupy, clock)
    ((key, learned),) = tuning.known(device(cupy)).items()
    whole = path.read_bytes()
    assert json.loads(whole)["operation"] == "col2im"
    path.write_bytes(whole + DAMAGED[kind].replace(b"KEY", key.encode()))
    tuning.forget()
    assert tuning.known(device(cupy))[key] == learned
    assert_answer(cupy, FOLD)
    tuning.remember(problem(FOLD, device(cupy)), "next", {"gather": 1.0})
    tuning.forget()
    assert tuning.known(device(cupy))["next"] == {"gather": 1.0}, "what is appended to a torn line is whole"


def test_a_file_of_other_kernels_is_not_read(cupy, clock, monkeypatch):
    raced(cupy, clock)
    tuning.digest.cache_clear()
    monkeypatch.setattr(Path, "read_bytes", lambda path, read=Path.read_bytes: read(path) + b"\n")
    assert not tuning._read(tuning.file_of(device(cupy)))


@pytest.mark.parametrize("refused", [(tuning, "open"), (Path, "mkdir")], ids=["file", "folder"])
def test_what_cannot_be_written_is_kept_in_memory_beside_what_is_read(cupy, clock, monkeypatch, refused):
    path = raced(cupy, clock)
    text, learned = path.read_text(), dict(tuning.known(device(cupy)))

    def refuse(*_, **named):
        raise PermissionError("read-only")

    monkeypatch.setattr(*refused, refuse, raising=False)
    tuning.forget()
    tuning.remember(problem(FOLD, device(cupy)), "next", {"gather": 1.0})
    assert tuning.known(device(cupy)) == {**learned, "next": {"gather": 1.0}}
    assert "; kept in memory alone: read-only" in str(explained(cupy))
    tuning.forget()
    assert tuning.known(device(cupy)) == learned
    assert path.read_text() == text


def test_files_of_the_package_are_known_and_the_users_count_more(cupy, monkeypatch, tmp_path):
    mine = device(cupy)
    monkeypatch.setattr(tuning, "KERNELS", tmp_path)
    for path, keys, seconds in ((tmp_path / "tuned" / tuning._name(mine), "ab", 1.0), (tuning.file_of(mine), "b", 2.0)):
        path.parent.mkdir()
        path.write_text("\n".join(json.dumps({"key": key, "seconds": {"gather": seconds}}) for key in keys))
    assert tuning.known(mine) == {"a": {"gather": 1.0}, "b": {"gather": 2.0}}


APPENDS = """
import sys
from gpufold.gpu import tuning
from test_tuning import FOLD, problem
for number in range(200):
    tuning.remember(problem(FOLD), f"{sys.argv[1]}-{number}", {"gather": 1.0, "filler": 2.0 + number})
"""


def test_processes_that_append_lose_no_line(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUFOLD_CACHE_DIR", str(tmp_path))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: python("-c", APPENDS, name), "ab"))
    assert len(tuning._read(tuning.file_of(H200))) == 400


SETTING = """
import gpufold
from gpufold.gpu import tuning
from gpufold.gpu.plan import H200
with gpufold.autotune():
    inside = tuning.wanted()
print(tuning.wanted(), inside, len(tuning.known(H200)))
"""


@pytest.mark.parametrize(("setting", "want"), [("", "False True 1"), ("1", "True True 1"), ("0", "False False 0")])
def test_the_environment_turns_it_on_and_off(monkeypatch, tmp_path, setting, want):
    monkeypatch.setenv("GPUFOLD_CACHE_DIR", str(tmp_path))
    tuning.file_of(H200).write_text(json.dumps({"key": "a", "seconds": {"gather": 1.0}}))
    assert python("-c", SETTING, GPUFOLD_AUTOTUNE=setting).strip() == want


# ---- Keys, explain and warmup


def key(call, *arrays):
    asked = Problem(call, *arrays)
    return tuning.key_of(asked, tuple(registry.candidates(asked)))


def test_batches_of_a_problem_meet_few_keys():
    counts = []
    for found in PROBLEMS[::3]:
        keys = set()
        for batch in range(1, 65):
            call = replace(found, geometry=of_batch(found.geometry, batch)).call("float32")
            keys.add(key(call, Operand.contiguous(call.data_shape), Operand.contiguous(call.result_shape)))
        counts.append(len(keys))
    assert sum(counts) / len(counts) <= 10, counts


def test_a_key_has_the_order_of_the_axes():
    columns, shape = Operand.contiguous((8, 72, 64)), (8, 8, 8, 8)
    geometry = gpufold.geometry.col2im_geometry(columns.shape, (8, 8), (3, 3), 1, 1, 1, 1)
    images = Operand.contiguous(shape), Operand(shape, (64, 512, 8, 1))
    assert len({key(Description("col2im", geometry, "float32"), columns, image) for image in images}) == 2


def explained(cupy):
    return gpufold.explain("col2im", cupy.asarray(FOLD.data), *FOLD.arguments, **FOLD.options)


def test_explain_says_what_was_measured_and_what_the_rule_would_take(cupy, clock):
    assert f"nothing was measured on {device(cupy).name}" in str(explained(cupy))
    with gpufold.autotune():
        why = explained(cupy)
    assert why.plan == why.rule, "until it is measured"
    raced(cupy, clock)
    ((key, seconds),) = tuning.known(device(cupy)).items()
    last = list(seconds)[-1]
    tuning.known(device(cupy))[key] = {**dict.fromkeys(seconds, 5e-5), last: 41.2e-6}
    why = explained(cupy)
    assert why.plan.variant == last.partition("/")[0]
    assert f"measured 41.2 us on {device(cupy).name} (" in str(why)
    assert f"the rule would take {why.rule.variant}" in str(why)


WARMED = {call.operation: call for call in (*EVERY_CALL, FOLD, adding(11, np.int32), taking(3, np.float32))}


@pytest.mark.parametrize("of", [str, np.dtype, lambda name: np.dtype(name).type], ids=["name", "dtype", "type"])
@pytest.mark.parametrize("call", WARMED.values(), ids=WARMED)
def test_a_warmup_measures_ahead(cupy, clock, call, of):
    described = (call.data.shape, of(call.data.dtype.name))
    arguments = list(call.arguments)
    if call.operation == "add_blocks":
        arguments[0] = (arguments[0].shape, of(arguments[0].dtype.name))
    plan = gpufold.warmup(call.operation, described, *arguments, autotune=True, **call.options)
    measured = clock.measured
    assert (measured > 0) is (len(gpufold.variants(call.operation)) > 1)
    with gpufold.autotune():
        assert_answer(cupy, call)
    assert clock.measured == measured
    assert plan.variant in gpufold.variants(call.operation)


def test_a_warmup_measures_the_layout_of_a_numpy_array(cupy, clock):
    data = np.ones((2, 8, 9, 4), np.float32).transpose(0, 3, 1, 2)
    gpufold.warmup("im2col", data, (3, 3), autotune=True)
    assert gpufold.explain("im2col", data, (3, 3), device=device(cupy)).measured


@pytest.mark.parametrize("positions", [[np.array([0, 1]), np.array([2, 2])], np.array([[0, 1], [2, 2]], np.uint8)])
def test_a_warmup_takes_positions_as_a_call_does(cupy, clock, positions):
    gpufold.warmup("add_blocks", np.ones((8, 9)), np.ones((2, 2, 3)), positions, autotune=True)
    assert clock.measured


def test_a_warmup_changes_no_array(cupy, clock):
    call = adding(11, np.int32)
    array, *others = [cupy.asarray(each) for each in (call.data, *call.arguments)]
    sums = cupy.asarray(np.zeros(call.data.shape[::-1], call.data.dtype)).T
    for operation, given in (("add_blocks", array), ("add_blocks_", array), ("add_blocks_", sums)):
        before = cupy.asnumpy(given).copy()
        gpufold.warmup(operation, given, *others, autotune=True)
        assert_same_bits(cupy.asnumpy(given), before)
    assert clock.measured


def test_a_warmup_of_sums_that_are_added_and_of_strings(cupy, clock):
    options = {"pads_begin": 1, "pads_end": 1, "accumulate": True, "autotune": True}
    gpufold.warmup("col2im", ((2, 36, 64), "float32"), (8, 8), (3, 3), **options)
    assert clock.measured
    with pytest.raises(TypeError, match=r"^im2col: image has dtype bytes24"):
        gpufold.warmup("im2col", ((2, 4, 8, 8), "S3"), (3, 3))


def test_a_warmup_that_measures_needs_real_positions(cupy):
    with pytest.raises(ValueError, match=r"^warmup: positions of take_blocks must be an array with autotune=True"):
        gpufold.warmup("take_blocks", ((8, 9), "float32"), ((4, 2), "int64"), (2, 3), autotune=True)
