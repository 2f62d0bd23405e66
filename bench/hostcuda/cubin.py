"""A kernel's machine code, without a GPU: NVRTC compiles a plan, and the cubin is read.

How often its instructions are run is not in the machine code, but machine.py runs them.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpufold.gpu.plan import Plan
from gpufold.gpu.sources import source_text

from .build import KERNELS, Defines, cuda_headers, file_of_wheel, keep, with_includes

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

RESERVED_SHARED_BYTES = 1024
"""Bytes of shared memory per block for the system; listed with the kernel's from compute capability 9.0 on."""


def first_argument(architecture: int) -> int:
    """Return where a kernel's arguments begin in its constants, in bytes."""
    return 0x380 if architecture >= 100 else 0x210 if architecture >= 90 else 0x160


class CompileError(Exception):
    """NVRTC failed to compile a kernel; the message is its log, with file and line."""


@dataclass(frozen=True)
class Resources:
    registers: int
    stack_bytes: int
    """More than zero if registers are spilled."""
    shared_bytes: int
    argument_bytes: int


@cache
def _tool(name: str) -> str:
    found = file_of_wheel(f"nvidia-cuda-{name}", name)
    return str(found) if found else shutil.which(name) or name


@cache
def unavailable() -> str | None:
    """Why kernels cannot be compiled on this machine, or None if they can."""
    if cuda_headers() is None or file_of_wheel("nvidia-cuda-nvrtc", r"libnvrtc\.so\.\d+") is None:
        return "compiling needs NVRTC and CUDA's headers: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime"
    for name in ("cuobjdump", "nvdisasm"):
        if shutil.which(_tool(name)) is None:
            return f"reading machine code needs {name}: pip install nvidia-cuda-{name}"
    return None


@cache
def _nvrtc() -> ctypes.CDLL:
    if reason := unavailable():
        raise CompileError(reason)
    # NVRTC looks for its builtins by name only, and finds them if they are loaded already.
    ctypes.CDLL(str(file_of_wheel("nvidia-cuda-nvrtc", r"libnvrtc-builtins\.so[.\d]+")))
    return ctypes.CDLL(str(file_of_wheel("nvidia-cuda-nvrtc", r"libnvrtc\.so\.\d+")))


def options(architecture: int, kernels: Path, flush: bool) -> list[str]:
    """Return the options that affect the machine code, as CuPy passes them."""
    headers = cuda_headers()
    includes = [f"-I{folder}" for folder in (kernels, headers, f"{headers}/cccl")]
    return ["-std=c++17", f"-arch=sm_{architecture}", *includes, f"-ftz={str(flush).lower()}"]


@cache
def compile(
    source: str,
    defines: Defines,
    architecture: int,
    kernels: Path = KERNELS,
    flush: bool = True,
    symbol: str | None = None,
) -> bytes:
    """Compile a source file of the folder `kernels` for an architecture, 90 for compute capability 9.0.

    `flush` lets the compiler flush denormals, as CuPy does. With a symbol that kernel alone is compiled, as by a call.
    """
    passed = [option.encode() for option in options(architecture, kernels, flush)]
    alone = symbol is not None and kernels == KERNELS
    text = source_text(source, symbol) if alone else f'#line 1 "{source}"\n{(kernels / source).read_text()}'
    text = "".join(f"#define {name} {value}\n" for name, value in defines) + text
    made: dict[Path, bytes] = {}
    with_includes(kernels / source, (), made)
    headers = [content for path, content in sorted(made.items()) if path != kernels / source]
    placeless = options(architecture, Path("kernels"), flush)
    key = [_versions().encode(), text.encode(), *map(str.encode, placeless), *headers]
    return keep(".elf", key, lambda made: made.write_bytes(_compile(source, text, passed)[0])).read_bytes()


def compile_text(text: str, passed: Sequence[str]) -> bytes:
    """Compile a program to PTX for an architecture such as compute_90, without caching."""
    return _compile("program.cu", text, [option.encode() for option in passed])[0]


def warnings(source: str, defines: Defines, architecture: int) -> str:
    """Compile a source file of `kernels/` on its own, and return what NVRTC warns of."""
    text = "".join(f"#define {name} {value}\n" for name, value in defines) + f'#include "{source}"\n'
    passed = [option.encode() for option in options(architecture, KERNELS, flush=True)]
    return _compile("program.cu", text, passed)[1]


