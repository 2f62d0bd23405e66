"""Calls as users write them, for type checkers (make lint): what each returns, and words that are wrong.

A comment `type: ignore` that nothing needs is an error too, so that each wrong word must be seen.
"""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import gpufold

Floats = npt.NDArray[np.float32]

image: Floats = np.ones((2, 3, 8, 8), np.float32)
positions = gpufold.grid_positions((8, 8), 4, 2, last="shift")
assert_type(positions, npt.NDArray[np.int64])

columns = gpufold.im2col(image, (2, 2), strides=np.array([2, 2]), pads_begin=np.int64(0))
assert_type(columns, Floats)
assert_type(gpufold.col2im(columns, [8, 8], (2, 2), strides=2, reduction="mean"), Floats)
assert_type(gpufold.onnx.col2im(columns, [8, 8], [2, 2], strides=[2, 2]), Floats)

blocks = gpufold.array_to_blocks(image, (4, 4), 2)
assert_type(blocks, Floats)
assert_type(gpufold.blocks_to_array(blocks, image.shape, (4, 4), 2, reduction="least_squares"), Floats)

tiles = gpufold.take_blocks(image, positions, 4, mode="edge")
assert_type(tiles, Floats)
assert_type(gpufold.add_blocks(image, tiles, positions), Floats)
weights: Floats = np.ones((8, 8), np.float32)
assert_type(gpufold.average(image, weights), Floats)

batch = gpufold.space_to_batch(image, (1, 1, 2, 2))
assert_type(batch, Floats)
assert_type(gpufold.batch_to_space(batch, (1, 1, 2, 2)), Floats)

stitcher = gpufold.Stitcher((2, 3, 8, 8), (4, 4), reduction="mean")
stitcher.add(tiles, positions)
result: Any = stitcher.result()

assert_type(gpufold.variants("col2im"), tuple[str, ...])
why = gpufold.explain("col2im", (columns.shape, "float32"), (8, 8), (2, 2), strides=2)
assert_type(why.plan.variant, str)


def wrong_words() -> None:
    """Make calls that nobody runs, for they raise."""
    gpufold.col2im(columns, (8, 8), (2, 2), reduction="men")  # type: ignore[arg-type]
    gpufold.col2im(columns, (8.5, 8), (2, 2))  # type: ignore[arg-type]
    gpufold.col2im(columns, 8, (2, 2))  # type: ignore[arg-type]
    gpufold.im2col(image, (2, 2), stride=2)  # type: ignore[arg-type]
    gpufold.take_blocks(image, positions, 4, mode="nearest")  # type: ignore[arg-type]
    gpufold.grid_positions((8, 8), 4, 2, last="drp")  # type: ignore[arg-type]
    gpufold.Stitcher((8, 8), 4, reduction="average")  # type: ignore[arg-type]
    gpufold.variants("col2in")  # type: ignore[arg-type]
    print(gpufold.col2in)  # type: ignore[attr-defined]
