"""The code of the GPU tests, run without a GPU: tests/test_gpu.py on a stand-in for CuPy (hostcuda/standin.py)."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpufold
from gpufold.gpu.sources import options, source_text
from hostcuda import standin

CHECKOUT = Path(__file__).parents[1]


def run(*arguments):
    """Run pytest with the stand-in in a process of its own; returns its status and all it printed."""
    paths = [str(CHECKOUT), str(CHECKOUT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "hostcuda.standin", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=CHECKOUT,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


# ---------------------------------------------------------------------------------------------
# The stand-in is as strict as what it stands in for

DATA = np.arange(36, dtype=np.float32).reshape(4, 9)
CALL = "batch_to_space", DATA, (1, 4)


@pytest.fixture
def launched():
    """A kernel, the plan that it is for, its arrays, and what CuPy passes its parameters as."""
    plan = gpufold.explain(*CALL).plan
    code = source_text(plan.source, plan.symbol)
    module = standin.RawModule(code=code, options=options(plan.defines), backend="nvrtc")
    data, out = standin.asarray(DATA), standin.empty((1, 36), np.float32)
    parameters = np.frombuffer(plan.parameters, np.dtype((np.void, len(plan.parameters))))
    return SimpleNamespace(
        kernel=module.get_function(plan.symbol), plan=plan, data=data, out=out, parameters=parameters
    )


@pytest.mark.hostcuda
def test_a_launch_computes_when_it_is_waited_for(launched):
    launched.kernel(launched.plan.grid, launched.plan.block, (launched.data, launched.out, launched.parameters))
    seen = launched.out._addresses()
    assert not (seen == gpufold.batch_to_space(*CALL[1:])).any(), "nothing has run yet"
    standin.Stream.null.synchronize()
    assert (seen == gpufold.batch_to_space(*CALL[1:])).all()


@pytest.mark.hostcuda
@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (standin.Misuse, "takes 3 arguments, got 2", lambda it: (it.data, it.out)),
        (standin.Misuse, "is a value of .* bytes, got a value of", lambda it: (it.data, it.out, np.zeros(1, "V4"))),
        (standin.Misuse, "got a value of 8", lambda it: (it.data, it.out, 7)),
        (standin.Misuse, "is a value of .* bytes, got a pointer", lambda it: (it.data, it.out, it.out)),
        (standin.Misuse, "argument 1 .* is a pointer", lambda it: (it.data, it.parameters, it.parameters)),
        (TypeError, r"numpy.ndarray of shape \(4, 9\)", lambda it: (DATA, it.out, it.parameters)),
        (TypeError, "Unsupported type <class 'str'>", lambda it: (it.data, it.out, "parameters")),
        (standin.Misuse, "lies on device 1", lambda it: (on_device_1(), it.out, it.parameters)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_a_gpu_would_punish_are_refused(launched, error, match, arguments):
    with pytest.raises(error, match=match):
        launched.kernel(launched.plan.grid, launched.plan.block, arguments(launched))


def on_device_1():
    with standin.Device(1):
        return standin.asarray(DATA)


@pytest.mark.hostcuda
@pytest.mark.parametrize(
    ("grid", "block"),
    [((1, 1, 1), (1025, 1, 1)), ((1, 1, 1), (64, 32, 1)), ((2**31, 1, 1), (32, 1, 1)), ((1, 65536), (1,))],
)
def test_a_launch_beyond_the_limits_of_cuda_is_refused(launched, grid, block):
    with pytest.raises(standin.CUDARuntimeError, match="cudaErrorInvalidValue"):
        launched.kernel(grid, block, (launched.data, launched.out, launched.parameters))


@pytest.mark.hostcuda
def test_a_kernel_that_writes_outside_is_noticed(launched):
    with standin.using_allocator(None):
        small = standin.empty((1,), np.float32)
    launched.kernel(launched.plan.grid, launched.plan.block, (launched.data, small, launched.parameters))
    with pytest.raises(standin.Misuse, match="wrote outside an allocation of 4 bytes"):
        standin.Device().synchronize()
    standin.Device().synchronize()  # noticed once


def test_allocating_and_waiting_end_a_capture():
    stream = standin.Stream(non_blocking=True)
    for forbidden in (stream.synchronize, standin.Device().synchronize, lambda: standin.Memory(512)):
        stream.begin_capture(standin.STREAM_CAPTURE_MODE_GLOBAL)
        with pytest.raises(standin.CUDARuntimeError, match="cudaErrorStreamCaptureUnsupported"):
            forbidden()
        with pytest.raises(standin.CUDARuntimeError, match="cudaErrorStreamCaptureInvalidated"):
            stream.end_capture()


def test_host_and_device_are_not_mixed_by_accident():
    array = standin.asarray(DATA)
    for mixed in (
        lambda: np.asarray(array),
        lambda: array.__setitem__(..., DATA),
        lambda: standin.ascontiguousarray(DATA),
    ):
        with pytest.raises(TypeError):
            mixed()
    with pytest.raises(ValueError, match="Unsupported dtype"):
        standin.empty(3, "U1")
    with standin.Device(1), pytest.raises(ValueError, match="Array device must be same as the current device"):
        array.copy()


@pytest.mark.peer("cupy")
def test_it_takes_no_argument_that_cupy_does_not_take():
    import cupy

    ours = standin.cupy()
    for name, function in inspect.getmembers(ours, inspect.isfunction):
        theirs = getattr(cupy, name)
        if inspect.isfunction(theirs):  # those in C++ do not say
            assert set(inspect.signature(function).parameters) <= set(inspect.signature(theirs).parameters), name
    for name in vars(ours.cuda):
        assert hasattr(cupy.cuda, name), name
    for name in vars(ours.cuda.runtime):
        assert hasattr(cupy.cuda.runtime, name), name
    for name in ("Stream", "Graph", "Device", "MemoryPool", "MemoryPointer", "MemoryHook"):
        public = [each for each in vars(getattr(ours.cuda, name)) if not each.startswith("_")]
        assert [each for each in public if not hasattr(getattr(cupy.cuda, name), each)] == [], name
    public = [each for each in dir(ours.ndarray) if not each.startswith("_")]
    assert [each for each in public if not hasattr(cupy.ndarray, each)] == []


# ---------------------------------------------------------------------------------------------
# The GPU tests


@pytest.mark.all
@pytest.mark.hostcuda
def test_the_gpu_tests_pass_on_a_stand_in_for_cupy():
    """Two problems of each; what compiles is kept for the next run."""
    status, output = run("tests/test_gpu.py", "--of-each=2")
    assert status == 0, output
    assert "no GPU ran" in output
    assert "tests deselected: needs cupyx" in output


@pytest.mark.all
@pytest.mark.peer("torch")
@pytest.mark.hostcuda
def test_the_gpu_tests_of_tensors_pass_on_a_stand_in_for_cupy():
    status, output = run("tests/test_torch_gpu.py", "-p", "hostcuda.torch_standin", "--of-each=20")
    assert status == 0, output
    assert "no GPU ran" in output


@pytest.mark.many
@pytest.mark.hostcuda
def test_all_gpu_tests_that_say_something_pass_on_a_stand_in_for_cupy():
    status, output = run("tests/test_gpu.py")
    assert status == 0, output
