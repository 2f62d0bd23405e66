"""The deliberate faults of faults.py are still faults of this code."""

from __future__ import annotations

import ast
import re
from itertools import islice
from pathlib import Path

import faults
import mutants
import pytest
from faults import CHECKOUT, FAULTS, of_this_machine, run_tests


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


def test_a_random_mutant_changes_its_place_alone_and_is_reached_by_tests():
    seen = list(islice(mutants.draw(CHECKOUT, 3), 400))
    assert {Path(mutant.file).parts[0] for mutant in seen} == {"gpufold", "kernels"}
    for mutant in seen:
        text = (CHECKOUT / mutant.file).read_text()
        broken = mutant.breaks(text)
        assert broken != text, mutant
        assert len(broken.splitlines()) == len(text.splitlines()) or "\n" in mutant.old, mutant
        if mutant.file.endswith(".py"):
            ast.parse(broken)
        assert all((CHECKOUT / f"tests/{test}.py").is_file() for test in mutants.tests_of(mutant.file)), mutant


@pytest.mark.parametrize("name", mutants.REACH)
def test_each_row_of_tests_is_for_files_that_there_are(name):
    files = {str(path.relative_to(CHECKOUT)) for pattern in mutants.POOL for path in CHECKOUT.glob(pattern)}
    of_name = [file for file in files if mutants.tests_of(file) == mutants.REACH[name] and re.match(name, file)]
    assert of_name


def test_a_seed_draws_the_same_mutants():
    first, again, other = (list(islice(mutants.draw(CHECKOUT, seed), 20)) for seed in (1, 1, 2))
    assert first == again != other


MINIATURE = """
def smaller(a, b):
    if a < b and a > 0:
        raise ValueError("not + this")
    total = a + 1
    total += b
    return total
"""


def test_every_kind_of_mutant_of_python_is_drawn(tmp_path):
    (tmp_path / "miniature.py").write_text(MINIATURE)
    changes = {(mutant.old, mutant.new) for mutant in mutants.mutants_of(tmp_path, tmp_path / "miniature.py")}
    assert changes == {
        ("<", "<="),
        (">", ">="),
        ("and", "or"),
        ("0", "1"),
        ("1", "2"),
        ("+", "-"),
        ("total += b", "pass"),
        ("a < b and a > 0", "(not (a < b and a > 0))"),
    }


def test_every_kind_of_mutant_of_cuda_is_drawn_from_code_alone(tmp_path):
    text = """// 1 + 2
#define THREADS 32
template <int n> void f(int a)
{
    if (a < 2)
        a += g(a);
    asm("add 3, 4;");
    __syncthreads();
}
"""
    (tmp_path / "miniature.cu").write_text(text)
    changes = {(mutant.old.strip(), mutant.new) for mutant in mutants.mutants_of(tmp_path, tmp_path / "miniature.cu")}
    assert changes == {
        ("<", "<="),
        ("2", "3"),
        ("a < 2", "!(a < 2)"),
        ("a += g(a);", ";"),
        ('asm("add 3, 4;");', ";"),
        ("__syncthreads();", ";"),
    }


@pytest.mark.parametrize(
    ("outputs", "fate"),
    [
        ([(1, "FAILED tests/test_ptx.py::test_a - assert 1\n")], ("caught", "tests/test_ptx.py::test_a")),
        ([(0, ""), (1, "FAILED tests/test_figures.py::test_b\n")], ("costs speed", "tests/test_figures.py::test_b")),
        ([(1, "hostcuda.build.BuildError: g++\n")], ("does not compile", "")),
        ([(0, ""), (0, "")], ("SURVIVED", "test_ptx, test_average")),
        ([(-9, "")], ("caught", "pytest ended with -9")),
    ],
)
def test_a_mutant_is_caught_or_costs_speed_or_survives(outputs, fate, monkeypatch):
    monkeypatch.setattr(faults.shutil, "copytree", lambda *_: CHECKOUT)
    monkeypatch.setattr(Path, "write_text", lambda *_: None)
    monkeypatch.setattr(faults, "run_tests", lambda *_: outputs.pop(0))
    (mutant,) = islice((m for m in mutants.draw(CHECKOUT, 1) if m.file == "kernels/average_direct.cu"), 1)
    assert faults.fate(mutant, CHECKOUT) == fate
