"""Narrow windows: what a tile covers with weights other than zero is never lost, though their product is tiny."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from cases import assert_same_bits
from ml_dtypes import bfloat16

import gpufold

SIGMAS, SIDES = (0.5, 1, 1.5, 2, 4, 8), (8, 16, 32, 64)
DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(bfloat16))


def gaussian(taps, sigma):
    """Weights of one axis in double precision, which are not zero themselves."""
    distance = (np.arange(taps) - (taps - 1) / 2) / sigma
    return np.exp(np.maximum(-0.5 * distance**2, -700.0))


def problems(sigma):
    """Yield shapes, tiles, strides, and windows by axis: small along the axes that only add to the elements."""
    for axes in (1, 2, 3, 4):
        for side in SIDES:
            tile = (side,) * axes if side ** (axes - 1) <= 1024 else (*(8,) * (axes - 1), side)
            size, strides = tuple(taps + taps // 2 for taps in tile), tuple(taps // 2 for taps in tile)
            yield size, tile, strides, tuple(gaussian(taps, sigma) for taps in tile)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_mean_of_narrow_windows_is_what_was_averaged(sigma, dtype):
    tolerance = 1e-5 if dtype == np.float32 else 1e-12 if dtype == np.float64 else 0.05
    for size, tile, strides, axes in problems(sigma):
        array = (1 + np.random.default_rng(0).random(size)).astype(dtype)
        blocks = gpufold.array_to_blocks(array, tile, strides=strides)
        positions = gpufold.grid_positions(size, tile, strides=strides)
        tiles = blocks.reshape(-1, *tile)
        for window in (axes, reduce(np.multiply.outer, axes) + 1e-300):
            sums = np.zeros(size, array.dtype if array.itemsize > 2 else np.float32)
            weight = np.zeros(size, np.float64 if dtype == np.float64 else np.float32)
            gpufold.add_blocks_(sums, tiles, positions, window=window, weight_out=weight)
            stitcher = gpufold.Stitcher(size, tile, window=window)
            stitcher.add(tiles, positions)
            for got in (
                gpufold.blocks_to_array(blocks, size, tile, strides=strides, reduction="mean", window=window),
                gpufold.average(sums, weight),
                stitcher.result(),
            ):
                np.testing.assert_allclose(got.astype(float), array.astype(float), rtol=tolerance, err_msg=f"{tile}")


@pytest.mark.parametrize("sigma", SIGMAS)
def test_least_squares_lose_no_element_either(sigma):
    for size, tile, strides, axes in problems(sigma):
        blocks = gpufold.array_to_blocks(np.ones(size, np.float32), tile, strides=strides)
        stitcher = gpufold.Stitcher(size, tile, window=axes, reduction="least_squares")
        stitcher.add(blocks.reshape(-1, *tile), gpufold.grid_positions(size, tile, strides=strides))
        folded = gpufold.blocks_to_array(blocks, size, tile, strides=strides, reduction="least_squares", window=axes)
        assert (folded > 0).all()
        assert (stitcher.result() > 0).all()


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.peer("torch"))])
@pytest.mark.parametrize("window", [None, np.array([1.0, 1e-40, 1e-60])])
def test_weights_of_whole_blocks_are_not_lost_either(kind, window):
    library = pytest.importorskip(kind)
    tile, weights = library.asarray(np.full((1, 3), 5, np.float32)), library.asarray(np.array([1e-60]))
    sums, weight = (library.zeros(3, dtype=library.float32) for _ in range(2))
    window = None if window is None else library.asarray(window)
    gpufold.add_blocks_(sums, tile, [(0,)], window=window, weights=weights, weight_out=weight)
    stitcher = gpufold.Stitcher((3,), (3,), window=window)
    stitcher.add(tile, [(0,)], weights=weights)
    for got in (gpufold.average(sums, weight), stitcher.result()):
        np.testing.assert_allclose(got, [5, 5, 5])


@pytest.mark.peer("torch")
@pytest.mark.parametrize("reduction", ["mean", "least_squares"])
@pytest.mark.parametrize("kind", ["separable", "full"])
def test_tensors_have_the_same_bits_and_a_gradient(reduction, kind):
    import torch

    import gpufold.torch

    tile, size = (8, 16), (20, 40)
    axes = tuple(gaussian(taps, 0.5) for taps in tile)
    window = axes if kind == "separable" else np.multiply.outer(*axes) + 1e-300
    given = tuple(map(torch.from_numpy, window)) if kind == "separable" else torch.from_numpy(window)
    blocks = np.ones((4, 4, *tile), np.float32)
    want = gpufold.blocks_to_array(blocks, size, tile, strides=(4, 8), reduction=reduction, window=window)
    data = torch.from_numpy(blocks).requires_grad_()
    options = {"reduction": reduction, "window": given}
    got = gpufold.torch.blocks_to_array(data, size, tile, strides=(4, 8), **options)
    assert_same_bits(got.detach().numpy(), want)
    got.sum().backward()
    if reduction == "mean":  # the weights of an element are shares
        assert data.grad.sum().item() == pytest.approx(want.size, rel=1e-5)
    by_aten = gpufold.torch.exporting.decomposed
    sizes = [list(size), list(tile), [4, 8]]
    joined = torch.cat(given) if kind == "separable" else given
    joined = gpufold.torch.tensors.narrowed(joined, torch.float32)
    arguments = (data.detach(), joined, None, None, *sizes, reduction, kind == "separable", "auto", True, True, False)
    composed = by_aten(gpufold.torch.exporting.fold_by_aten, "blocks_to_array", *arguments)
    np.testing.assert_allclose(composed.numpy(), want, rtol=1e-4)
