"""Asking what a call would run: the same arguments, the same errors, nothing computed."""

from __future__ import annotations

import numpy as np
import pytest

import gpufold
from gpufold.gpu.devices import DEVICES
from gpufold.gpu.plan import Device

CALLS = {
    "col2im": ((((2, 27, 64), "float32"), (8, 8), (3, 3)), {"pads_begin": 1, "pads_end": 1}),
    "im2col": ((((2, 3, 8, 8), "float32"), (3, 3)), {"pads_begin": 1, "pads_end": 1}),
    "batch_to_space": ((((8, 5, 6), "float32"), (1, 2, 2)), {"crops_begin": (0, 1, 0), "crops_end": (0, 0, 2)}),
    "space_to_batch": ((((2, 9, 10), "float32"), (1, 2, 2)), {"pads_begin": (0, 1, 0), "pads_end": (0, 0, 2)}),
    "blocks_to_array": ((((8, 4, 4, 7, 7), "float32"), (8, 10, 10), (7, 7)), {"strides": 1}),
    "array_to_blocks": ((((25, 26), "float32"), (7, 7)), {"strides": 1}),
    "add_blocks": ((((3, 51, 52), "float32"), ((40, 3, 9, 6), "float32"), ((40, 2), "int64")), {}),
    "take_blocks": ((((3, 51, 52), "float32"), ((40, 2), "int64"), (9, 6)), {}),
    "average": ((((2, 9), "float32"), ((9,), "float32")), {}),
}
"""Arguments, arrays as their shape and dtype, and options."""


def in_memory(arguments):
    """The same arguments with arrays of zeros."""
    return [np.zeros(*each) if isinstance(each, tuple) and isinstance(each[-1], str) else each for each in arguments]


@pytest.mark.parametrize("operation", CALLS)
def test_every_variant_is_taken_or_has_its_reason(operation):
    arguments, options = CALLS[operation]
    why, given = gpufold.explain(operation, *arguments, **options), in_memory(arguments)
    assert {why.plan.variant, *why.alternatives} == set(gpufold.variants(operation))
    assert why.plan.operation == operation
    assert all(len(reason) > 10 for reason in (why.plan.reason, *why.alternatives.values()))
    result = getattr(gpufold, operation)(*given, **options)
    arrays = sum(each.nbytes for each in given if isinstance(each, np.ndarray))
    assert result.nbytes < why.plan.bytes_moved <= result.nbytes + arrays
    for word in (operation, why.plan.variant, why.plan.source, f"{why.plan.bytes_moved:,} bytes"):
        assert word in str(why)


@pytest.mark.parametrize("operation", CALLS)
def test_an_array_stands_for_one_on_the_gpu(operation):
    arguments, options = CALLS[operation]
    described = gpufold.explain(operation, *arguments, **options)
    data, *others = in_memory(arguments)
    assert gpufold.explain(operation, data, *others, **options).plan == described.plan
    turned = np.zeros(data.shape[::-1], data.dtype).T
    assert gpufold.explain(operation, turned, *others, **options).plan.parameters != described.plan.parameters


ADDED = ((3, 512, 512), "float32"), ((40, 3, 96, 96), "float32"), ((40, 2), "int64")
PLACED = 40 * 2 * 8
MEAN = {"pads_begin": 1, "pads_end": 1, "reduction": "mean", "accumulate": True}
ROWS = [
    ("col2im", (((2, 27, 64), "float16"), (8, 8), (3, 3)), {"pads_begin": 1, "pads_end": 1, "dtype": "float32"},
     "SCALAR=Float16 RESULT=float", 2 * 2 * 27 * 64 + 4 * 2 * 3 * 64),
    ("col2im", (((8, 576, 3136), "float32"), (56, 56), (3, 3)), MEAN | {"window": np.ones((3, 3))},
     "REDUCTION=mean WINDOW=full ACCUMULATE=true", 4 * (8 * 576 * 3136 + 2 * 8 * 64 * 56 * 56 + 9)),
    ("im2col", (((8, 64, 56, 56), "float16"), (3, 3)), {"window": [np.ones(3), np.ones(3)]}, "WINDOW=separable", None),
    ("col2im", (((9, 4), "int8"), (4, 4), (3, 3)), {"reduction": "mean"}, "SCALAR=signed_char RESULT=float", None),
    ("blocks_to_array", (((8, 250, 250, 7, 7), "float32"), (8, 256, 256), (7, 7), 1), {}, "",
     4 * (8 * 250 * 250 * 49 + 8 * 256 * 256)),
    ("add_blocks", ADDED, {"window": np.ones((96, 96))}, "WINDOW=full", None),
    ("add_blocks", ADDED, {"weight_out": ((512, 512), "float32")}, "",
     PLACED + 40 * 3 * 96 * 96 * 4 + 2 * (3 + 1) * 512 * 512 * 4),
    ("add_blocks", (ADDED[0], ((40, 3, 96, 96), "float16"), ADDED[2]), {}, "SCALAR=Float16 RESULT=float",
     PLACED + 40 * 3 * 96 * 96 * 2 + 2 * 3 * 512 * 512 * 4),
    ("take_blocks", (ADDED[0], ADDED[2], (96, 96)), {"window": np.ones((96, 96)), "mode": "edge"},
     "WINDOW=full MODE=edge", PLACED + 4 * (40 * 3 * 96 * 96 + 3 * 512 * 512)),
]  # fmt: skip
"""Calls, some of what is compiled in, and the bytes that are moved."""


