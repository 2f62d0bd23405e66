"""Add or extract elements by the index of their pixel, if array operations would be short.

Few elements are processed in the order of split columns, tap by tap. More are processed axis by axis, the blocks of a
tap side by side, so indices are sums of one term per axis. Both orders keep the taps of a pixel in lexicographic order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from math import prod
from typing import TypeAlias

import numpy as np

from gpufold.cpu.arithmetic import Array, Index, multiply, spread
from gpufold.geometry import Axes, Axis, Size
from gpufold.geometry.cells import plan_of
from gpufold.keeping import kept

FEW_ELEMENTS = 1 << 5
"""Most elements, per axis of an array operation, for which indexing is faster than starting the operation."""

INDEXED_ELEMENTS = 1 << 15
"""Elements whose indices are computed at a time."""

_Chunk: TypeAlias = tuple[Index, Array]
"""An index of some elements in the columns, and the index of each element's pixel; -1 outside the image."""


def are_few(elements: int, axes: Axes) -> bool:
    """Return whether elements are few per array operation."""
    return elements <= FEW_ELEMENTS * (2 + len(axes)) * plan_of(axes).operations


def fold_indexed(columns: Array, image: Array, axes: Axes, weights: Array | None) -> None:
    """Add columns into an image, every element of which is written."""
    by_part = image.dtype.kind == "c"  # NumPy adds complex numbers by their index in ten times the time of real ones
    columns, weights, chunks, inside = _chunked(columns, weights, image.shape, axes, 1 + by_part)
    in_place = inside and image.flags.c_contiguous
    if in_place:
        pixels: Array = image.reshape(-1)
        pixels.fill(0)
    else:
        pixels = np.zeros(image.size + 1, image.dtype)
    parts = pixels.view(pixels.real.dtype) if by_part else pixels
    for place, indices in chunks:
        terms = columns[place]
        if weights is not None or terms.dtype != image.dtype:
            some, terms = terms, np.empty(terms.shape, image.dtype)
            multiply(some, None if weights is None else weights[place], terms)
        flat = terms.reshape(-1)
        np.add.at(parts, indices, np.ascontiguousarray(flat).view(parts.dtype) if by_part else flat)
    if not in_place:
        image[...] = pixels[:-1].reshape(image.shape)


def unfold_indexed(image: Array, columns: Array, axes: Axes, of_block: Array | None, threads: int, limit: int) -> None:
    """Extract columns of an image, weighted by the weights of a block; every element of the columns is written."""
    weights = spread(of_block, columns)
    columns, weights, chunks, inside = _chunked(columns, weights, image.shape, axes, 1)
    if inside:
        pixels: Array = image.reshape(-1)
    else:
        pixels = np.zeros(image.size + 1, image.dtype)
        pixels[:-1].reshape(image.shape)[...] = image
    for place, indices in chunks:
        some = columns[place]
        multiply(pixels[indices].reshape(some.shape), None if weights is None else weights[place], some)
        if weights is not None and not inside:  # zero times a weight may be -0.0 or NaN
            some[indices.reshape(some.shape) < 0] = 0


def _chunked(
    columns: Array, weights: Array | None, shape: Size, axes: Axes, parts: int
) -> tuple[Array, Array | None, Iterable[_Chunk], bool]:
    """Return columns and weights in the order of their chunks, the chunks, and whether all pixels lie inside the image.

    There is an index for each of the `parts` of an element, such as real and imaginary.
    """
    if columns.size * parts <= INDEXED_ELEMENTS:
        return columns, weights, *_one_chunk(shape, axes, parts)
    order = (0, 1, *chain.from_iterable((2 + number, 2 + len(axes) + number) for number in range(len(axes))))
    turned = None if weights is None else weights.transpose(order)
    return columns.transpose(order), turned, _each_chunk(shape, axes, parts), False


@kept
def _one_chunk(shape: Size, axes: Axes, parts: int) -> tuple[tuple[_Chunk], bool]:
    """Return the indices of all elements, (N, C, *kernel, *blocks), and whether all are inside."""
    extents = [extent for axis in axes for extent in (axis.kernel, axis.blocks)]
    chunks = [indices for _, indices in _each_chunk(shape, axes, 1)]
    by_axis = np.concatenate(chunks) if chunks else np.zeros(0, np.intp)  # if an axis has no blocks
    order = (0, 1, *range(2, 2 + len(extents), 2), *range(3, 2 + len(extents), 2))
    elements = by_axis.reshape(*shape[:2], *extents).transpose(order).reshape(-1, 1)
    indices = np.where(elements < 0, -1, elements * parts + np.arange(parts)).ravel()
    return ((((...,), indices),), bool(indices.min(initial=0) >= 0))


def _each_chunk(shape: Size, axes: Axes, parts: int) -> Iterator[_Chunk]:
    steps = [parts * prod(shape[number:]) for number in range(1, 1 + len(shape))]
    outside = -parts * prod(shape)  # negative in any sum
    by_axis = [np.arange(extent) * step for extent, step in zip(shape[:2], steps[:2], strict=True)]
    for axis, step in zip(axes, steps[2:], strict=True):
        pixels = _pixels(axis)
        by_axis.append(np.where(pixels < 0, outside, pixels * step))
    inner = np.arange(parts)
    while len(by_axis) > 1 and by_axis[-1].size * inner.size <= INDEXED_ELEMENTS:
        inner = np.add.outer(by_axis.pop(), inner).ravel()
    cut, first = by_axis.pop(), np.zeros(1, np.intp)
    for each in by_axis:
        first = np.add.outer(first, each).ravel()
    rows = max(1, INDEXED_ELEMENTS // max(1, prod(cut.shape[1:]) * inner.size))
    for index, number in zip(np.ndindex(*chain.from_iterable(each.shape for each in by_axis)), first, strict=True):
        for start in range(0, len(cut), rows):
            some = slice(start, start + rows)
            yield (*index, some), np.maximum(np.add.outer(number + cut[some], inner).ravel(), -1)


def _pixels(axis: Axis) -> Array:
    """Return the pixel that each tap of each block lands on; -1 outside the image."""
    reach = axis.pad_begin + axis.padded_size + axis.stride + axis.dilation  # strides of one block or tap may be huge
    exact = np.intp if reach < sys.maxsize else np.object_
    taps, blocks = (np.arange(extent).astype(exact) for extent in (axis.kernel, axis.blocks))
    pixels = np.add.outer(taps * axis.dilation, blocks * axis.stride) - axis.pad_begin
    return np.where((pixels >= 0) & (pixels < axis.size), pixels, -1).astype(np.intp)
