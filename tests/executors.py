"""Calls of public functions as data, layouts of their arrays, and what executes a plan of theirs without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from cases import assert_same_bits, ordinary_numbers, values
from definition import weight_dtype
from numpy.lib.stride_tricks import as_strided

import gpufold
from bench import hostcuda
from bench.hostcuda import Arrays
from gpufold import calls
from gpufold.elements import ELEMENT_TYPES
from gpufold.gpu import parameters
from gpufold.gpu.plan import H200, Device, Operand, Plan, Problem
from gpufold.gpu.registry import candidates
from gpufold.windows import as_weights

ONE_THREAD = Device("a tiny one", (9, 0), multiprocessors=1, threads_per_multiprocessor=1)
"""So small that its threads serve as many planes and taps as they can, as for large arrays on a large device."""

DEVICES = (H200, ONE_THREAD)

MOVED = ("uint8", "float16", "float32", "complex64", "complex128")
"""One dtype of each size: kernels that move elements know no more of them."""


def random_bits(shape, dtype, seed=0):
    """Elements of every bit pattern, so NaN with payloads, infinities, -0.0 and denormals among them."""
    size = prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape)


# ---- Layouts


def operand(array):
    """Describe an array whose memory starts on a multiple of 256 bytes, as a GPU's allocations do."""
    offset = array.__array_interface__["data"][0] - hostcuda.owner_of(array).__array_interface__["data"][0]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Operand(array.shape, strides, (offset & -offset) or 256)


def in_order(array, order):
    """Put an array's axes into memory in another order."""
    return array.transpose(order).copy().transpose(np.argsort(order))


def _with_gaps(rng, array):
    room = np.empty([2 * extent + 1 for extent in array.shape], array.dtype)
    part = [rng.choice((slice(extent), slice(None, -1, 2), slice(1, 1 + extent))) for extent in array.shape]
    view = room[tuple(part)]
    view[...] = array
    return view


def _backwards(rng, array):
    turned = tuple(slice(None, None, rng.choice((1, -1))) for _ in array.shape)
    return array[turned].copy()[turned]


def _off_a_word(rng, array):
    start = rng.randint(1, 7)
    view = np.empty(array.size + start, array.dtype)[start:].reshape(array.shape)
    view[...] = array
    return view


def _overlapping(rng, array):
    """Elements that stand for several each: other numbers, of the same shape."""
    array = np.ascontiguousarray(array)
    return as_strided(array, strides=[rng.choice((0, array.itemsize, step, step)) for step in array.strides])


LAYOUTS: dict[str, Callable[[Any, Any], Any]] = {
    "contiguous": lambda rng, array: array.copy(),
    "transposed": lambda rng, array: in_order(array, rng.sample(range(array.ndim), array.ndim)),
    "swapped": lambda rng, array: in_order(array, (*range(array.ndim - 2), *range(array.ndim)[-2:][::-1])),
    "sliced": _with_gaps,
    "backwards": _backwards,
    "off a word": _off_a_word,
    "overlapping": _overlapping,
}
"""By name, what lays an array out by random numbers; what is read may overlap, as frames of a sound do."""


def block_by_block(geometry, columns, start=0):
    """Split columns, the taps of each block one after another in memory, from an element on."""
    rank = len(geometry.axes)
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    blocks = columns.reshape(geometry.split_columns_shape).transpose(order)
    room = np.empty(blocks.size + start, columns.dtype)[start:].reshape(blocks.shape)
    room[...] = blocks
    return room.transpose(np.argsort(order))


# ---- Calls


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a public function on a NumPy array."""

    operation: str
    data: np.ndarray[Any, Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    """Among calls that tests choose by name."""

    def __str__(self) -> str:
        return f"{self.operation} of {self.data.dtype} {self.data.shape}, {self.arguments}, {self.options}"

    @property
    def numbers(self):
        """The arrays that it reads, but for weights: the data, and the blocks that are added to it."""
        return self.data, *(self.arguments[:1] if self.operation.startswith("add_blocks") else ())

    @property
    def weights(self):
        """The arrays of its window, or the one that it divides by."""
        weights = self.arguments[0] if self.operation == "average" else self.options.get("window")
        return () if weights is None else weights if isinstance(weights, tuple) else (weights,)

    def of(self, module):
        """Return a module's function of these arrays alone, in this order."""
        function = getattr(module, self.operation)
        count = len(self.numbers) + (self.operation == "average")
        others, options = self.arguments[count - 1 :], dict(self.options)
        separable = isinstance(options.pop("window", None), tuple)

        def call(*arrays):
            weights = arrays[count:]
            window = {"window": list(weights) if separable else weights[0]} if weights else {}
            return function(*arrays[:count], *others, **options, **window)

        return call

    def __call__(self, *arrays):
        """Call gpufold's function, which knows arrays of every kind, with other numbers and weights."""
        return self.of(gpufold)(*arrays)

    @property
    def averages(self) -> bool:
        return self.options.get("reduction", "sum") != "sum"

    @property
    def differentiable(self) -> int:
        """How many of the arrays have a gradient: a window has none under a mean."""
        return len(self.numbers) + (0 if self.averages else len(self.weights))

    def differentiated(self, given):
        """Return a function of those of these arrays that have a gradient, and them."""
        call, kept = self.of(gpufold), given[self.differentiable :]
        return (lambda *of: call(*of, *kept)), tuple(given[: self.differentiable])

    def arrays(self, dtype, seed=0, lead=()):
        """Random arrays in place of its own, of which weights are positive."""
        rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
        made = [ordinary_numbers(rng, (*lead, *each.shape), dtype) for each in self.numbers]
        real = weight_dtype(dtype)
        return made + [(rng.random((*lead, *each.shape)) + 0.5).astype(real) for each in self.weights]

    def on(self, data, **options):
        """Call with other data of the same shape."""
        return getattr(gpufold, self.operation)(data, *self.arguments, **self.options | options)

    @property
    def read(self):
        """The array whose elements are moved or added."""
        return self.numbers[-1]

    def reading(self, array):
        """The same call on other elements."""
        if self.operation == "add_blocks":
            return replace(self, arguments=(array, *self.arguments[1:]))
        return replace(self, data=array)

    def described(self, variant="auto"):
        """What the planner is asked."""
        return getattr(calls, self.operation)(self.data, *self.arguments, **self.options, variant=variant)

    def into(self, result, read, **options):
        """Call with other data, or other blocks, and let the function write into an array, or add to it."""
        if self.operation == "add_blocks":
            return gpufold.add_blocks_(result, read, *self.arguments[1:], **self.options | options)
        return self.on(read, out=result, **options)

    def with_options(self, **options):
        """The same call with more options, or others."""
        return replace(self, options=self.options | options)

    def with_window(self, function):
        """The same call with a function of each array of its window."""
        window = self.options.get("window")
        if window is None:
            return self
        return self.with_options(window=tuple(map(function, window)) if isinstance(window, tuple) else function(window))

    def with_arrays_of(self, library):
        """The same call with its window, and the arrays among its arguments, in another library."""
        arrays = tuple(library.asarray(each) if isinstance(each, np.ndarray) else each for each in self.arguments)
        return replace(self.with_window(library.asarray), arguments=arrays)

    def exact(self, variant):
        """Whether a variant gives the same bits on every run."""
        return variant != "atomic" or ELEMENT_TYPES[self.described().dtype].exact


