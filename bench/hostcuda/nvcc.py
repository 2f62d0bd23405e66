"""Compiles the kernels with nvcc, which warns of more than NVRTC does."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from .build import KERNELS, Defines, file_of_wheel
from .cubin import ARCHITECTURES, CompileError


@cache
def _nvcc() -> str | None:
    """Return nvcc of the wheels nvidia-cuda-nvcc and nvidia-nvvm, else the one on the PATH, else None."""
    driver, compiler = file_of_wheel("nvidia-cuda-nvcc", "nvcc"), file_of_wheel("nvidia-nvvm", "cicc")
    if driver is not None and compiler is not None and driver.is_file() and compiler.is_file():
        return str(driver)
    return shutil.which("nvcc")


@cache
def unavailable() -> str | None:
    """Return why nvcc cannot compile the kernels on this machine, or None if it can."""
    nvcc = _nvcc()
    if nvcc is None:
        return "compiling by nvcc needs it: pip install nvidia-cuda-nvcc nvidia-nvvm, or put it on the PATH"
    if shutil.which("g++") is None:
        return "nvcc needs g++, which is not on the PATH"
    known = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True).stdout.split()
    missing = [f"sm_{architecture}" for architecture in ARCHITECTURES if f"sm_{architecture}" not in known]
    return f"{nvcc} cannot compile for {', '.join(missing)}" if missing else None


def compile(source: str, defines: Defines, architecture: int, kernels: Path = KERNELS) -> bytes:
    """Return the machine code of a source file of the folder `kernels`; raise CompileError for any warning."""
    if reason := unavailable():
        raise CompileError(reason)
    with tempfile.TemporaryDirectory() as folder:
        whole, result = Path(folder) / source, Path(folder) / "kernel.cubin"
        words = "".join(f"#define {name} {value}\n" for name, value in defines)  # nvcc cuts -D words at their commas
        whole.write_text(f'{words}#include "{kernels / source}"\n')
        command = [
            *[str(_nvcc()), "-std=c++17", "-cubin", f"-arch=sm_{architecture}", "-Werror", "all-warnings"],
            *["-allow-unsupported-compiler", str(whole), "-o", str(result)],
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"{' '.join(command)}\n{words}{done.stdout}{done.stderr}")
        return result.read_bytes()
