"""Asking what a call would run: the same arguments, the same errors, nothing computed."""

from __future__ import annotations

import numpy as np
import pytest
from fronts import RIGHT
from test_errors import BAD_CALLS, is_of_any_kind

import gpufold
from gpufold.gpu.devices import DEVICES
from gpufold.gpu.plan import Device

CALLS = {
    name: {each: np.asarray(value) if each == "positions" else value for each, value in call.items()}
    for name, call in RIGHT.items()
}
ARRAYS = {each for call in CALLS.values() for each, value in call.items() if isinstance(value, np.ndarray)}


def described(call):
    """The same arguments with arrays as their shape and dtype."""
    return {each: (value.shape, value.dtype) if each in ARRAYS else value for each, value in call.items()}


def explained(operation, call, **options):
    """The plan of a call, and of the others why they are not taken."""
    (_, data), *others = call.items()
    return gpufold.explain(operation, data, **dict(others), **options)


@pytest.mark.parametrize("operation", CALLS)
def test_every_variant_is_taken_or_has_its_reason(operation):
    call = CALLS[operation]
    why = explained(operation, described(call))
    assert {why.plan.variant, *why.alternatives} == set(gpufold.variants(operation))
    assert why.plan.operation == operation
    assert all(len(reason) > 10 for reason in (why.plan.reason, *why.alternatives.values()))
    result = getattr(gpufold, operation)(**call)
    arrays = sum(each.nbytes for each in call.values() if isinstance(each, np.ndarray))
    assert result.nbytes < why.plan.bytes_moved <= result.nbytes + arrays
    for word in (operation, why.plan.variant, why.plan.file, f"{why.plan.bytes_moved:,} bytes"):
        assert word in str(why)


@pytest.mark.parametrize("operation", CALLS)
def test_an_array_stands_for_one_on_the_gpu_and_a_function_for_its_name(operation):
    call = CALLS[operation]
    plan = explained(operation, described(call)).plan
    assert explained(operation, call).plan == plan
    assert explained(getattr(gpufold, operation), call).plan == plan
    first, data = next(iter(call.items()))
    turned = np.zeros(data.shape[::-1], data.dtype).T
    of_turned = explained(operation, call | {first: turned}).plan.parameters
    assert (of_turned == plan.parameters) is (operation == "add_blocks"), "which adds to a contiguous copy"
    if operation == "add_blocks":
        assert explained("add_blocks_", call | {first: turned}).plan.parameters != plan.parameters


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
    assert (("WEIGHT_OUT", "1") in plan.defines) == ("weight_out" in options)


def test_dtypes_of_one_size_share_a_kernel_where_elements_are_moved():
    array, positions = (3, 64, 64), ((4, 2), "int64")
    floats, integers = (gpufold.explain("take_blocks", (array, each), positions, 8).plan for each in ("f4", "i4"))
    assert floats == integers


def test_positions_are_described_by_all_that_a_call_takes():
    want = gpufold.explain("take_blocks", ((20,), "f4"), np.array([[0], [3]]), 5).plan
    for positions in ([0, 3], [[0], [3]], np.array([0, 3], np.int32), ((2, 1), "int64"), ((2, 1), np.int64)):
        call = gpufold.explain("take_blocks", ((20,), "f4"), positions, 5).plan
        assert call.bytes_moved == want.bytes_moved
    off = np.zeros(8, "u1, f4")["f1"]
    with pytest.raises(gpufold.Unsupported, match=r"^explain: data has elements of 4 bytes that do not lie"):
        gpufold.explain("take_blocks", off, [0], 5)


def test_a_variant_can_be_asked_for_and_a_device_given():
    call = CALLS["col2im"]
    assert explained("col2im", call, variant="atomic").plan.variant == "atomic"
    assert explained("col2im", call, device=Device("small", (7, 5), multiprocessors=1)).plan
    for name, device in DEVICES.items():
        named, given = (explained("col2im", call, device=each) for each in (name.lower(), device))
        assert named.plan == given.plan
        assert named.device == device.name


OF_SIZES = ("col2im", "im2col", "blocks_to_array", "array_to_blocks", "batch_to_space", "space_to_batch")


@pytest.mark.parametrize("arrays", [lambda call: call, described], ids=["arrays", "described"])
def test_errors_are_those_of_the_call(arrays):
    """Except for results that have no memory, for nothing is computed, and what NumPy makes windows of."""
    for call in BAD_CALLS:
        (function, arguments), error, facts = call
        fits = "bytes" not in facts and not isinstance(arguments.get("window"), str)
        if fits and function.__name__ in OF_SIZES and is_of_any_kind(call):
            with pytest.raises(error) as of_call:
                function(**arguments)
            with pytest.raises(error) as of_plan:
                explained(function, arrays(arguments))
            assert str(of_plan.value) == str(of_call.value)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (TypeError, "datetime64", ("im2col", ((2, 3, 8, 8), "M8[s]"), (3, 3))),
        (ValueError, "no element", ("im2col", ((0, 3, 8, 8), "float32"), (3, 3))),
        (ValueError, "add_blocks: blocks must be", ("add_blocks", *ADDED[:2], ((41, 2), "int64"))),
        (TypeError, "add_blocks: array must have the dtype of blocks or a wider one: float64",
         ("add_blocks", ADDED[0], ((40, 3, 96, 96), "float64"), ADDED[2])),
        (ValueError, "nothing is launched", ("add_blocks", ADDED[0], ((0, 3, 9, 9), "float32"), ((0, 2), "int64"))),
        (ValueError, "take_blocks: array must be", ("take_blocks", ADDED[0], ((40, 4), "int64"), 9)),
    ],
)  # fmt: skip
def test_what_is_described_must_fit(error, match, call):
    with pytest.raises(error, match=match):
        gpufold.explain(*call)


@pytest.mark.parametrize(("name", "why"), [("out", "a new, contiguous result"), ("weights", "before a kernel adds")])
def test_what_is_not_described_says_why(name, why):
    with pytest.raises(TypeError, match=f"^explain: do not pass {name}: .*{why}"):
        gpufold.explain("add_blocks", *ADDED, **{name: np.ones(40)})


def test_a_variant_is_refused_for_its_own_reason_and_not_for_one_of_another():
    why = gpufold.explain("array_to_blocks", ((2, 7, 9), "float32"), (3, 4), strides=2).alternatives
    assert why["per_block"] == "would serve: neighbouring threads take neighbouring blocks"
    assert why["packed"].startswith("would serve: each thread packs")
    assert why["staged"].startswith("staged needs columns whose blocks of a tap are contiguous, not steps of")
