"""Random calls for the planner, extreme ones too: described, never computed.

Sizes up to 2**62, strides in memory past 2**31, of either sign and zero, dilations of zero and beyond every image,
kernels of one tap to thousands, every layout, dtype and fusion. None of them needs memory: a plan is made of integers.
"""

from __future__ import annotations

from cases import KERNEL_MODES
from executors import ONE_THREAD

from gpufold.calls import PLAIN, REDUCTIONS, Call, FusedOps
from gpufold.elements import ELEMENT_TYPES, WIDER
from gpufold.geometry import (
    Axis,
    PositionsGeometry,
    SlidingGeometry,
    SpaceGeometry,
    array_to_blocks_geometry,
    average_geometry,
    space_axes,
)
from gpufold.given import WINDOWS
from gpufold.gpu.devices import DEVICES as KNOWN
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import Operand, Problem
from gpufold.operations import OPERATIONS

DEVICES = (*KNOWN.values(), ONE_THREAD)


def random_problem(rng):
    """Draw a call with its operands and a device: an everyday one, or one with something extreme."""
    operation = rng.choice(tuple(OPERATIONS))
    extreme = rng.random() < 0.4
    geometry = _DRAWN[operation](rng, extreme)
    input, output = _arrays(rng, extreme, Call(operation, geometry, ""))
    dtype = rng.choice([name for name, element in ELEMENT_TYPES.items() if element.weight or operation != "average"])
    itemsize = ELEMENT_TYPES[dtype].itemsize
    input, output = (_aligned(rng, operand, itemsize) for operand in (input, output))
    device, deterministic = rng.choice(DEVICES), rng.random() < 0.6
    call = Call(operation, geometry, dtype, _fusion(rng, operation, dtype, geometry), deterministic=deterministic)
    if operation in ("add_blocks", "col2im", "blocks_to_array") and rng.random() < 0.3:
        call = call._replace(data_dtype=rng.choice([narrow for narrow, wide in WIDER.items() if dtype in wide] or [""]))
    return Problem(call, input, output, device)


def _fusion(rng, operation, dtype, geometry):
    if isinstance(geometry, SpaceGeometry) or (operation not in ("add_blocks", "average") and rng.random() < 0.4):
        return PLAIN
    if operation == "average":
        return FusedOps(window="full")
    averaged = ELEMENT_TYPES[dtype].weight != ""
    window = rng.choice(WINDOWS) if averaged else "none"
    if window == "full" and len(geometry.block_shape) == 1:  # which counts as separable
        window = "separable"
    if operation in ("im2col", "array_to_blocks"):
        return FusedOps("sum", window)
    if operation == "add_blocks":
        return FusedOps("sum", window, accumulate=True)
    if operation == "take_blocks":
        return FusedOps("sum", window, mode=rng.choice(KERNEL_MODES))
    return FusedOps(rng.choice(REDUCTIONS) if averaged else "sum", window, rng.random() < 0.4)


# ---- Numbers


def _number(rng, extreme, small):
    """Draw a number of at least 1: mostly small, and of any magnitude up to 2**62 in an extreme call."""
    if extreme and rng.random() < 0.25:
        return max(1, rng.choice((1 << rng.randint(0, 62), rng.getrandbits(rng.randint(1, 62)))) + rng.randint(-1, 1))
    return rng.choice((1, 1, 2, 3, 4, 8, 16, rng.randint(1, small), rng.randint(1, small)))


def _rank(rng, extreme):
    return rng.choice((7, 9, 12, 20)) if extreme and rng.random() < 0.05 else rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5, 6))


