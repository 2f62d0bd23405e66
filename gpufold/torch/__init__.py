"""The functions of gpufold on torch tensors, and torch's `fold` and `unfold` for any number of axes.

>>> import torch, gpufold.torch
>>> columns = torch.ones(1, 3, 4, requires_grad=True)  # one channel of 4 blocks of 3 samples
>>> signal = gpufold.torch.fold(columns, (9,), (3,), stride=(2,))
>>> signal.tolist()
[[[1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0]]]
>>> signal.square().sum().backward()
>>> columns.grad[0, :, 0].tolist()
[2.0, 2.0, 4.0]

CPU tensors use the NumPy path on their own memory, CUDA tensors the kernels for CuPy arrays on torch's current stream.
All functions are differentiable any number of times and work under torch.func, torch.compile and exporters.
"""

from __future__ import annotations

from gpufold import extras

try:
    from torch import __version__
except ImportError as error:
    raise extras.missing("gpufold.torch", "torch", "torch") from error
if tuple(map(int, __version__.split(".")[:2])) < (2, 6):  # NVIDIA's containers have alpha versions
    raise extras.outdated("gpufold.torch", "torch", __version__, "2.6")

from gpufold.torch.door import InvalidValue, NoMemory
from gpufold.torch.exporting import decompositions
from gpufold.torch.functions import (
    add_blocks,
    add_blocks_,
    array_to_blocks,
    average,
    batch_to_space,
    blocks_to_array,
    col2im,
    im2col,
    space_to_batch,
    take_blocks,
)
from gpufold.torch.nn import Fold, Unfold, fold, unfold

__all__ = [
    "Fold",
    "InvalidValue",
    "NoMemory",
    "Unfold",
    "add_blocks",
    "add_blocks_",
    "array_to_blocks",
    "average",
    "batch_to_space",
    "blocks_to_array",
    "col2im",
    "decompositions",
    "fold",
    "im2col",
    "space_to_batch",
    "take_blocks",
    "unfold",
]
