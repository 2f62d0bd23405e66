"""The kernel variants of im2col."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import (
    Field,
    are_contiguous,
    contiguous_strides,
    divisor,
    offset,
    offset_bits,
    wide,
)
from gpufold.gpu.plan import (
    MAX_SHARED_BYTES,
    LaunchShape,
    Plan,
    Problem,
    make_plan,
    resident_blocks,
)
from gpufold.gpu.variants import unfold
from gpufold.gpu.variants.columns import ColumnsView, view_of
from gpufold.gpu.variants.moves import (
    LINE_BYTES,
    MOVING_THREADS,
    PACKED_REGISTERS,
    WARP,
    WIDEST_WORD,
    MovedAxis,
    Moves,
    word_elements,
    word_types,
)

TAPS_BLOCKS = 8
"""Blocks of a thread that takes one tap: they share its index arithmetic, and their loads are in flight together."""
TAPS_REGISTERS = 40
"""That a thread's pixels take at most: fewer blocks are its own where it takes words of their taps."""
PACKED_OTHERS = 24
"""Registers that a thread needs besides the pixels under its blocks: a guess."""


def columns_of(problem: Problem) -> ColumnsView:
    """Return the view of image and columns, as output and input of col2im."""
    return view_of(replace(problem, input=problem.output, output=problem.input))


def even_tap_step(view: ColumnsView) -> int | None:
    """Return the distance of adjacent taps of a block in the columns, with all axes as one; None if it varies."""
    axes = zip(view.kernel, view.tap_strides, contiguous_strides(view.kernel), strict=True)
    steps = [(stride, contiguous) for extent, stride, contiguous in axes if extent > 1] or [(0, 1)]
    tap_step, _ = steps[-1]
    return tap_step if all(stride == contiguous * tap_step for stride, contiguous in steps) else None


def moves_of(problem: Problem) -> Moves:
    """Describe a call, simplified if elements are only copied; raise Unsupported if taps are not evenly apart."""
    view = columns_of(problem)
    tap_step = even_tap_step(view)
    if tap_step is None:
        raise Unsupported(
            f"the taps of a block must be evenly apart in the columns, all axes as one, but their strides "
            f"are {view.tap_strides} for kernel_size={view.kernel}"
        )
    steps = (tap_step * step for step in contiguous_strides(view.kernel))
    axes = zip(view.axes, view.pixel_strides, steps, view.block_strides, strict=True)
    moves = Moves(
        itemsize=view.element.itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        writes_blocks=True,
        batch=view.batch,
        planes=view.channels,
        array_batch_step=view.image_batch,
        array_plane_step=view.image_channel,
        blocks_batch_step=view.columns_batch,
        blocks_plane_step=view.columns_channel,
        axes=tuple(
            MovedAxis(axis.size, axis.kernel, axis.stride, axis.dilation, axis.pad_begin, axis.blocks, *steps)
            for axis, *steps in axes
        ),
    )
    return moves.simplified() if problem.fusion.window == "none" else moves.with_batch_as_planes()


def per_block(problem: Problem) -> Plan:
    """Plan one thread per block: any call, fast while neighbouring blocks are near."""
    return unfold.per_block(problem, moves_of(problem))


