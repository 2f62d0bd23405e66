"""The other ways to do the same, each used where it is installed and applies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import gpufold
from bench.clients import client
from bench.problems import BLOCK_OPERATIONS, TAKING_APART, Problem, pixels, pixels_at
from gpufold.geometry import Axis, SlidingGeometry, SpaceGeometry


@dataclass(frozen=True)
class Call:
    """What is timed, and how its answer becomes an array of the problem's output shape, which is not timed."""

    run: Callable[[], Any]
    as_array: Callable[[Any], Any] = lambda answer: answer


@dataclass(frozen=True)
class Peer:
    """One library, or one way to write the operation with it."""

    name: str
    distribution: str
    module: str
    devices: tuple[str, ...]
    prepare: Callable[[Problem, Any, int], Call | None]
    """Makes the call for a problem, its data (a NumPy or CuPy array) and a number of CPU threads; None: no such call.

    Everything that a user does once, such as building a session, and bringing the data into the library's own
    type and layout, is done here and not timed.
    """
    kinds: tuple[str, ...] = ("plain",)
    """The kinds of problems that it is asked for, see `Problem.kind`."""
    on_request: bool = False
    """Whether it is measured only where it is named, for it takes minutes before it is timed."""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.distribution) if self.distribution else ""


def _dilated(geometry: SlidingGeometry | SpaceGeometry) -> bool:
    """Tell whether every dilation is at least 1: only gpufold and openvino take 0."""
    return all(axis.dilation > 0 for axis in geometry.axes)


def _symmetric(geometry: SlidingGeometry) -> bool:
    return _dilated(geometry) and all(axis.pad_begin == axis.pad_end for axis in geometry.axes)


# ---- compositions that a user of NumPy, CuPy or torch writes


def _composition(problem: Problem, data: Any, threads: int) -> Call | None:
    """Copy a sliding window view, or reshape, transpose, copy and slice: moves in one array operation."""
    library = np if isinstance(data, np.ndarray) else sys.modules["cupy"]
    geometry = problem.geometry
    if not _dilated(geometry):
        return None
    if isinstance(geometry, SpaceGeometry):
        return Call(lambda: _permute(problem.operation, geometry, data, library))
    if problem.operation == "im2col":
        return Call(lambda: _window_view(geometry, data, library))
    if problem.operation == "array_to_blocks":
        return Call(lambda: _block_view(geometry, data, library))
    return None


def _two_passes(problem: Problem, data: Any, threads: int) -> Call | None:
    """Let gpufold fold twice, as if it could not fuse: weighed columns, and the weights of one plane."""
    geometry = problem.geometry
    if problem.operation == "im2col":
        return None
    assert isinstance(geometry, SlidingGeometry)
    library = np if isinstance(data, np.ndarray) else sys.modules["cupy"]
    weights = reduce(library.multiply.outer, map(library.asarray, problem.weights())).reshape(-1, 1)
    power = weights * weights if problem.reduction == "least_squares" else weights
    strides, begin, end = zip(*((axis.stride, axis.pad_begin, axis.pad_end) for axis in geometry.axes), strict=True)

    def fold(columns: Any) -> Any:
        return gpufold.col2im(
            columns, geometry.image_size, geometry.block_shape, strides=strides, pads_begin=begin, pads_end=end
        )

    def run() -> Any:
        columns = problem.as_columns(data)
        if problem.window:
            by_channel = columns.reshape(geometry.planes, weights.size, columns.shape[-1])
            columns = (by_channel * weights).reshape(columns.shape)
        image = fold(columns)
        if problem.reduction == "sum":
            return image
        divisor = fold(library.broadcast_to(power, (1, power.size, columns.shape[-1])))
        return image / library.where(divisor == 0, 1, divisor)

    return Call(run)


LOOPED_BLOCKS = 4096
"""Tiles that a client of torch is measured with at most."""

LOOPED_STEPS = 1 << 18
"""Steps of a loop in Python that are measured at most: seconds for each call otherwise."""

COMPILED_STEPS = 16
"""Steps of a loop that is compiled with each of its steps, at most."""

LOOPED_TIMES = 16
"""How many times the steps of the shorter loop the other one may have to be tried: beyond it is not the faster one."""


def _loop(problem: Problem, data: Any, threads: int) -> Call | None:
    """Loop over blocks, or over the taps of all blocks, whichever is faster: what a user of NumPy or CuPy writes."""
    geometry, library = problem.geometry, np if isinstance(data, np.ndarray) else sys.modules["cupy"]
    if problem.kind in ("placed", "taken"):
        return _loop_over_positions(problem, data)
    if isinstance(geometry, SpaceGeometry):
        return Call(lambda: _loop_over_offsets(problem.operation, geometry, data, library))
    takes = problem.operation in TAKING_APART
    if not _dilated(geometry) or (takes and problem.window):
        return None
    if takes:
        loops = [partial(_take_apart, problem, data, library, over) for over in ("blocks", "taps")]
    else:
        weights = reduce(library.multiply.outer, map(library.asarray, problem.weights()))
        loops = [partial(_put_together, problem, data, library, weights, over) for over in ("blocks", "taps")]
    counts = prod(geometry.num_blocks), prod(geometry.block_shape)
    most = min(LOOPED_STEPS, LOOPED_TIMES * min(counts) - 1)
    possible = [loop for loop, count in zip(loops, counts, strict=True) if count <= most]
    if len(possible) > 1:
        possible.sort(key=partial(_seconds, library))
    return Call(possible[0]) if possible else None


