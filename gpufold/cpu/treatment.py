"""What becomes of elements on their way into an image, besides being added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpufold.calls import PLAIN, Fusion
from gpufold.cpu.arithmetic import Array
from gpufold.elements import is_string
from gpufold.geometry import Axis, Size
from gpufold.weights import counted, product_of

Weights: TypeAlias = tuple[Array, ...] | None
"""The weights of a window, as `gpufold.windows.as_weights` returns them."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """What becomes of the elements besides being added: `Fusion` with a window's weights in the shape of a block."""

    move: bool = False
    """They are stored, not added: no two of them meet."""
    weights: Array | None = None
    """Of every tap of a block."""
    by_axis: tuple[Array, ...] | None = None
    """The weights of each axis, where a mean's window is separable."""
    reduction: str = "sum"
    accumulate: bool = False


SUM, MOVE = Treatment(), Treatment(move=True)


def treatment_of(fusion: Fusion, window: Weights, columns: Array, axes: tuple[Axis, ...]) -> Treatment:
    """Bring a call's fusion and window into the shape of a block of split columns; strings move."""
    if fusion is PLAIN or fusion == PLAIN:
        return MOVE if is_string(columns.dtype) else SUM
    weights, by_axis = None, None
    if window is not None:
        kernel, kind = tuple(axis.kernel for axis in axes), fusion.window
        if fusion.reduction != "sum":
            with np.errstate(all="ignore"):  # as in sums
                window = counted(np, window, fusion.reduction)
            kind = kind if fusion.reduction == "mean" else "full"
        if kind == "separable":
            ones = np.ones(1, window[0].dtype)  # for axes of one tap, which a view of blocks may have in front
            by_axis = window = (*(ones,) * (len(axes) - len(window)), *window)
        weights = weights_of_block(window, kernel)
    return Treatment(False, weights, by_axis, fusion.reduction, fusion.accumulate)


def weights_of_block(window: tuple[Array, ...], block_shape: Size, least: float = 0.0) -> Array:
    """Return the weight of every tap of a block, as `product_of` its axes where the window is separable."""
    with np.errstate(all="ignore"):  # as in sums
        weights: Array = product_of(np, window, least)
    return weights.reshape(block_shape)


def spread(weights: Array | None, columns: Array) -> Array | None:
    """View the weights of a block in the shape of split columns, by zero strides."""
    axes = None if weights is None else weights.reshape(1, 1, *weights.shape, *(1,) * weights.ndim)
    return None if axes is None else np.broadcast_to(axes, columns.shape)
