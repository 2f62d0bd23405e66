"""Builds kernels with g++, once: the libraries are cached on disk by what they are made of."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

HOST = Path(__file__).parent / "host"
KERNELS = Path(__file__).parents[2] / "kernels"

Defines = tuple[tuple[str, str], ...]

COMMON = ["-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-DHOSTCUDA"]
"""No contraction: a multiply and an add round twice, as -fmad=false makes them on a GPU."""

KERNEL_FLAGS = {
    "plain": ["-O2"],
    "observed": ["-O1", "-gdwarf-4", "-DHOSTCUDA_OBSERVED", "-fsanitize=thread"],
}
"""By build, beyond COMMON; the sanitizers add calls before each access to memory."""

RUNTIME = {
    "plain": (["scheduler.cpp"], ["-O2"]),
    "observed": (["scheduler.cpp", "observer.cpp"], ["-O2", "-DHOSTCUDA_OBSERVED"]),
}
"""By build: what runs the kernels, and how it is compiled."""


class BuildError(Exception):
    """g++ refused a kernel; the message is the compiler's."""


@cache
def cuda_headers() -> Path | None:
    """The folder with cuda_fp16.h, from the wheel nvidia-cuda-runtime, or None."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "cuda_fp16.h":
                return Path(os.fspath(file.locate())).parent.resolve()
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
    """Where builds are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "gpufold" / "hostcuda"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


@lru_cache(maxsize=1024)
def _digest_of_version(path: Path, modified: int, size: int) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _digest(path: Path) -> bytes:
    status = path.stat()
    return _digest_of_version(path, status.st_mtime_ns, status.st_size)


def _cached(suffix: str, sources: Iterable[Path], command: list[str]) -> Path:
    """Run a compiler command that writes to `-o`, unless its result for these sources exists."""
    key = hashlib.sha256("\0".join([_compiler(), str(cuda_headers()), *command]).encode())
    for source in sources:
        key.update(_digest(source))
    result = cache_folder() / f"{key.hexdigest()[:32]}{suffix}"
    if result.exists():
        return result
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        made = Path(folder) / result.name
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"{' '.join(command)}\n{done.stderr}")
        made.replace(result)  # atomic: two processes may build the same
    return result


def _includes() -> list[str]:
    headers = cuda_headers()
    return [f"-I{HOST}", f"-isystem{headers}", f"-isystem{headers}/cccl"]


def build_runtime(build: str) -> Path:
    """The scheduler as a library of its own, shared by all kernels of one build."""
    reason = unavailable()
    if reason:
        raise BuildError(reason)
    names, flags = RUNTIME[build]
    sources = [HOST / name for name in names]
    command = ["g++", *COMMON, *flags, "-shared", *_includes(), *map(str, sources)]
    return _cached(".so", [*sources, *sorted(HOST.glob("*.h"))], command)


def build_kernel(source: Path, symbol: str, defines: Defines, build: str) -> Path:
    """The kernel as a library, built from its unmodified source; headers beside the source are its own."""
    runtime = build_runtime(build)
    command = [
        *["g++", *COMMON, *KERNEL_FLAGS[build], "-shared", "-nostdlib", "-fvisibility=hidden", "-fno-gnu-unique"],
        *[f"-D{name}={value}" for name, value in defines],
        *[f'-DHOSTCUDA_SOURCE="{source}"', f"-DHOSTCUDA_SYMBOL={symbol}", "-include", "cuda_words.h"],
        *[f"-I{source.parent}", *_includes(), str(HOST / "entry.cpp")],
        *[f"-L{runtime.parent}", f"-l:{runtime.name}", "-Wl,-rpath,$ORIGIN", "-lm", "-lc"],
    ]
    headers = sorted([*source.parent.glob("*.cuh"), *source.parent.glob("*.h"), *HOST.glob("*.h")])
    return _cached(".so", [source, HOST / "entry.cpp", *headers], command)
