"""Modules that import a package which is not installed are not collected, and a line says so: doctests import them all.

Only packages of an extra or a dependency group are excused: any other import that fails stops the collection.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent

EXTRAS = {
    "build": "--group test",
    "cupy": "'.[cuda13]'",
    "dask": "--group test",
    "distributed": "--group test",
    "hatchling": "--group test",
    "hypothesis": "--group test",
    "jax": "--group test",
    "matplotlib": "--group test",
    "ml_dtypes": "--group test",
    "onnx": "--group test",
    "rich": "--group test",
    "scipy": "--group test",
    "torch": "'.[torch]'",
    "yaml": "--group test",
    "zarr": "--group test",
}
"""The packages that a module may need to be imported, each with what pip installs: an extra, or a dependency group."""

MISSING = frozenset(package for package in EXTRAS if find_spec(package) is None)

BY_THEMSELVES = frozenset({"tests/test_gpu.py", "tests/test_torch_gpu.py"})
"""Modules that run without ml_dtypes too, where a GPU is and nothing can be installed: no test has bfloat16 then."""

LEFT_OUT: dict[tuple[str, ...], list[str]] = defaultdict(list)
"""The modules that are not collected, by the missing packages they need."""


class LeftOut(pytest.File):
    """A module that needs a package which is missing: of it, only the tests are collected that were named."""

    def collect(self):
        """Yield an item for each test that was asked for by its name, which pytest would miss, to deselect it."""
        for argument in self.config.args:
            path, _, test = argument.partition("::")
            if test and (self.config.invocation_params.dir / path).resolve() == self.path:
                yield Named.from_parent(self, name=test)


class Named(pytest.Item):
    """A test that was named and cannot be collected: it is deselected before anything runs."""

    def runtest(self):
        """Fail, if it is not."""
        raise AssertionError(f"{self.nodeid} needs packages that are missing")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector):
    """Leave out a module that needs a package which is missing, whether it was named or found in a folder."""
    collectors = yield
    if not MISSING or file_path.suffix != ".py" or not file_path.is_relative_to(ROOT):
        return collectors
    module = str(file_path.relative_to(ROOT))
    missing = needs(file_path) & MISSING
    packages = tuple(sorted(missing - {"ml_dtypes"} if module in BY_THEMSELVES else missing))
    if not packages:
        return collectors
    if module not in LEFT_OUT[packages]:
        LEFT_OUT[packages].append(module)
    return [LeftOut.from_parent(parent, path=file_path)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Deselect the tests that were named, of modules that are left out."""
    named = [item for item in items if isinstance(item, Named)]
    if named:
        config.hook.pytest_deselected(items=named)
        items[:] = [item for item in items if not isinstance(item, Named)]


def pytest_sessionfinish(session):
    """Hand on what a process of pytest-xdist left out, which has no terminal."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = [[list(packages), modules] for packages, modules in LEFT_OUT.items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Take over what a process of pytest-xdist left out: every one of them the same, unless it crashed."""
    LEFT_OUT.update(
        {tuple(packages): modules for packages, modules in getattr(node, "workeroutput", {}).get("left_out", [])}
    )


def pytest_terminal_summary(terminalreporter, config):
    """Say which of the modules that were asked for are left out, why, and what to install."""
    asked = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    for packages, modules in LEFT_OUT.items():
        named = [module for module in modules if any((ROOT / module).is_relative_to(path) for path in asked)]
        installs = " and ".join(sorted({f"pip install {EXTRAS[package]}" for package in packages}))
        if named:
            terminalreporter.write_line(f"{', '.join(named)} not collected: without {', '.join(packages)} ({installs})")
    named = sorted(module for module in BY_THEMSELVES if any((ROOT / module).is_relative_to(path) for path in asked))
    if "ml_dtypes" in MISSING and named:
        terminalreporter.write_line(f"{', '.join(named)} without bfloat16: ml_dtypes is not installed")


def needs(path: Path) -> frozenset[str]:
    """Return the packages of EXTRAS that are imported with a module, by the checkout's other modules too."""
    packages: set[str] = set()
    seen, waiting = {path}, [path]
    while waiting:
        for name in imports(waiting.pop()):
            package = name.partition(".")[0]
            if package in EXTRAS:
                packages.add(package)
            else:
                found = files_of(name) - seen
                seen |= found
                waiting += found
    return frozenset(packages)


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names that a module imports as it is imported itself, not those in its functions."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return frozenset()  # pytest imports the module next, and reports where it is wrong
    names: set[str] = set()
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            top = ROOT / "tests" if path.is_relative_to(ROOT / "tests") else ROOT
            package = path.relative_to(top).parts[: -node.level] if node.level else ()
            origin = ".".join((*package, *([node.module] if node.module else [])))
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements of a module, those that it tries included."""
    for node in body:
        if isinstance(node, ast.Try):
            yield from statements(node.body)
        else:
            yield node


@cache
def files_of(name: str) -> frozenset[Path]:
    """Return the checkout's files that importing a dotted name imports; none for a package of others."""
    parts = name.split(".")
    modules = [
        folder.joinpath(*parts[:count]) for folder in (ROOT, ROOT / "tests") for count in range(1, len(parts) + 1)
    ]
    candidates = [path for module in modules for path in (module.with_suffix(".py"), module / "__init__.py")]
    return frozenset(path for path in candidates if path.is_file())
