"""Where arrays and geometry are settled: the CPU or the GPU that computes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpufold import cpu
from gpufold.arrays import ArrayT
from gpufold.geometry import Geometry
from gpufold.plan import PLAIN, Fusion


def fill(
    operation: str,
    library: ModuleType,
    data: Any,
    result: ArrayT,
    geometry: Geometry,
    variant: str,
    deterministic: bool,
    fusion: Fusion = PLAIN,
    window: tuple[Any, ...] | None = None,
    positions: Any = None,
) -> ArrayT:
    """Compute the result on the CPU or the GPU, where it has any element; positions are those of add_blocks."""
    if result.size == 0 or (positions is not None and data.size == 0):
        return result
    if library is np:
        fused = () if fusion is PLAIN else (fusion, window)
        placed = () if positions is None else (positions,)
        getattr(cpu, operation)(data, result, geometry, *fused, *placed)
    else:
        from gpufold import launch  # imports cupy, which its arrays' owner has

        launch.execute(operation, geometry, data, result, variant, deterministic, fusion, window, positions)
    return result
