"""
Remove noise from sound
=======================

A short-time Fourier transform (STFT) transforms windowed, overlapping frames. Its
inverse is a weighted overlap-add: ``reduction="least_squares"`` multiplies each frame
by the window again and divides by the sum of squared windows. Unmodified spectra give
back the original signal.
"""

import matplotlib.pyplot as plt
import numpy as np

import gpufold

rate, frame, hop = 16000, 512, 128
time = np.arange(2 * rate) / rate
melody = np.zeros_like(time)
for step, note in enumerate((0, 4, 7, 12, 7)):
    tone = np.sin(2 * np.pi * 220 * 2 ** (note / 12) * time)
    melody += tone * (abs(time - 0.25 - 0.35 * step) < 0.16)
noisy = melody + np.random.default_rng(0).normal(0, 0.5, time.shape)

# %%
# Extract windowed frames with a hop of 128 samples:

how = {"strides": hop, "window": np.hanning(frame + 1)[:-1]}
frames = gpufold.array_to_blocks(noisy, frame, **how)
spectra = np.fft.rfft(frames)
print(frames.shape, spectra.shape)

# %%
# Set coefficients below a threshold to zero, and invert:


def inverse(spectra):
    """Return the signal of spectra."""
    frames = np.fft.irfft(spectra)
    return gpufold.blocks_to_array(
        frames, noisy.shape, frame, reduction="least_squares", **how
    )


kept = np.where(abs(spectra) > 40, spectra, 0)
sound = inverse(kept)
same = np.allclose(inverse(spectra)[frame:-frame], noisy[frame:-frame])
print("unmodified spectra give back the signal:", same)

_, axes = plt.subplots(2, 2, figsize=(10, 5.4), layout="constrained", sharex="row")
for axis, (name, spectrum) in zip(axes[0], {"noisy": spectra, "kept": kept}.items()):
    shown = np.log10(abs(spectrum).T[:120] + 0.1)
    extent = (0, time[-1], 0, 120 * rate / frame)
    axis.imshow(shown, origin="lower", aspect="auto", cmap="magma", extent=extent)
    axis.set(title=f"{name}: spectrogram", ylabel="Hz")
for axis, (name, wave) in zip(axes[1], {"noisy": noisy, "cleaned": sound}.items()):
    axis.plot(time, wave, linewidth=0.4)
    axis.set(title=name, xlabel="seconds", ylim=(-3, 3))
