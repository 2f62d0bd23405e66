"""The NumPy path is the definition, bit for bit: the rows of tests/test_kernels.py, every way, in any layout."""

from __future__ import annotations

from functools import cache
from math import prod

import definition
import numpy as np
import pytest
from cases import (
    CASES,
    FAR_CASES,
    INEXACT,
    POSITIONS_CASES,
    POSITIONS_CASES_OF_KERNELS,
    SPACE_CASES,
    Case,
    assert_same_bits,
    garbage,
    off_its_size,
)
from executors import arrays_of, assert_same_bytes, blocks_calls, calls_of, placed_calls
from test_kernels import ROWS, SUMMED, SUMS, Row, drawn, drawn_call, laid_out, random_rows

import gpufold
from gpufold.calls import MODES
from gpufold.cpu import placing, tiles

SLIDING = ("strides", "dilations", "pads_begin", "pads_end")


@pytest.fixture
def every_way(request, way, monkeypatch):
    """Blocks at positions are taken by their index where they are small, else in slices, and cut among threads."""
    chosen = request.node.callspec.params["way"]
    if chosen != "chosen":
        monkeypatch.setattr(placing, "_are_small", lambda blocks, rank: chosen in ("flat", "flat-tiled"))
    if "tiled" in chosen:
        monkeypatch.setattr(placing, "THREADED_BLOCK", 1)


def through_columns(call, operation, array, shape, block, **options):
    """What the definition of an operation on columns says of blocks that have their taps last."""
    rank = len(block)
    lead, size = shape[: len(shape) - rank], shape[len(shape) - rank :]
    steps = {"strides": call.options["strides"]} | dict.fromkeys(SLIDING[1:], (0,) * rank) | {"dilations": (1,) * rank}
    counts = [(n - b) // s + 1 for n, b, s in zip(size, block, steps["strides"], strict=True)]
    axes = range(len(lead)), range(len(lead), len(lead) + rank), range(len(lead) + rank, len(lead) + 2 * rank)
    order = (*axes[0], *axes[2], *axes[1])
    if operation is definition.col2im:
        columns = array.transpose(order).reshape(prod(lead), prod(block), prod(counts))
        if options["out"] is not None:
            options["out"] = options["out"].reshape(prod(lead), 1, *size)
        return operation(columns, size, block, **steps, **options).reshape(shape)
    columns = operation(array.reshape(prod(lead), 1, *size), block, **steps, **options)
    return columns.reshape(*lead, *block, *counts).transpose(order)


def defined(call, before):
    """What the definition says of a call, and of the sums of weights."""
    options, read = call.options, call.read
    window, weight = options.get("window"), options.get("weight_out")
    if call.operation == "add_blocks":
        positions, blocks = call.arguments[1], read.astype(call.data.dtype)
        total = definition.add_blocks(call.data, blocks, positions, window, weight_out=weight is not None)
        block = blocks.shape[blocks.ndim - positions.shape[1] :]
        return total, None if weight is None else definition.add_weights(weight, block, positions, window)
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
        return through_columns(call, definition.im2col, read, read.shape, *call.arguments, window=window), None
    read, fused = read.astype(options.get("dtype", read.dtype)), {"reduction": options["reduction"], "window": window}
    if call.operation == "col2im":
        return definition.col2im(read, *call.arguments, **steps, **fused, out=before), None
    return through_columns(call, definition.col2im, read, *call.arguments, **fused, out=before), None


@cache
def problem(row, number, **given):
    """A call with what is drawn for a row, or given, and its answer by definition, worked out once for all ways."""
    what = drawn(row, number)
    what = what._replace(mode=MODES[what.seed % len(MODES)], **given)
    call, before, view = drawn_call(row, what)
    with np.errstate(all="ignore"):
        return what, call, before, view, defined(call, before)


def result_of(call, read):
    """What a call makes of other elements, in an array of its own."""
    with np.errstate(all="ignore"):
        return call.reading(read).on(call.data if call.operation == "add_blocks" else read)


def check(row, number, **given):
    """Make a row's call on arrays where the draw puts them; what is written held garbage, or what is added to."""
    what, call, before, view, (want, want_weight) = problem(row, number, **given)
    laid = laid_out(call, arrays_of(call, before), view, what, "auto")
    if before is None and row.operation != "add_blocks":
        laid.result[...] = garbage(laid.result.shape, laid.result.dtype)
    kept, where = laid.input.tobytes(), f"{row} {number}: {what}"
    weight = {} if want_weight is None else {"weight_out": laid.weight_out}
    with np.errstate(all="ignore"):
        assert call.into(laid.result, laid.input, **weight) is laid.result
    moves = call.operation not in (*SUMS, "average") and call.options.get("window") is None
    (assert_same_bytes if moves else assert_same_bits)(laid.result, want, where)
    if weight:
        assert_same_bits(laid.weight_out, want_weight, where)
    if before is None and row.operation != "add_blocks":
        assert_same_bits(result_of(call, laid.input), want, where)
    assert laid.input.tobytes() == kept, where


def is_large(case):
    """Whether the definition, in Python, takes a second or more."""
    return isinstance(case, Case) and prod(case.kernel_size) * prod(case.num_blocks) > 20_000


DEFINED = [
    pytest.param(row, marks=[pytest.mark.all] if is_large(row.case) else [], id=str(row))
    for row in ROWS
    if row.case not in (*POSITIONS_CASES_OF_KERNELS, *FAR_CASES)
]


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.all)])
@pytest.mark.parametrize("row", DEFINED)
def test_every_call_is_its_definition(row, number, every_way):
    check(row, number)


