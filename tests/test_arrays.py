"""Arrays that others made: which share memory and which kernels can read is known without a GPU."""

from __future__ import annotations

import inspect
import random
from functools import partial
from math import prod
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
from cases import assert_same_bits, folded, off_its_size, values, weights_of
from fronts import RIGHT

import gpufold
from bench.hostcuda import fake_cupy
from gpufold.arrays import as_positions, is_kernel_ready, kernel_ready, overlaps_itself, sharing

IMPORTED = SimpleNamespace(may_share_memory=lambda first, second: False)
"""What CuPy says of two arrays that were each imported on its own: their bounds are not compared."""

START = 1 << 40
"""No memory lies at these addresses: reading it would end the process."""


class At:
    """What is asked of a cupy.ndarray about its memory, which does not exist."""

    def __init__(self, offset, shape, strides, itemsize=4, start=START):
        self.data = SimpleNamespace(ptr=start + offset)
        self.shape, self.strides, self.itemsize = shape, strides, itemsize
        self.nbytes = itemsize * prod(shape)
        steps = [itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.flags = SimpleNamespace(c_contiguous=list(strides) == steps)

    def bytes(self):
        """The address of every byte, counted one by one."""
        offsets = np.arange(self.itemsize)
        for extent, stride in zip(self.shape, self.strides, strict=True):
            offsets = np.add.outer(np.arange(extent) * stride, offsets)
        return {self.data.ptr + int(offset) for offset in offsets.ravel()}

    def __repr__(self):
        return f"At({self.data.ptr - START}, {self.shape}, {self.strides}, {self.itemsize})"


def share_memory(first, second):
    return bool(list(sharing(IMPORTED, first, [("the other", second)])))


def random_array(rng, axes, steps):
    itemsize = rng.choice((1, 2, 4, 8))
    shape = tuple(rng.randint(0 if rng.random() < 0.05 else 1, 4) for _ in range(rng.randint(0, axes)))
    return At(itemsize * rng.randint(-20, 20), shape, tuple(itemsize * rng.choice(steps) for _ in shape), itemsize)


@pytest.mark.parametrize("seed", range(200))
def test_random_imported_arrays_share_memory_where_their_addresses_do(seed):
    rng = random.Random(seed)
    for _ in range(20):
        first, second = (random_array(rng, 3, (-9, -4, -1, 0, 1, 2, 3, 8)) for _ in range(2))
        assert share_memory(first, second) is bool(first.bytes() & second.bytes()), (seed, first, second)


def test_what_is_too_hard_to_know_counts_as_shared_only_within_bounds():
    extents, steps = (2,) * 30, [7919 * (2 * axis + 1) ** 2 for axis in range(30)]
    first, second = At(0, extents, tuple(steps), 1), At(1, extents, tuple(step + 6 for step in steps), 1)
    assert share_memory(first, second)
    assert not share_memory(first, At(-1, (1,), (1,), 1))


# ---- Results that overlap themselves


@pytest.mark.parametrize("seed", range(100))
def test_random_arrays_overlap_themselves_where_two_elements_have_a_byte(seed):
    rng = random.Random(seed)
    for _ in range(40):
        array = random_array(rng, 4, (-16, -4, -1, 0, 1, 2, 3, 5, 8, 20))
        want = len(array.bytes()) < array.itemsize * prod(array.shape)
        assert overlaps_itself(array.shape, array.strides, array.itemsize) is want, array


# ---- CuPy's own arrays, imported on their own: device 0 is never asked for


def imported(offset, shape, dtype=np.float32, strides=None):
    """Import an array as DLPack and __cuda_array_interface__ do: as an allocation by itself, which it does not own."""
    import cupy

    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(START + offset, size, None, device_id=0)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def all_imported(arrays):
    """Import arrays like these by name, each apart from the others."""
    return {
        name: imported(number << 20, each.shape, each.dtype, each.strides)
        for number, (name, each) in enumerate(arrays.items())
    }


WINDOWS = dict.fromkeys(("col2im", "im2col", "blocks_to_array", "array_to_blocks"), np.ones((2, 2), np.float32))
WINDOWS |= dict.fromkeys(("add_blocks", "take_blocks"), np.ones((4, 5), np.float32))
OF_ONNX = {"input": np.ones((1, 4, 9)), "image_shape": (4, 4), "block_shape": (2, 2)}
GIVEN = RIGHT | {"onnx.col2im": OF_ONNX}


def call(name, arrays):
    return attrgetter(name)(gpufold)(**GIVEN[name] | arrays)


def arrays_of(name):
    """Return the arrays of a call, with a window where it takes one, its positions in an array."""
    arrays = {argument: np.asarray(value) for argument, value in GIVEN[name].items() if not isinstance(value, tuple)}
    return arrays | ({"window": WINDOWS[name]} if name in WINDOWS else {})


def ones(name):
    """Return arrays of ones like those of a call, with an `out`."""
    arrays = arrays_of(name)
    return {each: np.ones_like(array) for each, array in (arrays | {"out": call(name, arrays)}).items()}


def test_every_public_function_with_an_out_is_called():
    functions = [getattr(gpufold, name) for name in gpufold.__all__ if inspect.isfunction(getattr(gpufold, name))]
    takes_out = [each.__name__ for each in functions if "out" in inspect.signature(each).parameters]
    assert sorted([*RIGHT, "map_tiles"]) == sorted(takes_out)


def placed(on_gpu):
    """What makes arrays at an offset into one memory: that of a NumPy array, or of a GPU that there may not be."""
    if on_gpu:
        return imported
    room = np.zeros(1 << 24, np.uint8)
    return lambda offset, shape, dtype=np.float32: np.ndarray(shape, dtype, room, offset)


on_both = pytest.mark.parametrize(
    "on_gpu", [False, pytest.param(True, marks=pytest.mark.peer("cupy"))], ids=["numpy", "cupy"]
)


@on_both
@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name in RIGHT for argument in arrays_of(name)])
def test_an_out_beside_an_argument_is_refused_where_they_overlap(name, argument, on_gpu):
    """It is refused before a device is asked for anything: there may be none."""
    at, begins = placed(on_gpu), {each: 1 << (20 + number) for number, each in enumerate(arrays_of(name))}
    arrays = {each: at(begins[each], array.shape, array.dtype) for each, array in arrays_of(name).items()}
    given, out = arrays[argument], ones(name)["out"]
    last = given.nbytes - 8
    in_place = (name, argument) in (("average", "numerator"), ("add_blocks", "array"))
    overlaps = [(begins[argument] + offset, begins[argument]) for offset in (8 if in_place else 0, last)]
    overlaps.append((0, out.nbytes // 8 * 8 - 8))  # where the argument begins in out, not out in the argument
    for begin, of_argument in overlaps:
        moved = at(of_argument, given.shape, given.dtype)
        with pytest.raises(ValueError, match=f"^{name}: out must share no memory with {argument}, got arrays"):
            call(name, arrays | {argument: moved, "out": at(begin, out.shape)})


@pytest.mark.parametrize("name", RIGHT)
def test_an_out_that_does_not_fit_is_refused_and_unchanged(name):
    arrays = ones(name)
    out = arrays.pop("out")
    read_only = out.copy()
    read_only.flags.writeable = False
    for wrong, error, match in (
        (np.ones((*out.shape[:-1], out.shape[-1] + 1), out.dtype), ValueError, "have the result's shape"),
        (out[..., 0].copy(), ValueError, "have the result's shape"),
        (out.astype(np.float64), TypeError, "have the result's dtype float32, got float64"),
        (out.astype(">f4"), TypeError, "have the result's dtype float32, got >f4"),
        (read_only, ValueError, "be writeable"),
    ):
        with pytest.raises(error, match=rf"^{name}: out must {match}"):
            call(name, arrays | {"out": wrong})
        assert (wrong == 1).all()


@pytest.mark.peer("cupy")
@pytest.mark.parametrize(
    ("name", "argument"), [(name, each) for name in RIGHT for each in [*ones(name)][1:] if each != "positions"]
)
def test_arrays_of_two_libraries_are_refused(name, argument):
    """Positions of NumPy may lie beside arrays of CuPy."""
    ours = ones(name)
    theirs = all_imported(ours)
    for arrays, others in ((ours, theirs), (theirs, ours)):
        with pytest.raises(TypeError, match=rf"^{name}: {argument} must be a (numpy|cupy)\.ndarray like .*; convert"):
            call(name, arrays | {argument: others[argument]})


@on_both
@pytest.mark.parametrize("name", RIGHT)
def test_a_result_that_overlaps_itself_is_refused_with_nothing_written(name, on_gpu):
    given = ones(name)
    out = given["out"] = folded(given["out"].shape)
    if on_gpu:
        given = all_imported(given)
    with pytest.raises(ValueError, match=rf"^{name}: out must not overlap itself, got shape \("):
        call(name, given)
    assert not out.any()


# ---- What kernels can read: CuPy's part is played by the stand-in, whose arrays lie in the memory of NumPy's


def of_cupy(array):
    """Return the memory of a NumPy array as an array of the stand-in."""
    pointer = fake_cupy.MemoryPointer(fake_cupy.UnownedMemory(array.ctypes.data, array.nbytes, array), 0)
    return fake_cupy.ndarray(array.shape, array.dtype, pointer, array.strides)


def every_row_off(array):
    """Rows whose distance is no multiple of the size; the first element is on one."""
    row = array.shape[-1] * array.itemsize + 1
    room = np.zeros(array.shape[0] * row + array.itemsize, np.uint8)
    start = -room.ctypes.data % array.itemsize
    placed = np.ndarray(array.shape, array.dtype, room, start, (row, array.itemsize))
    placed[...] = array
    return placed


LAYOUTS = {
    "as it is": lambda array: array,
    "in Fortran order": np.asfortranarray,
    "every second": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "off its size": off_its_size,
    "off in Fortran order": partial(off_its_size, order="F"),
    "off and backwards": lambda array: off_its_size(array[::-1])[::-1],
    "every row off": every_row_off,
}
in_both = pytest.mark.parametrize("on_gpu", [False, True], ids=["numpy", "cupy"])
CONVERTED = [
    *(("window", dtype, "float32") for dtype in ("float32", "float64", "float16", "int32", "uint8")),
    *(("window", dtype, "float64") for dtype in ("float64", "float32", "float16", "int64")),
    *(("positions", dtype, "int64") for dtype in ("int64", "int32", "uint64", "int8")),
]


@in_both
@pytest.mark.parametrize(("name", "dtype", "wanted"), CONVERTED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout_reach_kernels_as_they_can_read_them(layout, name, dtype, wanted, on_gpu, cupy):
    elements, wanted = values((5, 2), dtype), np.dtype(wanted)
    if elements.dtype.kind == "f":
        elements[0] = np.finfo(dtype).smallest_subnormal * 3, np.finfo(dtype).tiny / 2
    if name == "window":
        elements = np.abs(elements)
        want = elements.astype(wanted)
        want[(want == 0) & (elements != 0)] = np.finfo(wanted).tiny  # no weight is lost
    else:
        want = np.array([[min(int(each), 2**63 - 1) for each in row] for row in elements])
    given = LAYOUTS[layout](elements)
    before = given.tobytes()
    library, array = (cupy, of_cupy(given)) if on_gpu else (np, given)
    if name == "window":
        kind, (ready,) = weights_of(array, (5, 2), wanted, library)
        assert kind == "full"
    else:
        ready = as_positions("add_blocks", library, array, array)
    assert is_kernel_ready(library, ready, wanted)
    assert (ready.data.ptr if on_gpu else ready.ctypes.data) % wanted.itemsize == 0
    assert_same_bits(ready.get() if on_gpu else ready, want)
    assert (ready is array) == (layout == "as it is" and dtype == wanted), "only what fits is taken as it is"
    assert given.tobytes() == before


def test_an_error_of_cupys_memory_reaches_the_caller(cupy, monkeypatch):
    class OutOfMemoryError(MemoryError):
        def __init__(self, size, total, limit=0):  # as CuPy's
            super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")

    image, tiles = (of_cupy(np.ones(shape, np.float32)) for shape in [(6, 7), (2, 3, 3)])
    positions = of_cupy(np.zeros((2, 2), np.int32))
    monkeypatch.setattr(fake_cupy, "OutOfMemoryError", lambda said: OutOfMemoryError(1, 2))
    monkeypatch.setattr(fake_cupy._default_pool, "_limit", 1)
    with pytest.raises(OutOfMemoryError, match="Out of memory allocating 1 bytes"):
        gpufold.add_blocks_(image, tiles, positions)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_converted_while_a_graph_is_captured(layout, cupy):
    floats, integers = (LAYOUTS[layout](np.ones((3, 4), dtype)) for dtype in (np.float32, np.int64))
    window, positions = of_cupy(floats), of_cupy(integers)
    axis, double = of_cupy(floats[:, 0]), of_cupy(np.ones(4, np.float64))
    stream = cupy.cuda.Stream()
    stream.begin_capture()
    with stream:
        if layout == "as it is":
            assert weights_of(window, (3, 4), np.dtype(np.float32), cupy)[1] == (window,)
            assert as_positions("add_blocks", cupy, positions, positions) is positions
            stream.end_capture()
            return
        for given in (window, (axis, double)):
            with pytest.raises(ValueError, match="window must be contiguous, aligned and of float32 while a"):
                weights_of(given, (3, 4), np.dtype(np.float32), cupy)
        for name in ("out", "array"):
            with pytest.raises(ValueError, match=f"positions must be a contiguous, .* int64 beside {name} while"):
                as_positions("add_blocks", cupy, positions, positions, name)
    stream.end_capture()


def test_what_needs_temporary_arrays_is_refused_while_a_graph_is_captured(cupy):
    image, tiles, weights = (of_cupy(np.ones(shape, np.float32)) for shape in [(6, 7), (2, 3, 3), 2])
    positions, stream = of_cupy(np.zeros((2, 2), np.int64)), cupy.cuda.Stream()
    stream.begin_capture()
    with stream:
        for what, call in {
            "weights": partial(gpufold.add_blocks_, image, tiles, positions, weights=weights),
            "mode 'wrap'": partial(gpufold.take_blocks, image, positions, (3, 3), mode="wrap", out=tiles),
            "mode 'reflect'": partial(gpufold.array_to_blocks, image, 4, strides=3, last="over", mode="reflect"),
        }.items():
            with pytest.raises(ValueError, match=f": {what} needs temporary arrays"):
                call()
    stream.end_capture()


def test_nothing_is_added_unless_all_kernels_of_a_call_serve_it(cupy):
    image, tiles, weight = np.zeros((6, 7), np.float32), np.ones((2, 3, 3), np.float32), np.ones(2, np.float32)
    given = image, tiles, np.zeros((2, 2), np.int64)
    options = {"weights": of_cupy(weight), "weight_out": of_cupy(off_its_size(image))}
    with pytest.raises(gpufold.Unsupported, match=r"^add_blocks_: .* multiples of their size"):
        gpufold.add_blocks_(*map(of_cupy, given), **options)
    halves, out = [each.astype(np.float16) for each in given[:2]], np.ones((6, 7), np.float16)
    with pytest.raises(gpufold.Unsupported, match=r"^add_blocks: atomic adds in memory"):
        gpufold.add_blocks(*map(of_cupy, (*halves, given[2])), out=of_cupy(out), variant="atomic")
    cupy.cuda.Device().synchronize()
    assert not image.any()
    assert out.all()


def test_one_axis_of_a_separable_window_off_its_size_is_converted(cupy):
    axes = (np.arange(3, dtype=np.float32), off_its_size(np.arange(4, dtype=np.float32)))
    kind, weights = weights_of(tuple(map(of_cupy, axes)), (3, 4), np.dtype(np.float32), cupy)
    assert kind == "separable"
    assert all(is_kernel_ready(cupy, each, np.float32) for each in weights)
    for each, want in zip(weights, axes, strict=True):
        assert_same_bits(each.get(), want)


def test_no_positions_at_any_address_are_ready(cupy):
    memory = fake_cupy.MemoryPointer(fake_cupy.UnownedMemory(START + 1, 0, None), 0)
    nothing = fake_cupy.ndarray((0, 2), np.int64, memory, (16, 8))
    assert as_positions("add_blocks", cupy, nothing, nothing) is nothing


# ---- Subclasses of numpy.ndarray: what has a mask or arithmetic of its own is refused, whatever else fits


def unasked(*given, **options):
    pytest.fail("computed with, or converted, without being asked to")


class Units(np.ndarray):
    __array_ufunc__ = unasked


class Dispatched(np.ndarray):
    __array_function__ = unasked


class Silent(np.ndarray):
    __array_ufunc__ = None


class Labelled(np.ndarray):
    """An array that computes as its base does."""

    label = ""


class Foreign:
    """An array of another library, which says where its memory is in every way there is."""

    __array__ = __dlpack__ = __dlpack_device__ = unasked

    def __init__(self, shape):
        self.shape, self.dtype = shape, np.dtype(np.float32)
        place = {"version": 3, "shape": shape, "typestr": "<f4", "data": (START, False)}
        self.__cuda_array_interface__ = self.__array_interface__ = place


def masked(array):
    return np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) % 2)


def as_matrix(array):
    return np.ndarray.view(array, np.matrix) if array.ndim == 2 else masked(array)


OTHERS = {
    "masked": (masked, r"without a mask, got a masked array; convert it with .*filled\(value\)"),
    "matrix": (as_matrix, r"got numpy.matrix, which always has two axes|without a mask"),
    "units": (lambda array: array.view(Units), r"got test_arrays.Units, which computes in its own way"),
    "functions": (lambda array: array.view(Dispatched), r"got test_arrays.Dispatched, which computes in its own way"),
    "of another library": (lambda array: Foreign(array.shape), "got test_arrays.Foreign; convert it with"),
    "no arithmetic": (lambda array: array.view(Silent), r"got test_arrays.Silent, which computes in its own way"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", GIVEN)
def test_an_array_with_a_mask_or_arithmetic_of_its_own_is_refused_wherever_it_is_given(name, other):
    convert, match = OTHERS[other]
    for argument in ones(name):
        arrays = ones(name)
        before = {each: array.tobytes() for each, array in arrays.items()}
        with pytest.raises(TypeError, match=rf"^{name}: {argument} must be a numpy.ndarray .*(?:{match})"):
            call(name, arrays | {argument: convert(arrays[argument])})
        if argument == "window":  # of one array per axis, each counts
            axes = [np.ones(extent, np.float32) for extent in arrays["window"].shape]
            for axis, weights in enumerate(axes):
                given = (*axes[:axis], convert(weights), *axes[axis + 1 :])
                with pytest.raises(TypeError, match=rf"^{name}: window\[{axis}\] must be a numpy.ndarray"):
                    call(name, arrays | {"window": given})
        if argument == "positions" and other != "of another library":
            rows = [convert(row) for row in arrays["positions"]]
            with pytest.raises(TypeError, match=rf"^{name}: a row of positions must be a numpy.ndarray"):
                call(name, arrays | {"positions": rows})
        assert {each: array.tobytes() for each, array in arrays.items()} == before, "nothing is written"


@pytest.mark.parametrize("name", GIVEN)
def test_subclasses_that_compute_as_arrays_are_taken_and_results_are_arrays(name, tmp_path):
    want = call(name, ones(name))
    for kind in (Labelled, np.recarray, np.memmap):
        arrays = ones(name)
        for each, array in arrays.items():
            memory = np.memmap(tmp_path / each, array.dtype, "w+", shape=array.shape) if kind is np.memmap else array
            memory[...] = array
            arrays[each] = memory.view(kind)
        out = arrays.pop("out")
        got = call(name, arrays)
        assert type(got) is np.ndarray
        assert_same_bits(got, want)
        assert call(name, arrays | {"out": out}) is out


# ---- Positions of any magnitude


FAR = (0, 3, -2, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**63, 2**63 + 5, 2**64 - 1, 2**64, -(2**64), 10**30)


def test_lists_of_positions_hold_integers_of_64_bits():
    for rows in ([(a, b)] for a in FAR for b in FAR):
        for given in (rows, tuple(rows), [list(row) for row in rows]):
            if all(-(2**63) <= each < 2**63 for each in rows[0]):
                assert_same_bits(as_positions("add_blocks", np, given, None), np.array(rows, np.int64))
            elif all(2**63 <= each < 2**64 for each in rows[0]):
                assert_same_bits(as_positions("add_blocks", np, given, None), np.array([[2**63 - 1] * 2]))
            else:
                with pytest.raises(ValueError, match=r"^add_blocks: positions must be .* and fit into 64 bits, got"):
                    as_positions("add_blocks", np, given, None)
    for wrong in ([(2**64, 0.5)], [(10**30, "1")], [(2**70, None)], [("0", "1")], [(0.0, 1.0)], "01", {(0, 1)}):
        with pytest.raises(TypeError, match=r"^add_blocks: positions must be integers, got "):
            as_positions("add_blocks", np, wrong, None)


# ---- Arrays without an axis


@in_both
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, ">f4"], ids=str)
@pytest.mark.parametrize("layout", ["as it is", "off its size"])
def test_what_has_no_axis_is_converted_to_what_has_none(layout, dtype, on_gpu, cupy):
    given = LAYOUTS[layout](np.array(3, dtype))
    library, array = (cupy, of_cupy(given)) if on_gpu else (np, given)
    ready = kernel_ready(library, array, np.dtype(np.float32))
    assert ready.shape == ()
    assert is_kernel_ready(library, ready, np.float32)
    assert_same_bits(ready.get() if on_gpu else ready, np.array(3, np.float32))
