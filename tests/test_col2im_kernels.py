"""The col2im kernels, run on the CPU: every variant adds the taps that the formula says, in lexicographic order.

Deterministic variants equal the definition bit for bit; a named case is compared with tests/definition.py, the random
series with the NumPy path, which its own tests compare with the definition.
"""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from math import prod

import numpy as np
import pytest
from cases import (
    CASES,
    DTYPES,
    FAR_CASES,
    FUSIONS,
    INEXACT,
    SANITIZED,
    Case,
    assert_same_bits,
    awkward_window,
    crossed,
    fold,
    values,
    weights_of,
    window_of,
)
from cases import WIDENINGS as PAIRS
from moves import ONE_THREAD, in_layout, operand

import gpufold
from bench import hostcuda
from gpufold.calls import PLAIN, Call, Fusion, Unsupported
from gpufold.elements import ELEMENT_TYPES
from gpufold.explanation import explain_call as explain
from gpufold.geometry import col2im_geometry
from gpufold.gpu import parameters
from gpufold.gpu.plan import H200, Operand
from gpufold.gpu.registry import candidates, choose, problem_of
from gpufold.operations import variants

pytestmark = pytest.mark.hostcuda

VARIANTS = variants("col2im")

LARGE_STRIDE_CASES = (
    Case("audio-400-160", (4000,), (400,), 160, 1, 200, 200, batch=1, channels=2),
    Case("audio-2048-512-one-plane", (6000,), (2048,), 512, batch=1, channels=1),
    Case("stride-33-in-two-tiles-of-phases", (33 * 5,), (70,), 33, 2, 10, 5),
    Case("tiles-256-192", (450, 500), (256, 256), 192, batch=1, channels=1),
    Case("stride-40-of-one-tap", (90, 130), (1, 1), 40, batch=1, channels=2),
    Case("many-cells-in-a-row", (20 * 300,), (24,), 20, batch=1, channels=2),
    Case("few-blocks", (40, 50), (16, 32), (8, 16), batch=2, channels=3),
    Case("few-blocks-beside-padding", (5, 7, 70), (5, 4, 24), (4, 2, 8), 1, (1, 2, 9), (3, 1, 5), channels=1),
    Case("few-blocks-with-gaps", (20, 60), (8, 8), (10, 16), 1, (1, 20), (3, 5), channels=2),
)
STAGED_CASES = (
    Case("patches-16", (32, 512), (16, 16), 16, batch=1, channels=3),
    Case("patches-14-odd-rows", (29, 43), (14, 14), 14, batch=2, channels=1),
    Case("half-overlap-16-8-long-rows", (24, 8 * 40), (16, 16), 8, batch=1, channels=2),
    Case("rows-of-32-cells-and-a-part", (2, 3 * 36 + 1), (2, 5), (1, 3), 1, (0, 2), (0, 4), batch=1, channels=5),
)


def geometry_of(case):
    return col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)


def whole_blocks(geometry, columns):
    """The same columns, split, with the taps of a block one after another in memory."""
    rank = len(geometry.axes)
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    split = columns.reshape(geometry.split_columns_shape)
    return np.ascontiguousarray(split.transpose(order)).transpose(np.argsort(order))


def check(geometry, columns, want, variant, device=H200, result=None, mode="plain", seed=0, fusion=PLAIN, window=None):
    """Run every plan of a variant and compare; gives the rule's. Unsupported is raised.

    What it accumulates to is in `result`.
    """
    if result is None:
        result = np.empty(want.shape, want.dtype)
    if variant == "gather_blocks":  # which serves no other layout
        columns = whole_blocks(geometry, columns)
    operands = operand(columns), operand(result)
    source = columns.dtype.name if columns.dtype != want.dtype else ""
    call = Call("col2im", geometry, want.dtype.name, fusion, variant, source=source)
    plans, given = tuple(candidates(problem_of(call, *operands, device))), result.copy()
    for plan in plans[:1] if variant == "auto" else plans:
        result[...] = given
        hostcuda.run(plan, columns, result, window, mode=mode, seed=seed)
        message = f"{plan}\n{geometry}"
        if plan.variant == "atomic" and not ELEMENT_TYPES[want.dtype.name].exact:
            near = 64 * np.finfo(want.dtype).eps
            np.testing.assert_allclose(result, want, rtol=near, atol=near * abs(columns).max(), err_msg=message)
        else:
            assert_same_bits(result, want, message)
    return plans[0]


