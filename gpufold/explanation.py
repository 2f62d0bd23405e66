"""Inspect and pre-compile the kernel of a call: `explain` and `warmup`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpufold import extras
from gpufold.arrays import as_positions, bounds_of, library_of, native
from gpufold.calls import Call, OperationName, check_dtype
from gpufold.geometry import Size, as_integers
from gpufold.given import flag, is_separable, shown, word
from gpufold.gpu import registry, tuning
from gpufold.gpu.devices import device_named
from gpufold.gpu.plan import H200, MAX_ALIGNMENT, Device, Operand, Plan, Problem, operand_of
from gpufold.names import misfit
from gpufold.operations import OPERATIONS
from gpufold.windows import as_weights


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of a call, and why the other variants were not taken."""

    plan: Plan
    alternatives: dict[str, str]
    """Variant name to the reason why it was not taken."""
    device: str
    """The GPU's name."""
    measured: Mapping[str, float]
    """Seconds on that GPU of the kernels that can serve the call, this plan's first; empty if none was measured."""
    rule: Plan
    """The plan that heuristics choose, without measurements."""
    unwritten: str = ""
    """Why measurements could not be written to a file; empty if they could."""

    def __str__(self) -> str:
        plan = self.plan
        defines = " ".join(f"{name}={value}" for name, value in plan.defines)
        return "\n".join(
            [
                f"{plan.operation}: {plan.variant}, {self._why()}",
                f"  {plan.file}: {prod(plan.grid)} x {prod(plan.block)} threads, {defines}",
                f"  {plan.bytes_moved:,} bytes",
                *(f"  not {name}: {reason}" for name, reason in self.alternatives.items()),
            ]
        )

    def _why(self) -> str:
        if not self.measured:
            return f"because {self.plan.reason}; nothing was measured on {self.device}"
        (_, seconds), *others = self.measured.items()
        slower = ", ".join(f"{label} {1e6 * value:,.1f}" for label, value in others)
        rule = "" if self.rule.variant == self.plan.variant else f"; the rule would take {self.rule.variant}"
        memory = f"; kept in memory alone: {self.unwritten}" if self.unwritten else ""
        return f"measured {1e6 * seconds:,.1f} us on {self.device}{f' ({slower})' if slower else ''}{rule}{memory}"


