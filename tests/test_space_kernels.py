"""The batch_to_space and space_to_batch kernels, run on the CPU: every variant puts every element where the
specification says, bit for bit.
"""

from __future__ import annotations

import definition
import numpy as np
import pytest
from cases import SPACE_CASES, SpaceCase, crossed, random_space_case
from moves import DEVICES, DTYPES, ONE_THREAD, check, random_bits

from gpufold.calls import Call, Unsupported
from gpufold.geometry import batch_to_space_geometry, space_to_batch_geometry
from gpufold.gpu import parameters, registry
from gpufold.gpu.plan import Operand
from gpufold.operations import variants

pytestmark = pytest.mark.hostcuda

OPERATIONS = ("batch_to_space", "space_to_batch")

NARROW_AND_WIDE = ("uint8", "float32")

LAYOUT_CASES = [
    SpaceCase("nchw-2x2", (12, 5, 7, 6), (1, 1, 2, 2), (0, 0, 0, 0), (0, 0, 0, 0)),
    SpaceCase("nchw-2x2-more-planes-than-a-thread-takes", (20, 5, 4, 8), (1, 1, 2, 2), (0, 0, 0, 0), (0, 0, 0, 0)),
    SpaceCase("one-plane-of-many-rows", (4, 19, 300), (1, 2, 2), (0, 0, 0), (0, 0, 0)),
    SpaceCase("three-planes-of-many-rows", (6, 3, 11, 150), (1, 1, 2, 3), (0, 0, 0, 1), (0, 0, 0, 0)),
    SpaceCase("nchw-odd-crop", (8, 3, 5, 9), (1, 1, 2, 2), (0, 0, 1, 1), (0, 0, 0, 1)),
    SpaceCase("nchw-odd-crop-of-even-rows", (8, 3, 5, 12), (1, 1, 2, 2), (0, 0, 1, 1), (0, 0, 0, 3)),
    SpaceCase("nchw-crop-beyond-a-block", (8, 3, 5, 7), (1, 1, 2, 2), (0, 0, 3, 5), (0, 0, 4, 3)),
    SpaceCase("nchw-crop-of-whole-blocks", (4, 3, 4, 24), (1, 1, 2, 2), (0, 0, 0, 16), (0, 0, 0, 0)),
    SpaceCase("nchw-crop-beyond-a-block-of-even-rows", (8, 3, 5, 12), (1, 1, 2, 2), (0, 0, 3, 5), (0, 0, 4, 3)),
    SpaceCase("nchw-4x3", (12, 2, 3, 11), (1, 1, 4, 3), (0, 0, 1, 1), (0, 0, 2, 1)),
    SpaceCase("nchw-4x4", (32, 3, 2, 9), (1, 1, 4, 4), (0, 0, 0, 0), (0, 0, 0, 0)),
    SpaceCase("nchw-4x4-cropped-to-whole-blocks", (32, 2, 3, 8), (1, 1, 4, 4), (0, 0, 3, 1), (0, 0, 2, 3)),
    SpaceCase("nchw-4x4-cropped-to-one-block", (32, 2, 3, 2), (1, 1, 4, 4), (0, 0, 3, 3), (0, 0, 2, 1)),
    SpaceCase("nchw-6x6", (36, 2, 3, 16), (1, 1, 6, 6), (0, 0, 0, 0), (0, 0, 0, 0)),
    SpaceCase("nchw-3x3-cropped-at-the-end", (9, 2, 3, 8), (1, 1, 3, 3), (0, 0, 0, 0), (0, 0, 1, 2)),
    SpaceCase("nchw-8x8", (64, 3, 2, 9), (1, 1, 8, 8), (0, 0, 3, 1), (0, 0, 0, 0)),
    SpaceCase("nhwc-2x2", (8, 3, 5, 16), (1, 2, 2, 1), (0, 1, 0, 0), (0, 0, 1, 0)),
    SpaceCase("nhwc-rgb", (8, 3, 5, 3), (1, 2, 2, 1), (0, 1, 0, 0), (0, 0, 1, 0)),
    SpaceCase("nhwc-cropped-channels", (4, 3, 5, 20), (1, 2, 2, 1), (0, 0, 0, 4), (0, 0, 0, 4)),
    SpaceCase("unit-with-crop-outside-a-split-axis", (6, 5, 4), (1, 1, 3), (0, 2, 0), (0, 1, 0)),
    SpaceCase("one-element", (1, 1), (1, 1), (0, 0), (0, 0)),
    SpaceCase("one-pixel-left", (6, 2, 3), (1, 2, 3), (0, 1, 4), (0, 2, 4)),
    SpaceCase("wide-block", (33, 2, 5), (1, 1, 33), (0, 0, 7), (0, 0, 3)),
    SpaceCase("eight-wide-block", (8, 3, 4, 6), (1, 1, 1, 8), (0, 0, 0, 0), (0, 0, 0, 0)),
    SpaceCase("very-wide-block", (100, 2, 3), (1, 1, 100), (0, 1, 101), (0, 0, 1)),
    SpaceCase("rows-longer-than-a-warp", (5, 1, 70), (1, 1, 5), (0, 0, 2), (0, 0, 1)),
    SpaceCase("rows-in-several-tiles", (6, 2, 903), (1, 1, 6), (0, 0, 8), (0, 0, 3)),
    SpaceCase("wide-block-of-several-words", (48, 3, 41), (1, 1, 48), (0, 0, 5), (0, 0, 50)),
    SpaceCase("long-rows-of-an-odd-length", (3, 3, 1367), (1, 1, 3), (0, 0, 0), (0, 0, 0)),
    SpaceCase("planes-of-an-odd-length", (3, 2, 7), (1, 1, 3), (0, 0, 1), (0, 0, 0)),
]


