"""Executes a plan's machine code on the CPU as a GPU's warps would, instruction by instruction.

NVRTC compiles the plan for an architecture, nvdisasm lists its instructions, this module reads them, and
host/machine.cpp executes them, 32 lanes at a time. So what is counted is what each warp really asks of global memory,
whatever the compiler unrolled, predicated or moved. How long that takes is no question here.

The meaning of the instructions is not published in full. That the arrays come out right, bit for bit, is the proof
that they are understood; one that is not known raises Unknown, with its text.
"""

from __future__ import annotations

import ctypes
import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpufold.gpu.plan import H200, Device, Plan
from gpufold.gpu.variants.views import WIDEST_WORD

from . import cubin
from .build import KERNELS
from .execute import Argument, Arrays, arrays_of, bytes_of, launches_of
from .memory import Fault
from .module import Array, Launch, runtime

NOTHING, VECTOR, UNIFORM, IMMEDIATE, CONSTANT = range(5)
NEGATIVE, INVERTED, OPPOSITE, ABSOLUTE = 1, 2, 4, 8
ZERO_REGISTER, TRUE = 255, 7
GLOBAL, SHARED, LOCAL = range(3)

COMPILERS_BANK = 1 << 16
"""Offset of bank 2, the compiler's numbers, in the constants; bank 0 is smaller."""

STACK_BYTES = 4096
"""Bytes of a thread's stack, for spilled registers."""


class Unknown(Exception):
    """An instruction that this module does not know; the message is its text."""


class _Source(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint8) for name in ("origin", "index", "flags", "part")),
        ("value", ctypes.c_uint32),
        ("high", ctypes.c_uint32),
    )


class _Predicate(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint8) for name in ("index", "negated", "uniform"))


class _Instruction(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint8) for name in ("operation", "uniform", "to", "unused")),
        ("guard", _Predicate),
        ("to_predicate", _Predicate * 2),
        ("predicate", _Predicate * 3),
        ("source", _Source * 4),
        ("mode", ctypes.c_int32 * 4),
        ("target", ctypes.c_int32),
    )


