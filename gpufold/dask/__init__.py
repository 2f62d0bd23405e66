"""The functions of gpufold on dask arrays, for arrays larger than one GPU or one machine.

>>> import dask.array as da, numpy as np, gpufold.dask
>>> blocks = da.ones((63, 63, 16, 16), chunks=(9, 9, 16, 16), dtype=np.float32)
>>> image = gpufold.dask.blocks_to_array(blocks, (512, 512), (16, 16), strides=8, reduction="mean", chunks=128)
>>> image.chunks[0], bool((image == 1).all())
((128, 128, 128, 128), True)

Chunks are NumPy or CuPy arrays. Each chunk of a result is one call on the part of the input that it depends on, so
results are bitwise identical to eager ones. `chunks` sets the chunks of a result's spatial axes, or of the axes that
count blocks; batches, channels and leading axes keep theirs. Windows, positions and sizes are copied when a function is
called.

dask arrays are immutable: there is no `accumulate`, and `add_blocks` returns a new array. Results wider than memory are
stored part by part, see the user guide.
"""

from __future__ import annotations

from importlib import import_module

from gpufold import extras

try:
    import_module("dask.array")
except ImportError as error:
    raise extras.missing("gpufold.dask", "dask", "dask") from error

from gpufold.dask.positions import add_blocks, average, take_blocks
from gpufold.dask.sliding import array_to_blocks, batch_to_space, blocks_to_array, col2im, im2col, space_to_batch
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
