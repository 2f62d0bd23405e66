"""
Stitch a picture larger than memory
===================================

A network has seen a large picture tile by tile, and its answers are to be one picture
again: :func:`gpufold.dask.blocks_to_array` describes it, a few chunks at a time are
computed, and Zarr keeps them. Here the picture has two megapixels, so that this page is
built in a second; with ``SIDE = 32768`` it has more than a gigapixel, and takes no more
memory. ``docs/dask.md`` says how long that takes.
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
# Tiles that exist nowhere: each chunk of them is made when it is needed, here of waves
# and noise that does not compress.

count = -(-(SIDE - TILE) // STRIDE) + 1
side = (count - 1) * STRIDE + TILE


def tiles_of_chunk(block_info=None):
    """Make the tiles of a chunk, which dask describes."""
    place = block_info[None]
    rows, columns = (np.arange(*each) for each in place["array-location"][:2])
    noise = np.random.default_rng((6, *place["chunk-location"])).random(
        place["chunk-shape"], np.float32
    )
    tile = np.arange(TILE)
    y = np.sin((rows[:, None] * STRIDE + tile) / 90)[:, None, :, None]
    x = np.sin((columns[:, None] * STRIDE + tile) / 70)[None, :, None, :]
    return (x * y + noise).astype(np.float32)


tiles = da.map_blocks(
    tiles_of_chunk,
    chunks=da.core.normalize_chunks(
        (TILES_PER_CHUNK, TILES_PER_CHUNK, TILE, TILE), (count, count, TILE, TILE)
    ),
    dtype=np.float32,
    meta=np.empty((0,) * 4, np.float32),
)

# %%
# Where tiles overlap, their mean, weighed by a Gaussian so that no seam is seen. A
# chunk of the picture has the pixels from its first tile to the next chunk's first.

distance = np.arange(TILE) - (TILE - 1) / 2
gaussian = np.exp(-0.5 * (distance / (TILE / 8)) ** 2).astype(np.float32)
chunk = TILES_PER_CHUNK * STRIDE
fused = {"reduction": "mean", "window": (gaussian, gaussian)}
picture = gpufold.dask.blocks_to_array(
    tiles, (side, side), (TILE, TILE), strides=STRIDE, chunks=chunk, **fused
)
print(picture)

# %%
# Part by part into Zarr. A whole picture would be walked row by row, with the chunks
# kept that the next row needs too; a part keeps its own alone. Parts share tasks,
# which dask would fuse differently in each, and then take for one another.

folder = TemporaryDirectory()
target = zarr.create_array(
    f"{folder.name}/picture.zarr",
    shape=picture.shape,
    chunks=picture.chunksize,
    dtype=picture.dtype,
)
step = CHUNKS_PER_PART * chunk
for top, left in product(range(0, side, step), repeat=2):
    part = slice(top, min(top + step, side)), slice(left, min(left + step, side))
    with dask.config.set({"optimization.fuse.active": False}):
        da.store(picture[part], target, regions=part, lock=False)
megapixels, of_part = (each * each / 1e6 for each in (side, step))
print(f"{megapixels:.1f} megapixels in parts of {of_part:.1f}")

# %%
# Pieces around corners of chunks have the bits of :func:`gpufold.blocks_to_array` on
# the tiles that reach them.

PIECE = 200
corners = np.random.default_rng(6).integers(1, side // chunk + 1, (8, 2)) * chunk
for corner in (*corners, (side, side)):
    starts = np.clip(np.subtract(corner, PIECE // 2), 0, side - PIECE)
    first = np.maximum(0, (starts - TILE) // STRIDE + 1)
    last = np.minimum(count - 1, (starts + PIECE - 1) // STRIDE)
    (top, left), (bottom, right) = first, last + 1
    reaching = tiles[top:bottom, left:right].compute(scheduler="synchronous")
    shape = tuple((last - first) * STRIDE + TILE)
    want = gpufold.blocks_to_array(
        reaching, shape, (TILE, TILE), strides=STRIDE, **fused
    )
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