def problem(operation, case, dtype, seed=0):
    """Geometry, data and wanted result of a case; space_to_batch takes it backwards, the crops as pads."""
    arguments = (case.block_shape, case.crops_begin, case.crops_end)
    if operation == "batch_to_space":
        data = random_bits(case.batch_shape, dtype, seed)
        return batch_to_space_geometry(data.shape, *arguments), data, definition.batch_to_space(data, *arguments)
    data = random_bits(case.space_shape, dtype, seed)
    return space_to_batch_geometry(data.shape, *arguments), data, definition.space_to_batch(data, *arguments)


def check_case(operation, case, dtype, seed=0):
    """Run every variant that serves the case; give their names."""
    geometry, data, want = problem(operation, case, dtype, seed)
    if want.size == 0:
        return []
    served = []
    for variant in ("auto", *variants(operation)):
        try:
            for device in DEVICES:
                check(operation, geometry, data, want, variant, device)
        except Unsupported:
            continue
        served.append(variant)
    assert served[0] == "auto"
    return served


def test_blocks_of_more_rows_than_a_grid_has_are_served():
    case = SpaceCase("wider-than-a-grid", (2**21, 2, 1), (1, 1, 2**21), (0, 0, 5), (0, 0, 2**21 - 12))
    geometry, data, want = problem("batch_to_space", case, "uint8")
    assert check("batch_to_space", geometry, data, want, "auto").variant == "index_map"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", SPACE_CASES, ids=str)
def test_every_variant_is_the_definition(operation, case):
    check_case(operation, case, DTYPES[SPACE_CASES.index(case) % len(DTYPES)])


@pytest.mark.some(5)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("case", "dtype"), crossed(LAYOUT_CASES, NARROW_AND_WIDE))
def test_every_layout_is_the_definition(operation, case, dtype):
    served = check_case(operation, case, dtype)
    assert {"batch_to_space": "index_map", "space_to_batch": "direct"}[operation] in served
    row_bytes, block_bytes = (shape[-1] * np.dtype(dtype).itemsize for shape in (case.space_shape, case.block_shape))
    in_words = row_bytes >= 4 and (block_bytes <= 32 or block_bytes % 4 == 0)
    assert ("packed" in served) == (operation == "batch_to_space" and case.block_shape[-1] > 1 and in_words)


REPRESENTATIVE_CASES = [
    case for case in LAYOUT_CASES if case.name in ("nchw-2x2", "nhwc-rgb", "nchw-8x8", "wide-block")
]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in NARROW_AND_WIDE])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", REPRESENTATIVE_CASES, ids=str)
def test_every_element_size_is_the_definition(operation, case, dtype):
    check_case(operation, case, dtype)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(30))