def _seconds(library: Any, call: Callable[[], Any]) -> float:
    """Return what the faster of two calls takes."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        if library is not np:
            library.cuda.runtime.deviceSynchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def steps(geometry: SlidingGeometry, over: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yield indices of the padded image, of blocks (N, C, *blocks, *taps) and of a block's taps, for each addition."""
    if over == "blocks":
        for block in np.ndindex(geometry.num_blocks):
            begins = [(number * axis.stride, axis) for number, axis in zip(block, geometry.axes, strict=True)]
            spans = (slice(begin, begin + axis.dilated_kernel, axis.dilation) for begin, axis in begins)
            yield (..., *spans), (slice(None), slice(None), *block), ...
    else:
        for tap in np.ndindex(geometry.block_shape):
            begins = [(number * axis.dilation, axis) for number, axis in zip(tap, geometry.axes, strict=True)]
            spans = (slice(begin, begin + axis.stride * (axis.blocks - 1) + 1, axis.stride) for begin, axis in begins)
            yield (..., *spans), (..., *tap), tap


def _as_blocks(problem: Problem, columns: Any) -> Any:
    """View columns as blocks; blocks as they are."""
    return columns if problem.operation in BLOCK_OPERATIONS else problem.as_blocks(columns)


def _put_together(problem: Problem, data: Any, library: Any, weights: Any, over: str) -> Any:
    geometry, blocks = problem.geometry, _as_blocks(problem, data)
    padded = [axis.padded_size for axis in geometry.axes]
    inside = (..., *(slice(axis.pad_begin, axis.pad_begin + axis.size) for axis in geometry.axes))
    image = library.zeros((geometry.batch, geometry.channels, *padded), data.dtype)
    if problem.kind != "fused":
        for where, part, _ in steps(geometry, over):
            image[where] += blocks[part]
        return image[inside]
    divisor = library.zeros(padded, weights.dtype)
    power = weights * weights if problem.reduction == "least_squares" else weights
    for where, part, taps in steps(geometry, over):
        image[where] += blocks[part] * weights[taps] if problem.window else blocks[part]
        divisor[where] += power[taps]
    image, divisor = image[inside], divisor[inside]
    return image if problem.reduction == "sum" else image / library.where(divisor == 0, 1, divisor)


def _take_apart(problem: Problem, image: Any, library: Any, over: str) -> Any:
    geometry = problem.geometry
    pads = [(axis.pad_begin, axis.pad_end) for axis in geometry.axes]
    padded = library.pad(image, [(0, 0), (0, 0), *pads]) if any(map(any, pads)) else image
    result = library.empty(problem.output_shape, image.dtype)
    blocks = _as_blocks(problem, result)
    for where, part, _ in steps(geometry, over):
        blocks[part] = padded[where]
    return result


def _loop_over_offsets(operation: str, geometry: SpaceGeometry, data: Any, library: Any) -> Any:
    """Copy the images of one offset in the blocks after another's."""
    padded = [count * block for count, block in zip(geometry.grid, geometry.block, strict=True)]
    split = *geometry.block, geometry.batch, *geometry.grid
    offsets = [
        (offset, (slice(None), *(slice(first, None, step) for first, step in zip(offset, geometry.block, strict=True))))
        for offset in np.ndindex(geometry.block)
    ]
    margins = list(zip(geometry.margin_begin, geometry.margin_end, strict=True))
    if operation == "batch_to_space":
        space, batch = library.empty((geometry.batch, *padded), data.dtype), data.reshape(split)
        for offset, where in offsets:
            space[where] = batch[offset]
        crop = zip(geometry.margin_begin, geometry.space_size, strict=True)
        return space[(slice(None), *(slice(begin, begin + size) for begin, size in crop))]
    space = library.pad(data, [(0, 0), *margins]) if any(map(any, margins)) else data
    batch = library.empty(split, data.dtype)
    for offset, where in offsets:
        batch[offset] = space[where]
    return batch.reshape(geometry.batch_shape)


def _loop_over_positions(problem: Problem, data: Any) -> Call | None:
    """Add block after block, clipped, into an array, or copy them out: what ptychography codes and nnU-Net write."""
    geometry = problem.geometry
    if not isinstance(geometry, SlidingGeometry) or prod(geometry.num_blocks) > LOOPED_STEPS:
        return None
    library = np if isinstance(data, np.ndarray) else sys.modules["cupy"]
    places, size = problem.positions().tolist(), geometry.image_size
    weights = reduce(library.multiply.outer, map(library.asarray, problem.weights())) if problem.window else None

    def run() -> Any:
        takes = problem.kind == "taken"
        result = library.zeros(problem.output_shape, data.dtype)
        image, blocks = (data, result) if takes else (result, data)
        for block, place in zip(blocks, places, strict=True):
            spans = [(max(p, 0), min(p + k, n)) for p, k, n in zip(place, geometry.block_shape, size, strict=True)]
            where = (..., *(slice(*span) for span in spans))
            taps = (..., *(slice(first - p, end - p) for (first, end), p in zip(spans, place, strict=True)))
            into, where_into, terms = (block, taps, image[where]) if takes else (image, where, block[taps])
            if weights is not None:
                terms = terms * weights[taps]
            if takes:
                into[where_into] = terms
            else:
                into[where_into] += terms
        return result

    return Call(run)


def _add_at(problem: Problem, data: Any, threads: int) -> Call | None:
    """Add all elements at once, by index; where they fall outside, into one element that nobody looks at."""
    geometry = problem.geometry
    if problem.window or not isinstance(geometry, SlidingGeometry):
        return None
    if geometry.planes != 1:
        return None
    library = np if isinstance(data, np.ndarray) else sys.modules["cupy"]
    places, size = library.asarray(problem.positions()), prod(geometry.image_size)

    def run() -> Any:
        image = library.zeros(size + 1, data.dtype)
        library.add.at(image, pixels_at(geometry, places, library), data.ravel())
        return image[:size].reshape(problem.output_shape)

    return Call(run)


