"""Plans of kernels/col2im_gather_blocks.cu, in which thread blocks load rows of taps through shared memory."""

from __future__ import annotations

from functools import partial
from math import gcd, lcm, prod

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import are_contiguous, offset_bits
from gpufold.gpu.plan import LaunchShape, Plan, Problem
from gpufold.gpu.variants.col2im import largest_offset, plans_of, sum_plan
from gpufold.gpu.variants.columns import view_of
from gpufold.gpu.variants.views import WIDEST_WORD, ViewAxis, word_elements

THREADS = 128
"""Threads of a thread block, one per pixel of a row: with more, fewer taps are read twice, but more threads idle at the
ends of rows."""
MOST_ROWS, SUMS_BYTES = 8, 32
"""Most rows of pixels of a thread block, and most bytes of the sums that a thread keeps for them. Memory is read in
pieces of as many rows of taps: an H100 reads pairs of sectors, and short pieces waste one at each end."""
TILE_BYTES, MOST_TILE_BYTES = 8 * 1024, 36 * 1024
"""Most bytes of a tile in the threads' registers: if its rows of taps can be cut, and in any case."""
LOAD_BYTES = 8
"""Least bytes of registers for a word, with its address."""
SHARED_BYTES = 20 * 1024
"""Most bytes of two tiles, otherwise there is one: a multiprocessor has room for ten such thread blocks."""
BANKS_BYTES, BANK_BYTES = 128, 4
"""Bytes of all banks of shared memory, and of one."""


def gather_blocks(problem: Problem) -> tuple[Plan, ...]:
    """Plan kernels/col2im_gather_blocks.cu for several rows and for one, the faster one on an H100 first."""
    view = view_of(problem)
    if not are_contiguous(view.kernel, view.tap_strides):
        raise Unsupported(
            f"gather_blocks loads rows of taps as they lie in memory, so a block's taps must be "
            f"contiguous in the columns, but their strides are {view.tap_strides} elements"
        )
    rows = _rows(problem)
    dense = view.itemsize > 1 and view.axes[-2:][0].stride == 1
    return plans_of(partial(_plan, problem), dict.fromkeys((rows, 1) if dense else (1, rows)))


def _plan(problem: Problem, rows: int) -> Plan:
    """Plan thread blocks that own `rows` rows of pixels."""
    view, itemsize, vector = view_of(problem), problem.call.data_element.itemsize, _vector(problem)
    *outer, row = view.axes
    taps = row.kernel if rows > 1 else _taps_of_tile(row, vector, itemsize)
    if (needed := _tile_bytes(row, taps, vector, itemsize)) > MOST_TILE_BYTES:
        raise Unsupported(
            f"gather_blocks loads {taps} taps of each block that reaches {THREADS} pixels at once, in "
            f"{MOST_TILE_BYTES} bytes at most, but strides {row.stride} and dilations {row.dilation} make it {needed} "
            f"on the last axis"
        )
    # Bytes of a block that neighbouring lanes read before the next block.
    lanes_bytes = max(BANK_BYTES, gcd(row.tap_step * itemsize, BANKS_BYTES))
    pitch = (-(-rows * taps * itemsize // lanes_bytes) | 1) * lanes_bytes // itemsize
    tile_bytes = -(-_tile_blocks(row, taps) * pitch * itemsize // WIDEST_WORD) * WIDEST_WORD
    tiles = 2 if 2 * tile_bytes <= SHARED_BYTES else 1
    owned = (*(1 for _ in outer), rows, THREADS)[-len(view.axes) :]
    extents = tuple(-(-axis.size // pixels) for axis, pixels in zip(view.axes, owned, strict=True))
    items = view.batch * view.planes * prod(extents)
    # What threads may address past the ends of rows, of tiles and of the image.
    beyond = 2 * (THREADS + 1) * (abs(row.block_stride) + abs(row.pixel_stride) + row.stride)
    beyond += rows * (taps + max(abs(axis.pixel_stride) for axis in view.axes) + max(axis.stride for axis in view.axes))
    bits = offset_bits(largest_offset(view) + beyond, items)
    return sum_plan(
        problem,
        "gather_blocks",
        LaunchShape(items, 1, THREADS, extents, view.planes, bits, tiles * tile_bytes),
        f"each thread block brings {taps} taps of {'a row' if rows == 1 else f'{rows} rows'} at a time to {THREADS} "
        f"pixels, in words of {vector * itemsize} bytes",
        ROWS=rows,
        VECTOR=vector,
        TAPS=taps,
        PITCH=pitch,
        LANES=_lanes(_tile_blocks(row, taps), rows * taps // vector),
        TILES=tiles,
    )


def _rows(problem: Problem) -> int:
    """Return the rows of pixels of a thread block: several if whole rows of their taps fit into a tile."""
    view, itemsize, vector = view_of(problem), problem.call.data_element.itemsize, _vector(problem)
    *outer, row = view.axes
    if not outer or outer[-1].dilation != 1 or outer[-1].kernel == 1:
        return 1
    rows = min(MOST_ROWS, SUMS_BYTES // view.itemsize)
    while rows > 1 and rows * _tile_bytes(row, row.kernel, vector, itemsize) > MOST_TILE_BYTES:
        rows //= 2
    return rows


def _lanes(blocks: int, words: int) -> int:
    """Return the number of threads per piece of words that loads the pieces of all blocks in the fewest turns."""
    return min(
        range(min(words, THREADS), 0, -1), key=lambda lanes: -(-blocks // (THREADS // lanes)) * -(-words // lanes)
    )


def _vector(problem: Problem) -> int:
    """Return the elements of the widest word that divides a row of taps and is aligned in every block."""
    view, itemsize = view_of(problem), problem.call.data_element.itemsize
    steps = [view.kernel[-1], *(axis.block_stride for axis in view.axes), *view.blocks_strides]
    return word_elements(itemsize, problem.input.alignment, steps)


def _taps_of_tile(row: ViewAxis, vector: int, itemsize: int) -> int:
    """Return the taps of a row that a tile has of each block: all, or as often halved as they need to fit.

    Parts are whole words, and equally many of their taps land on every pixel.
    """
    taps, step = row.kernel, lcm(vector, row.tap_step)
    while taps > step and _tile_bytes(row, taps, vector, itemsize) > TILE_BYTES:
        taps = -(-(taps // 2) // step) * step
    return taps


def _tile_bytes(row: ViewAxis, taps: int, vector: int, itemsize: int) -> int:
    """Count the bytes of registers that a tile's words take."""
    return _tile_blocks(row, taps) * (taps // vector) * max(LOAD_BYTES, vector * itemsize)


def _tile_blocks(row: ViewAxis, taps: int) -> int:
    """Count the blocks that may reach a segment with `taps` consecutive taps."""
    return (THREADS - 1 + (taps - 1) * row.dilation) // row.stride + 1
