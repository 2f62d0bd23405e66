"""Executes a plan's machine code on the CPU: what a GPU's warps would do, instruction by instruction.

NVRTC compiles the plan for an architecture, nvdisasm lists its instructions, this module reads them, and
host/machine.cpp executes them, 32 lanes at a time. So every count is of what is really run: the
instructions that are issued, whatever the compiler unrolled, predicated or moved, and what each warp asks of global
memory. How long that takes is no question here.

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
from gpufold.gpu.variants.moves import WIDEST_WORD

from . import cubin
from .build import KERNELS, build_runtime
from .execute import Argument, arrays_of, bring_back, bytes_of, launches_of, prepared
from .memory import Fault, NDArray

NOTHING, VECTOR, UNIFORM, IMMEDIATE, CONSTANT = range(5)
NEGATIVE, ABSOLUTE, INVERTED = 1, 2, 4
ZERO_REGISTER, TRUE = 255, 7
GLOBAL, SHARED, LOCAL = range(3)

COMPILERS_BANK = 1 << 16
"""Where bank 2, numbers that the compiler put there, begins in the constants; bank 0 is smaller."""

STACK_BYTES = 4096
"""Of a thread, for spilled registers."""


class Unknown(Exception):
    """An instruction whose meaning this module does not know; the message is its text."""


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


class _Array(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("writable", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class Accesses(ctypes.Structure):
    """Of one kind to global memory, in requests: what one instruction of one warp asks for is one."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("requests", "bytes", "sectors"))


class Counters(ctypes.Structure):
    """What a launch did; instructions are a warp's."""

    _fields_ = (
        *((name, Accesses) for name in ("loads", "stores", "atomics")),
        *((name, ctypes.c_uint64) for name in ("warps", "instructions")),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.POINTER(_Instruction)),
        *((name, ctypes.c_uint32) for name in ("count", "shared_bytes", "array_count", "constant_bytes")),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("constants", ctypes.c_void_p),
        ("arrays", ctypes.POINTER(_Array)),
        ("counters", ctypes.POINTER(Counters)),
        ("message", ctypes.c_void_p),
        ("message_size", ctypes.c_uint32),
    )


# ---------------------------------------------------------------------------------------------
# From a line of nvdisasm's listing to an instruction


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_runtime("machine")))
    library.hostcuda_machine_operations.restype = ctypes.c_char_p
    return library


@cache
def _operations() -> dict[str, int]:
    return {name: number for number, name in enumerate(_library().hostcuda_machine_operations().decode().split())}


SPECIAL = ("TID.X", "CTAID.X", "CTAID.Y", "CTAID.Z", "LANEID", "LTMASK", "CgaCtaId", "SRZ")

COMPARISONS = {"LT": 1, "EQ": 2, "LE": 3, "GT": 4, "NE": 5, "GE": 6, "NUM": 7, "NAN": 8}
"""Of what holds: 1 less, 2 equal, 4 greater, 8 unordered."""

ROUNDINGS = {"RN": 0, "RM": 1, "RP": 2, "RZ": 3}

CONTROL = {"EXIT": "exit", "BRA": "bra", "BSSY": "bssy", "BSYNC": "bsync", "BREAK": "breaks", "CALL": "call"}

WIDE = {"IADD": ("iadd_wide", 2), "IADD3": ("iadd_wide", 3), "MOV": ("iadd_wide", 1), "SEL": ("sel_wide", 2)}
"""Operations on integers of 64 bits, as there are from compute capability 12.0 on, and their sources."""

KNOWN_WIDE = ("IMNMX", "ISETP", "LDC", "LDCU", "SHF")
"""What else there is for 64 bits too, and is read here."""

WITHOUT_EFFECT = ("NOP", "BMOV", "YIELD", "DEPBAR", "ERRBAR", "MEMBAR", "CCTL", "WARPSYNC.ALL")
"""What changes nothing for warps that run one at a time, or (BMOV.CLEAR) only a register that the next BSSY sets."""


