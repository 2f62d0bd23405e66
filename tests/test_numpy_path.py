"""The NumPy path is the definition, bit for bit: the rows of tests/test_kernels.py, every way, in any layout."""

from __future__ import annotations

from functools import cache, partial
from math import prod

import cases
import definition
import numpy as np
import pytest
from cases import FAR_CASES, SPACE_CASES, BlocksCase, assert_same_bits, garbage, peak_of, values, window_of
from executors import Call, arrays_of, assert_same_bytes, calls_of, in_order
from test_kernels import ROWS, SUMS, Row, drawn, drawn_call, laid_out, random_rows

import gpufold
from gpufold import keeping, threads
from gpufold.calls import MODES
from gpufold.cpu import fused, indexed, runs, tiles
from gpufold.cpu import positions as on_positions
from gpufold.cpu.arithmetic import ROUNDED

SLIDING = ("strides", "dilations", "pads_begin", "pads_end")


@pytest.fixture
def every_way(request, way, monkeypatch):
    """Blocks at positions are taken by their index where they are small, else in slices, and cut among threads.

    Large problems are cut into larger tiles.
    """
    chosen, row = (request.node.callspec.params.get(name) for name in ("way", "row"))
    if "tiled" in chosen and row is not None and is_large(row.case):
        monkeypatch.setattr(tiles, "TILE_ELEMENTS", 300)
        monkeypatch.setattr(indexed, "INDEXED_ELEMENTS", 3000)
    if chosen != "chosen":
        monkeypatch.setattr(on_positions, "_is_faster_by_index", lambda blocks, rank: chosen in ("flat", "flat-tiled"))


def through_columns(module, call, array, shape, block, **options):
    """What a module's operations on columns make of blocks that have their taps last."""
    case, rank = BlocksCase("", shape, block, call.options["strides"], call.options.get("last", "drop")), len(block)
    lead, size, counts = case.lead, case.size, case.num_blocks
    steps = {"strides": case.strides, "dilations": (1,) * rank, "pads_begin": (0,) * rank, "pads_end": case.beyond}
    axes = range(len(lead)), range(len(lead), len(lead) + rank), range(len(lead) + rank, len(lead) + 2 * rank)
    order = (*axes[0], *axes[2], *axes[1])
    if call.operation == "blocks_to_array":
        columns = np.ascontiguousarray(array.transpose(order)).reshape(prod(lead), prod(block), prod(counts))
        if options["out"] is not None:
            options["out"] = options["out"].reshape(prod(lead), 1, *size)
        return module.col2im(columns, size, block, **steps, **options).reshape(shape)
    columns = module.im2col(array.reshape(prod(lead), 1, *size), block, **steps, **options)
    return columns.reshape(*lead, *block, *counts).transpose(order)


def defined(call, before):
    """What the definition says of a call, and of the sums of weights."""
    options, read = call.options, call.read
    window, weight = options.get("window"), options.get("weight_out")
    if call.operation == "add_blocks":
        positions, blocks = call.arguments[1], read.astype(call.data.dtype)
        total = definition.add_blocks(call.data, blocks, positions, window, weight_out=weight is not None)
        block = blocks.shape[blocks.ndim - positions.shape[1] :]
        if weight is None:
            return total, None
        ones = np.ones((len(positions), *block), weight.dtype)
        return total, definition.add_blocks(weight, ones, positions, window, weight_out=True)
    if call.operation == "take_blocks":
        return definition.take_blocks(read, *call.arguments, window, options["mode"]), None
    if call.operation == "average":
        return definition.average(read, *call.arguments), None
    if call.operation in ("batch_to_space", "space_to_batch"):
        return getattr(definition, call.operation)(read, *call.arguments, *options.values()), None
    steps = {name: options[name] for name in SLIDING if name in options}
    if call.operation == "im2col":
        return definition.im2col(read, *call.arguments, **steps, window=window), None
    if call.operation == "array_to_blocks":
        return through_columns(definition, call, read, read.shape, *call.arguments, window=window), None
    read, fused = read.astype(options.get("dtype", read.dtype)), {"reduction": options["reduction"], "window": window}
    if call.operation == "col2im":
        return definition.col2im(read, *call.arguments, **steps, **fused, out=before), None
    return through_columns(definition, call, read, *call.arguments, **fused, out=before), None


