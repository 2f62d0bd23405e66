"""Names of arguments, also those they have elsewhere: each of these is answered with the name that it has here."""

from __future__ import annotations

import importlib
import inspect
import traceback
from typing import get_args

import numpy as np
import pytest
from fronts import RIGHT

import gpufold
from gpufold.calls import VARIANTS, OperationName, Variant
from gpufold.gpu import registry
from gpufold.names import KEYWORD_ALIASES
from gpufold.operations import OPERATIONS

CALLS = {
    **{name: tuple(call.values()) for name, call in RIGHT.items()},
    "grid_positions": ((8, 8), 4),
    "map_tiles": (np.negative, np.zeros((1, 8, 8)), (4, 4)),
    "Stitcher": ((8, 8), 4),
}
FRONTS = ("dask", "jax", "onnx", "torch")
REQUIRED = {name: {"strides": 2} for name in ("grid_positions", "map_tiles")}


@pytest.mark.parametrize("name", CALLS)
def test_a_name_from_elsewhere_is_answered_with_the_one_here(name):
    function, arguments = getattr(gpufold, name), CALLS[name]
    function(*arguments, **REQUIRED.get(name, {}))
    parameters = inspect.signature(function).parameters
    for here, elsewhere in KEYWORD_ALIASES.items():
        for word in elsewhere:
            if here in parameters and word not in parameters:
                with pytest.raises(
                    TypeError, match=f"^{name}: unexpected keyword '{word}'; did you mean '(.*)'"
                ) as error:
                    function(*arguments, **{word: 1})
                assert str(error.value).split("'")[-2] in parameters
                with pytest.raises(TypeError, match=f"^{name}: unexpected keyword '{word}'; did you mean "):
                    function(**{word: 1})  # where it is what another is missing for
    with pytest.raises(
        TypeError, match=f"^{name}: unexpected keyword 'qqq'; the arguments are {next(iter(parameters))}, "
    ):
        function(*arguments, qqq=1)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("average", "Stitcher")])
