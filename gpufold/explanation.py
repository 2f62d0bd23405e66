"""What a call on the GPU would run: to be read, or compiled ahead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpufold import extras, operations
from gpufold.arrays import as_weights, library_of, native
from gpufold.calls import Call, OperationName
from gpufold.geometry import Size, as_integers
from gpufold.gpu.devices import device_named
from gpufold.gpu.plan import H200, Device, Operand, Plan
from gpufold.operations import OPERATIONS, Explanation


def explain(
    operation: OperationName | Callable[..., Any],
    data: Any,
    *arguments: Any,
    device: Device | str | None = None,
    **options: Any,
) -> Explanation:
    """Return which kernel a call on the GPU runs, why, and why not the others; nothing is computed.

    >>> import numpy as np, gpufold
    >>> why = gpufold.explain("col2im", ((8, 576, 3136), "float32"), (56, 56), (3, 3), pads_begin=1, pads_end=1)
    >>> why.plan.operation, why.plan.bytes_moved
    ('col2im', 64225280)
    >>> "atomic" in why.alternatives
    True

    Parameters
    ----------
    operation : str or function
        One of the functions that have kernels, or its name, such as "col2im" or "array_to_blocks".
    data : numpy.ndarray, cupy.ndarray or (shape, dtype)
        The call's first array, or what a C-contiguous one would be; a NumPy array stands for a CuPy array like it.
    *arguments, **options
        The call's other arguments but `out`; blocks, positions and weight_out may be (shape, dtype) too.
    device : str or gpufold.gpu.plan.Device, optional
        The GPU to plan for: a name of `gpufold.gpu.devices.DEVICES`, such as "A100", or the facts themselves; absent,
        that of a CuPy array, else an NVIDIA H200.

    Returns
    -------
    gpufold.operations.Explanation
        The plan and, by name of variant, why it was not taken; printing it says all.

    Raises
    ------
    TypeError, ValueError
        As the call would, and ValueError where its result has no element or no device has the name.
    """
    described = _described("explain", operation, data, arguments, options)
    if isinstance(device, str):
        device = device_named(device)
    if device is None:
        device = H200
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(data, cupy.ndarray):
            from gpufold.gpu import launch

            device = launch.device(data.device.id)
    call, input, output, weight_out = described
    return operations.explain(call, input, output, device, weight_out)


def warmup(operation: OperationName | Callable[..., Any], data: Any, *arguments: Any, **options: Any) -> Plan:
    """Compile the kernel of a call for the current CUDA device, so that the call itself only launches it.

    ``gpufold.warmup("col2im", ((8, 576, 3136), "float32"), (56, 56), (3, 3), pads_begin=1, pads_end=1)``
    serves every batch and image size: only a new kernel size, stride, dilation, dtype or layout compiles again.

    Parameters
    ----------
    operation, data, *arguments, **options
        As in `explain`.

    Returns
    -------
    gpufold.gpu.plan.Plan
        What was compiled.

    Raises
    ------
    TypeError, ValueError
        As the call would, and ValueError where its result has no element.
    ImportError
        CuPy is not installed.
    """
    call, input, output, weight_out = _described("warmup", operation, data, arguments, options)
    try:
        from gpufold.gpu import launch
    except ImportError as error:
        raise extras.missing("gpufold.warmup", "cupy", "cuda13") from error
    plan = operations.choose(call, input, output, launch.current_device(), weight_out)
    launch.compile_plan(plan)
    return plan


class Described(NamedTuple):
    """An array that is only described: what a call asks of one before it computes."""

    shape: Size
    dtype: np.dtype[Any]
    strides: Size
    """In elements."""

    @property
    def operand(self) -> Operand:
        return Operand(self.shape, self.strides)


def _described(
    asked: str, operation: str | Callable[..., Any], data: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Call, Operand, Operand, Operand | None]:
    """Check a call that is only described; return it with its input, output and sums of weights as kernels see them."""
    if callable(operation):
        operation = operation.__name__
    if operation not in OPERATIONS:
        raise ValueError(f"{asked}: operation must be one of {', '.join(OPERATIONS)}, got {operation!r}")
    row, first = OPERATIONS[operation], _described_array(operation, "data", data)
    count = len(row.arrays)
    arrays = [_described_array(operation, *named) for named in zip(row.arrays, arguments, strict=False)]
    others, weight_out = arguments[count:], None
    if options.get("weight_out") is not None:
        weight_out = _described_array(operation, "weight_out", options["weight_out"])
        options = options | {"weight_out": weight_out}
    call = row.describe(first, *arrays, *others, **options)
    if operation == "add_blocks":
        input, output = arrays[0], first
        window = others[0] if others else options.get("window")
    else:
        input, output = first, _contiguous(call.result_shape, first.dtype)
        window = options.get("window")
    if window is not None:
        one = window[0] if isinstance(window, Sequence) and window else window
        as_weights(call, library_of(operation, "window", one), window, one)
    for array in (output, input):
        if not prod(array.shape):
            raise ValueError(f"{operation}: an array of shape {array.shape} has no element, so nothing is launched")
    return call, input.operand, output.operand, None if weight_out is None else weight_out.operand


def _described_array(operation: str, name: str, array: Any) -> Described:
    """Describe an array, or the C-contiguous one that (shape, dtype) describes."""
    if isinstance(array, tuple):
        shape = as_integers(operation, f"{name}'s shape", array[0])
        return _contiguous((shape,) if isinstance(shape, int) else shape, np.dtype(array[1]))
    library_of(operation, name, array)
    return Described(array.shape, array.dtype, tuple(stride // array.dtype.itemsize for stride in array.strides))


def _contiguous(shape: Size, dtype: np.dtype[Any]) -> Described:
    return Described(shape, native(dtype), Operand.contiguous(shape).strides)
