"""Random wrong arguments to every public function: each raises what it says, or returns what it should, and no more.

A call that works has one or two of its arguments replaced: by values that callers get wrong, or by the right one in a
wrong dress. Everything is drawn as code, so that a failure shows the call as one can type it.
"""

from __future__ import annotations

import array  # noqa: F401  in drawn code
import ast
import enum
import importlib
import itertools  # noqa: F401  in drawn code
import random
import re
import warnings
from contextlib import _GeneratorContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from decimal import Decimal  # noqa: F401  in drawn code
from fractions import Fraction  # noqa: F401  in drawn code
from functools import partial
from math import prod

import numpy as np
import pytest
from cases import folded  # noqa: F401  in drawn code
from cases import off_its_size as off  # noqa: F401  in drawn code
from test_arrays import Labelled as Plain  # noqa: F401  in drawn code
from test_arrays import Units

import gpufold
import gpufold.onnx
from gpufold.explanation import Explanation
from gpufold.gpu.plan import Plan

TORCH, DASK, JAX = PACKAGES = "gpufold.torch", "gpufold.dask", "gpufold.jax"
FRONTS = ["gpufold", *(pytest.param(name, marks=pytest.mark.peer(name.rpartition(".")[2])) for name in PACKAGES)]
"""The fronts that calls are drawn for."""

DRAWS, MANY, ROOM = 500, 60_000, 1 << 30
"""Calls in the usual run and in the longer one; bytes that a call may allocate: what is larger has no memory."""

THEIRS = (np.copy, np.negative)
"""The functions of a caller that `map_tiles` is given where they are right."""

MOST_OF_JAX = 1 << 20
"""Elements of a result that JAX computes here: where it has no memory it ends the process."""


class Word(str, enum.Enum):  # noqa: UP042  whose members are not what `str` says of them
    MEAN, EDGE, AUTO, DROP = "mean", "edge", "auto", "drop"


def raising(method, error=RuntimeError):
    """Return an object one of whose methods raises."""

    def fail(*given, **named):
        raise error("of the caller's own")

    return type("Raising", (), {method: fail})()


def read_only(given):
    """Return a view of an array that nobody can write into by it."""
    view = np.asarray(given).view()
    view.flags.writeable = False
    return view


def codes(text):
    """Return the expressions of a text, which lines or two spaces part."""
    return re.split("\n|  ", text.strip())