def may_refuse(variant):
    """Only these refuse anything but sizes; what they refuse has its own test."""
    refusing = ("gather", "gather_blocks", "atomic")
    return suppress(Unsupported) if variant in refusing else nullcontext()


def check_variants(case, dtype, device=ONE_THREAD, mode="plain", names=VARIANTS):
    """Run every variant that serves the case."""
    geometry = geometry_of(case)
    columns = values(case.columns_shape, dtype)
    want = case.col2im(columns)
    for variant in names:
        with may_refuse(variant):
            check(geometry, columns, want, variant, device, mode=mode)


@pytest.mark.some(6)
@pytest.mark.parametrize("case", [*CASES, *LARGE_STRIDE_CASES, *STAGED_CASES], ids=str)
def test_every_variant_is_the_definition(case):
    dtype = DTYPES[[*CASES, *LARGE_STRIDE_CASES, *STAGED_CASES].index(case) % len(DTYPES)]
    check_variants(case, dtype)
    check_variants(case, dtype, H200, names=("auto",))


@pytest.mark.parametrize("mode", ["plain", SANITIZED])
@pytest.mark.parametrize("case", FAR_CASES, ids=str)
def test_taps_and_blocks_may_be_far_apart(case, mode):
    columns = values(case.columns_shape, np.float32)
    assert_same_bits(
        gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments), case.col2im(columns), case
    )
    launches_few = case.arguments["strides"][-1] < 2**20  # a thread block for every 32 phases of a stride
    names = [variant for variant in (*VARIANTS, "auto") if launches_few or variant != "gather_parts"]
    check_variants(case, np.float32, H200, mode, names)


@pytest.mark.some(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case("stride-1", (5, 6), (3, 2), 1, 1, (1, 0), (0, 1), channels=5),
        Case("stride-2", (5, 8), (3, 3), (1, 2), 1, 1, 1, channels=5),
        Case("stride-5", (4, 13), (2, 7), (2, 5), 1, 1, 1, batch=1, channels=2),
    ],
    ids=str,
)
def test_every_dtype_is_the_definition(case, dtype):
    check_variants(case, dtype)


@pytest.mark.some(3)
@pytest.mark.parametrize("mode", ["observed", "shuffled"])
@pytest.mark.parametrize(
    "case",
    [
        Case("direct", (5, 6), (3, 2), 1, 1, (1, 0), (0, 1), channels=5),
        Case("staged", (3, 5 * 40 + 2), (2, 7), (1, 5), 1, 1, 1, batch=1, channels=2),
        Case("wide", (3, 4 * 40), (2, 5), (1, 4), 1, 1, 1, batch=1, channels=5),
        Case("audio-400-160", (1600,), (400,), 160, 1, 200, 200, batch=1, channels=1),
        Case("pieces", (40, 15 * 40), (3, 45), (2, 40), 1, 1, 1, batch=1, channels=2),
        Case("few-blocks", (17, 40), (6, 16), (3, 8), batch=1, channels=4),  # of cells that fill no chunk
        Case("many-taps", (5, 9), (20, 18), 1, 1, (15, 13), (14, 14), batch=1, channels=1),
    ],
    ids=str,
)
def test_warps_wait_for_each_other_and_every_byte_is_written_once(case, mode):
    check_variants(case, np.dtype(np.float32), mode=mode)


def test_cells_of_two_images_have_planes_of_their_own():
    """Images lie end to end, columns do not: the last plane of one image, alone in its thread, is beside the next."""
    case = Case("two-images", (4, 9 * 10), (2, 4), (1, 9), batch=3, channels=9)
    whole = values((3, 2 * case.columns_shape[1], case.columns_shape[2]), np.float32)
    columns = whole[:, : case.columns_shape[1]]
    want = case.col2im(np.ascontiguousarray(columns))
    for device in (ONE_THREAD, H200):
        plan = check(geometry_of(case), columns, want, "gather", device)
        assert int(dict(plan.defines)["PLANES"]) > 1


# Random geometries share their tap pattern, which is what is compiled, a hundred to a pattern.


def random_pattern(rng):
    rank = rng.choice((1, 1, 2, 2, 2, 3, 4))
    largest = {1: 40, 2: 7, 3: 4, 4: 3}[rank]
    return (
        tuple(rng.randint(1, largest) for _ in range(rank)),
        tuple(rng.choice((1, 1, 2, 3, 4, rng.randint(1, 40 if rank < 3 else 4))) for _ in range(rank)),
        tuple(rng.choice((0, 1, 1, 1, 2, 3)) for _ in range(rank)),
    )


