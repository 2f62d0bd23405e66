"""ONNX models that more than one test file runs."""

from __future__ import annotations

from onnx import TensorProto, helper


def col2im_model(case, dtype):
    """A model of one Col2Im."""
    element = helper.np_dtype_to_tensor_dtype(dtype)
    arguments = case.arguments
    node = helper.make_node(
        "Col2Im",
        ["columns", "size", "kernel"],
        ["image"],
        strides=arguments["strides"],
        dilations=arguments["dilations"],
        pads=[*arguments["pads_begin"], *arguments["pads_end"]],
    )
    graph = helper.make_graph(
        [node],
        "fold",
        [helper.make_tensor_value_info("columns", element, case.columns_shape)],
        [helper.make_tensor_value_info("image", element, case.image_shape)],
        [
            helper.make_tensor("size", TensorProto.INT64, [len(case.output_size)], case.output_size),
            helper.make_tensor("kernel", TensorProto.INT64, [len(case.kernel_size)], case.kernel_size),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