def test_random_geometries_are_the_definition(operation, seed):
    check_case(operation, random_space_case(seed), DTYPES[seed % len(DTYPES)], seed)


@pytest.mark.many
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_many_random_geometries_are_the_definition(operation, seed):
    check_case(operation, random_space_case(seed), DTYPES[seed % len(DTYPES)], seed)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", REPRESENTATIVE_CASES, ids=str)
def test_wide_offsets_give_the_same(operation, case, monkeypatch):
    monkeypatch.setattr(parameters, "INT32_MAX", 5)
    registry.choose.cache_clear()
    geometry, data, want = problem(operation, case, "float32")
    for variant in variants(operation):
        try:
            plan = check(operation, geometry, data, want, variant, ONE_THREAD)
        except Unsupported:
            continue
        assert dict(plan.defines)["OFFSET"] == "long long"
    registry.choose.cache_clear()


@pytest.mark.some(5)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", LAYOUT_CASES, ids=str)
def test_lanes_in_any_order_give_the_same_and_never_race(operation, case):
    geometry, data, want = problem(operation, case, "float16")
    for variant in variants(operation):
        try:
            check(operation, geometry, data, want, variant, ONE_THREAD, mode="shuffled", seed=3)
        except Unsupported:
            continue


STRIDED = {
    "transposed": lambda array: array.transpose(0, 1, 3, 2),
    "channels-last": lambda array: array.transpose(0, 3, 1, 2),
    "batch-last": lambda array: array.transpose(3, 0, 1, 2),
    "every-other-row": lambda array: array[:, :, ::2],
    "backwards": lambda array: array[::-1, :, ::-1, ::-1],
    "every-third-column": lambda array: array[..., 1::3],
    "every-third-column-from-the-first": lambda array: array[..., ::3],
    "part-of-the-channels": lambda array: array[:, 1:5],
    "one-channel-for-all": lambda array: np.broadcast_to(array[:, :1], array.shape),
    "off-by-four-elements": lambda array: array[..., 4:],
}