def random_geometry(rng, kernel, strides, dilations, phase):
    rank = len(kernel)
    room = {1: 200, 2: 20, 3: 6, 4: 3}[rank]
    while True:
        begin = (*(rng.randint(0, 3) for _ in range(rank - 1)), phase + strides[-1] * rng.choice((0, 0, 1)))
        end = tuple(rng.randint(0, 3) for _ in range(rank))
        least = (max(1, d * (k - 1) + 1 - b - e) for k, d, b, e in zip(kernel, dilations, begin, end, strict=True))
        size = [extent + rng.choice((0, rng.randint(0, room))) for extent in least]
        if rng.random() < 0.3:
            size[-1] += -size[-1] % strides[-1]  # rows of whole cells
        case = Case(
            "random",
            tuple(size),
            kernel,
            strides,
            dilations,
            begin,
            end,
            batch=rng.choice((None, 1, 2, 3)),
            channels=rng.randint(1, 6),
        )
        if prod(case.columns_shape) <= 40_000 and prod(case.image_shape) <= 40_000:
            return case


def check_random(seed, count):
    rng = random.Random(seed)
    kernel, strides, dilations = random_pattern(rng)
    phase = rng.randrange(strides[-1])
    dtype = DTYPES[seed % len(DTYPES)]
    for number in range(count):
        case = random_geometry(rng, kernel, strides, dilations, phase)
        geometry = geometry_of(case)
        plain = values(case.columns_shape, dtype, number)
        want = gpufold.col2im(plain, case.output_size, kernel, **case.arguments)
        columns = plain.reshape(geometry.split_columns_shape) if rng.random() < 0.3 else plain
        columns = in_layout(rng, columns)
        device = rng.choice((H200, ONE_THREAD))
        for variant in VARIANTS:
            result = np.empty(want.shape, dtype)
            if rng.random() < 0.3 and variant != "atomic":
                result = in_layout(rng, result)
            try:
                with may_refuse(variant):
                    check(geometry, columns, want, variant, device, result)
            except Exception as error:
                raise AssertionError(f"seed {seed}, geometry {number}: {case!r} {dtype}") from error


@pytest.mark.some(10)
@pytest.mark.parametrize("seed", range(20))
def test_random_geometries_in_any_layout_are_the_numpy_path(seed):
    check_random(seed, 100)


@pytest.mark.many
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_random_geometries_are_the_numpy_path(seed):
    check_random(seed, 100)


# Means, windows and accumulation

FUSED_CASES = (
    Case("direct", (5, 6), (3, 2), 1, 1, (1, 0), (0, 1), channels=5),
    Case("words", (4, 12), (3, 3), (1, 2), (1, 2), 1, 1, channels=5),
    Case("staged", (4, 5 * 33 + 2), (2, 7), (2, 5), 1, 1, 1, batch=1, channels=2),
    Case("phases", (9, 20 * 40), (2, 50), (3, 20), 1, (1, 7), (0, 9), batch=1, channels=2),
    Case("many-taps", (5, 9), (20, 18), 1, 1, (15, 13), (14, 14), batch=1, channels=1),
    Case("uncovered", (7, 30), (2, 2), (5, 4), (1, 3), batch=2, channels=2),
    Case("volume", (3, 5, 8), (2, 3, 3), (1, 2, 2), 1, (0, 1, 1), (1, 1, 0), batch=1, channels=2),
    Case("row", (70,), (9,), 4, 1, 3, 2, batch=3, channels=1),
)


def check_fused(case, dtype, fusion, seed=0, device=ONE_THREAD, mode="plain", make_window=window_of):
    """Run every variant that serves the case with a fusion, against the NumPy path."""
    geometry = geometry_of(case)
    reduction, kind, accumulate = fusion
    columns, window = values(case.columns_shape, dtype, seed), make_window(kind, case.kernel_size, dtype, seed)
    out = values(case.image_shape, dtype, seed + 1)
    options = {"reduction": reduction, "window": window, "out": out.copy(), "accumulate": accumulate}
    want = fold(case, columns, **options)
    kind, weights = weights_of(window, case.kernel_size, np.dtype(dtype))
    for variant in (*VARIANTS, "auto"):
        if variant == "atomic" and make_window is awkward_window:
            continue  # its order decides which sums overflow
        with may_refuse(variant):
            check(
                geometry,
                columns,
                want,
                variant,
                device,
                out.copy(),
                mode,
                seed,
                Fusion(reduction, kind, accumulate),
                weights,
            )


