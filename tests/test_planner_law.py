"""What holds for every plan, whatever the call: it keeps within what a GPU has."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from struct import Struct

import numpy as np
import pytest
from random_calls import random_problem
from specialisations import whole_blocks as block_by_block

from bench import hostcuda
from gpufold.calls import Call, Fusion, Unsupported
from gpufold.geometry import (
    Axis,
    PositionsGeometry,
    SlidingGeometry,
    add_blocks_geometry,
    blocks_to_array_geometry,
)
from gpufold.gpu.parameters import INT32_MAX, divisor, offset, pack, reciprocal, struct, wide
from gpufold.gpu.plan import Operand, Plan, Problem
from gpufold.gpu.registry import choose
from gpufold.operations import variants

# ---------------------------------------------------------------------------------------------
# Named calls


def sliding(kernel, strides, dilations, blocks=8):
    """Give a geometry of so many blocks along each axis, without padding."""
    sizes = [
        (taps - 1) * dilation + 1 + (blocks - 1) * stride
        for taps, stride, dilation in zip(kernel, strides, dilations, strict=True)
    ]
    return SlidingGeometry(
        2, 3, tuple(Axis(*axis, 0, 0) for axis in zip(sizes, kernel, strides, dilations, strict=True))
    )


@pytest.mark.hostcuda
def test_an_order_that_matters_is_never_given_up():
    """Positions along so many axes that regions cannot list them: a list for each tile needs no shared memory."""
    rank = 50
    geometry = add_blocks_geometry((1,) * rank, (3, *(1,) * rank), (3, rank))
    operands = Operand.contiguous(geometry.blocks_shape), Operand.contiguous(geometry.array_shape)
    call = Call("add_blocks", geometry, "float64", Fusion(accumulate=True))
    with pytest.raises(Unsupported, match=r"gather would need .* bytes of shared memory"):
        choose(call._replace(variant="gather"), *operands)
    plan = choose(call, *operands)
    assert plan.variant == "lists"
    out = np.full((1,) * rank, 0.5)
    blocks, positions = np.array([1e16, 3.0, -1e16]).reshape(3, *(1,) * rank), np.zeros((3, rank), np.int64)
    hostcuda.run(plan, blocks, out, positions=positions)
    assert out.item() == 0.5 + 1e16 + 3 - 1e16 != 3.5


def test_channels_are_numbers_of_their_own():
    """Threads that serve several are fewer."""
    lead = 17_136_500_657
    geometry = blocks_to_array_geometry((lead, 1, 1), (lead, 1), (1,), (1,))
    plan = choose(
        Call("blocks_to_array", geometry, "int8", variant="gather"),
        Operand((lead, 1, 1), (1, 1, 1)),
        Operand((lead, 1), (1, 1)),
    )
    assert dict(plan.defines)["OFFSET"] == "long long"


def test_a_plan_takes_no_longer_for_many_blocks():
    taken = PositionsGeometry(2**32, (), (64, 64), (8, 8))
    operands = Operand.contiguous(taken.array_shape), Operand.contiguous(taken.blocks_shape)
    start = time.process_time()
    choose(Call("take_blocks", taken, "float32"), *operands)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("far", ["pixels", "taps"])
def test_what_a_part_past_its_cell_would_read_or_write_lies_within_offsets_too(far):
    """The last part of a cell is worked out whole; pixels, or taps, lie far apart."""
    geometry = replace(sliding((24,), (20,), (1,), blocks=10), batch=1, channels=1)
    call = Call("col2im", geometry, "float32", variant="gather_parts")
    (axis,) = geometry.axes

    def defines(distance):
        image = Operand(geometry.image_shape, (distance * axis.size, distance * axis.size, distance))
        columns = Operand(geometry.split_columns_shape, (24 * distance, 24 * distance, distance, 1))
        if far == "pixels":
            columns = Operand.contiguous(geometry.split_columns_shape)
        else:
            image = Operand.contiguous(geometry.image_shape)
        return dict(choose(call, columns, image).defines)

    part = int(defines(20)["PART"])
    in_cell = -(-axis.stride // part) * part - 1
    cells = (axis.size - 1 if far == "pixels" else axis.kernel - 1) // axis.stride
    last = cells * axis.stride + in_cell
    assert in_cell >= axis.stride
    assert defines(INT32_MAX // (3 * last))["OFFSET"] == "int"
    wide = defines(INT32_MAX // (last - 1))
    assert int(wide["PART"]) == part
    assert wide["OFFSET"] != "int"


def test_pixels_that_are_taken_lie_within_offsets_however_few_taps_there_are():
    """The blocks that a thread takes reach farther than the kernel does."""
    geometry = replace(sliding((2,), (8,), (1,), blocks=10), batch=1, channels=1)
    (axis,) = geometry.axes

    def offset_of(distance):
        image = Operand(geometry.image_shape, (distance * axis.size, distance * axis.size, distance))
        call = Call("im2col", geometry, "float32", variant="taps")
        return dict(choose(call, image, block_by_block(geometry)).defines)["OFFSET"]

    assert offset_of(INT32_MAX // (4 * axis.size)) == "int"
    assert offset_of(INT32_MAX // (axis.size - 2)) != "int"  # the last pixel lies past it


def test_elements_that_lie_apart_are_moved_by_themselves():
    """Where pixels are neighbours a row takes whole sectors; where they are not, nothing is known but themselves."""
    geometry = add_blocks_geometry((3, 400, 500), (70, 3, 5, 6), (70, 2))
    beside, blocks = Operand.contiguous(geometry.array_shape), Operand.contiguous(geometry.blocks_shape)
    apart = Operand(geometry.array_shape, Operand.contiguous(geometry.array_shape[::-1]).strides[::-1])
    call = Call("take_blocks", geometry, "float32", variant="direct")
    moved, of_rows = (choose(call, array, blocks).bytes_moved for array in (apart, beside))
    assert moved == 70 * 2 * 8 + 2 * 4 * prod(geometry.blocks_shape)
    assert of_rows - moved == prod(geometry.blocks_shape) // 6 * (32 - 4)


def test_equal_structs_have_equal_bytes():
    """What lies between members too, whatever the memory held before."""

    def spoil():
        """Free arrays full of bytes: NumPy gives the memory of one to the next of as many bytes."""
        return len([np.full(size, 0xFF, np.uint8) for size in range(8, 65, 8)])

    spoil()
    packed = pack(32, count=offset(1), extents=struct(size=offset([5, 6]), by_size=divisor(6)), step=wide(2))
    assert packed == Struct("<i 2i iIi q").pack(1, 5, 6, *reciprocal(6, 32), 2)
    spoil()
    packed = pack(32, step=wide(2), count=offset(1))
    assert packed == Struct("<q i 4x").pack(2, 1)


# ---------------------------------------------------------------------------------------------
# Random calls

CALLS = 4000
"""Of the ordinary test; PLANNED_CALLS and COMPILED_PLANS say how many --many plans and compiles."""
THREADS_OF_A_BLOCK = 1024
REGISTERS_OF_A_BLOCK = 65536
ARGUMENT_BYTES = 4096
GRID = (2**31 - 1, 65535, 65535)
INDICES = {"int": 2**31 - 1, "long long": 2**63 - 1}
SEEDS_OF_A_TASK = 2000


@dataclass
class Findings:
    """What planning some random calls came to."""

    calls: int = 0
    refused: int = 0
    plans: int = 0
    most: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The worst of each limit, and the kernel."""
    sample: list[tuple[float, Plan]] = field(default_factory=list)
    """Plans of different kernels or specialisations, each with the random number that it was drawn by."""
    violations: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.calls += other.calls
        self.refused += other.refused
        self.plans += other.plans
        self.violations += other.violations
        self.sample += other.sample
        for limit, worst in other.most.items():
            self.most[limit] = max(worst, self.most.get(limit, worst))


