"""The instrument itself: what it checks, what it times, and every command, on small problems and without a GPU."""

from __future__ import annotations

import gc
import importlib
import json
import re
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from processes import python

import bench.drawn
import bench.measure
import bench.memory
import bench.report
import bench.results
import bench.timing
import gpufold
from bench.__main__ import INTERRUPTED, LOST, main
from bench.hostcuda import fake_cupy
from bench.measure import Bench, difference, row_of
from bench.memory import pool_peak, resident_peak
from bench.peers import PEERS, Call, Peer
from bench.problems import LARGEST_VALUE, PROBLEMS, Problem, dtype_of, plan_of, select
from bench.regret import of_run
from bench.report import by_operation, cells
from bench.results import Row, Run, write_at_once
from bench.terminal import Console, show
from bench.timing import LEAST_SAMPLES, MOST_SAMPLES, WARM_CALLS, CpuClock, GpuClock, Times, interleave
from gpufold.calls import Unsupported
from gpufold.geometry import SpaceGeometry
from gpufold.gpu.plan import H200
from gpufold.gpu.sources import KERNELS

pytestmark = pytest.mark.filterwarnings(r"ignore:\s*nccl library")  # sigpy imports CuPy, which looks for it


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_was(monkeypatch):
    monkeypatch.setattr(bench.measure, "keep_freed_memory", lambda: False)
    gc.freeze()  # each row ends in collections, which pass over the packages that peers have imported
    yield
    gpufold.set_num_threads(None)


