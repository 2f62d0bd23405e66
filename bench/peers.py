"""Peers: other ways to compute the same, used if installed and applicable."""

from __future__ import annotations

import importlib.util
import logging
import os
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import gpufold
from bench.clients import client
from bench.problems import (
    AT_POSITIONS,
    TAKING,
    Problem,
    along,
    cropped,
    library_of,
    padded,
    pads_of,
    permuted,
    pixels,
    space_of,
)
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import Axis, SlidingGeometry, SpaceGeometry
from gpufold.operations import OPERATIONS

SLIDING, SPACE = ("col2im", "im2col"), ("batch_to_space", "space_to_batch")
FLOATS, COMPLEX = ("float16", "bfloat16", "float32", "float64"), ("complex64", "complex128")


@dataclass(frozen=True)
class Call:
    """A call to time, and a conversion of its result to the problem's output shape, which is not timed."""

    run: Callable[[], Any]
    as_array: Callable[[Any], Any] = lambda answer: answer


@dataclass(frozen=True)
class Peer:
    """A library, or one way to use it, and the problems that it serves."""

    name: str
    module: str
    """The name of its module and distribution."""
    devices: tuple[str, ...]
    prepare: Callable[[Problem, Any, int], Call | None]
    """Makes the call for a problem, its data (a NumPy or CuPy array) and a number of CPU threads; None: no such call.

    Everything that a user does once, such as building a session, and bringing the data into the library's own
    type and layout, is done here and not timed.
    """
    operations: tuple[str, ...] = tuple(OPERATIONS)
    axes: tuple[int, ...] = tuple(range(9))
    """The numbers of axes of sliding blocks that it supports."""
    dtypes: tuple[str, ...] = tuple(ELEMENT_TYPES)
    fused: tuple[bool, ...] = (False, True)
    """Whether it averages or weights sliding blocks."""
    zero_dilation: bool = False
    """Whether it takes dilations of 0, as only gpufold and OpenVINO do."""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def call(self, problem: Problem, data: Any, threads: int) -> Call | None:
        """Make the call for a problem, or None if the peer does not serve it."""
        axes = problem.geometry.axes if isinstance(problem.geometry, SlidingGeometry) else ()
        served = (
            problem.operation in self.operations
            and data.dtype.name in self.dtypes
            and problem.fused in self.fused
            and (not axes or len(axes) in self.axes)
            and (self.zero_dilation or all(axis.dilation for axis in axes))
        )
        return self.prepare(problem, data, threads) if served else None


UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


def _symmetric(geometry: SlidingGeometry) -> bool:
    return all(begin == end for begin, end in pads_of(geometry))


def _divided(image: Any, divisor: Any) -> Any:
    """Divide where the divisor is not zero."""
    return image / library_of(image).where(divisor == 0, 1, divisor)


def _powers(problem: Problem, weights: Any) -> Any:
    """Return the terms of an average's divisor."""
    return weights * weights if problem.reduction == "least_squares" else weights


# ---- compositions that a user of NumPy, CuPy or torch writes


def _composition(problem: Problem, data: Any, threads: int) -> Call:
    """Copy or index a sliding window view, or reshape, transpose, copy and slice: moves in one array operation."""
    if problem.operation == "take_blocks":
        return Call(_indexed(problem, data))
    return Call(partial(permuted if problem.operation in SPACE else _windows, problem, data))


def _two_passes(problem: Problem, data: Any, threads: int) -> Call:
    """Let gpufold fold twice, as without fusion."""
    weights = library_of(data).asarray(problem.block_weights().reshape(-1, 1))
    fold = partial(gpufold.col2im, **replace(problem, operation="col2im").arguments)
    return Call(partial(_average(problem, weights, fold), data))


