"""The table of operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpufold import calls, cpu
from gpufold.calls import VARIANTS, Call, OperationName
from gpufold.cpu import fused, positions
from gpufold.given import word


@dataclass(frozen=True)
class Operation:
    """How an operation, a public function of the same name, describes and computes a call."""

    data: str
    """The name of the argument that holds the elements."""
    describe: Callable[..., Call]
    """Checks the arguments of a call and describes it."""
    on_cpu: Callable[..., None]
    """Computes a call on NumPy arrays: (call, data, result, weights), then positions and weight_out if it has them."""
    arrays: tuple[str, ...] = ()
    """Names of the array arguments after the first one."""


OPERATIONS = {
    "col2im": Operation("data", calls.col2im, cpu.fold_call),
    "im2col": Operation("image", calls.im2col, cpu.unfold_call),
    "batch_to_space": Operation("data", calls.batch_to_space, cpu.fold_call),
    "space_to_batch": Operation("data", calls.space_to_batch, cpu.unfold_call),
    "blocks_to_array": Operation("blocks", calls.blocks_to_array, cpu.fold_call),
    "array_to_blocks": Operation("array", calls.array_to_blocks, cpu.unfold_call),
    "add_blocks": Operation("blocks", calls.add_blocks, positions.add_blocks, ("blocks", "positions")),
    "take_blocks": Operation("array", calls.take_blocks, positions.take_blocks, ("positions",)),
    "average": Operation("numerator", calls.average, fused.average_by_weights, ("weight",)),
}


def variants(operation: OperationName) -> tuple[str, ...]:
    """Return the names of an operation's GPU kernels: the values of `variant` besides "auto".

    >>> import gpufold
    >>> "gather" in gpufold.variants("col2im")
    True

    Parameters
    ----------
    operation : str
        The name of an operation, such as "col2im".

    Returns
    -------
    tuple of str
        The names of its kernels.

    Raises
    ------
    TypeError, ValueError
        `operation` is not the name of an operation.

    See Also
    --------
    explain : Why a call takes one of them.
    """
    return VARIANTS[word("variants", "operation", operation, tuple(OPERATIONS))]
