"""The deliberate faults of faults.py are still faults of this code."""

from __future__ import annotations

import ast
import shutil
import signal
from itertools import islice
from pathlib import Path

import faults
import mutants
import pytest
from faults import CHECKOUT, FAULTS, of_this_machine, run_tests
from reach import Reach


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_changes_one_place_of_its_file(fault):
    text = (CHECKOUT / fault.file).read_text()
    assert fault.breaks(text) != text
    module, function = fault.test.partition("[")[0].split("::")
    assert f"def {function}(" in (CHECKOUT / module).read_text(), fault.test


@pytest.mark.all
@pytest.mark.hostcuda
def test_a_fault_names_a_test_that_there_is():
    """Of those that other packages do not decide about."""
    status, output = run_tests(CHECKOUT, ["--collect-only", *sorted({fault.test for fault in of_this_machine()})])
    assert status == 0, output


def test_a_random_mutant_changes_its_place_alone():
    seen = list(islice(mutants.draw(CHECKOUT, 3), 400))
    assert {Path(mutant.file).parts[0] for mutant in seen} == {"gpufold", "kernels"}
    for mutant in seen:
        text = (CHECKOUT / mutant.file).read_text()
        broken = mutant.breaks(text)
        assert broken != text, mutant
        assert len(broken.splitlines()) == len(text.splitlines()) or "\n" in mutant.old, mutant
        if mutant.file.endswith(".py"):
            ast.parse(broken)


def test_a_seed_draws_the_same_mutants():
    first, again, other = (list(islice(mutants.draw(CHECKOUT, seed), 20)) for seed in (1, 1, 2))
    assert first == again != other
    of_kernels = islice(mutants.draw(CHECKOUT, 1, mutants.KERNELS_AND_PLANNERS), 200)
    assert {Path(mutant.file).parts[:2] for mutant in of_kernels if mutant.file.endswith("py")} == {("gpufold", "gpu")}


PYTHON = """
def smaller(a, b):
    if a < b and a > 0:
        raise ValueError("not + this")
    total = a + 1
    total += b
    return total
"""
CUDA = """// 1 + 2
#define THREADS 32
template <int n> void f(int a)
{
    if (a < 2)
        a += g(a);
    asm("add 3, 4;");
    __syncthreads();
}
"""


@pytest.mark.parametrize(
    ("name", "text", "changes"),
    [
        ("miniature.py", PYTHON, {
            ("<", "<="), (">", ">="), ("and", "or"), ("0", "1"), ("1", "2"), ("+", "-"), ("total += b", "pass"),
            ("a < b and a > 0", "(not (a < b and a > 0))")}),
        ("miniature.cu", CUDA, {
            ("<", "<="), ("2", "3"), ("a < 2", "!(a < 2)"), ("a += g(a);", ";"), ('asm("add 3, 4;");', ";"),
            ("__syncthreads();", ";")}),
    ],
)  # fmt: skip
def test_every_kind_of_mutant_is_drawn_from_code_alone(name, text, changes, tmp_path):
    (tmp_path / name).write_text(text)
    drawn = mutants.mutants_of(tmp_path, tmp_path / name)
    assert {(mutant.old.strip(), mutant.new) for mutant in drawn} == changes


def test_tests_take_turns_by_their_function():
    seconds = {"a[1]": 3, "a[2]": 1, "a[3]": 2, "b[1]": 4, "b[2]": 5, "c": 9}
    assert Reach(seconds, {}, {}).in_turns(set(seconds)) == ["a[2]", "b[1]", "c", "a[3]", "b[2]", "a[1]"]


AVERAGE = ("average_direct.cu", "average_direct", ())
ATOMIC = [("col2im_atomic.cu", "col2im_atomic", (("N", str(number)),)) for number in range(3)]


def test_a_header_is_a_part_of_the_kernels_that_include_it():
    reach = Reach({}, {}, {kernel: set() for kernel in [*ATOMIC, AVERAGE]})
    first, *others = reach.of_file(CHECKOUT / "kernels/common.cuh")
    assert first == AVERAGE, "a function's second comes after the first of others"
    assert sorted(others) == sorted(reach.of_file(CHECKOUT / "kernels/col2im.cuh")) == ATOMIC
    assert reach.of_file(CHECKOUT / "kernels/average_direct.cu") == [AVERAGE]


@pytest.mark.parametrize(
    ("outputs", "fate"),
    [
        ([(1, "FAILED tests/test_ptx.py::test_a - assert 1\n")], ("caught", "tests/test_ptx.py::test_a")),
        ([(0, ""), (1, "FAILED tests/test_figures.py::test_b\n")], ("costs speed", "tests/test_figures.py::test_b")),
        ([(1, "hostcuda.build.BuildError: g++\n")], ("does not compile", "")),
        ([(0, ""), (0, "")], ("SURVIVED", "1 tests")),
        ([(4, ""), (1, "ERROR tests/test_ptx.py - ValueError\n")], ("caught", "tests/test_ptx.py")),
        ([(-signal.SIGPROF, "")], ("caught", "pytest ended with -27")),
        ([], ("same machine code", "")),
    ],
)
def test_a_mutant_is_caught_or_costs_speed_or_survives(outputs, fate, tmp_path, monkeypatch):
    def reached(*_):
        if not outputs:
            raise faults.SameMachineCode
        yield ["tests/test_ptx.py::test_a"]

    shutil.copytree(CHECKOUT / "kernels", tmp_path / "kernels")
    (mutant,) = islice((m for m in mutants.draw(CHECKOUT, 1) if m.file == "kernels/average_direct.cu"), 1)
    monkeypatch.setattr(faults, "run_tests", lambda *_: outputs.pop(0))
    monkeypatch.setattr(faults, "reached", reached)
    assert faults.fate(mutant, Reach({"tests/test_ptx.py::test_a": 1}, {}, {}), CHECKOUT, tmp_path) == fate
    assert (tmp_path / mutant.file).read_text() == (CHECKOUT / mutant.file).read_text(), "mended"
