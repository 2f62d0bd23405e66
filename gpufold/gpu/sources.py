"""The kernels' sources: where they are, and what a compiler is given for a specialisation."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent

KERNELS = next(path for path in (_PACKAGE / "kernels", _PACKAGE.parent / "kernels") if path.is_dir())
"""The .cu files: inside the package in a wheel, beside it in a checkout."""


def source_text(source: str) -> str:
    """Return a kernel's source, in which errors name its file."""
    return f'#line 1 "kernels/{source}"\n{(KERNELS / source).read_text()}'


def options(defines: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the compiler's options for a specialisation."""
    return (
        "-std=c++17",
        f"-I{KERNELS}",
        f"-DGPUFOLD_HEADERS={_headers()}",
        *(f"-D{name}={value}" for name, value in defines),
    )


@cache
def _headers() -> str:
    """Digest the headers: CuPy's cache on disk looks at the source and the options only."""
    digest = hashlib.sha256()
    for header in sorted(KERNELS.glob("*.cuh")):
        digest.update(header.read_bytes())
    return digest.hexdigest()[:16]
