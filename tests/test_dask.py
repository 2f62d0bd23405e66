"""gpufold.dask: the bits of the eager functions, lazily, from nothing but what reaches each chunk."""

from __future__ import annotations

import os
import random
import re
import time
import timeit
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

import cases
import dask
import dask.array as da
import numpy as np
import pytest
from cases import INEXACT, BlocksCase, Case, assert_same_bits, peak_of, values, window_of
from dask.optimization import cull
from distributed import Client, LocalCluster
from executors import Call
from fronts import RIGHT, arrays_and_others
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import Row, drawn, drawn_call

import gpufold
import gpufold.dask


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Chunks this small are done before a thread starts."""
    with dask.config.set(scheduler="synchronous"):
        yield


# ---- Equal to the eager functions, however arrays are cut


def cut(draw, size):
    """Sizes of chunks that fill an axis, some of them empty."""
    ends = sorted([*draw(st.lists(st.integers(0, size), max_size=4, unique=draw(st.booleans()))), size])
    return tuple(stop - start for start, stop in pairwise((0, *ends)))


def filled(chunks):
    """Chunks without those that are empty, which a result has none of."""
    return tuple(tuple(filter(None, sizes)) or (0,) for sizes in chunks)


def unlike_zeros(*given, empty=np.empty_like, **named):
    """Return memory that nobody has written to, and that is seen if nobody does."""
    array = empty(*given, **named)
    if array.flags.c_contiguous and array.dtype.kind not in "OSTU":
        array.reshape(-1).view(np.uint8)[...] = 1
    return array


def cut_all(draw, shape):
    return tuple(cut(draw, size) for size in shape)


def check(call, draw, axes=None, want=None, **options):
    """Compare a call with the eager one, its arrays cut anywhere and its result along some axes; return all of them."""
    want = call.on(call.data) if want is None else want
    if axes is not None:
        options = {"chunks": cut_all(draw, want.shape[axes])} | options
    of_data = {"add_blocks": 1, "average": 1}.get(call.operation, 0)
    arrays = [da.from_array(each, chunks=cut_all(draw, each.shape)) for each in (call.data, *call.arguments[:of_data])]
    got = getattr(gpufold.dask, call.operation)(*arrays, *call.arguments[of_data:], **call.options | options)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert (type(got._meta), got._meta.dtype, got._meta.ndim) == (np.ndarray, want.dtype, want.ndim)
    assert got.chunks == filled(got.chunks) or not got.size
    assert axes is None or got.chunks[axes] == filled(options["chunks"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "empty_like", unlike_zeros)
        assert_same_bits(got.compute(), want, f"{call} {options} {[each.chunks for each in arrays]}")
    return got, *arrays


def call_of_row(row, number):
    """Draw a row's call, of blocks that may reach over the ends of their array."""
    what = drawn(row, number)
    what = what._replace(fusion=(*what.fusion[:2], False), weight_out=False, read="contiguous")
    call, _, _ = drawn_call(row, what if prod(getattr(row.case, "shape", (1,))) else what._replace(mode="constant"))
    options = {name: each for name, each in call.options.items() if name != "accumulate"}
    if options.get("reduction", "sum") != "sum" or (row.operation in ("col2im", "blocks_to_array") and what.seed % 3):
        options["fill_value"] = 7
    return replace(call, options=options)


def check_row(row, number, draw):
    """Compare a row's call; its result has the chunks that are asked for, and else those of its arrays."""
    call, case = call_of_row(row, number), row.case
    if row.operation in ("average", "add_blocks"):
        got, lazy, _ = check(call, draw)
        kept = len(case.shape) - (case.axes if row.operation == "average" else 0)
        assert got.chunks[:kept] == filled(lazy.chunks[:kept]) or not got.size
        assert_same_bits(lazy.compute(), call.data, "no chunk was written into")
    elif row.operation == "take_blocks":
        got, lazy = check(call, draw, slice(1))
        assert got.chunks[1:] == filled((*lazy.chunks[: len(case.lead)], *((side,) for side in case.block)))
    elif row.operation == "im2col":
        rows = cut(draw, case.num_blocks[0])
        got, lazy = check(call, draw, chunks=(rows,))
        *batch, channels = lazy.chunks[: -len(case.output_size)]
        factors = (channels, prod(case.kernel_size)), (rows, prod(case.num_blocks[1:]))
        of_columns = [[each * factor for each in sizes] for sizes, factor in factors]
        assert got.chunks == filled((*batch, *of_columns)) or not got.size
    elif row.operation == "col2im":
        check(call, draw, slice(len(case.image_shape) - len(case.output_size), None))
    elif isinstance(case, BlocksCase):
        kept = len(case.lead)
        got, lazy = check(call, draw, slice(kept, kept + len(case.block)))
        assert got.chunks[:kept] == filled(lazy.chunks[:kept]) or not got.size
    else:
        check(call, draw, slice(1, None))


