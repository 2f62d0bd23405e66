"""Bad calls: each raises ValueError or TypeError with the argument, what was given and what was expected.

And each leaves everything as it was: nothing is allocated to speak of, `out` keeps its contents.
"""

from __future__ import annotations

import re
import warnings
from itertools import cycle
from math import nan

import numpy as np
import pytest
from cases import DTYPES, folded, peak_of

import gpufold
import gpufold.onnx

HUGE, ONES = 2**62, (1,) * 32

FromXarray = type("DataArray", (), {"__module__": "xarray.core"})


def call_of(called, /, **right):
    """What makes a call of a function that works, with arguments changed."""
    return lambda **changes: (called, right | changes)


BLOCKS, PICTURE = np.ones((3, 4, 4, 2, 2), np.float32), np.ones((3, 8, 9), np.float32)
ARRAY, TILES, THREE, WEIGHT = np.zeros((2, 6, 8)), np.ones((3, 2, 2, 3)), [(0, 0), (1, 1), (2, 2)], np.zeros((6, 8))
ROOM, INTS, WORDS = np.zeros(48), np.ones((2, 12, 20), "i4"), np.full((2, 12, 20), "a")
SHEET, AT = ROOM.reshape(6, 8), np.zeros((3, 2), int)

columns = call_of(gpufold.col2im, data=np.ones((2, 12, 20), np.float32), output_size=(5, 6), kernel_size=(2, 2))
image = call_of(gpufold.im2col, image=np.ones((2, 3, 5, 6), np.float32), kernel_size=(2, 2))
batch = call_of(
    gpufold.batch_to_space, data=np.ones((12, 4, 5)), block_shape=(1, 2, 3), crops_begin=(0, 1, 0), crops_end=(0, 0, 2)
)
space = call_of(
    gpufold.space_to_batch, data=np.ones((2, 7, 13)), block_shape=(1, 2, 3), pads_begin=(0, 1, 0), pads_end=(0, 0, 2)
)
adding = call_of(gpufold.add_blocks_, array=ARRAY, blocks=TILES, positions=THREE)
added = call_of(gpufold.add_blocks, array=np.ones((2, 6, 8)), blocks=TILES, positions=THREE, out=ARRAY)
taking = call_of(gpufold.take_blocks, array=ARRAY, positions=THREE, block_shape=(2, 3))
together = call_of(gpufold.blocks_to_array, blocks=BLOCKS, output_shape=(3, 8, 8), block_shape=(2, 2), strides=2)
apart = call_of(gpufold.array_to_blocks, array=WEIGHT, block_shape=(2, 2), strides=1)
averaging = call_of(gpufold.average, numerator=np.ones((2, 3, 4)), weight=np.ones((3, 4)))
grid = call_of(gpufold.grid_positions, size=(5, 5), block_shape=2, strides=1)
onnx = call_of(gpufold.onnx.col2im, input=np.ones((2, 12, 20)), image_shape=(5, 6), block_shape=(2, 2))
mapping = call_of(gpufold.map_tiles, function=np.copy, array=PICTURE, block_shape=(2, 4), strides=(2, 3))
stitching = call_of(gpufold.Stitcher, output_shape=(8, 9), block_shape=4)
DESCRIBED = {"operation": "col2im", "data": ((2, 12, 20), "f4"), "output_size": (5, 6), "kernel_size": (2, 2)}
explaining = call_of(gpufold.explain, **DESCRIBED)

OF_ONNX = "but image_shape=(5, 6), block_shape=(2, 2), strides=(1, 1), dilations=(1, 1), begins of pads=(0, 0), "
OF_SHAPE, OF_KERNEL = (
    f"use strides = {name} - overlap, or {name} * (1 - overlap) of a fraction"
    for name in ("block_shape", "kernel_size")
)


