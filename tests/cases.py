"""The problems that tests run, by name; the awkward ones, peers' bugs first, and random ones from a seed."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import definition
import numpy as np
from numpy.lib.stride_tricks import as_strided

import gpufold
from gpufold import calls
from gpufold.windows import as_weights

try:
    from ml_dtypes import bfloat16
except ImportError:  # where the GPU tests run without it
    bfloat16 = None

KERNEL_MODES = ("constant", "edge")
"""The modes of take_blocks that have kernels; blocks of the others are gathered by index."""

DTYPES = tuple(
    np.dtype(each)
    for each in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16"),
        *(() if bfloat16 is None else (bfloat16,)),
        *("float32", "float64", "complex64", "complex128"),
    )
)


@dataclass(frozen=True)
class Named:
    """A problem of operations, which are adjoint to each other where they are two."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Case(Named):
    """Sliding blocks: the arguments of col2im and im2col, and N and C; batch None is unbatched."""

    operations: ClassVar = ("col2im", "im2col")

    output_size: tuple[int, ...]
    kernel_size: tuple[int, ...]
    strides: tuple[int, ...] | int = 1
    dilations: tuple[int, ...] | int = 1
    pads_begin: tuple[int, ...] | int = 0
    pads_end: tuple[int, ...] | int = 0
    batch: int | None = 2
    channels: int = 3

    @property
    def block(self):
        return self.kernel_size

    def _expanded(self, value):
        return (value,) * len(self.output_size) if isinstance(value, int) else tuple(value)

    @property
    def arguments(self):
        """Of both operations, by name."""
        names = ("strides", "dilations", "pads_begin", "pads_end")
        return {name: self._expanded(getattr(self, name)) for name in names}

    @property
    def num_blocks(self):
        axes = zip(self.output_size, self.kernel_size, *self.arguments.values(), strict=True)
        return tuple(definition.num_blocks(*axis) for axis in axes)

    @property
    def columns_shape(self):
        lead = () if self.batch is None else (self.batch,)
        return (*lead, self.channels * prod(self.kernel_size), prod(self.num_blocks))

    @property
    def image_shape(self):
        lead = () if self.batch is None else (self.batch,)
        return (*lead, self.channels, *self.output_size)


CASES = (
    # Bugs that peers shipped; each hid in one of these.
    Case("bug-uncovered-pixels-never-written", (16, 16), (2, 2), 2, 2, batch=1, channels=3),
    Case("bug-3d-columns-with-dilated-kernel", (5, 6, 7), (2, 3, 2), (2, 1, 3), (2, 1, 3), (1, 0, 2), (0, 2, 1)),
    Case("bug-fold-with-padding", (7, 9), (3, 3), 1, 1, 1, 1),
    Case("bug-height-width-swapped-under-dilation", (9, 17), (3, 2), 1, (1, 4)),
    Case("bug-dilation-applied-twice", (13, 11), (3, 3), 1, (3, 2), (2, 1), (2, 1)),
    Case("bug-pads-end-read-from-begin", (6, 5), (3, 2), 1, 1, (0, 1), (2, 0)),
    Case("bug-unbatched", (5, 7), (2, 3), batch=None),
    Case("bug-kernel-of-one-returned-a-view", (4, 5), (1, 1)),
    Case("bug-more-overlaps-than-a-byte-counts", (20, 19), (18, 17), batch=1, channels=1),
    # Every relation of stride, kernel and dilation.
    Case("stride-equals-kernel", (6, 9), (2, 3), (2, 3)),
    Case("stride-equals-kernel-cropped-end", (7, 10), (2, 3), (2, 3)),
    Case("stride-equals-kernel-padded", (7, 10), (4, 4), 4, 1, (1, 3), (0, 3)),
    Case("stride-beyond-kernel", (11, 13), (2, 2), (5, 3)),
    Case("stride-beyond-image", (3, 4), (3, 3), (100, 50)),
    Case("stride-two-odd", (9, 11), (3, 3), 2, 1, 1, 1),
    Case("stride-two-asymmetric", (9, 10), (4, 4), 2, 1, (1, 2), (0, 1)),
    Case("stride-sixteen-half-overlap", (64, 48), (16, 16), 8, batch=1, channels=2),
    Case("stride-seventeen", (40, 70), (20, 18), (17, 17), batch=1, channels=1),
    Case("strides-differ", (12, 31), (5, 3), (1, 4), (2, 1), (0, 2), (3, 0)),
    Case("dilation-zero", (5, 6), (3, 2), (2, 1), (0, 0)),
    Case("dilation-zero-on-one-axis", (5, 6), (3, 2), 1, (0, 2), 1, 1),
    Case("dilation-beyond-stride-coprime", (23, 19), (3, 4), (3, 2), (5, 3), 4, 2),
    Case("dilation-by-which-taps-interlock", (9, 11), (2, 3), (2, 3), (3, 4), (1, 2), (2, 1)),
    Case("dilation-multiple-of-stride", (15, 14), (3, 3), 2, 4, 3, 3),
    Case("atrous-rate-six", (17, 15), (3, 3), 1, 6, 6, 6),
    Case("padding-beyond-kernel", (3, 2), (2, 2), 1, 1, 7, 5),
    Case("blocks-wholly-in-padding", (4, 4), (2, 2), 3, 1, 9, 9),
    # Shapes.
    Case("single-pixel", (1, 1), (1, 1), batch=1, channels=1),
    Case("single-block", (5, 7), (5, 7)),
    Case("row", (1, 37), (1, 5), (1, 2)),
    Case("column", (37, 1), (5, 1), (2, 1)),
    Case("map-7x7", (7, 7), (3, 3), 1, 1, 1, 1, batch=2, channels=16),
    Case("map-14x14", (14, 14), (3, 3), 1, 1, 1, 1, batch=2, channels=8),
    Case("dense-8x8", (33, 35), (8, 8), batch=1, channels=1),
    Case("wide-kernel-40", (3, 50), (2, 40), batch=1, channels=2),
    Case("many-taps-small-output", (8, 9), (20, 18), 1, 1, (15, 13), (14, 14), batch=1, channels=1),
    # Other ranks.
    Case("audio-25-10", (250,), (25,), 10, batch=3, channels=1),
    Case("audio-40-16-padded", (300,), (40,), 16, 1, 20, 20, batch=2, channels=1),
    Case("audio-unbatched-odd", (101,), (7,), 3, 2, 1, 5, batch=None, channels=2),
    Case("volume", (6, 7, 8), (3, 3, 3), 1, 1, 1, 1, batch=1, channels=2),
    Case("volume-stride-two", (7, 6, 9), (2, 3, 3), 2, 1, (0, 1, 1), (1, 1, 0), batch=2, channels=1),
    Case("rank-4", (3, 4, 3, 5), (2, 1, 2, 3), (1, 2, 1, 2), (1, 1, 2, 1), (0, 1, 0, 1), (1, 0, 1, 0), channels=2),
    Case("rank-5", (2, 3, 2, 3, 4), (1, 2, 2, 1, 3), 1, 1, (0, 1, 0, 0, 1), (0, 0, 1, 0, 1), batch=1, channels=1),
)

