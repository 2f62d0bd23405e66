"""`map_tiles`: apply a function to overlapping tiles of an array and blend the results."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from gpufold.arrays import Array, Window, check_apart, check_library, check_writable
from gpufold.backends import backend_of
from gpufold.calls import REDUCTIONS, Mode, Reduction
from gpufold.dispatch import front_of
from gpufold.geometry import LastBlock, Size, Sizes, as_count, as_integers
from gpufold.given import check_number, device_of_cupy, shown, type_name, word
from gpufold.names import speaking_for, suggests_keywords
from gpufold.outside import BY_INDEX
from gpufold.positions import grid_positions, take_blocks
from gpufold.stitching import Stitcher

_speaking = partial(speaking_for, "map_tiles", "grid_positions", "take_blocks", "Stitcher")
"""Raise errors of the functions that `map_tiles` calls under its name."""


@suggests_keywords
def map_tiles(
    function: Callable[[Any], Any],
    array: Array[Any],
    block_shape: Sizes,
    *,
    strides: Sizes,
    window: Window | str | None = None,
    batch: int = 1,
    last: LastBlock = "shift",
    mode: Mode = "constant",
    reduction: Reduction = "mean",
    fill_value: complex | None = None,
    finish: Callable[[Any], Any] | None = None,
    out: Any = None,
    resume: str | Path | None = None,
    progress: Callable[[Any], Iterable[int]] | None = None,
) -> Any:
    """Apply a function to overlapping tiles of an array and average the results: sliding-window inference.

    ``(*lead, *size) -> (*channels, *size * scale)``, by a function of tiles ``(B, *lead, *block_shape)``

    >>> import numpy as np, gpufold
    >>> image = np.arange(35.0, dtype=np.float32).reshape(5, 7)
    >>> np.array_equal(gpufold.map_tiles(np.negative, image, (4, 4), strides=2, batch=3), -image)
    True
    >>> def twice_as_large(tiles):
    ...     return tiles.repeat(2, -2).repeat(2, -1)
    >>> gpufold.map_tiles(twice_as_large, image, (4, 4), strides=2).shape
    (10, 14)

    For channels-last arrays, let a tile span the axis of channels:

    >>> rgb = np.ones((5, 7, 3), np.float32)
    >>> gpufold.map_tiles(lambda tiles: tiles.sum(-1, keepdims=True), rgb, (4, 4, 3), strides=(2, 2, 3)).shape
    (5, 7, 1)

    Besides the result, memory holds the positions, one batch of tiles, what the function returns, and the sums and
    weights of the rows that open tiles overlap. Memory-mapped, Zarr and dask arrays are read tile by tile, and `out` is
    written slab by slab.

    Parameters
    ----------
    function : callable
        Function from tiles (B, *lead, *block_shape), B up to `batch`, to tiles (B, *channels, *tile). `tile` may be a
        multiple or a whole fraction of `block_shape`, by which positions are scaled too; a function must not crop its
        tiles. Call a torch model in `torch.inference_mode()`, else the graph of every tile is kept.
    array : numpy.ndarray, cupy.ndarray, torch.Tensor, jax.Array, dask.array.Array or array-like with slicing
        Array of shape (*lead, *size). Axes smaller than a tile are centred in it and padded according to `mode`. Tiles
        of a dask array are computed; tiles of another array that can be sliced, such as a Zarr array, are NumPy arrays.
    block_shape : int or sequence of int
        Elements of a tile along each of the last axes, those of `size`, at least 1. An int means the same on every axis
        of `array`, also that of channels: give (64, 64) for tiles of an image (channels, height, width).
    strides : int or sequence of int
        Elements between adjacent tiles, at least 1. An int means the same on every axis.
    window : numpy.ndarray, cupy.ndarray, torch.Tensor, jax.Array or sequence of them, or str, optional
        Real weights of the function's tiles: an array of shape `tile`, one array per axis, or the name of a SciPy
        window, as in `Stitcher`. The default gives all elements equal weight. "hann" begins with 0, so elements at a
        border have no weight: use `numpy.hanning(n + 2)[1:-1]` or `fill_value`.
    batch : int
        Maximum number of tiles per call of the function.
    last, mode, reduction
        As in `grid_positions`, `take_blocks` and `Stitcher`.
    fill_value : number, optional
        Value of elements of an average that no tile covers with nonzero weight. By default they are a ValueError.
    finish : callable, optional
        Function applied to each finished slab (*channels, *rows), such as an argmax over channels. It keeps the axes of
        `size`, and returns one dtype and shape of channels unless `out` is given.
    out : array, optional
        Output of the result's shape, to whose dtype the result is converted as by `astype`: an array other than
        `array`, or an object with slice assignment from NumPy arrays, such as a Zarr array. It is complex if the result
        is.
    resume : str or pathlib.Path, optional
        File that records how much of `out` is written, until it is complete. After a kill the same call, on an `out`
        that still holds what was written, resumes from it, and the result is bitwise identical.
    progress : callable, optional
        Wrapper of the iterator over batches, such as `tqdm.tqdm` or `rich.progress.track`, to show a progress bar.

    Returns
    -------
    numpy.ndarray, cupy.ndarray, torch.Tensor or jax.Array
        The result, of the library and device of the function's tiles, or `out`.

    Raises
    ------
    TypeError, ValueError
        As in `grid_positions`, `take_blocks` and `Stitcher`, or the function's tiles have another shape, or tiles leave
        gaps, or a result is complex and `out` is not.

    See Also
    --------
    Stitcher : The same with a loop of your own.
    dask.array.overlap.map_overlap : Halos without averaging.
    """
    called: dict[str, Any] = {"function": function, "finish": finish, "progress": progress}
    for name, each in called.items():
        if not callable(each) and (each is not None or name == "function"):
            raise TypeError(f"map_tiles: {name} must be callable, got {shown(each)}")
    if not (isinstance(getattr(array, "shape", None), tuple) and hasattr(array, "dtype")):
        raise TypeError(f"map_tiles: array must be an array, got {shown(array)}; convert it with numpy.asarray")
    if not isinstance(resume, str | Path | None):
        raise TypeError(f"map_tiles: resume must be the name of a file, got {shown(resume)}")
    notes = Path(str.__str__(resume)) if isinstance(resume, str) else resume  # a member of an enumeration is its value
    average = word("map_tiles", "reduction", reduction, REDUCTIONS) != "sum"
    if fill_value is not None:
        check_number("map_tiles", "fill_value", fill_value)
    block = as_integers("map_tiles", "block_shape", block_shape)
    block = (block,) * len(array.shape) if isinstance(block, int) else block
    if not 0 < len(block) <= len(array.shape):
        raise ValueError(
            f"map_tiles: block_shape must have one value for each of array's last axes, got {shown(block_shape)} for "
            f"shape {tuple(array.shape)}"
        )
    if max(block) > sys.maxsize:
        raise ValueError(
            f"map_tiles: block_shape must be at most {sys.maxsize} on every axis, got {shown(block_shape)}"
        )
    number = as_count("map_tiles", "batch", batch)
    if isinstance(out, np.ndarray):
        check_library("map_tiles", "out", out, np, "the result")
        check_writable("map_tiles", np, "out", out, "array", array)
        if isinstance(array, np.ndarray):
            check_apart("map_tiles", np, "out", out, [("array", array)])
    elif out is not None and (
        (same := _is_same(out, array))
        or not all(hasattr(out, name) for name in ("shape", "dtype", "__setitem__"))
        or getattr(out, "requires_grad", False)
        or front_of(type(out)).endswith("jax")
    ):
        got = "array itself" if same else shown(out)
        raise TypeError(f"map_tiles: out must be an array that can be written to, got {got}")
    rank = len(block)
    size = tuple(array.shape)[-rank:]
    with _speaking():
        positions = grid_positions(tuple(map(max, size, block)), block, strides=strides, last=last)
    positions -= [max(0, side - extent) // 2 for side, extent in zip(block, size, strict=True)]
    if fill_value is None and average:
        _check_covered(positions, size, block, len(array.shape) - rank)
    steps = as_integers("map_tiles", "strides", strides)
    said = (
        f"of shape {tuple(array.shape)} in {len(positions)} tiles {block} up to {positions[-1].tolist()} with strides "
        f"{steps}, {last=}, {mode=}, {reduction=}"
    )
    done, written = _noted(notes, said, out, min(size[0], max(0, positions[-1, 0])), rank)
    many = (positions != positions[0]).any(axis=0).tolist()
    positions = positions[np.searchsorted(positions[:, 0], done - block[0], "right") :]
    given, first = out, 0
    finished: tuple[type, Any, Size] | None = None
    stitcher: Stitcher[Any, tuple[int, Any]] | None = None
    tile: Size | None = None
    for start in _batches(range(0, len(positions), number), progress):
        places = positions[start : start + number]
        with _speaking():
            tiles = _tiles(array, places.tolist(), block, mode)
        tiles = function(tiles)
        with _speaking():
            tile, scale = _scale(tiles, block, len(places), tile, many)
            if stitcher is None:
                whole = _scaled(np.array([size]), scale, "size")[0].tolist()
                first = _scaled(np.array([[done, *[0] * (rank - 1)]]), scale, "positions")[0, 0]
                shape = (*tuple(tiles.shape)[1:-rank], whole[0] - first, *whole[1:])
                stitcher = Stitcher(shape, tile, window=window, reduction=reduction, slabs=True)
            stitcher.add(tiles, _scaled(places, scale, "positions") - [first, *[0] * (rank - 1)])
            del tiles  # else they are kept while the next ones are made
            begin, slab = stitcher.finished(fill_value=fill_value)
        if slab.shape[-rank]:
            slab = _finished(slab, rank, finish, None if given is not None else finished)
            finished = _kind_of(slab, rank)
            out = _written(out, first + begin, slab, whole)
            if notes is not None:
                written = _checksum(out, first + begin, first + begin + slab.shape[-rank], rank)
        del slab
        _note(notes, out, f"{min(size[0], max(0, places[-1, 0]))} rows {said}", written)
    assert stitcher is not None  # there is at least one position
    with _speaking():
        begin, slab = stitcher.result(fill_value=fill_value)
    if slab.shape[-rank] or (out is None and not size[0]):  # an array without rows has one slab without rows
        slab = _finished(slab, rank, finish, None if given is not None else finished)
        finished = _kind_of(slab, rank)
        out = _written(out, first + begin, slab, whole)
    if notes is not None:
        notes.unlink()
    if given is None and finished and front_of(finished[0]).endswith("jax"):  # rows were written into a NumPy array
        return sys.modules["jax"].numpy.asarray(out)
    return out


def _is_same(out: Any, array: Any) -> bool:
    """Return whether an output is an array, or another object for the same Zarr or HDF5 array."""
    if out is array or type(out) is not type(array):
        return out is array
    library = type(out).__module__.partition(".")[0]
    if library != "zarr":
        return library == "h5py" and bool(out.id == array.id)
    roots: list[Any] = [getattr(each.store, "root", None) for each in (out, array)]
    if None not in roots:  # of folders
        return Path(roots[0], out.path).resolve() == Path(roots[1], array.path).resolve()
    held = [getattr(each.store, "_store_dict", None) for each in (out, array)]  # in memory, where == compares contents
    same = out.store == array.store if held[0] is None else held[0] is held[1]
    return bool(same) and out.path == array.path


def _batches(starts: range, progress: Callable[[Any], Any] | None) -> Iterator[int]:
    """Yield the first tile of each batch, through `progress` if it is given, which must leave out none."""
    passed = starts if progress is None else progress(starts)
    if not isinstance(passed, Iterable):
        raise TypeError(f"map_tiles: progress must return an iterator over batches, got {shown(passed)}")
    for start, got in zip_longest(starts, passed):
        if got != start:
            raise ValueError(f"map_tiles: progress must yield the batches that it is given, got {shown(got)}")
        yield start


def _check_covered(positions: Any, size: Size, block: Size, lead: int) -> None:
    """Raise if tiles leave gaps between them or at the end of an axis."""
    for axis, (extent, side) in enumerate(zip(size, block, strict=True)):
        begins = np.unique(positions[:, axis])
        if (np.diff(begins, append=extent) > side).any():
            raise ValueError(
                f"map_tiles: tiles must cover the array, got tiles of {block} with gaps on spatial axis {axis} "
                f"(array axis {lead + axis}), of {extent} elements; use strides up to block_shape and last='shift', or "
                "fill_value=0 to fill them"
            )


def _tiles(array: Any, places: list[list[int]], block: Size, mode: Mode) -> Any:
    """Extract a batch of tiles into memory; from an array that can only be sliced, one after another."""
    if isinstance(array, np.ndarray) or hasattr(array, "__cuda_array_interface__") or front_of(type(array)):
        tiles = take_blocks(array, places, block, mode=mode)
        return tiles.compute() if hasattr(tiles, "compute") else tiles
    tiles, size = [], array.shape[-len(block) :]
    for place in places:
        begins, ends = [], []
        for begin, side, extent in zip(place, block, size, strict=True):
            over = begin < 0 or begin + side > extent  # the elements to mirror are then read too
            beyond = begin >= extent or begin + side <= 0
            whole = over and (mode == "wrap" or (beyond and mode in BY_INDEX))
            begins.append(0 if whole else max(0, min(begin, extent - side)))
            ends.append(extent if whole else min(extent, max(begin, 0) + side))
        part = array[(..., *map(slice, begins, ends))]
        if np.ma.is_masked(part):
            raise TypeError("map_tiles: array must have no masked elements, got some; fill them, as filled(value) does")
        part = np.asarray(part)
        tiles.append(take_blocks(part, [np.subtract(place, begins).tolist()], block, mode=mode))
    return np.concatenate(tiles)


def _noted(path: Path | None, said: str, out: Any, most: int, rank: int) -> tuple[int, str]:
    """Return the row of the array, `most` at the most, up to which a killed call had written, and a checksum of that.

    Raise if `out` does not hold it any more.
    """
    if path is None:
        return 0, ""
    if out is None:
        raise ValueError("map_tiles: resume needs an out that outlives the process, such as a numpy.memmap")
    if getattr(out.dtype, "hasobject", False):
        raise TypeError(f"map_tiles: resume needs an out of numbers, got dtype {out.dtype}")
    try:
        text = path.read_text() if path.exists() else _text(f"0 rows {said}", "")
        _part_of(path).write_text(said)  # finds out whether notes can be written, before anything is
        _part_of(path).unlink()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"map_tiles: resume must be the name of a file that can be written, got {shown(str(path))}"
        ) from error
    head, written, *_ = [*text.split("\n"), ""]
    rows, _, noted = head.partition(" rows ")
    if noted != said or not rows.isdecimal() or int(rows) > most or text != _text(head, written):
        raise ValueError(
            f"map_tiles: resume must name the notes of this call, on an array {said}, but {path} says "
            f"{noted if noted != said else rows}"
        )
    start, stop, *_ = [int(each) for each in written.split() if each.isdecimal()] + [0, 0]
    if written and _checksum(out, start, stop, rank) != written:
        raise ValueError(
            f"map_tiles: out must hold the rows {start} to {stop} that were written before, by {path}, but they have "
            f"changed; open it without erasing it, such as numpy.memmap(..., mode='r+'), or remove {path} to begin anew"
        )
    return int(rows), written


def _checksum(out: Any, start: int, stop: int, rank: int) -> str:
    """Return the begin and end of some rows of an array, and a checksum of them; "" if it can only be written."""
    if not hasattr(out, "__getitem__"):
        return ""
    part = np.ascontiguousarray(_on_host(out[(..., slice(start, stop), *(slice(None),) * (rank - 1))]))
    return f"{start} {stop} {zlib.crc32(part.view(np.uint8).data)}"


def _note(path: Path | None, out: Any, rows: str, written: str) -> None:
    """Replace a file atomically by one with a call's progress."""
    if path is not None:
        if not isinstance(out, np.ndarray) and callable(flush := getattr(out, "flush", None)):
            flush()  # HDF5 loses what a killed process has in its buffers
        _part_of(path).write_text(_text(rows, written))
        _part_of(path).replace(path)


