"""Operators in torch's library, for compilers: opaque, so results are bitwise identical to eager ones.

Each takes `(data, window, positions, out, sizes..., reduction, separable, variant, deterministic, filled, over)`. The
window is one tensor (see `gpufold.torch.autograd.joined`), or the weights of an average. `out` is the tensor that
add_blocks adds to; it is not changed. take_blocks has its mode in place of the reduction. Uncovered elements of an
average are zero if it is `filled`; otherwise they are an error as soon as the sizes are integers. `over` says whether
blocks may extend beyond an array.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from inspect import signature
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.jit import is_tracing

from gpufold import calls
from gpufold import geometry as sized
from gpufold.adjoints import check_gradient
from gpufold.arrays import as_positions as as_array
from gpufold.calls import Call, FusedOps
from gpufold.elements import ELEMENT_TYPES, average_dtype, check_floats, check_sums, dtype_name
from gpufold.geometry import as_integers, sequence
from gpufold.given import shown, word
from gpufold.names import MARGINS
from gpufold.operations import OPERATIONS
from gpufold.torch import autograd, exporting, tensors
from gpufold.torch.executing import execute
from gpufold.torch.tensors import INTEGERS, as_int64, name_of, resolved
from gpufold.windows import misshapen_weights

TAKEN = {
    name: [each.name for each in signature(it.describe).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    for name, it in OPERATIONS.items()
}
ARRAYS = {name: tuple(TAKEN[name][: 1 + len(it.arrays)]) for name, it in OPERATIONS.items()}
SIZES = {name: tuple(taken[len(ARRAYS[name]) :]) for name, taken in TAKEN.items()}
"""The positional arguments of each operation: its arrays, then its sizes, of which operators take a value per axis."""

AXES_BY = {"col2im": "output_size", "im2col": "kernel_size"}
"""The sizes with one value per spatial axis; `block_shape` in other operations."""

OUT_DTYPE = "array must have the dtype of blocks or a wider one:"
"""The error if `out` has another dtype."""

Tail: TypeAlias = tuple[str, bool, str, bool, bool, bool]
PLAINLY: Tail = ("sum", False, "auto", True, True, False)
"""Arguments after the sizes of an operator; those of a plain sum or copy."""

INTEGER, FLOAT = (int, torch.SymInt, np.integer), (float, torch.SymFloat)
"""Numbers and a compiler's symbols for them; not unions of types, for which torch 2.6 does not compile isinstance."""

_library = torch.library.Library("gpufold", "DEF")


def call_of(operation: str, arguments: tuple[Any, ...]) -> Call:
    """Describe a call of an operator; sizes may be symbols."""
    data, window, positions, out, *sizes, reduction, separable, variant, deterministic, filled, over = arguments
    name = OPERATIONS[operation].data
    dtype = tensors.Dtype(name_of(data.dtype))
    if out is not None and out.dtype != data.dtype:
        raise TypeError(f"{operation}: {OUT_DTYPE} {dtype}, got {name_of(out.dtype)}")
    accumulate, mode = operation == "add_blocks", "constant"
    if operation == "take_blocks":
        reduction, mode = "sum", reduction
    kind = "none" if window is None else "separable" if separable else "full"
    calls.checked(operation, name, dtype, kind, reduction, accumulate)
    shaped = (out, data, positions, window if operation == "average" else None)
    integers = (*(tuple(each.shape) for each in shaped if each is not None), *map(tuple, sizes))
    check: Any = getattr(sized, f"{operation}_geometry")
    known = all(type(number) is int for numbers in integers for number in numbers)
    if not known:
        check = check.__wrapped__
    geometry = check(*integers, *(["over"] if over else []))
    fusion = FusedOps(reduction, kind, accumulate, mode=mode)
    calls.check_mode(operation, geometry, mode)
    call = Call(operation, geometry, dtype.name, fusion, filled=filled or known)
    call = calls.chosen(call, variant, deterministic)
    block = geometry.block_shape
    wanted = (sum(block),) if separable else block
    if window is not None and tuple(window.shape) != wanted:
        raise misshapen_weights(call, "window", tuple(window.shape), wanted)
    return call.covering(None) if known and not filled else call


