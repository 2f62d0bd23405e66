"""Builds kernels with g++; libraries are cached on disk by the content of their sources."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Literal

HOST = Path(__file__).parent / "host"
CHECKOUT = Path(__file__).parents[2]
KERNELS = CHECKOUT / "kernels"

Defines = tuple[tuple[str, str], ...]

COMPILER = ["g++", "-std=c++17", "-fPIC", "-DHOSTCUDA"]

KERNEL = [
    *[*COMPILER, "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-unknown-pragmas"],
    *["-fvisibility=hidden", "-fno-gnu-unique"],
]
"""No contraction: a multiply and an add round twice, as on a GPU with -fmad=false. Symbols are hidden: many kernels are
loaded at a time, and each has its own functions and shared memory."""

LINES = ["-gdwarf-4", "-g1"]
"""Debug lines for faults; debug variables, which nothing reads, would double the time of g++."""

Build = Literal["plain", "observed", "sanitized"]

KERNEL_FLAGS: dict[Build, list[str]] = {
    "plain": ["-Og"],
    "observed": ["-O1", *LINES, "-DHOSTCUDA_OBSERVED=1", "-fsanitize=thread"],
    "sanitized": ["-Og", *LINES, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
"""Little optimisation: g++ takes far longer than the kernels run, and `__forceinline__` holds anyway."""

FACTS = Path("/proc/cpuinfo")
RUNTIME = ["-O3", "-DHOSTCUDA_OBSERVED=1", "-ffp-contract=off", "-frounding-math"]
if FACTS.exists() and "avx2" in FACTS.read_text().split():
    RUNTIME.append("-mavx2")  # computes eight lanes of a warp at a time


class BuildError(Exception):
    """g++ failed to compile a kernel; the message is the compiler's."""


@cache
def file_of_wheel(wheel: str, pattern: str) -> Path | None:
    """Return the file of a wheel whose name matches a pattern, or None."""
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if re.fullmatch(pattern, file.name)), None)


@cache
def cuda_headers() -> Path | None:
    """The folder with cuda_fp16.h, from the wheel nvidia-cuda-runtime, and what it includes, or None."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        header = file_of_wheel(name, r"cuda_fp16\.h")
        if header is not None and (header.parent / "crt" / "host_defines.h").exists():
            return header.parent.resolve()
    return None


@cache
def unavailable() -> str | None:
    """Why kernels cannot run on this machine's CPU, or None if they can."""
    if not sys.platform.startswith("linux"):
        return f"hostcuda needs Linux, this is {sys.platform}"
    if shutil.which("g++") is None:
        return "hostcuda needs g++, which is not on the PATH"
    if cuda_headers() is None:
        return "hostcuda needs the CUDA headers: pip install nvidia-cuda-runtime nvidia-cuda-crt"
    return None


@cache
def cache_folder() -> Path:
    """The folder that keeps builds between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "gpufold" / "hostcuda"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def with_includes(source: Path, folders: tuple[Path, ...], known: dict[Path, bytes]) -> None:
    """Add to `known` a file's content and that of every #include "file" found beside it or in the folders."""
    if source in known:
        return
    known[source] = source.read_bytes()
    for name in re.findall(rb'^\s*#\s*include\s+"([^"]+)"', known[source], re.MULTILINE):
        for folder in (source.parent, *folders):
            header = folder / name.decode()
            if header.is_file():
                with_includes(header, folders, known)
                break


def keep(suffix: str, made_of: Iterable[bytes], make: Callable[[Path], object], command: str = "") -> Path:
    """Return the cached file for a content; if there is none, let a function make it."""
    key = hashlib.sha256(command.encode())
    for part in made_of:
        key.update(hashlib.sha256(part).digest())
    result = cache_folder() / f"{key.hexdigest()[:32]}{suffix}"
    if not result.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            make(made := Path(folder) / result.name)
            made.replace(result)  # atomic: two processes may make the same file
    return result


def _cached(suffix: str, sources: list[Path], command: list[str]) -> Path:
    """Run a compiler command that writes to `-o`, unless its result for the current sources exists.

    It runs in the checkout, and names files by their places there: a copy of the checkout finds what this one built.
    """
    if reason := unavailable():
        raise BuildError(reason)
    known: dict[Path, bytes] = {}
    for source in sources:
        with_includes(source, (HOST,), known)

    def make(made: Path) -> None:
        done = subprocess.run([*command, "-o", str(made)], cwd=CHECKOUT, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"{' '.join(command)}\n{done.stderr}")

    return keep(suffix, known.values(), make, "\0".join([_compiler(), str(cuda_headers()), *command]))


def _here(path: Path) -> str:
    return os.path.relpath(path, CHECKOUT)


def _includes() -> list[str]:
    headers = cuda_headers()
    return [f"-I{_here(HOST)}", f"-isystem{headers}", f"-isystem{headers}/cccl"]


@cache
def build_runtime() -> Path:
    """The library that runs kernels and machine code, the same for all of them."""
    sources = [HOST / name for name in ("scheduler.cpp", "machine.cpp")]
    return _cached("", sources, [*COMPILER, *RUNTIME, "-shared", *map(_here, sources), *_includes()])


@cache
def _precompiled_words(build: Build) -> Path:
    """CUDA's keywords, with which every kernel starts, as a precompiled header: a third of the time."""
    header = HOST / "cuda_words.h"
    command = [*KERNEL, *KERNEL_FLAGS[build], *_includes(), "-x", "c++-header", _here(header)]
    return _cached(".h.gch", [header], command)


def build_kernel(source: Path, symbol: str, defines: Defines, build: Build) -> Path:
    """The kernel as a library, built from its unmodified source; headers beside the source are its own."""
    sanitizers = ["-Wl,--no-as-needed", "-lasan", "-lubsan"] if build == "sanitized" else []
    command = [
        *[*KERNEL, *KERNEL_FLAGS[build], "-shared", "-nostdlib"],
        *["-include", str(_precompiled_words(build).with_suffix(""))],
        *[f"-D{name}={value}" for name, value in defines],
        *[f'-DHOSTCUDA_SOURCE="{source.name}"', f"-DHOSTCUDA_SYMBOL={symbol}"],
        *[f"-I{_here(source.parent)}", *_includes(), _here(HOST / "entry.cpp")],
        *[*sanitizers, "-lm", "-lc"],
    ]
    return _cached(".so", [HOST / "entry.cpp", source], command)
