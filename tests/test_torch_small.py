"""Small sums that record a gradient are made by torch's own fold and unfold: the same bits, and seen by the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fronts import as_array, as_tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from test_torch import TRANSFORMS, layouts, same_bits
from test_torch_trace import RECORDERS

import gpufold.torch
from gpufold.torch import executing, guards

pytestmark = [
    pytest.mark.peer("torch"),
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning"),
]

COLUMNS = torch.arange(72.0).reshape(2, 4, 9).cos()


@pytest.fixture(autouse=True)
def none_before():
    guards.seen_of.cache_clear()


def fold(columns):
    return gpufold.torch.fold(columns, 4, 2)


def learning(columns=COLUMNS):
    """Return columns that require a gradient, after calls that torch computed."""
    columns = columns.detach().clone().requires_grad_()
    assert {type(fold(columns).grad_fn).__name__ for _ in range(3)} == {"Col2ImBackward0"}
    return columns


# ---------------------------------------------------------------------------------------------
# Values

SPECIAL = [-0.0, 0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 1e-45, 3e38, -3e38, 0.1]


def values(draw, shape, dtype):
    """Draw an array of ordinary numbers among which special ones are strewn."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    drawn = generator.standard_normal(shape)
    rare = generator.random(shape) < draw(st.sampled_from([0, 0.2, 1]))
    with np.errstate(over="ignore"):
        return np.where(rare, generator.choice(SPECIAL, shape), drawn).astype(dtype)


@st.composite
def problems(draw):
    """Draw the arguments of a small fold, columns, and what two derivatives are asked at."""
    sizes = {name: tuple(draw(st.lists(st.integers(least, most), min_size=2, max_size=2))) for name, least, most in (
        ("kernel_size", 1, 3), ("dilation", 1, 2), ("padding", 0, 2), ("stride", 1, 3))}  # fmt: skip
    extents, blocks = [], 1
    for taps, dilation, padding, stride in zip(*sizes.values(), strict=True):
        least = max(1, dilation * (taps - 1) + 1 - 2 * padding)
        extents.append(draw(st.integers(least, least + 5)))
        blocks *= (extents[-1] + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    lead = draw(st.sampled_from([(), (0,), (1,), (3,)]))
    channels, dtype = draw(st.integers(1, 3)), draw(st.sampled_from([np.float32, np.float64]))
    columns = (*lead, channels * int(np.prod(sizes["kernel_size"])), blocks)
    shapes = columns, (*lead, channels, *extents), columns
    return (
        sizes | {"output_size": tuple(extents)},
        [values(draw, shape, dtype) for shape in shapes],
        draw(st.integers(0, 3)),
    )


def laid_out(array, layout):
    tensor = as_tensor(array.copy())
    return ([*layouts(tensor), tensor])[layout] if tensor.numel() else tensor


@settings(max_examples=120, deadline=None)
@given(problems())
def test_small_sums_have_the_bits_of_the_numpy_path_and_so_have_their_gradients(problem):
    sizes, (columns, image, more), layout = problem
    steps = {"strides": sizes["stride"], "dilations": sizes["dilation"]}
    steps |= {"pads_begin": sizes["padding"], "pads_end": sizes["padding"]}
    taken = sizes | {}
    del taken["output_size"]

    def sums(array):
        return gpufold.col2im(array, sizes["output_size"], sizes["kernel_size"], **steps)

    def blocks(array):
        return gpufold.im2col(array, sizes["kernel_size"], **steps)

    for function, arguments, data, gradient, again, forward, adjoint in (
        (gpufold.torch.fold, sizes, columns, image, more, sums, blocks),
        (gpufold.torch.unfold, taken, image, more, image[::-1].copy(), blocks, sums),
    ):
        leaf, ahead = laid_out(data, layout).requires_grad_(), laid_out(gradient, layout).requires_grad_()
        for _ in range(2):
            result = function(leaf, **arguments)
        assert (type(result.grad_fn).__name__ != "LinearBackward") == bool(leaf.numel())
        assert result.is_contiguous()
        same_bits(result.detach(), forward(data))
        (first,) = torch.autograd.grad(result, leaf, ahead, create_graph=True)
        same_bits(first.detach(), adjoint(gradient))
        (second,) = torch.autograd.grad(first, ahead, laid_out(again, layout))
        same_bits(second, forward(again))


UNLIKE = {
    "a window": (COLUMNS, {"window": torch.ones(2, 2)}),
    "a mean": (COLUMNS, {"reduction": "mean"}),
    "pads that differ": (COLUMNS, {"output_size": (3, 4), "pads_begin": (1, 0)}),
    "three axes": (COLUMNS, {"output_size": (4, 4, 1), "kernel_size": (2, 2, 1)}),
    "a dilation of zero": (COLUMNS, {"output_size": (3, 3), "dilations": 0}),
    "sums in float64": (COLUMNS, {"dtype": "float64"}),
    "bfloat16": (COLUMNS.bfloat16(), {}),
    "float16": (COLUMNS.half(), {}),
    "complex64": (COLUMNS.to(torch.complex64), {}),
    "large": (torch.ones(1, 4, executing.SMALL // 4 + 1), {"output_size": (2, executing.SMALL // 4 + 2)}),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_torch_has_not_is_not_asked_of_it(name):
    columns, options = UNLIKE[name]
    options = {"output_size": (4, 4), "kernel_size": (2, 2)} | options
    arrays = {key: as_array(value) if key == "window" else value for key, value in options.items()}
    want, columns = gpufold.col2im(as_array(columns), **arrays), columns.clone().requires_grad_()
    for _ in range(2):
        result = gpufold.torch.col2im(columns, **options)
        same_bits(result.detach(), want)
    assert type(result.grad_fn).__name__ == "LinearBackward"


# ---------------------------------------------------------------------------------------------
# What watches and what records sees the same


@pytest.mark.parametrize("name", RECORDERS)
def test_operators_are_recorded_after_a_call_that_torch_computed(name):
    _, code = RECORDERS[name](fold, [learning()])
    assert "gpufold." in code
    learning()


def profiled(function, *given):
    """Return how often each thing ran in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(*given)
    return {each.key: each.count for each in profile.key_averages()}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_computed_here(name):
    learning()
    counts = profiled(TRANSFORMS[name][0], fold, (COLUMNS,))
    assert "gpufold::col2im" in counts
    assert not {"aten::col2im", "aten::im2col"} & {*counts}


def test_the_profiler_names_a_call_that_torch_computes():
    counts = profiled(fold, learning())
    assert counts["gpufold::col2im"] == counts["aten::col2im"] == 1


def test_what_is_wrong_after_a_call_that_torch_computed_is_refused_in_gpufolds_words():
    columns = learning()
    for wrong, message in (
        (columns[:, :3], "fold: input axis"),
        (columns[..., :8], "fold: input axis"),
        (columns.to("meta")[..., :8], "fold: input axis"),
        (columns.detach().numpy(), "fold: input must be a torch.Tensor"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            fold(wrong)
