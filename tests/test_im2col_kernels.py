"""The im2col kernels, run on the CPU: every variant takes every element from where the formula says, bit for bit."""

from __future__ import annotations

import itertools
import random
from contextlib import nullcontext, suppress
from math import prod

import definition
import numpy as np
import pytest
from cases import (
    CASES,
    FAR_CASES,
    INEXACT,
    SANITIZED,
    Case,
    assert_same_bits,
    awkward_window,
    crossed,
    random_case,
    values,
    weights_of,
    window_of,
)
from moves import DEVICES, DTYPES, ONE_THREAD, check, operand, random_bits

import gpufold
from bench import hostcuda
from gpufold.calls import Call, Fusion, Unsupported
from gpufold.geometry import im2col_geometry
from gpufold.gpu import parameters, registry
from gpufold.gpu.plan import H200, Operand
from gpufold.operations import variants

pytestmark = pytest.mark.hostcuda

STAGED_CASES = (
    Case("patches-16", (32, 80), (16, 16), 16, batch=1),
    Case("patches-14-odd-rows", (29, 43), (14, 14), 14, batch=2, channels=1),
    Case("patches-16-stride-8-padded", (40, 44), (16, 16), 8, 1, (3, 5), (2, 0), batch=1, channels=2),
    Case("half-overlap-dilated", (60,), (12,), 16, 3, 5, 6),
    Case("1d-400-160", (2000,), (400,), 160, 1, 200, 200, batch=1, channels=2),
    Case("1d-more-blocks-than-a-warp-has-lanes", (700,), (17,), 9, 2, 4, 7, batch=2),
    Case("3d-stride-is-kernel", (4, 6, 24), (2, 3, 8), (2, 3, 8), batch=1, channels=2),
)
LOADED_IN_WORDS = (
    Case("words-in-the-pads", (5, 48), (3, 16), (2, 16), (2, 1), (2, 16), (1, 8), channels=6),
    Case("words-of-a-row-in-two-chunks", (2, 96), (1, 24), (1, 32), 1, (0, 8), 0, batch=1, channels=5),
    Case("words-that-overlap", (7, 40), (4, 8), (3, 4), 1, (2, 4), (2, 4), batch=1),
    Case("narrow-words", (94,), (12,), 26, 1, 0, 0, batch=3),
)
UNSPLIT_CASES = (
    Case("kernel-1x1-is-a-copy", (6, 8), (1, 1)),
    Case("kernel-3x1-keeps-rows", (6, 8), (3, 1), 1, 1, (1, 0)),
    Case("kernel-1-stride-3", (9, 11), (1, 1), 3),
    Case("kernel-1-padded", (4, 8), (1, 1), 1, 1, (0, 4), (1, 4)),
    Case("3d-unit-axis-outside", (4, 6, 8), (1, 2, 2), (1, 2, 2), 1, (2, 0, 0), (1, 0, 0)),
    Case("unit-axis-outside-a-shifted-one", (3, 4, 5), (1, 2, 1), (1, 2, 1), 1, (0, 1, 0)),
    Case("unit-axis-outside-one-whose-taps-leave-it", (3, 4, 5), (1, 3, 1), (1, 2, 1), 1, 0, (0, 1, 0)),
    Case("many-channels-on-a-small-map", (5, 5), (2, 2), channels=37),
)


