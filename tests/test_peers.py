"""Agreement with other libraries where they are right; `make test PEERS=1` installs them.

Integer-valued float32 data is summed exactly in any order, so answers must be equal, not close.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, SPACE_CASES, Case, random_case
from onnx_models import col2im_model
from test_operations import to_batch, to_space

import gpufold

RANDOM = [random_case(seed) for seed in range(50_000, 50_150)]


def whole_numbers(shape):
    return np.random.default_rng(0).integers(-50, 51, shape).astype(np.float32)


def fold(case, columns):
    return gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments)


def unfold(case, image):
    return gpufold.im2col(image, case.kernel_size, **case.arguments)


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=str)


# ---------------------------------------------------------------------------------------------
# torch: two axes, symmetric padding, dilation from 1


def torch_serves(case):
    return (
        len(case.output_size) == 2
        and case.arguments["pads_begin"] == case.arguments["pads_end"]
        and min(case.arguments["dilations"]) > 0
        and case.channels > 0
    )


@pytest.mark.peer("torch")
@named([case for case in (*CASES, *RANDOM) if torch_serves(case)])
def test_torch_agrees(case):
    import torch

    options = {
        "dilation": case.arguments["dilations"],
        "padding": case.arguments["pads_begin"],
        "stride": case.arguments["strides"],
    }
    columns, image = whole_numbers(case.columns_shape), whole_numbers(case.image_shape)
    want = torch.nn.functional.fold(torch.from_numpy(columns), case.output_size, case.kernel_size, **options)
    np.testing.assert_array_equal(fold(case, columns), want)
    want = torch.nn.functional.unfold(torch.from_numpy(image), case.kernel_size, **options)
    np.testing.assert_array_equal(unfold(case, image), want)


@pytest.mark.peer("torch")
def test_torch_has_the_same_bits():
    """torch's CPU kernel adds in lexicographic order too, so float32 sums agree to the last bit."""
    import torch

    columns = np.random.default_rng(1).standard_normal((3, 4 * 25, 40 * 50)).astype(np.float32)
    want = torch.nn.functional.fold(torch.from_numpy(columns), (44, 54), 5).numpy()
    assert gpufold.col2im(columns, (44, 54), (5, 5)).tobytes() == want.tobytes()


@pytest.mark.peer("torch")
def test_torch_sums_half_precision_in_half_precision():
    """4096 ones give 2048 in torch's float16; the day this fails, peers' users have one reason less."""
    import torch

    columns = np.ones((1, 4096, 1), np.float16)
    theirs = torch.nn.functional.fold(torch.from_numpy(columns).reshape(1, 4096, 1), (64, 64), (64, 64)).sum()
    assert theirs == 4096  # no overlap: both are right
    overlapping = np.ones((1, 64 * 64, 64 * 64), np.float16)
    theirs = torch.nn.functional.fold(torch.from_numpy(overlapping), (127, 127), (64, 64))[0, 0, 63, 63].item()
    ours = gpufold.col2im(overlapping, (127, 127), (64, 64))[0, 0, 63, 63]
    assert ours == 4096
    assert theirs == 2048


# ---------------------------------------------------------------------------------------------
# onnxruntime: any number of axes, but its 3-D columns are checked against the wrong shape


def onnxruntime_serves(case):
    """One axis it refuses; no planes, dilation 0 and kernels larger than the image beside padding it does not take."""
    return (
        case.batch is not None
        and len(case.output_size) == 2
        and min(case.arguments["dilations"]) > 0
        and case.channels * (case.batch or 0) > 0
    )


@pytest.mark.peer("onnxruntime")
@named([case for case in (*CASES, *RANDOM) if onnxruntime_serves(case)])
def test_onnxruntime_agrees(case):
    import onnxruntime

    columns = whole_numbers(case.columns_shape)
    model = col2im_model(case, columns.dtype).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"columns": columns})
    np.testing.assert_array_equal(fold(case, columns), want)


# ---------------------------------------------------------------------------------------------
# OpenVINO: two axes; batch and space of rank 3 and more