def _block_view(geometry: SlidingGeometry, image: Any, library: Any) -> Any:
    spatial = tuple(range(2, 2 + len(geometry.axes)))
    windows = library.lib.stride_tricks.sliding_window_view(image, geometry.block_shape, spatial)
    steps = [slice(None, None, axis.stride) for axis in geometry.axes]
    return windows[(slice(None), slice(None), *steps)].copy()


def _window_view(geometry: SlidingGeometry, image: Any, library: Any) -> Any:
    axes, rank = geometry.axes, len(geometry.axes)
    if any(axis.pad_begin or axis.pad_end for axis in axes):
        image = library.pad(image, [(0, 0), (0, 0), *((axis.pad_begin, axis.pad_end) for axis in axes)])
    spatial = tuple(range(2, 2 + rank))
    spans = tuple(axis.dilated_kernel for axis in axes)
    windows = library.lib.stride_tricks.sliding_window_view(image, spans, spatial)
    steps = [slice(None, None, axis.stride) for axis in axes] + [slice(None, None, axis.dilation) for axis in axes]
    windows = windows[(slice(None), slice(None), *steps)]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *spatial)
    return windows.transpose(order).copy().reshape(geometry.columns_shape)


def _permute(operation: str, geometry: SpaceGeometry, data: Any, library: Any) -> Any:
    rank = len(geometry.block)
    if operation == "batch_to_space":
        blocks = data.reshape(*geometry.block, geometry.batch, *geometry.grid)
        order = (rank, *(axis for i in range(rank) for axis in (rank + 1 + i, i)))
        padded = [count * block for count, block in zip(geometry.grid, geometry.block, strict=True)]
        space = blocks.transpose(order).copy().reshape(geometry.batch, *padded)
        crop = zip(geometry.margin_begin, geometry.space_size, strict=True)
        return space[(slice(None), *(slice(begin, begin + size) for begin, size in crop))]
    margins = list(zip(geometry.margin_begin, geometry.margin_end, strict=True))
    padded_data = library.pad(data, [(0, 0), *margins]) if any(map(any, margins)) else data
    split = [extent for pair in zip(geometry.grid, geometry.block, strict=True) for extent in pair]
    blocks = padded_data.reshape(geometry.batch, *split)
    order = (*range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank, 2))
    return blocks.transpose(order).copy().reshape(geometry.batch_shape)


def _scatter_add(problem: Problem, data: Any, threads: int) -> Call | None:
    """Return every column element its flat pixel, and scatter with atomic additions."""
    geometry = problem.geometry
    if problem.operation != "col2im" or not isinstance(geometry, SlidingGeometry):
        return None
    import cupy
    import cupyx

    size = prod(geometry.image_size)
    flat = cupy.asarray(pixels(geometry)).ravel()

    def run() -> Any:
        image = cupy.zeros((geometry.planes, size + 1), data.dtype)
        cupyx.scatter_add(image, (slice(None), flat), data.reshape(geometry.planes, -1))
        return image

    return Call(run, lambda image: image[:, :size].reshape(geometry.image_shape))


# ---- kernels that others ship, or write


EVERY_TAP = 4096
"""Taps of a kernel at most that each thread walks over to find those of its pixel: a call takes seconds beyond."""


def _naive_gather(problem: Problem, data: Any, threads: int) -> Call | None:
    """Let each thread look for the taps of one pixel: indices of 32 bits, up to three axes."""
    return _gather(problem, data, "naive_gather", np.int32, 3, 256)


def _batched_gather(problem: Problem, data: Any, threads: int) -> Call | None:
    """Do as torch's own kernel does: indices of 64 bits, two axes, batch and channels apart."""
    return _gather(problem, data, "batched_gather", np.int64, 2, 512)