def _average(problem: Problem, weights: Any, fold: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that folds weighted columns, and divides by the fold of the weights of one plane, made once."""
    geometry, library = problem.geometry, library_of(weights)
    blocks = prod(geometry.num_blocks)
    power = library.broadcast_to(_powers(problem, weights), (1, len(weights), blocks))
    divisor = None if problem.reduction == "sum" else fold(power)

    def run(data: Any) -> Any:
        columns = problem.as_columns(data)
        if problem.window:
            by_channel = columns.reshape(geometry.planes, len(weights), blocks)
            columns = (by_channel * weights).reshape(columns.shape)
        image = fold(columns)
        image = image if divisor is None else _divided(image, divisor)
        return image.reshape(geometry.array_shape)

    return run


LOOPED_BLOCKS = 4096
"""Most tiles with which a client of torch is measured."""

LOOPED_STEPS = 1 << 18
"""Most steps of a measured loop in Python: more would take seconds per call."""

LOOPED_TIMES = 16
"""Ratio of the steps of two loops up to which the longer one is tried: beyond, it is not faster."""


def _loop(problem: Problem, data: Any, threads: int) -> Call | None:
    """Loop over blocks, or over the taps of all blocks, whichever is faster: what a user of NumPy writes."""
    geometry = problem.geometry
    if isinstance(geometry, SpaceGeometry):
        return Call(lambda: _loop_over_offsets(problem.operation, geometry, data))
    moves, counts = [partial(_by_blocks, geometry)], [prod(geometry.num_blocks)]
    if problem.operation in AT_POSITIONS:
        moves = [partial(_at_positions, geometry, problem.positions().tolist())]
    else:
        moves.append(partial(_by_taps, geometry))
        counts.append(prod(geometry.block_shape))
    run = _take_apart if problem.operation in TAKING else _put_together
    loops = [partial(run, problem, data, problem.block_weights(), each) for each in moves]
    most = min(LOOPED_STEPS, LOOPED_TIMES * min(counts) - 1)
    possible = [loop for loop, count in zip(loops, counts, strict=True) if count <= most]
    if len(possible) > 1:
        possible.sort(key=_seconds)
    return Call(possible[0]) if possible else None


def _seconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, repeat=2, number=1))


Moves: TypeAlias = Iterator[tuple[Any, Any, Any]]
"""Indices of the padded image, the blocks (N, C, *blocks, *taps) and a block's taps, for each step of a loop."""


def _by_blocks(geometry: SlidingGeometry) -> Moves:
    for block in np.ndindex(geometry.num_blocks):
        begins = [(number * axis.stride, axis) for number, axis in zip(block, geometry.axes, strict=True)]
        spans = (slice(begin, begin + axis.dilated_kernel, axis.dilation) for begin, axis in begins)
        yield (..., *spans), (slice(None), slice(None), *block), ...


def _by_taps(geometry: SlidingGeometry | SpaceGeometry) -> Moves:
    for tap in np.ndindex(geometry.block_shape):
        begins = [(number * axis.dilation, axis) for number, axis in zip(tap, geometry.axes, strict=True)]
        spans = (slice(begin, begin + axis.stride * (axis.blocks - 1) + 1, axis.stride) for begin, axis in begins)
        yield (..., *spans), (..., *tap), tap


def _at_positions(geometry: SlidingGeometry, places: list[list[int]]) -> Moves:
    """Clip block after block, as ptychography codes and nnU-Net do."""
    for number, place in enumerate(places):
        axes = list(zip(place, geometry.block_shape, geometry.size, strict=True))
        spans = (slice(max(first, 0), min(first + taps, size)) for first, taps, size in axes)
        taps = (..., *(slice(max(-first, 0), min(taps, size - first)) for first, taps, size in axes))
        yield (..., *spans), (number, *taps), taps


def _put_together(problem: Problem, data: Any, weights: Any, moves: Callable[[], Moves]) -> Any:
    geometry = problem.geometry
    blocks = problem.as_blocks(data) if problem.operation == "col2im" else data
    size = along(geometry, "padded_size")
    image = np.zeros((geometry.batch, geometry.channels, *size), data.dtype)
    divisor, power = np.zeros(size, weights.dtype), _powers(problem, weights)
    for where, part, taps in moves():
        image[where] += blocks[part] * weights[taps] if problem.window else blocks[part]
        if problem.reduction != "sum":
            divisor[where] += power[taps]
    image = cropped(image, geometry)
    return image if problem.reduction == "sum" else _divided(image, cropped(divisor, geometry))


def _take_apart(problem: Problem, image: Any, weights: Any, moves: Callable[[], Moves]) -> Any:
    image = padded(image, problem.geometry)
    allocate = np.zeros if problem.operation in AT_POSITIONS else np.empty  # on a grid, every element is stored
    result = allocate(problem.output_shape, image.dtype)
    blocks = problem.as_blocks(result) if problem.operation == "im2col" else result
    for where, part, taps in moves():
        blocks[part] = image[where] * weights[taps] if problem.window else image[where]
    return result


def _loop_over_offsets(operation: str, geometry: SpaceGeometry, data: Any) -> Any:
    """Copy the images of each offset in the blocks, one after another."""
    split = *geometry.block_shape, geometry.batch, *geometry.num_blocks
    if operation == "batch_to_space":
        space, batch = np.empty(space_of(geometry), data.dtype), data.reshape(split)
        for where, _, offset in _by_taps(geometry):
            space[where] = batch[offset]
        return cropped(space, geometry)
    space, batch = padded(data, geometry), np.empty(split, data.dtype)
    for where, _, offset in _by_taps(geometry):
        batch[offset] = space[where]
    return batch.reshape(geometry.blocks_shape)


def _add_at(problem: Problem, data: Any, threads: int) -> Call | None:
    """Add all elements at once by index; those outside go to an extra element."""
    geometry, library = problem.geometry, library_of(data)
    if problem.window or geometry.planes != 1:
        return None
    places, size = library.asarray(problem.positions()), prod(geometry.size)

    def run() -> Any:
        image = library.zeros(size + 1, data.dtype)
        library.add.at(image, pixels(geometry, places, library).ravel(), data.ravel())
        return image[:size].reshape(problem.output_shape)

    return Call(run)


def _windows(problem: Problem, image: Any) -> Any:
    geometry, rank = problem.geometry, len(problem.geometry.axes)
    spans, spatial = along(geometry, "dilated_kernel"), tuple(range(2, 2 + rank))
    views = library_of(image).lib.stride_tricks.sliding_window_view(padded(image, geometry), spans, spatial)
    slices = [slice(None, None, step) for name in ("stride", "dilation") for step in along(geometry, name)]
    blocks = views[(slice(None), slice(None), *slices)]
    if problem.operation == "array_to_blocks":
        return blocks.copy()
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *spatial)
    return blocks.transpose(order).copy().reshape(geometry.blocks_shape)