@pytest.mark.some(3)
@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize("block", [(1, 2, 2), (2, 2, 1), (1, 1, 4), (1, 1, 1)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_data_of_any_strides_is_read_in_place(operation, view, block):
    data = view(random_bits((12, 12, 12, 12), "float16"))
    arguments = ((1, *block), (0, 0, 0, 0), (0, 0, 0, 0))
    geometry = (batch_to_space_geometry if operation == "batch_to_space" else space_to_batch_geometry)(
        data.shape, *arguments
    )
    want = getattr(definition, operation)(np.ascontiguousarray(data), *arguments)
    for variant in variants(operation):
        try:
            check(operation, geometry, data, want, variant, ONE_THREAD)
        except Unsupported:
            assert variant in ("deinterleave", "packed")


@pytest.mark.parametrize("block", [(1, 2, 2), (2, 2, 1), (1, 1, 4), (1, 1, 1)])
@pytest.mark.parametrize("spaced", [(1, 1, 1, 2), (1, 1, 3, 1), (1, 2, 1, 1), (2, 1, 1, 1)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_of_any_strides_are_written_in_place(operation, block, spaced):
    arguments = ((1, *block), (0, 0, 0, 0), (0, 0, 0, 0))
    data = random_bits((8, 4, 4, 8), "float16")
    geometry = (batch_to_space_geometry if operation == "batch_to_space" else space_to_batch_geometry)(
        data.shape, *arguments
    )
    want = getattr(definition, operation)(data, *arguments)
    room = np.empty([extent * step for extent, step in zip(want.shape, spaced, strict=True)], want.dtype)
    result = room[tuple(slice(None, None, step) for step in spaced)]
    for variant in variants(operation):
        try:
            check(operation, geometry, data, want, variant, ONE_THREAD, result)
        except Unsupported:
            assert variant in ("deinterleave", "packed")


@pytest.mark.parametrize("block", [2, 3])
def test_packed_words_reach_no_element_beside_a_view(block):
    data = random_bits((block, 4, 6, 13), "uint8")[..., :9]  # to the last of its elements, whole words
    arguments = ((1, 1, 1, block), (0, 0, 0, 0), (0, 0, 0, 0))
    want = definition.batch_to_space(np.ascontiguousarray(data), *arguments)
    geometry = batch_to_space_geometry(data.shape, *arguments)
    check("batch_to_space", geometry, data, want, "packed", ONE_THREAD, mode="observed")


def defines_of(operation, variant, case, dtype="float32", alignment=256):
    arguments = (case.block_shape, case.crops_begin, case.crops_end)
    if operation == "batch_to_space":
        geometry = batch_to_space_geometry(case.batch_shape, *arguments)
        shapes = geometry.batch_shape, geometry.space_shape
    else:
        geometry = space_to_batch_geometry(case.space_shape, *arguments)
        shapes = geometry.space_shape, geometry.batch_shape
    data, result = (Operand.contiguous(shape, alignment) for shape in shapes)
    return dict(registry.choose(Call(operation, geometry, dtype, variant=variant), data, result).defines)


def nhwc(channels, crop=0):
    return SpaceCase("nhwc", (8, 6, 7, channels), (1, 2, 2, 1), (0, 0, 0, crop), (0, 0, 0, 0))


@pytest.mark.parametrize(("operation", "variant"), [("batch_to_space", "index_map"), ("space_to_batch", "direct")])
def test_an_unsplit_last_axis_moves_in_the_widest_words_that_fit(operation, variant):
    def word(*arguments, **facts):
        return defines_of(operation, variant, nhwc(*arguments), **facts)["SCALAR"]

    assert word(64) == "Word<16>"
    assert word(6) == "Word<8>"
    assert word(3) == "Word<4>"
    assert word(64, 2) == "Word<8>"
    assert word(64, 1) == "Word<4>"
    assert word(64, dtype="uint8") == "Word<16>"
    assert word(7, dtype="uint8") == "Word<1>"
    assert word(64, dtype="complex128") == "Word<16>"
    assert word(64, alignment=8) == "Word<8>"
    assert word(64, alignment=4) == "Word<4>"


def words(operation, variant, dtype, width, crop=0, crop_end=0, block=2, **facts):
    case = SpaceCase("nchw", (4 * block, 4, 6, width), (1, 1, 2, block), (0, 0, 0, crop), (0, 0, 0, crop_end))
    return defines_of(operation, variant, case, dtype, **facts)


def test_words_taken_apart_are_as_wide_as_the_rows_and_their_phases_allow():
    def found(*arguments, **facts):
        defines = words("space_to_batch", "deinterleave", *arguments, **facts)
        return int(defines["BLOCKS_PER_WORD"]), int(defines["PIXELS_BEFORE"])

    assert found("uint8", 24) == (8, 0)
    assert found("uint8", 12) == (4, 0)
    assert found("uint8", 9) == (1, 0)
    assert found("float16", 24) == (4, 0)
    assert found("float32", 24) == (2, 0)
    assert found("float64", 24) == (1, 0)
    assert found("float32", 24, block=4) == (1, 0)
    assert found("float32", 28, 1, 3) == (1, 1)  # every word ends a block
    assert found("uint8", 28, 1, 3, block=4) == (1, 3)
    assert found("float32", 28, 2, 2) == (1, 0)  # whole blocks, but one of two
    assert found("float32", 28, 4, 4) == (2, 0)
    assert found("float32", 25, 1, 1) == (1, 1)  # rows of an odd number of blocks
    assert found("float32", 24, alignment=8) == (1, 0)


def test_blocks_taken_apart_are_loaded_as_several_words_where_they_are_none():
    def found(*arguments, **facts):
        defines = words("space_to_batch", "deinterleave", *arguments, **facts)
        return int(defines["BLOCKS_PER_WORD"]), int(defines["LOADED"])

    assert found("float32", 24, block=3) == (4, 4)
    assert found("float16", 24, block=3) == (8, 8)
    assert found("uint8", 24, block=3) == (8, 8)
    assert found("uint8", 48, block=3) == (16, 16)
    assert found("float32", 24, block=6) == (4, 4)
    assert found("float32", 26, block=5) == (2, 2)
    assert found("float32", 24, block=3, alignment=8) == (2, 2)
    assert found("float32", 28, 12, 12, block=3) == (4, 4)
    assert found("uint8", 24, block=8) == (8, 16)  # a word of 16 bytes would have two blocks
    assert found("uint8", 24, block=4) == (4, 16)  # and has four of these


def test_packed_pieces_are_as_rows_and_registers_allow():
    def found(dtype, width, crop=0, block=3, channels=4, **facts):
        case = SpaceCase("nchw", (block, channels, 6, width), (1, 1, 1, block), (0, 0, 0, crop), (0, 0, 0, 0))
        defines = defines_of("batch_to_space", "packed", case, dtype, **facts)
        names = ("PHASES", "BLOCKS", "LOADED", "LOADED_ANYWHERE", "BEGINS_BLOCKS", "WHOLE")
        return tuple(int(defines[name]) for name in names)

    assert found("uint8", 32) == (3, 32, 16, 0, 1, 1)
    assert found("float16", 16) == (3, 16, 8, 0, 1, 1)
    assert found("float32", 16) == (3, 8, 4, 0, 1, 1)
    assert found("uint8", 32, alignment=2) == (3, 20, 2, 0, 1, 0)
    assert found("float32", 32, crop=1) == (3, 10, 1, 0, 0, 0)
    assert found("uint8", 64, crop=1) == (3, 36, 4, 1, 0, 0)  # the words of the array are whole, not those of phases
    assert found("uint8", 33, channels=1) == (3, 12, 1, 0, 1, 0)  # the array is 594 bytes
    assert found("uint8", 33, channels=2) == (3, 36, 4, 1, 1, 0)
    assert found("float32", 16, block=64) == (32, 1, 1, 0, 0, 1)  # a block is two pieces


@pytest.mark.parametrize(
    ("block", "width", "dtype", "reason"),
    [
        (1, 8, "float32", "needs a last axis that is split"),
        (3, 8, "float64", "words of 4 bytes together, not elements of 8"),
        (3, 1, "uint8", "not blocks of 3 elements of 1 bytes in rows of 3"),
        (2039, 8, "float32", "not blocks of 2039 elements of 4 bytes"),
    ],
    ids=["unsplit", "wide", "rows-less-than-a-word", "wide-blocks"],
)
def test_packing_says_why_it_refuses(block, width, dtype, reason):
    case = SpaceCase("", (2 * block, 3, width), (1, 2, block), (0, 0, 0), (0, 0, 0))
    with pytest.raises(Unsupported, match=f"batch_to_space: packed .*{reason}"):
        defines_of("batch_to_space", "packed", case, dtype)


def test_packing_refuses_space_that_is_not_contiguous():
    geometry = batch_to_space_geometry((4, 3, 4), (1, 1, 2), (0, 0, 0), (0, 0, 0))
    space = Operand(geometry.space_shape, (32, 9, 1))
    with pytest.raises(Unsupported, match="packed needs contiguous space"):
        registry.choose(
            Call("batch_to_space", geometry, "float32", variant="packed"), Operand.contiguous((4, 3, 4)), space
        )


@pytest.mark.parametrize(
    ("case", "dtype", "reason"),
    [
        (nhwc(8), "float32", "needs a last axis that is split"),
        (SpaceCase("", (3, 5), (1, 3), (0, 0), (0, 0)), "float32", "not 3 elements of 4 bytes"),
        (SpaceCase("", (2, 4), (1, 2), (0, 0), (0, 0)), "complex128", "not 2 elements of 16 bytes"),
        (SpaceCase("", (8, 9), (1, 8), (0, 0), (0, 0)), "float32", "not 8 elements of 4 bytes"),
        (SpaceCase("", (2, 4), (1, 2), (0, 1), (0, 0)), "float32", "needs rows of whole blocks, aligned to 8 bytes"),
    ],
    ids=["unsplit", "three", "too-wide", "too-many", "odd-row"],
)
def test_taking_apart_says_why_it_refuses(case, dtype, reason):
    with pytest.raises(Unsupported, match=f"space_to_batch: deinterleave .*{reason}"):
        defines_of("space_to_batch", "deinterleave", case, dtype)


def test_words_refuse_rows_of_space_that_are_not_contiguous():
    geometry = space_to_batch_geometry((4, 4), (1, 2), (0, 0), (0, 0))
    space, batch = Operand(geometry.space_shape, (16, 2)), Operand.contiguous(geometry.batch_shape)
    with pytest.raises(Unsupported, match="contiguous last axis of space, not a step of 2"):
        registry.choose(Call("space_to_batch", geometry, "float32", variant="deinterleave"), space, batch)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_extents_never_change_what_is_compiled(operation):
    def case(batch, channels, height, width):
        return SpaceCase("", (4 * batch, channels, height, width), (1, 1, 2, 2), (0, 0, 1, 2), (0, 0, 0, 2))

    extents = [(1, 1, 3, 8), (3, 5, 7, 16), (64, 256, 56, 56), (1, 3, 1000, 2000)]
    for variant in variants(operation):
        assert len({tuple(defines_of(operation, variant, case(*extent)).items()) for extent in extents}) == 1


def test_offsets_are_wide_from_the_first_element_that_needs_it():
    def bits(operation, variant, *shape):
        case = SpaceCase("", shape, (1, 1, 2, 2), (0, 0, 0, 0), (0, 0, 0, 0))
        return defines_of(operation, variant, case)["OFFSET"]

    for operation in OPERATIONS:
        for variant in variants(operation):
            assert bits(operation, variant, 4, 64, 1024, 1024) == "int"
            assert bits(operation, variant, 4, 512, 1024, 1024) == "long long"  # phases 2**31 elements apart
            assert bits(operation, variant, 4, 1, 2**15, 2**16) == "long long"


def test_the_choice_follows_the_last_axis():
    def choice(operation, shape, block, dtype="float32", crop=0):
        none, crops = (0,) * len(shape), (*(0,) * len(block), crop)
        case = SpaceCase("", shape, (1, *block), none, crops)
        geometry = (
            batch_to_space_geometry(case.batch_shape, case.block_shape, none, crops)
            if operation == "batch_to_space"
            else space_to_batch_geometry(case.space_shape, case.block_shape, none, crops)
        )
        shapes = (geometry.batch_shape, geometry.space_shape)
        data, result = map(Operand.contiguous, shapes if operation == "batch_to_space" else reversed(shapes))
        return registry.choose(Call(operation, geometry, dtype), data, result).variant

    assert choice("batch_to_space", (256, 64, 56, 56), (1, 2, 2)) == "index_map"
    assert choice("batch_to_space", (256, 64, 56, 56), (1, 2, 2), crop=2) == "index_map"
    assert choice("batch_to_space", (256, 64, 56, 56), (1, 2, 2), "float16", 2) == "packed"
    assert choice("batch_to_space", (4, 64, 56, 54), (1, 2, 2), "uint8") == "packed"
    assert choice("batch_to_space", (4, 64, 56, 55), (1, 2, 2), "uint8") == "packed"
    assert choice("batch_to_space", (4, 64, 56, 7), (1, 2, 2), "uint8") == "packed"
    assert choice("batch_to_space", (4, 56, 56, 64), (2, 2, 1)) == "index_map"
    assert choice("batch_to_space", (9, 64, 56, 56), (1, 3, 3)) == "index_map"
    assert choice("batch_to_space", (9, 64, 56, 56), (1, 3, 3), "complex64") == "index_map"
    assert choice("batch_to_space", (256, 3, 14, 14), (1, 16, 16)) == "index_map"
    assert choice("batch_to_space", (4, 64, 56, 56), (1, 2, 2), crop=1) == "index_map"
    assert choice("batch_to_space", (4, 64, 56, 56), (1, 2, 2), "complex64") == "index_map"
    assert choice("space_to_batch", (4, 64, 56, 56), (1, 2, 2)) == "deinterleave"
    assert choice("space_to_batch", (4, 64, 56, 57), (1, 2, 2)) == "direct"
    assert choice("space_to_batch", (16, 64, 56, 56), (1, 4, 4), "complex64") == "direct"
    assert choice("space_to_batch", (9, 64, 56, 56), (1, 3, 3)) == "deinterleave"
    assert choice("space_to_batch", (9, 64, 55, 55), (1, 3, 3)) == "direct"
    assert choice("space_to_batch", (4, 56, 56, 64), (2, 2, 1)) == "direct"
    assert choice("space_to_batch", (256, 3, 64, 64), (1, 16, 16)) == "direct"
    assert choice("space_to_batch", (256, 3, 64, 64), (1, 16, 16), "complex64") == "direct"
    assert choice("space_to_batch", (64, 64, 112, 112), (1, 2, 2), crop=1) == "direct"  # elements stored one by one
