"""Exporters and backends that know aten's and ONNX's operators alone: their results are gpufold's."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from cases import Case
from fronts import EVERY, OVER, as_array, call_by, named, on
from test_torch import Mode, tensors_of
from test_torch_trace import Model, network

import gpufold.torch

pytestmark = [
    pytest.mark.peer("onnxscript"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
BOTH = pytest.mark.parametrize("dynamo", [False, True], ids=["by trace", "by export"])

VOLUME = Case("volume", (4, 5, 3), (2, 3, 1), (1, 2, 1), (2, 1, 1), (1, 0, 0), (0, 2, 1), channels=2)

CALLS = [
    *[each for each in EVERY if each.operation not in ("add_blocks", "take_blocks")],
    on(VOLUME, "col2im"),
    on(VOLUME, "im2col"),
    on(Case("flat", (4, 3), (3, 2), dilations=(0, 1), channels=1), "col2im"),
    on(Case("signal", (9,), (3,), strides=2, pads_begin=1, channels=2), "col2im"),
    on(OVER, "array_to_blocks", "full"),
    on(OVER, "blocks_to_array"),
]


def whole(call, dtype=torch.float32, seed=0):
    """Tensors of a call whose sums and products are exact in any order; a window has powers of two."""
    given = tensors_of(call, "float32", seed)
    arrays = [(each * 4).round().to(dtype) for each in given[: len(call.numbers)]]
    return arrays + [2.0 ** (each * 3).round() for each in given[len(call.numbers) :]]


def exported(function, given, dynamo, **options):
    """Export a function, of which no warning says that a value was taken for a constant."""
    import onnx

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        torch.onnx.export(Model(function), (*given,), file, dynamo=dynamo, opset_version=18, verbose=False, **options)
    return onnx.load_from_string(file.getvalue())


def computed(model, given, by):
    feed = {each.name: as_array(tensor) for each, tensor in zip(model.graph.input, given, strict=True)}
    if by == "reference":
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(model).run(None, feed)[0]
    import onnxruntime

    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]


def check(model, given, want, by=("reference", "onnxruntime")):
    for name in by:
        got = computed(model, given, name)
        assert (got.dtype, got.shape) == (as_array(want).dtype, tuple(want.shape)), name
        assert np.array_equal(got, as_array(want)), name


@pytest.mark.some(3, all=3)
@named(CALLS)
@BOTH
@pytest.mark.peer("onnxruntime")
def test_what_is_exported_computes_the_same(call, dynamo):
    given = [each.requires_grad_(place < call.differentiable) for place, each in enumerate(whole(call))]
    model = exported(call.of(gpufold.torch), given, dynamo)
    assert {each.domain for each in model.opset_import} == {""}
    kinds = {node.op_type for node in model.graph.node}
    assert ("Col2Im" in kinds) == (call.operation in ("col2im", "blocks_to_array"))
    for seed in (1, 2):
        given = whole(call, seed=seed)
        want = call(*given)
        right = ["reference", "onnxruntime"][: 1 if call.name == "col2im-volume" else 2]
        if not call.averages and call.operation != "average":
            check(model, given, want, right)  # ONNX Runtime refuses or mistakes columns of volumes with dilated kernels
        else:
            for by in right:
                np.testing.assert_allclose(computed(model, given, by), want, rtol=1e-6)


@pytest.mark.some(3, all=3)
@pytest.mark.parametrize("name", ["float16", "float64", "bool", "int32", "uint8"])
@pytest.mark.parametrize("called", ["col2im", "im2col"])
@BOTH
def test_dtypes_are_summed_as_gpufolds(name, called, dynamo):
    call, dtype = call_by(called), getattr(torch, name)
    given = [each.abs().to(dtype) for each in whole(call)]
    model = exported(call.of(gpufold.torch), given, dynamo)
    unknown = called == "col2im" and name in ("float64", "int32", "uint8")  # ONNX Runtime's Col2Im sums float32 alone
    check(model, given, call(*given), ("reference", "onnxruntime")[: 1 if unknown else 2])


@BOTH
def test_halves_are_summed_in_float32_by_onnx_too(dynamo):
    rows = torch.full((1, 64, 64), 65.0, dtype=torch.float16)  # sums of half precision would stop at 2048

    def summed(rows):
        return gpufold.torch.col2im(rows, (127,), (64,))

    want = summed(rows)
    assert want.max() == 64 * 65
    check(exported(summed, [rows], dynamo), [rows], want, ["reference"])


@BOTH
@pytest.mark.peer("onnxruntime")
def test_the_batch_and_sizes_may_change(dynamo):
    options, window = {"dynamic_axes": {"x": [0, 2]}, "input_names": ["x", "window"]}, torch.full((3, 6), 0.5)
    if dynamo:
        sizes = {0: torch.export.Dim("batch", min=1), 2: torch.export.Dim("length", min=2)}
        options = {"dynamic_shapes": {"given": (sizes, None)}}
    model = exported(network, [torch.ones(2, 36, 7), window], dynamo, **options)
    for batch, length in ((2, 7), (5, 11), (1, 3)):
        columns = torch.randint(-9, 10, (batch, 36, length)).float()
        check(model, [columns, window], network(columns, window))


@BOTH
@pytest.mark.peer("onnxruntime")
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_what_follows_one_axis_has_any_batch(dynamo, reduction):
    """The older exporter gives what it knows no rank of the shape of the example."""

    def flat(columns):
        image = gpufold.torch.fold(columns, (12,), (4,), stride=(2,), reduction=reduction)
        return image.reshape(image.shape[0], -1)

    options = {"dynamic_axes": {"x": [0]}, "input_names": ["x"]}
    if dynamo:
        options = {"dynamic_shapes": {"given": ({0: torch.export.Dim("batch", min=1)},)}}
    model = exported(flat, [torch.ones(2, 8, 5)], dynamo, **options)
    for batch in (2, 5, 1):
        columns = torch.randint(-9, 10, (batch, 8, 5)).float()
        check(model, [columns], flat(columns))


@BOTH
@pytest.mark.parametrize(
    ("window", "said"),
    [((2, 3), "window must have the shape"), ((3, 2), "blocks must cover every element")],
    ids=["window", "gaps"],
)
def test_calls_are_checked_while_they_are_exported(dynamo, window, said):
    def fold(columns):
        options = {"window": torch.ones(window), "reduction": "mean", "strides": (4, 3)}
        return gpufold.torch.col2im(columns, (7, 6), (3, 2), **options)

    with pytest.raises(Exception, match=said):
        exported(fold, [torch.ones(1, 6, 4)], dynamo)


@BOTH
@pytest.mark.peer("onnxruntime")
def test_blocks_reach_over_the_end_of_any_size(dynamo):
    """Divisions of negative numbers once lost the last block: ONNX's are towards zero."""

    def around(array):
        blocks = gpufold.array_to_blocks(array, (3,), strides=2, last="over")
        return gpufold.blocks_to_array(blocks, array.shape, (3,), strides=2, last="over")

    options = {"dynamic_axes": {"x": [1]}, "input_names": ["x"]}
    if dynamo:
        options = {"dynamic_shapes": {"given": ({1: torch.export.Dim("length", min=4)},)}}
    model = exported(around, [torch.ones(2, 8)], dynamo, **options)
    for length in (8, 6, 7, 11):
        array = torch.randint(-9, 10, (2, length)).float()
        check(model, [array], around(array))


