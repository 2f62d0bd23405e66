"""gpufold.torch on a GPU: the bits of the CPU, on torch's current stream, in torch's memory, without waiting."""

from __future__ import annotations

import pytest
import torch
from cases import DTYPES, assert_same_bits
from fronts import EVERY, as_array, as_tensor, in_dtypes, named
from test_torch import placed, tensors_of
from test_torch_launch import check_gradients

import gpufold.torch

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _built_for_cuda():
    if not torch.cuda.is_available():
        pytest.xfail("needs a torch that is built for CUDA")


@pytest.mark.some(7)
@in_dtypes(DTYPES)
def test_results_have_the_bits_of_the_numpy_path(call, dtype):
    arrays = call.arrays(dtype)
    got = placed(call, "cuda")(*[as_tensor(array).cuda() for array in arrays])
    assert got.is_cuda
    assert got.is_contiguous()
    assert_same_bits(as_array(got.cpu()), call(*arrays))


@pytest.mark.some(5)
@named(EVERY)
def test_gradients(call):
    given = tensors_of(call, "float64", learns=True)
    leaves = [each.detach().cuda().requires_grad_(each.requires_grad) for each in given]
    check_gradients(placed(call, "cuda"), leaves)


@named(EVERY)
def test_nothing_waits(call):
    call, given = placed(call, "cuda"), [each.cuda() for each in tensors_of(call, "float32")]
    leaf = given[0].clone().requires_grad_()

    def forward_and_backward():
        call(*given)
        result = call(leaf, *given[1:])
        torch.autograd.grad(result, leaf, torch.ones_like(result))

    forward_and_backward()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        forward_and_backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_current_stream_is_torchs():
    columns = torch.randn(8, 27 * 16, 62 * 62)
    want = gpufold.torch.fold(columns, 64, 3)
    gpufold.torch.fold(columns.cuda(), 64, 3)  # compiles
    stream, data, pinned = torch.cuda.Stream(), torch.zeros_like(columns).cuda(), columns.pin_memory()
    torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        data.copy_(pinned, non_blocking=True)  # from memory that is not pinned it would wait for the sleep
        got = gpufold.torch.fold(data, 64, 3)
        assert not stream.query(), "the call has come back before its stream is done"
    stream.synchronize()
    assert torch.equal(got.cpu(), want)


def test_memory_is_torchs():
    import cupy

    data = torch.randn(8, 27 * 16, 62 * 62, device="cuda")
    gpufold.torch.fold(data, 64, 3)
    pool = cupy.get_default_memory_pool().total_bytes()
    before = torch.cuda.memory_allocated()
    result = gpufold.torch.fold(data, 64, 3, window=torch.ones(3, 3, device="cuda"))
    assert torch.cuda.memory_allocated() - before < result.nbytes + (1 << 20)
    assert cupy.get_default_memory_pool().total_bytes() == pool


def test_a_cuda_graph_holds_calls():
    data = torch.randn(2, 27, 36, device="cuda")
    window = torch.rand(3, 3, device="cuda", dtype=torch.float64)  # which is converted in the graph

    def call():
        return gpufold.torch.fold(data, 8, 3, window=window, reduction="mean")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    data.copy_(torch.randn(2, 27, 36, device="cuda") * 3)
    graph.replay()
    assert torch.equal(result, call())


def test_devices_are_not_mixed():
    with pytest.raises(ValueError, match=r"window must be on the device of the input, cuda:0, got cpu"):
        gpufold.torch.fold(torch.zeros(1, 4, 9, device="cuda"), 4, 2, window=torch.ones(2, 2))
    with pytest.raises(ValueError, match="blocks must be on the device of array"):
        gpufold.torch.add_blocks(torch.zeros(4, device="cuda"), torch.zeros(1, 2), [(0,)])
