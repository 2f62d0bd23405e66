"""Where every element goes: the formulas and all the checks, in exact Python integers.

A call becomes one frozen geometry here or raises; nothing later checks sizes again. This module
knows no array library: it sees shapes and integers only, so sizes of 2**62 cost nothing.

    SlidingGeometry   col2im and im2col: columns (N, C*prod(kernel), L) <-> image (N, C, *size)
    BlocksGeometry    blocks_to_array and array_to_blocks: blocks (*lead, *blocks, *block) <-> array (*lead, *size)
    PositionsGeometry add_blocks, take_blocks: blocks (P, *lead, *block) <-> array (*lead, *size)
    AverageGeometry   average: array (*lead, *size) by weights (*size)
    SpaceGeometry     batch_to_space and space_to_batch: batch (B*prod(block), *D) <-> space (B, *E)
"""

from __future__ import annotations

from typing import TypeAlias

from gpufold.geometry.axes import Axis
from gpufold.geometry.blocks import (
    BlocksGeometry,
    array_to_blocks_geometry,
    blocks_as_columns,
    blocks_to_array_geometry,
    merged_axes,
    over_the_end,
)
from gpufold.geometry.grids import ENDLESS, LastBlock, LastSlidingBlock, grid_of_blocks, stitched_sizes
from gpufold.geometry.integers import Extents, PerAxis, Size, Sizes, as_count, as_integers, sequence, whole_shape
from gpufold.geometry.placed import (
    AverageGeometry,
    PositionsGeometry,
    add_blocks_geometry,
    average_geometry,
    take_blocks_geometry,
)
from gpufold.geometry.sliding import (
    SlidingGeometry,
    col2im_geometry,
    im2col_geometry,
)
from gpufold.geometry.space import (
    SpaceGeometry,
    batch_to_space_geometry,
    space_to_batch_geometry,
)

__all__ = [
    "ENDLESS",
    "AverageGeometry",
    "Axis",
    "BlocksGeometry",
    "Extents",
    "Geometry",
    "LastBlock",
    "LastSlidingBlock",
    "PerAxis",
    "PositionsGeometry",
    "Size",
    "Sizes",
    "SlidingGeometry",
    "SpaceGeometry",
    "add_blocks_geometry",
    "array_to_blocks_geometry",
    "as_count",
    "as_integers",
    "average_geometry",
    "batch_to_space_geometry",
    "blocks_as_columns",
    "blocks_to_array_geometry",
    "col2im_geometry",
    "grid_of_blocks",
    "im2col_geometry",
    "merged_axes",
    "over_the_end",
    "sequence",
    "space_to_batch_geometry",
    "stitched_sizes",
    "take_blocks_geometry",
    "whole_shape",
]

Geometry: TypeAlias = SlidingGeometry | BlocksGeometry | PositionsGeometry | AverageGeometry | SpaceGeometry
"""What a call becomes."""
