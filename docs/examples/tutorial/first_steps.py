"""
Extract and reassemble blocks of an image
=========================================

Many algorithms extract overlapping blocks from an array, process each block, and add
the blocks back together. gpufold does the first and the last step. This tutorial
covers the functions that you need first.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage import data

import gpufold

# %%
# An image to work with
# ---------------------
# The last axes are the spatial ones, along which blocks are extracted. Leading axes,
# such as batch and channels, are preserved. This photograph has 128 x 128 pixels and no
# leading axis.

image = data.camera()[40:296:2, 130:386:2].astype(np.float32) / 255
print(image.shape)


def show(**images):
    """Draw images side by side, with their names as titles."""
    size = 3.2 * len(images), 3.4
    _, axes = plt.subplots(1, len(images), figsize=size, layout="constrained")
    for axis, (title, array) in zip(axes, images.items()):
        axis.imshow(array, cmap="gray" if array.dtype.kind == "f" else "viridis")
        axis.set_title(title.replace("_", " "))
        axis.set_axis_off()


# %%
# Extract blocks
# --------------
# :func:`gpufold.array_to_blocks` extracts blocks of 32 x 32 pixels with a stride of 16.
# There are ``(128 - 32) // 16 + 1 = 7`` blocks along each axis, and each block is
# contiguous in memory.

blocks = gpufold.array_to_blocks(image, (32, 32), strides=16)
print(blocks.shape)

_, axes = plt.subplots(7, 7, figsize=(6, 6), layout="constrained")
for axis, block in zip(axes.flat, blocks.reshape(-1, 32, 32)):
    axis.imshow(block, cmap="gray", vmin=0, vmax=1)
    axis.set_axis_off()

# %%
# Reassemble the image
# --------------------
# :func:`gpufold.blocks_to_array` adds the blocks. Up to four blocks overlap on a pixel:
# one in a corner, two along an edge, four in the interior.

total = gpufold.blocks_to_array(blocks, image.shape, (32, 32), strides=16)
ones = np.ones_like(blocks, dtype=np.int32)
counts = gpufold.blocks_to_array(ones, image.shape, (32, 32), strides=16)
show(the_image=image, the_sum_of_its_blocks=total, how_many_blocks_cover_a_pixel=counts)

# %%
# Divided by the number of overlapping blocks, the sum is the image.
# ``reduction="mean"`` does both in one pass:

again = gpufold.blocks_to_array(
    blocks, image.shape, (32, 32), strides=16, reduction="mean"
)
print(np.allclose(again, image))

# %%
# Blend blocks with a window
# --------------------------
# Processed blocks often disagree near their edges. Here the brightness of each block is
# slightly off, and the mean shows seams. A window gives the center of a block more
# weight. A separable window is one array of weights per axis.

offsets = np.random.default_rng(0).normal(0, 0.15, (7, 7, 1, 1))
wrong = blocks + offsets.astype(np.float32)
window = np.hanning(34)[1:-1].astype(np.float32)
plain = gpufold.blocks_to_array(
    wrong, image.shape, (32, 32), strides=16, reduction="mean"
)
soft = gpufold.blocks_to_array(
    wrong, image.shape, (32, 32), strides=16, reduction="mean", window=(window, window)
)
show(plain_mean=plain, mean_with_a_window=soft)

# %%
# Use the column layout
# ---------------------
# torch's ``unfold`` and ``fold`` store blocks as the columns of a matrix: one row per
# kernel element, one column per block. :func:`gpufold.im2col` and
# :func:`gpufold.col2im` use that layout and support padding and dilation. A convolution
# is then a matrix product:

kernel = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32)
columns = gpufold.im2col(image[None], (3, 3), pads_begin=1, pads_end=1)
print(columns.shape)
edges = (kernel.reshape(1, 9) @ columns).reshape(image.shape)
show(the_image=image, its_vertical_edges=edges)

# %%
# Place blocks at arbitrary positions
# -----------------------------------
# Blocks need not lie on a grid. :func:`gpufold.take_blocks` and
# :func:`gpufold.add_blocks` take one position per block, the coordinates of its first
# pixel. Blocks may extend beyond the image.

positions = np.array([[10, 20], [52, 40], [70, 110], [-8, 80]])
patches = gpufold.take_blocks(image, positions, (24, 24))
pasted = gpufold.add_blocks(np.zeros_like(image), patches, positions)
show(the_image=image, four_patches_of_it=pasted)

# %%
# Run on a GPU
# ------------
# Pass CuPy arrays instead of NumPy arrays. The same calls run on the device of the
# arrays, on CuPy's current stream, and return CuPy arrays.
#
# .. code-block:: python
#
#     import cupy
#     blocks = gpufold.array_to_blocks(cupy.asarray(image), (32, 32), strides=16)
#
# Tensors have gradients, see :mod:`gpufold.torch`, and :mod:`gpufold.dask` handles
# arrays larger than memory. :doc:`/choosing` lists the functions by task.
