"""A call of every function as data, for arrays of every kind, and a GPU that these pass for being on."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter

import cases
import numpy as np
import pytest
from cases import AverageCase, BlocksCase, Case, PositionsCase, SpaceCase, window_of
from executors import call_of

from bench.hostcuda import fake_cupy
from gpufold.calls import MODES


def on(case, operation, window="", **options):
    """An operation on a problem, with a name that says what is special."""
    if window:
        options["window"] = window_of(window, case.block, np.dtype(np.float64))
    words = options.get("mode"), options.get("reduction"), window, str(case)
    return replace(call_of(operation, case, np.zeros, **options), name="-".join(filter(None, (operation, *words))))


PLACES = [(0, 0), (-1, 2), (2, 1), (9, 9)]
FAR_PLACES = ((-1, 1), (3, -2), (-(2**63), 2), (2**62, 2**63 - 1))

FOLDED = Case("", (4, 3), (3, 2), strides=(2, 1), pads_begin=(1, 0), pads_end=(0, 1), channels=1)
UNBATCHED = replace(FOLDED, name="unbatched", batch=None, channels=2)
SYMMETRIC = Case("symmetric", (4, 6), (2, 3), (2, 1), (2, 1), (1, 0), (1, 0), batch=1, channels=2)
GAPS = Case("with-gaps", (9,), (4,), 5, batch=None, channels=1)
BLOCKS = BlocksCase("", (2, 7), (3,), (2,))
OVER = BlocksCase("over", (2, 6, 4), (3, 2), (2, 3), last="over")
SPACE = SpaceCase("", (8, 3), (1, 4), (0, 1), (0, 2))
PLACED = PositionsCase("", (4, 3), (3, 2), tuple(PLACES), lead=(2,))
FAR = PositionsCase("", (4, 3), (3, 2), FAR_PLACES)
OF_PLANES = replace(FAR, lead=(2,))

LINEAR = [
    *(
        on(case, operation)
        for case in (FOLDED, UNBATCHED, SYMMETRIC, BLOCKS, SPACE, PLACED)
        for operation in case.operations
    ),
    on(replace(PLACED, name="without-lead", lead=()), "add_blocks"),
    on(FAR, "take_blocks", mode="edge"),
    on(replace(OF_PLANES, name="of-one", size=(1, 1)), "take_blocks", mode="edge"),
]
WINDOWED = [
    *(
        on(case, operation, window, **options)
        for window in ("full", "separable")
        for case, operation, options in (
            *((case, operation, {}) for case in (FOLDED, PLACED) for operation in case.operations),
            (FAR, "take_blocks", {"mode": "edge"}),
        )
    ),
    on(AverageCase("", (2, 4, 3), 2), "average"),
    on(AverageCase("of-one-axis", (2, 3), 1), "average"),
    *(on(BLOCKS, operation, "full") for operation in BLOCKS.operations),
]
AVERAGED = [
    *(
        on(FOLDED, "col2im", window, reduction=reduction)
        for reduction in ("mean", "least_squares")
        for window in ("", "full", "separable")
    ),
    on(BLOCKS, "blocks_to_array", reduction="mean"),
    on(GAPS, "col2im", reduction="mean", fill_value=0),
]
EVERY = [*LINEAR, *WINDOWED, *AVERAGED]
BEYOND = [
    *(on(OF_PLANES, "take_blocks", "separable", mode=mode) for mode in ("reflect", "symmetric", "wrap")),
    *(on(OVER, "array_to_blocks", mode=mode) for mode in MODES),
    on(OVER, "blocks_to_array", reduction="mean", fill_value=7),
]
"""Calls of blocks that reach out of the array, of which no kernel knows: it is extended, or read by index."""
EMPTY = [
    on(cases.EMPTY[0], "col2im", "full"),
    *(on(case, operation) for case in cases.EMPTY for operation in case.operations),
    on(replace(SPACE, name="no-batch", batch_shape=(0, 3)), "batch_to_space"),
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


def named(calls):
    """Run a test for calls, by their names."""
    return pytest.mark.parametrize("call", calls, ids=attrgetter("name"))


def calls_in(dtypes, calls=EVERY):
    """Return calls with the dtypes that they have: integers are weighed in sums of blocks, and averaged.

    One dtype after another, so that one in seven of them, or two, are of all operations and of all dtypes.
    """
    return [
        (call, dtype)
        for dtype in dtypes
        for call in calls
        if np.dtype(dtype).kind not in "biu" or not call.weights or call.operation in ("col2im", "blocks_to_array")
    ]


def in_dtypes(dtypes, calls=EVERY):
    """Run a test for calls in the dtypes that they have."""
    rows = [pytest.param(call, dtype, id=f"{call.name}-{dtype}") for call, dtype in calls_in(dtypes, calls)]
    return pytest.mark.parametrize(("call", "dtype"), rows)


def call_by(name):
    (found,) = [call for call in EVERY if call.name == name]
    return found


# ---- Tensors, and JAX's arrays


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


# ---- A GPU that there is not: device 1 of the fake CuPy, on a stream that is not CuPy's

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
    with launched_on_fake_cupy(patch, guards.guard_cache_of) as launches:
        yield launches
    _kept.clear()
