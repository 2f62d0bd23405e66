"""How a thread rounds, and whether it flushes denormals: the floating-point environment of C."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_get: Any = None
_set: Any = None
with suppress(OSError, AttributeError, TypeError):  # of a system whose C library has no such functions
    _c = ctypes.PyDLL(None)
    _get, _set = _c.fegetenv, _c.fesetenv


def mode() -> Any:
    """Return the mode of this thread; None where C has no functions for it."""
    if _set is None:
        return None
    _get(this := ctypes.create_string_buffer(256))  # C's fenv_t has 8 to 32 bytes
    return this


def adopt(other: Any) -> None:
    """Set the mode of this thread to one that `mode` returned."""
    if other is not None:
        _set(other)


_USUAL = mode()
"""Of the thread that imports gpufold."""


@contextmanager
def usual_mode() -> Iterator[None]:
    """Have the mode of the thread that imported gpufold: threads of other libraries may flush denormals."""
    before = mode()
    adopt(_USUAL)
    try:
        yield
    finally:
        adopt(before)