WORDS_CASES = (
    Case("padded-rows-of-words", (5, 16), (3, 3), 1, 1, 1, 1),
    Case("words-of-two", (4, 18), (2, 3), 1, 1, (0, 1), (0, 1), channels=9),
    Case("taps-beyond-the-next-word", (6, 32), (2, 8), 1, 1, (1, 3), (0, 4), batch=1),
    Case("dilated-along-the-row", (9, 24), (3, 3), (2, 1), (1, 2), (0, 2), (3, 2), channels=5),
    Case("pads-of-whole-words", (3, 16), (1, 8), 1, 1, (0, 16), (2, 7), channels=2),
    Case("even-kernel", (8, 16), (3, 2), 1, 1, (1, 0), (1, 1), batch=3, channels=2),
    Case("1d-words", (64,), (5,), 1, 1, 2, 2, batch=1, channels=11),
    Case("3d-words", (3, 4, 16), (2, 3, 3), (1, 2, 1), 1, (1, 0, 1), (0, 1, 1), channels=2),
    Case("more-taps-than-a-word", (2, 32), (1, 21), 1, 1, (0, 8), (0, 12), batch=1),
)
LONG_ROWS_CASES = (
    Case("rows-of-any-length", (5, 138), (3, 8), 1, 1, 0, 0, batch=1, channels=2),
    Case("taps-that-run-ahead", (4, 137), (2, 3), 1, 1, (0, 2), (0, 1), batch=2, channels=1),
    Case("taps-a-word-apart", (4, 137), (2, 4), 1, (1, 3), (1, 0), (0, 5), batch=1, channels=3),
    Case("1d-odd-row", (203,), (5,), 1, 9, 4, 3, batch=1, channels=2),
    Case("long-rows-of-one-tap", (3, 145), (2, 1), 1, 1, (0, 3), 0, batch=1, channels=2),
)


def geometry_of(case):
    return im2col_geometry(case.image_shape, case.kernel_size, **case.arguments)


def want_of(case, image):
    return definition.im2col(image, case.kernel_size, **case.arguments)


def variants_for(kernel):
    """Staged loads run along a row of taps, so they need one."""
    return variants("im2col") if kernel[-1] > 1 else ("direct", "packed", "taps", "words")


def may_refuse(variant):
    """Only packed and words refuse more than sizes and rows of one tap; what they refuse has its own tests."""
    return suppress(Unsupported) if variant in ("packed", "words") else nullcontext()


def check_case(case, dtype, seed=0):
    geometry = geometry_of(case)
    image = random_bits(case.image_shape, dtype, seed)
    want = want_of(case, image)
    for variant, device in itertools.product(("auto", *variants_for(case.kernel_size)), DEVICES):
        with may_refuse(variant):
            check("im2col", geometry, image, want, variant, device)


@pytest.mark.some(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_variant_is_the_definition(case):
    check_case(case, DTYPES[CASES.index(case) % len(DTYPES)])


@pytest.mark.parametrize("mode", ["plain", SANITIZED])
@pytest.mark.parametrize("case", FAR_CASES, ids=str)
def test_taps_and_blocks_may_be_far_apart(case, mode):
    image = values(case.image_shape, np.float32)
    want = want_of(case, image)
    assert_same_bits(gpufold.im2col(image, case.kernel_size, **case.arguments), want, case)
    for variant in ("auto", *variants_for(case.kernel_size)):
        with may_refuse(variant):
            check("im2col", geometry_of(case), image, want, variant, mode=mode)


@pytest.mark.parametrize(
    ("case", "dtype"), crossed([*STAGED_CASES, *LOADED_IN_WORDS, *UNSPLIT_CASES], ["uint8", "float32"])
)
def test_every_layout_is_the_definition(case, dtype):
    check_case(case, dtype)


@pytest.mark.parametrize("dtype", ["float16", "complex64", "complex128"])
@pytest.mark.parametrize("case", [STAGED_CASES[2], UNSPLIT_CASES[0], UNSPLIT_CASES[1]], ids=str)
def test_every_element_size_is_the_definition(case, dtype):
    check_case(case, dtype)


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(40))
def test_random_geometries_are_the_definition(seed):
    check_case(random_case(seed), DTYPES[seed % len(DTYPES)], seed)


@pytest.mark.many
@pytest.mark.parametrize("seed", range(1000, 3000))
def test_many_random_geometries_are_the_definition(seed):
    check_case(random_case(seed), DTYPES[seed % len(DTYPES)], seed)


