"""The executor of kernels itself: right results, every kind of fault reported, requests that can be counted by hand."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bench import hostcuda
from bench.hostcuda import cubin
from gpufold.gpu.plan import H200, Plan

pytestmark = pytest.mark.hostcuda

SAMPLES = Path(hostcuda.__file__).parent / "samples"
MODES = ("plain", "observed", "shuffled", "sanitized")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def sample_plan(symbol, input, output, parameters=bytes(4), threads=256, blocks=None, **options):
    """Plan a sample kernel, one thread per element of the output unless told otherwise."""
    return Plan(
        operation="sample",
        variant=symbol,
        source=f"{symbol}.cu",
        symbol=symbol,
        grid=(-(-output.size // threads) if blocks is None else blocks, 1, 1),
        parameters=parameters,
        bytes_moved=input.nbytes + output.nbytes,
        reason="",
        **{"block": (threads, 1, 1), "defines": ()} | options,
    )


def run(mode, symbol, input, output, *given, seed=0, **options):
    """Run a sample kernel."""
    hostcuda.run(
        sample_plan(symbol, input, output, *given, **options), input, output, mode=mode, seed=seed, kernels=SAMPLES
    )


# ---- what is right, and what is a fault


def transpose(mode, width=32, seed=0, parameters=None, dropped=0):
    """Transpose a matrix through shared memory, without one of two barriers where it is dropped."""
    data, result = numbers(64, width), np.empty((width, 64), np.float32)
    parameters = struct.pack("ii", *data.shape) if parameters is None else parameters
    options = {"blocks": width // 32, "block": (32, 8, 1), "defines": (("DROPPED", str(dropped)),)}
    run(mode, "transpose", data, result, parameters, seed=seed, **options)
    return result


def rotate(mode, threads, distance, barrier):
    """Let each thread write what another one has read before a barrier."""
    data, result = numbers(2, threads), np.empty(threads, np.float32)
    run(mode, "rotate", data, result, struct.pack("i", distance), threads, defines=(("BARRIER", barrier),))


def broadcast(mode, threads, keeper):
    """Let all threads read what one has written, which it writes again after a barrier of its warp."""
    result = np.empty(threads, np.float32)
    run(mode, "broadcast", numbers(threads), result, struct.pack("i", keeper), threads)


def store(mode, offset=0, blocks=8, defines=(), gaps=1):
    """Transpose a matrix of 256 elements, each stored so many beyond its place."""
    data, result = numbers(32, 8), np.empty((8, 32, gaps), np.float32)[..., 0]
    run(mode, "store", data, result, struct.pack("iii", 256, 32, offset), 32, blocks, defines=defines)


def wide(mode, first):
    """Copy words of four elements, from an element on."""
    run(mode, "wide", numbers(516), np.empty(512, np.float32), struct.pack("i", first), 128, 1)


def divergent(mode, one, other):
    """Let threads wait at two barriers."""
    run(mode, "divergent", numbers(64), np.empty(64, np.float32), defines=(("ONE", one), ("OTHER", other)))


OBSERVED, PLACE = MODES[1:3], r"store\.cu:\d+"
RACE = r"race on shared memory: thread \d+ {} byte.*rotate\.cu:"
LATE = r"thread {} writes byte \d+ at broadcast\.cu"
FAULTS = (
    # Thread 1 writes what thread 0 has read, or reads what it has written; within a warp, and between warps.
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=32, distance=1, barrier="(void)0")),
    (RACE.format("reads"), OBSERVED[:1], partial(rotate, threads=32, distance=31, barrier="(void)0")),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=32, distance=1, barrier="__any_sync(~0u, 1)")),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=128, distance=32, barrier="(void)0")),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=128, distance=32, barrier="__syncwarp()")),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=128, distance=96, barrier="__syncwarp()")),
    (LATE.format(0), OBSERVED[:1], partial(broadcast, threads=64, keeper=0)),
    (LATE.format(40), OBSERVED[:1], partial(broadcast, threads=96, keeper=40)),
    (LATE.format(127), OBSERVED[:1], partial(broadcast, threads=128, keeper=127)),
    *((f"outside|{PLACE}", MODES, partial(store, offset=offset)) for offset in (1, -1, 900, -900)),
    ("outside", MODES, partial(store, gaps=2)),  # bytes between elements are not the kernel's
    ("const", MODES, partial(store, defines=(("WRITE_INPUT", "1"),))),
    (f"belongs to no array, at {PLACE}", OBSERVED, partial(store, offset=1 << 28)),
    (f"written before.*{PLACE}", OBSERVED, partial(store, blocks=9)),
    (r"wide\.cu.*misaligned", ("sanitized",), partial(wide, first=1)),
    ("wait for ever", MODES, partial(divergent, one="__syncthreads()", other="__syncwarp()")),
    *(
        ("line 5, another at that of line 7|line 7, .* 5", MODES, partial(divergent, one=each, other=each))
        for each in ("__syncthreads()", "__syncwarp()")
    ),
    *(
        ("argument", ("plain", "sanitized"), partial(transpose, parameters=parameters))
        for parameters in (struct.pack("i", 32), struct.pack("iii", 32, 32, 0))
    ),
)


@pytest.mark.parametrize(("match", "modes", "faulty"), FAULTS)
def test_a_fault_is_reported(match, modes, faulty):
    for mode in modes:
        with pytest.raises(hostcuda.Fault, match=match):
            faulty(mode)


@pytest.mark.parametrize("mode", OBSERVED)
@pytest.mark.parametrize("dropped", [1, 2])
def test_a_missing_barrier_is_reported_whatever_the_order(dropped, mode):
    text = (SAMPLES / "transpose.cu").read_text().splitlines()
    for seed in range(3):
        with pytest.raises(hostcuda.Fault, match=r"(race on shared memory|nobody wrote).*transpose\.cu:\d+") as fault:
            transpose(mode, seed=seed, dropped=dropped)
        lines = re.findall(r"transpose\.cu:(\d+)", str(fault.value))
        assert all("tile[" in text[int(line) - 1] for line in lines)


def test_shared_memory_starts_as_garbage_in_every_block():
    result = transpose("plain", width=64, dropped=1)
    assert np.isnan(result[:32]).any()
    assert np.isnan(result[32:]).any()


@pytest.mark.parametrize("mode", OBSERVED)
def test_a_read_of_what_nobody_wrote_is_reported(mode):
    data, counts = np.full(256, 3, np.uint8), np.empty(64, np.uint32)
    count = partial(run, mode, "histogram", data, counts, struct.pack("i", 256), 64, scratch_bytes=counts.nbytes)
    with pytest.raises(hostcuda.Fault, match=r"byte 12 of argument 2, which nobody wrote, at .*histogram\.cu:\d+"):
        count(zeroed_bytes=12)
    count(zeroed_bytes=counts.nbytes)
    assert np.array_equal(counts, np.bincount(data, minlength=64))


def test_a_changed_header_is_never_stale(tmp_path):
    fill = 'extern "C" __global__ void fill(const int*, int* output, int) { output[threadIdx.x] = value; }'
    (tmp_path / "fill.cu").write_text(f'#include "value.cuh"\n{fill}\n')
    result = np.zeros(4, np.int32)
    for value in (1, 2):
        (tmp_path / "value.cuh").write_text(f"constexpr int value = {value};\n")
        hostcuda.run(sample_plan("fill", result, result, threads=4), result.copy(), result, kernels=tmp_path)
        assert result.tolist() == [value] * 4


# ---- machine code


@pytest.mark.some(5)
@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
@pytest.mark.parametrize(("width", "times"), [(1, 1), (2, 2), (4, 4), (64, 8)])
def test_machine_code_asks_for_what_the_source_does(width, times, architecture):
    """Neighbouring threads write `width` floats apart, so a sector of eight floats serves 8 / width of them."""
    data = numbers(width, 8192 // width)
    result = np.empty(data.shape[::-1], np.float32)
    plan = sample_plan("store", data, result, struct.pack("iii", data.size, width, 0))
    device = replace(H200, compute_capability=divmod(architecture, 10))
    (done,) = hostcuda.work(plan, data, result, device=device, kernels=SAMPLES)
    assert np.array_equal(result, data.T)
    assert done.loads.sectors == 1024
    assert done.stores.sectors == 1024 * times
    assert done.stores.requests == 8192 // 32
    assert done.warps == 256
    assert 10 < done.instructions / done.warps < 150


def test_a_fault_of_machine_code_is_reported():
    data, result = numbers(8, 32), np.empty((32, 8), np.float32)
    plan = sample_plan("store", data, result, struct.pack("iii", 256, 8, 1 << 20))
    with pytest.raises(hostcuda.Fault, match=r"store, machine code for 90: block .* are in no array"):
        hostcuda.work(plan, data, result, kernels=SAMPLES)
