"""The executor of kernels itself: right results, every kind of fault reported, requests that can be counted by hand."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import definition
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


def sample_plan(symbol, input, output, parameters=b"", threads=256, blocks=None, defines=(), scatters=False):
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
        atomic_output=scatters,
        bytes_moved=input.nbytes + output.nbytes,
        reason="",
    )


# ---- results


@pytest.mark.some(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float", "double", "unsigned char", "short"])
def test_transposes_through_shared_memory(mode, dtype):
    names = {"float": np.float32, "double": np.float64, "unsigned char": np.uint8, "short": np.int16}
    data = np.arange(64 * 96).reshape(64, 96).astype(names[dtype])
    result = np.zeros((96, 64), data.dtype)
    parameters = struct.pack("ii", *data.shape)
    launch(
        "transpose", (3, 1, 1), (32, 8, 1), data, result, parameters, defines=(("SCALAR", dtype),), mode=mode, seed=3
    )
    assert np.array_equal(result, data.T)


def gather_parameters(planes, axes, blocks):
    """The struct of gather.cu; axes are (size, kernel, stride, dilation, pad) of height and width."""
    return struct.pack("13i", planes, *(axis[field] for field in range(5) for axis in axes), *blocks)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_random_col2im_is_the_definition(seed, mode):
    random = np.random.default_rng(seed)
    print(f"{seed=}")
    planes, axes = int(random.integers(1, 5)), []
    for _ in range(2):
        kernel, stride, dilation = (int(value) for value in random.integers(1, 4, 3))
        axes.append((dilation * (kernel - 1) + int(random.integers(1, 12)), kernel, stride, dilation, kernel // 2))
    size, kernels, strides, dilations, pads = zip(*axes, strict=True)
    blocks = [definition.num_blocks(*axis, axis[-1]) for axis in axes]
    columns = numbers(planes * kernels[0] * kernels[1], blocks[0] * blocks[1], seed=seed)
    image = np.empty((planes, *size), np.float32)
    plan = sample_plan("gather", columns, image, gather_parameters(planes, axes, blocks), threads=64)
    hostcuda.run(plan, columns, image, mode=mode, seed=seed, kernels=SAMPLES)
    assert np.array_equal(image, definition.col2im(columns, size, kernels, strides, dilations, pads, pads))


@pytest.mark.parametrize("mode", MODES)
def test_atomics_and_exact_zero_start(mode):
    data = np.random.default_rng(1).integers(0, 64, 3000, np.uint8)
    counts = np.full(64, 9, np.uint32)
    plan = sample_plan("histogram", data, counts, struct.pack("i", data.size), 128, blocks=5, scatters=True)
    hostcuda.run(plan, data, counts, mode=mode, kernels=SAMPLES)
    assert np.array_equal(counts, np.bincount(data, minlength=64))


@pytest.mark.parametrize("mode", MODES)
def test_reduces_by_shuffles(mode):
    data, result = np.arange(256, dtype=np.float32).reshape(8, 32), np.empty(8, np.float32)
    launch("reduce", (2, 1, 1), (128, 1, 1), data, result, mode=mode, seed=5)
    assert np.array_equal(result, data.sum(axis=1))


@pytest.mark.parametrize("mode", ["plain", "shuffled"])
def test_words_answer_as_the_manual_says(mode):
    random = np.random.default_rng(7)
    data = random.integers(0, 2**32, (64, 2), np.uint32)
    data[:4] = [[0, 0], [2**32 - 1, 2**32 - 1], [2**31, 31], [1, 32]]
    answers = np.empty((64, 18), np.uint32)
    launch("words", (1, 1, 1), (64, 1, 1), data, answers, mode=mode)

    def signed(value):
        return value - 2**32 if value >> 31 else value

    for thread, (a, b) in enumerate(data.tolist()):
        lane, warp = thread % 32, data[thread // 32 * 32 :][:32, 0].tolist()
        first, second = a << 32 | b, b << 32 | a
        bytes_of = (b << 32 | a).to_bytes(8, "little")
        want = [
            a * b >> 32,
            first * second >> 96,
            (b << 32 | a) >> b % 32 & 0xFFFFFFFF,
            (b << 32 | a) << b % 32 >> 32 & 0xFFFFFFFF,
            int.from_bytes(bytes(bytes_of[choice] for choice in (2, 6, 3, 7)), "little"),
            a.bit_count(),
            (a & ~15 & -(a & ~15)).bit_length(),
            32 - (a & 0xFFF).bit_length(),
            int.from_bytes(
                bytes((x + y) % 256 for x, y in zip(*(v.to_bytes(4, "little") for v in (a, b)), strict=True)), "little"
            ),
            min(a, b),
            max(signed(a), signed(b)) % 2**32,
            warp[lane // 8 * 8 + 3],
            warp[max(lane - 1, 0)],
            warp[lane + 2 if lane < 30 else lane],
            warp[lane ^ 4],
            sum((value & 1) << i for i, value in enumerate(warp)),
            any(value % 32 == 0 for value in warp),
            all(value % 32 != 1 for value in warp),
        ]
        assert answers[thread].tolist() == want


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


@pytest.mark.parametrize("offset", [1, -1, 900, -900])
@pytest.mark.parametrize("mode", MODES)
def test_a_store_outside_the_array_is_reported(mode, offset):
    with pytest.raises(hostcuda.Fault, match=r"outside|store\.cu:\d+"):
        move(256, 8, offset, mode)


@pytest.mark.parametrize("mode", ["observed", "shuffled"])
def test_a_store_far_away_is_reported(mode):
    with pytest.raises(hostcuda.Fault, match=r"belongs to no array, at store\.cu:\d+"):
        move(256, 8, 1 << 28, mode)


@pytest.mark.parametrize("mode", MODES)
def test_bytes_between_elements_are_not_the_kernels(mode):
    data, result = numbers(64), np.empty((64, 2), np.float32)[:, 0]
    with pytest.raises(hostcuda.Fault, match="outside"):
        launch("store", (1, 1, 1), (64, 1, 1), data, result, struct.pack("iii", 64, 1, 0), mode=mode)


@pytest.mark.parametrize("mode", ["observed", "shuffled"])
def test_a_byte_written_twice_is_reported(mode):
    with pytest.raises(hostcuda.Fault, match=r"written before.*store\.cu:\d+"):
        move(256, 8, 0, mode, threads=288)


@pytest.mark.parametrize("mode", ["observed", "shuffled"])
def test_elements_never_written_are_reported(mode):
    with pytest.raises(hostcuda.Fault, match="32 elements of argument 1 were never written"):
        move(256, 8, 0, mode, threads=224)


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


@pytest.mark.parametrize("mode", MODES)
def test_writing_to_the_input_is_reported(mode):
    with pytest.raises(hostcuda.Fault, match="const"):
        move(256, 8, 0, mode, defines=(("WRITE_INPUT", "1"),))


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


LOOP = """
extern "C" __global__ void loop(const int* input, int* output, const int passes)
{
    int sum = threadIdx.x;
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass)
        sum = sum * 5 + (sum >> 3);
    if (sum == input[0])
        output[blockDim.x] = 1; // never
    output[threadIdx.x] = sum;
}
"""


def run_loop(folder, passes, architecture):
    (folder / "loop.cu").write_text(LOOP)
    data, result = np.array([-1], np.int32), np.empty(64, np.int32)
    plan = sample_plan("loop", data, result, struct.pack("i", passes), threads=64)
    done = hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=folder)
    expected = np.arange(64, dtype=np.int32)
    for _ in range(passes):
        expected = expected * 5 + (expected >> 3)
    assert np.array_equal(result, expected)
    return done


@pytest.mark.some(2)
@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
def test_every_pass_of_a_loop_counts_and_a_branch_not_taken_does_not(tmp_path, architecture):
    none, few, many = (run_loop(tmp_path, passes, architecture) for passes in (0, 10, 1000))
    assert none.counters.instructions < few.counters.instructions
    each = (many.counters.instructions - few.counters.instructions) / (990 * 2)
    assert 3 <= each <= 10
    assert each == int(each)
    assert few.counters.loads.requests == many.counters.loads.requests == 2, "one for each warp"
    assert many.counters.stores.requests == 2, "what never happens is not counted"


@pytest.mark.some(2)
@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
def test_an_atomic_addition_gives_what_was_there(tmp_path, architecture):
    (tmp_path / "number.cu").write_text(
        'extern "C" __global__ void number(const int* input, int* output)\n'
        "{\n    output[32 + atomicAdd(output + input[threadIdx.x], 1)] = 7;\n}\n"
    )
    data, result = np.arange(32, dtype=np.int32) // 4, np.zeros(64, np.int32)
    plan = replace(sample_plan("number", data, result, threads=32, blocks=1), reads_output=True)
    done = hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=tmp_path)
    assert (result[:8] == 4).all()
    assert np.array_equal(np.flatnonzero(result[8:]) + 8, range(32, 36))
    assert (done.counters.atomics.requests, done.counters.stores.requests) == (1, 1)
    assert done.counters.atomics.sectors == 1, "eight numbers are added to"


@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
def test_machine_code_knows_the_shape_of_its_launch(tmp_path, architecture):
    (tmp_path / "shape.cu").write_text(
        'extern "C" __global__ void shape(const int* input, int* output)\n'
        "{\n    const int of[] = {int(blockDim.x), int(blockDim.y), int(gridDim.x), int(gridDim.y), int(gridDim.z)};\n"
        "    if (blockIdx.x == 0 && threadIdx.x < 5)\n        output[threadIdx.x] = of[threadIdx.x];\n}\n"
    )
    data, result = np.zeros(5, np.int32), np.empty(5, np.int32)
    plan = sample_plan("shape", data, result, threads=32, blocks=3)
    hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=tmp_path)
    assert result.tolist() == [32, 1, 3, 1, 1]


def test_machine_code_takes_minima_that_are_not_below_zero(tmp_path):
    """One instruction since 9.0: a minimum with .RELU."""
    (tmp_path / "least.cu").write_text(
        'extern "C" __global__ void least(const int* input, int* output, int b)\n'
        "{\n    output[threadIdx.x] = max(0, min(input[threadIdx.x], b));\n}\n"
    )
    data, result = np.arange(-16, 16, dtype=np.int32), np.empty(32, np.int32)
    plan = sample_plan("least", data, result, struct.pack("i", 5), threads=32)
    hostcuda.work(plan, data, result, device=DEVICE_OF[90], kernels=tmp_path)
    assert np.array_equal(result, np.clip(data, 0, 5))


@pytest.mark.parametrize("architecture", [75, 90, 100])
@pytest.mark.parametrize("less", [0, 7, 2**33])
def test_machine_code_subtracts_from_multiples_of_64_bits(tmp_path, less, architecture):
    """No borrow comes from words of zeros."""
    (tmp_path / "less.cu").write_text(
        'extern "C" __global__ void less(const long long* input, long long* output, long long b)\n'
        "{\n    output[threadIdx.x] = input[threadIdx.x] * 8 - b;\n}\n"
    )
    data, result = np.arange(-16, 16) * 2**38 + np.arange(32) % 3, np.empty(32, np.int64)
    plan = sample_plan("less", data, result, struct.pack("q", less), threads=32)
    hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=tmp_path)
    assert np.array_equal(result, data * 8 - less)


@pytest.mark.some(2)
@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
def test_machine_code_holds_numbers_of_64_bits(tmp_path, architecture):
    """From 12.0 on an instruction has all of them; before, each of two has a half."""
    (tmp_path / "clip.cu").write_text(
        'extern "C" __global__ void clip(const long long* input, long long* output)\n'
        "{\n    const long long own = input[threadIdx.x];\n"
        "    const bool low = own + 0x80000000LL < 0x123456789aLL;\n"
        "    output[threadIdx.x] = low ? own - 0x300000007LL : own + 0x500000000LL;\n}\n"
    )
    data, result = np.arange(-16, 16) * 2**33 + np.arange(32) % 3, np.empty(32, np.int64)
    plan = sample_plan("clip", data, result, threads=32)
    hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=tmp_path)
    assert np.array_equal(result, np.where(data + 2**31 < 0x123456789A, data - 0x300000007, data + 0x500000000))


@pytest.mark.some(2)
@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
@pytest.mark.parametrize(("pitch", "wavefronts"), [("33", 1), ("34", 2), ("32", 32)])
def test_machine_code_turns_tiles_in_shared_memory(pitch, wavefronts, architecture):
    """Loads of a column meet in a bank; stores have no conflict."""
    data, result = numbers(64, 96), np.zeros((96, 64), np.float32)
    plan = replace(
        sample_plan("transpose", data, result, struct.pack("ii", *data.shape), defines=(("PITCH", pitch),)),
        grid=(3, 1, 1),
        block=(32, 8, 1),
    )
    done = hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=SAMPLES)
    assert np.array_equal(result, data.T)
    assert done.counters.shared_requests == 2 * data.size // 32
    assert done.counters.shared_wavefronts == (1 + wavefronts) * data.size // 32


@pytest.mark.some(2)
@pytest.mark.parametrize("architecture", cubin.ARCHITECTURES)
def test_machine_code_of_shuffles_votes_and_words(architecture):
    data, result = np.arange(256, dtype=np.float32).reshape(8, 32), np.empty(8, np.float32)
    plan = sample_plan("reduce", data, result, threads=128, blocks=2)
    hostcuda.work(plan, data, result, device=DEVICE_OF[architecture], kernels=SAMPLES)
    assert np.array_equal(result, data.sum(axis=1))


def test_lanes_that_part_are_counted_on_both_ways():
    data, result = numbers(32, 128), np.empty(128, np.float32)
    plan = sample_plan("ragged", data, result, struct.pack("i", 32), 128)
    done = hostcuda.work(plan, data, result, kernels=SAMPLES)
    assert done.counters.loads.lanes == 4 * sum(range(1, 33))
    assert done.counters.loads.requests == 4 * 32, "one for each row"
    assert done.counters.loads.sectors == 4 * sum(-(-lanes // 8) for lanes in range(1, 33))


def test_a_fault_of_machine_code_is_reported():
    data, result = numbers(8, 32), np.empty((32, 8), np.float32)
    plan = sample_plan("store", data, result, struct.pack("iii", 256, 8, 1 << 20))
    with pytest.raises(hostcuda.Fault, match=r"store, machine code for 90: block .* are in no array"):
        hostcuda.work(plan, data, result, kernels=SAMPLES)


def test_an_unknown_instruction_is_named(tmp_path):
    (tmp_path / "clock.cu").write_text(
        'extern "C" __global__ void clock(const int* input, int* output) { output[0] = input[0] + clock64(); }\n'
    )
    (tmp_path / "clock.cu").write_text((tmp_path / "clock.cu").read_text().replace("void clock(", "void ticks("))
    plan = replace(sample_plan("ticks", np.empty(1, np.int32), np.empty(1, np.int32)), source="clock.cu")
    with pytest.raises(machine.Unknown, match="CLOCK"):
        hostcuda.work(plan, np.empty(1, np.int32), np.empty(1, np.int32), kernels=tmp_path)


def test_figures_of_loops_and_shared_memory():
    plan = sample_plan("transpose", numbers(32, 32), numbers(32, 32), struct.pack("ii", 32, 32))
    figures = hostcuda.figures(plan, 90, SAMPLES)
    assert figures.shared_bytes == 32 * 33 * 4
    assert [loop.loads for loop in figures.loops] == [4]  # the rows of a tile, unrolled
    assert [loop.waits for loop in figures.loops] == [1]
    assert figures.bytes_in_flight == 4 * 4


@pytest.mark.all
def test_waits_are_loads_one_after_another(tmp_path):
    """Of elements of two bytes each: three in a chain, and one beside the first."""
    (tmp_path / "chase.cu").write_text(
        'extern "C" __global__ void chase(const short* input, int* output)\n'
        "{\n    output[threadIdx.x] = input[input[input[threadIdx.x]]] + input[threadIdx.x + 32];\n}\n"
    )
    plan = sample_plan("chase", numbers(64), numbers(32), threads=32)
    for architecture in cubin.ARCHITECTURES:
        path = hostcuda.figures(plan, architecture, tmp_path).path
        assert (path.loads, path.bytes, path.waits) == (4, 8, 3)


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