@pytest.mark.some(5)
@pytest.mark.parametrize("make_window", [window_of, awkward_window])
@pytest.mark.parametrize(
    ("case", "kind"), crossed([*CASES[::4], *STAGED_CASES[2:], *UNSPLIT_CASES], ["separable", "full"])
)
def test_a_window_multiplies_what_is_taken(case, kind, make_window):
    dtype = INEXACT[len(case.name) % len(INEXACT)]
    image, window = values(case.image_shape, dtype), make_window(kind, case.kernel_size, dtype)
    want = case.im2col(image, window=window)
    assert_same_bits(gpufold.im2col(image, case.kernel_size, **case.arguments, window=window), want, case)
    kind, weights = weights_of(window, case.kernel_size, dtype)
    taking = [variant for variant in variants_for(case.kernel_size) if variant not in ("packed", "words")]
    for variant, device in itertools.product(("auto", *taking), DEVICES):
        operands = operand(image), operand(want)
        plan = registry.choose(
            Call("im2col", geometry_of(case), dtype.name, fusion=Fusion(window=kind), variant=variant),
            *operands,
            device,
        )
        got = np.empty_like(want)
        hostcuda.run(plan, image, got, weights, mode="plain")
        assert_same_bits(got, want, f"{plan} {case!r}")