def explain(
    operation: OperationName | Callable[..., Any],
    data: Any,
    *arguments: Any,
    device: Device | str | None = None,
    **options: Any,
) -> Explanation:
    """Return the kernel that a call on the GPU would run and why, without computing anything.

    >>> import numpy as np, gpufold
    >>> why = gpufold.explain("col2im", ((8, 576, 3136), "float32"), (56, 56), (3, 3), pads_begin=1, pads_end=1)
    >>> why.plan.operation, why.plan.bytes_moved
    ('col2im', 64225280)
    >>> "atomic" in why.alternatives
    True

    Parameters
    ----------
    operation : str or function
        A function that has kernels, or its name, such as "col2im" or "array_to_blocks".
    data : numpy.ndarray, cupy.ndarray or (shape, dtype)
        First array of the call, or (shape, dtype) of a C-contiguous one. A NumPy array describes a CuPy array like it.
    *arguments, **options
        Other arguments of the call, except `out` and `weights`. blocks, positions and weight_out may also be
        (shape, dtype).
    device : str or gpufold.gpu.plan.Device, optional
        The GPU to plan for: the name of a model, such as "A100" or "RTX 4090", or its properties. The default is the
        device of a CuPy array, else an NVIDIA H200.

    Returns
    -------
    gpufold.explanation.Explanation
        What `print` shows: the kernel in `plan`, with its name in `plan.variant` and `plan.bytes_moved`, the reasons
        against others in `alternatives`, and seconds of kernels in `measured`.

    Raises
    ------
    TypeError, ValueError
        As the call would; ValueError also if an array is empty or the name of the device is unknown.

    See Also
    --------
    variants : The kernels of an operation.
    warmup : Compile the kernel ahead.
    autotune : Measure which kernel is fastest.
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
    problem = Problem(call, input, output, device, weight_out)
    plan, measured, _ = tuning.decide(problem)
    rule = registry.choose(call, input, output, device, weight_out)
    alternatives: dict[str, str] = {}
    for each in list(registry.candidates(replace(problem, call=call._replace(variant="auto")), alternatives)):
        alternatives.setdefault(each.variant, f"would serve: {each.reason}")
    others = {name: alternatives[name] for name in registry.VARIANTS[call.operation] if name != plan.variant}
    return Explanation(plan, others, device.name, measured, rule, tuning.unwritten.get(device, ""))


def warmup(
    operation: OperationName | Callable[..., Any],
    data: Any,
    *arguments: Any,
    autotune: bool = False,
    **options: Any,
) -> Plan:
    """Compile the kernel of a call ahead, for the current CUDA device.

    ``gpufold.warmup("col2im", ((8, 576, 3136), "float32"), (56, 56), (3, 3), pads_begin=1, pads_end=1)``
    serves other batch and image sizes too. A new kernel size, stride, dilation, dtype or layout compiles again, as do
    extents that need another word width or 64-bit offsets.

    Parameters
    ----------
    operation, data, *arguments, **options
        As in `explain`.
    autotune : bool
        Whether to measure which kernel is fastest, as `gpufold.autotune` does, on zeros or copies of NumPy arrays.
        `positions` must then be an array, because the fastest kernel depends on them.

    Returns
    -------
    gpufold.gpu.plan.Plan
        The plan of the compiled kernel.

    Raises
    ------
    TypeError, ValueError
        As the call would; ValueError also if an array is empty.
    ImportError
        CuPy is not installed.
    RuntimeError
        There is no usable CUDA driver or device.

    See Also
    --------
    autotune : Measure the calls within a context.
    explain : Show the kernel without a GPU.
    """
    call, input, output, weight_out = _described("warmup", operation, data, arguments, options)
    try:
        from gpufold.gpu import launch
    except ImportError as error:
        raise extras.missing("gpufold.warmup", "cupy", "cuda13") from error
    if flag("warmup", "autotune", autotune):
        _measure(call, operation, data, arguments, options)
    problem = Problem(call, input, output, launch.device(launch.current()), weight_out)
    plan = tuning.decide(problem).plan
    launch.compile_plan(plan)
    return plan


def _measure(call: Call, asked: Any, data: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Run a described call on GPU arrays, measuring its kernels; arrays that it changes are made for it."""
    operation, cupy = call.operation, sys.modules["cupy"]
    names, adds = OPERATIONS[operation].arrays, operation == "add_blocks"
    function = getattr(sys.modules["gpufold"], "add_blocks_" if adds else operation)
    given = signature(function).bind(data, *arguments, **options)
    if call.fusion.accumulate and not adds:
        given.arguments["out"] = cupy.zeros(call.result_shape, call.dtype)
    if "positions" in names and _is_description(given.arguments["positions"]):
        raise ValueError(
            f"warmup: positions of {operation} must be an array with autotune=True, because the fastest kernel depends "
            f"on them, got {shown(given.arguments['positions'])}"
        )
    first = next(iter(given.arguments))
    for name in (first, *names, "window", "weight_out"):
        array = given.arguments.get(name)
        if array is not None and (name != "positions" or hasattr(array, "dtype")):  # a sequence is converted later
            given.arguments[name] = array = _on_gpu(array)
            if adds and name == first and not _is_in_place(asked):
                given.arguments[name] = cupy.zeros(array.shape, array.dtype)
            elif name == "weight_out" or (adds and name == first):
                given.arguments[name] = _zeros_like(array)
    with tuning.autotune():
        function(*given.args, **given.kwargs)


def _is_in_place(operation: object) -> bool:
    """Return whether an operation, or its function, is `add_blocks_`, which adds to strided arrays themselves."""
    name = getattr(operation, "__name__", operation)
    return isinstance(name, str) and name == "add_blocks_"


def _zeros_like(array: Any) -> Any:
    """Return zeros on the GPU in the memory layout of an array."""
    cupy = sys.modules["cupy"]
    begin, end = bounds_of(array.shape, array.strides, array.itemsize)
    memory = cupy.zeros(end - begin, np.uint8).data + -begin
    return cupy.ndarray(array.shape, native(array.dtype), memory, array.strides)


def _on_gpu(array: Any) -> Any:
    """Return a CuPy array itself, a copy of a NumPy array, zeros for (shape, dtype), or a list of a window's arrays.

    A copy has the same strides, on which the kernels to measure depend.
    """
    cupy = sys.modules["cupy"]
    if isinstance(array, np.ndarray):
        copy = _zeros_like(array)
        copy[...] = cupy.asarray(array)
        return copy
    if not isinstance(array, tuple | list):
        return array
    if _is_description(array):
        return cupy.zeros(*array)
    return [_on_gpu(each) for each in array]


