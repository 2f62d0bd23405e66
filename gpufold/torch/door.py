"""Wrapper of every public function on tensors: overrides by torch functions and modes, and types of errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn, ParamSpec

from torch import OutOfMemoryError, Tensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from gpufold.calls import Unsupported
from gpufold.names import misfit, renamed
from gpufold.operations import OPERATIONS
from gpufold.torch.tensors import nested

Parameters = ParamSpec("Parameters")


class InvalidValue(ValueError, RuntimeError):
    """Raised for a value that does not fit: a ValueError, as for other arrays, and a RuntimeError, as torch raises.

    See Also
    --------
    gpufold.Unsupported : Raised for a variant that cannot serve a call.
    """

    __module__ = "gpufold.torch"


class NoMemory(MemoryError, OutOfMemoryError):
    """Raised if there is no memory for a result: a MemoryError, as for other arrays, and what torch raises on a GPU.

    See Also
    --------
    InvalidValue : Raised for a value that does not fit.
    """

    __module__ = "gpufold.torch"


KINDS: dict[type[Exception], type[Exception]] = {
    TypeError: TypeError,
    AttributeError: TypeError,
    ValueError: InvalidValue,
    InvalidValue: InvalidValue,
    Unsupported: Unsupported,
    OverflowError: InvalidValue,
    IndexError: InvalidValue,
    KeyError: InvalidValue,
    RuntimeError: RuntimeError,
    NotImplementedError: TypeError,  # by torch, for an operator that a sparse or meta tensor does not have
}
"""What is raised in place of an error; other errors, such as a compiler's, are raised unchanged."""


_AS_TORCH = {"strides": "stride", "dilations": "dilation", "pads_begin": "padding", "pads_end": "padding"}
NAMES = {
    "fold": {"col2im": "fold", "data": "input", **_AS_TORCH},
    "unfold": {"im2col": "unfold", "image": "input", **_AS_TORCH},
}
"""torch's names for the arguments of col2im and im2col."""


def overridable(function: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Return a function that raises as torch does, and that tensor subclasses, proxies and modes can override.

    It is named `forward` because torch.export keeps the lines of such functions and shows them if a program does not
    load.
    """

    @wraps(function)
    def forward(*given: Parameters.args, **named: Parameters.kwargs) -> Tensor:
        arguments = (*given, *named.values()) if named else given
        if has_torch_function(arguments):
            taken_over: Tensor = handle_torch_function(forward, arguments, *given, **named)
            return taken_over
        try:
            return function(*given, **named)  # exported programs load after: import gpufold.torch
        except Exception as error:
            answer = error if is_compiling() else _answered(function, error, given, named)
            try:
                if answer is error:
                    raise
                raise answer.with_traceback(error.__traceback__) from None
            finally:
                del answer  # whose traceback has this frame, which has the arguments

    forward.__prepare_scriptable__ = lambda: refuse_script(function.__name__)  # type: ignore[attr-defined]
    return forward


def _answered(
    function: Callable[..., Any], error: Exception, given: Sequence[Any], named: Mapping[str, Any]
) -> Exception:
    """Return the error to raise in place of another: one that begins with the function's name, or the same error."""
    name, window = function.__name__, named.get("window")
    axes = window if isinstance(window, tuple | list) else (window,)
    if isinstance(error, RuntimeError) and any([isinstance(each, Tensor) and each.is_nested for each in axes]):
        return nested(name, "window")  # it has no shape for a better message
    said = str(error)
    answer = misfit(function, name, given, named) if isinstance(error, TypeError) else None
    if answer is not None:
        return answer
    kind = NoMemory if is_of_memory(error) else KINDS.get(type(error))
    if kind is None:
        return error
    said = said.replace(".astype", ".to")
    operation = said.partition(": ")[0]
    if name in NAMES and operation in OPERATIONS:
        said = renamed(said, NAMES[name])
        said = re.sub(r"(padding=[^=]*), \1", r"\1", said)
    elif operation in OPERATIONS:
        said = name + said.removeprefix(operation)
    elif not said.startswith(name):
        said = f"{name}: {said}"
    return error if kind is type(error) and said == str(error) else kind(said)


def is_of_memory(error: Exception) -> bool:
    """Return whether an error, torch's too, says that there is no memory."""
    return isinstance(error, MemoryError | OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def refuse_script(name: str) -> NoReturn:
    """Raise if torch.jit.script is asked to compile a function or a module."""
    raise RuntimeError(
        f"gpufold.torch.{name} is nothing that torch.jit.script compiles: call torch.jit.trace, which records it, or "
        f"torch.export.export"
    )