def _gather(problem: Problem, data: Any, symbol: str, integer: Any, rank: int, threads: int) -> Call | None:
    """Launch a kernel of naive_gather.cu, whose parameters are all of one kind of integer, on float32."""
    geometry = problem.geometry
    if problem.operation != "col2im" or not isinstance(geometry, SlidingGeometry) or len(geometry.axes) > rank:
        return None
    if not _dilated(geometry) or data.dtype != np.float32 or data.size > np.iinfo(integer).max:
        return None
    if symbol == "naive_gather" and prod(geometry.block_shape) > EVERY_TAP:
        return None
    import cupy

    axes = (*(UNIT_AXIS,) * (rank - len(geometry.axes)), *geometry.axes)
    fields = ("size", "kernel", "stride", "dilation", "pad_begin", "blocks")
    lead = (geometry.planes,) if integer is np.int32 else (geometry.batch or 1, geometry.channels)
    numbers = np.array([*lead, *(getattr(axis, name) for name in fields for axis in axes)], integer)
    parameters = numbers.view(np.dtype((np.void, numbers.nbytes)))
    file = Path(__file__).parent / "naive_gather.cu"
    text = f'// headers of none\n#line 1 "bench/{file.name}"\n{file.read_text()}'
    kernel = cupy.RawKernel(text, symbol, ("-std=c++17", f"-I{file.parent}"))
    blocks = -(-prod(geometry.image_shape) // threads)

    def run() -> Any:
        image = cupy.empty(geometry.image_shape, np.float32)
        kernel((blocks, 1, 1), (threads, 1, 1), (data, image, parameters))
        return image

    return Call(run)


UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


def _triton(problem: Problem, data: Any, threads: int) -> Call | None:
    """Fold in Triton, which tunes itself at the first call."""
    geometry = problem.geometry
    if problem.operation != "col2im" or not isinstance(geometry, SlidingGeometry) or len(geometry.axes) > 2:
        return None
    if not _dilated(geometry) or data.dtype.name not in ("float32", "float16", "bfloat16"):
        return None
    if prod(geometry.block_shape) > EVERY_TAP:
        return None
    tensor = _tensor(data)
    if not tensor.is_cuda:
        return None
    from bench.triton_fold import fold

    return Call(lambda: fold(tensor, tensor.new_empty(geometry.image_shape), geometry), _from_tensor(data))


# ---- SciPy and CuPy's overlap-add


def _istft(problem: Problem, data: Any, threads: int) -> Call | None:
    """Overlap-add as the inverse of a short-time Fourier transform, with a rectangular window for a plain sum.

    Its time holds the inverse transforms too; the mean that it gives becomes the sum again outside of it.
    """
    geometry = problem.geometry
    if problem.operation != "col2im" or not isinstance(geometry, SlidingGeometry) or len(geometry.axes) != 1:
        return None
    (axis,) = geometry.axes
    trims = (
        problem.kind == "fused" and axis.pad_begin == axis.pad_end == axis.kernel // 2 and axis.size % axis.stride == 0
    )
    if not trims and (axis.pad_begin or axis.pad_end):
        return None
    if axis.dilation != 1 or axis.stride > axis.kernel or data.dtype.kind != "f":
        return None
    if isinstance(data, np.ndarray):
        library: Any = np
        from scipy.signal import istft
    else:
        library = sys.modules["cupy"]
        from cupyx.scipy.signal import istft

    window = problem.window or "boxcar"
    if problem.kind == "fused" and (window, problem.reduction) != ("hann", "least_squares"):
        return None
    segments = data.reshape(geometry.planes, axis.kernel, axis.blocks)
    spectra = library.fft.rfft(segments, axis=1).astype(library.result_type(data.dtype, np.complex64))
    spectra /= library.asarray(problem.weights()[0].sum(), data.dtype)  # as stft scales them
    count = library.zeros(axis.size, data.dtype)
    for block in range(axis.blocks):
        count[block * axis.stride : block * axis.stride + axis.kernel] += 1
    options = {"nperseg": axis.kernel, "nfft": axis.kernel, "noverlap": axis.kernel - axis.stride}

    def as_sums(answer: Any) -> Any:
        if problem.kind == "fused":
            return answer.reshape(geometry.image_shape)
        mean = library.zeros((geometry.planes, axis.size), data.dtype)
        mean[:, : answer.shape[-1]] = answer
        return library.rint(mean * count).astype(data.dtype).reshape(geometry.image_shape)

    return Call(lambda: istft(spectra, window=window, boundary=trims, **options)[1], as_sums)


# ---- JAX


def _in_jax(data: Any, threads: int, run: Callable[[Any], Any]) -> Call:
    """Compile a function of an array; XLA has as many threads as the first call of a process asks for."""
    os.environ.setdefault("NPROC", str(threads))
    import jax

    jax.config.update("jax_enable_x64", True)
    compiled, array = jax.jit(run), jax.numpy.asarray(data)
    return Call(lambda: compiled(array).block_until_ready(), np.asarray)


def _jax(problem: Problem, data: Any, threads: int) -> Call | None:
    """Take patches by a convolution with ones, and put them together by its transpose, as JAX's documents do."""
    geometry = problem.geometry
    if not isinstance(geometry, SlidingGeometry) or not _dilated(geometry) or data.dtype.kind in "biu":
        return None
    from jax import linear_transpose
    from jax.lax import Precision, conv_general_dilated_patches

    def patches(image: Any) -> Any:
        found = conv_general_dilated_patches(
            image,
            geometry.block_shape,
            [axis.stride for axis in geometry.axes],
            [(axis.pad_begin, axis.pad_end) for axis in geometry.axes],
            rhs_dilation=[axis.dilation for axis in geometry.axes],
            precision=Precision.HIGHEST,
        )
        return found.reshape(geometry.columns_shape)

    image = np.zeros(geometry.image_shape, data.dtype)
    if problem.operation == "im2col":
        return _in_jax(data, threads, patches)
    return _in_jax(data, threads, lambda columns: linear_transpose(patches, image)(columns)[0])


def _jax_loop(problem: Problem, data: Any, threads: int) -> Call | None:
    """Add the blocks of one tap after another's by at[].add, where they are few enough to be compiled."""
    geometry = problem.geometry
    if problem.operation not in ("col2im", "blocks_to_array") or not _dilated(geometry):
        return None
    assert isinstance(geometry, SlidingGeometry)
    if prod(geometry.block_shape) > COMPILED_STEPS:
        return None
    padded = [axis.padded_size for axis in geometry.axes]
    inside = (..., *(slice(axis.pad_begin, axis.pad_begin + axis.size) for axis in geometry.axes))

    def run(columns: Any) -> Any:
        from jax import numpy

        image, blocks = numpy.zeros((geometry.batch, geometry.channels, *padded), columns.dtype), columns
        blocks = _as_blocks(problem, blocks)
        for where, part, _ in steps(geometry, "taps"):
            image = image.at[where].add(blocks[part])
        return image[inside].reshape(problem.output_shape)

    return _in_jax(data, threads, run)


def _gpufold_jax(problem: Problem, data: Any, threads: int) -> Call:
    """Let gpufold compute on JAX's arrays, in a program that is compiled."""

    def run(array: Any) -> Any:
        from jax import numpy

        options = dict(problem.averaged)
        if problem.window:
            options["window"] = window
        function = getattr(gpufold, problem.operation)
        if problem.kind == "placed":
            return function(numpy.zeros(problem.output_shape, array.dtype), array, places, **options)
        if problem.kind == "taken":
            return function(array, places, **problem.arguments, **options)
        return function(array, **problem.arguments, **options)

    from jax import numpy

    window = [numpy.asarray(weights) for weights in problem.weights()] if problem.window else None
    places = problem.positions() if problem.kind in ("placed", "taken") else None
    return _in_jax(data, threads, run)


# ---- torch


def _tensor(array: Any) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)


