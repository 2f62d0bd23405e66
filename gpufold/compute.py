"""Compute a described call on its arrays: the remaining checks, then the CPU or GPU backend."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from gpufold.arrays import Array, ArrayT, check_apart, check_out, check_writable, new_result
from gpufold.calls import SUMS, Call, Unsupported
from gpufold.elements import ELEMENT_TYPES
from gpufold.operations import OPERATIONS
from gpufold.windows import as_weights, name_of_weights


def compute(
    call: Call,
    data: Array[ArrayT],
    out: Array[ArrayT] | None = None,
    window: Any = None,
    positions: Any = None,
) -> ArrayT:
    """Compute a call on its data, of NumPy or CuPy, into `out` or a new array; positions, if any, are int64.

    Nothing is written before all checks have passed.
    """
    array: Any = data
    library = np if isinstance(array, np.ndarray) else sys.modules["cupy"]
    weights = prepare(call, library, data, out, window, positions)
    result: Any = new_result(call, library, data, call.result_shape) if out is None else out
    run(call, library, data, result, weights, positions)
    return result  # type: ignore[no-any-return]


def prepare(
    call: Call,
    library: ModuleType,
    data: Any,
    out: Any = None,
    window: Any = None,
    positions: Any = None,
    weight_out: Any = None,
) -> tuple[Any, ...] | None:
    """Check a call's variant, dtype, window and outputs against its arrays, and return the weights of its window.

    The shape and dtype of `weight_out` were checked when the call was described.
    """
    geometry: Any = call.geometry
    if call.dtype not in ELEMENT_TYPES and call.operation in SUMS and geometry.blocks_overlap:
        raise TypeError(
            f"{call.operation}: {OPERATIONS[call.operation].data} of strings must not overlap, because strings cannot "
            f"be added; got dtype {data.dtype} and blocks {geometry.block_shape} that overlap"
        )
    check_variant(call, library is np)
    weights = None if window is None else as_weights(call, library, window, data)
    if out is None:
        return weights
    operation = OPERATIONS[call.operation]
    read = [(operation.data, data)]
    if positions is not None:
        read.append(("positions", positions))
    if weights:
        name = name_of_weights(call)
        read += [(name, each) for each in weights]
    check_out(call, library, out, call.result_shape, read)
    if weight_out is not None:
        check_writable(call.operation, library, "weight_out", weight_out, operation.data, data)
        check_apart(call.operation, library, "weight_out", weight_out, [*read, ("array", out)])
    return weights


def check_variant(call: Call, on_cpu: bool, kind: str = "numpy.ndarray", moved: str = "cupy.asarray({})") -> None:
    """Raise if a kernel is requested by name for arrays on a CPU."""
    if on_cpu and call.variant != "auto":
        name = OPERATIONS[call.operation].data
        raise Unsupported(
            f"{call.operation}: variant {call.variant!r} is a GPU kernel, but {name} is a {kind}; "
            f"pass {moved.format(name)}, or variant='auto'"
        )


def run(
    call: Call,
    library: ModuleType,
    data: Any,
    result: Any,
    weights: tuple[Any, ...] | None = None,
    positions: Any = None,
    weight_out: Any = None,
) -> None:
    """Compute a checked call into `result`, on the CPU or the GPU; do nothing if there are no bytes to write."""
    if result.nbytes == 0 or (call.fusion.accumulate and data.size == 0):
        return
    if library is np:
        places = () if positions is None else (positions,) if weight_out is None else (positions, weight_out)
        OPERATIONS[call.operation].on_cpu(call, data, result, weights, *places)
    else:
        launcher().execute(call, data, result, weights, positions, weight_out)


@cache
def launcher() -> ModuleType:
    """Return the module that launches kernels and imports CuPy; cached, because each import takes two microseconds."""
    from gpufold.gpu import launch

    return launch
