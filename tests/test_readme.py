"""What the documents show runs, and says what it prints; what they name exists."""

from __future__ import annotations

import ast
import doctest
import re
import runpy
import subprocess
import tomllib
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from processes import CHECKOUT as ROOT
from processes import python

import gpufold
from bench.__main__ import main
from bench.drawn import distribution
from bench.problems import PROBLEMS, plan_of
from bench.report import LARGE_BYTES, by_operation, milliseconds
from bench.results import Run, geometric_mean
from gpufold.extras import SUBMODULES
from gpufold.gpu.devices import device_named

DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")))
}
README, CONTRIBUTING = DOCUMENTS["README.md"], DOCUMENTS["CONTRIBUTING.md"]
EVERYTHING = "\n".join(DOCUMENTS.values())

named = pytest.mark.parametrize("document", DOCUMENTS)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def needs(script):
    """Mark what a script imports as needed."""
    trees = list(ast.walk(ast.parse(script)))
    names = [alias.name for node in trees if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in trees if isinstance(node, ast.ImportFrom)]
    return [pytest.mark.peer(package) for package in sorted({name.partition(".")[0] for name in names})]


def session(document):
    """What a document's sessions run."""
    return "".join(example.source for example in doctest.DocTestParser().get_examples(DOCUMENTS[document]))


def scripts():
    """Yield every block of Python without prompts."""
    for document, text in DOCUMENTS.items():
        for number, block in enumerate(blocks(text, "python")):
            if ">>>" not in block:
                yield pytest.param(block, marks=needs(block), id=f"{document}-{number}")


# ---- code