def _from_tensor(like: Any) -> Callable[[Any], Any]:
    """Return the way back from a tensor to the kind of array that `like` is."""

    def convert(tensor: Any) -> Any:
        import torch

        library = np if isinstance(like, np.ndarray) else sys.modules["cupy"]
        if tensor.dtype == torch.bfloat16:
            return library.from_dlpack(tensor.contiguous().view(torch.int16)).view(like.dtype)
        return library.from_dlpack(tensor)

    return convert


def _torch_run(problem: Problem, data: Any) -> Callable[[Any], Any] | None:
    """Return F.fold or F.unfold, an audio axis as a picture of height 1, or a permutation."""
    import torch.nn.functional as functional

    geometry = problem.geometry
    if isinstance(geometry, SpaceGeometry):
        return lambda tensor: _torch_permute(problem.operation, geometry, tensor)
    if len(geometry.axes) > 2 or not _symmetric(geometry) or data.dtype.kind in "biu":
        return None
    lead = (1,) * (2 - len(geometry.axes))
    options = {
        "kernel_size": (*lead, *geometry.block_shape),
        "dilation": (*lead, *(axis.dilation for axis in geometry.axes)),
        "padding": (*(0 for _ in lead), *(axis.pad_begin for axis in geometry.axes)),
        "stride": (*lead, *(axis.stride for axis in geometry.axes)),
    }
    shape, picture = problem.output_shape, (*lead, *geometry.image_size)
    if problem.operation not in TAKING_APART:
        return lambda tensor: functional.fold(problem.as_columns(tensor), picture, **options).reshape(shape)

    def unfold(tensor: Any) -> Any:
        columns = functional.unfold(tensor.reshape(*tensor.shape[:2], *picture), **options)
        return columns if problem.operation == "im2col" else problem.as_blocks(columns)

    return unfold


def _torch_permute(operation: str, geometry: SpaceGeometry, tensor: Any) -> Any:
    import torch.nn.functional as functional

    rank = len(geometry.block)
    if operation == "batch_to_space":
        order = (rank, *(axis for i in range(rank) for axis in (rank + 1 + i, i)))
        padded = [count * block for count, block in zip(geometry.grid, geometry.block, strict=True)]
        space = tensor.reshape(*geometry.block, geometry.batch, *geometry.grid).permute(order)
        space = space.reshape(geometry.batch, *padded)
        crop = zip(geometry.margin_begin, geometry.space_size, strict=True)
        return space[(slice(None), *(slice(begin, begin + size) for begin, size in crop))].contiguous()
    pads = [pad for margins in zip(geometry.margin_begin, geometry.margin_end, strict=True) for pad in margins[::-1]]
    if any(pads):
        tensor = functional.pad(tensor, pads[::-1])
    split = [extent for pair in zip(geometry.grid, geometry.block, strict=True) for extent in pair]
    order = (*range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank, 2))
    return tensor.reshape(geometry.batch, *split).permute(order).contiguous().reshape(geometry.batch_shape)


def _torch(problem: Problem, data: Any, threads: int) -> Call | None:
    import torch

    run = _torch_run(problem, data) if problem.kind != "fused" else _torch_average(problem, _tensor(data).device)
    if run is None:
        return None
    torch.set_num_threads(threads)
    tensor = _tensor(data)
    return Call(lambda: run(tensor), _from_tensor(data))


def _gpufold_torch(problem: Problem, data: Any, threads: int) -> Call:
    """Let gpufold compute on tensors."""
    run = _gpufold_torch_run(problem, data)
    tensor = _tensor(data)
    return Call(lambda: run(tensor), _from_tensor(data))


def _gpufold_torch_run(problem: Problem, data: Any) -> Callable[[Any], Any]:
    import torch

    import gpufold.torch

    device = _tensor(data).device
    options = dict(problem.averaged)
    if problem.window:
        options["window"] = [torch.as_tensor(weights, device=device) for weights in problem.weights()]
    function = getattr(gpufold.torch, problem.operation)
    if problem.kind not in ("placed", "taken"):
        return lambda tensor: function(tensor, **problem.arguments, **options)
    places = torch.as_tensor(problem.positions(), device=device)
    if problem.kind == "taken":
        return lambda tensor: function(tensor, places, **problem.arguments, **options)
    shape = problem.output_shape
    return lambda tensor: gpufold.torch.add_blocks_(tensor.new_zeros(shape), tensor, places, **options)


def _with_gradient(run: Callable[[Any], Any], data: Any) -> Call | None:
    """Time a call with the gradient of its sum, for floats."""
    import torch

    tensor = _tensor(data)
    if not tensor.is_floating_point():
        return None
    leaf = tensor.detach().requires_grad_()

    def both() -> Any:
        result = run(leaf)
        torch.autograd.grad(result, leaf, torch.ones_like(result))
        return result.detach()

    return Call(both, _from_tensor(data))


def _torch_with_gradient(problem: Problem, data: Any, threads: int) -> Call | None:
    import torch

    run = _torch_run(problem, data) if problem.kind != "fused" else _torch_average(problem, _tensor(data).device)
    torch.set_num_threads(threads)
    return None if run is None else _with_gradient(run, data)


def _gpufold_torch_with_gradient(problem: Problem, data: Any, threads: int) -> Call | None:
    return _with_gradient(_gpufold_torch_run(problem, data), data)


