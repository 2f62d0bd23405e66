"""What users have averages and windows for, against what they compute today."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from itertools import product
from math import prod

import numpy as np
import pytest
from scipy import signal

import gpufold


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("taps", "hop"), [(256, 64), (400, 160), (2048, 512)])
def test_the_inverse_short_time_fourier_transform_is_scipys(taps, hop, dtype):
    sound = np.random.default_rng(0).standard_normal((3, 40 * hop)).astype(dtype)
    window = signal.get_window("hann", taps).astype(dtype)
    _, _, spectra = signal.stft(sound, window=window, nperseg=taps, noverlap=taps - hop)
    _, theirs = signal.istft(spectra, window=window, nperseg=taps, noverlap=taps - hop)

    frames = np.fft.irfft(spectra, taps, axis=-2).astype(dtype) * window.sum()
    length = ((frames.shape[-1] - 1) * hop,)
    pads = taps // 2
    ours = gpufold.col2im(
        frames,
        length,
        (taps,),
        strides=hop,
        pads_begin=pads,
        pads_end=pads,
        window=window,
        reduction="least_squares",
    )[:, 0]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=50 * np.finfo(dtype).eps)
    np.testing.assert_allclose(ours[:, : sound.shape[-1]], sound, rtol=0, atol=50 * np.finfo(dtype).eps)


def istft(xp, spectra, window, hop, length, before):
    """Invert as docs/recipes.md does."""
    frames, taps = xp.fft.irfft(spectra, None, -2), len(window)
    behind = (frames.shape[-1] - 1) * hop + taps - before - length
    return gpufold.col2im(
        frames[..., :taps, :],
        (length,),
        taps,
        strides=hop,
        pads_begin=before,
        pads_end=behind,
        window=window,
        reduction="least_squares",
    )[..., 0, :]


KINDS = [
    pytest.param(name, marks=() if name == "numpy" else pytest.mark.peer(name.partition(".")[0]))
    for name in ("numpy", "torch", "jax.numpy", "dask.array")
]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("taps", "hop", "mfft"), [(256, 64, 256), (400, 160, 512), (400, 100, 400)])
def test_one_inverse_transform_serves_arrays_of_every_kind(name, taps, hop, mfft):
    """Equal to SciPy's and torch's: whole, and in chunks as they come."""
    xp, length, window = import_module(name), 24 * hop, signal.get_window("hann", taps)
    make = {"torch": lambda array: xp.from_numpy(np.array(array))}.get(name, xp.asarray)
    sound = np.random.default_rng(0).standard_normal((2, length))
    transform = signal.ShortTimeFFT(window, hop, fs=1, mfft=mfft, phase_shift=None)
    spectra, before = transform.stft(sound), transform.m_num_mid - hop * transform.p_min
    close = 1e-5 if name == "jax.numpy" else 1e-13  # which has 32 bits
    weights = window if name == "dask.array" else make(window)
    whole = istft(xp, make(spectra), weights, hop, length, before)
    np.testing.assert_allclose(np.asarray(whole), transform.istft(spectra, k1=length), rtol=0, atol=close)
    if name != "dask.array":  # which waits until it is computed
        starts = hop * np.arange(spectra.shape[-1]) - before
        stream, heard = gpufold.Stitcher((2, None), taps, window="hann", reduction="least_squares"), []
        for first in range(0, len(starts), 5):
            few = xp.fft.irfft(make(spectra[..., first : first + 5]), None, -2)[..., :taps, :]
            stream.add(xp.moveaxis(few, -1, 0), starts[first : first + 5])
            heard.append(np.asarray(stream.finished()[1]))
        heard.append(np.asarray(stream.result()[1]))
        np.testing.assert_allclose(np.concatenate(heard, 1)[:, :length], np.asarray(whole), rtol=0, atol=close)
    if name == "torch" and mfft == taps:
        given = xp.stft(make(sound), taps, hop, window=weights, pad_mode="constant", return_complex=True)
        theirs = xp.istft(given, taps, hop, window=weights, length=length)
        xp.testing.assert_close(istft(xp, given, weights, hop, length, taps // 2), theirs)


def test_where_nola_does_not_hold_is_an_error_or_a_number():
    frames = np.ones((3, 8))
    window = np.array([0, 1, 1, 1, 1, 1, 1, 0.0])
    assert not signal.check_NOLA(window, 8, 1)
    for positions in ([0, 7, 14], np.array([0, 7, 14])):
        stream = gpufold.Stitcher((None,), 8, window=window)
        stream.add(frames, positions)
        with pytest.raises(ValueError, match=r"^Stitcher.finished: .* NOLA .* got 2 elements uncovered"):
            stream.finished(fill_value=None)
        with pytest.raises(ValueError, match=r"^Stitcher.result: .* got 4 elements uncovered"):
            stream.result(fill_value=None)
        assert np.isnan(stream.result(fill_value=np.nan)[1]).nonzero()[0].tolist() == [0, 7, 14, 21]
    stream = gpufold.Stitcher((None,), 8, window="hamming")
    stream.add(frames, [0, 7, 14])
    np.testing.assert_allclose(stream.result(fill_value=None)[1], 1)
    with pytest.raises(ValueError, match=r"^Stitcher: window 'hand' must be one of scipy.signal.get_window: "):
        gpufold.Stitcher((None,), 8, window="hand")


@pytest.mark.parametrize(("taps", "hop"), [(256, 64), (400, 160), (401, 150)])
@pytest.mark.parametrize("frames", [1, 7])
def test_a_stream_of_spectra_is_inverted_as_scipy_inverts_the_whole(taps, hop, frames):
    """However many come at a time, and where the window is not symmetric."""
    sound = np.random.default_rng(0).standard_normal((2, 40 * hop + 3))
    length, window = sound.shape[1], signal.get_window("hann", taps) + np.linspace(0, 0.1, taps)
    transform = signal.ShortTimeFFT(window, hop, fs=1, mfft=512, phase_shift=None)
    spectra = transform.stft(sound)
    starts = hop * np.arange(transform.p_min, transform.p_max(length))[:, None] - transform.m_num_mid
    stream, heard = gpufold.Stitcher((2, None), taps, window=window, reduction="least_squares"), []
    for first in range(0, spectra.shape[-1], frames):
        few = np.fft.irfft(spectra[..., first : first + frames], 512, axis=1)[:, :taps]
        stream.add(few.transpose(2, 0, 1), starts[first : first + frames])
        heard.append(stream.finished()[1])
    heard = np.concatenate([*heard, stream.result()[1]], axis=1)[:, :length]
    np.testing.assert_allclose(heard, transform.istft(spectra, k1=length), rtol=0, atol=1e-13)
    np.testing.assert_allclose(heard, sound, rtol=0, atol=1e-13)


@pytest.mark.peer("torch")
@pytest.mark.parametrize("center", [True, False])
def test_a_stream_of_spectra_is_inverted_as_torch_inverts_the_whole(center):
    """Without `center` torch refuses windows that begin with zero; there NOLA fails for one sample, which is zero."""
    import torch

    taps, hop, length = 400, 160, 9040
    sound, window = torch.randn(2, length, dtype=torch.float64), torch.hann_window(taps, dtype=torch.float64)
    spectra = torch.stft(sound, taps, hop, window=window, center=center, pad_mode="constant", return_complex=True)
    stream, heard = gpufold.Stitcher((2, None), taps, window=window, reduction="least_squares"), []
    for number, frame in enumerate(torch.fft.irfft(spectra, dim=1).permute(2, 0, 1)):
        stream.add(frame[None], [(number * hop - center * taps // 2,)])
        heard.append(stream.finished()[1])
    heard = torch.cat([*heard, stream.result()[1]], 1)[:, :length]
    if center:
        torch.testing.assert_close(heard, torch.istft(spectra, taps, hop, window=window, length=length))
    else:
        with pytest.raises(RuntimeError, match="window overlap add min"):
            torch.istft(spectra, taps, hop, window=window, center=False)
        assert not heard[:, 0].any()
        torch.testing.assert_close(heard[:, 1:], sound[:, 1 : heard.shape[1]])


def gaussian(taps):
    """MONAI's importance map along one axis, sigma an eighth of the tile."""
    sample = np.arange(taps)
    return np.exp(-0.5 * ((sample - (taps - 1) / 2) / (taps / 8)) ** 2).astype(np.float32)


