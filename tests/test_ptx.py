"""What g++ never sees: kernels executed as machine code, with all their inline PTX, give the bits of the NumPy path."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import cases
import numpy as np
import pytest
from cases import POSITIONS_CASES, BlocksCase, Case, PositionsCase, SpaceCase, assert_same_bits, window_of
from executors import arrays_of, calls_of, plans_of, wide_offsets
from faults import FAULTS
from test_gpu import FUNCTIONS, SHORT_CASES, SLIDING, launches, symbols_of
from test_sources import STATEMENT

from bench import hostcuda
from gpufold.gpu.plan import H200
from gpufold.gpu.sources import KERNELS

pytestmark = pytest.mark.nvrtc


PLANES, WORDS, _, PHASES, *_ = SHORT_CASES
(VOLUME,) = (case for case in POSITIONS_CASES if case.name == "volume")
EIGHTS = SpaceCase("eights", (3, 4, 6, 12), (1, 1, 1, 3), (0, 0, 0, 0), (0, 0, 0, 0))
MEAN = {"reduction": "mean", "fill_value": 0, "window": window_of("separable", SLIDING.kernel_size, np.float32)}
ODD_BLOCKS = {"u8": "uint8", "u16": "float16", "u32": "float32", "u64": "float64"}
"""Of blocks whose rows are no words but elements: what these are loaded as."""


def first(case, name, **options):
    """The first operation on a problem: what puts blocks together, or adds them."""
    return calls_of(case, name)[0].with_options(**options)


def awkward(dtype):
    """Describe a call with infinite weights and NaN: zero times these, of a tap that does not exist, is NaN."""
    return first(WORDS, dtype, window=window_of("separable", WORDS.kernel_size, dtype, 2, cases.awkward_weights))


def of_blocks(dtype, side, stride):
    """Describe how blocks of an array are put together: in its zeros the least shows of what does not exist."""
    together, apart = calls_of(BlocksCase("blocks", (2, 16, 40), (side, side), (stride, stride)), dtype)
    return together.reading(apart.on(apart.data))


def of_weights(case):
    """Describe blocks that are weighed and added, and the sums of their weights."""
    window = window_of("separable", case.block, np.float32)
    return first(case, "float32", window=window, weight_out=np.zeros(case.size, np.float32))


FURTHER = {
    "bytes": (first(PLANES, "uint8"), "gather"),
    "halfwords": (first(PLANES, "int16"), "gather"),
    "halves": (first(PLANES, "float16"), "gather"),
    "brain-halves": (first(PLANES, "bfloat16"), "gather"),
    "pairs-of-bytes": (first(WORDS, "uint8"), "gather"),
    "weights": (first(SLIDING, "float32", **MEAN), "gather"),
    "pairs": (first(PLANES, "complex64"), "gather"),
    "widened": (first(SLIDING, "float32", dtype="float64"), "gather"),
    "words-of-pixels": (of_blocks("float32", 8, 4), "gather_pixels"),
    "words-of-blocks": (of_blocks("complex128", 8, 1), "gather_blocks"),
    **{f"words-of-blocks-{kind}": (of_blocks(name, 5, 1), "gather_blocks") for kind, name in ODD_BLOCKS.items()},
    "double-weights": (
        first(SLIDING, "float64", window=window_of("separable", SLIDING.kernel_size, np.float64)),
        "gather",
    ),
    "awkward-weights": (awkward("float32"), "gather_pixels"),
    "awkward-double-weights": (awkward("float64"), "gather_pixels"),
    "binned": (first(POSITIONS_CASES[11], "int32"), "binned"),
    "sums-of-weights": (of_weights(POSITIONS_CASES[11]), "output_driven"),
    "three-axes": (calls_of(VOLUME, "float32")[1], "per_element"),
    "words-of-eight": (first(EIGHTS, "float16"), "packed"),
    "zeros-of-pads": (calls_of(PHASES, "uint8")[1], "per_block"),
    "wide-offsets": (first(POSITIONS_CASES[11], "int32"), "binned"),
}
"""Calls with inline PTX or lists that the smoke's calls do without, each with a variant."""


@contextmanager
def planned(name):
    """Give a call, its arrays and its plan; in the one of wide offsets they are so for arrays however small."""
    call, variant, device = (*FURTHER[name], H200) if name in FURTHER else launches()[name][-1]
    with wide_offsets() if name == "wide-offsets" else nullcontext():
        plans = plans_of(call, variant, arrays := arrays_of(call), device)
        yield call, arrays, next(plan for plan in plans if name in (*symbols_of(plan), *FURTHER))