def small(problem):
    """A problem with few elements, whose blocks overlap as much."""
    geometry = problem.shrunk(1 << 10).geometry
    if isinstance(geometry, SpaceGeometry):
        return replace(problem, geometry=geometry)
    axes = []
    for axis in geometry.axes:
        by = max(1, axis.kernel // 8)
        sizes = {name: getattr(axis, name) // by for name in ("size", "kernel", "pad_begin", "pad_end")}
        axes.append(axis._replace(**sizes, stride=max(1, axis.stride // by)))
    return replace(problem, geometry=replace(geometry, axes=tuple(axes)))


with pytest.MonkeyPatch.context() as patch:
    patch.setattr(bench.drawn, "LEAST_BYTES", 1 << 8)
    patch.setattr(bench.drawn, "MOST_BYTES", 1 << 14)
    SMALL = [*bench.drawn.problems(0, 100), *map(small, PROBLEMS)]


class Ticks:
    """A clock's counter that each call moves on by what the call says it takes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def takes(self, seconds, log=None, name=None):
        def call():
            self.now += seconds
            if log is not None:
                log.append(name)

        return call


# ---- what is checked


CPU_PEERS = [
    pytest.param(peer, marks=pytest.mark.peer(peer.module), id=peer.name) for peer in PEERS if "cpu" in peer.devices
]


def served(peer, problems, dtypes, to=np.asarray, back=np.asarray):
    """Compare what is timed of a peer with what is expected; return how many problems it serves."""
    count = 0
    for problem in problems:
        for dtype in dtypes[: 1 if problem.tolerance else None]:
            data = problem.data(dtype)
            call = peer.call(problem, to(data), 1)
            if call is not None:
                count += 1
                with pytest.MonkeyPatch.context() as patch:
                    if peer.name != "two passes":  # which shares the composition's weights
                        patch.setattr(Problem, "weights", lambda self: pytest.fail("weights are made while timed"))
                    result = call.run()
                wrong = difference(back(call.as_array(result)), problem.expected(data), problem.tolerance)
                assert wrong is None, f"{problem.operation} {problem.name} {dtype}: {wrong}"
    return count


@pytest.mark.parametrize("peer", CPU_PEERS)
def test_what_is_timed_of_a_peer_computes_the_same(peer):
    few = 6 if peer.module == "jax" else 1  # which compiles each
    problems = [problem for problem in SMALL if problem.operation in peer.operations and problem.fused in peer.fused]
    assert served(peer, problems[::few], ("float32", "float16")[: 1 if peer.module == "jax" else 2])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_loop_over_blocks_and_that_over_taps_compute_the_same_in_every_kind_of_dtype(sign, monkeypatch):
    """Whichever is faster; they share nothing with what they are compared with."""
    numbers = count()
    monkeypatch.setattr("bench.peers._seconds", lambda call: sign * next(numbers))
    (peer,) = (peer for peer in PEERS if peer.name == "loop")
    assert served(peer, SMALL, ("float32", "complex64", "uint8", "bool")) > len(SMALL)


@pytest.mark.hostcuda
@pytest.mark.parametrize("name", ["add.at", "cupy", "naive gather", "batched gather"])
def test_what_is_timed_of_a_peer_on_a_gpu_computes_the_same_on_the_stand_in(name, monkeypatch):
    """Of a few problems, with functions and kernels of CuPy alone."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    (peer,) = (peer for peer in PEERS if peer.name == name and peer.devices == ("gpu",))
    few = [problem for problem in SMALL if prod(problem.input_shape) < 4096]
    assert served(peer, few, ("float32",), fake_cupy.asarray, fake_cupy.asnumpy)


INTERPRETED = """
import sys
import numpy as np, torch
from bench.triton_fold import _fold, fold
from cases import Case
from gpufold.geometry import col2im_geometry
import gpufold
for number, case in enumerate((
    Case("frames", (37,), (5,), 2, 2, 3, 1, batch=2, channels=3),
    Case("long-frames", (75,), (70,), 40, 1, 20, 35, channels=2),
    Case("pixels", (9, 21), (3, 4), (2, 1), (1, 2), (1, 0), (0, 2), batch=2, channels=2),
    Case("many-taps", (10, 11), (9, 8), (1, 3), 1, (2, 0), 4, channels=1),
)):
    geometry = col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)
    columns = np.random.default_rng(number).integers(-50, 51, case.columns_shape).astype(np.float32)
    image = torch.full(geometry.array_shape, np.nan)
    fold(torch.from_numpy(columns), image, geometry, _fold.fn, ROWS=(1, 4)[number // 2], COLUMNS=(32, 16)[number % 2])
    want = gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments)
    np.testing.assert_array_equal(image.numpy().reshape(want.shape), want, str(case))
"""


@pytest.mark.peer("torch")
@pytest.mark.peer("triton")
def test_the_fold_in_triton_computes_the_same_where_it_is_interpreted():
    """Of one axis and of two, with the loop over taps unrolled and not."""
    python("-c", INTERPRETED, TRITON_INTERPRET="1")


def test_data_are_integers_whose_sums_are_exact_in_every_dtype():
    for problem in PROBLEMS:
        for dtype in (dtype for dtype in problem.dtypes if dtype_of(dtype).kind in "fVc"):
            taps = 1
            if problem.operation == "col2im":
                taps = prod(-(-axis.dilated_kernel // axis.stride) for axis in problem.geometry.axes)
            exact = 2 ** {"bfloat16": 8, "float16": 11}.get(dtype, 24)
            assert LARGEST_VALUE * taps <= exact, (problem.name, dtype)


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((1, 3), np.float32), np.array([0, 1, 0], np.float32)])
def test_a_difference_of_values_dtype_or_shape_fails(wrong):
    assert difference(np.zeros(3, np.float32), np.zeros(3, np.float32)) is None
    assert difference(wrong, np.zeros(3, np.float32)).startswith("FAIL")


def refuse(problem, data, threads):
    raise RuntimeError("not today")


def one_off(problem, data, threads):
    def run():
        result = problem(data)
        result.flat[0] += 1
        return result

    return Call(run)


def tiny_row(clock, peers=()):
    (problem,) = select(["col2im-tiny"], quick=True, gpu=False)
    row = row_of(problem, "float32")
    Bench("cpu", "", clock, 1, 0.001, peers).measure(problem, "float32", row)
    return row


def test_a_wrong_peer_and_one_that_raises_get_no_time():
    prepare = {
        "wrong": one_off,
        "raises": refuse,
        "right": lambda problem, data, threads: Call(lambda: problem(data)),
        "absent": lambda problem, data, threads: None,
    }
    peers = [Peer(name, "numpy", ("cpu",), function) for name, function in prepare.items()]
    row = tiny_row(CpuClock(pause=lambda seconds: None), peers)
    assert set(row.times) == {"gpufold", "copy", "right"}
    assert row.failures == {"wrong": "FAIL: 1 of 768 elements are wrong", "raises": "RuntimeError: not today"}
    header, line, mean = cells(Run("", "cpu", 1, {}, "", "", "", list(prepare), [], [], [row]))
    assert [line[header.index(name)] for name in ("wrong", "raises")] == ["FAIL", "error"]
    assert "absent" not in header
    assert mean[header.index("right")].endswith("x")


def fail(name, error):
    raise error


class SlowThenFast(CpuClock):
    """Each call takes longer than all calls may together: always, or only the first time."""

    def __init__(self, always):
        super().__init__(pause=lambda seconds: None)
        self.always, self.seen = always, set()

    def first(self, call):
        answer, seconds = super().first(call)
        slow = self.always or call not in self.seen
        self.seen.add(call)
        return answer, 60.0 if slow else seconds


@pytest.mark.parametrize("always", [True, False])
def test_a_call_that_is_slow_only_because_it_compiles_is_measured_in_full(always):
    assert (tiny_row(SlowThenFast(always)).times["gpufold"].seconds == [60.0]) == always


# ---- what is timed


def test_calls_take_turns_and_share_the_time(monkeypatch):
    monkeypatch.setattr(bench.timing, "WARM_CALLS", 1)
    ticks, log = Ticks(), []
    calls = {name: ticks.takes(seconds, log, name) for name, seconds in (("a", 0.1), ("b", 0.2))}
    results = {}
    interleave(calls, CpuClock(ticks, lambda seconds: None), 2.0, results, fail)
    # the first two say how long a call is, and the first of each sample wakes its threads
    assert log == ["a", "b"] + ["a", "a", "b", "b"] * 3 + ["a", "a"] * 2
    assert results["a"].median == pytest.approx(0.1)
    assert results["b"].spread == pytest.approx(0)


def test_short_calls_are_repeated_within_a_sample_and_slow_ones_get_the_least_samples():
    ticks, log = Ticks(), []
    calls = {"short": ticks.takes(1e-6, log, "short"), "slow": ticks.takes(60.0)}
    results = {}
    interleave(calls, CpuClock(ticks, lambda seconds: None), 1000.0, results, fail)
    assert len(results["short"].seconds) == MOST_SAMPLES
    assert len(log) == WARM_CALLS + (1 + 2000) * MOST_SAMPLES
    assert results["short"].median == pytest.approx(1e-6)
    interleave({"slow": calls["slow"]}, CpuClock(ticks, lambda seconds: None), 0.0, results := {}, fail)
    assert len(results["slow"].seconds) == LEAST_SAMPLES


@pytest.fixture
def gpu_clock(monkeypatch):
    """A clock of the stand-in's events and flushes, which are noted; between two events lies a quarter of a ms."""
    log, ticks, cupy = [], Ticks(), fake_cupy.cupy()
    event = SimpleNamespace(record=lambda: log.append("event"), synchronize=lambda: log.append("wait"))
    monkeypatch.setattr(cupy.cuda, "Event", lambda: event)
    monkeypatch.setattr(cupy.cuda, "get_elapsed_time", lambda before, after: 0.25)
    clock = GpuClock(cupy, ticks)
    clock.scratch.fill = lambda value: log.append("flush")
    return clock, ticks, log


def test_a_gpu_call_is_timed_between_two_events_after_a_flush(gpu_clock):
    clock, ticks, log = gpu_clock
    assert clock.scratch.nbytes >= 4 * (50 << 20)
    times = Times()
    clock.sample(ticks.takes(3e-6, log, "call"), 1, times)
    assert log == ["event", "flush", "event", "call", "event", "wait"]
    assert times.seconds == times.hidden == [0.25e-3]
    assert times.host == [pytest.approx(3e-6)]
    assert not times.exposed
    assert Times([1e-5] * 3, [7e-5, 7e-5, 1e-5], [6e-5] * 3).exposed


def test_the_cache_is_flushed_for_longer_than_the_host_takes_for_a_call(gpu_clock):
    clock, ticks, log = gpu_clock
    for host, flushes in ((3e-6, 1), (0.3e-3, 4), (1e-3, 12), (1.0, 100)):
        call = ticks.takes(host, log, "call")
        repeats = clock.repeats(call)
        log.clear()
        clock.sample(call, repeats, Times())
        assert log.count("flush") == repeats == flushes
        assert log.count("call") == 1


@pytest.fixture
def device(monkeypatch):
    """The stand-in, whose kernels `gather` and `taps` are NumPy, and raise what a test has them raise.

    `broken` holds that, by the name of the problem and their own, and `ran` what was called.
    """
    device = SimpleNamespace(ran=[], broken={})

    def compute(problem, data, variant="auto"):
        device.ran.append((problem.name, variant))
        if error := device.broken.get((problem.name, variant)):
            if isinstance(error, fake_cupy.CUDARuntimeError):
                fake_cupy._lost.append(variant)
            raise error
        return problem.expected(data)

    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    monkeypatch.setattr(fake_cupy, "_lost", [])
    monkeypatch.setattr(Problem, "prepared", lambda *given, **options: partial(compute, *given, **options))
    of_cupy = [replace(peer) for peer in PEERS if peer.name == "cupy"]
    monkeypatch.setattr(bench.measure, "installed", lambda device: of_cupy)
    monkeypatch.setattr(bench.measure, "absent", lambda device: ["torch"])
    monkeypatch.setattr(bench.measure, "device_facts", lambda: H200)
    monkeypatch.setattr(bench.measure.gpufold, "variants", lambda operation: ("gather", "taps"))
    return device


TINY = ("--problem", "tiny", "--seconds", "0.001")
TWO = (*TINY, "--device", "cpu", "--threads", "1")


def test_a_call_that_raises_later_loses_its_times_and_the_others_go_on():
    ticks, failures, calls = Ticks(), {}, count()

    def fails_in_its_second_sample():
        if next(calls) == 4:
            raise MemoryError("none left")
        ticks.now += 1.0

    results = {}
    named = {"bad": fails_in_its_second_sample, "good": ticks.takes(1.0)}
    interleave(named, CpuClock(ticks, lambda seconds: None), 16.0, results, failures.__setitem__)
    assert list(results) == ["good"]
    assert len(results["good"].seconds) == 4
    assert str(failures["bad"]) == "none left"


def test_what_fails_is_an_entry_and_what_loses_the_device_ends_the_run_until_it_goes_on(capsys, device, tmp_path):
    """A kernel that does not serve a problem is no failure."""
    device.broken["col2im-tiny-2x2", "taps"] = RuntimeError("does not compile")
    device.broken["im2col-tiny-2x2", "auto"] = RuntimeError("does not plan")
    device.broken["im2col-tiny-2x2", "gather"] = Unsupported("gather: not this one")
    device.broken["im2col-tiny-2x2", "taps"] = fake_cupy.CUDARuntimeError(700)
    saved = tmp_path / "gpu.json"
    words = (*TINY, "--save", str(saved))
    status, out = run(capsys, *words)
    assert status == LOST
    assert "the device is lost after taps on im2col-tiny-2x2: CUDARuntimeError: cudaErrorIllegalAddress" in out
    assert f"1 of 2 rows are saved in {saved}; go on with: python -m bench {' '.join(words)} --resume" in out
    first, second = Run.load(saved).rows
    assert first.finished
    assert first.failures == {"taps": "RuntimeError: does not compile"}
    assert set(first.times) == {"gpufold", "gather", "copy"}
    assert (second.finished, second.times) == (False, {})

    fake_cupy._lost.clear()  # in a new process
    device.ran.clear()
    status, out = run(capsys, *words, "--resume")
    assert status == 1  # a kernel failed
    assert device.ran == [("im2col-tiny-2x2", "gather")]
    again, second = Run.load(saved).rows
    assert again == first
    assert second.finished
    assert set(second.times) == {"cupy", "copy"}
    assert second.failures["gpufold"] == "RuntimeError: does not plan"
    assert list(second.failures) == ["gpufold", "taps"]
    assert "taps on col2im-tiny-2x2: RuntimeError: does not compile" in out
    assert "not this one" not in out


def test_each_problem_frees_its_memory_before_the_next(device, monkeypatch):
    measured = Bench("gpu", "", CpuClock(pause=lambda seconds: None), 1, 0.001, [], ["gather"])
    pool, freed = fake_cupy.cupy().get_default_memory_pool(), []
    monkeypatch.setattr(fake_cupy.MemoryPool, "free_all_blocks", lambda pool: freed.append(pool))
    (problem,) = select(["col2im-tiny"], quick=True, gpu=False)
    gc.collect()  # what other tests left
    before = pool.used_bytes()
    measured.measure(problem, "float32", row_of(problem, "float32"))
    assert device.ran
    assert pool.used_bytes() == before
    assert len(freed) == 2, "the device's pool and that of pinned memory"


def test_the_row_names_what_auto_takes_for_a_contiguous_result(device):
    (problem,) = (problem.shrunk(1 << 12) for problem in select(["array_to_blocks-blocks-8x8"], quick=True, gpu=False))
    row = row_of(problem, "float32")
    Bench("gpu", "", CpuClock(pause=lambda seconds: None), 1, 0.001, []).measure(problem, "float32", row)
    assert row.chosen == plan_of(problem, "auto", "float32").variant


# ---- memory


@pytest.mark.alone
def test_the_peak_of_a_call_is_what_it_had_at_once_and_not_what_was_there_before():
    def last_of(library, *kilobytes):
        return [library.full((count << 8,), 1.0, dtype=library.float32) for count in kilobytes][-1]

    for library in map(importlib.import_module, filter(find_spec, ("numpy", "torch"))):
        kept, measured = last_of(library, 32 << 10), []
        for kilobytes in ((48 << 10, 16 << 10), (16 << 10,), (48 << 10, 16 << 10)):
            last_of(library, *kilobytes)
            measured.append(resident_peak(partial(last_of, library, *kilobytes)) / 2**20)
        assert kept is not None
        assert measured == [pytest.approx(64, abs=3), pytest.approx(16, abs=3), pytest.approx(64, abs=3)], library


def test_the_peak_of_a_pool_counts_what_is_given_back(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    def call():
        arrays = [fake_cupy.empty(count, np.uint8) for count in (500, 1000)]  # of 512 and of 1024 bytes
        with pytest.raises(fake_cupy.OutOfMemoryError):
            fake_cupy.empty(1 << 40, np.uint8)
        arrays[1] = None
        return [*arrays, fake_cupy.empty(512, np.uint8)]

    peak = pool_peak(fake_cupy.cupy())
    assert peak(call) == 1536
    assert peak(call) == 1536

    allocated = {"now": 100, "most": 5000}
    tensors = SimpleNamespace(
        is_initialized=lambda: True,
        memory_allocated=lambda: allocated["now"],
        max_memory_allocated=lambda: allocated["most"],
        reset_peak_memory_stats=lambda: allocated.update(most=allocated["now"]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=tensors))
    assert peak(lambda: allocated.update(most=700)) == 600
    assert peak(call) == 1536


# ---- the problems


def test_problems_have_names_of_their_own_and_one_is_past_32_bits():
    assert len({problem.name for problem in PROBLEMS}) == len(PROBLEMS)
    (enormous,) = (problem for problem in PROBLEMS if problem.gpu_only)
    assert prod(enormous.input_shape) > 2**31


def test_large_problems_are_larger_than_a_gpu_s_caches():
    for problem in select([], quick=False, gpu=True):
        if "tiny" not in problem.name:
            assert problem.compulsory_bytes("float32") > 100e6, problem.name


def test_a_shrunk_problem_fits_and_has_its_last_axes():
    for problem in select([], quick=False, gpu=True):
        shrunk = problem.shrunk(1 << 18)
        geometry, fits = shrunk.geometry, prod(shrunk.input_shape) <= 1 << 18
        if isinstance(geometry, SpaceGeometry):
            assert fits or geometry.batch == 1
            continue
        first = geometry.axes[0]
        assert geometry.axes[1:] == problem.geometry.axes[1:]
        assert first.kernel == problem.geometry.axes[0].kernel
        fewest = len(geometry.axes) == 1 or first.blocks <= 2 * -(-first.dilated_kernel // first.stride)
        assert fits or (geometry.planes == 1 and fewest)
        assert shrunk.shrunk(1 << 18) == shrunk


# ---- the commands


def run(capsys, *words):
    status = main(words)
    return status, capsys.readouterr().out


def test_measuring_ends_in_a_table_and_in_a_file_that_other_options_leave_alone(capsys, tmp_path):
    saved = tmp_path / "tiny.json"
    status, out = run(capsys, *TWO, "--save", str(saved))
    assert status == 0
    loaded, text = Run.load(saved), saved.read_text()
    assert [row.problem for row in loaded.rows] == ["col2im-tiny-2x2", "im2col-tiny-2x2"]
    assert loaded.threads == 1
    assert all(text in out for line in cells(loaded) for text in line)
    lines = [line for line in text.splitlines() if line.startswith('{"problem"')]
    assert [json.loads(line.rstrip(","))["problem"] for line in lines] == [row.problem for row in loaded.rows]
    times = [value for row in loaded.rows for each in row.times.values() for value in each.seconds]
    assert times
    assert all(float(f"{value:.4g}") == value for value in times)
    for words, complaint in (
        ((), "exists: --resume goes on with it"),
        (("--seconds", "0.002", "--resume"), r"options was .*'seconds': 0.001.* and is .*'seconds': 0.002"),
        (("--threads", "2", "--resume"), "threads was 1 and is 2"),
    ):
        with pytest.raises(SystemExit):
            main([*TWO, *words, "--save", str(saved)])
        assert re.search(complaint, capsys.readouterr().err)
        assert saved.read_text() == text


@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_table_is_split_where_it_does_not_fit_and_no_header_and_no_number_is_cut(width, capsys):
    numbers = [f"{number}.5" for number in range(10**9, 10**9 + 12)]
    header = ["problem", *(f"peer [a{number}]" for number in range(12)), "why"]
    show(Console(width=width), [header, ["a row of several words", *numbers, "one word or two " * 5]])
    printed = capsys.readouterr().out
    assert all(text in printed for text in (*header, *numbers))
    assert max(map(len, printed.splitlines())) <= width
    assert printed.count("problem") == printed.count("a row of several words") == {40: 13, 80: 4, 300: 1}[width]


def test_a_file_is_replaced_at_once_and_only_when_it_is_written_to_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file.json"
    write_at_once(path, "before")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(bench.results.os, name, lambda *arguments: fail("", OSError("full disk")))
            with pytest.raises(OSError, match="full disk"):
                write_at_once(path, "half")
        assert path.read_text() == "before"
        assert list(path.parent.iterdir()) == [path]
    write_at_once(path, "after")
    assert path.read_text() == "after"


def test_a_stop_loses_the_row_under_way_alone(capsys, tmp_path, monkeypatch):
    """Another run goes on then as after a device was lost."""
    saved, measure = tmp_path / "saved.json", Bench.measure

    def stop_at_im2col(self, problem, dtype, row):
        if problem.operation == "im2col":
            raise KeyboardInterrupt
        measure(self, problem, dtype, row)

    words = (*TWO, "--save", str(saved), "--commit", "abc")
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "measure", stop_at_im2col)
        status, out = run(capsys, *words)
    assert status == INTERRUPTED
    assert "Interrupted." in out
    assert list(tmp_path.iterdir()) == [saved]
    (first,) = Run.load(saved).rows
    assert first.times
    status, out = run(capsys, *words, "--resume")
    assert status == 0
    loaded = Run.load(saved)
    assert loaded.rows[0] == first
    assert [row.problem for row in loaded.rows] == ["col2im-tiny-2x2", "im2col-tiny-2x2"]
    assert loaded.commit == "abc"
    assert all(row.problem in out for row in loaded.rows)


def without_packages(*words, blocked):
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); from bench.__main__ import main; exit(main())"
    return python("-c", code, *words)


def test_without_peers_results_name_what_is_missing(tmp_path):
    folder, peers = tmp_path / "results", ("jax", "onnxruntime", "openvino", "sigpy", "torch")
    blocked = (*peers, "matplotlib", "ml_dtypes")
    without_packages(*TWO, "--full", "--save", str(folder / "cpu.json"), blocked=blocked)
    (note,) = (note for note in Run.load(folder / "cpu.json").notes if "Not installed" in note)
    assert set(peers) <= set(re.findall(r"\w+", note))
    shown = without_packages("report", "--results", str(folder), "--output", str(tmp_path / "out"), blocked=blocked)
    assert "matplotlib is not installed" in shown
    with pytest.raises(AssertionError, match="the benchmark needs the package rich: pip install --group bench"):
        without_packages("problems", blocked=("rich.console",))


def test_means_of_an_operation_are_of_its_problems_in_their_first_dtype():
    """That they are of large problems and which peers count, the tables of the documents show: tests/test_readme.py."""
    first, second = (problem for problem in PROBLEMS if problem.name.startswith("col2im-vit"))
    measured, rows = ((first, first.dtypes[0], 2.0), (second, second.dtypes[0], 8.0), (second, "float64", 100.0)), []
    for problem, dtype, seconds in measured:
        times = {"gpufold": Times([1.0]), "torch": Times([seconds])}
        rows.append(Row(problem.name, problem.operation, dtype, 2_000_000, 1, times=times))
    run = Run("a device", "cpu", 1, {}, "", "", "", ["torch"], [], rows=rows)
    assert by_operation(run) == [["", "torch", "fastest"], ["col2im", "4.00x", "4.00x"]]


# ---- the planner's choices


COMPARED = {"col2im_atomic.cu", "add_blocks_atomic.cu"}
"""Kernels that `auto` takes where bits may differ between runs, or a problem is too small to be in the benchmark."""

PART_OF_A_CALL = {"bins.cu", "average_elementwise.cu"}
"""Kernels that go with others."""


def test_auto_takes_every_kernel_for_a_problem():
    """One that it takes for none would go."""
    problems = select([], quick=False, gpu=True)
    taken = {plan_of(problem, "auto", dtype).file for problem in problems for dtype in problem.dtypes}
    assert taken | COMPARED | PART_OF_A_CALL == {path.name for path in KERNELS.glob("*.cu")}


def test_regret_compares_auto_with_what_it_was_free_to_take():
    """Among the variants of the run, which may have other names today."""
    seconds = {"gather": 1.2, "former": 1.0, "atomic": 0.5, "torch": 0.1}
    times = {name: Times([each]) for name, each in seconds.items()}
    rows = [Row("one", "col2im", dtype, 1, 1, chosen="gather", times=times) for dtype in ("float32", "int32")]
    rows.append(Row("another", "col2im", "float32", 1, 1, times=times))
    found = list(of_run(Run("no device", "gpu", 1, {}, "", "", "", ["torch"], list(times)[:-1], [], rows)))
    assert [(choice.problem, choice.best) for choice in found] == [("one", "former"), ("one int32", "atomic")]
    assert [choice.regret for choice in found] == [pytest.approx(0.2), pytest.approx(1.4)]


def test_saved_results_become_figures_and_a_table(capsys, tmp_path):
    times = {"gpufold": Times([2.0], [1e-6]), "gather": Times([2.0]), "copy": Times([1.0]), "torch": Times([6.0])}
    rows = [Row(each.name, each.operation, "float32", 1000, 250, "gather", times=times) for each in PROBLEMS[:3]]
    path, output = tmp_path / "made-up.json", tmp_path / "out"
    Run("no device", "gpu", 1, {}, "", "", "", ["torch"], ["gather"], [], rows).save(path)
    status, out = run(capsys, "report", "--results", str(path), "--output", str(output))
    assert status == 0
    assert re.search(r"all +no device +3 +0\.0% +0\.0%", out), "regret"
    assert {path.name for path in output.iterdir()} == {"made-up.md", "made-up.png", "made-up.svg"}
    table = (output / "made-up.md").read_text()
    assert f"| {PROBLEMS[0].name} | 0.001 | 2000 |" in table
    assert "2000*" in table
    assert "3.00x" in table


@pytest.mark.all
def test_the_host_s_cost_is_measured_without_a_device():
    problems = ("col2im-tiny-2x2", "blocks_to_array-stitch-96x96x96", "add_blocks-particles", "batch_to_space-nhwc-2x2")
    words = (word for name in problems for word in ("--problem", name))
    printed = python("-m", "bench", "host", *words)  # in a process where CuPy is not imported
    assert all(name in printed for name in problems)
    assert "through a Stitcher" in printed
    assert ("gpufold.torch" in printed) == (find_spec("torch") is not None)


def test_problems_are_drawn_alike_from_a_seed_and_of_every_operation():
    problems = bench.drawn.problems(3, 60)
    assert problems[:5] == bench.drawn.problems(3, 5) != bench.drawn.problems(4, 5)
    assert {problem.operation for problem in problems} == {problem.operation for problem in PROBLEMS}
    assert len({problem.name for problem in problems}) == len(problems)
    for problem in problems:
        size = max(prod(problem.input_shape), prod(problem.output_shape)) * dtype_of(problem.dtypes[0]).itemsize
        assert bench.drawn.LEAST_BYTES <= size <= bench.drawn.MOST_BYTES, problem.name


def test_gpufold_is_right_on_what_is_measured():
    for problem in SMALL:
        data = problem.data(problem.dtypes[0])
        assert data.flags.c_contiguous is not problem.channels_last or 1 in data.shape, problem.name
        assert difference(problem(data), problem.expected(data), problem.tolerance) is None, problem.name


@pytest.mark.hostcuda
def test_complex_sums_are_checked_with_what_cupy_adds(device):
    cupy = sys.modules["cupy"]
    for name in ("col2im-tiny-2x2", "add_blocks-particles-7x7"):
        (problem,) = (each for each in PROBLEMS if each.name == name)
        data = problem.data("complex64")
        want, got = problem.expected(data), problem.expected(cupy.asarray(data))
        assert difference(cupy.asnumpy(got), want) is None, name


def test_a_run_of_drawn_problems_ends_in_their_distribution(capsys, tmp_path, monkeypatch):
    for name, value in {"LEAST_BYTES": 1 << 10, "MOST_BYTES": 1 << 17, "PEERS": ("loop", "numpy")}.items():
        monkeypatch.setattr(bench.drawn, name, value)
    saved = tmp_path / "drawn.json"
    words = ("random", "--device", "cpu", "--problems", "3", "--seed", "5", "6", "--seconds", "0.01")
    words = (*words, "--save", str(saved))
    status, out = run(capsys, *words)
    assert status == 0
    assert re.search(r"all +6 +\d", out)
    loaded, drawn = Run.load(saved), [problem.name for seed in (5, 6) for problem in bench.drawn.problems(seed, 3)]
    assert [row.problem for row in loaded.rows] == drawn
    assert set(loaded.peers) == {"loop", "numpy"}
    assert run(capsys, *words, "--resume")[1].count(drawn[0]) == 1, "nothing was measured again"


def test_a_distribution_is_of_times_over_the_fastest_peer_and_over_the_loop():
    other_work = {"gpufold.torch": 0.1, "torch, gradient": 0.1, "gpufold.jax": 0.1, "two passes": 0.1}
    seconds = {"gpufold": 2.0, "loop": 4.0, "torch": 1.0}, {"gpufold": 2.0, "loop": 4.0}, {"gpufold": 8.0, "torch": 4.0}
    times = [{name: Times([value]) for name, value in (other_work | each).items()} for each in seconds]
    rows = [Row(f"problem {number}", "col2im", "float32", 1, 1, times=each) for number, each in enumerate(times)]
    measured = Run("", "cpu", 1, {}, "", "", "", ["loop", "torch", *other_work], [], rows=rows)
    ratios = ["1.26", "2.00", "2.00", "0.50", "0.50", "0.50"]  # of 2, 0.5 and 2; of 0.5 and 0.5
    assert bench.drawn.distribution(measured)[1:] == [["col2im", "3", *ratios], ["all", "3", *ratios]]
    assert bench.drawn.worst(measured)[1][:3] == ["problem 0", "2e+03", "torch"]
