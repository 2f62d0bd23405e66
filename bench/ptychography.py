"""Reconstructs a complex picture from simulated diffraction: what ptychography does with take_blocks and add_blocks.

A probe of light falls on one part of an object after another, and far behind each part a camera counts photons. It sees
how strong the waves are that arrive there, but not their phase. Because the parts overlap, one object fits all counts.

ePIE (Maiden and Rodenburg, Ultramicroscopy 109, 2009) goes from position to position: it takes the object's part,
multiplies it by the probe, gives the wave in the camera's plane the strength that was measured, and adds what that
changes to object and probe before it takes the next part. Each step is one small block, and waits for the one before.
Here a step is a batch of positions, drawn anew in each sweep: `take_blocks` takes all their parts, `add_blocks` adds
all their changes, and the light of the batch, added up in the same way, divides them where parts overlap. Dim pixels
are divided by more than their own light, as in rPIE (Maiden, Johnson and Li, Optica 4, 2017). A batch of one position
with damping 1 is ePIE itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import fft

import gpufold
from bench.results import command_line, commit, processor, version
from bench.terminal import INTERRUPTED, Console, say

Wave = npt.NDArray[np.complex64]
Real = npt.NDArray[np.float32]

PHOTONS = 1e7
"""In each of the camera's pictures, on average."""

SIDE = 128
"""Of the probe, in pixels."""

STEPS_PER_SIDE = 5
"""Of the scan; positions are moved from their grid by up to a quarter of a step."""

BATCH = 20
"""Positions of a step."""

DAMPING = 0.1
"""How much of the brightest pixel's light divides a change, beside the light of the change's own pixel."""

PROBE_FROM = 5
"""The first sweep that changes the probe: before, the object has no form, and both would wander off together."""


@dataclass(frozen=True)
class Scan:
    """What is known of an object: where the probe was, and what the camera saw."""

    size: tuple[int, ...]
    positions: npt.NDArray[np.int64]
    amplitudes: Real
    """Square roots of the counts, (positions, *probe), in units of the object and the probe."""
    noise: float
    """The error that the right object and probe have, because photons are counted."""


def photographs() -> Wave:
    """Return an object whose modulus is one photograph and whose phase is another, both in scikit-image's wheel."""
    from skimage import color, data, img_as_float32

    modulus, phase = img_as_float32(data.camera()), color.rgb2gray(img_as_float32(data.astronaut()))
    return np.asarray((0.2 + 0.8 * modulus) * np.exp(1j * np.pi * (phase - 0.5)), np.complex64)


def illumination(side: int, radius: float, defocus: float) -> Wave:
    """Return a probe: a disc with soft edges and `radius` sides wide, and its light `defocus` further on."""
    along, frequency = np.arange(side) - (side - 1) / 2, np.fft.fftfreq(side) * side
    distance = np.hypot(along[:, None], along) / side
    disc = 1 / (1 + np.exp((distance - radius) * side / 2))
    spread = np.exp(-1j * np.pi * defocus * (frequency[:, None] ** 2 + frequency**2))
    return np.asarray(fft.ifft2(fft.fft2(disc) * spread), np.complex64)


