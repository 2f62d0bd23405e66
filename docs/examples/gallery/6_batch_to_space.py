"""
Compute a dilated convolution with a plain one
==============================================

:func:`gpufold.space_to_batch` rearranges an image into a batch of smaller images. With
blocks of 3 x 3, each entry holds every third pixel along both axes. A plain convolution
of the batch equals a convolution of the image with dilation 3.
:func:`gpufold.batch_to_space` is the inverse.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import convolve
from skimage import data

import gpufold

image = data.coins()[:240, :300].astype(np.float32) / 255
batch = gpufold.space_to_batch(image[None], (1, 3, 3))
print(image[None].shape, "->", batch.shape)

_, axes = plt.subplots(1, 4, figsize=(12, 2.8), layout="constrained")
axes[0].imshow(image, cmap="gray")
axes[0].set_title("the image")
for axis, number in zip(axes[1:], (0, 4, 8)):
    axis.imshow(batch[number], cmap="gray")
    axis.set_title(f"entry {number} of the batch")
for axis in axes:
    axis.set_axis_off()

# %%
# Convolve each entry with a 3 x 3 kernel and rearrange the batch. The result equals the
# dilated convolution:

kernel = np.array([[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]], np.float32)
plain = convolve(batch, kernel[None], mode="constant")
edges = gpufold.batch_to_space(plain, (1, 3, 3))[0]

dilated = np.zeros((7, 7), np.float32)
dilated[::3, ::3] = kernel
print(np.allclose(edges, convolve(image, dilated, mode="constant"), atol=1e-5))

_, axes = plt.subplots(1, 2, figsize=(8, 3.3), layout="constrained")
images = {"the image": image, "its edges, over seven pixels": edges}
for axis, (name, shown) in zip(axes, images.items()):
    axis.imshow(shown, cmap="gray")
    axis.set_title(name)
    axis.set_axis_off()
