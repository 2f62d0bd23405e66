"""Calls as users write them, for type checkers (make lint): what each returns, and words that are wrong.

A comment `type: ignore` that nothing needs is an error too, so that each wrong word must be seen. Where torch is not
installed, a checker takes whatever tensors are; none is made, for this module is imported too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import numpy.typing as npt

import gpufold

if TYPE_CHECKING:
    import dask.array as da
    import jax
    import torch

Floats = npt.NDArray[np.float32]

image: Floats = np.ones((2, 3, 8, 8), np.float32)
positions = gpufold.grid_positions((8, 8), 4, strides=2, last="shift")
assert_type(positions, npt.NDArray[np.int64])

columns = gpufold.im2col(image, (2, 2), strides=np.array([2, 2]), pads_begin=np.int64(0))
assert_type(columns, Floats)
assert_type(gpufold.col2im(columns, [8, 8], (2, 2), strides=2, reduction="mean"), Floats)
assert_type(gpufold.col2im(columns, [8, 8], (2, 2), strides=2, dtype=np.float64), Any)
assert_type(gpufold.onnx.col2im(columns, [8, 8], [2, 2], strides=[2, 2]), Floats)

blocks = gpufold.array_to_blocks(image, (4, 4), strides=2)
assert_type(blocks, Floats)
bytes_: npt.NDArray[np.uint8] = np.ones((12, 16), np.uint8)
of_bytes = gpufold.array_to_blocks(bytes_, (4, 4), strides=2)
weight = np.ones((4, 4))
for average in (
    gpufold.col2im(bytes_, (5, 5), (2, 2), reduction="mean"),
    gpufold.col2im(bytes_, (5, 5), (2, 2), window=np.ones((2, 2))),
    gpufold.blocks_to_array(of_bytes, bytes_.shape, (4, 4), strides=2, reduction="mean"),
    gpufold.blocks_to_array(of_bytes, bytes_.shape, (4, 4), strides=2, reduction="least_squares", window=weight),
):
    assert_type(average, npt.NDArray[np.floating[Any]])
assert_type(gpufold.col2im(bytes_, (5, 5), (2, 2)), npt.NDArray[np.uint8])
assert_type(gpufold.blocks_to_array(of_bytes, bytes_.shape, (4, 4), strides=2), npt.NDArray[np.uint8])
assert_type(gpufold.blocks_to_array(blocks, image.shape, (4, 4), strides=2, reduction="least_squares"), Floats)
over = gpufold.array_to_blocks(image, (4, 4), strides=3, last="over")
assert_type(gpufold.blocks_to_array(over, image.shape, (4, 4), strides=3, last="over", fill_value=0.5), Floats)

tiles = gpufold.take_blocks(image, positions, 4, mode="edge")
assert_type(tiles, Floats)
assert_type(gpufold.add_blocks(image, tiles, positions, weights=np.ones(len(tiles))), Floats)
assert_type(gpufold.add_blocks_(image, tiles, positions), Floats)
weights: Floats = np.ones((8, 8), np.float32)
assert_type(gpufold.average(image, weights), Floats)

batch = gpufold.space_to_batch(image, (1, 1, 2, 2))
assert_type(batch, Floats)
assert_type(gpufold.batch_to_space(batch, (1, 1, 2, 2)), Floats)

stitcher = gpufold.Stitcher((2, 3, 8, 8), (4, 4), reduction="mean")
stitcher.add(tiles, positions)
assert_type(stitcher.result(fill_value=np.nan), Any)  # the first batch says what it is, which may be annotated
of_floats: gpufold.Stitcher[Floats] = gpufold.Stitcher((2, 3, 8, 8), (4, 4), window=np.ones((4, 4)))
of_floats.add(tiles, positions, weights=np.ones(len(tiles)))
assert_type(of_floats.result(), Floats)
in_slabs = gpufold.Stitcher((2, 3, 8, 8), (4, 4), slabs=True)
in_slabs.add(tiles, positions)
assert_type(in_slabs.finished(), tuple[int, Any])
assert_type(in_slabs.result(), tuple[int, Any])
stream = gpufold.Stitcher((None, 8), 4)
stream.add(np.ones((1, 4, 4)), [(0, 0)])
assert_type(stream.result(), tuple[int, Any])
mapped: Any = gpufold.map_tiles(np.negative, image, (4, 4), strides=2, batch=8, last="even", mode="edge")

assert_type(gpufold.variants("col2im"), tuple[str, ...])
why = gpufold.explain("col2im", (columns.shape, "float32"), (8, 8), (2, 2), strides=2)
assert_type(why.plan.variant, str)


# An array of known rank gives one of any rank: col2im's has an axis more than its columns.
columns_3d = np.ones((2, 12, 16), np.float32)
image_4d = gpufold.col2im(columns_3d, (5, 5), (2, 2))
batch_size, channels, height, width = image_4d.shape
assert_type(gpufold.col2im(columns_3d, (5, 5), (2, 2), out=image_4d), Floats)
assert_type(gpufold.get_num_threads(), int)


def of_tensors(image: torch.Tensor, places: torch.Tensor) -> None:
    """Call functions on tensors, those that have a type of their own and some of those that gpufold has typed."""
    assert_type(gpufold.im2col(image, (2, 2), pads_begin=1), torch.Tensor)
    assert_type(gpufold.add_blocks(image, image, places), torch.Tensor)
    columns = gpufold.torch.unfold(image, 2, stride=(2, 2))
    assert_type(columns, torch.Tensor)
    assert_type(gpufold.torch.fold(columns, (8, 8), 2, reduction="mean"), torch.Tensor)
    folding: torch.nn.Module = gpufold.torch.Fold((8, 8), 2, reduction="least_squares")
    unfolding: torch.nn.Module = gpufold.torch.Unfold(2, padding=1)
    torch.nn.Sequential(unfolding, folding)
    assert_type(gpufold.torch.col2im(columns, [8, 8], (2, 2), strides=2), torch.Tensor)
    tiles = gpufold.torch.take_blocks(image, places, 4, mode="edge")
    assert_type(tiles, torch.Tensor)
    assert_type(gpufold.torch.add_blocks_(image, tiles, [[0, 0]]), torch.Tensor)
    in_aten: dict[Any, Any] = gpufold.torch.decompositions()
    print(in_aten)
    gpufold.torch.fold(columns, 8, 2, reduction="men")  # type: ignore[arg-type]
    gpufold.torch.take_blocks(image, places, 4, mode="nearest")  # type: ignore[arg-type]


def of_dask(image: da.Array) -> None:
    """Call functions of gpufold.dask: those with a signature of their own, and one of those that gpufold's have."""
    columns = gpufold.dask.im2col(image, (2, 2), strides=2, chunks=(2, 4))
    assert_type(columns, da.Array)
    assert_type(gpufold.dask.col2im(columns, (8, 8), (2, 2), strides=2), da.Array)
    assert_type(gpufold.dask.blocks_to_array(image, (8, 8), (4, 4), strides=2, reduction="mean"), da.Array)
    tiles = gpufold.dask.take_blocks(image, positions, 4, mode="edge")
    assert_type(tiles, da.Array)
    assert_type(gpufold.dask.add_blocks(image, tiles, positions), da.Array)
    assert_type(gpufold.dask.stitch(tiles, positions, (2, 3, 8, 8)), da.Array)
    assert_type(gpufold.dask.average(image, image), da.Array)
    gpufold.dask.col2im(columns, (8, 8), (2, 2), reduction="men")  # type: ignore[arg-type]
    gpufold.dask.take_blocks(np.ones((8, 8)), positions, 4)  # type: ignore[arg-type]


