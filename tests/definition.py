"""The four operations as their formulas say, element by element: the oracle, sharing no code with gpufold.

Loops run over blocks and taps in lexicographic order, the order in which sums are defined; only batch and
channels are left to NumPy. Slow, so for small arrays.
"""

from itertools import product
from math import prod

import numpy as np


def num_blocks(size, kernel, stride, dilation, pad_begin, pad_end):
    """L of one axis, as OpenVINO's and ONNX's pages print it."""
    return (size + pad_begin + pad_end - dilation * (kernel - 1) - 1) // stride + 1


def landings(size, kernel, strides, dilations, pads_begin, pads_end):
    """Yield (tap, block, pixel) indices for every tap of every block that lands inside the image, taps outermost."""
    blocks = [num_blocks(*axis) for axis in zip(size, kernel, strides, dilations, pads_begin, pads_end, strict=True)]
    for tap in product(*map(range, kernel)):
        for block in product(*map(range, blocks)):
            pixel = tuple(
                b * s + t * d - p for b, t, s, d, p in zip(block, tap, strides, dilations, pads_begin, strict=True)
            )
            if all(0 <= x < extent for x, extent in zip(pixel, size, strict=True)):
                yield tap, block, pixel


def col2im(data, size, kernel, strides, dilations, pads_begin, pads_end):
    batched = data if data.ndim == 3 else data[None]
    channels = batched.shape[1] // prod(kernel)
    blocks = [num_blocks(*axis) for axis in zip(size, kernel, strides, dilations, pads_begin, pads_end, strict=True)]
    columns = batched.reshape(len(batched), channels, *kernel, *blocks)
    native = data.dtype if data.dtype.isnative else data.dtype.newbyteorder("=")
    wide = np.dtype(np.float32) if native.name in ("float16", "bfloat16") else native
    image = np.zeros((len(batched), channels, *size), wide)
    with np.errstate(all="ignore"):
        for tap, block, pixel in landings(size, kernel, strides, dilations, pads_begin, pads_end):
            term = columns[(..., *tap, *block)].astype(wide)
            if wide.kind in "SUT":
                image[(..., *pixel)] = term  # strings move, and only where no two taps meet
            else:
                image[(..., *pixel)] = image[(..., *pixel)] + term
        image = image.astype(native)
    return image if data.ndim == 3 else image[0]


def im2col(image, kernel, strides, dilations, pads_begin, pads_end):
    rank = len(kernel)
    batched = image if image.ndim == rank + 2 else image[None]
    size = batched.shape[2:]
    blocks = [num_blocks(*axis) for axis in zip(size, kernel, strides, dilations, pads_begin, pads_end, strict=True)]
    columns = np.zeros((*batched.shape[:2], *kernel, *blocks), image.dtype)
    for tap, block, pixel in landings(size, kernel, strides, dilations, pads_begin, pads_end):
        columns[(..., *tap, *block)] = batched[(..., *pixel)]
    columns = columns.reshape(len(batched), batched.shape[1] * prod(kernel), prod(blocks))
    return columns if image.ndim == rank + 2 else columns[0]


def batch_to_space(data, block_shape, crops_begin, crops_end):
    """Follow OpenVINO's page step by step: reshape, permute, reshape, crop."""
    rank = data.ndim
    block, extents = block_shape[1:], data.shape[1:]
    batch = data.shape[0] // prod(block)
    permutation = [rank - 1]
    for axis in range(rank - 1):
        permutation += [rank + axis, axis]
    x = data.reshape(*block, batch, *extents).transpose(permutation)
    x = x.reshape(batch, *(extent * b for extent, b in zip(extents, block, strict=True)))
    for axis in range(1, rank):
        x = x.take(range(crops_begin[axis], x.shape[axis] - crops_end[axis]), axis)
    return x


def space_to_batch(data, block_shape, pads_begin, pads_end):
    """Undo `batch_to_space` pixel by pixel: pixel d*block + offset - pads_begin goes to (offset, b, d)."""
    block = block_shape[1:]
    grid = [
        (extent + begin + end) // b
        for extent, begin, end, b in zip(data.shape[1:], pads_begin[1:], pads_end[1:], block, strict=True)
    ]
    result = np.zeros((*block, data.shape[0], *grid), data.dtype)
    for pixel in product(*map(range, data.shape[1:])):
        padded = [x + begin for x, begin in zip(pixel, pads_begin[1:], strict=True)]
        offset = tuple(x % b for x, b in zip(padded, block, strict=True))
        cell = tuple(x // b for x, b in zip(padded, block, strict=True))
        result[(*offset, slice(None), *cell)] = data[(slice(None), *pixel)]
    return result.reshape(prod(block) * data.shape[0], *grid)
