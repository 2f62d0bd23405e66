"""The executor of kernels itself: right results, every kind of fault reported, requests that can be counted by hand."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bench import hostcuda
from bench.hostcuda import Arrays, cubin
from gpufold.gpu.plan import H200, Plan

pytestmark = pytest.mark.hostcuda

SAMPLES = Path(hostcuda.__file__).parent / "samples"
MODES = ("plain", "observed", "shuffled", "sanitized")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def sample_plan(symbol, input, output, parameters=bytes(4), threads=256, blocks=None, defines=(), **options):
    """Plan a sample kernel, one thread per element of the output unless told otherwise."""
    return Plan(
        operation="sample",
        variant=symbol,
        file=f"{symbol}.cu",
        symbol=symbol,
        grid=(-(-output.size // threads) if blocks is None else blocks, 1, 1),
        parameters=parameters,
        bytes_moved=input.nbytes + output.nbytes,
        reason="",
        block=(threads, 1, 1),
        defines=defines,
        **options,
    )


def run(mode, symbol, input, output, *given, seed=0, **options):
    plan = sample_plan(symbol, input, output, *given, **options)
    hostcuda.run(plan, Arrays(input, output), mode, seed, SAMPLES)


# ---- what is right, and what is a fault


BLOCK, WARP, NONE = "__syncthreads()", "__syncwarp()", "(void)0"
"""Barriers."""


def rotate(mode, threads=64, distance=1, written=BLOCK, read=BLOCK, blocks=1, **options):
    """Let each thread read what another one has written before a barrier, and write again after a second one."""
    result, defines = np.empty((blocks, threads), np.float32), (("WRITTEN", written), ("READ", read))
    run(mode, "rotate", numbers(2, threads), result, struct.pack("i", distance), threads, defines=defines, **options)
    return result


def broadcast(mode, threads, keeper):
    """Let all threads read what one has written, which it writes again after a barrier of its warp."""
    result = np.empty(threads, np.float32)
    run(mode, "broadcast", numbers(threads), result, struct.pack("i", keeper), threads)


def store(mode, offset=0, blocks=8, defines=(), gaps=1):
    """Transpose a matrix of 256 elements, each stored so many beyond its place."""
    data, result = numbers(32, 8), np.empty((8, 32, gaps), np.float32)[..., 0]
    run(mode, "store", data, result, struct.pack("iii", 256, 32, offset), 32, blocks, defines=defines)


def wide(mode, first=0, kind="i"):
    """Copy words of four elements, from an element on, whose number is of a kind."""
    run(mode, "wide", numbers(516), np.empty(512, np.float32), struct.pack(kind, first), 128, 1)


def divergent(mode, one, other):
    """Let threads wait at two barriers."""
    run(mode, "divergent", numbers(64), np.empty(64, np.float32), defines=(("ONE", one), ("OTHER", other)))


OBSERVED, PLACE = MODES[1:3], r"store\.cu:\d+"
RACE = r"race on shared memory: thread \d+ {} byte.*rotate\.cu:"
UNORDERED = r"(race on shared memory|nobody wrote).*rotate\.cu:1[135]"
LATE = r"thread {} writes byte \d+ at broadcast\.cu"
FAULTS = (
    # Thread 1 writes what thread 0 has read, or reads what it has written; within a warp, and between warps.
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=32, read=NONE)),
    (RACE.format("reads"), OBSERVED[:1], partial(rotate, threads=32, distance=31, read=NONE)),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=32, read="__any_sync(~0u, 1)")),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=128, distance=32, read=NONE)),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=128, distance=32, read=WARP)),
    (RACE.format("writes"), OBSERVED[:1], partial(rotate, threads=128, distance=96, read=WARP)),
    *((UNORDERED, OBSERVED, partial(rotate, distance=each, seed=each, written=NONE)) for each in (1, 63)),
    *((UNORDERED, OBSERVED, partial(rotate, distance=each, seed=each, read=NONE)) for each in (1, 63)),
    (LATE.format(0), OBSERVED[:1], partial(broadcast, threads=64, keeper=0)),
    (LATE.format(40), OBSERVED[:1], partial(broadcast, threads=96, keeper=40)),
    (LATE.format(127), OBSERVED[:1], partial(broadcast, threads=128, keeper=127)),
    *((f"outside|{PLACE}", MODES, partial(store, offset=offset)) for offset in (1, -1, 900, -900)),
    ("outside", MODES, partial(store, gaps=2)),  # bytes between elements are not the kernel's
    ("const", MODES, partial(store, defines=(("WRITE_INPUT", "1"),))),
    (f"belongs to no array, at {PLACE}", OBSERVED, partial(store, offset=1 << 28)),
    (f"written before.*{PLACE}", OBSERVED, partial(store, blocks=9)),
    (r"wide\.cu.*misaligned", ("sanitized",), partial(wide, first=1)),
    ("wait for ever", MODES, partial(divergent, one=BLOCK, other=WARP)),
    *(
        ("line 8, another at that of line 10|line 10, .* 8", MODES, partial(divergent, one=each, other=each))
        for each in (BLOCK, WARP)
    ),
    *(("arguments have", ("plain", "sanitized"), partial(wide, kind=kind)) for kind in "hq"),
)


@pytest.mark.parametrize(("match", "modes", "faulty"), FAULTS)
def test_a_fault_is_reported(match, modes, faulty):
    for mode in modes:
        with pytest.raises(hostcuda.Fault, match=match):
            faulty(mode)


def test_shared_memory_starts_as_garbage_in_every_block():
    assert np.isnan(rotate("plain", written=NONE, blocks=2)).any(axis=1).all()


@pytest.mark.parametrize("mode", OBSERVED)
def test_a_read_of_what_nobody_wrote_is_reported(mode):
    data, counts = np.full(256, 3, np.uint8), np.empty(64, np.uint32)
    count = partial(run, mode, "histogram", data, counts, struct.pack("i", 256), 64, scratch_bytes=counts.nbytes)
    with pytest.raises(hostcuda.Fault, match=r"byte 12 of argument 3, which nobody wrote, at .*histogram\.cu:\d+"):
        count(zeroed_bytes=12)
    count(zeroed_bytes=counts.nbytes)
    assert np.array_equal(counts, np.bincount(data, minlength=64))


def test_a_changed_header_is_never_stale(tmp_path):
    fill = 'extern "C" __global__ void fill(const int*, int* output, long, int) { output[threadIdx.x] = value; }'
    (tmp_path / "fill.cu").write_text(f'#include "value.cuh"\n{fill}\n')
    result = np.zeros(4, np.int32)
    for value in (1, 2):
        (tmp_path / "value.cuh").write_text(f"constexpr int value = {value};\n")
        plan = sample_plan("fill", result, result, threads=4)
        hostcuda.run(plan, Arrays(result.copy(), result), kernels=tmp_path)
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
    (done,) = hostcuda.work(plan, Arrays(data, result), device, SAMPLES)
    assert np.array_equal(result, data.T)
    assert done.loads.sectors == 1024
    assert done.stores.sectors == 1024 * times
    assert done.stores.requests == 8192 // 32


def test_a_fault_of_machine_code_is_reported():
    data, result = numbers(8, 32), np.empty((32, 8), np.float32)
    plan = sample_plan("store", data, result, struct.pack("iii", 256, 8, 1 << 20))
    with pytest.raises(hostcuda.Fault, match=r"store, machine code for 90: block .* are in no array"):
        hostcuda.work(plan, Arrays(data, result), kernels=SAMPLES)
