"""A call, checked and described as data, for planning, the CPU and GPU backends, dask and the benchmark.

Each function with the name of a public function turns its arguments into a `Call`. It reads only shapes and dtypes, so
an array may be any object that has them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from gpufold import geometry as sizes
from gpufold.coverage import check_covered
from gpufold.descriptions import remembered
from gpufold.elements import (
    ELEMENT_TYPES,
    ElementType,
    average_dtype,
    check_floats,
    check_sums,
    check_weight_sums,
    dtype_name,
    is_string,
    name_of,
)
from gpufold.geometry import BlocksGeometry, Geometry, Size
from gpufold.given import check_number, flag, kind_of, word
from gpufold.outside import BY_INDEX


class Unsupported(ValueError):
    """ValueError of a call that the kernel variant requested by name cannot serve; the message gives the reason.

    See Also
    --------
    variants : The names of an operation's variants.
    """

    __module__ = "gpufold"


Reduction: TypeAlias = Literal["sum", "mean", "least_squares"]
Average: TypeAlias = Literal["mean", "least_squares"]
REDUCTIONS = get_args(Reduction)
"""How taps that land on the same pixel combine, see `gpufold.col2im`."""

Variant: TypeAlias = Literal[
    "auto",
    "atomic",
    "binned",
    "elementwise",
    "gather",
    "gather_blocks",
    "gather_pixels",
    "index_map",
    "output_driven",
    "packed",
    "per_block",
    "per_element",
    "runs",
    "staged",
    "taps",
]
"""The kernels of all operations, for type checkers."""

_FOLD = "gather", "gather_blocks", "gather_pixels", "atomic"
_UNFOLD = "per_block", "packed", "runs", "staged", "taps"

VARIANTS = {
    "col2im": _FOLD,
    "im2col": _UNFOLD,
    "batch_to_space": ("packed", "index_map"),
    "space_to_batch": ("per_block",),
    "blocks_to_array": _FOLD,
    "array_to_blocks": _UNFOLD,
    "add_blocks": ("output_driven", "binned", "atomic"),
    "take_blocks": ("per_element",),
    "average": ("elementwise",),
}
"""The kernels of each operation, see `gpufold.variants`."""

Mode: TypeAlias = Literal["constant", "edge", "reflect", "symmetric", "wrap"]
MODES = get_args(Mode)
"""Values of a block's elements outside the array, as in `numpy.pad`; the constant is zero."""


class FusedOps(NamedTuple):
    """Arithmetic that is fused into an operation."""

    reduction: str = "sum"
    window: str = "none"
    accumulate: bool = False
    """Whether the result is added to the previous values of the output."""
    window_axes: int = 0
    """How many of the last axes have weights in a separable window; earlier axes have one tap. 0 means all axes."""
    mode: str = "constant"
    """One of `MODES`, for blocks that reach beyond the array."""
    weight_out: bool = False
    """Whether the weights of the blocks, or ones, are added to a second array in the same pass."""


PLAIN = FusedOps()

SUMS = ("col2im", "blocks_to_array", "add_blocks")
"""The operations that sum. They also average integers, as floats."""

OperationName: TypeAlias = Literal[
    "col2im",
    "im2col",
    "blocks_to_array",
    "array_to_blocks",
    "add_blocks",
    "take_blocks",
    "average",
    "batch_to_space",
    "space_to_batch",
]

TAKING = ("im2col", "array_to_blocks", "take_blocks", "space_to_batch")
"""The operations that extract blocks. Their windows multiply the result."""