def test_what_onnx_cannot_say_is_an_error():
    def follows(columns):
        return gpufold.torch.col2im(columns, (4, 4), (2, 2), pads_begin=columns.shape[1] - 4)

    with pytest.raises(TypeError, match="pads_begin must not follow the input's size: they are constants in ONNX"):
        exported(follows, [torch.ones(1, 4, 9)], False, dynamic_axes={"x": [1]}, input_names=["x"])


@named(CALLS)
@pytest.mark.parametrize("name", ["float32", "float16", "complex64", "int32", "bool"])
def test_decompositions_compute_the_same(call, name):
    dtype = getattr(torch, name)
    if not (dtype.is_floating_point or dtype.is_complex) and (call.weights or call.averages):
        dtype = torch.float64
    with Mode() as mode:
        want = call(*whole(call, dtype))
    ((operator, arguments),) = [call for call in mode.calls if call[0].namespace == "gpufold"]
    got = gpufold.torch.decompositions()[operator](*arguments)
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    if not call.averages and call.operation != "average":
        assert torch.equal(got, want)
    else:
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["array_to_blocks", "blocks_to_array"])
def test_what_lies_behind_an_array_is_nothing_after_decomposition(name):
    """Whatever its weight, and however far away."""
    window = torch.tensor([2.0, torch.inf])
    given = {"array_to_blocks": (torch.ones(3), (2,)), "blocks_to_array": (torch.ones(2, 2), (3,), (2,))}[name]
    with Mode() as mode:
        want = getattr(gpufold.torch, name)(*given, strides=2**40, last="over", window=window)
    ((operator, arguments),) = [call for call in mode.calls if call[0].namespace == "gpufold"]
    assert torch.equal(gpufold.torch.decompositions()[operator](*arguments), want)


def test_symmetric_sums_are_atens_after_decomposition():
    def model(columns):
        return gpufold.torch.unfold(gpufold.torch.fold(columns, 4, 2, padding=1, stride=2), 2)

    program = torch.export.export(Model(model), (torch.ones(1, 4, 9),))
    assert "gpufold.col2im" in program.graph_module.code
    program = program.run_decompositions(gpufold.torch.decompositions())
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets == ["aten.col2im.default", "aten.im2col.default"]
    columns = torch.randn(1, 4, 9)
    assert torch.equal(program.module()(columns), model(columns))


def test_a_program_that_was_exported_before_becomes_onnx_after_decomposition():
    (call,) = (each for each in CALLS if each.name == "col2im-volume")
    program = torch.export.export(Model(call.of(gpufold.torch)), (*whole(call),))
    program = program.run_decompositions(gpufold.torch.decompositions())
    model = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
    given = whole(call, seed=1)
    check(model, given, call(*given), ["reference"])
