"""Arrays of every kind through the functions of gpufold: the same kind comes back, with the bits of the definition."""

from __future__ import annotations

import gc
import re
import weakref
from contextlib import nullcontext
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import definition
import numpy as np
import pytest
from cases import DTYPES, INEXACT, WIDENINGS, assert_same_bits, off_its_size, values
from fronts import BEYOND, EMPTY, EVERY, RIGHT, as_array, as_tensor, call_by, calls_in, in_dtypes, x64
from processes import python
from test_arrays import FAR
from test_errors import BAD_CALLS, describe, is_of_any_kind

import gpufold
from gpufold.calls import MODES

NARROW = [dtype for dtype in INEXACT if dtype.name not in ("float64", "complex128")]
"""Which JAX has by default."""

POSITIONS, WINDOW = [(0, -1), (2, 1), (5, 6)], np.float32([[1, 2, 1], [2, 0.5, 3]])


def by(module, function, **options):
    """Return what makes arrays by a function of a module, which is imported then."""
    return lambda array: getattr(import_module(module), function)(array, **options)


KINDS = {
    "numpy": SimpleNamespace(to=lambda array: array.copy(), back=lambda array: array, marks=()),
    "cupy": SimpleNamespace(to=by("cupy", "asarray"), back=lambda array: array.get(), marks=pytest.mark.gpu),
    "torch": SimpleNamespace(to=as_tensor, back=as_array, marks=pytest.mark.peer("torch")),
    "jax": SimpleNamespace(to=by("jax.numpy", "asarray"), back=np.asarray, marks=pytest.mark.peer("jax")),
    "dask": SimpleNamespace(
        to=by("dask.array", "from_array", chunks=2),
        back=lambda array: array.compute(scheduler="synchronous"),
        marks=pytest.mark.peer("dask"),
    ),
}
ARRAYS = ("numpy", "cupy")
ARGUMENTS = ("data", "image", "blocks", "array", "numerator", "weight", "weight_out", "window", "weights", "positions")
OF_CHUNKS = ("window", "weights", "positions")
"""What NumPy's chunks of a dask array have of NumPy."""


def kinds(*names, argument="kind"):
    return pytest.mark.parametrize(argument, [pytest.param(name, marks=KINDS[name].marks) for name in names])


every_kind = kinds(*KINDS)
every_function = pytest.mark.parametrize("name", RIGHT)


def converted(kind, value, name):
    """Return an argument for arrays of a kind: what is no array, a size above all, is as it is."""
    if name not in ARGUMENTS or (kind == "dask" and name in OF_CHUNKS):
        return value
    if isinstance(value, tuple | list):
        return type(value)([converted(kind, each, name) for each in value])
    return KINDS[kind].to(value) if isinstance(value, np.ndarray) else value


def given_of(call, arrays, kind):
    """Return the arrays of a call in a kind; windows for chunks of NumPy are NumPy's."""
    kept = len(call.numbers) if kind == "dask" and call.operation != "average" else len(arrays)
    return [*map(KINDS[kind].to, arrays[:kept]), *arrays[kept:]]


def called(name, kind):
    """Return the arguments of a call for arrays of a kind."""
    return {key: converted(kind, value, key) for key, value in RIGHT[name].items()}


SOME = {"jax": pytest.mark.some(23, all=11)}
"""Of JAX's calls fewer are tested, for it compiles each."""
MAPPED = {"torch": pytest.mark.some(7, all=2), "jax": pytest.mark.some(23, all=8)}
"""The kinds whose calls can be mapped."""


