"""Whatever records a call records gpufold's operators, and computes for other values and sizes what the call does."""

from __future__ import annotations

import gc
import io
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fronts import BEYOND, EMPTY, EVERY, call_by, in_dtypes, named
from test_torch import TRANSFORMS, Mode, by, by_autograd, differentiated, energy, tensors_of
from torch._dynamo import lookup_backend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import gpufold.torch
from gpufold.adjoints import ADJOINTS
from gpufold.torch import operators

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def traced(function, given, category=torch.jit.TracerWarning, action="error"):
    """Trace a function, of which no warning says that a value was taken for a constant."""
    with warnings.catch_warnings(action=action, category=category):
        program = torch.jit.trace(function, tuple(given))
    return program, str(program.inlined_graph).replace("::", ".")


def saved(function, given, action="ignore"):
    program, code = traced(function, given, action=action)
    file = io.BytesIO()
    torch.jit.save(program, file)
    file.seek(0)
    return torch.jit.load(file), code


def exported(function, given):
    program = torch.export.export(Model(function), tuple(given))
    return program.module(), program.graph_module.code


def compiled(function, given, **options):
    codes = []

    def backend(graph, inputs):
        codes.append(graph.code)
        return lookup_backend("aot_eager")(graph, inputs)

    torch.compiler.reset()
    program = torch.compile(function, backend=backend, fullgraph=True, **options)
    program(*given)
    return program, "".join(codes)


def made_of_fx(function, given, **options):
    program = make_fx(function, **options)(*given)
    return program, program.code


def functionalized(function, given):
    function = torch.func.functionalize(function)
    return function, make_fx(function)(*[each.detach() for each in given]).code


def under_a_mode(function, given):
    with Mode() as mode:
        result = function(*given)
        if result.requires_grad:
            result.sum().backward()
    return function, " ".join([str(operator) for operator, _ in mode.calls])


RECORDERS = {
    "trace": traced,
    "saved trace": saved,  # of sizes that are constants
    "export": exported,
    "compile": compiled,
    "compile of any size": partial(compiled, dynamic=True),
    "make_fx": made_of_fx,
    "make_fx of fakes": partial(made_of_fx, tracing_mode="fake"),
    "make_fx of symbols": partial(made_of_fx, tracing_mode="symbolic"),
    "functionalize": functionalized,
    "a mode": under_a_mode,
}
"""What makes a program of a function and what it is given, and shows what was recorded."""
RECORDED_BEYOND = [each for each in BEYOND if not each.options.get("fill_value")]
"""Those that can be recorded."""

LEARN = ("trace", "compile of any size", "functionalize", "a mode")