def words_of_taps(problem: Problem, view: ColumnsView) -> dict[str, int]:
    """Return how many taps a thread stores at once, of how many blocks, and how it loads their pixels.

    Words that overlap are cut out of one line of pixels, others are loaded as they are stored.
    """
    row, itemsize = view.axes[-1], view.element.itemsize
    axes = tuple(zip(view.axes, view.tap_strides, view.block_strides, view.pixel_strides, strict=True))
    stored = [row.kernel, view.columns_batch, view.columns_channel]
    stored += [step for axis, _, step, _ in axes if axis.blocks > 1]
    stored += [step for axis, step, _, _ in axes[:-1] if axis.kernel > 1]
    loaded = [row.size, view.image_batch, view.image_channel]
    loaded += [step for axis, _, _, step in axes[:-1] if axis.size > 1]
    word = word_elements(itemsize, problem.output.alignment, stored)
    at_once = word_elements(itemsize, problem.input.alignment, loaded) if view.pixel_strides[-1] == 1 else 1
    if problem.fusion.window != "none" or view.tap_strides[-1] != 1 or row.dilation != 1:
        word = 1
    while word > 1 and row.stride >= word and (at_once < word or row.stride % word or row.pad_begin % word):
        word //= 2
    line = row.stride if row.stride < word else 0
    at_once = min(at_once, word) if line else 1
    blocks = TAPS_BLOCKS

    def registers(blocks: int) -> int:
        return ((blocks - 1) * line + word) * -(-itemsize // 4) if line else blocks * word * itemsize // 4

    while registers(blocks) > TAPS_REGISTERS:
        blocks //= 2
    before = -row.pad_begin % at_once
    return {"BLOCKS": blocks, "WORD": word, "LOADED": at_once, "LINE_STRIDE": line, "PIXELS_BEFORE": before}


def taps(problem: Problem) -> Plan:
    """Plan one thread per word of taps: serves any call, and suits columns whose taps are the closest elements."""
    view = columns_of(problem)
    defines = words_of_taps(problem, view)
    axes, row, word = view.axes, view.axes[-1], defines["WORD"]
    several = defines["BLOCKS"] <= row.blocks
    blocks = defines["BLOCKS"] if several else 1
    kernel = (*view.kernel[:-1], row.kernel // word)
    places = -(-row.blocks // blocks)
    threads = view.planes * prod(kernel) * prod(view.blocks[:-1]) * places
    bits = offset_bits(
        threads + MOVING_THREADS,
        *(2 * axis.padded_size + axis.dilated_kernel + TAPS_BLOCKS * axis.stride for axis in axes),
        sum(
            (axis.padded_size + axis.dilated_kernel + TAPS_BLOCKS * axis.stride) * abs(step)
            for axis, step in zip(axes, view.pixel_strides, strict=True)
        ),
        sum(
            axis.kernel * abs(tap_step) + (axis.blocks + TAPS_BLOCKS) * abs(block_step)
            for axis, tap_step, block_step in zip(axes, view.tap_strides, view.block_strides, strict=True)
        ),
    )
    return make_plan(
        problem,
        "taps",
        LaunchShape(threads, MOVING_THREADS, MOVING_THREADS, kernel, 1, bits),
        f"each thread takes {f'{word} taps' if word > 1 else 'one tap'} of "
        f"{f'{blocks} blocks' if blocks > 1 else 'one block'}, "
        "and its neighbours the taps beside " + ("them" if word > 1 else "it"),
        {
            **unfold.types_of(problem, view.element.itemsize),
            "SPATIAL_RANK": len(axes),
            **defines,
        },
        {
            **_axes_of(view),
            "tap_step": offset(view.tap_strides),
            "block_step": offset(view.block_strides),
            "kernel": divisor(kernel),
            "places": divisor((*view.blocks[:-1], places)),
            "row_blocks": offset(row.blocks),
            "channels": divisor(view.channels),
            "threads": offset(threads),
            "image_batch_step": wide(view.image_batch),
            "image_channel_step": wide(view.image_channel),
            "columns_batch_step": wide(view.columns_batch),
            "columns_channel_step": wide(view.columns_channel),
        },
        symbol="im2col_taps_of_several" if several else "im2col_taps",
        takes_window=True,
    )


def _axes_of(view: ColumnsView) -> dict[str, Field]:
    """Return the first members of the parameters of `taps` and `packed`."""
    return {
        "size": offset([axis.size for axis in view.axes]),
        "stride": offset([axis.stride for axis in view.axes]),
        "dilation": offset([axis.dilation for axis in view.axes]),
        "pad": offset([axis.pad_begin for axis in view.axes]),
        "pixel_step": offset(view.pixel_strides),
    }


def packed(problem: Problem) -> Plan:
    """Plan one thread for the fewest neighbouring blocks that are whole words; a warp stores its blocks as one run."""
    view, itemsize = columns_of(problem), problem.element.itemsize
    axes, row, taps, blocks = view.axes, view.axes[-1], prod(view.kernel), prod(view.blocks)
    count = 4 // gcd(taps * itemsize, 4)
    if problem.fusion.window != "none":
        raise Unsupported("packed takes no window, whose products are made element by element")
    if itemsize > 4 or taps * itemsize < 4:
        raise Unsupported(
            f"packed puts words of 4 bytes together: elements must not be larger nor blocks smaller, "
            f"but {taps} of {itemsize} bytes are a block"
        )
    shape = (view.batch, view.channels, *view.blocks, *view.kernel)
    steps = (view.columns_batch, view.columns_channel, *view.block_strides, *view.tap_strides)
    if not are_contiguous(shape, steps) or (row.size > 1 and view.pixel_strides[-1] != 1):
        raise Unsupported(
            f"packed needs an image with a contiguous last axis, not steps of {view.pixel_strides[-1]}, "
            f"and columns (batch, channels, *blocks, *kernel) that are contiguous, not steps of {steps}"
        )
    multiples = [count * row.stride, row.size]
    multiples += [step for axis, step in zip(axes[:-1], view.pixel_strides[:-1], strict=True) if axis.size > 1]
    multiples += [view.image_channel, view.image_batch]
    at_once = word_elements(itemsize, problem.input.alignment, multiples)
    before = -row.pad_begin % at_once
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
    threads = view.planes * prod(places)
    reach = [axis.padded_size + axis.dilated_kernel + (count + WIDEST_WORD) * axis.stride for axis in axes]
    bits = offset_bits(
        threads + MOVING_THREADS,
        view.planes * blocks,
        *reach,
        sum(pixels * abs(step) for pixels, step in zip(reach, view.pixel_strides, strict=True)),
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
            "STRIDE": row.stride,
            "DILATION": row.dilation,
            "BLOCKS": count,
            "LOADED": at_once,
            "PIXELS_BEFORE": before,
            "PADDED": int(any(axis.pad_begin or axis.pad_end for axis in axes)),
            "RESIDENT_BLOCKS": resident_blocks(WARP * tiles, max(registers, loaded) + PACKED_OTHERS),
        },
        {
            **_axes_of(view),
            "places": divisor(places),
            "row_blocks": offset(row.blocks),
            "channels": divisor(view.channels),
            "threads": offset(threads),
            "image_batch_step": wide(view.image_batch),
            "image_channel_step": wide(view.image_channel),
        },
        takes_window=True,
    )
