"""CUDA tensors without a GPU: what is launched for them, by the kernels' host build, on memory that torch allocated.

Tensors on the CPU pass for tensors on device 1, on a stream of torch's that is not CuPy's.
"""

from __future__ import annotations

import random

import fronts
import pytest
import torch
from cases import DTYPES, assert_same_bits
from fronts import DEVICE, EVERY, HANDLE, as_array, as_tensor, call_by, in_dtypes, named, synchronize
from test_torch import placed, tensors_of

import gpufold.torch
from bench.hostcuda import fake_cupy
from gpufold.torch import executing
from gpufold.torch.guards import guard_cache_of

pytestmark = [pytest.mark.peer("cupy"), pytest.mark.hostcuda]


@pytest.fixture
def launches(monkeypatch):
    with fronts.passing_for_gpu(monkeypatch) as launched:
        yield launched


def whole_numbers(shape, dtype=torch.float32):
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.some(7, all=2)
@in_dtypes(DTYPES)
def test_what_is_launched_reads_and_writes_the_memory_of_tensors(launches, call, dtype):
    given = [*map(as_tensor, arrays := call.arrays(dtype))]
    got = placed(call)(*given)
    assert got.is_contiguous()
    assert {each[:2] for each in launches} == {(DEVICE, HANDLE)}
    assert fake_cupy.get_device() == 0, "the caller's device is what it was"
    addresses = {each for *_, arguments in launches for each in arguments if type(each) is int}
    assert {got.data_ptr(), given[len(call.numbers) - 1].data_ptr()} <= addresses
    synchronize()
    assert_same_bits(as_array(got), call(*arrays))


def check_gradients(call, given):
    assert torch.autograd.gradcheck(call, given, check_forward_ad=True, nondet_tol=1e-12, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given, nondet_tol=1e-12, fast_mode=True)


@pytest.mark.some(5)
@named(EVERY)
def test_gradients_are_launched_too(launches, monkeypatch, call):
    monkeypatch.setattr(executing, "_execute_on_gpu", fronts.waiting(executing._execute_on_gpu))
    check_gradients(placed(call), tensors_of(call, "float64", learns=True))
    assert launches


@pytest.mark.parametrize(
    ("name", "variant", "steps"),
    [("col2im", "gather", 1), ("col2im", "atomic", 2), ("add_blocks", "binned", 6)],  # two clear memory first
)
def test_every_step_of_a_call_is_queued_on_torchs_stream_and_waited_for_by_none(launches, name, variant, steps):
    call = call_by(name)
    arrays = call.arrays("int32")
    with fake_cupy.Device(DEVICE):
        queue = fake_cupy._queues[DEVICE, HANDLE]
    got = call.with_options(variant=variant)(*map(as_tensor, arrays))
    assert len(queue) == steps
    synchronize()
    assert not queue
    assert_same_bits(as_array(got), call(*arrays))


def aligned(values, beyond=0):
    """Return a copy that begins so many bytes beyond a multiple of 256."""
    memory = bytearray(values.nbytes + 512)
    begin = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 256 + beyond
    copy = torch.frombuffer(memory, dtype=values.dtype, count=values.numel(), offset=begin)
    return copy.view(values.shape).copy_(values)


@pytest.mark.parametrize("beyond", [2, 4, 256])
def test_a_repeated_call_runs_the_plan_of_its_own_alignment(launches, beyond, monkeypatch):
    values = whole_numbers((4, 9, 16, 4), torch.float16)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, shape: aligned(torch.zeros(shape, dtype=like.dtype)))

    def launched(number):
        moved = gpufold.torch.batch_to_space(aligned(values, number), (1, 2, 2, 1))
        _, _, grid, block, (*_, parameters) = launches[-1]
        synchronize()
        assert moved.numpy().tobytes() == gpufold.batch_to_space(values.numpy(), (1, 2, 2, 1)).tobytes()
        return grid, block, parameters.tobytes()

    first = {}
    for number in (beyond, 0):
        guard_cache_of.cache_clear()
        first[number] = launched(number)
    assert (first[beyond] == first[0]) is (beyond == 256)
    for number in (0, 0, beyond, 0, beyond):
        assert launched(number) == first[number]


@pytest.mark.parametrize("which", ["array", "blocks", "weight_out"])
def test_elements_that_lie_between_their_multiples_are_refused_after_a_call_that_was_right(launches, which):
    given = {"array": torch.zeros(5, 4), "blocks": whole_numbers((2, 3, 2)), "weight_out": torch.zeros(5, 4)}
    given = {name: aligned(tensor) for name, tensor in given.items()}
    positions = torch.tensor([[0, 0], [2, 2]])
    for _ in range(2):
        gpufold.torch.add_blocks_(positions=positions, **given)
    synchronize()
    with pytest.raises(gpufold.Unsupported, match="do not lie on multiples of their size"):
        gpufold.torch.add_blocks_(positions=positions, **given | {which: aligned(given[which], 1)})


UNREADY = {
    "float64": lambda weights: weights.to(torch.float64),
    "transposed": lambda weights: weights.T.contiguous().T,
    "negative": lambda weights: torch._neg_view(weights.neg()),
    "integers": lambda weights: weights.to(torch.int32),
}
"""The same weights as kernels cannot read them."""


@pytest.mark.parametrize("layout", UNREADY)
def test_weights_of_an_operator_are_made_ready_for_kernels(launches, layout):
    blocks, window, out = whole_numbers((2, 3, 2)), whole_numbers((3, 2)), whole_numbers((5, 4))
    positions = fronts.lend(torch.tensor([[0, 0], [3, 2]]))
    want = gpufold.add_blocks(*(each.numpy() for each in (out, blocks, positions)), window=window.numpy())
    choices = "sum", False, "auto", True, True, False
    got = torch.ops.gpufold.add_blocks(blocks, UNREADY[layout](window), positions, out, *choices)
    synchronize()
    assert_same_bits(got.numpy(), want)


def test_blocks_of_an_empty_array_are_zero(launches, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, shape, dtype=None: torch.full(shape, float("nan")))
    got = gpufold.torch.take_blocks(torch.empty(0, 4), torch.zeros(3, 2, dtype=torch.int64), (2, 5))
    synchronize()
    assert torch.equal(got, torch.zeros(3, 2, 5))


@named(map(call_by, ("col2im", "col2im-mean-full", "im2col", "add_blocks")))
def test_a_race_on_tensors_changes_no_bit_and_is_run_once(launches, monkeypatch, tmp_path, call):
    from gpufold.gpu import launch, tuning

    measured, draw = [], random.Random(call.name)

    def clock(stream, flushed, size, run):
        assert stream.ptr == HANDLE
        measured.append(run())
        return draw.uniform(1, 9)

    monkeypatch.setattr(launch, "clock", clock)
    monkeypatch.setenv("GPUFOLD_CACHE_DIR", str(tmp_path))
    tuning.forget()
    given = [*map(as_tensor, arrays := call.arrays("float32"))]

    def check():
        got = call(*given)
        synchronize()
        assert_same_bits(as_array(got), call(*arrays))

    check()
    check()
    with gpufold.autotune():
        check()
        races = len(measured)
        check()
    check()
    assert len(measured) == races > 0
    assert tuning.known(launch.device(DEVICE))
    tuning.forget()
