"""The code of the GPU tests, run without a GPU on a stand-in for CuPy (hostcuda/fake_cupy.py), which is like CuPy."""

from __future__ import annotations

import inspect

import pytest
from processes import python

from bench.hostcuda import fake_cupy


@pytest.mark.peer("cupy")
def test_it_has_nothing_and_takes_no_argument_that_cupy_does_not():
    import cupy

    ours = fake_cupy.cupy()
    for name, function in inspect.getmembers(ours, inspect.isfunction):
        theirs = getattr(cupy, name)
        if inspect.isfunction(theirs):  # those in C++ do not say
            assert set(inspect.signature(function).parameters) <= set(inspect.signature(theirs).parameters), name
    pairs = [(ours.cuda, cupy.cuda), (ours.cuda.runtime, cupy.cuda.runtime), (ours.ndarray, cupy.ndarray)]
    for name in ("Stream", "Graph", "Device", "MemoryPool", "MemoryPointer", "MemoryHook"):
        pairs.append((getattr(ours.cuda, name), getattr(cupy.cuda, name)))
    for own, theirs in pairs:
        assert [name for name in vars(own) if not name.startswith("_") and not hasattr(theirs, name)] == [], theirs
    assert issubclass(ours.cuda.driver.CUDADriverError, cupy.cuda.driver.CUDADriverError.__base__)


@pytest.mark.hostcuda
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["tests/test_gpu.py", "--of-each=1"], marks=pytest.mark.all),  # what compiles is kept
        pytest.param(
            ["tests/test_kinds.py", "tests/test_tiling.py", "-k", "cupy and not dask", "--of-each=5"],
            marks=[pytest.mark.all, pytest.mark.peer("torch")],
        ),
        pytest.param(["tests/test_gpu.py"], marks=pytest.mark.many),
    ],
    ids=" ".join,
)
def test_the_gpu_tests_pass_on_a_stand_in_for_cupy(words):
    plugins = "-p", "bench.hostcuda.fake_cupy", "-p", "no:cacheprovider"
    assert fake_cupy.BANNER in python("-m", "pytest", *plugins, "-q", *words)
