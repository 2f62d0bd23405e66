"""CUDA tensors without a GPU: what is launched for them, by the kernels' host build, on memory that torch allocated.

Tensors on the CPU pass for tensors on device 1, on a stream of torch's that is not CuPy's.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from cases import CASES, assert_same_bits, fold, random_case, unfold, values
from fronts import DEVICE, HANDLE, as_array, as_tensor, in_dtypes, lend, passing_for_gpu, synchronize, waiting

import gpufold.torch
from bench.hostcuda import fake_cupy
from gpufold.adjoints import ADJOINTS
from gpufold.calls import SHAPES
from gpufold.gpu.plan import H200, Operand
from gpufold.gpu.registry import choose
from gpufold.operations import OPERATIONS
from gpufold.torch import executing, tensors
from gpufold.torch.guards import seen_of

pytestmark = [pytest.mark.peer("torch"), pytest.mark.peer("cupy"), pytest.mark.hostcuda]

WEIGHTS = torch.tensor([[0.5, 1.0], [2.0, 0.25], [1.5, 1.0]])


@pytest.fixture
def launches(monkeypatch):
    with passing_for_gpu(monkeypatch) as launched:
        yield launched


def whole_numbers(shape, dtype=torch.float32):
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_a_launch_is_on_torchs_stream_and_device_with_the_addresses_of_tensors(launches):
    columns = whole_numbers((2, 27, 64))
    image = gpufold.torch.col2im(columns, (8, 8), (3, 3), pads_begin=1, pads_end=1)
    ((number, stream, grid, block, (data, result, *_, parameters)),) = launches
    assert (number, stream) == (DEVICE, HANDLE)
    assert fake_cupy.get_device() == 0, "the caller's device is what it was"
    assert (data, result) == (columns.data_ptr(), image.data_ptr())
    call = gpufold.calls.col2im(tensors.described("", "", columns), (8, 8), (3, 3), 1, 1, 1, 1)
    facts = (columns.shape, (27 * 64, 64, 1)), (image.shape, (192, 64, 8, 1))
    alignments = [min(256, address & -address) for address in (data, result)]
    operands = [Operand(tuple(shape), strides, at) for (shape, strides), at in zip(facts, alignments, strict=True)]
    plan = choose(call, *operands, H200)
    assert (grid, block, parameters.tobytes()) == (plan.grid, plan.block, plan.parameters)
    synchronize()
    want = gpufold.col2im(columns.numpy(), (8, 8), (3, 3), pads_begin=1, pads_end=1)
    assert image.numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize("operation", ADJOINTS)
def test_what_an_operation_takes_has_the_shape_of_what_its_adjoint_gives(operation):
    """Shapes of contiguous tensors are not asked for, but known from the call."""
    assert SHAPES[operation] == SHAPES[ADJOINTS[operation]][::-1]
    assert set(SHAPES) == set(OPERATIONS)


@pytest.mark.some(4)
@in_dtypes(("bool", "uint16", "int32", "float16", "bfloat16", "float32", "float64", "complex64"))
def test_what_is_launched_reads_and_writes_the_memory_of_tensors(launches, operation, dtype):
    given = [*map(as_tensor, arrays := operation.arrays(dtype))]
    got = operation(*given)
    assert {(each.device, each.stream) for each in launches} == {(DEVICE, HANDLE)}
    addresses = {each for launch in launches for each in launch.arguments if type(each) is int}
    assert {got.data_ptr(), given[len(operation.shapes) - 1].data_ptr()} <= addresses
    synchronize()
    assert_same_bits(as_array(got), operation(*arrays))


@pytest.mark.parametrize(
    "case", [*random.Random(0).sample(CASES, 6), *map(random_case, range(71_000, 71_004))], ids=str
)
def test_cases_run_the_plans_of_their_sizes(launches, case):
    columns, image = values(case.columns_shape, np.float32), values(case.image_shape, np.float32)
    folded, taken = fold(case, as_tensor(columns)), unfold(case, as_tensor(image))
    synchronize()
    assert_same_bits(as_array(folded), fold(case, columns))
    assert_same_bits(as_array(taken), unfold(case, image))


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float16", "float32"), ("complex64", "complex128")])
@pytest.mark.parametrize("window", [None, WEIGHTS])
def test_sums_of_weights_go_by_address_too(launches, window, dtypes):
    narrow, wide = (getattr(torch, name) for name in dtypes)
    real = torch.empty((), dtype=wide).real.dtype
    blocks, out, weight = (
        whole_numbers((2, 4, 3, 2), narrow),
        whole_numbers((4, 5, 4), wide),
        whole_numbers((4, 5), real).T,
    )
    positions, window = lend(torch.tensor([[0, 0], [3, -1]])), None if window is None else lend(window.to(real))
    want = [out.numpy().copy(), weight.numpy().copy()]
    weights = None if window is None else window.numpy()
    gpufold.add_blocks_(want[0], blocks.numpy(), positions.numpy(), window=weights, weight_out=want[1])
    gpufold.torch.add_blocks_(out, blocks, positions, window=window, weight_out=weight)
    *_, arguments = launches[-1]
    assert weight.data_ptr() in [each for each in arguments if type(each) is int]
    synchronize()
    assert_same_bits(out.numpy(), want[0])
    assert_same_bits(weight.numpy(), want[1])


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
        seen_of.cache_clear()
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


def test_nothing_waits(launches):
    columns = whole_numbers((4, 9))
    with fake_cupy.Device(DEVICE):
        queue = fake_cupy._queues[DEVICE, HANDLE]
    gpufold.torch.col2im(columns, (4, 4), (2, 2))
    assert len(queue) == 1, "queued on torch's stream, and not done"
    synchronize()
    assert not queue


def test_scatters_clear_their_result_first_on_the_same_stream(launches):
    columns = whole_numbers((4, 9), torch.int32)
    image = gpufold.torch.col2im(columns, (4, 4), (2, 2), variant="atomic")
    assert len(fake_cupy._queues[DEVICE, HANDLE]) == 2
    synchronize()
    assert image.numpy().tobytes() == gpufold.col2im(columns.numpy(), (4, 4), (2, 2)).tobytes()


UNREADY = {
    "float64": lambda weights: weights.to(torch.float64),
    "transposed": lambda weights: weights.T.contiguous().T,
    "negative": lambda weights: torch._neg_view(weights.neg()),
    "integers": lambda weights: weights.to(torch.int32),
}
"""The same weights as kernels cannot read them."""


@pytest.mark.parametrize("way", ["plain", "differentiated", "operator"])
@pytest.mark.parametrize("layout", UNREADY)
def test_weights_are_made_ready_for_kernels(launches, layout, way):
    window, blocks = UNREADY[layout](WEIGHTS.round()), whole_numbers((2, 3, 2))
    positions, out = lend(torch.tensor([[0, 0], [3, 2]])), whole_numbers((5, 4))
    want = gpufold.add_blocks_(out.numpy().copy(), blocks.numpy(), positions.numpy(), window=WEIGHTS.round().numpy())
    if way == "operator":
        got = torch.ops.gpufold.add_blocks(blocks, window, positions, out, "sum", False, "auto", True, True)
    else:
        got = gpufold.torch.add_blocks(out, blocks.requires_grad_(way == "differentiated"), positions, window=window)
    synchronize()
    assert got.detach().numpy().tobytes() == want.tobytes()


def test_lists_of_blocks_are_made_in_memory_of_torchs_on_the_same_stream(launches):
    blocks, out = whole_numbers((40, 3, 2)), whole_numbers((15, 14))
    positions = lend(torch.randint(-3, 15, (40, 2), generator=torch.Generator().manual_seed(1)))
    want = gpufold.add_blocks_(out.numpy().copy(), blocks.numpy(), positions.numpy())
    gpufold.torch.add_blocks_(out, blocks, positions, variant="lists")
    assert [(number, stream) for number, stream, *_ in launches] == [(DEVICE, HANDLE)] * 5
    synchronize()
    assert out.numpy().tobytes() == want.tobytes()


def test_blocks_of_an_empty_array_are_zero(launches, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, shape, dtype=None: torch.full(shape, float("nan")))
    positions = lend(torch.zeros(3, 2, dtype=torch.int64))
    got = gpufold.torch.take_blocks(torch.empty(0, 4), positions, (2, 5))
    synchronize()
    assert torch.equal(got, torch.zeros(3, 2, 5))


LAYOUTS = {
    "as it is": torch.clone,
    "one element further": lambda tensor: torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape),
    "every other element": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "repeated": lambda tensor: tensor[:1].expand(tensor.shape),
    "in another order": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "negative": lambda tensor: torch._neg_view(tensor.neg()),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "of inference mode": torch.inference_mode()(torch.clone),
}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_any_sequence_of_calls_gives_what_each_gives_alone(on, seed, request, monkeypatch):
    seen_of.cache_clear()
    if on == "cuda":  # what torch does with a result waits for nothing here
        request.getfixturevalue("launches")
        monkeypatch.setattr(executing, "_execute_on_gpu", waiting(executing._execute_on_gpu))
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for number in range(30):
        drawn = {"blocks": torch.rand(2, 3, 2), "positions": torch.randint(-2, 5, (2, 2))}
        kind = draw.choice(("none", "full", "separable", "one for both axes"))
        if kind in ("full", "separable"):
            drawn |= {"full": {"window": torch.rand(3, 2)}, "separable": {0: torch.rand(3), 1: torch.rand(2)}}[kind]
        elif kind == "one for both axes":
            drawn |= {"blocks": torch.rand(2, 3, 3), 0: torch.rand(3)}
        like = {name: draw.choice(list(LAYOUTS)) for name in drawn if draw.random() < 0.3}
        like.pop("positions", "")
        drawn |= {name: LAYOUTS[layout](drawn[name]) for name, layout in like.items()}
        recorded = [name for name in drawn if name != "positions" and draw.random() < 0.1]
        recorded = [name for name in recorded if not drawn[name].is_inference()]
        for name in recorded:
            drawn[name] = drawn[name].detach().requires_grad_()
        axes = [drawn[name] for name in (0, 1) if name in drawn]
        window = drawn.get("window", (axes * 2)[:2] if axes else None)
        enabled, in_place = draw.random() < 0.5, draw.random() < 0.5
        if any(tensor.is_inference() for tensor in drawn.values()):
            enabled = enabled and not recorded
        function = gpufold.torch.add_blocks_ if in_place else gpufold.torch.add_blocks
        with torch.set_grad_enabled(enabled):
            for _ in range(2):
                got = function(torch.ones(5, 4), drawn["blocks"], drawn["positions"], window=window)
        arrays = {name: tensor.detach().resolve_neg().numpy() for name, tensor in drawn.items()}
        axes = [arrays[name] for name in (0, 1) if name in arrays]
        window = arrays.get("window", (axes * 2)[:2] if axes else None)
        want = np.ones((5, 4), np.float32)
        gpufold.add_blocks_(want, arrays["blocks"], arrays["positions"], window=window)
        said = (seed, number, kind, like, recorded, enabled, in_place)
        assert got.detach().numpy().tobytes() == want.tobytes(), said
        assert got.requires_grad is (enabled and bool(recorded)), said


RACED = {
    "fold": (lambda given: gpufold.torch.col2im(given, (8, 8), (3, 3), pads_begin=1, pads_end=1), (2, 27, 64)),
    "mean": (
        lambda given: gpufold.torch.col2im(given, (8, 8), (3, 2), pads_begin=1, reduction="mean", window=WEIGHTS),
        (18, 56),
    ),
    "unfold": (lambda given: gpufold.torch.im2col(given, (3, 3)), (2, 3, 8, 9)),
    "add": (lambda given: gpufold.torch.add_blocks(torch.zeros(9, 9), given, PLACES), (3, 2, 4)),
    "add in place": (lambda given: gpufold.torch.add_blocks_(torch.ones(9, 9), given, PLACES), (3, 2, 4)),
    "take": (lambda given: gpufold.torch.take_blocks(given, PLACES, (8, 4)), (3, 9, 9)),
    "space": (lambda given: gpufold.torch.batch_to_space(given, (1, 2, 2)), (8, 4, 6)),
    "space to batch": (lambda given: gpufold.torch.space_to_batch(given, (1, 2, 2)), (2, 8, 12)),
    "blocks to array": (
        lambda given: gpufold.torch.blocks_to_array(given, (2, 8, 9), (3, 4), strides=(2, 1)),
        (2, 3, 6, 3, 4),
    ),
    "array to blocks": (lambda given: gpufold.torch.array_to_blocks(given, (3, 4), strides=(2, 1)), (2, 8, 9)),
}
PLACES = torch.tensor([[0, 0], [2, 3], [-1, 7]])


@pytest.mark.parametrize("name", RACED)
def test_a_race_on_tensors_changes_no_bit_and_is_run_once(launches, monkeypatch, tmp_path, name):
    from gpufold.gpu import launch, tuning

    measured, draw = [], random.Random(name)

    def clock(stream, flushed, size, run):
        assert stream.ptr == HANDLE
        measured.append(run())
        return draw.uniform(1, 9)

    monkeypatch.setattr(launch, "clock", clock)
    monkeypatch.setenv("GPUFOLD_CACHE_DIR", str(tmp_path))
    tuning.forget()
    lend(WEIGHTS)
    lend(PLACES)
    call, shape = RACED[name]
    given = whole_numbers(shape)

    def answer():
        got = call(given)
        synchronize()
        return got.numpy().tobytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executing, "is_on_gpu", lambda tensor: False)
        seen_of.cache_clear()
        want = call(given).numpy().tobytes()
        seen_of.cache_clear()
    assert [answer(), answer()] == [want] * 2
    with gpufold.autotune():
        assert answer() == want
        races = len(measured)
        assert [answer(), answer()] == [want] * 2
    assert answer() == want
    assert len(measured) == races > 0
    assert tuning.known(launch.device(DEVICE))
    tuning.forget()
