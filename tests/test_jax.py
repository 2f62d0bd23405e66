"""gpufold.jax: the values of NumPy's path, and right gradients of every kind, under every transform of JAX."""

from __future__ import annotations

import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import fronts
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_same_bits
from fronts import BEYOND, DEVICE, EVERY, HANDLE, PLACED, call_by, in_dtypes, named, synchronize, x64
from jax.interpreters import mlir
from jax.test_util import check_grads
from processes import python

import gpufold
from bench.hostcuda import fake_cupy
from gpufold.jax import primitive

SEVEN = ("int32", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@pytest.fixture(autouse=True)
def _x64():
    with x64(True):
        yield


def traced(arrays):
    return [*map(jnp.asarray, arrays)]


# ---- Values


def test_denormals_stay_as_numpy_has_them():
    """XLA's threads flush them."""
    columns = np.full((2, 40_000), 1e-40, np.float32)
    want = gpufold.col2im(columns, (40_001,), (2,), window=(np.float32([0.5, 2.0]),))
    assert 0 < want.min() < 1e-38
    given, window = jnp.asarray(columns), (jnp.asarray(np.float32([0.5, 2.0])),)
    assert_same_bits(gpufold.jax.col2im(given, (40_001,), (2,), window=window), want)


def test_positions_may_hold_traced_numbers():
    array = np.arange(12.0).reshape(3, 4)
    got = jax.jit(lambda array, row: gpufold.jax.take_blocks(array, [(row, 1), (0, row)], (2, 2)))(array, 1)
    assert_same_bits(got, gpufold.take_blocks(array, [(1, 1), (0, 1)], (2, 2)))


@pytest.mark.parametrize("options", [{"reduction": "mean"}, {"window": np.float64([0.5, 2])}], ids=["mean", "window"])
def test_without_64_bits_results_have_the_dtypes_of_jax(options):
    """Integers of 32 bits too, whose averages are of 64 bits elsewhere."""
    columns = np.arange(6, dtype=np.int32).reshape(2, 3)
    want = gpufold.col2im(columns.astype(np.float32), (4,), (2,), **options)

    def fold(columns):
        traced = {name: jnp.asarray(each) if name == "window" else each for name, each in options.items()}
        return gpufold.jax.col2im(columns, (4,), (2,), **traced)

    with x64(False):
        for folded in (fold, jax.jit(fold)):
            assert_same_bits(folded(jnp.asarray(columns)), want)
        got = jax.vmap(fold)(jnp.asarray(columns)[None])
        assert_same_bits(got, want[None])


def test_without_64_bits_a_dtype_of_64_is_refused():
    for dtype, wide in (("float32", "float64"), ("complex64", "complex128"), ("int32", "int64")):
        with x64(False), pytest.raises(TypeError, match=f"^col2im: dtype must be one that JAX has .*, got {wide}; "):
            gpufold.jax.col2im(jnp.ones((2, 3), dtype), (4,), (2,), dtype=wide)


def test_without_64_bits_an_array_of_64_from_before_is_read_as_jax_reads_it():
    wide = jnp.linspace(0, 1, 6).reshape(2, 3)
    assert wide.dtype == jnp.float64
    want = gpufold.col2im(np.asarray(wide, np.float32), (4,), (2,))
    with x64(False), warnings.catch_warnings(action="ignore"):  # JAX's, of what it truncates
        assert_same_bits(gpufold.jax.col2im(wide, (4,), (2,)), want)
        assert_same_bits(gpufold.jax.add_blocks(wide, wide[None], [(0, 0)]), np.asarray(wide, np.float32) * 2)


def test_random_keys_are_no_numbers():
    keys, array = jax.random.split(jax.random.key(0), 2), jnp.ones((4, 4))
    for said, call in (
        ("take_blocks: positions must be integers", lambda: gpufold.jax.take_blocks(array, keys, (2,))),
        ("add_blocks: positions must be integers", lambda: gpufold.jax.add_blocks(array, jnp.ones((2, 4, 2)), keys)),
        ("average: weight must hold real numbers", lambda: gpufold.jax.average(jnp.ones(2), keys)),
        ("im2col: window must hold real numbers", lambda: gpufold.jax.im2col(array, (2,), window=keys)),
    ):
        with pytest.raises(TypeError, match=rf"^{said}, got dtype key<fry>"):
            call()


# ---- Gradients


@pytest.mark.some(9, all=3)
@in_dtypes(("float64", "complex128"), [*EVERY, *BEYOND])
def test_gradients_tangents_and_theirs_are_those_of_differences(call, dtype):
    function, given = call.differentiated(traced(call.arrays(dtype)))

    def of_arrays(*arrays):  # which check_grads has as NumPy's
        return function(*map(jnp.asarray, arrays))

    check_grads(of_arrays, given, order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


@pytest.mark.some(47, all=5)
@in_dtypes([dtype for dtype in SEVEN if dtype not in ("int32", "float64", "complex128")])
def test_every_dtype_has_gradients_of_its_own(call, dtype):
    """They are those of the wider one, as exact as theirs are."""
    function, given = call.differentiated(traced(call.arrays(dtype)))
    numbers = tuple(range(len(given)))
    gradients = jax.grad(lambda *of: function(*of).real.sum().astype(float), numbers)
    wide = gradients(*(each.astype(jnp.promote_types(each.dtype, "float64")) for each in given))
    for got, want, each in zip(jax.jit(gradients)(*given), wide, given, strict=True):
        assert (got.dtype, got.shape) == (each.dtype, each.shape)
        size = abs(want).max(initial=1)
        np.testing.assert_allclose(got.astype(want.dtype), want, rtol=0, atol=16 * jnp.finfo(dtype).eps * size)


def test_a_window_under_a_mean_has_no_gradient_and_says_so():
    data, window = jnp.ones((2, 2)), jnp.ones(2)

    def mean(window):
        return gpufold.jax.col2im(data, (3,), (2,), window=window, reduction="mean").sum()

    with pytest.raises(ValueError, match=re.escape("got 'mean'; pass jax.lax.stop_gradient(window)")):
        jax.grad(mean)(window)
    assert jax.grad(lambda window: mean(jax.lax.stop_gradient(window)))(window).tolist() == [0, 0]


# ---- Transforms


@pytest.mark.some(9, all=3)
@named(EVERY)
def test_vmap_of_gradients_and_gradients_of_vmap(call):
    arrays, numbers = traced(call.arrays("float64", lead=(3,))), tuple(range(call.differentiable))

    def energy(*each):
        return (call(*each) ** 2).sum()

    gradients = jax.jit(jax.grad(energy, numbers))
    rows = [gradients(*each) for each in zip(*arrays, strict=True)]
    for mapped in (jax.vmap(gradients), jax.grad(lambda *each: jax.vmap(energy)(*each).sum(), numbers)):
        for got, want in zip(jax.jit(mapped)(*arrays), zip(*rows, strict=True), strict=True):
            np.testing.assert_allclose(got, np.stack(want), rtol=1e-12, atol=1e-12)


def test_a_scan_adds_into_its_carry_and_has_gradients():
    rng = np.random.default_rng(11)
    picture, tiles = rng.standard_normal((6, 7)), rng.standard_normal((4, 3, 2, 2))
    places = rng.integers(-1, 6, (4, 3, 2))

    def stitched(picture, tiles):
        def step(carry, row):
            return gpufold.jax.add_blocks(carry, *row), None

        return jax.lax.scan(step, picture, (tiles, jnp.asarray(places)))[0]

    want = picture.copy()
    for row, at in zip(tiles, places, strict=True):
        gpufold.add_blocks_(want, row, at)
    assert_same_bits(jax.jit(stitched)(picture, tiles), want)
    gradient = jax.grad(lambda tiles: (stitched(jnp.asarray(picture), tiles) ** 2).sum())(jnp.asarray(tiles))
    assert_same_bits(gradient, np.stack([gpufold.take_blocks(2 * want, at, (2, 2)) for at in places]))


def computed(monkeypatch):
    """Return where the data and the result of each call lie, as a list that grows."""
    seen, run = [], primitive.run

    def recorded(call, library, data, result, *others):
        seen.append((data.ctypes.data, result.ctypes.data))
        run(call, library, data, result, *others)

    monkeypatch.setattr(primitive, "run", recorded)
    return seen


def test_nothing_is_copied_on_the_cpu(monkeypatch):
    seen = computed(monkeypatch)
    columns = jnp.ones((4, 4096, 9))
    image = jax.jit(lambda columns: gpufold.jax.col2im(columns, (4, 4), (2, 2)))(columns)
    assert seen == [(columns.unsafe_buffer_pointer(), image.block_until_ready().unsafe_buffer_pointer())]


def test_a_donated_array_and_the_carry_of_a_scan_are_added_to_in_place(monkeypatch):
    seen = computed(monkeypatch)
    out, blocks = jnp.ones((300, 400)), jnp.ones((5, 1, 2, 2))
    place = out.unsafe_buffer_pointer()
    add = jax.jit(lambda out, blocks: gpufold.jax.add_blocks(out, blocks, [(0, 0)]), donate_argnums=0)
    assert add(out, blocks[0]).block_until_ready().unsafe_buffer_pointer() == place

    def step(carry, block):
        return gpufold.jax.add_blocks(carry, block, [(0, 0)]), None

    seen.clear()
    summed = jax.jit(lambda out, blocks: jax.lax.scan(step, out, blocks)[0])
    assert float(summed(jnp.zeros((300, 400)), blocks).sum()) == 20
    assert len(seen) == 5
    assert len({result for _, result in seen}) == 1


@pytest.mark.parametrize("context", [jax.disable_jit, jax.checking_leaks, lambda: jax.debug_nans(True)])
def test_jaxs_ways_to_debug(context):
    columns = jnp.ones((4, 9))
    with context():
        image = jax.jit(lambda columns: gpufold.jax.col2im(columns, (4, 4), (2, 2)))(columns)
        gradient = jax.grad(lambda columns: gpufold.jax.col2im(columns, (4, 4), (2, 2)).sum())(columns)
    assert float(image.sum()) == float(gradient.sum()) == 36


@named([*EVERY, *BEYOND])
def test_what_a_user_forbids_of_jaxs_arithmetic_does_not_reach_it(call):
    function, given = call.differentiated(traced(call.arrays("float32")))
    changes = tuple([each + 1 for each in given])
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        got = jax.jvp(function, given, changes), jax.vjp(function, *given)[1](jnp.ones_like(function(*given)))
    want = jax.jvp(function, given, changes), jax.vjp(function, *given)[1](jnp.ones_like(function(*given)))
    jax.tree.map(assert_same_bits, got, want)


ON_TWO = """
import jax, jax.numpy as jnp, gpufold
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
columns, window = jnp.arange(72.0).reshape(2, 4, 9), jnp.arange(4.0).reshape(2, 2)

def fold(columns, window):
    return gpufold.col2im(columns, (4, 4), (2, 2), window=window)

def energy(fold):
    return jax.jit(jax.grad(lambda *of: (fold(*of) ** 2).sum(), (0, 1)))(columns, window)

each = jax.shard_map(fold, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
assert (each(columns, window) == fold(columns, window)).all()
assert jax.tree.all(jax.tree.map(jnp.allclose, energy(each), energy(fold)))
try:
    jax.shard_map(fold, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())(columns, window)
except ValueError as error:
    assert "out_specs" in str(error)
else:
    raise AssertionError("each device has another result, which counts as one")

def added(array, blocks):
    return jax.lax.scan(lambda array, some: (gpufold.add_blocks(array, some, [(1,)]), None), array, blocks)[0]

blocks = jnp.ones((2, 3, 1, 2))
shared = jax.shard_map(lambda blocks: added(blocks[0, 0, 0, :1] * jnp.zeros(4), blocks[0])[None], mesh=mesh,
                       in_specs=P("x"), out_specs=P("x"))(blocks)
assert shared.tolist() == [[0, 3, 3, 0]] * 2

stitcher = gpufold.Stitcher((2, 4), (2,))
stitcher.add(jax.device_put(jnp.ones((2, 2, 2)), NamedSharding(mesh, P(None, "x"))), [(0,), (2,)])
assert stitcher.result().tolist() == [[1, 1, 1, 1]] * 2

mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
with jax.set_mesh(mesh) if hasattr(jax, "set_mesh") else jax.sharding.use_mesh(mesh):
    divided = jax.device_put(columns, NamedSharding(mesh, P("x")))

    def loss(columns):
        return (gpufold.take_blocks(gpufold.col2im(columns, (4, 4), (2, 2)), [(0, -1)], (2, 2)) ** 2).sum()

    for gradient in (jax.grad(loss), jax.vmap(jax.grad(loss)), jax.grad(lambda each: jax.vmap(loss)(each).sum())):
        assert all((made(divided) == gradient(columns)).all() for made in (gradient, jax.jit(gradient)))
    of_blocks = jax.grad(lambda *of: (gpufold.add_blocks(jnp.zeros((5, 9)), columns, of[1], weights=of[0],
        window=of[2]) ** 2).sum())
    given = [jnp.array([2.0, 3.0]), jnp.array([[0, 2], [3, 4]]), columns[1]]
    assert (of_blocks(*jax.device_put(given, NamedSharding(mesh, P("x")))) == of_blocks(*given)).all()
    if hasattr(P(), "partitions"):  # this JAX has specs that must not be iterated over
        reduced = jax.sharding.reshard(columns, P(None, None, None, reduced={"x"}))
        assert (gpufold.col2im(reduced, (4, 4), (2, 2)) == gpufold.col2im(columns, (4, 4), (2, 2))).all()
"""


def test_arrays_of_two_devices():
    python("-c", ON_TWO, XLA_FLAGS="--xla_force_host_platform_device_count=2")


# ---- Threads


@pytest.mark.parametrize("threads", [1, 4])
def test_calls_from_many_threads_have_the_same_bits(threads):
    """Of gpufold's own threads too, while other callbacks run, and in a program of more calls than XLA has threads."""
    columns = np.random.default_rng(0).standard_normal((4, 64 * 9, 24 * 24)).astype(np.float32)
    want = gpufold.col2im(columns, (26, 26), (3, 3))

    def fold(columns):
        return gpufold.jax.col2im(columns, (26, 26), (3, 3))

    def by_channel(columns):
        return jnp.concatenate([fold(each) for each in jnp.split(columns, 64, 1)], 1)

    ways = fold, jax.jit(fold), jax.jit(by_channel)
    gpufold.set_num_threads(threads)
    try:
        with ThreadPoolExecutor(6) as pool:
            for got in pool.map(lambda number: ways[number % 3](jnp.asarray(columns)), range(48), timeout=120):
                assert_same_bits(got, want)
    finally:
        gpufold.set_num_threads(None)


# ---- On a CUDA device, without one: the program for a GPU on the stand-in for CuPy
#
# XLA's buffers on the CPU pass for a device's, by the interfaces that a callback for a GPU has.


class Buffer:
    """A buffer of XLA's on a GPU: what is asked of it is where it is."""

    def __init__(self, buffer):
        self.array = np.asarray(buffer)
        fake_cupy.lend(self.array.ctypes.data, self.array.nbytes or 1, DEVICE)

    def __dlpack_device__(self):
        return 2, DEVICE

    @property
    def __cuda_array_interface__(self):
        assert self.array.dtype.name != "bfloat16", "the interface has no such elements"
        return {"shape": self.array.shape, "data": (self.array.ctypes.data, False), "version": 3}


@pytest.fixture(params=[pytest.param("stand-in", marks=[pytest.mark.peer("cupy"), pytest.mark.hostcuda])])
def launches(monkeypatch):
    on_gpu = primitive.on_gpu

    def callback(call, _, result, *operands):
        buffers = [*map(Buffer, (result, *operands))]
        assert all(each.array.flags.c_contiguous for each in buffers)
        on_gpu(call, SimpleNamespace(stream=HANDLE), *buffers)
        assert fake_cupy.get_device() == 0, "the thread's device is what it was"
        synchronize()

    def lowered_for(compute):
        mlir.register_lowering(primitive.call_p, mlir.lower_fun(compute, multiple_results=False), platform="cpu")
        jax.clear_caches()

    monkeypatch.setattr(primitive, "on_gpu", callback)
    with fronts.launched_on_fake_cupy(monkeypatch) as seen:
        lowered_for(primitive._for_gpu)
        yield seen
        lowered_for(primitive._for_cpu)


@pytest.mark.some(9, all=5)
@in_dtypes(SEVEN)
def test_what_is_launched_has_the_bits_of_the_numpy_path(launches, call, dtype):
    arrays = call.arrays(dtype)
    given = traced(arrays)
    assert_same_bits(jax.jit(call)(*given), call(*arrays))
    assert launches
    assert {each[:2] for each in launches} == {(DEVICE, HANDLE)}
    for array, before in zip(given, arrays, strict=True):
        assert_same_bits(array, before)


@pytest.mark.some(9, all=5)
@named(EVERY)
def test_gradients_and_batches_are_launched_too(launches, call):
    arrays = call.arrays("float32", lead=(2,))
    given = traced(arrays)
    assert_same_bits(jax.vmap(call)(*given), np.stack([call(*row) for row in zip(*arrays, strict=True)]))
    before = len(launches)
    numbers = tuple(range(call.differentiable))
    gradients = jax.grad(lambda *row: (call(*row) ** 2).sum(), numbers)(*(each[0] for each in given))
    assert all(np.isfinite(each).all() for each in gradients)
    assert len(launches) > before


def test_positions_of_32_bits_are_read_as_of_64(launches):
    call = call_by("take_blocks-edge")
    arrays = call.arrays("float32")
    with x64(False):
        assert_same_bits(call(*traced(arrays)), call(*arrays))


def test_nothing_is_launched_where_there_is_nothing_to_do(launches):
    out, blocks = jnp.ones(PLACED.shape), jnp.zeros((0, *PLACED.blocks_shape[1:]))
    assert_same_bits(gpufold.jax.add_blocks(out, blocks, jnp.zeros((0, 2), int)), np.ones(PLACED.shape))
    assert gpufold.jax.take_blocks(out, jnp.zeros((0, 2), int), (2, 2)).shape == (0, 2, 2, 2)
    assert not launches


def test_a_variant_is_taken_by_its_name(launches):
    columns = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    got = gpufold.jax.col2im(jnp.asarray(columns), (4, 4), (2, 2), variant="gather")
    assert_same_bits(got, gpufold.col2im(columns, (4, 4), (2, 2)))
