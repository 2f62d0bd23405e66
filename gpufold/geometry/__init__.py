"""Geometry: the formulas and checks of all sizes, in exact Python integers.

Each call becomes a frozen geometry here, or raises; sizes are not checked again. Only shapes and integers are read, so
sizes of 2**62 cost nothing.

    SlidingGeometry   col2im and im2col: columns (N, C*prod(kernel), L) <-> image (N, C, *size)
    BlocksGeometry    blocks_to_array and array_to_blocks: blocks (*lead, *blocks, *block) <-> array (*lead, *size)
    PositionsGeometry add_blocks, take_blocks: blocks (P, *lead, *block) <-> array (*lead, *size)
    AverageGeometry   average: array (*lead, *size) by weights (*size)
    SpaceGeometry     batch_to_space and space_to_batch: batch (B*prod(block), *D) <-> space (B, *E)
"""

from __future__ import annotations

from typing import TypeAlias

from gpufold.geometry.axes import Axes, Axis
from gpufold.geometry.blocks import (
    BlocksGeometry,
    array_to_blocks_geometry,
    blocks_as_columns,
    blocks_to_array_geometry,
    merged_axes,
    over_the_end,
)
from gpufold.geometry.grids import ENDLESS, LastBlock, LastSlidingBlock, grid_of_blocks, stitched_sizes
from gpufold.geometry.integers import Extents, Size, Sizes, as_count, as_integers, sequence, whole_shape
from gpufold.geometry.positions import (
    SINGLE,
    AverageGeometry,
    PositionsGeometry,
    add_blocks_geometry,
    average_geometry,
    take_blocks_geometry,
)
from gpufold.geometry.sliding import SlidingGeometry, col2im_geometry, im2col_geometry
from gpufold.geometry.space import SpaceGeometry, batch_to_space_geometry, space_axes, space_to_batch_geometry

Geometry: TypeAlias = SlidingGeometry | BlocksGeometry | PositionsGeometry | AverageGeometry | SpaceGeometry
"""The geometry of any call."""
