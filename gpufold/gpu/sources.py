"""Sources of the kernels: their folder, and the text to compile for a specialisation."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent

KERNELS = next(path for path in (_PACKAGE / "kernels", _PACKAGE.parent / "kernels") if path.is_dir())
"""The .cu files: inside the package in a wheel, beside it in a checkout."""


_KERNEL = re.compile(r'^extern "C" __global__ .*?\b(\w+)\(const Scalar.*?^}$', re.MULTILINE | re.DOTALL)


def symbols(source: str) -> list[str]:
    """Return the names of a source file's kernels on elements, which are alternatives."""
    return _KERNEL.findall((KERNELS / source).read_text())


def source_text(source: str, symbol: str) -> str:
    """Return a kernel's source without the other kernels of its file; compiler errors name the file and line.

    Each other kernel would take as long to compile. The kernels of bins.cu run one after another and stay together.
    """
    text = (KERNELS / source).read_text()
    if symbol in symbols(source):
        text = _KERNEL.sub(lambda other: other[0] if other[1] == symbol else "\n" * other[0].count("\n"), text)
    return f'#line 1 "kernels/{source}"\n{text}'


def program(source: str, symbol: str, defines: tuple[tuple[str, str], ...]) -> str:
    """Return the text to compile for a specialisation of a kernel: macros, then the kernel's source.

    A digest of the headers comes first, because CuPy's disk cache compares only text and options. Options are the same
    for all kernels, because CuPy runs the compiler on an empty file for each tuple of options, once per process.
    """
    lines = [f"// headers {digest('*.cuh')[:16]}", *(f"#define {name} {value}" for name, value in defines)]
    return "\n".join([*lines, source_text(source, symbol)])


def options() -> tuple[str, ...]:
    """Return the compiler's options, the same for every kernel."""
    return "-std=c++17", f"-I{KERNELS}"


@cache
def digest(pattern: str) -> str:
    """Return a digest of the kernel files that match a pattern."""
    files = [path.read_bytes() for path in sorted(KERNELS.glob(pattern))]
    return hashlib.sha256(b"".join(files)).hexdigest()
