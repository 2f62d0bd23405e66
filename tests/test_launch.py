"""What can be said of launches without a GPU: what is compiled, with which options, and what is passed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 then
import numpy as np
import pytest
import specialisations as specialised
from specialisations import SOURCES

from bench import hostcuda
from gpufold.calls import Call, Unsupported
from gpufold.geometry import batch_to_space_geometry, col2im_geometry, im2col_geometry
from gpufold.gpu import sources
from gpufold.gpu.plan import H200, Device, Operand
from gpufold.gpu.registry import choose
from gpufold.operations import variants

pytestmark = pytest.mark.peer("cupy")


@pytest.fixture
def launch():
    from gpufold.gpu import launch

    caches = (sources._headers, launch._function, launch._prepare, launch.device)
    for cached in caches:
        cached.cache_clear()
    yield launch
    for cached in caches:
        cached.cache_clear()


GEOMETRY = col2im_geometry((2, 27, 64), (8, 8), (3, 3), 1, 1, 1, 1)
COLUMNS, IMAGE = Operand.contiguous(GEOMETRY.columns_shape), Operand.contiguous(GEOMETRY.image_shape)
BLOCK_BY_BLOCK = Operand(GEOMETRY.columns_shape, (27 * 64, 1, 27))
CHANNEL_BY_CHANNEL = Operand(GEOMETRY.split_columns_shape, (27 * 64, 9 * 64, 3, 1, 9 * 8, 9))


@pytest.fixture
def compile_plan(launch, monkeypatch):
    """Compile as CuPy would at the first launch on an H200, CuPy's own options included; gives the cubin."""
    from cupy.cuda import compiler

    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch: ("-arch=sm_90", "cubin"))

    def compile_plan(plan):
        code = sources.program(plan.source, plan.symbol, plan.defines)
        return compiler.compile_using_nvrtc(code, sources.options(), cache_in_memory=True)[0]

    return compile_plan


def plans():
    for variant in variants("col2im"):
        dtype = "complex64" if variant == "atomic" else "bfloat16"
        columns = BLOCK_BY_BLOCK if variant == "gather_blocks" else COLUMNS
        image = Operand.contiguous(GEOMETRY.image_shape)
        yield choose(Call("col2im", GEOMETRY, dtype, variant=variant), columns, image, H200)
    taken = im2col_geometry(GEOMETRY.image_shape, (3, 3), 1, 1, 1, 1)
    for variant in variants("im2col"):
        columns = CHANNEL_BY_CHANNEL if variant == "packed" else COLUMNS
        yield choose(Call("im2col", taken, "float16", variant=variant), IMAGE, columns, H200)
    moved = batch_to_space_geometry((8, 4, 6), (1, 2, 2), 0, 0)
    yield choose(Call("batch_to_space", moved, "int8"), Operand.contiguous((8, 4, 6)), Operand.contiguous((2, 8, 12)))


@pytest.mark.parametrize("plan", list(plans()), ids=lambda plan: plan.symbol)
def test_what_a_launch_compiles_has_the_kernel_it_calls_and_no_other(compile_plan, plan):
    code = compile_plan(plan)
    kernels = {symbol for symbol in sources.symbols(plan.source) if f".text.{symbol}\0".encode() in code}
    assert kernels == {plan.symbol}


def compiled(text):
    """Compile a program for an H200 with the options that say something about the code, as CuPy passes them."""
    return hostcuda.cubin.compile_text(text, hostcuda.cubin.options((), 90, sources.KERNELS, flush=True))


