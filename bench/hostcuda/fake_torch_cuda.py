"""Lets tensors on the CPU pass for a GPU's: a plugin beside hostcuda.fake_cupy, which runs what is launched on them.

A tensor is a GPU's from `cuda()` on, and what gpufold computes of it. What torch computes of it passes for the CPU's
again, and is finished: work is done at once, but for what is behind a sleep on its stream. That lasts until the stream
is waited for, as a copy from memory that is not pinned does.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import torch

from bench.hostcuda import fake_cupy
from gpufold.torch import executing

HANDLE = 0x7F00
"""torch's current stream where a test makes none."""

NOT_HERE = (
    "test_nothing_waits",
    "test_memory_is_torchs",
    "test_a_cuda_graph_holds_calls",
    "test_devices_are_not_mixed",
)
"""Tests of torch's own streams, memory and devices."""

_kept = {}
"""The tensors that are a GPU's, by the address of their memory: none is freed, so that no address is another's."""


def lend(tensor):
    _kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
    fake_cupy.lend(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes() or 1, 0)
    return tensor


class Stream:
    """A stream of torch's; the one that a test has entered last is torch's current one."""

    handles = itertools.count(HANDLE)
    current = None

    def __init__(self):
        self.handle, self.asleep = next(self.handles), False
        fake_cupy.lend_stream(self.handle, 0)

    def add(self, work):
        """Do work, or queue it behind a sleep."""
        fake_cupy._queue(work, fake_cupy.ForeignStream(self.handle), 0)
        if not self.asleep:
            self.synchronize()

    def synchronize(self):
        self.asleep = False
        fake_cupy._do(fake_cupy._queues[0, self.handle])

    def query(self):
        return not self.asleep


@contextmanager
def on(stream):
    before, Stream.current = Stream.current, stream
    yield
    Stream.current = before


def sleep(cycles):
    Stream.current.asleep = True


_pinned = {}


def pin(tensor):
    pinned = tensor.clone()
    return _pinned.setdefault(pinned.data_ptr(), pinned)


def copy(to, origin, non_blocking=False, plain=torch.Tensor.copy_):
    """Copy to a GPU in the order of the current stream, waiting for it where memory is not pinned."""
    if not to.is_cuda or origin.is_cuda:
        return plain(to, origin)
    Stream.current.add(lambda: plain(to, origin))
    if not (non_blocking and origin.data_ptr() in _pinned):
        Stream.current.synchronize()
    return to


def execute(*given, launch=executing._execute_on_gpu, **options):
    launch(*given, **options)
    if not Stream.current.asleep:
        fake_cupy.Device().synchronize()


def pytest_configure():
    executing.address_of = lambda tensor: lend(tensor).data_ptr()
    executing._execute_on_gpu = execute
    Stream.current = Stream()
    executing._stream_of = lambda tensor: (0, Stream.current.handle)
    torch.cuda.Stream, torch.cuda.stream, torch.cuda._sleep = Stream, on, sleep
    torch.cuda.current_stream = lambda: Stream.current
    torch.Tensor.pin_memory, torch.Tensor.copy_ = pin, copy
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
    torch.Tensor.is_cuda = property(lambda tensor: tensor.untyped_storage().data_ptr() in _kept)
    torch.Tensor.cuda = lambda tensor: lend(tensor.clone())
    torch.Tensor.cpu = lambda tensor: tensor.clone()


def pytest_collection_modifyitems(config, items):
    here = [item for item in items if not item.name.startswith(NOT_HERE)]
    config.hook.pytest_deselected(items=[item for item in items if item not in here])
    items[:] = here
