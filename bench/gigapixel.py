"""Stitches a picture of any size from overlapping tiles into Zarr, in one process and in several of limited memory.

The tiles exist nowhere: each comes from the seed when it is needed. Pieces of every picture are compared with
`gpufold.blocks_to_array` on the tiles that reach them, bit for bit.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import zarr
from dask.utils import parse_bytes
from distributed import Client, LocalCluster

import gpufold
import gpufold.dask
from bench.results import command_line, commit, now, processor, version, write
from bench.terminal import Console, Table, progress
from bench.timing import significant

Picture = npt.NDArray[np.float32]

TILE, STRIDE = 256, 192

TILES_PER_CHUNK = 8
"""Along each axis; a chunk of the picture has the pixels from the first of them to the first of the next chunk."""

CHUNK = TILES_PER_CHUNK * STRIDE

PART = 4
"""Chunks along each axis of the part of a picture that is stitched at a time."""

SEED = 6

KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""Of a worker's environment: dask has the C library give back all memory at once, and each new chunk is then cleared by
the system page by page."""

LEAST_MEMORY = 400 << 20
"""Of a worker: with 300 MiB it pauses and is restarted without end."""

SAMPLES, SAMPLE = 8, 200
"""Pieces of a picture that are checked, and their side in pixels."""


@dataclass
class Job:
    """What one way to stitch the picture took."""

    name: str
    seconds: float
    megapixels_per_second: float
    peak_megabytes: list[float]
    """Of resident memory, for each process that computed."""


def window() -> tuple[Picture, Picture]:
    """Return a Gaussian for each axis, an eighth of the tile wide."""
    distance = np.arange(TILE) - (TILE - 1) / 2
    weights = np.exp(-0.5 * (distance / (TILE / 8)) ** 2).astype(np.float32)
    return weights, weights


def chunk_of_tiles(location: tuple[int, int], shape: tuple[int, ...]) -> Picture:
    """Make the tiles of a chunk, of noise that does not compress."""
    return np.random.default_rng((SEED, *location)).random(shape, np.float32)


def _chunk(block_info: Any = None) -> Picture:
    return chunk_of_tiles(block_info[None]["chunk-location"][:2], block_info[None]["chunk-shape"])


def tiles(count: int) -> Any:
    """Describe count x count tiles, lazily."""
    chunks = da.core.normalize_chunks((TILES_PER_CHUNK, TILES_PER_CHUNK, TILE, TILE), (count, count, TILE, TILE))
    return da.map_blocks(_chunk, chunks=chunks, dtype=np.float32, meta=np.empty((0,) * 4, np.float32))


def side_of(count: int) -> int:
    """Return the side of the picture that count x count tiles make."""
    return (count - 1) * STRIDE + TILE


def stitch(count: int, path: str) -> float:
    """Stitch a picture into Zarr with dask's present scheduler, part by part; return the seconds.

    dask walks a whole picture row by row and keeps the chunks that the next row needs too. A part keeps its own only,
    and reads a row and a column of chunks again that parts before it have read. Parts share tasks, which dask would
    fuse differently in each and `distributed` then take for one another.
    """
    start = time.perf_counter()
    side, step = side_of(count), PART * CHUNK
    picture = gpufold.dask.blocks_to_array(
        tiles(count), (side, side), (TILE, TILE), STRIDE, reduction="mean", window=window(), chunks=CHUNK
    )
    target = zarr.create_array(path, shape=picture.shape, chunks=picture.chunksize, dtype=picture.dtype)
    corners = [*product(range(0, side, step), repeat=2)]
    for top, left in progress(corners, "part at row {0[0]}, column {0[1]}".format, len(corners)):
        part = (slice(top, min(top + step, side)), slice(left, min(left + step, side)))
        with dask.config.set({"optimization.fuse.active": False}):
            da.store(picture[part], target, regions=part, lock=False)
    return time.perf_counter() - start


