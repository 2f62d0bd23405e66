"""Asking what a call would run: the same arguments, the same errors, nothing computed."""

from __future__ import annotations

import numpy as np
import pytest

import gpufold
from gpufold.gpu.devices import DEVICES
from gpufold.gpu.plan import Device

CALLS = {
    "col2im": ((2, 27, 64), ((8, 8), (3, 3)), {"pads_begin": 1, "pads_end": 1}),
    "im2col": ((2, 3, 8, 8), ((3, 3),), {"pads_begin": 1, "pads_end": 1}),
    "batch_to_space": ((8, 5, 6), ((1, 2, 2),), {"crops_begin": (0, 1, 0), "crops_end": (0, 0, 2)}),
    "space_to_batch": ((2, 9, 10), ((1, 2, 2),), {"pads_begin": (0, 1, 0), "pads_end": (0, 0, 2)}),
}


@pytest.mark.parametrize("operation", CALLS)
def test_every_variant_is_taken_or_has_its_reason(operation):
    shape, arguments, options = CALLS[operation]
    why = gpufold.explain(operation, (shape, "float32"), *arguments, **options)
    assert {why.plan.variant, *why.alternatives} == set(gpufold.variants(operation))
    assert all(len(reason) > 10 for reason in (why.plan.reason, *why.alternatives.values()))
    result = getattr(gpufold, operation)(np.zeros(shape, np.float32), *arguments, **options)
    assert why.plan.bytes_moved <= 4 * (result.size + np.zeros(shape).size)
    for word in (operation, why.plan.variant, why.plan.source, f"{why.plan.bytes_moved:,} bytes\n"):
        assert word in str(why)


@pytest.mark.parametrize("operation", CALLS)
def test_an_array_stands_for_one_on_the_gpu(operation):
    shape, arguments, options = CALLS[operation]
    described = gpufold.explain(operation, (shape, "complex64"), *arguments, **options)
    given = gpufold.explain(operation, np.zeros(shape, np.complex64), *arguments, **options)
    assert given.plan == described.plan
    turned = gpufold.explain(operation, np.zeros(shape[::-1], np.complex64).T, *arguments, **options)
    assert turned.plan.parameters != given.plan.parameters, "its strides are others"


def test_a_variant_can_be_asked_for_and_a_device_given():
    shape, arguments, options = CALLS["col2im"]
    why = gpufold.explain("col2im", (shape, "float32"), *arguments, variant="atomic", **options)
    assert why.plan.variant == "atomic"
    small = Device("small", (7, 5), multiprocessors=1)
    assert gpufold.explain("col2im", (shape, "float32"), *arguments, device=small, **options).plan


def test_a_result_of_another_dtype_is_planned():
    shape, arguments, options = CALLS["col2im"]
    plan = gpufold.explain("col2im", (shape, "float16"), *arguments, dtype="float32", **options).plan
    assert {("SCALAR", "Float16"), ("RESULT", "float")} <= set(plan.defines)
    result = gpufold.col2im(np.zeros(shape, np.float16), *arguments, dtype="float32", **options)
    assert plan.bytes_moved == 2 * np.zeros(shape).size + 4 * result.size


def test_a_device_can_be_given_by_name():
    shape, arguments, options = CALLS["col2im"]
    for name, device in DEVICES.items():
        named, described = (
            gpufold.explain("col2im", (shape, "float32"), *arguments, device=given, **options)
            for given in (name.lower(), device)
        )
        assert named.plan == described.plan
        assert named.device == device.name
    with pytest.raises(ValueError, match=r"device must be one of A100, .*T4, got 'K80'"):
        gpufold.explain("col2im", (shape, "float32"), *arguments, device="K80", **options)


def test_errors_are_those_of_the_call():
    with pytest.raises(ValueError, match=r"col2im: data axis 2 must be the number of blocks, got 63"):
        gpufold.explain("col2im", ((2, 27, 63), "float32"), (8, 8), (3, 3), pads_begin=1, pads_end=1)
    with pytest.raises(TypeError, match="datetime64"):
        gpufold.explain("im2col", ((2, 3, 8, 8), "M8[s]"), (3, 3))
    with pytest.raises(ValueError, match=r"^explain: operation must be one of"):
        gpufold.explain("fold", ((2, 3), "float32"))
    with pytest.raises(ValueError, match="no element"):
        gpufold.explain("im2col", ((0, 3, 8, 8), "float32"), (3, 3))
    with pytest.raises(ValueError, match="variant must be one of auto, "):
        gpufold.explain("im2col", ((1, 3, 8, 8), "float32"), (3, 3), variant="quick")


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


def test_what_is_fused_is_part_of_the_plan():
    described = ("col2im", ((8, 576, 3136), "float32"), (56, 56), (3, 3))
    options = {"pads_begin": 1, "pads_end": 1, "reduction": "mean", "accumulate": True}
    plan = gpufold.explain(*described, **options, window=np.ones((3, 3))).plan
    defines = dict(plan.defines)
    assert (defines["REDUCTION"], defines["WINDOW"], defines["ACCUMULATE"]) == ("mean", "full", "true")
    assert plan.reads_output
    assert plan.takes_window
    assert plan.bytes_moved == 4 * (8 * 576 * 3136 + 2 * 8 * 64 * 56 * 56 + 9)
    why = gpufold.explain(*described, **options)
    assert "cannot divide a pixel" in why.alternatives["atomic"]
    taken = gpufold.explain("im2col", ((8, 64, 56, 56), "float16"), (3, 3), window=[np.ones(3), np.ones(3)]).plan
    assert dict(taken.defines)["WINDOW"] == "separable"
    averaged = gpufold.explain("col2im", ((9, 4), "int8"), (4, 4), (3, 3), reduction="mean").plan
    assert [dict(averaged.defines)[name] for name in ("SCALAR", "RESULT")] == ["signed char", "float"]
    with pytest.raises(TypeError, match="unexpected keyword 'window'; the arguments are data, block_shape,"):
        gpufold.explain("batch_to_space", ((4, 2, 2), "int8"), (1, 2, 2), window=None)
