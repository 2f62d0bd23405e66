"""What a call on the GPU would run: to be read, or compiled ahead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import signature
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpufold import extras, operations
from gpufold.arrays import as_weights, library_of, native
from gpufold.calls import Call, OperationName, is_separable
from gpufold.geometry import Size, as_integers
from gpufold.given import shown, word
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
    call, input, output, weight_out = _described("explain", operation, data, arguments, options)
    if isinstance(device, str):
        try:
            device = device_named(device)
        except ValueError as error:
            raise ValueError(f"explain: {error}") from None
    elif device is None:
        device = H200
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(data, cupy.ndarray):
            from gpufold.gpu import launch

            device = launch.device(data.device.id)
    elif not isinstance(device, Device):
        raise TypeError(f"explain: device must be a gpufold.gpu.plan.Device or the name of one, got {shown(device)}")
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
    name = word(asked, "operation", getattr(operation, "__name__", operation), tuple(OPERATIONS))
    row, first = OPERATIONS[name], _described_array(asked, "data", data)
    try:
        given = signature(row.describe).bind(first, *arguments, **options).arguments
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    for each in (*row.arrays, "weight_out"):
        if each in row.arrays or given.get(each) is not None:
            given[each] = _described_array(asked, each, given[each])
    if "positions" in row.arrays and given["positions"].dtype.kind not in "iu":
        raise TypeError(f"{name}: positions must be integers, got dtype {given['positions'].dtype}")
    call, weight_out, window = row.describe(**given), given.get("weight_out"), given.get("window")
    if name == "add_blocks":
        input, output = given["blocks"], first
    else:
        input, output = first, _contiguous(call.result_shape, first.dtype)
    if window is not None:
        one = window[0] if is_separable(window) and len(window) else window
        as_weights(call, library_of(name, "window", one), window, one)
    for array in (output, input):
        if not prod(array.shape):
            raise ValueError(f"{name}: an array of shape {array.shape} has no element, so nothing is launched")
    return call, input.operand, output.operand, None if weight_out is None else weight_out.operand


def _described_array(asked: str, name: str, array: Any) -> Described:
    """Describe an array, or the C-contiguous one that (shape, dtype) describes."""
    if not isinstance(array, tuple):
        library_of(asked, name, array)
        itemsize = array.dtype.itemsize or 1
        return Described(array.shape, array.dtype, tuple(stride // itemsize for stride in array.strides))
    try:
        shape, dtype = as_integers(asked, f"{name}'s shape", array[0]), np.dtype(array[1])
        shape = (shape,) if isinstance(shape, int) else shape
        if len(array) != 2 or min(shape, default=0) < 0:
            raise ValueError
    except Exception as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{asked}: {name} must be an array or (shape, dtype) with extents of at least 0, got {shown(array)}"
        ) from error
    return _contiguous(shape, dtype)


def _contiguous(shape: Size, dtype: np.dtype[Any]) -> Described:
    return Described(shape, native(dtype), Operand.contiguous(shape).strides)