VALUES = codes("""
None  True  False  np.True_  0  1  2  -1  7  2**31  -2**31  2**32  2**53+1  2**62  2**63-1  2**63  2**64  2**70
-2**70  1.0  2.5  float("nan")  float("inf")  -0.0  1j  ""  "auto"  "2"  "hann"  "mean"  "edge"  "even"  "gather"
"sum\\0"  "f4"  ">f8"  "M8[s]"  "nonsense"  b"ab"  bytearray(2)  memoryview(b"ab")  array.array("i",[2,2])
Fraction(2)  Decimal(2)  ()  []  {}  set()  {1,2}  {"a":1}  frozenset((2,))  (2,)  (2,2)  (2,2,2)  [2,2]  (0,0)
(-1,1)  (2**63,2)  (2**70,2**70)  (2.0,2)  (2,None)  ("2","2")  (True,2)  ((2,2),(2,2))  [[2],[2,3]]  [[]]  [[],[]]
[()]  [[0,0],[1,1]]  [[0,0],[2**63,-1]]  [[2**64,0],[0,-2**70]]  [[0,0],[0.5,1]]  [[True,False],[True,True]]
(None,)*3  [None,4]  ((2,),"f4")  ((-1,2),"f4")  (2,"f4")  range(2)  range(10**12)  iter([2,2])
(each for each in (2,2))  itertools.count()  ...  NotImplemented  object()  type  int  len  np.float32  np.dtype("f8")
slice(2)  np  gpufold  gpufold.col2im  gpufold.Stitcher  lambda:0  {}.keys()  np.array(2)  np.array(2.0)
np.array([2,2])  np.array([2.,2.])  np.array([True,True])  np.array([])  np.array([],int)  np.zeros((0,2))
np.zeros((0,2),int)  np.zeros((2,0),int)  np.array("edge")  np.array(["mean"])  np.array(["auto","sum"])
np.array([1,0])  np.array(True)  np.array(None)  np.array([None])  np.array([2,2],object)  np.empty(0,object)
np.ma.array([2,2],mask=[0,1])  np.ma.masked  np.ma.ones((2,2))  np.ma.array([[0,0],[1,1]],mask=1)  np.matrix([[2,2]])
np.array([(1,2.0)],"i4,f4")  np.rec.array([(1,2.0)],"i4,f4")  np.rec.array([2,2])  np.array([2,2],"M8[s]")
np.array([2,2],"m8[ns]")  np.array([2,2],">u8")  np.full((2,2),2**64-1,">u8")  np.full((2,2),2**64-1,"u8")
np.array([[0,0],[1,1]],">i2")  np.array([[0,0],[-2**63,2**63-1]])  np.zeros((2,2),object)  np.zeros((2,2),"?")
np.ones((2,2),"c8")  np.ones((2,2),"f2")  np.ones((2,2),"g")  np.ones((2,2))*1e300  np.full((2,2),np.nan)
np.ones((2,2),"U1")  np.array(["a"],np.dtypes.StringDType())  np.empty(0,"V0")  np.float64(2)  np.int8(2)
np.uint64(2)  np.str_("mean")  np.bytes_(b"a")  np.void(b"ab")  np.datetime64(3,"s")  np.timedelta64(3,"ns")
Word.MEAN  Word.EDGE  Word.AUTO  Word.DROP  np.ones((2,2)).view(Units)  np.array([2,2]).view(Units)
np.array([[0,0],[1,1]]).view(Units)  np.array([2,2]).view(Plain)  folded((2,2))  read_only([[0,0],[1,1]])
(np.ones(2),np.ones(2))  [np.ones(2),np.ones(3)]  (np.ones(2),None)  (np.ma.ones(2),np.ones(2))  ("ha","nn")
[1.0,2.0]  (np.ones(2).view(Units),)*2  [np.ma.array([0,0],mask=1)]*2  [np.array([0,0]).view(Units)]*2
(np.matrix([1,1]),)*2  raising("__index__")  raising("__index__",ValueError)  raising("__iter__")  raising("__len__")
raising("__array__")  raising("__array__",TypeError)  raising("__bool__")  raising("__eq__")  raising("__hash__")
raising("__repr__")  raising("__str__")  raising("tolist")  raising("__array_interface__")  raising("__fspath__")
raising("__getitem__")  torch.ones(2,2)  torch.ones(2,2).to_sparse()  torch.ones(2,2,dtype=torch.complex64)
torch.ones(2,2,device="meta")
""")
"""What callers get wrong."""

DRESSED = {
    "array": codes("""
{0}.tolist()  {0}[...,:0]  {0}[:0]  {0}[None]  {0}[0]  {0}[...,0]  np.asfortranarray({0})  {0}[...,::-1]  off({0})
read_only({0})  folded({0}.shape,{0}.dtype)  {0}.astype(object)  {0}.astype("?")  {0}.astype("f2")  {0}.astype("f8")
{0}.astype("c16")  {0}.astype("i4")  {0}.astype("u8")  {0}.astype(">f4")  {0}.astype(">u8")  {0}.astype("U3")
{0}.astype("S3")  {0}.astype("M8[s]")  {0}.astype("g")  {0}.astype(np.dtypes.StringDType())  np.ma.array({0})
np.ma.array({0},mask=True)  {0}.view(Units)  {0}.view(Plain)  {0}.astype("f4").view("i4,i4")  {0}.view("V1")
np.matrix({0}.ravel())  {0}.view(np.recarray)  ({0},)  [{0}]  iter({0})  ({0},{0})  np.repeat({0},2,0)
np.repeat({0},2,-1)  memoryview({0})  {0}.T  {0}*np.inf  -{0}
"""),
    "sizes": codes("""
{0}[:1]  {0}[1:]  {0}+(1,)  list({0})  iter({0})  np.array({0})  np.array({0},">u8")  np.array({0},"m8[ns]")
np.array({0},float)  np.array({0}).view(Units)  np.array({0},object)  [{0}]  {0}*20  tuple(map(float,{0}))
tuple(map(str,{0}))  tuple(map(np.int8,{0}))  tuple(-each for each in {0})  tuple(each+1 for each in {0})
(*{0}[:-1],2**62)  (*{0}[:-1],0)  {0}*5000  {0}[::-1]  dict.fromkeys({0})
"""),
}
"""The right arguments in a wrong dress."""

