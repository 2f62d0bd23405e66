"""What the kernels become on a GPU: machine code that spills nothing, rounds as it should and moves whole words.

These are facts, and what a fusion moves is counted while it runs; how long that takes, nobody has measured.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, islice, product
from math import prod

import numpy as np
import pytest
from cases import FUSIONS, KERNEL_MODES, weights_of, window_of
from executors import wide_offsets
from test_kernels import SOURCES, plans

from bench import hostcuda
from bench.problems import AT_POSITIONS, itemsize_of, plan_of, select
from gpufold.calls import PLAIN, Call, FusedOps
from gpufold.geometry import add_blocks_geometry, take_blocks_geometry
from gpufold.given import WINDOWS
from gpufold.gpu.plan import H200, THREADS_OF_ANY, Operand
from gpufold.gpu.registry import choose
from gpufold.gpu.sources import KERNELS, program, symbols

pytestmark = [pytest.mark.nvrtc, pytest.mark.all]


@pytest.mark.many
@pytest.mark.parametrize("architecture", hostcuda.cubin.ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_every_specialisation_compiles_for_every_architecture(source, architecture):
    for defines in {plan.defines for plan in plans() if plan.file == source}:
        assert hostcuda.cubin.compile(source, defines, architecture), defines


@pytest.mark.parametrize("source", SOURCES)
def test_every_kernel_compiles_for_every_dtype(source):
    """One specialisation for each, and eight for bool, whose pointers NVRTC fails on where it is asked about them.

    Each is for another architecture, until there was one for all.
    """
    of_dtype, drawn = defaultdict(list), random.Random(source)
    for plan in plans():
        if plan.file == source:
            of_dtype[dict(plan.defines)["SCALAR"]].append(plan.defines)
    scalars = [scalar for scalar in of_dtype for _ in range(8 if scalar == "Boolean" else 1)]
    architectures = drawn.sample(hostcuda.cubin.ARCHITECTURES, len(hostcuda.cubin.ARCHITECTURES))
    pairs = zip(cycle(scalars), cycle(architectures), strict=False)
    for scalar, architecture in islice(pairs, max(len(scalars), len(architectures))):
        defines = drawn.choice(of_dtype[scalar])
        assert hostcuda.cubin.compile(source, defines, architecture), defines


def launch_bounds(plan):
    """Return the threads of a block that a plan's kernel is compiled for, and the blocks of a multiprocessor."""
    options = ["-std=c++17", f"-I{KERNELS}", "-arch=compute_75"]
    text = hostcuda.cubin.compile_text(program(plan.file, plan.symbol, plan.defines), options).decode()
    text = text[re.search(rf"\.entry {plan.symbol}\(", text).start() :].partition("{")[0]
    threads, blocks = (re.search(rf"\.{name} (\d+)", text) for name in ("maxntid", "minnctapersm"))
    return int(threads[1]), int(blocks[1] if blocks else 1)


@pytest.mark.parametrize("symbol", [symbol for source in SOURCES for symbol in symbols(source)])
def test_machine_code_takes_what_plans_say_and_any_multiprocessor_has(symbol):
    """Of three specialisations of each kernel: a drawn one, and those of most shared memory and the widest words.

    No load or store looks up where its address points: a generic one takes longer than a global one.
    """
    served = [plan for plan in plans() if plan.symbol == symbol]
    widest = max(served, key=lambda plan: int(dict(plan.defines).get("WORD", 1)))
    chosen = [random.Random(symbol).choice(served), max(served, key=lambda plan: plan.shared_bytes), widest]
    for plan, architecture in zip(chosen, (75, 90, 75), strict=True):
        assert hostcuda.cubin.resources(plan, architecture).shared_bytes == plan.shared_bytes, plan
        threads, blocks = launch_bounds(plan)
        assert threads == prod(plan.block) <= THREADS_OF_ANY // blocks, plan
        counts = hostcuda.cubin.instruction_counts(plan, architecture)
        assert not [kind for kind in counts if kind.split(".")[0] in ("LD", "ST")], plan


def plans_with(**defines):
    """Draw a plan of every kernel with these defines."""
    found = defaultdict(list)
    for plan in plans():
        if defines.items() <= dict(plan.defines).items():
            found[plan.symbol].append(plan)
    assert len(found) > 2
    return [random.Random(symbol).choice(of_kernel) for symbol, of_kernel in found.items()]


