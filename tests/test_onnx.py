"""ONNX Col2Im-18: the node tests that onnx ships, and the operator inside whole models."""

from __future__ import annotations

import importlib
import re

import definition
import numpy as np
import pytest
from cases import CASES, EMPTY, Case, assert_same_bits, values
from onnx.backend.test.case.node import _NodeTestCases
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator
from processes import python

import gpufold.onnx

importlib.import_module("onnx.backend.test.case.node.col2im")  # makes its node tests, and those of no other
NODE_TESTS = [test for test in _NodeTestCases if test.name.startswith("test_col2im")]
BATCHED = [case for case in (*CASES, *EMPTY) if isinstance(case, Case) and case.batch is not None]


@pytest.mark.parametrize("node_test", NODE_TESTS, ids=lambda test: test.name)
def test_node_tests_pass_in_the_reference_evaluator(node_test):
    names = [each.name for each in node_test.model.graph.input]
    evaluator = ReferenceEvaluator(node_test.model, new_ops=[gpufold.onnx.Col2Im])
    for inputs, (want,) in node_test.data_sets:
        (got,) = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        assert_same_bits(got, want)


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_models_run_through_gpufold(case):
    """Of one axis too, and without planes, which the reference does not take."""
    strides, dilations, begins, ends = map(list, case.arguments.values())
    model = parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        fold (float columns, int64 size, int64 kernel) => (float image) {{
            image = Col2Im <strides={strides}, dilations={dilations}, pads={begins + ends}> (columns, size, kernel)
        }}
    """)
    columns = values(case.columns_shape, np.float32)
    feed = {"columns": columns, "size": np.array(case.output_size), "kernel": np.array(case.kernel_size)}
    (got,) = ReferenceEvaluator(model, new_ops=[gpufold.onnx.Col2Im]).run(None, feed)
    assert_same_bits(got, definition.col2im(columns, case.output_size, case.kernel_size, **case.arguments))


def test_strings_are_objects_as_onnx_has_them():
    model = parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        moved (string[1, 4, 2] columns, int64[2] image, int64[2] block) => (string[1, 1, 2, 4] result)
        { result = Col2Im <strides = [2, 2]> (columns, image, block) }""")
    columns = np.array([*"abcdefgh"]).reshape(1, 4, 2)
    feed = {"columns": columns.astype(object), "image": np.array([2, 4]), "block": np.array([2, 2])}
    (got,) = ReferenceEvaluator(model, new_ops=[gpufold.onnx.Col2Im]).run(None, feed)
    assert got.tolist() == gpufold.onnx.col2im(columns, (2, 4), (2, 2), strides=(2, 2)).tolist()


def test_without_onnx_only_the_class_is_missing():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import numpy as np, gpufold.onnx\n"
        "print(gpufold.onnx.col2im(np.ones((1, 1, 1)), [1, 1], [1, 1]).shape)\n"
        "try:\n    gpufold.onnx.Col2Im\nexcept ImportError as error:\n    print(error)\n"
    )
    shape, said = python("-c", code).splitlines()
    assert shape == "(1, 1, 1, 1)"
    assert re.match(r'gpufold.onnx.Col2Im needs the package onnx: pip install "gpufold\[onnx\]"', said)