def _text(rows: str, written: str) -> str:
    """Return the text of notes, with a checksum of it."""
    return f"{rows}\n{written}\n{zlib.crc32(f'{rows} {written}'.encode())}"


def _part_of(path: Path) -> Path:
    """Return the file that becomes the file of notes once it is whole."""
    return path.with_name(f"{path.name}.part")


def _scale(tiles: Any, block: Size, count: int, before: Size | None, many: list[bool]) -> tuple[Size, list[Fraction]]:
    """Return the shape of the function's tiles, that of those before, and their scale along each axis.

    It is a multiple or a whole fraction along axes of `many` tiles: another scale is likely that of cropped tiles.
    """
    shape = tuple(getattr(tiles, "shape", ()))
    tile = shape[-len(block) :]
    if len(shape) <= len(block) or shape[0] != count or not all(tile):
        raise ValueError(
            f"map_tiles: the function must return (B, *channels, *tile) with B = {count} and {len(block)} axes of a "
            f"tile, got {f'shape {shape}' if shape else shown(tiles)}"
        )
    if before not in (None, tile):
        raise ValueError(f"map_tiles: the function must return tiles of one shape, got {tile} after {before}")
    scale = [Fraction(*extents) for extents in zip(tile, block, strict=True)]
    if any(several and 1 not in each.as_integer_ratio() for several, each in zip(many, scale, strict=True)):
        raise ValueError(
            f"map_tiles: the function must return tiles of a multiple or a whole fraction of {block}, got {tile}; add "
            "others, as of convolutions without padding, to a Stitcher at positions of their own"
        )
    return tile, scale


