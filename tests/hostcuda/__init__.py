"""Runs the unmodified CUDA kernels on the CPU."""

from .build import BuildError, unavailable
from .execute import Fault, launch, run

__all__ = ["BuildError", "Fault", "launch", "run", "unavailable"]
