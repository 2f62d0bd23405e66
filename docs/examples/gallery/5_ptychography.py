"""
Reconstruct an image from its diffraction
=========================================

Ptychography scans a probe over an object and measures diffraction intensities without
phases. Each iteration extracts the illuminated patches with
:func:`gpufold.take_blocks`, replaces the magnitudes of their diffraction patterns by
the measured ones, and scatter-adds the update with :func:`gpufold.add_blocks`,
normalized by the illumination.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage import data
from skimage.transform import resize

import gpufold

# %%
# A phase object, a probe, and the simulated diffraction pattern at each position. Some
# positions extend beyond the object.

SIDE = 32
phase = resize(data.camera(), (96, 96), anti_aliasing=True)
target = np.exp(2j * (phase - 0.5))
rows, columns = np.ogrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
probe = np.exp(-3 * rows**2 - 3 * (columns - 0.2j) ** 2)
beyond = SIDE // 4
positions = gpufold.grid_positions((96 + 2 * beyond,) * 2, SIDE, strides=6) - beyond
measured = abs(np.fft.fft2(gpufold.take_blocks(target, positions, SIDE) * probe))
spots = np.broadcast_to(abs(probe) ** 2, (len(positions), SIDE, SIDE))
light = gpufold.add_blocks(np.zeros((96, 96)), spots, positions)
print(len(positions), "positions")

# %%
# Sixty iterations from a constant initial guess:

found, errors = np.ones((96, 96), complex), []
for _ in range(60):
    waves = gpufold.take_blocks(found, positions, SIDE) * probe
    spectra = np.fft.fft2(waves)
    errors.append(np.linalg.norm(abs(spectra) - measured) / np.linalg.norm(measured))
    change = np.fft.ifft2(spectra / np.maximum(abs(spectra), 1e-12) * measured) - waves
    update = gpufold.add_blocks(np.zeros_like(found), change * probe.conj(), positions)
    found += update / (light + 0.01 * light.max())
# no camera sees a constant phase
found *= np.vdot(found, target) / np.vdot(found, found)

_, axes = plt.subplots(1, 4, figsize=(12.5, 3.3), layout="constrained")
axes[0].imshow(np.angle(target), cmap="twilight", vmin=-1.3, vmax=1.3)
axes[0].set_title("phase of the object")
axes[1].imshow(np.fft.fftshift(measured[60]) ** 0.5, cmap="magma")
axes[1].set_title("one diffraction pattern")
axes[2].imshow(np.angle(found), cmap="twilight", vmin=-1.3, vmax=1.3)
axes[2].set_title("reconstructed")
for axis in axes[:3]:
    axis.set_axis_off()
axes[3].semilogy(errors)
axes[3].set(title="error in the camera's plane", xlabel="step")