def _define(operation: str) -> None:
    """Define an operator for tensors and fake tensors, with gradients and vmap."""

    def compute(*arguments: Any) -> Tensor:
        call = call_of(operation, arguments)
        data, window, positions, out = arguments[:4]
        names = OPERATIONS[operation].data, "window", "positions", "array"
        for name, tensor in zip(names, arguments[:4], strict=True):
            if tensor is not None:
                tensors.check_stored(operation, name, tensor)
        return execute(call, resolved(data), autograd.separated(call, window), positions, out)

    def fake(*arguments: Any) -> Tensor:
        data: Tensor = arguments[0]
        return data.new_empty(call_of(operation, arguments).result_shape)

    def dispatch(*arguments: Any) -> Tensor:
        data, window, positions, out = arguments[:4]
        return autograd.linear(data, window, positions, out, call_of(operation, arguments))

    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:
        given, dims = arguments[:4], in_dims[:4]
        if info.batch_size == 0:
            rows = [
                each if dim is None else each.new_empty(each.movedim(dim, 0).shape[1:])
                for each, dim in zip(given, dims, strict=True)
            ]
            shape = call_of(operation, (*rows, *arguments[4:])).result_shape
            return given[0].new_empty((0, *shape)), 0
        call = call_of(operation, (*autograd.row_of(given, dims, 0), *arguments[4:]))
        return autograd.batched(info.batch_size, dims, given, call)

    sizes = "".join(f"SymInt[] {name}, " for name in SIZES[operation])
    reduction = "mode" if operation == "take_blocks" else "reduction"
    schema = (
        f"{operation}(Tensor data, Tensor? window, Tensor? positions, Tensor? out, {sizes}str {reduction}, "
        f"bool separable, str variant, bool deterministic, bool filled, bool over) -> Tensor"
    )
    name = f"gpufold::{operation}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(operation, compute, key)
    torch.library.register_fake(name, fake, lib=_library)
    _library.impl(operation, dispatch, "Autograd")
    torch.library.register_vmap(name, vmap, lib=_library)


for _operation in SIZES:
    _define(_operation)


def is_integer(value: Any) -> bool:
    """Return whether a size is one integer, a symbol, or a tensor that torch.jit.trace has for an extent."""
    return isinstance(value, INTEGER) or (is_tracing() and isinstance(value, Tensor) and value.ndim == 0)


def per_axis(value: Any, rank: int) -> list[Any]:
    """Return one integer per axis, symbols included."""
    values = [value] * rank if is_integer(value) else value
    return [int(each) if isinstance(each, np.integer) else each for each in values]


# ---------------------------------------------------------------------------------------------
# Traced calls: arguments go to an operator, whose fake implementation checks them


def record(operation: str, values: dict[str, Any], positions: Tensor | None) -> Tensor:
    """Call an operator with the arguments of a function, as the caller gave them, and positions as a tensor."""
    what, variant = OPERATIONS[operation].data, values["variant"]
    data, window = values[what], values.get("weight", values.get("window"))
    last, fill = values.get("last", "drop"), values.get("fill_value")
    tensors.check_tensor(operation, what, data)
    if last not in ("drop", "over") or fill:
        raise TypeError(f"{operation}: under a compiler, last must be 'drop' or 'over' and fill_value None or 0")
    reduction = values["mode"] if operation == "take_blocks" else values.get("reduction", "sum")
    for chosen in (reduction, variant):
        if not isinstance(chosen, str):
            raise TypeError(f"{operation}: reduction, mode and variant are names, got {shown(chosen)}")
    sizes = _lists_of_sizes(operation, data, positions, values)
    if operation == "array_to_blocks":
        mode = word(operation, "mode", values["mode"], calls.MODES)
        if last == "over" and mode != "constant":
            along = zip(data.shape[data.ndim - len(sizes[0]) :], *sizes, strict=True)
            data, last = tensors.extended(data, [(0, exporting.over_the_end(*each)) for each in along], mode), "drop"
    out = values["array"] if operation == "add_blocks" else None
    data = _in_dtype_of_sums(operation, data, out, values.get("dtype"), reduction, window)
    separable = False
    if window is not None:
        if not ELEMENT_TYPES[name_of(data.dtype)].weight:
            needs = f"{what} must be" if operation == "average" else f"window needs {what}"
            raise TypeError(
                f"{operation}: {needs} of floats or complex numbers, got dtype {name_of(data.dtype)}; "
                f"convert it with {what}.to"
            )
        argument, axes = "weight" if operation == "average" else "window", tensors.weights_of(window)
        for each in axes:
            tensors.check_real(operation, argument, each)
            tensors.check_beside(operation, argument, each, what, data)
        separable = not isinstance(window, Tensor) or (window.ndim == 1 and operation != "average")
        if separable:
            _check_axes(operation, axes, data, positions, sizes)
        if reduction in calls.REDUCTIONS and tensors.has_gradient(*axes):
            check_gradient(autograd.TORCH, operation, reduction)
        window = autograd.joined(operation, data, axes)
    filled = "fill_value" not in values or fill is not None
    tail = reduction, separable, variant, bool(values.get("deterministic", True)), filled, last == "over"
    arguments = data, window, positions, out, *sizes, *tail
    if torch.onnx.is_in_onnx_export() and operation in exporting.IN_ATEN:
        if is_tracing():
            _check_traced(operation, arguments)
            return exporting.decomposed(_fold_by_torchscript, operation, *arguments)
        call_of(operation, arguments)  # raises
        return exporting.decomposed(exporting.fold_by_onnx, operation, *arguments)
    return _called(operation, (data, window, positions, out), sizes, tail)


