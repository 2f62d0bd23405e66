"""What the kernels become and what they move: a change that makes one slower turns a test red without a GPU.

The limits are today's figures with a margin of a tenth; the fractions of a copy are predictions (hostcuda/prediction.py
has the assumptions), never measurements.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
from cases import FUSIONS, Case, weights_of, window_of
from specialisations import SOURCES, plans, specialisations, whole_blocks

import hostcuda
from bench.measure import difference
from bench.problems import PROBLEMS
from bench.traffic import ELEMENTS, SCALED, plan_of
from gpufold.calls import PLAIN, WINDOWS, Call, Fusion, Unsupported
from gpufold.geometry import add_blocks_geometry, col2im_geometry
from gpufold.gpu.plan import H200, Operand
from gpufold.gpu.sources import KERNELS
from gpufold.operations import choose, variants

pytestmark = pytest.mark.nvrtc


@pytest.mark.parametrize("architecture", hostcuda.cubin.ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_every_kernel_compiles_for_every_architecture(source, architecture):
    """One specialisation of each source, another for each architecture; --many compiles them all."""
    defines = random.Random(f"{source} {architecture}").choice(specialisations()[source])
    assert hostcuda.cubin.compile(source, defines, architecture).code, defines


@pytest.mark.many
@pytest.mark.parametrize("architecture", hostcuda.cubin.ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_every_specialisation_compiles_for_every_architecture(source, architecture, capsys):
    seconds = [
        hostcuda.cubin.compile(source, defines, architecture).compile_seconds for defines in specialisations()[source]
    ]
    with capsys.disabled():
        print(
            f"\n{source} sm_{architecture}: {len(seconds)} specialisations, median {np.median(seconds) * 1e3:.0f} ms, "
            f"slowest {max(seconds) * 1e3:.0f} ms"
        )


SYMBOLS = sorted(
    symbol
    for source in SOURCES
    for symbol in re.findall(r"^ *(\w+)\(const Scalar", (KERNELS / source).read_text(), re.M)
)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_shared_memory_is_what_the_plan_says(symbol):
    """Of three specialisations of each kernel; the last is one of those that take most."""
    served = [plan for plan in plans() if plan.symbol == symbol]
    rng = random.Random(symbol)
    for plan in (*rng.sample(served, 2), max(served, key=lambda plan: plan.shared_bytes)):
        assert hostcuda.figures(plan).shared_bytes == plan.shared_bytes, plan


def rounding_plans(dtype, fusion):
    """Give a plan of every kernel that computes with the elements of a dtype."""
    case = Case("odd", (7, 9), (3, 4), (2, 1), (1, 2), (2, 1), (0, 3))
    geometry = col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)
    columns, image = Operand.contiguous(geometry.columns_shape), Operand.contiguous(geometry.image_shape)
    placed = add_blocks_geometry((3, 64, 64), (9, 3, 8, 8), (9, 2))
    blocks, array = Operand.contiguous(placed.blocks_shape), Operand.contiguous(placed.array_shape)
    window = Fusion("sum", fusion.window)
    for operation, *problem, fused in (
        ("col2im", geometry, dtype, columns, image, fusion),
        ("col2im", geometry, dtype, whole_blocks(geometry), image, fusion),
        ("im2col", geometry, dtype, image, columns, window),
        ("add_blocks", placed, dtype, blocks, array, replace(window, accumulate=True)),
    ):
        for variant in variants(operation):
            with suppress(Unsupported):
                yield choose(Call(operation, *problem[:2], fused, variant), *problem[2:])


@pytest.mark.parametrize(
    "fusion",
    [PLAIN, Fusion("sum", "separable"), Fusion("least_squares", "full")],
    ids=lambda fusion: f"{fusion.reduction}-{fusion.window}",
)
def test_machine_code_keeps_denormals(fusion):
    """CuPy lets the compiler flush them, and no kernel lets it: the code is the same as where it may not.

    But for comparisons: they are with the smallest normal number, on whose side a flushed denormal stays. The
    hardware's own atomic addition of float32 does flush.
    """
    for plan in rounding_plans("float32", fusion):
        flushed, kept = (hostcuda.cubin.instruction_counts(plan, flush=flush) for flush in (True, False))
        changed = (flushed - kept) + (kept - flushed)
        assert all(name.startswith("FSETP") for name in changed), f"{changed} of {plan}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_machine_code_rounds_products_before_it_adds_them(dtype):
    for plan in rounding_plans(dtype, Fusion("sum", "separable")):
        names = hostcuda.cubin.instruction_counts(plan)
        assert any(name.startswith(("FMUL", "DMUL")) for name in names), plan
        assert not any(name.startswith(("FFMA", "DFMA")) for name in names), f"{names} of {plan}"


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("lead", [(), (14,)], ids=str)
@pytest.mark.parametrize(("size", "block"), [((4096, 4096), (256, 256)), ((99_999,), (400,)), ((300,) * 3, (96,) * 3)])
def test_blocks_at_positions_keep_everything_in_registers(size, block, lead, dtype, window):
    geometry = add_blocks_geometry((*lead, *size), (600, *lead, *block), (600, len(size)))
    operands = Operand.contiguous(geometry.blocks_shape), Operand.contiguous(geometry.array_shape)
    plan = choose(Call("add_blocks", geometry, dtype, fusion=Fusion("sum", window, accumulate=True)), *operands)
    figures = hostcuda.figures(plan)
    assert figures.stack_bytes == 0
    assert figures.registers <= 128, "two blocks of threads are resident"
    of_a_block = max((loop for loop in figures.loops if loop.innermost), key=lambda loop: loop.loads)
    assert of_a_block.phases == 1, "all loads of a block's elements and weights are in flight together"


REGIMES = {problem.name: problem for problem in PROBLEMS}

SPILLS: dict[tuple[str, str], int] = {}
"""Bytes of stack that a problem's kernel may take, by (problem, dtype); everything else takes none."""


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
@pytest.mark.parametrize("name", REGIMES)
def test_nothing_spills(name, dtype):
    plan = plan_of(REGIMES[name].for_gpu, "auto", dtype, whole=True)
    assert hostcuda.figures(plan).stack_bytes <= SPILLS.get((name, dtype), 0), plan


