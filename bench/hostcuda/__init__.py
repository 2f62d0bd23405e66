"""Runs the CUDA kernels on the CPU, from their unmodified sources; README.md beside this says how and what for."""

from . import cubin, nvcc
from .build import BuildError, unavailable
from .counting import Requests, Traffic, Work, traffic, work
from .cubin import Figures, figures
from .execute import Caches, launch, run
from .memory import Fault
from .prediction import Prediction, predict

__all__ = [
    "BuildError",
    "Caches",
    "Fault",
    "Figures",
    "Prediction",
    "Requests",
    "Traffic",
    "Work",
    "cubin",
    "figures",
    "launch",
    "nvcc",
    "predict",
    "run",
    "traffic",
    "unavailable",
    "work",
]
