"""`map_tiles`: what a function makes of tiles, averaged, is what it makes of the whole where tiles do not matter."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import gpufold

RNG = np.random.default_rng(0)
IMAGE = RNG.random((3, 50, 70), np.float32)


@pytest.mark.parametrize("batch", [1, 5, 1000])
@pytest.mark.parametrize("last", ["shift", "even", "over"])
def test_a_function_of_elements_is_applied_to_all(batch, last):
    sizes = []

    def scaled(tiles):
        assert tiles.shape[1:] == (3, 16, 12)
        sizes.append(len(tiles))
        return 2 * tiles[:, ::-1]

    window = (np.hanning(18)[1:-1], np.hanning(14)[1:-1])
    got = gpufold.map_tiles(scaled, IMAGE, (16, 12), (9, 7), window=window, batch=batch, last=last)
    np.testing.assert_allclose(got, 2 * IMAGE[::-1], rtol=1e-5)
    assert sum(sizes) == len(gpufold.grid_positions((50, 70), (16, 12), (9, 7), last=last))
    assert max(sizes) <= batch


def test_it_is_a_stitcher_s_loop():
    window, seen = RNG.random((16, 16), np.float32), RNG.random((100, 2, 16, 16), np.float32)
    positions = gpufold.grid_positions((50, 70), 16, 12)
    stitcher = gpufold.Stitcher((2, 50, 70), (16, 16), window=window)
    stitcher.add(seen[: len(positions)], positions)
    answers = iter(np.array_split(seen[: len(positions)], range(7, len(positions), 7)))
    got = gpufold.map_tiles(lambda _: next(answers), IMAGE, (16, 16), 12, window=window, batch=7)
    np.testing.assert_array_equal(got, stitcher.result())


def test_arrays_smaller_than_a_tile_are_extended():
    for mode in ("constant", "edge"):
        got = gpufold.map_tiles(np.copy, IMAGE[:, :5, :40], (16, 16), 8, mode=mode)
        np.testing.assert_allclose(got, IMAGE[:, :5, :40], rtol=1e-6)
    assert (
        gpufold.map_tiles(lambda tiles: tiles * 0 + tiles.min(), IMAGE[0, :5] + 1, (16, 16), 8, mode="edge").min() >= 1
    )


@pytest.mark.parametrize("last", ["shift", "over"])
def test_tiles_may_become_larger_or_smaller(last):
    def larger(tiles):
        return tiles.repeat(2, -2).repeat(3, -1)

    got = gpufold.map_tiles(larger, IMAGE, (16, 16), 12, last=last)
    np.testing.assert_allclose(got, larger(IMAGE), rtol=1e-6)
    got = gpufold.map_tiles(lambda tiles: tiles[..., ::2, ::2], IMAGE, (16, 16), 8, last=last)
    np.testing.assert_allclose(got, IMAGE[:, ::2, ::2], rtol=1e-6)
    with pytest.raises(ValueError, match="positions times the scale 1/2, 1/2 of the function must be integers"):
        gpufold.map_tiles(lambda tiles: tiles[..., ::2, ::2], IMAGE, (16, 16), 9)


def test_slabs_are_finished_and_written_as_they_are_ready(tmp_path):
    rows = []

    def labels(slab):
        rows.append(slab.shape[-2])
        return slab.argmax(0)

    got = gpufold.map_tiles(np.copy, IMAGE, (16, 16), 12, finish=labels)
    np.testing.assert_array_equal(got, IMAGE.argmax(0))
    assert len(rows) > 3
    assert sum(rows) == 50
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, IMAGE.shape)
    assert gpufold.map_tiles(np.copy, IMAGE, (16, 16), 12, out=out) is out
    np.testing.assert_allclose(out, IMAGE, rtol=1e-6)
    del out
    zarr = pytest.importorskip("zarr")
    out = zarr.create_array(str(tmp_path / "out.zarr"), shape=IMAGE.shape, chunks=(1, 16, 70), dtype="f4")
    gpufold.map_tiles(np.copy, IMAGE, (16, 16), 12, out=out)
    np.testing.assert_allclose(out[...], IMAGE, rtol=1e-6)


def test_memory_is_that_of_the_open_rows(tmp_path):
    volume = np.lib.format.open_memmap(tmp_path / "in.npy", "w+", np.uint8, (200, 400, 400))
    volume[...] = 3
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, volume.shape)
    tracemalloc.start()
    gpufold.map_tiles(lambda tiles: tiles, volume, (16, 64, 64), (16, 48, 48), out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (out == 3).all()
    assert peak < 0.3 * volume.size * 8, "not the sums and weights of the whole"


@pytest.mark.peer("torch")
def test_tensors_are_mapped_with_gradients():
    import torch

    image = torch.from_numpy(IMAGE).requires_grad_()
    got = gpufold.map_tiles(lambda tiles: tiles * 2, image, (16, 16), 12, batch=4)
    torch.testing.assert_close(got, 2 * image)
    got.sum().backward()
    torch.testing.assert_close(image.grad, torch.full_like(image, 2))
    into = np.zeros(IMAGE.shape, np.float32)
    gpufold.map_tiles(lambda tiles: tiles, image.detach(), (16, 16), 12, out=into)
    np.testing.assert_allclose(into, IMAGE, rtol=1e-6)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "block_shape must have one value for each of array's last axes, got 16", {"block_shape": 16}),
        (ValueError, "block_shape must have one value", {"block_shape": (1, 2, 3, 4)}),
        (ValueError, "batch must be an integer of at least 1, got 0", {"batch": 0}),
        (TypeError, "batch must be an integer", {"batch": 1.5}),
        (ValueError, r"must return .* with B = 1 .* got shape \(3, 16, 16\)", {"function": lambda tiles: tiles[0]}),
        (TypeError, "array has dtype object", {"array": IMAGE.astype(object)}),
    ],
)
def test_what_does_not_fit_is_refused(error, match, change):
    given = {"function": np.copy, "array": IMAGE, "block_shape": (16, 16), "strides": 12, **change}
    with pytest.raises(error, match=match):
        gpufold.map_tiles(**given)
