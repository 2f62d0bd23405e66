"""Runs the CUDA kernels on the CPU, from their unmodified sources; see README.md in this folder."""

from . import cubin
from .build import unavailable
from .execute import Arrays, run
from .machine import work
from .memory import Fault, owner_of, untouched

__all__ = ["Arrays", "Fault", "cubin", "owner_of", "run", "unavailable", "untouched", "work"]
