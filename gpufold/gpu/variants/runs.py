"""The kernels of im2col whose thread blocks store runs of blocks, tap by tap, from sector to sector of memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import Field, are_contiguous, divisor, offset, offset_bits
from gpufold.gpu.plan import MAX_GRID_ROWS, LaunchShape, Plan, Problem, make_plan
from gpufold.gpu.variants import unfold
from gpufold.gpu.variants.im2col import simplified_view_of
from gpufold.gpu.variants.views import LINE_BYTES, MOVING_THREADS, SECTOR_BYTES, View, chunk_size

RUN_BLOCKS, RUN_BYTES = 2, 64
"""Blocks of a thread of `runs`, and the bytes of the taps of each that it loads together."""


def runs(problem: Problem) -> Plan:
    """Plan kernels/im2col_runs.cu, whose threads load the taps of their blocks."""
    view = _contiguous(problem, "runs")
    at_once, run = unfold.taps_at_once(view), RUN_BLOCKS * MOVING_THREADS
    width, most = view.axes[-1].kernel, max(at_once, RUN_BYTES // max(view.itemsize, 4))
    piece = at_once * chunk_size(width // at_once, most // at_once)
    in_row = -(-width // piece)
    pieces = min(max(1, most // width), view.taps // width)
    all_pieces = view.taps // width * in_row
    return _plan(
        problem,
        view,
        "runs",
        "taps it stores in whole sectors",
        _Runs(run, 0, piece, pieces, in_row, all_pieces, MOVING_THREADS, piece * run),
        {
            "BLOCKS": RUN_BLOCKS,
            "PIECE_TAPS": piece,
            "TAPS_AT_ONCE": at_once,
            "WHOLE_PIECES": int(width % piece == 0),
            "WHOLE_CHUNKS": int(all_pieces % pieces == 0),
        },
    )


STAGED_THREADS, NARROW_THREADS = 256, 128
"""Threads of a thread block of `staged`, and if elements have fewer than 4 bytes. An H100 was fastest with this and all
other numbers of `staged`."""
TAP_BYTES, MOST_BLOCKS, APART_BLOCKS, LEAST_BLOCKS = 8192, 512, 128, 64
"""Approximate bytes that a thread block stores of a row of taps; blocks of its run: at most, where they are apart, and
at least, for which there must be room."""
ROW_BLOCKS = 32, 4, 1
"""Least blocks of a row, for which there is room; there are few such numbers, so that few sizes are compiled."""
ROW_TAPS, APART_BYTES = 32, 128
"""Most taps of a row, and most bytes of them, whose pixels are loaded together where blocks are apart."""
STAGED_TAPS, STAGED_ROWS = 64, 4
"""Most taps, and rows of taps, whose pixels are loaded together; half as many rows for narrow elements."""
STAGED_BYTES = 24 << 10
"""Most bytes of shared memory, so that several thread blocks of a multiprocessor hide each other's barriers."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """What `staged` brings together, and where it is in shared memory, in elements."""

    run: int
    apart: bool
    """Whether each block has a piece of its own; else those of a row are laid out as in the image."""
    taps: int
    """Of a row."""
    turns: int
    """Taps of a row, a stride apart, for which the pixels of a block serve, each as that of an earlier block."""
    rows: int
    """Of taps, that are brought together."""
    word: int
    """Pixels that are loaded as one, aligned in the image."""
    lead: int
    """Pixels of the first word before the first tap."""
    step: int
    """From a block to the next."""
    row: int
    """Of words from a row of blocks to the next, or where these are apart of blocks."""
    skewed: bool
    """Whether elements are left out, so that blocks an even number of words apart lie in different banks."""
    size: int
    """Of what is brought for one row of taps."""