@pytest.mark.parametrize(
    ("call", "dtype", "kind"),
    [
        pytest.param(
            *(call, dtype, kind),
            marks=[KINDS[kind].marks, SOME.get(kind, pytest.mark.some(7, all=3))],
            id=f"{call.name}-{dtype}-{kind}",
        )
        for kind in ("cupy", "torch", "jax", "dask")  # test_gpu.py has the other dtypes of CuPy's
        for call, dtype in calls_in(DTYPES if kind != "cupy" else [np.dtype(np.float32)], [*EVERY, *BEYOND, *EMPTY])
    ],
)
def test_every_call_has_the_bits_of_the_numpy_path(call, dtype, kind):
    it, arrays = KINDS[kind], call.arrays(dtype)
    with x64(True) if kind == "jax" else nullcontext():
        given = given_of(call, arrays, kind)
        got, want = call(*given), call(*(array.copy() for array in arrays))
        assert type(got) is type(given[0])
        assert_same_bits(it.back(got), want)
        for each, array in zip(given, arrays, strict=True):  # which nothing is written into
            assert_same_bits(it.back(each) if type(each) is type(got) else each, array)
        if kind == "jax":
            import jax

            assert_same_bits(it.back(jax.jit(call)(*given)), want)
        if kind == "torch":
            assert got.is_contiguous()
            if dtype in INEXACT:
                learning = [each.requires_grad_() for each in given[: call.differentiable]]
                assert_same_bits(it.back(call(*learning, *given[call.differentiable :])), want)


@kinds("torch", "jax", "dask")
@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS)
@pytest.mark.parametrize("name", ["col2im", "blocks_to_array", "add_blocks", "add_blocks-full"])
def test_sums_may_be_wider_than_what_is_summed(name, narrow, wide, kind):
    call = call_by(name)
    if call.weights and np.dtype(wide) not in INEXACT:
        return
    arrays = call.arrays(narrow)
    if call.operation == "add_blocks":
        arrays[0] = arrays[0].astype(wide)
    else:
        call = call.with_options(dtype=wide)
    with x64(True) if kind == "jax" else nullcontext():
        got = call(*given_of(call, arrays, kind))
        assert_same_bits(KINDS[kind].back(got), call(*(array.copy() for array in arrays)))


@every_kind
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("window", [None, WINDOW, (WINDOW[:, 0], WINDOW[0])], ids=["none", "full", "separable"])
def test_blocks_may_have_weights_of_their_own(kind, dtype, window):
    it, array, blocks = KINDS[kind], values((2, 6, 7), dtype), values((3, 2, 2, 3), dtype, 1)
    wide, real, own = definition.sum_dtype(dtype), definition.weight_dtype(dtype), np.float32([0.5, 3, -1.25])
    axes = window if isinstance(window, tuple) else (np.ones((2, 3)) if window is None else window,)
    each = reduce(np.multiply.outer, [weights.astype(real) for weights in (own, *axes)])
    with np.errstate(all="ignore"):
        terms = definition.scaled(blocks.astype(wide), np.multiply, each[:, None])
    want = definition.add_blocks(array.astype(wide), terms, POSITIONS).astype(dtype)
    options = {"window": converted(kind, window, "window"), "weights": converted(kind, own, "weights")}
    assert_same_bits(it.back(gpufold.add_blocks(it.to(array), it.to(blocks), POSITIONS, **options)), want)
    if kind in (*ARRAYS, "torch"):
        weight = values((6, 7), real, 3)
        sums, total = it.to(array), it.to(weight)
        gpufold.add_blocks_(sums, it.to(blocks), POSITIONS, **options, weight_out=total)
        assert_same_bits(it.back(sums), want)
        assert_same_bits(it.back(total), definition.add_blocks(weight, each, POSITIONS))