@pytest.mark.parametrize("document", [pytest.param(document, marks=needs(session(document))) for document in DOCUMENTS])
def test_sessions_print_what_they_show(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they write pictures
    globs: dict[str, object] = {}
    for number, block in enumerate(block for block in blocks(DOCUMENTS[document], "python") if ">>>" in block):
        test = doctest.DocTestParser().get_doctest(block, globs, f"{document}, session {number}", document, 0)
        assert test.examples
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        runner.run(test, clear_globs=False)
        assert not runner.failures
        globs = test.globs


@named
def test_no_session_is_outside_of_the_blocks_that_run(document):
    text = DOCUMENTS[document]
    assert text.count(">>> ") == sum(block.count(">>> ") for block in blocks(text, "python"))


@pytest.mark.all
@pytest.mark.parametrize("script", list(scripts()))
def test_scripts_run(script, tmp_path):
    (tmp_path / "script.py").write_text(script)
    python("script.py", folder=tmp_path)


# ---- names


def test_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make (\w+)", EVERYTHING, re.MULTILINE))
    assert {"bench", "test", "lint", "faults", "measure"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in set(re.findall(r"python -m bench[ a-z]*", EVERYTHING + makefile)):
        with pytest.raises(SystemExit) as ended:
            main([*command.split()[3:], "--help"])
        assert ended.value.code == 0, command


def test_installations_name_extras_and_the_wheel_of_this_project():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installations = re.findall(r"pip install ([^#`\n]*)", EVERYTHING)
    assert len(installations) >= 4
    for words in installations:
        named = re.fullmatch(r"\.|'\.\[([\w,]+)\]'|--group (\w+)", words.strip())
        assert named, f"pip install {words}: nothing is published, so only a checkout can be installed"
        extras, group = named.groups()
        assert set((extras or "onnx").split(",")) <= set(pyproject["project"]["optional-dependencies"]), words
        assert (group or "test") in pyproject["dependency-groups"], words
    assert set(re.findall(r"gpufold-([\d.]+)-py3", EVERYTHING)) == {gpufold.__version__}


def test_the_first_example_does_what_it_says():
    (block,) = blocks(README[: README.index("## Install")], "python")
    names: dict[str, Any] = {}
    exec(block, names)
    whole = names["network"](names["volume"][None])[0]
    assert f"# {whole.shape}" in block
    np.testing.assert_allclose(names["scores"], whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["", *(pytest.param(name, marks=pytest.mark.peer(name)) for name in SUBMODULES)])
def test_the_reference_has_every_public_name(name):
    module = import_module(f"gpufold.{name}".rstrip("."))
    page = DOCUMENTS[f"docs/api/{name or 'index'}.md"]
    assert set(module.__all__) <= set(re.findall(r"^   (\w+)$", page, re.MULTILINE))


def tree(text):
    """Yield the paths of a drawn tree: two spaces a level, names, two spaces or more, and what they are."""
    folders: list[str] = []
    for line in text.splitlines():
        indent, names = re.fullmatch(r"( *)(\S+(?: \S+)*)(?:  .*)?", line).groups()
        level = len(indent) // 2
        for name in names.split():
            yield "".join(folders[:level]) + name
        folders[level:] = [names] if names.endswith("/") else []


def test_the_map_has_every_module_and_all_that_contributing_names_is_there():
    """A name with NAME in it is one to be made up: the folder is there, and others like it."""
    (drawn,) = (block for block in blocks(CONTRIBUTING, "") if block.startswith("gpufold/"))
    inline = re.findall(r"`([\w./]+/|(?:[\w.]+/)+[\w.]+|[\w]+\.(?:py|md|toml))`", CONTRIBUTING)
    assert not [path for path in {*tree(drawn), *inline} if not list(ROOT.glob(path.replace("NAME", "*")))]
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("gpufold/[!_]*.py")}
    assert modules | {path.relative_to(ROOT).as_posix() for path in ROOT.glob("gpufold/gpu/[!_]*.py")} <= {*tree(drawn)}


# ---- figures

SAVED = "bench/results/cpu-2026-12-01.json"
OF_ONE_THREAD = "bench/results/cpu-one-thread-2026-12-01.json"
ON_A_GPU = "bench/results/gpu-h100-2026-11-27.json"


def table(text, first):
    """The rows of the table whose first row begins so, without the ruler."""
    lines = text[text.index(first) :].splitlines()
    rows = [line for line in lines[: lines.index("")] if not re.fullmatch(r"[|\s:-]+", line)]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize(
    ("document", "first", "saved"),
    [
        ("README.md", "|  | torch | Triton", ON_A_GPU),
        ("docs/performance.md", "|  | torch | Triton", ON_A_GPU),
        ("docs/performance.md", "|  | torch | onnxruntime", SAVED),
    ],
)
def test_the_tables_of_speed_are_those_of_the_saved_runs(document, first, saved):
    run, text = Run.load(ROOT / saved), DOCUMENTS[document]
    (header, *rows), (columns, *measured) = table(text, first), by_operation(run)
    named = {name: cells for name, *cells in measured}
    assert document == "README.md" or [name for name, *_ in rows] == list(named)
    for name, *shown in rows:
        want = dict(zip(columns[1:], named[name.strip("`")], strict=True))
        assert shown == [want[peer.removesuffix(" peer")] for peer in header[1:]], name
    assert run.commit in text
    assert run.command.removesuffix(f" --commit {run.commit}") in text


def test_the_means_on_a_cpu_are_those_of_the_saved_runs():
    text, means = DOCUMENTS["docs/performance.md"], []
    for count, threads in enumerate(("one", "two"), 1):
        saved = f"bench/results/cpu-drawn-{threads}-thread{'s' * (count > 1)}-2026-12-01.json"
        run = Run.load(ROOT / saved)
        *_, (_, _, *figures) = distribution(run)
        of_peers, of_loops = " | ".join(figures[:3]), " | ".join(figures[3:])
        assert f"| {count} | fastest peer | {of_peers} | [commit {run.commit}](../{saved}) |" in text
        assert f"| {count} | loop | {of_loops} | the same |" in text
    for saved in (SAVED, OF_ONE_THREAD):
        run = Run.load(ROOT / saved)
        rows = [row for row in run.rows if row.bytes >= LARGE_BYTES]
        speeds = [[row.speed_up(run.fastest_peer(row)) for row in rows], [row.speed_up("loop") for row in rows]]
        means += [f"{1 / geometric_mean(each):.2f}" for each in speeds]
    fastest, loop, of_one, loop_of_one = means
    assert f"gpufold takes {fastest} times as long as the fastest peer, and {loop} times as long as the loop" in text
    assert f"one thread it takes {of_one} and {loop_of_one} times as long" in text


def test_the_shares_of_a_copy_s_speed_are_those_of_the_saved_run():
    rows = [row for row in Run.load(ROOT / ON_A_GPU).rows if row.bytes >= LARGE_BYTES]
    shares = {row.problem: row.fraction_of_copy() for row in rows}
    dense = [share for name, share in shares.items() if not name.startswith(("add_blocks", "take_blocks"))]
    of_col2im = [share for name, share in shares.items() if name.startswith("col2im")]
    text = DOCUMENTS["docs/performance.md"]
    found = re.search(
        r": (\d+) % of the speed of a copy of as many bytes over (\d+) problems [^:]*1 MB, (\d+) % over the (\d+) "
        r"without positions, and (\d+) % for",
        text,
    )
    assert found is not None
    means = [f"{100 * geometric_mean(each):.0f}" for each in (shares.values(), dense, of_col2im)]
    assert [found[1], found[3], found[5]] == means
    assert [int(found[2]), int(found[4])] == [len(rows), len(dense)]
    assert f"at {found[5]} % of a\ncopy's speed" in README
    for name, percent in (("im2col-audio-400-s160", 84), ("blocks_to_array-blocks-8x8-s1", 82)):
        assert round(100 * shares[name]) == percent
        assert f"({percent} %)" in text
    few = "particles", "spots", "detections"
    for operation, names in (("add_blocks", (*few, "events")), ("take_blocks", few)):
        small = [share for name, share in shares.items() if re.match(rf"{operation}-({'|'.join(names)})", name)]
        assert f"({100 * min(small):.0f} to {100 * max(small):.0f} %)" in text


def test_the_rule_takes_what_was_the_fastest_in_the_saved_run():
    """By how much it may be slower, docs/performance.md says. Today's `gather` was `gather_parts` then."""
    (percent,) = re.findall(r"takes a kernel that is at most (\d) % slower", DOCUMENTS["docs/performance.md"])
    problems, device = {problem.name: problem.for_gpu for problem in PROBLEMS}, device_named("H100")
    run = Run.load(ROOT / ON_A_GPU)
    for row in run.rows:
        exact = {name: row.times[name].median for name in run.variants if name in row.times and name != "atomic"}
        taken = plan_of(problems[row.problem], "auto", row.dtype, device).variant
        taken = {"gather": "gather_parts"}.get(taken, taken)
        assert exact[taken] <= (1 + int(percent) / 100) * min(exact.values()), (row.problem, taken)


def test_the_table_of_clients_is_that_of_its_saved_run():
    run, text = Run.load(ROOT / OF_ONE_THREAD), DOCUMENTS["docs/performance.md"]
    header, *shown = table(text, "|  |  | gpufold | MONAI")
    names = header[2:]
    measured = []
    for row in run.rows:
        if row.times.keys().isdisjoint(names[1:]):
            continue
        times = [milliseconds(row.times[name].median) if name in row.times else "" for name in names]
        memory = [f"{row.memory[name] / 1e6:.3g}" if name in row.memory else "" for name in names]
        measured += [[row.name, "ms", *times], ["", "MB", *memory]]
    assert shown == measured
    assert run.commit in text
    assert run.command in text


def test_every_figure_s_commit_is_in_the_history():
    quoted = set(re.findall(r"\bcommit ([0-9a-f]{7,40})\b", EVERYTHING))
    assert quoted
    git = ["git", "-c", f"safe.directory={ROOT}"]  # another user's checkout too
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        pytest.skip("git has no whole history here")
    for commit in quoted:
        found = subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], cwd=ROOT, capture_output=True)
        assert found.returncode == 0, f"commit {commit} is not in the history"