@pytest.mark.some(2, all=2)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("scalar", "accumulator"), [("float", "float"), ("float", "double")])
def test_machine_code_keeps_denormals(scalar, accumulator, window):
    """CuPy lets the compiler flush them, and no kernel lets it: the arithmetic is the same as where it may not.

    But for comparisons: they are with the smallest normal number, on whose side a flushed denormal stays. The
    hardware's own atomic addition of float32 does flush.
    """
    for plan in plans_with(SCALAR=scalar, ACCUMULATOR=accumulator, WINDOW=window):
        flushed, kept = (hostcuda.cubin.instruction_counts(plan, flush=flush) for flush in (True, False))
        arithmetic = re.compile(r"(?!FSETP)[FD]|MUFU")
        changed = [name for name in (flushed - kept) + (kept - flushed) if arithmetic.match(name)]
        assert not changed, f"{changed} of {plan}"


@pytest.mark.parametrize("scalar", ["float", "double"])
def test_machine_code_rounds_products_before_it_adds_them(scalar):
    for plan in plans_with(SCALAR=scalar, ACCUMULATOR=scalar, WINDOW="separable", REDUCTION="sum"):
        names = hostcuda.cubin.instruction_counts(plan)
        assert any(name.startswith(("FMUL", "DMUL")) for name in names), plan
        assert not any(name.startswith(("FFMA", "DFMA")) for name in names), f"{names} of {plan}"


LARGE = {(4096, 4096): (256, 256), (99_999,): (400,), (300,) * 3: (96,) * 3}
SMALL = {(2048, 2048): (7, 7), (160,) * 3: (5,) * 3}
"""Arrays, and blocks that lie in them at positions."""


def added(size, lead, block, count, dtype, window, variant, weight_out=False):
    """Plan an addition of so many blocks."""
    geometry = add_blocks_geometry((*lead, *size), (count, *lead, *block), (count, len(size)))
    operands = map(Operand.contiguous, (geometry.blocks_shape, geometry.array_shape))
    call = Call("add_blocks", geometry, dtype, FusedOps("sum", window, accumulate=True, weight_out=weight_out), variant)
    return choose(call, *operands, weight_out=Operand.contiguous(geometry.size) if weight_out else None)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("variant", "lead", "size", "dtype", "registers"),
    [
        *product(("output_driven",), ((), (14,)), LARGE, ("complex64",), (128,)),
        *product(("binned",), ((), (14,)), LARGE, ("complex64",), (64,)),
        *product(("binned",), ((16,),), SMALL, ("float16", "float32", "float64", "complex64", "complex128"), (64,)),
        ("output_driven", (14,), (300,) * 3, "float32", None),
        ("output_driven", (), (99_999,), "complex64", None),
        ("output_driven", (14,), (99_999,), "float32", None),
        ("binned", (14,), (300,) * 3, "float32", None),
        ("binned", (), (300,) * 3, "float64", None),
    ],
)
def test_blocks_at_positions_keep_everything_in_registers(variant, lead, size, dtype, registers, window):
    """Few enough that two blocks of threads are resident, or four; or those of weights too, which are no fewer."""
    plan = added(size, lead, (LARGE | SMALL)[size], 600, dtype, window, variant, weight_out=registers is None)
    needed = hostcuda.cubin.resources(plan)
    assert needed.stack_bytes == 0
    assert registers is None or needed.registers <= registers


@pytest.mark.parametrize("architecture", [75, 90, 100])
@pytest.mark.parametrize("mode", KERNEL_MODES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("size", [(300,) * 3, (4096, 4096)])
def test_weights_of_what_is_taken_stay_in_registers(size, dtype, mode, architecture):
    """A thread has one for each axis of each of its elements: too many for four blocks of threads to be resident."""
    geometry = take_blocks_geometry(size, (600, len(size)), LARGE[size])
    operands = Operand.contiguous(geometry.array_shape), Operand.contiguous(geometry.blocks_shape)
    call = Call("take_blocks", geometry, dtype, FusedOps("sum", "separable", mode=mode), "per_element")
    assert hostcuda.cubin.resources(choose(call, *operands), architecture).stack_bytes == 0


REGIMES = {problem.name: problem for problem in select([], quick=False, gpu=True)}


@pytest.mark.some(3, all=3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "complex64"])
@pytest.mark.parametrize("name", REGIMES)
def test_nothing_spills(name, dtype):
    """With offsets of 64 bits neither, where elements have 32 and blocks lie on a grid."""
    wide = dtype == "float32" and REGIMES[name].operation not in AT_POSITIONS
    for offsets in (nullcontext(), wide_offsets(choose))[: 1 + wide]:
        with offsets:
            plan = plan_of(REGIMES[name], "auto", dtype)
        assert hostcuda.cubin.resources(plan).stack_bytes == 0, plan