CALLS = """
gpufold.col2im(data=np.ones((2, 12, 20), "f4"), output_size=(5, 6), kernel_size=(2, 2), strides=(1, 1),
    dilations=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), reduction="mean", window=np.ones((2, 2), "f4"), dtype="f4",
    accumulate=False, out=np.ones((2, 3, 5, 6), "f4"), variant="auto", deterministic=True)
gpufold.im2col(image=np.ones((2, 3, 5, 6), "f4"), kernel_size=(2, 2), strides=(1, 1), dilations=(1, 1),
    pads_begin=(0, 0), pads_end=(0, 0), window=np.ones((2, 2), "f4"), out=np.ones((2, 12, 20), "f4"), variant="auto")
gpufold.array_to_blocks(array=np.ones((3, 8, 9), "f4"), block_shape=(2, 3), strides=(2, 3),
    window=np.ones((2, 3), "f4"), last="over", out=np.ones((3, 4, 3, 2, 3), "f4"), variant="auto")
gpufold.blocks_to_array(blocks=np.ones((3, 4, 4, 2, 2), "f4"), output_shape=(3, 8, 8), block_shape=(2, 2),
    strides=(2, 2), reduction="mean", window=np.ones((2, 2), "f4"), dtype="f4", accumulate=False, last="over",
    fill_value=0, out=np.ones((3, 8, 8), "f4"), variant="auto", deterministic=True)
gpufold.batch_to_space(data=np.ones((12, 4, 5), "f4"), block_shape=(1, 2, 3), crops_begin=(0, 1, 0),
    crops_end=(0, 0, 2), out=np.ones((2, 7, 13), "f4"), variant="auto")
gpufold.space_to_batch(data=np.ones((2, 7, 13), "f4"), block_shape=(1, 2, 3), pads_begin=(0, 1, 0),
    pads_end=(0, 0, 2), out=np.ones((12, 4, 5), "f4"), variant="auto")
gpufold.add_blocks(array=np.ones((3, 8, 9), "f4"), blocks=np.ones((2, 3, 2, 2), "f4"),
    positions=np.array([(0, 0), (3, -1)]), window=np.ones((2, 2), "f4"), weights=np.ones(2, "f4"), variant="auto",
    deterministic=True, out=np.ones((3, 8, 9), "f4"))
gpufold.add_blocks_(array=np.ones((3, 8, 9), "f4"), blocks=np.ones((2, 3, 2, 2), "f4"),
    positions=np.array([(0, 0), (3, -1)]), window=np.ones((2, 2), "f4"), weights=np.ones(2, "f4"), variant="auto",
    deterministic=True, weight_out=np.ones((8, 9), "f4"))
gpufold.take_blocks(array=np.ones((3, 8, 9), "f4"), positions=np.array([(0, 0), (3, -1)]), block_shape=(2, 2),
    window=np.ones((2, 2), "f4"), mode="constant", out=np.ones((2, 3, 2, 2), "f4"), variant="auto")
gpufold.average(numerator=np.ones((3, 8, 9), "f4"), weight=np.ones((8, 9), "f4"), out=np.ones((3, 8, 9), "f4"),
    variant="auto")
gpufold.grid_positions(size=(8, 9), block_shape=(2, 3), strides=(2, 2), last="shift")
gpufold.Stitcher(output_shape=(3, 8, 9), block_shape=(2, 2), window=np.ones((2, 2), "f4"), reduction="mean",
    slabs=False)
stitcher.add(blocks=np.ones((2, 3, 2, 2), "f4"), positions=np.array([(3, -1), (4, 2)]),
    window=np.ones((2, 2), "f4"), weights=np.ones(2, "f4"))
gpufold.map_tiles(function=np.copy, array=np.ones((3, 8, 9), "f4"), block_shape=(2, 4), strides=(2, 3),
    window=np.ones((2, 4), "f4"), batch=2, last="shift", mode="edge", reduction="mean", fill_value=0,
    finish=np.negative, out=np.ones((3, 8, 9), "f4"), resume=None)
gpufold.set_num_threads(count=2)
gpufold.autotune(timeout=1.0)
gpufold.variants(operation="col2im")
gpufold.explain(operation="col2im", data=((2, 12, 20), "f4"), output_size=(5, 6), kernel_size=(2, 2), strides=(1, 1),
    dilations=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), reduction="mean", window=np.ones((2, 2), "f4"), dtype="f4",
    accumulate=False, variant="auto", deterministic=True, device="A100")
gpufold.explain(operation="add_blocks", data=((3, 8, 9), "f4"), blocks=np.ones((2, 3, 2, 2), "f4"),
    positions=((2, 2), "i8"), window=np.ones((2, 2), "f4"), weight_out=((8, 9), "f4"), variant="auto",
    deterministic=True)
gpufold.warmup(operation="col2im", data=((2, 12, 20), "f4"), output_size=(5, 6), kernel_size=(2, 2), strides=(1, 1),
    pads_begin=(0, 0), reduction="mean", window=np.ones((2, 2), "f4"), dtype="f4", accumulate=False, variant="auto")
gpufold.onnx.col2im(input=np.ones((2, 12, 20), "f4"), image_shape=(5, 6), block_shape=(2, 2), dilations=(1, 1),
    pads=(0, 0, 0, 0), strides=(1, 1), out=np.ones((2, 3, 5, 6), "f4"), variant="auto", deterministic=True)
"""
OF_TORCH = """
gpufold.torch.fold(input=torch.ones(2, 12, 20), output_size=(5, 6), kernel_size=(2, 2), dilation=(1, 1),
    padding=(0, 0), stride=(1, 1), window=torch.ones(2, 2), reduction="mean", fill_value=0)
gpufold.torch.unfold(input=torch.ones(2, 3, 5, 6), kernel_size=(2, 2), dilation=(1, 1), padding=(0, 0), stride=(1, 1),
    window=torch.ones(2, 2))
gpufold.torch.Fold(output_size=(5, 6), kernel_size=(2, 2), dilation=(1, 1), padding=(0, 0), stride=(1, 1),
    window=torch.ones(2, 2), reduction="mean", fill_value=0)
gpufold.torch.Unfold(kernel_size=(2, 2), dilation=(1, 1), padding=(0, 0), stride=(1, 1), window=torch.ones(2, 2))
"""
OF_DASK = """
gpufold.dask.stitch(blocks=dask.array.from_array(np.ones((2, 3, 2, 2), "f4")), positions=np.array([(3, -1), (4, 2)]),
    output_shape=(3, 8, 9), window=np.ones((2, 2), "f4"), reduction="mean", chunks=(4, 9))
"""


