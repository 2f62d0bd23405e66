"""Threads change when work is done, never what comes out."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import platform
import random
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import Case, assert_same_bits, values
from processes import python

import gpufold
from gpufold import cores, threads

CASE = Case("large", (120, 130), (3, 3), 1, 1, 1, 1, batch=2, channels=9)
COLUMNS = values(CASE.columns_shape, np.float32)


def fold(columns=COLUMNS):
    return gpufold.col2im(columns, CASE.output_size, CASE.kernel_size, **CASE.arguments)


@pytest.fixture(autouse=True)
def _default_threads(monkeypatch):
    """As many threads as may be, in every call."""
    monkeypatch.setattr(threads, "MOST_TRIED", 0)
    yield
    gpufold.set_num_threads(None)


@pytest.mark.parametrize("moment", range(3))
def test_another_thread_may_set_the_number_while_it_is_asked_for(moment):
    lines = iter(range(99))

    def before_a_line(frame, event, argument):
        if event == "line" and next(lines) == moment:
            gpufold.set_num_threads(None)
        return before_a_line

    allowed, traced = threads.allowed.set(4), sys.gettrace()
    try:
        gpufold.set_num_threads(3)
        sys.settrace(lambda frame, *_: before_a_line if frame.f_code.co_name == "get_num_threads" else None)
        count = gpufold.get_num_threads()
    finally:
        sys.settrace(traced)
        threads.allowed.reset(allowed)
    assert count == (3 if moment else 4)


MOST = max(64, os.cpu_count())
SETTINGS = {"": 1, "5": 5, " 3,2 ": 3, "007": 7, "0": 1, "many": 1, "20000": MOST, "9" * 20: MOST, "9" * 5000: MOST}


@pytest.mark.parametrize(("setting", "want"), SETTINGS.items())
def test_the_environment_counts_before_the_affinity_mask_and_that_before_the_cores(setting, want, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert gpufold.get_num_threads() == want


GROUPS = {
    "version 2": ("0::/app/task", {"app/cpu.max": "250000 100000", "app/task/cpu.max": "max 100000"}, 3),
    "version 2, in a container": ("0::/../task", {"cpu.max": "50000 100000"}, 1),
    "version 2, the least of several": ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2),
    "version 1": (
        "5:memory:/x\n4:cpu,cpuacct:/task",
        {"cpu,cpuacct/task/cpu.cfs_quota_us": "150000", "cpu,cpuacct/task/cpu.cfs_period_us": "100000"},
        2,
    ),
    "version 1 without a limit": (
        "4:cpu:/task",
        {"cpu/task/cpu.cfs_quota_us": "-1", "cpu/task/cpu.cfs_period_us": "100000"},
        sys.maxsize,
    ),
    "none": ("0::/task", {}, sys.maxsize),
    "no numbers": ("0::/task", {"task/cpu.max": "much 100000"}, sys.maxsize),
    "no text": (b"0::/t\xe4sk\n0::/task", {"task/cpu.max": b"\xff\xfe 100000"}, sys.maxsize),
    "broken lines": ("\n0\n:\n0:\n4:cpu\n0::/a\0b\n0::/task", {"task/cpu.max": "50000 100000"}, 1),
}


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((text if isinstance(text, bytes) else text.encode()) + b"\n")


@pytest.mark.parametrize(("own", "files", "want"), GROUPS.values(), ids=GROUPS)
def test_control_groups_limit_the_number(own, files, want, tmp_path, monkeypatch):
    written(tmp_path / "own", own)
    for path, text in files.items():
        written(tmp_path / path, text)
    granted = cores.cores_granted(str(tmp_path), str(tmp_path / "own"))
    assert granted == want
    monkeypatch.setattr(cores, "cores_granted", lambda: granted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert gpufold.get_num_threads() == min(want, 64)


CACHES = {
    "of a core": ({"index0": ("1", "48K"), "index2": ("2", "2048K"), "index3": ("3", "30720K")}, 2 << 20),
    "small": ({"index1": ("2", "64K")}, 1 << 18),
    "of many cores": ({"index1": ("2", "12288K")}, 1 << 22),
    "none": ({}, 1 << 20),
    "no number": ({"index1": ("2", "much")}, 1 << 20),
}


@pytest.mark.parametrize(("files", "want"), CACHES.values(), ids=CACHES)
def test_the_cache_of_a_core_is_what_linux_says(files, want, tmp_path):
    for index, texts in files.items():
        for file, text in zip(("level", "size"), texts, strict=True):
            written(tmp_path / index / file, text)
    assert cores.cache_bytes(str(tmp_path)) == want


@pytest.mark.peer("torch")
def test_on_tensors_torchs_number_counts(monkeypatch):
    import torch

    import gpufold.torch
    from gpufold.torch import executing

    seen, run, before = [], executing.run, torch.get_num_threads()
    monkeypatch.setattr(executing, "run", lambda *given: seen.append(gpufold.get_num_threads()) or run(*given))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    columns = torch.ones(1, 4, 9, requires_grad=True)
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            gpufold.torch.fold(columns, (12,), (4,)).sum().backward()
            assert gpufold.get_num_threads() == 7
        gpufold.set_num_threads(2)
        gpufold.torch.fold(columns, (12,), (4,))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1, 3, 3, 2]


LOADED = """
import torch