def test_what_is_no_size_of_the_result_is_given_by_name(name):
    """So that a block and its strides, or begins and ends, are not taken for each other."""
    function = getattr(gpufold, name)
    places = [
        each.name for each in inspect.signature(function).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    count = len(places)
    said = rf"{name}: takes {count} positional arguments \({', '.join(places)}\), got {count + 1}; pass the others by "
    with pytest.raises(TypeError, match=said):
        function(*CALLS[name], 1)


def test_weights_are_suggested_where_there_are_any():
    with pytest.raises(TypeError, match=r"^add_blocks: unexpected keyword 'weight'; did you mean 'weights'\?$"):
        gpufold.add_blocks(np.zeros(4), np.ones((1, 2)), [0], weight=1)


def test_a_stitcher_answers_for_its_batches_too():
    stitcher = gpufold.Stitcher((8, 8), 4)
    with pytest.raises(TypeError, match=r"^Stitcher.add: unexpected keyword 'weight_map'; did you mean 'window'\?$"):
        stitcher.add(np.zeros((3, 4, 4)), [(0, 0)] * 3, weight_map=np.ones((4, 4)))
    assert repr(stitcher) == "Stitcher((8, 8), (4, 4), reduction='mean')"
    assert repr(gpufold.Stitcher((2, 9), 4, slabs=True)) == "Stitcher((2, 9), (4, 4), reduction='mean', slabs=True)"
    assert repr(gpufold.Stitcher((2, None), 4, reduction="sum")) == "Stitcher((2, None), (4,), reduction='sum')"


@pytest.mark.parametrize("front", [pytest.param(name, marks=pytest.mark.peer(name)) for name in FRONTS])
def test_functions_of_a_front_answer_too(front):
    module = importlib.import_module(f"gpufold.{front}")
    for name, function in inspect.getmembers(module, inspect.isfunction):
        parameters = inspect.signature(function).parameters
        if name not in module.__all__ or not parameters:
            continue
        count, said = sum(each.default is each.empty for each in parameters.values()), "^(onnx.)?" + name
        for word, answer in (("qqq", "the arguments are "), ("stride", "did you mean 'strides'")):
            if word == "qqq" or "strides" in parameters:
                with pytest.raises(TypeError, match=rf"{said}: unexpected keyword '{word}'; {answer}"):
                    function(*(None,) * count, **{word: 1})
        if front == "jax":  # whose functions bind arguments themselves
            with pytest.raises(TypeError, match=rf"{said}: missing a required argument: '{next(iter(parameters))}'"):
                function()
        assert "unexpected" not in parameters


@pytest.mark.peer("torch")
def test_functions_by_the_names_of_torch_answer_in_these():
    import torch

    columns = torch.ones(1, 9, 36)
    for name, function in (("fold", gpufold.torch.fold), ("Fold", gpufold.torch.Fold)):
        with pytest.raises(TypeError, match=rf"^{name}: unexpected keyword 'strides'; did you mean 'stride'\?$"):
            function(*([columns] if name == "fold" else []), 8, 3, strides=1)
    with pytest.raises(
        ValueError, match=r"^unfold: .* on spatial axis 0 \(input axis 2\): the input's size 2 \+ padding 0"
    ):
        gpufold.torch.unfold(torch.ones(1, 1, 2, 2), 3)


@pytest.mark.parametrize("name", ["batch_to_space", "space_to_batch"])
def test_blocks_and_margins_as_tensorflow_has_them_are_answered_with_those_here(name):
    function, data = getattr(gpufold, name), np.zeros((4, 2, 2, 3))
    margin = "crops" if name == "batch_to_space" else "pads"
    for given in (2, (2, 2), [2, 2], np.array([2, 2])):
        error = TypeError if isinstance(given, int) else ValueError
        with pytest.raises(error, match=rf"^{name}: block_shape must have 4 values.* it is \(1, 2, 2, 1\)$"):
            function(data, given)
    want = rf"write {margin}_begin=\(0, 1, 0, 0\), {margin}_end=\(0, 0, 2, 0\)$"
    for given in ([[1, 0], [0, 2]], np.array([[1, 0], [0, 2]])):
        for argument in (f"{margin}_begin", f"{margin}_end"):
            with pytest.raises(TypeError, match=rf"^{name}: {argument} must be (?s:.*), got the pairs (?s:.*); {want}"):
                function(data, (1, 2, 2, 1), **{argument: given})
    theirs = "crops" if margin == "crops" else "paddings"
    want = rf"; write {name}\(data, \(1, 2, 2, 1\), {margin}_begin=\(0, 1, 0, 0\), {margin}_end=\(0, 0, 2, 0\)\)$"
    pairs = [[1, 0], [0, 2]]
    for block in (2, [2, 2], (1, 2, 2, 1)):
        for given, named in (
            ((data, block, pairs), {}),
            ((data, block), {theirs: np.array(pairs)}),
            ((), {"input": data, "block_shape": block, theirs: pairs}),
        ):
            with pytest.raises(TypeError, match=rf"^{name}: .*{want}"):
                function(*given, **named)
    for given in ((data, [2, 2], iter(pairs)), (data, [2, 2], [[0.5, 0], [0, 0]]), (data, None, pairs)):
        with pytest.raises(TypeError, match=rf"^{name}: takes 2 .*; pass the others by name: {margin}_begin, "):
            function(*given)  # of which there is no reading
    with pytest.raises(
        TypeError, match=rf"^{name}: {margin}_end must have 4 values, one per axis of data, .*, got 1; "
    ):
        function(data, (1, 2, 2, 1), **{f"{margin}_end": 1})  # which would crop or pad channels too


def test_an_image_with_its_channels_last_is_asked_about():
    with pytest.raises(ValueError, match=r"on spatial axis 1 \(image axis 3\).*is this image channels last\?$"):
        gpufold.im2col(np.zeros((2, 16, 16, 3)), (4, 4))
    with pytest.raises(ValueError, match=r"at least one block must fit$"):
        gpufold.im2col(np.zeros((2, 3, 16, 3)), (4, 4))


@pytest.mark.parametrize("front", ["", *(pytest.param(name, marks=pytest.mark.peer(name)) for name in FRONTS)])
def test_every_document_of_a_function_leads_to_others(front):
    module = importlib.import_module(f"gpufold.{front}".rstrip("."))
    for name in module.__all__:
        said = inspect.getdoc(getattr(module, name))
        assert "See Also\n--------\n" in said, name
        if front and hasattr(gpufold, name) and front != "onnx":
            assert f"gpufold.{name} : " in said


def test_errors_are_shown_by_their_public_names():
    with pytest.raises(gpufold.Unsupported) as caught:
        gpufold.col2im(np.zeros((9, 36)), (8, 8), (3, 3), variant="gather")
    assert traceback.format_exception_only(caught.value)[0].startswith("gpufold.Unsupported: col2im: ")


def test_operations_and_variants_have_one_list_of_names():
    assert set(get_args(OperationName)) == set(OPERATIONS)
    assert set(get_args(Variant)) == {"auto"}.union(*(gpufold.variants(name) for name in OPERATIONS))
    assert {operation: tuple(kernels) for operation, kernels in registry.VARIANTS.items()} == VARIANTS