def bad_sizes():
    """Yield bad calls of each argument that takes integers: a type, a number and, of most, a length."""
    types = cycle(("2", (1, 2.0), nan, b"\0\0", True, (2, np.True_), 1.5, (1, "2"), 2j))
    smaller, lengths = cycle((-1, -HUGE)), cycle((1, 4, 0, 5))
    for make, axes, arguments in (
        (columns, 2, "output_size kernel_size 2 strides 2 dilations 2 pads_begin 2 pads_end 2"),
        (image, 2, "kernel_size strides 2 dilations 2 pads_begin 2 pads_end 2"),
        (batch, 3, "block_shape crops_begin 3 crops_end 3"),
        (space, 3, "block_shape pads_begin 3 pads_end 3"),
        (apart, 2, "block_shape strides 2"),
        (together, 2, "output_shape block_shape strides 2"),
        (taking, 2, "block_shape 2"),
        (grid, 2, "size block_shape 2 strides 2"),
        (mapping, 2, "block_shape strides 2"),
        (onnx, 2, "image_shape block_shape 2 strides 2 dilations 2"),
    ):
        for name, wanted in re.findall(r"(\w+[a-z]\b)(?: (\d))?", arguments):
            least = int(name in ("output_size", "image_shape", "kernel_size", "block_shape", "size", "strides"))
            bad, small, count = next(types), least + next(smaller), next(lengths)
            yield make(**{name: bad}), TypeError, [f"{name} must be an integer or a sequence", f"got {bad!r}"]
            message = f"{name} must be at least {least} on every axis, got {small} on "
            yield make(**{name: (*(least,) * (axes - 1), small)}), ValueError, [message, f"axis {axes - 1}"]
            if wanted:
                yield make(**{name: (1,) * count}), ValueError, [f"{name} must have {wanted} values", f"got {count}"]