def _indexed(problem: Problem, image: Any) -> Callable[[], Any]:
    geometry, places, weights = problem.geometry, problem.positions(), problem.block_weights()
    spatial = tuple(range(2, image.ndim))

    def run() -> Any:
        before, after = -places.min(0).clip(max=0), ((places + geometry.block_shape).max(0) - geometry.size).clip(0)
        extended = np.pad(image, [(0, 0), (0, 0), *zip(before, after, strict=True)])
        views = np.lib.stride_tricks.sliding_window_view(extended, geometry.block_shape, spatial)
        blocks = np.moveaxis(views, spatial, range(len(spatial)))[tuple((places + before).T)]
        return np.ascontiguousarray(blocks * weights if problem.window else blocks)

    return run


def _scatter_add(problem: Problem, data: Any, threads: int) -> Call:
    """Compute the flat pixel of every column element, and scatter with atomic additions."""
    import cupy
    import cupyx

    geometry, size = problem.geometry, prod(problem.geometry.size)
    flat = pixels(geometry, cupy.asarray(problem.positions()), cupy).T.ravel()

    def run() -> Any:
        image = cupy.zeros((geometry.planes, size + 1), data.dtype)
        cupyx.scatter_add(image, (slice(None), flat), data.reshape(geometry.planes, -1))
        return image

    return Call(run, lambda image: image[:, :size].reshape(geometry.array_shape))


# ---- kernels that others ship, or write


EVERY_TAP = 4096
"""Most taps of a kernel, all visited by each thread to find those of its pixel: more would take seconds per call."""