def _is_description(array: Any) -> bool:
    """Return whether a tuple is (shape, dtype), not a sequence of arrays, positions or weights."""
    return type(array) is tuple and len(array) == 2 and isinstance(array[1], str | type | np.dtype)


NOT_TAKEN = {
    "out": "kernels are planned for a new, contiguous result",
    "weights": "blocks are multiplied by them before a kernel adds the products",
}
"""Arguments of calls that `explain` and `warmup` do not take, and why."""


class LayoutSpec(NamedTuple):
    """The properties of an array that describing a call needs."""

    shape: Size
    dtype: np.dtype[Any]
    operand: Operand


def _described(
    asked: str, operation: str | Callable[..., Any], data: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Call, Operand, Operand, Operand | None]:
    """Check a call on described arrays; return it with its input, output and weight_out as kernels see them."""
    name = "add_blocks" if _is_in_place(operation) else getattr(operation, "__name__", operation)
    name = word(asked, "operation", name, tuple(OPERATIONS))
    for each, why in NOT_TAKEN.items():
        if each in options:
            raise TypeError(f"{asked}: do not pass {each}: {why}")
    row, first = OPERATIONS[name], _described_array(asked, "data", data)
    try:
        given = signature(row.describe).bind(first, *arguments, **options).arguments
    except TypeError as error:
        raise misfit(row.describe, name, (data, *arguments), options) or TypeError(f"{name}: {error}") from None
    for each in (*row.arrays, "weight_out"):
        if each in row.arrays or given.get(each) is not None:
            given[each] = (_described_positions if each == "positions" else _described_array)(asked, each, given[each])
    if "positions" in row.arrays and given["positions"].dtype.kind not in "iu":
        raise TypeError(f"{name}: positions must be integers, got dtype {given['positions'].dtype}")
    call, weight_out, window = row.describe(**given), given.get("weight_out"), given.get("window")
    if name == "add_blocks":
        input, output = given["blocks"], first if _is_in_place(operation) else _contiguous(first.shape, first.dtype)
    else:
        if name == "array_to_blocks" and call.fusion.mode != "constant":
            call, _ = call.extended
            first = _contiguous(call.data_shape, first.dtype)
        input, output = first, _contiguous(call.result_shape, first.dtype)
    check_dtype(name, row.data, call.dtype)
    if window is not None:
        one = window[0] if is_separable(window) and len(window) else window
        as_weights(call, library_of(name, "window", one), window, one)
    for array in (output, input):
        if not prod(array.shape):
            raise ValueError(f"{name}: an array of shape {array.shape} has no element, so nothing is launched")
    return call, input.operand, output.operand, None if weight_out is None else weight_out.operand


def _described_array(asked: str, name: str, array: Any) -> LayoutSpec:
    """Describe an array, or the C-contiguous one that (shape, dtype) describes."""
    if not isinstance(array, tuple):
        library_of(asked, name, array)
        operand = operand_of(asked, name, array.shape, array.strides, MAX_ALIGNMENT, array.dtype.itemsize or 1)
        return LayoutSpec(array.shape, array.dtype, operand)
    try:
        shape, dtype = as_integers(asked, f"{name}'s shape", array[0]), np.dtype(array[1])
        shape = (shape,) if isinstance(shape, int) else shape
        if len(array) != 2 or array[1] is None or min(shape, default=0) < 0:
            raise ValueError
    except Exception as error:
        hint = f"; give the dtype too: ({shown(array)}, 'float32')" if all(type(each) is int for each in array) else ""
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{asked}: {name} must be an array or (shape, dtype) with extents of at least 0, got {shown(array)}{hint}"
        ) from error
    return _contiguous(shape, dtype)


def _described_positions(asked: str, name: str, positions: Any) -> LayoutSpec:
    """Describe positions, which calls copy if kernels cannot read them."""
    if _is_description(positions):
        return _described_array(asked, name, positions)
    if hasattr(positions, "dtype"):
        library_of(asked, name, positions)
    else:
        positions = as_positions(asked, np, positions, None)
    return _contiguous(positions.shape if len(positions.shape) > 1 else (*positions.shape, 1), positions.dtype)


def _contiguous(shape: Size, dtype: np.dtype[Any]) -> LayoutSpec:
    return LayoutSpec(shape, native(dtype), Operand.contiguous(shape))
