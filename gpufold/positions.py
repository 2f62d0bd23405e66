"""The public function on blocks at positions of their own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpufold.arrays import (
    ArrayT,
    aligned,
    check_library,
    check_no_capture,
    device_of,
    is_kernel_ready,
    kernel_ready,
    library_of,
    result_array,
    result_dtype,
    share_memory,
)
from gpufold.filling import fill
from gpufold.geometry import positions_geometry
from gpufold.plan import INT64_MAX
from gpufold.windows import as_fusion

OPERATION = "add_blocks"
CAPTURED_POSITIONS = "a contiguous, aligned array of int64 beside out"


def add_blocks(
    out: ArrayT,
    blocks: ArrayT,
    positions: Any,
    window: Any = None,
    *,
    variant: str = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Add blocks into an array, each at a position of its own: ptychography, irregular tiles, particles.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import numpy as np, gpufold
    >>> picture = np.zeros((3, 6), np.float32)
    >>> tiles = np.ones((2, 2, 3), np.float32)
    >>> gpufold.add_blocks(picture, tiles, [(0, 0), (1, 2)])
    array([[1., 1., 1., 0., 0., 0.],
           [1., 1., 2., 1., 1., 0.],
           [0., 0., 1., 1., 1., 0.]], dtype=float32)

    Element ``t`` of block ``p`` is added to ``out[..., positions[p] + t]``; what falls outside is dropped, so that
    positions may be anything, negative ones too. Blocks are added one after another in their order: the result has the
    same bits on every run, on the CPU and the GPU, and positions on a GPU are never looked at by the CPU. Integers
    wrap, bool is a logical or, float16 and bfloat16 are summed in float32 and rounded once a call.

    Parameters
    ----------
    out : numpy.ndarray or cupy.ndarray
        Array of shape (*lead, *size) to add to, with any number of leading axes, of any layout in memory and of the
        dtypes of `col2im` but strings; it shares no memory with the other arrays.
    blocks : numpy.ndarray or cupy.ndarray
        Blocks of shape (P, *lead, *block_shape), of any layout and of `out`'s dtype.
    positions : numpy.ndarray, cupy.ndarray or sequence of sequences of int
        Where in `out` each block's first element lies, of shape (P, rank), in elements along the last `rank` axes of
        `out`, those with positions; integers.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        Real weights of a block's elements, as in `col2im`, multiplied in as the blocks are added.
    variant : str
        A GPU kernel by name, see `gpufold.variants`; "auto" chooses one.
    deterministic : bool
        False also allows kernels that add in an order that changes from run to run.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        `out`.

    Raises
    ------
    TypeError
        An argument has the wrong type, such as positions that are no integers, or its dtype is not supported.
    ValueError
        Shapes, devices or memory do not fit together; nothing has been added then.
    gpufold.Unsupported
        `variant` names a kernel that cannot serve the call; it is a ValueError.

    Notes
    -----
    With ``positions[p] = p * block_strides`` it is `blocks_to_array` with ``accumulate=True``, in another order of
    additions.
    """
    library = library_of(OPERATION, "out", out)
    check_library(OPERATION, "blocks", blocks, library, "out")
    result_dtype(OPERATION, "blocks", blocks.dtype, strings=False)
    places = as_positions(library, positions, out)
    geometry = positions_geometry(out.shape, blocks.shape, places.shape)
    fusion, weights = as_fusion(
        OPERATION, library, blocks, geometry.block_shape, window=window, out=out, accumulate=True
    )
    result_array(OPERATION, library, "blocks", blocks, geometry.array_shape, out, variant, weights)
    if share_memory(library, out, places):
        raise ValueError(
            f"{OPERATION}: out must share no memory with positions, got arrays that overlap; pass a copy of one"
        )
    return fill(OPERATION, library, blocks, out, geometry, variant, deterministic, fusion, weights, places)


def as_positions(library: ModuleType, positions: Any, out: Any) -> Any:
    """Return positions as int64 that kernels can read beside `out`; where they are on a GPU no value is looked at.

    >>> as_positions(np, [(0, -3), (5, 2)], np.zeros((8, 8)))
    array([[ 0, -3],
           [ 5,  2]])
    """
    if not hasattr(positions, "dtype"):
        try:
            given = np.asarray(positions)
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"{OPERATION}: positions must be of shape (number of blocks, number of spatial axes) and fit into 64 "
                f"bits, got {positions!r}"
            ) from error
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"{OPERATION}: positions must be integers, got {positions!r}")
        with device_of(library, out):
            check_no_capture(OPERATION, library, "positions", CAPTURED_POSITIONS)
            return library.asarray(_as_int64(np, given))
    check_library(OPERATION, "positions", positions, library, "out")
    if positions.dtype.kind not in "iu":
        raise TypeError(f"{OPERATION}: positions must be integers, got dtype {positions.dtype}")
    if library is not np and positions.device != out.device:
        raise ValueError(f"{OPERATION}: positions must be on the device of out, {out.device}, got {positions.device}")
    if is_kernel_ready(library, positions, np.int64):
        return positions
    with device_of(library, out):
        check_no_capture(OPERATION, library, "positions", CAPTURED_POSITIONS)
        return _as_int64(library, positions)


def _as_int64(library: ModuleType, positions: Any) -> Any:
    if positions.dtype == np.uint64:  # beyond int64 is far outside of any array
        positions = library.minimum(aligned(library, positions), np.uint64(INT64_MAX))
    return kernel_ready(library, positions, np.int64)
