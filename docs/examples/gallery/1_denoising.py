"""
Remove noise from a photograph
==============================

Patch-based denoising with the discrete cosine transform (DCT). Every 8 x 8 patch is
denoised separately: small DCT coefficients are mostly noise and are set to zero. Up to
64 patches overlap on a pixel, and their mean is the result.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.fft import dctn, idctn
from skimage import data
from skimage.metrics import peak_signal_noise_ratio

import gpufold

clean = data.camera()[60:316, 100:356].astype(np.float32) / 255
noisy = clean + np.random.default_rng(0).normal(0, 0.1, clean.shape).astype(np.float32)

# %%
# Extract every patch, transform it, and keep the coefficients above the noise level:

blocks = gpufold.array_to_blocks(noisy, (8, 8), strides=1)
spectra = dctn(blocks, axes=(-2, -1), norm="ortho")
print(spectra.shape, f"{np.mean(abs(spectra) > 0.3):.0%} of the coefficients are kept")
spectra[abs(spectra) < 0.3] = 0

# %%
# Transform back and average the overlapping patches:

blocks = idctn(spectra, axes=(-2, -1), norm="ortho")
restored = gpufold.blocks_to_array(blocks, clean.shape, 8, strides=1, reduction="mean")


def quality(image):
    """Return how close an image is to the original."""
    return f"{peak_signal_noise_ratio(clean, image, data_range=1):.1f} dB"


_, axes = plt.subplots(1, 3, figsize=(10, 3.7), layout="constrained")
images = {
    "original": clean,
    f"noisy, {quality(noisy)}": noisy,
    f"restored, {quality(restored)}": restored,
}
for axis, (name, image) in zip(axes, images.items()):
    axis.imshow(image, cmap="gray", vmin=0, vmax=1)
    axis.set_title(name)
    axis.set_axis_off()