@pytest.mark.parametrize("case", [*STAGED_CASES, LOADED_IN_WORDS[0]], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_lanes_in_any_order_give_the_same_and_never_race(case, dtype):
    image = random_bits(case.image_shape, dtype)
    for variant, seed in (("direct", 0), ("taps", 1), ("taps", 2)):
        check("im2col", geometry_of(case), image, want_of(case, image), variant, ONE_THREAD, mode="shuffled", seed=seed)


SERVED_BY_WORDS = [
    pytest.param(case, dtype, id=f"{case}-{dtype}", marks=() if (number + place) % 4 == 1 else pytest.mark.all)
    for number, case in enumerate((*WORDS_CASES, *LONG_ROWS_CASES))
    for place, dtype in enumerate(("uint8", "float16", "float32", "complex64"))
    if (case.name, dtype) != ("words-of-two", "uint8")
]


@pytest.mark.parametrize(("case", "dtype"), SERVED_BY_WORDS)
def test_words_of_blocks_are_the_definition(case, dtype):
    image = random_bits(case.image_shape, dtype)
    want = want_of(case, image)
    for device, run in itertools.product(DEVICES, ({"mode": "observed"}, {"mode": "shuffled", "seed": 1})):
        check("im2col", geometry_of(case), image, want, "words", device, **run)


@pytest.mark.parametrize("mode", ["observed", SANITIZED])
@pytest.mark.parametrize("start", range(1, 8))
def test_long_rows_may_begin_at_any_element(start, mode):
    """Each plane, each row and each tap then begins elsewhere in a word, for images as for columns."""
    case = LONG_ROWS_CASES[start % len(LONG_ROWS_CASES)]
    dtype = ("uint8", "float16", "float32", "complex64")[start % 4]
    want = want_of(case, image := random_bits(case.image_shape, dtype))
    moved = np.empty(image.size + start, dtype)[start:].reshape(image.shape)
    result = np.empty((*want.shape[:-1], want.shape[-1] + start % 3), dtype)[..., start % 3 :]
    moved[...] = image
    for device in DEVICES:
        plan = check("im2col", geometry_of(case), moved, want, "words", device, result, mode=mode)
        assert dict(plan.defines)["PARTIAL_WORDS"] == "1"


@pytest.mark.some(8)
@pytest.mark.parametrize("seed", range(40))
def test_random_long_rows_are_the_definition(seed):
    rng = random.Random(seed)
    kernel, dilation, pad = (rng.randint(1, 3), rng.randint(1, 11)), (1, rng.randint(1, 3)), (1, rng.randint(0, 9))
    size = (rng.randint(2, 5), rng.randint(128, 150) + (kernel[1] - 1) * dilation[1])
    case = Case("random", size, kernel, (rng.randint(1, 2), 1), dilation, pad, (1, rng.randint(0, 5)), 2, 1)
    dtype = ("uint8", "float16", "float32", "complex64")[seed % 4]
    image = random_bits(case.image_shape, dtype, seed)
    for device in DEVICES:
        check("im2col", geometry_of(case), image, want_of(case, image), "words", device)


TAPS_CASES = (
    Case("a-line-of-odd-rows", (5, 35), (3, 8), 1, 1, (1, 3), (0, 2)),
    Case("a-line-in-words", (4, 48), (2, 8), 1, 1, (0, 3), (1, 5), batch=1),
    Case("a-line-at-a-stride", (6, 64), (2, 8), (2, 3), (1, 1), (0, 1), (0, 2), channels=2),
    Case("words-by-themselves", (9, 96), (3, 16), (2, 8), 1, (1, 16), (0, 8), batch=1, channels=2),
    Case("narrower-words-for-their-pad", (4, 64), (2, 8), 8, 1, (0, 2), (0, 6)),
    Case("few-blocks-off-their-words", (3, 12), (2, 8), 1, 1, 0, 0),
    Case("dilated-taps-one-by-one", (4, 40), (2, 4), 1, (1, 2), 1, 1),
    Case("1d-line", (90,), (16,), 2, 1, 5, 6, batch=3, channels=1),
)


@pytest.mark.some(3)
@pytest.mark.parametrize("mode", ["observed", SANITIZED])
@pytest.mark.parametrize(
    ("case", "dtype"), [(case, dtype) for case in TAPS_CASES for dtype in ("uint8", *DTYPES[1:])], ids=str
)
def test_words_of_taps_are_the_definition(case, dtype, mode):
    image = random_bits(case.image_shape, dtype)
    want = want_of(case, image)
    for device in DEVICES:
        result = np.empty(want.swapaxes(1, 2).shape, dtype).swapaxes(1, 2)
        check("im2col", geometry_of(case), image, want, "taps", device, result, mode=mode)


def test_taps_are_stored_in_words_where_these_are_aligned():
    def defines(case, dtype="float32", spaced=1):
        geometry = geometry_of(case)
        *lead, rows, blocks = geometry.columns_shape
        columns = Operand((*lead, rows, blocks), (rows * blocks * spaced, spaced, rows * spaced))
        call = Call("im2col", geometry, dtype, variant="taps")
        found = dict(registry.choose(call, Operand.contiguous(geometry.image_shape), columns, H200).defines)
        return [int(found[name]) for name in ("BLOCKS", "WORD", "LOADED", "LINE_STRIDE", "PIXELS_BEFORE")]

    assert defines(TAPS_CASES[0]) == [16, 4, 1, 1, 0]
    assert defines(TAPS_CASES[1]) == [16, 4, 4, 1, 1]
    assert defines(TAPS_CASES[1], "uint8") == [16, 8, 8, 1, 5]
    assert defines(TAPS_CASES[2]) == [8, 4, 4, 3, 3]
    assert defines(TAPS_CASES[3]) == [8, 4, 1, 0, 0]
    assert defines(TAPS_CASES[4]) == [16, 2, 1, 0, 0]
    assert defines(TAPS_CASES[6]) == defines(TAPS_CASES[1], spaced=2) == [16, 1, 1, 0, 0]


PACKED_CASES = (
    Case("rows-of-fewer-blocks-than-a-thread-has", (5, 7), (3, 3)),
    Case("runs-of-many-rows-and-planes", (4, 6), (3, 3), 1, 1, 1, 1, channels=37),
    Case("threads-but-for-the-last-of-a-row", (6, 53), (3, 3), 1, 1, (1, 0), (0, 2)),
    Case("words-behind-a-pad", (5, 128), (3, 5), 1, 1, (1, 3), (2, 1), channels=2),
    Case("blocks-at-a-stride", (9, 64), (3, 5), (2, 3), 1, (0, 1), (1, 0), channels=2),
    Case("dilated-lines", (7, 40), (3, 3), 1, (2, 3), (1, 2), (2, 5), batch=1),
    Case("blocks-that-do-not-overlap", (9, 60), (3, 3), 3, batch=1, channels=3),
    Case("blocks-of-words", (8, 60), (4, 4), 1, 1, (2, 1), 0, batch=1),
    Case("1d-blocks", (431,), (9,), 2, 1, 5, 6, batch=3, channels=1),
    Case("1d-one-block-of-many-taps", (9, 2**7), (1, 96), 1, 1, 0, 0, batch=1, channels=2),
    Case("3d-blocks", (4, 5, 21), (2, 3, 3), (1, 2, 1), 1, (1, 0, 2), (0, 1, 1), channels=2),
    Case("column-kernel", (9, 12), (5, 1), batch=1),
)


def block_by_block(geometry, dtype, start=0):
    """Split columns whose blocks follow each other in memory, from an element on."""
    rank = len(geometry.axes)
    shape = (*geometry.split_columns_shape[:2], *geometry.num_blocks, *geometry.block_shape)
    blocks = np.empty(start + prod(shape), dtype)[start:].reshape(shape)
    return blocks.transpose(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))