def _torch_average(problem: Problem, device: Any) -> Callable[[Any], Any] | None:
    """Return the fold of weighed columns over the fold of the weights of one plane, which are on the device by then."""
    geometry = problem.geometry
    if not isinstance(geometry, SlidingGeometry) or len(geometry.axes) > 2 or problem.operation in TAKING_APART:
        return None
    import torch
    import torch.nn.functional as functional

    lead = (1,) * (2 - len(geometry.axes))
    options = {
        "output_size": (*lead, *geometry.image_size),
        "kernel_size": (*lead, *geometry.block_shape),
        "stride": (*lead, *(axis.stride for axis in geometry.axes)),
        "padding": (*(0 for _ in lead), *(axis.pad_begin for axis in geometry.axes)),
    }
    shape, blocks = geometry.image_shape, prod(geometry.num_blocks)
    weights = reduce(torch.outer, [torch.as_tensor(w, device=device) for w in problem.weights()]).reshape(-1, 1)
    power = weights * weights if problem.reduction == "least_squares" else weights
    weights_of_channels = weights.repeat(geometry.channels, 1)

    def run(tensor: Any) -> Any:
        columns = problem.as_columns(tensor)
        if problem.window:
            columns = columns * weights_of_channels
        image = functional.fold(columns, **options)
        if problem.reduction != "sum":
            divisor = functional.fold(power.expand(-1, blocks)[None], **options)
            image = image / torch.where(divisor == 0, 1, divisor)
        return image.reshape(shape)

    return run


def _torch_compile(problem: Problem, data: Any, threads: int) -> Call | None:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else a pool of as many processes as cores
    import torch
    import torch._dynamo.utils

    run = _torch_run(problem, data)
    if run is None:
        return None
    # Every problem's function shares one code object, of which Dynamo compiles a few and runs the others as they are.
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    tensor, compiled = _tensor(data), torch.compile(run, dynamic=False, fullgraph=True)
    compiled(tensor)
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    if graphs != 1 or breaks:
        raise RuntimeError(f"torch.compile ran the function in {graphs} graphs with {breaks} breaks, not in one graph")
    return Call(lambda: compiled(tensor), _from_tensor(data))


UNFOLD_ND_TAPS = 4096
"""It convolves with a one-hot kernel per tap: a call with 32x32x32 taps takes half a minute."""


def _unfold_nd(problem: Problem, data: Any, threads: int) -> Call | None:
    """Run it where torch has nothing: one and three axes."""
    geometry = problem.geometry
    if isinstance(geometry, SlidingGeometry) and prod(geometry.block_shape) > UNFOLD_ND_TAPS:
        return None
    if not isinstance(geometry, SlidingGeometry) or len(geometry.axes) not in (1, 3) or not _symmetric(geometry):
        return None
    import torch
    from unfoldNd import foldNd, unfoldNd

    torch.set_num_threads(threads)
    tensor = _tensor(data)
    options = {
        "kernel_size": geometry.block_shape,
        "dilation": tuple(axis.dilation for axis in geometry.axes),
        "padding": tuple(axis.pad_begin for axis in geometry.axes),
        "stride": tuple(axis.stride for axis in geometry.axes),
    }
    if problem.operation == "col2im":
        return Call(lambda: foldNd(tensor, geometry.image_size, **options), _from_tensor(data))
    return Call(lambda: unfoldNd(tensor, **options), _from_tensor(data))


# ---- clients: libraries that stitch, by the code that they are published with


def _tiles(problem: Problem, data: Any) -> tuple[SlidingGeometry, dict[tuple[int, ...], Any]] | None:
    """Return the averaged tiles of one image as clients see them, (1, channels, *tile), by their first elements."""
    geometry = problem.geometry
    if problem.operation != "blocks_to_array" or problem.reduction != "mean" or geometry.batch != 1:
        return None
    assert isinstance(geometry, SlidingGeometry)
    if prod(geometry.num_blocks) > LOOPED_BLOCKS or any(axis.stride > axis.kernel for axis in geometry.axes):
        return None
    strides, tensor = [axis.stride for axis in geometry.axes], _tensor(data)
    return geometry, {
        tuple(number * stride for number, stride in zip(block, strides, strict=True)): tensor[
            (slice(None),) * 2 + block
        ]
        for block in np.ndindex(*geometry.num_blocks)
    }


def _monai(problem: Problem, data: Any, threads: int) -> Call | None:
    """Stitch by MONAI's sliding-window inference, with a copy of a tile in place of the network.

    It multiplies what the network gives by the window in place, so that the copy has to be. It also takes a tile of one
    channel from the picture for each.
    """
    import torch

    tiles = _tiles(problem, data)
    if tiles is None or len(problem.geometry.axes) > 3:
        return None
    geometry, by_begin = tiles
    inferers, tensor = client("monai.inferers"), _tensor(data)
    picture = tensor.new_zeros((1, 1, *geometry.image_size))
    window = torch.as_tensor(reduce(np.multiply.outer, problem.weights()), device=tensor.device)
    overlap = [max(0, 1 - (axis.stride + 0.5) / axis.kernel) for axis in geometry.axes]  # it rounds the stride down

    def run() -> Any:
        answers = iter(by_begin.values())
        return inferers.sliding_window_inference(
            picture, geometry.block_shape, 1, lambda tile: next(answers).clone(), overlap, roi_weight_map=window
        )

    torch.set_num_threads(threads)
    return Call(run, _from_tensor(data))


def _map_tiles(problem: Problem, data: Any, threads: int) -> Call | None:
    """Stitch by gpufold.map_tiles, one tile at a time in place of what a network gives, as MONAI does."""
    tiles = _tiles(problem, data)
    if tiles is None:
        return None
    geometry, by_begin = tiles
    picture = _tensor(data).new_zeros((1, *geometry.image_size))
    strides, window = [axis.stride for axis in geometry.axes], problem.weights() if problem.window else None

    def run() -> Any:
        answers = iter(by_begin.values())
        return gpufold.map_tiles(
            lambda _: next(answers), picture, geometry.block_shape, strides=strides, window=window
        )[None]

    return Call(run, _from_tensor(data))


