"""The floating-point environment of a thread: how it rounds, and whether it flushes denormals."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_get: Any = None
_set: Any = None
with suppress(OSError, AttributeError, TypeError):  # the C library may lack these functions
    _c = ctypes.PyDLL(None)
    _get, _set = _c.fegetenv, _c.fesetenv


def mode() -> Any:
    """Return the mode of this thread; None if the C library has no functions for it."""
    if _set is None:
        return None
    _get(this := ctypes.create_string_buffer(256))  # C's fenv_t has 8 to 32 bytes
    return this


def adopt(other: Any) -> None:
    """Set the mode of this thread to one that `mode` returned."""
    if other is not None:
        _set(other)


_USUAL = mode()
"""Mode of the thread that imported gpufold."""


@contextmanager
def usual_mode() -> Iterator[None]:
    """Use the mode of the thread that imported gpufold: threads of other libraries may flush denormals."""
    before = mode()
    adopt(_USUAL)
    try:
        yield
    finally:
        adopt(before)
