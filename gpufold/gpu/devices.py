"""GPUs by name: what NVIDIA's documents say of them, so that calls can be planned for one that is not there."""

from __future__ import annotations

from gpufold.gpu.plan import COPY_SHARE, H200, Device

KIB, MIB = 1 << 10, 1 << 20


def _device(
    name: str,
    compute_capability: tuple[int, int],
    multiprocessors: int,
    threads: int,
    clock: float,
    memory_bandwidth: float,
    caches: tuple[int, int],
) -> Device:
    """Make a device; `caches` are the bytes of the L2 cache and the shared memory of a multiprocessor."""
    return Device(
        name,
        compute_capability,
        multiprocessors,
        threads,
        COPY_SHARE * memory_bandwidth,
        clock,
        memory_bandwidth,
        *caches,
    )


# Multiprocessors, threads and shared memory are those of the CUDA C++ Programming Guide's table of compute
# capabilities and of the architectures' whitepapers; clocks are the highest that NVIDIA names.
DEVICES = {
    # NVIDIA A100 Tensor Core GPU Architecture (whitepaper) and the data sheet of the A100 80GB SXM: 108 SM, 1410 MHz,
    # 2039 GB/s, 40 MB of L2 cache, 164 KB of shared memory.
    "A100": _device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 2048, 1.41e9, 2.039e12, (40 * MIB, 164 * KIB)),
    # NVIDIA H100 Tensor Core GPU Architecture (whitepaper) and data sheet of the H100 SXM: 132 SM, 3.35 TB/s, 50 MB of
    # L2 cache, 228 KB of shared memory; 67 TFLOPS of float32 from 128 lanes of 132 SM are 1.98 GHz.
    "H100": _device("NVIDIA H100 SXM", (9, 0), 132, 2048, 1.98e9, 3.35e12, (50 * MIB, 228 * KIB)),
    # NVIDIA H200 data sheet: 4.8 TB/s, and in all else the H100 SXM's figures.
    "H200": H200,
    # NVIDIA Blackwell data sheet of the HGX B200: 8 TB/s and 75 TFLOPS of float32 a GPU, which from 128 lanes of
    # 148 SM are 1.98 GHz; Blackwell tuning guide: 126 MB of L2 cache, 228 KB of shared memory.
    "B200": _device("NVIDIA B200", (10, 0), 148, 2048, 1.98e9, 8e12, (126 * MIB, 228 * KIB)),
    # NVIDIA Ada GPU Architecture (whitepaper): 128 SM, 2520 MHz, 1008 GB/s, 72 MB of L2 cache, 100 KB of shared memory.
    "RTX 4090": _device("NVIDIA GeForce RTX 4090", (8, 9), 128, 1536, 2.52e9, 1.008e12, (72 * MIB, 100 * KIB)),
    # NVIDIA L4 data sheet and product brief: 7424 lanes of 58 SM, 2040 MHz, 300 GB/s, 48 MB of L2 cache.
    "L4": _device("NVIDIA L4", (8, 9), 58, 1536, 2.04e9, 3e11, (48 * MIB, 100 * KIB)),
    # NVIDIA Turing GPU Architecture (whitepaper) and the data sheet of the T4: 40 SM, 1590 MHz, 320 GB/s, 4 MB of L2
    # cache, 64 KB of shared memory.
    "T4": _device("Tesla T4", (7, 5), 40, 1024, 1.59e9, 3.2e11, (4 * MIB, 64 * KIB)),
}
"""Devices by the name that NVIDIA sells them under."""


def device_named(name: str) -> Device:
    """Return the device of a name, whatever its case and spaces.

    >>> device_named("rtx4090").multiprocessors
    128
    """
    for known, device in DEVICES.items():
        if _plain(known) == _plain(name):
            return device
    raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {name!r}")


def _plain(name: str) -> str:
    return "".join(name.lower().split())
