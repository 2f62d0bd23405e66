"""gpufold.jax: the values of NumPy's path, and right gradients of every kind, under every transform of JAX."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import CASES, random_case

import gpufold

pytestmark = pytest.mark.peer("jax")
jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.test_util import check_grads  # noqa: E402

import gpufold.jax  # noqa: E402  after the question whether JAX is there
from gpufold.jax import primitive  # noqa: E402
from gpufold.operations import OPERATIONS  # noqa: E402

SEVEN = ("int32", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@contextmanager
def x64(on):
    """With numbers of 64 bits, or without, in every thread and version."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", on)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(autouse=True)
def _x64():
    with x64(True):
        yield


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of every function: its name, the shapes of its arrays by argument, and its other arguments."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    arguments: dict[str, Any] = field(default_factory=dict)
    window: tuple[tuple[int, ...], ...] = ()
    """Shapes of the window's arrays, which come last: one is a full window, several a separable one."""
    suffix: str = ""

    def __str__(self) -> str:
        return self.name + self.suffix

    @property
    def differentiable(self) -> int:
        """How many of the arrays have a gradient."""
        averages = self.arguments.get("reduction", "sum") != "sum"
        return len(self.shapes) + (0 if averages else len(self.window))

    def arrays(self, dtype, seed=0, lead=()):
        """Random NumPy arrays of the call, of which the window's are positive."""
        rng = np.random.default_rng(seed)
        made = [values(rng, dtype, (*lead, *shape)) for shape in self.shapes.values()]
        real = "float64" if dtype in ("float64", "complex128") else "float32"
        return made + [(rng.random((*lead, *shape)) + 0.5).astype(real) for shape in self.window]

    def of(self, module):
        """Return a module's function of these arrays alone."""

        def call(*given):
            options = dict(self.arguments)
            arrays, window = given[: len(self.shapes)], given[len(self.shapes) :]
            if window:
                name = "weight" if self.name == "average" else "window"
                options[name] = window[0] if len(window) == 1 else list(window)
            return getattr(module, self.name)(**dict(zip(self.shapes, arrays, strict=True)), **options)

        return call

    def __call__(self, *given):
        return self.of(gpufold.jax)(*given)


def values(rng, dtype, shape):
    if dtype == "int32":
        return rng.integers(-(2**31), 2**31 - 1, shape, np.int32, endpoint=True)
    drawn = rng.standard_normal(shape)
    if "complex" in dtype:
        drawn = drawn + 1j * rng.standard_normal(shape)
    return drawn.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


FOLDED = {"output_size": (4, 3), "kernel_size": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (0, 1)}
TAKEN = {name: FOLDED[name] for name in ("kernel_size", "strides", "pads_begin", "pads_end")}
PLACES = [(0, 0), (-1, 2), (2, 1), (9, 9)]
BLOCKS = {"output_shape": (2, 7), "block_shape": (3,), "strides": 2}
AT = {"positions": PLACES, "block_shape": (3, 2)}
FAR = {"positions": [(-1, 1), (3, -2), (-(2**63), 2), (2**62, 2**63 - 1)], "block_shape": (3, 2), "mode": "edge"}
ADDED = {"array": (2, 4, 3), "blocks": (4, 2, 3, 2)}
FULL, SEPARABLE = ((3, 2),), ((3,), (2,))

