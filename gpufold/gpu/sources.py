"""The kernels' sources: where they are, and what a compiler gets for a specialisation."""

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
    """Return the names of the kernels of a source file that take elements: of each the alternatives."""
    return _KERNEL.findall((KERNELS / source).read_text())


def source_text(source: str, symbol: str) -> str:
    """Return a kernel's source, in which errors name its file and line, without the other kernels of the file.

    Each of them would take as long to compile again. Those of bins.cu, which run one after another, stay together.
    """
    text = (KERNELS / source).read_text()
    if symbol in symbols(source):
        text = _KERNEL.sub(lambda other: other[0] if other[1] == symbol else "\n" * other[0].count("\n"), text)
    return f'#line 1 "kernels/{source}"\n{text}'


def program(source: str, symbol: str, defines: tuple[tuple[str, str], ...]) -> str:
    """Return all that a compiler gets for a specialisation of a kernel: what is defined, then the kernel's source.

    A digest of the headers comes first, since CuPy's cache on disk looks at the text and the options only. Nothing but
    the text differs between kernels: CuPy runs the compiler on an empty file, once in a process, for each tuple of
    options.
    """
    lines = [f"// headers {digest('*.cuh')[:16]}", *(f"#define {name} {value}" for name, value in defines)]
    return "\n".join([*lines, source_text(source, symbol)])


def options() -> tuple[str, ...]:
    """Return the compiler's options, the same for every kernel."""
    return "-std=c++17", f"-I{KERNELS}"


@cache
def digest(pattern: str) -> str:
    """Digest the files of the kernels whose names match a pattern."""
    files = [path.read_bytes() for path in sorted(KERNELS.glob(pattern))]
    return hashlib.sha256(b"".join(files)).hexdigest()
