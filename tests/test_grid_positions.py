"""Where tiles lie that cover an array: four rules, each as its definition says, and as the programs that it is from."""

from __future__ import annotations

import random
from itertools import product
from math import ceil

import numpy as np
import pytest

import gpufold

RULES = ("shift", "even", "over", "drop")


def along_axis(size, block, stride, last):
    """Return the positions of one axis, block after block."""
    begins = [0]
    while begins[-1] + block < size:
        begins.append(begins[-1] + stride)
    if last == "even":
        return nnunet(size, block, stride)
    if begins[-1] + block > size:
        if last == "shift":
            begins[-1] = size - block
        if last == "drop":
            begins.pop()
    return begins


def nnunet(size, block, stride):
    """As many as reach the end, evenly: `compute_steps_for_sliding_window` of nnU-Net 2, by its formula."""
    count = ceil((size - block) / stride) + 1
    distance = (size - block) / (count - 1) if count > 1 else 99999999999
    return [int(np.round(distance * number)) for number in range(count)]


@pytest.mark.parametrize("last", RULES)
def test_random_grids_are_their_definition(last):
    first = random.SystemRandom().randrange(10**6)
    print(f"seeds from {first}")
    for seed in range(first, first + 400):
        rng = random.Random(seed)
        rank = rng.choice((1, 2, 2, 3))
        size = [rng.randint(1, 60) for _ in range(rank)]
        block = [rng.randint(1, 80 if last == "over" else extent) for extent in size]
        stride = [rng.randint(1, 30) for _ in range(rank)]
        got = gpufold.grid_positions(size, block, strides=stride, last=last)
        want = list(product(*(along_axis(*axis, last) for axis in zip(size, block, stride, strict=True))))
        assert got.dtype == np.int64
        assert got.flags.c_contiguous
        assert got.tolist() == [list(place) for place in want], f"seed {seed}: {size} {block} {stride}"


@pytest.mark.parametrize("last", ["shift", "even", "over"])
def test_every_element_is_covered_unless_strides_leave_gaps(last):
    for size, block, stride in product(range(1, 24), range(1, 9), range(1, 9)):
        if block > size and last != "over":
            continue
        positions = gpufold.grid_positions((size,), block, strides=stride, last=last)
        counts = gpufold.add_blocks_(np.zeros(size, int), np.ones((len(positions), block), int), positions)
        assert counts.all() or stride > block, (size, block, stride)
        assert counts[0]
        assert counts[-1] or (stride > block and last == "over")


def test_what_is_rounded_is_what_nnunet_rounds():
    """Half of an odd number is on either side of it in double precision."""
    positions = gpufold.grid_positions((35,), 1, strides=1, last="even").ravel()  # a block at each element
    assert positions.tolist() == list(range(35))
    assert gpufold.grid_positions((30,), 1, strides=2, last="even").ravel().tolist() == nnunet(30, 1, 2)
    assert gpufold.grid_positions((8,), 1, strides=3, last="even").ravel().tolist() == [0, 2, 5, 7]
    assert gpufold.grid_positions((6,), 1, strides=3, last="even").ravel().tolist() == [0, 2, 5]  # 2.5, to even


def test_sizes_of_any_kind_and_extent():
    assert gpufold.grid_positions(np.array([5, 4]), np.int64(2), strides=(3, 2)).tolist() == [
        [0, 0],
        [0, 2],
        [3, 0],
        [3, 2],
    ]
    assert gpufold.grid_positions((2**62,), 2**61, strides=2**61).ravel().tolist() == [0, 2**61]
    assert gpufold.grid_positions((2**62 + 1,), 2**61, strides=2**61, last="even").ravel()[-1] == 2**61 + 1
    assert gpufold.grid_positions((2**62 + 7,), 1, strides=2**60 + 1).ravel().tolist() == [
        *range(0, 2**62 + 6, 2**60 + 1),
        2**62 + 6,
    ], "beyond what double precision holds"
    assert gpufold.grid_positions((9,), 4, strides=2**70).ravel().tolist() == [0, 5]


def test_positions_that_cannot_be_held_are_refused_at_once():
    with pytest.raises(MemoryError):
        gpufold.grid_positions((2**50,), 1, strides=1)