WORDS = {1: "STG.E.U8", 2: "STG.E.U16", 4: "STG.E", 8: "STG.E.64", 16: "STG.E.128"}
"""A store of so many bytes to global memory, in machine code."""

IN_WORDS = [
    (name, dtype)
    for name, problem in REGIMES.items()
    if problem.operation in ("im2col", "array_to_blocks")
    for dtype in problem.dtypes
    if plan_of(problem, "auto", dtype, H200).variant == "taps"
]


@pytest.mark.parametrize(("name", "dtype"), IN_WORDS)
def test_a_word_that_is_made_in_registers_is_stored_at_once(name, dtype):
    """The compiler may make two stores of one: g++ does not, so that only the machine code shows it."""
    architecture = random.Random(f"{name} {dtype}").choice((75, 90, 120))
    plan = plan_of(REGIMES[name], "auto", dtype, H200)
    word = itemsize_of(dtype) * int(dict(plan.defines)["WORD"])
    counts = hostcuda.cubin.instruction_counts(plan, architecture)
    assert {kind.removesuffix(".SYS") for kind in counts if kind.startswith("ST")} == {WORDS[word]}, plan


@pytest.mark.parametrize("architecture", [75, 90, 120])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex64"])
def test_pixels_that_get_whole_words_are_whole_words(dtype, architecture):
    plan = plan_of(REGIMES["blocks_to_array-blocks-16x16-s8"], "gather_pixels", dtype)
    word = min(16, 8 * itemsize_of(dtype))
    counts = hostcuda.cubin.instruction_counts(plan, architecture)
    memory = {kind for kind in counts if kind.startswith(("LDG", "STG"))}
    moved = {kind.removesuffix(".SYS").removesuffix(".CONSTANT").replace(".LTC128B", "") for kind in memory}
    assert moved == {WORDS[word], WORDS[word].replace("ST", "LD")}, plan


@pytest.mark.hostcuda
@pytest.mark.parametrize("fusion", FUSIONS, ids=str)
@pytest.mark.parametrize("name", ["col2im-resnet-3x3-s1", "col2im-tiles-16x16-s8", "col2im-audio-400-s160"])
def test_a_fusion_moves_no_more_than_the_sum_and_its_window(name, fusion):
    """One pass: no second fold, no weighed copy, no count or weight image; what accumulates is read once too.

    For each tap a weight of each axis is loaded, or one of a full window.
    """
    reduction, window, accumulate = fusion
    shrunk = REGIMES[name].shrunk(1 << 16)
    kernel_size = shrunk.geometry.block_shape
    kind, weights = weights_of(window_of(window, kernel_size, "float32"), kernel_size, np.dtype("float32"))
    operands = Operand.contiguous(shrunk.input_shape), Operand.contiguous(shrunk.output_shape)
    part = replace(H200, multiprocessors=1)  # which a small problem fills, as a large one the whole

    def moved(fusion, weights=None):
        plan = choose(Call("col2im", shrunk.geometry, "float32", fusion=fusion), *operands, part)
        data, result = shrunk.data("float32"), np.zeros(shrunk.output_shape, np.float32)
        counters = hostcuda.work(plan, hostcuda.Arrays(data, result, weights))[-1]
        assert not counters.atomics.requests
        return counters

    plain = moved(PLAIN)
    fused = moved(FusedOps(reduction, kind, accumulate), weights)
    assert bytes(fused.stores) == bytes(plain.stores)
    before = plain.stores.bytes if accumulate else 0
    weights_of_a_tap = {"none": 0, "full": 1, "separable": len(kernel_size)}[window]
    assert fused.loads.bytes <= plain.loads.bytes * (1 + 1.01 * weights_of_a_tap) + before
    assert window != "none" or fused.loads.bytes == plain.loads.bytes + before