@kinds("numpy", "cupy", "torch", "jax")
@pytest.mark.parametrize("dtype", [f"{order}{kind}{size}" for order in "<>" for kind in "iu" for size in (1, 2, 4, 8)])
def test_positions_of_every_integer_are_where_they_say(kind, dtype):
    """Also without JAX's numbers of 64 bits: what its integers cannot hold is far outside of any array."""
    it, limits = KINDS[kind], np.iinfo(dtype)
    rows = [(a, b) for a in FAR for b in (0, a) if limits.min <= a <= limits.max]
    exact, places = np.array([[min(each, 2**63 - 1) for each in row] for row in rows]), np.array(rows, dtype)
    arrays, native = [values((6, 7), np.float32), values((len(rows), 2, 3), np.float32)], places.dtype.isnative
    calls = [
        lambda picture, tiles, at: gpufold.take_blocks(picture, at, (2, 3), mode="edge"),
        lambda picture, tiles, at: gpufold.add_blocks(picture, tiles, at),
    ]
    wants = [call(*arrays, exact) for call in calls]
    for wide in (False, True) if kind == "jax" else (True,):
        with x64(wide) if kind == "jax" else nullcontext():
            lists = [rows] if max(rows) < (2**63,) else []
            given = lists if kind == "cupy" else [*lists, places, off_its_size(places)]
            made = [it.to(places)] if (native or kind == "numpy") and (wide or places.itemsize < 8) else []
            made += [it.to(places[::-1])[::-1]] if made and kind in ARRAYS else []
            compiles = made and kind not in ARRAYS and places.itemsize == 8
            programs = map(transforms_of(kind)[2], calls) if compiles else calls
            for call, program, want in zip(calls, programs, wants, strict=True):
                for at in (*given, *made):
                    assert_same_bits(it.back(call(*map(it.to, arrays), at)), want)
                for at in made:
                    assert_same_bits(it.back(program(*map(it.to, arrays), at)), want)


@kinds("cupy", "torch", "jax")
@pytest.mark.parametrize(
    ("reduction", "slabs"), [("sum", False), ("mean", False), ("mean", True), ("least_squares", True)]
)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_stitcher_gives_the_bits_of_arrays(kind, dtype, reduction, slabs):
    """Some of its batches have weights of their blocks, by which CuPy multiplies without subnormal numbers."""
    shape, block, window = (3, 9, 8), (4, 5), np.abs(values((4, 5), np.float32)) + 1
    places = gpufold.grid_positions(shape[1:], block, strides=2, last="over")
    tiles, weights, results = values((len(places), 3, *block), dtype), np.linspace(0.5, 3, 5, dtype=np.float32), []
    for it in (KINDS["numpy"], KINDS[kind]):
        given, rows = it.to(window), []
        stitcher = gpufold.Stitcher(shape, block, window=given, reduction=reduction, slabs=slabs)
        given *= 0  # of JAX's arrays a new one
        for first in range(0, len(places), 5):
            at = places[first : first + 5]  # which a GPU has no use for
            of_blocks = {"weights": it.to(weights[: len(at)])} if first % 2 else {}
            stitcher.add(it.to(tiles[first : first + 5]), at if kind == "cupy" else it.to(at), **of_blocks)
            rows += [stitcher.finished()] if slabs else []
        rows.append(stitcher.result() if slabs else (0, stitcher.result()))
        assert type(rows[-1][1]) is type(given)
        results.append([(row, it.back(slab)) for row, slab in rows])
    for (wanted, want), (row, got) in zip(*results, strict=True):
        assert row == wanted
        for each in (got, want) if kind == "cupy" else ():
            parts = each.view(each.real.dtype)
            parts[abs(parts) < np.finfo(parts.dtype).tiny] = 0
        assert_same_bits(got, want)
    for wrong, error in ((it.to(weights), ValueError), (weights[:2].tolist(), TypeError)):
        with pytest.raises(error, match=r"^Stitcher.add: weights must "):
            stitcher.add(it.to(tiles[:2]), [(9, 0), (9, 0)], weights=wrong)


@every_kind
@kinds(*KINDS, argument="other")
def test_the_first_blocks_decide_of_what_kind_a_stitcher_is(kind, other):
    if kind == other:
        return
    stitcher, tile = gpufold.Stitcher((4, 4), 2), np.ones((1, 2, 2), np.float32)
    stitcher.add(KINDS[kind].to(tile), [(0, 1)])
    with pytest.raises(TypeError, match=r"^Stitcher.add: blocks must be (a|in memory)"):
        stitcher.add(KINDS[other].to(tile), [(1, 0)])
    assert KINDS[kind].back(stitcher.result()).tolist() == [[0, 1, 1, 0]] * 2 + [[0] * 4] * 2


@pytest.mark.peer("jax")
def test_a_stitcher_takes_no_traced_arrays():
    import jax

    stitcher = gpufold.Stitcher((None, 4), 2)
    with pytest.raises(TypeError, match=r"^Stitcher.add: blocks must not be traced"):
        jax.jit(lambda tiles: stitcher.add(tiles, [(1, 0)]))(KINDS["jax"].to(np.ones((1, 2, 2))))


