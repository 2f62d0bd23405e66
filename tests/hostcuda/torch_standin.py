"""Lets tensors on the CPU pass for a GPU's: a plugin beside hostcuda.standin, which runs what is launched on them.

A tensor is a GPU's from `cuda()` on, and what gpufold computes of it. What torch computes of it passes for the CPU's
again, and is finished: a launch is waited for at once.
"""

from __future__ import annotations

import torch

from gpufold.torch import tensors
from hostcuda import standin

HANDLE = 0x7F00
"""torch's current stream."""

NOT_HERE = (
    "test_nothing_waits",
    "test_the_current_stream_is_torchs",
    "test_memory_is_torchs",
    "test_a_cuda_graph_holds_calls",
    "test_devices_are_not_mixed",
)
"""Tests of torch's own streams, memory and devices."""

_kept = {}
"""The tensors that are a GPU's, by the address of their memory: none is freed, so that no address is another's."""


def lend(tensor):
    _kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
    standin.lend(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes() or 1, 0)
    return tensor


def execute(*given, launch=tensors._execute_on_gpu, **options):
    launch(*given, **options)
    standin.Device().synchronize()


def pytest_configure():
    tensors.address_of = lambda tensor: lend(tensor).data_ptr()
    tensors._execute_on_gpu = execute
    tensors._stream_of = lambda tensor: (0, HANDLE)
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
    torch.Tensor.is_cuda = property(lambda tensor: tensor.untyped_storage().data_ptr() in _kept)
    torch.Tensor.cuda = lambda tensor: lend(tensor.clone())
    torch.Tensor.cpu = lambda tensor: tensor.clone()


def pytest_collection_modifyitems(config, items):
    here = [item for item in items if not item.name.startswith(NOT_HERE)]
    config.hook.pytest_deselected(items=[item for item in items if item not in here])
    items[:] = here
