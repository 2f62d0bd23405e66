"""The operations as their formulas say, element by element: the oracle, sharing no code with gpufold.

Loops run over blocks and taps in lexicographic order, the order in which sums are defined; only batch and
channels are left to NumPy. Slow, so for small arrays.
"""

from functools import lru_cache, reduce
from itertools import product
from math import prod

import numpy as np


def num_blocks(size, kernel, stride, dilation, pad_begin, pad_end):
    """L of one axis, as OpenVINO's and ONNX's pages print it."""
    return (size + pad_begin + pad_end - dilation * (kernel - 1) - 1) // stride + 1


def landings(size, kernel, strides, dilations, pads_begin, pads_end):
    """Yield (tap, block, pixel) indices for every tap of every block that lands inside the image, taps outermost."""
    axes = list(zip(size, kernel, strides, dilations, pads_begin, pads_end, strict=True))
    for tap in product(*map(range, kernel)):
        landed = [landings_of_axis(t, *axis) for t, axis in zip(tap, axes, strict=True)]
        for each in product(*landed):
            block, pixel = zip(*each, strict=True)
            yield tap, block, pixel


@lru_cache
def landings_of_axis(tap, size, kernel, stride, dilation, pad_begin, pad_end):
    """Return the (block, pixel) indices along one axis for each block whose tap lands inside the image."""
    blocks = range(num_blocks(size, kernel, stride, dilation, pad_begin, pad_end))
    pixels = [(block, block * stride + tap * dilation - pad_begin) for block in blocks]
    return [(block, pixel) for block, pixel in pixels if 0 <= pixel < size]


def weight_dtype(dtype):
    """Single precision, or double for data of double precision."""
    return np.dtype(np.float64 if dtype.name in ("float64", "complex128") else np.float32)


