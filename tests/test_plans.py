"""What is planned: the variant that is taken, its words and offsets, what is compiled, and what is refused and why.

Random calls keep within what a GPU has.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from struct import Struct

import numpy as np
import pytest
from cases import CASES_OF_KERNELS, Case
from executors import block_by_block
from random_calls import random_problem

from bench import hostcuda
from gpufold.calls import Call, FusedOps, Unsupported
from gpufold.geometry import (
    add_blocks_geometry,
    array_to_blocks_geometry,
    batch_to_space_geometry,
    col2im_geometry,
    im2col_geometry,
    space_to_batch_geometry,
    take_blocks_geometry,
)
from gpufold.gpu.parameters import divisor, offset, pack, reciprocal, struct, wide
from gpufold.gpu.plan import H200, Operand, Problem
from gpufold.gpu.registry import candidates, choose
from gpufold.gpu.variants.runs import _laid_out
from gpufold.gpu.variants.views import LINE_BYTES, View, ViewAxis
from gpufold.operations import variants


def planned(call, input, output, all_of_them=False):
    if all_of_them:
        return list(candidates(Problem(call, input, output)))
    return choose(call, input, output, H200)


def contiguous(shape, steps=None, alignment=256):
    return Operand(shape, steps, alignment) if steps else Operand.contiguous(shape, alignment)


def col2im(size, kernel, variant="auto", dtype="float32", batch=1, channels=1, steps=None, image=None, **arguments):
    """Plan a call on contiguous arrays; `steps` are other strides of the columns, `image` of the image."""
    deterministic, every = arguments.pop("deterministic", True), arguments.pop("all_of_them", False)
    fusion = FusedOps(window=arguments.pop("window", "none"))
    case = Case("planned", size, kernel, **arguments, batch=batch, channels=channels)
    geometry = col2im_geometry(case.columns_shape, size, kernel, **case.arguments)
    call = Call("col2im", geometry, dtype, fusion, variant, deterministic)
    return planned(call, contiguous(case.columns_shape, steps), contiguous(case.image_shape, image), every)


def im2col(shape, kernel, variant="auto", dtype="float32", steps=None, blocks=None, window="none", **arguments):
    """Plan a call; columns are contiguous, `blocks` says from which element on they lie block by block."""
    every = arguments.pop("all_of_them", False)
    geometry = im2col_geometry(shape, kernel, **arguments)
    columns = Operand.contiguous(geometry.blocks_shape)
    if blocks is not None:
        laid = block_by_block(geometry, np.broadcast_to(np.uint8(0), geometry.blocks_shape), blocks)
        columns = Operand(laid.shape, laid.strides)
    call = Call("im2col", geometry, dtype, fusion=FusedOps(window=window), variant=variant)
    return planned(call, contiguous(shape, steps), columns, every)


def col2im_apart(variant, batch, channels, *size):
    """Plan a call whose taps are contiguous with gaps between blocks, where a variant needs that."""
    steps = (0, 1, 9 * channels + 9) if variant == "gather_blocks" else None
    return col2im(size, (3, 3), variant, batch=batch, channels=channels, steps=steps, **CELLS)


of_bytes = partial(col2im, variant="gather", dtype="int8")
packed = partial(im2col, variant="packed", dtype="uint8", blocks=0)
direct = partial(im2col, variant="per_block")


def space(
    operation, shape, block, variant="auto", dtype="float32", begin=(), end=(), alignment=256, batch=None, space=None
):
    """Plan a call, the shape being of the batch; `batch` and `space` are other strides of these."""
    margins = (1, *block), begin or (0,) * len(shape), end or (0,) * len(shape)
    geometry = batch_to_space_geometry(shape, *margins)
    operands = contiguous(shape, batch, alignment), contiguous(geometry.array_shape, space, alignment)
    if operation == "space_to_batch":
        geometry, operands = space_to_batch_geometry(geometry.array_shape, *margins), operands[::-1]
    return planned(Call(operation, geometry, dtype, variant=variant), *operands)


together = partial(space, "batch_to_space")
joined = partial(together, variant="packed")


def placed(shape, block, count, variant="auto", dtype="float32", deterministic=True, all_of_them=False):
    """Plan an addition of so many blocks."""
    lead = shape[: len(shape) - len(block)]
    geometry = add_blocks_geometry(shape, (count, *lead, *block), (count, len(block)))
    call = Call("add_blocks", geometry, dtype, FusedOps(accumulate=True), variant, deterministic)
    return planned(call, contiguous(geometry.blocks_shape), contiguous(shape), all_of_them)


def taking(shape, block):
    geometry = take_blocks_geometry(shape, (9, len(block)), block)
    return planned(Call("take_blocks", geometry, "float32"), contiguous(shape), contiguous(geometry.blocks_shape))


def of_blocks(operation, shape, block, strides=1, order=None, variant="auto", deterministic=True):
    """Plan a call whose blocks are contiguous, or lie in memory in another order of their axes."""
    geometry = array_to_blocks_geometry(shape, block, strides)
    blocks = contiguous(geometry.blocks_shape)
    if order:
        inside = contiguous(tuple(geometry.blocks_shape[axis] for axis in order)).strides
        blocks = contiguous(geometry.blocks_shape, tuple(inside[order.index(axis)] for axis in range(len(order))))
    call = Call(operation, geometry, "float32", variant=variant, deterministic=deterministic)
    operands = blocks, contiguous(shape)
    return planned(call, *(operands if operation == "blocks_to_array" else reversed(operands)))


into_array, into_blocks = partial(of_blocks, "blocks_to_array"), partial(of_blocks, "array_to_blocks")


def taps(number, dtype="float32", spaced=1):
    """Plan a call whose columns lie row by row."""
    case = CASES_OF_KERNELS["im2col", "taps"][number]
    geometry = im2col_geometry(case.image_shape, case.kernel_size, **case.arguments)
    *lead, rows, blocks = geometry.blocks_shape
    columns = Operand((*lead, rows, blocks), (rows * blocks * spaced, spaced, rows * spaced))
    return planned(Call("im2col", geometry, dtype, variant="taps"), contiguous(geometry.array_shape), columns)


def facts(plan, names):
    """Return defines, as numbers where they are, or what a plan says of itself."""
    defines = dict(plan.defines)
    found = (defines[name] if name.isupper() else getattr(plan, name) for name in names.split())
    return [int(each) if str(each).isdigit() else each for each in found]


def row(wanted, function, *arguments, **options):
    return pytest.param(wanted, partial(function, *arguments, **options), id=f"{arguments}, {options} is {wanted}")


MAP = {"batch": 32, "channels": 64}
MANY, OF_FIFTY_AXES = (2**24 + 8,), ((1,) * 50, (1,) * 50)
TAPS_FIRST = (0, 3, 4, 1, 2)
NHWC, NCHW, PLANES = (8, 6, 7), (4, 64, 56, 56), (4, 64, 1024, 1024)
CELLS = {"strides": (2, 3), "dilations": (1, 2), "pads_begin": (0, 1), "pads_end": 1}

VARIANTS = [
    row("gather_pixels", col2im, (56, 56), (3, 3), batch=8, channels=64, pads_begin=1, pads_end=1),
    row("gather", col2im, (112, 112), (3, 3), batch=8, channels=64, strides=2, pads_begin=1),
    row("gather", col2im, (512, 512), (16, 16), batch=8, channels=3, strides=16),  # sectors of pixels
    row("gather", col2im, (1024, 1024), (40, 40), batch=8, strides=4),
    row("gather_pixels", col2im, (3, 4), (3, 3), strides=(1, 5), pads_begin=4),  # a stride beyond the image
    row("gather_pixels", col2im, (512, 512), (8, 8), batch=16),
    row("gather_pixels", col2im, (512, 512), (5, 6), dtype="bool", batch=16),
    row("gather", col2im, (512, 512), (8, 8), dtype="bool", batch=16),  # bytes, of which many land on a pixel
    row("gather_pixels", col2im, (5,), (2,), strides=2**31 - 1, pads_begin=2**31),
    row("gather_pixels", col2im, (512, 512), (16, 16), channels=3, strides=16, steps=(1, 1, 768)),
    row("gather_pixels", col2im, (64, 64), (32, 32), deterministic=False),
    row("gather_blocks", col2im, (512, 512), (8, 8), steps=(1, 1, 64)),
    row("gather_pixels", col2im, (4, 4), (2, 2), dtype="int32", image=(32, 32, 8, 2)),  # no atomics into gaps
    row("packed", im2col, (1, 4, 16, 16, 64), (7, 7, 1), dtype="uint8", blocks=0, strides=(4, 4, 1)),
    row("packed", im2col, (1, 4, 64, 256), (3, 3), blocks=0, strides=2),
    row("taps", im2col, (1, 4, 64, 256), (8, 8), blocks=0),
    row("taps", im2col, (1, 4, 64, 256), (8, 8), dtype="uint8", blocks=0),
    row("taps", im2col, (1, 4, 64, 256), (3, 3), dtype="complex64", blocks=0),
    # Rows that are no whole sectors are stored in runs, and blocks that overlap.
    *(row("runs", im2col, (8, 64, n, n), (3, 3), strides=stride) for n, stride in ((57, 1), (58, 1))),
    row("runs", im2col, (8, 64, 59, 59), (3, 3), dtype="uint8"),
    row("per_block", im2col, (8, 64, 57, 57), (3, 3), dtype="uint8", pads_begin=1, pads_end=1),
    row("per_block", im2col, (8, 64, 15, 15), (3, 3)),  # few blocks
    row("per_block", im2col, (8, 64, 58, 58), (3, 3), dtype="float16"),
    # Pixels that lie far apart, or that many blocks read, come through shared memory, but for bytes and windows.
    row("staged", im2col, (8, 3, 224, 224), (16, 16), strides=16),
    row("staged", im2col, (16, 3, 1024, 1024), (16, 16), strides=8),
    row("staged", im2col, (8, 1, 128_000), (400,), dtype="float16", strides=160),
    row("staged", im2col, (8, 1, 512, 512), (8, 8), dtype="uint8"),
    row("runs", im2col, (16, 3, 1024, 1022), (16, 16), dtype="uint8", strides=9),
    row("per_block", im2col, (8, 3, 224, 224), (2, 2), strides=16),
    row("per_block", im2col, (8, 128, 30, 30), (14, 14), strides=8),
    *(row("packed", together, (4, 64, 56, width), (1, 2, 2), dtype="uint8") for width in (54, 55, 7)),
    row("index_map", together, (4, 56, 56, 64), (2, 2, 1)),
    row("packed", together, (256, 3, 14, 14), (1, 16, 16)),
    row("packed", together, NCHW, (1, 2, 2), end=(0, 0, 0, 1)),
    row("index_map", together, NCHW, (1, 2, 2), dtype="complex64"),
    row("index_map", together, (2**21, 2, 1), (1, 2**21), dtype="uint8", begin=(0, 0, 5), end=(0, 0, 2**21 - 12)),
    # Blocks are searched where there is little to test, and few integers added in any order.
    *(
        row(variant, placed, shape, block, count, dtype=dtype, deterministic=deterministic)
        for deterministic in (True, False)
        for variant, shape, block, count, dtype in (
            ("output_driven", (1024, 1024), (3, 3), 1000, "float32"),
            ("binned", (8192, 8192), (3, 3), 1_000_000, "float32"),
            ("binned", (8192, 8192), (3, 3), 1_000_000, "int32"),
            ("atomic", (2048, 2048), (7, 7), 1000, "int32"),
        )
    ),
    row("gather_blocks", into_array, (64, 512, 512), (7, 7)),
    row("gather_blocks", into_array, (8, 3, 512, 512), (8, 8), strides=(1, 2)),
    row("gather_pixels", into_array, (64, 512, 512), (3, 3)),  # blocks of a sector
    row("gather_pixels", into_array, (512, 512, 12), (8, 8)),  # rows of a few blocks
    row("gather_blocks", into_array, (3, 512, 128), (24, 24)),  # few pixels, each in many blocks
    row("gather_blocks", into_array, (19, 48_000), (30,)),
    row("gather_pixels", into_array, (16, 96, 96, 96), (5, 5, 5), strides=2),
    row("gather_pixels", into_array, (3, 16_000), (64,), strides=2),
    row("gather_pixels", into_array, (64, 512, 512), (16, 16), strides=8),
    row("gather_pixels", into_array, (64, 512, 512), (7, 7), order=TAPS_FIRST),
    row("packed", into_blocks, (64, 512, 512), (7, 7)),
    row("taps", into_blocks, (64, 512, 512), (8, 8)),
    row("runs", into_blocks, (64, 511, 511), (7, 7), order=TAPS_FIRST),
    row("staged", into_blocks, (64, 512, 512), (16, 16), strides=16, order=TAPS_FIRST),
    *(
        row("atomic", into_array, (*lead, 8, 10), (3, 4), variant="atomic", deterministic=False)
        for lead in ((), (3,), (2, 1), (2, 2, 2))
    ),
    row("binned", placed, *OF_FIFTY_AXES, 3, dtype="float64"),  # more than regions can list
    # A number of taps that no other kernel counts.
    row("atomic", col2im, MANY, (2**24,), deterministic=False),
    row("runs", im2col, (1, 1, 2**31 + 8), (2**31,), dtype="int8"),
]


@pytest.mark.parametrize(("expected", "plan"), VARIANTS)
def test_the_rule_takes_a_variant_by_strides_layout_and_size(expected, plan):
    assert plan().variant == expected, plan().reason


BLOCKS_OF_THREE, BESIDE = {"gather_blocks": {"steps": (0, 1, 3)}}, {"packed": 0}
OFFSETS = [
    row("int", col2im, (4096, 4096), (2, 2), "gather", "int8", batch=4, channels=64),  # 2**32 pixels in planes of 2**24
    row("long long", col2im, (4096, 4096), (2, 2), "gather", "int8", batch=8, channels=64),  # 2**31 threads
    row("long long", col2im, (2**15, 2**16 - 9), (2, 2), "gather"),  # four taps of 2**31 elements
    row("long long", col2im, (4, 8), (2, 2), "gather", steps=(0, 2**29, 1)),  # a span, not a size
    row("long long", col2im, (4, 8), (2, 2), "gather", steps=(0, -(2**29), 1)),
    row("int", col2im, (4, 8), (2, 2), "gather_pixels", steps=(2**31 - 1, 21, 1), batch=2),
    row("long long", col2im, (4, 8), (2, 2), "gather_pixels", steps=(-(2**31), 21, 1), batch=2),  # plane to plane
    row("long long", col2im, (4, 8), (2, 2), "gather_pixels", pads_begin=2**30, strides=2**29),
    row("int", col2im, (64, 64), (1, 1), "gather", "int8", batch=2**18, channels=4),
    row("long long", col2im, (64, 64), (1, 1), "atomic", batch=2**18, channels=4),  # 2**32 threads
    row("int", direct, (8, 64, 4096, 4096), (2, 2)),  # 2**33 elements in planes of 2**24
    row("long long", direct, (1, 1, 2**15, 2**16 - 9), (2, 2)),
    row("int", direct, (1, 1, 2**14, 2**14), (2, 2)),
    row("long long", direct, (1, 1, 4, 8), (2, 2), steps=(0, 0, 2**29, 1)),
    row("long long", direct, (1, 1, 4, 8), (2, 2), steps=(0, 0, -(2**29), 1)),
    row("long long", direct, (1, 1, 4, 8), (2, 2), pads_begin=2**30, strides=2**29),
    row("long long", direct, (1, 1, 4, 8), (2, 2), pads_end=(0, 2**30), strides=(1, 2**27)),  # beyond the end alone
    row("int", direct, (2**22, 1, 32, 32), (2, 2)),
    row("long long", direct, (2**24, 1, 32, 32), (2, 2)),  # threads
    row("long long", direct, (2**28, 16, 2, 4), (2, 2)),  # planes
    row("long long", placed, (2**32, 4), (2,), 1, "output_driven", "int8"),
    row("long long", placed, (1, 9, 16), (2_010_874_702,), 834_053, "binned", "int16"),  # positions that a tile meets
    row("long long", col2im, (8,), (3,), "gather", strides=3, dilations=2**31, pads_end=2**32),  # what is compiled in
    # A part past its cell is worked out whole, beyond the last pixel and tap; and a thread takes blocks whole.
    row("int", col2im, (204,), (24,), "gather", strides=20, image=(0, 0, 2**31 // 693)),
    row("long long", col2im, (204,), (24,), "gather", strides=20, image=(0, 0, 2**31 // 230)),
    row("int", col2im, (204,), (24,), "gather", strides=20, steps=(0, 2**31 // 153, 1)),
    row("long long", col2im, (204,), (24,), "gather", strides=20, steps=(0, 2**31 // 50, 1)),
    row("int", col2im, (1204,), (2,), "gather", strides=2, dilations=101, steps=(0, 1, 2**31 // 758)),
    row("long long", col2im, (1204,), (2,), "gather", strides=2, dilations=101, steps=(0, 1, 2**31 // 700)),
    row("int", im2col, (1, 1, 74), (2,), "taps", blocks=0, strides=8, steps=(0, 0, 2**31 // 296)),
    row("long long", im2col, (1, 1, 74), (2,), "taps", blocks=0, strides=8, steps=(0, 0, 2**31 // 80)),
    row("long long", col2im, (1,), (1,), "gather", "int8", channels=17_136_500_657),  # of which threads serve several
    row("long long", placed, (64, 64), (8, 8), 2**32, "output_driven"),  # planned at once, however many blocks
    # A dilation that parts no taps is none.
    *(
        row("int", col2im, (10, 8), (3, 1), variant, "int32", dilations=(1, 2**33), **BLOCKS_OF_THREE.get(variant, {}))
        for variant in ("auto", *variants("col2im"))
    ),
    *(
        row("int", im2col, (2, 3, 8, 10), (1, 3), variant, "int32", dilations=(2**33, 1), blocks=BESIDE.get(variant))
        for variant in ("auto", *variants("im2col"))
    ),
    *(
        row(bits, space, operation, shape, (1, 2, 2), variant)
        for operation in ("batch_to_space", "space_to_batch")
        for variant in variants(operation)
        for bits, shape in (
            ("int", PLANES),
            ("long long", (4, 512, 1024, 1024)),  # phases 2**31 elements apart
            ("long long", (4, 1, 2**15, 2**16)),
        )
    ),
]


@pytest.mark.parametrize(("expected", "plan"), OFFSETS)
def test_offsets_are_wide_from_the_first_element_that_needs_it(expected, plan):
    assert dict(plan().defines)["OFFSET"] == expected


WORDS = "BLOCKS LOADED PIXELS_BEFORE THREADS"
PIECES = "PHASES BLOCKS LOADED LOADED_ANYWHERE BEGINS_BLOCKS WHOLE"
LINES = "BLOCKS WORD LOADED LINE_STRIDE PIXELS_BEFORE"
IN_WORDS = partial(direct, (2, 3, 9, 64))


def of_threes(*arguments, width=32, channels=4, block=3, **options):
    return joined((block, channels, 6, width), (1, 1, block), *arguments, **options)


TAPS = "ROWS VECTOR TAPS PITCH LANES TILES"
DEFINES = [
    # Several planes and wide words, where there is enough.
    row(("symbol", ["col2im_gather_planes"]), of_bytes, (56, 56), (3, 3), **MAP),
    row(("symbol", ["col2im_gather"]), col2im, (56, 56), (3, 3), "gather", **MAP),
    row(("symbol", ["col2im_gather"]), of_bytes, (56, 56), (6, 6), **MAP),  # more than a few taps
    row(("symbol", ["col2im_gather_planes"]), col2im, (56, 56), (3, 3), "gather", window="separable", **MAP),
    row(("symbol", ["col2im_gather_words_planes"]), col2im, (128, 128), (2, 2), strides=2, **MAP),
    row(("symbol", ["col2im_gather"]), of_bytes, (56, 56), (3, 3), channels=64),
    row(("symbol", ["col2im_gather_words_planes"]), of_bytes, (112, 112), (3, 3), strides=2, **MAP),
    row(("symbol", ["col2im_gather_planes"]), of_bytes, (113, 113), (3, 3), strides=2, **MAP),
    row(("symbol", ["col2im_gather_planes"]), of_bytes, (1024, 1024), (3, 3), batch=8),  # the batch is planes too
    row(("symbol", ["col2im_gather"]), of_bytes, (28, 28), (3, 3), batch=8, channels=48),  # too few threads
    row(("symbol", ["col2im_gather"]), of_bytes, (2048, 2048), (3, 3), channels=2),  # most of four would repeat
    row((WORDS, [4, 4, 0, 256]), packed, (2, 3, 8, 64), (3, 3)),
    row((WORDS, [4, 2, 1, 256]), packed, (2, 3, 8, 62), (3, 3), pads_begin=1),
    row((WORDS, [4, 1, 0, 256]), packed, (2, 3, 8, 61), (3, 3)),
    row((WORDS, [4, 16, 0, 256]), packed, (2, 3, 8, 640), (3, 3), strides=40),
    row((WORDS, [4, 4, 0, 128]), packed, (2, 3, 8, 64), (7, 7)),
    row((WORDS, [1, 4, 0, 256]), packed, (2, 3, 8, 64), (5, 5), dtype="float32", strides=4),
    *(row(("OFFSET", ["int"]), im2col, (1, 1, 40_000_000), (8,), variant) for variant in ("runs", "staged")),
    row((LINES, [8, 4, 4, 1, 1]), taps, 1),
    row((LINES, [8, 8, 8, 1, 5]), taps, 1, "uint8"),
    row((LINES, [8, 4, 4, 3, 3]), taps, 2),
    row((LINES, [8, 4, 1, 0, 0]), taps, 3),
    row((LINES, [8, 2, 1, 0, 0]), taps, 4),
    row((LINES, [8, 1, 1, 0, 0]), taps, 1, spaced=2),
    row(("symbol", ["im2col_taps_of_several"]), im2col, (1, 3, 20, 15), (8, 8), "taps", "uint8", blocks=0),
    row(("symbol", ["im2col_taps"]), im2col, (1, 3, 20, 14), (8, 8), "taps", "uint8", blocks=0),
    # Runs that are too few for the device share out their taps.
    row(("grid", [(2, 25, 1)]), im2col, (1, 1, 128_000), (400,), "runs", strides=160),
    # Of a tap that begins an element before a sector does, the second run has one element.
    row(("grid", [(1, 2, 1)]), im2col, (1, 1, 50 * 121), (40,), "staged", strides=50),
    row(("grid", [(2, 2, 1)]), im2col, (1, 1, 50 * 122), (40,), "staged", strides=50),
    row(("grid", [(2 * 256, 2, 1)]), im2col, (256, 1, 128_000), (400,), "runs", strides=160),
    row(("grid", [(2 * 2048, 1, 1)]), im2col, (2048, 1, 128_000), (400,), "runs", strides=160),
    # Taps are loaded in words where no pad or end cuts one.
    row(("TAPS_AT_ONCE", [4]), IN_WORDS, (3, 16), strides=(2, 16)),
    row(("TAPS_AT_ONCE", [4]), IN_WORDS, (3, 16), strides=(2, 16), pads_begin=(0, 4), pads_end=(0, 12)),
    row(("TAPS_AT_ONCE", [2]), IN_WORDS, (3, 16), strides=(2, 16), pads_begin=(0, 2), pads_end=(0, 2)),
    row(("TAPS_AT_ONCE", [2]), direct, (2, 3, 9, 62), (3, 6), strides=(2, 6)),
    row(("TAPS_AT_ONCE", [1]), IN_WORDS, (3, 8), strides=(2, 8), dilations=(1, 2)),
    row(("TAPS_AT_ONCE", [1]), direct, (2, 3, 9, 63), (3, 8), strides=(2, 8)),
    row(("TAPS_AT_ONCE", [1]), IN_WORDS, (3, 8), strides=(2, 8), steps=(9 * 192, 9 * 64, 1, 9)),
    row(("TAPS_AT_ONCE", [2]), IN_WORDS, (3, 16), strides=(2, 16), steps=(3 * 578, 578, 64, 1)),
    # A copy moves the widest words that fit.
    row(("SCALAR", ["Word<16>"]), direct, (2, 3, 4, 8), (1, 1), dtype="float16"),
    row(("SCALAR", ["Word<16>"]), direct, (2, 3, 4, 6), (1, 1), dtype="float16"),
    row(("SCALAR", ["Word<8>"]), direct, (2, 3, 4, 5), (1, 1), dtype="float16"),
    *(
        row(("SCALAR", [f"Word<{word}>"]), space, operation, (*NHWC, channels), (2, 2, 1), variant, dtype, **options)
        for operation, variant in (("batch_to_space", "index_map"), ("space_to_batch", "per_block"))
        for word, channels, dtype, options in (
            (16, 64, "float32", {}),
            (8, 6, "float32", {}),
            (8, 64, "float32", {"begin": (0, 0, 0, 2)}),
            (4, 64, "float32", {"begin": (0, 0, 0, 1)}),
            (16, 64, "uint8", {}),
            (1, 7, "uint8", {}),
            (8, 64, "float32", {"alignment": 8}),
            (4, 64, "float32", {"alignment": 4}),
        )
    ),
    # A thread block owns as many rows as have room for theirs of taps, and long rows are cut in halves, and those of
    # halves, of as many taps of each pixel. One tile where there is no room for two.
    row((TAPS, [8, 4, 8, 65, 16, 1]), col2im, (512, 512), (8, 8), steps=(1, 1, 64)),
    row((TAPS, [4, 1, 7, 29, 14, 1]), col2im, (512, 512), (7, 7), steps=(1, 1, 49)),
    row((TAPS, [8, 8, 8, 66, 8, 1]), col2im, (512, 512), (8, 8), dtype="float16", steps=(1, 1, 64)),
    row((TAPS, [1, 4, 8, 9, 2, 2]), col2im, (512, 512), (1, 8), "gather_blocks", steps=(1, 1, 8)),
    row((TAPS, [2, 4, 24, 49, 4, 1]), col2im, (512, 512), (24, 24), steps=(1, 1, 576)),
    row((TAPS, [1, 4, 8, 9, 2, 2]), col2im, (512, 512), (8, 8), "gather_blocks", dilations=(2, 1), steps=(1, 1, 64)),
    row((TAPS, [1, 4, 16, 18, 4, 2]), col2im, (64, 512), (16, 16), "gather_blocks", strides=2, steps=(1, 1, 256)),
    row((TAPS, [1, 4, 36, 37, 9, 2]), col2im, (512, 512), (4, 64), "gather_blocks", strides=3, steps=(1, 1, 256)),
    row((PIECES, [3, 32, 16, 0, 1, 1]), of_threes, dtype="uint8"),
    row((PIECES, [3, 8, 4, 0, 1, 1]), of_threes, width=16),
    row((PIECES, [3, 20, 2, 0, 1, 0]), of_threes, dtype="uint8", alignment=2),
    row((PIECES, [3, 10, 1, 0, 0, 0]), of_threes, begin=(0, 0, 0, 1)),
    row((PIECES, [3, 36, 4, 1, 0, 0]), of_threes, dtype="uint8", width=64, begin=(0, 0, 0, 1)),  # whole, not in phases
    row((PIECES, [3, 12, 1, 0, 1, 0]), of_threes, dtype="uint8", width=33, channels=1),  # the array is 594 bytes
    row((PIECES, [3, 36, 4, 1, 1, 0]), of_threes, dtype="uint8", width=33, channels=2),
    row((PIECES, [32, 1, 1, 0, 0, 1]), of_threes, width=16, block=64),  # a block is two pieces
    # Words of phases, and of planes, that lie apart start where each of these does.
    row(("LOADED", [8]), joined, (2, 3, 8), (1, 2), dtype="uint8", batch=(24, 8, 1)),
    row(("LOADED", [2]), joined, (2, 3, 8), (1, 2), dtype="uint8", batch=(26, 8, 1)),
    row(("LOADED", [2]), joined, (4, 3, 8), (1, 2), dtype="uint8", batch=(26, 8, 1)),
    row(("PART", [16]), col2im, (204,), (24,), "gather", strides=20),
    # Many planes share the index arithmetic, fewer if rows are short, and rows of blocks if planes are few.
    row(("PLANES ELEMENTS", [8, 1]), taking, (16, 4096), (400,)),
    row(("PLANES ELEMENTS", [4, 1]), taking, (16, 512, 512), (7, 7)),
    row(("PLANES ELEMENTS", [4, 2]), taking, (7, 512, 512), (7, 7)),
    row(("PLANES ELEMENTS", [1, 8]), taking, (512, 512), (64, 64)),
    # Every byte in and out is counted once.
    row(("bytes_moved", [4 * (2 * 12 * 56 + 2 * 3 * 8 * 9)]), col2im, (8, 9), (2, 2), batch=2, channels=3),
    row(("bytes_moved", [4 * (2 * 3 * 8 * 9 + 2 * 12 * 56)]), im2col, (2, 3, 8, 9), (2, 2)),
]


@pytest.mark.parametrize(("expected", "plan"), DEFINES)
def test_planes_and_words_are_as_many_and_wide_as_rows_margins_and_registers_allow(expected, plan):
    names, wanted = expected
    assert facts(plan(), names) == wanted


OF_STRIDE = {"variant": "gather_blocks", "strides": 5000, "steps": (0, 1, 27_000)}
REFUSED = [
    row("taps must be contiguous in the columns, but their strides are", col2im, (50, 60), (3, 3), "gather_blocks"),
    row("36864 bytes at most, but strides 5000 .* make it 40000", col2im, (50, 60_000), (3, 9000), **OF_STRIDE),
    row("atomic adds in memory, where float16 sums would be rounded", col2im, (50, 60), (3, 3), "atomic", "float16"),
    row("no atomic addition of uint8", col2im, (50, 60), (3, 3), "atomic", "uint8"),
    row("out must be C-contiguous", col2im, (4, 4), (2, 2), "atomic", image=(32, 32, 8, 2)),
    row("do not fit into 64 bits", col2im, (4, 8), (2, 2), "gather_pixels", pads_begin=2**63, strides=2**62),
    row("all 9000 pixels of a stride .*, which has 20", col2im, (4, 20), (2, 7), "gather", strides=(2, 9000)),
    row("counts the taps of a pixel along an axis, 16777215 at most", col2im, MANY, (2**24,), "gather_pixels"),
    row("atomic adds in any order, where deterministic=True", col2im, MANY, (2**24,)),
    row("packed takes no window", packed, (2, 3, 8, 8), (3, 3), dtype="float32", window="full"),
    row("must not be larger .* but 9 of 8 bytes are a block", packed, (2, 3, 8, 8), (3, 3), dtype="int64"),
    row("nor blocks smaller, but 3 of 1 bytes are a block", packed, (2, 3, 8, 8), (3, 1)),
    row("128 words of pixels a thread .* not 361 and 46336", packed, (2, 3, 64, 64), (19, 19), dtype="float32"),
    row("an image with a contiguous last axis, not steps of 8", packed, (1, 1, 8, 8), (3, 3), steps=(64, 64, 1, 8)),
    row(r"that are contiguous, not steps of \(0, 324, 6, 1, 108, 36\)", packed, (1, 2, 8, 8), (3, 3), blocks=None),
    row("packed .*needs a last axis that is split", joined, (2, 3, 8), (2, 1)),
    row("packed .*words of 4 bytes together, not elements of 8", joined, (6, 3, 8), (2, 3), dtype="float64"),
    row("packed .*not blocks of 3 elements of 1 bytes in rows of 3", joined, (6, 3, 1), (2, 3), dtype="uint8"),
    row("packed .*not blocks of 2039 elements of 4 bytes", joined, (2 * 2039, 3, 8), (2, 2039)),
    row("packed needs contiguous space", joined, (4, 3, 4), (1, 2), space=(32, 9, 1)),
    row("would need .* bytes of shared memory, of which there are 49152", placed, *OF_FIFTY_AXES, 3, "output_driven"),
]


@pytest.mark.parametrize(("match", "plan"), REFUSED)
def test_a_variant_that_cannot_serve_says_why(match, plan):
    with pytest.raises(Unsupported, match=match):
        plan()


EXTENTS = (1, 1, 5, 9), (3, 5, 8, 7), (64, 256, 56, 57), (1, 3, 1024, 1999)
SPACES = (4, 1, 3, 8), (12, 5, 7, 16), (256, 256, 56, 56), (4, 3, 1000, 2000)
OF_ANY_ROWS = [variant for variant in variants("im2col") if variant not in ("packed", "runs", "staged")]
SAME = [
    *([partial(col2im_apart, variant, *extents) for extents in EXTENTS] for variant in variants("col2im")),
    [partial(col2im, (40, 40), (3, 3), "gather", strides=3, pads_begin=pad) for pad in (0, 1, 4)],
    *([partial(im2col, extents, (3, 3), variant, **CELLS) for extents in EXTENTS] for variant in OF_ANY_ROWS),
    *(
        [partial(im2col, (2, 2, 40, 40), (3, 3), variant, pads_begin=pad, strides=4 + pad) for pad in (0, 1, 7)]
        for variant in OF_ANY_ROWS
    ),
    [partial(im2col, (2, 3, *size), (3, 3), "runs", pads_begin=1) for size in ((40, 41), (9, 7), (999, 1001))],
    [partial(im2col, (2, 3, *size), (3, 8), "staged", pads_begin=1) for size in ((40, 41), (9, 47), (999, 1001))],
    [partial(im2col, (1, 1, length), (400,), "staged", strides=160) for length in (6000, 400000)],
    *(
        [partial(space, operation, shape, (1, 2, 2), variant, begin=(0, 0, 1, 2), end=(0, 0, 0, 2)) for shape in SPACES]
        for operation in ("batch_to_space", "space_to_batch")
        for variant in variants(operation)
    ),
]


@pytest.mark.parametrize("plans", SAME, ids=lambda plans: f"{plans[0].args}")
def test_extents_never_change_what_is_compiled(plans):
    assert len({plan().defines for plan in plans}) == 1


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex64"])
def test_blocks_that_are_apart_share_no_pixel_in_shared_memory(dtype):
    for taps in range(1, 12):
        defines = dict(im2col((1, 1, 4097), (taps,), "staged", dtype=dtype, strides=100, pads_begin=1).defines)
        assert defines["APART"] == "1"
        assert int(defines["STEP"]) >= int(defines["LEAD"]) + int(defines["REACH"])


def test_a_plane_alone_takes_no_words_away_by_where_another_would_lie():
    first, other = (col2im((512,), (64,), "gather", strides=64, image=(777, plane, 1)) for plane in (512, 555))
    assert first.parameters == other.parameters


def test_lists_of_blocks_are_made_by_the_same_kernels_whatever_the_dtype():
    made = {placed((64, 64), (3, 3), 100, "binned", dtype).prologue[0].defines for dtype in ("int8", "complex128")}
    assert len(made) == 1


OF_ROWS_OF_TAPS = partial(col2im, (512, 512), (8, 8), "gather_blocks", steps=(1, 1, 64))
SEARCHED = [["output_driven"], ["binned"], ["binned"]]
CANDIDATES = [
    row(("ROWS grid", [[8, (64 * 4, 1, 1)], [1, (512 * 4, 1, 1)]]), OF_ROWS_OF_TAPS),
    row(("TILE_ROWS", [[8], [32]]), placed, (8, 2048, 2048), (512, 512), 64, "binned"),
    row(("variant", SEARCHED), placed, (64, 64), (3, 3), 100),
    row(("variant", [*SEARCHED, ["atomic"]]), placed, (64, 64), (3, 3), 100, deterministic=False),
]


@pytest.mark.parametrize(("expected", "plan"), CANDIDATES)
def test_what_races_begins_with_what_the_rule_takes(expected, plan):
    names, wanted = expected
    assert [facts(each, names) for each in plan(all_of_them=True)] == wanted


@pytest.mark.parametrize("columns", [1, 3, 7, 8, 64])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_the_floor_is_the_sectors_that_rows_at_any_place_reach_on_the_average(dtype, columns):
    itemsize, count = np.dtype(dtype).itemsize, 5
    places = range(0, 32, itemsize)
    sectors = np.mean([(place + columns * itemsize - 1) // 32 + 1 for place in places])
    places, blocks = count * 2 * 8, count * 2 * columns * itemsize
    under = int(count * 2 * sectors * 32)
    assert placed((4096, 4096), (2, columns), count, dtype=dtype).bytes_moved == places + blocks + 2 * under
    everywhere = placed((4, columns), (4, columns), count, dtype=dtype)
    assert everywhere.bytes_moved == places + 2 * blocks + 2 * 4 * columns * itemsize, "no more than the array has"
    geometry = add_blocks_geometry((3, 4096, 4096), (count, 3, 2, columns), (count, 2))
    array, taken = Operand.contiguous(geometry.array_shape), Operand.contiguous(geometry.blocks_shape)
    assert planned(Call("take_blocks", geometry, dtype), array, taken).bytes_moved == places + 3 * (blocks + under)
    turned = Operand(array.shape, array.strides[::-1])  # of pixels that are no neighbours nothing is known but they
    assert planned(Call("take_blocks", geometry, dtype), turned, taken).bytes_moved == places + 3 * 2 * blocks


@pytest.mark.hostcuda
def test_an_order_that_matters_is_never_given_up():
    shape = OF_FIFTY_AXES[0]
    out, blocks = np.full(shape, 0.5), np.array([1e16, 3.0, -1e16]).reshape(3, *shape)
    plan = placed(*OF_FIFTY_AXES, 3, dtype="float64")
    hostcuda.run(plan, hostcuda.Arrays(blocks, out, positions=np.zeros((3, 50), np.int64)))
    assert out.item() == 0.5 + 1e16 + 3 - 1e16 != 3.5


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


# ---- Random calls

CALLS = 4000
REGISTERS_OF_A_BLOCK = 65536
INDICES = {"int": 2**31 - 1, "long long": 2**63 - 1}
COUNTS = ("KERNEL_WIDTH", "CHUNK_TAPS", "TAPS")


def needs(plan):
    """Yield what a plan needs: the limit's name, the number, and the most that there is."""
    defines = dict(plan.defines)
    yield "shared memory", plan.shared_bytes, 48 << 10
    yield "threads", prod(plan.block), 1024
    yield "arguments", plan.argument_bytes, 4096
    for axis, blocks, most in zip("xyz", plan.grid, (2**31 - 1, 65535, 65535), strict=True):
        yield f"grid {axis}", blocks, most
    for name in ("KERNEL", "STRIDE", "DILATION"):
        yield f"compiled {name.lower()}", max(map(int, defines.get(name, "0").split(","))), INDICES[defines["OFFSET"]]
    yield "compiled counts", max(int(defines.get(name, 0)) for name in COUNTS), INDICES["int"]


