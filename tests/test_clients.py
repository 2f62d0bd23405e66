"""Inverse short-time Fourier transforms, against SciPy's and torch's."""

from __future__ import annotations

import doctest
from importlib import import_module

import numpy as np
import pytest
from processes import CHECKOUT
from scipy import signal

import gpufold


def recipe(name):
    """Return a function that docs/recipes.md defines."""
    examples = doctest.DocTestParser().get_examples((CHECKOUT / "docs" / "recipes.md").read_text())
    (source,) = [each.source for each in examples if each.source.startswith(f"def {name}(")]
    exec(source, names := {"gpufold": gpufold})
    return names[name]


istft = recipe("istft")
KINDS = [
    pytest.param(name, marks=() if name == "numpy" else pytest.mark.peer(name.partition(".")[0]))
    for name in ("numpy", "torch", "jax.numpy", "dask.array")
]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("taps", "hop", "mfft", "several"), [(256, 64, 256, 5), (400, 160, 512, 7), (400, 100, 400, 5), (401, 150, 512, 1)]
)
def test_one_inverse_transform_serves_arrays_of_every_kind(name, taps, hop, mfft, several):
    """Equal to SciPy's and torch's: whole, and several frames at a time as they come; one window is not symmetric."""
    xp, length, window = import_module(name), 24 * hop + 3, signal.get_window("hann", taps)
    window = window + np.linspace(0, 0.1, taps) * (taps % 2)
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
        own = weights if taps % 2 else "hann"
        stream, heard = gpufold.Stitcher((2, None), taps, window=own, reduction="least_squares"), []
        for first in range(0, len(starts), several):
            few = xp.fft.irfft(make(spectra[..., first : first + several]), None, -2)[..., :taps, :]
            stream.add(xp.moveaxis(few, -1, 0), starts[first : first + several])
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
