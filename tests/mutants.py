"""Mechanical mutants of the kernels and of all Python but that for torch, drawn from a seed.

    make faults RANDOM=60 SEED=1

A mutant is one replacement: an operator for its neighbour, a constant off by one, a condition turned, a statement left
out. Of each the tests that reach it run, the fastest of each first, until one fails: those that run its line of Python,
or execute a kernel whose PTX it changes, as machine code first. What is left has survived 150 tests at most, and may
change nothing at all.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest
from faults import ENDLESS, broken, run_tests
from reach import Kernel, Reach

from bench.hostcuda import cubin


class Mutant(NamedTuple):
    file: str
    line: int
    start: int
    """Where in the file's bytes it begins."""
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old.strip()} -> {self.new.strip() or 'nothing'}"

    def breaks(self, text: str) -> str:
        """Put the mutant into the file's text."""
        content, old = text.encode(), self.old.encode()
        assert content[self.start :].startswith(old), self
        return (content[: self.start] + self.new.encode() + content[self.start + len(old) :]).decode()


_PAIRS = "+ -", "* +", "/ *", "// *", "% +", "< <=", "> >=", "== !=", "&& ||", "and or", "<< >>", "& |"
_NEIGHBOURS = [pair.split() for pair in _PAIRS]
SWAPS = {new: old for old, new in reversed(_NEIGHBOURS)} | {old: new for old, new in _NEIGHBOURS}
"""What replaces an operator."""

KERNELS_AND_PLANNERS = ("kernels/*.cu*", "gpufold/gpu/variants/*.py", "gpufold/gpu/[cpr]*.py")
POOL = (
    *KERNELS_AND_PLANNERS,
    "gpufold/*.py",
    "gpufold/cpu/*.py",
    "gpufold/dask/*.py",
    "gpufold/geometry/*.py",
    "gpufold/gpu/[!cpr]*.py",
    "gpufold/jax/*.py",
)


def mutants_of(root: Path, path: Path) -> Iterator[Mutant]:
    content = path.read_bytes()
    found = _of_python(content) if path.suffix == ".py" else _of_cuda(content)
    for start, old, new in sorted(set(found)):
        yield Mutant(str(path.relative_to(root)), content.count(b"\n", 0, start) + 1, start, old, new)


def _of_python(content: bytes) -> Iterator[tuple[int, str, str]]:
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def between(first: ast.AST, second: ast.AST) -> Iterator[tuple[int, str, str]]:
        begin, end = span(first)[1], span(second)[0]
        sign = re.search(rb"[^\s()\\]+", content[begin:end])
        if sign and sign[0].decode() in SWAPS:
            yield begin + sign.start(), sign[0].decode(), SWAPS[sign[0].decode()]

    def walk(node: ast.AST) -> Iterator[tuple[int, str, str]]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        begin, end = span(node) if hasattr(node, "lineno") else (0, 0)
        text = content[begin:end].decode()
        if isinstance(node, ast.BinOp):
            yield from between(node.left, node.right)
        elif isinstance(node, ast.Compare):
            yield from between(node.left, node.comparators[0])
        elif isinstance(node, ast.BoolOp):
            yield from between(*node.values[:2])
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield begin, text, str(node.value + 1)
        elif isinstance(node, ast.If | ast.IfExp):
            first, last = span(node.test)
            condition = content[first:last].decode()
            yield first, condition, f"(not ({condition}))"
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield begin, text, "pass"
        skipped = ("annotation", "returns", "decorator_list")
        for name, value in ast.iter_fields(node):
            if name not in skipped:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from walk(child)

    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                yield from walk(statement)


def _of_cuda(content: bytes) -> Iterator[tuple[int, str, str]]:
    parts = rb"//[^\n]*", rb'"[^"\n]*"', rb"^#[^\n]*(?:\\\n[^\n]*)*", rb"^ *template <[^\n]*", rb"static_assert\([^;]*;"
    blank = re.compile(b"|".join(parts), re.MULTILINE)
    code = blank.sub(lambda found: re.sub(rb"[^\n]", b" ", found[0]), content)
    for found in re.finditer(rb"(?<= )([-+*/%<>&|]|<=|>=|==|!=|&&|\|\||<<|>>)(?= )", code):
        yield found.start(), found[0].decode(), SWAPS[found[0].decode()]
    for found in re.finditer(rb"(?<![\w.])\d+(?![\w.])", code):
        yield found.start(), found[0].decode(), str(int(found[0]) + 1)
    for found in re.finditer(rb"(?<=if \()[^;{}\n]+(?=\)\n)", code):
        condition = content[slice(*found.span())].decode()
        yield found.start(), condition, f"!({condition})"
    for found in re.finditer(rb"(?<=\n) +(?:[\w.\[\]>-]+ [-+*/|&^]= [^;{}]*|\w+\([^;{}]*\));(?=\n)", code):
        yield found.start(), content[slice(*found.span())].decode(), ";"