def _torchio(problem: Problem, data: Any, threads: int) -> Call | None:
    """Aggregate tiles of a volume as TorchIO does, with the problem's window in place of Hann's."""
    import torch

    tiles = _tiles(problem, data)
    if tiles is None or len(problem.geometry.axes) != 3:
        return None
    geometry, by_begin = tiles
    overlap = [axis.kernel - axis.stride for axis in geometry.axes]
    if any(each % 2 for each in overlap):  # it takes no odd ones
        return None
    torchio = client("torchio")
    subject = torchio.Subject(image=torchio.ScalarImage(tensor=torch.zeros(1, *geometry.image_size)))
    sampler = torchio.GridSampler(subject, geometry.block_shape, overlap)
    window = torch.from_numpy(reduce(np.multiply.outer, problem.weights()))
    batches = [(by_begin[tuple(each[:3].tolist())], torch.from_numpy(each[None])) for each in sampler.locations]

    def run() -> Any:
        aggregator = torchio.GridAggregator(sampler, overlap_mode="hann" if problem.window else "average")
        aggregator._hann_window = window
        for tile, location in batches:
            aggregator.add_batch(tile, location)
        return aggregator.get_output_tensor()[None]

    torch.set_num_threads(threads)
    return Call(run, _from_tensor(data))


def _pty_chi(problem: Problem, data: Any, threads: int) -> Call | None:
    """Place patches as pty-chi does, or extract them by the function that has zeros outside.

    It pads the picture for patches that reach out; that it does, the one for placing would say at every call.
    """
    import torch

    geometry = problem.geometry
    if problem.window or not isinstance(geometry, SlidingGeometry) or len(geometry.axes) != 2 or geometry.planes != 1:
        return None
    processing, tensor = client("ptychi.image_proc"), _tensor(data)
    logging.getLogger().setLevel(logging.ERROR)
    centres = torch.as_tensor(problem.positions() + (np.array(geometry.block_shape) - 1) / 2, device=tensor.device)

    def place() -> Any:
        picture = tensor.new_zeros(geometry.image_size)
        return processing.place_patches_integer(picture, centres, tensor.reshape(-1, *geometry.block_shape))

    def extract() -> Any:
        picture = tensor.reshape(geometry.image_size)
        return processing.extract_patches_fourier_shift(picture, centres, geometry.block_shape, pad=0)

    torch.set_num_threads(threads)
    run = place if problem.kind == "placed" else extract
    return Call(run, lambda answer: _from_tensor(data)(answer.contiguous()).reshape(problem.output_shape))


# ---- inference engines and others


def _onnxruntime(problem: Problem, data: Any, threads: int) -> Call | None:
    geometry = problem.geometry
    if problem.operation not in ("col2im", "blocks_to_array") or data.dtype.name not in ("float32", "float16"):
        return None
    if not isinstance(geometry, SlidingGeometry) or not _dilated(geometry):
        return None
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    axes = geometry.axes
    element = TensorProto.FLOAT if data.dtype.name == "float32" else TensorProto.FLOAT16
    node = helper.make_node(
        "Col2Im",
        ["input", "image_shape", "block_shape"],
        ["output"],
        dilations=[axis.dilation for axis in axes],
        pads=[*(axis.pad_begin for axis in axes), *(axis.pad_end for axis in axes)],
        strides=[axis.stride for axis in axes],
    )
    shapes = [
        numpy_helper.from_array(np.array(sizes, np.int64), name)
        for name, sizes in (("image_shape", geometry.image_size), ("block_shape", geometry.block_shape))
    ]
    graph = helper.make_graph(
        [node],
        "col2im",
        [helper.make_tensor_value_info("input", element, geometry.columns_shape)],
        [helper.make_tensor_value_info("output", element, problem.output_shape)],
        shapes,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Call(lambda: session.run(None, {"input": problem.as_columns(data)})[0])


def _openvino(problem: Problem, data: Any, threads: int) -> Call | None:
    if problem.operation == "im2col" or data.dtype.name in ("bfloat16", "complex64"):
        return None
    if isinstance(problem.geometry, SlidingGeometry) and len(problem.geometry.axes) != 2:
        return None
    import openvino
    from openvino import opset2, opset15

    parameter = opset2.parameter(problem.input_shape, data.dtype)
    arguments = problem.arguments
    if problem.operation == "col2im":
        sizes = [np.array(arguments.pop(name), np.int64) for name in ("output_size", "kernel_size")]
        result = opset15.col2im(parameter, *sizes, **{name: list(value) for name, value in arguments.items()})
    else:
        function = getattr(opset2, problem.operation)
        result = function(parameter, *(np.array(value, np.int64) for value in arguments.values()))
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f16" if data.dtype == np.float16 else "f32",
    }
    compiled = openvino.compile_model(openvino.Model([result], [parameter]), "CPU", options)
    request = compiled.create_infer_request()
    return Call(lambda: request.infer([data], share_inputs=True, share_outputs=True)[0])


