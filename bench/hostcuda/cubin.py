"""What a kernel becomes on a GPU, without one: NVRTC compiles a plan, and the machine code is read.

The figures say what a kernel needs, and what one pass through each loop and one way through the kernel take, if it
makes every guarded access: how often the loops are run is not in the machine code, but machine.py runs them.

A *wait* is one latency of global memory: a load's registers arrive one wait after it is issued, and an instruction
that uses them waits until then. What is loaded over the waits is in flight at a time.
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
from dataclasses import astuple, dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

from gpufold.gpu.plan import H200, Device, Plan
from gpufold.gpu.sources import source_text

from .build import KERNELS, Defines, cuda_headers, keep, with_includes

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

RESERVED_SHARED_BYTES = 1024
"""Of each block, for the system; listed with the kernel's own from compute capability 9.0 on."""


class CompileError(Exception):
    """NVRTC refused a kernel; the message is its log, with file and line."""


@dataclass(frozen=True)
class Walk:
    """What a thread does on the way through a piece of code."""

    instructions: int
    loads: int
    """From global memory."""
    bytes: int
    """That a thread loads."""
    waits: int
    innermost: bool = True
    """Whether it goes through no loop that loads."""


REGISTERS = 65536
"""Of a multiprocessor."""

BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 9): 24}
"""That fit on a multiprocessor, by compute capability; else BLOCKS_ELSE."""
BLOCKS_ELSE = 32


@dataclass(frozen=True)
class Resources:
    """What a kernel asks for."""

    registers: int
    stack_bytes: int
    """More than zero where registers are spilled."""
    shared_bytes: int


@dataclass(frozen=True)
class Figures(Resources):
    """What a kernel asks for, and its loops."""

    loops: tuple[Walk, ...]
    """One pass through each."""
    path: Walk
    """From the kernel's first instruction to an exit, once through each loop on the way."""

    @property
    def bytes_in_flight(self) -> float:
        """Return what a thread has asked for while it waits, in the loop or on the path where that is most."""
        return max((walk.bytes / walk.waits for walk in (self.path, *self.loops) if walk.loads), default=0.0)


@cache
def file_of_wheel(wheel: str, pattern: str) -> Path | None:
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if re.fullmatch(pattern, file.name)), None)


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
    # NVRTC looks for its builtins by name only, and finds them when they are loaded already.
    ctypes.CDLL(str(file_of_wheel("nvidia-cuda-nvrtc", r"libnvrtc-builtins\.so[.\d]+")))
    return ctypes.CDLL(str(file_of_wheel("nvidia-cuda-nvrtc", r"libnvrtc\.so\.\d+")))


def options(architecture: int, kernels: Path, flush: bool) -> list[str]:
    """Give the options that matter to the machine code, as CuPy passes them."""
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
    return keep(".elf", key, lambda made: made.write_bytes(_compile(source, text, passed))).read_bytes()


def compile_text(text: str, passed: Sequence[str]) -> bytes:
    """Compile a program as it is, to PTX for an architecture such as compute_90, and keep nothing."""
    return _compile("program.cu", text, [option.encode() for option in passed])


@cache
def _versions() -> str:
    wheels = ("nvrtc", "runtime", "crt", "cccl", "nvdisasm", "cuobjdump")
    found = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    return " ".join(found.get(f"nvidia-cuda-{wheel}", "") for wheel in wheels)


def _compile(source: str, text: str, passed: list[bytes]) -> bytes:
    nvrtc = _nvrtc()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), source.encode(), 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(passed), (ctypes.c_char_p * len(passed))(*passed))
    to_ptx = any(option.startswith(b"-arch=compute_") for option in passed)
    wanted = "ProgramLog" if failed else "PTX" if to_ptx else "CUBIN"
    getattr(nvrtc, f"nvrtcGet{wanted}Size")(program, ctypes.byref(size))
    result = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{wanted}")(program, result)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise CompileError(result.value.decode())
    return result.raw