@cache
def problem(row, number, **given):
    """A call with what is drawn for a row, or given, and its answer by definition, worked out once for all ways."""
    what = drawn(row, number)
    what = what._replace(**{"mode": MODES[what.seed % len(MODES)]} | given)
    call, before, view = drawn_call(row, what)
    with np.errstate(all="ignore"):
        return what, call, before, view, defined(call, before)


MEMORY = {
    "native": lambda array: array,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "off its size": cases.off_its_size,
}
"""Memory as others have it."""


def check(row, number, **given):
    """Make a row's call on arrays where the draw puts them; what is written held garbage, or what is added to.

    A result in an array of its own is that of other memory with the same elements too.
    """
    what, call, before, view, (want, want_weight) = problem(row, number, **given)
    laid = laid_out(call, arrays_of(call, before), view, what, "auto")
    if before is None and row.operation != "add_blocks":
        laid.result[...] = garbage(laid.result.shape, laid.result.dtype)
    memory = list(MEMORY)[what.seed % len(MEMORY)]
    kept, where = laid.input.tobytes(), f"{row} {number}: {what}, {memory}"
    room = laid.result if laid.result.base is None else laid.result.base
    before_room, before_result = room.tobytes(), laid.result.copy()
    weight = {} if want_weight is None else {"weight_out": laid.weight_out}
    with np.errstate(all="ignore"):
        assert call.into(laid.result, laid.input, **weight) is laid.result
    moves = call.operation not in (*SUMS, "average") and call.options.get("window") is None
    (assert_same_bytes if moves else assert_same_bits)(laid.result, want, where)
    if weight:
        assert_same_bits(laid.weight_out, want_weight, where)
    if before is None and not weight:
        read = MEMORY[memory](laid.input)
        again, given = call.reading(read), call.data if call.operation == "add_blocks" else read
        with np.errstate(all="ignore"):
            made = again.on(given)
        assert_same_bits(made, want, where)
        assert not np.may_share_memory(made, given), where
        assert read.tobytes() == MEMORY[memory](laid.input).tobytes(), where
        if call.operation == "add_blocks":
            check_out_beside(again, laid.result, want, where)
    assert laid.input.tobytes() == kept, where
    laid.result[...] = before_result
    assert room.tobytes() == before_room, f"written between the elements of {where}"


def check_out_beside(call, out, want, where):
    """Add blocks to an array that stays as it is, in an `out` that holds something else, and in the array itself."""
    array = call.data.copy()
    with np.errstate(all="ignore"):
        assert call.on(array, out=out) is out
        assert_same_bits(out, want, where)
        assert_same_bits(array, call.data, where)
        assert call.on(array, out=array) is array
    assert_same_bits(array, want, where)


def is_large(case):
    """Whether the definition, in Python, takes a second or more."""
    return isinstance(case, cases.Case) and prod(case.kernel_size) * prod(case.num_blocks) > 20_000


DEFINED = [
    pytest.param(row, marks=[pytest.mark.all] if is_large(row.case) else [], id=str(row))
    for row in ROWS
    if row.case not in (*cases.POSITIONS_CASES_OF_KERNELS, *FAR_CASES)
]
NO_SPACE = [case for case in SPACE_CASES if not prod(case.space_shape)]


def rows_of(*cases):
    return [Row(operation, case) for case in cases for operation in case.operations]


@pytest.mark.some(4, all=2)
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.many)])
@pytest.mark.parametrize("row", DEFINED)
def test_every_call_is_its_definition(row, number, every_way):
    check(row, number)


@pytest.mark.parametrize("row", rows_of(*FAR_CASES, *cases.HUGE_CASES), ids=str)
def test_taps_and_blocks_may_be_far_apart(row, every_way):
    for number in range(3):
        check(row, number)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int8", "complex64"])
@pytest.mark.parametrize("case", cases.STILL_CASES, ids=str)
def test_many_taps_on_one_pixel_are_added_in_their_order(case, dtype):
    for kind in ("none", "full") if np.dtype(dtype) in cases.INEXACT else ("none",):
        check(Row("col2im", case), 1, dtype=dtype, source="", fusion=("sum", kind, False))


