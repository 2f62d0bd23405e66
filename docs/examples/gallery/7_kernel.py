"""
How the GPU kernel of col2im works
==================================

A straightforward ``col2im`` kernel scatters: one atomic addition per column element, in
no fixed order. gpufold *gathers* instead. Each thread owns a few adjacent pixels, sums
the elements that land on them in a fixed order, and writes each pixel once. This
example shows which elements those are and prints the planned launch. It needs no GPU.
"""

import matplotlib.pyplot as plt
import numpy as np

import gpufold

SIZE, KERNEL, STRIDE = 12, 5, 2
blocks = (SIZE - KERNEL) // STRIDE + 1

# %%
# One axis, a kernel of 5 elements and a stride of 2. A row of the figure is a block, a
# column is a pixel, and the number is the kernel element. The elements of a pixel are
# one stride apart, so an interior pixel has two or three of them.

taps = np.full((blocks, SIZE), np.nan)
for block in range(blocks):
    taps[block, block * STRIDE : block * STRIDE + KERNEL] = np.arange(KERNEL)

figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
axis.imshow(taps, cmap="Blues", vmin=-2, vmax=7)
for (block, pixel), tap in np.ndenumerate(taps):
    if np.isfinite(tap):
        axis.text(pixel, block, f"{tap:.0f}", ha="center", va="center")
for cell in range(0, SIZE, STRIDE):
    axis.axvline(cell - 0.5, color="tab:red", linewidth=2)
axis.set(
    xlabel="pixel; red lines separate the pixels of threads",
    ylabel="block",
    xticks=range(SIZE),
    yticks=range(blocks),
)

# %%
# The pixels between two red lines form a *cell*, as wide as the stride. The same kernel
# elements land on every cell, from different blocks. The loop over them is unrolled at
# compile time without divisions. Adjacent threads read adjacent blocks, so loads
# coalesce, and loads outside the image are predicated.
#
# Each pixel is summed in ascending order of kernel elements, the order of the loop that
# defines ``col2im``. Results are bitwise reproducible and equal those of the CPU.

columns = np.random.default_rng(0).standard_normal((KERNEL, blocks)).astype(np.float32)
defined = np.zeros(SIZE, np.float32)
for tap in range(KERNEL):
    for block in range(blocks):
        defined[block * STRIDE + tap] += columns[tap, block]
image = gpufold.col2im(columns, (SIZE,), (KERNEL,), strides=STRIDE)[0]
print(np.array_equal(image, defined))

# %%
# :func:`gpufold.explain` reports the kernel that a call would launch, its grid, and why
# it was chosen:

columns = (8, 64 * 9, 56 * 56), "float32"
how = {"strides": 2, "pads_begin": 1, "pads_end": 1}
print(gpufold.explain("col2im", columns, (112, 112), (3, 3), **how))
