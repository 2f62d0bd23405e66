"""gpufold.dask: the bits of the eager functions, lazily, from nothing but what reaches each chunk."""

from __future__ import annotations

import gc
import os
import random
import re
import time
from functools import partial
from itertools import pairwise
from math import prod

import dask
import dask.array as da
import numpy as np
import pytest
from cases import (
    CASES,
    DTYPES,
    EMPTY_CASES,
    FUSIONS,
    INEXACT,
    POSITIONS_CASES,
    SPACE_CASES,
    PositionsCase,
    assert_same_bits,
    random_case,
    random_positions_case,
    random_space_case,
    values,
    window_of,
)
from distributed import Client, LocalCluster, wait
from fronts import RIGHT, arrays_and_others
from hypothesis import given, settings
from hypothesis import strategies as st

import gpufold
import gpufold.dask
from gpufold.elements import WIDER

OPERATIONS = ("col2im", "im2col", "blocks_to_array", "array_to_blocks", "batch_to_space", "space_to_batch")

SMALL_CASES = [case for case in (*CASES, *EMPTY_CASES) if prod(case.columns_shape) <= 50_000]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Chunks this small are done before a thread starts."""
    with dask.config.set(scheduler="synchronous"):
        yield


# ---------------------------------------------------------------------------------------------
# Equal to the eager functions, however arrays are cut


def cut(draw, size):
    """Sizes of chunks that fill an axis, some of them empty."""
    ends = sorted([*draw(st.lists(st.integers(0, size), max_size=4, unique=draw(st.booleans()))), size])
    return tuple(stop - start for start, stop in pairwise((0, *ends)))


def filled(chunks):
    """Chunks without those that are empty, which a result has none of."""
    return tuple(tuple(filter(None, sizes)) or (0,) for sizes in chunks)


def cut_all(draw, shape):
    return tuple(cut(draw, size) for size in shape)


def check(operation, array, draw, axes, *arguments, **options):
    """Compare one call with the eager one, its result cut along the given number of axes after the leading ones."""
    want = getattr(gpufold, operation)(array, *arguments, **options)
    first, count = axes
    chunks = cut_all(draw, want.shape[first : first + count])
    lazy = getattr(gpufold.dask, operation)(
        da.from_array(array, chunks=cut_all(draw, array.shape)), *arguments, chunks=chunks, **options
    )
    assert (lazy.shape, lazy.dtype, lazy.ndim) == (want.shape, want.dtype, want.ndim)
    assert lazy.chunks[first : first + count] == filled(chunks)
    assert (type(lazy._meta), lazy._meta.dtype, lazy._meta.ndim) == (np.ndarray, want.dtype, want.ndim)
    assert_same_bits(lazy.compute(), want, f"{operation} {arguments} {options} chunks={lazy.chunks}")


def fused(rng, dtype, kernel_size):
    """A dtype of the sums, and a reduction and a window that suit it."""
    wide = np.dtype(rng.choice((dtype.name, *WIDER[dtype.name])))
    if wide not in INEXACT:
        return {"dtype": wide, "reduction": "sum", "window": None}
    reduction, kind, _ = rng.choice((*FUSIONS, ("sum", "none", False)))
    return {"dtype": wide, "reduction": reduction, "window": window_of(kind, kernel_size, wide)}


def check_sliding(case, draw, seed):
    rng = random.Random(seed)
    dtype, rank = rng.choice(DTYPES), len(case.output_size)
    options = fused(rng, dtype, case.kernel_size)
    columns, image = values(case.columns_shape, dtype, seed), values(case.image_shape, dtype, seed)
    lead = image.ndim - rank
    fold = {"fill_value": 0, **options, **case.arguments}
    check("col2im", columns, draw, (lead, rank), case.output_size, case.kernel_size, **fold)
    rows, window = cut(draw, case.num_blocks[0]), options["window"] if dtype in INEXACT else None
    lazy = gpufold.dask.im2col(
        da.from_array(image, chunks=cut_all(draw, image.shape)),
        case.kernel_size,
        window=window,
        chunks=(rows,),
        **case.arguments,
    )
    assert lazy.chunks[-1:] == filled([[size * prod(case.num_blocks[1:]) for size in rows]])
    want = gpufold.im2col(image, case.kernel_size, window=window, **case.arguments)
    assert lazy.shape == want.shape
    assert_same_bits(lazy.compute(), want, case)


def check_blocks(case, draw, seed):
    rng = random.Random(seed)
    dtype, size = rng.choice(DTYPES), case.output_size
    block = tuple(map(min, case.kernel_size, size))
    options = fused(rng, dtype, block)
    lead = tuple(rng.choice((1, 2, 2, 3, 3, 0)) for _ in range(rng.randint(0, 3)))
    array, strides = values((*lead, *size), dtype, seed), case.arguments["strides"]
    cuts, window = (len(lead), len(size)), options["window"] if dtype in INEXACT else None
    check("array_to_blocks", array, draw, cuts, block, strides=strides, window=window)
    blocks = values(gpufold.array_to_blocks(array, block, strides=strides).shape, dtype, seed)
    check("blocks_to_array", blocks, draw, cuts, array.shape, block, strides=strides, fill_value=0, **options)


def check_space(case, draw, seed):
    dtype = DTYPES[seed % len(DTYPES)]
    block, begin, end = case.block_shape, case.crops_begin, case.crops_end
    cuts = (1, len(case.batch_shape) - 1)
    batch, space = values(case.batch_shape, dtype, seed), values(case.space_shape, dtype, seed)
    check("batch_to_space", batch, draw, cuts, block, crops_begin=begin, crops_end=end)
    check("space_to_batch", space, draw, cuts, block, pads_begin=begin, pads_end=end)


def check_positions(case, draw, seed):
    rng, lead, block, places = random.Random(seed), case.lead, case.block, case.positions
    dtype = rng.choice(DTYPES)
    wide = rng.choice((dtype, np.dtype(rng.choice(WIDER[dtype.name] or (dtype.name,)))))
    kind = rng.choice(("none", "separable", "full")) if wide in INEXACT else "none"
    array, blocks = values(case.shape, wide, seed), values(case.blocks_shape, dtype, seed + 1)
    lazy_array = da.from_array(array, chunks=cut_all(draw, array.shape))
    lazy_blocks = da.from_array(blocks, chunks=cut_all(draw, blocks.shape))
    message = f"{case!r} {wide} {dtype} {kind} {lazy_array.chunks}"

    window = window_of(kind, block, wide)
    added = gpufold.dask.add_blocks(lazy_array, lazy_blocks, places, window=window)
    assert (added.chunks, added.dtype, added._meta.dtype) == (filled(lazy_array.chunks), wide, wide)
    assert_same_bits(added.compute(), gpufold.add_blocks_(array.copy(), blocks, places, window=window), message)

    chunks = (cut(draw, len(places)),)
    for mode in ("constant", "edge") if array.size else ("constant",):
        taken = gpufold.dask.take_blocks(lazy_array, places, block, window=window, mode=mode, chunks=chunks)
        assert taken.chunks == filled((*chunks, *lazy_array.chunks[: len(lead)], *((side,) for side in block)))
        assert_same_bits(taken.compute(), gpufold.take_blocks(array, places, block, window=window, mode=mode), message)
    assert_same_bits(lazy_array.compute(), array, "no chunk was written into")


NOTHING = (
    PositionsCase("no-blocks", (5, 7), (2, 3), ()),
    PositionsCase("no-planes", (5, 7), (2, 3), ((1, 2), (4, -1)), lead=(2, 0)),
)
FEW, MANY = (settings(max_examples=count, deadline=None, derandomize=True) for count in (2, 30))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("check_all", "number", "case"),
    [
        pytest.param(check_all, number, case, id=f"{check_all.__name__}-{case}")
        for check_all, cases in (
            (check_sliding, SMALL_CASES),
            (check_blocks, SMALL_CASES),
            (check_space, SPACE_CASES),
            (check_positions, (*POSITIONS_CASES, *NOTHING)),
        )
        for number, case in enumerate(cases)
    ],
)
@FEW
@given(data=st.data())
def test_named_cases_have_the_bits_of_eager_calls(check_all, number, case, data):
    check_all(case, data.draw, number)


@pytest.mark.parametrize(
    ("check_all", "drawn"),
    [
        (check_sliding, random_case),
        (check_blocks, random_case),
        (check_space, random_space_case),
        (check_positions, random_positions_case),
    ],
)
@MANY
@given(seed=st.integers(0, 10_000), data=st.data())
def test_random_calls_have_the_bits_of_eager_calls(check_all, drawn, seed, data):
    check_all(drawn(seed), data.draw, seed)


def test_half_precision_is_rounded_once_however_blocks_are_cut():
    out, blocks = values((5, 6), np.float16), values((40, 3, 3), np.float16, 1)
    positions = np.random.default_rng(0).integers(-2, 6, (40, 2))
    want = gpufold.add_blocks_(out.copy(), blocks, positions)
    lazy = da.from_array(out, chunks=(2, 5))
    assert_same_bits(gpufold.dask.add_blocks(lazy, da.from_array(blocks, chunks=7), positions).compute(), want)


@pytest.mark.parametrize("dtype", INEXACT, ids=str)
@FEW
@given(data=st.data())
def test_averages_have_the_bits_of_eager_calls(dtype, data):
    """Whatever the chunks: weights are for all leading axes alike, and some are none."""
    sums, weight = values((2, 3, 5, 7), dtype), values((5, 7), np.float32, 1)
    weight[1:3, 2:] = 0
    lazy, of_pixels = (da.from_array(array, chunks=cut_all(data.draw, array.shape)) for array in (sums, weight))
    got = gpufold.dask.average(lazy, of_pixels)
    assert (got.shape, got.dtype, got._meta.dtype) == (sums.shape, dtype, dtype)
    assert got.chunks[:2] == filled(lazy.chunks[:2])
    assert_same_bits(got.compute(), gpufold.average(sums, weight))
    by_row = gpufold.dask.average(lazy[:0], of_pixels[2])
    assert_same_bits(by_row.compute(), gpufold.average(sums[:0], weight[2]))


# ---------------------------------------------------------------------------------------------
# Stitching


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
    stitcher = gpufold.Stitcher((*lead, *size), block, window=window, reduction=reduction)
    stitcher.add(tiles, positions)
    want, chunks = stitcher.result(), cut_all(data.draw, size)
    lazy = gpufold.dask.stitch(
        da.from_array(tiles, chunks=cut_all(data.draw, tiles.shape)),
        positions,
        (*lead, *size),
        window=window,
        reduction=reduction,
        chunks=chunks,
    )
    assert (lazy.shape, lazy.dtype, lazy._meta.dtype) == (want.shape, want.dtype, want.dtype)
    assert lazy.chunks[len(lead) :] == filled(chunks)
    assert_same_bits(lazy.compute(), want, f"seed {seed}")
    stitcher = gpufold.Stitcher((*lead, *size), block, window=window, reduction=reduction)
    for batch in np.array_split(np.arange(len(tiles)), 2):
        stitcher.add(da.from_array(tiles[batch], chunks=cut_all(data.draw, tiles[batch].shape)), positions[batch])
    assert_same_bits(stitcher.result().compute(), want, f"seed {seed}, in two batches")


LAZY = da.ones((2, 4, 4))
CORNERS = [(0, 0), (2, 2)]


@pytest.mark.parametrize(
    ("options", "before", "given", "error", "message"),
    [
        ({"slabs": True}, None, {}, TypeError, "add: blocks must be in memory with slabs=True"),
        ({}, None, {"window": np.ones((4, 4))}, TypeError, "add: blocks must be in memory with slabs=True, a window"),
        ({}, None, {"weights": np.ones(2)}, TypeError, "add: blocks must be in memory with slabs=True, a window or w"),
        ({}, np.ones((2, 4, 4)), {}, TypeError, "add: blocks must be in memory .* got a dask array"),
        ({}, LAZY, {"blocks": np.ones((2, 4, 4))}, TypeError, "add: blocks must be a dask.array.Array, got numpy"),
        (
            {},
            None,
            {"blocks": LAZY[:, :3]},
            ValueError,
            r"add: blocks that are dask arrays must be \(P, \*\(4, 4\)\) of the first",
        ),
        (
            {},
            LAZY,
            {"blocks": LAZY.astype("f4")},
            ValueError,
            "add: blocks that are dask arrays must be .* dtype float64, .* of float32",
        ),
        ({}, None, {"positions": CORNERS[:1]}, ValueError, r"add: blocks .* and positions \(P, 2\), got .* \(1, 2\)"),
    ],
)
def test_a_stitcher_refuses_what_cannot_be_lazy(options, before, given, error, message):
    stitcher = gpufold.Stitcher((6, 6), 4, **options)
    if before is not None:
        stitcher.add(before, CORNERS)
    with pytest.raises(error, match=f"^Stitcher.{message}"):
        stitcher.add(**{"blocks": LAZY, "positions": CORNERS, **given})
    if before is not None:
        assert float(stitcher.result().sum()) == 28


def test_a_stitcher_copies_the_positions_of_dask_arrays():
    stitcher, places = gpufold.Stitcher((6, 6), 4), np.array(CORNERS)
    stitcher.add(LAZY, places)
    places[...] = 99
    assert float(stitcher.result().sum()) == 28


def test_a_stitcher_computes_nothing_of_dask_arrays_to_fill_it():
    stitcher = gpufold.Stitcher((6, 6), 4)
    stitcher.add(LAZY, CORNERS)
    with pytest.raises(ValueError, match=r"^Stitcher.result: fill_value must be 0 for dask arrays"):
        stitcher.result(fill_value=None)


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
        (TypeError, "reduction must be a str, one of sum, .* got array", {"reduction": np.array(["mean", "mean"])}),
        (ValueError, r"window must have the shape \(4, 5\)", {"window": np.ones((5, 4))}),
        (TypeError, "window must hold real", {"window": np.ones((4, 5), complex)}),
        (ValueError, "chunks must be one value or 2", {"chunks": (2, 2, 2)}),
        (ValueError, "more than the .* that an array can have", {"output_shape": (3, 2**31, 2**31)}),
    ],
)
def test_what_cannot_be_stitched_is_refused_before_it_is_computed(error, match, wrong):
    tiles = da.map_blocks(never, chunks=((1, 1), (3,), (4,), (5,)), meta=np.empty((0,) * 4, np.float32))
    right = {"positions": [(0, 0)] * 2, "output_shape": (3, 8, 9)}
    with pytest.raises(error, match=f"^stitch: .*{match}"):
        gpufold.dask.stitch(tiles, **right | wrong)


# ---------------------------------------------------------------------------------------------
# Graphs


def never(block_info=None):
    raise AssertionError("computed")


EVERY = {name: arrays_and_others(name) for name in RIGHT}
(OUT, BLOCKS), (PLACES,) = EVERY["add_blocks"]
EVERY["stitch"] = ((BLOCKS,), (PLACES, (2, 8, 9)))
"""A call of each function: its arrays and the other arguments."""

SINGLE = [
    ("col2im", (np.ones((1, 4, 9)),), ((4, 4), (2, 2))),
    ("im2col", (np.ones((1, 1, 4, 1)),), ((2, 1),)),
    ("average", (np.ones((1, 1, 3)), np.ones((1, 3))), ()),
    ("stitch", (np.ones((1, 1, 4)),), ([(1, 0)], (6, 5))),
]
"""Calls with axes of one."""


@pytest.mark.parametrize(("name", "arrays", "arguments"), [*((name, *call) for name, call in EVERY.items()), *SINGLE])
def test_empty_chunks_change_nothing(name, arrays, arguments):
    """Those that a mask leaves, along any axis of any array."""
    for operand, array in enumerate(arrays):
        for axis in range(array.ndim):
            lazy = [da.from_array(each + np.arange(each.size).reshape(each.shape)) for each in arrays]
            want = getattr(gpufold.dask, name)(*lazy, *arguments)
            full, size, lead = lazy[operand], array.shape[axis], (slice(None),) * axis
            for chunks in ((2, 3, size), (size, 1, 4), (1, size, 2, 2)):  # of which that of the size is kept
                kept = np.concatenate([np.full(extent, extent == size) for extent in chunks])
                kept[np.flatnonzero(kept)[size:]] = False
                source = np.maximum(np.cumsum(kept) - 1, 0)
                padded = full[(*lead, source)].rechunk({axis: chunks})
                lazy[operand] = padded[(*lead, da.from_array(kept, chunks=(chunks,)))].compute_chunk_sizes()
                assert 0 in lazy[operand].chunks[axis]
                got = getattr(gpufold.dask, name)(*lazy, *arguments)
                assert all(all(sizes) for sizes in got.chunks)
                assert_same_bits(got.compute(), want.compute(), f"{operand} {axis} {chunks}")


@pytest.mark.parametrize("name", ["array_to_blocks", "batch_to_space", "stitch"])
def test_empty_chunks_that_are_asked_for_are_left_out(name):
    arrays, arguments = EVERY[name]
    function, lazy = getattr(gpufold.dask, name), [da.from_array(array) for array in arrays]
    want = function(*lazy, *arguments, chunks=-1)
    first = 1 if want.ndim > 2 else 0
    sizes = want.shape[first : first + 2]
    got = function(*lazy, *arguments, chunks=tuple((0, 1, 0, 0, size - 1, 0) for size in sizes))
    assert got.chunks[first : first + 2] == tuple((1, size - 1) for size in sizes)
    assert_same_bits(got.compute(), want.compute())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_is_computed_before_it_is_asked_for(operation):
    (array,), arguments = EVERY[operation]
    shape = array.shape
    array = da.map_blocks(never, chunks=[(size,) for size in shape], meta=np.empty((0,) * len(shape), np.float32))
    result = getattr(gpufold.dask, operation)(array, *arguments)
    want = getattr(gpufold, operation)(np.ones(shape, np.float32), *arguments)
    assert (result.shape, result.dtype, result._meta.ndim) == (want.shape, want.dtype, want.ndim)
    with pytest.raises(AssertionError, match="computed"):
        result.compute()


def sources(result, name="source"):
    """For every chunk of a result, the chunks of the array called `name` that it depends on."""
    graph = result.__dask_graph__()
    dependencies = graph.get_all_dependencies()

    def reached(key):
        seen, waiting = set(), [key]
        while waiting:
            key = waiting.pop()
            if key not in seen:
                seen.add(key)
                waiting += dependencies.get(key, ())
        return {key[1:] for key in seen if isinstance(key, tuple) and key[0] == name}

    return {index: reached((result.name, *index)) for index in np.ndindex(result.numblocks)}


def cut_source(shape, chunks):
    return da.from_array(np.ones(shape, np.float32), chunks=chunks, name="source")


def test_batch_and_channels_never_meet():
    columns = cut_source((4, 12, 63), (1, 4, 21))
    image = gpufold.dask.col2im(columns, (8, 10), (2, 2), chunks=4)
    back = gpufold.dask.im2col(cut_source((4, 3, 8, 10), (1, 1, 4, 4)), (2, 2), chunks=3)
    blocks = gpufold.dask.blocks_to_array(
        cut_source((4, 3, 7, 9, 2, 2), (1, 1, 4, 4, 2, 2)), (4, 3, 8, 10), (2, 2), strides=1
    )
    for result in (image, back, blocks):
        assert result.numblocks[:2] == (4, 3)
        assert all(key[:2] == index[:2] for index, keys in sources(result).items() for key in keys)


def reaching(fold, shape, chunks):
    """By the eager function: for every chunk of the result, the chunks of the input that any of it comes from."""
    array = da.from_array(np.zeros(shape, np.float32), chunks=chunks)
    found = {}
    for index, slices in zip(np.ndindex(array.numblocks), da.core.slices_from_chunks(array.chunks), strict=True):
        ones = np.zeros(shape, np.float32)
        ones[slices] = 1
        result = fold(da.from_array(ones, chunks=shape))
        computed = result.compute()
        for to, part in zip(np.ndindex(result.numblocks), da.core.slices_from_chunks(result.chunks), strict=True):
            if computed[part].any():
                found.setdefault(to, set()).add(index)
    return found


@pytest.mark.parametrize(
    ("shape", "chunks", "fold"),
    [
        (
            (11, 9, 4, 3),
            (3, 4, 4, 3),
            partial(gpufold.dask.blocks_to_array, output_shape=(24, 11), block_shape=(4, 3), strides=(2, 1), chunks=5),
        ),
        ((1, 4, 77), (1, 4, 22), partial(gpufold.dask.col2im, output_size=(8, 12), kernel_size=(2, 2), chunks=(3, 12))),
        ((1, 1, 9, 8), (1, 1, 2, 8), partial(gpufold.dask.im2col, kernel_size=(3, 2), chunks=2)),
        ((9, 12), (2, 5), partial(gpufold.dask.array_to_blocks, block_shape=(3, 2), strides=(1, 2), chunks=2)),
        (
            (8, 5, 6),
            (8, 2, 2),
            partial(gpufold.dask.batch_to_space, block_shape=(1, 2, 4), crops_begin=(0, 1, 1), chunks=3),
        ),
        ((1, 10, 12), (1, 2, 8), partial(gpufold.dask.space_to_batch, block_shape=(1, 2, 4), chunks=2)),
    ],
    ids=lambda value: value.func.__name__ if isinstance(value, partial) else "",
)
def test_a_chunk_depends_on_what_reaches_it_and_on_nothing_else(shape, chunks, fold):
    assert sources(fold(cut_source(shape, chunks))) == reaching(fold, shape, chunks)


def at_positions(operation, positions):
    """A call of add_blocks into 8 x 8 zeros, of stitch or of take_blocks: what it is given, and blocks of 3 x 3."""
    if operation == "add_blocks":
        return lambda blocks: gpufold.dask.add_blocks(da.zeros((8, 8), chunks=(3, 2)), blocks.astype("f8"), positions)
    if operation == "stitch":
        return lambda blocks: gpufold.dask.stitch(blocks.astype("f8"), positions, (8, 8), chunks=(3, 2))
    return lambda array: gpufold.dask.take_blocks(array, positions, 3, chunks=2)


@pytest.mark.parametrize(
    ("operation", "shape", "chunks"),
    [("add_blocks", (9, 3, 3), (4, 3, 3)), ("stitch", (9, 3, 3), (4, 3, 3)), ("take_blocks", (8, 8), (3, 2))],
)
def test_a_chunk_depends_on_the_blocks_that_meet_it_and_on_nothing_else(operation, shape, chunks):
    positions = np.array([(0, 0), (3, 2), (5, 5), (-3, 1), (2, 8), (-1, -2), (1, 7), (7, 7), (3, 4)])
    call = at_positions(operation, positions)
    met = {index: keys for index, keys in sources(call(cut_source(shape, chunks))).items() if keys}
    assert met == reaching(call, shape, chunks)


def test_a_graph_grows_with_the_pairs_that_meet():
    """Of 2,500 blocks and 10,000 chunks, most of which no block meets."""
    positions = gpufold.grid_positions((1000, 1000), 20, strides=20)
    array, blocks = da.zeros((10_000, 10_000), chunks=100), da.ones((2500, 20, 20), chunks=(50, 20, 20))
    added = gpufold.dask.add_blocks(array, blocks, positions)
    taken = gpufold.dask.take_blocks(array, positions, 20, chunks=50)
    own = [len(result.__dask_graph__().layers[result.name]) for result in (added, taken)]
    assert own[0] <= 10_000 + 50 * 10, "an own chunk for each of the array's, and each row of blocks meets ten"
    assert own[1] <= 50 + 50 * 10


@pytest.mark.parametrize("name", ["add_blocks", "stitch", "take_blocks"])
def test_a_graph_is_made_in_time_that_grows_with_it(name):
    """Eight times the chunks along an axis take eight times as long, not sixty-four."""

    def seconds(count):
        positions, lazy = np.arange(count)[:, None], da.zeros(count, chunks=1)
        if name == "take_blocks":
            make = partial(gpufold.dask.take_blocks, lazy, positions, 1, chunks=-1)
        elif name == "add_blocks":
            make = partial(gpufold.dask.add_blocks, lazy, da.ones((count, 1), chunks=(-1, 1)), positions)
        else:
            make = partial(gpufold.dask.stitch, da.ones((2, 3), chunks=3), [(0,), (1,)], (count,), chunks=1)
        taken = []
        for _ in range(3):
            begin = time.process_time()
            make()
            taken.append(time.process_time() - begin)
        return min(taken)

    gc.collect()
    gc.disable()  # which looks at everything that the tests before left, now and then
    try:
        assert seconds(16_000) < 16 * seconds(2000)
    finally:
        gc.enable()


WINDOWED = ("col2im", "im2col", "blocks_to_array", "array_to_blocks", "add_blocks", "take_blocks", "stitch")


@pytest.mark.parametrize("kind", ["full", "separable"])
@pytest.mark.parametrize("name", WINDOWED)
def test_what_a_caller_changes_after_the_call_changes_no_result(name, kind):
    """Each result has the window, the positions and the sizes of its call, and a name of its own."""
    arrays, arguments = EVERY[name]
    function, lazy = getattr(gpufold.dask, name), [da.from_array(array) for array in arrays]
    block = (2, 2) if name in OPERATIONS else (4, 5)
    window = np.ones(block, np.float32) if kind == "full" else [np.ones(side, np.float32) for side in block]
    given = [np.array(each) if np.ndim(each) else each for each in arguments]
    options = {} if name == "add_blocks" else {"chunks": [2] if name in ("im2col", "take_blocks") else [2, 3]}
    if name == "stitch":
        options["reduction"] = "sum"
    want = function(*lazy, *arguments, window=window, **options).compute()
    first = function(*lazy, *given, window=window, **options)
    for weights in [window] if kind == "full" else window:
        weights *= 2
    second = function(*lazy, *given, window=window, **options)
    if kind == "full":
        window[:] = np.nan
    else:
        window[:] = [None] * 2
    for each in given:
        if np.ndim(each):
            each[:] = 1
    for sizes in options.get("chunks", []):
        options["chunks"][:] = [sizes] * 3
    assert first.name != second.name
    got, doubled = dask.compute(first, second)
    assert_same_bits(got, want)
    before = OUT if name == "add_blocks" else 0
    assert_same_bits(doubled, before + (want - before) * (2 if kind == "full" else 4))


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


def test_chunks_that_cut_channels_or_rows_of_blocks_reach_to_their_end():
    columns = cut_source((1, 12, 63), (1, (3, 1, 2, 6), (10, 20, 33)))  # channels end at 4, 8, 12, rows at 9, 18, ...
    image = gpufold.dask.col2im(columns, (8, 10), (2, 2), chunks=(8, 10))
    assert image.chunks[1] == (1, 1, 1)
    assert sources(image)[0, 0, 0, 0] == {(0, row, part) for row in (0, 1) for part in (0, 1, 2)}


def test_auto_keeps_chunks_and_what_they_are_made_from_near_the_configured_size():
    with dask.config.set({"array.chunk-size": "64KiB"}):
        blocks = da.ones((63, 63, 16, 16), chunks=(4, 4, 16, 16), dtype=np.float32)
        image = gpufold.dask.blocks_to_array(blocks, (512, 512), (16, 16), strides=8)
        back = gpufold.dask.array_to_blocks(image, (16, 16), strides=8)
    assert 32 < image.chunksize[0] < 80  # 64 by 64 pixels are made from 64 KiB
    assert prod(back.chunksize) * 4 <= 64 * 1024
    assert max(image.numblocks) > 1


# ---------------------------------------------------------------------------------------------
# Errors, before anything is computed


@pytest.mark.parametrize("name", EVERY)
def test_what_only_dask_arrays_get_wrong(name):
    function, (arrays, arguments) = getattr(gpufold.dask, name), EVERY[name]
    lazy = [*map(da.from_array, arrays)]
    for place, array in enumerate(lazy):
        for wrong, error, message in (
            (arrays[place], TypeError, r"must be a dask\.array\.Array, got numpy\.ndarray"),
            (array[array[(slice(None), *(0 for _ in array.shape[1:]))] > 0], ValueError, "chunks of known sizes"),
            (array.astype("U3"), TypeError, "the supported ones are|have the result's dtype|hold real numbers"),
            (da.ma.masked_array(array), TypeError, "masked"),
        ):
            with pytest.raises(error, match=f"^{name}: .*{message}"):
                function(*lazy[:place], wrong, *lazy[place + 1 :], *arguments)
    if PLACES in arguments:
        of_dask = [da.from_array(np.array(each)) if each is PLACES else each for each in arguments]
        with pytest.raises(
            TypeError, match=r"positions must be a numpy\.ndarray, because .* got dask\.array\.core\.Array"
        ):
            function(*lazy, *of_dask)


CUT = {name: 1 if name in ("im2col", "take_blocks") else 2 for name in EVERY if name not in ("add_blocks", "average")}
"""The functions that cut their result, and along how many axes."""

WRONG_CHUNKS = [
    *(0, -5, -(10**30), (), "", " ", "tiles", "-5", "0MiB", "1e999B", "nan"),
    *(1.5, float("nan"), float("inf"), True, 2j, b"auto", {}, {0: 3}, {2}, object(), np.float32(3), np.array("x")),
    *(np.array([2.0]), [[1.0]], [["auto"]], [[[3]]], [[3, None]], [{0: 3}], [0], [-2], [(0, 2)], [(-1, 1)], [()]),
]


@pytest.mark.parametrize("name", CUT)
def test_chunks_that_do_not_fit_are_refused_by_name(name):
    arrays, arguments = EVERY[name]
    function, lazy = getattr(gpufold.dask, name), [da.from_array(array) for array in arrays]
    for wrong in WRONG_CHUNKS:
        per_axis = [wrong * CUT[name]] if isinstance(wrong, list) and wrong else [wrong, [wrong] * CUT[name]]
        for chunks in per_axis:
            with pytest.raises((TypeError, ValueError)) as error:
                function(*lazy, *arguments, chunks=chunks)
            assert re.match(rf"{name}: chunks must be .*, got ", str(error.value), re.DOTALL), chunks
    with pytest.raises(ValueError, match=f"^{name}: chunks must be one value or {CUT[name]}, one per axis"):
        function(*lazy, *arguments, chunks=(1, 1, 1))
    with pytest.raises(ValueError, match=r"[Cc]hunks"):
        function(*lazy, *arguments, chunks=((1,),) * CUT[name])


@pytest.mark.parametrize("name", CUT)
def test_chunks_are_whatever_dask_takes(name):
    arrays, arguments = EVERY[name]
    function, lazy = getattr(gpufold.dask, name), [da.from_array(array) for array in arrays]
    uncut = function(*lazy, *arguments, chunks=-1)
    for chunks in (None, 10**30, np.int64(2**62), "64MiB", [None] * CUT[name], np.full(CUT[name], 99), "auto"):
        assert function(*lazy, *arguments, chunks=chunks).chunks == uncut.chunks
    assert function(*lazy, *arguments, chunks="32B").npartitions > 1
    if CUT[name] == 2:
        assert function(*lazy, *arguments, chunks=["32B", "auto"]).npartitions > 1
        with pytest.raises(ValueError, match=f"^{name}: chunks must be of the same bytes"):
            function(*lazy, *arguments, chunks=["32B", "1KiB"])


# ---------------------------------------------------------------------------------------------
# Storage, processes, and a GPU


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


def test_parts_of_a_picture_follow_each_other(client):
    """As docs/dask.md stores them; with what dask fuses by default the scheduler mistakes tasks of two parts."""
    source = da.random.default_rng(0).random((40, 40, 16, 16), chunks=(8, 8, 16, 16), dtype=np.float32)
    picture = gpufold.dask.blocks_to_array(source, (484, 484), (16, 16), strides=12, reduction="mean", chunks=96)
    parts = [(slice(y, y + 288), slice(x, x + 288)) for y in (0, 288) for x in (0, 288)]
    held = []  # of the part before, as it is for a moment after each `da.store`
    with dask.config.set({"optimization.fuse.active": False}):
        for part in parts:
            held.append(client.persist(picture[part]))
            wait(held)
    with dask.config.set(scheduler="synchronous"):
        want = gpufold.blocks_to_array(source.compute(), (484, 484), (16, 16), strides=12, reduction="mean")
    for part, got in zip(parts, held, strict=True):
        assert_same_bits(got.compute(scheduler=client), want[part])


@pytest.mark.gpu
def test_chunks_of_cupy_have_the_bits_of_numpy_chunks():
    """Of those that test_gpu.py does not compute."""
    import cupy

    out, blocks, positions = values((2, 20, 30), np.float32), values((9, 2, 6, 7), np.float32), PLACES * 3
    lazy, lazy_blocks = (da.from_array(cupy.asarray(array), chunks=5, asarray=False) for array in (out, blocks))
    added = gpufold.dask.add_blocks(lazy, lazy_blocks, positions)
    taken = gpufold.dask.take_blocks(lazy, positions, (6, 7), mode="edge", chunks=4)
    averaged = gpufold.dask.average(added, lazy[0])
    sums = gpufold.add_blocks_(out.copy(), blocks, positions)
    batch = gpufold.space_to_batch(out, (1, 2, 2))
    spread = gpufold.dask.space_to_batch(lazy, (1, 2, 2), chunks=2)
    for result, want in (
        (spread, batch),
        (gpufold.dask.batch_to_space(spread, (1, 2, 2), chunks=5), out),
        (added, sums),
        (averaged, gpufold.average(sums, out[0])),
        (taken, gpufold.take_blocks(out, positions, (6, 7), mode="edge")),
    ):
        assert isinstance(result._meta, cupy.ndarray)
        assert_same_bits(cupy.asnumpy(result.compute()), want)