def needs(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """Yield what a plan needs: the limit's name, the number, and the most that there is."""
    defines = dict(plan.defines)
    yield "shared memory", plan.shared_bytes, 48 << 10
    yield "threads", prod(plan.block), THREADS_OF_A_BLOCK
    yield "arguments", plan.argument_bytes, ARGUMENT_BYTES
    for axis, blocks, most in zip("xyz", plan.grid, GRID, strict=True):
        yield f"grid {axis}", blocks, most
    for name in ("KERNEL", "STRIDE", "DILATION"):
        yield f"compiled {name.lower()}", max(map(int, defines.get(name, "0").split(","))), INDICES[defines["OFFSET"]]
    yield "compiled counts", max(int(defines.get(name, 0)) for name in COUNTS), INDICES["int"]


COUNTS = ("KERNEL_WIDTH", "CHUNK_TAPS", "BLOCK_WIDTH", "CHUNK_PHASES", "CHUNK", "PIXELS", "TAPS", "PHASE")


def plan_random_calls(seeds: range, sampled: float = 0.0) -> Findings:
    """Plan a random call for each seed, by every variant and by auto, and draw a share of the plans."""
    found = Findings(calls=len(seeds))
    for seed in seeds:
        rng = random.Random(seed)
        problem = random_problem(rng)
        if 0 in (*problem.input.shape, *problem.output.shape):
            continue
        try:
            planned = plans_of(problem)
        except Exception as error:
            found.violations.append(f"seed {seed}: {error!r} of {problem}")
            continue
        auto = planned.pop("auto")
        keeps_order = [name for name, plan in planned.items() if may_be_chosen(problem, plan)]
        found.refused += auto is None
        if auto is None and keeps_order:
            found.violations.append(f"seed {seed}: auto refuses what {keeps_order} serve: {problem}")
        if auto is not None and not may_be_chosen(problem, auto):
            found.violations.append(f"seed {seed}: auto chooses {auto.variant}, of another order, for {problem}")
        if auto is not None and replace(auto, reason="") != replace(planned[auto.variant], reason=""):
            found.violations.append(f"seed {seed}: auto plans {auto.variant} in another way than by name: {problem}")
        for plan in filter(None, planned.values()):
            found.plans += 1
            for limit, needed, most in needs(plan):
                found.most[limit] = max((needed, plan.symbol), found.most.get(limit, (0, "")))
                if needed > most or needed < 0:
                    found.violations.append(f"seed {seed}: {limit} {needed} of {most} by {plan} of {problem}")
            if (number := rng.random()) < sampled:
                found.sample.append((number / sampled, plan))
    return found


def plans_of(problem: Problem) -> dict[str, Plan | None]:
    """Plan a call by auto and by every variant's name; None where that is Unsupported."""
    planned: dict[str, Plan | None] = {}
    for variant in ("auto", *variants(problem.call.operation)):
        planned[variant] = None
        with suppress(Unsupported):
            call = problem.call._replace(variant=variant)
            planned[variant] = choose(call, problem.input, problem.output, problem.device)
    return planned


def may_be_chosen(problem: Problem, plan: Plan | None) -> bool:
    """Whether auto may take a plan for a call: not atomic additions where their order matters."""
    return plan is not None and (plan.variant != "atomic" or problem.any_order)


def test_auto_serves_what_any_variant_serves_within_the_limits_of_a_gpu():
    first = random.SystemRandom().randrange(2**40)
    print(f"seeds from {first}")
    found = plan_random_calls(range(first, first + CALLS))
    assert not found.violations, found.violations[0]
    assert found.plans > CALLS, "few calls were served"


def compile_plan(plan: Plan, architecture: int) -> str | None:
    """Say what is wrong with a plan's machine code, or None."""
    try:
        needed = hostcuda.cubin.resources(plan, architecture)
    except hostcuda.cubin.CompileError as error:
        return f"sm_{architecture}: {plan}\n{error}"
    finally:
        hostcuda.cubin.compile.cache_clear()
    if needed.shared_bytes != plan.shared_bytes:
        return f"sm_{architecture}: {needed.shared_bytes} bytes of shared memory by {plan}"
    if needed.registers * prod(plan.block) > REGISTERS_OF_A_BLOCK:
        return f"sm_{architecture}: {needed.registers} registers a thread of {plan}"
    return None


@pytest.mark.many
@pytest.mark.nvrtc
def test_a_million_random_calls_are_planned_and_thousands_of_their_kernels_compile(capsys):
    """PLANNED_CALLS and COMPILED_PLANS set how many; PLANNER_SEED repeats a run."""
    calls, compiled = (
        int(os.environ.get(name, default)) for name, default in (("PLANNED_CALLS", 10**6), ("COMPILED_PLANS", 3000))
    )
    first = int(os.environ.get("PLANNER_SEED", random.SystemRandom().randrange(2**40)))
    tasks = [
        range(seed, min(seed + SEEDS_OF_A_TASK, first + calls)) for seed in range(first, first + calls, SEEDS_OF_A_TASK)
    ]
    found = Findings()
    with multiprocessing.get_context("spawn").Pool() as pool:
        sampled = min(1.0, 8 * compiled / calls)
        for part in pool.imap_unordered(partial(plan_random_calls, sampled=sampled), tasks):
            found.add(part)
        with capsys.disabled():
            print(f"\nPLANNER_SEED={first}: {found.calls} calls, {found.refused} refused, {found.plans} plans by name")
            for limit, (number, symbol) in sorted(found.most.items()):
                print(f"  at most {number:,} of {limit}: {symbol}")
        assert not found.violations, "\n".join(found.violations[:5])
        distinct = {(plan.symbol, plan.defines): plan for _, plan in sorted(found.sample, key=lambda drawn: drawn[0])}
        chosen = list(distinct.values())[:compiled]
        rng = random.Random(first)
        architectures = [90 if rng.random() < 0.5 else rng.choice(hostcuda.cubin.ARCHITECTURES) for _ in chosen]
        wrong = [fault for fault in pool.starmap(compile_plan, zip(chosen, architectures, strict=True), 8) if fault]
    assert not wrong, "\n\n".join(wrong[:5])
