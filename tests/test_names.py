"""Arguments by the names that they have elsewhere: each is answered with the name that it has here."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import gpufold
from gpufold.names import HERE

IMAGE, BLOCKS = np.zeros((1, 8, 8)), np.zeros((3, 4, 4))
POSITIONS = [(0, 0)] * 3

CALLS = {
    "col2im": (np.zeros((9, 36)), (8, 8), (3, 3)),
    "im2col": (IMAGE, (3, 3)),
    "array_to_blocks": (IMAGE, (3, 3)),
    "blocks_to_array": (np.zeros((6, 6, 3, 3)), (8, 8), (3, 3)),
    "batch_to_space": (np.zeros((4, 2, 2)), (1, 2, 2)),
    "space_to_batch": (IMAGE, (1, 2, 2)),
    "add_blocks": (np.zeros((8, 8)), BLOCKS, POSITIONS),
    "take_blocks": (IMAGE, POSITIONS, 4),
    "average": (IMAGE, np.ones((8, 8))),
    "grid_positions": ((8, 8), 4, 2),
    "Stitcher": ((8, 8), 4),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_name_from_elsewhere_is_answered_with_the_one_here(name):
    function, arguments = getattr(gpufold, name), CALLS[name]
    function(*arguments)
    parameters, answered = inspect.signature(function).parameters, 0
    assert "unexpected" not in parameters
    for here, elsewhere in HERE.items():
        mine = [word for word in here.replace(",", "").split() if word in parameters]
        for word in elsewhere:
            if mine and word not in parameters:
                with pytest.raises(TypeError, match=f"^{name}: there is no argument {word}, it is .* here$") as error:
                    function(*arguments, **{word: 1})
                assert any(each in str(error.value) for each in parameters)
                answered += 1
    with pytest.raises(TypeError, match=f"^{name}: there is no argument colour, there are {next(iter(parameters))}, "):
        function(*arguments, colour=1)
    assert answered or name == "average"


@pytest.mark.parametrize(
    ("name", "given", "here"),
    [
        ("col2im", "stride", "strides"),
        ("im2col", "padding", "pads_begin and pads_end"),
        ("im2col", "rates", "dilations"),
        ("array_to_blocks", "overlap", "strides, a block's extent less the overlap"),
        ("blocks_to_array", "block_strides", "strides"),
        ("batch_to_space", "crops", "crops_begin and crops_end"),
        ("space_to_batch", "paddings", "pads_begin and pads_end"),
        ("take_blocks", "padding_mode", "mode"),
        ("Stitcher", "roi_size", "block_shape"),
    ],
)
def test_names_of_torch_tensorflow_and_sigpy(name, given, here):
    with pytest.raises(TypeError, match=f"^{name}: there is no argument {given}, it is {here} here$"):
        getattr(gpufold, name)(*CALLS[name], **{given: 2})


def test_a_stitcher_answers_for_its_batches_too():
    stitcher = gpufold.Stitcher((8, 8), 4)
    with pytest.raises(TypeError, match=r"^Stitcher.add: there is no argument weight_map, it is window here$"):
        stitcher.add(BLOCKS, POSITIONS, weight_map=np.ones((4, 4)))
    with pytest.raises(ValueError, match="no tile was added"):
        stitcher.result()


@pytest.mark.peer("torch")
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("grid_positions", "Stitcher")])
def test_functions_on_tensors_answer_too(name):
    import torch

    arguments = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in CALLS[name]]
    function = getattr(gpufold.torch, name)
    function(*arguments)
    with pytest.raises(TypeError, match=f"^{name}: there is no argument colour, there are "):
        function(*arguments, colour=1)
    parameters = inspect.signature(function).parameters
    if "strides" in parameters:
        with pytest.raises(TypeError, match=f"^{name}: there is no argument stride, it is strides here$"):
            function(*arguments, stride=1)


def test_blocks_are_one_apart_unless_strides_say_otherwise():
    np.testing.assert_array_equal(
        gpufold.array_to_blocks(np.arange(5), (3,)), gpufold.array_to_blocks(np.arange(5), (3,), strides=1)
    )
