"""`map_tiles` and `grid_positions`: what a function makes of tiles, averaged, is what it makes of the whole.

Where tiles do not matter, that is.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from enum import Enum
from functools import partial
from importlib import import_module
from itertools import product
from math import ceil
from pathlib import Path
from shutil import rmtree
from time import sleep

import numpy as np
import pytest
from processes import CHECKOUT, python
from test_kinds import KINDS

import gpufold
from gpufold.calls import MODES

RNG = np.random.default_rng(0)
IMAGE = RNG.random((3, 50, 70), np.float32)

mapped = partial(gpufold.map_tiles, array=IMAGE, block_shape=(16, 16), strides=12)


@pytest.mark.parametrize("batch", [1, 5, 1000])
@pytest.mark.parametrize("last", ["shift", "even", "over"])
def test_it_is_a_stitcher_s_loop(batch, last):
    sizes = []

    def scaled(tiles):
        sizes.append(len(tiles))
        return 2 * tiles[:, ::-1]

    window, steps = RNG.random((16, 12), np.float32), {"strides": (9, 7), "last": last}
    got = gpufold.map_tiles(scaled, IMAGE, (16, 12), window=window, batch=batch, **steps)
    positions = gpufold.grid_positions((50, 70), (16, 12), **steps)
    stitcher = gpufold.Stitcher(IMAGE.shape, (16, 12), window=window)
    stitcher.add(2 * gpufold.take_blocks(IMAGE[::-1], positions, (16, 12)), positions)
    np.testing.assert_array_equal(got, stitcher.result())
    assert sum(sizes) == len(positions)
    assert max(sizes) <= batch


@pytest.mark.parametrize("last", ["shift", "over"])
def test_tiles_may_become_larger_or_smaller(last):
    def larger(tiles):
        return tiles.repeat(2, -2).repeat(3, -1)

    got = mapped(larger, last=last)
    np.testing.assert_allclose(got, larger(IMAGE), rtol=1e-6)
    got = gpufold.map_tiles(lambda tiles: tiles[..., ::2, ::2], IMAGE, (16, 16), strides=8, last=last)
    np.testing.assert_allclose(got, IMAGE[:, ::2, ::2], rtol=1e-6)
    with pytest.raises(ValueError, match="positions times the scale 1/2, 1/2 of the function must be integers"):
        gpufold.map_tiles(lambda tiles: tiles[..., ::2, ::2], IMAGE, (16, 16), strides=9)


def test_cropped_tiles_are_refused_unless_they_span_their_axis():
    with pytest.raises(ValueError, match=r"whole fraction of \(16, 16\), got \(14, 14\); add others"):
        gpufold.map_tiles(lambda tiles: tiles[..., 1:-1, 1:-1], IMAGE[:, :48, :64], (16, 16), strides=8)
    got = gpufold.map_tiles(lambda tiles: tiles[:, :2], IMAGE, (3, 16, 16), strides=12)
    np.testing.assert_array_equal(got, IMAGE[:2])


def test_slabs_are_finished_as_they_are_ready():
    rows = []

    def labels(slab):
        rows.append(slab.shape[-2])
        return slab.argmax(0)

    got = mapped(np.copy, finish=labels)
    np.testing.assert_array_equal(got, IMAGE.argmax(0))
    assert len(rows) > 3
    assert sum(rows) == 50


@pytest.mark.peer("torch")
def test_tensors_are_mapped_with_gradients():
    import torch

    image = torch.from_numpy(IMAGE).requires_grad_()
    got = gpufold.map_tiles(lambda tiles: tiles * 2, image, (16, 16), strides=12, batch=4)
    torch.testing.assert_close(got, 2 * image)
    got.sum().backward()
    torch.testing.assert_close(image.grad, torch.full_like(image, 2))


# ---- Arrays of every kind


def on_disk(array, path):
    made = import_module("zarr").create_array(str(path), shape=array.shape, chunks=(2, 16, 20), dtype=array.dtype)
    made[...] = array
    return made


@pytest.mark.some(3, all=3)
@pytest.mark.parametrize("last", ["shift", "over"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=it.marks) for kind, it in KINDS.items()),
        pytest.param("zarr", marks=pytest.mark.peer("zarr")),
    ],
)
def test_arrays_of_every_kind_give_the_same(kind, mode, last, tmp_path):
    """With a window of SciPy's; arrays that are only sliced too; and all may be written into one of NumPy's."""

    def mixed(tiles):  # what elements of a tile say depends on others, and on what lies outside
        return tiles + 2 * tiles[..., ::-1]

    array = on_disk(IMAGE, tmp_path / "in.zarr") if kind == "zarr" else KINDS[kind].to(IMAGE)
    array = array.rechunk(20) if kind == "dask" else array
    flipped = (lambda tiles: tiles + 2 * tiles.flip(-1)) if kind == "torch" else mixed
    options = {"mode": mode, "last": last, "window": "hamming"}
    for block, strides in (((16, 16), 16), ((64, 16), 12), ((61, 90), 12)):  # the last of 16 hangs over by 14
        want = gpufold.map_tiles(mixed, IMAGE, block, strides=strides, **options)
        got = gpufold.map_tiles(flipped, array, block, strides=strides, batch=2, **options)
        np.testing.assert_array_equal(got.get() if kind == "cupy" else np.asarray(got), want)
        assert type(got) is (np.ndarray if kind in ("dask", "zarr") else type(array))
    out = np.zeros_like(want)
    assert gpufold.map_tiles(flipped, array, block, strides=strides, out=out, **options) is out
    np.testing.assert_array_equal(out, want)


def test_channels_that_come_last_are_an_axis_of_the_tile():
    image, axis = np.moveaxis(IMAGE, 0, -1), np.hanning(18)[1:-1]

    def two(tiles):
        assert tiles.shape[1:] == (16, 16, 3)
        return np.stack([tiles.sum(-1), tiles[..., 0]], -1).repeat(2, 1).repeat(2, 2)

    window = (*[np.repeat(axis, 2)] * 2, np.ones(2))
    got = gpufold.map_tiles(two, image, (16, 16, 3), strides=(12, 12, 3), window=window)
    assert got.shape == (100, 140, 2)
    np.testing.assert_allclose(got[::2, ::2, 0], image.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(got[1::2, ::2, 1], image[..., 0], rtol=1e-5)


def test_axes_smaller_than_a_tile_lie_in_its_middle():
    seen = []
    gpufold.map_tiles(lambda tiles: seen.append(tiles) or tiles, IMAGE[:1, :5, :40], (16, 16), strides=8, mode="edge")
    assert (np.diff(seen[0][0, 0, :6], axis=0) == 0).all()  # five rows before, six behind
    assert (np.diff(seen[0][0, 0, 9:], axis=0) == 0).all()
    np.testing.assert_array_equal(seen[0][0, 0, 5:10], IMAGE[0, :5, :16])
    for shape, side in (((2, 0, 5), 2), ((5, 0), 2), ((0, 6, 7), 4)):
        assert gpufold.map_tiles(np.copy, np.zeros(shape), (side, 4), strides=2).shape == shape


def test_what_no_tile_covers_is_refused_or_filled():
    for options in ({"last": "drop"}, {"strides": 17}):
        with pytest.raises(ValueError, match=r"^map_tiles: .* spatial axis 0 \(array axis 1\), .* fill_value=0 to"):
            mapped(lambda tiles: pytest.fail("asked"), **options)
        got = mapped(np.copy, fill_value=np.nan, **options)
        bare = np.isnan(got[0])
        assert bare.any()
        np.testing.assert_allclose(got[:, ~bare], IMAGE[:, ~bare], rtol=1e-6)
    with pytest.raises(ValueError, match=r"with nonzero weight \(the NOLA condition"):
        mapped(np.copy, window="hann")
    np.testing.assert_allclose(mapped(np.copy, window="hamming"), IMAGE, rtol=1e-5)


def test_batches_are_counted_by_what_is_given():
    seen = []

    def counted(batches):
        assert len(batches) == 6
        for batch in batches:
            seen.append(batch)
            yield batch

    mapped(np.copy, batch=4, progress=counted)
    assert len(seen) == 6


# ---- Killed, and started again


@pytest.mark.parametrize("batch", [1, 4])
def test_what_was_interrupted_goes_on_with_the_same_bits(batch, tmp_path):
    class Interrupted(Exception):
        pass

    window, calls = RNG.random((32, 32), np.float32), []

    def larger(tiles, stop=0):
        calls.append(len(tiles))
        if len(calls) == stop:
            raise Interrupted
        return (tiles + 2 * tiles[..., ::-1]).repeat(2, -1).repeat(2, -2)

    options = {"window": window, "batch": batch}
    want = mapped(larger, **options)
    every = len(calls)
    for stop in range(1, every + 1):
        out, note = np.full_like(want, np.nan), tmp_path / "rows"
        calls.clear()
        with pytest.raises(Interrupted):
            mapped(partial(larger, stop=stop), out=out, resume=note, **options)
        calls.clear()
        mapped(larger, out=out, resume=note, **options)
        np.testing.assert_array_equal(out, want)
        assert len(calls) <= every - (stop - 1) + 2 * 6 / batch + 1, "rows that are finished are not asked again"
        assert not note.exists()


def test_an_out_that_was_erased_is_refused(tmp_path):
    note, out = tmp_path / "rows", np.zeros_like(IMAGE)
    with pytest.raises(KeyboardInterrupt):
        mapped(partial(interrupted, seen=[]), out=out, resume=note, batch=4)
    kept = note.read_bytes()
    with pytest.raises(ValueError, match=r"^map_tiles: out must hold the rows .* open it without erasing it"):
        mapped(np.copy, out=np.zeros_like(IMAGE), resume=note, batch=4)
    assert note.read_bytes() == kept
    mapped(np.copy, out=out, resume=note, batch=4)
    np.testing.assert_array_equal(out, mapped(np.copy))


NOTES = {
    "of another call": ("says of another", lambda text: "12 rows of another"),
    **{
        f"of {rows} rows": (f"says {rows}$", lambda text, rows=rows: re.sub(r"^\d+", rows, text))
        for rows in ("xx", "500", "-5")
    },
    "a digit more": ("", lambda text: f"1{text}"),
    "a line less": ("", lambda text: text.partition("\n")[0]),
}
"""What another call noted, or nobody, each with what is said of it."""


@pytest.mark.parametrize(("said", "change"), NOTES.values(), ids=NOTES)
def test_notes_that_are_damaged_or_of_another_call_are_refused(said, change, tmp_path):
    """Some left rows unwritten, without an error."""
    note, line = tmp_path / "rows", np.arange(400.0)
    out = np.zeros_like(line)
    with pytest.raises(KeyboardInterrupt):
        gpufold.map_tiles(partial(interrupted, seen=[]), line, 8, strides=6, out=out, resume=note)
    note.write_text(change(note.read_text()))
    with pytest.raises(ValueError, match=rf"resume must name the notes of this call, .* {said}"):
        gpufold.map_tiles(np.copy, line, 8, strides=6, out=out, resume=note)


def test_a_call_resumes_after_a_tile_beyond_the_end(tmp_path):
    def stopped(batches):
        yield from batches
        raise KeyboardInterrupt

    line, out = np.arange(9.0), np.zeros(9)
    options = {"strides": 5, "last": "over", "fill_value": -1, "out": out, "resume": tmp_path / "rows"}
    with pytest.raises(KeyboardInterrupt):
        gpufold.map_tiles(np.copy, line, 2, progress=stopped, **options)
    gpufold.map_tiles(np.copy, line, 2, **options)
    assert out.tolist() == [0, 1, -1, -1, -1, 5, 6, -1, -1]


def test_resume_needs_an_out_of_numbers(tmp_path):
    with pytest.raises(TypeError, match=r"^map_tiles: resume needs an out of numbers, got dtype object"):
        mapped(np.copy, out=np.full(IMAGE.shape, None), resume=tmp_path / "rows")


def test_slabs_that_finish_returns_are_alike(tmp_path):
    """They were cast to the dtype of the first, and blamed on `out`."""
    line = np.arange(0, 1000.0, 10)

    def least(rows):
        return rows.astype(np.min_scalar_type(int(rows.max())))

    with pytest.raises(ValueError, match=r"^map_tiles: finish must return slabs of one dtype .* uint16 .* after uint8"):
        gpufold.map_tiles(np.copy, line, 8, strides=6, finish=least)
    got = gpufold.map_tiles(np.copy, line, 8, strides=6, finish=least, out=np.zeros(100, int))
    np.testing.assert_array_equal(got, line)


def test_complex_slabs_of_another_byte_order_are_complex():
    out = np.zeros(IMAGE.shape, ">c8")
    np.testing.assert_array_equal(mapped(lambda tiles: 1j * tiles, out=out), mapped(lambda tiles: 1j * tiles))
    with pytest.raises(TypeError, match="out must have a complex dtype"):
        mapped(np.copy, finish=lambda rows: (1j * rows).astype(">c8"), out=np.zeros_like(IMAGE))


def test_masks_are_refused_unless_nothing_is_masked():
    def sliced(mask):
        masked, members = np.ma.array(IMAGE, mask=mask), {"shape": IMAGE.shape, "dtype": IMAGE.dtype}
        return type("Sliced", (), members | {"__getitem__": lambda _, index: masked[index]})()

    np.testing.assert_array_equal(gpufold.map_tiles(np.copy, sliced(False), (16, 16), strides=12), mapped(np.copy))
    with pytest.raises(TypeError, match=r"^map_tiles: array must have no masked elements"):
        gpufold.map_tiles(np.copy, sliced(IMAGE > 0.5), (16, 16), strides=12)
    with pytest.raises(TypeError, match=r"^map_tiles: finish must return an array without a mask"):
        mapped(np.copy, finish=lambda rows: np.ma.array(rows, mask=False), out=np.zeros_like(IMAGE))


@pytest.mark.peer("zarr")
def test_an_array_that_was_opened_twice_is_no_out(tmp_path):
    zarr = import_module("zarr")
    zarr.create_array(tmp_path / "a", data=IMAGE, fill_value=np.nan)
    array, out = (zarr.open_array(tmp_path / "a", mode=mode) for mode in ("r", "r+"))
    with pytest.raises(TypeError, match=r"^map_tiles: out must be .*, got array itself"):
        gpufold.map_tiles(np.copy, array, (16, 16), strides=12, out=out)
    twin, other = (zarr.array(IMAGE, store=zarr.storage.MemoryStore()) for _ in range(2))
    np.testing.assert_array_equal(gpufold.map_tiles(np.copy, twin, (16, 16), strides=12, out=other)[:], mapped(np.copy))


@pytest.mark.peer("jax")
def test_what_finish_makes_of_jax_arrays_stays_as_it_is():
    jnp = import_module("jax.numpy")
    got = mapped(jnp.asarray, finish=lambda rows: np.asarray(rows).astype(np.int64) + 2**40)
    assert type(got) is np.ndarray
    assert got.dtype == np.int64
    assert got.min() == 2**40


def interrupted(tiles, seen):
    """Return the tiles of two batches, and be interrupted at the third."""
    if len(seen) == 2:
        raise KeyboardInterrupt
    seen.append(len(tiles))
    return tiles


WRONG_RESULTS = {
    "finish must return a slab": {"finish": lambda slab: slab[..., :1]},
    "finish must return a slab .*with rows": {"finish": lambda slab: slab[..., :1, :]},
    "finish must return an array of numbers, got numpy.ndarray of dtype": {"finish": lambda slab: slab.astype("U9")},
    "the function must return tiles of one shape": {"function": lambda tiles: tiles.repeat(1 + (len(tiles) < 5), -1)},
    "progress must yield the batches": {"progress": lambda batches: []},
    "progress must yield the batches that": {"progress": enumerate},
    "progress must return an iterator": {"progress": lambda batches: None},
}


@pytest.mark.parametrize("said", WRONG_RESULTS)
def test_what_functions_return_is_checked(said):
    """A slab of another shape was broadcast, and left rows at zero."""
    with pytest.raises((TypeError, ValueError), match=f"map_tiles: {said}"):
        mapped(**{"function": np.copy, "batch": 7, **WRONG_RESULTS[said]})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("side", "stride"), [(1, 4), (3, 8), (5, 2)])
def test_tiles_of_what_can_only_be_sliced_are_those_of_an_array(mode, side, stride):
    """Also beyond the array, where they do not reach the result."""

    class Sliced:
        shape, dtype = (6,), np.dtype(float)

        def __getitem__(self, index):
            return np.arange(6.0)[index]

    seen = []
    for array in (Sliced(), np.arange(6.0)):
        tiles = []
        options = {"strides": stride, "last": "over", "mode": mode, "fill_value": 0}
        gpufold.map_tiles(lambda few, tiles=tiles: tiles.append(few) or few, array, side, **options)
        seen.append(np.concatenate(tiles))
    np.testing.assert_array_equal(*seen)


@pytest.mark.peer("torch")
def test_results_of_another_library_are_written():
    import torch

    out = torch.zeros(IMAGE.shape)
    assert mapped(np.copy, out=out) is out
    np.testing.assert_allclose(out, IMAGE, rtol=1e-6)
    halves = mapped(torch.from_numpy, finish=lambda slab: slab.bfloat16(), out=np.zeros_like(IMAGE))
    np.testing.assert_allclose(halves, IMAGE, rtol=1e-2)
    with pytest.raises(TypeError, match="out must be an array that can be written to"):
        mapped(np.copy, out=torch.zeros(IMAGE.shape, requires_grad=True))


def test_notes_are_in_the_file_that_a_member_of_an_enumeration_names(tmp_path, monkeypatch):
    class Name(str, Enum):  # noqa: UP042  whose members are not what `str` says of them
        NOTES = "notes"

    def looking(tiles):
        assert [path.name for path in tmp_path.iterdir()] in ([], ["notes"])
        return tiles

    monkeypatch.chdir(tmp_path)
    out = np.zeros_like(IMAGE)
    mapped(looking, batch=1, out=out, resume=Name.NOTES)
    assert not [*tmp_path.iterdir()]


INVERTED = """
import sys, numpy as np, zarr, gpufold
folder = sys.argv[1]
most = lambda: int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
begun = most()
volume, out = (zarr.open_array(f"{folder}/{name}.zarr", mode="r+") for name in ("in", "out"))
gpufold.map_tiles(
    lambda tiles: 255 - tiles, volume, (16, 128, 128), strides=(12, 96, 96), batch=4,
    out=out, finish=lambda rows: rows.round().astype(np.uint8), resume=f"{folder}/rows",
)
print(begun, most())
"""


@pytest.mark.peer("zarr")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most memory of a process is read from /proc")
@pytest.mark.parametrize(
    "shape",
    [
        (120, 256, 256),
        pytest.param((300, 512, 512), marks=pytest.mark.all),
        pytest.param((2050, 512, 512), marks=pytest.mark.many),
    ],
    ids=["8 MB", "80 MB", "0.5 GB"],
)
def test_a_volume_on_disk_is_mapped_in_little_memory_and_goes_on_after_a_kill(shape, tmp_path):
    """So much of Zarr's into as much, in less than 130 MB besides Python and its packages."""
    import zarr

    rng = np.random.default_rng(0)
    arrays = [
        zarr.create_array(f"{tmp_path}/{name}.zarr", shape=shape, chunks=(12, 96, 96), dtype="u1", compressors=None)
        for name in ("in", "out")
    ]
    for row in range(0, shape[0], 12):
        arrays[0][row : row + 12] = rng.integers(0, 256, (min(12, shape[0] - row), *shape[1:]), np.uint8)
    command, rows = [sys.executable, "-c", INVERTED, str(tmp_path)], tmp_path / "rows"
    with subprocess.Popen(command, cwd=CHECKOUT) as first:
        while not (rows.exists() and int(rows.read_text().split()[0]) > shape[0] // 3):
            assert first.poll() is None
            sleep(0.01)
        first.kill()
    noted = int(rows.read_text().split()[0])
    begun, peak = map(int, python(*command[1:]).split())
    print(f"went on from row {noted} of {shape[0]}, {peak / 1000:.0f} MB, {begun / 1000:.0f} of them before")
    assert peak - begun < 130_000
    for row in range(0, shape[0], 120):
        np.testing.assert_array_equal(arrays[1][row : row + 120], 255 - arrays[0][row : row + 120])
    rmtree(tmp_path)  # pytest keeps those of three runs


# ---- Where tiles lie that cover an array: four rules, each as its definition says, and as the programs that it is from

RULES = ("shift", "even", "over", "drop")


def along_axis(size, block, stride, last):
    """Return the positions of one axis, block after block."""
    begins = [0]
    while begins[-1] + block < size:
        begins.append(begins[-1] + stride)
    if last == "even":
        return nnunet(size, block, stride)
    if begins[-1] + block > size:
        if last == "shift":
            begins[-1] = size - block
        if last == "drop":
            begins.pop()
    return begins


def nnunet(size, block, stride):
    """As many as reach the end, evenly: `compute_steps_for_sliding_window` of nnU-Net 2, by its formula."""
    count = ceil((size - block) / stride) + 1
    distance = (size - block) / (count - 1) if count > 1 else 99999999999
    return [int(np.round(distance * number)) for number in range(count)]


@pytest.mark.parametrize("last", RULES)
def test_random_grids_are_their_definition(last):
    first = random.SystemRandom().randrange(10**6)
    print(f"seeds from {first}")
    for seed in range(first, first + 400):
        rng = random.Random(seed)
        rank = rng.choice((1, 2, 2, 3))
        size = [rng.randint(1, 60) for _ in range(rank)]
        block = [rng.randint(1, 80 if last == "over" else extent) for extent in size]
        stride = [rng.randint(1, 30) for _ in range(rank)]
        got = gpufold.grid_positions(size, block, strides=stride, last=last)
        want = list(product(*(along_axis(*axis, last) for axis in zip(size, block, stride, strict=True))))
        assert got.dtype == np.int64
        assert got.flags.c_contiguous
        assert got.tolist() == [list(place) for place in want], f"seed {seed}: {size} {block} {stride}"


@pytest.mark.parametrize(
    ("size", "block", "strides", "last", "positions"),
    [
        # half of an odd number is on either side of it in double precision, and rounded to even
        (35, 1, 1, "even", range(35)),
        (30, 1, 2, "even", nnunet(30, 1, 2)),
        (8, 1, 3, "even", [0, 2, 5, 7]),
        (6, 1, 3, "even", [0, 2, 5]),
        # beyond what double precision holds
        (2**62, 2**61, 2**61, "shift", [0, 2**61]),
        (2**62 + 1, 2**61, 2**61, "even", [0, 2**60, 2**61 + 1]),
        (2**62 + 7, 1, 2**60 + 1, "shift", [*range(0, 2**62 + 6, 2**60 + 1), 2**62 + 6]),
        (9, 4, 2**70, "shift", [0, 5]),
    ],
)
def test_positions_of_any_extent_are_exact(size, block, strides, last, positions):
    assert gpufold.grid_positions((size,), block, strides=strides, last=last).ravel().tolist() == list(positions)