def openvino_run(result, *inputs):
    import openvino

    compiled = openvino.compile_model(openvino.Model([result], [node for node, _ in inputs]), "CPU")
    return compiled([array for _, array in inputs])[0]


def openvino_serves(case):
    arguments = case.arguments
    return (
        len(case.output_size) == 2
        and min(arguments["dilations"]) > 0
        and case.channels > 0
        and arguments["pads_begin"] == arguments["pads_end"]  # its loop reads pads_end from pads_begin
    )


@pytest.mark.peer("openvino")
@named([case for case in (*CASES, *RANDOM) if openvino_serves(case)])
def test_openvino_agrees_on_col2im(case):
    from openvino import opset15

    columns = whole_numbers(case.columns_shape)
    data = opset15.parameter(columns.shape, np.float32)
    size = opset15.constant(np.array(case.output_size, np.int64))
    kernel = opset15.constant(np.array(case.kernel_size, np.int64))
    arguments = {name: list(value) for name, value in case.arguments.items()}
    result = opset15.col2im(data, size, kernel, **arguments)
    np.testing.assert_array_equal(fold(case, columns), openvino_run(result, (data, columns)))


def openvino_serves_space(case):
    return 3 <= len(case.batch_shape) <= 5 and min(*case.batch_shape, *case.space_shape) > 0


@pytest.mark.peer("openvino")
@named([case for case in SPACE_CASES if openvino_serves_space(case)])
def test_openvino_agrees_on_batch_to_space(case):
    from openvino import opset15

    data = whole_numbers(case.batch_shape)
    arguments = case.block_shape, case.crops_begin, case.crops_end
    node = opset15.parameter(data.shape, np.float32)
    result = opset15.batch_to_space(node, *(opset15.constant(np.array(each, np.int64)) for each in arguments))
    np.testing.assert_array_equal(to_space(data, *arguments), openvino_run(result, (node, data)))


@pytest.mark.peer("openvino")
@named([case for case in SPACE_CASES if openvino_serves_space(case) and "wholly-in-margin" not in case.name])
def test_openvino_agrees_on_space_to_batch(case):
    """Where an offset lies wholly in the padding OpenVINO's CPU gives wrong values, so such a case is left out."""
    from openvino import opset15

    data = whole_numbers(case.space_shape)
    arguments = case.block_shape, case.crops_begin, case.crops_end
    node = opset15.parameter(data.shape, np.float32)
    result = opset15.space_to_batch(node, *(opset15.constant(np.array(each, np.int64)) for each in arguments))
    np.testing.assert_array_equal(to_batch(data, *arguments), openvino_run(result, (node, data)))


# ---------------------------------------------------------------------------------------------
# onnx's own reference: pure Python, every rank


@named([case for case in CASES if case.batch is not None and len(case.output_size) >= 2 and "zero" not in case.name])
def test_onnxs_reference_agrees(case):
    from onnx.reference import ReferenceEvaluator

    columns = whole_numbers(case.columns_shape)
    (want,) = ReferenceEvaluator(col2im_model(case, columns.dtype)).run(None, {"columns": columns})
    np.testing.assert_array_equal(fold(case, columns), want)


# ---------------------------------------------------------------------------------------------
# sigpy: blocks in their own layout, no padding; unfoldNd: one to three axes


@pytest.mark.peer("sigpy")
@pytest.mark.parametrize(
    ("size", "block", "strides"),
    [((37,), (5,), (2,)), ((12, 15), (3, 4), (2, 3)), ((7, 8, 9), (2, 3, 2), (2, 1, 3)), ((9, 8), (3, 2), (3, 2))],
)
def test_sigpy_agrees_through_a_transpose(size, block, strides):
    import sigpy.block

    image = whole_numbers((2, 3, *size))
    blocks = sigpy.block.array_to_blocks(image, block, strides)  # (2, 3, *num_blocks, *block)
    rank = len(size)
    num_blocks = blocks.shape[2 : 2 + rank]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    columns = blocks.transpose(order).reshape(2, -1, int(np.prod(num_blocks)))
    np.testing.assert_array_equal(gpufold.im2col(image, block, strides=strides), columns)
    want = sigpy.block.blocks_to_array(blocks, image.shape, block, strides)
    np.testing.assert_array_equal(gpufold.col2im(columns, size, block, strides=strides), want)


