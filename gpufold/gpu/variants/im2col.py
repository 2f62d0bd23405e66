"""The kernel variants of im2col."""

from __future__ import annotations

from math import gcd, prod

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import are_contiguous, divisor, offset, offset_bits, wide
from gpufold.gpu.plan import MAX_SHARED_BYTES, LaunchShape, Plan, Problem, make_plan, resident_blocks
from gpufold.gpu.variants import unfold
from gpufold.gpu.variants.columns import view_of
from gpufold.gpu.variants.views import (
    LINE_BYTES,
    MOVING_THREADS,
    PACKED_REGISTERS,
    WARP,
    WIDEST_WORD,
    View,
    word_elements,
    word_types,
)

TAPS_BLOCKS = 8
"""Blocks of a thread that takes one tap: they share its index arithmetic, and their loads are in flight together."""
TAPS_REGISTERS = 40
"""Most registers for the pixels of a thread; a thread that takes words of taps has fewer blocks if it needs more."""
PACKED_OTHERS = 24
"""Registers that a thread needs besides the pixels under its blocks: a guess."""


def simplified_view_of(problem: Problem) -> View:
    """Describe a call, simplified if elements are only copied; raise Unsupported if taps are not evenly apart."""
    view = view_of(problem)
    if not view.taps_are_even:
        raise Unsupported(
            f"the taps of a block must be evenly apart in the columns, all axes as one, but their strides "
            f"are {view.tap_strides} for kernel_size={view.kernel}"
        )
    return view.simplified() if problem.fusion.window == "none" else view


def per_block(problem: Problem) -> Plan:
    """Plan one thread per block: any call whose taps are evenly apart in the columns, fast while blocks are near."""
    return unfold.per_block(problem, simplified_view_of(problem))


