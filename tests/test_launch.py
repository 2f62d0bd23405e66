"""What can be said of launches without a GPU: what is compiled, what is passed, and what a capture forbids."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 then
import numpy as np
import pytest
from processes import CHECKOUT, python
from test_kernels import SOURCES, plans

import gpufold
from bench.hostcuda import fake_cupy
from gpufold.calls import Unsupported
from gpufold.gpu import sources
from gpufold.gpu.plan import H200, operand_of

pytestmark = pytest.mark.peer("cupy")

# ---- What is compiled


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_launch_compiles_has_the_kernel_it_calls_and_no_other(source):
    for symbol in sources.symbols(source):
        found = re.findall(r"__launch_bounds__\([^)]*\)\s+(\w+)\(", sources.source_text(source, symbol))
        assert found == [symbol]


OTHER_NVRTC = """
import ctypes, json, sys
from pathlib import Path
from bench.hostcuda import cubin
for pattern in ("libnvrtc-builtins.so*", "libnvrtc.so*"):
    library = ctypes.CDLL(str(next(Path(sys.argv[1]).rglob(pattern))))
cubin._nvrtc = lambda: library
major, minor = ctypes.c_int(), ctypes.c_int()
library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
for text, options in json.load(sys.stdin):
    cubin.compile_text(text, options)
print(major.value, minor.value)
"""


@pytest.mark.all
@pytest.mark.parametrize(("release", "least"), [("12.9", (12, 9)), ("newest", (13, 1))])
def test_every_kernel_compiles_with_other_releases_of_nvrtc(release, least):
    """One specialisation of each, for an architecture, both drawn; the libraries of a process are of one release."""
    rng, asked, folder = random.Random(release), {}, Path(sys.prefix) / f"nvrtc-{release}"
    if not folder.is_dir():
        pytest.skip(f"{folder.name} is not in the environment (make test ALL=1 installs it)")
    for plan in rng.sample(plans(), len(plans())):
        options = [*sources.options(), f"-arch=sm_{rng.choice((75, 90, 120))}", "-ftz=true"]
        asked[plan.symbol] = sources.program(plan.file, plan.symbol, plan.defines), options
    found = python("-c", OTHER_NVRTC, str(folder), given=json.dumps([*asked.values()]))
    assert tuple(map(int, found.split())) >= least
    assert len(asked) > 20


def test_another_process_asks_for_the_same_and_finds_it_in_the_cache_on_disk():
    """CuPy's key is the text, the options and what compiles them."""
    show = (
        "import gpufold\n"
        "from gpufold.gpu.sources import options, program\n"
        "plan = gpufold.explain('col2im', ((2, 27, 64), 'float32'), (8, 8), (3, 3), pads_begin=1, pads_end=1).plan\n"
        "print(program(plan.file, plan.symbol, plan.defines), options())"
    )
    assert len({python("-c", show, PYTHONHASHSEED=seed) for seed in "12"}) == 1


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A copy of the kernels, which are compiled in place of them."""
    sources.digest.cache_clear()
    copy = shutil.copytree(sources.KERNELS, tmp_path / "kernels", copy_function=shutil.copyfile)
    monkeypatch.setattr(sources, "KERNELS", copy)
    yield copy
    sources.digest.cache_clear()


def test_cupy_compiles_a_kernel_and_its_errors_name_the_file_and_line(kernels, monkeypatch):
    """With CuPy's own options for an H200, as at the first launch."""
    from cupy.cuda import compiler

    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch: ("-arch=sm_90", "cubin"))
    plan = gpufold.explain("batch_to_space", ((4, 9), "float32"), (1, 4)).plan
    source = (kernels / plan.file).read_text()
    line = source.count("\n") + 2
    for added, message in (("", None), ("\nthis is wrong\n", rf"kernels/{plan.file}\({line}\): error")):
        (kernels / plan.file).write_text(source + added)
        code = sources.program(plan.file, plan.symbol, plan.defines)
        with pytest.raises(compiler.CompileException, match=message) if message else nullcontext():
            compiler.compile_using_nvrtc(code, sources.options(), cache_in_memory=True)