def check_packed(case, dtype, start=0, seed=0, device=H200, **run):
    geometry, image = geometry_of(case), random_bits(case.image_shape, dtype, seed)
    want = want_of(case, image).reshape(geometry.split_columns_shape)
    return check("im2col", geometry, image, want, "packed", device, block_by_block(geometry, dtype, start), **run)


@pytest.mark.some(17)
@pytest.mark.parametrize("mode", ["observed", "shuffled", SANITIZED])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("case", PACKED_CASES, ids=str)
def test_packed_blocks_are_the_definition(case, dtype, mode):
    """A run begins and ends at any element of a word."""
    for start in (0, 1, 2, 3, 7):
        check_packed(case, dtype, start, mode=mode)


@pytest.mark.some(40)
@pytest.mark.parametrize("seed", range(40))
def test_random_packed_blocks_are_the_definition(seed):
    case = random_case(seed)
    for start, dtype in enumerate(("uint8", "float16", "float32"), seed):
        with suppress(Unsupported):
            check_packed(case, dtype, start % 8, seed, DEVICES[seed % 2])


def test_packed_blocks_of_wide_offsets_are_the_same(monkeypatch):
    monkeypatch.setattr(parameters, "INT32_MAX", 10)
    registry.choose.cache_clear()
    for case in PACKED_CASES[1:6]:
        assert dict(check_packed(case, "uint8", 3).defines)["OFFSET"] == "long long"
    registry.choose.cache_clear()


