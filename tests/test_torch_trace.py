"""torch.jit.trace records gpufold's operators: what it was shown once, it computes for other values and other sizes."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from test_torch import AVERAGED, LINEAR, WINDOWED, named
from torch.fx.experimental.proxy_tensor import make_fx

import gpufold.torch
from gpufold.torch import operators

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
        gpufold.torch.add_blocks_(picture, tiles, [(0,), (2,)], window=torch.hann_window(3), weight_out=weight)
        return gpufold.torch.average(picture, weight)

    program = traced(stitched, torch.ones(2, 2, 3))
    tiles = torch.randn(2, 2, 3)
    assert torch.equal(program(tiles), stitched(tiles))


LOADED = """
import sys
import torch
import gpufold.torch

for path in sys.argv[1:]:
    program = torch.jit.load(path)
    for given, want in torch.load(path + ".given"):
        got = program(given)
        assert torch.equal(got, want), (path, got.shape, want.shape)
"""

SAVED = {
    "fold": lambda image: gpufold.torch.fold(gpufold.torch.unfold(image, 2), tuple(image.shape[2:]), 2),
    "fold-windowed": lambda image: gpufold.torch.fold(
        gpufold.torch.unfold(image, 2), (image.shape[2], image.size(3)), 2, window=WEIGHTS),
    "module": lambda image: gpufold.torch.Fold(image.shape[2:], 2, window=WEIGHTS)(gpufold.torch.unfold(image, 2)),
    "unfold": lambda image: gpufold.torch.unfold(image, (image.shape[2] - 1, 2), padding=image.shape[1]),
    "col2im": lambda image: gpufold.torch.col2im(
        gpufold.torch.im2col(image, (2, 2)), image.size()[2:], (2, 2), reduction="mean"),
    "blocks_to_array": lambda image: gpufold.torch.blocks_to_array(
        gpufold.torch.array_to_blocks(image, (2, 2)), image.shape, (2, 2)),
    "take_blocks": lambda image: gpufold.torch.take_blocks(image, [(0, image.shape[3] - 2)], (2, image.shape[2])),
    "add_blocks_": lambda image: gpufold.torch.add_blocks_(
        torch.zeros_like(image), image[None, ..., :2, :2], [(0, image.shape[3] - 2)]),
    "space_to_batch": lambda image: gpufold.torch.space_to_batch(
        image, (1, 1, 1, image.shape[3]), pads_begin=0, pads_end=(0, 0, 0, image.shape[3])),
}  # fmt: skip
"""Calls with sizes or positions that follow the input's."""

WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_a_saved_trace_loads_in_another_process_and_serves_other_sizes(tmp_path):
    images = [torch.randn(shape) for shape in ((2, 3, 5, 7), (1, 3, 6, 4))]
    for name, function in SAVED.items():
        traced(function, images[0]).save(str(tmp_path / name))
        torch.save([(image, function(image)) for image in images], tmp_path / f"{name}.given")
    paths = [str(tmp_path / name) for name in SAVED]
    ran = subprocess.run([sys.executable, "-c", LOADED, *paths], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_trace_outlives_any_number_of_others():
    program = torch.jit.trace(SAVED["fold"], torch.randn(2, 3, 5, 7), check_trace=False)
    for number in range(300):
        operators._script(f"def call(given_1: Tensor) -> Tensor:\n    return given_1 + {number}\n")
    gc.collect()
    image = torch.randn(1, 3, 6, 4)
    assert torch.equal(program(image), SAVED["fold"](image))


def test_a_traced_size_must_be_an_integer():
    for wrong in (lambda image: image.shape[2] / 1, lambda image: image.shape[2] > 1):
        with pytest.raises(TypeError, match="fold: output_size must be of integers, got dtype"):
            torch.jit.trace(
                lambda image, size=wrong: gpufold.torch.fold(gpufold.torch.unfold(image, 2), (size(image), 4), 2),
                torch.randn(2, 3, 5, 4),
            )


# ---------------------------------------------------------------------------------------------
# Every way by which sizes and positions are given, under everything that records or transforms a call

PLACES = [(0, 1), (-1, 2)]


def constant(given):
    return lambda image: given


SIZES = {
    "ints": constant((5, 4)),
    "NumPy's integers": constant((np.int64(5), np.int32(4))),
    "an array": constant(np.array([5, 4])),
    "a tensor": constant(torch.tensor([5, 4])),
    "a tensor without axes": constant((torch.tensor(5), 4)),
    "a torch.Size": lambda image: image.shape[2:],
    "a tuple of a shape": lambda image: tuple(image.shape[2:]),
    "a shape in part": lambda image: (image.shape[2], 4),
    "computed": lambda image: (image.size(-1) + 1, image.shape[2] * 2 - 6),
}
POSITIONS = {
    "tuples": constant(PLACES),
    "an array": constant(np.array(PLACES)),
    "an array of int32": constant(np.array(PLACES, np.int32)),
    "arrays": constant([*map(np.array, PLACES)]),
    "a tensor": constant(torch.tensor(PLACES)),
    "a tensor of int32": constant(torch.tensor(PLACES, dtype=torch.int32)),
    "a tensor without axes": constant([(0, torch.tensor(1)), (-1, 2)]),
    "tensors": constant([*map(torch.tensor, PLACES)]),
    "of a shape": lambda image: [(0, image.shape[3] - 3), (-1, image.size(2) - 3)],
}
CALLS = {
    "sizes": (SIZES, lambda given: lambda image: gpufold.torch.col2im(
        gpufold.torch.im2col(image, (2, 2)), given(image), (2, 2))),
    "taken at positions": (POSITIONS, lambda given: lambda image: gpufold.torch.take_blocks(
        image, given(image), (2, 2))),
    "added at positions": (POSITIONS, lambda given: lambda image: gpufold.torch.add_blocks_(
        torch.zeros_like(image), torch.stack([image[..., :2, :2]] * 2), given(image),
        weight_out=image.new_zeros(image.shape[2:]))),
}  # fmt: skip


def saved(function, image):
    with warnings.catch_warnings(action="ignore", category=torch.jit.TracerWarning):  # of sizes that are constants
        program = torch.jit.trace(function, image)
    file = io.BytesIO()
    torch.jit.save(program, file)
    file.seek(0)
    return torch.jit.load(file)


def exported(function, image):
    class Model(torch.nn.Module):
        def forward(self, image):
            return function(image)

    return torch.export.export(Model(), (image,)).module()


def compiled(function, image, **options):
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True, **options)