def sum_dtype(dtype):
    """Half precisions are added up, and weighed, in single precision."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def scaled(numbers, operation, weight):
    """Multiply or divide by real weights, component by component."""
    if numbers.dtype.kind != "c":
        return operation(numbers, weight)
    result = np.empty(numbers.shape, numbers.dtype)
    result.real, result.imag = operation(numbers.real, weight), operation(numbers.imag, weight)
    return result


def at_least(weight, least):
    """A weight that is not zero has this magnitude at least."""
    return np.copysign(weight.dtype.type(least), weight) if 0 < abs(weight) < least else weight


def least_weight(reduction, window, dtype):
    """What a weight that is not zero has at least: of an axis under a mean, of a tap under least squares."""
    axes = len(window) if isinstance(window, tuple) else 1
    exponent = {"sum": np.inf, "mean": 96 // axes, "least_squares": 48}[reduction]
    return 2.0 ** (-exponent * (10 if dtype == np.float64 else 1))


def weight_of(tap, window, dtype, reduction="sum", least=None):
    """The weight of a tap: an element of an array, or the product of one per axis."""
    least = least_weight(reduction, window, dtype) if least is None else least
    if not isinstance(window, tuple):
        return at_least(window[tap].astype(dtype), least)
    weight = at_least(window[0][tap[0]].astype(dtype), least)
    for axis, k in list(zip(window, tap, strict=True))[1:]:
        other = at_least(axis[k].astype(dtype), least)
        product = weight * other
        if reduction != "mean" and weight != 0 and other != 0 and abs(product) < least:
            product = np.copysign(dtype.type(least), product)
        weight = product
    return weight


def divisor(size, kernel, strides, dilations, pads_begin, pads_end, reduction, window, dtype):
    least = least_weight(reduction, window, dtype)
    if isinstance(window, tuple) and reduction == "mean":  # separable: a factor per axis
        window = tuple(np.array([at_least(each, least) for each in axis.astype(dtype)]) for axis in window)
        axes = zip(window, size, kernel, strides, dilations, pads_begin, pads_end, strict=True)
        shares = [divisor(*((value,) for value in axis), reduction, weights, dtype) for weights, *axis in axes]
        result = reduce(np.multiply.outer, shares)
        # where nothing lands along an axis, nothing does, whatever the others' weights
        landed = divisor(size, kernel, strides, dilations, pads_begin, pads_end, "mean", None, dtype)
        return np.where(landed == 0, 0, result)
    result = np.zeros(size, np.int64 if window is None else dtype)
    for tap, _, pixel in landings(size, kernel, strides, dilations, pads_begin, pads_end):
        weight = 1 if window is None else weight_of(tap, window, dtype, reduction)
        result[pixel] = result[pixel] + (weight * weight if reduction == "least_squares" else weight)
    return result.astype(dtype)


def col2im(data, size, kernel, strides, dilations, pads_begin, pads_end, reduction="sum", window=None, out=None):
    """Give the image; with `out`, what adding it to `out` gives. A separable window is a tuple."""
    geometry = (size, kernel, strides, dilations, pads_begin, pads_end)
    batched = data if data.ndim == 3 else data[None]
    channels = batched.shape[1] // prod(kernel)
    blocks = [num_blocks(*axis) for axis in zip(*geometry, strict=True)]
    columns = batched.reshape(len(batched), channels, *kernel, *blocks)
    native = data.dtype if data.dtype.isnative else data.dtype.newbyteorder("=")
    wide, real = sum_dtype(native), weight_dtype(native)
    image = np.zeros((len(batched), channels, *size), wide)
    with np.errstate(all="ignore"):
        for tap, block, pixel in landings(*geometry):
            term = columns[(..., *tap, *block)].astype(wide)
            if window is not None:
                term = scaled(term, np.multiply, weight_of(tap, window, real, reduction))
            if wide.kind in "SUT":
                image[(..., *pixel)] = term  # strings move, and only where no two taps meet
            else:
                image[(..., *pixel)] = image[(..., *pixel)] + term
        if reduction != "sum":
            below = divisor(*geometry, reduction, window, real)
            image = scaled(image, np.divide, below)
            image[..., np.abs(below) < np.finfo(real).tiny] = 0
        if out is not None:
            image = out.reshape(image.shape).astype(wide) + image
        image = image.astype(native)
    return image if data.ndim == 3 else image[0]


def im2col(image, kernel, strides, dilations, pads_begin, pads_end, window=None):
    rank = len(kernel)
    batched = image if image.ndim == rank + 2 else image[None]
    size = batched.shape[2:]
    blocks = [num_blocks(*axis) for axis in zip(size, kernel, strides, dilations, pads_begin, pads_end, strict=True)]
    columns = np.zeros((*batched.shape[:2], *kernel, *blocks), image.dtype)
    wide, real = sum_dtype(image.dtype), weight_dtype(image.dtype)
    with np.errstate(all="ignore"):
        for tap, block, pixel in landings(size, kernel, strides, dilations, pads_begin, pads_end):
            element = batched[(..., *pixel)]
            if window is not None:
                element = scaled(element.astype(wide), np.multiply, weight_of(tap, window, real)).astype(image.dtype)
            columns[(..., *tap, *block)] = element
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
    """Undo `batch_to_space`: put each pixel where that would take it from, and zero where it takes none from."""
    axes = zip(data.shape, pads_begin, pads_end, block_shape, strict=True)
    batch, *grid = [(extent + begin + end) // block for extent, begin, end, block in axes]
    result = np.zeros((batch * prod(block_shape), *grid), data.dtype)
    places = np.arange(result.size).reshape(result.shape)
    result.reshape(-1)[batch_to_space(places, block_shape, pads_begin, pads_end)] = data
    return result


def add_blocks(out, blocks, positions, window=None, weight_out=False):
    """Add element by element, block after block, into a copy of `out`; half precisions are rounded at the end.

    Where weights are summed too, the weight of a tap that is not zero has a magnitude at least.
    """
    rank = len(positions[0]) if len(positions) else 0
    wide, real = sum_dtype(out.dtype), weight_dtype(out.dtype)
    least = least_weight("mean" if weight_out else "sum", None, real)
    total = out.astype(wide)
    for block, position in zip(blocks, positions, strict=True):
        for tap in product(*map(range, blocks.shape[blocks.ndim - rank :])):
            pixel = tuple(int(p) + t for p, t in zip(position, tap, strict=True))
            if all(0 <= x < extent for x, extent in zip(pixel, out.shape[out.ndim - rank :], strict=True)):
                terms = block[(..., *tap)]
                if wide != out.dtype:
                    terms = terms.astype(wide)
                if window is not None:
                    terms = scaled(np.asarray(terms), np.multiply, weight_of(tap, window, real, least=least))
                total[(..., *pixel)] = total[(..., *pixel)] + terms
    return total.astype(out.dtype)


def average(sums, weight):
    """Divide element by element, in the type that sums are made in."""
    real, wide = weight_dtype(sums.dtype).type, sum_dtype(sums.dtype)
    result = np.zeros(sums.shape, sums.dtype)
    for place in np.ndindex(sums.shape):
        divisor = weight.astype(real)[place[sums.ndim - weight.ndim :]]
        if not abs(divisor) < np.finfo(real).tiny:
            with np.errstate(all="ignore"):
                element = wide.type(sums[place])
                if wide.kind == "c":
                    result.real[place], result.imag[place] = element.real / divisor, element.imag / divisor
                else:
                    result[place] = (element / divisor).astype(sums.dtype)
    return result


def numpy_pads(mode, place, extent):
    """Return which element of an axis numpy.pad has at a place outside of it."""
    if mode == "edge":
        place = min(max(place, -1), extent)
    else:
        place %= 2 * extent * max(1, extent - 1)  # after which every mode repeats itself
    before, after = max(0, -place), max(0, place - extent + 1)
    return int(np.pad(np.arange(extent), (before, after), mode)[place + before])


def take_blocks(array, positions, block_shape, window=None, mode="constant"):
    """Take element by element; outside of the array is zero, or what numpy.pad has there."""
    rank = len(block_shape)
    size = array.shape[array.ndim - rank :]
    native = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    wide, real = sum_dtype(native), weight_dtype(native)
    blocks = np.zeros((len(positions), *array.shape[: array.ndim - rank], *block_shape), native)
    for block, position in zip(blocks, positions, strict=True):
        for tap in product(*map(range, block_shape)):
            pixel = [int(p) + t for p, t in zip(position, tap, strict=True)]
            if mode != "constant":
                pixel = [numpy_pads(mode, x, extent) for x, extent in zip(pixel, size, strict=True)]
            if all(0 <= x < extent for x, extent in zip(pixel, size, strict=True)):
                element = array[(..., *pixel)]
                if window is not None:
                    weight = weight_of(tap, window, real)
                    with np.errstate(all="ignore"):
                        element = scaled(np.asarray(element).astype(wide), np.multiply, weight)
                block[(..., *tap)] = element
    return blocks