def plans_of(problem):
    """Plan a call by auto and by every variant's name; None where that is Unsupported."""
    found = dict.fromkeys(("auto", *variants(problem.call.operation)))
    for variant in found:
        with suppress(Unsupported):
            call = problem.call._replace(variant=variant)
            found[variant] = choose(call, problem.input, problem.output, problem.device)
    return found


def may_be_chosen(problem, plan):
    """Whether auto may take a plan for a call: not atomic additions where their order matters."""
    return plan is not None and (plan.variant != "atomic" or problem.any_order)


def random_plans(seeds):
    """Plan a random call for each seed, by every variant and by auto; yield the plans, each with its seed."""
    for seed in seeds:
        problem = random_problem(random.Random(seed))
        if 0 in (*problem.input.shape, *problem.output.shape):
            continue
        found, where = plans_of(problem), f"seed {seed}: {problem}"
        auto = found.pop("auto")
        if auto is None:
            assert not any(may_be_chosen(problem, plan) for plan in found.values()), f"auto refuses, {where}"
        else:
            assert may_be_chosen(problem, auto), f"auto gives up the order, {where}"
            assert replace(auto, reason="") == replace(found[auto.variant], reason=""), f"auto plans otherwise, {where}"
        for plan in filter(None, found.values()):
            for limit, needed, most in needs(plan):
                assert 0 <= needed <= most, f"{limit} of {plan}, {where}"
            yield plan, seed