def calls_in(text):
    """Return the functions that a text calls, each with its arguments by name, as code."""
    calls = [each.value for each in ast.parse(text).body]
    return [(ast.unparse(call.func), {each.arg: ast.unparse(each.value) for each in call.keywords}) for call in calls]


NAMES = ("col2im", "im2col", "array_to_blocks", "blocks_to_array", "add_blocks", "take_blocks", "average")
NAMES += ("batch_to_space", "space_to_batch")


MAKES = {
    "gpufold": "{}",
    TORCH: "torch.from_numpy({})",
    DASK: "dask.array.from_array({})",
    JAX: "jax.numpy.asarray({})",
}
"""How each front's arrays are made of NumPy's."""


def calls_of(front, *without, names=NAMES, kept=()):
    """Return calls of a front's functions: those of NumPy, of its own arrays and without some arguments."""
    return [
        (
            f"{front}.{name}",
            {
                each: MAKES[front].format(value) if value.startswith("np.ones") and each not in kept else value
                for each, value in call.items()
                if each not in ("out", "accumulate", *without)
            },
        )
        for name in names
        for function, call in calls_in(CALLS)
        if function == f"gpufold.{name}"
    ]


OF_CHUNKS = ("window", "weights")
"""Of the library of a dask array's chunks."""
TABLE = {
    "gpufold": calls_in(CALLS),
    TORCH: calls_in(OF_TORCH) + calls_of(TORCH, "dtype", names=(*NAMES, "add_blocks_")),
    DASK: calls_in(OF_DASK) + calls_of(DASK, kept=OF_CHUNKS),
    JAX: calls_of(JAX),
}

REQUIRED = {
    *("data", "image", "array", "blocks", "positions", "numerator", "weight", "input", "operation", "size", "count"),
    *("output_size", "output_shape", "image_shape", "kernel_size", "block_shape", "strides"),
}
"""Arguments that a call keeps; others come and go."""

RESULTS = {
    "gpufold.set_num_threads": type(None),
    "gpufold.autotune": _GeneratorContextManager,
    "gpufold.variants": tuple,
    "gpufold.explain": Explanation,
    "gpufold.warmup": Plan,
    "stitcher.add": type(None),
}