class Call(NamedTuple):
    """A call of a public function without its arrays. Equal calls run the same code on arrays of the same layout."""

    operation: str
    geometry: Geometry
    dtype: str
    """NumPy's name for the dtype of the result, and of the data unless `data_dtype` is set."""
    fusion: FusedOps = PLAIN
    variant: str = "auto"
    deterministic: bool = True
    data_dtype: str = ""
    """The dtype of the data if it is narrower than the result's; elements are converted before they are summed."""
    filled: bool = True
    """Whether an average is known to leave no gap or to fill it; false while its sizes are symbols without values."""

    @property
    def data_shape(self) -> Size:
        """The shape of the elements that are added or moved."""
        return self.geometry.array_shape if self.operation in TAKING else self.geometry.blocks_shape

    @property
    def result_shape(self) -> Size:
        """The shape of the result."""
        return self.geometry.blocks_shape if self.operation in TAKING else self.geometry.array_shape

    def covering(self, fill: object) -> Call:
        """Return this call; raise if an average leaves elements uncovered and no fill value is given."""
        if fill is not None:
            check_number(self.operation, "fill_value", fill, self.dtype)
            if self.fusion.accumulate:
                raise ValueError(
                    f"{self.operation}: accumulate=True leaves what no block covers in out, got a fill_value"
                )
        elif self.fusion.reduction != "sum" and not self.fusion.accumulate:
            check_covered(self.operation, self.geometry, self.fusion.reduction)
        return self

    @property
    def extended(self) -> tuple[Call, list[tuple[int, int]]]:
        """The same call on an array padded as far as its blocks reach, and the padding of each axis."""
        assert isinstance(self.geometry, BlocksGeometry)
        margins = [(axis.pad_begin, axis.pad_end) for axis in self.geometry.axes]
        return self._replace(geometry=self.geometry.extended, fusion=self.fusion._replace(mode="constant")), margins

    @property
    def element(self) -> ElementType:
        """The dtype in the kernels. Strings have none: only the NumPy path moves them."""
        return ELEMENT_TYPES[self.dtype]

    @property
    def data_element(self) -> ElementType:
        """The dtype of the data in the kernels."""
        return ELEMENT_TYPES[self.data_dtype or self.dtype]

    @property
    def data_scalar(self) -> str:
        """The C++ type of the data; signed if integers are widened."""
        scalar = self.data_element.scalar
        return scalar.replace("unsigned ", "signed ") if self.data_dtype[:3] == "int" else scalar


