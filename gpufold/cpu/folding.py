"""Columns added, or moved, into an image: each tile in the way that suits it."""

from __future__ import annotations

import numpy as np

from gpufold.cpu import tiles, ways
from gpufold.cpu.arithmetic import Array
from gpufold.cpu.averages import average
from gpufold.cpu.cells import fold_cells
from gpufold.cpu.treatment import Treatment, spread
from gpufold.elements import sum_dtype
from gpufold.geometry import Axis
from gpufold.geometry.cells import plan_of


def fold(columns: Array, image: Array, axes: tuple[Axis, ...], treatment: Treatment) -> None:
    """Add split columns (N, C, *kernel, *blocks) into an image (N, C, *size), each of any layout."""
    moved: tuple[ways.Way, int, int] = (fold_cells, image.size, plan_of(axes).operations)
    way, limit, steps = moved if treatment.move else ways.fold_way(columns, image, axes)
    steps += tiles.TILE_STEPS * (treatment.reduction != "sum")
    with np.errstate(all="ignore"):  # sums past the range are IEEE's infinities and NaNs, silently, as on a GPU
        tiles.for_each_tile(_fold_tile, columns, image, axes, limit, steps, treatment, way)


def _fold_tile(columns: Array, image: Array, axes: tuple[Axis, ...], treatment: Treatment, way: ways.Way) -> None:
    if treatment.move:
        return fold_cells(columns, image, axes, None, move=True)
    accumulator, weights = sum_dtype(image.dtype), spread(treatment.weights, columns)
    narrow = accumulator != image.dtype
    if narrow and plan_of(axes).apart and weights is None and not treatment.accumulate and columns.dtype == image.dtype:
        words = image.view(np.uint16)
        fold_cells(columns.view(np.uint16), words, axes, None, move=True)
        words[words == 1 << 15] = 0  # -0.0: sums start from +0
        return
    total = np.empty(image.shape, accumulator) if narrow or treatment.accumulate else image
    way(columns, total, axes, weights)
    if treatment.reduction != "sum":
        average(total, axes, treatment)
    if treatment.accumulate:
        np.add(image, total, total if narrow else image)
    if narrow:
        image[...] = total