@pytest.mark.parametrize("row", rows_of(*cases.EMPTY, *NO_SPACE), ids=str)
def test_arrays_may_have_no_elements(row, every_way):
    check(row, 1, mode="constant")


@pytest.mark.some(2, all=2)
@pytest.mark.parametrize(
    "first",
    [
        *range(0, 200, 20),
        *(pytest.param(first, marks=pytest.mark.all) for first in range(200, 400, 20)),
        *(pytest.param(first, marks=pytest.mark.many) for first in range(10_000, 40_000, 500)),
    ],
)
def test_random_calls_are_their_definition(first, every_way):
    for seed in range(first, first + 20):
        for row in random_rows(seed):
            check(row, 1 + seed % 3)
    for row in rows_of(cases.few_blocks_case(first // 20)):
        check(row, 1)


MOVING = (
    Call("im2col", np.empty((1, 40, 41)), ((25, 25),)),
    Call("im2col", np.empty((1, 6, 20, 21)), ((7, 5),), {"strides": 2, "pads_begin": 3, "pads_end": 4}),
    Call("im2col", np.empty((1, 2, 5)), ((2, 2),), {"strides": (1, 2), "pads_end": (0, 1)}),
    Call("col2im", np.empty((4, 2)), ((2, 5), (2, 2)), {"strides": (1, 2)}),
    Call("array_to_blocks", np.empty((40, 41)), ((7, 7),)),
    Call("blocks_to_array", np.empty((1, 2, 3, 2)), ((3, 5), (3, 2)), {"strides": (1, 2)}),  # one block along an axis
    *calls_of(SPACE_CASES[5], np.float64),
    Call("take_blocks", np.empty((40, 41)), ([(row, 2 * row) for row in range(16)], (3, 4))),
    *(Call("take_blocks", np.empty((4, 5)), ([(-1, 3), (2, 2)], (2, 3)), {"mode": mode}) for mode in MODES),
)


@pytest.mark.parametrize("operation", ["col2im", "array_to_blocks", "add_blocks", "average"])
def test_settings_of_numpy_stay_as_the_caller_has_them(operation):
    """Buffers of ufuncs, which are short inside of a call, and what becomes of overflows."""
    array, positions = np.ones((2, 200, 200), np.float32), np.zeros((20, 2), int)
    calls = {
        "col2im": lambda: gpufold.col2im(np.ones((2, 9, 40000), np.float32), (202, 202), (3, 3)),
        "array_to_blocks": lambda: gpufold.array_to_blocks(array, (8, 8), window=array[0, :8, :8]),
        "add_blocks": lambda: gpufold.add_blocks(array, np.ones((20, 2, 99, 99), np.float32), positions),
        "average": lambda: gpufold.average(array, array[0]),
    }
    with np.errstate(over="call"):
        np.setbufsize(4096)
        before = np.getbufsize(), np.geterr()
        calls[operation]()
        assert (np.getbufsize(), np.geterr()) == before


@pytest.mark.parametrize("kind", ["U3", "S5", "T", ">f4", ">i2"])
def test_elements_that_move_may_be_strings_and_of_another_byte_order(kind, every_way):
    """NumPy makes no strided view of strings of any length, in which other large arrays are taken at once."""
    dtype = np.dtypes.StringDType() if kind == "T" else np.dtype(kind)
    nothing = "0" if dtype.kind in "fi" else ""
    for call in MOVING:
        numbers = (np.arange(call.data.size) % 998 + 1).reshape(call.data.shape)
        moved, got = call.on(numbers), call.on(numbers.astype("U3").astype(dtype))
        assert got.dtype.isnative
        assert (got == np.where(moved, moved.astype("U3"), nothing).astype(dtype)).all(), call


LARGE_CASES = (
    BlocksCase("frames", (300_000,), (1024,), (256,)),
    BlocksCase("short-frames", (2, 140_000), (8,), (2,)),
    BlocksCase("patches", (2, 3, 100, 90), (8, 7), (1, 2)),
    BlocksCase("tiles", (2, 600, 500), (280, 192), (70, 130)),
    BlocksCase("volume", (60, 100, 90), (30, 32, 40), (15, 16, 20)),
)


@pytest.mark.parametrize("fusion", [("sum", "none", False), ("least_squares", "separable", True)], ids=["sum", "fused"])
@pytest.mark.parametrize("case", LARGE_CASES, ids=str)
def test_large_blocks_in_rows_have_the_bits_of_columns(case, fusion):
    """Call after call, whichever way one tries."""
    reduction, kind, accumulate = fusion
    blocks, out = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
    options = {"reduction": reduction, "window": window_of(kind, case.block, np.float32), "accumulate": accumulate}
    call = Call("blocks_to_array", blocks, (case.shape, case.block), {"strides": case.strides} | options)
    want = through_columns(gpufold, call, blocks, *call.arguments, out=out.copy(), **options)
    for _ in range(10):
        assert_same_bits(call.into(out.copy(), blocks), want)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_tiles_of_short_blocks_is_faster_by_index_enough_to_be_copied(dtype, monkeypatch):
    """Else they would be added by cells, in up to three times the time."""
    fold_copied, copied = runs._fold_copied, []
    monkeypatch.setattr(runs, "_fold_copied", lambda *arguments: copied.append(fold_copied(*arguments)))
    monkeypatch.delattr(runs, "fold_cells")
    gpufold.blocks_to_array(np.ones((1, 1, 200, 200, 8, 8), dtype), (1, 1, 207, 207), (8, 8))
    assert copied


# ---- Blocks at positions


VIEWS = {
    "backwards": lambda array, room, dtype: array[::-1],
    "backwards along every axis": lambda array, room, dtype: array[::-1, ::-1],
    "every other": lambda array, room, dtype: array[::2, ::-2],
    "transposed": lambda array, room, dtype: array.T,
    "a field of packed records": lambda array, room, dtype: np.ndarray((1000, 1000), dtype, room, 1, (7000, 7)),
    "an odd number of bytes from there": lambda array, room, dtype: np.ndarray((1000, 999), dtype, room, 3, (8000, 8)),
}
"""Views of an array of every eighth byte of a room, or of the room itself."""


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("view", VIEWS)
def test_few_blocks_are_added_and_taken_in_any_layout_without_a_copy_of_the_array(view, dtype):
    """All of a reversed view was once copied for a few small blocks."""
    room = np.zeros((1000, 1000, 8), np.uint8)
    array = VIEWS[view](room.view(dtype)[..., 0], room, dtype)
    rng = np.random.default_rng(1)
    array[...] = rng.integers(-9, 9, array.shape)
    positions = rng.integers(-2, min(array.shape), (100, 2))
    blocks = rng.integers(-9, 9, (100, 3, 3)).astype(array.dtype)
    plain = np.ascontiguousarray(array)
    for mode in ("constant", "edge"):
        peak, taken = peak_of(lambda mode=mode: gpufold.take_blocks(array, positions, (3, 3), mode=mode))
        assert_same_bits(taken, definition.take_blocks(plain, positions, (3, 3), mode=mode))
        assert peak < 100_000
    peak, _ = peak_of(lambda: gpufold.add_blocks_(array, blocks, positions))
    want = definition.add_blocks(definition.add_blocks(plain, blocks, positions), blocks, positions)
    assert_same_bits(np.ascontiguousarray(array), want)
    assert peak < 8 * tiles.TILE_ELEMENTS + 16 * ROUNDED + 500_000


def test_few_blocks_of_many_planes_are_not_added_plane_by_plane(monkeypatch):
    """Blocks of one column each were once taken for small, however many planes they have."""
    out, blocks = np.zeros((20_000, 8, 3), np.float32), np.ones((100, 20_000, 4, 1), np.float32)
    monkeypatch.delattr(on_positions, "_scatter")
    gpufold.add_blocks_(out, blocks, [(1, 1)] * 100)
    assert (out[:, 1:5, 1] == 100).all()
    assert (gpufold.take_blocks(out, [(1, 1)] * 100, (4, 1)) == 100).all()


@pytest.mark.parametrize("mode", MODES)
def test_many_blocks_larger_than_the_array_are_taken_at_once(mode, monkeypatch):
    """They were taken one by one, where none fits into the array."""
    monkeypatch.setattr(on_positions, "_take_one_by_one", lambda *given: pytest.fail(f"{given[-1]} one by one"))
    array, positions = values((2, 2, 5), np.float32), np.random.default_rng(0).integers(-4, 6, (3000, 2))
    got = gpufold.take_blocks(array, positions, (3, 2), mode=mode)
    assert_same_bits(got, definition.take_blocks(array, positions, (3, 2), mode=mode))


def test_blocks_of_an_array_larger_than_memory_are_taken():
    """NumPy makes no view of all windows if they had 2**63 bytes."""
    far = np.broadcast_to(np.float32(3), (1 << 50,))
    assert (gpufold.take_blocks(far, np.arange(16) << 45, 1 << 14) == 3).all()


@pytest.mark.parametrize("way", range(4))
def test_strings_of_any_length_are_extracted_in_every_way(way, monkeypatch):
    """A padded copy was tried, of which NumPy makes no view of all blocks."""
    monkeypatch.setattr(threads.Ways, "run", lambda ways, size, work: work(2, *ways.all[way % len(ways.all)]))
    plain = np.random.default_rng(0).integers(0, 10**5, (3, 5, 60, 60)).astype("U5")
    wanted = gpufold.im2col(plain, (3, 3), pads_begin=1, pads_end=1)
    got = gpufold.im2col(plain.astype(np.dtypes.StringDType()), (3, 3), pads_begin=1, pads_end=1)
    assert (got == wanted).all()


def test_strings_without_a_character_are_extracted():
    """A field of records may have elements of no bytes."""
    empty = np.zeros((60, 40), [("nothing", "S0"), ("number", "i4")])["nothing"]
    assert gpufold.array_to_blocks(empty, (2, 2), strides=2).shape == (30, 20, 2, 2)
    assert gpufold.im2col(empty[None], (2, 2), strides=2, pads_begin=1, pads_end=1).shape == (4, 31 * 21)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (2, 3, 0, 1), (3, 2, 1, 0), (0, 1, 3, 2)], ids=str)