@remembered()
def col2im(
    data: Any,
    output_size: Any,
    kernel_size: Any,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    *,
    reduction: str = "sum",
    window: Any = None,
    dtype: Any = None,
    accumulate: bool = False,
    fill_value: Any = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Call:
    """Describe a call of `gpufold.col2im`."""
    name, fusion = checked("col2im", "data", data.dtype, kind_of(window), reduction, accumulate)
    geometry = sizes.col2im_geometry(data.shape, output_size, kernel_size, strides, dilations, pads_begin, pads_end)
    call = chosen(Call("col2im", geometry, name, fusion), variant, deterministic)
    return _averaged(call, "data", dtype, fill_value)


@remembered()
def im2col(
    image: Any,
    kernel_size: Any,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    *,
    window: Any = None,
    variant: str = "auto",
) -> Call:
    """Describe a call of `gpufold.im2col`."""
    dtype, fusion = checked("im2col", "image", image.dtype, kind_of(window))
    geometry = sizes.im2col_geometry(image.shape, kernel_size, strides, dilations, pads_begin, pads_end)
    return chosen(Call("im2col", geometry, dtype, fusion), variant)


@remembered()
def blocks_to_array(
    blocks: Any,
    output_shape: Any,
    block_shape: Any,
    strides: Any = 1,
    *,
    reduction: str = "sum",
    window: Any = None,
    dtype: Any = None,
    accumulate: bool = False,
    last: object = "drop",
    fill_value: Any = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Call:
    """Describe a call of `gpufold.blocks_to_array`."""
    name, fusion = checked("blocks_to_array", "blocks", blocks.dtype, kind_of(window), reduction, accumulate)
    geometry = sizes.blocks_to_array_geometry(blocks.shape, output_shape, block_shape, strides, last)
    call = chosen(Call("blocks_to_array", geometry, name, fusion), variant, deterministic)
    return _averaged(call, "blocks", dtype, fill_value)


@remembered()
def array_to_blocks(
    array: Any,
    block_shape: Any,
    strides: Any = 1,
    *,
    window: Any = None,
    last: object = "drop",
    mode: object = "constant",
    variant: str = "auto",
) -> Call:
    """Describe a call of `gpufold.array_to_blocks`."""
    dtype, fusion = checked("array_to_blocks", "array", array.dtype, kind_of(window))
    geometry = sizes.array_to_blocks_geometry(array.shape, block_shape, strides, last)
    mode = check_mode("array_to_blocks", geometry, mode)
    if mode != "constant" and any(axis.pad_end for axis in geometry.axes):
        fusion = fusion._replace(mode=mode)
    return chosen(Call("array_to_blocks", geometry, dtype, fusion), variant)


def add_blocks(
    array: Any,
    blocks: Any,
    positions: Any,
    *,
    window: Any = None,
    weight_out: Any = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Call:
    """Describe a call of `gpufold.add_blocks`; `positions` must be an array."""
    sums = None if weight_out is None else (weight_out.shape, weight_out.dtype)
    call = _addition((array.shape, array.dtype), (blocks.shape, blocks.dtype), positions.shape, kind_of(window), sums)
    return chosen(call, variant, deterministic)


@lru_cache(maxsize=256)
def _addition(
    array: tuple[Size, Any], blocks: tuple[Size, Any], positions: Size, window: str, weight_out: tuple[Size, Any] | None
) -> Call:
    """Describe a call of `gpufold.add_blocks` by the shapes and dtypes of its arrays."""
    shape, dtype = blocks
    check_dtype("add_blocks", "blocks", dtype)
    name, fusion = checked("add_blocks", "blocks", dtype, window, accumulate=True)
    geometry = sizes.add_blocks_geometry(array[0], shape, positions)
    call = Call("add_blocks", geometry, name, fusion)
    if array[1] != dtype or not dtype.isnative:
        call = summed_in(call, dtype_name(array[1]), "array must have the dtype of blocks or a wider one:")
    if window != "none" and not call.element.weight:
        raise TypeError(
            f"add_blocks: window needs an array of floats or complex numbers, also for integer blocks, got dtype "
            f"{call.dtype}; convert it with array.astype"
        )
    if weight_out is None:
        return call
    check_weight_sums(call.dtype, name, dtype_name(weight_out[1]))
    if weight_out[0] != geometry.size:
        raise ValueError(
            f"add_blocks: weight_out must have the shape {geometry.size} of array's axes with positions, "
            f"got {weight_out[0]}"
        )
    return call._replace(fusion=fusion._replace(weight_out=True))


@remembered(arrays=2)
def take_blocks(
    array: Any,
    positions: Any,
    block_shape: Any,
    *,
    window: Any = None,
    mode: object = "constant",
    variant: str = "auto",
) -> Call:
    """Describe a call of `gpufold.take_blocks`; `positions` must be an array."""
    dtype, fusion = checked("take_blocks", "array", array.dtype, kind_of(window))
    geometry = sizes.take_blocks_geometry(array.shape, tuple(positions.shape), block_shape)
    mode = check_mode("take_blocks", geometry, mode)
    if mode in BY_INDEX and variant != "auto":
        raise Unsupported(f"take_blocks: mode {mode!r} gathers by index and has no kernel, got variant {variant!r}")
    if mode != "constant":
        fusion = fusion._replace(mode=mode)
    return chosen(Call("take_blocks", geometry, dtype, fusion), variant)


def check_mode(operation: str, geometry: Any, mode: object) -> str:
    """Return the checked mode, or raise."""
    mode = word(operation, "mode", mode, MODES)
    if mode != "constant" and 0 in geometry.size and 0 not in geometry.blocks_shape:
        raise ValueError(
            f"{operation}: mode {mode!r} takes elements of array, which has none, got shape {geometry.array_shape}"
        )
    return mode


@remembered(arrays=2)
def average(numerator: Any, weight: Any, *, variant: str = "auto") -> Call:
    """Describe a call of `gpufold.average`; its weights are treated as a window."""
    dtype = numerator.dtype
    check_dtype("average", "numerator", dtype)
    if not ELEMENT_TYPES[name_of(dtype)].weight:
        raise TypeError(
            f"average: numerator must be of floats or complex numbers, got dtype {dtype}; "
            f"convert it with numerator.astype"
        )
    geometry = sizes.average_geometry(numerator.shape, weight.shape)
    return chosen(Call("average", geometry, name_of(dtype), FusedOps(window="full")), variant)


@remembered()
def batch_to_space(
    data: Any, block_shape: Any, crops_begin: Any = 0, crops_end: Any = 0, *, variant: str = "auto"
) -> Call:
    """Describe a call of `gpufold.batch_to_space`."""
    dtype, fusion = checked("batch_to_space", "data", data.dtype)
    geometry = sizes.batch_to_space_geometry(data.shape, block_shape, crops_begin, crops_end)
    return chosen(Call("batch_to_space", geometry, dtype, fusion), variant)


@remembered()
def space_to_batch(
    data: Any, block_shape: Any, pads_begin: Any = 0, pads_end: Any = 0, *, variant: str = "auto"
) -> Call:
    """Describe a call of `gpufold.space_to_batch`."""
    dtype, fusion = checked("space_to_batch", "data", data.dtype)
    geometry = sizes.space_to_batch_geometry(data.shape, block_shape, pads_begin, pads_end)
    return chosen(Call("space_to_batch", geometry, dtype, fusion), variant)


def chosen(call: Call, variant: Any, deterministic: Any = True) -> Call:
    """Return a call with the options that choose its kernel; raise if an option has the wrong type."""
    if type(variant) is str and variant == "auto" and deterministic is True:
        return call
    operation = call.operation
    variant = word(operation, "variant", variant, ("auto", *VARIANTS[operation]))
    return call._replace(variant=variant, deterministic=flag(operation, "deterministic", deterministic))


def summed_in(call: Call, name: str, must: str) -> Call:
    """Return a call with sums in the named dtype, the data's or a wider one; else raise, saying what it `must` be."""
    check_sums(call.operation, call.dtype, name, must)
    return call if name == call.dtype else call._replace(dtype=name, data_dtype=call.dtype)


def _averaged(call: Call, data: str, dtype: Any, fill_value: Any) -> Call:
    """Return a call with sums in the given dtype; averages and weighted sums default to `average_dtype`.

    Raise if an average leaves elements uncovered and does not fill them.
    """
    if dtype is None and fill_value is None and call.fusion is PLAIN:
        return call
    averages = call.fusion.reduction != "sum" or call.fusion.window != "none"
    name = call.dtype
    if dtype is not None:
        name = dtype_name(dtype)
    elif averages:
        name = average_dtype(call.dtype)
    if name != call.dtype:
        call = summed_in(call, name, f"dtype must be that of {data},")
    if averages:
        check_floats(call.operation, call.fusion.reduction, call.dtype)
    return call.covering(fill_value)


def check_dtype(operation: str, name: str, dtype: np.dtype[Any] | str, strings: bool = False) -> None:
    """Raise unless a dtype can be summed or, if `strings`, holds strings."""
    known = (dtype if isinstance(dtype, str) else name_of(dtype)) in ELEMENT_TYPES
    if not known and not (strings and not isinstance(dtype, str) and is_string(dtype)):
        raise TypeError(
            f"{operation}: {name} has dtype {dtype}, but the supported ones are {', '.join(ELEMENT_TYPES)}"
            f"{' and strings' if strings else ''}"
        )


def checked(
    operation: str, data: str, dtype: Any, window: str = "none", reduction: object = "sum", accumulate: object = False
) -> tuple[str, FusedOps]:
    """Check the dtype of the argument named `data` and the fused arithmetic; return the dtype's name and `FusedOps`."""
    reduction = word(operation, "reduction", reduction, REDUCTIONS)
    accumulate = flag(operation, "accumulate", accumulate)
    name = name_of(dtype)
    if name not in ELEMENT_TYPES:
        check_dtype(operation, data, dtype, strings=hasattr(dtype, "kind"))  # there are no tensors of strings
    if window == "none" and not accumulate and reduction == "sum":
        return name, PLAIN
    element = ELEMENT_TYPES.get(name)
    averages = reduction != "sum" or window != "none"
    if averages and (element is None or not (element.weight or operation in SUMS)):
        what = "window" if reduction == "sum" else f"reduction {reduction!r}"
        raise TypeError(
            f"{operation}: {what} needs {data} of floats or complex numbers, got dtype {dtype}; "
            f"convert it with {data}.astype"
        )
    if accumulate and element is None:
        raise TypeError(f"{operation}: accumulate=True needs {data} that can be added, got dtype {dtype}")
    return name, FusedOps(reduction, window, accumulate)
