"""The problems that are measured: named geometries, each with where it comes from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache, reduce
from math import gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt

import gpufold
from gpufold.calls import Call, Fusion
from gpufold.geometry import Axis, BlocksGeometry, PositionsGeometry, SlidingGeometry, SpaceGeometry
from gpufold.gpu.plan import Operand
from gpufold.gpu.registry import choose

Array = npt.NDArray[Any]

TAKING_APART = ("im2col", "space_to_batch", "array_to_blocks", "take_blocks")
AT_POSITIONS = ("add_blocks", "take_blocks")
BLOCK_OPERATIONS = ("blocks_to_array", "array_to_blocks")

TOLERANCE = 1e-5

LARGEST_VALUE = 8
"""Data are integers of this magnitude at most, so that sums are exact in every dtype, whatever their order."""


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, those of ml_dtypes included."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def itemsize_of(name: str) -> int:
    """Return the bytes of an element, which are known of bfloat16 without ml_dtypes too."""
    return 2 if name == "bfloat16" else dtype_of(name).itemsize


@dataclass(frozen=True)
class Problem:
    """One call of one operation, but for the dtype."""

    name: str
    operation: str
    geometry: SlidingGeometry | SpaceGeometry
    origin: str
    """Who has this problem."""
    dtypes: tuple[str, ...] = ("float32",)
    gpu_batch: int = 1
    """The batch on a GPU, where arrays must be larger than its caches."""
    quick: bool = True
    gpu_only: bool = False
    cpu_only: bool = False
    """Whether it is there for a layout or a size that differs from another problem's on a CPU, not on a GPU, where a
    thread does the same in both."""
    reduction: str = "sum"
    window: str = ""
    """A window by name, see `window_of`; none where it is empty."""

    @property
    def kind(self) -> str:
        """What peers are asked for: blocks at positions of their own, fused, blocks in their own layout, or plain."""
        if self.operation in AT_POSITIONS:
            return "placed" if self.operation == "add_blocks" else "taken"
        if self.reduction != "sum" or self.window:
            return "fused"
        return "blocks" if self.operation in BLOCK_OPERATIONS else "plain"

    @property
    def for_gpu(self) -> Problem:
        """The same problem with a GPU's batch."""
        return replace(self, geometry=replace(self.geometry, batch=self.gpu_batch))

    def shrunk(self, elements: int, planes: int = 1) -> Problem:
        """Return a problem with at most `elements` at its input: fewer images, channels, blocks of the first axis.

        One image, one channel and the blocks that two blocks' lengths reach are left at least; of sliding blocks, the
        number of planes is a multiple of `planes`.
        """

        def fitting(count: int, rest: int) -> int:
            return max(1, min(count, elements * count // rest))

        def multiple(count: int, step: int) -> int:
            return -(-count // step) * step

        geometry = self.geometry
        images = fitting(geometry.batch or 1, prod(self.input_shape))
        if isinstance(geometry, SpaceGeometry):
            return replace(self, geometry=replace(geometry, batch=images))
        if images > 1:
            images = multiple(images, planes // gcd(planes, geometry.channels))
            return replace(self, geometry=replace(geometry, batch=images))
        one_image = replace(self, geometry=replace(geometry, batch=1))
        channels = fitting(geometry.channels, prod(one_image.input_shape))
        if planes <= geometry.channels:
            channels = multiple(channels, planes)
        else:
            images = planes // gcd(planes, channels)
        first, *others = geometry.axes
        if images * channels <= planes and others:
            few_planes = replace(self, geometry=replace(geometry, batch=images, channels=channels))
            least = min(first.blocks, 2 * -(-first.dilated_kernel // first.stride))
            blocks = max(least, fitting(first.blocks, prod(few_planes.input_shape)))
            first = first._replace(size=first.size - (first.blocks - blocks) * first.stride)
        return replace(self, geometry=replace(geometry, batch=images, channels=channels, axes=(first, *others)))

    @property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What is apart, columns or a batch, and what is whole, an image or space."""
        if self.operation in (*BLOCK_OPERATIONS, *AT_POSITIONS):
            return self.planned_geometry.blocks_shape, self.planned_geometry.array_shape
        if isinstance(self.geometry, SlidingGeometry):
            return self.geometry.columns_shape, self.geometry.image_shape
        return self.geometry.batch_shape, self.geometry.space_shape

    @property
    def planned_geometry(self) -> Any:
        """The geometry that gpufold makes of a call."""
        geometry = self.geometry
        if self.operation in AT_POSITIONS:
            lead = (geometry.batch, geometry.channels)
            return PositionsGeometry(prod(geometry.num_blocks), lead, geometry.image_size, geometry.block_shape)
        if self.operation not in BLOCK_OPERATIONS:
            return geometry
        return BlocksGeometry((geometry.batch, geometry.channels), geometry.axes)

    @property
    def fusion(self) -> Fusion:
        """What gpufold plans besides a sum or a move."""
        window = "none" if not self.window else "separable"
        return Fusion(self.reduction, window, accumulate=self.operation == "add_blocks")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self._shapes[self.operation in TAKING_APART]

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self._shapes[self.operation not in TAKING_APART]

    def compulsory_bytes(self, dtype: str) -> int:
        """Return what has to be moved at least, as plans have it: mostly each input and output byte once."""
        operands = Operand.contiguous(self.input_shape), Operand.contiguous(self.output_shape)
        return choose(Call(self.operation, self.planned_geometry, dtype, self.fusion), *operands).bytes_moved

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything after the data, by the names of gpufold's functions."""
        geometry = self.geometry
        if isinstance(geometry, SpaceGeometry):
            margin = "crops" if self.operation == "batch_to_space" else "pads"
            return {
                "block_shape": (1, *geometry.block),
                f"{margin}_begin": (0, *geometry.margin_begin),
                f"{margin}_end": (0, *geometry.margin_end),
            }
        axes = geometry.axes
        if self.operation == "take_blocks":
            return {"block_shape": geometry.block_shape}
        if self.operation in BLOCK_OPERATIONS:
            strides = tuple(axis.stride for axis in axes)
            arguments = {"block_shape": geometry.block_shape, "strides": strides}
            return arguments if self.operation in TAKING_APART else {"output_shape": self.output_shape, **arguments}
        arguments = {
            "kernel_size": geometry.block_shape,
            "strides": tuple(axis.stride for axis in axes),
            "dilations": tuple(axis.dilation for axis in axes),
            "pads_begin": tuple(axis.pad_begin for axis in axes),
            "pads_end": tuple(axis.pad_end for axis in axes),
        }
        return {"output_size": geometry.image_size, **arguments} if self.operation == "col2im" else arguments

    def positions(self) -> Array:
        """Tell where blocks with positions lie: on a grid, each moved by up to a quarter of a stride, as probes are."""
        rng, geometry = np.random.default_rng(len(self.name)), self.geometry
        grid = np.indices(geometry.num_blocks).reshape(len(geometry.axes), -1).T
        strides = np.array([axis.stride for axis in geometry.axes])
        moved = grid * strides + rng.integers(-(strides // 4), strides // 4, grid.shape, endpoint=True)
        return np.ascontiguousarray(moved)  # as kernels take them

    def __call__(self, data: Any, **options: Any) -> Any:
        """Run gpufold."""
        if self.operation == "add_blocks":
            library = sys.modules[type(data).__module__.split(".")[0]]
            out = library.zeros(self.output_shape, data.dtype)
            positions = _positions_on_device(self, library.__name__)
            return gpufold.add_blocks(out, data, positions, **self.fused(data), **options)
        if self.operation == "take_blocks":
            positions = _positions_on_device(self, type(data).__module__.split(".")[0])
            return gpufold.take_blocks(data, positions, **self.arguments, **self.fused(data), **options)
        return getattr(gpufold, self.operation)(data, **self.arguments, **self.fused(data), **options)

    def fused(self, data: Any) -> dict[str, Any]:
        """Return the arguments for what is fused, a window on the data's device among them."""
        options: dict[str, Any] = {} if self.reduction == "sum" else {"reduction": self.reduction}
        if self.window:
            options["window"] = _window_on_device(self, type(data).__module__.split(".")[0])
        return options

    def weights(self) -> tuple[Array, ...]:
        """Return the window's weights along each axis, float32."""
        return tuple(window_of(self.window, axis.kernel) for axis in self.geometry.axes)

    @property
    def tolerance(self) -> float:
        """How far a result may be from the definition's, of its largest element; sums of integers are exact."""
        return TOLERANCE if self.kind == "fused" or self.window else 0.0

    def data(self, dtype: str, seed: int = 0) -> Array:
        """Make an input of small random integers."""
        rng, wanted = np.random.default_rng(seed), dtype_of(dtype)
        least = {"b": 0, "u": 0}.get(wanted.kind, -LARGEST_VALUE)
        largest = 1 if wanted.kind == "b" else LARGEST_VALUE
        data = rng.integers(least, largest, self.input_shape, np.int8, endpoint=True).astype(wanted)
        if wanted.kind == "c":
            data.imag = rng.integers(least, largest, self.input_shape, np.int8, endpoint=True)
        return data

    def expected(self, data: Array) -> Array:
        """Work the result out from the definition, by indices and without gpufold."""
        if isinstance(self.geometry, SpaceGeometry):
            return _moved_by_definition(self.operation, self.geometry, data)
        if self.kind == "placed":
            return _placed_by_definition(self, data)
        if self.kind == "taken":
            return _taken_by_definition(self, data)
        if self.kind == "fused":
            return _averaged_by_definition(self, self.as_columns(data))
        if self.operation == "array_to_blocks":
            return self.as_blocks(_slid_by_definition("im2col", self.geometry, data))
        operation = "im2col" if self.operation == "im2col" else "col2im"
        return _slid_by_definition(operation, self.geometry, self.as_columns(data))

    def as_columns(self, data: Any) -> Any:
        """Return blocks in a layout of their own as columns; columns as they are."""
        if self.operation != "blocks_to_array":
            return data
        rank = len(self.geometry.axes)
        order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
        transposed = data.permute(order) if hasattr(data, "permute") else data.transpose(order)
        return transposed.reshape(self.geometry.columns_shape)

    def as_blocks(self, columns: Any) -> Any:
        """Return columns as blocks in a layout of their own."""
        rank = len(self.geometry.axes)
        order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
        split = columns.reshape(self.geometry.split_columns_shape)
        return split.permute(order) if hasattr(split, "permute") else split.transpose(order)


def pixels(geometry: SlidingGeometry) -> Array:
    """Return the flat pixel of every (tap, block); one past the image where it falls outside."""
    rank = len(geometry.axes)
    flat: Any = 0
    inside: Any = True
    for number, axis in enumerate(geometry.axes):
        padded = axis.size + axis.pad_begin + axis.pad_end
        blocks = (padded - axis.dilation * (axis.kernel - 1) - 1) // axis.stride + 1
        tap, block = np.ogrid[: axis.kernel, :blocks]
        pixel = tap * axis.dilation + block * axis.stride - axis.pad_begin
        shape = [1] * (2 * rank)
        shape[number], shape[rank + number] = pixel.shape
        pixel = pixel.reshape(shape)
        flat = flat * axis.size + pixel
        inside = inside & (pixel >= 0) & (pixel < axis.size)
    return np.where(inside, flat, prod(geometry.image_size)).reshape(prod(geometry.block_shape), -1)


def _slid_by_definition(operation: str, geometry: SlidingGeometry, data: Array) -> Array:
    pixel, size = pixels(geometry), prod(geometry.image_size)
    if operation == "im2col":
        planes = data.reshape(geometry.planes, size)
        blocks = [np.append(plane, np.zeros(1, data.dtype))[pixel] for plane in planes]
        return np.concatenate(blocks).reshape(geometry.columns_shape)
    image = np.empty((geometry.planes, size), data.dtype)
    for plane, result in zip(data.reshape(geometry.planes, -1), image, strict=True):
        result[...] = _summed(pixel.ravel(), plane, size, data.dtype)
    return image.reshape(geometry.image_shape)


def _averaged_by_definition(problem: Problem, columns: Array) -> Array:
    """Weigh, add and divide in double precision."""
    geometry = problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    pixel, size = pixels(geometry), prod(geometry.image_size)
    weights = np.ones(1)
    for weights_of_axis in problem.weights():
        weights = np.multiply.outer(weights, weights_of_axis.astype(np.float64))
    weight = np.broadcast_to(weights.reshape(-1, 1), pixel.shape)

    def sums(terms: Array) -> Array:
        return np.bincount(pixel.ravel(), terms.ravel(), size + 1)[:size]

    divisor = sums(weight**2 if problem.reduction == "least_squares" else weight)
    divisor[divisor == 0] = np.inf
    image = np.empty((geometry.planes, size))
    for plane, result in zip(columns.reshape(geometry.planes, *pixel.shape), image, strict=True):
        result[...] = sums(plane * weight) / (1 if problem.reduction == "sum" else divisor)
    return image.reshape(geometry.image_shape).astype(columns.dtype)


def _placed_by_definition(problem: Problem, blocks: Array) -> Array:
    """Weigh and add in double precision, by the flat pixel of every element."""
    geometry = problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    flat: Any = 0
    inside: Any = True
    weight: Any = np.ones(1)
    for number, (axis, weights) in enumerate(zip(geometry.axes, problem.weights(), strict=True)):
        along = [1] * (1 + len(geometry.axes))
        along[0], along[1 + number] = -1, axis.kernel
        pixel = (problem.positions()[:, number, None] + np.arange(axis.kernel)).reshape(along)
        flat, inside = flat * axis.size + pixel, inside & (pixel >= 0) & (pixel < axis.size)
        weight = np.multiply.outer(weight, weights.astype(np.float64))
    size = prod(geometry.image_size)
    flat = np.where(inside, flat, size).ravel()
    image = np.empty((geometry.planes, size), blocks.dtype)
    planes = blocks.reshape(len(blocks), geometry.planes, *geometry.block_shape)
    for plane, result in enumerate(image):
        terms = (planes[:, plane] * weight).ravel()
        result[...] = _summed(flat, terms, size, blocks.dtype)
    return image.reshape(problem.output_shape)


def _taken_by_definition(problem: Problem, image: Array) -> Array:
    """Take elements by the pixel of each, zeros outside, and weigh them in double precision."""
    geometry = problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    blocks = np.empty(problem.output_shape, image.dtype)
    weight = reduce(np.multiply.outer, [weights.astype(np.float64) for weights in problem.weights()])
    for position, block in zip(problem.positions(), blocks, strict=True):
        axes = [(p + np.arange(axis.kernel), axis) for p, axis in zip(position, geometry.axes, strict=True)]
        inside = reduce(np.logical_and.outer, [(pixel >= 0) & (pixel < axis.size) for pixel, axis in axes])
        taken = image[(..., *np.ix_(*(pixel.clip(0, axis.size - 1) for pixel, axis in axes)))]
        block[...] = np.where(inside, taken * weight, 0)
    return blocks


def _summed(pixel: Array, terms: Array, size: int, dtype: np.dtype[Any]) -> Array:
    """Add terms by the flat pixel of each in double precision; integers wrap, what lies past the image is dropped."""
    parts = [terms.real, terms.imag] if terms.dtype.kind == "c" else [terms]
    sums = [np.bincount(pixel, part.astype(np.float64), size + 1)[:size] for part in parts]
    total: Array = sums[0] + 1j * sums[1] if len(sums) == 2 else sums[0]
    return total.astype(np.int64).astype(dtype) if dtype.kind in "iu" else total


@cache
def _positions_on_device(problem: Problem, library: str) -> Any:
    return sys.modules[library].asarray(problem.positions())


def window_of(name: str, taps: int) -> Array:
    """Return a window of float32: ones, Hann's for spectra, a Gaussian as of MONAI and nnU-Net, or a ramp.

    A ramp rises and falls over a quarter of the taps, as decoders of latents blend tiles that overlap by so much.
    """
    sample = np.arange(taps)
    windows = {
        "": np.ones(taps),
        "hann": 0.5 - 0.5 * np.cos(2 * np.pi * sample / taps),
        "ramp": (np.minimum(sample + 1, taps - sample) / max(1, taps // 4)).clip(max=1),
        "gaussian": np.exp(-0.5 * ((sample - (taps - 1) / 2) / (taps / 8)) ** 2),
    }
    return windows[name].astype(np.float32)


@cache
def _window_on_device(problem: Problem, library: str) -> Any:
    """Return the window as an argument, in the library of the data: brought to the device once, as a user does."""
    weights = tuple(sys.modules[library].asarray(weights) for weights in problem.weights())
    return weights[0] if len(weights) == 1 else weights


def forget_device_arrays() -> None:
    """Drop the windows and positions that earlier problems have brought to a device."""
    _positions_on_device.cache_clear()
    _window_on_device.cache_clear()


def _moved_by_definition(operation: str, geometry: SpaceGeometry, data: Array) -> Array:
    image, *pixels_of_axes = np.indices(geometry.space_shape, sparse=True)
    axes = zip(pixels_of_axes, geometry.margin_begin, geometry.block, strict=True)
    offset: Any = 0
    cells = []
    for pixel, margin, block in axes:
        offset = offset * block + (pixel + margin) % block
        cells.append((pixel + margin) // block)
    index = (offset * geometry.batch + image, *cells)
    if operation == "batch_to_space":
        return np.asarray(data[index])
    batch: Array = np.zeros(geometry.batch_shape, data.dtype)
    batch[index] = data
    return batch


def _per_axis(value: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else value


def sliding(
    name: str,
    origin: str,
    image_shape: tuple[int, ...],
    kernel: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    pad: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    operations: tuple[str, ...] = ("col2im",),
    **others: Any,
) -> list[Problem]:
    """Make the problems of sliding blocks on an image (N, C, *size)."""
    batch, channels, *size = image_shape
    per_axis = [_per_axis(value, len(size)) for value in (kernel, stride, dilation, pad, pad)]
    geometry = SlidingGeometry(batch, channels, tuple(map(Axis, size, *per_axis)))
    return [Problem(f"{operation}-{name}", operation, geometry, origin, **others) for operation in operations]


def space(
    name: str,
    origin: str,
    space_shape: tuple[int, ...],
    block: tuple[int, ...],
    margin: int | tuple[int, ...] = 0,
    **others: Any,
) -> list[Problem]:
    """Make the problems of both directions between a batch and space (B, *E), the same margin at begin and end."""
    batch, *size = space_shape
    margins = tuple(m if b > 1 else 0 for m, b in zip(_per_axis(margin, len(size)), block, strict=True))
    grid = tuple((extent + 2 * m) // b for extent, m, b in zip(size, margins, block, strict=True))
    geometry = SpaceGeometry(batch, block, margins, margins, grid)
    return [
        Problem(f"{operation}-{name}", operation, geometry, origin, **others)
        for operation in ("batch_to_space", "space_to_batch")
    ]


BOTH = ("col2im", "im2col")

PROBLEMS: tuple[Problem, ...] = (
    *sliding(
        "resnet-3x3-s1",
        "3x3 convolutions of ResNet's first stage, gradient of the input",
        (8, 64, 56, 56),
        kernel=3,
        pad=1,
        operations=BOTH,
        dtypes=("float32", "float16", "bfloat16", "int8", "uint8"),
        gpu_batch=64,
    ),
    *sliding(
        "resnet-3x3-s2",
        "downsampling convolutions of ResNet, gradient of the input",
        (8, 64, 112, 112),
        kernel=3,
        stride=2,
        pad=1,
        dtypes=("float32", "float16"),
        gpu_batch=64,
    ),
    *sliding("maps-14x14", "deep layers: small maps, many channels", (16, 256, 14, 14), kernel=3, pad=1, gpu_batch=256),
    *sliding("maps-7x7", "deepest layers: maps of 7x7, 512 channels", (16, 512, 7, 7), kernel=3, pad=1, gpu_batch=512),
    *sliding(
        "dcgan-4x4-s2",
        "transposed convolutions of DCGAN in PyTorch's examples and of U-Net decoders",
        (8, 64, 64, 64),
        kernel=4,
        stride=2,
        pad=1,
        gpu_batch=64,
    ),
    *sliding(
        "dcgan-5x5-s2",
        "transposed convolutions of the DCGAN paper",
        (8, 32, 64, 64),
        kernel=5,
        stride=2,
        pad=2,
        gpu_batch=128,
    ),
    *sliding(
        "unet-2x2-s2", "up-convolutions of U-Net: a permutation", (4, 64, 128, 128), kernel=2, stride=2, gpu_batch=32
    ),
    *sliding(
        "vit-16x16-s16",
        "Vision Transformer patches, back to the picture",
        (1, 3, 1024, 1024),
        kernel=16,
        stride=16,
        operations=BOTH,
        dtypes=("float32", "float16"),
        gpu_batch=32,
    ),
    *sliding("vit-14x14-s14", "DINOv2's patches", (4, 3, 518, 518), kernel=14, stride=14, gpu_batch=128),
    *sliding(
        "tiles-16x16-s8",
        "half-overlapping tiles of a restored picture",
        (1, 3, 1024, 1024),
        kernel=16,
        stride=8,
        operations=BOTH,
        gpu_batch=16,
    ),
    *sliding(
        "tiles-256x256-s192",
        "tiles of a large picture that a network saw one by one, a quarter of them overlapping",
        (1, 1, 1984, 1984),
        kernel=256,
        stride=192,
        gpu_batch=24,
    ),
    *sliding(
        "patches-8x8-s1",
        "patch-based restoration: every 8x8 patch",
        (1, 1, 512, 512),
        kernel=8,
        operations=BOTH,
        dtypes=("float32", "float64", "bool"),
        gpu_batch=16,
    ),
    *sliding("atrous-3x3-d2", "dilated 3x3 of DeepLab, rate 2", (2, 128, 65, 65), 3, pad=2, dilation=2, gpu_batch=32),
    *sliding("atrous-3x3-d6", "DeepLab's ASPP, rate 6", (8, 128, 33, 33), 3, pad=6, dilation=6, gpu_batch=128),
    *sliding("atrous-5x5-d2", "dilated 5x5", (4, 32, 128, 128), kernel=5, pad=2, dilation=2, gpu_batch=32),
    *sliding(
        "audio-400-s160",
        "speech: frames of 25 ms every 10 ms at 16 kHz, overlap-add",
        (1, 1, 128_000),
        kernel=400,
        stride=160,
        operations=BOTH,
        gpu_batch=256,
    ),
    *sliding(
        "audio-2048-s512",
        "music: frames of 2048 every 512 samples at 44.1 kHz, a batch of 10 s",
        (8, 1, 442_368),
        kernel=2048,
        stride=512,
        gpu_batch=64,
    ),
    *sliding(
        "volume-3x3x3",
        "3-D convolutions of volumes",
        (2, 16, 32, 64, 64),
        kernel=3,
        pad=1,
        gpu_batch=16,
    ),
    *sliding(
        "volume-3x3x3",
        "3-D convolutions of volumes",
        (1, 8, 32, 64, 64),
        kernel=3,
        pad=1,
        operations=("im2col",),
        gpu_batch=32,
    ),
    *sliding(
        "microscopy-32x32x32-s16",
        "half-overlapping patches of a light-sheet stack",
        (1, 1, 64, 96, 96),
        kernel=32,
        stride=16,
        gpu_batch=64,
    ),
    *sliding(
        "mri-8x8-s4",
        "locally low-rank MRI: half-overlapping blocks of complex images",
        (16, 1, 256, 256),
        kernel=8,
        stride=4,
        dtypes=("complex64",),
        gpu_batch=256,
    ),
    *sliding("tiny-2x2", "what a call costs at least", (1, 3, 16, 16), kernel=2, operations=BOTH),
    *sliding("least-3x3", "the same in a hundred bytes", (1, 1, 5, 5), kernel=3, cpu_only=True),
    *sliding(
        "enormous-3x3",
        "columns of more than 2^31 elements",
        (1024, 64, 64, 64),
        kernel=3,
        pad=1,
        gpu_batch=1024,
        quick=False,
        gpu_only=True,
    ),
    *sliding(
        "blocks-8x8-s1",
        "patch-based restoration on every 8x8 patch, in sigpy's layout",
        (1, 1, 512, 512),
        kernel=8,
        operations=BLOCK_OPERATIONS,
        gpu_batch=16,
    ),
    *sliding(
        "blocks-7x7-s1",
        "non-local means: every 7x7 patch of 8-bit pictures",
        (1, 3, 512, 512),
        kernel=7,
        operations=("array_to_blocks",),
        dtypes=("uint8", "float16", "float32"),
        gpu_batch=16,
        quick=False,
    ),
    *sliding(
        "blocks-16x16-s8",
        "half-overlapping tiles, one after another as a network gives them",
        (1, 3, 1024, 1024),
        kernel=16,
        stride=8,
        operations=BLOCK_OPERATIONS,
        gpu_batch=16,
    ),
    *sliding(
        "frames-1024-s256",
        "a minute of music in frames, one after another, as a network or a transform gives them",
        (1, 1, 2_646_016),
        kernel=1024,
        stride=256,
        operations=BLOCK_OPERATIONS,
        dtypes=("float32", "float64", "complex64"),
        gpu_batch=8,
    ),
    *sliding(
        "frames-2048-s512",
        "the same in longer frames",
        (1, 1, 2_646_016),
        kernel=2048,
        stride=512,
        operations=BLOCK_OPERATIONS,
        cpu_only=True,
    ),
    *sliding(
        "frames-400-s160",
        "a minute of speech at 16 kHz in frames, one after another",
        (1, 1, 960_080),
        kernel=400,
        stride=160,
        operations=BLOCK_OPERATIONS,
        gpu_batch=32,
    ),
    *sliding(
        "frames-istft-1024-s256",
        "the inverse of a spectrogram of a minute of music, from frames one after another",
        (1, 1, 2_646_016),
        kernel=1024,
        stride=256,
        operations=("blocks_to_array",),
        reduction="least_squares",
        window="hann",
        gpu_batch=8,
    ),
    *sliding(
        "blocks-64x64-s32",
        "half-overlapping tiles of a picture, one after another as a network gives them",
        (1, 3, 1024, 1024),
        kernel=64,
        stride=32,
        operations=BLOCK_OPERATIONS,
        cpu_only=True,
    ),
    *sliding(
        "blocks-256x256-s192",
        "tiles of a large picture, a quarter of them overlapping, one after another",
        (1, 1, 1984, 1984),
        kernel=256,
        stride=192,
        operations=("blocks_to_array",),
        gpu_batch=24,
    ),
    *sliding(
        "blocks-mean-8x8-s1",
        "patch-based restoration: the mean of the patches that hold a pixel, one patch after another",
        (1, 1, 512, 512),
        kernel=8,
        operations=("blocks_to_array",),
        reduction="mean",
        gpu_batch=16,
    ),
    *sliding(
        "stitch-32x32x32-s16",
        "small patches of a volume in two classes, half overlap",
        (1, 2, 160, 160, 160),
        kernel=32,
        stride=16,
        operations=("blocks_to_array",),
        reduction="mean",
        window="gaussian",
        gpu_batch=4,
    ),
    *sliding(
        "volo-3x3-s2", "VOLO's outlook attention: its fold", (8, 192, 28, 28), kernel=3, stride=2, pad=1, gpu_batch=256
    ),
    *sliding("halo-14x14-s8", "HaloNet's blocks with their halo", (4, 64, 62, 62), kernel=14, stride=8, gpu_batch=128),
    *sliding(
        "atrous-3x3-d2-s2",
        "dilated blocks two pixels apart",
        (8, 32, 65, 65),
        kernel=3,
        stride=2,
        pad=2,
        dilation=2,
        gpu_batch=256,
    ),
    *sliding(
        "mean-8x8-s1",
        "patch-based restoration: the mean of the patches that hold a pixel",
        (3, 1, 512, 512),
        kernel=8,
        reduction="mean",
        gpu_batch=16,
    ),
    *sliding(
        "istft-256-s64",
        "the inverse of scipy.signal.stft as it is called without arguments but the overlap of 3/4",
        (8, 1, 128_000),
        kernel=256,
        stride=64,
        pad=128,
        reduction="least_squares",
        window="hann",
        gpu_batch=256,
    ),
    *sliding(
        "istft-400-s160",
        "the inverse of speech recognition's spectrograms at 16 kHz",
        (8, 1, 128_000),
        kernel=400,
        stride=160,
        pad=200,
        reduction="least_squares",
        window="hann",
        gpu_batch=256,
    ),
    *sliding(
        "istft-2048-s512",
        "the inverse of music's spectrograms at 44.1 kHz, a batch of 10 s",
        (8, 1, 442_368),
        kernel=2048,
        stride=512,
        pad=1024,
        reduction="least_squares",
        window="hann",
        gpu_batch=64,
    ),
    *sliding(
        "stitch-512x512-s256",
        "sliding-window inference as MONAI and nnU-Net weigh it, 2 classes, half overlap",
        (1, 2, 2048, 2048),
        kernel=512,
        stride=256,
        operations=("blocks_to_array",),
        reduction="mean",
        window="gaussian",
        gpu_batch=4,
    ),
    *sliding(
        "stitch-96x96x96-s48",
        "MONAI's region of interest in a volume, half overlap",
        (1, 1, 192, 192, 192),
        kernel=96,
        stride=48,
        operations=("blocks_to_array",),
        reduction="mean",
        window="gaussian",
        gpu_batch=4,
    ),
    *sliding(
        "probes-256x256",
        "ptychography: exit waves added into the object at the probe's positions",
        (1, 1, 1024, 1024),
        kernel=256,
        stride=32,
        operations=AT_POSITIONS,
        dtypes=("complex64",),
    ),
    *sliding(
        "tiles-512x512",
        "nnU-Net's tiles with a Gaussian window, which end with the picture instead of lying on a grid",
        (1, 4, 2048, 2048),
        kernel=512,
        stride=256,
        operations=AT_POSITIONS,
        window="gaussian",
    ),
    *sliding(
        "decoded-512x512",
        "tiles that a decoder of images made of a latent, merged with a ramp over their overlap of a quarter",
        (1, 3, 2048, 2048),
        kernel=512,
        stride=384,
        operations=("add_blocks",),
        window="ramp",
        gpu_batch=4,
    ),
    *sliding(
        "particles-7x7",
        "single-molecule images drawn spot by spot",
        (1, 1, 2048, 2048),
        kernel=7,
        stride=16,
        operations=AT_POSITIONS,
        dtypes=("float32", "int32"),
        gpu_batch=16,
    ),
    *sliding(
        "spots-15x15",
        "fluorescent spots in eight channels of a microscope, each in a box of its own",
        (1, 8, 512, 512),
        kernel=15,
        stride=11,
        operations=AT_POSITIONS,
        gpu_batch=16,
    ),
    *sliding(
        "detections-5x5",
        "features around detections, in many channels",
        (1, 64, 256, 256),
        kernel=5,
        stride=6,
        operations=AT_POSITIONS,
        gpu_batch=16,
    ),
    *sliding(
        "events-400",
        "frames of sound around events that lie on no grid",
        (1, 1, 960_400),
        kernel=400,
        stride=160,
        operations=AT_POSITIONS,
        gpu_batch=32,
    ),
    *sliding(
        "charges-3x3",
        "a million charges spread onto a mesh, as particle-mesh methods do",
        (1, 1, 4096, 4096),
        kernel=3,
        stride=4,
        operations=("add_blocks",),
        quick=False,
    ),
    *space(
        "nchw-2x2",
        "atrous convolution as in DeepLab, channels first",
        (8, 64, 112, 112),
        (1, 2, 2),
        dtypes=("float32", "float16", "uint8", "bool"),
        gpu_batch=64,
    ),
    *space("nchw-4x4", "atrous convolution, rate 4", (4, 64, 112, 112), (1, 4, 4), gpu_batch=64),
    *space("nhwc-2x2", "the same, channels last", (8, 112, 112, 64), (2, 2, 1), gpu_batch=64),
    *space(
        "nchw-cropped", "atrous convolution with SAME padding", (8, 64, 110, 110), (1, 2, 2), margin=1, gpu_batch=64
    ),
    *space(
        "nchw-6x6",
        "atrous convolution, rate 6 as in DeepLab's pyramid",
        (4, 64, 96, 96),
        (1, 6, 6),
        dtypes=("float32", "uint8"),
        quick=False,
        gpu_batch=64,
    ),
    *space("volume-2x2x2", "atrous 3-D convolution", (1, 32, 32, 64, 64), (1, 2, 2, 2), gpu_batch=32),
)


def select(names: list[str], quick: bool, gpu: bool) -> list[Problem]:
    """Return the problems whose name contains one of `names`, or all; on a GPU with its batches."""
    chosen = [
        problem
        for problem in PROBLEMS
        if not (problem.cpu_only if gpu else problem.gpu_only)
        and (any(name in problem.name for name in names) if names else problem.quick or not quick)
    ]
    if not chosen:
        named = f"no problem for a {'GPU' if gpu else 'CPU'} is named {' or '.join(names)}"
        raise ValueError(f"{named}; `python -m bench problems` lists them")
    return [problem.for_gpu for problem in chosen] if gpu else chosen