FEW, MANY = (settings(max_examples=count, deadline=None, derandomize=True) for count in (2, 30))
ROWS = [
    Row(operation, case)
    for case in (*cases.NAMED, *cases.EMPTY, *cases.AVERAGE_CASES, cases.AverageCase("no-sums", (0, 3, 5), 1))
    for operation in case.operations
    if not isinstance(case, Case) or prod(case.columns_shape) <= 50_000
]


@pytest.mark.some(4, all=2)
@pytest.mark.parametrize("row", ROWS, ids=str)
@FEW
@given(data=st.data())
def test_named_cases_have_the_bits_of_eager_calls(row, data):
    check_row(row, 1, data.draw)


@pytest.mark.parametrize("drawn", cases.RANDOM)
@MANY
@given(seed=st.integers(0, 10_000), data=st.data())
def test_random_calls_have_the_bits_of_eager_calls(drawn, seed, data):
    case = drawn(seed)
    for operation in case.operations:
        check_row(Row(operation, case), seed, data.draw)


@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
@pytest.mark.parametrize("dtype", [*INEXACT, *map(np.dtype, ("bool", "uint8", "int32"))], ids=str)
@FEW
@given(seed=st.integers(0, 1000), data=st.data())
def test_what_is_stitched_has_the_bits_of_a_stitcher(dtype, reduction, seed, data):
    """Whatever the chunks; some tiles lie outside, and some of the result under none."""
    rng = random.Random(seed)
    rank, lead = rng.choice((1, 2, 2, 3)), tuple(rng.randint(0, 2) for _ in range(rng.choice((0, 1, 2))))
    size, block = (tuple(rng.randint(1, most) for _ in range(rank)) for most in (12, 5))
    positions = np.random.default_rng(seed).integers(-9, 15, (rng.randint(0, 12), rank))
    tiles = values((len(positions), *lead, *block), dtype, seed)
    windowed = dtype in INEXACT or reduction != "sum"  # sums of integers are integers
    window = window_of(rng.choice(("none", "separable", "full")) if windowed else "none", block, dtype)
    options = {"window": window, "reduction": reduction}
    eager, lazy = (gpufold.Stitcher((*lead, *size), block, **options) for _ in range(2))
    eager.add(tiles, positions)
    want = eager.result()
    check(Call("stitch", tiles, (positions, want.shape), options), data.draw, slice(len(lead), None), want)
    for batch in np.array_split(np.arange(len(tiles)), 2):
        lazy.add(da.from_array(tiles[batch], chunks=cut_all(data.draw, tiles[batch].shape)), positions[batch])
    assert_same_bits(lazy.result().compute(), want, f"seed {seed}, in two batches")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
def test_no_blocks_are_taken_of_an_array_without_elements_in_any_mode(mode):
    """Named cases of empty arrays are taken in mode "constant" alone."""
    given = np.zeros((0, 1), int), 3
    for shape in ((2, 0), (0, 5)):
        taken = gpufold.dask.take_blocks(da.zeros(shape, chunks=2), *given, mode=mode)
        assert_same_bits(taken.compute(), gpufold.take_blocks(np.zeros(shape), *given, mode=mode))


LAZY = da.ones((2, 4, 4))
CORNERS = [(0, 0), (2, 2)]


