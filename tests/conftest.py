"""Tests that cannot run here are skipped, and say why; what --all and --many ask for is deselected without them."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import sys
from functools import cache

import numpy as np
import pytest
from processes import python

from gpufold import elements, keeping, threads
from gpufold.cpu import arithmetic, cells, folding, fused, indexed, runs, tiles
from gpufold.cpu import positions as on_positions


@cache
def missing(mark, name=""):
    """Say why tests with a mark cannot run, or nothing."""
    if mark == "gpu":
        if reason := missing("peer", "cupy"):
            return reason
        import cupy

        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return f"no CUDA device: {error}"
        return None if count else "no CUDA device"
    if mark in ("hostcuda", "nvrtc"):
        from bench import hostcuda

        return {"hostcuda": hostcuda, "nvrtc": hostcuda.cubin}[mark].unavailable()
    if mark == "peer" and importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    return None


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run what make test ALL=1 runs, as CI does")
    parser.addoption("--many", action="store_true", help="run the longer series of random problems too")


def pytest_collection_modifyitems(config, items):
    """Deselect what was not asked for, and mark what cannot run."""
    many = config.getoption("--many")
    everything, draws, kept, dropped = many or config.getoption("--all"), {}, [], []
    for item in items:
        some, marks = item.get_closest_marker("some"), {mark.name for mark in item.iter_markers()}
        left = ("all" in marks and not everything) or ("many" in marks and not many)
        if some and not left:
            step = 1 if many else some.kwargs.get("all", 1) if everything else some.args[0]
            left = not next(draws.setdefault((item.function, step), one_of(step, item.originalname)))
        if left:
            dropped.append(item)
            continue
        kept.append(item)
        if reason := next(filter(None, (missing(mark.name, *mark.args[:1]) for mark in item.iter_markers())), None):
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def one_of(step, name):
    """Say of each combination whether it runs: the first, and one of each so many that follow one another."""
    rng, drawn = random.Random(name), 0
    while True:
        yield from (number == drawn for number in range(step))
        drawn = rng.randrange(step)  # at equal distances there might always be the same dtype


def pytest_collection_finish():
    """Let the garbage collector pass over all tests, each time that it collects what one of them leaves."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test of marker `alone` by a pytest of its own, which has the same outcome."""
    if pyfuncitem.get_closest_marker("alone") is None or "GPUFOLD_TEST_ALONE" in os.environ:
        return None
    options = "-rs", "--many", "-p", "no:cacheprovider"
    printed = python("-m", "pytest", *options, pyfuncitem.nodeid, GPUFOLD_TEST_ALONE="1")
    if "1 passed" not in printed:
        pytest.skip(f"in a process of its own:\n{printed}")
    return True


@pytest.fixture(autouse=True)
def _numpy_in_doctests(doctest_namespace):
    doctest_namespace["np"] = np


@pytest.fixture(params=["chosen", "flat", "tiled", "flat-tiled", "turned-tiled", "indexed-tiled", "last-tiled"])
def way(request, monkeypatch):
    """Small problems would all go one way; these thresholds send them every way that large ones go."""
    forget_sizes()
    if request.param != "chosen":
        monkeypatch.setattr(tiles, "SMALL_ELEMENTS", 0)
        for module, name in ((indexed, "FEW_ELEMENTS"), (folding, "SMALL_COPY")):
            monkeypatch.setattr(module, name, 1 << 30 if "indexed" in request.param else 0)
    if "flat" in request.param:
        monkeypatch.setattr(runs, "FLAT_RUN", 1)
        monkeypatch.setattr(runs, "LARGE_PLANE", 1)
        monkeypatch.setattr(tiles, "PADDED_BYTES", 0)
        monkeypatch.setattr(cells, "SUMMED_ROW", 0)
    if "turned" in request.param:
        for module in (folding, cells):
            monkeypatch.setattr(module, "taps_are_closest", lambda strides, axes: True)
        monkeypatch.setattr(folding, "LONG_STRIDE", 0)
        monkeypatch.setattr(folding, "LARGE_BLOCK", 1)
    if "last" in request.param:
        monkeypatch.setattr(fused, "WEIGHT_BYTES", 1)
        run = threads.Ways.run
        monkeypatch.setattr(threads.Ways, "run", lambda ways, *call: run(threads.Ways(ways.all[-1]), *call))
    if "tiled" in request.param:
        monkeypatch.setenv("OMP_NUM_THREADS", "5" if "flat" in request.param else "2")
        monkeypatch.setattr(threads, "THREAD_BYTES", 1)
        monkeypatch.setattr(threads, "MOST_TRIED", 0)
        for name, small in {"TILE_ELEMENTS": 12, "CACHE_BYTES": 1, "KEPT_BYTES": 1, "LINE_BYTES": 8}.items():
            monkeypatch.setattr(tiles, name, small)
        monkeypatch.setattr(tiles, "PADDED_BYTES", 1 << 10)
        for name, small in {"AT_ONCE": 3, "COORDINATES": 3, "PRODUCTS": 4}.items():
            monkeypatch.setattr(on_positions, name, small)
        monkeypatch.setattr("gpufold.positions.TAKEN_ELEMENTS", 5)
        monkeypatch.setattr(indexed, "INDEXED_ELEMENTS", 90)
        monkeypatch.setattr(arithmetic, "PRODUCTS", 4)
        monkeypatch.setattr(arithmetic, "MANY_ELEMENTS", 1)
        monkeypatch.setattr(elements, "MANY_HALVES", 1)
    yield
    forget_sizes()


def forget_sizes():
    """Drop what was kept for sizes, with other thresholds."""
    for results in keeping._results:
        results.clear()


@pytest.fixture(params=["cpu", pytest.param("stand-in", marks=[pytest.mark.hostcuda, pytest.mark.peer("cupy")])])
def on(request, monkeypatch):
    """Where tensors are computed: on the CPU, or by kernels while they pass for a GPU's, which waits for each call."""
    from fronts import passing_for_gpu, waiting

    from gpufold.torch import executing, guards

    guards.guard_cache_of.cache_clear()
    if request.param == "cpu":
        yield request.param
        return
    monkeypatch.setattr(executing, "_execute_on_gpu", waiting(executing._execute_on_gpu))
    with passing_for_gpu(monkeypatch):
        yield request.param


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    """The stand-in for CuPy, where nothing is loaded, with a device of which nothing is known yet."""
    from fronts import on_the_stand_in

    from bench.hostcuda import fake_cupy
    from gpufold.gpu import tuning

    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.cupy())
    monkeypatch.setattr(fake_cupy, "_loaded", {})
    monkeypatch.setenv("GPUFOLD_CACHE_DIR", str(tmp_path / "cache"))
    with on_the_stand_in(monkeypatch, tuning.digest) as cupy:
        yield cupy