def plan_of_packed(shape, kernel, dtype="uint8", variant="packed", window="none", steps=None, **arguments):
    arguments = {"strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0} | arguments
    geometry = im2col_geometry(shape, kernel, **arguments)
    call = Call("im2col", geometry, dtype, fusion=Fusion(window=window), variant=variant)
    image = Operand(shape, steps) if steps else Operand.contiguous(shape)
    columns = block_by_block(geometry, "uint8")
    return registry.choose(call, image, Operand(columns.shape, columns.strides), H200)


def test_packed_threads_load_words_of_pixels():
    def defines(*call, **arguments):
        found = dict(plan_of_packed(*call, **arguments).defines)
        return [int(found[name]) for name in ("BLOCKS", "LOADED", "PIXELS_BEFORE", "THREADS")]

    assert defines((2, 3, 8, 64), (3, 3)) == [12, 4, 0, 256]
    assert defines((2, 3, 8, 62), (3, 3), pads_begin=1) == [12, 2, 1, 256]
    assert defines((2, 3, 8, 61), (3, 3)) == [12, 1, 0, 256]
    assert defines((2, 3, 8, 64), (3, 3), strides=3) == [12, 4, 0, 256]
    assert defines((2, 3, 8, 640), (3, 3), strides=40) == [4, 16, 0, 256]  # twelve would not fit into registers
    assert defines((2, 3, 8, 64), (7, 7)) == [4, 4, 0, 128]
    assert defines((2, 3, 8, 64), (3, 3), "float16") == [6, 2, 0, 256]
    assert defines((2, 3, 8, 64), (3, 3), "float32") == [3, 1, 0, 256]
    assert defines((2, 3, 8, 64), (5, 5), "float32", strides=4) == [1, 4, 0, 256]


@pytest.mark.parametrize(
    ("expected", "kernel", "dtype", "stride"),
    [
        ("packed", (3, 3), "uint8", 1),
        ("packed", (7, 7), "uint8", 4),
        ("packed", (6, 6), "float16", 1),
        ("taps", (3, 3), "float32", 2),
        ("taps", (7, 7), "float32", 7),
        ("taps", (3, 3), "complex64", 1),
    ],
)
def test_blocks_whose_rows_are_no_words_are_packed(expected, kernel, dtype, stride):
    size = (64, 256) if len(kernel) == 2 else (16, 16, 64)
    assert plan_of_packed((1, 4, *size), kernel, dtype, "auto", strides=stride).variant == expected


def test_packing_says_what_it_refuses():
    for match, shape, kernel, arguments in [
        ("packed takes no window", (2, 3, 8, 8), (3, 3), {"dtype": "float32", "window": "full"}),
        ("elements must not be larger .* but 9 of 8 bytes are a block", (2, 3, 8, 8), (3, 3), {"dtype": "int64"}),
        ("nor blocks smaller, but 3 of 1 bytes are a block", (2, 3, 8, 8), (3, 1), {}),
        ("128 words of pixels a thread .* not 361 and 46336", (2, 3, 64, 64), (19, 19), {"dtype": "float32"}),
    ]:
        with pytest.raises(Unsupported, match=match):
            plan_of_packed(shape, kernel, **arguments)
    with pytest.raises(Unsupported, match="packed needs an image with a contiguous last axis, not steps of 8"):
        plan_of_packed((1, 1, 8, 8), (3, 3), steps=(64, 64, 1, 8))
    with pytest.raises(Unsupported, match=r"that are contiguous, not steps of \(0, 324, 6, 1, 108, 36\)"):
        plan_of_shape((1, 2, 8, 8), (3, 3), "packed")


def test_a_thread_takes_one_block_or_some_or_many():
    def symbols(columns):
        image = Operand.contiguous((1, 3, 20, columns + 7))
        geometry = im2col_geometry(image.shape, (8, 8), 1, 1, 0, 0)
        call = Call("im2col", geometry, "uint8", variant="taps")
        columns = block_by_block(geometry, "uint8")
        asked = registry.problem_of(call, image, Operand(columns.shape, columns.strides))
        return [plan.symbol.removeprefix("im2col_taps") for plan in registry.candidates(asked)]

    assert symbols(231) == ["_of_many", "_of_some", ""]
    assert symbols(9) == ["_of_some", ""]
    assert symbols(3) == [""]


STRIDED = {
    "transposed": lambda image: image.transpose(0, 1, 3, 2),
    "channels-last": lambda image: image.transpose(0, 3, 1, 2),
    "channels-and-batch-swapped": lambda image: image.transpose(1, 0, 2, 3),
    "every-other-row": lambda image: image[:, :, ::2],
    "backwards": lambda image: image[::-1, :, ::-1, ::-1],
    "every-third-column": lambda image: image[..., 1::3],
    "part-of-the-channels": lambda image: image[:, 1:3],
    "one-channel-for-all": lambda image: np.broadcast_to(image[:, :1], image.shape),
    "off-by-one-element": lambda image: image[..., 1:],
}


@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize(("kernel", "stride"), [((3, 2), 1), ((2, 4), (2, 9)), ((1, 1), 1)])
def test_images_of_any_strides_are_read_in_place(view, kernel, stride):
    image = view(random_bits((4, 6, 16, 30), "float32"))
    geometry = im2col_geometry(image.shape, kernel, stride, 1, (0, 1), (1, 0))
    want = definition.im2col(np.ascontiguousarray(image), kernel, geometry_strides(stride), (1, 1), (0, 1), (1, 0))
    for variant in variants_for(kernel):
        with may_refuse(variant):
            check("im2col", geometry, image, want, variant, ONE_THREAD)


def geometry_strides(stride):
    return (stride, stride) if isinstance(stride, int) else stride


@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), 1), ((2, 4), (2, 9)), ((1, 1), 1)])
@pytest.mark.parametrize("spaced", [(1, 1, 2), (1, 3, 1), (2, 1, 1)])
def test_columns_of_any_strides_are_written_in_place(kernel, stride, spaced):
    image = random_bits((2, 5, 9, 24), "float32")
    geometry = im2col_geometry(image.shape, kernel, stride, 1, 0, 0)
    want = definition.im2col(image, kernel, geometry_strides(stride), (1, 1), (0, 0), (0, 0))
    room = np.empty([extent * step for extent, step in zip(want.shape, spaced, strict=True)], want.dtype)
    result = room[tuple(slice(None, None, step) for step in spaced)]
    for variant in variants_for(kernel):
        with may_refuse(variant):
            check("im2col", geometry, image, want, variant, ONE_THREAD, result)


