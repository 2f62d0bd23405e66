"""What the text of the kernels must hold to, whatever a compiler makes of it today, and what NVRTC warns of."""

from __future__ import annotations

import random
import re
from contextlib import suppress

import numpy as np
import pytest
from cases import Case
from executors import call_of
from test_kernels import SOURCES, plans

from bench import hostcuda
from gpufold.calls import Unsupported
from gpufold.gpu.plan import H200, Operand
from gpufold.gpu.registry import choose
from gpufold.gpu.sources import KERNELS
from gpufold.operations import variants

STATEMENT = re.compile(r'\basm\s*(?:volatile\s*)?\(\s*((?:"[^"]*"\s*)+):([^:;]*)(?::([^:;]*))?(?::[^:;]*)?\);')
"""Inline PTX: its text, its outputs, its inputs, and what else it changes."""


def assembly(text: str):
    """Yield every piece of inline PTX in a source: its line, its instructions, and the constraints of its outputs."""
    for found in STATEMENT.finditer(text):
        instructions = "".join(re.findall(r'"([^"]*)"', found[1])).strip("{}; ").split(";")
        yield text.count("\n", 0, found.start()) + 1, instructions, re.findall(r'"([^"]+)"\s*\(', found[2])


def used(instruction: str) -> set[int]:
    return {int(number) for number in re.findall(r"%(\d+)", instruction)}


@pytest.mark.parametrize("source", sorted(path.name for path in KERNELS.glob("*.cu*")))
def test_outputs_of_inline_ptx_share_no_register_with_inputs_read_after_them(source):
    text = (KERNELS / source).read_text().replace('" L2_FETCH "', "")
    found = list(assembly(text))
    assert len(found) == len(re.findall(r"\basm\b[^\n]*\(", text)), "every piece of inline PTX is understood"
    for line, instructions, outputs in found:
        early = set().union(*map(used, instructions[:-1])) & set(range(len(outputs)))
        for number in early:
            assert re.match(r"[=+]&", outputs[number]), f'{source}:{line} needs "=&" for what it writes early'


KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(([^{]*)\)\s*\{')
"""A kernel function: its name, its parameters."""


def arrays_of(text: str) -> set[str]:
    """Return the names of all arrays that a source's kernels take; a window is a struct of them."""
    lists = [found.replace("WEIGHT_OUT_ARGUMENT", "Weight* weight_out,") for _, found in KERNEL.findall(text)]
    parameters = [parameter for found in lists for parameter in found.split(",")]
    return {re.findall(r"\w+", parameter)[-1] for parameter in parameters if re.search(r"\*|\bWeights\b", parameter)}


@pytest.mark.parametrize("source", SOURCES)
def test_a_header_has_a_row_for_every_array_of_its_kernels(source):
    text = (KERNELS / source).read_text()
    assert len(KERNEL.findall(text)) == text.count('extern "C" __global__'), "every kernel function is understood"
    rows = re.findall(r"^// {3}(\w+)((?: .*)(?:\n// {4,}.*)*)", text[: text.index("#include")], re.MULTILINE)
    assert {name for name, _ in rows} == arrays_of(text)
    for name, row in rows:  # an array's shape or whose weights it has, and what is done with its elements
        assert re.search(r"(?s)(\(.*\)|weights of).*\b(read|written|added\W+to)\b", row), f"{name} of {source}: {row}"


@pytest.mark.nvrtc
@pytest.mark.all
@pytest.mark.some(3, all=3)
@pytest.mark.parametrize("architecture", hostcuda.cubin.ARCHITECTURES[::2])
@pytest.mark.parametrize("source", SOURCES)
def test_nvrtc_warns_of_nothing(source, architecture):
    drawn = random.Random(f"{source} {architecture}").choice([plan for plan in plans() if plan.file == source])
    assert hostcuda.cubin.warnings(source, drawn.defines, architecture) == "", drawn


FAR = 2**31 + 1

FAR_CASES = (
    Case("taps-far-apart", (5, 5), (2, 3), 1, FAR, FAR, FAR),
    Case("rows-of-many-taps", (2, FAR + 3), (2, FAR)),
    Case("many-rows-of-taps", (FAR + 3, 4), (FAR, 2)),
)


@pytest.mark.nvrtc
@pytest.mark.all
@pytest.mark.parametrize("operation", ["col2im", "im2col"])
@pytest.mark.parametrize("case", FAR_CASES, ids=str)
def test_no_number_that_is_compiled_in_is_cut_to_32_bits(case, operation):
    """NVRTC warns of constants that change by a conversion."""
    call, compiled = call_of(operation, case, lambda shape: np.broadcast_to(np.float32(0), shape)), []
    for variant in variants(operation):
        with suppress(Unsupported):
            described = call.described(variant)
            arrays = Operand.contiguous(call.data.shape), Operand.contiguous(described.result_shape)
            plan = choose(described, *arrays, H200)
            assert dict(plan.defines)["OFFSET"] == "long long"
            assert hostcuda.cubin.warnings(plan.file, plan.defines, 90) == ""
            compiled.append(variant)
    assert compiled, "a variant serves it"