def _axis(rng, extreme, taps):
    """Draw an axis with at least one block."""
    size = rng.choice((_number(rng, extreme, 40), _number(rng, extreme, 600), rng.choice((4096, 65536))))
    kernel = rng.choice((1, 2, 3, 4, 5, 7, 8, _number(rng, extreme, taps), _number(rng, extreme, 16 * taps)))
    stride = rng.choice(
        (1, 1, 2, 3, kernel, max(1, kernel // 2), _number(rng, extreme, 40), _number(rng, extreme, 600))
    )
    dilation = rng.choice((1, 1, 1, 1, 0, 2, 3, 6, _number(rng, extreme, 40)))
    begin, end = (rng.choice((0, 0, 1, 2, kernel // 2, _number(rng, extreme, 40))) for _ in range(2))
    missing = dilation * (kernel - 1) + 1 - (size + begin + end)
    if missing > 0:
        if rng.random() < 0.5:
            size += missing
        else:
            end += missing
    return Axis(size, kernel, stride, dilation, begin, end)


def _lead(rng, extreme):
    """Draw a batch or a number of channels."""
    return (
        rng.choice((0, 1, 1, 2, 3, 16, _number(rng, extreme, 300))) if rng.random() < 0.2 else _number(rng, extreme, 64)
    )


# ---- Layouts


def _laid_out(rng, shape, extreme, readable):
    """Draw the strides of an array: contiguous, transposed, with gaps, turned, and broadcast where it is only read."""
    if rng.random() < 0.5:
        return Operand.contiguous(shape)
    order = list(range(len(shape)))
    if rng.random() < 0.6:
        rng.shuffle(order)
    strides, step = [0] * len(shape), rng.choice((1, 1, 1, 2, 3))
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, shape[axis])
        if rng.random() < 0.2:
            step += rng.choice((1, 2, 8, 16, _number(rng, extreme, 600)))
        if rng.random() < 0.1:
            strides[axis] *= -1
        if readable and rng.random() < 0.1:
            strides[axis] = 0
    return Operand(shape, tuple(strides))


def _aligned(rng, operand, itemsize):
    """Draw the alignment of the first byte: that of an allocation, or of any element."""
    alignment = 256 if rng.random() < 0.6 else rng.choice([step for step in (1, 2, 4, 8, 16, 32) if step >= itemsize])
    return Operand(operand.shape, operand.strides, alignment)


def _together(geometry):
    """Describe split columns that lie in memory with the taps of a block together."""
    rank, shape = len(geometry.axes), geometry.split_columns_shape
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    inner = dict(zip(order, contiguous_strides(tuple(shape[axis] for axis in order)), strict=True))
    return Operand(shape, tuple(inner[axis] for axis in range(len(shape))))


# ---- Geometries, each with the arrays that a call has


def _sliding(rng, extreme):
    rank = _rank(rng, extreme)
    axes = tuple(_axis(rng, extreme, {1: 600, 2: 40, 3: 8}.get(rank, 3)) for _ in range(rank))
    batch = (_lead(rng, extreme),) if rng.random() < 0.8 else ()
    return SlidingGeometry((*batch, _lead(rng, extreme)), axes)


def _blocks(rng, extreme):
    lead = tuple(_lead(rng, extreme) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))))
    axes = [_axis(rng, extreme, 40) for _ in range(_rank(rng, extreme))]
    return array_to_blocks_geometry(
        (*lead, *(axis.size for axis in axes)),
        tuple(min(axis.size, axis.kernel) for axis in axes),
        tuple(axis.stride for axis in axes),
    )


def _placed(rng, extreme):
    rank = _rank(rng, extreme)
    lead = tuple(_lead(rng, extreme) for _ in range(rng.choice((0, 0, 1, 2, 3, 4))))
    return PositionsGeometry(
        rng.choice((_number(rng, extreme, 10), _number(rng, extreme, 5000), rng.randint(0, 10**6))),
        lead,
        tuple(_number(rng, extreme, rng.choice((20, 600, 5000))) for _ in range(rank)),
        tuple(_number(rng, extreme, rng.choice((8, 300))) for _ in range(rank)),
    )


def _space(rng, extreme):
    rank = _rank(rng, extreme)
    block, begin, end, grid = [], [], [], []
    for _ in range(rank):
        block.append(rng.choice((1, 1, 2, 2, 3, 4, 8, 16, _number(rng, extreme, 40), _number(rng, extreme, 600))))
        grid.append(rng.choice((_number(rng, extreme, 20), _number(rng, extreme, 600))))
        extent = block[-1] * grid[-1]
        begin.append(min(extent, rng.choice((0, 0, 0, 1, 2, _number(rng, extreme, 40)))))
        end.append(min(extent - begin[-1], rng.choice((0, 0, 0, 1, 2, _number(rng, extreme, 40)))))
    return SpaceGeometry((_lead(rng, extreme),), space_axes(grid, block, begin, end))


def _average(rng, extreme):
    shape = tuple(_number(rng, extreme, 600) for _ in range(_rank(rng, extreme)))
    lead = rng.randint(0, len(shape))
    return average_geometry(shape, shape[lead:])


def _arrays(rng, extreme, call):
    read, written = _laid_out(rng, call.data_shape, extreme, True), _laid_out(rng, call.result_shape, extreme, False)
    if isinstance(call.geometry, SlidingGeometry) and rng.random() < 0.3:
        columns = _together(call.geometry)
        return (columns, written) if call.operation == "col2im" else (read, columns)
    return read, written


_DRAWN = {
    "col2im": _sliding,
    "im2col": _sliding,
    "blocks_to_array": _blocks,
    "array_to_blocks": _blocks,
    "add_blocks": _placed,
    "take_blocks": _placed,
    "average": _average,
    "batch_to_space": _space,
    "space_to_batch": _space,
}