@dataclass(frozen=True)
class Limits:
    """The most that the chosen kernel may ask for, and the least that is predicted of it."""

    load_sectors: float
    """Requested, over the floor."""
    store_sectors: float
    memory: float
    """What passes the caches, over the floor."""
    instructions: float
    """On the main path of all threads, per element of the larger array."""
    load_phases: int
    fraction_of_copy: float


LIMITS = {
    "col2im-resnet-3x3-s1": Limits(1.66, 1.11, 1.05, 8.96, 2, 0.95),
    "col2im-resnet-3x3-s2": Limits(1.57, 1.11, 1.05, 14.92, 2, 0.95),
    "col2im-maps-14x14": Limits(1.32, 1.26, 1.05, 8.96, 2, 0.95),
    "col2im-maps-7x7": Limits(1.35, 1.5, 1.05, 8.96, 2, 0.95),
    "col2im-dcgan-4x4-s2": Limits(1.09, 1.11, 1.05, 9.56, 2, 0.95),
    "col2im-dcgan-5x5-s2": Limits(1.3, 1.11, 1.05, 8.76, 2, 0.95),
    "col2im-vit-16x16-s16": Limits(1.11, 1.11, 1.05, 15.34, 2, 0.95),
    "col2im-tiles-16x16-s8": Limits(1.35, 1.11, 1.05, 9.54, 3, 0.95),
    # bound by instructions: few stores share a thread's index arithmetic
    "col2im-tiles-256x256-s192": Limits(1.77, 1.11, 1.41, 48.85, 2, 0.59),
    "col2im-patches-8x8-s1": Limits(1.35, 1.11, 1.05, 1.33, 2, 0.94),
    "col2im-atrous-3x3-d2": Limits(1.73, 1.34, 1.05, 8.96, 2, 0.95),
    "col2im-atrous-5x5-d2": Limits(1.3, 1.11, 1.05, 6.9, 4, 0.95),
    "col2im-audio-400-s160": Limits(1.34, 1.11, 1.06, 8.59, 2, 0.92),
    "col2im-audio-2048-s512": Limits(1.35, 1.11, 1.08, 5.51, 2, 0.9),
    "col2im-volume-3x3x3": Limits(1.05, 1.11, 1.05, 6.48, 4, 0.95),
    # bound by the L2 cache: rows of four blocks leave sectors half used
    "col2im-microscopy-32x32x32-s16": Limits(2.84, 1.11, 1.34, 10.04, 2, 0.72),
    "col2im-mri-8x8-s4": Limits(1.21, 1.11, 1.05, 15.72, 3, 0.94),
    "im2col-resnet-3x3-s1": Limits(11.19, 1.11, 1.05, 11.0, 4, 0.95),
    "im2col-vit-16x16-s16": Limits(1.11, 1.11, 1.05, 3.26, 3, 0.95),
    "im2col-tiles-16x16-s8": Limits(3.19, 1.35, 1.06, 1.64, 3, 0.93),
    # bound by the L2 cache: taps of a chunk read overlapping samples anew
    "im2col-audio-400-s160": Limits(2.75, 1.31, 1.05, 2.71, 2, 0.78),
    "blocks_to_array-blocks-8x8-s1": Limits(1.15, 1.11, 1.05, 1.26, 2, 0.95),
    "blocks_to_array-blocks-16x16-s8": Limits(1.11, 1.11, 1.05, 16.0, 2, 0.95),
    # bound by the L2 cache: runs of taps begin anywhere in a sector
    "array_to_blocks-blocks-8x8-s1": Limits(130.0, 1.11, 1.05, 31.0, 2, 0.8),
    "array_to_blocks-blocks-16x16-s8": Limits(4.3, 1.11, 1.05, 31.0, 2, 0.75),
    "col2im-mean-8x8-s1": Limits(1.35, 1.11, 1.05, 1.7, 2, 0.95),
    "col2im-istft-256-s64": Limits(1.45, 1.11, 1.06, 6.2, 2, 0.93),
    "col2im-istft-400-s160": Limits(1.45, 1.11, 1.08, 10.2, 2, 0.92),
    "col2im-istft-2048-s512": Limits(1.45, 1.11, 1.1, 6.3, 2, 0.9),
    # bound by the L2 cache, which brings weights too, and in three dimensions by instructions
    "blocks_to_array-stitch-512x512-s256": Limits(3.3, 1.11, 1.05, 28.0, 2, 0.82),
    "blocks_to_array-stitch-96x96x96-s48": Limits(3.3, 1.11, 1.05, 36.5, 2, 0.64),
    # their instructions are those of one block met by a tile, for how many it meets is not in the machine code, and
    # their phases those of a region that more blocks meet than its list holds
    "add_blocks-probes-256x256": Limits(1.28, 2.2, 1.15, 3.1, 6, 0.93),
    "add_blocks-tiles-512x512": Limits(3.3, 1.1, 1.36, 23.1, 6, 0.77),
    # bound by memory: rows of 7 pixels leave sectors partly used
    "add_blocks-particles-7x7": Limits(12.2, 1.1, 1.98, 4.3, 6, 0.52),
    "batch_to_space-nchw-2x2": Limits(1.11, 1.11, 1.05, 7.46, 3, 0.95),
    "batch_to_space-nchw-4x4": Limits(1.42, 1.11, 1.05, 8.81, 5, 0.94),
    "batch_to_space-nhwc-2x2": Limits(1.11, 1.11, 1.05, 5.13, 3, 0.95),
    "batch_to_space-nchw-cropped": Limits(1.32, 1.17, 1.05, 14.06, 3, 0.95),
    "batch_to_space-volume-2x2x2": Limits(1.11, 1.11, 1.05, 7.77, 3, 0.95),
    "space_to_batch-nchw-2x2": Limits(2.21, 1.11, 1.05, 14.41, 6, 0.95),
    # bound by instructions: a tile is turned in shared memory
    "space_to_batch-nchw-4x4": Limits(1.11, 1.11, 1.05, 3.79, 2, 0.84),
    "space_to_batch-nhwc-2x2": Limits(1.11, 1.11, 1.05, 3.15, 6, 0.95),
}