def words_of_taps(problem: Problem) -> dict[str, int]:
    """Return how many taps a thread stores at once, of how many blocks, and how it loads their pixels.

    Words that overlap are cut out of one line of pixels, others are loaded as they are stored.
    """
    view = view_of(problem)
    *outer, row = view.axes
    itemsize = view.itemsize
    stored = [row.kernel, *view.blocks_strides]
    stored += [axis.block_stride for axis in view.axes if axis.blocks > 1]
    stored += [axis.tap_stride for axis in outer if axis.kernel > 1]
    loaded = [row.size, *view.array_strides]
    loaded += [axis.pixel_stride for axis in outer if axis.size > 1]
    word = word_elements(itemsize, problem.output.alignment, stored)
    at_once = word_elements(itemsize, problem.input.alignment, loaded) if row.pixel_stride == 1 else 1
    if problem.fusion.window != "none" or row.tap_stride != 1 or row.dilation != 1:
        word = 1
    while word > 1 and row.stride >= word and (at_once < word or row.stride % word or row.pad % word):
        word //= 2
    line = row.stride if row.stride < word else 0
    at_once = min(at_once, word) if line else 1
    blocks = TAPS_BLOCKS

    def registers(blocks: int) -> int:
        return ((blocks - 1) * line + word) * -(-itemsize // 4) if line else blocks * word * itemsize // 4

    while registers(blocks) > TAPS_REGISTERS:
        blocks //= 2
    return {"BLOCKS": blocks, "WORD": word, "LOADED": at_once, "LINE_STRIDE": line, "PIXELS_BEFORE": -row.pad % at_once}


def taps(problem: Problem) -> Plan:
    """Plan one thread per word of taps: serves any call, and suits columns whose taps are the closest elements."""
    view, defines = view_of(problem), words_of_taps(problem)
    axes, row, word = view.axes, view.axes[-1], defines["WORD"]
    several = defines["BLOCKS"] <= row.blocks
    blocks = defines["BLOCKS"] if several else 1
    kernel = (*view.kernel[:-1], row.kernel // word)
    places = (*view.blocks[:-1], -(-row.blocks // blocks))
    threads = view.batch * view.planes * prod(kernel) * prod(places)
    bits = offset_bits(
        threads + MOVING_THREADS,
        *(2 * axis.padded_size + axis.dilated_kernel + TAPS_BLOCKS * axis.stride for axis in axes),
        sum(
            (axis.padded_size + axis.dilated_kernel + TAPS_BLOCKS * axis.stride) * abs(axis.pixel_stride)
            for axis in axes
        ),
        sum(axis.kernel * abs(axis.tap_stride) + (axis.blocks + TAPS_BLOCKS) * abs(axis.block_stride) for axis in axes),
    )
    return make_plan(
        problem,
        "taps",
        LaunchShape(threads, MOVING_THREADS, MOVING_THREADS, kernel, 1, bits),
        f"each thread takes {f'{word} taps' if word > 1 else 'one tap'} of "
        f"{f'{blocks} blocks' if blocks > 1 else 'one block'}, "
        "and its neighbours the taps beside " + ("them" if word > 1 else "it"),
        {**unfold.types_of(problem, view.itemsize), "SPATIAL_RANK": len(axes), **defines},
        {
            **unfold.sliding(view),
            "tap_step": offset(view.tap_strides),
            "block_step": offset([axis.block_stride for axis in axes]),
            "kernel": divisor(kernel),
            "places": divisor(places),
            "row_blocks": offset(row.blocks),
            "planes": divisor(view.planes),
            "threads": offset(threads),
            **unfold.plane_steps(view),
        },
        symbol="im2col_taps_of_several" if several else "im2col_taps",
    )


def packed(problem: Problem) -> Plan:
    """Plan one thread for the fewest neighbouring blocks that are whole words; a warp stores its blocks as one run."""
    view, itemsize = view_of(problem), problem.element.itemsize
    axes, row, taps = view.axes, view.axes[-1], view.taps
    count = 4 // gcd(taps * itemsize, 4)
    if problem.fusion.window != "none":
        raise Unsupported("packed takes no window, whose products are made element by element")
    if itemsize > 4 or taps * itemsize < 4:
        raise Unsupported(
            f"packed puts words of 4 bytes together: elements must not be larger nor blocks smaller, "
            f"but {taps} of {itemsize} bytes are a block"
        )
    shape = (view.batch, view.planes, *view.blocks, *view.kernel)
    steps = (view.blocks_batch, view.blocks_plane, *(axis.block_stride for axis in axes), *view.tap_strides)
    if not are_contiguous(shape, steps) or (row.size > 1 and row.pixel_stride != 1):
        raise Unsupported(
            f"packed needs an image with a contiguous last axis, not steps of {row.pixel_stride}, "
            f"and columns (batch, channels, *blocks, *kernel) that are contiguous, not steps of {steps}"
        )
    multiples = [count * row.stride, row.size, *view.array_strides]
    multiples += [axis.pixel_stride for axis in axes[:-1] if axis.size > 1]
    at_once = word_elements(itemsize, problem.input.alignment, multiples)
    before = -row.pad % at_once
    loads = -(-(before + (count - 1) * row.stride + row.dilated_kernel) // at_once)
    registers = taps // row.kernel * -(-loads * at_once * itemsize // 4)
    loaded = taps // row.kernel * loads  # each takes a register before it is packed
    tile = WARP * count * taps * itemsize + LINE_BYTES
    if registers > PACKED_REGISTERS or tile > MAX_SHARED_BYTES:
        raise Unsupported(
            f"packed takes blocks that fit into registers and shared memory, {PACKED_REGISTERS} words of "
            f"pixels a thread and {MAX_SHARED_BYTES} bytes a warp, not {registers} and {tile}"
        )
    tiles = MOVING_THREADS // WARP
    while tiles * tile > MAX_SHARED_BYTES:
        tiles //= 2
    places = (*view.blocks[:-1], -(-row.blocks // count))
    threads = view.batch * view.planes * prod(places)
    reach = [axis.padded_size + axis.dilated_kernel + (count + WIDEST_WORD) * axis.stride for axis in axes]
    bits = offset_bits(
        threads + MOVING_THREADS,
        view.batch * view.planes * prod(view.blocks),
        *reach,
        sum(pixels * abs(axis.pixel_stride) for pixels, axis in zip(reach, axes, strict=True)),
    )
    return make_plan(
        problem,
        "packed",
        LaunchShape(threads, WARP * tiles, WARP * tiles, places, 1, bits, tiles * tile),
        f"each thread packs {f'{count} neighbouring blocks' if count > 1 else 'one block'}, "
        "and its warp stores theirs as one run of words",
        {
            **word_types(itemsize),
            "SPATIAL_RANK": len(axes),
            "KERNEL": view.kernel,
            "ROWS": taps // row.kernel,
            "STRIDE": row.stride,
            "DILATION": row.dilation,
            "BLOCKS": count,
            "LOADED": at_once,
            "PIXELS_BEFORE": before,
            "PADDED": int(any(axis.is_padded for axis in axes)),
            "RESIDENT_BLOCKS": resident_blocks(WARP * tiles, max(registers, loaded) + PACKED_OTHERS),
        },
        {
            **unfold.sliding(view),
            "places": divisor(places),
            "row_blocks": offset(row.blocks),
            "planes": divisor(view.planes),
            "threads": offset(threads),
            "image_batch_step": wide(view.array_batch),
            "image_plane_step": wide(view.array_plane),
        },
    )
