"""Arrays of every kind through the functions of gpufold: the same kind comes back, with the bits of the definition."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import definition
import numpy as np
import pytest
from cases import DTYPES as EVERY_DTYPE
from cases import assert_same_bits, values
from test_average import definition as averaged

import gpufold
from gpufold import dispatch

BFLOAT16 = [dtype for dtype in EVERY_DTYPE if dtype.name == "bfloat16"]
DTYPES = [*map(np.dtype, ("bool", "uint8", "int32", "float16", "float32", "complex64")), *BFLOAT16]

KERNEL, POSITIONS, WINDOW = (2, 3), [(0, -1), (2, 1), (5, 6)], np.float32([[1, 2, 1], [2, 0.5, 3]])
STEPS = {"strides": (1, 2), "dilations": (2, 1), "pads_begin": (1, 0), "pads_end": (0, 2)}
SLIDING = (KERNEL, *STEPS.values())
NO_STEPS = ((1, 1), (0, 0), (0, 0))

CALLS = {
    "col2im": (
        lambda d: (values((2, 12, 12), d), (5, 6), KERNEL),
        STEPS,
        lambda x, s, k: definition.col2im(x, s, *SLIDING),
    ),
    "im2col": (lambda d: (values((2, 2, 5, 6), d), KERNEL), STEPS, lambda x, k: definition.im2col(x, *SLIDING)),
    "blocks_to_array": (
        lambda d: (values((2, 4, 4, 2, 3), d), (2, 5, 9), KERNEL),
        {"strides": (1, 2)},
        lambda x, s, k: definition.col2im(x.transpose(0, 3, 4, 1, 2).reshape(2, 6, 16), s[1:], k, (1, 2), *NO_STEPS)[
            :, 0
        ],
    ),
    "array_to_blocks": (
        lambda d: (values((2, 5, 9), d), KERNEL),
        {"strides": (1, 2)},
        lambda x, k: (
            definition.im2col(x[:, None], k, (1, 2), *NO_STEPS).reshape(2, 2, 3, 4, 4).transpose(0, 3, 4, 1, 2)
        ),
    ),
    "add_blocks": (
        lambda d: (values((2, 6, 7), d), values((3, 2, 2, 3), d, 1), POSITIONS),
        {},
        definition.add_blocks,
    ),
    "take_blocks": (lambda d: (values((2, 6, 7), d), POSITIONS, KERNEL), {}, definition.take_blocks),
    "average": (lambda d: (values((2, 6, 7), d), np.abs(values((6, 7), np.float32, 1))), {}, averaged),
    "batch_to_space": (
        lambda d: (values((12, 3, 2), d), (1, 2, 3)),
        {"crops_begin": (0, 1, 0), "crops_end": (0, 0, 2)},
        lambda data, block: definition.batch_to_space(data, block, (0, 1, 0), (0, 0, 2)),
    ),
    "space_to_batch": (
        lambda d: (values((2, 5, 4), d), (1, 2, 3)),
        {"pads_begin": (0, 1, 0), "pads_end": (0, 0, 2)},
        lambda data, block: definition.space_to_batch(data, block, (0, 1, 0), (0, 0, 2)),
    ),
}
"""For each function: its arguments for a dtype, its options, and the definition of what comes of the arguments."""


def of_torch(array):
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def from_torch(tensor):
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16[0])
    return tensor.numpy()


def of_dask(array):
    import dask.array as da

    return da.from_array(array, chunks=2)


def of_jax(array):
    import jax

    return jax.numpy.asarray(array)


KINDS = {
    "numpy": SimpleNamespace(to=lambda array: array.copy(), back=lambda array: array, needs=()),
    "torch": SimpleNamespace(to=of_torch, back=from_torch, needs=("torch",)),
    "jax": SimpleNamespace(to=of_jax, back=np.asarray, needs=("jax",)),
    "dask": SimpleNamespace(to=of_dask, back=lambda array: array.compute(scheduler="synchronous"), needs=("dask",)),
}

every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=[pytest.mark.peer(each) for each in it.needs]) for name, it in KINDS.items()]
)
every_function = pytest.mark.parametrize("name", CALLS)


def prepared(name, kind, dtype=np.float32):
    arguments, options, defined = CALLS[name]
    given = arguments(np.dtype(dtype))
    return [KINDS[kind].to(each) if isinstance(each, np.ndarray) else each for each in given], options, defined(*given)


@every_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_function
def test_every_function_takes_every_kind_and_gives_its_bits(name, dtype, kind):
    if name == "average" and dtype.kind in "biu":
        pytest.skip("there is no average of them")
    given, options, want = prepared(name, kind, dtype)
    got = getattr(gpufold, name)(*given, **options)
    assert type(got) is type(given[0])
    assert_same_bits(KINDS[kind].back(got), want)


BY_BLOCK = np.float32([0.5, 3, -1.25])


def of_blocks(dtype, window):
    """Return blocks times the weights of their elements, in the dtype of their sums, and these weights."""
    blocks, wide = values((3, 2, 2, 3), dtype, 1), definition.sum_dtype(np.dtype(dtype))
    each = BY_BLOCK.astype(definition.weight_dtype(np.dtype(dtype)))[:, None, None]
    for axis in window if isinstance(window, tuple) else () if window is None else (window,):
        each = each * axis.astype(each.dtype).reshape(
            axis.shape if axis.ndim == 2 else (-1, 1) if len(axis) == 2 else -1
        )
    each = np.broadcast_to(each, (3, 2, 3))
    with np.errstate(all="ignore"):
        return blocks, definition.scaled(blocks.astype(wide), np.multiply, each[:, None]), each


@every_kind
@pytest.mark.parametrize("dtype", [each for each in DTYPES if each.kind in "fcV"], ids=str)
@pytest.mark.parametrize("window", [None, WINDOW, (WINDOW[:, 0], WINDOW[0])], ids=["none", "full", "separable"])
def test_blocks_may_have_weights_of_their_own(kind, dtype, window):
    it, array = KINDS[kind], values((2, 6, 7), dtype)
    blocks, terms, each = of_blocks(dtype, window)
    want = definition.add_blocks(array.astype(terms.dtype), terms, POSITIONS).astype(dtype)
    to = (lambda weights: weights) if kind == "dask" else it.to  # chunks of NumPy have windows of NumPy
    given = None if window is None else tuple(map(to, window)) if isinstance(window, tuple) else to(window)
    got = gpufold.add_blocks(it.to(array), it.to(blocks), POSITIONS, window=given, weights=to(BY_BLOCK))
    assert_same_bits(it.back(got), want)
    if kind in ("numpy", "torch"):
        weight = values((6, 7), each.dtype, 3)
        sums, total = it.to(array), it.to(weight)
        gpufold.add_blocks_(sums, it.to(blocks), POSITIONS, window=given, weights=to(BY_BLOCK), weight_out=total)
        assert_same_bits(it.back(sums), want)
        assert_same_bits(it.back(total), definition.add_blocks(weight, each, POSITIONS))


@pytest.mark.parametrize(
    "kind", ["numpy", *(pytest.param(name, marks=pytest.mark.peer(name)) for name in ("torch", "jax"))]
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "least_squares"])
def test_a_stitcher_takes_weights_of_blocks(kind, reduction):
    it, window = KINDS[kind], np.abs(WINDOW)
    blocks, terms, each = of_blocks(np.float32, window)
    stitcher = gpufold.Stitcher((2, 6, 7), (2, 3), window=it.to(window), reduction=reduction)
    for part in (slice(2), slice(2, 3)):
        stitcher.add(it.to(blocks[part]), POSITIONS[part], weights=it.to(BY_BLOCK[part]))
    sums = definition.add_blocks(np.zeros((2, 6, 7), np.float32), terms, POSITIONS)
    below = each if reduction == "mean" else each * each
    weight = definition.add_blocks(np.zeros((6, 7), np.float32), below, POSITIONS)
    assert type(stitcher.result()) is type(it.to(blocks))
    assert_same_bits(it.back(stitcher.result()), sums if reduction == "sum" else averaged(sums, weight))
    with pytest.raises(ValueError, match=r"^Stitcher.add: weights must have the shape \(3,\), one for each block, got"):
        stitcher.add(it.to(blocks), POSITIONS, weights=it.to(BY_BLOCK[:2]))


@pytest.mark.peer("jax")
def test_a_stitcher_of_jax_arrays_is_neither_mixed_nor_traced():
    import jax

    stitcher, blocks = gpufold.Stitcher((None, 4), 2, window=of_jax(np.ones((2, 2), np.float32))), np.ones((1, 2, 2))
    stitcher.add(of_jax(blocks), of_jax(np.array([[0, 1]])))
    begin, slab = stitcher.finished()
    assert (begin, slab.shape, isinstance(slab, jax.Array)) == (0, (0, 4), True)
    with pytest.raises(TypeError, match=r"^Stitcher.add: blocks must be a jax.Array, got numpy.ndarray"):
        stitcher.add(blocks, [(1, 0)])
    with pytest.raises(TypeError, match=r"^Stitcher.add: blocks must not be traced"):
        jax.jit(lambda tiles: stitcher.add(tiles, [(1, 0)]))(of_jax(blocks))
    assert stitcher.result()[1].tolist() == [[0, 1, 1, 0]] * 2


@every_kind
def test_weights_of_blocks_that_do_not_fit_are_refused(kind):
    it = KINDS[kind]
    to = (lambda weights: weights) if kind == "dask" else it.to
    given = it.to(np.zeros((6, 7), np.float32)), it.to(np.ones((3, 2, 3), np.float32)), POSITIONS
    for wrong, error in ((BY_BLOCK[:2], ValueError), (BY_BLOCK[:, None], ValueError), (BY_BLOCK > 0, TypeError)):
        with pytest.raises(error, match=r"^add_blocks: weights must "):
            gpufold.add_blocks(*given, weights=to(wrong))
    with pytest.raises(TypeError, match=r"^add_blocks: weights must be a"):
        gpufold.add_blocks(*given, weights=BY_BLOCK.tolist())
    counts = it.to(np.zeros((6, 7), np.int32)), it.to(np.ones((3, 2, 3), np.int32)), POSITIONS
    with pytest.raises(TypeError, match=r"^add_blocks: weights need blocks of floats"):
        gpufold.add_blocks(*counts, weights=to(BY_BLOCK))


def test_weights_of_blocks_do_not_lose_what_they_cover():
    """Their products with a window are counted as they are summed, as those of a window are."""
    sums, weight, window = np.zeros(4, np.float32), np.zeros(4, np.float32), np.float32([1e-30, 1, 1e-30])
    blocks = np.full((2, 3), 5, np.float32)
    gpufold.add_blocks_(
        sums, blocks, [(0,), (1,)], window=window, weights=np.float32([1e-30, 1e-20]), weight_out=weight
    )
    np.testing.assert_allclose(gpufold.average(sums, weight), 5, rtol=1e-6)


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

    torch.autograd.gradcheck(both, (array, blocks, window, weights))


@every_kind
@every_function
def test_what_a_kind_has_no_use_for_is_refused_unless_it_is_the_default(name, kind):
    given, options, want = prepared(name, kind)
    function = getattr(gpufold, name)
    if kind != "dask":
        with pytest.raises(
            TypeError, match=f"^{name}: chunks is only for a dask.array.Array, got a {type(given[0]).__module__}"
        ):
            function(*given, **options, chunks=2)
    if kind != "numpy":
        assert_same_bits(KINDS[kind].back(function(*given, **options, out=None)), want)
        with pytest.raises(TypeError, match=f"^{name}: out is only for a numpy.ndarray or cupy.ndarray, got a {kind}"):
            function(*given, **options, out=given[0])
    with pytest.raises(TypeError, match=f"^{name}: unexpected keyword .colour.; the arguments are "):
        function(*given, **options, colour=1)


@every_kind
@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("name", ["add_blocks", "average", "take_blocks"])
def test_kinds_are_not_mixed(name, kind, other):
    if kind == other or any(find_spec(each) is None for each in KINDS[other].needs):
        pytest.skip("they are of one kind")
    given, options, _ = prepared(name, kind)
    if name == "take_blocks":
        options = {"window": KINDS[other].to(WINDOW)}
        if kind == "dask" and other == "numpy":
            pytest.skip("a dask array's window is one of its chunks' library")
    else:
        given[1] = prepared(name, other)[0][1]
    with pytest.raises(TypeError, match=rf"^{name}: .*(weight|window|blocks) must be a"):
        getattr(gpufold, name)(*given, **options)


@every_function
def test_what_is_no_array_is_refused_with_its_conversion(name):
    given, options, _ = prepared(name, "numpy")
    for foreign in (given[0].tolist(), None, memoryview(given[0])):
        with pytest.raises(TypeError, match=rf"^{name}: .* got .*; convert it with numpy.asarray"):
            getattr(gpufold, name)(foreign, *given[1:], **options)


def test_the_first_array_may_be_named():
    array = np.ones((2, 5, 9), np.float32)
    assert_same_bits(gpufold.array_to_blocks(block_shape=KERNEL, array=array), gpufold.array_to_blocks(array, KERNEL))


def test_nothing_is_imported_and_no_type_is_kept():
    kept = subprocess.run(
        [
            sys.executable,
            "-c",
            "import numpy, sys, gpufold; gpufold.im2col(numpy.ones((1, 4)), (2,))\nprint(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"cupy", "torch", "dask", "jax"} & {*kept}
    own = type("Own", (np.ndarray,), {"__module__": "elsewhere"})
    assert gpufold.im2col(np.ones((1, 4)).view(own), (2,)).shape == (2, 3)
    assert own in dispatch._packages
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None


@pytest.mark.peer("torch")
def test_torch_compiles_exports_and_traces_through_the_door_even_at_its_first_call():
    program = """