@pytest.mark.parametrize(
    ("options", "given", "error", "message"),
    [
        ({"slabs": True}, {}, TypeError, "add: blocks must be in memory with slabs=True"),
        ({}, {"window": np.ones((4, 4))}, TypeError, "add: blocks must be in memory with slabs=True, a window"),
        ({}, {"weights": np.ones(2)}, TypeError, "add: blocks must be in memory with slabs=True, a window or weights"),
        ({}, {"blocks": LAZY[:, :3]}, ValueError, r"add: blocks that .* must be \(P, \*\(4, 4\)\) of the first"),
        ({}, {"positions": CORNERS[:1]}, ValueError, r"add: blocks .* and positions \(P, 2\), got .* \(1, 2\)"),
        ({}, {"blocks": da.ma.masked_less(LAZY, 0)}, TypeError, "add: .*a masked array"),
        ({}, {"blocks": LAZY.astype(object)}, TypeError, "add: .*blocks has dtype object"),
        ({}, {"blocks": LAZY[da.ones(2) > 0]}, ValueError, "add: .*blocks must have chunks of known sizes"),
    ],
)
def test_a_stitcher_refuses_what_cannot_be_lazy(options, given, error, message):
    stitcher = gpufold.Stitcher((6, 6), 4, **options)
    with pytest.raises(error, match=f"^Stitcher.{message}"):
        stitcher.add(**{"blocks": LAZY, "positions": CORNERS, **given})


def test_a_stitcher_keeps_batches_of_one_dtype_and_copies_of_their_positions():
    stitcher, places = gpufold.Stitcher((6, 6), 4), np.array(CORNERS)
    stitcher.add(LAZY, places)
    places[...] = 99
    with pytest.raises(ValueError, match=r"^Stitcher.add: blocks that are .* dtype float64, .* of float32"):
        stitcher.add(LAZY.astype("f4"), CORNERS)
    with pytest.raises(ValueError, match=r"^Stitcher.result: fill_value must be 0 for dask arrays"):
        stitcher.result(fill_value=None)  # which would be computed to see what no tile covers
    assert float(stitcher.result().sum()) == 28


@pytest.mark.parametrize(
    ("error", "match", "wrong"),
    [
        (TypeError, "positions must be integers", {"positions": [(0.5, 0)] * 2}),
        (ValueError, r"positions must be .* of 2 blocks, got shape \(3, 2\)", {"positions": [(0, 0)] * 3}),
        (ValueError, r"positions must be .* got shape \(2, 2, 1\)", {"positions": np.zeros((2, 2, 1), int)}),
        (ValueError, r"shape must be .* with 2 axes of size, .* got \(8, 9\) for blocks", {"output_shape": (8, 9)}),
        (ValueError, r"shape must be .* got \(3, -8, 9\)", {"output_shape": (3, -8, 9)}),
        (TypeError, "shape must be an integer or a sequence", {"output_shape": (3, 8, None)}),
        (ValueError, "reduction must be one of sum, .* got 'median'", {"reduction": "median"}),
        (ValueError, r"window must have the shape \(4, 5\)", {"window": np.ones((5, 4))}),
        (ValueError, "chunks must be one value or 2", {"chunks": (2, 2, 2)}),
        (ValueError, "more than the .* that an array can have", {"output_shape": (3, 2**31, 2**31)}),
    ],
)
def test_what_cannot_be_stitched_is_refused_before_it_is_computed(error, match, wrong):
    tiles = da.map_blocks(never, chunks=((1, 1), (3,), (4,), (5,)), meta=np.empty((0,) * 4, np.float32))
    right = {"positions": [(0, 0)] * 2, "output_shape": (3, 8, 9)}
    with pytest.raises(error, match=f"^stitch: .*{match}"):
        gpufold.dask.stitch(tiles, **right | wrong)


# ---- Graphs


def never(block_info=None):
    raise AssertionError("computed")


EVERY = {name: arrays_and_others(name) for name in RIGHT}
(OUT, BLOCKS), (PLACES,) = EVERY["add_blocks"]
EVERY["stitch"] = ((BLOCKS,), (PLACES, (2, 8, 9)))
"""A call of each function: its arrays and the other arguments."""

CUT = {name: 1 if name in ("im2col", "take_blocks") else 2 for name in EVERY if name not in ("add_blocks", "average")}
"""The functions that cut their result, and along how many axes."""


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_computed_before_it_is_asked_for(name):
    arrays, arguments = EVERY[name]
    lazy = [da.map_blocks(never, chunks=[(size,) for size in each.shape], meta=each[:0]) for each in arrays]
    result = getattr(gpufold.dask, name)(*lazy, *arguments)
    with pytest.raises(AssertionError, match="computed"):
        result.compute()


def sources(result, name="source"):
    """For every chunk of a result, the chunks of the array called `name` that it depends on."""
    graph = dict(result.__dask_graph__())
    needed = {index: cull(graph, [(result.name, *index)])[0] for index in np.ndindex(result.numblocks)}
    return {index: {key[1:] for key in keys if key[0] == name} for index, keys in needed.items()}