def test_the_first_screen_s_speed_is_that_of_the_saved_runs():
    line = " ".join(README[README.index("**Speed**") : README.index("## Install")].split())
    found = re.findall(r"(\S+x) as (?:fast as )?(?:torch's|a fold in Triton|a NumPy loop)", line)
    shown = []
    for saved, peers in ((ON_A_GPU, ("torch", "Triton")), (SAVED, ("torch", "loop"))):
        (_, *columns), *measured = by_operation(Run.load(ROOT / saved))
        (cells,) = (cells for name, *cells in measured if name == "col2im")
        shown += [cells[columns.index(peer)] for peer in peers]
    assert found == shown


# ---- drawings, which are those that their script makes of what gpufold computes today

DRAWINGS = ROOT / "docs" / "drawings"
NUMBER = re.compile(r"(?<![\w#.])-?\d+(?:\.\d+)?(?!\w)")

STYLE = re.compile(r'(?<=style=")[^"]*')

TOLERANCE = 0.5
"""In points: another matplotlib may place a letter a little elsewhere."""


@pytest.fixture(scope="module", params=[pytest.param("anew", marks=pytest.mark.peer("matplotlib"))])
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings")
    return {path.name: path.read_text() for path in runpy.run_path(str(DRAWINGS / "draw.py"))["save"](folder)}


def test_every_drawing_is_kept(drawn):
    assert set(drawn) == {path.name for path in DRAWINGS.glob("*.svg")}


def sorted_values(style):
    """Return the values of a style in one order, without their names: some matplotlib write fonts at length."""
    return " ".join(sorted(re.findall(r"'[^']+'|[^\s;,']+", re.sub(r"[a-z-]+: ", "", style[0]))))


@pytest.mark.parametrize("name", [path.name for path in sorted(DRAWINGS.glob("*.svg"))])
def test_a_drawing_is_as_its_script_makes_it(drawn, name):
    kept, made = (STYLE.sub(sorted_values, text) for text in ((DRAWINGS / name).read_text(), drawn[name]))
    assert re.findall(r">([^<\n]+)</text>", kept) == re.findall(r">([^<\n]+)</text>", made)
    assert NUMBER.sub("", kept) == NUMBER.sub("", made), "python docs/drawings/draw.py draws them anew"
    numbers = [np.array(NUMBER.findall(text), np.float64) for text in (kept, made)]
    np.testing.assert_allclose(*numbers, rtol=0, atol=TOLERANCE)