def test_a_changed_header_is_another_specialisation(kernels):
    before = sources.program("average_elementwise.cu", "average_elementwise", ())
    with (kernels / "common.cuh").open("a") as header:
        header.write("// changed\n")
    sources.digest.cache_clear()
    after = sources.program("average_elementwise.cu", "average_elementwise", ())
    assert before != after
    assert before.partition("#line")[2] == after.partition("#line")[2]


# ---- What is launched


@pytest.fixture
def launch(cupy):
    """The module that launches, on the stand-in for CuPy."""
    from gpufold.gpu import launch

    return launch


def test_the_driver_says_what_plans_depend_on(launch):
    assert launch.device(0) == replace(H200, name="no GPU: the stand-in for CuPy")


@pytest.mark.hostcuda
def test_a_repeated_call_only_launches(launch, monkeypatch):
    loaded, load = [], launch.load
    monkeypatch.setattr(launch, "load", lambda *kernel: loaded.append(kernel[-1]) or load(*kernel))
    host = np.ones((2, 27, 64), np.int32)
    columns, out = fake_cupy.asarray(host), fake_cupy.empty((2, 3, 8, 8), np.int32)
    for variant in ("atomic", "atomic", "gather", "atomic"):
        gpufold.col2im(columns, (8, 8), (3, 3), pads_begin=1, pads_end=1, variant=variant, out=out)
        assert (out.get() == gpufold.col2im(host, (8, 8), (3, 3), pads_begin=1, pads_end=1)).all()
    assert loaded == ["col2im_atomic", "col2im_gather"]


def test_alignment_is_the_largest_power_of_two_that_divides(launch):
    found = []
    for address in (4096, 4096 + 8, 6, 2**40 + 32):
        memory = fake_cupy.MemoryPointer(fake_cupy.UnownedMemory(address, 0, None), 0)
        found.append(launch._layout(fake_cupy.ndarray((1,), np.uint8, memory))[2])
    assert found == [256, 8, 2, 32]


def test_elements_off_their_own_size_are_refused():
    for strides, alignment in (((12, 6), 256), ((16, 8), 4)):
        with pytest.raises(Unsupported, match="do not lie on multiples of their size"):
            operand_of("col2im", "the input", (3, 2), strides, alignment, 8)


# ---- What a first call does in a capture

CALL = "batch_to_space", np.arange(36, dtype=np.float32).reshape(4, 9), (1, 4)


def begun():
    """Return a stream that captures."""
    stream = fake_cupy.Stream(non_blocking=True)
    stream.begin_capture()
    return stream


@pytest.mark.hostcuda
def test_a_first_call_in_a_capture_names_warmup_and_says_that_the_capture_is_lost(launch):
    plan = gpufold.explain(*CALL).plan
    stream = begun()
    with pytest.raises(RuntimeError, match=r"(?s)batch_to_space.*the capture is lost\..*gpufold\.warmup") as raised:
        launch.Kernel.of(plan)
    assert isinstance(raised.value.__cause__, fake_cupy.CUDADriverError)
    with pytest.raises(fake_cupy.CUDARuntimeError, match="cudaErrorStreamCaptureInvalidated"):
        stream.end_capture()


def test_other_errors_of_cuda_stay_as_they_are(launch, monkeypatch):
    def no_driver(*_):
        raise fake_cupy.CUDARuntimeError(101)

    monkeypatch.setattr(launch, "_function", no_driver)
    with pytest.raises(fake_cupy.CUDARuntimeError, match="cudaErrorInvalidDevice"):
        launch.load("average_elementwise.cu", (), "average_elementwise")


def test_scratch_memory_of_a_graph_needs_a_device_with_memory_pools(launch, monkeypatch):
    monkeypatch.setattr(fake_cupy, "POOLS_OF_DEVICES", False)
    assert launch._scratch(512)[1].mem.size == 512, "of CuPy's pool where nothing captures"
    stream = begun()
    with stream, pytest.raises(Unsupported, match=r"device 0 has no memory pools .*the capture goes on"):
        launch._scratch(512)
    assert stream.is_capturing()
    stream.end_capture()


# ---- On the stand-in

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
def test_what_the_documents_show_runs_on_the_stand_in(tmp_path):
    blocks = re.findall(r"^```py\n(.*?)^```", (CHECKOUT / "docs/gpu.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    python("-c", SHOWN.format("\n".join(blocks)), GPUFOLD_CACHE_DIR=str(tmp_path))