def _scaled(numbers: Any, scale: list[Fraction], what: str) -> Any:
    """Return integers (..., rank) times the scale of each axis; raise if the products are not integers."""
    scaled = numbers * [each.numerator for each in scale]
    below = np.array([each.denominator for each in scale])
    if (scaled % below).any():
        raise ValueError(
            f"map_tiles: {what} times the scale {', '.join(map(str, scale))} of the function must be integers, got "
            f"{shown(numbers.tolist())}; choose block_shape, strides and last='over' accordingly"
        )
    return scaled // below


def _on_host(slab: Any) -> Any:
    """Return an array as one of NumPy."""
    if hasattr(slab, "detach"):
        slab = slab.detach().resolve_conj().resolve_neg().cpu()
        slab = slab.float() if str(slab.dtype) == "torch.bfloat16" else slab
    return slab.get() if hasattr(slab, "get") else np.asarray(slab)


def _kind_of(slab: Any, rank: int) -> tuple[type, Any, Size]:
    """Return the type of a finished slab, its dtype, and the shape of its channels."""
    return type(slab), slab.dtype, tuple(slab.shape)[:-rank]


def _finished(slab: Any, rank: int, finish: Callable[[Any], Any] | None, before: tuple[type, Any, Size] | None) -> Any:
    """Return a slab as `finish` returns it, of the dtype and channels of the one `before`, if any."""
    rows = tuple(slab.shape)[-rank:]
    if finish is None:
        return slab
    slab = finish(slab)
    shape = tuple(getattr(slab, "shape", ()))
    if shape[-rank:] != rows:
        raise ValueError(
            f"map_tiles: finish must return a slab (*channels, *rows) with rows {rows}, got "
            f"{f'shape {shape}' if shape else shown(slab)}"
        )
    if isinstance(slab, np.ma.MaskedArray):
        raise TypeError("map_tiles: finish must return an array without a mask, got a masked array; use filled(value)")
    if before is not None and _kind_of(slab, rank)[1:] != before[1:]:
        raise ValueError(
            f"map_tiles: finish must return slabs of one dtype and shape of channels without out, got {slab.dtype} and "
            f"{shape[:-rank]} after {before[1]} and {before[2]}"
        )
    return slab