@pytest.mark.peer("torch")
def test_weights_of_blocks_have_gradients():
    import torch

    array, blocks, window, weights = (
        torch.rand(*shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 5), (3, 2, 3), (2, 3), (3,))
    )
    places = [(0, -1), (2, 1), (1, 4)]

    def both(array, blocks, window, weights):
        total = torch.zeros(4, 5, dtype=torch.float64)
        sums = gpufold.add_blocks_(array * 1, blocks, places, window=window, weights=weights, weight_out=total)
        return sums, total

    assert torch.autograd.gradcheck(both, (array, blocks, window, weights))
    given = array, blocks, window + 1, weights + 1
    assert torch.autograd.gradgradcheck(lambda *of: gpufold.average(*both(*of)), given)


@every_kind
@every_function
def test_what_a_kind_has_no_use_for_is_refused_unless_it_is_the_default(name, kind):
    given, function = called(name, kind), getattr(gpufold, name)
    first = next(iter(given.values()))
    package = type(first).__module__
    if kind != "dask":
        with pytest.raises(TypeError, match=f"^{name}: chunks is only for a dask.array.Array, got a {package}"):
            function(**given, chunks=2)
    if kind not in ARRAYS:
        assert_same_bits(KINDS[kind].back(function(**given, out=None)), function(**RIGHT[name]))
        with pytest.raises(TypeError, match=f"^{name}: out is only for a numpy.ndarray or cupy.ndarray, got a {kind}"):
            function(**given, out=first)


@every_kind
@kinds(*KINDS, argument="other")
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        *(("add_blocks", "blocks"), ("add_blocks", "weights"), ("average", "weight")),
        *(("take_blocks", "window"), ("im2col", "window[1]")),
    ],
)
def test_kinds_are_not_mixed(name, argument, kind, other):
    argument, axis, _ = argument.partition("[1]")
    if kind == other or (argument in OF_CHUNKS and {kind, other} == {"dask", "numpy"}):
        return
    array = RIGHT[name].get(argument, np.ones(2 if axis else {"weights": 3}.get(argument, (4, 5)), np.float32))
    wrong = KINDS[other].to(array)
    given = (converted(kind, array, argument), wrong) if axis else wrong
    with pytest.raises(TypeError, match=rf"^{name}: .*{re.escape(argument + axis)} must be a"):
        getattr(gpufold, name)(**called(name, kind) | {argument: given})


