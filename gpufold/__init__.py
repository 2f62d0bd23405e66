"""Fold and unfold (col2im, im2col), overlap-add, tile stitching and batch-to-space for N-D arrays, on CPUs and GPUs.

>>> import numpy as np, gpufold
>>> image = np.arange(16.0).reshape(1, 1, 4, 4)
>>> columns = gpufold.im2col(image, (2, 2))
>>> columns.shape
(1, 4, 9)
>>> gpufold.col2im(columns, (4, 4), (2, 2))[0, 0, 0]  # corners are covered once, borders twice
array([0., 2., 4., 3.])

The public names are those of `gpufold.__all__`, and the submodules `gpufold.dask`, `gpufold.jax`, `gpufold.onnx` and
`gpufold.torch`, which load on first use. Other submodules are private.
"""

from typing import TYPE_CHECKING

from gpufold import extras
from gpufold.blocks import array_to_blocks, blocks_to_array
from gpufold.calls import Unsupported
from gpufold.explanation import explain, warmup
from gpufold.gpu.tuning import autotune
from gpufold.operations import variants
from gpufold.positions import add_blocks, add_blocks_, average, grid_positions, take_blocks
from gpufold.sliding import col2im, im2col
from gpufold.space import batch_to_space, space_to_batch
from gpufold.stitching import Stitcher
from gpufold.threads import get_num_threads, set_num_threads
from gpufold.tiling import map_tiles

__version__ = "0.1.0"

__all__ = [
    "Stitcher",
    "Unsupported",
    "add_blocks",
    "add_blocks_",
    "array_to_blocks",
    "autotune",
    "average",
    "batch_to_space",
    "blocks_to_array",
    "col2im",
    "explain",
    "get_num_threads",
    "grid_positions",
    "im2col",
    "map_tiles",
    "set_num_threads",
    "space_to_batch",
    "take_blocks",
    "variants",
    "warmup",
]

if TYPE_CHECKING:  # else type checkers would take any name for a submodule
    from gpufold import dask as dask
    from gpufold import jax as jax
    from gpufold import onnx as onnx
    from gpufold import torch as torch
else:

    def __getattr__(name):
        return extras.load(name)

    def __dir__():
        special = (name for name in globals() if name.startswith("__"))
        return sorted({*special, *__all__, *extras.loadable()})
