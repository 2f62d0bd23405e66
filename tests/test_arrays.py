"""Arrays that others made: which share memory is known without a GPU."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest

import gpufold
from gpufold.arrays import share_memory

IMPORTED = SimpleNamespace(may_share_memory=lambda first, second: False)
"""What CuPy says of two arrays that were each imported on its own: their bounds are not compared."""

START = 1 << 40
"""No memory lies at these addresses: reading it would end the process."""


class At:
    """What is asked of a cupy.ndarray about its memory, which does not exist."""

    def __init__(self, offset, shape, strides, itemsize=4, start=START):
        self.data = SimpleNamespace(ptr=start + offset)
        self.shape, self.strides, self.itemsize = shape, strides, itemsize

    def bytes(self):
        """The address of every byte, counted one by one."""
        offsets = np.arange(self.itemsize)
        for extent, stride in zip(self.shape, self.strides, strict=True):
            offsets = np.add.outer(np.arange(extent) * stride, offsets)
        return {self.data.ptr + int(offset) for offset in offsets.ravel()}

    def __repr__(self):
        return f"At({self.data.ptr - START}, {self.shape}, {self.strides}, {self.itemsize})"


ROW = At(0, (10,), (4,))
OVERLAPS = {
    "itself": (ROW, ROW, True),
    "the last byte": (ROW, At(39, (1,), (1,), 1), True),
    "just behind": (ROW, At(40, (3,), (4,)), False),
    "just before": (ROW, At(-12, (3,), (4,)), False),
    "backwards from its end": (ROW, At(60, (6,), (-4,)), False),
    "backwards into it": (ROW, At(60, (7,), (-4,)), True),
    "two backwards": (At(36, (10,), (-4,)), At(76, (10,), (-4,)), False),
    "interleaved": (At(0, (100, 8), (64, 8)), At(4, (100, 8), (64, 8)), False),
    "interleaved, one backwards": (At(0, (5,), (8,)), At(36, (5,), (-8,)), False),
    "left and right of one picture": (At(0, (6, 4), (32, 4)), At(16, (6, 4), (32, 4)), False),
    "a transposed view": (At(0, (4, 5), (20, 4)), At(0, (5, 4), (4, 20)), True),
    "half an element": (At(0, (4,), (8,), 8), At(4, (1,), (4,)), True),
    "one element for all": (At(16, (1000, 1000), (0, 0)), ROW, True),
    "one element for all, behind": (At(40, (1000, 1000), (0, 0)), ROW, False),
    "one row for all": (At(0, (50, 3), (0, 8)), At(4, (50, 2), (0, 8)), False),
    "no element": (At(8, (0,), (4,)), ROW, False),
    "no element along one axis": (At(8, (3, 0, 2), (0, 0, 0)), ROW, False),
    "no elements nowhere": (At(0, (0, 3), (0, 0), start=0), ROW, False),
    "no elements twice": (At(0, (0,), (4,), start=0), At(0, (0,), (4,), start=0), False),
    "one number": (At(8, (), ()), ROW, True),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_imported_arrays_share_memory_where_their_addresses_do(name):
    first, second, want = OVERLAPS[name]
    assert bool(first.bytes() & second.bytes()) == want
    assert share_memory(IMPORTED, first, second) is want
    assert share_memory(IMPORTED, second, first) is want


@pytest.mark.parametrize("seed", range(200))
def test_random_imported_arrays_share_memory_where_their_addresses_do(seed):
    rng = random.Random(seed)

    def array():
        itemsize = rng.choice((1, 2, 4, 8))
        shape = tuple(rng.randint(0 if rng.random() < 0.05 else 1, 4) for _ in range(rng.randint(0, 3)))
        strides = tuple(itemsize * rng.choice((-9, -4, -1, 0, 1, 2, 3, 8)) for _ in shape)
        return At(itemsize * rng.randint(-20, 20), shape, strides, itemsize)

    for _ in range(20):
        first, second = array(), array()
        assert share_memory(IMPORTED, first, second) is bool(first.bytes() & second.bytes()), (seed, first, second)


def test_what_is_too_hard_to_know_counts_as_shared_only_within_bounds():
    extents, steps = (2,) * 30, [7919 * (2 * axis + 1) ** 2 for axis in range(30)]
    first, second = At(0, extents, tuple(steps), 1), At(1, extents, tuple(step + 6 for step in steps), 1)
    assert share_memory(IMPORTED, first, second)
    assert not share_memory(IMPORTED, first, At(-1, (1,), (1,), 1))


# ---------------------------------------------------------------------------------------------
# CuPy's own arrays, imported on their own: device 0 is never asked for


def imported(offset, shape, dtype=np.float32):
    """Import an array as DLPack and __cuda_array_interface__ do: as an allocation by itself, which it does not own."""
    import cupy

    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(START + offset, size, None, device_id=0)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


@dataclass(frozen=True)
class Call:
    """A call of a public function: the shapes of its arrays and of the result, and the sizes."""

    name: str
    arrays: dict[str, tuple[int, ...]]
    result: tuple[int, ...]
    sizes: dict[str, tuple[int, ...]]

    def __str__(self):
        return self.name

    def __call__(self, arrays):
        return attrgetter(self.name)(gpufold)(**arrays, **self.sizes)

    @staticmethod
    def dtype(argument):
        return np.int64 if argument == "positions" else np.float32


CALLS = (
    Call("col2im", {"data": (4, 9), "window": (2, 2)}, (1, 4, 4), {"output_size": (4, 4), "kernel_size": (2, 2)}),
    Call("im2col", {"image": (1, 4, 4), "window": (2, 2)}, (4, 9), {"kernel_size": (2, 2)}),
    Call(
        "batch_to_space", {"data": (4, 3)}, (1, 12), {"block_shape": (1, 4), "crops_begin": (0, 0), "crops_end": (0, 0)}
    ),
    Call(
        "space_to_batch", {"data": (1, 12)}, (4, 3), {"block_shape": (1, 4), "pads_begin": (0, 0), "pads_end": (0, 0)}
    ),
    Call("array_to_blocks", {"array": (7,), "window": (3,)}, (3, 3), {"block_shape": (3,), "block_strides": (2,)}),
    Call(
        "blocks_to_array",
        {"blocks": (3, 3), "window": (3,)},
        (7,),
        {"output_shape": (7,), "block_shape": (3,), "block_strides": (2,)},
    ),
    Call("add_blocks", {"blocks": (2, 3), "positions": (2, 1), "window": (3,)}, (7,), {}),
)


def test_every_public_function_with_an_out_is_called():
    functions = [getattr(gpufold, name) for name in gpufold.__all__ if inspect.isfunction(getattr(gpufold, name))]
    takes_out = [each.__name__ for each in functions if "out" in inspect.signature(each).parameters]
    assert sorted(call.name for call in CALLS) == sorted(takes_out)


@pytest.mark.peer("cupy")
@pytest.mark.parametrize(
    ("call", "argument"), [(call, argument) for call in CALLS for argument in call.arrays], ids=str
)
def test_an_out_imported_beside_an_argument_is_refused_where_they_overlap(call, argument):
    """It is refused before a device is asked for anything: there may be none."""
    arrays = {
        name: imported(1 << (20 + number), shape, call.dtype(name))
        for number, (name, shape) in enumerate(call.arrays.items())
    }
    last = arrays[argument].nbytes - 8
    for offset in (0, last):  # out begins inside the argument
        arrays["out"] = imported(arrays[argument].data.ptr - START + offset, call.result)
        with pytest.raises(
            ValueError, match=f"^{call}: out must share no memory with {argument}, got arrays that overlap"
        ):
            call(arrays)
    arrays["out"] = imported(0, call.result)
    arrays[argument] = imported(arrays["out"].nbytes // 8 * 8 - 8, call.arrays[argument], call.dtype(argument))
    with pytest.raises(ValueError, match=f"^{call}: out must share no memory with {argument}, got arrays that overlap"):
        call(arrays)