FAR_CASES = (
    Case("taps-past-32-bits", (5,), (3,), 1, 2**31 + 1, 2**31 + 1, 2**31 + 1),
    Case("taps-twice-as-far", (3, 7), (2, 3), 1, (1, 2**32 + 2), (0, 2**32 + 2), (0, 2**32 + 2)),
    Case("taps-past-32-bits-at-a-stride", (9,), (3,), 3, 2**31 + 3, 2**31 + 2, 2**31 + 7),
    Case("outer-taps-past-32-bits", (5, 4), (3, 2), 1, (2**31 + 1, 1), (2**31 + 1, 1), (2**31 + 1, 0)),
    Case("blocks-far-apart", (5,), (2,), 2**31 - 1, 1, 2**31 - 2, 2**31 - 1),
    Case("blocks-and-taps-far-apart", (5,), (3,), 2**31 + 1, 2**32 + 2, 2**32 + 1, 2**33 + 4),
    Case(
        "blocks-and-taps-apart-by-a-third", (5, 3), (1, 5), (1, 3 * 2**31), (1, 2**32), (0, 3 * 2**32), (0, 3 * 2**32)
    ),
    Case("one-tap-of-a-far-dilation", (5, 4), (1, 2), 1, (2**36, 1)),
    Case("blocks-beside-far-taps", (5,), (2,), 20_000, 200_001, 200_001, 200_001),
)
"""Distances between taps, or blocks, that no 32 bits hold, of few of each."""