def measure(picture: Wave, probe: Wave, random: np.random.Generator) -> Scan:
    """Let a probe go over an object and a quarter of its side over the borders, and count photons."""
    side = len(probe)
    margin, step = side // 4, max(1, round(side / STEPS_PER_SIDE))
    grid = gpufold.grid_positions([size + 2 * margin for size in picture.shape], side, step, last="even") - margin
    positions = grid + random.integers(-(step // 4), step // 4, grid.shape, endpoint=True)
    strengths = np.abs(fft.fft2(gpufold.take_blocks(picture, positions, side) * probe, norm="ortho"))
    scale = PHOTONS / (strengths**2).sum((-2, -1)).mean()
    amplitudes = np.sqrt(random.poisson(strengths**2 * scale) / scale).astype(np.float32)
    noise = np.linalg.norm(amplitudes - strengths) / np.linalg.norm(amplitudes)
    return Scan(picture.shape, positions, amplitudes, float(noise))


def damped(light: Real, damping: float) -> Real:
    """Return what changes are divided by."""
    return (1 - damping) * light + damping * light.max()


def reconstruct(
    scan: Scan, guess: Wave, sweeps: int, random: np.random.Generator, batch: int = BATCH, damping: float = DAMPING
) -> Iterator[tuple[Wave, Wave, float]]:
    """Yield object, probe and error after each sweep, from a flat object and a guess of the probe on.

    The error is the distance between the waves' strengths in the camera's plane and the measured ones, divided by the
    norm of the latter; each position counts as it is when its batch has its turn.
    """
    picture, probe = np.ones(scan.size, np.complex64), guess.copy()
    norm, threads = np.linalg.norm(scan.amplitudes), gpufold.get_num_threads()
    for sweep in range(sweeps):
        order, squares = random.permutation(len(scan.positions)), 0.0
        for chosen in np.split(order, range(batch, len(order), batch)):
            positions, amplitudes = scan.positions[chosen], scan.amplitudes[chosen]
            parts = gpufold.take_blocks(picture, positions, probe.shape)
            waves = parts * probe
            spectra = fft.fft2(waves, norm="ortho", workers=threads)
            strengths = np.abs(spectra)
            squares += float(np.sum((strengths - amplitudes) ** 2))
            spectra *= amplitudes / np.maximum(strengths, np.finfo(np.float32).tiny)
            changes = fft.ifft2(spectra, norm="ortho", workers=threads, overwrite_x=True) - waves

            change, light = np.zeros_like(picture), np.zeros(scan.size, np.float32)
            gpufold.add_blocks(change, changes * probe.conj(), positions)
            gpufold.add_blocks(light, np.broadcast_to(np.abs(probe) ** 2, changes.shape), positions)
            if sweep >= PROBE_FROM:
                brightness = np.sum(np.abs(parts) ** 2, 0)
                probe = probe + np.sum(changes * parts.conj(), 0) / damped(brightness, damping)
            picture += change / damped(light, damping)
        yield picture, probe, float(np.sqrt(squares) / norm)


def aligned(picture: Wave, original: Wave) -> Wave:
    """Return a picture without what no camera sees: a factor, and a phase that rises evenly over the whole of it."""
    ratio = original * picture.conj()
    for axis, size in enumerate(picture.shape):
        before, after = (np.take(ratio, range(first, size - 1 + first), axis) for first in (0, 1))
        slope = np.angle(np.vdot(before, after)) * np.arange(size)
        picture = picture * np.exp(1j * np.expand_dims(slope, 1 - axis))
    return np.asarray(picture * (np.vdot(picture, original) / np.vdot(picture, picture)), np.complex64)


def draw(path: Path, original: Wave, pictures: dict[str, tuple[Wave, Wave]], scan: Scan, errors: list[float]) -> None:
    """Draw modulus and phase of the object and the probe, by name, one of the camera's pictures, and the error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colors, pyplot

    figure, axes = pyplot.subplots(3, 4, figsize=(13, 9.6), layout="constrained")
    for column, (name, (picture, probe)) in zip(axes.T, pictures.items(), strict=False):
        hue = (np.angle(probe) / (2 * np.pi)) % 1
        shades = np.stack([hue, np.ones_like(hue), np.abs(probe) / np.abs(probe).max()], -1)
        column[0].imshow(np.abs(picture), cmap="gray", vmin=0, vmax=1)
        column[1].imshow(np.angle(picture), cmap="gray", vmin=-np.pi / 2, vmax=np.pi / 2)
        column[2].imshow(colors.hsv_to_rgb(shades))
        for panel, what in zip(column, ("modulus", "phase", "probe"), strict=True):
            panel.set_title(f"{what}, {name}")
    seen = scan.amplitudes[len(scan.positions) // 2] ** 2
    axes[0, 3].imshow(np.log10(1e-3 + fft.fftshift(seen / seen.mean())), cmap="magma")
    axes[0, 3].set_title("what the camera sees, logarithm")
    axes[1, 3].plot(*scan.positions.T[::-1] + len(scan.amplitudes[0]) / 2, ".", markersize=2)
    axes[1, 3].set(title="positions of the probe", aspect="equal", xlim=(0, scan.size[1]), ylim=(scan.size[0], 0))
    for panel in (*axes[:, :3].flat, *axes[:2, 3]):
        panel.set_xticks([])
        panel.set_yticks([])
    axes[2, 3].semilogy(range(1, len(errors) + 1), errors, label="error")
    axes[2, 3].axhline(scan.noise, color="gray", linestyle=":", label="of photon noise alone")
    axes[2, 3].set(title="error", xlabel="sweeps")
    axes[2, 3].legend()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def ptychography(output: Path, sweeps: int, seed: int, console: Console) -> int:
    """Simulate a scan of two photographs, reconstruct them, and print how the error falls; return the exit status.

    An interrupt ends the sweeps, and what they found is drawn.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    output.parent.mkdir(parents=True, exist_ok=True)  # before any work, which would be lost
    random, original = np.random.default_rng(seed), photographs()
    probe, guess = illumination(SIDE, 0.25, 0.024), illumination(SIDE, 0.28, 0.018)
    scan = measure(original, probe, random)
    errors: list[float] = []
    columns = TextColumn("sweep {task.completed}, error {task.fields[error]}"), BarColumn(), TimeElapsedColumn()
    with suppress(KeyboardInterrupt), Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=sweeps, error="")
        for each in reconstruct(scan, guess, sweeps, random):
            picture, found, error = each
            errors.append(error)
            bar.update(task, advance=1, error=f"{error:.4f}")
    if not errors:
        raise KeyboardInterrupt
    before, after = (np.ones_like(original), guess), (aligned(picture, original), found)
    pictures = {"original": (original, probe), "before": before, "after": after}
    draw(output, original, pictures, scan, errors)
    for number in sorted({1, 2, 5, 10, 20, 50, 100, len(errors)} & set(range(1, len(errors) + 1))):
        say(console, f"error after sweep {number}: {errors[number - 1]:.4f}")
    say(console, f"error of photon noise alone: {scan.noise:.4f}")
    shape = " x ".join(map(str, original.shape))
    say(
        console,
        f"{shape} pixels, {len(scan.positions)} positions of a {SIDE} x {SIDE} probe, {PHOTONS:.0e} photons each, "
        f"{BATCH} positions a step, seed {seed}; {processor()}, {gpufold.get_num_threads()} threads, "
        f"gpufold {gpufold.__version__}, commit {commit()}, scikit-image {version('scikit-image')}",
    )
    say(console, command_line(["ptychography", "--output", str(output), "--sweeps", str(sweeps), "--seed", str(seed)]))
    say(console, f"picture: {output}")
    if len(errors) < sweeps:
        say(console, f"Interrupted after {len(errors)} of {sweeps} sweeps.")
        return INTERRUPTED
    return 0 if errors[-1] < errors[0] / 2 else 1