@pytest.mark.some(2)
@pytest.mark.parametrize("case", [*STAGED_CASES, *UNSPLIT_CASES, WORDS_CASES[0], LONG_ROWS_CASES[0]], ids=str)
def test_wide_offsets_give_the_same(case, monkeypatch):
    monkeypatch.setattr(parameters, "INT32_MAX", 10)
    registry.choose.cache_clear()
    image = random_bits(case.image_shape, "float32")
    for variant in variants_for(case.kernel_size):
        with may_refuse(variant):
            plan = check("im2col", geometry_of(case), image, want_of(case, image), variant, ONE_THREAD)
            assert dict(plan.defines)["OFFSET"] == "long long"
    registry.choose.cache_clear()


def test_a_short_row_behind_a_wide_word_keeps_its_bytes():
    """A copy moves words of 16 bytes, narrower ones where a row or the first byte is not a multiple of them."""
    sizes = {}
    for width, start in ((8, 0), (6, 0), (5, 0), (8, 1), (8, 2)):
        image = random_bits((2, 3, 4, width + start), "float16")[..., start:]
        if start:
            image = random_bits((start + 2 * 3 * 4 * width,), "float16")[start:].reshape(2, 3, 4, width)
        geometry = im2col_geometry(image.shape, (1, 1), 1, 1, 0, 0)
        plan = check("im2col", geometry, image, image.reshape(2, 3, -1), "direct")
        sizes[width, start] = dict(plan.defines)["SCALAR"]
    assert sizes == {(8, 0): "Word<16>", (6, 0): "Word<16>", (5, 0): "Word<8>", (8, 1): "Word<2>", (8, 2): "Word<4>"}