@pytest.mark.some(4)
@pytest.mark.parametrize("number", range(2 * len(FUSIONS)))
def test_every_variant_fuses_as_the_numpy_path(number):
    fusion, case = FUSIONS[number % len(FUSIONS)], FUSED_CASES[number % len(FUSED_CASES)]
    dtype = INEXACT[(number + number // len(FUSIONS)) % len(INEXACT)]
    check_fused(case, dtype, fusion)
    check_fused(case, dtype, fusion, seed=1, device=H200)


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number < len(PAIRS) else pytest.mark.all) for number in range(56)]
)
def test_sums_wider_than_the_columns_have_the_bits_of_converted_columns(number):
    narrow, wide = map(np.dtype, PAIRS[number % len(PAIRS)])
    mode = ("plain", "observed", "shuffled", "sanitized")[number // len(PAIRS)]
    device = (ONE_THREAD, H200)[number // len(PAIRS) % 2]
    reduction, kind, accumulate = (PLAIN[:3], *FUSIONS)[5 * number % (len(FUSIONS) + 1)]
    if wide not in INEXACT:
        reduction, kind = "sum", "none"
    case = (*FUSED_CASES, *STAGED_CASES)[number % (len(FUSED_CASES) + len(STAGED_CASES))]
    columns, out = values(case.columns_shape, narrow, number), values(case.image_shape, wide, number)
    window = window_of(kind, case.kernel_size, wide, number)
    options = {"reduction": reduction, "window": window, "accumulate": accumulate}
    want = fold(case, columns.astype(wide), out=out.copy(), **options)
    assert_same_bits(fold(case, columns, dtype=wide, out=out.copy(), **options), want)
    kind, weights = weights_of(window, case.kernel_size, wide)
    for variant in (*VARIANTS, "auto"):
        with may_refuse(variant):
            fused, result = Fusion(reduction, kind, accumulate), out.copy()
            plan = check(geometry_of(case), columns, want, variant, device, result, mode, number, fused, weights)
            assert {"SCALAR", "RESULT"} <= dict(plan.defines).keys()


WEIGHTED = [fusion for fusion in FUSIONS if fusion[1] != "none"]


AWKWARD_CASES = (
    *FUSED_CASES,
    Case("several-cells-of-a-lane", (3, 20 * 250), (2, 45), (2, 20), 1, (1, 3), (1, 5), batch=1, channels=1),
    Case("phases-of-as-many-taps", (3, 4 * 70), (2, 12), (1, 4), 1, (1, 5), (0, 3), batch=1, channels=2),
)


@pytest.mark.some(3)
@pytest.mark.parametrize("number", range(2 * len(AWKWARD_CASES)))
def test_no_weight_counts_where_its_tap_does_not_exist(number):
    """Infinite and NaN weights show what lets them in: zero times these is NaN."""
    series, index = divmod(number, len(AWKWARD_CASES))
    case, fusion = AWKWARD_CASES[index], WEIGHTED[(5 * number + 6 * series) % len(WEIGHTED)]
    dtype = INEXACT[number % len(INEXACT)]
    for seed in range(6):
        check_fused(case, dtype, fusion, seed, (ONE_THREAD, H200)[seed % 2], make_window=awkward_window)


@pytest.mark.parametrize(
    ("dtype", "case"), crossed([dtype for dtype in DTYPES if dtype not in INEXACT], FUSED_CASES[:4])
)
def test_every_variant_accumulates_integers(dtype, case):
    check_fused(case, dtype, ("sum", "none", True))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_averages_are_rounded_once_wherever_they_lie(dtype):
    """Quotients next to the middle of two floats, and numbers and divisors of every size: two taps land on a pixel.

    The element of the first is a number, with the weight 1, and that of the other is zero; their weights add up to a
    divisor of the number, each of as many bits as a float has.
    """
    stride, blocks, ends = 64, 300, (0.0, -0.0, 1e-45, 1e-39, 1e-30, 1e-12, 1e12, 1e30, 3e38, np.inf, np.nan)
    case = Case("averages", ((blocks + 1) * stride,), (2 * stride,), stride, batch=1, channels=4)
    rng = random.Random(0)
    window, columns = np.ones(2 * stride, np.float32), np.zeros((1, 2 * stride, blocks), np.float32)
    for phase in range(stride):
        divisor = rng.randrange(2**23 + 1, 2**24, 2)
        window[stride + phase] = np.float32(divisor / 2**23 - 1)
        for block in range(blocks):
            below, above = (rng.randrange(-9, 10, 2) * pow(2, -bits, divisor) % divisor for bits in (25, 24))
            number = next((it for it in (below, above + divisor) if 2**23 <= it < 2**24), divisor - 1)
            columns[0, phase, block] = number * rng.choice((-1, 1)) * 2.0 ** rng.randrange(-40, 0)
    columns[0, 5:stride:7, 5::9] = np.resize(ends, columns[0, 5:stride:7, 5::9].shape)
    window[3 : 3 + len(ends)], window[stride + 3 : stride + 3 + len(ends)] = ends, 0
    window[20:31], window[stride + 20 : stride + 31] = np.negative(ends), 0
    columns = np.concatenate([columns, columns[..., ::-1]] * 2, 1)
    columns = (columns * np.array(1 + 1j if dtype == "complex64" else 1)).astype(dtype)
    want = fold(case, columns, reduction="mean", window=(window,))
    kind, weights = weights_of((window,), case.kernel_size, np.dtype(dtype))
    for variant in ("gather_parts", "gather_pixels"):
        check(geometry_of(case), columns, want, variant, ONE_THREAD, fusion=Fusion("mean", kind), window=weights)


@pytest.mark.parametrize("case", FUSED_CASES[:5], ids=str)
def test_warps_wait_for_each_other_where_sums_are_fused(case):
    check_fused(case, np.dtype(np.float32), ("mean", "full", True), mode="shuffled", seed=3)


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_geometries_fuse_as_the_numpy_path(seed):
    rng = random.Random(seed)
    kernel, strides, dilations = random_pattern(rng)
    fusion, phase, dtype = rng.choice(FUSIONS), rng.randrange(strides[-1]), INEXACT[seed % len(INEXACT)]
    for number in range(40):
        case = random_geometry(rng, kernel, strides, dilations, phase)
        try:
            check_fused(case, dtype, fusion, number, rng.choice((H200, ONE_THREAD)))
        except Exception as error:
            raise AssertionError(f"seed {seed}, geometry {number}: {case!r} {dtype} {fusion}") from error


@pytest.mark.parametrize(
    "case",
    [
        Case("stride-1", (5, 6), (3, 2), 1, 1, (1, 0), (0, 1), channels=5),
        Case("stride-3", (4, 3 * 33), (2, 7), (2, 3), 1, 1, 1, batch=1, channels=5),
        Case("stride-20", (20 * 130,), (50,), 20, 2, 7, 7),
        Case("few-blocks", (17, 56), (6, 32), (3, 16), batch=1, channels=4),
    ],
    ids=str,
)
def test_wide_offsets_give_the_same(case, monkeypatch):
    monkeypatch.setattr(parameters, "INT32_MAX", 10)
    choose.cache_clear()
    columns = values(case.columns_shape, np.dtype(np.float32))
    want = case.col2im(columns)
    refusing = {"gather"} if case.name == "stride-20" else set()
    for variant in VARIANTS:
        with pytest.raises(Unsupported) if variant in refusing else nullcontext():
            plan = check(geometry_of(case), columns, want, variant, ONE_THREAD)
            assert dict(plan.defines)["OFFSET"] == "long long"
    choose.cache_clear()


# What is planned


def plan_of(
    size, kernel, *, batch=1, channels=1, dtype="float32", variant="auto", steps=None, device=H200, **arguments
):
    """Plan a call on contiguous arrays; `steps` are other strides of the columns."""
    case = Case("planned", size, kernel, batch=batch, channels=channels)
    deterministic = arguments.pop("deterministic", True)
    arguments = {"strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0} | arguments
    case = Case("planned", size, kernel, **arguments, batch=batch, channels=channels)
    geometry = geometry_of(case)
    columns = Operand(case.columns_shape, steps) if steps else Operand.contiguous(case.columns_shape)
    image = Operand.contiguous(case.image_shape)
    return choose(Call("col2im", geometry, dtype, variant=variant, deterministic=deterministic), columns, image, device)


def test_offsets_are_wide_where_a_plane_or_the_threads_need_it():
    def bits(size, kernel=(2, 2), variant="gather", **arguments):
        return dict(plan_of(size, kernel, variant=variant, **arguments).defines)["OFFSET"]

    assert bits((4096, 4096), batch=4, channels=64) == "int"  # 2**32 pixels in planes of 2**24
    assert bits((4096, 4096), batch=16, channels=64) == "long long"  # 2**31 threads, eight planes each
    assert bits((2**15, 2**16 - 9)) == "long long"  # four taps of 2**31 elements
    assert bits((4, 8), steps=(0, 2**29, 1)) == "long long"  # a span, not a size
    assert bits((4, 8), steps=(0, -(2**29), 1)) == "long long"
    assert bits((4, 8), steps=(2**31 - 1, 21, 1), batch=2) == "int"
    assert bits((4, 8), steps=(-(2**31), 21, 1), batch=2) == "long long"  # from a plane to the next
    assert bits((4, 8), pads_begin=2**30, strides=2**29, variant="gather_pixels") == "long long"
    assert bits((64, 64), (1, 1), batch=2**18, channels=4) == "int"
    assert bits((64, 64), (1, 1), batch=2**18, channels=4, variant="atomic") == "long long"  # 2**32 threads


def test_sizes_that_no_offset_holds_are_refused():
    with pytest.raises(Unsupported, match="do not fit into 64 bits"):
        plan_of((4, 8), (2, 2), pads_begin=2**63, strides=2**62, variant="gather_pixels")


def test_extents_never_change_what_is_compiled():
    arguments = {"strides": (2, 3), "dilations": (1, 2), "pads_begin": (0, 1), "pads_end": 1}
    extents = [(1, 1, (5, 9)), (3, 5, (8, 7)), (64, 256, (56, 57)), (1, 3, (1024, 1999)), (8, 8, (64, 66))]
    for variant in VARIANTS:
        plans = [
            plan_of(
                size,
                (3, 3),
                batch=batch,
                channels=channels,
                variant=variant,
                steps=(0, 1, 9 * channels + 9) if variant == "gather_blocks" else None,
                **arguments,
            )
            for batch, channels, size in extents
        ]
        assert len({plan.defines for plan in plans}) == 1
    one = plan_of((40, 40), (3, 3), variant="gather", strides=3, pads_begin=1)
    assert one.defines == plan_of((40, 40), (3, 3), variant="gather", strides=3, pads_begin=4).defines


@pytest.mark.parametrize(
    ("expected", "size", "kernel", "arguments"),
    [
        ("gather_pixels", (56, 56), (3, 3), {"batch": 8, "channels": 64, "pads_begin": 1, "pads_end": 1}),
        ("gather", (112, 112), (3, 3), {"batch": 8, "channels": 64, "strides": 2, "pads_begin": 1}),
        ("gather", (512, 512), (16, 16), {"batch": 8, "channels": 3, "strides": 16}),
        ("gather_parts", (128_000,), (400,), {"batch": 8, "strides": 160}),
        ("gather_parts", (1024, 1024), (40, 40), {"batch": 8, "strides": 8}),
        ("gather_pixels", (1024, 1024), (40, 40), {"batch": 8, "strides": 4}),  # a warp reads sectors of each tap
        ("gather_parts", (1024, 1024), (40, 40), {"batch": 8, "strides": 4, "dtype": "float16"}),
        ("gather_pixels", (5,), (2,), {"strides": 2**31 - 1, "pads_begin": 2**31}),
        ("gather_pixels", (512, 512), (16, 16), {"channels": 3, "strides": 16, "steps": (1, 1, 768)}),
        ("gather_pixels", (64, 64), (32, 32), {}),
        ("gather_pixels", (64, 64), (32, 32), {"deterministic": False}),
        ("gather_blocks", (512, 512), (8, 8), {"steps": (1, 1, 64)}),
        ("gather_pixels", (512, 512), (3, 3), {"steps": (1, 1, 9)}),  # blocks of few bytes
    ],
)
def test_the_rule_takes_a_variant_by_strides_and_layout(expected, size, kernel, arguments):
    plan = plan_of(size, kernel, **arguments)
    assert plan.variant == expected, plan.reason


def test_a_plane_alone_takes_no_words_away_by_where_another_would_lie():
    geometry = col2im_geometry((1, 64, 8), (512,), (64,), 64)
    call = Call("col2im", geometry, "float32", variant="gather_parts")
    columns = Operand.contiguous(geometry.columns_shape)
    plans = [choose(call, columns, Operand(geometry.image_shape, (777, plane, 1))) for plane in (512, 555)]
    assert plans[0].parameters == plans[1].parameters


def test_several_planes_and_wide_words_where_there_is_enough():
    def symbol(size, stride, **arguments):
        return plan_of(size, (3, 3), variant="gather", strides=stride, **arguments).symbol

    assert symbol((56, 56), 1, batch=32, channels=64) == "col2im_gather_planes"
    assert symbol((56, 56), 1, batch=1, channels=64) == "col2im_gather"
    assert symbol((112, 112), 2, batch=32, channels=64) == "col2im_gather_words_planes"
    assert symbol((113, 113), 2, batch=32, channels=64) == "col2im_gather_planes"
    assert symbol((111, 111), 3, batch=32, channels=64) == "col2im_gather_planes"
    assert symbol((1024, 1024), 1, batch=8, channels=1) == "col2im_gather_planes"  # the batch is planes too
    assert symbol((28, 28), 1, batch=32, channels=48) == "col2im_gather"  # too few threads otherwise
    assert symbol((2048, 2048), 1, channels=3) == "col2im_gather"  # most of eight would repeat another


@pytest.mark.parametrize(
    ("variant", "match", "arguments"),
    [
        ("gather", "16 at most, but strides is 17 on the last axis", {"strides": 17}),
        ("gather", "32 at most, but kernel_size is 40", {"kernel": (3, 40)}),
        ("gather_blocks", "taps must be contiguous in the columns, but their strides are", {}),
        ("gather_blocks", "dilations is 0 on axis 0", {"steps": (0, 1, 9), "dilations": (0, 1)}),
        (
            "gather_blocks",
            "256 at most, but kernel_size is 260",
            {"size": (50, 300), "kernel": (2, 260), "steps": (0, 1, 520)},
        ),
        (
            "gather_blocks",
            "walks over 16384 blocks at most .* put 20000 there on axis 1",
            {"size": (50, 30_000), "steps": (0, 1, 9), "dilations": (1, 10_000)},
        ),
        (
            "gather_blocks",
            "keeps sums of pixels and of those that their blocks reach, .* dilations 6000 make it",
            {"size": (50, 30_000), "steps": (0, 1, 9), "dilations": (1, 6000)},
        ),
        ("atomic", "atomic adds in memory, where float16 sums would be rounded", {"dtype": "float16"}),
        ("atomic", "no atomic addition of uint8", {"dtype": "uint8"}),
    ],
)
def test_a_variant_that_cannot_serve_says_why(variant, match, arguments):
    with pytest.raises(Unsupported, match=match):
        plan_of(arguments.pop("size", (50, 60)), arguments.pop("kernel", (3, 3)), variant=variant, **arguments)


def test_atomics_refuse_an_image_with_gaps():
    geometry = col2im_geometry((4, 9), (4, 4), (2, 2), 1, 1, 0, 0)
    columns, image = Operand.contiguous((4, 9)), Operand((1, 4, 4), (32, 8, 2))
    with pytest.raises(Unsupported, match="out must be C-contiguous"):
        choose(Call("col2im", geometry, "float32", variant="atomic"), columns, image)
    assert choose(Call("col2im", geometry, "int32"), columns, image).variant == "gather_pixels"


def test_an_explanation_names_every_variant():
    geometry = col2im_geometry((4, 9), (4, 4), (2, 2), 1, 1, 0, 0)
    explanation = explain(
        Call("col2im", geometry, "uint8"), Operand.contiguous((4, 9)), Operand.contiguous(geometry.image_shape)
    )
    assert {explanation.plan.variant, *explanation.alternatives} == set(VARIANTS)
    assert "no atomic addition of uint8" in str(explanation)
    with pytest.raises(ValueError, match="variant must be auto or one of gather, "):
        choose(
            Call("col2im", geometry, "uint8", variant="fast"), Operand.contiguous((4, 9)), Operand.contiguous((1, 4, 4))
        )


def test_every_byte_in_and_out_is_counted_once():
    assert plan_of((8, 9), (2, 2), batch=2, channels=3).bytes_moved == 4 * (2 * 12 * 56 + 2 * 3 * 8 * 9)
