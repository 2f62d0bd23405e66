"""The code of the GPU tests, run without a GPU: tests/test_gpu.py on a stand-in for CuPy (hostcuda/fake_cupy.py)."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fronts import on_the_stand_in

import gpufold
from bench.hostcuda import fake_cupy

CHECKOUT = Path(__file__).parents[1]


def run(*arguments):
    """Run pytest with the stand-in in a process of its own; returns its status and all it printed."""
    paths = [str(CHECKOUT), str(CHECKOUT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "bench.hostcuda.fake_cupy", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=CHECKOUT,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


CALL = "batch_to_space", np.arange(36, dtype=np.float32).reshape(4, 9), (1, 4)


def begun(mode=fake_cupy.GLOBAL):
    """Return a stream that captures."""
    stream = fake_cupy.Stream(non_blocking=True)
    stream.begin_capture(mode)
    return stream


def assert_lost(stream):
    with pytest.raises(RuntimeError, match="invalidated the capture sequence"):
        stream.is_capturing()
    with pytest.raises(fake_cupy.CUDARuntimeError, match="cudaErrorStreamCaptureInvalidated"):
        stream.end_capture()


@pytest.mark.parametrize("forbidden", ["wait for the device", "wait for the stream", "allocate"])
def test_allocating_and_waiting_end_a_capture(forbidden):
    stream = begun()
    calls = {"wait for the device": fake_cupy.Device().synchronize, "wait for the stream": stream.synchronize}
    calls["allocate"] = partial(fake_cupy.empty, 512)
    with pytest.raises(fake_cupy.CUDARuntimeError, match="cudaErrorStreamCaptureUnsupported"):
        calls[forbidden]()
    assert_lost(stream)


@pytest.mark.peer("cupy")
def test_it_takes_no_argument_that_cupy_does_not_take():
    import cupy

    ours = fake_cupy.cupy()
    for name, function in inspect.getmembers(ours, inspect.isfunction):
        theirs = getattr(cupy, name)
        if inspect.isfunction(theirs):  # those in C++ do not say
            assert set(inspect.signature(function).parameters) <= set(inspect.signature(theirs).parameters), name
    for name in vars(ours.cuda):
        assert hasattr(cupy.cuda, name), name
    for name in vars(ours.cuda.runtime):
        assert hasattr(cupy.cuda.runtime, name), name
    assert issubclass(ours.cuda.driver.CUDADriverError, cupy.cuda.driver.CUDADriverError.__base__)
    for name in ("Stream", "Graph", "Device", "MemoryPool", "MemoryPointer", "MemoryHook"):
        public = [each for each in vars(getattr(ours.cuda, name)) if not each.startswith("_")]
        assert [each for each in public if not hasattr(getattr(cupy.cuda, name), each)] == [], name
    public = [each for each in dir(ours.ndarray) if not each.startswith("_")]
    assert [each for each in public if not hasattr(cupy.ndarray, each)] == []


# ---------------------------------------------------------------------------------------------
# What a first call does in a capture


@pytest.fixture
def launch(monkeypatch):
    """The module that launches, on the stand-in, where nothing is loaded yet."""
    from gpufold.gpu import launch

    monkeypatch.setattr(fake_cupy, "_loaded", {})
    with on_the_stand_in(monkeypatch):
        yield launch


@pytest.mark.hostcuda
@pytest.mark.peer("cupy")
def test_a_first_call_in_a_capture_names_warmup_and_says_that_the_capture_is_lost(launch):
    plan = gpufold.explain(*CALL).plan
    stream = begun()
    with pytest.raises(RuntimeError, match=r"(?s)batch_to_space.*the capture is lost\..*gpufold\.warmup") as raised:
        launch.Kernel.of(plan)
    assert isinstance(raised.value.__cause__, fake_cupy.CUDADriverError)
    assert_lost(stream)
    launch.compile_plan(plan)
    after = begun()
    launch.Kernel.of(plan)
    assert after.is_capturing()
    after.end_capture()


@pytest.mark.hostcuda
@pytest.mark.peer("cupy")
def test_a_first_call_in_a_capture_that_lets_kernels_load_is_captured(launch):
    stream = begun(fake_cupy.RELAXED)
    launch.Kernel.of(gpufold.explain(*CALL).plan)
    assert stream.is_capturing()
    stream.end_capture()


@pytest.mark.peer("cupy")
def test_other_errors_of_cuda_stay_as_they_are(launch, monkeypatch):
    def no_driver(*_):
        raise fake_cupy.CUDARuntimeError(101)

    monkeypatch.setattr(launch, "_function", no_driver)
    with pytest.raises(fake_cupy.CUDARuntimeError, match="cudaErrorInvalidDevice"):
        launch.load("average_direct.cu", (), "average_direct")
    monkeypatch.undo()


@pytest.mark.peer("cupy")
def test_scratch_memory_of_a_graph_needs_a_device_with_memory_pools(launch, monkeypatch):
    monkeypatch.setattr(fake_cupy, "POOLS_OF_DEVICES", False)
    assert launch._scratch(512)[1].mem.size == 512, "of CuPy's pool where nothing captures"
    stream = begun()
    with stream, pytest.raises(gpufold.Unsupported, match=r"device 0 has no memory pools .*the capture goes on"):
        launch._scratch(512)
    assert stream.is_capturing()
    stream.end_capture()


SHOWN = """
import sys
from bench.hostcuda import fake_cupy
cupy = sys.modules["cupy"] = fake_cupy.cupy()
import numpy as np, gpufold
host = np.random.default_rng(0).random((8, 576, 3136), np.float32)
columns = cupy.asarray(host)
cupy.cuda.Device().synchronize()
{}
stream.synchronize()
assert (image.get() == gpufold.col2im(host, (56, 56), (3, 3), pads_begin=1, pads_end=1)).all()
"""


@pytest.mark.all
@pytest.mark.hostcuda
@pytest.mark.peer("cupy")
def test_what_the_documents_show_runs_on_the_stand_in(tmp_path):
    blocks = re.findall(r"^```py\n(.*?)^```", (CHECKOUT / "docs/gpu.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", SHOWN.format("\n".join(blocks))],
        env=os.environ | {"PYTHONPATH": paths, "GPUFOLD_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------------------
# The GPU tests


@pytest.mark.hostcuda
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["tests/test_gpu.py", "--of-each=2"], marks=pytest.mark.all),  # what compiles is kept
        pytest.param(
            ["tests/test_torch_gpu.py", "-p", "bench.hostcuda.fake_torch_cuda", "--of-each=20"],
            marks=[pytest.mark.all, pytest.mark.peer("torch")],
        ),
        pytest.param(["tests/test_gpu.py"], marks=pytest.mark.many),
    ],
    ids=" ".join,
)
def test_the_gpu_tests_pass_on_a_stand_in_for_cupy(words):
    status, output = run(*words)
    assert status == 0, output
    assert "no GPU ran" in output
    assert ("tests deselected: needs many GB" in output) is ("tests/test_gpu.py" in words)