@pytest.mark.all
@pytest.mark.nvrtc
@pytest.mark.parametrize("source", SOURCES)
def test_specialisations_in_the_text_make_the_machine_code_of_those_in_the_options(source):
    """Of every kernel, in one specialisation that is drawn."""
    for symbol in sorted({plan.symbol for plan in specialised.plans() if plan.source == source}):
        of_kernel = [plan for plan in specialised.plans() if plan.symbol == symbol]
        plan = random.Random(symbol).choice(of_kernel)
        in_text = compiled(sources.program(plan.source, plan.symbol, plan.defines))
        assert in_text == hostcuda.cubin.compile(plan.source, plan.defines, 90, symbol=plan.symbol), plan


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
@pytest.mark.parametrize(
    ("release", "least"),
    [
        pytest.param("12.9", (12, 9), marks=pytest.mark.beside("nvrtc-12.9")),
        pytest.param("newest", (13, 1), marks=pytest.mark.beside("nvrtc-newest")),
    ],
)
def test_every_kernel_compiles_with_other_releases_of_nvrtc(release, least):
    """One specialisation of each, drawn; the libraries of a process are of one release."""
    sample = {}
    for plan in random.Random(release).sample(specialised.plans(), len(specialised.plans())):
        sample[plan.symbol] = sources.program(plan.source, plan.symbol, plan.defines)
    asked = [
        (text, [*sources.options(), f"-arch=sm_{architecture}", "-ftz=true"])
        for text in sample.values()
        for architecture in (75, 90, 120)
    ]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_NVRTC, str(Path(sys.prefix) / f"nvrtc-{release}")],
        input=json.dumps(asked),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (sources.KERNELS.parent / "tests", *sys.path[1:])))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert tuple(map(int, done.stdout.split())) >= least
    assert len(asked) > 70


def test_all_kernels_are_compiled_with_the_same_options(launch, monkeypatch):
    """For CuPy runs the compiler on an empty file for each tuple of options that is new to a process."""
    asked = []
    monkeypatch.setattr(launch.cupy, "RawKernel", lambda code, symbol, options: asked.append((code, options)))
    for plan in plans():
        launch._function(plan.source, plan.defines, plan.symbol)
    assert len({options for _, options in asked}) == 1
    assert len({code for code, _ in asked}) >= 10


def test_another_process_asks_for_the_same_and_finds_it_in_the_cache_on_disk():
    """CuPy's key is the text, the options and what compiles them."""
    show = (
        "import gpufold, hashlib\n"
        "from gpufold.gpu.sources import options, program\n"
        "plan = gpufold.explain('col2im', ((2, 27, 64), 'float32'), (8, 8), (3, 3), pads_begin=1, pads_end=1).plan\n"
        "asked = repr((program(plan.source, plan.symbol, plan.defines), options()))\n"
        "print(hashlib.sha256(asked.encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", show], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_errors_name_the_kernel_file_and_its_line(launch, compile_plan, tmp_path, monkeypatch):
    from cupy.cuda.compiler import CompileException

    kernels = shutil.copytree(sources.KERNELS, tmp_path / "kernels", copy_function=shutil.copyfile)
    plan = choose(Call("col2im", GEOMETRY, "float32"), COLUMNS, IMAGE)
    source = (kernels / plan.source).read_text()
    (kernels / plan.source).write_text(source + "\nthis is wrong\n")
    monkeypatch.setattr(sources, "KERNELS", kernels)
    with pytest.raises(CompileException, match=rf"kernels/{plan.source}\({source.count(chr(10)) + 2}\): error"):
        compile_plan(plan)


def test_a_changed_header_is_another_specialisation(launch, tmp_path, monkeypatch):
    before = sources.program("average_direct.cu", "average_direct", ())
    kernels = shutil.copytree(sources.KERNELS, tmp_path / "kernels", copy_function=shutil.copyfile)
    with (kernels / "common.cuh").open("a") as header:
        header.write("// changed\n")
    monkeypatch.setattr(sources, "KERNELS", kernels)
    sources._headers.cache_clear()
    after = sources.program("average_direct.cu", "average_direct", ())
    assert before != after
    assert before.partition("#line")[2] == after.partition("#line")[2]


def test_parameters_travel_as_one_element(launch, monkeypatch):
    monkeypatch.setattr(launch, "load", lambda *_: None)
    plan = choose(Call("col2im", GEOMETRY, "float32"), COLUMNS, IMAGE)
    kernel = launch.Kernel.of(plan)
    assert kernel.parameters.size == 1  # what CuPy passes by value
    assert kernel.parameters.tobytes() == plan.parameters