import sys, torch, gpufold
image = torch.rand(1, 2, 8, 8)
def model(image):
    return gpufold.col2im(gpufold.im2col(image, (2, 2)), (8, 8), (2, 2))
class Module(torch.nn.Module):
    def forward(self, image):
        return model(image)
class Mine(torch.Tensor): ...
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
assert "gpufold.torch" not in sys.modules
found = compiled(image)
assert torch.equal(found, model(image)), found
assert torch.equal(torch.export.export(Module(), (image,)).module()(image), found)
assert torch.equal(torch.jit.trace(Module(), (image,))(image), found)
assert torch.equal(torch.fx.symbolic_trace(model)(image), found)
assert torch.equal(torch.func.vmap(model)(image[None])[0], found)
assert type(model(image.as_subclass(Mine))) is Mine
assert model(torch.nn.Parameter(image)).requires_grad
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------------------
# The table of the documents


TEXT = (Path(__file__).resolve().parent.parent / "docs" / "arrays.md").read_text()
HEAD, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line[:1] == "|"
]
COLUMNS = np.ones((4, 9), np.float32)


def fold(columns, **options):
    return gpufold.col2im(columns, (4, 4), (2, 2), **options)


def has_gradient(it):
    if it is KINDS["jax"]:
        import jax

        return jax.grad(lambda columns: (fold(columns) ** 2).sum())(it.to(COLUMNS)).shape == (4, 9)
    columns = it.to(COLUMNS).requires_grad_()
    fold(columns).square().sum().backward()
    return columns.grad.shape == (4, 9)