def drawn(rng, call):
    """Draw wrong arguments in place of some that are right, as code."""
    keeps = {each for each in call if each in REQUIRED or rng.random() < 0.4}
    wrong, arguments = rng.sample(list(call), min(len(call), rng.choice((1, 1, 2)))), {}
    for each, right in call.items():
        if each in wrong:
            kind = "array" if "np." in right else "sizes" if right[:1] == "(" and "'" not in right else None
            dressed = kind and rng.random() < 0.5
            arguments[each] = rng.choice(DRESSED[kind]).format(f"({right})") if dressed else rng.choice(VALUES)
        elif each in keeps:
            arguments[each] = right
    if rng.random() < 0.02:
        arguments[rng.choice(("stride", "out_", "normalize"))] = rng.choice(VALUES)
    if rng.random() < 0.02:
        del arguments[rng.choice(list(arguments))]
    return arguments


def begins_well(name, message):
    """Return whether a message begins with a function's name, `name: ` or, in Python's own words, `name() `."""
    *_, last = name.split(".")
    known = {"add": ["Stitcher.add"]}.get(last, [last, f"{last}.__init__"])
    if name == "gpufold.onnx.col2im":
        known.append("onnx.col2im")
    if last in ("explain", "warmup"):
        known += ["col2im", "add_blocks"]  # whose errors are those of the call
    return message.startswith(tuple(each + end for each in known for end in (": ", "() ")))


WORDS = ("reduction", "mode", "last", "variant", "operation")
FLAGS = ("accumulate", "deterministic", "slabs")


def is_what_it_seems(value):
    """Return whether an argument means what a call that takes it reads: no mask is lost, and no unit."""
    if isinstance(value, list | tuple):
        return all(map(is_what_it_seems, value))
    return not isinstance(value, np.ma.MaskedArray | np.matrix | Units)


def state_of(value):
    """Return the bits of what a call must leave as it was."""
    if isinstance(value, gpufold.Stitcher):
        result = deepcopy(value).result()
        start, rows = result if isinstance(result, tuple) else (0, result)
        return start, rows.tobytes(), value.progress if value._slabs else None
    return np.asarray(value).tobytes() if isinstance(value, np.ndarray) else None


