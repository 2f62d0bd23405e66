"""Repeated calls on tensors: nothing is checked twice, and whatever differs from the call before is checked."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import gpufold.torch
from gpufold.torch import executing, guards

pytestmark = pytest.mark.peer("torch")

PLACES = torch.tensor([[0, 0], [2, 2]])


def blocks(like=torch.Tensor.clone):
    return like(torch.arange(12.0).reshape(2, 3, 2) - 5)


def weights(like=torch.Tensor.clone):
    return like(torch.arange(1.0, 7.0).reshape(3, 2))


def add(given, window, positions=PLACES):
    return gpufold.torch.add_blocks(torch.zeros(5, 4), given, positions, window=window)


def add_in_place(given, window, positions=PLACES):
    return gpufold.torch.add_blocks_(torch.zeros(5, 4), given, positions, window=window)


WAYS = pytest.mark.parametrize("call", [add, add_in_place])


@pytest.fixture(autouse=True)
def none_before():
    guards.seen_of.cache_clear()


@pytest.fixture
def checks(monkeypatch):
    """Counts the windows that were checked, one in each call that checks its tensors."""
    checked = []
    check = executing.checked_window
    monkeypatch.setattr(executing, "checked_window", lambda *given: checked.append(given) or check(*given))
    return checked


@WAYS
def test_a_call_is_checked_once(call, checks):
    want = call(blocks(), weights())
    for _ in range(3):
        assert torch.equal(call(blocks(), weights()), want)
    assert len(checks) == 1


def test_one_tensor_may_be_the_window_of_every_axis(checks):
    columns, window = torch.rand(4, 9), torch.rand(2)
    want = gpufold.torch.col2im(columns, (4, 4), (2, 2), window=[window, window])
    assert torch.equal(gpufold.torch.col2im(columns, (4, 4), (2, 2), window=(window, window)), want)
    assert len(checks) == 1
    with pytest.raises(ValueError, match="one array per axis, 2 in all, got 3"):
        gpufold.torch.col2im(columns, (4, 4), (2, 2), window=(window, window, window))


LEARNING = {"given": lambda: blocks().requires_grad_(), "window": lambda: weights().requires_grad_()}


@WAYS
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": torch.ones(3, 2, dtype=torch.bool)}, "window must hold real numbers, got dtype bool"),
        ({"window": torch.ones(2, 3)}, r"window must have the shape \(3, 2\)"),
        ({"window": weights().numpy()}, "window must be a torch.Tensor"),
        ({"window": weights().to_sparse()}, "window must be a dense tensor"),
        ({"window": torch.ones(3, 2, device="meta")}, "window must be on the CPU or a CUDA device"),
        ({"positions": PLACES.double()}, "positions must be integers, got dtype float64"),
        ({"positions": PLACES.to_sparse()}, "positions must be a dense tensor"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else given,
)
def test_what_is_wrong_after_a_call_that_was_right_is_refused(call, wrong, message):
    right = {"given": blocks(), "window": weights(), "positions": PLACES}
    call(**right)
    with pytest.raises((TypeError, ValueError), match=message):
        call(**right | wrong)


@pytest.mark.parametrize("which", ["given", "window"])
def test_a_call_that_records_a_gradient_is_checked_once(which, checks):
    want = add(blocks(), weights())
    with torch.no_grad():
        assert not add(**{"given": blocks(), "window": weights()} | {which: LEARNING[which]()}).requires_grad
    checks.clear()
    for _ in range(3):
        tensors = {"given": blocks(), "window": weights()}
        result = add(**tensors | {which: tensors[which].requires_grad_()})
        assert torch.equal(result.detach(), want)
        (gradient,) = torch.autograd.grad(result.sum(), tensors[which])
        assert torch.equal(gradient, {"given": weights().expand(2, 3, 2), "window": blocks().sum(0)}[which])
    assert len(checks) == 1
    with torch.no_grad():
        assert not add(**tensors).requires_grad
    assert len(checks) == 2


def test_a_leaf_is_written_into_only_where_no_gradient_is_recorded():
    out = torch.zeros(5, 4, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            gpufold.torch.add_blocks_(out, blocks(), PLACES)
        with pytest.raises(ValueError, match="array is a leaf that requires a gradient"):
            gpufold.torch.add_blocks_(out, blocks(), PLACES)


@pytest.mark.parametrize("which", ["given", "window"])
def test_tangents_and_transforms_are_seen_after_a_call_without(which):
    tensors = {"given": blocks(), "window": weights()}
    want = add(**tensors)

    def of(tensor):
        return add(**tensors | {which: tensor})

    tensor = tensors[which]
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(of(forward_ad.make_dual(tensor, tensor)))
    assert torch.equal(value, want)
    assert torch.equal(tangent, want)
    assert torch.equal(torch.func.jvp(of, (tensor,), (tensor,))[1], want)
    assert torch.equal(torch.func.vmap(of)(torch.stack([tensor, 2 * tensor])), torch.stack([want, 2 * want]))
    assert torch.equal(of(tensor), want)


def test_a_call_inside_of_a_transform_says_nothing_of_one_outside():
    window = weights()
    torch.func.vmap(lambda given: add(given, window))(torch.stack([blocks(), blocks()]))
    given = blocks().requires_grad_()
    assert add(given, window).requires_grad


def test_memory_is_compared_in_each_call_that_writes_into_it(checks):
    memory = torch.zeros(40)
    out, given, weight_out, window = memory[:20].view(5, 4), blocks(), torch.zeros(5, 4), weights()
    for _ in range(2):
        gpufold.torch.add_blocks_(out, given, PLACES, window=window, weight_out=weight_out)
    assert len(checks) == 1
    before = memory.clone()
    for wrong, message in (
        ({"blocks": memory[14:26].view(2, 3, 2)}, "array must share no memory with blocks"),
        ({"window": memory[19:25].view(3, 2)}, "array must share no memory with window"),
        ({"weight_out": memory[4:24].view(5, 4)}, "weight_out must share no memory with array"),
    ):
        arguments = {"blocks": given, "window": window, "weight_out": weight_out} | wrong
        with pytest.raises(ValueError, match=message):
            gpufold.torch.add_blocks_(out, positions=PLACES, **arguments)
    assert torch.equal(memory, before)
    gpufold.torch.add_blocks_(out, memory[20:32].view(2, 3, 2), PLACES, window=window, weight_out=weight_out)
    assert len(checks) == 4, "memory that lies beside is compared by its bounds alone"


@WAYS
def test_every_call_is_checked_where_torch_has_no_guards(call, checks, monkeypatch):
    monkeypatch.setattr(guards, "TensorGuards", None)
    want = call(blocks(), weights())
    assert torch.equal(call(blocks(), weights()), want)
    assert len(checks) == 2