def _check_axes(operation: str, axes: Any, data: Tensor, positions: Any, sizes: list[list[Any]]) -> None:
    """Raise unless there is one tensor per axis of a block, of its size; joined, only their sum is checked."""
    number = int(operation in ("col2im", "blocks_to_array"))  # of a block's sizes, after those of the result
    block = sizes[number] if sizes else data.shape[data.ndim - positions.shape[-1] :]
    shapes = [tuple(each.shape) for each in axes]
    if is_tracing():
        with warnings.catch_warnings(action="ignore", category=torch.jit.TracerWarning):
            block, shapes = [*map(int, block)], [tuple(map(int, each)) for each in shapes]
    if shapes != [(side,) for side in block]:
        raise ValueError(f"{operation}: window must be one array per axis of {tuple(block)}, got shapes {shapes}")


def _check_traced(operation: str, arguments: tuple[Any, ...]) -> None:
    """Raise if a call does not fit, of which torch.jit.trace has the sizes as tensors."""
    given, sizes, tail = arguments[:4], arguments[4:-6], arguments[-6:]
    with warnings.catch_warnings(action="ignore", category=torch.jit.TracerWarning):
        shaped = [
            None if each is None else SimpleNamespace(shape=tuple(map(int, each.shape)), dtype=each.dtype)
            for each in given
        ]
        call_of(operation, (*shaped, *[[*map(int, size)] for size in sizes], *tail))


def _lists_of_sizes(operation: str, data: Tensor, positions: Tensor | None, values: dict[str, Any]) -> list[list[Any]]:
    """Return the sizes that an operator takes, one value per axis, from those that the caller gave."""
    sizes = {name: values[name] for name in SIZES[operation]}
    if not sizes:
        return []
    if positions is not None:
        rank = positions.shape[-1]
    elif operation in MARGINS:
        rank = data.ndim
        for name, size in [*sizes.items()][1:]:  # an integer is the margin of all axes but the batch
            sizes[name] = [0, *[size] * (rank - 1)] if is_integer(size) else size
    else:
        by = AXES_BY.get(operation, "block_shape")
        if is_integer(sizes[by]) and "last" not in values:
            sequence(operation, by, int(sizes[by]))  # raises
        if is_integer(sizes[by]):
            sizes[by] = per_axis(sizes[by], len(values.get("output_shape", data.shape)))
        rank = len(sizes[by])
    if not (is_compiling() or is_tracing()):
        sizes = {name: checked_size(operation, name, size) for name, size in sizes.items()}
    return [per_axis(size, rank) for size in sizes.values()]


def _in_dtype_of_sums(
    operation: str, data: Tensor, out: Tensor | None, dtype: Any, reduction: str, window: Any
) -> Tensor:
    """Return data in the dtype of their sums: the given one, that of `out`, or the default of weighted sums."""
    what, weighted = OPERATIONS[operation].data, window is not None or reduction in calls.REDUCTIONS[1:]
    if out is not None:
        tensors.check_tensor(operation, "array", out)
        tensors.check_beside(operation, what, data, "array", out)
        dtype = out.dtype
    if dtype is None:
        widened = weighted and operation in calls.SUMS
        return data.to(getattr(torch, average_dtype(name_of(data.dtype)))) if widened else data
    name = name_of(dtype) if isinstance(dtype, torch.dtype) else dtype_name(dtype)
    check_sums(operation, name_of(data.dtype), name, f"dtype must be that of {what}," if out is None else OUT_DTYPE)
    if weighted:
        check_floats(operation, reduction, name)
    return data.to(getattr(torch, name))


@exporting.as_onnx_has_them
def _fold_by_torchscript(columns: Tensor, *sizes: list[Any]) -> Tensor:
    """Sum columns by an operator that is registered with the exporter based on torch.jit.trace."""
    exporting.register_with_torchscript()
    return _called("col2im", (columns, None, None, None), [*sizes], PLAINLY)