@pytest.mark.parametrize(("dtype", "kind"), [("u1", "none"), ("f4", "none"), ("f4", "full"), ("f4", "separable")])
def test_blocks_of_an_image_in_any_layout_are_those_of_a_contiguous_copy(dtype, kind, order):
    """Whether planes are copied or viewed: calls of this size measure every way, one after another."""
    image, options = values((2, 3, 90, 81), dtype), {"window": window_of(kind, (5, 4), dtype)}
    given, many = in_order(image, order), np.random.default_rng(0).integers(-3, 80, (1000, 2))
    weights = window_of(kind, (45, 40), dtype)
    large = partial(gpufold.take_blocks, positions=many[:99], block_shape=(45, 40), window=weights)
    calls = (
        partial(gpufold.array_to_blocks, block_shape=(5, 4), strides=(2, 1), **options),
        partial(gpufold.im2col, kernel_size=(5, 4), strides=(2, 1), pads_begin=(1, 2), **options),
        partial(gpufold.take_blocks, positions=many, block_shape=(5, 4), **options),
        large,
        partial(large, mode="edge"),
    )
    for call in calls:
        wanted = call(image)
        for _ in range(8):
            assert_same_bits(call(given), wanted)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_calls_that_differ_in_the_kind_of_their_window_share_no_way(order, monkeypatch):
    """Nor does one whose weights are too many to be stored."""
    axes, array = (np.arange(1.0, 5), np.arange(2.0, 7), np.arange(3.0, 9)), np.random.default_rng(0).random((7, 8, 9))
    windows = None, np.multiply.outer(np.outer(*axes[:2]), axes[2]), axes
    sides = {"block_shape": (4, 5, 6), "strides": 2, "last": "over"}
    calls = [partial(gpufold.array_to_blocks, array, window=window, **sides) for window in windows]
    calls += [partial(gpufold.blocks_to_array, calls[0](), (7, 8, 9), window=window, **sides) for window in windows]
    want = [call() for call in calls]
    monkeypatch.setattr(fused, "WEIGHT_BYTES", 1)
    for kept in keeping._results:
        kept.clear()
    for number in (*order, *(3 + each for each in order)):
        assert_same_bits(calls[number](), want[number])
