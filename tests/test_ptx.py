"""What g++ never sees: kernels executed as machine code, with all their inline PTX, give the bits of the NumPy path."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from cases import POSITIONS_CASES, SpaceCase, assert_same_bits, awkward_window, values, window_of
from executors import Call, arrays_of, blocks_calls, calls_of, execute, plans_of
from faults import FAULTS
from test_gpu import FUNCTIONS, SLIDING, SMOKE_CASES, launches, symbols_of
from test_sources import STATEMENT

from bench import hostcuda
from gpufold.gpu import parameters
from gpufold.gpu.plan import H200
from gpufold.gpu.sources import KERNELS, program

pytestmark = pytest.mark.nvrtc


def of_dtype(name, case=SMOKE_CASES[0], **options):
    fold, _ = calls_of(case, np.dtype(name))
    return replace(fold, options=fold.options | options)


def added(dtype, **options):
    case = POSITIONS_CASES[11]
    return Call("add_blocks", values(case.shape, dtype), (values(case.blocks_shape, dtype, 1), case.positions), options)


def awkward(dtype):
    """Describe a call with infinite weights and NaN: zero times these, of a tap that does not exist, is NaN."""
    (case,) = (case for case in SMOKE_CASES if case.name == "words")
    return of_dtype(dtype, case, window=awkward_window("separable", case.kernel_size, dtype, 2))


def of_odd_blocks(dtype):
    return blocks_calls((2, 16, 40), (5, 5), 1, np.dtype(dtype))[1]


(_VOLUME,) = (case for case in POSITIONS_CASES if case.name == "volume")
TAKEN_OF_THREE_AXES = Call(
    "take_blocks", values(_VOLUME.shape, np.float32), (_VOLUME.positions, _VOLUME.blocks_shape[-3:])
)
MEAN = {"reduction": "mean", "fill_value": 0, "window": window_of("separable", SLIDING.kernel_size, np.float32)}
WEIGHTS = window_of("separable", SLIDING.kernel_size, np.float64)
_, WORDS_OF_BLOCKS = blocks_calls((2, 16, 40), (8, 8), 1, np.dtype(np.complex128))
ODD_BLOCKS = {"u8": "uint8", "u16": "float16", "u32": "float32", "u64": "float64"}
"""Of blocks whose rows are no words but elements: what these are loaded as."""
_, WORDS_OF_PIXELS = blocks_calls((2, 16, 40), (8, 8), 4, np.dtype(np.float32))
_, TAKEN_WITH_PADS = calls_of(SMOKE_CASES[4], np.dtype(np.uint8))

EIGHTS = SpaceCase("eights", (3, 4, 6, 12), (1, 1, 1, 3), (0, 0, 0, 0), (0, 0, 0, 0))

FURTHER = {
    "bytes": (of_dtype("uint8"), "gather", H200),
    "halfwords": (of_dtype("int16"), "gather", H200),
    "halves": (of_dtype("float16"), "gather", H200),
    "brain-halves": (of_dtype("bfloat16"), "gather", H200),
    "pairs-of-bytes": (of_dtype("uint8", SMOKE_CASES[1]), "gather_parts", H200),
    "weights": (of_dtype("float32", SLIDING, **MEAN), "gather", H200),
    "pairs": (of_dtype("complex64"), "gather_parts", H200),
    "widened": (of_dtype("float32", SLIDING, dtype=np.float64), "gather", H200),
    "words-of-pixels": (WORDS_OF_PIXELS, "gather_pixels", H200),
    "words-of-blocks": (WORDS_OF_BLOCKS, "gather_blocks", H200),
    **{f"words-of-blocks-{kind}": (of_odd_blocks(name), "gather_blocks", H200) for kind, name in ODD_BLOCKS.items()},
    "double-weights": (of_dtype("float64", SLIDING, window=WEIGHTS), "gather", H200),
    "awkward-weights": (awkward("float32"), "gather_pixels", H200),
    "awkward-double-weights": (awkward("float64"), "gather_pixels", H200),
    "lists": (added(np.int32), "lists", H200),
    "three-axes": (TAKEN_OF_THREE_AXES, "direct", H200),
    "words-of-eight": (calls_of(EIGHTS, np.dtype(np.float16))[0], "packed", H200),
    "zeros-of-pads": (TAKEN_WITH_PADS, "direct", H200),
    "wide-offsets": (added(np.int32), "lists", H200),
}
"""Calls with inline PTX or lists that the smoke's calls do without, each with a variant and the device to plan for."""