@cache
def _versions() -> str:
    wheels = ("nvrtc", "runtime", "crt", "cccl", "nvdisasm", "cuobjdump")
    found = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    return " ".join(found.get(f"nvidia-cuda-{wheel}", "") for wheel in wheels)


def _compile(source: str, text: str, passed: list[bytes]) -> tuple[bytes, str]:
    """Return the code, and the log that NVRTC leaves where it succeeds: its warnings."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()

    def read(what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        result = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, result)
        return result.raw

    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), source.encode(), 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(passed), (ctypes.c_char_p * len(passed))(*passed))
    to_ptx = any(option.startswith(b"-arch=compute_") for option in passed)
    log, code = read("ProgramLog").rstrip(b"\0").decode(), b"" if failed else read("PTX" if to_ptx else "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise CompileError(log)
    return code, log


def resources(plan: Plan, architecture: int = 90, kernels: Path = KERNELS) -> Resources:
    """Compile a plan's kernel and read its resources."""
    cubin = compile(plan.file, plan.defines, architecture, kernels, symbol=plan.symbol)
    usage = _read(cubin, "cuobjdump", "-res-usage")
    words = r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) .*CONSTANT\[0\]:(\d+)"
    found = re.search(f"Function {plan.symbol}:{words}", usage)
    if not found:
        raise CompileError(f"{plan.file} has no kernel {plan.symbol}; it has: {usage}")
    registers, stack_bytes, shared_bytes, constant_bytes = map(int, found.groups())
    if shared_bytes and architecture >= 90:
        shared_bytes -= RESERVED_SHARED_BYTES
    return Resources(registers, stack_bytes, shared_bytes, constant_bytes - first_argument(architecture))


def instruction_counts(plan: Plan, architecture: int = 90, *, flush: bool = True) -> Counter[str]:
    """Count a plan's instructions by name, including subroutines: each once, however often it runs."""
    listed = instructions(plan.file, plan.symbol, plan.defines, architecture, flush=flush)
    return Counter(line.name for line in listed)


@cache
def instructions(
    source: str, symbol: str, defines: Defines, architecture: int, kernels: Path = KERNELS, flush: bool = True
) -> tuple[Instruction, ...]:
    """Compile a kernel and list its machine code."""
    listing = _read(compile(source, defines, architecture, kernels, flush, symbol), "nvdisasm", "-c")
    of_kernel = re.search(rf"^\.text\.{symbol}:$(.*?)(?=^\.text\.|\Z)", listing, re.MULTILINE | re.DOTALL)
    if not of_kernel:
        raise CompileError(f"no machine code of {symbol}")
    listed, labels = [], []
    for line in of_kernel[1].splitlines():
        if found := re.match(r"^([.$][\w$]+):", line):
            labels.append(found[1])
        elif found := re.match(r"^\s+/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@(!?U?P\w+) )?\s*([A-Z][\w.]*)\s*(.*?)\s*;", line):
            operands = tuple(operand.strip() for operand in found[3].split(",")) if found[3] else ()
            listed.append(Instruction(tuple(labels), found[1], found[2], operands))
            labels = []
    return tuple(listed)


def section(plan: Plan, name: str, architecture: int = 90, kernels: Path = KERNELS) -> bytes:
    """Return a section of a plan's cubin, an ELF file; empty if it has none of that name."""
    code = compile(plan.file, plan.defines, architecture, kernels, symbol=plan.symbol)
    (table,) = struct.unpack_from("<Q", code, 0x28)
    size, count, of_names = struct.unpack_from("<3H", code, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", code, table + number * size) for number in range(count)]
    names = headers[of_names][4]
    for place, _, _, _, offset, length in headers:
        first = names + place
        if code[first : code.index(b"\0", first)].decode() == name:
            return code[offset : offset + length]
    return b""


def _read(cubin: bytes, tool: str, option: str) -> str:
    key = [_versions().encode(), tool.encode(), option.encode(), cubin]

    def make(made: Path) -> None:
        (file := made.with_suffix(".cubin")).write_bytes(cubin)
        made.write_bytes(subprocess.run([_tool(tool), option, str(file)], capture_output=True, check=True).stdout)

    return keep(".txt", key, make).read_text()


@dataclass(frozen=True)
class Instruction:
    """A line of SASS; labels are those in front of it."""

    labels: tuple[str, ...]
    guard: str | None
    """The predicate that guards it, such as P0 or !UP1."""
    name: str
    operands: tuple[str, ...]