import gpufold.torch
from gpufold.torch import executing

seen, run = [], executing.run
executing.run = lambda *given: seen.append(gpufold.get_num_threads()) or run(*given)


class Numbers:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        gpufold.torch.fold(torch.ones(1, 4, 9), 4, 2)
        return [gpufold.get_num_threads(), seen[-1]]


print(*torch.utils.data.DataLoader(Numbers(), num_workers=1, batch_size=None), gpufold.get_num_threads())
"""


@pytest.mark.peer("torch")
def test_a_worker_of_a_data_loader_uses_one():
    """On arrays and on tensors; it is a child of a process of its own, which has no other test's threads and memory."""
    assert python("-c", LOADED, OMP_NUM_THREADS="7") == "[1, 1] [1, 1] 7\n"


@pytest.mark.parametrize(("ways", "count"), [(1, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("fastest", [0, 1, -1])
def test_calls_of_a_kind_are_made_as_they_take_less_time(fastest, ways, count, monkeypatch):
    """Each way with all threads and with one; what is not far slower is tried again."""
    tried = [(way, some) for some in range(count, 0, -1) for way in range(ways)]
    seconds, now, made = dict.fromkeys(tried, 1.5), [0.0], []
    best = tried[fastest]
    seconds[best] = 1.0

    def work(threads, way):
        made.append((way, threads))
        now[0] += seconds[way, threads]

    def call(times, size=2 * threads.THREAD_BYTES):
        made.clear()
        for _ in range(times):
            kind.run(size, work)
        return made

    gpufold.set_num_threads(count)
    monkeypatch.setattr(threads, "MOST_TRIED", 1 << 28)
    monkeypatch.setattr(threads, "perf_counter", lambda: now[0])
    kind, choices = threads.Ways(*[(way,) for way in range(ways)]), len(tried)
    ranked = [best, *(each for each in tried if each != best)]
    first = [tried[0], *tried, best, *ranked[: max(2, choices // 2)], *ranked[: max(2, choices // 4)]]
    assert call(len(first)) == first
    assert set(call(threads.AGAIN - len(first) - 3)) == {best}
    seconds[best] = 50.0
    call(1)
    seconds[best] = 1.0
    assert call(1) == [best]  # what disturbs a call once changes nothing
    assert call(choices * threads.AGAIN).count(best) == choices * (threads.AGAIN - 1) + 1
    assert set(made) == set(tried)
    slow = next(each for each in tried if each != best)
    seconds[slow] = 99.0
    assert call(8 * choices * threads.AGAIN).count(slow) == 1  # it is left alone for long
    seconds[slow] = 0.5
    assert call(8 * choices * threads.AGAIN).count(slow) > 2 * choices
    assert call(1, 2 * threads.THREAD_BYTES - 1) == [(0, 1)]
    assert call(1, threads.MOST_TRIED + 1) == [(0, count)]


def test_choices_that_preparations_may_have_made_slow_are_tried_again():
    trial, seconds, made = threads._Trial(4), [0.0100, 0.0105, 0.0110, 0.05], list[int]()
    for _ in range(8):
        made.append(trial.choose())
        trial.took(made[-1], seconds[made[-1]])
    assert made == [0, 0, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize(("allowed", "worth"), [(1, 99), (2, 99), (5, 99), (5, 2)])
def test_as_many_threads_run_as_are_allowed_and_the_work_is_worth(allowed, worth):
    gpufold.set_num_threads(allowed)
    count, seen = min(allowed, worth), set()
    together = threading.Barrier(count)

    def work(number):
        seen.add(threading.get_ident())
        if number < count:  # so many items can only pass together, each on a thread of its own
            together.wait(timeout=30)
        time.sleep(0.001)  # others would take the next items

    threads.for_each(work, zip(range(20)), worth)
    assert len(seen) == count


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity masks")
@pytest.mark.parametrize("shared", [True, False])
def test_a_helper_leaves_the_caller_s_cpu_for_others_that_the_caller_may_use(shared, monkeypatch):
    gpufold.set_num_threads(2)
    allowed, both, seen = os.sched_getaffinity(0), threading.Barrier(2), dict[int, set[int]]()
    cpu = min(allowed)

    def work(number):
        both.wait(timeout=30)
        seen[threading.get_native_id()] = os.sched_getaffinity(0)

    numbers = iter([cpu, cpu if shared else -1])  # of the caller's CPU, then of the helper's
    monkeypatch.setattr(threads, "_cpu", lambda: next(numbers))
    threads.for_each(work, zip(range(2)))
    mine = seen.pop(threading.get_native_id())
    assert mine == allowed
    assert list(seen.values()) == [(allowed - {cpu} if shared else allowed) or allowed]


def test_calls_inside_other_pools_finish_and_agree():
    """More callers than helper threads, in pools of their own: nobody waits for a helper that has not started."""
    gpufold.set_num_threads(2)
    want = fold()
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: fold(), range(24)):
            assert_same_bits(got, want)
    assert len(serving()) <= 1


def serving():
    """The threads that wait for a call of gpufold, or work on one."""
    return [frame for frame in sys._current_frames().values() if "_serve" in str(list(traceback.walk_stack(frame)))]


def test_threads_that_are_too_many_end():
    for count in (5, 3, 4, 2):
        gpufold.set_num_threads(count)
        assert_same_bits(fold(), fold())
    for _ in range(200):
        if len(serving()) <= 1:
            break
        time.sleep(0.05)
    assert len(serving()) <= 1


def refuse(*_):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(("name", "value"), [("start_new_thread", refuse), ("_c", None)])
def test_a_call_works_alone_where_no_thread_starts_or_no_mode_can_be_passed_on(name, value, monkeypatch):
    gpufold.set_num_threads(1)
    want, seen = fold(), set()
    gpufold.set_num_threads(4)  # of which none has started
    monkeypatch.setattr(threads, name, value)
    threads.for_each(lambda number: seen.add(threading.get_ident()), zip(range(50)))
    assert seen == {threading.get_ident()}
    for _ in range(3):
        assert_same_bits(fold(), want)
    assert threads._helpers.asked.empty(), "nothing is left"


def test_calls_that_no_helper_is_free_for_leave_few_requests():
    gpufold.set_num_threads(3)
    free, met = threading.Event(), threading.Barrier(3)

    def hold(number):
        met.wait(timeout=30)
        free.wait(timeout=30)

    holder = threading.Thread(target=threads.for_each, args=(hold, zip(range(3))))
    holder.start()
    while met.n_waiting or len(serving()) < 2:
        time.sleep(0.001)
    for _ in range(50):
        fold()
    left = threads._helpers.asked.qsize()
    free.set()
    holder.join(timeout=30)
    assert left <= 2


def test_an_error_in_one_item_stops_the_others_and_is_raised():
    gpufold.set_num_threads(3)
    done = []

    def work(number):
        if number == 4:
            raise ZeroDivisionError("item 4")
        time.sleep(0.005)
        done.append(number)

    with pytest.raises(ZeroDivisionError, match="item 4"):
        threads.for_each(work, zip(range(200)))
    finished = len(done)
    assert finished < 100, "items were begun after the error"
    time.sleep(0.05)
    assert len(done) == finished, "work went on after the call returned"
    assert_same_bits(fold(), fold())


def test_helpers_have_the_callers_error_state_and_it_has_their_errors():
    gpufold.set_num_threads(2)
    caller, met, states = threading.get_ident(), threading.Barrier(2), []

    def work(number):
        met.wait(timeout=30)
        states.append(np.geterr()["over"])
        if threading.get_ident() != caller:
            raise KeyError("from a helper")

    with np.errstate(over="call"), pytest.raises(KeyError, match="from a helper"):
        threads.for_each(work, zip(range(2)))
    assert states == ["call", "call"]


def test_a_call_waits_for_the_helpers_that_started_where_no_more_can(monkeypatch):
    gpufold.set_num_threads(3)
    caller, start = threading.get_ident(), threads.start_new_thread
    started, done = [], []

    def limited(function, arguments):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(function)
        start(function, arguments)

    met = threading.Barrier(2)

    def work(number):
        if number < 2:
            met.wait(timeout=30)
        if threading.get_ident() != caller:
            time.sleep(0.05)
        done.append(number)

    monkeypatch.setattr(threads, "start_new_thread", limited)
    threads.for_each(work, zip(range(3)))
    assert started
    assert sorted(done) == [0, 1, 2], "an item was unfinished as the call returned"


def under(set_mode, default):
    """What a call makes of sums of denormals and of sums that are rounded, in a mode that only this thread has."""
    gpufold.set_num_threads(3)
    tiny = COLUMNS * np.float32(1e-39)
    want = [fold(tiny), fold(COLUMNS)]  # helpers start in the usual mode
    set_mode()
    try:
        got = [[fold(tiny), fold(COLUMNS)] for _ in range(8)]  # those help that have started
        gpufold.set_num_threads(1)
        alone = [fold(tiny), fold(COLUMNS)]
    finally:
        default()
    assert [each.tobytes() for each in alone] != [each.tobytes() for each in want], "no mode was set"
    for pair in got:
        assert [each.tobytes() for each in pair] == [each.tobytes() for each in alone]
    gpufold.set_num_threads(3)
    assert_same_bits(fold(tiny), want[0])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of rounding modes are not known")
def test_a_call_rounds_as_its_caller_does():
    library = ctypes.PyDLL(None)
    upward = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]
    under(lambda: library.fesetround(upward), lambda: library.fesetround(0))


@pytest.mark.peer("torch")
def test_a_call_flushes_denormals_where_its_caller_does():
    import torch

    under(lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False))


@pytest.mark.parametrize("seconds", [2, pytest.param(30, marks=pytest.mark.many)])
def test_after_an_interrupt_nothing_is_written_and_later_calls_are_right(seconds):
    """Of 75 interrupts a second, by signals at random moments: of first calls too, whose processes must end."""
    least = 75 * seconds
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    seen = json.loads(python("tests/interrupts.py", str(seed), str(seconds), str(least)))
    print(seen)
    assert seen.pop("interrupts") >= least
    assert seen.pop("processes") == least // 10
    assert seen == {"written_after": 0, "wrong": 0, "hung": 0}, f"seed {seed}"


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_works_and_agrees():
    gpufold.set_num_threads(2)
    want, context = fold().tobytes(), multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put(fold().tobytes()))
    child.start()
    assert queue.get(timeout=60) == want
    child.join(timeout=60)
    assert child.exitcode == 0


def test_a_call_while_the_interpreter_ends_still_works():
    code = (
        "import atexit, numpy as np, gpufold; gpufold.set_num_threads(4);"
        "atexit.register(lambda: print(gpufold.col2im(np.ones((8, 36, 10000), 'f4'), (102, 102), (3, 3)).sum()))"
    )
    assert float(python("-c", code)) == 8 * 36 * 10_000