@pytest.mark.hostcuda
@pytest.mark.some(8, all=2)
@pytest.mark.parametrize("architecture", [90, *(pytest.param(each, marks=pytest.mark.all) for each in (80, 100, 120))])
@pytest.mark.parametrize("name", [*FUNCTIONS, *FURTHER])
def test_machine_code_gives_the_bits_of_the_numpy_path(name, architecture):
    """Instructions differ: 64-bit integers are added and compared in one from compute capability 12.0 on."""
    with planned(name) as (call, arrays, plan):
        device = replace(H200, compute_capability=divmod(architecture, 10))
        hostcuda.work(plan, arrays, device)
        needed = hostcuda.cubin.resources(plan, architecture)
        assert (needed.shared_bytes, needed.argument_bytes) == (plan.shared_bytes, plan.argument_bytes)
    if arrays.weight_out is None:
        want = call.on(call.data.copy())
    else:
        want = call.into(call.data.copy(), call.read, weight_out=(weights := call.options["weight_out"].copy()))
        assert_same_bits(arrays.weight_out, weights, "the sums of weights")
    assert np.any(want != 0)
    assert_same_bits(arrays.result.reshape(want.shape), want, f"{plan.symbol} for {architecture}: {call}")


# ---- where planes are past 2**31 elements, and offsets in a plane are not


FAR = (
    Case("far", (6, 40), (2, 3), (1, 2), batch=1, channels=5),
    BlocksCase("far", (5, 6, 40), (2, 3), (1, 2)),
    SpaceCase("far", (6, 5, 4, 12), (1, 1, 2, 3), (0,) * 4, (0,) * 4),
    PositionsCase("far", (6, 40), (2, 3), 48, lead=(5,)),
)
AXES = {"blocks_to_array": (0, 0), "array_to_blocks": (0, 0), "add_blocks": (1, 0), "take_blocks": (0, 1)}
"""The axes of five planes in what an operation reads and writes; of others it is the second."""


def far_apart(array, axis):
    """Copy an array to memory where its last plane is past 2**31 elements."""
    strides = list(array.strides)
    strides[axis] = array.itemsize * (2**31 // (4 * (array.shape[axis] // 5)) + 1)
    span = array.itemsize + sum((count - 1) * step for count, step in zip(array.shape, strides, strict=True))
    far = np.ndarray(array.shape, array.dtype, hostcuda.untouched(span), 0, strides)
    far[...] = array
    return far


@pytest.mark.hostcuda
@pytest.mark.parametrize("which", ["input", "result"])
@pytest.mark.parametrize("operation", [operation for case in FAR for operation in case.operations])
def test_planes_are_found_past_32_bits(operation, which):
    (call,) = (call for case in FAR for call in calls_of(case, "bool") if call.operation == operation)
    if operation in ("col2im", "blocks_to_array") and which == "result":  # of a part of an array, which is added to
        call = call.with_options(accumulate=True)
    arrays = arrays_of(call, np.zeros(call.described().result_shape, bool))
    want = call.into(arrays.result.copy(), call.read)
    axis = AXES.get(operation, (1, 1))[which == "result"]
    far = arrays._replace(**{which: far_apart(getattr(arrays, which), axis)})
    found = set()
    for plan in plans_of(call, "auto", far):
        found.add(dict(plan.defines)["OFFSET"])
        far.result[...] = arrays.result
        hostcuda.work(plan, far)
        assert_same_bits(np.ascontiguousarray(far.result), want, plan)
    assert "int" in found


# ---- and each line of inline PTX has a fault that one of these cases must notice


def texts(source):
    """Return the inline PTX of a source."""
    found = ("".join(re.findall(r'"([^"]*)"', match[1])) for match in STATEMENT.finditer(source))
    return {" ".join(text.split()) for text in found if text}


ALL = {text: path.name for path in sorted(KERNELS.glob("*.cu*")) for text in texts(path.read_text())}


def test_every_line_of_inline_ptx_has_a_fault():
    for text, file in ALL.items():
        source = (KERNELS / file).read_text()
        of_file = [fault for fault in FAULTS if fault.file == f"kernels/{file}"]
        assert any(text not in texts(fault.breaks(source)) for fault in of_file), text