CASES_OF_KERNELS = {
    # Calls that bring one kernel to its corners, which has to serve them.
    ("col2im", "gather"): (
        Case("stride-1", (5, 6), (3, 2), 1, 1, (1, 0), (0, 1), channels=5),
        Case("stride-3", (4, 3 * 33), (2, 7), (2, 3), 1, 1, 1, batch=1, channels=5),
        Case("stride-5", (4, 13), (2, 7), (2, 5), 1, 1, 1, batch=1, channels=2),
        Case("rows-of-words", (3, 4 * 40), (2, 5), (1, 4), 1, 1, 1, batch=1, channels=5),
        Case("parts-longer-than-a-stride", (3, 5 * 40 + 2), (2, 7), (1, 5), 1, 1, 1, batch=1, channels=2),
        Case("parts-longer-than-a-stride-of-two-taps", (4, 5 * 33 + 2), (2, 7), (2, 5), 1, 1, 1, batch=1, channels=2),
        Case("rows-of-32-cells-and-a-part", (2, 3 * 36 + 1), (2, 5), (1, 3), 1, (0, 2), (0, 4), batch=1, channels=5),
        Case("words-behind-pads", (4, 12), (3, 3), (1, 2), (1, 2), 1, 1, channels=5),
        Case("uncovered-rows", (7, 30), (2, 2), (5, 4), (1, 3), batch=2, channels=2),
        Case("odd-volume", (3, 5, 8), (2, 3, 3), (1, 2, 2), 1, (0, 1, 1), (1, 1, 0), batch=1, channels=2),
        Case("odd-row", (70,), (9,), 4, 1, 3, 2, batch=3, channels=1),
        Case("phases-of-as-many-taps", (3, 4 * 70), (2, 12), (1, 4), 1, (1, 5), (0, 3), batch=1, channels=2),
        Case("audio-400-160", (4000,), (400,), 160, 1, 200, 200, batch=1, channels=2),
        Case("audio-2048-512-one-plane", (6000,), (2048,), 512, batch=1, channels=1),
        Case("stride-33-in-two-tiles-of-phases", (33 * 5,), (70,), 33, 2, 10, 5),
        Case("tiles-256-192", (450, 500), (256, 256), 192, batch=1, channels=1),
        Case("stride-40-of-one-tap", (90, 130), (1, 1), 40, batch=1, channels=2),
        Case("many-cells-in-a-row", (20 * 300,), (24,), 20, batch=1, channels=2),
        Case("pieces-of-strides", (40, 15 * 40), (3, 45), (2, 40), 1, 1, 1, batch=1, channels=2),
        Case("phases", (9, 20 * 40), (2, 50), (3, 20), 1, (1, 7), (0, 9), batch=1, channels=2),
        Case("several-cells-of-a-lane", (3, 20 * 250), (2, 45), (2, 20), 1, (1, 3), (1, 5), batch=1, channels=1),
    ),
    ("col2im", "gather_pixels"): (
        Case("patches-16", (32, 512), (16, 16), 16, batch=1, channels=3),
        Case("patches-14-odd-rows", (29, 43), (14, 14), 14, batch=2, channels=1),
        Case("half-overlap-16-8-long-rows", (24, 8 * 40), (16, 16), 8, batch=1, channels=2),
        Case("many-taps", (5, 9), (20, 18), 1, 1, (15, 13), (14, 14), batch=1, channels=1),
        Case("stride-20", (20 * 130,), (50,), 20, 2, 7, 7),
    ),
    ("col2im", "gather_blocks"): (
        Case("blocks-in-several-segments", (7, 300), (4, 8), (1, 1), 1, (1, 3), (2, 0), batch=1, channels=2),
        Case("a-tile-for-each-part-of-a-row", (230,), (100,), 1, 1, 40, 17, batch=1, channels=2),
        Case("parts-of-dilated-rows", (3, 270), (2, 50), (1, 2), (1, 3), (1, 20), (0, 9), batch=1, channels=1),
        Case("blocks-beside-padding", (5, 7, 70), (5, 4, 24), (4, 2, 8), 1, (1, 2, 9), (3, 1, 5), channels=1),
        Case("blocks-with-gaps", (20, 60), (8, 8), (10, 16), 1, (1, 20), (3, 5), channels=2),
        Case("one-tile-of-several-rows", (9, 140), (5, 6), 1, 1, (2, 3), (1, 0), batch=1, channels=2),
        Case("rows-with-weights", (11, 21), (4, 6), (2, 1), (1, 2), (1, 4), (2, 0), batch=1, channels=1),
        Case("segments-that-no-block-reaches", (3, 150), (2, 4), (1, 2), (1, 2), (0, 140), 0, batch=1, channels=1),
    ),
    ("col2im", "atomic"): (
        Case("scattered", (9, 13), (3, 2), (2, 1), (1, 2), (1, 0), (0, 2)),
        Case("volume-in-any-order", (4, 5, 6), (2, 3, 2), 1, (2, 1, 1), (1, 0, 1), (0, 1, 1), channels=2),
        Case("row-in-any-order", (1, 60), (1, 7), (1, 3), (1, 2), (0, 4), (0, 1)),
    ),
    ("im2col", "per_block"): (
        Case("stride-16-padded", (40, 44), (16, 16), 8, 1, (3, 5), (2, 0), batch=1, channels=2),
        Case("half-overlap-dilated", (60,), (12,), 16, 3, 5, 6),
        Case("1d-400-160", (2000,), (400,), 160, 1, 200, 200, batch=1, channels=2),
        Case("1d-more-blocks-than-a-warp-has-lanes", (700,), (17,), 9, 2, 4, 7, batch=2),
        Case("3d-stride-is-kernel", (4, 6, 24), (2, 3, 8), (2, 3, 8), batch=1, channels=2),
        Case("words-in-the-pads", (5, 48), (3, 16), (2, 16), (2, 1), (2, 16), (1, 8), channels=6),
        Case("words-of-a-row-in-two-chunks", (2, 96), (1, 24), (1, 32), 1, (0, 8), 0, batch=1, channels=5),
        Case("words-that-overlap", (7, 40), (4, 8), (3, 4), 1, (2, 4), (2, 4), batch=1),
        Case("narrow-words", (94,), (12,), 26, 1, 0, 0, batch=3),
        Case("kernel-1x1-is-a-copy", (6, 8), (1, 1)),
        Case("kernel-3x1-keeps-rows", (6, 8), (3, 1), 1, 1, (1, 0)),
        Case("kernel-1-stride-3", (9, 11), (1, 1), 3),
        Case("kernel-1-padded", (4, 8), (1, 1), 1, 1, (0, 4), (1, 4)),
        Case("3d-unit-axis-outside", (4, 6, 8), (1, 2, 2), (1, 2, 2), 1, (2, 0, 0), (1, 0, 0)),
        Case("unit-axis-outside-a-shifted-one", (3, 4, 5), (1, 2, 1), (1, 2, 1), 1, (0, 1, 0)),
        Case("unit-axis-outside-one-whose-taps-leave-it", (3, 4, 5), (1, 3, 1), (1, 2, 1), 1, 0, (0, 1, 0)),
        Case("many-channels-on-a-small-map", (5, 5), (2, 2), channels=37),
    ),
    ("im2col", "runs"): (
        Case("run-after-run", (39, 71), (2, 3), 1, 1, 1, 1, batch=1, channels=2),
        Case("runs-of-few-blocks", (9, 13), (3, 4), (2, 1), (1, 2), (1, 3), (0, 2), batch=2),
        Case("runs-of-words-of-taps", (7, 1200), (2, 16), (1, 4), 1, (0, 4), (1, 8), batch=1, channels=1),
        Case("runs-of-a-short-last-piece", (5, 70), (2, 17), 1, 1, 1, 1, batch=1, channels=2),
        Case("1d-runs", (5555,), (11,), 3, 1, 5, 6, batch=1, channels=2),
        Case("3d-runs", (4, 15, 21), (2, 3, 3), (1, 2, 1), 1, (1, 0, 2), (0, 1, 1), channels=2),
    ),
    ("im2col", "staged"): (
        Case("row-after-row", (39, 71), (2, 3), 1, 1, 1, 1, batch=1, channels=2),
        Case("rows-of-few-blocks", (9, 13), (3, 4), (2, 1), (1, 2), (1, 3), (0, 2), batch=2),
        Case("words-of-pixels", (7, 1200), (2, 16), (1, 4), 1, (0, 4), (1, 8), batch=1, channels=1),
        Case("more-taps-than-together", (5, 70), (2, 17), 1, 1, 1, 1, batch=1, channels=2),
        Case("1d-staged", (5555,), (11,), 3, 1, 5, 6, batch=1, channels=2),
        Case("1d-frames", (9000,), (400,), 160, 1, 200, 200, batch=1, channels=1),
        Case("1d-long-frames", (40000,), (2048,), 512, 1, 1024, 1024, batch=1, channels=1),
        Case("blocks-apart", (40, 300), (3, 3), (7, 20), (1, 2), (1, 2), (0, 3), batch=1, channels=2),
        Case("words-apart", (40, 1024), (4, 4), (8, 32), 1, (1, 4), (0, 8), batch=1, channels=2),
        Case("long-frames-of-narrow-pieces", (3000,), (100,), 70, 1, 3, 30, batch=2, channels=1),
        Case("rows-of-long-frames", (6, 400), (2, 90), (1, 40), (2, 1), (1, 8), (0, 12), batch=1, channels=2),
        Case("a-pad-of-half-a-word", (3, 202), (2, 7), (1, 5), 1, 1, 1, batch=1, channels=2),
        Case("3d-staged", (4, 15, 21), (2, 3, 3), (1, 2, 1), 1, (1, 0, 2), (0, 1, 1), channels=2),
    ),
    ("im2col", "taps"): (
        Case("a-line-of-odd-rows", (5, 35), (3, 8), 1, 1, (1, 3), (0, 2)),
        Case("a-line-in-words", (4, 48), (2, 8), 1, 1, (0, 3), (1, 5), batch=1),
        Case("a-line-at-a-stride", (6, 64), (2, 8), (2, 3), (1, 1), (0, 1), (0, 2), channels=2),
        Case("words-by-themselves", (9, 96), (3, 16), (2, 8), 1, (1, 16), (0, 8), batch=1, channels=2),
        Case("narrower-words-for-their-pad", (4, 64), (2, 8), 8, 1, (0, 2), (0, 6)),
        Case("few-blocks-off-their-words", (3, 12), (2, 8), 1, 1, 0, 0),
        Case("dilated-taps-one-by-one", (4, 40), (2, 4), 1, (1, 2), 1, 1),
        Case("1d-line", (90,), (16,), 2, 1, 5, 6, batch=3, channels=1),
        Case("many-blocks-of-a-thread", (20, 238), (8, 8), batch=1),
    ),
    ("im2col", "packed"): (
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
    ),
}

