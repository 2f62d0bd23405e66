"""Runs the unmodified CUDA kernels on the CPU."""

from .build import BuildError, unavailable
from .execute import launch, run
from .memory import Fault

__all__ = ["BuildError", "Fault", "launch", "run", "unavailable"]