def _sigpy(problem: Problem, data: Any, threads: int) -> Call | None:
    """Run it on blocks in its own layout, (..., *blocks, *block); it knows no padding and no dilation."""
    geometry = problem.geometry
    if not isinstance(geometry, SlidingGeometry) or len(geometry.axes) > 3:
        return None
    if any(axis.pad_begin or axis.pad_end or axis.dilation != 1 for axis in geometry.axes):
        return None
    if data.dtype.name not in ("float32", "float64", "complex64", "complex128"):
        return None
    import sigpy

    library = np if isinstance(data, np.ndarray) else sys.modules["cupy"]
    rank, strides = len(geometry.axes), tuple(axis.stride for axis in geometry.axes)
    if problem.operation == "array_to_blocks":
        return Call(lambda: sigpy.array_to_blocks(data, geometry.block_shape, strides))
    if problem.operation == "blocks_to_array":
        return Call(lambda: sigpy.blocks_to_array(data, geometry.image_shape, geometry.block_shape, strides))
    taps, blocks = tuple(range(2, 2 + rank)), tuple(range(2 + rank, 2 + 2 * rank))
    if problem.operation == "im2col":
        order = (0, 1, *blocks, *taps)  # sigpy's blocks come before its taps, so this swaps them back

        def as_columns(answer: Any) -> Any:
            return answer.transpose(order).reshape(geometry.columns_shape)

        return Call(lambda: sigpy.array_to_blocks(data, geometry.block_shape, strides), as_columns)
    own = library.ascontiguousarray(data.reshape(geometry.split_columns_shape).transpose(0, 1, *blocks, *taps))
    return Call(lambda: sigpy.blocks_to_array(own, geometry.image_shape, geometry.block_shape, strides))


def _tensorflow(problem: Problem, data: Any, threads: int) -> Call | None:
    geometry = problem.geometry
    if isinstance(geometry, SlidingGeometry) or len(geometry.block) > 4 or data.dtype == np.bool_:
        return None
    import tensorflow

    tensor = tensorflow.constant(data)
    margins = list(zip(geometry.margin_begin, geometry.margin_end, strict=True))
    function = getattr(tensorflow, problem.operation)
    return Call(lambda: function(tensor, geometry.block, margins), lambda answer: answer.numpy())


EVERY_KIND = ("plain", "blocks", "fused", "placed", "taken")

PEERS: tuple[Peer, ...] = (
    Peer("torch", "torch", "torch", ("cpu", "gpu"), _torch, ("plain", "blocks", "fused")),
    Peer("gpufold.torch", "torch", "torch", ("cpu", "gpu"), _gpufold_torch, EVERY_KIND),
    Peer("torch, gradient", "torch", "torch", ("cpu", "gpu"), _torch_with_gradient, ("plain", "blocks", "fused")),
    Peer("gpufold.torch, gradient", "torch", "torch", ("cpu", "gpu"), _gpufold_torch_with_gradient, EVERY_KIND),
    Peer("jax", "jax", "jax", ("cpu",), _jax),
    Peer("jax, at[].add", "jax", "jax", ("cpu",), _jax_loop, ("plain", "blocks")),
    Peer("gpufold.jax", "jax", "jax", ("cpu",), _gpufold_jax, EVERY_KIND),
    Peer("onnxruntime", "onnxruntime", "onnxruntime", ("cpu",), _onnxruntime, ("plain", "blocks")),
    Peer("openvino", "openvino", "openvino", ("cpu",), _openvino),
    Peer("sigpy", "sigpy", "sigpy", ("cpu", "gpu"), _sigpy, ("plain", "blocks")),
    Peer("unfoldNd", "unfoldNd", "unfoldNd", ("cpu", "gpu"), _unfold_nd),
    Peer("tensorflow", "tensorflow", "tensorflow", ("cpu",), _tensorflow),
    Peer("numpy", "numpy", "numpy", ("cpu",), _composition, ("plain", "blocks")),
    Peer("istft", "scipy", "scipy", ("cpu",), _istft, ("plain", "fused")),
    Peer("istft", "", "cupyx", ("gpu",), _istft, ("plain", "fused")),
    Peer("two passes", "", "gpufold", ("cpu", "gpu"), _two_passes, ("fused",)),
    Peer("MONAI", "monai", "monai", ("cpu", "gpu"), _monai, ("fused",)),
    Peer("gpufold.map_tiles", "torch", "torch", ("cpu", "gpu"), _map_tiles, ("fused",)),
    Peer("TorchIO", "torchio", "torchio", ("cpu",), _torchio, ("fused",)),
    Peer("pty-chi", "ptychi", "ptychi", ("cpu", "gpu"), _pty_chi, ("placed", "taken")),
    Peer("loop", "numpy", "numpy", ("cpu",), _loop, EVERY_KIND),
    Peer("loop", "", "cupy", ("gpu",), _loop, EVERY_KIND, on_request=True),
    Peer("add.at", "numpy", "numpy", ("cpu",), _add_at, ("placed",)),
    Peer("add.at", "", "cupy", ("gpu",), _add_at, ("placed",)),
    Peer("torch.compile", "torch", "torch", ("gpu",), _torch_compile, on_request=True),
    Peer("Triton", "triton", "triton", ("gpu",), _triton),
    Peer("naive gather", "", "cupy", ("gpu",), _naive_gather),
    Peer("batched gather", "", "cupy", ("gpu",), _batched_gather),
    Peer("cupy", "", "cupy", ("gpu",), _composition, ("plain", "blocks")),
    Peer("scatter_add", "", "cupyx", ("gpu",), _scatter_add),
)


def installed(device: str, requested: Sequence[str] = ()) -> list[Peer]:
    """Return the peers that this machine has for a device, of those on request the ones that are named."""
    wanted = [peer for peer in PEERS if device in peer.devices and (not peer.on_request or peer.name in requested)]
    if unknown := set(requested) - {peer.name for peer in PEERS if device in peer.devices and peer.on_request}:
        names = ", ".join(peer.name for peer in PEERS if device in peer.devices and peer.on_request) or "none"
        raise ValueError(f"peers that are measured on request on a {device} are {names}, not {', '.join(unknown)}")
    return [peer for peer in wanted if peer.installed]


def absent(device: str) -> list[str]:
    """Return the names of the peers that this machine lacks for a device."""
    return [peer.name for peer in PEERS if device in peer.devices and not peer.installed]
