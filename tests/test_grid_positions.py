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


@pytest.mark.parametrize(
    ("size", "block", "strides", "last", "positions"),
    [
        # half of an odd number is on either side of it in double precision, and rounded to even
        (35, 1, 1, "even", range(35)),
        (30, 1, 2, "even", nnunet(30, 1, 2)),
        (8, 1, 3, "even", [0, 2, 5, 7]),
        (6, 1, 3, "even", [0, 2, 5]),
        # beyond what double precision holds
        (2**62, 2**61, 2**61, "shift", [0, 2**61]),
        (2**62 + 1, 2**61, 2**61, "even", [0, 2**60, 2**61 + 1]),
        (2**62 + 7, 1, 2**60 + 1, "shift", [*range(0, 2**62 + 6, 2**60 + 1), 2**62 + 6]),
        (9, 4, 2**70, "shift", [0, 5]),
    ],
)
def test_positions_of_any_extent_are_exact(size, block, strides, last, positions):
    assert gpufold.grid_positions((size,), block, strides=strides, last=last).ravel().tolist() == list(positions)