@contextmanager
def planned(name):
    """Give a call, its arrays and its plan; in the one of wide offsets they are so for arrays however small."""
    call, variant, device = FURTHER[name] if name in FURTHER else launches()[name][-1]
    with pytest.MonkeyPatch.context() as patch:
        if name == "wide-offsets":
            patch.setattr(parameters, "INT32_MAX", 0)
        plans = plans_of(call, variant, arrays := arrays_of(call), device)
        yield call, arrays, next(plan for plan in plans if name in (*symbols_of(plan), *FURTHER))


@pytest.mark.hostcuda
@pytest.mark.parametrize(
    "architecture", [90, *(pytest.param(other, marks=pytest.mark.all) for other in (80, 100, 120))]
)
@pytest.mark.parametrize("name", [*FUNCTIONS, *FURTHER])
def test_machine_code_gives_the_bits_of_the_numpy_path(name, architecture):
    """Instructions differ: 64-bit integers are added and compared in one from compute capability 12.0 on."""
    with planned(name) as (call, arrays, plan):
        device = replace(H200, compute_capability=divmod(architecture, 10))
        execute(plan, arrays, "machine code", device=device)
        assert hostcuda.cubin.resources(plan, architecture).shared_bytes == plan.shared_bytes
    got, want = arrays.result, call.on(call.data.copy())
    assert np.any(got != 0)
    assert_same_bits(got.reshape(want.shape), want, f"{plan.symbol} for {architecture}: {call}")


# ---- and each line of inline PTX is in what is executed


def texts(source):
    """Return the inline PTX of a source."""
    found = ("".join(re.findall(r'"([^"]*)"', match[1])) for match in STATEMENT.finditer(source))
    return {" ".join(text.split()) for text in found if text}


ALL = {text: path.name for path in sorted(KERNELS.glob("*.cu*")) for text in texts(path.read_text())}
PATTERNS = {text: re.compile(r"[^\s,;\]}]+".join(map(re.escape, re.split(r"%\d", text)))) for text in ALL}
"""Inline PTX as it is found in a kernel's PTX, where registers and numbers stand for its operands."""


def inline(plan):
    """Return the inline PTX that a plan's kernel is compiled from."""
    options = ["-std=c++17", f"-I{KERNELS}", "-arch=compute_90", "-ftz=true"]
    code = hostcuda.cubin.compile_text(program(plan.source, plan.symbol, plan.defines), options).decode()
    blocks = {" ".join(block.split()) for block in re.findall(r"// begin inline asm(.*?)// end inline asm", code, re.S)}
    return {text for text, pattern in PATTERNS.items() if any(map(pattern.fullmatch, blocks))}


@pytest.mark.all
def test_every_line_of_inline_ptx_is_executed():
    assert len(ALL) > 20
    left = set(ALL)
    for name in (*FURTHER, *FUNCTIONS):
        if left:
            with planned(name) as (*_, plan):
                for step in (*plan.prologue, plan):
                    left -= inline(step)
    assert not left, {text: ALL[text] for text in left}


def test_every_line_of_inline_ptx_has_a_fault():
    for text, file in ALL.items():
        source = (KERNELS / file).read_text()
        of_file = [fault for fault in FAULTS if fault.file == f"kernels/{file}"]
        assert any(text not in texts(fault.breaks(source)) for fault in of_file), text
