"""From array to array through a function of tiles: `map_tiles`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from gpufold.arrays import check_apart
from gpufold.backends import backend_of
from gpufold.calls import Mode, Reduction
from gpufold.geometry import Extents, LastBlock, Size, Sizes, as_integers
from gpufold.given import shown
from gpufold.positions import grid_positions, take_blocks
from gpufold.stitching import Stitcher


def map_tiles(
    function: Callable[[Any], Any],
    array: Any,
    block_shape: Extents,
    strides: Sizes,
    *,
    window: Any = None,
    batch: int = 1,
    last: LastBlock = "shift",
    mode: Mode = "constant",
    reduction: Reduction = "mean",
    finish: Callable[[Any], Any] | None = None,
    out: Any = None,
) -> Any:
    """Apply a function to overlapping tiles of an array, and average what it returns: sliding-window inference.

    ``(*lead, *size) -> (*channels, *size * scale)``, by a function of tiles ``(B, *lead, *block_shape)``

    >>> import numpy as np, gpufold
    >>> image = np.arange(35.0, dtype=np.float32).reshape(5, 7)
    >>> np.array_equal(gpufold.map_tiles(np.negative, image, (4, 4), 2, batch=3), -image)
    True
    >>> def twice_as_large(tiles):
    ...     return tiles.repeat(2, -2).repeat(2, -1)
    >>> gpufold.map_tiles(twice_as_large, image, (4, 4), 2).shape
    (10, 14)

    Memory is that of a batch and of the rows that open tiles reach, beside what the result takes: a memory-mapped
    array is read tile by tile, and an `out` is written slab by slab.

    Parameters
    ----------
    function : callable
        Takes a batch of tiles (B, *lead, *block_shape), with B up to `batch`, and returns theirs (B, *channels, *tile),
        with any leading axes. A `tile` may be larger or smaller than `block_shape`, by the same factor for all tiles.
    array : numpy.ndarray, cupy.ndarray or torch.Tensor
        Array of shape (*lead, *size). Axes smaller than a tile are extended as `mode` says.
    block_shape : sequence of int
        Elements of a tile along each of the last axes, those of `size`, at least 1.
    strides : int or sequence of int
        Elements from one tile to the next, at least 1; one int means the same on every axis.
    window : numpy.ndarray, cupy.ndarray, torch.Tensor or sequence of them, optional
        Real weights of what the function returns of a tile, of the shape `tile`, or one array per axis.
    batch : int
        Tiles that the function gets at once, at most.
    last : str
        What becomes of the end of an axis, as in `grid_positions`.
    mode : str
        What lies outside of the array, as in `take_blocks`.
    reduction : str
        How tiles are combined, as in `Stitcher`.
    finish : callable, optional
        What is done to each slab (*channels, *rows) of the result once no later tile reaches it, such as an argmax
        over its channels; the axes of `size` stay as they are.
    out : array, optional
        What the result is written into, of its shape: an array of the result's library, or of another or none, such as
        one of Zarr, which gets NumPy's.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or torch.Tensor
        The result, of the library and device of what the function returns, or `out`.

    Raises
    ------
    TypeError, ValueError
        As in `grid_positions`, `take_blocks` and `Stitcher`; the function's tiles do not fit.

    See Also
    --------
    Stitcher : The same, with the loop left to the caller.
    """
    block = as_integers("map_tiles", "block_shape", block_shape)
    if isinstance(block, int) or not 0 < len(block) <= len(array.shape):
        raise ValueError(
            f"map_tiles: block_shape must have one value for each of array's last axes, got {shown(block_shape)} for "
            f"shape {tuple(array.shape)}"
        )
    number = as_integers("map_tiles", "batch", batch)
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"map_tiles: batch must be an integer of at least 1, got {shown(batch)}")
    if isinstance(out, np.ndarray) and isinstance(array, np.ndarray):
        check_apart("map_tiles", np, "out", out, [("array", array)])
    rank = len(block)
    size = tuple(array.shape)[-rank:]
    positions = grid_positions(tuple(map(max, size, block)), block, strides, last=last)
    stitcher, shape, scale = None, size, [Fraction(1)] * rank
    for start in range(0, len(positions), number):
        places = positions[start : start + number]
        tiles = function(take_blocks(array, places.tolist(), block, mode=mode))
        if stitcher is None:
            tile, scale = _scale(tuple(tiles.shape), block, len(places))
            shape = tuple(_scaled(np.array([size]), scale, "size")[0].tolist())
            stitcher = Stitcher(
                (*tuple(tiles.shape)[1:-rank], *shape), tile, window=window, reduction=reduction, slabs=True
            )
        stitcher.add(tiles, _scaled(places, scale, "positions"))
        begin, slab = stitcher.finished()
        out = _written(out, begin, slab, shape, finish)
    assert stitcher is not None  # there is a position at least
    begin, slab = stitcher.result()
    return _written(out, begin, slab, shape, finish)


def _scale(shape: Size, block: Size, count: int) -> tuple[Size, list[Fraction]]:
    """Return the shape of a tile that the function returned, and how much larger it is along each axis."""
    tile = shape[-len(block) :]
    if len(shape) <= len(block) or shape[0] != count or not all(tile):
        raise ValueError(
            f"map_tiles: the function must return (B, *channels, *tile) with B = {count} and {len(block)} axes of a "
            f"tile, got shape {shape}"
        )
    return tile, [Fraction(*extents) for extents in zip(tile, block, strict=True)]


def _scaled(numbers: Any, scale: list[Fraction], what: str) -> Any:
    """Return integers (..., rank) times the scale of each axis, where these are integers."""
    scaled = numbers * [each.numerator for each in scale]
    below = np.array([each.denominator for each in scale])
    if (scaled % below).any():
        raise ValueError(
            f"map_tiles: {what} times the scale {', '.join(map(str, scale))} of the function must be integers, got "
            f"{numbers.tolist()}; choose block_shape, strides and last='over' so that they are"
        )
    return scaled // below


def _written(out: Any, start: int, slab: Any, size: Size, finish: Callable[[Any], Any] | None) -> Any:
    """Write a slab from a row on into an array whose last axes have a size, a new one where there is none."""
    rank = len(size)
    if not slab.shape[-rank]:
        return out
    slab = slab if finish is None else finish(slab)
    if out is None:
        backend = backend_of(slab)
        with backend.device:
            out = backend.zeros((*tuple(slab.shape)[:-rank], *size), slab.dtype)
    elif type(out) is not type(slab) and not isinstance(slab, np.ndarray):
        slab = slab.get() if hasattr(slab, "get") else slab.detach().cpu().numpy()
    out[(..., slice(start, start + slab.shape[-rank]), *(slice(None),) * (rank - 1))] = slab
    return out