PLAIN = [
    Operation("col2im", {"data": (2, 6, 6)}, FOLDED),
    Operation("col2im", {"data": (12, 6)}, FOLDED, suffix="-unbatched"),
    Operation("im2col", {"image": (2, 1, 4, 3)}, TAKEN),
    Operation("im2col", {"image": (2, 4, 3)}, TAKEN, suffix="-unbatched"),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS),
    Operation("array_to_blocks", {"array": (2, 7)}, {"block_shape": (3,), "strides": 2}),
    Operation("batch_to_space", {"data": (8, 3)}, {"block_shape": (1, 4), "crops_begin": (0, 1), "crops_end": (0, 2)}),
    Operation("space_to_batch", {"data": (2, 9)}, {"block_shape": (1, 4), "pads_begin": (0, 1), "pads_end": (0, 2)}),
    Operation("add_blocks", ADDED, {"positions": PLACES}),
    Operation("take_blocks", {"array": (2, 4, 3)}, AT),
    Operation("take_blocks", {"array": (4, 3)}, FAR, suffix="-edge"),
    Operation("take_blocks", {"array": (2, 1, 1)}, FAR, suffix="-edge-of-one"),
]
WEIGHED = [
    *(
        Operation(name, shapes, arguments, window, f"-{kind}")
        for kind, window in (("full", FULL), ("separable", SEPARABLE))
        for name, shapes, arguments in (
            ("col2im", {"data": (2, 6, 6)}, FOLDED),
            ("im2col", {"image": (2, 1, 4, 3)}, TAKEN),
            ("add_blocks", ADDED, {"positions": PLACES}),
            ("take_blocks", {"array": (2, 4, 3)}, AT),
            ("take_blocks", {"array": (4, 3)}, FAR),
        )
    ),
    Operation("average", {"numerator": (2, 4, 3)}, window=((4, 3),)),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS, ((3,),), "-full"),
    Operation("array_to_blocks", {"array": (2, 7)}, {"block_shape": (3,), "strides": 2}, ((3,),), "-full"),
    *(
        Operation("col2im", {"data": (2, 6, 6)}, FOLDED | {"reduction": reduction}, window, f"-{reduction}-{kind}")
        for reduction in ("mean", "least_squares")
        for kind, window in (("none", ()), ("full", FULL), ("separable", SEPARABLE))
    ),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS | {"reduction": "mean"}, suffix="-mean"),
    Operation(
        "col2im",
        {"data": (4, 2)},
        {"output_size": (9,), "kernel_size": 4, "strides": 5, "reduction": "mean", "fill_value": 0},
        suffix="-mean-with-gaps",
    ),
]
ALL = [*PLAIN, *WEIGHED]
every = pytest.mark.parametrize("operation", ALL, ids=str)
in_seven = pytest.mark.parametrize("dtype", SEVEN)


def has(operation, dtype):
    return dtype != "int32" or operation in PLAIN


def traced(arrays):
    return [*map(jnp.asarray, arrays)]


def same_bits(got, want):
    got = np.asarray(got)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


def by_numpy(operation, arrays):
    return operation.of(gpufold)(*(array.copy() for array in arrays))


# ---------------------------------------------------------------------------------------------
# Values


@pytest.mark.some(9)
@in_seven
@every
def test_results_have_the_bits_of_the_numpy_path(operation, dtype):
    if not has(operation, dtype):
        return
    arrays = operation.arrays(dtype)
    given = traced(arrays)
    want = by_numpy(operation, arrays)
    same_bits(operation(*given), want)
    same_bits(jax.jit(operation)(*given), want)
    for array, before in zip(given, arrays, strict=True):
        same_bits(array, before)  # nothing is written into


@pytest.mark.parametrize("case", [*CASES, *map(random_case, range(91_000, 91_020))], ids=str)
def test_named_and_random_cases_agree_with_the_definition(case):
    rng = np.random.default_rng(0)
    columns = rng.integers(-9, 9, case.columns_shape).astype(np.float32)
    image = rng.integers(-9, 9, case.image_shape).astype(np.float32)
    got = gpufold.jax.col2im(jnp.asarray(columns), case.output_size, case.kernel_size, **case.arguments)
    same_bits(got, gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments))
    if columns.size < 10_000:
        np.testing.assert_array_equal(got, case.col2im(columns))
    got = gpufold.jax.im2col(jnp.asarray(image), case.kernel_size, **case.arguments)
    same_bits(got, gpufold.im2col(image, case.kernel_size, **case.arguments))


@pytest.mark.parametrize(
    ("operation", "wide"), [(PLAIN[0], "float64"), (PLAIN[4], "float64"), (PLAIN[8], "float64")], ids=str
)
def test_sums_may_be_wider_than_data(operation, wide):
    arrays = operation.arrays("float32")
    if operation.name == "add_blocks":
        arrays[0] = arrays[0].astype(wide)
        same_bits(operation(*traced(arrays)), by_numpy(operation, arrays))
        return
    wider = Operation(operation.name, operation.shapes, operation.arguments | {"dtype": wide})
    same_bits(wider(*traced(arrays)), by_numpy(wider, arrays))
    gradient = jax.grad(lambda data: wider(data).sum())(*traced(arrays))
    assert gradient.dtype == np.float32


