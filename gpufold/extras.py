"""Submodules that load on first use, and the errors for missing packages."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

SUBMODULES: dict[str, tuple[str, ...]] = {"dask": ("dask",), "jax": ("jax",), "onnx": (), "torch": ("torch",)}
"""The packages that each submodule needs to load."""


def missing(name: str, package: str, extra: str) -> ImportError:
    """Return the error for a name of gpufold that needs a missing package."""
    other = " (cuda12 with a driver for CUDA 12)" if extra == "cuda13" else ""
    return ImportError(
        f'{name} needs the package {package}: pip install "gpufold[{extra}]", or in a checkout '
        f'pip install ".[{extra}]"{other}',
        name=package,
    )


def outdated(name: str, package: str, found: str, least: str) -> ImportError:
    """Return the error for a name of gpufold that needs a newer version of a package."""
    return ImportError(f"{name} needs {package} {least} or newer, got {found}: upgrade it", name=package)


def load(name: str) -> ModuleType:
    """Return a submodule, loaded on first use.

    Other names raise AttributeError, as `hasattr` and `getattr` expect. A submodule whose packages are missing raises
    ImportError, which says what to install.
    """
    if name not in SUBMODULES:
        raise AttributeError(f"module 'gpufold' has no attribute {name!r}")
    return import_module(f"gpufold.{name}")


def loadable() -> list[str]:
    """Return the submodules whose packages are installed, without importing them."""
    return [name for name, packages in SUBMODULES.items() if all(_is_installed(package) for package in packages)]


def _is_installed(package: str) -> bool:
    return sys.modules.get(package) is not None or find_spec(package) is not None