def of_jax(image: jax.Array, window: jax.Array) -> None:
    """Call functions of gpufold on JAX arrays: each returns an array of the kind that it is given."""
    columns = gpufold.im2col(image, (2, 2), strides=2)
    assert_type(columns, jax.Array)
    assert_type(gpufold.col2im(columns, (8, 8), (2, 2), strides=2, window=(window, window)), jax.Array)
    assert_type(gpufold.take_blocks(image, positions, 4, mode="reflect"), jax.Array)
    assert_type(gpufold.jax.im2col(image, (2, 2)), jax.Array)


def wrong_words() -> None:
    """Make calls that nobody runs, for they raise."""
    gpufold.col2im(columns, (8, 8), (2, 2), reduction="men")  # type: ignore[call-overload]
    gpufold.col2im(columns, (8.5, 8), (2, 2))  # type: ignore[arg-type]
    gpufold.col2im(columns, 8, (2, 2))  # type: ignore[call-overload]
    gpufold.im2col(image, (2, 2), stride=2)  # type: ignore[call-arg]
    gpufold.take_blocks(image, positions, 4, mode="nearest")  # type: ignore[arg-type]
    gpufold.grid_positions((8, 8), 4, strides=2, last="drp")  # type: ignore[arg-type]
    gpufold.Stitcher((8, 8), 4, reduction="average")  # type: ignore[call-overload]
    gpufold.col2im(columns, (8, 8), (2, 2), variant="gahter")  # type: ignore[call-overload]
    gpufold.blocks_to_array(blocks, (8, 8), (2, 2), strides=2, window="hann")  # type: ignore[arg-type]
    gpufold.take_blocks(image, positions, 4, window="hann")  # type: ignore[arg-type]
    gpufold.space_to_batch(image, (1, 1, 2, 2), variant="gahter")  # type: ignore[arg-type]
    _ = gpufold.Stitcher((None, 8), 4, slabs=False).result().shape  # type: ignore[attr-defined]
    gpufold.array_to_blocks(image, (4, 4), 2)  # type: ignore[call-arg]
    gpufold.grid_positions((8, 8), 4, 2)  # type: ignore[call-arg]
    gpufold.take_blocks(image, "x", 4)  # type: ignore[arg-type]
    gpufold.add_blocks(image, tiles, 5)  # type: ignore[arg-type]
    gpufold.add_blocks(image, tiles, positions, weights="x")  # type: ignore[arg-type]
    gpufold.map_tiles(image, np.negative, 4, strides=2)  # type: ignore[arg-type]
    gpufold.map_tiles(np.negative, image, (4, 4), strides=2, window=3)  # type: ignore[arg-type]
    stitcher.add([1], positions)  # type: ignore[arg-type]
    stitcher.add(tiles, "x")  # type: ignore[arg-type]
    gpufold.variants("col2in")  # type: ignore[arg-type]
    print(gpufold.col2in)  # type: ignore[attr-defined]