# ---- Calls that are mapped


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[KINDS[kind].marks, some]) for kind, some in MAPPED.items()])
@in_dtypes(("int32", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"), [*EVERY, *BEYOND])
def test_vmap_computes_each(call, dtype, kind):
    """Over every array at once, and over each by itself, along its first axis and its last."""
    it, (_, vmap, _), arrays = KINDS[kind], transforms_of(kind), call.arrays(dtype, lead=(3,))
    with x64(True) if kind == "jax" else nullcontext():
        got = vmap(call)(*map(it.to, arrays))
        assert_same_bits(it.back(got), np.stack([call(*row) for row in zip(*arrays, strict=True)]))
        for number, stacked in enumerate(arrays):
            given = [array[0] for array in arrays]
            want = np.stack([call(*given[:number], each, *given[number + 1 :]) for each in stacked])
            for axis in (0, -1):
                given[number] = np.moveaxis(stacked, 0, axis)
                axes = tuple(axis if other == number else None for other in range(len(arrays)))
                assert_same_bits(it.back(vmap(call, axes)(*map(it.to, given))), want)


@kinds("torch", "jax")
def test_vmap_over_positions(kind):
    it, (grad, vmap, _), rng = KINDS[kind], transforms_of(kind), np.random.default_rng(3)
    picture, tiles = (it.to(rng.standard_normal(shape, np.float32)) for shape in ((5, 4), (2, 3, 2)))
    places = it.to(rng.integers(-2, 5, (5, 2, 2)))

    def loss(picture, at, mode):
        return (gpufold.take_blocks(picture, at, (3, 2), mode=mode) ** 2).sum()

    for function in (
        lambda at: gpufold.add_blocks(picture, tiles, at),
        lambda at: gpufold.take_blocks(picture, at, (3, 2)),
        *[partial(grad(loss), picture, mode=mode) for mode in MODES],
    ):
        assert_same_bits(it.back(vmap(function)(places)), np.stack([it.back(function(at)) for at in places]))
    assert vmap(lambda at: gpufold.take_blocks(picture, at, (3, 2)))(places[:, :0]).shape == (5, 0, 3, 2)
    given = [rng.standard_normal(shape, np.float32) for shape in ((3, 5, 5, 4), (2, 3, 3, 2, 5))]
    at, axes = rng.integers(-2, 5, (5, 2, 2)), (1, 4, 0)
    window = rng.random((3, 2), np.float32)
    for weights in (None, it.to(window), (it.to(window[:, 0]), it.to(window[0]))):
        for function, arguments, of in (
            (lambda *each, w=weights: gpufold.add_blocks(*each, window=w), (*given, at), axes),
            (lambda *each, w=weights: gpufold.take_blocks(*each, (3, 2), window=w), (given[0], at), axes[::2]),
        ):
            rows = [[array.take(row, axis) for array, axis in zip(arguments, of, strict=True)] for row in range(5)]
            want = np.stack([it.back(function(*map(it.to, each))) for each in rows])
            assert_same_bits(it.back(vmap(function, of)(*map(it.to, arguments))), want)


# ---- Refusals: in the words of NumPy's path, before anything is computed

REFUSED = [call for call in BAD_CALLS if is_of_any_kind(call)]
"""Of each function what is wrong: a function and its arguments, the error, and words of its message."""


@kinds("cupy", "torch", "jax", "dask")
@pytest.mark.parametrize("refused", REFUSED, ids=describe)
def test_errors_are_those_of_the_numpy_path(refused, kind):
    (function, arguments), _, facts = refused
    if kind in ("jax", "dask") and function is gpufold.add_blocks_:
        if "weight_out" in arguments:
            return
        function = gpufold.add_blocks
    with pytest.raises((TypeError, ValueError)) as of_numpy:
        function(**arguments)
    with x64(True) if kind == "jax" else nullcontext():
        given = {name: converted(kind, value, name) for name, value in arguments.items()}
        calls = [lambda: function(**given)]
        if kind == "jax":  # also as a program is traced
            import jax

            calls.append(lambda: jax.eval_shape(calls[0]))
        if kind == "torch" and not {"bytes", "more than the"} & {*facts}:  # also without memory, which these lack
            on_meta = {name: each.to("meta") if hasattr(each, "layout") else each for name, each in given.items()}
            calls.append(lambda: function(**on_meta))
        exactly = set()
        for call in calls:
            with pytest.raises(of_numpy.type) as of_kind:
                call()
            said = [str(error.value) for error in (of_numpy, of_kind)]
            exactly.add(re.sub(r"torch.Size\(\[(.*?)\]\)", r"(\1)", said[1]))
            if kind == "torch":  # whose shapes and devices have words of their own
                said = [re.split(" got | of shape|; ", each)[0] for each in said]
                assert of_numpy.type is not ValueError or isinstance(of_kind.value, RuntimeError), "as torch's own"
            if kind == "dask":  # whose blocks are counted along each axis
                said = [re.sub(r"result of shape \(.*?\)", "result", each) for each in said]
            assert said[1] == said[0]
        assert len(exactly) == 1


@kinds("numpy", "torch", "jax", "dask")
@every_function
def test_a_kernel_of_a_gpu_serves_no_array_on_a_cpu(name, kind):
    variant = gpufold.variants(name)[0]
    one = {"torch": "tensor on the CPU", "jax": "jax.Array on the CPU"}.get(kind, "numpy.ndarray")
    with pytest.raises(gpufold.Unsupported, match=rf"^{name}: variant '{variant}' is a GPU kernel, but \w+ is a {one}"):
        getattr(gpufold, name)(**called(name, kind), variant=variant)


CONVERSIONS = {
    "numpy": "numpy.asarray",
    "torch": "torch.as_tensor",
    "jax": "jax.numpy.asarray",
    "dask": "dask.array.from_array",
}


@kinds("torch", "jax", "dask")
@every_function
def test_a_front_has_no_use_for_other_arrays(name, kind):
    first = next(iter(RIGHT[name]))
    said = rf"must be a {kind}\..*, got numpy.ndarray; convert it with {CONVERSIONS[kind]}\({first}\)"
    with pytest.raises(TypeError, match=f"^{name}: {first} {said}"):
        getattr(import_module(f"gpufold.{kind}"), name)(**RIGHT[name])


@kinds("numpy", "torch", "jax")
@pytest.mark.parametrize("window", [[0.5, 0.5], [[1.0, 1.0], [1.0, 1.0]]], ids=["one row", "two rows"])
def test_a_window_of_numbers_is_asked_to_be_an_array(window, kind):
    """Two lists of two could be the weights of a block, or those of two axes."""
    with pytest.raises(TypeError, match=rf"^im2col: window must be .*; convert it with {CONVERSIONS[kind]}\(window\)"):
        gpufold.im2col(**called("im2col", kind), window=window)


def test_no_type_is_kept():
    own = type("Own", (np.ndarray,), {"__module__": "elsewhere"})
    assert gpufold.im2col(np.ones((1, 4)).view(own), (2,)).shape == (2, 3)
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None


@pytest.mark.peer("torch")
def test_torch_compiles_what_loads_its_functions_first():
    program = """
import sys, torch, gpufold
compiled = torch.compile(gpufold.im2col, fullgraph=True, backend="aot_eager")
assert "gpufold.torch" not in sys.modules
image = torch.rand(1, 2, 8, 8)
assert torch.equal(compiled(image, (2, 2)), gpufold.im2col(image, (2, 2)))
"""
    python("-c", program)


# ---- The table of the documents


TEXT = (Path(__file__).resolve().parent.parent / "docs" / "arrays.md").read_text()
HEAD, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line[:1] == "|"
]


def fold(columns, **options):
    return gpufold.col2im(columns, (4, 4), (2, 2), **options)


def transforms_of(kind):
    """What differentiates, maps and compiles functions of JAX's arrays, or of tensors, which others are not."""
    module = pytest.importorskip("jax" if kind == "jax" else "torch", reason="torch is not installed")
    if kind == "jax":
        return module.grad, module.vmap, module.jit
    return module.func.grad, module.func.vmap, partial(module.compile, backend="aot_eager", fullgraph=True)


WORKS = {
    "gradient": lambda kind, columns, *_: transforms_of(kind)[0](lambda given: fold(given).sum())(columns),
    "vmap": lambda kind, columns, *_: transforms_of(kind)[1](fold)(columns[None]),
    "compiled": lambda kind, columns, *_: transforms_of(kind)[2](fold)(columns),
    "lazy": lambda kind, columns, *_: fold(columns).dask,
    "`out=`": lambda kind, columns, image, tile: fold(columns, out=image),
    "in place": lambda kind, columns, image, tile: gpufold.add_blocks_(image, tile, [(0, 0)]),
    "`Stitcher`": lambda kind, columns, image, tile: gpufold.Stitcher((1, 4, 4), (2, 2)).add(tile, [(0, 0)]),
}
"""What is asked of each kind: it works, or raises."""


@pytest.mark.parametrize("what", WORKS)
@every_kind
def test_the_table_of_kinds_says_what_works(kind, what):
    (row,) = [row for row in ROWS if row[0].startswith(kind)]
    arrays = (KINDS[kind].to(np.ones(shape, np.float32)) for shape in ((4, 9), (1, 4, 4), (1, 1, 2, 2)))
    try:
        WORKS[what](kind, *arrays)
        works = True
    except (TypeError, ValueError, AttributeError, RuntimeError):  # RuntimeError is torch's, of what is no tensor
        works = False
    assert row[HEAD.index(what)] == ("yes" if works else "no")