BAD_CALLS = [
    *bad_sizes(),
    *((make(strides=None), TypeError, ["strides must be an integer or", "got None"]) for make in (columns, image)),
    (columns(output_size=30), TypeError, ["output_size", "sequence", "got 30; write (30, 30) for two spatial axes"]),
    (image(kernel_size=2), TypeError, ["kernel_size", "sequence", "got 2; write (2, 2) for two spatial axes"]),
    # --- col2im: sizes that do not fit together
    (columns(output_size=()), ValueError, ["output_size", "at least one", "()"]),
    (columns(data=np.ones((2, 12, 19))), ValueError, ["data axis 2", "got 19", "4 * 5 = 20 blocks"]),
    (columns(data=np.ones((12, 19))), ValueError, ["data axis 1", "got 19", "20 blocks"]),
    (columns(data=np.ones((2, 13, 20))), ValueError, ["data axis 1", "multiple of 4", "got 13"]),
    (columns(data=np.ones(20)), ValueError, ["data", "rank 3 or 2", "got rank 1"]),
    (columns(data=np.ones((1, 2, 12, 20))), ValueError, ["data", "rank 3 or 2", "got rank 4"]),
    # an axis with fewer than one block: (-2)*(-2) = 4 blocks once passed for right
    (columns(data=np.ones((1, 16, 4)), output_size=(1, 1), kernel_size=(4, 4)), ValueError, ["axis 0", "1 pixels"]),
    (columns(dilations=(1, 6)), ValueError, ["padded image is smaller", "axis 1", "6 pixels", "= 7"]),
    (image(kernel_size=(6, 1)), ValueError, ["padded image is smaller", "axis 0", "5 pixels", "= 6"]),
    # the last axis is as short as channels
    (columns(data=np.ones((2, 8, 1)), output_size=(2, 2), kernel_size=(2, 4)), ValueError, ["on spatial axis 1"]),
    # sizes that wrap in 64 bits
    (columns(kernel_size=(HUGE, HUGE), pads_end=HUGE), ValueError, ["data axis 1", "multiple of", str(HUGE * HUGE)]),
    # results that cannot be, even where they have no element
    *(
        (call, ValueError, ["the result of shape (0, ", "bytes", "more than the"])
        for call in (
            columns(data=np.ones((0, 1, 1)), output_size=(HUGE, HUGE), kernel_size=(1, 1), strides=HUGE),
            image(image=np.ones((0, 3, 5, 6)), pads_end=HUGE),
            together(blocks=np.ones((0, 1, 1, 1, 1)), output_shape=(0, HUGE, HUGE), block_shape=(1, 1), strides=HUGE),
            batch(data=np.ones((0, 1, 1)), block_shape=(1, HUGE, HUGE), crops_begin=0, crops_end=0),
            space(data=np.ones((0, 7, 13)), block_shape=(1, 1, 1), pads_begin=(0, HUGE, HUGE), pads_end=0),
            taking(array=PICTURE, positions=np.ones((0, 2), int), block_shape=HUGE),
        )
    ),
    *(
        (call, MemoryError, ["Unable to allocate"])
        for call in (
            columns(data=np.ones((1, 1)), output_size=(1 << 22,) * 2, kernel_size=(1, 1), strides=1 << 22),
            grid(size=(1 << 45,), block_shape=1),
        )
    ),
    # more axes than an array can have
    *(
        (call, ValueError, ["an array has at most 64 axes, but", "would have"])
        for call in (
            columns(data=np.ones((1, 1)), output_size=ONES, kernel_size=1),
            image(image=np.ones((1, *ONES)), kernel_size=ONES),
            together(blocks=np.ones(ONES * 2), output_shape=ONES * 2, block_shape=ONES),
            apart(array=np.ones((2, 1, *ONES)), block_shape=ONES),
            batch(data=np.ones((1, *ONES)), block_shape=(1, *ONES), crops_begin=0, crops_end=0),
            space(data=np.ones((1, *ONES)), block_shape=(1, *ONES), pads_begin=0, pads_end=0),
            taking(array=np.ones(ONES * 2), positions=np.zeros((1, 32), int), block_shape=ONES),
        )
    ),
    # --- col2im: the result's dtype
    *(
        (columns(data=np.ones((2, 12, 20), given), dtype=wanted), TypeError, ["dtype must be", "of data", message])
        for given, wanted, message in (
            ("f2", "i8", "float16 or float32 or float64, got int64"),
            ("f4", "f2", "float32 or float64, got float16"),
            ("f4", ">f8", "float32 or float64, got >f8"),
            ("c8", float, "complex64 or complex128, got float64"),
            ("f8", "f4", "float64, got float32"),
            ("u2", "u1", "uint16 or int32 or uint32 or int64 or uint64 or float32 or float64, got uint8"),
            ("f4", "wide", "float32 or float64, got 'wide'"),
            ("f4", np.ones(3), "float32 or float64, got array([1., 1., 1.])"),
        )
    ),
    # --- im2col: ranks and sizes
    (image(kernel_size=()), ValueError, ["kernel_size", "at least one", "()"]),
    (image(kernel_size=(2, 2, 2, 2)), ValueError, ["image", "4 spatial axes", "got rank 4"]),
    (image(kernel_size=(2,)), ValueError, ["image", "1 spatial axes", "got rank 4"]),
    (image(image=np.ones((2, 3, 0, 6))), ValueError, ["the image's size", "at least 1", "got 0 on spatial axis 0"]),
    # --- batch_to_space
    (batch(block_shape=(2, 2, 3)), ValueError, ["block_shape", "1 on axis 0", "got 2"]),
    (batch(block_shape=(1, 5, 3)), ValueError, ["data axis 0", "multiple of", "15", "got 12"]),
    (batch(crops_begin=(1, 0, 0)), ValueError, ["crops_begin", "0 on axis 0", "got 1"]),
    (batch(crops_begin=(0, 8, 0), crops_end=(0, 1, 0)), ValueError, ["crops_begin + crops_end", "8 + 1 = 9 on axis 1"]),
    (batch(data=np.ones(12)), ValueError, ["data", "rank 2 or more", "got rank 1"]),
    # --- space_to_batch
    (space(pads_begin=0), ValueError, ["data + pads_begin + pads_end", "multiple of block_shape", "= 7 on axis 1"]),
    # --- an array of a foreign kind
    (columns(data=FromXarray()), TypeError, ["data", "xarray.core.DataArray", "numpy.asarray(data)"]),
    # --- names and variants that there are not
    *(
        (make(**{word: 2}), TypeError, [f"unexpected keyword '{word}'; {answer}"])
        for make, word, answer in (
            (image, "padding", "use pads_begin and pads_end"),
            (image, "rates", "did you mean 'dilations'?"),
            (image, "overlap", OF_KERNEL),
            (apart, "overlap", OF_SHAPE),
            (apart, "pad", "use last='over', or numpy.pad before"),
            (apart, "pads_begin", "use last='over', or numpy.pad before"),
            (apart, "axes", "spatial axes are the last ones: use numpy.moveaxis before"),
            (together, "reductoin", "did you mean 'reduction'?"),
            (batch, "crops", "use crops_begin and crops_end"),
            (space, "paddings", "use pads_begin and pads_end"),
            (grid, "overlap", OF_SHAPE),
            (taking, "padding_mode", "did you mean 'mode'?"),
            (mapping, "sw_batch_size", "did you mean 'batch'?"),
            (stitching, "roi_size", "did you mean 'block_shape'?"),
            (stitching, "overlap", "overlap is that of positions: see grid_positions"),
        )
    ),
    *(
        (make(variant="quick"), ValueError, ["variant must be one of auto, ", "got 'quick'"])
        for make in (columns, image, batch, space, together, apart, adding, taking, averaging)
    ),
    # --- windows
    (columns(window="hann"), TypeError, ["window", "'hann'", "scipy.signal.get_window"]),
    (columns(window=np.ones((2, 2), complex)), TypeError, ["window", "real", "complex128", "multiply"]),
    (columns(data=INTS, dtype="i4", window=np.ones((2, 2))), TypeError, ["window needs a dtype of floats", "int32"]),
    (adding(array=WEIGHT, blocks=TILES[:1, 0]), ValueError, ["(3, *block_shape)", "numpy.broadcast_to(block, (3, "]),
    # --- dtypes
    *(
        (make(**{name: np.zeros(shape, dtype)}), TypeError, [name, str(np.dtype(dtype)), "float32"])
        for make, name, shape in (
            (columns, "data", (2, 12, 20)),
            (image, "image", (2, 3, 5, 6)),
            (batch, "data", (12, 4, 5)),
            (space, "data", (2, 7, 13)),
        )
        for dtype in ("M8[s]", "m8[ns]", object, np.dtype([("a", "f4")]), "V4", np.longdouble)
    ),
    (columns(data=WORDS), TypeError, ["data", "strings", "<U1", "blocks (2, 2) that overlap"]),
    # --- averages and what is accumulated
    (columns(data=WORDS, reduction="mean"), TypeError, ["'mean' needs data of floats", "dtype <U1"]),
    (columns(reduction="average"), ValueError, ["reduction must be one of sum, mean, least_squares, got 'average'"]),
    (columns(data=INTS, reduction="mean", out=np.zeros((2, 3, 5, 6), "i4")), TypeError, ["dtype float64, got int32"]),
    (image(window=np.ones((2, 3))), ValueError, ["window must have the shape (2, 2)", "got (2, 3)"]),
    (columns(window=(np.ones(2), np.ones(3))), ValueError, ["window[1] must have the shape (2,)", "got (3,)"]),
    (columns(window=(np.ones(2),)), ValueError, ["one array per axis, 2 in all, got 1"]),
    (columns(accumulate=True), ValueError, ["accumulate=True adds to out, but out is None"]),
    (
        columns(data=WORDS, strides=5, pads_end=(2, 3), out=np.full((2, 3, 5, 6), "b"), accumulate=True),
        TypeError,
        ["needs data that can be added, got dtype <U1"],
    ),
    # --- blocks that have their taps last
    (apart(block_shape=()), ValueError, ["block_shape must be a sequence", "at least one"]),
    (apart(block_shape=(1, 1, 1)), ValueError, ["rank 2"]),
    (apart(block_shape=(2, 9)), ValueError, ["a block must fit into the array, got block_shape 9 on spatial axis 1"]),
    (apart(last="even"), ValueError, ["'drop' or 'over'", "got 'even'; for other placements use take_blocks"]),
    (apart(last="pad"), ValueError, ["last must be one of"]),
    (apart(mode="zero"), ValueError, ["mode must be one of constant, edge", "got 'zero'"]),
    (apart(strides=2**62, last="over", mode="wrap"), ValueError, ["the result of shape", "bytes", "more than the"]),
    (together(blocks=BLOCKS.astype("U1"), output_shape=(3, 5, 5), strides=1), TypeError, ["strings must not overlap"]),
    (apart(array=WEIGHT[:, :0], last="over", mode="edge"), ValueError, ["takes elements of array, which has none"]),
    (together(output_shape=8), TypeError, ["output_shape must be a sequence", "got 8; write (8,) for one axis"]),
    (together(output_shape=(8,)), ValueError, ["output_shape must be", "got 1 values"]),
    (together(output_shape=(3, 8, 10)), ValueError, ["blocks must be", "(3, 4, 5, 2, 2) for output_shape=(3, 8, 10)"]),
    (together(output_shape=(3, 8, 1)), ValueError, ["a block must fit", "last='over' lets blocks extend"]),
    (
        together(output_shape=(3, 9, 8), reduction="mean"),
        ValueError,
        ["got 1 of 9 uncovered on spatial axis 0 (array axis 1), from 8 on; use", "fill_value=0 to fill"],
    ),
    (together(reduction="mean", fill_value="zero"), TypeError, ["fill_value must be a number, got 'zero'"]),
    (
        together(out=np.ones((3, 8, 8), "f4"), accumulate=True, fill_value=0),
        ValueError,
        ["accumulate=True leaves what no block covers in out"],
    ),
    (together(dtype="f2"), TypeError, ["dtype must be that of blocks, float32 or float64, got float16"]),
    (together(blocks=BLOCKS.astype("i4"), dtype="i8", reduction="mean"), TypeError, ["'mean' needs a dtype of floats"]),
    # --- averages of sums
    (averaging(numerator=np.ones((2, 3, 4), int)), TypeError, ["numerator must be of floats", "got dtype int64"]),
    *(
        (averaging(weight=np.ones((3, 4), dtype)), TypeError, [f"weight must hold real numbers, got dtype {dtype}"])
        for dtype in ("complex128", "bool")
    ),
    (averaging(weight=np.ones((2, 3))), ValueError, ["weight must have the shape of numerator's last axes", "(2, 3)"]),
    (averaging(weight=np.ones((5, 2, 3, 4))), ValueError, ["weight must have the shape"]),
    # --- blocks at positions
    *(
        (adding(array=ARRAY.astype(given), blocks=TILES.astype(narrow)), TypeError, [f"array must have the {message}"])
        for given, narrow, message in (
            ("f4", "f8", "dtype of blocks or a wider one: float64, got float32"),
            ("i4", "i8", "dtype of blocks or a wider one: int64 or float64, got int32"),
            ("c8", "f4", "dtype of blocks or a wider one: float32 or float64, got complex64"),
            ("u4", "i2", "dtype of blocks or a wider one: int16 or int32 or int64 or float32 or float64, got uint32"),
            (">f8", "f8", "dtype of blocks or a wider one: float64, got >f8"),
            (">f8", "f4", "dtype of blocks or a wider one: float32 or float64, got >f8"),
        )
    ),
    *(
        (
            adding(array=ARRAY.astype(narrow), blocks=TILES.astype(wide), weights=np.ones(3, "f4")),
            TypeError,
            ["array must have the dtype of blocks or a wider one", f"got {np.dtype(narrow)}"],
        )
        for narrow, wide in (("f4", "c8"), ("f4", "i4"), ("f2", "f4"))
    ),
    (adding(array=ARRAY.astype("U1"), blocks=TILES.astype("U1")), TypeError, ["blocks has dtype <U1"]),
    *(
        (make(positions=bad), error, ["positions must be", *facts])
        for make in (adding, taking)
        for bad, error, *facts in (
            ([(0.5, 0), (1, 1), (2, 2)], TypeError, "integers"),
            (np.zeros((3, 2)), TypeError, "integers, got dtype float64"),
            (np.zeros((3, 2), bool), TypeError, "integers, got dtype bool"),
            ("abc", TypeError, "integers"),
            (2, TypeError, "a sequence of integers, one position per block, got 2"),
            ([(0, 0), (1,), (2, 2)], ValueError, "of shape"),
            (np.zeros((3, 2, 1), int), ValueError, "(number of blocks, ", "got shape (3, 2, 1)"),
            (np.zeros((3, 0), int), ValueError, "got shape (3, 0)"),
            ([(2**63, 0), (1, 1), (2, 2)], ValueError, "fit into 64 bits"),
            ([0, 2**64, 1], ValueError, "fit into 64 bits"),
        )
    ),
    *((make(positions=np.zeros((3, 4), int)), ValueError, ["(*lead, *size) with 4 axes"]) for make in (adding, taking)),
    (adding(positions=THREE[:2]), ValueError, ["(2, 2, *block_shape)", "got shape (3, 2, 2, 3)"]),
    (adding(blocks=TILES[:, :1]), ValueError, ["blocks must be", "got shape (3, 1, 2, 3)"]),
    (adding(blocks=TILES[..., 0]), ValueError, ["blocks must be", "got shape (3, 2, 2)"]),
    *(
        (adding(array=np.ones(shape), blocks=np.ones(blocks), positions=at), ValueError, [hint])
        for shape, blocks, at, hint in (
            ((8, 8), (1, 4, 4), (3, 4), "a single position is in a list of its own"),
            ((3, 8), (3, 3, 4), (3, 4), "3 blocks need as many positions"),
            ((3, 8, 8), (2, 4, 4, 3), [(0, 0)] * 2, "others, such as channels, come first"),
            ((3, 8, 8), (5, 4, 4), [(0, 0)] * 5, "others, such as channels, come first"),
            ((3, 8, 8), (3, 4, 4), [(0, 0)] * 5, "numpy.broadcast_to(block, (5, *block.shape))"),
        )
    ),
    (taking(positions=(3, 4)), ValueError, ["a single position is in a list of its own", "got 2: block_shape=(2, 3)"]),
    (apart(array=np.ones((3, 40)), block_shape=9), ValueError, ["an int means every axis", "such as (9,) for one"]),
    (apart(block_shape=np.ones((3, 20, 20))), TypeError, ["got an array of shape (3, 20, 20)"]),
    *((make(window=np.ones((3, 2))), ValueError, ["window must have the shape (2, 3)"]) for make in (adding, taking)),
    *((adding(weights=np.ones(bad)), ValueError, ["the shape (3,), one for each block"]) for bad in (2, (3, 1))),
    (adding(weights=np.ones(3, bool)), TypeError, ["weights must hold real numbers, got dtype bool"]),
    *(
        (adding(array=ARRAY.astype(int), blocks=TILES.astype(int), **{name: weights}), TypeError, [name, "of floats"])
        for name, weights in (("window", np.ones((2, 3))), ("weights", np.ones(3)))
    ),
    (adding(array=ARRAY, blocks=ARRAY[None], positions=[(0, 0)]), ValueError, ["must share no memory with blocks"]),
    (adding(array=AT, blocks=np.ones((3, 2, 2), int), positions=AT), ValueError, ["share no memory with positions"]),
    (adding(weights=ARRAY[0, 5, 5:]), ValueError, ["array must share no memory with weights"]),
    (added(weights=ARRAY[0, 5, 5:]), ValueError, ["out must share no memory with weights"]),
    (adding(array=np.broadcast_to(0.0, (2, 6, 8))), ValueError, ["array must be writeable"]),
    (adding(array=folded((2, 6, 8), float)), ValueError, ["array must not overlap itself, got shape ("]),
    *(
        (adding(weight_out=bad, **others), error, [f"weight_out {message}"])
        for bad, error, message, others in (
            (WEIGHT.tolist(), TypeError, "must be a numpy.ndarray", {}),
            (ARRAY, ValueError, "must have the shape (6, 8)", {}),
            (WEIGHT.astype("f4"), TypeError, "must have the dtype float64", {}),
            (WEIGHT.astype(">f8"), TypeError, "must have the dtype float64", {}),
            (WEIGHT, TypeError, "needs an array of floats", {"array": ARRAY.astype(int), "blocks": TILES.astype(int)}),
            (np.broadcast_to(0.0, (6, 8)), ValueError, "must be writeable", {}),
            (folded((6, 8), float), ValueError, "must not overlap itself, got shape (", {}),
            (ARRAY[0], ValueError, "must share no memory with array", {}),
            (WEIGHT, ValueError, "must share no memory with weights", {"weights": WEIGHT[5, 5:]}),
            (SHEET, ValueError, "must share no memory with blocks", {"blocks": ROOM.reshape(3, 2, 2, 4)[..., :3]}),
            (WEIGHT, ValueError, "must share no memory with window", {"window": WEIGHT.reshape(-1)[:6].reshape(2, 3)}),
        )
    ),
    (taking(array=ARRAY.astype("M8[s]")), TypeError, ["array has dtype datetime64"]),
    (taking(mode="zeros"), ValueError, ["mode must be one of constant, edge, ", "got 'zeros'"]),
    (taking(array=np.ones((0, 8)), mode="wrap"), ValueError, ["mode 'wrap' takes elements of array"]),
    (taking(mode="wrap", variant="per_block"), gpufold.Unsupported, ["mode 'wrap' gathers by index"]),
    (taking(mode="wrap", block_shape=(2, HUGE)), ValueError, ["the result of shape (3, 2, 2, ", "bytes, more than"]),
    (taking(mode="wrap", block_shape=(2, 2**45)), MemoryError, ["take_blocks: Unable to allocate"]),
    *(
        (taking(mode="wrap", **wrong), error, [message])
        for wrong, error, message in (
            ({"out": np.zeros((3, 2, 2, 2))}, ValueError, "the result's shape (3, 2, 2, 3), got (3, 2, 2, 2)"),
            ({"out": np.zeros((3, 2, 2, 3), "f4")}, TypeError, "out must have the result's dtype float64, got float32"),
            ({"out": np.broadcast_to(0.0, (3, 2, 2, 3))}, ValueError, "out must be writeable"),
            ({"window": np.ones((2, 2))}, ValueError, "take_blocks: window must have the shape (2, 3)"),
        )
    ),
    (taking(array=ARRAY.astype(int), window=np.ones((2, 3))), TypeError, ["window needs array of floats"]),
    # --- grids of positions
    (grid(size=8), TypeError, ["size must be a sequence", "got 8; write (8,"]),
    (stitching(output_shape=8), TypeError, ["output_shape must be a sequence", "got 8; write (8,"]),
    (grid(size=()), ValueError, ["size must be a sequence with one integer per spatial axis, at least one"]),
    (grid(last="reflect"), ValueError, ["last must be one of shift, even, over, drop, got 'reflect'"]),
    (grid(size=(2**62 + 1, 2), block_shape=1), ValueError, [f"* 2 = {2**63 + 2} positions have more bytes"]),
    (
        grid(size=(1, 2**64), block_shape=1, strides=2**63, last="over"),
        ValueError,
        ["positions must fit into 64 bits", "at 18446744073709551616 on spatial axis 1"],
    ),
    (grid(size=(10**400,), block_shape=1, strides=10**399, last="even"), ValueError, ["must fit into 64 bits"]),
    *(
        (grid(size=(7, 5), block_shape=6, last=last), ValueError, ["6 on spatial axis 1, where size is 5"])
        for last in ("shift", "even", "drop")
    ),
    # --- stitchers
    (stitching(output_shape=(8.0, 9)), TypeError, ["output_shape must be an integer or a sequence"]),
    (stitching(block_shape=None), TypeError, ["block_shape must be an integer or a sequence"]),
    *(
        (stitching(output_shape=shape, block_shape=block), ValueError, ["shape must be"])
        for shape, block in (((9,), (4, 5)), ((8, 9), (4, 0)), ((8, -1), 4), ((8, 9), ()))
    ),
    (stitching(output_shape=(None, 9), block_shape=(4,)), ValueError, ["here axis 1, got None for axes [0]"]),
    (stitching(reduction="men"), ValueError, ["reduction must be one of sum, mean, least_squares, got 'men'"]),
    (stitching(window=np.ones((5, 4))), ValueError, ["window must have the shape (4, 4)"]),
    (stitching(window=np.ma.ones((4, 4))), TypeError, ["window must be a numpy.ndarray", "without a mask"]),
    (stitching(output_shape=(2**63,), slabs=True), ValueError, ["no extent may be larger than"]),
    (stitching(output_shape=(8,), block_shape=2**70), ValueError, ["no extent may be larger than"]),
    # --- tiles that are mapped
    (mapping(block_shape=(1, 2, 3, 4)), ValueError, ["block_shape must have one value"]),
    (mapping(block_shape=(2**63, 2)), ValueError, ["block_shape must be at most 9223372036854775807 on every axis"]),
    (mapping(batch=0), ValueError, ["batch must be an integer of at least 1, got 0"]),
    (mapping(function=lambda tiles: tiles[0]), ValueError, ["must return", "with B = 1", "got shape (3, 2, 4)"]),
    (mapping(array=PICTURE.astype(object)), TypeError, ["array has dtype object"]),
    (mapping(resume="notes"), ValueError, ["resume needs an out"]),
    *(
        (mapping(resume=bad, out=np.zeros((3, 8, 9))), ValueError, ["resume", "a file that can be written"])
        for bad in ("", "/", "no/such/folder/notes", "not\0a name")
    ),
    (mapping(out=3), TypeError, ["out must be an array that can be written to, got 3"]),
    (mapping(array=SHEET[:, :6], out=SHEET[:, 2:]), ValueError, ["out must share no memory with array"]),
    (mapping(out=np.zeros((3, 8, 8))), ValueError, ["out must have the shape (3, 8, 9), got (3, 8, 8)"]),
    (
        mapping(finish=lambda slab: slab * 1j, out=np.zeros((3, 8, 9))),
        TypeError,
        ["out must have a complex dtype for a result of complex", "got float64"],
    ),
    # --- ONNX's attributes
    (onnx(input=np.ones((12, 20))), ValueError, ["input", "rank 3", "got rank 2"]),
    *((onnx(pads=bad), ValueError, ["pads", "4 values", str(bad)]) for bad in ((0, 0), 1)),
    (onnx(pads=(0, 0, 0, 0.5)), TypeError, ["pads", "integer", "0.5"]),
    (onnx(pads=(0, 0, 0, -1)), ValueError, ["ends of pads", "at least 0", "-1"]),
    (onnx(input=np.ones((1, 12, 5))), ValueError, ["input axis 2 must be the number of blocks, got 5", OF_ONNX]),
    (onnx(variant="gather"), gpufold.Unsupported, ["variant 'gather' is a GPU kernel, but input is a numpy.ndarray"]),
    # --- numbers of threads, and operations
    *(
        ((gpufold.set_num_threads, {"count": bad}), error, ["count must be an integer of at least 1, got", repr(bad)])
        for bad, error in ((0, ValueError), (-1, ValueError), (2.5, TypeError), ("2", TypeError))
    ),
    ((gpufold.variants, {"operation": "col2in"}), ValueError, ["got 'col2in'; did you mean 'col2im'?"]),
    ((gpufold.warmup, DESCRIBED | {"operation": "fold"}), ValueError, ["operation must be one of", "got 'fold'"]),
    (explaining(operation=gpufold.grid_positions), ValueError, ["operation must be one of", "got 'grid_positions'"]),
    (explaining(device="K80"), ValueError, ["device must be one of A100, ", "T4, got 'K80'"]),
    (explaining(data=(1, 8, 8)), TypeError, ["got (1, 8, 8); give the dtype too: ((1, 8, 8), 'float32')"]),
]