def test_alignment_is_the_largest_power_of_two_that_divides(launch):
    found = []
    for address in (4096, 4096 + 8, 6, 2**40 + 32):
        array = Array(IMAGE)
        array.ptr = address
        found.append(launch._layout(array)[2])
    assert found == [256, 8, 2, 32]


def test_elements_off_their_own_size_are_refused(launch):
    for strides, alignment in (((12, 6), 256), ((16, 8), 4)):
        with pytest.raises(Unsupported, match="do not lie on multiples of their size"):
            launch._operand("col2im", "the input", ((3, 2), strides, alignment, 8))


def test_the_driver_says_what_plans_depend_on(launch, monkeypatch):
    runtime = launch.cupy.cuda.runtime
    properties = {
        "name": b"a GPU",
        "major": 11,
        "minor": 0,
        "multiProcessorCount": 20,
        "maxThreadsPerMultiProcessor": 1536,
    }
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda number: properties)
    monkeypatch.setattr(
        runtime, "deviceGetAttribute", lambda attribute, number: {38: 4 << 20, 81: 100 << 10}[attribute]
    )
    assert launch.device(0) == Device("a GPU", (11, 0), 20, 1536, 100 << 10, 4 << 20)


class Array:
    """What a launch asks of an array."""

    def __init__(self, operand, dtype="float32"):
        self.dtype = np.dtype(dtype)
        self.shape = operand.shape
        self.strides = tuple(stride * self.dtype.itemsize for stride in operand.strides)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.device = self.data = self
        self.id, self.ptr = 0, 256


def test_a_repeated_call_only_launches(launch, monkeypatch):

    launched, compiled = [], []

    def function(source, defines, symbol):
        compiled.append(symbol)
        return lambda *given: launched.append(given)

    runtime, stream = launch.cupy.cuda.runtime, SimpleNamespace(ptr=77)
    monkeypatch.setattr(launch, "load", function)
    monkeypatch.setattr(launch, "device", lambda number: H200)
    monkeypatch.setattr(runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(runtime, "memsetAsync", lambda *given: launched.append(given))
    monkeypatch.setattr(launch.cupy.cuda, "get_current_stream", lambda: stream)
    launch._prepare.cache_clear()
    columns, image = Array(COLUMNS), Array(IMAGE)
    for _ in range(3):
        launch.execute(Call("col2im", GEOMETRY, "float32", variant="atomic"), columns, image)
    plan = choose(Call("col2im", GEOMETRY, "float32", variant="atomic"), COLUMNS, IMAGE, H200)
    assert compiled == ["col2im_atomic"]
    cleared, (grid, block, arguments, shared_bytes, on) = launched[:2]
    assert len(launched) == 6
    assert cleared == (image.ptr, 0, image.nbytes, stream.ptr), "ahead of each launch, on the same stream"
    assert (grid, block, shared_bytes, on) == (plan.grid, plan.block, 0, None)
    assert arguments[:2] == (columns.ptr, image.ptr)
    launch.execute(Call("col2im", GEOMETRY, "float32"), columns, Array(IMAGE))
    assert compiled == ["col2im_atomic", "col2im_gather"]


@pytest.mark.parametrize("axes", [0, 1, 3])
def test_a_kernel_gets_pointers_to_the_weights_of_each_axis_in_order(launch, axes):
    passed = []
    kernel = launch.Kernel(
        lambda grid, block, arguments, *_: passed.extend(arguments),
        (1, 1, 1),
        (32, 1, 1),
        np.zeros(1, "V4"),
        False,
        True,
    )
    window = tuple(256 * (3 - axis) for axis in range(axes))
    kernel.launch(("data", "result", None, "positions", window), None, None)
    *arrays, weights, parameters = passed
    assert arrays == ["data", "result", "positions"]
    assert parameters is kernel.parameters
    assert weights.size == 1, "CuPy passes an array of one element by value"
    assert np.frombuffer(weights.tobytes(), np.uintp).tolist() == ([768, 512, 256][:axes] or [0])
