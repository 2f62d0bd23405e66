"""Where arrays and geometry are settled: the CPU or the GPU that computes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpufold import cpu
from gpufold.arrays import ArrayT
from gpufold.geometry import BlocksGeometry, Geometry, blocks_as_columns
from gpufold.plan import PLAIN, Fusion
from gpufold.windows import with_added_axes


def fill(
    operation: str,
    library: ModuleType,
    data: Any,
    result: ArrayT,
    geometry: Geometry,
    variant: str,
    deterministic: bool,
    fusion: Fusion = PLAIN,
    window: Any = None,
    positions: Any = None,
) -> ArrayT:
    """Compute the result on the CPU or the GPU, where it has any element; positions are those of add_blocks."""
    if result.size == 0 or (positions is not None and data.size == 0):
        return result
    if fusion.window == "separable" and isinstance(geometry, BlocksGeometry):
        blocks, array = (data, result) if operation == "blocks_to_array" else (result, data)
        sliding, _, _ = blocks_as_columns(geometry, blocks.strides, array.strides)
        window = with_added_axes(operation, library, window, len(sliding.axes) - len(geometry.axes))
    if library is np:
        fused = () if fusion is PLAIN else (fusion, window)
        placed = () if positions is None else (positions,)
        getattr(cpu, operation)(data, result, geometry, *fused, *placed)
    else:
        from gpufold import launch  # imports cupy, which its arrays' owner has

        launch.execute(operation, geometry, data, result, variant, deterministic, fusion, window, positions)
    return result