def _called(operation: str, tensors: tuple[Tensor | None, ...], sizes: list[list[Any]], tail: Tail) -> Tensor:
    if is_tracing() and any([isinstance(size, Tensor) for each in sizes for size in each]):
        return _recorded(operation, tensors, sizes, tail)
    result: Tensor = getattr(torch.ops.gpufold, operation).default(*tensors, *sizes, *tail)
    return result


def _recorded(operation: str, tensors: tuple[Tensor | None, ...], sizes: list[list[Any]], tail: Tail) -> Tensor:
    """Call an operator with sizes that include tensors, for extents that torch.jit.trace records."""
    for argument, each in zip(SIZES[operation], sizes, strict=True):
        for size in each:
            if isinstance(size, Tensor) and size.dtype not in INTEGERS:
                raise TypeError(f"{operation}: {argument} must be of integers, got dtype {name_of(size.dtype)}")
    given: list[Tensor] = []

    def named(value: Any, form: str = "{}") -> str:
        if not isinstance(value, Tensor):
            return str(value)
        given.append(value)
        return form.format(f"given_{len(given)}")

    arguments = [*map(named, tensors), *(f"[{', '.join([named(size, 'int({})') for size in each])}]" for each in sizes)]
    parameters = ", ".join([f"given_{number}: Tensor" for number in range(1, len(given) + 1)])
    call = f"torch.ops.gpufold.{operation}({', '.join([*arguments, *map(repr, tail)])})"
    result: Tensor = _script(f"def call({parameters}) -> Tensor:\n    return {call}\n")(*given)
    return result


@cache  # never evicted: traced programs refer to the function without keeping it
def _script(source: str) -> Any:
    """Compile a function of TorchScript; a trace of its call contains the operator with its sizes.

    The function needs a unique qualified name, or a program that calls it does not load.
    """
    name = f"__torch__.gpufold.call_{sha256(source.encode()).hexdigest()[:16]}"
    return torch._C._create_function_from_graph(name, torch.jit.CompilationUnit(source).call.graph.copy())


def as_positions(operation: str, positions: Any, array: Tensor) -> Tensor:
    """Return positions as an int64 tensor on an array's device; a sequence may contain symbols."""
    if getattr(positions, "ndim", 0) == 1:
        positions = positions[:, None]
    if not is_dynamo_compiling():
        with warnings.catch_warnings(action="ignore", category=torch.jit.TracerWarning):  # constants are intended
            if tensors.has_tensors(positions):
                positions = tensors.stacked(positions).to(array.device)
            elif not (isinstance(positions, Tensor) or _has_symbols(positions)):
                places = as_array(operation, np, positions, array).copy()  # a tracer keeps it, and records another copy
                positions = torch.tensor(places, device=array.device)
    if isinstance(positions, Tensor):
        tensors.check_tensor(operation, "positions", positions)
        return as_int64(operation, positions)
    if isinstance(positions, np.ndarray):
        places = as_int64(operation, torch.as_tensor(positions)).to(array.device)
        if places.ndim != 2:
            return places
        # a copy: compilers would repeat a clone for gradients, when the array may have changed
        return _called("space_to_batch", (places, None, None, None), [[1, 1], [0, 0], [0, 0]], PLAINLY)
    rows = [[row] if isinstance(row, INTEGER) else row for row in positions]
    if any([isinstance(place, FLOAT) for row in rows for place in row]):
        raise TypeError(f"{operation}: positions must be integers, got {shown(positions)}")
    options: Any = {"dtype": torch.int64, "device": array.device}
    if rows and not is_dynamo_compiling() and len({*map(len, rows)}) == 1 and len(rows[0]):
        # a mode that is called back has replaced torch.tensor, which makes constants of symbols here
        return torch.stack([torch.stack([torch.full((), place, **options) for place in row]) for row in rows])
    places = torch.tensor(rows, **options)  # as_tensor takes 32 bits of symbols
    return places if rows else places[:, None]


def _has_symbols(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any([_has_symbols(each) for each in value])
    return isinstance(value, torch.SymInt | torch.SymFloat)


def are_known(given: Sequence[Any], sizes: Iterable[Any] = ()) -> bool:
    """Return whether the shapes and sizes of a recorded call are integers, as for meta tensors.

    They can then be checked like those of other tensors.
    """
    shapes = [tuple(each.shape) for each in given if isinstance(each, Tensor)]
    return not (is_compiling() or is_tracing() or any([_has_symbols(each) for each in (*shapes, *sizes)]))


def checked_size(operation: str, name: str, value: Any) -> Any:
    """Return a size as integers; symbols are returned unchanged."""
    return value if _has_symbols(value) else as_integers(operation, name, value)