def what_is_wrong(called, arguments, names, stitcher):
    """Make a call by the code of its arguments; return what it did that it must not, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        try:
            arguments = {name: eval(value, names) for name, value in arguments.items()}
        except Exception:  # this dress does not fit
            return None
    if any(callable(value) and value not in THEIRS for value in arguments.values()):
        return None  # what a caller's function raises, or does to arrays, is the caller's
    watched = [*arguments.values(), *([stitcher] if called == "stitcher.add" else [])]
    before = [state_of(value) for value in watched]
    try:
        function = partial(eval(called, names), **arguments)
        if "jax" in names and prod(names["jax"].eval_shape(lambda: function()).shape) > MOST_OF_JAX:
            return None
        result = function()
        if called == "gpufold.autotune":
            with result:
                pass
    except (TypeError, ValueError, MemoryError) as error:
        message = str(error)
        if not begins_well(called, message):
            return f"raises {type(error).__name__} that does not begin with the function: {message[:300]}"
        if len(message) > 4000:
            return f"raises {type(error).__name__} of {len(message)} characters"
        if [state_of(value) for value in watched] != before:
            return f"changes something though it raises {type(error).__name__}: {message[:300]}"
        return None
    except Exception as error:
        if called == "gpufold.warmup" and (isinstance(error, ImportError) or "cupy" in type(error).__module__):
            return None  # there is nothing to compile for
        return f"raises {type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"
    other = [name for name, value in arguments.items() if not is_what_it_seems(value)]
    if other:
        return f"takes {other[0]} for what it is not"
    of_class = not called.rpartition(".")[2].islower()
    expected = eval(called, names) if of_class else RESULTS.get(called, names["kind"])
    if type(result) is not expected and not (
        isinstance(result, expected) and any(result is value for value in arguments.values())
    ):
        return f"returns a {type(result)}"
    return None


@contextmanager
def little_memory():
    """Let no call allocate gigabytes: there is no memory for them."""
    try:
        import resource
    except ImportError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError, ValueError), open("/proc/self/statm") as pages:
        resource.setrlimit(resource.RLIMIT_AS, (int(pages.read().split()[0]) * 4096 + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def names_of(front):
    """Return the names that drawn code of a front knows, and `kind`, that of its results."""
    importlib.import_module(front)
    package = front.rpartition(".")[2]
    names = dict(globals()) | {package: importlib.import_module(package)}
    return names | {"kind": type(eval(MAKES[front].format("np.ones(1)"), names))}


def failures_of(front, draws, seed):
    """Draw calls of a front; return those that fail, as code, each with what it did."""
    rng, names, failures = random.Random(seed), names_of(front), {}
    with nullcontext() if front == "gpufold.jax" else little_memory(), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)  # JAX's, of 64 bits that it lacks
        for _ in range(draws):
            name, call = rng.choice(TABLE[front])
            arguments, names["stitcher"] = drawn(rng, call), None
            if name == "stitcher.add":
                names["stitcher"] = gpufold.Stitcher((3, 8, 9), (2, 2), slabs=rng.random() < 0.5)
                names["stitcher"].add(np.ones((1, 3, 2, 2), np.float32), [(2, 2)])
            wrong = what_is_wrong(name, arguments, names, names["stitcher"])
            gpufold.set_num_threads(None)
            if wrong:
                code = ", ".join(f"{each}={value}" for each, value in arguments.items())
                failures.setdefault(wrong[:90], f"{name}({code})\n    {wrong}")
    return failures


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("draws", [DRAWS, pytest.param(MANY, marks=pytest.mark.many)])
def test_a_wrong_call_says_so_and_leaves_everything_as_it_was(front, draws, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a word may be taken for the name of a file
    seed = random.randrange(1 << 32)
    draws = draws // 4 if front == JAX else draws  # which compiles for every new shape
    failures = failures_of(front, draws, seed)
    assert not failures, f"of {draws} calls, seed {seed}:\n" + "\n".join(failures.values())


def made(name, call, names):
    """Return a function and the right arguments of its call, of arrays of their own."""
    names["stitcher"] = gpufold.Stitcher((3, 8, 9), (2, 2))
    return eval(name, names), {each: eval(value, names) for each, value in call.items()}


@pytest.mark.parametrize("front", FRONTS)
def test_an_option_is_a_word_or_true_or_false_and_nothing_that_looks_like_one(front):
    names = names_of(front)
    for name, call, option in [(*each, option) for each in TABLE[front] for option in each[1]]:
        if option not in (*WORDS, *FLAGS):
            continue
        function, arguments = made(name, call, names)
        value, before = arguments[option], [*map(state_of, arguments.values())]
        wrong = [np.array(value), np.array([value]), np.array([value, value]), [value], (value,), {value}, None, 1, 0]
        wrong += [1.0, np.ma.array([value]), np.array([value], object), b"mean", object()]
        wrong += ["True", "no", ""] if option in FLAGS else [True, False, np.bytes_(b"mean"), np.float64("nan")]
        for each in wrong:
            with pytest.raises(TypeError, match=f": {option} must be (a str|True or False)") as caught:
                function(**arguments | {option: each})
            assert begins_well(name, str(caught.value))
        assert [*map(state_of, arguments.values())] == before
        if name == "gpufold.warmup":
            continue
        same = [np.bool(value)] if option in FLAGS else [np.str_(value), enum.Enum("Same", {"it": value}, type=str).it]
        results = []
        for each in (value, *same):
            function, arguments = made(name, call, names)
            results.append(function(**arguments | {option: each}))
        for result in results[1:]:
            if hasattr(result, "shape"):
                np.testing.assert_array_equal(result, results[0])
            elif isinstance(result, str | tuple | Explanation):
                assert result == results[0]


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyError, TypeError])
@pytest.mark.parametrize("method", ["__index__", "__iter__", "tolist", "__array__", "__repr__"])
def test_what_an_argument_itself_raises_is_the_cause(method, error):
    bad, picture = raising(method, error), np.ones((3, 8, 9), np.float32)
    with pytest.raises((TypeError, ValueError), match=r"^take_blocks: positions must be "):
        gpufold.take_blocks(picture, bad, 2)
    with pytest.raises(TypeError, match=r"^take_blocks: block_shape must be ") as caught:
        gpufold.take_blocks(picture, [(0, 0)], bad)
    if method in ("__index__", "__iter__"):
        assert type(caught.value.__cause__) is error