def is_of_any_kind(call):
    """Return whether a bad call can be made with arrays of any kind: NumPy alone has some dtypes, `out` and views."""
    (function, arguments), error, facts = call
    arrays = [each for each in arguments.values() if hasattr(each, "dtype")]
    numpys = gpufold.map_tiles, gpufold.onnx.col2im, gpufold.Stitcher
    of_numpy = "out" in arguments or "accumulate" in arguments or function in numpys or error is MemoryError
    in_memory = any(word in fact for fact in facts for word in ("share no memory", "writeable", "itself", "be a numpy"))
    return bool(arrays) and not of_numpy and not in_memory and all(each.dtype in DTYPES for each in arrays)


@pytest.mark.parametrize("wide", ["f8", "g"])
def test_weights_are_rounded_as_sums_are_whatever_numpy_is_to_do_with_errors(wide):
    """They and their squares become infinite or zero, silently; but of a window, no weight becomes zero."""
    window = np.array([[1e300, 1e-300], [1, 1e30]], wide)
    with np.errstate(all="ignore"):
        weight = window.astype(np.float32)
    narrow = np.where(weight == 0, np.finfo(np.float32).tiny, weight)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (columns, image):
            function, call = make()
            np.testing.assert_array_equal(function(**call, window=window), function(**call, window=narrow))
        ones = np.ones((3, 2, 2), np.float32)
        np.testing.assert_array_equal(gpufold.average(ones, window), gpufold.average(ones, weight))
        for reduction in ("sum", "mean", "least_squares"):
            results = []
            for each in (window, narrow):
                stitcher = gpufold.Stitcher((8, 9), 2, window=each, reduction=reduction)
                stitcher.add(ones, [(0, 0), (1, 1), (2, 2)])
                results.append(stitcher.result())
            np.testing.assert_array_equal(*results)


def contents(arguments):
    return {name: value.tobytes() for name, value in arguments.items() if isinstance(value, np.ndarray)}


def describe(call):
    (function, _), error, facts = call
    return f"{function.__name__}-{error.__name__}-{facts[0]}"


@pytest.mark.parametrize("call", BAD_CALLS, ids=describe)
def test_a_bad_call_says_what_where_and_what_was_expected(call):
    (function, arguments), error, facts = call
    before = contents(arguments)

    def refused():
        with pytest.raises(error) as caught:
            function(**arguments)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None, "two errors are shown"
        return str(caught.value)

    peak, message = peak_of(refused)
    assert message.startswith("onnx." * (function is gpufold.onnx.col2im) + f"{function.__name__}: ")
    for fact in facts:
        assert fact in message, f"{fact!r} is not in: {message}"
    assert len(message) < 600
    assert peak < 100_000 or error is MemoryError, "a call that fails must not allocate first"
    assert contents(arguments) == before
