"""Repeated calls on tensors: nothing is checked twice, and whatever differs from the call before is checked.

Small sums that record a gradient are made by torch's own fold and unfold: the same bits, and seen by the same.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import cycle
from math import prod

import numpy as np
import pytest
import torch
from cases import CASES, Case, assert_same_bits, fold, random_case, unfold, values
from fronts import RIGHT, arrays_and_others, as_array, as_tensor
from test_torch import LAYOUTS, TRANSFORMS
from test_torch_tools import COLUMNS
from test_torch_tools import fold as small
from torch.autograd import forward_ad

import gpufold.torch
from gpufold.geometry import integers
from gpufold.torch import executing, guards

PLACES = torch.tensor([[0, 0], [2, 2]])


def blocks():
    return torch.arange(12.0).reshape(2, 3, 2) - 5


def weights():
    return torch.arange(1.0, 7.0).reshape(3, 2)


def add(given, window, positions=PLACES):
    return gpufold.torch.add_blocks(torch.zeros(5, 4), given, positions, window=window)


def add_in_place(given, window, positions=PLACES):
    return gpufold.torch.add_blocks_(torch.zeros(5, 4), given, positions, window=window)


WAYS = pytest.mark.parametrize("call", [add, add_in_place])


@pytest.fixture(autouse=True)
def none_before():
    guards.guard_cache_of.cache_clear()


@pytest.fixture
def checks(monkeypatch):
    """Counts the windows that were checked, one in each call that checks its tensors."""
    checked = []
    check = executing.checked_window
    monkeypatch.setattr(executing, "checked_window", lambda *given: checked.append(given) or check(*given))
    return checked


@WAYS
@pytest.mark.parametrize("guarded", [True, False])
def test_a_call_is_checked_once_where_torch_has_guards(call, guarded, checks, monkeypatch):
    if not guarded:
        monkeypatch.setattr(guards, "TensorGuards", None)
    want = call(blocks(), weights())
    for _ in range(3):
        assert torch.equal(call(blocks(), weights()), want)
    assert len(checks) == (1 if guarded else 4)


@pytest.mark.parametrize("name", RIGHT)
def test_sizes_of_a_repeated_call_are_not_converted_again(name, monkeypatch):
    """Shapes of tensors are no plain tuples, by which sizes are known."""
    arrays, others = arrays_and_others(name)
    call = partial(getattr(gpufold.torch, name), *map(as_tensor, arrays), *others)
    call()
    monkeypatch.setattr(integers, "as_integers", lambda *given: pytest.fail(f"converted again: {given}"))
    call()


@WAYS
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": torch.ones(3, 2, dtype=torch.bool)}, "window must hold real numbers, got dtype bool"),
        ({"window": torch.ones(2, 3)}, r"window must have the shape \(3, 2\)"),
        ({"window": (torch.ones(3),) * 3}, "one array per axis, 2 in all, got 3"),  # where the right one comes twice
        ({"window": weights().numpy()}, "window must be a torch.Tensor"),
        ({"window": weights().to_sparse()}, "window must be a dense tensor"),
        ({"window": torch.ones(3, 2, device="meta")}, "window must be on the CPU or a CUDA device"),
        ({"positions": PLACES.double()}, "positions must be integers, got dtype float64"),
        ({"positions": PLACES.to_sparse()}, "positions must be a dense tensor"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else given,
)
def test_what_is_wrong_after_a_call_that_was_right_is_refused(call, wrong, message):
    right = {"given": blocks(), "window": weights()}
    if type(wrong.get("window")) is tuple:
        right = {"given": torch.ones(2, 3, 3), "window": wrong["window"][:2]}
    call(**right)
    with pytest.raises((TypeError, ValueError), match=message):
        call(**right | wrong)


@pytest.mark.parametrize("which", ["given", "window"])
def test_a_call_that_records_a_gradient_is_checked_once(which, checks):
    want = add(blocks(), weights())

    def learning():
        tensors = {"given": blocks(), "window": weights()}
        return tensors | {which: tensors[which].requires_grad_()}

    with torch.no_grad():
        assert not add(**learning()).requires_grad
    checks.clear()
    for _ in range(3):
        tensors = learning()
        result = add(**tensors)
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
def test_calls_with_and_without_tangents_and_transforms_say_nothing_of_each_other(which):
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
    guards.guard_cache_of.cache_clear()
    torch.func.vmap(of)(tensor[None])
    assert of(tensor.requires_grad_()).requires_grad


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


WINDOWS = {"none": (), "full": ((3, 2),), "separable": ((3,), (2,)), "one for both axes": ((3,),)}


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_calls_gives_what_each_gives_alone(on, seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for number in range(30):
        kind, positions = draw.choice(list(WINDOWS)), torch.randint(-2, 5, (2, 2))
        shapes = (2, 3, 3 if kind == "one for both axes" else 2), *WINDOWS[kind]
        like = [draw.choice(list(LAYOUTS)) if draw.random() < 0.3 else "as it is" for _ in shapes]
        given = [LAYOUTS[layout](torch.rand(shape)) for layout, shape in zip(like, shapes, strict=True)]
        learns = [draw.random() < 0.1 and not each.is_inference() for each in given]
        given = [each.detach().requires_grad_() if of else each for each, of in zip(given, learns, strict=True)]
        enabled, in_place = draw.random() < 0.5, draw.random() < 0.5
        enabled = enabled and not (any(learns) and any(each.is_inference() for each in given))

        def arguments(of, kind=kind):
            blocks, *axes = of
            return blocks, (None if not axes else axes[0] if kind == "full" else (axes * 2)[:2])

        function = gpufold.torch.add_blocks_ if in_place else gpufold.torch.add_blocks
        summed, window = arguments(given)
        with torch.set_grad_enabled(enabled):
            for _ in range(2):
                got = function(torch.ones(5, 4), summed, positions, window=window)
        summed, window = arguments([each.detach().resolve_neg().numpy() for each in given])
        want = gpufold.add_blocks_(np.ones((5, 4), np.float32), summed, positions.numpy(), window=window)
        said = (seed, number, kind, like, learns, enabled, in_place)
        assert got.detach().numpy().tobytes() == want.tobytes(), said
        assert got.requires_grad is (enabled and any(learns)), said


# ---- Small sums that record a gradient


def symmetric(case):
    """Return a case with the same padding on both sides of an axis, as torch has it."""
    pads = tuple(map(max, case.pads_begin, case.pads_end))
    return replace(case, name=f"{case}-symmetric", pads_begin=pads, pads_end=pads)


def is_torchs(case, dtype):
    """Return whether torch sums the columns of a case: of two axes, by padding that is symmetric, and few."""
    begins, ends, dilations = (case.arguments[name] for name in ("pads_begin", "pads_end", "dilations"))
    alike = len(case.output_size) == 2 and begins == ends and 0 not in dilations
    return alike and dtype in ("float32", "float64") and prod(case.columns_shape) <= executing.SMALL


RANDOM = [*map(random_case, range(80_000, 80_060))]
LARGE = Case("large", (2, executing.SMALL // 4 + 2), (2, 2), batch=1, channels=1)
EVERY_CASE = [LARGE, *CASES, *RANDOM, *map(symmetric, RANDOM)]
IN_TURN = cycle(["float32", "float64", "float16", "float32", "bfloat16", "float64", "complex64"])


@pytest.mark.parametrize(("case", "dtype"), [*zip(EVERY_CASE, IN_TURN, strict=False)], ids=str)
def test_what_records_a_gradient_has_the_bits_of_the_numpy_path_and_so_have_its_gradients(case, dtype):
    columns, more, image = [values(shape, dtype) for shape in (case.columns_shape,) * 2 + (case.image_shape,)]
    columns.flat[::7], columns.flat[3::7] = np.inf, -np.inf
    for forward, adjoint, data, gradient, again in (
        (fold, unfold, columns, image, more),
        (unfold, fold, image, columns, image[..., ::-1].copy()),
    ):
        with np.errstate(invalid="ignore"):
            wants = forward(case, data), adjoint(case, gradient), forward(case, again)
        for layout in ("as it is", "every other element", "in another order"):
            leaf, ahead = [each.requires_grad_() for each in (LAYOUTS[layout](as_tensor(data)), as_tensor(gradient))]
            for _ in range(2):
                result = forward(case, leaf)
            assert (type(result.grad_fn).__name__ != "LinearFunctionBackward") is is_torchs(case, dtype)
            assert result.is_contiguous()
            (first,) = torch.autograd.grad(result, leaf, ahead, create_graph=True)
            (second,) = torch.autograd.grad(first, ahead, as_tensor(again))
            for got, want in zip((result, first, second), wants, strict=True):
                assert_same_bits(as_array(got), want)


def learning():
    """Return columns that require a gradient, after calls that torch computed."""
    columns = COLUMNS.clone().requires_grad_()
    assert {type(small(columns).grad_fn).__name__ for _ in range(3)} == {"Col2ImBackward0"}
    return columns


def profiled(function, *given):
    """Return how often each thing ran in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(*given)
    return {each.key: each.count for each in profile.key_averages()}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_computed_here(name):
    learning()
    counts = profiled(TRANSFORMS[name][0], small, (COLUMNS,))
    assert "gpufold::col2im" in counts
    assert not {"aten::col2im", "aten::im2col"} & {*counts}


def test_the_profiler_names_calls_and_those_that_torch_computes():
    def train():
        columns = COLUMNS.clone().requires_grad_()
        gpufold.torch.fold(columns, 4, 2, window=torch.rand(2, 2)).sum().backward()
        gpufold.torch.add_blocks_(torch.zeros(6), torch.ones(1, 3), [(1,)])

    counts = profiled(train)
    assert [counts[f"gpufold::{name}"] for name in ("col2im", "im2col", "add_blocks")] == [1, 1, 1]
    counts = profiled(small, learning())
    assert counts["gpufold::col2im"] == counts["aten::col2im"] == 1