GIVEN = {
    "col2im": lambda case: (case.columns_shape, (case.output_size, case.kernel_size), case.arguments),
    "im2col": lambda case: (case.image_shape, (case.kernel_size,), case.arguments),
    "blocks_to_array": lambda case: (case.blocks_shape, (case.shape, case.block), case.arguments),
    "array_to_blocks": lambda case: (case.shape, (case.block,), case.arguments),
    "batch_to_space": lambda case: (case.batch_shape, (case.block_shape,), case.margins("crops")),
    "space_to_batch": lambda case: (case.space_shape, (case.block_shape,), case.margins("pads")),
    "add_blocks": lambda case: (case.shape, (case.blocks_shape, case.positions), {}),
    "take_blocks": lambda case: (case.shape, (case.positions, case.block), {}),
    "average": lambda case: (case.shape, (case.shape[len(case.shape) - case.axes :],), {}),
}
"""What an operation is given for a problem: the shape of its first array, and its other arguments."""


def call_of(operation, case, elements, **options):
    """An operation on a problem, on the elements that a function gives for a shape."""
    shape, arguments, own = GIVEN[operation](case)
    if operation in ("add_blocks", "average"):
        arguments = elements(arguments[0]), *arguments[1:]
    return Call(operation, elements(shape), arguments, own | options)


def calls_of(case, dtype):
    """All operations on a problem."""
    return tuple(call_of(name, case, partial(values, dtype=dtype)) for name in case.operations)


# ---- Executions


def arrays_of(call: Call, before=None) -> Arrays:
    """The arrays of a call, contiguous, with what a result is added to."""
    description, options = call.described(), call.options
    window, positions, data = options.get("window"), None, call.data
    result = np.empty(description.result_shape, description.dtype) if before is None else before.copy()
    weight_out = options.get("weight_out")
    if call.operation == "add_blocks":
        (data, positions), result = call.arguments, call.data.copy()
    elif call.operation == "take_blocks":
        positions = call.arguments[0]
    elif call.operation == "average":
        (window,) = call.arguments
    first = window[0] if isinstance(window, tuple) else window
    weights = None if window is None else as_weights(description, np, window, first)
    return Arrays(data, result, weights, positions, None if weight_out is None else weight_out.copy())


def plans_of(call: Call, variant: str, arrays: Arrays, device: Device = H200) -> Iterator[Plan]:
    """Yield the plans of a variant for arrays where they lie; what it cannot serve is raised as Unsupported."""
    weight_out = None if arrays.weight_out is None else operand(arrays.weight_out)
    problem = Problem(call.described(variant), operand(arrays.input), operand(arrays.result), device, weight_out)
    return candidates(problem)


@contextmanager
def wide_offsets(*caches: Any) -> Iterator[None]:
    """Let offsets have 64 bits, for arrays however small; these caches remember nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameters, "INT32_MAX", 0)
        for cached in caches:
            cached.cache_clear()
        yield
    for cached in caches:
        cached.cache_clear()


def run(call: Call, variant: str, before=None, device: Device = H200, executor: str = "plain", **options):
    """Execute the rule's plan of a variant on contiguous arrays; return it with them."""
    arrays = arrays_of(call, before)
    plan = next(iter(plans_of(call, variant, arrays, device)))
    hostcuda.run(plan, arrays, executor, **options)
    return plan, arrays


def assert_same_bytes(got, want, message=""):
    """What is moved keeps every bit, payloads of NaN too."""
    assert got.dtype == want.dtype, message
    assert_same_bits(*(np.ascontiguousarray(each).view(f"V{each.itemsize}") for each in (got, want)), message)