def _gather(symbol: str, integer: Any, rank: int, problem: Problem, data: Any, cpu_threads: int) -> Call | None:
    """Launch a kernel of naive_gather.cu on float32; all its parameters have the same integer type.

    In `naive_gather` each thread looks for the taps of one pixel, with indices of 32 bits and up to three axes;
    `batched_gather` does as torch's own kernel: indices of 64 bits, two axes, batch and channels apart.
    """
    geometry, naive = problem.geometry, symbol == "naive_gather"
    if data.size > np.iinfo(integer).max or (naive and prod(geometry.block_shape) > EVERY_TAP):
        return None
    import cupy

    threads = 256 if naive else 512
    axes = (*(UNIT_AXIS,) * (rank - len(geometry.axes)), *geometry.axes)
    fields = ("size", "kernel", "stride", "dilation", "pad_begin", "blocks")
    lead = (geometry.planes,) if naive else (geometry.batch, geometry.channels)
    numbers = np.array([*lead, *(getattr(axis, name) for name in fields for axis in axes)], integer)
    parameters = numbers.view(np.dtype((np.void, numbers.nbytes)))
    file = Path(__file__).parent / "naive_gather.cu"
    text = f'// headers of none\n#line 1 "bench/{file.name}"\n{file.read_text()}'
    kernel = cupy.RawKernel(text, symbol, ("-std=c++17", f"-I{file.parent}"))
    blocks = -(-prod(geometry.array_shape) // threads)

    def run() -> Any:
        image = cupy.empty(geometry.array_shape, np.float32)
        kernel((blocks, 1, 1), (threads, 1, 1), (data, image, parameters))
        return image

    return Call(run)


def _triton(problem: Problem, tensor: Any) -> Callable[[Any], Any] | None:
    """Fold in Triton, which tunes the kernel at the first call."""
    geometry = problem.geometry
    if prod(geometry.block_shape) > EVERY_TAP or not tensor.is_cuda:
        return None
    from bench.triton_fold import fold

    return lambda tensor: fold(tensor, tensor.new_empty(geometry.array_shape), geometry)


# ---- SciPy and CuPy's overlap-add


def _istft(problem: Problem, data: Any, threads: int) -> Call | None:
    """Invert a short-time Fourier transform; the time includes the inverse transforms of the frames."""
    geometry, library = problem.geometry, library_of(data)
    (axis,) = geometry.axes
    inverts = (problem.window, problem.reduction) == ("hann", "least_squares") and axis.size % axis.stride == 0
    if not inverts or not axis.pad_begin == axis.pad_end == axis.kernel // 2:
        return None
    signal = importlib.import_module("scipy.signal" if library is np else "cupyx.scipy.signal")
    segments = data.reshape(geometry.planes, axis.kernel, axis.blocks)
    spectra = library.fft.rfft(segments, axis=1).astype(library.result_type(data.dtype, np.complex64))
    spectra /= library.asarray(problem.weights()[0].sum(), data.dtype)  # as stft scales them
    options = {"nperseg": axis.kernel, "nfft": axis.kernel, "noverlap": axis.kernel - axis.stride}
    return Call(
        lambda: signal.istft(spectra, window="hann", **options)[1], lambda answer: answer.reshape(geometry.array_shape)
    )


# ---- JAX


ONE_HOT_TAPS = 4096
"""Taps of a convolution with a one-hot kernel for each: a call of unfoldNd with 32x32x32 takes half a minute."""

COMPILED_TAPS = 16
"""Most taps of a fold by JAX: at[].add compiles a step for each, and the transpose for 3x3x3 takes 20 seconds."""


def _start_jax(threads: int) -> Any:
    """Import JAX; XLA has as many threads as the first call of a process asks for, before it makes an array."""
    os.environ["NPROC"] = str(threads)
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


def _in_jax(data: Any, threads: int, run: Callable[[Any], Any]) -> Call:
    """Compile a function of an array."""
    jax = _start_jax(threads)
    compiled, array = jax.jit(run), jax.numpy.asarray(data)
    return Call(lambda: compiled(array).block_until_ready(), np.asarray)


def _jax(problem: Problem, data: Any, threads: int) -> Call | None:
    """Take patches by a convolution with ones, and put them together by its transpose, as JAX's documents do."""
    from jax import linear_transpose
    from jax.lax import Precision, conv_general_dilated_patches

    geometry, takes = problem.geometry, problem.operation == "im2col"
    if prod(geometry.block_shape) > (ONE_HOT_TAPS if takes else COMPILED_TAPS):
        return None
    options = {"window_strides": along(geometry, "stride"), "rhs_dilation": along(geometry, "dilation")}

    def patches(image: Any) -> Any:
        found = conv_general_dilated_patches(
            image, geometry.block_shape, padding=pads_of(geometry), precision=Precision.HIGHEST, **options
        )
        return found.reshape(geometry.blocks_shape)

    if takes:
        return _in_jax(data, threads, patches)
    image = np.zeros(geometry.array_shape, data.dtype)
    return _in_jax(data, threads, lambda columns: linear_transpose(patches, image)(columns)[0])


def _jax_loop(problem: Problem, data: Any, threads: int) -> Call | None:
    """Add the blocks of each tap by at[].add, one tap after another."""
    from jax import numpy

    geometry = problem.geometry
    if prod(geometry.block_shape) > COMPILED_TAPS:
        return None
    shape = geometry.batch, geometry.channels, *along(geometry, "padded_size")

    def run(columns: Any) -> Any:
        image, blocks = numpy.zeros(shape, columns.dtype), problem.as_blocks(columns)
        for where, part, _ in _by_taps(geometry):
            image = image.at[where].add(blocks[part])
        return cropped(image, geometry)

    return _in_jax(data, threads, run)


def _gpufold_jax(problem: Problem, data: Any, threads: int) -> Call:
    """Let gpufold compute on JAX arrays, in a compiled program."""
    numpy = _start_jax(threads).numpy

    function, zeros = getattr(gpufold, problem.operation), partial(numpy.zeros, dtype=data.dtype)
    return _in_jax(data, threads, problem.bound(function, zeros, problem.given(numpy.asarray)))


# ---- torch


def _on_tensors(
    make: Callable[[Problem, Any], Callable[[Any], Any] | None],
    problem: Problem,
    data: Any,
    threads: int,
    gradient: bool = False,
) -> Call | None:
    """Time what is made for a problem and its tensor: by itself, or with the gradient of its sum."""
    import torch

    torch.set_num_threads(threads)
    library, as_words = library_of(data), data.dtype.name == "bfloat16"  # which NumPy does not exchange
    tensor = torch.from_dlpack(data.view(np.int16)).view(torch.bfloat16) if as_words else torch.from_dlpack(data)
    run = make(problem, tensor)
    if run is None:
        return None

    def as_array(answer: Any) -> Any:
        answer = answer.contiguous().view(torch.int16) if as_words else answer.contiguous()
        array = library.from_dlpack(answer)
        return (array.view(data.dtype) if as_words else array).reshape(problem.output_shape)

    if not gradient:
        return Call(lambda: run(tensor), as_array)
    leaf = tensor.detach().requires_grad_()

    def both() -> Any:
        result = run(leaf)
        torch.autograd.grad(result, leaf, torch.ones_like(result))
        return result.detach()

    return Call(both, as_array)


def _options_of_torch(geometry: SlidingGeometry, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the options of a fold of `rank` axes, the first of which may have one pixel."""
    axes = (*(UNIT_AXIS,) * (rank - len(geometry.axes)), *geometry.axes)
    names = {"kernel_size": "kernel", "dilation": "dilation", "padding": "pad_begin", "stride": "stride"}
    return {option: tuple(getattr(axis, name) for axis in axes) for option, name in names.items()}


def _torch_run(problem: Problem, tensor: Any) -> Callable[[Any], Any] | None:
    """Return F.fold, F.unfold with an audio axis as an image of height 1, a copy of all blocks, or a permutation."""
    import torch
    from torch.nn import functional

    geometry = problem.geometry
    if isinstance(geometry, SpaceGeometry):
        return lambda tensor: permuted(problem, tensor).contiguous()
    weights = torch.as_tensor(problem.block_weights(), device=tensor.device)
    if problem.operation == "array_to_blocks":
        return partial(_copied_windows, problem, weights)
    if len(geometry.axes) > 2 or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    options = _options_of_torch(geometry, 2)
    even = _symmetric(geometry)  # else the padding is an image's own
    options["padding"] = options["padding"] if even else (0, 0)
    picture = (1, *along(geometry, "size" if even else "padded_size"))[-2:]

    def fold(columns: Any) -> Any:
        image = functional.fold(columns, picture, **options)
        return image if even else cropped(image, geometry)

    def unfold(tensor: Any) -> Any:
        image = tensor if even else padded(tensor, geometry)
        return functional.unfold(image.reshape(*image.shape[:2], *picture), **options)

    if problem.fused:
        return _average(problem, weights.reshape(-1, 1), fold)
    if problem.operation in TAKING:
        return unfold
    return lambda tensor: fold(problem.as_columns(tensor)).reshape(problem.output_shape)


def _copied_windows(problem: Problem, weights: Any, tensor: Any) -> Any:
    """Copy, or multiply, a view of all blocks."""
    view = padded(tensor, problem.geometry)
    for number, axis in enumerate(problem.geometry.axes, 2):
        view = view.unfold(number, axis.dilated_kernel, axis.stride)[..., :: axis.dilation]
    return view * weights if problem.window else view.contiguous()


def _gpufold_torch_run(problem: Problem, tensor: Any) -> Callable[[Any], Any]:
    """Let gpufold compute on tensors."""
    import torch

    import gpufold.torch

    function = getattr(gpufold.torch, "add_blocks_" if problem.operation == "add_blocks" else problem.operation)
    given = problem.given(partial(torch.as_tensor, device=tensor.device))
    return problem.bound(function, tensor.new_zeros, given)


def _scatter_add_in_torch(problem: Problem, tensor: Any) -> Callable[[Any], Any]:
    """Add the elements of all planes at once by index; those outside go to an extra element."""
    import torch

    geometry, places, size = problem.geometry, problem.positions(), prod(problem.geometry.size)
    weights = torch.from_numpy(problem.block_weights().reshape(-1)) if problem.window else None

    def run(tensor: Any) -> Any:
        index = torch.from_numpy(pixels(geometry, places).ravel())
        terms = tensor.reshape(len(places), geometry.planes, -1)
        terms = terms if weights is None else terms * weights
        image = tensor.new_zeros((geometry.planes, size + 1))
        terms = terms.transpose(0, 1).reshape(geometry.planes, -1)
        return image.scatter_add_(1, index.expand(geometry.planes, -1), terms)[:, :size]

    return run


def _unfold_nd(problem: Problem, tensor: Any) -> Callable[[Any], Any] | None:
    """Run unfoldNd on one and three axes, which torch does not support."""
    geometry = problem.geometry
    if prod(geometry.block_shape) > ONE_HOT_TAPS or not _symmetric(geometry):
        return None
    from unfoldNd import foldNd, unfoldNd

    options = _options_of_torch(geometry, len(geometry.axes))
    if problem.operation == "col2im":
        return partial(foldNd, output_size=geometry.size, **options)
    return partial(unfoldNd, **options)


# ---- clients: stitching libraries, by their published code


def _tiles(problem: Problem, tensor: Any) -> dict[tuple[int, ...], Any] | None:
    """Return the averaged tiles (1, channels, *tile) of one image as clients see them, by their first elements."""
    geometry = problem.geometry
    if problem.reduction != "mean" or geometry.batch != 1 or prod(geometry.num_blocks) > LOOPED_BLOCKS:
        return None
    if any(axis.stride > axis.kernel for axis in geometry.axes):
        return None
    blocks, places = np.ndindex(*geometry.num_blocks), map(tuple, problem.positions().tolist())
    return {place: tensor[(slice(None), slice(None), *block)] for place, block in zip(places, blocks, strict=True)}


def _monai(problem: Problem, tensor: Any) -> Callable[[Any], Any] | None:
    """Stitch by MONAI's sliding-window inference, with a copy of a tile in place of the network.

    It multiplies what the network gives by the window in place, so that the copy has to be. It also takes a tile of one
    channel from the picture for each.
    """
    import torch

    geometry, tiles = problem.geometry, _tiles(problem, tensor)
    if tiles is None:
        return None
    inferers = client("monai.inferers")
    picture = tensor.new_zeros((1, 1, *geometry.size))
    window = torch.as_tensor(problem.block_weights(), device=tensor.device)
    overlap = [max(0, 1 - (axis.stride + 0.5) / axis.kernel) for axis in geometry.axes]  # it rounds the stride down

    def run(tensor: Any) -> Any:
        answers = iter(tiles.values())
        return inferers.sliding_window_inference(
            picture, geometry.block_shape, 1, lambda tile: next(answers).clone(), overlap, roi_weight_map=window
        )

    return run


def _map_tiles(problem: Problem, tensor: Any) -> Callable[[Any], Any] | None:
    """Stitch by gpufold.map_tiles, with a given tile in place of each result of a network, as MONAI does."""
    geometry, tiles = problem.geometry, _tiles(problem, tensor)
    if tiles is None:
        return None
    picture = tensor.new_zeros((1, *geometry.size))
    strides, window = along(geometry, "stride"), problem.weights() if problem.window else None

    def run(tensor: Any) -> Any:
        answers = iter(tiles.values())
        return gpufold.map_tiles(
            lambda _: next(answers), picture, geometry.block_shape, strides=strides, window=window
        )[None]

    return run


def _torchio(problem: Problem, tensor: Any) -> Callable[[Any], Any] | None:
    """Aggregate tiles of a volume as TorchIO does, with the problem's window in place of Hann's."""
    import torch

    geometry, tiles = problem.geometry, _tiles(problem, tensor)
    overlap = [axis.kernel - axis.stride for axis in geometry.axes]
    if tiles is None or any(each % 2 for each in overlap):  # TorchIO refuses odd ones
        return None
    torchio = client("torchio")
    subject = torchio.Subject(image=torchio.ScalarImage(tensor=torch.zeros(1, *geometry.size)))
    sampler = torchio.GridSampler(subject, geometry.block_shape, overlap)
    window = torch.from_numpy(problem.block_weights())
    batches = [(tiles[tuple(each[:3].tolist())], torch.from_numpy(each[None])) for each in sampler.locations]

    def run(tensor: Any) -> Any:
        aggregator = torchio.GridAggregator(sampler, overlap_mode="hann" if problem.window else "average")
        aggregator._hann_window = window
        for tile, location in batches:
            aggregator.add_batch(tile, location)
        return aggregator.get_output_tensor()[None]

    return run


def _pty_chi(problem: Problem, tensor: Any) -> Callable[[Any], Any] | None:
    """Place patches as pty-chi does, or extract them by its function that has zeros outside.

    It pads the picture for patches that reach out; that it does, the one for placing would say at every call.
    """
    import torch

    geometry = problem.geometry
    if problem.window or geometry.planes != 1:
        return None
    processing = client("ptychi.image_proc")
    logging.getLogger().setLevel(logging.ERROR)
    centres = torch.as_tensor(problem.positions() + (np.array(geometry.block_shape) - 1) / 2, device=tensor.device)

    def place(tensor: Any) -> Any:
        picture = tensor.new_zeros(geometry.size)
        return processing.place_patches_integer(picture, centres, tensor.reshape(-1, *geometry.block_shape))

    def extract(tensor: Any) -> Any:
        picture = tensor.reshape(geometry.size)
        return processing.extract_patches_fourier_shift(picture, centres, geometry.block_shape, pad=0)

    return place if problem.operation == "add_blocks" else extract


# ---- inference engines and others


def _onnxruntime(problem: Problem, data: Any, threads: int) -> Call:
    import onnxruntime
    from onnx import checker, parser

    geometry, element = problem.geometry, {"float32": "float", "float16": "float16"}[data.dtype.name]
    names = ("dilation", "stride", "pad_begin", "pad_end")
    dilations, strides, begins, ends = (list(along(geometry, name)) for name in names)
    rank, pads = len(begins), begins + ends
    size, taps = (", ".join(map(str, sizes)) for sizes in (geometry.size, geometry.block_shape))
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        fold ({element}{list(geometry.blocks_shape)} columns) => ({element}{list(problem.output_shape)} image)
        <int64[{rank}] size = {{{size}}}, int64[{rank}] taps = {{{taps}}}>
        {{
            image = Col2Im <dilations = {dilations}, pads = {pads}, strides = {strides}> (columns, size, taps)
        }}
    """)
    checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Call(lambda: session.run(None, {"columns": problem.as_columns(data)})[0])


def _openvino(problem: Problem, data: Any, threads: int) -> Call:
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
    """Run sigpy on blocks in its own layout, (..., *blocks, *block), without padding or dilation."""
    geometry = problem.geometry
    if any(axis.pad_begin or axis.pad_end or axis.dilation != 1 for axis in geometry.axes):
        return None
    import sigpy

    block, strides = geometry.block_shape, along(geometry, "stride")
    if problem.operation in TAKING:

        def as_columns(blocks: Any) -> Any:
            return replace(problem, operation="blocks_to_array").as_columns(blocks)

        run = partial(sigpy.array_to_blocks, data, block, strides)
        return Call(run, as_columns) if problem.operation == "im2col" else Call(run)
    own = data
    if problem.operation == "col2im":
        own = library_of(data).ascontiguousarray(problem.as_blocks(data))
    return Call(lambda: sigpy.blocks_to_array(own, geometry.array_shape, block, strides))


CPU, GPU, BOTH = ("cpu",), ("gpu",), ("cpu", "gpu")
SUMS, VIEWS = ("col2im", "blocks_to_array"), ("im2col", "array_to_blocks", *SPACE)
ON_GRIDS = (*SUMS, *VIEWS)
PLAIN, AVERAGE = {"fused": (False,)}, {"fused": (True,)}
SUM, TILES = {"operations": ("col2im",), **PLAIN}, {"operations": ("blocks_to_array",), **AVERAGE}
NAIVE, BATCHED = partial(_gather, "naive_gather", np.int32, 3), partial(_gather, "batched_gather", np.int64, 2)
GRADIENT, OF_FLOATS = partial(_on_tensors, gradient=True), {"dtypes": FLOATS, "zero_dilation": True}
REAL = tuple(name for name in ELEMENT_TYPES if name not in ("bfloat16", *COMPLEX))
ADDED = "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"
"""The dtypes that CuPy adds by index."""
SCATTERED = (*FLOATS, *COMPLEX, "uint8", "int32", "int64")
"""Dtypes that torch adds by index."""

PEERS: tuple[Peer, ...] = (
    Peer("torch", "torch", BOTH, partial(_on_tensors, _torch_run), ON_GRIDS, (1, 2, 3)),
    Peer("gpufold.torch", "torch", BOTH, partial(_on_tensors, _gpufold_torch_run), zero_dilation=True),
    Peer("torch, gradient", "torch", BOTH, partial(GRADIENT, _torch_run), ON_GRIDS, (1, 2, 3), FLOATS),
    Peer("gpufold.torch, gradient", "torch", BOTH, partial(GRADIENT, _gpufold_torch_run), **OF_FLOATS),
    Peer("onnxruntime", "onnxruntime", CPU, _onnxruntime, SUMS, dtypes=("float32", "float16"), **PLAIN),
    Peer("openvino", "openvino", CPU, _openvino, ("col2im", *SPACE), (2,), REAL, zero_dilation=True, **PLAIN),
    # after OpenVINO, which starts a process at its import: JAX warns of any once it is imported
    Peer("jax", "jax", CPU, _jax, SLIDING, dtypes=FLOATS + COMPLEX, **PLAIN),
    Peer("jax, at[].add", "jax", CPU, _jax_loop, **SUM),
    Peer("gpufold.jax", "jax", CPU, _gpufold_jax, zero_dilation=True),
    Peer("sigpy", "sigpy", BOTH, _sigpy, (*SUMS, *VIEWS[:2]), (1, 2, 3), (*FLOATS[2:], *COMPLEX), **PLAIN),
    Peer("unfoldNd", "unfoldNd", BOTH, partial(_on_tensors, _unfold_nd), SLIDING, (1, 3), **PLAIN),
    Peer("numpy", "numpy", CPU, _composition, (*VIEWS, "take_blocks"), **PLAIN),
    Peer("istft", "scipy", CPU, _istft, ("col2im",), (1,), FLOATS[2:], **AVERAGE),
    Peer("istft", "cupyx", GPU, _istft, ("col2im",), (1,), FLOATS[2:], **AVERAGE),
    Peer("two passes", "gpufold", BOTH, _two_passes, SUMS, **AVERAGE),
    Peer("MONAI", "monai", BOTH, partial(_on_tensors, _monai), axes=(1, 2, 3), **TILES),
    Peer("gpufold.map_tiles", "torch", BOTH, partial(_on_tensors, _map_tiles), **TILES),
    Peer("TorchIO", "torchio", CPU, partial(_on_tensors, _torchio), axes=(3,), **TILES),
    Peer("pty-chi", "ptychi", BOTH, partial(_on_tensors, _pty_chi), AT_POSITIONS, (2,)),
    Peer("loop", "numpy", CPU, _loop),
    Peer("add.at", "numpy", CPU, _add_at, ("add_blocks",)),
    Peer(
        "torch, scatter_add",
        "torch",
        CPU,
        partial(_on_tensors, _scatter_add_in_torch),
        ("add_blocks",),
        dtypes=SCATTERED,
    ),
    Peer("add.at", "cupy", GPU, _add_at, ("add_blocks",), dtypes=ADDED),
    Peer("Triton", "triton", GPU, partial(_on_tensors, _triton), axes=(1, 2), dtypes=FLOATS[:3], **SUM),
    Peer("naive gather", "cupy", GPU, NAIVE, axes=(1, 2, 3), dtypes=("float32",), **SUM),
    Peer("batched gather", "cupy", GPU, BATCHED, axes=(1, 2), dtypes=("float32",), **SUM),
    Peer("cupy", "cupy", GPU, _composition, VIEWS, **PLAIN),
    Peer("scatter_add", "cupyx", GPU, _scatter_add, dtypes=ADDED, **SUM),
)


def installed(device: str) -> list[Peer]:
    """Return the peers that are installed for a device."""
    return [peer for peer in PEERS if device in peer.devices and peer.installed]


def absent(device: str) -> list[str]:
    """Return the names of the peers that are not installed for a device."""
    return [peer.name for peer in PEERS if device in peer.devices and not peer.installed]
