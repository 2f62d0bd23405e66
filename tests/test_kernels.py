"""Every kernel gives the bits of the NumPy path: rows of calls, what executes them, and how their arrays lie in memory.

The NumPy path has tests of its own against tests/definition.py. Of a row, everything but its problem is drawn from its
name and a number: `make test` runs each once, `--all` with further dtypes, fusions, layouts and executors.
"""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

import cases
import executors
import numpy as np
import pytest
from cases import DTYPES, FUSIONS, INEXACT, POSITIONS_CASES, SpaceCase, assert_same_bits, values, window_of
from executors import DEVICES, LAYOUTS, MOVED, Call, arrays_of, assert_same_bytes, call_of, plans_of, random_bits

import gpufold
from bench import hostcuda
from gpufold.calls import Unsupported
from gpufold.elements import ELEMENT_TYPES
from gpufold.gpu.sources import KERNELS
from gpufold.operations import variants

pytestmark = pytest.mark.hostcuda

SUMS = ("col2im", "blocks_to_array", "add_blocks")
WEIGHED = ("im2col", "array_to_blocks", "take_blocks")
"""What takes elements, times a window."""

MAY_REFUSE = {
    "col2im": ("gather_blocks", "atomic"),
    "blocks_to_array": ("gather_blocks", "atomic"),
    "im2col": ("packed", "runs", "staged"),
    "array_to_blocks": ("packed", "runs", "staged", "per_block"),
    "batch_to_space": ("packed",),
    "add_blocks": ("atomic",),
}
"""What else than sizes some variants refuse has tests of its own, tests/test_plans.py; no other refuses anything."""

OF_SIZES = "do not fit into 64 bits", "pixels of a stride"
"""What a refusal of sizes says."""

NATURAL = {
    ("col2im", "gather_blocks"): ("block by block", ""),
    ("im2col", "packed"): ("", "block by block"),
    ("im2col", "runs"): ("", "contiguous"),
    ("im2col", "staged"): ("", "contiguous"),
    ("im2col", "taps"): ("", "swapped"),
    ("batch_to_space", "packed"): ("", "contiguous"),
}
"""The layouts, of what is read and written, that a variant is made for; it may refuse others."""

ANY_LAYOUT = ("taps", "runs", "staged", "packed")
"""Variants that get another layout every other time."""

SERVED = {
    "packed": ("uint8", "float16", "float32"),
    "atomic": ("int32", "uint32", "uint64", "float32", "float64", "complex64"),
}
"""The dtypes of variants that do not serve all."""

SUMMED = [pair for pair in cases.WIDENINGS if {*pair} <= {dtype.name for dtype in DTYPES}]
"""Dtypes, with a wider one that they are summed in; there may be no bfloat16."""

WINDOWS = {"ordinary": cases.ordinary_weights, "awkward": cases.awkward_weights, "narrow": cases.narrow_weights}


class Row(NamedTuple):
    operation: str
    case: cases.Named
    variant: str = ""
    """The one that it was made for, and which serves it."""
    windows: str = ""
    """The kind of weights, where they are what the row is about."""

    def __str__(self) -> str:
        variant = self.variant if self.windows or self.operation == "add_blocks" else ""
        return "-".join(filter(None, (self.operation, str(self.case), variant, self.windows)))


ROWS = (
    *(
        Row(operation, case)
        for case in (*cases.NAMED, *cases.FAR_CASES, *cases.SPACE_CASES_OF_KERNELS)
        if not isinstance(case, SpaceCase) or prod(case.space_shape)
        for operation in case.operations
    ),
    *(Row(operation, case, variant) for (operation, variant), own in cases.CASES_OF_KERNELS.items() for case in own),
    *(Row("add_blocks", case) for case in cases.POSITIONS_CASES_OF_KERNELS),
    *(Row("add_blocks", case, "atomic") for case in POSITIONS_CASES[3::4]),
    *(Row("average", case) for case in cases.AVERAGE_CASES),
    # Infinite and NaN weights show what lets them in: zero times these is NaN.
    *(
        Row(operation, case, variant, "awkward")
        for (operation, variant), own in cases.CASES_OF_KERNELS.items()
        if variant not in SERVED
        for case in own
    ),
    *(
        Row("add_blocks", case, variant, "awkward")
        for case in POSITIONS_CASES[1::2]
        for variant in ("output_driven", "binned")
    ),
    Row("take_blocks", POSITIONS_CASES[1], "per_element", "awkward"),
)


