"""
Blocks out of an image, and back
================================

A sliding block is a small window that moves over an array, a few elements at a time.
Many programs take all blocks out, do something to each of them, and put them back
together where they overlap: that is what gpufold is for. This page goes through the
functions that you meet first.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage import data

import gpufold

# %%
# An image to work with
# ---------------------
# All functions take arrays whose last axes are those that blocks move along. What
# stands before them, such as colours or images of a batch, is carried along. This
# photograph has one plane of 128 x 128 pixels.

image = data.camera()[40:296:2, 130:386:2].astype(np.float32) / 255
print(image.shape)


def show(*pictures, **titles):
    """Draw pictures beside each other, each with its title."""
    _, axes = plt.subplots(
        1,
        len(titles),
        figsize=(3.2 * len(titles), 3.4),
        layout="constrained",
        squeeze=False,
    )
    for axis, (title, picture) in zip(axes.flat, titles.items()):
        axis.imshow(picture, cmap="gray" if picture.dtype.kind == "f" else "viridis")
        axis.set_title(title.replace("_", " "))
        axis.set_axis_off()


# %%
# Take the blocks out
# -------------------
# :func:`gpufold.array_to_blocks` takes blocks of 32 x 32 pixels, one every 16 pixels
# along each axis. There are ``(128 - 32) // 16 + 1 = 7`` of them along each axis, and
# each lies in one piece of memory.

blocks = gpufold.array_to_blocks(image, (32, 32), strides=16)
print(blocks.shape)

_, axes = plt.subplots(7, 7, figsize=(6, 6), layout="constrained")
for axis, block in zip(axes.flat, blocks.reshape(-1, 32, 32)):
    axis.imshow(block, cmap="gray", vmin=0, vmax=1)
    axis.set_axis_off()

# %%
# Put them back together
# ----------------------
# :func:`gpufold.blocks_to_array` adds the blocks up again. Where they overlap, a pixel
# is added several times: one block covers a corner, two a border, four the middle.

total = gpufold.blocks_to_array(blocks, image.shape, (32, 32), strides=16)
counts = gpufold.blocks_to_array(
    np.ones_like(blocks, dtype=np.int32), image.shape, (32, 32), strides=16
)
show(the_image=image, the_sum_of_its_blocks=total, how_many_blocks_cover_a_pixel=counts)

# %%
# Divided by those numbers, the sum is the image again. ``reduction="mean"`` does both
# in one pass:

again = gpufold.blocks_to_array(
    blocks, image.shape, (32, 32), strides=16, reduction="mean"
)
print(np.allclose(again, image))

# %%
# Weigh them with a window
# ------------------------
# What was done to the blocks often fits badly at their borders. Here each block's
# brightness is wrong by a little, as a network that sees one block at a time might have
# it, and the mean has seams. A window trusts the middle of each block: one array of
# weights for each axis, whose product a weight is.

wrong = blocks + np.random.default_rng(0).normal(0, 0.15, (7, 7, 1, 1)).astype(
    np.float32
)
window = np.hanning(34)[1:-1].astype(np.float32)
plain = gpufold.blocks_to_array(
    wrong, image.shape, (32, 32), strides=16, reduction="mean"
)
soft = gpufold.blocks_to_array(
    wrong, image.shape, (32, 32), strides=16, reduction="mean", window=(window, window)
)
show(plain_mean=plain, mean_with_a_window=soft)

# %%
# Blocks as columns
# -----------------
# Convolutions, and programs written for torch's ``unfold`` and ``fold``, hold the same
# blocks as the columns of a matrix: a row for each place in a block, a column for each
# block. :func:`gpufold.im2col` and :func:`gpufold.col2im` have that layout, with pads
# and dilations. A convolution is then a product of matrices:

kernel = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32)
columns = gpufold.im2col(image[None], (3, 3), pads_begin=1, pads_end=1)
print(columns.shape)
edges = (kernel.reshape(1, 9) @ columns).reshape(image.shape)
show(the_image=image, its_vertical_edges=edges)

# %%
# Blocks where you want them
# --------------------------
# Blocks need not lie on a grid. :func:`gpufold.take_blocks` and
# :func:`gpufold.add_blocks` have a position for each block, the coordinates of its
# first pixel, and may reach over the borders of the image.

positions = np.array([[10, 20], [52, 40], [70, 110], [-8, 80]])
patches = gpufold.take_blocks(image, positions, (24, 24))
pasted = gpufold.add_blocks(np.zeros_like(image), patches, positions)
show(the_image=image, four_patches_of_it=pasted)

# %%
# On a GPU
# --------
# Nothing changes but the arrays: with CuPy's in place of NumPy's, the same calls run on
# the GPU that the arrays are on, in CuPy's current stream, and return arrays there.
#
# .. code-block:: python
#
#     import cupy
#     blocks = gpufold.array_to_blocks(cupy.asarray(image), (32, 32), strides=16)
#
# For tensors there is :mod:`gpufold.torch`, with gradients, and for arrays larger than
# memory :mod:`gpufold.dask`. :doc:`/choosing` says which function serves what.