@pytest.mark.some(7, all=7)
@pytest.mark.parametrize(
    ("recorder", "learns"),
    [*((name, False) for name in RECORDERS if "compile" not in name), *((name, True) for name in LEARN)],
)
@named([*EVERY, *RECORDED_BEYOND])
def test_what_is_recorded_computes(call, recorder, learns):
    if call in BEYOND and call.options["mode"] != "constant" and recorder == "trace":
        pytest.skip("of an extent that Python compares the tracer warns")
    given = tensors_of(call, "float64", learns=learns)
    call(*given)  # which torch computes where the call is symmetric and learns
    program, code = RECORDERS[recorder](call.of(gpufold), given)
    assert call in BEYOND or f"gpufold.{call.operation}" in code
    if recorder == "a mode" and learns and call in EVERY:
        assert f"gpufold.{ADJOINTS.get(call.operation, call.operation)}" in code
    others = tensors_of(call, "float64", 1, learns)
    results = program(*others), call(*others)
    assert torch.equal(*results)
    if learns:
        asked = [each for each in others if each.requires_grad]
        for got, want in zip(*(torch.autograd.grad(each.square().sum(), asked) for each in results), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.some(7, all=4)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("recorder", ["compile", "make_fx", "make_fx of fakes", "make_fx of symbols"])
@named([call_by("col2im"), call_by("col2im-full")])
def test_transforms_are_recorded(call, transform, recorder):
    function, given = differentiated(call)

    def transformed(*of):
        return TRANSFORMS[transform][0](function, of)

    program, code = RECORDERS[recorder](transformed, given)
    assert "gpufold." in code
    others = [each.cos() for each in given]
    torch.testing.assert_close([*program(*others)], [*transformed(*others)])


@pytest.mark.some(3, all=3)
@named(EVERY)
@pytest.mark.parametrize("name", ["float32", "complex64"])
def test_operators_pass_torchs_own_checks(call, name):
    """Of schema, fake tensors, gradients under compilers and dynamic sizes."""
    with Mode() as mode:
        call(*tensors_of(call, name))
    ((operator, arguments),) = [call for call in mode.calls if call[0].namespace == "gpufold"]
    leaves = [
        each.detach().clone().requires_grad_(
            (each.is_floating_point() or each.is_complex()) and not (place == 1 and call.averages)
        )
        if isinstance(each, torch.Tensor)
        else each
        for place, each in enumerate(arguments)
    ]  # fmt: skip
    torch.library.opcheck(operator, tuple(leaves))


def test_dtypes_that_do_not_fit_are_refused_by_compilers_too():
    out, blocks, places = torch.zeros(5, 4), torch.ones(1, 2, 2, dtype=torch.int32), torch.zeros(1, 2).long()
    compiled = torch.compile(gpufold.torch.add_blocks, backend="eager")
    with pytest.raises(
        TypeError, match="array must have the dtype of blocks or a wider one: int32 or int64 or float64, got float32"
    ):
        compiled(out, blocks, places)
    with pytest.raises(TypeError, match="array must have the dtype of blocks or a wider one: int32, got float32"):
        torch.ops.gpufold.add_blocks(blocks, None, places, out, "sum", False, "auto", True, True, False)
    compiled = torch.compile(gpufold.torch.add_blocks_, backend="eager")
    with pytest.raises(TypeError, match="weight_out must have the dtype float32 of weights, got float64"):
        compiled(out, blocks.float(), places, weight_out=out.double())
    with pytest.raises(TypeError, match="weight_out needs an array of floats or complex numbers, got int32"):
        compiled(out.int(), blocks, places, weight_out=out)
    assert not out.any()


def test_a_size_that_is_missing_is_named_where_nothing_is_computed():
    blocks = torch.ones(2, 3, 3, device="meta")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'block_shape'"):
        gpufold.blocks_to_array(blocks, (2, 8), strides=2)


def network(columns, window):
    length = columns.shape[-1]
    image = gpufold.torch.fold(columns, (length + 2, 6), (3, 6), window=window)
    blocks = gpufold.torch.unfold(image, (2, 3), padding=(0, 1))
    volume = gpufold.torch.col2im(blocks, (length + 1, 6), (1, 1))
    return gpufold.torch.array_to_blocks(volume, (2, 2), strides=1)


def test_compile_serves_other_sizes_without_compiling_again():
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend="aot_eager")
    window = torch.rand(3, 6)
    for batch, length in ((2, 7), (3, 9), (5, 4)):
        columns = torch.randn(batch, 18, length)
        assert torch.equal(compiled(columns, window), network(columns, window))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("learns", [False, True])
@in_dtypes(["float32", "int32"], [*EVERY, *RECORDED_BEYOND, *EMPTY])
def test_fake_and_meta_tensors_are_like_real_ones(call, dtype, learns):
    given = tensors_of(call, dtype, learns=learns and dtype == "float32")
    with FakeTensorMode() as mode:
        results = [call(*map(mode.from_tensor, given))]
    results.append(call(*(each.to("meta") for each in given)))
    for want in (call(*given), call(*given)):
        for got in results:
            assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())


# ---- Sizes that follow the input's


SAVED = {
    "fold": lambda image: gpufold.torch.fold(gpufold.torch.unfold(image, 2), tuple(image.shape[2:]), 2),
    "fold-windowed": lambda image: gpufold.torch.fold(
        gpufold.torch.unfold(image, 2), (image.shape[2], image.size(3)), 2, window=WEIGHTS),
    "module": lambda image: gpufold.torch.Fold(image.shape[2:], 2, window=WEIGHTS)(gpufold.torch.unfold(image, 2)),
    "unfold": lambda image: gpufold.torch.unfold(
        image, (image.shape[2] - 1, 2), padding=image.shape[1], stride=image.shape[1]),
    "col2im": lambda image: gpufold.torch.col2im(
        gpufold.torch.im2col(image, (2, 2)), image.size()[2:], (2, 2), reduction="mean"),
    "blocks_to_array": lambda image: gpufold.torch.blocks_to_array(
        gpufold.torch.array_to_blocks(image, (2, 2)), image.shape, (2, 2)),
    "over the ends": lambda image: gpufold.torch.blocks_to_array(
        gpufold.torch.array_to_blocks(image, (2, 3), strides=3, last="over"),
        image.shape, (2, 3), strides=3, last="over", window=torch.ones(2, 3)),
    "take_blocks": lambda image: gpufold.torch.take_blocks(image, [(0, image.shape[3] - 2)], (2, image.shape[2])),
    "add_blocks_": lambda image: gpufold.torch.add_blocks_(
        torch.zeros_like(image), image[None, ..., :2, :2], [(0, image.shape[3] - 2)]),
    "space_to_batch": lambda image: gpufold.torch.space_to_batch(
        image, (1, 1, 1, image.shape[3]), pads_begin=0, pads_end=(0, 0, 0, image.shape[3])),
}  # fmt: skip
"""Calls with sizes or positions that follow the input's."""

WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_trace_serves_other_sizes(name):
    images = [torch.randn(shape) for shape in ((2, 3, 5, 7), (1, 3, 6, 4))]
    program, _ = saved(SAVED[name], images[:1], action="error")
    for image in images:
        assert torch.equal(program(image), SAVED[name](image))


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


# ---- Every way by which sizes and positions are given, under everything that records or transforms a call

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


WAYS = TRANSFORMS | {
    "backward": (by_autograd, by_autograd),
    "checkpoint": (
        lambda function, given: by_autograd(partial(checkpoint, function, use_reentrant=False), given), by_autograd),
    "grad of vmap": (
        lambda function, given: torch.func.grad(energy(torch.vmap(function)))(given[0][None]), by_autograd),
    "linearize": (
        lambda function, given: torch.func.linearize(function, *given)[1](*given)[None],
        lambda function, given: by.jvp(function, given, given)[1:]),
}  # fmt: skip
HIDDEN = {
    "compile": ("NumPy's integers", "an array", "a tensor", "a tensor without axes"),
    "compile of any size": ("NumPy's integers", "an array", "a tensor", "a tensor without axes"),
    "export": ("a tensor",),
}
"""Sizes whose values a compiler does not look into, and says so."""


@pytest.mark.some(7, all=6)
@pytest.mark.parametrize(("call", "way"), [(call, way) for call, (ways, _) in CALLS.items() for way in ways])
@pytest.mark.parametrize("recorder", [*[*RECORDERS][1:-1], *WAYS])
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
        if recorder in WAYS:
            transform, by_calls = WAYS[recorder]
            torch.testing.assert_close([*transform(function, (image,))], [*by_calls(plain, (image,))])
        else:
            program, _ = RECORDERS[recorder](function, [image])
            assert torch.equal(program(image), plain(image))


@pytest.mark.parametrize("recorder", ["export", "compile"])
@pytest.mark.parametrize("window", [(2, 3), (5,), (3, 2, 1)], ids=str)
def test_axes_of_a_window_that_do_not_fit_are_refused_while_recording(recorder, window):
    function = partial(gpufold.array_to_blocks, block_shape=(3, 2), window=[torch.ones(side) for side in window])
    with pytest.raises(Exception, match="window"):
        RECORDERS[recorder](function, (torch.ones(5, 4),))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_blocks_over_the_end_have_dynamic_sizes(mode):
    class Over(torch.nn.Module):
        def forward(self, array):
            return gpufold.array_to_blocks(array, (4,), strides=3, last="over", mode=mode)

    sizes = {"dynamic_shapes": ({1: torch.export.Dim("length", min=5)},)}
    program = torch.export.export(Over(), (torch.randn(2, 11),), **sizes).module()
    for length in (5, 6, 7, 10, 13):
        array = torch.randn(2, length)
        assert torch.equal(program(array), Over()(array))


class Placed(torch.nn.Module):
    """Blocks that are taken at positions that depend on a size, and are added with weights."""

    def forward(self, image, blocks, places, weights):
        taken = gpufold.take_blocks(image, [(0, image.shape[2] - 3), (1, 2)], (3, 2))
        return taken, gpufold.add_blocks(image, blocks, places, weights=weights)


@pytest.mark.parametrize("recorder", ["make_fx", "export"])
def test_positions_depend_on_sizes_and_counts_of_blocks_are_dynamic(recorder):
    def given(length, count):
        shapes = (2, 8, length), (count, 2, 3, 2), (count,)
        image, blocks, weights = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
        return image, blocks, torch.arange(2 * count).reshape(count, 2), weights

    first, others = given(9, 5), given(12, 7)
    if recorder == "make_fx":
        program = make_fx(Placed(), tracing_mode="symbolic")(*first)
    else:
        count = {0: torch.export.Dim("count", min=1)}
        sizes = {"dynamic_shapes": ({2: torch.export.Dim("length", min=4)}, count, count, count)}
        program = torch.export.export(Placed(), first, **sizes).module()
    for got, want in zip(program(*others), Placed()(*others), strict=True):
        assert torch.equal(got, want)