STILL_CASES = (
    Case("one-axis", (7,), (300,), 1, 0, 0, 0, batch=2, channels=3),
    Case("one-block", (1,), (3000,), 1, 0, 0, 0),
    Case("both-axes", (4, 5), (20, 30), (1, 2), 0, (1, 0), (0, 1), channels=2),
    Case("before-taps-that-move", (5, 9), (400, 3), (1, 3), (0, 1), (0, 2), (1, 1), batch=2),
    Case("behind-them", (9, 5), (3, 400), (3, 1), (1, 0), (2, 0), (1, 1)),
    Case("overlapping", (5, 6), (300, 3), (1, 1), (0, 1), 0, 0),
    Case("padding-alone", (3,), (300,), 2, 0, 4, 4),
)
"""Many taps that land on one pixel, which is where they are added at once."""

HUGE_CASES = tuple(
    case
    for huge in (2**31, 2**62, 2**63, 2**70)
    for case in (
        Case(f"stride-{huge}-of-one-block", (5, 6), (4, 2), (huge, 2)),
        Case(f"dilation-{huge}-of-one-tap", (5, 6), (1, 5), (1, huge), (huge, 1)),
        Case(f"dilation-{huge}-of-one-tap-of-a-row", (6, 5), (4, 1), (2, 1), (1, huge)),
    )
)


def random_case(seed: int) -> Case:
    """A geometry of rank 1 to 4 with at least one block on every axis."""
    rng = random.Random(seed)
    rank = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    largest = {1: 60, 2: 13, 3: 6, 4: 4}[rank]
    while True:
        case = Case(
            f"random-{seed}",
            output_size=tuple(rng.randint(1, largest) for _ in range(rank)),
            kernel_size=tuple(rng.randint(1, {1: 12, 2: 4, 3: 3, 4: 2}[rank]) for _ in range(rank)),
            strides=tuple(rng.choice((1, 1, 2, 3, rng.randint(1, largest))) for _ in range(rank)),
            dilations=tuple(rng.choice((0, 1, 1, 1, 2, 3)) for _ in range(rank)),
            pads_begin=tuple(rng.choice((0, 0, 1, 2, 5)) for _ in range(rank)),
            pads_end=tuple(rng.choice((0, 0, 1, 2, 5)) for _ in range(rank)),
            batch=rng.choice((None, 1, 2, 3)),
            channels=rng.randint(1, 3),
        )
        if min(case.num_blocks) >= 1 and prod(case.num_blocks) * prod(case.kernel_size) <= 4000:
            return case


