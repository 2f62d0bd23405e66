"""A call of every function as data, for arrays of every kind, and a GPU that these pass for being on."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cases import values

import gpufold
from bench.hostcuda import fake_cupy


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of a function: its name, the shapes of its arrays by argument, and its other arguments."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    arguments: dict[str, Any] = field(default_factory=dict)
    window: tuple[tuple[int, ...], ...] = ()
    """Shapes of the window's arrays, which come last: one is a full window, several a separable one."""
    suffix: str = ""

    def __str__(self) -> str:
        return self.name + self.suffix

    @property
    def averages(self) -> bool:
        return self.arguments.get("reduction", "sum") != "sum"

    @property
    def differentiable(self) -> int:
        """How many of the arrays have a gradient: a window has none under a mean."""
        return len(self.shapes) + (0 if self.averages else len(self.window))

    def differentiated(self, given):
        """Return a function of those of these arrays that have a gradient, and them."""
        kept = given[self.differentiable :]
        return (lambda *of: self(*of, *kept)), tuple(given[: self.differentiable])

    def arrays(self, dtype, seed=0, lead=()):
        """Random NumPy arrays of the call, of which the window's are positive."""
        rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
        made = [drawn(rng, dtype, (*lead, *shape)) for shape in self.shapes.values()]
        real = "float64" if dtype.name in ("float64", "complex128") else "float32"
        return made + [(rng.random((*lead, *shape)) + 0.5).astype(real) for shape in self.window]

    def of(self, module):
        """Return a module's function of these arrays alone."""

        def call(*given):
            options = dict(self.arguments)
            arrays, window = given[: len(self.shapes)], given[len(self.shapes) :]
            if window:
                name = "weight" if self.name == "average" else "window"
                options[name] = window[0] if len(self.window) == 1 else list(window)
            return getattr(module, self.name)(**dict(zip(self.shapes, arrays, strict=True)), **options)

        return call

    def __call__(self, *given):
        """Call gpufold's function, which knows arrays of every kind."""
        return self.of(gpufold)(*given)


def drawn(rng, dtype, shape):
    """Draw numbers of any size for integers, and ordinary ones for others."""
    if dtype.kind in "biu":
        return values(shape, dtype, rng.integers(1 << 32))
    numbers = rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if dtype.kind == "c" else numbers).astype(dtype)


def taken(sizes):
    """Return the sizes of what takes the blocks of a sum."""
    return {name: value for name, value in sizes.items() if name != "output_size"}


FOLDED = {"output_size": (4, 3), "kernel_size": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (0, 1)}
SYMMETRIC = {"output_size": (4, 6), "kernel_size": (2, 3), "strides": (2, 1), "dilations": (2, 1), "pads_begin": (1, 0),
             "pads_end": (1, 0)}  # fmt: skip
TAKEN, TAKEN_ALIKE = map(taken, (FOLDED, SYMMETRIC))
PLACES = [(0, 0), (-1, 2), (2, 1), (9, 9)]
FULL, SEPARABLE = ((3, 2),), ((3,), (2,))
BLOCKS = {"output_shape": (2, 7), "block_shape": (3,), "strides": 2}
OVER = {"block_shape": (3, 2), "strides": (2, 3), "last": "over"}
COLUMNS, IMAGE = {"data": (2, 6, 6)}, {"image": (2, 1, 4, 3)}
ADDED = {"array": (2, 4, 3), "blocks": (4, 2, 3, 2)}
AT = {"positions": PLACES, "block_shape": (3, 2)}
FAR = {"positions": [(-1, 1), (3, -2), (-(2**63), 2), (2**62, 2**63 - 1)], "block_shape": (3, 2), "mode": "edge"}

