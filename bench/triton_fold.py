"""A fold of two axes in Triton, as a user would write it: a program has a tile of one plane's pixels."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

UNROLLED = 64
"""Most taps for which the loop over them is unrolled."""


@triton.jit
def _tap(columns, y, x, blocks_high, blocks_wide, tap, KW: tl.constexpr, SY, SX, DY, DX):  # type: ignore[no-untyped-def]
    from_y, from_x = y - tap // KW * DY, x - tap % KW * DX
    row, column = from_y // SY, from_x // SX
    inside = (from_y >= 0) & (from_x >= 0) & (from_y % SY == 0) & (from_x % SX == 0)
    inside = inside & (row < blocks_high) & (column < blocks_wide)
    return tl.load(columns + (tap * blocks_high + row) * blocks_wide + column, mask=inside, other=0.0).to(tl.float32)


@triton.autotune(
    configs=[
        triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps)
        for rows, columns, warps in ((1, 128, 4), (1, 512, 4), (1, 1024, 8), (4, 64, 4), (8, 128, 8), (16, 16, 4))
    ],
    key=["planes", "height", "width", "KH", "KW", "SY", "SX"],
)
@triton.jit
def _fold(  # type: ignore[no-untyped-def]
    columns,
    image,
    planes,
    height,
    width,
    blocks_high,
    blocks_wide,
    pad_y,
    pad_x,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SY: tl.constexpr,
    SX: tl.constexpr,
    DY: tl.constexpr,
    DX: tl.constexpr,
    UNROLL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    across, down = tl.cdiv(width, COLUMNS), tl.cdiv(height, ROWS)
    tile = tl.program_id(0)
    plane = (tile // (across * down)).to(tl.int64)
    y = tile // across % down * ROWS + tl.arange(0, ROWS)[:, None]
    x = tile % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    columns += plane * (KH * KW) * blocks_high * blocks_wide
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if UNROLL:
        for tap in tl.static_range(KH * KW):
            total += _tap(columns, y + pad_y, x + pad_x, blocks_high, blocks_wide, tap, KW, SY, SX, DY, DX)
    else:
        for tap in range(KH * KW):
            total += _tap(columns, y + pad_y, x + pad_x, blocks_high, blocks_wide, tap, KW, SY, SX, DY, DX)
    image += plane * height * width
    tl.store(image + y * width + x, total.to(image.dtype.element_ty), mask=(y < height) & (x < width))


def fold(columns: Any, image: Any, geometry: Any, kernel: Any = _fold, **tile: int) -> Any:
    """Add contiguous columns of one or two axes into an image of (N, C, *size), which is returned.

    A kernel that is not tuned takes the tile that is given.
    """
    lead = [type(geometry.axes[0])(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)]
    y, x = [*lead, *geometry.axes][-2:]
    arguments = (columns, image, geometry.planes, y.size, x.size, y.blocks, x.blocks, y.pad_begin, x.pad_begin)
    taps = (y.kernel, x.kernel, y.stride, x.stride, y.dilation, x.dilation, y.kernel * x.kernel <= UNROLLED)

    def grid(chosen: Any) -> tuple[int]:
        return (geometry.planes * -(-y.size // chosen["ROWS"]) * -(-x.size // chosen["COLUMNS"]),)

    kernel[grid](*arguments, *taps, **tile)
    return image