@pytest.mark.peer("unfoldNd")
@named(
    [
        Case(f"unfoldnd-{rank}d-{number}", (9, 8, 7)[:rank], (3, 2, 2)[:rank], stride, dilation, pad, pad)
        for rank, (number, (stride, dilation, pad)) in itertools.product(
            (1, 2, 3), enumerate([(1, 1, 0), (2, 1, 1), (1, 2, 2)])
        )
    ]
)
def test_unfoldnd_agrees(case):
    import torch
    import unfoldNd

    options = {name: case.arguments[key][0] for name, key in (("dilation", "dilations"), ("stride", "strides"))}
    options["padding"] = case.arguments["pads_begin"][0]
    columns, image = whole_numbers(case.columns_shape), whole_numbers(case.image_shape)
    want = unfoldNd.foldNd(torch.from_numpy(columns), case.output_size, case.kernel_size, **options)
    np.testing.assert_array_equal(fold(case, columns), want)
    want = unfoldNd.unfoldNd(torch.from_numpy(image), case.kernel_size, **options)
    np.testing.assert_array_equal(unfold(case, image), want)


@pytest.mark.peer("sigpy")
@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)], ids=str)
@pytest.mark.parametrize(
    ("size", "block", "strides"),
    [
        ((40,), (9,), (4,)),
        ((17, 23), (4, 5), (2, 3)),
        ((16, 16), (4, 4), (4, 4)),
        ((12, 30), (7, 7), (1, 1)),
        ((9, 10, 11), (3, 2, 4), (2, 1, 3)),
    ],
)
def test_sigpy_has_the_same_bits(lead, size, block, strides):
    """It adds the blocks' elements in lexicographic order too."""
    import sigpy

    rng = np.random.default_rng(0)
    array = rng.standard_normal((*lead, *size)).astype(np.float32)
    blocks = gpufold.array_to_blocks(array, block, strides=strides)
    want = sigpy.array_to_blocks(array, block, strides)
    assert blocks.tobytes() == want.tobytes()
    assert blocks.shape == want.shape
    blocks = rng.standard_normal(blocks.shape).astype(np.float32)
    got = gpufold.blocks_to_array(blocks, array.shape, block, strides=strides)
    assert got.tobytes() == sigpy.blocks_to_array(blocks, array.shape, block, strides).tobytes()


# ---------------------------------------------------------------------------------------------
# Triton: a kernel of the benchmark's own, interpreted where there is no GPU

INTERPRETED = """
import sys
import numpy as np, torch
from bench.triton_fold import _fold, fold
from cases import Case
from gpufold.geometry import col2im_geometry
import gpufold
for number, case in enumerate((
    Case("frames", (37,), (5,), 2, 2, 3, 1, batch=2, channels=3),
    Case("long-frames", (75,), (70,), 40, 1, 20, 35, channels=2),
    Case("pixels", (9, 21), (3, 4), (2, 1), (1, 2), (1, 0), (0, 2), batch=2, channels=2),
    Case("many-taps", (10, 11), (9, 8), (1, 3), 1, (2, 0), 4, channels=1),
)):
    geometry = col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)
    columns = np.random.default_rng(number).integers(-50, 51, case.columns_shape).astype(np.float32)
    image = torch.full(geometry.image_shape, np.nan)
    fold(torch.from_numpy(columns), image, geometry, _fold.fn, ROWS=(1, 4)[number // 2], COLUMNS=(32, 16)[number % 2])
    want = gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments)
    np.testing.assert_array_equal(image.numpy().reshape(want.shape), want, str(case))
"""


@pytest.mark.peer("torch")
@pytest.mark.peer("triton")
def test_a_fold_in_triton_agrees():
    """Of one axis and of two, with the loop over taps unrolled and not."""
    tests = Path(__file__).parent
    paths = [str(tests.parent), str(tests), *sys.path]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
