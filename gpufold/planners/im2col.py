"""The kernel variants of im2col."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod

from gpufold.plan import (
    ELEMENT_TYPES,
    Plan,
    Problem,
    Unsupported,
    Variant,
    contiguous_strides,
    divisor,
    fusion_defines,
    grid_blocks,
    offset_bits,
    offset_type,
    pack,
    parameter_type,
    sliding_bytes,
)
from gpufold.planners import unfold
from gpufold.planners.col2im import View, taps_are_closest, view
from gpufold.planners.unfold import Unfold, UnfoldAxis

OPERATION = "im2col"

TAPS_THREADS = 256
TAPS_BLOCKS = 16
"""Blocks of a thread that takes one tap: they share its index arithmetic, and their loads are in flight together."""
TAPS_MAX_WASTE = 1.5
"""Prediction: they pay while rows of blocks leave no more of them idle than this."""


def _view(problem: Problem) -> View:
    """Name the strides of image and columns as for col2im, which has them the other way round."""
    return view(replace(problem, input=problem.output, output=problem.input))


def _tap_step(seen: View) -> int | None:
    """Return the distance of the taps of a block in the columns, all axes as one; None where it is not even."""
    kernel = tuple(axis.kernel for axis in seen.axes)
    axes = zip(kernel, seen.tap_strides, contiguous_strides(kernel), strict=True)
    steps = [(stride, contiguous) for extent, stride, contiguous in axes if extent > 1] or [(0, 1)]
    tap_step, _ = steps[-1]
    return tap_step if all(stride == contiguous * tap_step for stride, contiguous in steps) else None


def _unfold(problem: Problem) -> Unfold:
    seen = _view(problem)
    tap_step = _tap_step(seen)
    if tap_step is None:
        raise Unsupported(
            f"{OPERATION}: the taps of a block must be evenly apart in the columns, all axes as one, but their strides "
            f"are {seen.tap_strides} for kernel_size={tuple(axis.kernel for axis in seen.axes)}"
        )
    return Unfold(
        operation=OPERATION,
        itemsize=seen.element.itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        batch=seen.batch,
        planes=seen.channels,
        image_batch_step=seen.image_batch,
        image_plane_step=seen.image_channel,
        columns_batch_step=seen.columns_batch,
        columns_plane_step=seen.columns_channel,
        tap_step=tap_step,
        axes=tuple(
            UnfoldAxis(
                axis.size,
                axis.kernel,
                axis.stride,
                axis.dilation,
                axis.pad_begin,
                axis.blocks,
                pixel_step,
                position_step,
            )
            for axis, pixel_step, position_step in zip(seen.axes, seen.pixel_strides, seen.block_strides, strict=True)
        ),
        bytes_moved=sliding_bytes(problem),
        element_types=_element_types(problem),
        takes_window=True,
    )


def _element_types(problem: Problem) -> tuple[tuple[str, str], ...]:
    """Name the types of elements that are multiplied; none where they are only moved."""
    if problem.fusion.window == "none":
        return ()
    element, fused = ELEMENT_TYPES[problem.dtype], fusion_defines(problem)
    return (
        ("SCALAR", element.scalar),
        ("ACCUMULATOR", element.accumulator),
        *((name, fused[name]) for name in ("WINDOW", "WINDOW_AXES", "WEIGHT") if name in fused),
    )


def direct(problem: Problem) -> Plan:
    """Plan one thread per block position: any call, fast while neighbouring blocks are near."""
    return unfold.direct(_unfold(problem), problem.device)


def staged(problem: Problem) -> Plan:
    """Plan one warp per 32 block positions through shared memory: large strides."""
    return unfold.staged(_unfold(problem), problem.device)


def taps(problem: Problem) -> Plan:
    """Plan one thread per tap, which serves everything: for columns whose taps are the closest elements."""
    seen, device = _view(problem), problem.device
    axes, row = seen.axes, seen.axes[-1]
    kernel = tuple(axis.kernel for axis in axes)
    others = seen.planes * prod(kernel) * prod(seen.blocks[:-1])
    blocks, symbol = 1, "im2col_taps"
    for count, name in ((TAPS_BLOCKS, "im2col_taps_of_many"), (TAPS_BLOCKS // 2, "im2col_taps_of_some")):
        places = -(-row.blocks // count)
        enough = others * places >= unfold.device_threads(device)
        if blocks == 1 and enough and places * count <= TAPS_MAX_WASTE * row.blocks:
            blocks, symbol = count, name
    places = -(-row.blocks // blocks)
    threads = others * places
    bits = offset_bits(
        OPERATION,
        threads + TAPS_THREADS,
        *(2 * axis.padded_size + axis.dilated_kernel + TAPS_BLOCKS * axis.stride for axis in axes),
        sum(
            (axis.padded_size + axis.dilated_kernel + TAPS_BLOCKS * axis.stride) * abs(step)
            for axis, step in zip(axes, seen.pixel_strides, strict=True)
        ),
        sum(
            axis.kernel * abs(tap_step) + (axis.blocks + TAPS_BLOCKS) * abs(position_step)
            for axis, tap_step, position_step in zip(axes, seen.tap_strides, seen.block_strides, strict=True)
        ),
    )
    rank = len(axes)
    layout = parameter_type(
        bits,
        size=("offset", rank),
        stride=("offset", rank),
        dilation=("offset", rank),
        pad=("offset", rank),
        pixel_step=("offset", rank),
        tap_step=("offset", rank),
        position_step=("offset", rank),
        kernel=("divisor", rank),
        places=("divisor", rank),
        row_positions="offset",
        channels="divisor",
        threads="offset",
        image_batch_step="long",
        image_channel_step="long",
        columns_batch_step="long",
        columns_channel_step="long",
    )
    parameters = pack(
        layout,
        size=[axis.size for axis in axes],
        stride=[axis.stride for axis in axes],
        dilation=[axis.dilation for axis in axes],
        pad=[axis.pad_begin for axis in axes],
        pixel_step=seen.pixel_strides,
        tap_step=seen.tap_strides,
        position_step=seen.block_strides,
        kernel=[divisor(extent, bits) for extent in kernel],
        places=[divisor(extent, bits) for extent in (*seen.blocks[:-1], places)],
        row_positions=row.blocks,
        channels=divisor(seen.channels, bits),
        threads=threads,
        image_batch_step=seen.image_batch,
        image_channel_step=seen.image_channel,
        columns_batch_step=seen.columns_batch,
        columns_channel_step=seen.columns_channel,
    )
    types = _element_types(problem) or unfold.word_types(seen.element.itemsize)
    return Plan(
        operation=OPERATION,
        variant="taps",
        source="im2col_taps.cu",
        symbol=symbol,
        defines=(*types, ("OFFSET", offset_type(bits)), ("SPATIAL_RANK", str(rank)), ("BLOCKS", str(TAPS_BLOCKS))),
        grid=grid_blocks(OPERATION, threads, TAPS_THREADS),
        block=(TAPS_THREADS, 1, 1),
        parameters=parameters,
        bytes_moved=sliding_bytes(problem),
        reason=f"each thread takes one tap of {f'{blocks} blocks' if blocks > 1 else 'one block'}, "
        "and its neighbours the taps beside it",
        takes_window=True,
    )


def prefer(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    seen = _view(problem)
    if taps_are_closest(seen):
        yield "taps", "the taps of a block lie closer in memory than its blocks"
    elif _tap_step(seen) is None:
        yield "taps", "the taps of a block are not evenly apart in memory"
    else:
        yield from unfold.prefer(_unfold(problem))


VARIANTS: dict[str, Variant] = {"direct": direct, "staged": staged, "taps": taps}
