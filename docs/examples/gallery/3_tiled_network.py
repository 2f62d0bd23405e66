"""
Apply a network to overlapping tiles
====================================

Sliding-window inference applies a network to overlapping tiles of a large image.
Predictions near the edges of a tile are less accurate, because the network lacks
context there. :class:`gpufold.Stitcher` accumulates weighted tiles batch by batch and
divides by the sum of weights. The tiles never have to fit into memory at once.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter
from skimage import data

import gpufold

image = data.coins().astype(np.float32) / 255


def network(tiles):
    """Stand in for a network: local contrast, wrong near a border."""
    around = np.stack([gaussian_filter(tile, 12, mode="constant") for tile in tiles])
    return tiles - around


# %%
# Positions of tiles that cover the image. The last tile along each axis is shifted to
# end at the edge:

positions = gpufold.grid_positions(image.shape, (96, 96), strides=48)
print(len(positions), "tiles, the last at", positions[-1])


def stitched(window):
    """Stitch the network's predictions, eight tiles at a time."""
    stitcher = gpufold.Stitcher(image.shape, (96, 96), window=window)
    for batch in np.array_split(positions, len(positions) // 8):
        stitcher.add(network(gpufold.take_blocks(image, batch, (96, 96))), batch)
    return stitcher.result()


# %%
# A plain mean shows seams between tiles. A Gaussian window removes them:

bell = np.exp(-0.5 * ((np.arange(96) - 47.5) / 14) ** 2).astype(np.float32)
results = {
    "whole image at once": network(image[None])[0],
    "plain mean": stitched(None),
    "bell": stitched((bell, bell)),
}

_, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), layout="constrained")
for axis, (name, result) in zip(axes, results.items()):
    axis.imshow(result, cmap="gray", vmin=-0.3, vmax=0.4)
    axis.set_title(name)
    axis.set_axis_off()
