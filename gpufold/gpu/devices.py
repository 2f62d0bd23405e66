"""GPUs by name, with the figures of NVIDIA's documents, to plan calls without the GPU."""

from __future__ import annotations

from gpufold.gpu.plan import H200, Device

# Figures are those of the CUDA C++ Programming Guide's table of compute capabilities, of whitepapers and data sheets.
DEVICES = {
    # NVIDIA A100 Tensor Core GPU Architecture (whitepaper): 108 SM, 40 MB of L2 cache.
    "A100": Device("NVIDIA A100-SXM4-80GB", (8, 0), 108, l2_bytes=40 << 20),
    # NVIDIA H100 Tensor Core GPU Architecture (whitepaper), SXM: 132 SM, 50 MB of L2 cache.
    "H100": Device("NVIDIA H100 SXM", (9, 0), 132),
    # NVIDIA H200 data sheet: the H100 SXM's figures, but for its memory.
    "H200": H200,
    # NVIDIA Blackwell data sheet of the HGX B200: 75 TFLOPS of float32 a GPU, from 128 lanes of 148 SM; Blackwell
    # tuning guide: 126 MB of L2 cache.
    "B200": Device("NVIDIA B200", (10, 0), 148, l2_bytes=126 << 20),
    # NVIDIA Ada GPU Architecture (whitepaper): 128 SM, 72 MB of L2 cache.
    "RTX 4090": Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 1536, 72 << 20),
    # NVIDIA L4 data sheet and product brief: 7424 lanes of 58 SM, 48 MB of L2 cache.
    "L4": Device("NVIDIA L4", (8, 9), 58, 1536, 48 << 20),
    # NVIDIA Turing GPU Architecture (whitepaper), T4 data sheet: 40 SM, 4 MB of L2 cache.
    "T4": Device("Tesla T4", (7, 5), 40, 1024, 4 << 20),
}
"""Devices by the name that NVIDIA sells them under."""


def device_named(name: str) -> Device:
    """Return a device by its name, ignoring case and spaces.

    >>> device_named("rtx4090").multiprocessors
    128
    """
    for known, device in DEVICES.items():
        if _plain(known) == _plain(name):
            return device
    raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {name!r}")


def _plain(name: str) -> str:
    return "".join(name.lower().split())