def check(count: int, path: str) -> None:
    """Compare pieces of a stitched picture, the last one and others around corners of chunks, with the eager call."""
    side, source, picture = side_of(count), tiles(count), da.from_zarr(path)
    rng = np.random.default_rng(SEED)
    corners = rng.integers(0, -(-side // CHUNK), (SAMPLES - 1, 2)) * CHUNK + rng.integers(
        -SAMPLE, SAMPLE, (SAMPLES - 1, 2)
    )
    for corner in (*corners, (side, side)):
        starts = np.clip(corner, 0, side - SAMPLE)
        first = np.maximum(0, (starts - TILE) // STRIDE + 1)
        last = np.minimum(count - 1, (starts + SAMPLE - 1) // STRIDE)
        (top, left), (bottom, right) = first, last + 1
        reaching = source[top:bottom, left:right].compute(scheduler="synchronous")
        shape = tuple((last - first) * STRIDE + TILE)
        want = gpufold.blocks_to_array(reaching, shape, (TILE, TILE), STRIDE, reduction="mean", window=window())
        (y, x), (row, column) = starts, starts - first * STRIDE
        got = picture[y : y + SAMPLE, x : x + SAMPLE].compute(scheduler="synchronous")
        if got.tobytes() != want[row : row + SAMPLE, column : column + SAMPLE].tobytes():
            raise ValueError(f"the picture is wrong within {SAMPLE} pixels of {y}, {x}")


def peak_megabytes() -> float:
    """Return the largest resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _in_this_process(count: int, path: str, threads: int) -> tuple[float, list[float]]:
    gpufold.set_num_threads(1)
    with dask.config.set(scheduler="threads", num_workers=threads):
        return stitch(count, path), [peak_megabytes()]


def _one_process(threads: int) -> Callable[[int, str], tuple[float, list[float]]]:
    def run(count: int, path: str) -> tuple[float, list[float]]:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # whose memory is its own
            return pool.submit(_in_this_process, count, path, threads).result()

    return run


def _workers(workers: int, memory: str, folder: str) -> Callable[[int, str], tuple[float, list[float]]]:
    def run(count: int, path: str) -> tuple[float, list[float]]:
        options: dict[str, Any] = {
            "host": "127.0.0.1",
            "threads_per_worker": 1,
            "memory_limit": memory,
            "local_directory": folder,
        }
        with (
            dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_FREED_MEMORY}),
            LocalCluster(n_workers=workers, processes=True, dashboard_address=":0", **options) as cluster,
            Client(cluster) as client,
        ):
            client.run(gpufold.set_num_threads, 1)
            before = client.run(os.getpid)
            seconds = stitch(count, path)
            if client.run(os.getpid) != before:
                raise ValueError(f"a worker was lost, with a memory limit of {memory}")
            return seconds, list(client.run(peak_megabytes).values())

    return run


def gigapixel(
    side: int,
    memory: str,
    workers: list[int],
    folder: Path | None,
    save: Path | None,
    words: list[str],
    console: Console,
) -> int:
    """Stitch a picture of at least this side in every way, and print what it took."""
    if parse_bytes(memory) < LEAST_MEMORY:
        raise ValueError(f"--memory must be at least {LEAST_MEMORY >> 20}MiB for a worker, got {memory}")
    count = max(1, -(-(side - TILE) // STRIDE) + 1)
    side = side_of(count)
    size = side * side / 1e6
    done: list[Job] = []
    with TemporaryDirectory(dir=folder) as temporary:
        ways = {f"one process, {threads} thread{'s' * (threads > 1)}": _one_process(threads) for threads in (1, 2)}
        ways |= {f"{n} worker{'s' * (n > 1)} of {memory}": _workers(n, memory, temporary) for n in workers}
        table = Table("dask", "s", "MPixel/s", "of one thread", "peak MB of each process", box=None)
        for name, run in ways.items():
            with TemporaryDirectory(dir=temporary) as result, console.status(f"{name}: {size / 1000:.2f} gigapixels"):
                path = f"{result}/picture.zarr"
                seconds, peaks = run(count, path)
                check(count, path)
            done.append(Job(name, seconds, size / seconds, peaks))
            speed_up = done[0].seconds / seconds
            table.add_row(
                name,
                f"{seconds:.1f}",
                f"{size / seconds:.1f}",
                f"{speed_up:.2f}",
                " ".join(f"{peak:.0f}" for peak in peaks),
            )
    lines = [
        f"{side} x {side} float32, {size / 1000:.2f} gigapixels, from {count} x {count} tiles of {TILE} x {TILE} at "
        f"stride {STRIDE} with a Gaussian window and mean, into Zarr in parts of {PART} x {PART} chunks of "
        f"{CHUNK} x {CHUNK}; {SAMPLES} pieces checked bit for bit",
        f"{os.cpu_count()} cores, {processor()}; gpufold {gpufold.__version__}, commit {commit()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("dask", "distributed", "zarr", "numpy")),
        f"workers with {' '.join(f'{name}={value}' for name, value in KEEP_FREED_MEMORY.items())}",
        command_line(words),
    ]
    console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False)
    if save:
        rows = [
            {
                "name": job.name,
                "seconds": significant(job.seconds),
                "megapixels_per_second": significant(job.megapixels_per_second),
                "peak_megabytes": [significant(peak) for peak in job.peak_megabytes],
            }
            for job in done
        ]
        write(save, {"date": now(), "about": lines}, "jobs", rows)
        console.print(f"saved to {save}", highlight=False)
    return 0