class Drawn(NamedTuple):
    """What a row leaves open."""

    seed: int
    variants: tuple[str, ...]
    executor: str
    device: object
    dtype: str
    source: str
    """A narrower dtype of the data, or nothing."""
    fusion: tuple[str, str, bool]
    windows: str
    mode: str
    weight_out: bool
    read: str
    written: str
    wide: bool
    """Whether offsets have 64 bits, for arrays however small."""


def drawn(row, number) -> Drawn:
    """Draw from the row's name and a number; of the number 0, what takes little time and the row's variant serves."""
    rng, first = random.Random(f"{row} {number}"), not number
    names = variants(row.operation)
    dtype, source, fusion = rng.choice(DTYPES).name, "", ("sum", "none", False)
    if row.operation == "average":
        dtype = rng.choice(INEXACT).name
    elif row.operation in SUMS:
        dtype = rng.choice(INEXACT).name if rng.random() < 0.5 else dtype
        if rng.random() < 0.2:
            source, dtype = rng.choice(SUMMED)
        if rng.random() < 0.7:
            fusion = rng.choice(FUSIONS) if np.dtype(dtype) in INEXACT else ("sum", "none", True)
    else:
        dtype = rng.choice(MOVED) if rng.random() < 0.8 else dtype
        if row.operation in WEIGHED and rng.random() < 0.4:
            dtype, fusion = rng.choice(INEXACT).name, ("sum", rng.choice(("separable", "full")), False)
    read, written = rng.choice(("contiguous", *LAYOUTS)), rng.choice(("contiguous", *list(LAYOUTS)[:-1]))
    kinds, chances = ("plain", "observed", "shuffled", "sanitized"), (4, 3, 2, 0 if first else 1)
    if first:
        order = {name: random.Random(f"{row} {name}").random() for name in names}  # whatever others there are
        names = sorted(names, key=order.__getitem__)[: 2 + (row.operation == "add_blocks")]
        if row.variant:
            names = [row.variant]
            read = written = "contiguous"
            if row.variant in SERVED:
                dtype, fusion = rng.choice(SERVED[row.variant]), ("sum", "none", False)
                if row.variant == "atomic" and np.dtype(dtype) in INEXACT:
                    fusion = ("sum", rng.choice(("separable", "full")), False)
    what = Drawn(
        rng.randrange(1000),
        tuple(names),
        *rng.choices(kinds, chances),
        rng.choice(DEVICES),
        dtype,
        source,
        fusion,
        *rng.choices(list(WINDOWS), (6, 3, 2)),
        rng.choice(cases.KERNEL_MODES),
        row.operation == "add_blocks" and np.dtype(dtype) in INEXACT and rng.random() < 0.4,
        read,
        written,
        rng.random() < 0.12,
    )
    if "atomic" in what.variants and what.dtype == "bool":  # whose words may reach past the elements
        what = what._replace(executor="plain")
    if row.variant == "atomic" and what.windows == "awkward":  # of whose sums nothing is known
        what = what._replace(windows="ordinary")
    if row.windows:
        fusions = [fusion for fusion in FUSIONS if fusion[1] != "none"]
        what = what._replace(dtype=rng.choice(INEXACT).name, source="", fusion=rng.choice(fusions), windows=row.windows)
    if row.case in cases.POSITIONS_CASES_OF_KERNELS and first:  # of which barriers and races are of interest
        what = what._replace(executor=rng.choice(("observed", "shuffled")), variants=("output_driven", "binned"))
    return what


def call_of_row(row, what) -> tuple[Call, np.ndarray | None]:
    """A row's call with what was drawn, and the array that it adds to where it has one."""
    operation, case, seed, dtype = row.operation, row.case, what.seed, np.dtype(what.dtype)
    reduction, kind, accumulate = what.fusion
    if operation == "average":
        weight = values(case.shape[len(case.shape) - case.axes :], np.float32, seed + 1)
        tiny = np.finfo(np.float32).tiny
        few = np.random.default_rng(seed).choice(np.float32([1, 0, tiny, -tiny, tiny / 2]), weight.shape)
        return Call(operation, values(case.shape, dtype, seed), (np.where(few == 1, weight, few),)), None

    def elements(shape):
        if operation not in SUMS and kind == "none" and what.dtype in MOVED:
            return random_bits(shape, dtype, seed)
        return values(shape, what.source or dtype, seed)

    options = {}
    if operation in (*SUMS, *WEIGHED):
        options["window"] = window_of(kind, case.block, dtype, seed, WINDOWS[what.windows])
    if operation == "take_blocks":
        options["mode"] = what.mode
    if what.weight_out:
        options["weight_out"] = values(case.size, ELEMENT_TYPES[what.dtype].weight, seed + 2)
    if operation in ("col2im", "blocks_to_array"):
        options |= {"reduction": reduction, "accumulate": accumulate}
        options |= {"dtype": dtype} if what.source else {}
        options |= {"fill_value": 0} if reduction != "sum" and not accumulate else {}
    call = call_of(operation, case, elements, **options)
    if operation == "add_blocks":
        return replace(call, data=values(case.shape, dtype, seed + 1)), None
    return call, values(call.described().result_shape, dtype, seed + 1) if accumulate else None