def resources(plan: Plan, architecture: int = 90, kernels: Path = KERNELS) -> Resources:
    """Compile a plan's kernel and read what it asks for."""
    cubin = compile(plan.source, plan.defines, architecture, kernels, symbol=plan.symbol)
    usage = _read(cubin, "cuobjdump", "-res-usage")
    found = re.search(rf"Function {plan.symbol}:\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
    if not found:
        raise CompileError(f"{plan.source} has no kernel {plan.symbol}; it has: {usage}")
    registers, stack_bytes, shared_bytes = map(int, found.groups())
    if shared_bytes and architecture >= 90:
        shared_bytes -= RESERVED_SHARED_BYTES
    return Resources(registers, stack_bytes, shared_bytes)


def figures(plan: Plan, architecture: int = 90, kernels: Path = KERNELS) -> Figures:
    """Compile a plan's kernel and read its machine code."""
    listed = instructions(plan.source, plan.symbol, plan.defines, architecture, kernels)
    path = _walk(listed, _fullest_path(listed, _targets(listed), 0))
    return Figures(*astuple(resources(plan, architecture, kernels)), loops=tuple(_loops(listed)), path=path)


def resident_threads(plan: Plan, needed: Resources, device: Device = H200) -> int:
    """Count the threads that fit on a multiprocessor at a time."""
    threads = prod(plan.block)
    warps = -(-threads // 32)
    # Registers are given to warps 256 at a time, by each of the four schedulers from a quarter of its own.
    warps_of_scheduler = REGISTERS // 4 // (-(-needed.registers * 32 // 256) * 256)
    reserved = RESERVED_SHARED_BYTES if device.compute_capability >= (8, 0) else 0
    shared_bytes = needed.shared_bytes + reserved
    blocks = min(
        BLOCKS.get(device.compute_capability, BLOCKS_ELSE),
        device.threads_per_multiprocessor // threads,
        4 * warps_of_scheduler // warps,
        device.shared_bytes // shared_bytes if shared_bytes else BLOCKS_ELSE,
    )
    return blocks * threads


def architecture_of(device: Device) -> int:
    """Return the architecture that machine code is made for, 90 for compute capability 9.0."""
    major, minor = device.compute_capability
    return 10 * major + minor


def instruction_counts(plan: Plan, architecture: int = 90, *, flush: bool = True) -> Counter[str]:
    """Count a plan's instructions by name, subroutines included: once each, however often they are run."""
    listed = instructions(plan.source, plan.symbol, plan.defines, architecture, flush=flush)
    return Counter(line.name for line in listed)


@cache
def instructions(
    source: str, symbol: str, defines: Defines, architecture: int, kernels: Path = KERNELS, flush: bool = True
) -> tuple[Instruction, ...]:
    """Compile a kernel and list its machine code."""
    cubin = compile(source, defines, architecture, kernels, flush, symbol)
    return tuple(_instructions(_read(cubin, "nvdisasm", "-c"), symbol))


def section(plan: Plan, name: str, architecture: int = 90, kernels: Path = KERNELS) -> bytes:
    """Return a section of a plan's cubin, which is an ELF file; empty where it has none of that name."""
    code = compile(plan.source, plan.defines, architecture, kernels, symbol=plan.symbol)
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
    """One line of SASS; labels are those that stand in front of it."""

    labels: tuple[str, ...]
    guard: str | None
    """The predicate without which it does nothing, such as P0 or !UP1."""
    name: str
    operands: tuple[str, ...]

    @property
    def is_load(self) -> bool:
        return self.name.startswith(("LDG", "LD.E"))

    @property
    def width(self) -> int:
        """Registers that a value of this instruction takes."""
        return 4 if ".128" in self.name else 2 if ".64" in self.name else 1

    def registers(self, operand: str) -> set[int]:
        return {int(number) + i for number in re.findall(r"\bR(\d+)\b", operand) for i in range(self.width)}

    @property
    def bytes_moved(self) -> int:
        """By a thread, to or from global or shared memory."""
        return 4 * self.width if self.name.startswith(("LD.", "LDG", "LDS", "ST", "RED", "ATOM")) else 0

    @property
    def loaded_bytes(self) -> int:
        """By a thread, from global memory."""
        narrow = re.search(r"\.[SU](8|16)\b", self.name)
        return (int(narrow[1]) // 8 if narrow else 4 * self.width) if self.is_load else 0

    @property
    def is_conditional(self) -> bool:
        """Whether the next instruction may follow a branch or an exit, by its guard or a predicate it is given."""
        return self.guard is not None or any(re.match(r"!?U?P\d", operand) for operand in self.operands)

    @property
    def target(self) -> str | None:
        """Of a branch."""
        found = re.search(r"\.L_x_\d+", " ".join(self.operands)) if self.name == "BRA" else None
        return found[0] if found else None


def _instructions(assembly: str, symbol: str) -> list[Instruction]:
    """Take a kernel's instructions out of nvdisasm's listing."""
    section = re.search(rf"^\.text\.{symbol}:$(.*?)(?=^\.text\.|\Z)", assembly, re.MULTILINE | re.DOTALL)
    if not section:
        raise CompileError(f"no machine code of {symbol}")
    instructions, labels = [], []
    for line in section[1].splitlines():
        if found := re.match(r"^([.$][\w$]+):", line):
            labels.append(found[1])
        elif found := re.match(r"^\s+/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@(!?U?P\w+) )?\s*([A-Z][\w.]*)\s*(.*?)\s*;", line):
            operands = tuple(operand.strip() for operand in found[3].split(",")) if found[3] else ()
            instructions.append(Instruction(tuple(labels), found[1], found[2], operands))
            labels = []
    return instructions


def _targets(instructions: Sequence[Instruction]) -> list[int | None]:
    """Return the place that each instruction branches to."""
    places = {label: i for i, instruction in enumerate(instructions) for label in instruction.labels}
    return [places.get(instruction.target or "") for instruction in instructions]


def _loops(instructions: Sequence[Instruction]) -> list[Walk]:
    """Walk once through each loop, which is what a branch backwards repeats."""
    targets = _targets(instructions)
    spans = [(target, place) for place, target in enumerate(targets) if target is not None and target < place]
    walks = {span: _walk(instructions, _fullest_path(instructions, targets, *span)) for span in spans}

    def loads_within(first: int, last: int) -> bool:
        inner = (span for span in spans if span != (first, last) and first <= span[0] and span[1] <= last)
        return any(walks[span].loads for span in inner)

    return [replace(walks[span], innermost=not loads_within(*span)) for span in spans]


def _fullest_path(
    instructions: Sequence[Instruction], targets: list[int | None], first: int, last: int | None = None
) -> list[int]:
    """Find the way from the first instruction to the last, or to an exit, that moves most bytes in fewest steps."""
    best: dict[int, tuple[int, int]] = {}  # from a place on: the bytes moved, and minus the steps
    following: dict[int, int | None] = {}
    for place in reversed(range(first, len(instructions) if last is None else last + 1)):
        instruction, target = instructions[place], targets[place]
        ways: list[int | None] = []
        if place == last or (last is None and instruction.name == "EXIT"):
            ways.append(None)
        if instruction.is_conditional or instruction.name not in ("BRA", "EXIT", "RET"):
            ways.append(place + 1)
        if target is not None and target > place:
            ways.append(target)
        values = {way: best[way] if way is not None else (0, 0) for way in ways if way is None or way in best}
        if values:
            way = max(values, key=values.__getitem__)
            best[place] = (values[way][0] + instruction.bytes_moved, values[way][1] - 1)
            following[place] = way
    path, place = [], first if first in best else None
    while place is not None:
        path.append(place)
        place = following[place]
    return path


def _walk(instructions: Sequence[Instruction], path: list[int]) -> Walk:
    now = loads = loaded = 0
    arrival: dict[int, int] = {}
    for place in path:
        instruction = instructions[place]
        writes_first = not instruction.name.startswith(("ST", "RED", "BRA", "BAR", "EXIT"))
        sources = instruction.operands[writes_first:]
        used = set().union(*map(instruction.registers, sources)) if sources else set()
        now = max([now, *(arrival.pop(register) for register in used & arrival.keys())])
        for register in instruction.registers(instruction.operands[0]) if writes_first and instruction.operands else ():
            arrival.pop(register, None)
            if instruction.is_load:
                arrival[register] = now + 1
        loads += instruction.is_load
        loaded += instruction.loaded_bytes
    return Walk(len(path), loads, loaded, max([now, *arrival.values()]))
