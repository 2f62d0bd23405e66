"""The door of every public function on tensors: who may take a call over, and what errors are."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import NoReturn, ParamSpec

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from gpufold.names import misnamed

Parameters = ParamSpec("Parameters")


class InvalidValue(ValueError, RuntimeError):
    """What arrays' functions raise as a ValueError, and torch as a RuntimeError."""


def public(function: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Return a function that raises as torch does, and that subclasses of tensors, proxies and modes take over.

    It is named `forward` for torch.export, which keeps lines of such functions and shows them where a program does not
    load.
    """

    @wraps(function)
    def forward(*given: Parameters.args, **named: Parameters.kwargs) -> Tensor:
        arguments = (*given, *named.values())
        if has_torch_function(arguments):
            taken_over: Tensor = handle_torch_function(forward, arguments, *given, **named)
            return taken_over
        try:
            return function(*given, **named)  # exported programs load after: import gpufold.torch
        except TypeError:
            unexpected = [word for word in named if word not in signature(function).parameters]
            if unexpected:
                raise misnamed(function, function.__name__, unexpected) from None
            raise
        except ValueError as error:
            if type(error) is not ValueError:
                raise
            raise InvalidValue(*error.args).with_traceback(error.__traceback__) from None

    forward.__prepare_scriptable__ = lambda: refuse_script(function.__name__)  # type: ignore[attr-defined]
    return forward


def refuse_script(name: str) -> NoReturn:
    """Raise what torch.jit.script asks for a function or a module to compile."""
    raise RuntimeError(
        f"gpufold.torch.{name} is nothing that torch.jit.script compiles: call torch.jit.trace, which records it, or "
        f"torch.export.export"
    )