class _Reader:
    """One line: its operands, taken from the left."""

    def __init__(self, line: cubin.Instruction, labels: dict[str, int]) -> None:
        self.line, self.labels = line, labels
        self.base, *self.modifiers = line.name.split(".")
        self.operands = [operand.replace(".reuse", "").strip() for operand in line.operands]
        self.made = _Instruction(to=ZERO_REGISTER)
        self.made.guard = self._predicate(line.guard or "PT")
        for predicates in (self.made.to_predicate, self.made.predicate):
            for number in range(len(predicates)):
                predicates[number] = _Predicate(TRUE, 0, 0)
        self.sources = self.predicates = 0

    def unknown(self) -> Unknown:
        guard = f"@{self.line.guard} " if self.line.guard else ""
        return Unknown(f"{guard}{self.line.name} {', '.join(self.line.operands)}")

    def _predicate(self, text: str) -> _Predicate:
        found = re.fullmatch(r"(!?)(U?)P(\d|T)", text)
        if not found:
            raise self.unknown()
        return _Predicate(TRUE if found[3] == "T" else int(found[3]), bool(found[1]), bool(found[2]))

    def next_is_predicate(self) -> bool:
        return bool(self.operands) and re.fullmatch(r"!?U?P(\d|T)", self.operands[0]) is not None

    def to_register(self) -> None:
        found = re.fullmatch(r"(U?)R(\d+|Z)", self.operands.pop(0))
        if not found:
            raise self.unknown()
        self.made.uniform = bool(found[1])
        self.made.to = ZERO_REGISTER if found[2] == "Z" else int(found[2])

    def to_predicates(self, most: int = 2) -> None:
        for number in range(most):
            if self.next_is_predicate():
                self.made.to_predicate[number] = self._predicate(self.operands.pop(0))

    def from_predicates(self) -> None:
        while self.next_is_predicate():
            self.made.predicate[self.predicates] = self._predicate(self.operands.pop(0))
            self.predicates += 1

    def no_carry(self) -> None:
        """Take predicates that are not given as false."""
        for number in range(self.predicates, 3):
            self.made.predicate[number] = _Predicate(TRUE, 1, 0)

    def put(self, source: _Source) -> None:
        self.made.source[self.sources] = source
        self.sources += 1

    def take(self, count: int, *, real: bool = False, double: bool = False) -> None:
        for _ in range(count):
            self.put(self.source(self.operands.pop(0), real, double))

    def take_wide(self, count: int) -> None:
        """Take integers of 64 bits; a number is extended by zeros, and negated after that."""
        for _ in range(count):
            number = re.fullmatch(r"(-?)(0x[0-9a-f]+)", text := self.operands.pop(0))
            if not number:
                self.put(self.source(text))
                continue
            high, low = divmod(int(number[2], 0), 1 << 32)
            self.put(_Source(IMMEDIATE, 0, NEGATIVE if number[1] else 0, 0, low, high))

    def source(self, text: str, real: bool = False, double: bool = False) -> _Source:
        flags = NEGATIVE * text.startswith("-") | INVERTED * text.startswith("~")
        bare = text.lstrip("-~")
        if bare.startswith("|"):
            if double:
                raise self.unknown()
            flags, bare = flags | ABSOLUTE, bare.replace("|", "")
        if found := re.fullmatch(r"(U?)R(\d+|Z)(?:\.(H0_H0|H1_H1|B[0-3]|F32|64|X\d+|U32))?", bare):
            part = {None: 0, "H1_H1": 16, "B1": 8, "B2": 16, "B3": 24}.get(found[3], 0)
            index = ZERO_REGISTER if found[2] == "Z" else int(found[2])
            return _Source(UNIFORM if found[1] else VECTOR, index, flags, part, 0)
        if found := re.fullmatch(r"c\[0x([02])\]\[(0x[0-9a-f]+)\]", bare):
            return _Source(CONSTANT, 0, flags, 0, int(found[2], 16) + (COMPILERS_BANK if found[1] == "2" else 0))
        if real or double:
            value = np.array([float(text.replace("QNAN", "NAN"))], np.float64 if double else np.float32)
            low, *high = value.view(np.uint32).tolist()
            return _Source(IMMEDIATE, 0, 0, 0, 0 if double else low, *high)  # of a double the upper half alone
        if re.fullmatch(r"0x[0-9a-f]+|\d+", bare):
            return _Source(IMMEDIATE, 0, 0, 0, int(text.lstrip("~"), 0) % 2**32 ^ (0xFFFFFFFF if "~" in text else 0))
        raise self.unknown()

    def number(self) -> int:
        return int(self.operands.pop(0), 0)

    def mode(self, *values: int) -> None:
        for number, value in enumerate(values):
            self.made.mode[number] = value

    def has(self, *modifiers: str) -> bool:
        return any(modifier in self.modifiers for modifier in modifiers)

    def operation(self, name: str) -> None:
        self.made.operation = _operations()[name]

    # ---- groups of instructions

    def read(self) -> _Instruction:
        name, plain = self.base, self.base.removeprefix("U")
        if any(self.line.name == known or self.line.name.startswith(f"{known}.") for known in WITHOUT_EFFECT):
            self.operation("nop")
            return self.made
        if name in CONTROL or name in ("RET", "BAR", "WARPSYNC"):
            self._control()
        elif name in ("LDG", "LDS", "LDL", "STG", "STS", "STL", "RED", "REDG", "ATOM", "ATOMG"):
            self._memory()
        elif plain in WIDE and self.modifiers == ["64"]:
            self._wide(*WIDE[plain])
        else:
            reader = getattr(self, f"_{plain.lower()}", None) or getattr(self, f"_{name.lower()}", None)
            if reader is None or (self.has("64", "S64", "U64") and plain not in KNOWN_WIDE):
                raise self.unknown()
            reader()
        if self.operands:
            raise self.unknown()
        return self.made

    def _control(self) -> None:
        self.operation(CONTROL.get(self.base, self.base.lower()))
        self.from_predicates()
        if self.base in ("BSSY", "BSYNC", "BREAK"):
            self.mode(int(self.operands.pop(0).removeprefix("B")))
        if self.base in ("BRA", "CALL", "BSSY"):
            if (label := self.operands.pop(0).strip("`()")) not in self.labels:
                raise self.unknown()
            self.made.target = self.labels[label]
        if self.base == "RET":
            self.operands = [self.operands[0].split()[0]]
            self.take(1)
        if self.base == "BAR" and (not self.has("SYNC") or self.operands.pop(0) != "0x0"):
            raise self.unknown()
        if self.base == "WARPSYNC":
            self.mode(16)
            if self.operands.pop(0) != "0xffffffff":
                raise self.unknown()

    def _memory(self) -> None:
        kind, modifiers = self.base, set(self.modifiers)
        space = {"LDS": SHARED, "STS": SHARED, "LDL": LOCAL, "STL": LOCAL}.get(kind, GLOBAL)
        size = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "F64": 8, "128": 16}
        width = next((bytes_ for name, bytes_ in size.items() if name in modifiers), 4)
        atomic = kind in ("RED", "REDG", "ATOM", "ATOMG")
        self.operation("red" if atomic else "ld" if kind.startswith("LD") else "st")
        self.made.to = ZERO_REGISTER
        if kind.startswith("ATOM"):
            self.to_predicates(1)
            self.to_register()
        elif kind.startswith("LD"):
            self.to_register()
        address = re.fullmatch(
            r"(?:desc\[UR\d+\])?\[(?:(R(?:\d+|Z))(\.64|\.U32)?(?:\.X(\d+))?)?\+?(UR\d+)?\+?(-?0x[0-9a-f]+)?\]",
            self.operands.pop(0).split()[0],
        )
        if not address:
            raise self.unknown()
        register, extent, scale, uniform, offset = address.groups()
        base = self.source(register or "RZ")
        base.part = int(scale or 1).bit_length() - 1
        self.put(base)
        self.put(self.source(uniform) if uniform else _Source())
        self.made.target = int(offset or "0", 0)
        if atomic:
            if not modifiers & {"ADD", "OR"}:
                raise self.unknown()
            kind_of_value = 0 if "F32" in modifiers else 2 if "F64" in modifiers else 1
        else:
            kind_of_value = bool(modifiers & {"S8", "S16"})
        self.mode(space, width, kind_of_value, space == GLOBAL and extent != ".U32" and register is not None)
        if not kind.startswith("LD"):
            self.put(self.source(self.operands.pop(0).split()[0]))
            self.put(_Source(value="OR" in modifiers))
        self.operands = []

    def _plain(self, operation: str, count: int, *mode: int, real: bool = False, double: bool = False) -> None:
        """Read where to, so many sources, and predicates."""
        self.operation(operation)
        self.to_register()
        self.take(count, real=real, double=double)
        self.from_predicates()
        self.mode(*mode)

    def _mov(self) -> None:
        self.operands = self.operands[:2]  # behind them is the mask of lanes' bytes, always all
        self._plain("mov", 1)

    def _imad(self) -> None:
        wide, high = self.has("WIDE"), self.has("HI")
        self.operation("imad_wide" if wide else "imad_hi" if high else "imad")
        self.to_register()
        if self.next_is_predicate():
            self.to_predicates(1)
        self.take(3)
        self.from_predicates()
        carries = self.has("X")
        self.mode(*(not self.has("U32"), carries) if wide or high else (carries,))

    def _wide(self, operation: str, sources: int) -> None:
        """Read an operation on integers of 64 bits."""
        self.operation(operation)
        self.to_predicates()
        self.to_register()
        self.to_predicates()
        self.take_wide(sources)
        self.from_predicates()

    def _iadd3(self) -> None:
        self.operation("iadd3")
        self.to_register()
        self.to_predicates()
        self.take(3)
        self.from_predicates()
        self.no_carry()
        self.mode(self.has("X"))

    def _viadd(self) -> None:
        self._plain("iadd3", 2)
        self.put(_Source())
        self.no_carry()

    def _lea(self) -> None:
        self.to_register()
        self.to_predicates(1)
        self.take(2)
        if not self.has("HI"):
            self.operation("lea")
            self.mode(self.number())
            return
        self.operation("lea_hi")
        if self.has("SX32"):
            self.put(_Source())
        else:
            self.take(1)
        if self.made.source[0].flags:
            raise self.unknown()
        self.mode(self.number(), self.has("SX32"), self.has("X"))
        self.from_predicates()

    def _lop3(self) -> None:
        self.operation("lop3")
        self.to_predicates(1)
        self.to_register()
        self.take(3)
        self.mode(self.number())
        self.from_predicates()

    def _plop3(self) -> None:
        self.operation("plop3")
        self.to_predicates()
        self.from_predicates()
        self.mode(self.number(), self.number())

    def _shf(self) -> None:
        self._plain("shf", 3, self.has("R"), self.has("S32", "S64"), self.has("HI"), self.has("W"))

    def _setp(self, operation: str, compare: int, signed: bool, flush: bool) -> None:
        self.operation(operation)
        how = next((number for number, name in enumerate(("AND", "OR", "XOR")) if name in self.modifiers), None)
        if how is None:
            raise self.unknown()
        self.to_predicates()
        if operation == "isetp_wide":
            self.take_wide(2)
        else:
            self.take(2, real=operation == "fsetp", double=operation == "dsetp")
        self.from_predicates()
        self.mode(compare, signed if operation.startswith("isetp") else 0, how, flush)

    def _isetp(self) -> None:
        operation = "isetp_wide" if self.has("S64", "U64") else "isetp"
        self._setp(operation, COMPARISONS[self.modifiers[0]], not self.has("U32", "U64"), self.has("EX"))

    def _fsetp(self) -> None:
        name = self.modifiers[0]
        compare = COMPARISONS.get(name) or COMPARISONS[name.removesuffix("U")] | 8
        self._setp("fsetp" if self.base == "FSETP" else "dsetp", compare, False, self.has("FTZ"))

    _dsetp = _fsetp

    def _sel(self) -> None:
        is_real = self.base == "FSEL"
        self._plain("fsel" if is_real else "sel", 2, real=is_real)

    _fsel = _sel

    def _imnmx(self) -> None:
        if self.has("S64", "U64"):
            self._wide("imnmx_wide", 2)
            return self.mode(self.has("S64"))
        self.operation("viaddmnmx" if self.base == "VIADDMNMX" else "imnmx")
        self.to_register()
        if self.operands[:2] == ["PT", "PT"]:  # nowhere to, from compute capability 10.0 on
            self.operands = self.operands[2:]
        self.take(3 if self.base == "VIADDMNMX" else 2)
        self.from_predicates()
        self.mode(not self.has("U32"), self.has("RELU"))

    _vimnmx = _viaddmnmx = _imnmx

    def _unary(self) -> None:
        if self.base == "FLO" and not self.has("U32"):
            raise self.unknown()
        self._plain(self.base.removeprefix("U").lower(), 1, self.has("SH"))

    _iabs = _popc = _flo = _brev = _unary

    def _prmt(self) -> None:
        self._plain("prmt", 3)

    def _p2r(self) -> None:
        self.operation("p2r")
        self.to_register()
        if (which := self.operands.pop(0)) not in ("PR", "UPR"):
            raise self.unknown()
        self.take(1)
        byte = next((int(name[1]) for name in self.modifiers if re.fullmatch(r"B[0-3]", name)), 0)
        self.mode(self.number(), 8 * byte, which == "UPR")

    _up2ur = _p2r

    def _r2p(self) -> None:
        self.operation("r2p")
        self.operands.pop(0)
        self.take(1)
        self.mode(self.number())

    def _s2r(self) -> None:
        self.operation("s2r")
        self.to_register()
        name = self.operands.pop(0).removeprefix("SR_")
        if name not in SPECIAL:
            raise self.unknown()
        self.mode(SPECIAL.index(name), self.base == "CS2R" and not self.has("32"))

    _s2ur = _cs2r = _s2r

    def _vote(self) -> None:
        self.operation("vote")
        if not self.next_is_predicate():
            self.to_register()
        self.made.uniform = self.base == "VOTEU"
        self.to_predicates(1)
        self.from_predicates()
        self.mode(("ANY", "ALL").index(self.modifiers[0]))

    _voteu = _vote

    def _shfl(self) -> None:
        self.operation("shfl")
        self.to_predicates(1)
        self.to_register()
        self.take(3)
        self.mode(("IDX", "UP", "DOWN", "BFLY").index(self.modifiers[0]))

    def _rounding(self) -> int:
        return next((ROUNDINGS[name] for name in self.modifiers if name in ROUNDINGS), 0)

    def _i2f(self) -> None:
        if self.has("F16", "F64", "U8", "S8", "U16", "S16"):
            raise self.unknown()
        self._plain("i2f", 1, not self.has("U32"), self._rounding())

    _i2fp = _i2f

    def _f2i(self) -> None:
        if not self.has("TRUNC") or not self.has("U32"):
            raise self.unknown()
        self._plain("f2i", 1, real=True)

    def _fadd(self) -> None:
        count = 3 if self.base == "FFMA" else 2
        self._plain(self.base.lower(), count, self.has("FTZ"), self._rounding(), real=True)

    _fmul = _ffma = _fadd

    def _mufu(self) -> None:
        if self.modifiers[0] not in ("RCP", "RSQ", "RCP64H"):
            raise self.unknown()
        self._plain("mufu", 1, ("RCP", "RSQ", "RCP64H").index(self.modifiers[0]), real=True)

    def _fchk(self) -> None:
        self.operation("fchk")
        self.to_predicates(1)
        self.take(2, real=True)

    def _dadd(self) -> None:
        self._plain(self.base.lower(), 3 if self.base == "DFMA" else 2, double=True)

    _dmul = _dfma = _dadd

    def _hadd2(self) -> None:
        """Know the one that makes a float of a half, by adding a zero that changes nothing."""
        values = [operand for operand in self.operands[1:] if operand.split(".")[0] != "-RZ"]
        if not self.has("F32") or len(self.operands) != 3 or len(values) != 1:
            raise self.unknown()
        self.operation("half_to_float")
        self.to_register()
        self.put(self.source(values[0]))
        self.operands = []

    def _hfma2(self) -> None:
        """Know the one that makes a constant of two halves, by adding them to zero."""
        self.operation("mov")
        self.to_register()
        if len(self.operands) != 4 or self.operands[:2] != ["-RZ", "RZ"]:
            raise self.unknown()
        high, low = (int(np.float16(float(text)).view(np.uint16)) for text in self.operands[2:])
        self.put(_Source(IMMEDIATE, 0, 0, 0, high << 16 | low))
        self.operands = []

    def _f2fp(self) -> None:
        if not self.has("PACK_AB"):
            raise self.unknown()
        self._plain("float_to_half", 2, self.has("BF16"), real=True)

    def _f2f(self) -> None:
        wide = self.modifiers == ["F64", "F32"]
        self.operation("float_to_double" if wide else "float_to_half")
        self.to_register()
        if not wide:
            self.put(_Source())
        self.take(1, real=True)
        self.mode(self.has("BF16"))
        if not wide and self.modifiers not in (["F16", "F32"], ["BF16", "F32"]):
            raise self.unknown()

    def _r2ur(self) -> None:
        self._plain("mov", 1)

    def _ldc(self) -> None:
        self.operation("ldc")
        self.to_register()
        found = re.fullmatch(r"c\[0x([02])\]\[(U?R(?:\d+|Z))?\+?(0x[0-9a-f]+)?\]", self.operands.pop(0))
        if not found:
            raise self.unknown()
        self.put(_Source(IMMEDIATE, 0, 0, 0, int(found[3] or "0", 0) + (COMPILERS_BANK if found[1] == "2" else 0)))
        self.put(self.source(found[2]) if found[2] else _Source())
        self.mode(0, next((int(name) // 8 for name in self.modifiers if name in ("64", "128")), 4))
        if self.has("U8", "S8", "U16", "S16"):
            raise self.unknown()

    _ldcu = _ldc


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
    first = 0x380 if architecture >= 100 else 0x210 if architecture >= 90 else 0x160
    block, grid, stack = (0x360, 0x370, 0x37C) if architecture >= 100 else (0x0, 0xC, 0x28)
    bank = bytearray(COMPILERS_BANK)
    struct.pack_into("3I", bank, block, *plan.block)
    struct.pack_into("3I", bank, grid, *plan.grid)
    struct.pack_into("I", bank, stack, STACK_BYTES)
    bank[first : first + len(arguments)] = arguments
    return bytes(bank) + cubin.section(plan, f".nv.constant2.{plan.symbol}", architecture, kernels)


def work(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None = None,
    positions: NDArray | None = None,
    *,
    device: Device = H200,
    kernels: Path = KERNELS,
) -> list[Counters]:
    """Execute a plan's machine code for a device; arrays become what a GPU would make of them.

    Return what each launch did: those that fill scratch memory, and last the plan's own.
    """
    return [
        _run(step, arguments, cubin.architecture_of(device), kernels)
        for step, arguments in launches_of(plan, input_array, output_array, window, positions)
    ]


def _run(plan: Plan, arguments: tuple[Argument, ...], architecture: int, kernels: Path) -> Counters:
    """Execute one launch: those before it are plans of their own, which share scratch memory with it."""
    code = _code(plan.source, plan.symbol, plan.defines, architecture, kernels)
    shared_bytes = cubin.resources(plan, architecture, kernels).shared_bytes + cubin.RESERVED_SHARED_BYTES
    shared_bytes += -shared_bytes % WIDEST_WORD  # the compiler loads the last three words as four
    given = [prepared(argument) for argument in arguments]
    # An output comes second, after what is read, and scratch memory last.
    written = {1, len(given) - 2} if plan.scratch_bytes else {1}
    arrays = []
    for number, argument in enumerate(given):
        for placed in arrays_of(argument):
            begin = placed.start + placed.front
            arrays.append(_Array(begin, begin + placed.span, number in written, 0))
    counters, message = Counters(), ctypes.create_string_buffer(1024)
    constants = np.frombuffer(_constants(architecture, plan, b"".join(map(bytes_of, given)), kernels), np.uint8)
    what = _Launch(
        code,
        len(code),
        shared_bytes,
        len(arrays),
        constants.size,
        grid=plan.grid,
        block=plan.block,
        constants=constants.ctypes.data,
        arrays=(_Array * len(arrays))(*arrays),
        counters=ctypes.pointer(counters),
        message=ctypes.addressof(message),
        message_size=len(message),
    )
    _library().hostcuda_machine_launch(ctypes.byref(what))
    if message.value:
        raise Fault(f"{plan.symbol}, machine code for {architecture}: {message.value.decode()}")
    for number, argument in enumerate(given):
        bring_back(argument, number, number in written)
    return counters