@pytest.mark.hostcuda
@pytest.mark.parametrize("name", LIMITS)
def test_no_kernel_asks_for_more_than_it_did(name):
    limits, got = LIMITS[name], measure(name)
    for figure, most in vars(limits).items():
        if figure == "fraction_of_copy":
            assert got.fraction_of_copy >= most, f"{got}"
        else:
            assert getattr(got, figure) <= most, f"{figure} of {got}"


def measure(name) -> Limits:
    full, dtype = REGIMES[name].for_gpu, REGIMES[name].dtypes[0]
    shrunk = full.shrunk(ELEMENTS)
    whole = plan_of(full, "auto", dtype, whole=True)
    data = shrunk.data(dtype)
    result = np.empty(shrunk.output_shape, data.dtype)
    plan = plan_of(shrunk, whole.variant, dtype, whole=False)
    weights = shrunk.weights() if shrunk.window else None
    positions = shrunk.positions() if full.kind == "placed" else None
    result[...] = 0  # what add_blocks adds to
    traffic = hostcuda.traffic(plan, data, result, weights, positions, scale=H200.multiprocessors)
    assert difference(result, shrunk.expected(data), shrunk.tolerance) is None
    figures = hostcuda.figures(whole)
    threads = prod(whole.grid) * prod(whole.block)
    return Limits(
        traffic.requested_loads,
        traffic.requested_stores,
        traffic.memory,
        figures.instructions * threads / max(prod(full.input_shape), prod(full.output_shape)),
        figures.load_phases,
        hostcuda.predict(whole, traffic, figures).fraction_of_copy,
    )


