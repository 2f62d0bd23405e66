"""Libraries that stitch, imported as they are: MONAI, TorchIO, nnU-Net, pty-chi, Demucs, Vocos, diffusers, deepinv."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

STAND_INS = (
    "SimpleITK",
    "blosc2",
    "encodec",
    "h5py",
    "huggingface_hub",
    "matplotlib",
    "natsort",
    "pandas",
    "sklearn",
    "tifffile",
    "torchaudio",
    "torchvision",
    "yaml",
)
"""Packages that clients import beside what is called here, to read files and to make tables and networks."""


class _Anything(type):
    """What any name of a package that is stood in for means: its attributes, items and calls are itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __fspath__(cls) -> str:
        return "a folder that nobody asks for"

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return cls


class Anything(metaclass=_Anything):
    """Anything that a module may name as it is imported."""


class _StandIn(ModuleType):
    """A package or module in which every name is Anything."""

    __path__: list[str] = []  # noqa: RUF012  # a package without a folder
    __version__ = "0.0"  # older than whatever a client asks for

    def __getattr__(self, name: str) -> Any:
        return getattr(Anything, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of STAND_INS, asked last: one that is installed is found before."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self.made.append(spec.name)
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def _stood_in() -> Iterator[None]:
    """Let the packages of STAND_INS be imported; afterwards nobody finds them, who looks whether they are installed."""
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.made:
            sys.modules.pop(name, None)


@cache
def client(module: str) -> ModuleType:
    """Return a module of a client's package, such as `monai.inferers`."""
    importlib.import_module("torch._dynamo")  # which looks for some of STAND_INS itself
    with _stood_in():
        return importlib.import_module(module)