class Accesses(ctypes.Structure):
    """Accesses of one kind to global memory; a request is one instruction of one warp."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("requests", "bytes", "sectors"))


class Counters(ctypes.Structure):
    """What a launch asks of global memory."""

    _fields_ = tuple((name, Accesses) for name in ("loads", "stores", "atomics"))


class _Launch(Launch):
    _fields_ = (
        ("code", ctypes.POINTER(_Instruction)),
        ("constants", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("count", "constant_bytes", "shared_bytes")),
        ("counters", ctypes.POINTER(Counters)),
    )


# ---------------------------------------------------------------------------------------------
# From a line of nvdisasm's listing to an instruction


@cache
def _operations() -> dict[str, int]:
    return {name: number for number, name in enumerate(runtime().hostcuda_machine_operations().decode().split())}


SPECIAL = ("TID.X", "CTAID.X", "CTAID.Y", "CTAID.Z", "LANEID", "LTMASK", "CgaCtaId", "SRZ")

COMPARISONS = {"LT": 1, "EQ": 2, "LE": 3, "GT": 4, "NE": 5, "GE": 6, "NUM": 7, "NAN": 8}
"""Comparisons as sums of 1 less, 2 equal, 4 greater, 8 unordered."""

ROUNDINGS = {"RN": 0, "RM": 1, "RP": 2, "RZ": 3}

WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "F64": 8, "128": 16}
"""Bytes of an access to memory, if not four."""

WITHOUT_EFFECT = ("NOP", "BMOV", "YIELD", "DEPBAR", "ERRBAR", "MEMBAR", "CCTL", "WARPSYNC.ALL")
"""Instructions without effect on warps that run one at a time; BMOV.CLEAR changes only a register that BSSY sets."""

ATOMICS = (("RED", "mi"), ("REDG", "mi"), ("ATOM", "rdmi"), ("ATOMG", "rdmi"))

ROWS = (
    *((name, "nop", "*", "") for name in WITHOUT_EFFECT),
    ("EXIT", "exit", "q", ""),
    ("BRA", "bra", "ql", ""),
    ("CALL", "call", "ql", ""),
    ("RET", "ret", "qi", ""),
    ("BSSY", "bssy", "qbl", "n"),
    ("BSYNC", "bsync", "qb", "n"),
    ("BREAK", "breaks", "qb", "n"),
    ("BAR.SYNC", "bar", "qa", ""),
    ("WARPSYNC", "warpsync", "qa", "16"),
    *((f"LD{space}", "ld", "dm*", f"{number} width S8|S16 n") for number, space in enumerate("GSL")),
    *((f"ST{space}", "st", "mi*", f"{number} width S8|S16 n") for number, space in enumerate("GSL")),
    *((f"{name}.ADD.F32", "red", operands, "0 width 0 n") for name, operands in ATOMICS),
    *((f"{name}.ADD.F64", "red", operands, "0 width 2 n") for name, operands in ATOMICS),
    *((f"{name}.ADD", "red", operands, "0 width 1 n") for name, operands in ATOMICS),
    *((f"{name}.OR", "red", f"{operands}1", "0 width 1 n") for name, operands in ATOMICS),
    *((f"{name}.64", "ldc", "dc", "0 8") for name in ("LDC", "LDCU")),
    *((f"{name}.128", "ldc", "dc", "0 16") for name in ("LDC", "LDCU")),
    *((name, "ldc", "dc", "0 4") for name in ("LDC", "LDCU")),
    ("MOV.64", "iadd_wide", "dw", ""),
    ("MOV", "mov", "di*", ""),  # behind them is the mask of lanes' bytes, always all
    ("R2UR", "mov", "diq", ""),
    ("IMAD.WIDE", "imad_wide", "driiiq", "!U32 X"),
    ("IMAD.HI", "imad_hi", "driiiq", "!U32 X"),
    ("IMAD", "imad", "driiiq", "X"),
    ("IADD.64", "iadd_wide", "drrwwq", ""),
    ("IADD3.64", "iadd_wide", "drrwwwq", ""),
    ("IADD3", "iadd3", "drriiik", "X"),
    ("VIADD", "iadd3", "diik", ""),
    ("LEA.HI.SX32", "lea_hi", "druinq", "n 1 X"),
    ("LEA.HI", "lea_hi", "druiinq", "n 0 X"),
    ("LEA", "lea", "driin", "n"),
    ("LOP3", "lop3", "rdiiinq", "n"),
    ("PLOP3", "plop3", "rrqnn", "n n"),
    *((f"SHF{bits}", "shf", "diiiq", "R S32|S64 HI W") for bits in (".U64", ".64", "")),
    *((f"ISETP.{bits}", "isetp_wide", "rrwwq", "compare S64 how") for bits in ("S64", "U64")),
    ("ISETP", "isetp", "rriiq", "compare !U32 how EX"),
    ("FSETP", "fsetp", "rrffq", "compare 0 how FTZ"),
    ("DSETP", "dsetp", "rrggq", "compare 0 how"),
    ("SEL.64", "sel_wide", "dwwq", ""),
    ("SEL", "sel", "diiq", ""),
    ("FSEL", "sel", "dffq", ""),
    *((f"IMNMX.{bits}", "imnmx_wide", "rrdwwq", "S64") for bits in ("S64", "U64")),
    *((name, "imnmx", "dtiiq", "!U32 RELU") for name in ("IMNMX", "VIMNMX")),
    ("VIADDMNMX", "viaddmnmx", "dtiiiq", "!U32 RELU"),
    *((name, name.lower(), "diq", "") for name in ("IABS", "POPC", "BREV")),
    ("FLO.U32", "flo", "diq", "SH"),
    ("PRMT", "prmt", "diiiq", ""),
    *((f"P2R.B{byte}", "p2r", "dxin", f"n {8 * byte} 0") for byte in (1, 2, 3)),
    ("P2R", "p2r", "dxin", "n 0 0"),
    ("UP2UR", "p2r", "dxin", "n 0 1"),
    ("R2P", "r2p", "xin", "n"),
    ("CS2R.32", "s2r", "ds", "n 0"),
    ("CS2R", "s2r", "ds", "n 1"),
    *((name, "s2r", "ds", "n 0") for name in ("S2R", "S2UR")),
    *((f"{name}.ANY", "vote", "Drq", "0") for name in ("VOTE", "VOTEU")),
    *((f"{name}.ALL", "vote", "Drq", "1") for name in ("VOTE", "VOTEU")),
    *((f"SHFL.{way}", "shfl", "rdiii", str(number)) for number, way in enumerate(("IDX", "UP", "DOWN", "BFLY"))),
    *((name, "i2f", "diq", "!U32 rounding") for name in ("I2F", "I2FP")),
    ("F2I.TRUNC.U32", "f2i", "dfq", ""),
    *((name, name.lower(), "dffq", "FTZ rounding") for name in ("FADD", "FMUL")),
    ("FFMA", "ffma", "dfffq", "FTZ rounding"),
    *((f"MUFU.{name}", "mufu", "dfq", str(number)) for number, name in enumerate(("RCP", "RSQ", "RCP64H"))),
    ("FCHK", "fchk", "rff", ""),
    *((name, name.lower(), "dggq", "") for name in ("DADD", "DMUL")),
    ("DFMA", "dfma", "dgggq", ""),
    ("HADD2.F32", "half_to_float", "dzu", ""),  # which adds a zero that changes nothing
    ("HFMA2", "mov", "dh", ""),  # which makes a constant of two halves, by adding them to zero
    ("F2F.F64.F32", "float_to_double", "df", ""),
    *((f"F2F.{half}.F32", "float_to_half", "d0f", "BF16") for half in ("F16", "BF16")),
    *((f"F2FP{half}.PACK_AB", "float_to_half", "dffq", "BF16") for half in (".F16", ".BF16", "")),
)
"""Instructions by name, with modifiers that have to be there; the first that fits counts. Then what executes it in
machine.cpp, its operands, a letter each (see `_Reader.take`), and its mode, a word a number (see `_Reader.word`)."""

OTHERS = {"X", "EX", "B1", "B2", "B3", "64", "S64", "U64", "U8", "S8", "U16", "S16", "F16", "F64"}
"""Modifiers that make another instruction; a row has its own in its name or mode."""


@cache
def _row_of(name: str) -> tuple[str, str, str]:
    base, *modifiers = name.split(".")
    for row, operation, operands, mode in ROWS:
        known, *wanted = row.split(".")
        named = {*wanted, *re.findall(r"\w+", mode), *(WIDTHS if "width" in mode else ())}
        if base in (known, f"U{known}") and {*wanted} <= {*modifiers} and not OTHERS.intersection(modifiers) - named:
            return operation, operands, mode
    raise LookupError


def _parts(pattern: str, text: str) -> tuple[Any, ...]:
    """Return the groups of a pattern that matches a whole text."""
    if found := re.fullmatch(pattern, text):
        return found.groups()
    raise LookupError


class _Reader:
    """A line, whose operands are read from the left."""

    def __init__(self, line: cubin.Instruction, labels: dict[str, int]) -> None:
        self.line, self.labels = line, labels
        self.modifiers = line.name.split(".")[1:]
        self.operands = [operand.replace(".reuse", "").partition(" ")[0] for operand in line.operands]
        self.numbers: list[int] = []
        """Values read for the mode."""
        self.made = _Instruction(to=ZERO_REGISTER)
        for predicates in (self.made.to_predicate, self.made.predicate):
            for number in range(len(predicates)):
                predicates[number] = _Predicate(TRUE, 0, 0)
        self.sources = self.predicates = self.set_predicates = 0

    def read(self) -> _Instruction:
        try:
            operation, operands, mode = _row_of(self.line.name)
            self.made.operation = _operations()[operation]
            self.made.guard = self.predicate(self.line.guard or "PT")
            for letter in operands:
                self.take(letter)
            for number, word in enumerate(mode.split()):
                self.made.mode[number] = self.word(word)
            if self.operands:
                raise LookupError
        except (LookupError, ValueError, StopIteration):
            guard = f"@{self.line.guard} " if self.line.guard else ""
            raise Unknown(f"{guard}{self.line.name} {', '.join(self.line.operands)}") from None
        return self.made

    def word(self, word: str) -> int:
        """Return a number of the mode, or whether there is one of some modifiers, or with ! none of them."""
        if word.isdigit():
            return int(word)
        if word == "n":  # of those that were read
            return self.numbers.pop(0)
        if word == "width":
            return next((width for name, width in WIDTHS.items() if name in self.modifiers), 4)
        if word == "rounding":
            return next((ROUNDINGS[name] for name in self.modifiers if name in ROUNDINGS), 0)
        if word == "compare":
            name = self.modifiers[0]
            return COMPARISONS.get(name) or COMPARISONS[name.removesuffix("U")] | 8
        if word == "how":
            return next(number for number, name in enumerate(("AND", "OR", "XOR")) if name in self.modifiers)
        return any(name in self.modifiers for name in word.lstrip("!").split("|")) != word.startswith("!")

    def take(self, letter: str) -> None:
        """Take an operand, or several.

        d, r: a register and a predicate that are set; of r, and of D, only if there is one. q: the predicates that are
        read; k: the same, and those that are not there are false. i, f, g, w: a source of integers, floats, doubles,
        integers of 64 bits; u: of integers as they are; 0, 1: one that the line does not have. m, c: a place in memory,
        or among the constants. l, b: a label, a register of BSSY. n, s: a number, or that of a special register. Those
        that are always the same: a for all threads, x for all predicates, t for true, z for a zero before or after
        others, and h for zero and the two halves that are added to it. *: whatever is left.
        """
        if letter in "rD" and self.next_is_predicate() != (letter == "r"):
            return
        if letter in "dD":
            uniform, index = _parts(r"(U?)R(\d+|Z)", self.operands.pop(0))
            self.made.uniform = bool(uniform)
            self.made.to = ZERO_REGISTER if index == "Z" else int(index)
        elif letter == "r":
            self.made.to_predicate[self.set_predicates] = self.predicate(self.operands.pop(0))
            self.set_predicates += 1
        elif letter in "qk":
            while self.next_is_predicate():
                self.made.predicate[self.predicates] = self.predicate(self.operands.pop(0))
                self.predicates += 1
            for number in range(self.predicates, 3 if letter == "k" else 0):
                self.made.predicate[number] = _Predicate(TRUE, 1, 0)
        elif letter in "ifgwu":
            self.put(source := self.source(self.operands.pop(0), letter))
            if letter == "u" and source.flags:
                raise LookupError
        elif letter in "01":
            self.put(_Source(value=int(letter)))
        elif letter == "m":
            self.take_place()
        elif letter == "c":
            bank, register, offset = _parts(r"c\[0x([02])\]\[(U?R(?:\d+|Z))?\+?(0x[0-9a-f]+)?\]", self.operands.pop(0))
            self.put(_Source(IMMEDIATE, value=int(offset or "0", 0) + COMPILERS_BANK * (bank == "2")))
            self.put(self.source(register or "RZ"))
        elif letter == "l":
            self.made.target = self.labels[self.operands.pop(0).strip("`()")]
        elif letter == "b":
            self.numbers.append(int(self.operands.pop(0).removeprefix("B")))
        elif letter == "n":
            self.numbers.append(int(self.operands.pop(0), 0))
        elif letter == "s":
            self.numbers.append(SPECIAL.index(self.operands.pop(0).removeprefix("SR_")))
        elif letter == "h":
            *zeros, high, low = self.operands
            if zeros != ["-RZ", "RZ"]:
                raise LookupError
            bits = np.array([float(low), float(high)], np.float16).view(np.uint32)
            self.put(_Source(IMMEDIATE, value=int(bits[0])))
            self.operands.clear()
        elif letter == "t":  # nowhere to, from compute capability 10.0 on
            while self.operands[0] == "PT":
                self.operands.pop(0)
        elif letter == "*":
            self.operands.clear()
        elif letter == "z":
            self.operands.remove(next(each for each in self.operands if each.partition(".")[0] == "-RZ"))
        else:
            always = {"a": ("0x0", "0xffffffff"), "x": ("UPR" if self.line.name[0] == "U" else "PR",)}
            if self.operands.pop(0) not in always[letter]:
                raise LookupError

    def predicate(self, text: str) -> _Predicate:
        negated, uniform, index = _parts(r"(!?)(U?)P(\d|T)", text)
        return _Predicate(TRUE if index == "T" else int(index), bool(negated), bool(uniform))

    def next_is_predicate(self) -> bool:
        return bool(self.operands) and re.fullmatch(r"!?U?P(\d|T)", self.operands[0]) is not None

    def put(self, source: _Source) -> None:
        self.made.source[self.sources] = source
        self.sources += 1

    def take_place(self) -> None:
        """Take an address in memory, and note whether its register is one of 64 bits."""
        register, extent, scale, uniform, offset = _parts(
            r"(?:desc\[UR\d+\])?\[(?:(R(?:\d+|Z))(\.64|\.U32)?(?:\.X(\d+))?)?\+?(UR\d+)?\+?(-?0x[0-9a-f]+)?\]",
            self.operands.pop(0),
        )
        base = self.source(register or "RZ")
        base.part = int(scale or 1).bit_length() - 1
        self.put(base)
        self.put(self.source(uniform) if uniform else _Source())
        self.made.target = int(offset or "0", 0)
        self.numbers.append(extent != ".U32" and register is not None)

    def source(self, text: str, kind: str = "i") -> _Source:
        if kind == "w" and (number := re.fullmatch(r"(-?)(0x[0-9a-f]+)", text)):
            high, low = divmod(int(number[2], 0), 1 << 32)  # extended by zeros, and negated after that
            return _Source(IMMEDIATE, 0, NEGATIVE if number[1] else 0, 0, low, high)
        sign = OPPOSITE if kind in "fg" else NEGATIVE
        flags, bare = sign * text.startswith("-") | INVERTED * text.startswith("~"), text.lstrip("-~")
        if bare.startswith("|") and kind in "fg":
            flags, bare = flags | ABSOLUTE, bare.replace("|", "")
        if found := re.fullmatch(r"(U?)R(\d+|Z)(?:\.(H0_H0|H1_H1|B[0-3]|F32|64|X\d+|U32))?", bare):
            part = {None: 0, "H1_H1": 16, "B1": 8, "B2": 16, "B3": 24}.get(found[3], 0)
            index = ZERO_REGISTER if found[2] == "Z" else int(found[2])
            return _Source(UNIFORM if found[1] else VECTOR, index, flags, part, 0)
        if found := re.fullmatch(r"c\[0x([02])\]\[(0x[0-9a-f]+)\]", bare):
            return _Source(CONSTANT, 0, flags, 0, int(found[2], 16) + COMPILERS_BANK * (found[1] == "2"))
        if kind in "fg":
            value = np.array([float(text.replace("QNAN", "NAN"))], np.float64 if kind == "g" else np.float32)
            low, *high = value.view(np.uint32).tolist()
            return _Source(IMMEDIATE, 0, 0, 0, 0 if kind == "g" else low, *high)  # of a double the upper half alone
        _parts(r"0x[0-9a-f]+|\d+", bare)
        return _Source(IMMEDIATE, 0, 0, 0, int(text.lstrip("~"), 0) % 2**32 ^ (0xFFFFFFFF if "~" in text else 0))


@cache
def _code(source: str, symbol: str, defines: Any, architecture: int, kernels: Path) -> Any:
    listed = cubin.instructions(source, symbol, defines, architecture, kernels)
    labels = {label: number for number, line in enumerate(listed) for label in line.labels}
    return (_Instruction * len(listed))(*(_Reader(line, labels).read() for line in listed))


# ---------------------------------------------------------------------------------------------
# Launching


def _constants(architecture: int, plan: Plan, arguments: bytes, kernels: Path) -> bytes:
    """Lay out the constants: the shape of the launch, the stack and the arguments, then what the compiler put there."""
    # Places read out of machine code: CUDA 13's for compute capabilities 7.5 to 12.0.
    first = cubin.first_argument(architecture)
    block, grid, stack = (0x360, 0x370, 0x37C) if architecture >= 100 else (0x0, 0xC, 0x28)
    bank = bytearray(COMPILERS_BANK)
    struct.pack_into("3I", bank, block, *plan.block)
    struct.pack_into("3I", bank, grid, *plan.grid)
    struct.pack_into("I", bank, stack, STACK_BYTES)
    bank[first : first + len(arguments)] = arguments
    return bytes(bank) + cubin.section(plan, f".nv.constant2.{plan.symbol}", architecture, kernels)


def work(plan: Plan, arrays: Arrays, device: Device = H200, kernels: Path = KERNELS) -> list[Counters]:
    """Execute a plan's machine code for a device; arrays are changed as a GPU would.

    Return what each launch did: those that fill scratch memory, and last the plan's own.
    """
    major, minor = device.compute_capability
    with launches_of(plan, arrays) as launches:
        return [_run(step, arguments, 10 * major + minor, kernels) for step, arguments in launches]


def _run(plan: Plan, arguments: tuple[Argument, ...], architecture: int, kernels: Path) -> Counters:
    code = _code(plan.file, plan.symbol, plan.defines, architecture, kernels)
    shared_bytes = cubin.resources(plan, architecture, kernels).shared_bytes + cubin.RESERVED_SHARED_BYTES
    shared_bytes += -shared_bytes % WIDEST_WORD  # the compiler loads the last three words as four
    arrays = []
    for number, placed in arrays_of(arguments):
        begin = placed.start + placed.front
        arrays.append(Array(begin, begin + placed.span, number, placed.writable))
    counters = Counters()
    given = (Array * len(arrays))(*arrays)  # which ctypes would not keep alive for a field of a base class
    constants = np.frombuffer(_constants(architecture, plan, b"".join(map(bytes_of, arguments)), kernels), np.uint8)
    what = _Launch(
        grid=plan.grid,
        block=plan.block,
        arrays=given,
        array_count=len(arrays),
        code=code,
        count=len(code),
        constants=constants.ctypes.data,
        constant_bytes=constants.size,
        shared_bytes=shared_bytes,
        counters=ctypes.pointer(counters),
    )
    if message := runtime().hostcuda_machine_launch(ctypes.byref(what)).decode():
        raise Fault(f"{plan.symbol}, machine code for {architecture}: {message}")
    return counters