def random_seeds(count):
    first = random.SystemRandom().randrange(2**40)
    return range(first, first + count)


def test_auto_serves_what_any_variant_serves_within_the_limits_of_a_gpu():
    assert len(list(random_plans(random_seeds(CALLS)))) > CALLS, "few calls were served"


@pytest.mark.many
@pytest.mark.nvrtc
@pytest.mark.parametrize("part", range(500))
def test_a_million_random_calls_are_planned_and_thousands_of_their_kernels_compile(part):
    for plan, seed in random.sample(list(random_plans(random_seeds(2000))), 6):
        architecture = random.choice((90, random.choice(hostcuda.cubin.ARCHITECTURES)))
        needed = hostcuda.cubin.resources(plan, architecture)
        got = (needed.shared_bytes, needed.argument_bytes)
        assert got == (plan.shared_bytes, plan.argument_bytes), f"sm_{architecture}: {plan}, seed {seed}"
        assert needed.registers * prod(plan.block) <= REGISTERS_OF_A_BLOCK, f"sm_{architecture}: {plan}, seed {seed}"


def test_the_last_pixel_of_a_run_has_room_where_elements_are_left_out_between_lines():
    """As kernels/im2col_staged.cu counts them, from the first block of a run in any place of its row."""
    rng = random.Random(0)
    for _ in range(4000):
        itemsize, taps, stride = rng.choice((1, 2, 4, 8)), rng.randint(2, 40), rng.choice((2, 4, 6, 8, 12, 16))
        blocks = rng.randint(16, 600)
        row = ViewAxis((blocks - 1) * stride + taps, taps, stride, 1, 0, blocks, 1, blocks, 1)
        view = View(itemsize, 256, True, 1, 3, 0, row.size, 0, taps * blocks, (row,))
        laid = _laid_out(view, rng.choice((64, 128, 256, 512)), apart=False)
        last, before = laid.run + 32 // itemsize - 2, rng.randrange(blocks)
        pixel = last * stride + (before + last) // blocks * (laid.row * laid.word - blocks * stride)
        pixel += laid.word - 1 + laid.lead + taps - 1
        left_out = pixel // (LINE_BYTES // itemsize) * max(1, 4 // itemsize) if laid.skewed else 0
        assert pixel + left_out < laid.size, (view, laid)
