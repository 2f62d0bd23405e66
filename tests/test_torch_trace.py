"""torch.jit.trace records gpufold's operators: what it was shown once, it computes for other values and other sizes."""

from __future__ import annotations

import warnings

import pytest
import torch
from test_torch import AVERAGED, LINEAR, WINDOWED, named

import gpufold.torch

pytestmark = [
    pytest.mark.peer("torch"),
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning"),
]


def traced(function, *given):
    """Trace a function, of which no warning says that a value was taken for a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        return torch.jit.trace(function, given)


def names(program):
    return [node.kind() for node in program.inlined_graph.nodes()]


@named([*LINEAR, *WINDOWED, *AVERAGED])
@pytest.mark.parametrize("learns", [False, True])
def test_a_trace_computes(operation, learns):
    given = operation.tensors(torch.float64, requires_grad=learns)
    for window in given[len(operation.shapes) if operation.reduction != "sum" else len(given) :]:
        window.requires_grad_(False)
    program = traced(operation.of(gpufold.torch), *given)
    assert f"gpufold::{operation.name}" in names(program)
    others = [each.requires_grad_(before.requires_grad) for each, before in zip(
        operation.tensors(torch.float64, seed=1), given, strict=True)]  # fmt: skip
    results = program(*others), operation(*others)
    assert torch.equal(*results)
    if learns:
        asked = [each for each in others if each.requires_grad]
        for got, want in zip(*(torch.autograd.grad(each.sum(), asked) for each in results), strict=True):
            assert torch.equal(got, want)


def shrink(columns):
    """Sizes that follow the input's: of the image, of the kernel, of the pads."""
    batch, rows, length = columns.shape
    taps = rows // 2
    image = gpufold.torch.fold(columns.relu(), (length + taps - 1,), (taps,))
    narrower = gpufold.torch.unfold(image, (taps,), padding=batch, stride=taps)
    return gpufold.torch.col2im(narrower, (image.shape[-1],), taps, strides=taps, pads_begin=batch, pads_end=batch)


@pytest.mark.parametrize("learns", [False, True])
def test_a_trace_serves_other_sizes(learns):
    program = traced(shrink, torch.randn(1, 6, 5, requires_grad=learns))
    for shape in ((2, 6, 8), (1, 8, 5), (3, 4, 11)):
        columns = torch.randn(shape, requires_grad=learns)
        assert torch.equal(program(columns), shrink(columns)), shape


def test_a_module_is_traced_and_saved(tmp_path):
    window = torch.nn.Parameter(torch.rand(3))
    network = torch.nn.Sequential(torch.nn.ReLU(), gpufold.torch.Fold((9,), (3,), stride=(2,), window=window))
    program = traced(network, torch.randn(2, 6, 4))
    program.save(tmp_path / "network.pt")
    columns = torch.randn(5, 6, 4)
    assert torch.equal(torch.jit.load(tmp_path / "network.pt")(columns), network(columns))


def test_positions_that_follow_the_inputs_size_are_traced():
    def middle(picture):
        return gpufold.torch.take_blocks(picture, [(picture.shape[-1] // 2, 0), (0, 0)], (3, 2))

    program = traced(middle, torch.randn(6, 6))
    assert torch.equal(program(picture := torch.randn(6, 9)), middle(picture))


def test_what_is_added_in_place_is_traced():
    def stitched(tiles):
        picture, weight = torch.zeros(2, 6), torch.zeros(6)
        gpufold.torch.add_blocks_(picture, tiles, [(0,), (2,)], torch.hann_window(3), weight_out=weight)
        return gpufold.torch.average(picture, weight)

    program = traced(stitched, torch.ones(2, 2, 3))
    tiles = torch.randn(2, 2, 3)
    assert torch.equal(program(tiles), stitched(tiles))
