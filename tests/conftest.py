"""Tests that cannot run here are skipped, and say why; what --all and --many ask for is deselected without them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpufold import elements
from gpufold.cpu import arithmetic, cells, folding, indexed, runs, tiles

MANY_ON_A_GPU, SECONDS_ON_A_GPU = 100, 0.5
"""From how many GPU tests on their time is worth a line, and about how long one compiles, on one core."""


@cache
def no_gpu() -> str | None:
    """Why tests of marker `gpu` cannot run, or None."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
    return None if count else "no CUDA device"


@cache
def no_compiler() -> str | None:
    """Why tests of marker `hostcuda` cannot run, or None."""
    from bench import hostcuda

    return hostcuda.unavailable()


@cache
def no_cuda_compiler() -> str | None:
    """Why tests of marker `nvrtc` cannot run, or None."""
    from bench import hostcuda

    return hostcuda.cubin.unavailable()


@cache
def no_nvcc() -> str | None:
    """Why tests of marker `nvcc` cannot run, or None."""
    from bench import hostcuda

    return hostcuda.nvcc.unavailable()


@cache
def no_site() -> str | None:
    """Why tests of marker `site` cannot run, or None."""
    if not (Path(__file__).resolve().parent.parent / "docs" / "_build" / "html" / "index.html").is_file():
        return "the site is not built (make docs)"
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed (make docs installs it)"
    missing = [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]
    return f"{' and '.join(missing)} are not on the PATH" if missing else None


def pytest_configure(config):
    config.addinivalue_line("markers", "site: opens the site that make docs built in a browser")
    config.addinivalue_line("markers", "gpu: needs a CUDA device and CuPy")
    config.addinivalue_line("markers", "hostcuda: runs the kernels, or their machine code, on the CPU, which needs g++")
    config.addinivalue_line("markers", "nvrtc: compiles the kernels for GPUs, which needs NVRTC and cuobjdump")
    config.addinivalue_line("markers", "nvcc: compiles the kernels by nvcc, of a wheel or on the PATH")
    config.addinivalue_line("markers", "peer(name): compares with another library, by its module's name")
    config.addinivalue_line("markers", "beside(name): needs a folder of the environment with another release")
    config.addinivalue_line("markers", "alone: runs in a process of its own, whose memory no other test has filled")
    config.addinivalue_line("markers", "all: one of many combinations, or read from machine code, with --all")
    config.addinivalue_line("markers", "some(step): without --all, one of so many of a test's combinations")
    config.addinivalue_line("markers", "many: a combination or a random problem of the longer run, with --many")


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run what make test ALL=1 runs, as CI does")
    parser.addoption("--many", action="store_true", help="run the longer series of random problems too")


def pytest_collection_modifyitems(config, items):
    """Deselect what was not asked for, and mark what cannot run."""
    many = config.getoption("--many")
    everything, numbers, dropped = many or config.getoption("--all"), Counter(), []
    for item in items:
        some = item.get_closest_marker("some")
        numbers[item.function if some else None] += 1
        left = (some and (numbers[item.function] - 1) % some.args[0]) or item.get_closest_marker("all")
        if (left and not everything) or (item.get_closest_marker("many") and not many):
            dropped.append(item)
        elif reason := next(filter(None, (missing(mark.name, *mark.args) for mark in item.iter_markers())), None):
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in set(dropped)]


CHECKS = {"gpu": no_gpu, "hostcuda": no_compiler, "nvrtc": no_cuda_compiler, "nvcc": no_nvcc, "site": no_site}


def missing(mark, name="", *_):
    """Say why tests with a mark cannot run, or nothing."""
    if mark in CHECKS:
        return CHECKS[mark]()
    if mark == "peer" and importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    if mark == "beside" and not (Path(sys.prefix) / name).is_dir():
        return f"{name} is not in the environment (make test ALL=1 installs it)"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test of marker `alone` by a pytest of its own, which has the same outcome."""
    if pyfuncitem.get_closest_marker("alone") is None or "GPUFOLD_TEST_ALONE" in os.environ:
        return None
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "--many", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env=os.environ | {"GPUFOLD_TEST_ALONE": "1"},
        capture_output=True,
        text=True,
    )
    if run.returncode or "1 passed" not in run.stdout:
        outcome = pytest.fail.Exception if run.returncode else pytest.skip.Exception
        raise outcome(f"in a process of its own:\n{run.stdout}{run.stderr}", pytrace=False)
    return True


def pytest_report_collectionfinish(config, items):
    """Say how long kernels take to compile in one process."""
    count = sum(item.get_closest_marker("gpu") is not None for item in items)
    divided = config.pluginmanager.hasplugin("bench.test_log") or config.getoption("numprocesses", None)
    if count < MANY_ON_A_GPU or divided:
        return None
    return (
        f"{count} tests compile their kernels in this one process, in about {count * SECONDS_ON_A_GPU / 60:.0f} "
        f"minutes; python -m bench chip --results DIR divides them among processes, as -n 14 of pytest-xdist does"
    )


@pytest.fixture(autouse=True)
def _numpy_in_doctests(doctest_namespace):
    doctest_namespace["np"] = np


@pytest.fixture(params=["chosen", "flat", "tiled", "flat-tiled", "turned-tiled", "indexed-tiled"])
def way(request, monkeypatch):
    """Small problems would all go one way; these thresholds send them every way that large ones go."""
    if request.param != "chosen":
        monkeypatch.setattr(tiles, "SMALL_ELEMENTS", 0)
        monkeypatch.setattr(indexed, "FEW_ELEMENTS", 1 << 30 if "indexed" in request.param else 0)
    if "flat" in request.param:
        monkeypatch.setattr(runs, "FLAT_RUN", 1)
        monkeypatch.setattr(runs, "LARGE_PLANE", 1)
    if "turned" in request.param:
        for module in (folding, cells):
            monkeypatch.setattr(module, "taps_are_closest", lambda columns, axes: True)
        monkeypatch.setattr(folding, "LONG_STRIDE", 0)
    if "tiled" in request.param:
        monkeypatch.setattr(tiles, "THREADED_ELEMENTS", 1)
        monkeypatch.setattr(tiles, "TILE_ELEMENTS", 12)
        monkeypatch.setattr(folding, "LONG_ELEMENTS", 1)
        monkeypatch.setattr(indexed, "INDEXED_ELEMENTS", 40)
        monkeypatch.setattr(arithmetic, "PRODUCTS", 4)
        monkeypatch.setattr(elements, "MANY_HALVES", 1)