@pytest.mark.some(7)
@pytest.mark.parametrize(("source", "dtype"), SUMMED)
@pytest.mark.parametrize("case", POSITIONS_CASES, ids=str)
def test_a_wider_out_takes_blocks_as_if_they_were_converted_first(case, source, dtype, every_way):
    for kind in ("none", "separable", "full") if np.dtype(dtype) in INEXACT else ("none",):
        given = {"source": source, "dtype": dtype, "fusion": ("sum", kind, False), "weight_out": False}
        check(Row("add_blocks", case), 1, **given)


@pytest.mark.parametrize("row", [row for row in ROWS if row.case in FAR_CASES], ids=str)
def test_taps_and_blocks_may_be_far_apart(row):
    for number in range(3):
        check(row, number)


@pytest.mark.parametrize(
    "first",
    [
        *range(0, 200, 20),
        *(pytest.param(first, marks=pytest.mark.all) for first in range(200, 600, 20)),
        *(pytest.param(first, marks=pytest.mark.many) for first in range(10_000, 40_000, 500)),
    ],
)
def test_random_calls_are_their_definition(first, every_way):
    for seed in range(first, first + 20):
        for row in random_rows(seed):
            check(row, 1 + seed % 3)


MEMORY = {
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "off its size": off_its_size,
    "a subclass": lambda array: array.view(type("Sub", (np.ndarray,), {})),
}
CALLS = (
    *calls_of(CASES[2], np.dtype(np.float32)),
    *calls_of(Case("large", (56, 56), (3, 3), 1, 1, 1, 1, batch=4, channels=16), np.dtype(np.float32)),
    *calls_of(SPACE_CASES[5], np.dtype(np.int32)),
    *blocks_calls((3, 12, 40), (5, 6), 3, np.dtype(np.float32)),
    *placed_calls(POSITIONS_CASES[11], np.dtype(np.float32)),
)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.operation} of {call.data.size}")
def test_memory_of_others_gives_the_same_bits(call, memory):
    read = MEMORY[memory](call.read)
    before, got = read.tobytes(), result_of(call, read)
    assert type(got) is np.ndarray
    assert_same_bits(got, result_of(call, call.read), memory)
    assert read.tobytes() == before


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_never_shows(threads, monkeypatch):
    wanted = [call.on(call.data) for call in CALLS]
    for module, name in ((tiles, "THREADED_ELEMENTS"), (placing, "THREADED_BLOCK")):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 400)
    gpufold.set_num_threads(threads)
    try:
        for call, want in zip(CALLS, wanted, strict=True):
            assert_same_bits(call.on(call.data), want, call)
    finally:
        gpufold.set_num_threads(None)
