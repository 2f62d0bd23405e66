"""The public function on blocks at positions of their own."""

from __future__ import annotations

from typing import Any

from gpufold import calls
from gpufold.arrays import ArrayT, as_positions, check_library, library_of
from gpufold.compute import compute

OPERATION = "add_blocks"


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
    places = as_positions(OPERATION, library, positions, out)
    call = calls.add_blocks(out, blocks, places, window, variant=variant, deterministic=deterministic)
    result: ArrayT = compute(call, library, blocks, out, window, places)
    return result