def test_denormals_stay_as_numpy_has_them():
    """XLA's threads flush them."""
    columns = np.full((2, 40_000), 1e-40, np.float32)
    want = gpufold.col2im(columns, (40_001,), (2,), window=(np.float32([0.5, 2.0]),))
    assert 0 < want.min() < 1e-38
    given, window = jnp.asarray(columns), (jnp.asarray(np.float32([0.5, 2.0])),)
    same_bits(gpufold.jax.col2im(given, (40_001,), (2,), window=window), want)


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3)])
def test_empty_arrays(shape):
    blocks = jnp.zeros((0, 2, 3, 2), jnp.float32)
    out = jnp.ones((2, 4, 3), jnp.float32)
    same_bits(gpufold.jax.add_blocks(out, blocks, jnp.zeros((0, 2), int)), np.ones((2, 4, 3), np.float32))
    empty = jnp.zeros(shape, jnp.float32)
    got = gpufold.jax.take_blocks(empty, [(0, 0), (5, 5)], (2, 2))
    same_bits(got, gpufold.take_blocks(np.zeros(shape, np.float32), [(0, 0), (5, 5)], (2, 2)))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_positions_are_of_any_integers(dtype, wide):
    """Also without numbers of 64 bits: what JAX's integers cannot hold is far outside of any array."""
    rng = np.random.default_rng(7)
    array = rng.standard_normal((4, 3)).astype(np.float32)
    info = np.iinfo(dtype)
    places = np.array([(0, 1), (2, 2), (info.max, 1), (info.min, 0), (3, info.max)], dtype)
    with x64(wide):
        for mode in ("constant", "edge"):
            want = gpufold.take_blocks(array, places, (3, 2), mode=mode)
            given = jnp.asarray(array)
            same_bits(gpufold.jax.take_blocks(given, places, (3, 2), mode=mode), want)
            if dtype != "uint64":  # of which no list fits
                same_bits(gpufold.jax.take_blocks(given, places.tolist(), (3, 2), mode=mode), want)
            if wide or places.itemsize < 8:
                same_bits(gpufold.jax.take_blocks(given, jnp.asarray(places), (3, 2), mode=mode), want)
                got = jax.jit(lambda a, p: gpufold.jax.take_blocks(a, p, (3, 2), mode=mode))(given, places)  # noqa: B023
                same_bits(got, want)


def test_positions_may_hold_traced_numbers():
    array = np.arange(12.0).reshape(3, 4)
    got = jax.jit(lambda array, row: gpufold.jax.take_blocks(array, [(row, 1), (0, row)], (2, 2)))(array, 1)
    same_bits(got, gpufold.take_blocks(array, [(1, 1), (0, 1)], (2, 2)))


# ---------------------------------------------------------------------------------------------
# Gradients


def differentiated(operation, given):
    """Return a function of the arrays that have a gradient, and these."""
    kept = given[operation.differentiable :]
    return (lambda *arrays: operation(*arrays, *kept)), given[: operation.differentiable]


