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

from gpufold.geometry.axes import Axis as Axis
from gpufold.geometry.blocks import BlocksGeometry as BlocksGeometry
from gpufold.geometry.blocks import array_to_blocks_geometry as array_to_blocks_geometry
from gpufold.geometry.blocks import blocks_as_columns as blocks_as_columns
from gpufold.geometry.blocks import blocks_to_array_geometry as blocks_to_array_geometry
from gpufold.geometry.blocks import merged_axes as merged_axes
from gpufold.geometry.blocks import over_the_end as over_the_end
from gpufold.geometry.grids import ENDLESS as ENDLESS
from gpufold.geometry.grids import LastBlock as LastBlock
from gpufold.geometry.grids import LastSlidingBlock as LastSlidingBlock
from gpufold.geometry.grids import grid_of_blocks as grid_of_blocks
from gpufold.geometry.grids import stitched_sizes as stitched_sizes
from gpufold.geometry.integers import Extents as Extents
from gpufold.geometry.integers import Size as Size
from gpufold.geometry.integers import Sizes as Sizes
from gpufold.geometry.integers import as_count as as_count
from gpufold.geometry.integers import as_integers as as_integers
from gpufold.geometry.integers import sequence as sequence
from gpufold.geometry.integers import whole_shape as whole_shape
from gpufold.geometry.placed import AverageGeometry as AverageGeometry
from gpufold.geometry.placed import PositionsGeometry as PositionsGeometry
from gpufold.geometry.placed import add_blocks_geometry as add_blocks_geometry
from gpufold.geometry.placed import average_geometry as average_geometry
from gpufold.geometry.placed import take_blocks_geometry as take_blocks_geometry
from gpufold.geometry.sliding import SlidingGeometry as SlidingGeometry
from gpufold.geometry.sliding import col2im_geometry as col2im_geometry
from gpufold.geometry.sliding import im2col_geometry as im2col_geometry
from gpufold.geometry.space import SpaceGeometry as SpaceGeometry
from gpufold.geometry.space import batch_to_space_geometry as batch_to_space_geometry
from gpufold.geometry.space import space_axes as space_axes
from gpufold.geometry.space import space_to_batch_geometry as space_to_batch_geometry

Geometry: TypeAlias = SlidingGeometry | BlocksGeometry | PositionsGeometry | AverageGeometry | SpaceGeometry
"""The geometry of any call."""