@pytest.mark.parametrize(
    ("size", "tile", "step"), [((96, 128), (32, 32), (16, 32)), ((40, 48, 32), (16, 24, 16), (8, 12, 8))], ids=str
)
def test_stitching_is_monais_loop(size, tile, step):
    classes, rng = 3, np.random.default_rng(1)
    counts = [(extent - block) // hop + 1 for extent, block, hop in zip(size, tile, step, strict=True)]
    tiles = rng.standard_normal((classes, *counts, *tile)).astype(np.float32)
    windows = [gaussian(taps) for taps in tile]
    importance = np.multiply.outer(np.multiply.outer(windows[0], windows[1]), windows[2] if len(tile) > 2 else 1)
    total, count = np.zeros((classes, *size)), np.zeros(size)
    for block in np.ndindex(*counts):
        where = tuple(slice(b * s, b * s + k) for b, s, k in zip(block, step, tile, strict=True))
        total[(slice(None), *where)] += importance * tiles[(slice(None), *block)]
        count[where] += importance

    ours = gpufold.blocks_to_array(tiles, (classes, *size), tile, strides=step, window=windows, reduction="mean")
    np.testing.assert_allclose(ours, total / count, rtol=1e-4, atol=1e-5)
    full = gpufold.blocks_to_array(tiles, (classes, *size), tile, strides=step, window=importance, reduction="mean")
    np.testing.assert_allclose(full, total / count, rtol=1e-4, atol=1e-5)


def steps_of_nnunet(size, tile, overlap=0.5):
    """Where nnU-Net's sliding window puts its tiles: evenly spaced, the last one ending with the image."""
    steps = []
    for extent, side in zip(size, tile, strict=True):
        count = int(np.ceil((extent - side) / (side * overlap))) + 1
        spacing = (extent - side) / (count - 1) if count > 1 else 0.0
        steps.append([int(np.round(spacing * i)) for i in range(count)])
    return steps


@pytest.mark.parametrize(("size", "tile"), [((97, 131), (32, 40)), ((41, 50, 37), (16, 24, 20))], ids=str)
def test_tiles_that_end_with_the_image_are_nnunets_loop(size, tile):
    """The steps differ by a pixel, so that no stride describes them."""
    classes, rng = 2, np.random.default_rng(4)
    steps = steps_of_nnunet(size, tile)
    assert any(len(set(np.diff(along))) > 1 for along in steps)
    positions = np.array(list(product(*steps)))
    tiles = rng.standard_normal((len(positions), classes, *tile)).astype(np.float32)
    windows = tuple(gaussian(side) for side in tile)
    importance = reduce(np.multiply.outer, windows)
    logits, predictions = np.zeros((classes, *size), np.float32), np.zeros(size, np.float32)
    for start, block in zip(positions, tiles, strict=True):
        where = tuple(slice(p, p + side) for p, side in zip(start, tile, strict=True))
        logits[(slice(None), *where)] += block * importance
        predictions[where] += importance

    ours, weight = np.zeros_like(logits), np.zeros_like(predictions)
    gpufold.add_blocks_(ours, tiles, positions, window=importance)
    gpufold.add_blocks_(weight, np.broadcast_to(np.float32(1), (len(positions), *tile)), positions, window=importance)
    np.testing.assert_array_equal(ours, logits)
    np.testing.assert_array_equal(weight, predictions)


def test_a_picture_comes_together_from_bands_of_tiles():
    """Numerator and denominator are added up band by band, in views of the whole."""
    size, tile, step = (80, 60), (16, 20), (8, 10)
    rng, window = np.random.default_rng(2), [gaussian(16), gaussian(20)]
    tiles = rng.standard_normal((9, 5, *tile)).astype(np.float32)
    numerator, denominator = np.zeros((2, *size), np.float32)
    for first in range(0, 9, 2):
        band = tiles[first : first + 2]
        rows = slice(first * 8, (first + len(band) - 1) * 8 + 16)
        for out, blocks in ((numerator[rows], band), (denominator[rows], np.broadcast_to(np.float32(1), band.shape))):
            gpufold.blocks_to_array(blocks, out.shape, tile, strides=step, window=window, out=out, accumulate=True)
    whole = gpufold.blocks_to_array(tiles, size, tile, strides=step, window=window, reduction="mean")
    np.testing.assert_allclose(numerator / denominator, whole, rtol=1e-4, atol=1e-5)


def test_the_mean_of_patches_is_their_sum_over_their_count():
    patch = (8, 8)
    columns = np.random.default_rng(3).standard_normal((3 * prod(patch), 25 * 33)).astype(np.float32)
    ones = np.ones((prod(patch), 25 * 33), np.float32)
    count = gpufold.col2im(ones, (32, 40), patch)
    mean = gpufold.col2im(columns, (32, 40), patch, reduction="mean")
    np.testing.assert_array_equal(mean, gpufold.col2im(columns, (32, 40), patch) / count)