def plan_of_shape(shape, kernel, variant="auto", steps=None, **arguments):
    arguments = {"strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0} | arguments
    geometry = im2col_geometry(shape, kernel, **arguments)
    image = Operand(shape, steps) if steps else Operand.contiguous(shape)
    return registry.choose(
        Call("im2col", geometry, "float32", variant=variant), image, Operand.contiguous(geometry.columns_shape), H200
    )


def test_offsets_are_wide_from_the_first_element_that_needs_it():
    def bits(shape, **arguments):
        return dict(plan_of_shape(shape, (2, 2), "direct", **arguments).defines)["OFFSET"]

    assert bits((8, 64, 4096, 4096)) == "int"  # 2**33 elements in planes of 2**24
    assert bits((1, 1, 2**15, 2**16 - 9)) == "long long"  # four taps of 2**31 elements
    assert bits((1, 1, 2**14, 2**14)) == "int"
    assert bits((1, 1, 4, 8), steps=(0, 0, 2**29, 1)) == "long long"  # a span, not a size
    assert bits((1, 1, 4, 8), steps=(0, 0, -(2**29), 1)) == "long long"
    assert bits((1, 1, 4, 8), pads_begin=2**30, strides=2**29) == "long long"
    assert bits((2**22, 1, 32, 32)) == "int"
    assert bits((2**24, 1, 32, 32)) == "long long"  # threads
    assert bits((2**28, 16, 2, 4)) == "long long"  # planes


def test_extents_never_change_what_is_compiled():
    arguments = {"strides": (2, 1), "dilations": (1, 2), "pads_begin": (0, 1), "pads_end": 1}
    shapes = [(1, 1, 5, 9), (3, 5, 8, 7), (64, 256, 56, 57), (1, 3, 1024, 1999)]
    of_any_rows = [variant for variant in variants("im2col") if variant not in ("packed", "words")]
    for variant in of_any_rows:
        assert len({plan_of_shape(shape, (3, 3), variant, **arguments).defines for shape in shapes}) == 1
    for variant in of_any_rows:
        defines = {
            plan_of_shape((2, 2, 40, 40), (3, 3), variant, pads_begin=pad, strides=4 + pad).defines for pad in (0, 1, 7)
        }
        assert len(defines) == 1


def test_the_width_of_rows_chooses_a_word_and_no_other_extent_does():
    def word(*size, pad=1):
        defines = dict(plan_of_shape((2, 3, *size), (3, 3), "words", pads_begin=pad, pads_end=pad).defines)
        return defines["WORD"], defines["PIXELS_BEFORE"]

    assert {word(rows, width) for rows in (5, 8, 56) for width in (8, 56, 64, 1000)} == {("4", "3")}
    assert {word(rows, 18) for rows in (5, 8)} == {("2", "1")}
    assert word(8, 64, pad=0) == ("2", "0")


def test_narrow_elements_are_put_together_to_words_and_others_move_one_by_one():
    for shape, kernel, stride, variant in [
        ((8, 3, 224, 224), (16, 16), 16, "direct"),
        ((8, 64, 56, 56), (3, 3), 1, "words"),
        ((8, 64, 57, 57), (3, 3), 1, "direct"),
        ((8, 64, 112, 112), (3, 3), 2, "direct"),
    ]:
        geometry = im2col_geometry(shape, kernel, stride, 1, 0, 0)
        operands = Operand.contiguous(shape), Operand.contiguous(geometry.columns_shape)
        for dtype, want in (("float32", "direct"), ("float16", variant)):
            assert registry.choose(Call("im2col", geometry, dtype), *operands).variant == want, (shape, dtype)


def test_taps_are_loaded_in_words_where_no_pad_or_end_cuts_one():
    def at_once(shape, kernel, stride, **arguments):
        plan = plan_of_shape(shape, kernel, "direct", strides=stride, **arguments)
        return int(dict(plan.defines)["TAPS_AT_ONCE"])

    assert at_once((2, 3, 9, 64), (3, 16), (2, 16)) == 4
    assert at_once((2, 3, 9, 64), (3, 16), (2, 16), pads_begin=(0, 4), pads_end=(0, 12)) == 4
    assert at_once((2, 3, 9, 64), (3, 16), (2, 16), pads_begin=(0, 2), pads_end=(0, 2)) == 2
    assert at_once((2, 3, 9, 62), (3, 6), (2, 6)) == 2
    assert at_once((2, 3, 9, 64), (3, 8), (2, 8), dilations=(1, 2)) == 1
    assert at_once((2, 3, 9, 63), (3, 8), (2, 8)) == 1
    assert at_once((2, 3, 9, 64), (3, 8), (2, 8), steps=(9 * 192, 9 * 64, 1, 9)) == 1


def test_words_say_what_they_refuse():
    for match, shape, kernel, arguments in [
        ("words needs a stride of 1 along the last axis, not 2", (2, 3, 8, 8), (3, 2), {"strides": 2}),
        ("words takes rows of 32 taps at most, .* not 33 taps", (2, 3, 8, 128), (1, 33), {}),
        ("words takes .* not 2 taps that reach 40 pixels where a row has 24", (2, 3, 8, 64), (1, 2), {"dilations": 40}),
        ("words stores words of 4 to 16 bytes, .* not of rows of 3 elements of 4", (2, 3, 8, 4), (1, 2), {}),
        ("words needs a contiguous .* not steps of 8 and 1", (2, 3, 8, 8), (3, 3), {"steps": (192, 64, 1, 8)}),
    ]:
        with pytest.raises(Unsupported, match=match):
            plan_of_shape(shape, kernel, "words", **arguments)
    geometry = im2col_geometry((1, 1, 8, 8), (3, 3), 1, 1, 1, 1)
    call = Call("im2col", geometry, "float32", fusion=Fusion(window="full"), variant="words")
    operands = Operand.contiguous(geometry.image_shape), Operand.contiguous(geometry.columns_shape)
    with pytest.raises(Unsupported, match="words takes no window"):
        registry.choose(call, *operands)


def test_every_byte_in_and_out_is_counted_once():
    assert plan_of_shape((2, 3, 8, 9), (2, 2)).bytes_moved == 4 * (2 * 3 * 8 * 9 + 2 * 12 * 56)