def few_blocks_case(seed: int) -> Case:
    """An axis with far fewer blocks than taps, which the NumPy path serves block by block."""
    rng = random.Random(seed)
    rank = rng.choice((1, 1, 2, 3))
    kernel, strides, dilations, before, after, rest, blocks = (
        tuple(rng.randint(low, most) for _ in range(rank))
        for low, most in ((1, {1: 300, 2: 25, 3: 8}[rank]), (1, 4), (1, 3), (0, 9), (0, 9), (0, 3), (1, 4))
    )
    covered = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(blocks, strides, kernel, dilations, strict=True)]
    size = tuple(max(1, c + r - b - a) for c, r, b, a in zip(covered, rest, before, after, strict=True))
    steps = strides, dilations, before, after
    return Case(f"few-blocks-{seed}", size, kernel, *steps, batch=rng.randint(1, 2), channels=rng.randint(1, 2))


@dataclass(frozen=True)
class SpaceCase(Named):
    """Batch and space: the shape of the batch array, the block, the crops; all with axis 0."""

    operations: ClassVar = ("batch_to_space", "space_to_batch")

    batch_shape: tuple[int, ...]
    block_shape: tuple[int, ...]
    crops_begin: tuple[int, ...]
    crops_end: tuple[int, ...]

    @property
    def space_shape(self):
        batch, *extents = self.batch_shape
        sizes = (
            extent * block - begin - end
            for extent, block, begin, end in zip(
                extents, self.block_shape[1:], self.crops_begin[1:], self.crops_end[1:], strict=True
            )
        )
        return (batch // prod(self.block_shape), *sizes)

    def margins(self, name):
        """What is cropped or padded, by the names of arguments."""
        return {f"{name}_begin": self.crops_begin, f"{name}_end": self.crops_end}


SPACE_CASES = (
    SpaceCase("openvino-page-2d", (10, 2), (1, 5), (0, 2), (0, 0)),
    SpaceCase("openvino-page-5d", (48, 3, 3, 1, 3), (1, 2, 4, 3, 1), (0, 0, 1, 0, 0), (0, 0, 1, 0, 0)),
    SpaceCase("block-of-one-returned-a-view", (3, 4, 5), (1, 1, 1), (0, 0, 0), (0, 0, 0)),
    SpaceCase("crop-only", (3, 4, 5), (1, 1, 1), (0, 1, 0), (0, 0, 2)),
    SpaceCase("nchw", (8, 3, 5, 7), (1, 1, 2, 2), (0, 0, 0, 0), (0, 0, 0, 0)),
    SpaceCase("nchw-cropped", (8, 3, 5, 7), (1, 1, 2, 2), (0, 0, 1, 0), (0, 0, 0, 1)),
    SpaceCase("nhwc", (12, 5, 4, 6), (1, 3, 2, 1), (0, 2, 1, 0), (0, 0, 1, 0)),
    SpaceCase("channels-blocked-too", (24, 2, 3, 4), (1, 2, 3, 2), (0, 1, 2, 1), (0, 2, 2, 0)),
    SpaceCase("row-wide-block", (32, 4, 3), (1, 1, 16), (0, 0, 5), (0, 0, 6)),
    SpaceCase("offsets-wholly-in-margin", (4, 2, 3), (1, 1, 4), (0, 0, 5), (0, 0, 4)),
    SpaceCase("6d", (24, 2, 1, 3, 2, 2), (1, 1, 2, 3, 1, 2), (0, 0, 1, 2, 0, 1), (0, 1, 0, 1, 1, 0)),
    SpaceCase("crops-empty-an-axis", (4, 2, 3), (1, 2, 2), (0, 3, 0), (0, 1, 0)),
    SpaceCase("no-batch", (0, 2, 3), (1, 2, 2), (0, 0, 0), (0, 0, 0)),
    SpaceCase("no-extent", (4, 0, 3), (1, 2, 2), (0, 0, 0), (0, 0, 0)),
)

SPACE_CASES_OF_KERNELS = (
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
)


def random_space_case(seed: int) -> SpaceCase:
    """A batch array of rank 2 to 6; crops may leave nothing."""
    rng = random.Random(seed)
    rank = rng.randint(2, 6)
    block = (1, *(rng.choice((1, 1, 2, 3, 4)) for _ in range(rank - 1)))
    extents = tuple(rng.randint(1, 4) for _ in range(rank - 1))
    begin, end = [0], [0]
    for extent, side in zip(extents, block[1:], strict=True):
        begin.append(rng.choice((0, 0, 1, 2, extent * side)))
        begin[-1] = min(begin[-1], extent * side)
        end.append(min(rng.choice((0, 0, 1, 3)), extent * side - begin[-1]))
    shape = (rng.randint(1, 2) * prod(block), *extents)
    return SpaceCase(f"random-{seed}", shape, block, tuple(begin), tuple(end))


FAR = 2**63


@dataclass(frozen=True)
class PositionsCase(Named):
    """Blocks at positions: the shape of the array and of a block, and where blocks go, a list or how many at random."""

    operations: ClassVar = ("add_blocks", "take_blocks")

    size: tuple[int, ...]
    block: tuple[int, ...]
    places: int | tuple[tuple[int, ...], ...]
    lead: tuple[int, ...] = ()
    reach: tuple[int, ...] | None = None
    """Where random ones end, instead of past the array: blocks crowd in front of it."""

    @property
    def shape(self):
        return (*self.lead, *self.size)

    @property
    def positions(self):
        """Random ones reach from wholly outside on one side to wholly outside on the other."""
        if not isinstance(self.places, int):
            return np.array(self.places, np.int64).reshape(-1, len(self.size))
        rng = np.random.default_rng(len(self.name))
        lowest, highest = [-side - 1 for side in self.block], self.reach or [extent + 2 for extent in self.size]
        return rng.integers(lowest, highest, (self.places, len(self.size)))

    @property
    def blocks_shape(self):
        return (len(self.positions), *self.lead, *self.block)


POSITIONS_CASES = (
    PositionsCase("one-inside", (5, 7), (2, 3), ((1, 2),)),
    PositionsCase("every-border", (6, 8), (3, 4), ((-1, 2), (4, 2), (2, -3), (2, 6), (-2, -3), (5, 7))),
    PositionsCase("just-outside", (6, 8), (3, 4), ((-3, 0), (6, 0), (0, -4), (0, 8))),
    PositionsCase("farthest", (6, 8), (3, 4), ((-FAR, 0), (FAR - 1, 0), (0, -FAR), (FAR - 1, -FAR), (1, 1))),
    PositionsCase("all-in-one-place", (6, 8), (3, 4), ((2, 3),) * 5),
    PositionsCase("block-beyond-the-array", (3, 4), (7, 9), ((-2, -3), (0, 0), (2, 3))),
    PositionsCase("row", (300,), (40,), 30),
    PositionsCase("row-of-many-planes", (90,), (7,), 9, lead=(3, 5)),
    PositionsCase("single-elements", (4, 70), (1, 1), 50, lead=(2,)),
    PositionsCase("more-than-a-block-of-threads-tests", (9, 12), (3, 2), 2500),
    PositionsCase("several-tiles", (40, 150), (20, 33), 20),
    PositionsCase("several-planes", (20, 70), (8, 8), 40, lead=(6,)),
    PositionsCase("volume", (5, 20, 70), (3, 8, 9), 25, lead=(2,)),
    PositionsCase("four-axes", (2, 3, 5, 9), (2, 1, 3, 2), 30),
    PositionsCase("three-leading", (9, 10), (3, 4), 12, lead=(2, 3, 4)),
    PositionsCase("whole-warps", (12, 70), (10, 66), ((0, 0), (1, 2), (-1, -3), (2, -1)), lead=(5,)),
)

POSITIONS_CASES_OF_KERNELS = (
    # Tiles of several rows, along one axis and several, some with more blocks than slots.
    PositionsCase("spread", (90, 300), (7, 5), 400, lead=(3,)),
    PositionsCase("spread-and-overflowing", (90, 300), (7, 5), 1300, lead=(3,), reach=(30, 30)),
    PositionsCase("long-row", (30_000,), (9,), 900),
    PositionsCase("long-row-and-overflowing", (30_000,), (9,), 1300, reach=(30,)),
    PositionsCase("large-volume", (4, 70, 100), (2, 5, 3), 500),
    PositionsCase("large-volume-and-overflowing", (4, 70, 100), (2, 5, 3), 1300, reach=(4, 30, 30)),
    PositionsCase("three-leading-and-tiles", (50, 200), (3, 4), 300, lead=(2, 3, 5)),
    PositionsCase("strips", (40, 4000), (40, 3), 700),
    # Their number is beyond what is compared with each other, and beyond what is marked at a time.
    PositionsCase("everything-in-a-few-tiles", (6, 8), (3, 4), 3000, reach=(3, 4)),
    PositionsCase("more-blocks-than-marks", (90,), (7,), 40_000, reach=(60,)),
    PositionsCase("one-overflowing-among-others", (70, 300), (5, 7), 6000, reach=(70, 30)),
)


def random_positions_case(seed: int) -> PositionsCase:
    """One to four axes, and positions that reach to the ends of int64."""
    rng = random.Random(seed)
    rank = rng.choice((1, 2, 2, 3, 4))
    size = tuple(rng.randint(1, {1: 80, 2: 14, 3: 6, 4: 4}[rank]) for _ in range(rank))
    block = tuple(rng.randint(1, {1: 20, 2: 5, 3: 3, 4: 2}[rank]) for _ in range(rank))
    lead = tuple(rng.randint(1, 5) for _ in range(rng.choice((0, 0, 1, 2, 3))))

    def place(axis):
        anywhere = rng.randint(-FAR, FAR - 1)
        near = [rng.randint(-block[axis] - 1, size[axis] + 1) for _ in range(8)]
        return rng.choice((-FAR, FAR - 1, -FAR + block[axis], FAR - block[axis], anywhere, *near))

    places = tuple(tuple(place(axis) for axis in range(rank)) for _ in range(rng.randint(1, 12)))
    return PositionsCase(f"random-{seed}", size, block, places, lead)


@dataclass(frozen=True)
class BlocksCase(Named):
    """Blocks with their taps last: the shape of an array, of which the last axes are taken apart."""

    operations: ClassVar = ("blocks_to_array", "array_to_blocks")

    shape: tuple[int, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]
    last: str = "drop"

    @property
    def arguments(self):
        """Of both operations, by name."""
        return {"strides": self.strides, "last": self.last}

    @property
    def lead(self):
        return self.shape[: -len(self.block)]

    @property
    def size(self):
        return self.shape[len(self.lead) :]

    @property
    def num_blocks(self):
        axes = zip(self.size, self.block, self.strides, strict=True)
        if self.last == "over":
            return tuple(max(0, -((b - n) // s)) + 1 for n, b, s in axes)
        return tuple((n - b) // s + 1 for n, b, s in axes)

    @property
    def beyond(self):
        """How far the last blocks extend beyond the end of each axis."""
        axes = zip(self.size, self.block, self.strides, self.num_blocks, strict=True)
        return tuple(max(0, (count - 1) * s + b - n) for n, b, s, count in axes)

    @property
    def blocks_shape(self):
        return (*self.lead, *self.num_blocks, *self.block)


BLOCKS_CASES = (
    BlocksCase("row", (17,), (5,), (2,)),
    BlocksCase("rest-uncovered", (3, 19), (4,), (6,)),
    BlocksCase("one-block", (2, 5, 7), (5, 7), (1, 1)),
    BlocksCase("dense-7x7", (20, 40), (7, 7), (1, 1)),
    BlocksCase("dense-8x8-in-two-tiles", (2, 12, 140), (8, 8), (1, 1)),
    BlocksCase("half-overlap", (2, 3, 16, 24), (4, 4), (2, 2)),
    BlocksCase("strides-differ", (2, 21, 34), (5, 6), (2, 3)),
    BlocksCase("patches", (3, 12, 16), (4, 4), (4, 4)),
    BlocksCase("volume", (2, 7, 8, 33), (3, 3, 3), (1, 1, 1)),
    BlocksCase("volume-strided", (6, 9, 14), (4, 3, 5), (2, 3, 1)),
    BlocksCase("three-leading", (2, 3, 4, 9, 10), (3, 4), (1, 2)),
    BlocksCase("four-axes", (2, 4, 3, 5, 6), (2, 1, 3, 2), (1, 1, 2, 2)),
    BlocksCase("many-taps", (1, 6, 40), (5, 38), (1, 1)),
    BlocksCase("over-the-end", (2, 3, 11, 18), (3, 4), (2, 3), last="over"),
    BlocksCase("larger-than-the-array", (3, 2, 27), (5, 4), (3, 2), last="over"),
    BlocksCase("over-a-gap", (2, 17), (3,), (5,), last="over"),
)


def random_blocks_case(seed: int) -> BlocksCase:
    """One to four axes, of which some have fewer elements than a block, and up to three leading ones."""
    rng = random.Random(seed)
    rank = rng.choice((1, 1, 2, 2, 3, 4))
    size = tuple(rng.randint(1, {1: 60, 2: 13, 3: 6, 4: 4}[rank]) for _ in range(rank))
    block = tuple(rng.randint(1, {1: 12, 2: 4, 3: 3, 4: 2}[rank]) for _ in range(rank))
    lead = tuple(rng.choices((1, 2, 2, 3, 3), k=rng.randint(0, 3)))
    strides = tuple(rng.choice((1, 1, 2, 3, rng.randint(1, extent))) for extent in size)
    last = "drop" if all(map(int.__le__, block, size)) and rng.random() < 0.5 else "over"
    return BlocksCase(f"random-{seed}", (*lead, *size), block, strides, last)


@dataclass(frozen=True)
class AverageCase(Named):
    """The shape of sums, and how many of its last axes have weights."""

    operations: ClassVar = ("average",)

    shape: tuple[int, ...]
    axes: int


AVERAGE_CASES = (
    AverageCase("row", (7,), 1),
    AverageCase("planes", (2, 3, 5, 6), 2),
    AverageCase("volume", (3, 4, 5), 3),
    AverageCase("many-rows", (600, 3), 1),
    AverageCase("one-weight", (4, 1, 1), 0),
)

NAMED = (*CASES, *BLOCKS_CASES, *SPACE_CASES, *POSITIONS_CASES)
"""Problems of every pair of operations that are adjoint to each other."""

EMPTY = (
    Case("no-batch", (4, 5), (2, 2), batch=0),
    Case("no-channels", (4, 5), (2, 2), channels=0),
    Case("no-channels-unbatched", (4, 5), (2, 2), batch=None, channels=0),
    BlocksCase("no-planes", (0, 3, 8), (4,), (2,)),
    BlocksCase("no-planes-of-several-axes", (2, 0, 8), (4,), (2,)),
    PositionsCase("no-blocks", (3, 4), (2, 2), ()),
    PositionsCase("no-planes", (3, 4), (2, 2), ((0, 0), (1, 1)), lead=(0,)),
    PositionsCase("no-elements", (0, 4), (2, 2), ((0, 0),)),
)

RANDOM = (random_case, random_blocks_case, random_space_case, random_positions_case)
"""What draws problems, of a pair of operations each, from a seed."""


def values(shape, dtype, seed: int = 0):
    """Random elements over the dtype's whole range: signed zeros, denormals and wrap-around included."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return (values(shape, part, seed) + 1j * values(shape, part, seed + 1)).astype(dtype)
    tiny = float(np.finfo(np.float32 if dtype.name == "bfloat16" else dtype).smallest_subnormal)
    numbers = rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 8, shape)
    kind = rng.integers(0, 12, shape)
    numbers = np.where(kind == 0, -0.0, np.where(kind == 1, tiny * rng.integers(-5, 6, shape), numbers))
    return numbers.astype(dtype)


def ordinary_numbers(rng, shape, dtype):
    """Draw numbers of any size for integers, and ordinary ones for others."""
    if dtype.kind in "biu":
        return values(shape, dtype, rng.integers(1 << 32))
    numbers = rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if dtype.kind == "c" else numbers).astype(dtype)


INEXACT = tuple(dtype for dtype in DTYPES if dtype.kind not in "biu")


def ordinary_weights(rng, shape, dtype):
    """Weights with zeros among them, as at the ends of a Hann window, and numbers below."""
    numbers = rng.random(shape) + 0.125
    zero = rng.integers(0, 5, shape) == 0
    zero.flat[zero.size // 2] = False  # never all of them: every result would be zero
    return np.where(zero, 0, np.where(rng.random(shape) < 0.1, -numbers, numbers)).astype(dtype)


def awkward_weights(rng, shape, dtype):
    """Infinities, NaN, denormals, zeros, and weights whose products overflow, among ordinary ones."""
    facts = np.finfo(dtype)
    awkward = np.inf, -np.inf, np.nan, facts.smallest_subnormal, facts.max, -facts.max, facts.tiny, 0.0, -0.0
    ordinary = rng.standard_normal(shape).astype(dtype)
    return np.where(rng.random(shape) < 0.5, rng.choice(np.array(awkward, dtype), shape), ordinary)


def narrow_weights(rng, shape, dtype):
    """Weights whose products are below the smallest number of their dtype, with zeros and negative ones among them."""
    drawn = np.ldexp(1 + rng.random(shape), rng.integers(np.finfo(dtype).minexp, 1, shape)).astype(dtype)
    return np.where(rng.random(shape) < 0.1, 0, drawn * rng.choice((-1, 1, 1), shape)).astype(dtype)


def window_of(kind: str, kernel_size, dtype, seed: int = 0, weights=ordinary_weights):
    """A window for data of a dtype, or None; of weights that a function draws."""
    rng, real = np.random.default_rng(seed), definition.weight_dtype(np.dtype(dtype))
    if kind == "separable":
        return tuple(weights(rng, (taps,), real) for taps in kernel_size)
    return weights(rng, kernel_size, real) if kind == "full" else None


WIDENINGS = (
    ("float16", "float32"),
    ("uint8", "float32"),
    ("int8", "int32"),
    ("float32", "float64"),
    ("bool", "uint16"),
    ("complex64", "complex128"),
    ("int16", "float32"),
    ("bfloat16", "float64"),
    ("uint16", "int64"),
    ("int64", "float64"),
    ("bfloat16", "float32"),
    ("bool", "float32"),
    ("uint32", "float64"),
    ("int8", "float64"),
)
"""Dtypes, each with a wider one that it is summed in: of every kind of conversion one."""


FUSIONS = tuple(
    (reduction, kind, accumulate)
    for reduction in ("sum", "mean", "least_squares")
    for kind in ("none", "separable", "full")
    for accumulate in (False, True)
    if (reduction, kind, accumulate) != ("sum", "none", False)
)
"""Everything besides a plain sum, as (reduction, kind of window, accumulate)."""


def off_its_size(array, order="C"):
    """The same elements, each one byte off a multiple of its size."""
    room = np.zeros(array.nbytes + 2 * array.itemsize, np.uint8)
    offset = 1 + -room.ctypes.data % array.itemsize
    placed = np.ndarray(array.shape, array.dtype, room, offset, order=order)
    placed[...] = array
    return placed


def folded(shape, dtype=np.float32):
    """Return zeros whose first axis of several elements lies on one place."""
    axis = next(axis for axis, extent in enumerate(shape) if extent > 1)
    strides = list(np.zeros(shape, dtype).strides)
    strides[axis] = 0
    return as_strided(np.zeros(shape, dtype), shape, strides)


def _bits(array):
    """The bits of an array's numbers, those of every NaN alike: a GPU's have no sign, and hand on no payload."""
    parts = np.ascontiguousarray(array)
    if parts.dtype.kind == "c":
        parts = parts.view(f"f{parts.itemsize // 2}")
    elif parts.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        return parts
    bits = parts.view(f"u{parts.itemsize}")
    return np.where(np.isnan(parts), np.iinfo(bits.dtype).max, bits)


def assert_same_bits(got, want, message=""):
    """Same shape, dtype and bits, -0.0 and denormals included; all NaNs count as equal."""
    assert got.shape == want.shape, f"{message}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{message}: dtype {got.dtype}, expected {want.dtype}"
    if not np.array_equal(_bits(got), _bits(want)):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want), err_msg=str(message))
        raise AssertionError(f"{message}: equal values with different bits, such as -0.0 and 0.0")


def weights_of(window, block_shape, dtype, library=np):
    """The kind of a window for blocks of a shape, and its weights as the kernels of a library take them."""
    call = calls.col2im(np.empty((prod(block_shape), 1), dtype), block_shape, block_shape, window=window)
    first = window[0] if isinstance(window, tuple) else window
    return call.fusion.window, None if window is None else as_weights(call, library, window, first)


def fold(case, columns, **options):
    """Fold as the definition does: what no block covers is zero in an average too."""
    if options.get("reduction", "sum") != "sum" and not options.get("accumulate"):
        options.setdefault("fill_value", 0)
    return gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments, **options)


def unfold(case, image, **options):
    return gpufold.im2col(image, case.kernel_size, **case.arguments, **options)


def garbage(shape, dtype):
    """An array of a pattern that no sum of ours leaves behind."""
    return np.frombuffer(b"\xa5" * (prod(shape) * dtype.itemsize), np.uint8).view(dtype).reshape(shape).copy()


def peak_of(call):
    """Bytes allocated at the worst moment of a call, its result included; it is called once before."""
    call()  # what is imported at a first call, and caches of geometry
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()