def reaching(call, source, result):
    """By the eager function: for every chunk of a result, the chunks of the source that any of it comes from."""
    found = {}
    for index, slices in zip(np.ndindex(source.numblocks), da.core.slices_from_chunks(source.chunks), strict=True):
        ones = np.zeros(source.shape, np.float32)
        ones[slices] = 1
        computed = call(da.from_array(ones, chunks=source.shape)).compute()
        for to, part in zip(np.ndindex(result.numblocks), da.core.slices_from_chunks(result.chunks), strict=True):
            if computed[part].any():
                found.setdefault(to, set()).add(index)
    return found


AT = np.array([(0, 0), (3, 2), (5, 5), (-3, 1), (2, 8), (-1, -2), (1, 7), (7, 7), (3, 4)])
INSIDE = (1, (3, 1, 2, 6), (10, 20, 33))
"""Chunks that end inside of channels of 4 taps and of rows of 9 blocks."""


@pytest.mark.parametrize(
    ("name", "shape", "chunks", "arguments", "options"),
    [
        ("blocks_to_array", (2, 11, 9, 4, 3), (1, 3, 4, 4, 3), ((2, 24, 11), (4, 3)), {"strides": (2, 1), "chunks": 5}),
        ("col2im", (2, 8, 77), (1, 4, 22), ((8, 12), (2, 2)), {"chunks": (3, 12)}),
        ("col2im", (1, 12, 63), INSIDE, ((8, 10), (2, 2)), {"chunks": (8, 10)}),
        ("im2col", (2, 2, 9, 8), (1, 1, 2, 8), ((3, 2),), {"chunks": 2}),
        ("array_to_blocks", (9, 12), (2, 5), ((3, 2),), {"strides": (1, 2), "chunks": 2}),
        ("batch_to_space", (8, 5, 6), (8, 2, 2), ((1, 2, 4),), {"crops_begin": (0, 1, 1), "chunks": 3}),
        ("space_to_batch", (1, 10, 12), (1, 2, 8), ((1, 2, 4),), {"chunks": 2}),
        ("add_blocks", (9, 3, 3), (4, 3, 3), (AT,), {}),
        ("stitch", (9, 3, 3), (4, 3, 3), (AT, (8, 8)), {"chunks": (3, 2)}),
        ("take_blocks", (8, 8), (3, 2), (AT, 3), {"chunks": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_chunk_depends_on_what_reaches_it_and_on_nothing_else(name, shape, chunks, arguments, options):
    def call(lazy):
        arrays = [da.zeros((8, 8), chunks=(3, 2)), lazy] if name == "add_blocks" else [lazy]
        return getattr(gpufold.dask, name)(*arrays, *arguments, **options)

    source = da.from_array(np.ones(shape, np.float32), chunks=chunks, name="source")
    result = call(source)
    assert {index: keys for index, keys in sources(result).items() if keys} == reaching(call, source, result)
    if name == "col2im":
        assert set(result.chunks[1]) == {1}, "channels keep their chunks"


@pytest.mark.parametrize("name", ["add_blocks", "stitch", "take_blocks"])
def test_a_graph_is_made_in_time_that_grows_with_it(name):
    """Eight times the chunks along an axis take eight times as long, not sixty-four."""

    def seconds(count):
        positions, lazy = np.arange(count)[:, None], da.zeros(count, chunks=1)
        make = {
            "add_blocks": lambda: gpufold.dask.add_blocks(lazy, da.ones((count, 1), chunks=(-1, 1)), positions),
            "stitch": lambda: gpufold.dask.stitch(da.ones((2, 3), chunks=3), [(0,), (1,)], (count,), chunks=1),
            "take_blocks": lambda: gpufold.dask.take_blocks(lazy, positions, 1, chunks=-1),
        }[name]
        return min(timeit.repeat(make, timer=time.process_time, number=1, repeat=3))

    assert seconds(16_000) < 16 * seconds(2000)


WINDOWED = ("col2im", "im2col", "blocks_to_array", "array_to_blocks", "add_blocks", "take_blocks", "stitch")


@pytest.mark.parametrize("kind", ["full", "separable"])
@pytest.mark.parametrize("name", WINDOWED)
def test_what_a_caller_changes_after_the_call_changes_no_result(name, kind):
    """Each result has the window, the positions and the sizes of its call, and a name of its own."""
    arrays, arguments = EVERY[name]
    function, lazy = getattr(gpufold.dask, name), [da.from_array(array) for array in arrays]
    block = (4, 5) if PLACES in arguments else (2, 2)
    window = np.ones(block, np.float32) if kind == "full" else [np.ones(side, np.float32) for side in block]
    given = [np.array(each) if np.ndim(each) else each for each in arguments]
    options = {"chunks": [2, 3][: CUT[name]]} if name in CUT else {}
    if name == "stitch":
        options["reduction"] = "sum"
    want = function(*lazy, *arguments, window=window, **options).compute()
    first = function(*lazy, *given, window=window, **options)
    for weights in [window] if kind == "full" else window:
        weights *= 2
    second = function(*lazy, *given, window=window, **options)
    window[:] = np.full(block, np.nan) if kind == "full" else [None] * 2
    for each in given:
        if np.ndim(each):
            each[:] = 1
    options.get("chunks", [])[:] = [9] * 3
    assert first.name != second.name
    got, doubled = dask.compute(first, second)
    assert_same_bits(got, want)
    before = OUT if name == "add_blocks" else 0
    assert_same_bits(doubled, before + (want - before) * (2 if kind == "full" else 4))


def test_auto_keeps_chunks_and_what_they_are_made_from_near_the_configured_size():
    with dask.config.set({"array.chunk-size": "64KiB"}):
        blocks = da.ones((63, 63, 16, 16), chunks=(4, 4, 16, 16), dtype=np.float32)
        image = gpufold.dask.blocks_to_array(blocks, (512, 512), (16, 16), strides=8)
        back = gpufold.dask.array_to_blocks(image, (16, 16), strides=8)
    assert 32 < image.chunksize[0] < 80  # 64 by 64 pixels are made from 64 KiB
    assert prod(back.chunksize) * 4 <= 64 * 1024
    assert max(image.numblocks) > 1


# ---- Errors, before anything is computed


@pytest.mark.parametrize("name", EVERY)
def test_what_only_dask_arrays_get_wrong(name):
    function, (arrays, arguments) = getattr(gpufold.dask, name), EVERY[name]
    lazy = [*map(da.from_array, arrays)]
    for place, array in enumerate(lazy):
        for wrong, error, message in (
            (arrays[place], TypeError, r"must be a dask\.array\.Array, got numpy\.ndarray"),
            (array[array[(slice(None), *(0 for _ in array.shape[1:]))] > 0], ValueError, "chunks of known sizes"),
            (array.astype("U3"), TypeError, "the supported ones are|have the dtype of blocks|hold real numbers"),
            (da.ma.masked_array(array), TypeError, "masked"),
        ):
            with pytest.raises(error, match=f"^{name}: .*{message}"):
                function(*lazy[:place], wrong, *lazy[place + 1 :], *arguments)
    if PLACES in arguments:
        of_dask = [da.from_array(np.array(each)) if each is PLACES else each for each in arguments]
        with pytest.raises(TypeError, match=r"positions must be a numpy\.ndarray, because .* got dask\.array\.core"):
            function(*lazy, *of_dask)


WRONG_CHUNKS = [
    *(0, -5, -(10**30), (), "", " ", "tiles", "-5", "0MiB", "1e999B", "nan"),
    *(1.5, float("nan"), float("inf"), True, 2j, b"auto", {}, {0: 3}, {2}, object(), np.float32(3), np.array("x")),
    *(np.array([2.0]), [[1.0]], [["auto"]], [[[3]]], [[3, None]], [{0: 3}], [0], [-2], [(0, 2)], [(-1, 1)], [()]),
]


def call_of(name):
    """Return a function of options alone."""
    arrays, arguments = EVERY[name]
    return partial(getattr(gpufold.dask, name), *map(da.from_array, arrays), *arguments)


def test_a_block_is_not_copied_for_each_of_the_chunks_that_it_meets():
    """512 chunks of 2 kB each had a block of 1 MB."""
    array = da.ones((64, 64, 64), dtype=np.float32, chunks=8)
    peak, taken = peak_of(lambda: gpufold.take_blocks(array, [(0, 0, 0)], 64).compute(scheduler="sync"))
    assert taken.all()
    assert peak < 16 * taken.nbytes


@pytest.mark.parametrize("name", CUT)
def test_chunks_that_do_not_fit_are_refused_by_name(name):
    call = call_of(name)
    for wrong in WRONG_CHUNKS:
        per_axis = [wrong * CUT[name]] if isinstance(wrong, list) and wrong else [wrong, [wrong] * CUT[name]]
        for chunks in per_axis:
            with pytest.raises((TypeError, ValueError)) as error:
                call(chunks=chunks)
            assert re.match(rf"{name}: chunks must be .*, got ", str(error.value), re.DOTALL), chunks
    with pytest.raises(ValueError, match=f"^{name}: chunks must be one value or {CUT[name]}, one per axis"):
        call(chunks=(1, 1, 1))
    with pytest.raises(ValueError, match=r"[Cc]hunks"):
        call(chunks=((1,),) * CUT[name])


@pytest.mark.parametrize("name", CUT)
def test_chunks_are_whatever_dask_takes(name):
    call = call_of(name)
    uncut = call(chunks=-1)
    for chunks in (None, 10**30, np.int64(2**62), "64MiB", [None] * CUT[name], np.full(CUT[name], 99), "auto"):
        assert call(chunks=chunks).chunks == uncut.chunks
    assert call(chunks="32B").npartitions > 1
    if CUT[name] == 2:
        assert call(chunks=["32B", "auto"]).npartitions > 1
        with pytest.raises(ValueError, match=f"^{name}: chunks must be of the same bytes"):
            call(chunks=["32B", "1KiB"])


UNLIKE = {  # functions of an array (2, 4, 6) of chunks, or of its tiles (2, 4, 6) at positions
    "col2im": lambda array: gpufold.dask.col2im(array, (3, 4), (2, 2)),
    "im2col": lambda array: gpufold.dask.im2col(array, (2, 2)),
    "blocks_to_array": lambda array: gpufold.dask.blocks_to_array(array, (2, 9), (6,)),
    "array_to_blocks": lambda array: gpufold.dask.array_to_blocks(array, (2, 2)),
    "batch_to_space": lambda array: gpufold.dask.batch_to_space(array, (1, 2, 1)),
    "space_to_batch": lambda array: gpufold.dask.space_to_batch(array, (1, 2, 2)),
    "add_blocks": lambda array: gpufold.dask.add_blocks(da.zeros((9, 9), dtype="f4"), array, [(0, 1), (5, 3)]),
    "add_blocks, array": lambda array: gpufold.dask.add_blocks(array, da.ones((1, 2, 3, 3), dtype="f4"), [(1, 1)]),
    "take_blocks": lambda array: gpufold.dask.take_blocks(array, [(0, 1), (2, 3)], (2, 2)),
    "stitch": lambda array: gpufold.dask.stitch(array, [(0, 1), (5, 3)], (9, 9)),
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("given", [np.ones((2, 4, 6)), np.ones((2, 3, 6), "f4")], ids=["dtype", "shape"])
def test_a_chunk_that_its_array_does_not_declare_is_refused(name, given):
    """dask compares neither; kernels would read what is not there."""
    array = da.from_delayed(dask.delayed(given), (2, 4, 6), "f4")
    with pytest.raises(ValueError, match=r"a chunk must have the dtype float32 and last axes|reshape"):
        UNLIKE[name](array).compute()


# ---- Processes


@pytest.fixture(scope="module")
def client():
    options = {"host": "127.0.0.1", "dashboard_address": ":0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster, Client(cluster) as client:
        yield client


def test_blocks_go_in_and_out_by_two_processes(client):
    assert len(set(client.run(os.getpid).values())) == 2
    positions = np.random.default_rng(0).integers(-9, 70, (200, 2))
    blocks, window = values((200, 2, 8, 9), np.float32), window_of("separable", (8, 9), np.float32)
    lazy = gpufold.dask.add_blocks(
        da.zeros((2, 70, 70), chunks=(1, 30, 20), dtype=np.float32),
        da.from_array(blocks, chunks=32),
        positions,
        window=window,
    )
    with dask.config.set(scheduler=client):
        taken = gpufold.dask.take_blocks(lazy, positions, (8, 9), window=window, mode="edge", chunks=64).compute()
    want = gpufold.add_blocks_(np.zeros((2, 70, 70), np.float32), blocks, positions, window=window)
    assert_same_bits(taken, gpufold.take_blocks(want, positions, (8, 9), window=window, mode="edge"))


def test_a_missing_array_is_named():
    with pytest.raises(TypeError, match=r"^im2col: the arguments are image, kernel_size, "):
        gpufold.dask.im2col()