def draw(root: Path, seed: int, pool: tuple[str, ...] = POOL) -> Iterator[Mutant]:
    """Yield the mutants of the pool in an order drawn from a seed."""
    every = [mutant for pattern in pool for path in sorted(root.glob(pattern)) for mutant in mutants_of(root, path)]
    yield from random.Random(seed).sample(every, len(every))


@cache
def ptx(kernel: Kernel, checkout: Path) -> bytes:
    """Compile the source of a kernel's specialisation in a checkout; `__wrapped__` does it anew."""
    source, _, defines = kernel
    text = "".join(f"#define {name} {value}\n" for name, value in defines) + f'#include "{source}"\n'
    return cubin.compile_text(text, ["-std=c++17", "-arch=compute_90", "-ftz=true", f"-I{checkout / 'kernels'}"])


# ---- A test for each

MOST = 150
"""How many tests run: some of each test function."""

SAMPLED = 32
"""So many specialisations are compiled, of each kernel function one before its next."""

WHOLE_FILES = 20 * 60
"""The seconds for all tests of a few files."""

NOT_FOUND = 4
"""pytest's exit status for names of tests that there are not."""


def pytest_generate_tests(metafunc):
    option = metafunc.config.option
    pool = KERNELS_AND_PLANNERS if option.kernels else POOL
    drawn = draw(Path(option.folder, "checkout"), option.seed, pool)
    metafunc.parametrize("mutant", [*islice(drawn, option.random)], ids=str)


@pytest.fixture(scope="session")
def reach(request):
    return Reach.recorded(Path(request.config.option.folder, "reach"))


def test_it_is_noticed(mutant, reach, request):
    """What an earlier run in the folder has judged passes."""
    folder = Path(request.config.option.folder)
    noticed, sound = folder / sha256(repr(mutant).encode()).hexdigest(), folder / "checkout"
    if not noticed.exists():
        with broken(sound, mutant) as copy:
            noticed.write_text(noticed_by(mutant, reach, sound, copy))
    print(f"noticed by {noticed.read_text()}")


def noticed_by(mutant: Mutant, reach: Reach, sound: Path, copy: Path) -> str:
    """Return which test notices; skip what changes nothing, and fail where none notices."""
    of_kernels, of_gpu = mutant.file.startswith("kernels/"), mutant.file.startswith(("kernels/", "gpufold/gpu/"))
    tests = reached(mutant, reach, sound, copy)
    (copy / "tests.txt").write_text("\n".join(tests))
    limit = 60 + 4 * sum(reach.seconds[test] for test in tests)
    status, output = run_tests(copy, ["@tests.txt"], "-x", "--all", seconds=limit) if tests else (0, "")
    if status == NOT_FOUND:  # the names of some are of what a planner says
        files = sorted({test.partition("::")[0] for test in tests})
        status, output = run_tests(copy, files, "-x", "--all", seconds=WHOLE_FILES)
    if not status and of_gpu:  # which may cost speed alone
        status, output = run_tests(copy, ["tests/test_figures.py"], "-x", "--all", seconds=WHOLE_FILES)
    if of_kernels and re.search(r"\b(BuildError|CompileError)\b", output):
        pytest.skip("does not compile")
    if not status:
        pytest.fail(f"{mutant} survived {len(tests)} tests", pytrace=False)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return failed[1] if failed else "a test that goes on for ever" if status == ENDLESS else f"pytest, with {status}"


def reached(mutant: Mutant, reach: Reach, sound: Path, copy: Path) -> list[str]:
    """Return the tests that a mutant may change: of a kernel if it changes PTX of one like it, which few execute."""
    tests = reach.of_line(mutant.file, mutant.line)
    if mutant.file.startswith("kernels/"):
        kernels = reach.of_file(sound / mutant.file)
        try:
            changed = {each[1] for each in kernels[:SAMPLED] if ptx(each, sound) != ptx.__wrapped__(each, copy)}
        except cubin.CompileError:
            pytest.skip("does not compile")
        if not changed:
            pytest.skip(f"leaves the machine code of {SAMPLED} specialisations as it was")
        tests = set().union(*(reach.kernels[each] for each in kernels if each[1] in changed))
    of_machine_code = [test for test in reach.fastest(tests) if test.startswith("tests/test_ptx.py")]
    return [*dict.fromkeys((*of_machine_code, *reach.fastest(tests)))][:MOST]