LINEAR = [
    Operation("col2im", COLUMNS, FOLDED),
    Operation("col2im", {"data": (12, 6)}, FOLDED, suffix="-unbatched"),
    Operation("col2im", {"data": (1, 12, 8)}, SYMMETRIC, suffix="-symmetric"),
    Operation("im2col", IMAGE, TAKEN),
    Operation("im2col", {"image": (1, 2, 4, 6)}, TAKEN_ALIKE, suffix="-symmetric"),
    Operation("im2col", {"image": (2, 4, 3)}, TAKEN, suffix="-unbatched"),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS),
    Operation("array_to_blocks", {"array": (2, 7)}, {"block_shape": (3,), "strides": 2}),
    Operation("batch_to_space", {"data": (8, 3)}, {"block_shape": (1, 4), "crops_begin": (0, 1), "crops_end": (0, 2)}),
    Operation("space_to_batch", {"data": (2, 9)}, {"block_shape": (1, 4), "pads_begin": (0, 1), "pads_end": (0, 2)}),
    Operation("add_blocks", ADDED, {"positions": PLACES}),
    Operation("add_blocks", {"array": (4, 3), "blocks": (4, 3, 2)}, {"positions": PLACES}, suffix="-without-lead"),
    Operation("take_blocks", {"array": (2, 4, 3)}, AT),
    Operation("take_blocks", {"array": (4, 3)}, FAR, suffix="-edge"),
    Operation("take_blocks", {"array": (2, 1, 1)}, FAR, suffix="-edge-of-one"),
]
WINDOWED = [
    *(
        Operation(name, shapes, arguments, window, f"-{kind}")
        for kind, window in (("full", FULL), ("separable", SEPARABLE))
        for name, shapes, arguments in (
            ("col2im", COLUMNS, FOLDED),
            ("im2col", IMAGE, TAKEN),
            ("add_blocks", ADDED, {"positions": PLACES}),
            ("take_blocks", {"array": (2, 4, 3)}, AT),
            ("take_blocks", {"array": (4, 3)}, FAR),
        )
    ),
    Operation("average", {"numerator": (2, 4, 3)}, window=((4, 3),)),
    Operation("average", {"numerator": (2, 3)}, window=((3,),), suffix="-of-one-axis"),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS, ((3,),), "-full"),
    Operation("array_to_blocks", {"array": (2, 7)}, {"block_shape": (3,), "strides": 2}, ((3,),), "-full"),
]
AVERAGED = [
    *(
        Operation("col2im", COLUMNS, FOLDED | {"reduction": reduction}, window, f"-{reduction}-{kind}")
        for reduction in ("mean", "least_squares")
        for kind, window in (("none", ()), ("full", FULL), ("separable", SEPARABLE))
    ),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS | {"reduction": "mean"}, suffix="-mean-none"),
    Operation(
        "col2im",
        {"data": (4, 2)},
        {"output_size": (9,), "kernel_size": 4, "strides": 5, "reduction": "mean", "fill_value": 0},
        suffix="-mean-with-gaps",
    ),
]
EVERY = [*LINEAR, *WINDOWED, *AVERAGED]
BEYOND = [
    *(
        Operation("take_blocks", {"array": (2, 4, 3)}, FAR | {"mode": mode}, SEPARABLE, f"-{mode}")
        for mode in ("reflect", "symmetric", "wrap")
    ),
    *(
        Operation("array_to_blocks", {"array": (2, 6, 4)}, OVER | {"mode": mode}, suffix=f"-{mode}")
        for mode in ("constant", "edge", "reflect", "symmetric", "wrap")
    ),
    Operation(
        "blocks_to_array",
        {"blocks": (2, 3, 2, 3, 2)},
        {"output_shape": (2, 6, 4), "reduction": "mean", "fill_value": 7, **OVER},
        suffix="-mean-over",
    ),
]
"""Calls of blocks that reach out of the array, of which no kernel knows: it is extended, or read by index."""
EMPTY = [
    Operation("col2im", {"data": (0, 6, 6)}, FOLDED, FULL, "-without-batch"),
    Operation("col2im", {"data": (2, 0, 8)}, SYMMETRIC, suffix="-without-channels"),
    Operation("im2col", {"image": (0, 1, 4, 3)}, TAKEN, suffix="-without-batch"),
    Operation("im2col", {"image": (0, 2, 4, 6)}, TAKEN_ALIKE, suffix="-symmetric-without-batch"),
    Operation("array_to_blocks", {"array": (0, 1, 7)}, {"block_shape": (3,)}, suffix="-without-lead"),
    Operation("batch_to_space", {"data": (0, 3)}, {"block_shape": (1, 4)}, suffix="-without-batch"),
    Operation("add_blocks", {"array": (3,), "blocks": (0, 2)}, {"positions": np.zeros((0, 1), int)}, suffix="-of-none"),
    Operation("take_blocks", {"array": (0, 2, 3)}, AT, suffix="-without-lead"),
    Operation("take_blocks", {"array": (2, 0, 3)}, AT, suffix="-of-no-elements"),
]


ONES, THREE_PLACES = np.ones((2, 8, 9), np.float32), [(0, 0), (1, 2), (9, 9)]
RIGHT = {
    "col2im": {"data": np.ones((2, 8, 63), np.float32), "output_size": (8, 10), "kernel_size": (2, 2)},
    "im2col": {"image": np.ones((2, 2, 8, 10), np.float32), "kernel_size": (2, 2)},
    "blocks_to_array": {
        "blocks": np.ones((2, 7, 9, 2, 2), np.float32), "output_shape": (2, 8, 10), "block_shape": (2, 2)},
    "array_to_blocks": {"array": ONES, "block_shape": (2, 2)},
    "batch_to_space": {"data": np.ones((8, 3, 4), np.float32), "block_shape": (1, 2, 2)},
    "space_to_batch": {"data": np.ones((2, 6, 8), np.float32), "block_shape": (1, 2, 2)},
    "add_blocks": {"array": ONES, "blocks": np.ones((3, 2, 4, 5), np.float32), "positions": THREE_PLACES},
    "take_blocks": {"array": ONES, "positions": THREE_PLACES, "block_shape": (4, 5)},
    "average": {"numerator": ONES, "weight": ONES[0]},
}  # fmt: skip
"""What a call of each function requires, in order, its arrays first: of NumPy, which nothing is written into."""