def staged(problem: Problem) -> Plan:
    """Plan kernels/im2col_staged.cu, whose threads bring the pixels under a run to shared memory."""
    view = _contiguous(problem, "staged")
    *outer, last = view.axes
    laid = _staged(view)
    row_turns, turned = 1, outer[-1].kernel if outer else 1
    if outer and outer[-1].dilation == 1 and 1 < outer[-1].stride < outer[-1].kernel:
        row_turns = -(-outer[-1].kernel // outer[-1].stride)
        turned = row_turns * outer[-1].stride
    in_row = -(-(last.stride if laid.turns > 1 else last.kernel) // laid.taps)
    rows = prod(axis.kernel for axis in outer[:-1]) * turned
    reach = (laid.taps - 1) * last.dilation + 1
    threads = STAGED_THREADS if view.itemsize >= 4 else NARROW_THREADS
    sector, slots = _sector(view), laid.rows * laid.turns * laid.taps
    return _plan(
        problem,
        view,
        "staged",
        "pixels it brings to shared memory",
        _Runs(laid.run, sector - 1, laid.taps, laid.rows, in_row, rows * in_row, threads, laid.size, slots),
        {
            "RUN": laid.run,
            "TAPS": laid.taps,
            "TURNS": laid.turns,
            "ROW_TURNS": row_turns,
            "LOADED": laid.word,
            "LEAD": laid.lead,
            "STEP": laid.step,
            "REACH": reach,
            "SIZE": laid.size,
            "APART": int(laid.apart),
            "SKEWED": int(laid.skewed),
        },
        row_words=divisor(laid.row),
        turned_rows=divisor(turned),
    )


def _sector(view: View) -> int:
    """Return the elements of a sector."""
    return max(1, SECTOR_BYTES // view.itemsize)


def _staged(view: View) -> _Staged:
    """Return the longest run that has room, of blocks as in the image if these overlap or touch, else apart."""
    last = view.axes[-1]
    touches = last.stride <= (last.kernel - 1) * last.dilation + max(1, _sector(view) // 2)
    for apart in (False, True) if touches else (True,):
        wanted = APART_BLOCKS if apart else TAP_BYTES // (view.itemsize * last.kernel)
        run = MOST_BLOCKS
        while run > LEAST_BLOCKS and run // 2 >= wanted:
            run //= 2
        while run >= max(LEAST_BLOCKS, 32 * max(1, 4 // view.itemsize)):
            laid = _laid_out(view, run, apart)
            if laid.size * view.itemsize <= STAGED_BYTES:
                return laid
            run //= 2
    raise Unsupported(f"staged has no room for {LEAST_BLOCKS} blocks of {last.kernel} taps in a row")


def _laid_out(view: View, run: int, apart: bool) -> _Staged:
    """Lay a run of so many blocks out; whether there is room for it is the caller's question."""
    last = view.axes[-1]
    bank, line = max(1, 4 // view.itemsize), LINE_BYTES // view.itemsize  # elements
    count = run + _sector(view) - 1
    rows = (count - 2) // next(least for least in ROW_BLOCKS if least <= last.blocks) + 2  # of these blocks, at most
    word = view.pixels_at_once(view.alignment)
    taps, turns, skewed = last.kernel, 1, not apart and last.stride % (2 * bank) == 0
    if apart and taps > (most := min(ROW_TAPS, APART_BYTES // view.itemsize)):
        turns = -(-taps // last.stride) if last.dilation == 1 else 1
        taps = -(-chunk_size(min(taps, last.stride) if turns > 1 else taps, most) // word) * word
    steps = [last.stride, taps * last.dilation] if apart else [last.blocks * last.stride if skewed else 0]
    while word > 1 and any(step % word for step in steps[: 1 + (taps < last.kernel)]):
        word //= 2
    lead, reach = -last.pad % word, (taps - 1) * last.dilation + 1
    if apart:
        pitch = -(-(lead + reach) // word) * word  # whose words an odd number of banks apart lie in different ones
        step = (-(-pitch // bank) | 1) * bank
        row, size = last.blocks + turns - 1, (count + rows * (turns - 1)) * step
    else:
        step, extra = last.stride, max(lead + reach - last.stride, 0)
        extra = -(-extra // line) * line if skewed else extra
        row = -(-(last.blocks * step + extra) // word)
        size = 2 * word + lead + count * step + rows * (extra + word) + reach
    size += size // line * bank + bank if skewed else 0
    rounded = max(16, 1 << max(0, size.bit_length() - 3))  # few sizes are compiled
    size = -(-size // rounded) * rounded
    together = 1
    if taps == last.kernel:
        room = STAGED_BYTES // (size * view.itemsize)
        most = STAGED_ROWS if view.itemsize >= 4 else STAGED_ROWS // 2
        together = max(1, min(view.taps // taps, STAGED_TAPS // taps, most, room))
    return _Staged(run, apart, taps, turns, together, word, lead, step, row, skewed, size)


# ---------------------------------------------------------------------------------------------
# What both are planned by


@dataclass(frozen=True, slots=True)
class _Runs:
    """How thread blocks share out blocks and taps."""

    blocks: int
    """Of a run."""
    shift: int
    """By which a run may begin before its number says."""
    taps: int
    """Of a piece of a row of taps."""
    pieces: int
    """That pass through shared memory together."""
    in_row: int
    """Pieces of a row."""
    all: int
    """Pieces of a block."""
    threads: int
    size: int
    """Of a piece in shared memory, in elements."""
    slots: int = 0
    """For taps, whose numbers and weights are in shared memory."""


def _contiguous(problem: Problem, variant: str) -> View:
    """Describe a call whose blocks of a tap are contiguous in the columns; raise where they are not."""
    view = simplified_view_of(problem)
    steps = tuple(axis.block_stride for axis in view.axes)
    if not are_contiguous(view.blocks, steps):
        raise Unsupported(
            f"{variant} needs columns whose blocks of a tap are contiguous, not steps of {steps} for {view.blocks}"
        )
    return view


def _plan(
    problem: Problem, view: View, variant: str, done: str, share: _Runs, defines: dict[str, Any], **members: Field
) -> Plan:
    """Plan a thread block for each run and, where runs alone are too few, for each share of the pieces."""
    device, axes, plane_blocks = problem.device, view.axes, prod(view.blocks)
    runs = -(-(plane_blocks + share.shift) // share.blocks)
    items, chunks = view.batch * view.planes * runs, -(-share.all // share.pieces)
    enough = device.multiprocessors * device.threads_per_multiprocessor // share.threads
    of_row = -(-chunks // max(1, min(chunks, MAX_GRID_ROWS, enough // items)))  # chunks, where runs alone are too few
    bits = offset_bits(
        items,
        plane_blocks + 2 * share.blocks,
        4 * max(axis.reach for axis in axes) + LINE_BYTES,
        sum(axis.reach * abs(axis.pixel_stride) for axis in axes),
        (view.taps + 2 * share.pieces * share.taps) * (1 + abs(view.tap_stride)) + plane_blocks,
    )
    shared = share.pieces * share.size * view.itemsize + share.slots * bits // 8
    if share.slots and problem.fusion.window != "none":
        weight = problem.element.weight_bytes
        shared = -(-shared // weight) * weight + share.slots * weight
    return make_plan(
        problem,
        variant,
        LaunchShape(items, 1, share.threads, view.blocks, 1, bits, shared, -(-chunks // of_row)),
        f"each thread block takes {share.blocks} blocks of a plane, whose {done}",
        {
            **unfold.types_of(problem, view.itemsize),
            "SPATIAL_RANK": len(axes),
            "PIECES": share.pieces,
            "PADDED": int(any(axis.is_padded for axis in axes)),
            **defines,
        },
        {
            **unfold.sliding(view),
            "kernel": divisor(view.kernel),
            "blocks": divisor(view.blocks),
            "pieces": divisor(share.in_row),
            "all_pieces": offset(share.all),
            "own_pieces": offset(of_row * share.pieces),
            "tap_step": offset(view.tap_stride),
            "plane_blocks": offset(plane_blocks),
            "runs": divisor(runs),
            "planes": divisor(view.planes),
            **unfold.plane_steps(view),
            **members,
        },
    )
