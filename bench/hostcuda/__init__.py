"""Runs the CUDA kernels on the CPU, from their unmodified sources; README.md beside this says how and what for."""

from . import cubin, nvcc
from .build import BuildError, unavailable
from .cubin import Figures, figures
from .execute import launch, run
from .machine import Work, work
from .memory import Fault

__all__ = [
    "BuildError",
    "Fault",
    "Figures",
    "Work",
    "cubin",
    "figures",
    "launch",
    "nvcc",
    "run",
    "unavailable",
    "work",
]