def gradient(function, image):
    return torch.autograd.grad(function(leaf := image.clone().requires_grad_()).square().sum(), leaf)[0]


RECORDERS = {
    "trace": saved,
    "export": exported,
    "compile": compiled,
    "compile of any size": partial(compiled, dynamic=True),
    "make_fx": lambda function, image: make_fx(function)(image),
    "make_fx of fakes": lambda function, image: make_fx(function, tracing_mode="fake")(image),
    "make_fx of symbols": lambda function, image: make_fx(function, tracing_mode="symbolic")(image),
    "functionalize": lambda function, image: torch.func.functionalize(function),
    "vmap": lambda function, image: lambda given: torch.func.vmap(function)(given[None])[0],
    "jvp": lambda function, image: lambda given: torch.func.jvp(function, (given,), (given,))[1],
    "linearize": lambda function, image: torch.func.linearize(function, image)[1],
}
BACKWARD = {
    "backward": lambda function: lambda image: gradient(function, image),
    "vjp": lambda function: lambda image: torch.func.vjp(function, image)[1](2 * function(image))[0],
    "vjp of vmap": lambda function: lambda image: torch.func.vjp(
        torch.func.vmap(function), image[None])[1](2 * function(image)[None])[0][0],
    "vmap of vjp": lambda function: lambda image: torch.func.vmap(
        lambda each: torch.func.vjp(function, each)[1](2 * function(each))[0])(image[None])[0],
    "grad": lambda function: torch.func.grad(lambda image: function(image).square().sum()),
    "jacrev": lambda function: torch.func.jacrev(lambda image: function(image).square().sum()),
    "checkpoint": lambda function: lambda image: gradient(
        lambda leaf: torch.utils.checkpoint.checkpoint(function, leaf, use_reentrant=False), image),
}  # fmt: skip
HIDDEN = {
    "compile": ("NumPy's integers", "an array", "a tensor", "a tensor without axes"),
    "compile of any size": ("NumPy's integers", "an array", "a tensor", "a tensor without axes"),
    "export": ("a tensor",),
}
"""Sizes whose values a compiler does not look into, and says so."""


@pytest.mark.some(5)
@pytest.mark.parametrize(("call", "way"), [(call, way) for call, (ways, _) in CALLS.items() for way in ways])
@pytest.mark.parametrize("recorder", [*RECORDERS, *BACKWARD])
def test_sizes_and_positions_are_given_in_every_way(call, way, recorder):
    ways, of = CALLS[call]
    function, image = of(ways[way]), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    plain = of(next(iter(ways.values())))
    refused: Any = nullcontext()
    captured = way.startswith(("a tensor", "tensors"))
    if call == "sizes" and way in HIDDEN.get(recorder, ()):
        refused = pytest.raises(Exception, match=r"[Dd]ata.dependent")
    elif call != "sizes" and captured and recorder in ("make_fx of fakes", "make_fx of symbols"):
        refused = pytest.raises(AssertionError, match="convert all Tensors to FakeTensors")
    with refused:
        if recorder in BACKWARD:
            assert torch.equal(BACKWARD[recorder](function)(image), gradient(plain, image))
        else:
            got = RECORDERS[recorder](function, image)(image)
            assert torch.equal(got, plain(image))
