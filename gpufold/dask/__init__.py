"""The functions of gpufold on dask arrays, for what is larger than one GPU or one machine.

Chunks are NumPy or CuPy arrays, and a chunk of the result is one call on the pieces of the input that reach it: the
taps of a pixel are added in one place and in one order, so that results have the bits of the eager functions, seams
included. Batches, channels and leading axes stay chunked as they are and never meet, but for empty chunks, such as a
boolean mask leaves, which are left out; `chunks` says how the result is cut along its spatial axes. Nothing is computed
until dask is asked to, by any of its schedulers, and what becomes of windows, positions and sizes after the call
changes nothing then.

>>> import dask.array as da, numpy as np, gpufold.dask
>>> blocks = da.ones((63, 63, 16, 16), chunks=(9, 9, 16, 16), dtype=np.float32)
>>> image = gpufold.dask.blocks_to_array(blocks, (512, 512), (16, 16), 8, reduction="mean", chunks=128)
>>> image.chunks[0], bool((image == 1).all())
((128, 128, 128, 128), True)

dask arrays are never written into, so there is no `accumulate` here, and `add_blocks` leaves its `out` as it is:
`to_zarr` and `dask.array.store` write the chunks of a result as they come. dask walks a result row of chunks by row,
and holds the pieces that the next row needs too: of a picture too wide for that, store one part after the other,
`image[:4096, :4096]` and so on, with `dask.config.set({"optimization.fuse.active": False})`. Else dask fuses the tasks
that parts share differently in each, which `distributed`'s scheduler does not survive while results of an earlier part
are held.
"""

from __future__ import annotations

from importlib import import_module

from gpufold import extras

try:
    import_module("dask.array")
except ImportError as error:
    raise extras.missing("gpufold.dask", "dask", "dask") from error

from gpufold.dask.positions import add_blocks, average, take_blocks
from gpufold.dask.sliding import array_to_blocks, blocks_to_array, col2im, im2col
from gpufold.dask.space import batch_to_space, space_to_batch
from gpufold.dask.stitching import stitch

__all__ = [
    "add_blocks",
    "array_to_blocks",
    "average",
    "batch_to_space",
    "blocks_to_array",
    "col2im",
    "im2col",
    "space_to_batch",
    "stitch",
    "take_blocks",
]
