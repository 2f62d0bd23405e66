"""
What a GPU kernel does
======================

On a GPU, the obvious ``col2im`` lets a thread add each element of the columns to its
pixel: an atomic operation for each, in no fixed order. gpufold *gathers* instead. A
thread owns a few neighbouring pixels, finds the taps that land on them, adds them in
their order, and writes each pixel once. This page shows which those are, and asks the
planner what it would launch; it needs no GPU.
"""

import matplotlib.pyplot as plt
import numpy as np

import gpufold

SIZE, KERNEL, STRIDE = 12, 5, 2
blocks = (SIZE - KERNEL) // STRIDE + 1

# %%
# Along one axis, with blocks of 5 taps every 2 pixels: a row of the picture is a block,
# a column a pixel. The number is the tap. All taps of a pixel are 2 apart, since the
# blocks are, so that a pixel in the middle has two or three.

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
    xlabel="pixel; between red lines are those of one thread",
    ylabel="block",
    xticks=range(SIZE),
    yticks=range(blocks),
)

# %%
# The pixels between two red lines are one *cell*, as wide as the stride. Whatever cell
# a thread owns, the same taps land on it, of other blocks. So the loop over taps is
# unrolled when the kernel is compiled, no thread divides to find its taps, neighbouring
# threads read neighbouring blocks of the same tap, and loads that would be outside are
# predicated.
#
# The additions of a pixel go from its first tap to its last, which is the order of the
# loop that defines ``col2im``: a GPU gives the bits that the CPU gives, on every run.

columns = np.random.default_rng(0).standard_normal((KERNEL, blocks)).astype(np.float32)
defined = np.zeros(SIZE, np.float32)
for tap in range(KERNEL):
    for block in range(blocks):
        defined[block * STRIDE + tap] += columns[tap, block]
print(
    np.array_equal(
        gpufold.col2im(columns, (SIZE,), (KERNEL,), strides=STRIDE)[0], defined
    )
)

# %%
# :func:`gpufold.explain` has the kernel that a call would run, its grid, and why no
# other was taken:

print(
    gpufold.explain(
        "col2im",
        ((8, 64 * 9, 56 * 56), "float32"),
        (112, 112),
        (3, 3),
        strides=2,
        pads_begin=1,
        pads_end=1,
    )
)
