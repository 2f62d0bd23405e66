"""The executor of kernels itself: right results, every kind of fault reported, requests that can be counted by hand."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import hostcuda
from bench.hostcuda import cubin, machine
from bench.hostcuda.cubin import resident_threads
from gpufold.gpu.devices import DEVICES
from gpufold.gpu.plan import H200, Plan

pytestmark = pytest.mark.hostcuda

SAMPLES = Path(hostcuda.__file__).parent / "samples"
MODES = ("plain", "observed", "shuffled", "sanitized")


def launch(symbol, grid, block, *arguments, defines=(), **options):
    return hostcuda.launch(SAMPLES / f"{symbol}.cu", symbol, defines, grid, block, arguments, **options)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def sample_plan(symbol, input, output, parameters=b"", threads=256, blocks=None, defines=()):
    """Plan a sample kernel, one thread per element of the output unless told otherwise."""
    blocks = -(-output.size // threads) if blocks is None else blocks
    return Plan(
        operation="sample",
        variant=symbol,
        source=f"{symbol}.cu",
        symbol=symbol,
        defines=defines,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        parameters=parameters,
        atomic_output=False,
        bytes_moved=input.nbytes + output.nbytes,
        reason="",
    )


# ---- faults


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["observed", "shuffled"])
@pytest.mark.parametrize("dropped", ["1", "2"])
def test_a_missing_barrier_is_reported_whatever_the_order(dropped, mode, seed):
    data, result = numbers(64, 32), np.empty((32, 64), np.float32)
    with pytest.raises(hostcuda.Fault, match=r"(race on shared memory|nobody wrote).*transpose\.cu:\d+") as fault:
        launch(
            *("transpose", (1, 1, 1), (32, 8, 1), data, result, struct.pack("ii", *data.shape)),
            defines=(("DROPPED", dropped),),
            mode=mode,
            seed=seed,
        )
    lines = [int(line) for line in re.findall(r"transpose\.cu:(\d+)", str(fault.value))]
    text = (SAMPLES / "transpose.cu").read_text().splitlines()
    assert all("tile[" in text[line - 1] for line in lines)


def rotate(threads, mode, **defines):
    data, result = numbers(2, threads), np.empty(threads, np.float32)
    launch("rotate", (1, 1, 1), (threads, 1, 1), data, result, defines=tuple(defines.items()), mode=mode)
    assert np.array_equal(result, np.roll(data, -int(defines["DISTANCE"]), axis=1).sum(axis=0))


@pytest.mark.parametrize("mode", MODES)
def test_barriers_that_suffice_are_no_fault(mode):
    rotate(128, mode, DISTANCE="33", BARRIER="__syncthreads()")
    rotate(32, mode, DISTANCE="5", BARRIER="__syncwarp()")


@pytest.mark.parametrize(
    ("threads", "distance", "barrier", "verb"),
    [
        (32, "1", "(void)0", "writes"),  # thread 1 writes what thread 0 has read
        (32, "31", "(void)0", "reads"),  # thread 1 reads what thread 0 has written
        (128, "32", "(void)0", "writes"),
        (128, "32", "__syncwarp()", "writes"),
        (128, "96", "__syncwarp()", "writes"),
    ],
)
def test_races_within_a_warp_and_between_warps_are_told_apart(threads, distance, barrier, verb):
    with pytest.raises(hostcuda.Fault, match=rf"race on shared memory: thread \d+ .*{verb} byte.*rotate\.cu:"):
        rotate(threads, "observed", DISTANCE=distance, BARRIER=barrier)


def test_a_race_with_readers_of_another_warp_is_reported():
    def broadcast(threads, keeper):
        data, result = numbers(threads), np.empty(threads, np.float32)
        launch("broadcast", (1, 1, 1), (threads, 1, 1), data, result, keeper, mode="observed")
        assert np.array_equal(result, data + data[keeper])

    broadcast(32, 7)
    for threads in (64, 96, 128):
        for keeper in (0, 40, threads - 1):
            with pytest.raises(hostcuda.Fault, match=rf"thread {keeper} .* writes byte \d+ at broadcast\.cu"):
                broadcast(threads, keeper)


def test_shared_memory_starts_as_garbage_in_every_block():
    data, result = numbers(32, 64), np.empty((64, 32), np.float32)
    dropped = (("DROPPED", "1"),)
    launch("transpose", (2, 1, 1), (32, 8, 1), data, result, struct.pack("ii", 32, 64), defines=dropped)
    assert np.isnan(result[:32]).any()
    assert np.isnan(result[32:]).any()


def move(count, width, offset, mode, threads=None, defines=()):
    """Run store.cu on count elements, with as many threads unless told otherwise; gives what it read and wrote."""
    height = count // width
    data, result = numbers(height, width), np.empty((width, height), np.float32)
    plan = sample_plan("store", data, result, struct.pack("iii", count, height, offset), threads=32, defines=defines)
    plan = replace(plan, grid=((threads or count) // 32, 1, 1))
    hostcuda.run(plan, data, result, mode=mode, kernels=SAMPLES)
    return data, result


@pytest.mark.parametrize("mode", MODES)
def test_what_the_faults_are_made_of_is_no_fault(mode):
    data, result = move(256, 8, 0, mode)
    assert np.array_equal(result, data.T)


@pytest.mark.parametrize(
    ("match", "modes", "wrong"),
    [
        *((r"outside|store\.cu:\d+", MODES, {"offset": offset}) for offset in (1, -1, 900, -900)),
        ("const", MODES, {"defines": (("WRITE_INPUT", "1"),)}),
        (r"belongs to no array, at store\.cu:\d+", MODES[1:3], {"offset": 1 << 28}),
        (r"written before.*store\.cu:\d+", MODES[1:3], {"threads": 288}),
        ("32 elements of argument 1 were never written", MODES[1:3], {"threads": 224}),
    ],
)
def test_what_a_store_must_not_do_is_reported(match, modes, wrong):
    for mode in modes:
        with pytest.raises(hostcuda.Fault, match=match):
            move(256, 8, mode=mode, **{"offset": 0} | wrong)


@pytest.mark.parametrize("mode", MODES)
def test_bytes_between_elements_are_not_the_kernels(mode):
    data, result = numbers(64), np.empty((64, 2), np.float32)[:, 0]
    with pytest.raises(hostcuda.Fault, match="outside"):
        launch("store", (1, 1, 1), (64, 1, 1), data, result, struct.pack("iii", 64, 1, 0), mode=mode)


@pytest.mark.parametrize("mode", ["observed", "shuffled"])
def test_a_read_of_what_nobody_wrote_is_reported(mode):
    """What one launch has written the next one may read."""
    data, counts, known = np.full(256, 3, np.uint8), np.zeros(64, np.uint32), np.arange(256) < 12
    arguments = data, counts, struct.pack("i", data.size)
    with pytest.raises(
        hostcuda.Fault, match=r"adds to byte \d+ of argument 1, which nobody wrote, at .*histogram\.cu:\d+"
    ):
        launch("histogram", (1, 1, 1), (256, 1, 1), *arguments, mode=mode, known=known)
    launch("histogram", (1, 1, 1), (256, 1, 1), *arguments, mode=mode, known=np.ones(256, bool))
    assert np.array_equal(counts, np.bincount(data, minlength=64))
    result = np.zeros((8, 8), np.float32)
    written = np.zeros(result.nbytes, bool)
    launch(
        "store", (2, 1, 1), (32, 1, 1), numbers(8, 8), result, struct.pack("iii", 64, 8, 0), mode=mode, known=written
    )
    assert written.all()


def test_a_misaligned_word_is_reported():
    data, result = numbers(516), np.empty(512, np.float32)
    launch("wide", (1, 1, 1), (128, 1, 1), data[4:], result, mode="sanitized")
    assert np.array_equal(result, data[4:])
    with pytest.raises(hostcuda.Fault, match=r"wide\.cu.*misaligned"):
        launch("wide", (1, 1, 1), (128, 1, 1), data[1:513], result, mode="sanitized")


@pytest.mark.parametrize("mode", MODES)
def test_barriers_that_never_open_are_reported(mode):
    with pytest.raises(hostcuda.Fault, match="wait for ever"):
        launch("divergent", (1, 1, 1), (64, 1, 1), np.empty(64, np.float32), mode=mode)


@pytest.mark.parametrize("mode", ["plain", "sanitized"])
def test_arguments_that_do_not_fit_are_refused(mode):
    data, result = numbers(32, 32), np.empty((32, 32), np.float32)
    for parameters in (struct.pack("i", 32), struct.pack("iii", 32, 32, 0), data):
        with pytest.raises((TypeError, hostcuda.Fault), match="argument"):
            launch("transpose", (1, 1, 1), (32, 8, 1), data, result, parameters, mode=mode)


def test_compiler_errors_name_file_and_line(tmp_path):
    (tmp_path / "broken.cu").write_text(
        'extern "C" __global__ void broken(float* output)\n{\n    output[0] = nothing;\n}\n'
    )
    with pytest.raises(hostcuda.BuildError, match=r"broken\.cu:3"):
        hostcuda.launch(tmp_path / "broken.cu", "broken", (), (1, 1, 1), (1, 1, 1), (np.empty(1, np.float32),))
    plan = sample_plan("broken", np.empty(1), np.empty(1))
    with pytest.raises(cubin.CompileError, match=r"broken\.cu\(3\)"):
        cubin.figures(plan, 90, tmp_path)


def test_a_changed_header_is_never_stale(tmp_path):
    (tmp_path / "value.cuh").write_text("constexpr int value = 1;\n")
    (tmp_path / "fill.cu").write_text(
        '#include "value.cuh"\nextern "C" __global__ void fill(int* output) { output[threadIdx.x] = value; }\n'
    )
    result = np.zeros(4, np.int32)
    for value in (1, 2):
        (tmp_path / "value.cuh").write_text(f"constexpr int value = {value};\n")
        hostcuda.launch(tmp_path / "fill.cu", "fill", (), (1, 1, 1), (4, 1, 1), (result,))
        assert result.tolist() == [value] * 4


# ---- machine code


DEVICE_OF = {
    architecture: replace(H200, compute_capability=(architecture // 10, architecture % 10))
    for architecture in cubin.ARCHITECTURES
}


@pytest.mark.some(5)
@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
@pytest.mark.parametrize(("width", "times"), [(1, 1), (2, 2), (4, 4), (64, 8)])
def test_machine_code_asks_for_what_the_source_does(width, times, architecture):
    """Neighbouring threads write `width` floats apart, so a sector of eight floats serves 8 / width of them."""
    data = numbers(width, 8192 // width)
    result = np.empty(data.shape[::-1], np.float32)
    plan = sample_plan("store", data, result, struct.pack("iii", data.size, width, 0))
    done = hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=SAMPLES)
    assert np.array_equal(result, data.T)
    assert done.counters.loads.sectors == 1024
    assert done.counters.stores.sectors == 1024 * times
    assert done.counters.stores.requests == 8192 // 32
    assert done.counters.warps == 256
    assert 10 < done.counters.instructions / done.counters.warps < 150


def test_a_fault_of_machine_code_is_reported():
    data, result = numbers(8, 32), np.empty((32, 8), np.float32)
    plan = sample_plan("store", data, result, struct.pack("iii", 256, 8, 1 << 20))
    with pytest.raises(hostcuda.Fault, match=r"store, machine code for 90: block .* are in no array"):
        hostcuda.work(plan, data, result, kernels=SAMPLES)


def test_an_unknown_instruction_is_named(tmp_path):
    (tmp_path / "ticks.cu").write_text(
        'extern "C" __global__ void ticks(const int* input, int* output) { output[0] = input[0] + clock64(); }\n'
    )
    plan = sample_plan("ticks", np.empty(1, np.int32), np.empty(1, np.int32))
    with pytest.raises(machine.Unknown, match="CLOCK"):
        hostcuda.work(plan, np.empty(1, np.int32), np.empty(1, np.int32), kernels=tmp_path)


def test_figures_of_loops_and_shared_memory():
    plan = sample_plan("transpose", numbers(32, 32), numbers(32, 32), struct.pack("ii", 32, 32))
    figures = hostcuda.figures(plan, 90, SAMPLES)
    assert figures.shared_bytes == 32 * 33 * 4
    assert [loop.loads for loop in figures.loops] == [4]  # the rows of a tile, unrolled
    assert [loop.waits for loop in figures.loops] == [1]
    assert figures.bytes_in_flight == 4 * 4


def test_residency_follows_what_is_scarce():
    plan = sample_plan("store", numbers(32), numbers(32))
    figures = hostcuda.figures(plan, 90, SAMPLES)
    for registers, shared_bytes, threads in [
        (32, 0, 2048),
        (33, 0, 1536),
        (64, 0, 1024),
        (255, 0, 256),
        (32, 48 << 10, 1024),
    ]:
        assert resident_threads(plan, replace(figures, registers=registers, shared_bytes=shared_bytes)) == threads
    assert resident_threads(plan, replace(figures, registers=32), DEVICES["T4"]) == 1024
    assert resident_threads(plan, replace(figures, registers=32), DEVICES["RTX 4090"]) == 1536