def drawn_call(row, what):
    """A row's call, what it adds to, and the array that it reads where elements of this stand for several each."""
    call, before = call_of_row(row, what)
    if what.read != "overlapping":
        return call, before, None
    view = LAYOUTS["overlapping"](random.Random(what.seed), call.read)
    return call.reading(view.copy()), before, view


def expected(call, before) -> tuple[np.ndarray, np.ndarray | None]:
    """What the NumPy path makes of it, and of the sums of weights."""
    with np.errstate(all="ignore"):
        if call.operation == "add_blocks":
            array, weight = call.data.copy(), call.options.get("weight_out")
            options = call.options if weight is None else call.options | {"weight_out": (weight := weight.copy())}
            return gpufold.add_blocks_(array, *call.arguments, **options), weight
        return call.on(call.data, **({} if before is None else {"out": before.copy()})), None


def bound_of(call, before, want):
    """How far sums in another order may lie from these: of their magnitudes, by the number of terms."""
    real = np.zeros((), want.dtype).real.dtype
    magnitudes = call.with_window(abs)
    options = {name: each for name, each in magnitudes.options.items() if name not in ("dtype", "weight_out")}
    read = abs(call.read.astype(want.dtype)).astype(real)
    if call.operation == "add_blocks":
        positions, terms = call.arguments[1], len(call.read)
        total = gpufold.add_blocks_(abs(call.data).astype(real), read, positions, **options)
    else:
        out = {} if before is None else {"out": abs(before).astype(real)}
        total, terms = replace(magnitudes, options=options).on(read, **out), prod(call.arguments[1]) + 1
    return 2 * terms * (np.finfo(real).eps * total + np.finfo(real).tiny)


def assert_answer(call, variant, got, want=None, before=None, message=""):
    """Compare what a variant made of a call: in bits where its order is fixed, else as far as rounding moves sums."""
    want, message = call.on(call.data) if want is None else want, f"{message}{variant}: {call}"
    if call.exact(variant):
        return assert_same_bits(got, want, message)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), message
    with np.errstate(all="ignore"):
        assert ((abs(got - want) <= bound_of(call, before, want)) | ~np.isfinite(want)).all(), message


def laid_out(call, arrays, view, what, variant, natural=True) -> hostcuda.Arrays:
    """Put arrays where the drawn layouts do, or naturally where the variant was made to read and write."""
    rng = random.Random(f"{what.seed} {variant}")
    read, written = NATURAL.get((call.operation, variant), ("", ""))
    if not natural or (variant in ANY_LAYOUT and what.read != "contiguous" and rng.random() < 0.5):
        read = written = ""
    read, written = read or what.read, "contiguous" if variant == "atomic" else written or what.written

    def lay(array, layout):
        if layout == "block by block":
            return executors.block_by_block(call.described().geometry, array, rng.choice((0, 0, 1, 2, 3, 7)))
        return LAYOUTS[layout](rng, array)

    sums = None if arrays.weight_out is None else lay(arrays.weight_out, written)
    overlaps = read == "overlapping"
    return arrays._replace(
        input=view if overlaps else lay(arrays.input, read), result=lay(arrays.result, written), weight_out=sums
    )


def check(row, number, what=None):
    """Run every plan of the variants that are drawn and serve, or of those of other facts."""
    what = what or drawn(row, number)
    call, before, view = drawn_call(row, what)
    arrays, wanted = arrays_of(call, before), expected(call, before)
    with executors.wide_offsets() if what.wide else nullcontext():
        for variant in what.variants:
            laid = laid_out(call, arrays, view, what, variant)
            try:
                served = list(plans_of(call, variant, laid, what.device))
            except Unsupported as refusal:
                may = variant in MAY_REFUSE.get(row.operation, ()) or any(each in str(refusal) for each in OF_SIZES)
                if not may or (variant == row.variant and not number):
                    raise AssertionError(f"{row} {number}: {what}\n{refusal}") from refusal
                continue
            for plan in served:
                where = f"{row} {number}: {what}\n{plan}\n"
                assert not what.wide or dict(plan.defines)["OFFSET"] == "long long", where
                laid.result[...] = arrays.result.reshape(laid.result.shape)
                if arrays.weight_out is not None:
                    laid.weight_out[...] = arrays.weight_out
                try:
                    hostcuda.run(plan, laid, what.executor, what.seed)
                except hostcuda.Fault as fault:
                    raise AssertionError(f"{where}{fault}") from fault
                compare(call, before, what, variant, laid, wanted, where)


