"""ONNX Col2Im-18: the node tests that onnx ships, and the operator inside whole models."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
from cases import CASES, assert_same_bits, values
from onnx.backend.test.case.node import _NodeTestCases
from onnx.reference import ReferenceEvaluator
from onnx_models import col2im_model

import gpufold.onnx

importlib.import_module("onnx.backend.test.case.node.col2im")  # makes its node tests, and those of no other
NODE_TESTS = [test for test in _NodeTestCases if test.name.startswith("test_col2im")]
BATCHED = [case for case in CASES if case.batch is not None]


def test_onnx_ships_five_node_tests():
    assert len(NODE_TESTS) == 5


@pytest.mark.parametrize("node_test", NODE_TESTS, ids=lambda test: test.name)
def test_node_tests_pass_in_the_reference_evaluator(node_test):
    names = [each.name for each in node_test.model.graph.input]
    evaluator = ReferenceEvaluator(node_test.model, new_ops=[gpufold.onnx.Col2Im])
    for inputs, (want,) in node_test.data_sets:
        (got,) = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        assert_same_bits(got, want)


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_models_run_through_gpufold(case):
    columns = values(case.columns_shape, np.float32)
    model = col2im_model(case, columns.dtype, surround=True)
    (got,) = ReferenceEvaluator(model, new_ops=[gpufold.onnx.Col2Im]).run(None, {"columns": columns})
    with np.errstate(all="ignore"):
        want = np.maximum(case.col2im(columns + columns), 0)
    np.testing.assert_array_equal(got, want)


def test_the_reference_fails_without_planes_and_gpufold_does_not():
    """N = 0 and C = 0 are legal: a tensor with no elements."""
    for shape in ((0, 4, 9), (2, 0, 9)):
        got = gpufold.onnx.col2im(np.zeros(shape, np.float32), [4, 4], [2, 2])
        assert got.shape == (shape[0], shape[1] // 4, 4, 4)


def test_pads_are_begins_then_ends():
    columns = values((1, 6, 12), np.float32)
    got = gpufold.onnx.col2im(columns, [3, 4], [2, 3], pads=[1, 0, 0, 2], strides=None)
    want = gpufold.col2im(columns, (3, 4), (2, 3), pads_begin=(1, 0), pads_end=(0, 2))
    assert_same_bits(got, want)


def test_one_axis_is_accepted_beyond_the_specification():
    got = gpufold.onnx.col2im(np.ones((1, 2, 3)), [4], [2], strides=[1], dilations=[1], pads=[0, 0])
    np.testing.assert_array_equal(got, [[[1, 2, 2, 1]]])


def test_without_onnx_only_the_class_is_missing():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import numpy as np, gpufold.onnx\n"
        "print(gpufold.onnx.col2im(np.ones((1, 1, 1)), [1, 1], [1, 1]).shape)\n"
        "try:\n    gpufold.onnx.Col2Im\nexcept ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "(1, 1, 1, 1)" in run.stdout
    assert "gpufold.onnx.Col2Im needs the package onnx" in run.stdout
    assert 'pip install "gpufold[onnx]"' in run.stdout