@pytest.mark.some(5)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.all)])
@every
def test_gradients_tangents_and_theirs_are_those_of_differences(operation, dtype):
    function, given = differentiated(operation, traced(operation.arrays(dtype)))

    def of_arrays(*arrays):  # which check_grads has as NumPy's
        return function(*map(jnp.asarray, arrays))

    check_grads(of_arrays, given, order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


@pytest.mark.some(23)
@in_seven
@every
def test_the_transpose_is_the_adjoint(operation, dtype):
    """<A x, y> = <x, A' y>, where JAX's own transpose has no conjugate, and every dtype a gradient of its own."""
    if not has(operation, dtype) or dtype == "int32":
        return
    first, *fixed = traced(operation.arrays(dtype))
    data = first
    if operation.name == "add_blocks":
        first, (data, *fixed) = jnp.zeros_like(first), fixed

    def linear(data):
        return operation(first, data, *fixed) if operation.name == "add_blocks" else operation(data, *fixed)

    image = linear(data)
    other = jnp.asarray(values(np.random.default_rng(5), dtype, image.shape))
    (back,) = jax.linear_transpose(linear, data)(other)
    assert (back.dtype, back.shape) == (data.dtype, data.shape)
    wide = np.complex128 if "complex" in dtype else np.float64
    left = (np.asarray(image).astype(wide) * np.asarray(other).astype(wide)).sum()
    right = (np.asarray(data).astype(wide) * np.asarray(back).astype(wide)).sum()
    digits = {"bfloat16": 2, "float16": 3, "float32": 5, "complex64": 5}.get(dtype, 12)
    size = np.abs(np.asarray(image).astype(wide) * np.asarray(other).astype(wide)).sum()
    assert abs(left - right) <= 4 * 10.0**-digits * size


@pytest.mark.some(23)
@in_seven
@every
def test_gradients_are_the_same_under_jit(operation, dtype):
    if not has(operation, dtype) or dtype == "int32":
        return
    function, given = differentiated(operation, traced(operation.arrays(dtype)))

    def energy(*arrays):
        return (jnp.abs(function(*arrays)) ** 2).sum().astype(jnp.float32)

    numbers = tuple(range(len(given)))
    eager, compiled = jax.grad(energy, numbers)(*given), jax.jit(jax.grad(energy, numbers))(*given)
    half = dtype in ("float16", "bfloat16")  # whose products XLA fuses without rounding between them
    for array, one, other in zip(given, eager, compiled, strict=True):
        assert (one.dtype, one.shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(
            *(np.asarray(each).astype(complex) for each in (one, other)),
            rtol=0.1 if half else 1e-4,
            atol=0.1 if half else 1e-4,
        )


def test_integers_have_no_gradient():
    _, tangent = jax.jvp(
        lambda data: gpufold.jax.col2im(data, (3,), (2,)),
        (jnp.ones((2, 2), int),),
        (np.zeros((2, 2), jax.dtypes.float0),),
    )
    assert tangent.dtype == jax.dtypes.float0


def test_a_window_under_a_mean_has_no_gradient_and_says_so():
    data, window = jnp.ones((2, 2)), jnp.ones(2)

    def mean(window):
        return gpufold.jax.col2im(data, (3,), (2,), window=window, reduction="mean").sum()

    with pytest.raises(ValueError, match=re.escape("got 'mean'; pass jax.lax.stop_gradient(window)")):
        jax.grad(mean)(window)
    assert jax.grad(lambda window: mean(jax.lax.stop_gradient(window)))(window).tolist() == [0, 0]


# ---------------------------------------------------------------------------------------------
# Transforms


@pytest.mark.some(23)
@in_seven
@every
def test_vmap_computes_each(operation, dtype):
    """Over every array at once, and over each by itself."""
    if not has(operation, dtype):
        return
    arrays = operation.arrays(dtype, lead=(3,))
    got = jax.vmap(operation)(*traced(arrays))
    same_bits(got, np.stack([by_numpy(operation, row) for row in zip(*arrays, strict=True)]))
    for number in range(len(arrays)):
        axes = tuple(0 if other == number else None for other in range(len(arrays)))
        given = [array if other == number else array[0] for other, array in enumerate(arrays)]
        rows = [[each[row] if other == number else each for other, each in enumerate(given)] for row in range(3)]
        want = np.stack([by_numpy(operation, each) for each in rows])
        same_bits(jax.vmap(operation, axes)(*traced(given)), want)
        given[number] = np.moveaxis(given[number], 0, -1)
        axes = tuple(axis if axis is None else -1 for axis in axes)
        same_bits(jax.jit(jax.vmap(operation, axes, 0))(*traced(given)), want)


@pytest.mark.some(5)
@every
def test_vmap_of_gradients_and_gradients_of_vmap(operation):
    arrays = traced(operation.arrays("float64", lead=(3,)))
    given, kept = arrays[: operation.differentiable], arrays[operation.differentiable :]
    numbers = tuple(range(len(given)))

    def energy(*each):
        return (operation(*each) ** 2).sum()

    by_row = jax.vmap(jax.grad(energy, numbers))(*given, *kept)
    of_all = jax.grad(lambda *each: jax.vmap(energy)(*each, *kept).sum(), numbers)(*given)
    rows = [jax.grad(energy, numbers)(*each) for each in zip(*given, *kept, strict=True)]
    for one, other, want in zip(by_row, of_all, zip(*rows, strict=True), strict=True):
        np.testing.assert_allclose(one, np.stack(want), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(other, np.stack(want), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["take_blocks", "add_blocks"])
def test_vmap_over_positions(name):
    rng = np.random.default_rng(3)
    places = rng.integers(-2, 5, (5, 4, 2))
    array, blocks = rng.standard_normal((2, 4, 3)), rng.standard_normal((4, 2, 3, 2))
    if name == "take_blocks":
        got = jax.vmap(lambda at: gpufold.jax.take_blocks(jnp.asarray(array), at, (3, 2)))(jnp.asarray(places))
        want = [gpufold.take_blocks(array, at, (3, 2)) for at in places]
    else:
        got = jax.vmap(lambda at: gpufold.jax.add_blocks(jnp.asarray(array), jnp.asarray(blocks), at))(
            jnp.asarray(places)
        )
        want = [gpufold.add_blocks_(array.copy(), blocks, at) for at in places]
    same_bits(got, np.stack(want))


@pytest.mark.some(23)
@in_seven
@every
def test_scan_computes_one_after_another(operation, dtype):
    if not has(operation, dtype):
        return
    arrays = operation.arrays(dtype, lead=(3,))
    _, got = jax.lax.scan(lambda carry, row: (carry, operation(*row)), 0, tuple(traced(arrays)))
    same_bits(got, np.stack([by_numpy(operation, row) for row in zip(*arrays, strict=True)]))


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
    same_bits(jax.jit(stitched)(picture, tiles), want)
    gradient = jax.grad(lambda tiles: (stitched(jnp.asarray(picture), tiles) ** 2).sum())(jnp.asarray(tiles))
    same_bits(gradient, np.stack([gpufold.take_blocks(2 * want, at, (2, 2)) for at in places]))


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


def test_checkpoint_and_donation():
    columns = jnp.asarray(np.random.default_rng(0).standard_normal((4, 9)))

    def energy(columns):
        return (gpufold.jax.col2im(columns, (4, 4), (2, 2)) ** 2).sum()

    np.testing.assert_array_equal(jax.grad(jax.checkpoint(energy))(columns), jax.grad(energy)(columns))
    out = jnp.ones((3, 4))
    add = jax.jit(lambda out: gpufold.jax.add_blocks(out, jnp.ones((1, 2, 2)), [(0, 0)]), donate_argnums=0)
    assert float(add(out).sum()) == 16


# ---------------------------------------------------------------------------------------------
# Threads


@pytest.mark.parametrize("threads", [1, 4])
def test_calls_from_many_threads_have_the_same_bits(threads):
    """Of gpufold's own threads too, and while callbacks of other calls run."""
    gpufold.set_num_threads(threads)
    try:
        columns = np.random.default_rng(0).standard_normal((4, 64 * 9, 24 * 24)).astype(np.float32)
        want = gpufold.col2im(columns, (26, 26), (3, 3))
        compiled = jax.jit(lambda columns: gpufold.jax.col2im(columns, (26, 26), (3, 3)))

        def call(number):
            given = jnp.asarray(columns)
            got = compiled(given) if number % 2 else gpufold.jax.col2im(given, (26, 26), (3, 3))
            same_bits(got, want)
            return True

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(call, range(48), timeout=120))
    finally:
        gpufold.set_num_threads(None)


def test_independent_calls_of_one_program_do_not_wait_for_each_other():
    """A program of many calls, more than XLA has threads."""
    columns = jnp.asarray(np.random.default_rng(0).standard_normal((40, 9, 576)).astype(np.float32))

    @jax.jit
    def program(columns):
        return [gpufold.jax.col2im(each, (26, 26), (3, 3)) for each in columns]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(lambda _: program(columns), range(8), timeout=120):
            same_bits(jnp.stack(results)[:, 0], gpufold.col2im(np.asarray(columns), (26, 26), (3, 3))[:, 0])


# ---------------------------------------------------------------------------------------------
# Errors


ONES = np.ones((4, 9), np.float32)
REFUSED = {
    "of-sizes": (lambda f, x: f.col2im(x(ONES), (5, 4), (2, 2)), ValueError),
    "of-rank": (lambda f, x: f.im2col(x(ONES), (2, 2, 2)), ValueError),
    "of-a-window's-shape": (lambda f, x: f.col2im(x(ONES), (4, 4), (2, 2), window=x(np.ones((3, 2)))), ValueError),
    "of-a-window's-axes": (lambda f, x: f.col2im(x(ONES), (4, 4), (2, 2), window=[x(np.ones(2))]), ValueError),
    "of-a-complex-window": (lambda f, x: f.im2col(x(ONES[None]), (2,), window=x(np.ones(2, complex))), TypeError),
    "of-a-mean-of-integers": (
        lambda f, x: f.col2im(x(ONES.astype(int)), (4, 4), (2, 2), reduction="mean", dtype="int64"),
        TypeError,
    ),
    "of-a-word": (lambda f, x: f.col2im(x(ONES), (4, 4), (2, 2), reduction="median"), ValueError),
    "of-a-dtype": (lambda f, x: f.col2im(x(ONES), (4, 4), (2, 2), dtype="int32"), TypeError),
    "of-positions": (lambda f, x: f.take_blocks(x(ONES), [(0.5, 1.0)], (2, 2)), TypeError),
    "of-positions-of-floats": (lambda f, x: f.take_blocks(x(ONES), x(np.ones((1, 2))), (2, 2)), TypeError),
    "of-positions'-rank": (lambda f, x: f.take_blocks(x(ONES), x(np.ones(2, int)), (2, 2)), ValueError),
    "of-blocks": (lambda f, x: f.add_blocks(x(ONES), x(np.ones((2, 3), np.float32)), [(0, 0)]), ValueError),
    "of-weights": (lambda f, x: f.average(x(ONES), x(np.ones((9, 4)))), ValueError),
    "of-crops": (lambda f, x: f.batch_to_space(x(ONES), (1, 2), crops_begin=(0, 99)), ValueError),
    "of-margins": (lambda f, x: f.space_to_batch(x(ONES), (1, 2), pads_begin=0), ValueError),
    "of-a-name": (lambda f, x: f.col2im(x(ONES), (4, 4), (2, 2), stride=2), TypeError),
    "of-an-unknown-variant": (lambda f, x: f.col2im(x(ONES), (4, 4), (2, 2), variant="fastest"), ValueError),
}


@pytest.mark.parametrize("call", REFUSED)
def test_errors_come_as_the_program_is_traced_in_the_words_of_numpys(call):
    function, kind = REFUSED[call]
    with pytest.raises(kind) as of_numpy:
        function(gpufold, np.array)
    for traced in (lambda call: call(), jax.eval_shape):
        with pytest.raises(kind) as of_jax:
            traced(lambda: function(gpufold.jax, jnp.asarray))
        assert type(of_jax.value) is type(of_numpy.value)
        assert str(of_jax.value) == str(of_numpy.value)


def test_other_arrays_are_refused_in_a_sentence():
    with pytest.raises(TypeError, match=r"col2im: data must be a jax.Array, got numpy.ndarray; convert it with jax"):
        gpufold.jax.col2im(ONES, (4, 4), (2, 2))
    with pytest.raises(TypeError, match=r"window\[1\] must be a jax.Array, got numpy.ndarray"):
        gpufold.jax.col2im(jnp.asarray(ONES), (4, 4), (2, 2), window=[jnp.ones(2), np.ones(2)])
    with pytest.raises(TypeError, match=r"col2im: out is only for a numpy.ndarray or cupy.ndarray"):
        gpufold.jax.col2im(jnp.asarray(ONES), (4, 4), (2, 2), out=ONES)
    with pytest.raises(TypeError, match="col2im: missing a required argument: 'kernel_size'"):
        gpufold.jax.col2im(jnp.asarray(ONES), (4, 4))
    with pytest.raises(
        gpufold.Unsupported, match=r"variant 'gather' is a GPU kernel, but data is a jax.Array on the CPU"
    ):
        gpufold.jax.col2im(jnp.asarray(ONES), (4, 4), (2, 2), variant="gather")


def test_it_has_every_operation_and_gpufold_does_not_import_jax():
    assert set(gpufold.jax.__all__) == set(OPERATIONS)
    call = "gpufold.col2im(numpy.ones((4, 9)), (4, 4), (2, 2))"
    code = f"import sys, gpufold, numpy; {call}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
