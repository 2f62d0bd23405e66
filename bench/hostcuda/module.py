"""The structs of host/module.h, and the libraries that use them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

POINTER_TO_CONST, POINTER = 1, 2
"""Kinds of parameters: Parameter.pointer."""

ELEMENT, KNOWN, ONCE, WRITTEN = 1, 2, 4, 8
"""Flags of a byte: Array.flags."""


class Parameter(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("pointer", ctypes.c_uint32))


class Module(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(Parameter)),
        ("parameter_count", ctypes.c_uint32),
        ("image_begin", ctypes.c_void_p),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
    )


class Array(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("argument", ctypes.c_uint32),
        ("writable", ctypes.c_uint32),
        ("first", ctypes.c_void_p),
        ("flags", ctypes.c_void_p),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.POINTER(Module)),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint64),
        ("message", ctypes.c_void_p),
        ("message_size", ctypes.c_uint32),
        ("array_count", ctypes.c_uint32),
        ("arrays", ctypes.POINTER(Array)),
    )


@dataclass(frozen=True)
class Kernel:
    """A kernel in this process: its parameters, and the scheduler's library that runs it."""

    library: ctypes.CDLL
    runtime: ctypes.CDLL
    module: Any
    parameters: tuple[Parameter, ...]


@cache
def load(path: Path, runtime: Path) -> Kernel:
    """Load a kernel; its library stays loaded as long as the process lives."""
    library = ctypes.CDLL(str(path))
    library.hostcuda_module.restype = ctypes.POINTER(Module)
    module = library.hostcuda_module()
    parameters = tuple(module.contents.parameters[: module.contents.parameter_count])
    return Kernel(library, ctypes.CDLL(str(runtime)), module, parameters)