def has_vmap(it):
    if it is KINDS["jax"]:
        import jax

        return jax.vmap(fold)(it.to(COLUMNS)[None]).shape == (1, 1, 4, 4)
    import torch

    return torch.func.vmap(fold)(it.to(COLUMNS)[None]).shape == (1, 1, 4, 4)


def is_compiled(it):
    if it is KINDS["jax"]:
        import jax

        return jax.jit(fold)(it.to(COLUMNS)).shape == (1, 4, 4)
    import torch

    return torch.compile(fold, backend="aot_eager", fullgraph=True)(it.to(COLUMNS)).shape == (1, 4, 4)


def is_lazy(it):
    return len(fold(it.to(COLUMNS)).dask) > 0


def takes_out(it):
    out = it.to(np.zeros((1, 4, 4), np.float32))
    return fold(it.to(COLUMNS), out=out) is out


def is_changed_in_place(it):
    array = it.to(np.zeros((4, 4), np.float32))
    return gpufold.add_blocks_(array, it.to(np.ones((1, 2, 2), np.float32)), [(0, 0)]) is array


def is_stitched(it):
    stitcher = gpufold.Stitcher((4, 4), 2)
    stitcher.add(it.to(np.ones((1, 2, 2), np.float32)), [(0, 0)])
    return float(stitcher.result()[0, 0]) == 1


