"""Threads change when work is done, never what comes out."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import Case, assert_same_bits, values

import gpufold
from gpufold import threads

CASE = Case("large", (120, 130), (3, 3), 1, 1, 1, 1, batch=2, channels=9)
COLUMNS = values(CASE.columns_shape, np.float32)


def fold():
    return gpufold.col2im(COLUMNS, CASE.output_size, CASE.kernel_size, **CASE.arguments)


@pytest.fixture(autouse=True)
def _default_threads():
    yield
    gpufold.set_num_threads(None)


def test_the_bits_do_not_depend_on_the_number():
    gpufold.set_num_threads(1)
    want = fold()
    for count in (2, 3, 7, None):
        gpufold.set_num_threads(count)
        assert_same_bits(fold(), want, count)
    half = COLUMNS.astype(np.float16)
    results = []
    for count in (1, 5):
        gpufold.set_num_threads(count)
        results.append(gpufold.col2im(half, CASE.output_size, CASE.kernel_size, **CASE.arguments))
    assert_same_bits(*results)


def test_the_number_is_what_was_set():
    gpufold.set_num_threads(3)
    assert gpufold.get_num_threads() == 3
    gpufold.set_num_threads(None)
    assert gpufold.get_num_threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_more_threads_run_than_allowed(count):
    gpufold.set_num_threads(count)
    seen, lock = set(), threading.Lock()
    together = threading.Barrier(count)

    def work(number):
        with lock:
            seen.add(threading.get_ident())
        if number < count:  # so many items can only pass together, each on a thread of its own
            together.wait(timeout=30)

    threads.for_each(work, [(number,) for number in range(20)])
    assert len(seen) == count


def test_calls_inside_other_pools_finish_and_agree():
    """More callers than helper threads, in pools of their own: nobody waits for a helper that has not started."""
    gpufold.set_num_threads(2)
    want = fold()
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: fold(), range(24)):
            assert_same_bits(got, want)
    helpers = [thread for thread in threading.enumerate() if thread.name.startswith("gpufold")]
    assert len(helpers) <= 1


def test_an_error_in_one_item_stops_the_others_and_is_raised():
    gpufold.set_num_threads(3)
    done = []

    def work(number):
        if number == 4:
            raise ZeroDivisionError("item 4")
        time.sleep(0.005)
        done.append(number)

    with pytest.raises(ZeroDivisionError, match="item 4"):
        threads.for_each(work, [(number,) for number in range(200)])
    finished = len(done)
    assert finished < 100, "items were begun after the error"
    time.sleep(0.05)
    assert len(done) == finished, "work went on after the call returned"
    assert_same_bits(fold(), fold())


def test_an_error_on_a_helper_reaches_the_caller():
    gpufold.set_num_threads(2)
    caller = threading.get_ident()
    met = threading.Barrier(2)

    def work(number):
        met.wait(timeout=30)
        if threading.get_ident() != caller:
            raise KeyError("from a helper")

    with pytest.raises(KeyError, match="from a helper"):
        threads.for_each(work, [(0,), (1,)])


def test_numpys_error_state_reaches_the_helpers():
    gpufold.set_num_threads(2)
    met = threading.Barrier(2)
    states = []

    def work(number):
        met.wait(timeout=30)
        states.append(np.geterr()["over"])

    with np.errstate(over="call"):
        threads.for_each(work, [(0,), (1,)])
    assert states == ["call", "call"]


def _fold_in_child(queue):
    queue.put(fold().tobytes())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_works_and_agrees():
    gpufold.set_num_threads(2)
    want = fold().tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_fold_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == want
    child.join(timeout=60)
    assert child.exitcode == 0


def test_a_call_while_the_interpreter_ends_still_works():
    code = (
        "import atexit, numpy as np, gpufold; gpufold.set_num_threads(4);"
        "atexit.register(lambda: print(gpufold.col2im(np.ones((8, 36, 10000), 'f4'), (102, 102), (3, 3)).sum()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert float(run.stdout) == 8 * 36 * 10_000
    assert not run.stderr
