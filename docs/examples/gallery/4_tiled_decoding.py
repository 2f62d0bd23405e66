"""
Decode a latent by tiles
========================

The decoder of a latent diffusion model maps a small latent of many channels to a large
image. Decoding the whole latent may exceed the memory. Decoding tiles leaves seams
unless the tiles overlap and are blended. This example compares both with a small
decoder of random weights, written with :func:`gpufold.im2col`.
"""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter

import gpufold

random = np.random.default_rng(3)
FACTOR, CHANNELS = 4, (8, 24, 12, 3)
weights = [
    random.normal(0, 1 / np.sqrt(9 * inner), (outer, 9 * inner)).astype(np.float32)
    for inner, outer in pairwise(CHANNELS)
]


def decode(latent):
    """Three convolutions, with a step to twice the size after each of the first two."""
    for number, matrix in enumerate(weights):
        _, height, width = latent.shape
        columns = gpufold.im2col(latent, (3, 3), pads_begin=1, pads_end=1)
        latent = (matrix @ columns).reshape(-1, height, width)
        if number < 2:
            rectified = np.maximum(latent, 0.1 * latent)
            latent = rectified.repeat(2, axis=1).repeat(2, axis=2)
    return np.tanh(latent)


smooth = gaussian_filter(random.normal(0, 1, (CHANNELS[0], 72, 104)), (0, 5, 5))
latent = (smooth / smooth.std()).astype(np.float32)
whole = decode(latent)
print(latent.shape, "->", whole.shape)

# %%
# Decoded tiles are four times as large as latent tiles and overlap as well. A linear
# ramp blends them in a :class:`gpufold.Stitcher`.

TILE, STEP = 24, 16
SIDE = TILE * FACTOR
ramp = np.minimum(np.arange(1, SIDE + 1), np.arange(SIDE, 0, -1))
ramp = ramp.clip(max=(TILE - STEP) * FACTOR).astype(np.float32)
positions = gpufold.grid_positions(latent.shape[1:], TILE, strides=STEP)


def by_tiles(window):
    """Decode tile by tile; the stitcher keeps the image, the decoder one tile."""
    stitcher = gpufold.Stitcher(whole.shape, (SIDE, SIDE), window=window)
    for position in positions:
        tile = gpufold.take_blocks(latent, position[None], (TILE, TILE))[0]
        stitcher.add(decode(tile)[None], position[None] * FACTOR)
    return stitcher.result()


images = {
    "decoded whole": whole,
    "by tiles, plain mean": by_tiles(None),
    "by tiles, blended": by_tiles((ramp, ramp)),
}

_, axes = plt.subplots(2, 3, figsize=(10.5, 5.2), layout="constrained")
for (above, below), (name, image) in zip(axes.T, images.items()):
    above.imshow((image.transpose(1, 2, 0) + 1) / 2)
    above.set_title(name)
    error = abs(image - whole).max(0)
    below.imshow(error, cmap="magma", vmin=0, vmax=0.3)
    below.set_title(f"its error, at most {error.max():.2f}")
for axis in axes.flat:
    axis.set_axis_off()

# %%
# Errors occur only where a convolution reads beyond the edge of a tile: each pixel
# depends on two latent elements around it. With enough overlap, a window of zeros at
# the edges is exact.

exact = np.zeros(SIDE, np.float32)
exact[3 * FACTOR : -3 * FACTOR] = 1
error = abs(by_tiles((exact, exact)) - whole)
print("largest error inside:", error[:, 12:-12, 12:-12].max())