def compare(call, before, what, variant, laid, wanted, where):
    """Compare what is left in the arrays, also of what is moved every bit, payloads of NaN too."""
    want, want_weight = wanted
    got = laid.result.reshape(want.shape)
    if not call.exact(variant):
        if what.windows != "awkward" or what.fusion[1] == "none":  # whose order decides what overflows
            assert_answer(call, variant, got, want, before, where)
        if want_weight is not None and what.windows == "ordinary":
            np.testing.assert_allclose(laid.weight_out, want_weight, rtol=1e-4, atol=1e-4, err_msg=where)
        return
    moves = call.operation not in (*SUMS, "average") and call.options.get("window") is None
    (assert_same_bytes if moves else assert_same_bits)(got, want, where)
    if want_weight is not None:
        assert_same_bits(laid.weight_out, want_weight, where)


NUMBERS = [0, pytest.param(1, marks=pytest.mark.all), pytest.param(2, marks=pytest.mark.many)]


@pytest.mark.some(3, all=2)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_kernel_gives_the_bits_of_numpy(row, number):
    what = drawn(row, number)
    check(row, number, what)
    for seed in range(1, 4 if row.windows and number != 1 else 1):  # nothing beside weights is read for them
        check(row, number, what._replace(seed=what.seed + seed, executor="observed"))


SOURCES = sorted(path.name for path in KERNELS.glob("*.cu"))


@cache
def plans():
    """Plan four draws of each row by every variant; of each kernel function and specialisation one plan is left.

    The last of a row with weights of its own is widened.
    """
    found = {}
    for row, number in product(ROWS, range(4)):
        what = drawn(row, number)
        if row.windows and row.operation in SUMS and number == 3:
            what = what._replace(source="float32", dtype="float64")
        call, before, view = drawn_call(row, what)
        arrays = arrays_of(call, before)
        for variant, device in product(variants(row.operation), DEVICES):
            with suppress(Unsupported):
                for plan in plans_of(call, variant, laid_out(call, arrays, view, what, variant), device):
                    for step in (*plan.prologue, plan):
                        found[step.symbol, step.defines] = step
    return list(found.values())


def random_rows(seed):
    """Yield a problem of each operation."""
    for case in (draw(seed) for draw in cases.RANDOM):
        if not isinstance(case, SpaceCase) or prod(case.space_shape):
            yield from (Row(operation, case) for operation in case.operations)


SEEDS = [
    *range(3),
    *(pytest.param(seed, marks=pytest.mark.all) for seed in range(3, 20)),
    *(pytest.param(seed, marks=pytest.mark.many) for seed in (*range(20, 30), *range(1000, 2000))),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls_give_the_bits_of_numpy(seed):
    for row in random_rows(seed):
        check(row, 1)


def with_other_extents(rng, case):
    """Draw an image for a pattern of taps, which is what is compiled."""
    while True:
        size = [max(1, extent + rng.randint(-4, 20 // len(case.output_size))) for extent in case.output_size]
        if rng.random() < 0.3:
            stride = case.arguments["strides"][-1]
            size[-1] += -size[-1] % stride  # rows of whole cells
        other = replace(case, output_size=tuple(size), batch=rng.choice((None, 1, 2, 3)), channels=rng.randint(1, 6))
        if min(other.num_blocks) > 0 and max(prod(other.columns_shape), prod(other.image_shape)) <= 40_000:
            return other


@pytest.mark.parametrize("seed", SEEDS)
def test_random_extents_of_a_pattern_give_the_bits_of_numpy(seed):
    """Executed plainly, in any layout."""
    rng, pattern = random.Random(seed), cases.random_case(5000 + seed)
    kept = [drawn(Row(operation, "pattern"), seed + 1)._replace(executor="plain") for operation in ("col2im", "im2col")]
    for number in range(25):
        case = with_other_extents(rng, pattern)
        for operation, what in zip(("col2im", "im2col"), kept, strict=True):
            layouts = {"read": rng.choice(list(LAYOUTS)), "written": rng.choice(list(LAYOUTS)[:-1])}
            each = what._replace(seed=number, device=rng.choice(DEVICES), wide=False, **layouts)
            check(Row(operation, case), seed + 1, each)
