"""
Stitch an image larger than memory
==================================

:func:`gpufold.dask.blocks_to_array` reassembles overlapping tiles lazily: dask computes
a few chunks at a time, and Zarr stores them. The image has 2.6 megapixels here, so that
this page builds in seconds. With ``SIDE = 32768`` it has more than a gigapixel;
:doc:`/dask` has timings of such an image.
"""

from itertools import product
from tempfile import TemporaryDirectory

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import zarr

import gpufold
import gpufold.dask

SIDE, TILE, STRIDE = 1500, 256, 192
TILES_PER_CHUNK, CHUNKS_PER_PART = 2, 2

# %%
# Synthetic tiles of waves and incompressible noise. Each chunk is generated when it is
# needed.

count = -(-(SIDE - TILE) // STRIDE) + 1
side = (count - 1) * STRIDE + TILE


def tiles_of_chunk(block_info=None):
    """Make the tiles of the chunk that dask describes in ``block_info``."""
    place = block_info[None]
    rows, columns = (np.arange(*each) for each in place["array-location"][:2])
    random = np.random.default_rng((6, *place["chunk-location"]))
    noise = random.random(place["chunk-shape"], np.float32)
    tile = np.arange(TILE)
    y = np.sin((rows[:, None] * STRIDE + tile) / 90)[:, None, :, None]
    x = np.sin((columns[:, None] * STRIDE + tile) / 70)[None, :, None, :]
    return (x * y + noise).astype(np.float32)


chunks = da.core.normalize_chunks(
    (TILES_PER_CHUNK, TILES_PER_CHUNK, TILE, TILE), (count, count, TILE, TILE)
)
tiles = da.map_blocks(
    tiles_of_chunk, chunks=chunks, meta=np.empty((0,) * 4, np.float32)
)

# %%
# A Gaussian-weighted mean of the overlapping tiles. A chunk of the result holds the
# pixels from its first tile to the first tile of the next chunk.

distance = np.arange(TILE) - (TILE - 1) / 2
gaussian = np.exp(-0.5 * (distance / (TILE / 8)) ** 2).astype(np.float32)
chunk = TILES_PER_CHUNK * STRIDE
fused = {"reduction": "mean", "window": (gaussian, gaussian)}
image = gpufold.dask.blocks_to_array(
    tiles, (side, side), (TILE, TILE), strides=STRIDE, chunks=chunk, **fused
)
print(image)

# %%
# Store the result in parts. In a single pass dask would keep every chunk that the next
# row needs; a part keeps only its own chunks. Task fusion is off, because dask would
# fuse the tasks that parts share differently in each part.

folder = TemporaryDirectory()
path, chunks = f"{folder.name}/image.zarr", image.chunksize
target = zarr.create_array(path, shape=image.shape, chunks=chunks, dtype=image.dtype)
step = CHUNKS_PER_PART * chunk
for top, left in product(range(0, side, step), repeat=2):
    part = slice(top, min(top + step, side)), slice(left, min(left + step, side))
    with dask.config.set({"optimization.fuse.active": False}):
        da.store(image[part], target, regions=part, lock=False)
megapixels, of_part = (each * each / 1e6 for each in (side, step))
print(f"{megapixels:.1f} megapixels in parts of {of_part:.1f}")

# %%
# Regions around the corners of chunks are bitwise equal to
# :func:`gpufold.blocks_to_array` on the tiles that overlap them.

PIECE = 200
corners = np.random.default_rng(6).integers(1, side // chunk + 1, (8, 2)) * chunk
for corner in (*corners, (side, side)):
    starts = np.clip(np.subtract(corner, PIECE // 2), 0, side - PIECE)
    first = np.maximum(0, (starts - TILE) // STRIDE + 1)
    last = np.minimum(count - 1, (starts + PIECE - 1) // STRIDE)
    (top, left), (bottom, right) = first, last + 1
    reaching = tiles[top:bottom, left:right].compute(scheduler="synchronous")
    shape = tuple((last - first) * STRIDE + TILE)
    want = gpufold.blocks_to_array(reaching, shape, TILE, strides=STRIDE, **fused)
    (y, x), (row, column) = starts, starts - first * STRIDE
    got = target[y : y + PIECE, x : x + PIECE]
    assert np.array_equal(got, want[row : row + PIECE, column : column + PIECE])

figure, axes = plt.subplots(1, 2, figsize=(9, 4.3), layout="constrained")
axes[0].imshow(target[::4, ::4], cmap="magma")
axes[0].set_title(f"{count} x {count} tiles, every fourth pixel")
axes[1].imshow(got, cmap="magma")
axes[1].set_title("the last piece that was compared")
for axis in axes:
    axis.set_axis_off()
folder.cleanup()