def arrays_and_others(name):
    """Return the arrays of a call of a function, and what else it requires."""
    values = tuple(RIGHT[name].values())
    arrays = tuple(each for each in values if isinstance(each, np.ndarray))
    return arrays, values[len(arrays) :]


def named(operations):
    """Run a test for operations, by their names."""
    return pytest.mark.parametrize("operation", operations, ids=str)


def calls_in(dtypes, operations=EVERY):
    """Return operations with the dtypes that they have: integers are weighed in sums of blocks, and averaged.

    One dtype after another, so that one in seven of them, or two, are of all operations and of all dtypes.
    """
    return [
        (each, dtype)
        for dtype in dtypes
        for each in operations
        if np.dtype(dtype).kind not in "biu" or not each.window or each.name in ("col2im", "blocks_to_array")
    ]


def in_dtypes(dtypes, operations=EVERY):
    """Run a test for operations in the dtypes that they have."""
    rows = [pytest.param(each, dtype, id=f"{each}-{dtype}") for each, dtype in calls_in(dtypes, operations)]
    return pytest.mark.parametrize(("operation", "dtype"), rows)


def operation_of(name):
    (found,) = [operation for operation in EVERY if str(operation) == name]
    return found


# ---------------------------------------------------------------------------------------------
# Tensors, and JAX's arrays


def as_tensor(array):
    """Return a tensor of an array's elements."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def as_array(tensor):
    """Return an array of a tensor's elements."""
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


@contextmanager
def x64(on):
    """With numbers of 64 bits, or without, in every thread and version."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", on)
    yield
    jax.config.update("jax_enable_x64", before)


# ---------------------------------------------------------------------------------------------
# A GPU that there is not: device 1 of the fake CuPy, on a stream that is not CuPy's

DEVICE, HANDLE = 1, 0x7F00


@contextmanager
def on_the_stand_in(patch, *more):
    """Let gpufold launch on the stand-in for CuPy, and give that; no cache remembers it, nor those of `more`."""
    from gpufold.gpu import launch, tuning

    patch.setattr(launch, "cupy", fake_cupy.cupy())
    caches = (launch._function, launch._prepare, launch.device, *more)
    for forget in (*(cached.cache_clear for cached in caches), tuning.forget):
        forget()
    yield fake_cupy.cupy()
    fake_cupy.Device().synchronize()
    for forget in (*(cached.cache_clear for cached in caches), tuning.forget):
        forget()


@contextmanager
def launched_on_fake_cupy(patch, *more):
    """Give a list of what is launched by then on, of each its device, stream, grid, block and arguments.

    No cache remembers it, nor those of `more`.
    """
    launches, call = [], fake_cupy.Function.__call__

    def record(function, grid, block, args, shared_mem=0, stream=None):
        on = fake_cupy.get_current_stream() if stream is None else stream
        launches.append((fake_cupy.get_device(), on.ptr, grid, block, args))
        call(function, grid, block, args, shared_mem, stream)

    patch.setattr(fake_cupy, "_lent", {})
    patch.setattr(fake_cupy, "_devices_of_streams", {HANDLE: DEVICE})
    patch.setattr(fake_cupy.Function, "__call__", record)
    with on_the_stand_in(patch, *more):
        yield launches
        synchronize()


def synchronize():
    """Finish what was launched."""
    with fake_cupy.Device(DEVICE):
        fake_cupy.Device().synchronize()


_kept = []


def lend(tensor):
    """Let kernels find a tensor's memory, which is no other's from then on."""
    fake_cupy.lend(tensor.data_ptr(), tensor.untyped_storage().nbytes() or 1, DEVICE)
    _kept.append(tensor)
    return tensor


def waiting(launch):
    """Return a launch that is waited for, where torch reads what it computes."""

    def wait(*given, **options):
        launch(*given, **options)
        synchronize()

    return wait


@contextmanager
def passing_for_gpu(patch):
    """Let tensors on the CPU pass for tensors on the device; give a list of what is launched for them."""
    from gpufold.torch import executing, guards

    patch.setattr(executing, "is_on_gpu", lambda tensor: True)
    patch.setattr(executing, "on_device", fake_cupy.Device)
    patch.setattr(executing, "_stream_of", lambda tensor: (DEVICE, HANDLE))
    patch.setattr(executing, "address_of", lambda tensor: lend(tensor).data_ptr())
    with launched_on_fake_cupy(patch, guards.seen_of) as launches:
        yield launches
    _kept.clear()