WORKS = {
    "gradient": has_gradient,
    "vmap": has_vmap,
    "compiled": is_compiled,
    "lazy": is_lazy,
    "`out=`": takes_out,
    "in place": is_changed_in_place,
    "`Stitcher`": is_stitched,
}


@pytest.mark.parametrize("what", WORKS)
@every_kind
def test_the_table_of_kinds_says_what_works(kind, what):
    (row,) = [row for row in ROWS if row[0].startswith(kind)]
    try:
        works = WORKS[what](KINDS[kind])
    except (TypeError, ValueError, AttributeError, RuntimeError):  # RuntimeError is torch's, of what is no tensor
        works = False
    assert row[HEAD.index(what)] == ("yes" if works else "no")


ON_A_GPU = """
import cupy, numpy as np, pytest
import test_kinds
from test_kinds import CALLS, KINDS, ROWS, WORKS, HEAD

@pytest.mark.parametrize("name", CALLS)
def test_bits(name):
    given, options, want = test_kinds.prepared(name, "numpy")
    given = [cupy.asarray(each) if isinstance(each, np.ndarray) else each for each in given]
    got = getattr(test_kinds.gpufold, name)(*given, **options)
    assert type(got) is cupy.ndarray
    test_kinds.assert_same_bits(cupy.asnumpy(got), want)

def test_weights_of_blocks():
    array, blocks = np.zeros((2, 6, 7), np.float32), test_kinds.values((3, 2, 2, 3), np.float32)
    weight = np.zeros((6, 7), np.float32)
    options = {"window": test_kinds.WINDOW, "weights": test_kinds.BY_BLOCK, "weight_out": weight}
    on_gpu = {key: cupy.asarray(value) for key, value in options.items()}
    got = test_kinds.gpufold.add_blocks_(cupy.asarray(array), cupy.asarray(blocks), test_kinds.POSITIONS, **on_gpu)
    want = test_kinds.gpufold.add_blocks_(array, blocks, test_kinds.POSITIONS, **options)
    test_kinds.assert_same_bits(cupy.asnumpy(got), want)
    test_kinds.assert_same_bits(cupy.asnumpy(on_gpu["weight_out"]), weight)

@pytest.mark.parametrize("what", WORKS)
def test_row(what):
    KINDS["cupy"] = type("Cupy", (), {"to": staticmethod(cupy.asarray)})
    (row,) = [row for row in ROWS if row[0].startswith("cupy")]
    try:
        works = WORKS[what](KINDS["cupy"])
    except (TypeError, ValueError, AttributeError, RuntimeError):
        works = False
    assert row[HEAD.index(what)] == ("yes" if works else "no")
"""


@pytest.mark.all
@pytest.mark.hostcuda
@pytest.mark.peer("torch")
def test_arrays_of_cupy_are_computed_by_the_kernels(tmp_path):
    root, module = Path(__file__).resolve().parent, tmp_path / "test_on_a_gpu.py"
    module.write_text(ON_A_GPU)
    command = [sys.executable, "-m", "pytest", "-p", "bench.hostcuda.fake_cupy", "-p", "no:cacheprovider", "-q", module]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root.parent), str(root)])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