@pytest.mark.hostcuda
@pytest.mark.parametrize("fusion", FUSIONS, ids=str)
@pytest.mark.parametrize("name", ["col2im-resnet-3x3-s1", "col2im-tiles-16x16-s8", "col2im-audio-400-s160"])
def test_a_fusion_moves_no_more_than_the_sum_and_its_window(name, fusion):
    """One pass: no second fold, no weighed copy, no count or weight image; what accumulates is read once too."""
    reduction, window, accumulate = fusion
    shrunk = REGIMES[name].for_gpu.shrunk(1 << 16)
    kernel_size = shrunk.geometry.block_shape
    kind, weights = weights_of(window_of(window, kernel_size, "float32"), kernel_size, np.dtype("float32"))
    operands = Operand.contiguous(shrunk.input_shape), Operand.contiguous(shrunk.output_shape)

    def moved(fusion, weights=None):
        plan = choose(Call("col2im", shrunk.geometry, "float32", fusion=fusion), *operands, SCALED)
        data, result = shrunk.data("float32"), np.zeros(shrunk.output_shape, np.float32)
        traffic = hostcuda.traffic(plan, data, result, weights, scale=H200.multiprocessors)
        assert not traffic.atomics.requests
        return traffic, plan

    plain, _ = moved(PLAIN)
    fused, plan = moved(Fusion(reduction, kind, accumulate), weights)
    assert fused.stores.sectors == plain.stores.sectors
    before = plain.output_bytes if accumulate else 0
    window_bytes = sum(array.nbytes for array in weights or ())
    blocks = prod(plan.grid)
    once = plain.loads.memory_sectors * 32 + before + window_bytes
    assert fused.loads.memory_sectors * 32 <= 1.01 * once + 64
    # each block of threads brings the window into its own cache once, and no more
    through_l2 = plain.loads.l2_sectors * 32 + 1.35 * before + blocks * (window_bytes + 64)
    assert fused.loads.l2_sectors * 32 <= through_l2
