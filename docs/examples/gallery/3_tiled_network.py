"""
A network that sees one tile at a time
======================================

A network that was trained on small pictures sees a large one tile by tile. What it says
near the borders of a tile is worse, since it does not see what lies beyond.
:class:`gpufold.Stitcher` adds the tiles up as they come, weighted, and divides by the
weights at the end: neither the tiles nor a weighted copy of them need to fit into
memory.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter
from skimage import data

import gpufold

picture = data.coins().astype(np.float32) / 255


def network(tiles):
    """Stand in for a network: local contrast, wrong where a border is near."""
    around = np.stack([gaussian_filter(tile, 12, mode="constant") for tile in tiles])
    return tiles - around


# %%
# Positions of tiles that cover the picture, the last ones moved in so that none reaches
# over the border:

positions = gpufold.grid_positions(picture.shape, (96, 96), strides=48)
print(len(positions), "tiles, the last at", positions[-1])


def stitched(window):
    """Stitch what the network says, eight tiles at a time."""
    stitcher = gpufold.Stitcher(picture.shape, (96, 96), window=window)
    for batch in np.array_split(positions, len(positions) // 8):
        stitcher.add(network(gpufold.take_blocks(picture, batch, (96, 96))), batch)
    return stitcher.result()


# %%
# Without a window each tile counts the same up to its borders, and the seams show. A
# bell hides them:

bell = np.exp(-0.5 * ((np.arange(96) - 47.5) / 14) ** 2).astype(np.float32)
results = {
    "whole picture at once": network(picture[None])[0],
    "plain mean": stitched(None),
    "bell": stitched((bell, bell)),
}

_, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), layout="constrained")
for axis, (name, result) in zip(axes, results.items()):
    axis.imshow(result, cmap="gray", vmin=-0.3, vmax=0.4)
    axis.set_title(name)
    axis.set_axis_off()