def _is_complex(dtype: Any) -> bool:
    return getattr(dtype, "kind", "") == "c" or "complex" in str(dtype)  # torch's have no kind


def _written(out: Any, start: int, slab: Any, size: Size) -> Any:
    """Write a slab from row `start` on into `out`, or into a new array with last axes `size`, and return the array."""
    rank, shape = len(size), tuple(slab.shape)
    if out is not None and tuple(out.shape) != (*shape[:-rank], *size):
        raise ValueError(f"map_tiles: out must have the shape {(*shape[:-rank], *size)}, got {tuple(out.shape)}")
    if out is not None and _is_complex(slab.dtype) and not _is_complex(out.dtype):
        raise TypeError(f"map_tiles: out must have a complex dtype for a result of {slab.dtype}, got {out.dtype}")
    if out is None:
        try:
            backend = backend_of(slab)
        except TypeError as error:
            raise TypeError(
                f"map_tiles: finish must return an array of numbers, got {type_name(slab)} of dtype {slab.dtype}"
            ) from error
        with backend.device:
            out = backend.zeros((*shape[:-rank], *size), slab.dtype)
    elif type(out) is not type(slab):
        slab = _on_host(slab)
        if front_of(type(out)).endswith("torch"):
            slab = sys.modules["torch"].from_numpy(slab)
    with device_of_cupy(out):
        out[(..., slice(start, start + slab.shape[-rank]), *(slice(None),) * (rank - 1))] = slab
    return out
