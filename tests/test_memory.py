"""Memory: a call needs its result and a bounded scratch, whatever the size of the problem."""

from __future__ import annotations

import tracemalloc
from math import prod

import numpy as np
import pytest
from cases import Case

import gpufold
from gpufold.cpu import tiles
from gpufold.elements import sum_dtype

CASES = (
    Case("maps", (56, 56), (3, 3), 1, 1, 1, 1, batch=16, channels=64),
    Case("one-plane", (2500, 1500), (2, 2), batch=1, channels=1),
    Case("one-row", (4_000_000,), (3,), batch=1, channels=1),
    Case("one-slice", (1, 2000, 1500), (1, 2, 2), batch=1, channels=1),
    Case("stride-two", (300, 300), (4, 4), 2, 1, 1, 1, batch=4, channels=10),
    Case("tiles", (2000, 1600), (16, 16), 16, batch=1, channels=1),
    Case("half-overlap", (1608, 1608), (16, 16), 8, batch=1, channels=1),
    Case("audio", (1_600_240,), (400,), 160, batch=2, channels=1),
)


def peak_of(call):
    """Bytes allocated at the worst moment of a call, its result included."""
    call()  # caches of geometry are filled once
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def allowed(dtype, threads):
    """Scratch of a tile in its accumulator, twice where the accumulator is not the dtype, and some for objects."""
    wide = sum_dtype(np.dtype(dtype))
    return threads * 2 * tiles.TILE_ELEMENTS * wide.itemsize + 600_000


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_col2im_needs_its_result_and_a_bounded_scratch(case, dtype, threads):
    gpufold.set_num_threads(threads)
    columns = np.broadcast_to(np.ones((), dtype), case.columns_shape)
    peak, result = peak_of(lambda: gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments))
    gpufold.set_num_threads(None)
    assert result.nbytes > 3_000_000
    assert peak - result.nbytes <= allowed(dtype, threads)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_im2col_needs_its_result(case):
    image = np.broadcast_to(np.float32(1), case.image_shape)
    peak, result = peak_of(lambda: gpufold.im2col(image, case.kernel_size, **case.arguments))
    assert peak - result.nbytes <= 600_000


def test_batch_and_space_need_their_results():
    data = np.ones((16, 8, 200, 150), np.float32)
    for operation in (gpufold.batch_to_space, gpufold.space_to_batch):
        margins = (0, 0, 3, 0), (0, 0, 1, 2)
        peak, result = peak_of(lambda operation=operation, margins=margins: operation(data, (1, 1, 4, 2), *margins))
        assert prod(result.shape) > 1_000_000
        assert peak - result.nbytes <= 600_000


def test_out_needs_no_result():
    case = CASES[0]
    columns = np.broadcast_to(np.float32(1), case.columns_shape)
    out = np.empty(case.image_shape, np.float32)
    gpufold.set_num_threads(1)
    peak, _ = peak_of(lambda: gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments, out=out))
    gpufold.set_num_threads(None)
    assert peak <= allowed(np.float32, 1)
