"""Stitching libraries, imported unchanged: MONAI, TorchIO, nnU-Net, pty-chi, Demucs and diffusers."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

STAND_INS = (
    "SimpleITK",
    "blosc2",
    "h5py",
    "huggingface_hub",
    "matplotlib",
    "pandas",
    "sklearn",
    "tifffile",
    "torchaudio",
    "torchvision",
    "yaml",
)
"""Packages that clients import but do not need here, for files, tables and networks."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of STAND_INS that are not installed."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        self.made.append(spec.name)
        return MagicMock(__path__=[], __version__="0.0")  # older than what a client requires

    def exec_module(self, module: ModuleType) -> None: ...


@cache
def client(module: str) -> ModuleType:
    """Return a module of a client's package, such as `monai.inferers`."""
    importlib.import_module("torch._dynamo")  # looks for some of STAND_INS itself
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        return importlib.import_module(module)
    finally:
        sys.meta_path.remove(finder)
        for name in finder.made:  # which are not installed for anybody else
            sys.modules.pop(name, None)
