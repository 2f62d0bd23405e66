"""The measured problems of problems.toml: named geometries, each with its source."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gpufold
from gpufold.calls import TAKING, Call, FusedOps
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import Axis, BlocksGeometry, PositionsGeometry, SlidingGeometry, SpaceGeometry
from gpufold.gpu.plan import H200, Device, Operand, Plan
from gpufold.gpu.registry import choose

Array = npt.NDArray[Any]

AT_POSITIONS = ("add_blocks", "take_blocks")
BLOCK_OPERATIONS = ("blocks_to_array", "array_to_blocks")

TOLERANCE = 1e-5

LARGEST_VALUE = 8
"""Largest magnitude of the data, which are integers: sums are then exact in every dtype and order."""


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, including those of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def itemsize_of(name: str) -> int:
    """Return the bytes of an element, of bfloat16 also without ml_dtypes."""
    return ELEMENT_TYPES[name].itemsize


def library_of(array: Any) -> Any:
    """Return the library of an array."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def transposed(array: Any, order: Sequence[int]) -> Any:
    """Return a view of an array, or of a tensor, with its axes in another order."""
    return array.permute(order) if hasattr(array, "permute") else array.transpose(order)


@dataclass(frozen=True)
class Problem:
    """A call of an operation, without the dtype."""

    name: str
    operation: str
    geometry: SlidingGeometry | SpaceGeometry
    origin: str
    """Where the problem occurs."""
    dtypes: tuple[str, ...] = ("float32",)
    gpu_batch: int = 1
    """The batch on a GPU, for arrays larger than its caches."""
    quick: bool = True
    gpu_only: bool = False
    cpu_only: bool = False
    """Whether it differs from another problem only on a CPU, by a layout or a size; on a GPU, threads do the same in
    both."""
    channels_last: bool = False
    """Whether the second axis of the input is last in memory."""
    reduction: str = "sum"
    window: str = ""
    """The name of a window, see `window_of`; empty for none."""

    @property
    def fused(self) -> bool:
        """Whether sliding blocks are averaged or weighted."""
        return self.operation not in AT_POSITIONS and (self.reduction != "sum" or bool(self.window))

    @property
    def for_gpu(self) -> Problem:
        """The same problem with a GPU's batch."""
        return replace(self, geometry=of_batch(self.geometry, self.gpu_batch))

    def shrunk(self, elements: int) -> Problem:
        """Return a problem with at most `elements` at its input: of fewer images, or planes of sliding blocks.

        Where there are no more, and several axes, the first axis is as short as the blocks that two blocks' lengths
        reach at least.
        """
        geometry, share = self.geometry, Fraction(elements, prod(self.input_shape))
        if isinstance(geometry, SpaceGeometry):
            return replace(self, geometry=of_batch(geometry, max(1, int(geometry.batch * min(1, share)))))
        count = max(1, int(geometry.planes * min(1, share)))
        images, channels = max(1, count // geometry.channels), min(count, geometry.channels)
        first, *others = geometry.axes
        if count == 1 and others:
            least = min(first.blocks, 2 * -(-first.dilated_kernel // first.stride))
            blocks = max(least, int(first.blocks * min(1, share * geometry.planes)))
            first = first._replace(size=first.size - (first.blocks - blocks) * first.stride)
        return replace(self, geometry=replace(geometry, lead=(images, channels), axes=(first, *others)))

    def call(self, dtype: str, variant: str = "auto") -> Call:
        """Describe gpufold's call."""
        geometry: Any = self.geometry
        if self.operation in AT_POSITIONS:
            geometry = PositionsGeometry(prod(geometry.num_blocks), geometry.lead, geometry.size, geometry.block_shape)
        elif self.operation in BLOCK_OPERATIONS:
            geometry = BlocksGeometry(geometry.lead, geometry.axes)
        window = "none" if not self.window else "separable"
        fusion = FusedOps(self.reduction, window, accumulate=self.operation == "add_blocks")
        return Call(self.operation, geometry, dtype, fusion, variant)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.call(self.dtypes[0]).data_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.call(self.dtypes[0]).result_shape

    def compulsory_bytes(self, dtype: str) -> int:
        """Return the minimum memory traffic, as plans count it: mostly each input and output byte once."""
        return plan_of(self, "auto", dtype).bytes_moved

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments after the data, by gpufold's names."""
        geometry = self.geometry
        if isinstance(geometry, SpaceGeometry):
            margin = "crops" if self.operation == "batch_to_space" else "pads"
            begins, ends = zip(*pads_of(geometry), strict=True)
            block_shape = (1, *geometry.block_shape)
            return {"block_shape": block_shape, f"{margin}_begin": (0, *begins), f"{margin}_end": (0, *ends)}
        if self.operation in AT_POSITIONS:
            return {"block_shape": geometry.block_shape} if self.operation == "take_blocks" else {}
        if self.operation in BLOCK_OPERATIONS:
            arguments = {"block_shape": geometry.block_shape, "strides": along(geometry, "stride")}
            return arguments if self.operation in TAKING else {"output_shape": self.output_shape, **arguments}
        names = {"kernel_size": "kernel", "strides": "stride", "dilations": "dilation"}
        names |= {"pads_begin": "pad_begin", "pads_end": "pad_end"}
        arguments = {argument: along(geometry, name) for argument, name in names.items()}
        return {"output_size": geometry.size, **arguments} if self.operation == "col2im" else arguments

    def positions(self) -> Array:
        """Return the first pixel of every block: on a grid, with random displacements for blocks at positions.

        By up to a quarter of a stride, as probes are.
        """
        geometry = self.geometry
        strides, pads = np.array([along(geometry, "stride"), along(geometry, "pad_begin")])
        grid = np.indices(geometry.num_blocks).reshape(len(strides), -1).T * strides - pads
        if self.operation in AT_POSITIONS:
            rng = np.random.default_rng(len(self.name))
            grid += rng.integers(-(strides // 4), strides // 4, grid.shape, endpoint=True)
        return np.ascontiguousarray(grid)  # as kernels read them

    def __call__(self, data: Any, **options: Any) -> Any:
        """Run gpufold."""
        return self.prepared(data, **options)()

    def prepared(self, data: Any, **options: Any) -> Callable[[], Any]:
        """Return a call of gpufold with prepared arguments."""
        library = library_of(data)
        function = gpufold.add_blocks_ if self.operation == "add_blocks" else getattr(gpufold, self.operation)
        zeros = partial(library.zeros, dtype=data.dtype)
        return partial(self.bound(function, zeros, self.given(library.asarray), **options), data)

    def bound(self, function: Any, zeros: Any, given: Any, **options: Any) -> Callable[[Any], Any]:
        """Return a call of gpufold as a function of any library's data; `zeros` makes the array to add blocks to."""
        positions, fused = given
        options = self.arguments | fused | options
        if self.operation == "add_blocks":
            return lambda data: function(zeros(self.output_shape), data, *positions, **options)
        return lambda data: function(data, *positions, **options)

    def given(self, to: Callable[[Array], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positions and fused arguments; `to` converts their arrays to another library.

        An average is zero where no block covers an element.
        """
        positions = [to(self.positions())] if self.operation in AT_POSITIONS else []
        fused: dict[str, Any] = {} if self.reduction == "sum" else {"reduction": self.reduction, "fill_value": 0}
        if self.window:
            weights = tuple(map(to, self.weights()))
            fused["window"] = weights[0] if len(weights) == 1 else weights
        return positions, fused

    def weights(self) -> tuple[Array, ...]:
        """Return the window's weights along each axis, float32; ones without a window."""
        return tuple(window_of(self.window, axis.kernel) for axis in self.geometry.axes)

    def block_weights(self, dtype: str = "float32") -> Array:
        """Return the weights of a block's elements: the products of those along its axes."""
        return reduce(np.multiply.outer, [weights.astype(dtype) for weights in self.weights()])

    @property
    def tolerance(self) -> float:
        """Allowed difference from the definition, as a fraction of the largest element; sums of integers are exact."""
        return TOLERANCE if self.reduction != "sum" or self.window else 0.0

    def data(self, dtype: str, seed: int = 0, library: Any = np) -> Any:
        """Make an input of small random integers, as an array of NumPy or CuPy."""
        rng, wanted = library.random.default_rng(seed), dtype_of(dtype)
        least = {"b": 0, "u": 0}.get(wanted.kind, -LARGEST_VALUE)
        largest = 1 if wanted.kind == "b" else LARGEST_VALUE
        data = rng.integers(least, largest, self.input_shape, np.int8, endpoint=True).astype(wanted)
        if wanted.kind == "c":
            data.imag = rng.integers(least, largest, self.input_shape, np.int8, endpoint=True)
        return library.moveaxis(library.moveaxis(data, 1, -1).copy(), -1, 1) if self.channels_last else data

    def expected(self, data: Any) -> Any:
        """Compute the result without gpufold: on the data's device, in double precision, by each element's pixel."""
        geometry, library = self.geometry, library_of(data)
        if isinstance(geometry, SpaceGeometry):
            return permuted(self, data)
        planes, size = geometry.planes, prod(geometry.size)
        pixel = pixels(geometry, library.asarray(self.positions()), library)
        weight = library.broadcast_to(library.asarray(self.block_weights("float64").ravel()), pixel.shape)
        order = 0, 1, 2  # of planes, blocks and taps in memory
        if self.operation in ("col2im", "im2col"):
            order = 0, 2, 1
        elif self.operation in AT_POSITIONS:
            order = 1, 0, 2
        if self.operation in TAKING:
            padded = library.zeros((planes, size + 1), data.dtype)
            padded[:, :-1] = data.reshape(planes, size)
            taken = padded[..., pixel]
            taken = (taken * weight).astype(data.dtype) if self.window else taken
            return transposed(taken, order).reshape(self.output_shape)
        shape = [(planes, *pixel.shape)[axis] for axis in order]
        terms = transposed(data.reshape(shape), order).reshape(planes, -1)
        result = _summed(pixel, terms, size, weight)
        if self.reduction != "sum":
            powers = weight if self.reduction == "least_squares" else library.ones_like(weight)
            divisor = _summed(pixel, weight.reshape(1, -1), size, powers)
            result = result / library.where(divisor == 0, np.inf, divisor)
        return result.astype(data.dtype).reshape(self.output_shape)

    def as_columns(self, data: Any) -> Any:
        """Return block-major blocks as columns; columns unchanged."""
        if self.operation != "blocks_to_array":
            return data
        return transposed(data, self._taps_and_blocks_swapped).reshape(self.geometry.blocks_shape)

    def as_blocks(self, columns: Any) -> Any:
        """Return columns as block-major blocks."""
        return transposed(columns.reshape(self.geometry.split_columns_shape), self._taps_and_blocks_swapped)

    @property
    def _taps_and_blocks_swapped(self) -> tuple[int, ...]:
        rank = len(self.geometry.axes)
        return 0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)


def plan_of(problem: Problem, variant: str, dtype: str, device: Device = H200, given: Operand | None = None) -> Plan:
    """Plan a variant for a device, for a contiguous result, and for contiguous data if no others are given."""
    call = problem.call(dtype, variant)
    return choose(call, given or Operand.contiguous(call.data_shape), Operand.contiguous(call.result_shape), device)


def pixels(geometry: SlidingGeometry, first: Any, library: Any = np) -> Any:
    """Return the flat pixel of every (block, tap), given each block's first; one past the image for those outside."""
    flat, inside = library.zeros((), np.int64), library.ones((), bool)
    for number, axis in enumerate(geometry.axes):
        along = [1] * (1 + len(geometry.axes))
        along[0], along[1 + number] = -1, axis.kernel
        pixel = (first[:, number, None] + library.arange(axis.kernel) * axis.dilation).reshape(along)
        flat, inside = flat * axis.size + pixel, inside & (pixel >= 0) & (pixel < axis.size)
    return library.where(inside, flat, prod(geometry.size)).reshape(len(first), -1)


SUMMED_TOGETHER = 1 << 26
"""Terms that are added at a time on a GPU, in double precision."""


def _summed(pixel: Any, terms: Any, size: int, weight: Any) -> Any:
    """Add weighted terms (planes, n) by the pixel of each, in double precision; those outside the image are dropped."""
    library, dtype = library_of(terms), np.complex128 if terms.dtype.kind == "c" else np.float64
    if library is not np and dtype is np.complex128:  # CuPy adds no complex numbers by index
        return _summed(pixel, terms.real, size, weight) + 1j * _summed(pixel, terms.imag, size, weight)
    sums = library.empty((len(terms), size), dtype)
    together = 1 if library is np else max(1, SUMMED_TOGETHER // terms.shape[1])
    for first in range(0, len(terms), together):
        some = terms[first : first + together].astype(dtype) * weight.ravel()
        total = library.zeros((len(some), size + 1), dtype)
        places = pixel.ravel() + (size + 1) * library.arange(len(some))[:, None]
        library.add.at(total.ravel(), places.ravel(), some.ravel())
        sums[first : first + len(some)] = total[:, :size]
    return sums.astype(np.int64) if terms.dtype.kind in "iu" else sums


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


def of_batch(geometry: Any, batch: int) -> Any:
    """Return the same geometry with another number of images."""
    return replace(geometry, lead=(batch, *geometry.lead[1:]))


def along(geometry: SlidingGeometry, name: str) -> tuple[int, ...]:
    """Return one number of each axis, by its name."""
    return tuple(getattr(axis, name) for axis in geometry.axes)


def pads_of(geometry: SlidingGeometry | SpaceGeometry) -> list[tuple[int, int]]:
    """Return the padding before and after each of the last axes."""
    return [(axis.pad_begin, axis.pad_end) for axis in geometry.axes]


def padded(array: Any, geometry: SlidingGeometry | SpaceGeometry) -> Any:
    """Return an array or tensor padded with zeros along its last axes; itself if there is no padding."""
    pads = pads_of(geometry)
    if not any(map(any, pads)):
        return array
    library = library_of(array)
    if library.__name__ == "torch":
        return library.nn.functional.pad(array, [pad for pair in reversed(pads) for pad in pair])
    return library.pad(array, [(0, 0)] * (array.ndim - len(pads)) + pads)


def cropped(image: Any, geometry: SlidingGeometry | SpaceGeometry) -> Any:
    """View a padded image without the padding of its last axes."""
    return image[(..., *(slice(axis.pad_begin, axis.pad_begin + axis.size) for axis in geometry.axes))]


def space_of(geometry: SpaceGeometry) -> tuple[int, ...]:
    """Return the shape of space before cropping."""
    return geometry.batch, *(axis.padded_size for axis in geometry.axes)


def permuted(problem: Problem, data: Any) -> Any:
    """Move between batch and space: split the axes of an array or a tensor, and copy them in another order."""
    geometry, rank = problem.geometry, len(problem.geometry.axes)

    def copied(array: Any, order: Sequence[int]) -> Any:
        view = transposed(array, order)
        return view.contiguous() if hasattr(view, "contiguous") else view.copy()

    if problem.operation == "batch_to_space":
        blocks = data.reshape(*geometry.block_shape, geometry.batch, *geometry.num_blocks)
        order = (rank, *(axis for i in range(rank) for axis in (rank + 1 + i, i)))
        return cropped(copied(blocks, order).reshape(space_of(geometry)), geometry)
    split = [extent for pair in zip(geometry.num_blocks, geometry.block_shape, strict=True) for extent in pair]
    blocks = padded(data, geometry).reshape(geometry.batch, *split)
    order = (*range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank, 2))
    return copied(blocks, order).reshape(geometry.blocks_shape)


def problems(
    name: str,
    origin: str,
    image_shape: Sequence[int],
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    pad: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    operations: Sequence[str] = ("col2im",),
    dtypes: Sequence[str] = ("float32",),
    **others: Any,
) -> list[Problem]:
    """Make problems of blocks on an image (N, C, *size), or between a batch and space (B, *E)."""
    is_space = "batch_to_space" in operations
    lead, size = image_shape[: 2 - is_space], image_shape[2 - is_space :]
    values = (kernel, stride, dilation, pad, pad)
    per_axis = [[value] * len(size) if isinstance(value, int) else value for value in values]
    geometry = (SpaceGeometry if is_space else SlidingGeometry)(tuple(lead), tuple(map(Axis, size, *per_axis)))
    return [
        Problem(f"{operation}-{name}", operation, geometry, origin, tuple(dtypes), **others) for operation in operations
    ]


ROWS = tomllib.loads(Path(__file__).with_name("problems.toml").read_text(encoding="utf-8"))["rows"]

PROBLEMS = tuple(problem for row in ROWS for problem in problems(**row))


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
