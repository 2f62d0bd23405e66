"""Removes noise from a photograph: overlapping patches out with im2col, shrunk, and back with col2im."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import dct

import gpufold
from bench.results import command_line, commit, processor, version
from bench.terminal import Console, Table

Picture = npt.NDArray[np.float32]

PATCH = (8, 8)

THRESHOLD = 3.0
"""Coefficients below this many standard deviations of the noise are taken for noise."""


def astronaut() -> Picture:
    """Return the portrait of Eileen Collins that comes with scikit-image, (height, width, colour) in [0, 1]."""
    from skimage import data, img_as_float32

    return np.asarray(img_as_float32(data.astronaut()))


def denoise(noisy: Picture, noise: float) -> Picture:
    """Shrink the cosine transforms of all 8x8 patches of a colour picture, and average the patches.

    Colours are made independent of each other first, by a cosine transform along them. A coefficient that is
    smaller than noise makes it is set to zero; each pixel is the mean of the 64 patches that hold it.
    """

    def transform(size: int) -> Picture:
        return np.asarray(dct(np.eye(size, dtype=np.float32), axis=0, norm="ortho"))

    height, width, colours = noisy.shape
    colour, patch = transform(colours), np.kron(*(transform(size) for size in PATCH))
    planes = np.ascontiguousarray((noisy @ colour.T).transpose(2, 0, 1))

    columns = gpufold.im2col(planes, PATCH)  # (colours * 64, patches)
    coefficients = patch @ columns.reshape(colours, patch.shape[0], -1)
    coefficients[np.abs(coefficients) < THRESHOLD * noise] = 0
    columns = (patch.T @ coefficients).reshape(columns.shape)
    mean = gpufold.col2im(columns, (height, width), PATCH, reduction="mean")

    return np.asarray(mean.transpose(1, 2, 0) @ colour)


def others(noisy: Picture, noise: float) -> dict[str, Callable[[], Any]]:
    """Return scikit-image's denoisers, called as its documentation does for noise that is known."""
    from skimage import restoration

    calls: dict[str, Callable[[], Any]] = {
        "denoise_tv_chambolle": lambda: restoration.denoise_tv_chambolle(noisy, weight=noise, channel_axis=-1),
        "denoise_nl_means": lambda: restoration.denoise_nl_means(
            noisy, patch_size=5, patch_distance=6, h=0.6 * noise, sigma=noise, fast_mode=True, channel_axis=-1
        ),
    }
    if importlib.util.find_spec("pywt"):
        calls["denoise_wavelet"] = lambda: restoration.denoise_wavelet(
            noisy, sigma=noise, convert2ycbcr=True, rescale_sigma=True, channel_axis=-1
        )
    return calls


def photo(output: Path, noise: float, seed: int, console: Console, picture: Picture | None = None) -> int:
    """Denoise a photograph, write it before and after, and print how close each denoiser comes to the original."""
    from skimage import img_as_ubyte, io
    from skimage.metrics import peak_signal_noise_ratio

    output.mkdir(parents=True, exist_ok=True)  # before any work, which would be lost
    original = astronaut() if picture is None else picture
    random = np.random.default_rng(seed)
    noisy = original + noise * random.standard_normal(original.shape, np.float32)
    table = Table("", "PSNR dB", "gain dB", "seconds", box=None)

    def quality(image: Any) -> float:
        return float(peak_signal_noise_ratio(original, np.clip(image, 0, 1), data_range=1))

    before = quality(noisy)
    table.add_row("noisy picture", f"{before:.2f}", "", "")
    calls = {"gpufold, shrunk 8x8 patches": lambda: denoise(noisy, noise), **others(noisy, noise)}
    pictures = {"before": noisy}
    with console.status("") as status:
        for name, call in calls.items():
            status.update(name)
            start = time.perf_counter()
            result = call()
            seconds = time.perf_counter() - start
            pictures.setdefault("after", result)
            table.add_row(name, f"{quality(result):.2f}", f"{quality(result) - before:+.2f}", f"{seconds:.2f}")
    pictures["beside"] = np.concatenate([image[:224, 80:304] for image in pictures.values()], axis=1)
    for name, image in {"original": original, **pictures}.items():
        io.imsave(output / f"{name}.png", img_as_ubyte(np.clip(image, 0, 1)), check_contrast=False)
    console.print(table)
    console.print(
        f"{' x '.join(map(str, original.shape))} pixels, noise of {noise} of white from seed {seed}; "
        f"{processor()}, {gpufold.get_num_threads()} threads, gpufold {gpufold.__version__}, commit {commit()}, "
        f"scikit-image {version('scikit-image')}",
        highlight=False,
    )
    arguments = ["photo", "--output", str(output), "--noise", str(noise), "--seed", str(seed)]
    console.print(command_line(arguments), highlight=False)
    console.print(f"pictures: {', '.join(str(output / f'{name}.png') for name in pictures)}", highlight=False)
    return 0 if quality(pictures["after"]) > before else 1