@pytest.mark.parametrize(("operation", "arguments", "options", "defines", "moved"), ROWS)
def test_what_is_fused_or_converted_is_part_of_the_plan(operation, arguments, options, defines, moved):
    plan = gpufold.explain(operation, *arguments, **options).plan
    assert {tuple(each.replace("_", " ").split("=")) for each in defines.split()} <= set(plan.defines)
    assert moved is None or plan.bytes_moved == moved
    assert plan.reads_output == options.get("accumulate", operation == "add_blocks")
    assert plan.takes_window or "window" not in options
    assert plan.takes_weight_out == ("weight_out" in options)


def test_dtypes_of_one_size_share_a_kernel_where_elements_are_moved():
    floats, integers = (
        gpufold.explain("take_blocks", ((3, 64, 64), dtype), ((4, 2), "int64"), 8).plan for dtype in ("f4", "i4")
    )
    assert floats == integers


def test_a_variant_can_be_asked_for_and_a_device_given():
    arguments, options = CALLS["col2im"]
    why = gpufold.explain("col2im", *arguments, variant="atomic", **options)
    assert why.plan.variant == "atomic"
    small = Device("small", (7, 5), multiprocessors=1)
    assert gpufold.explain("col2im", *arguments, device=small, **options).plan


def test_a_device_can_be_given_by_name():
    arguments, options = CALLS["col2im"]
    for name, device in DEVICES.items():
        named, described = (
            gpufold.explain("col2im", *arguments, device=given, **options) for given in (name.lower(), device)
        )
        assert named.plan == described.plan
        assert named.device == device.name
    with pytest.raises(ValueError, match=r"device must be one of A100, .*T4, got 'K80'"):
        gpufold.explain("col2im", *arguments, device="K80", **options)


@pytest.mark.parametrize(
    ("error", "match", "operation", "arguments", "options"),
    [
        (ValueError, r"col2im: data axis 2 must be the number of blocks, got 63", "col2im",
         (((2, 27, 63), "float32"), (8, 8), (3, 3)), {"pads_begin": 1, "pads_end": 1}),
        (TypeError, "datetime64", "im2col", (((2, 3, 8, 8), "M8[s]"), (3, 3)), {}),
        (ValueError, r"^explain: operation must be one of", "fold", (((2, 3), "float32"),), {}),
        (ValueError, "no element", "im2col", (((0, 3, 8, 8), "float32"), (3, 3)), {}),
        (ValueError, "variant must be one of auto, ", "im2col", (((1, 3, 8, 8), "float32"), (3, 3)), {"variant": "no"}),
        (TypeError, "unexpected keyword 'window'; the arguments are data, block_shape,", "batch_to_space",
         (((4, 2, 2), "int8"), (1, 2, 2)), {"window": None}),
        (ValueError, "add_blocks: blocks must be", "add_blocks", (*ADDED[:2], ((41, 2), "int64")), {}),
        (TypeError, "add_blocks: array must have the result's dtype float64", "add_blocks",
         (ADDED[0], ((40, 3, 96, 96), "float64"), ADDED[2]), {}),
        (ValueError, "nothing is launched", "add_blocks", (ADDED[0], ((0, 3, 9, 9), "float32"), ((0, 2), "int64")), {}),
        (ValueError, "take_blocks: array must be", "take_blocks", (ADDED[0], ((40, 4), "int64"), 9), {}),
    ],
)  # fmt: skip
def test_errors_are_those_of_the_call(error, match, operation, arguments, options):
    with pytest.raises(error, match=match):
        gpufold.explain(operation, *arguments, **options)


def test_a_variant_is_refused_for_its_own_reason_and_not_for_one_of_another():
    why = gpufold.explain("array_to_blocks", ((2, 7, 9), "float32"), (3, 4), strides=2).alternatives
    assert why["direct"] == "would serve: neighbouring threads take neighbouring blocks"
    assert why["packed"].startswith("would serve: each thread packs")
    assert why["words"] == "words needs a stride of 1 along the last axis, not 2"


def test_a_function_stands_for_its_name():
    described = (((8, 576, 2916), "float32"), (56, 56), (3, 3))
    assert gpufold.explain(gpufold.col2im, *described) == gpufold.explain("col2im", *described)
    with pytest.raises(ValueError, match=r"^explain: operation must be one of .*, got 'grid_positions'"):
        gpufold.explain(gpufold.grid_positions, *described)
    with pytest.raises(ValueError, match=r"^warmup: operation must be one of"):
        gpufold.warmup("fold", *described)
