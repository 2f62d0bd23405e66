"""Runs the CUDA kernels on the CPU, from their unmodified sources, and says what they would do on a GPU.

    run(plan, input, output)                   executes any gpufold.gpu.plan.Plan on NumPy arrays
    run(..., mode="shuffled", seed=7)          every access checked, threads in an order drawn from the seed
    run(..., mode="sanitized")                 under AddressSanitizer and UndefinedBehaviorSanitizer
    launch(source, symbol, ...)                the same for a kernel without a plan
    traffic(plan, input, output)               what it asked of the memory system
    cubin.figures(plan, 90)                    registers, shared memory and loops, from its machine code for an H200
    nvcc.compile(source, defines, 90)          what nvcc warns of
    work(plan, input, output)                  what its machine code did, executed warp by warp
    predict(plan, work)                        how long it would take, as a range, by the model of prediction.py
    -p bench.hostcuda.standin                  a plugin of pytest: GPU tests on the CPU, on a stand-in for CuPy

How it works. g++ compiles the .cu file behind host/cuda_words.h, which gives the words of CUDA a meaning: __global__
means inline, __shared__ means static, threadIdx is a global variable, an atomic operation is an ordinary one. So a
kernel is a function of one thread, and host/scheduler.cpp calls it for each thread of each block. A thread that comes
to a barrier keeps its stack and lets the others go on; the barrier opens when all threads it names that have not
returned have come. Shuffles and votes are barriers at which values change hands.

Arrays are copied to where a GPU would have them (memory.py): the first byte of their owner's memory on a multiple of
256, guards on both sides and between strided elements, the output full of poison.

Three builds of a kernel, each cached on disk by the content of all it is made of:

    plain      -Og; a write outside the arrays or to a const one is noticed when it has happened
    observed   g++'s thread instrumentation, without its runtime: host/observer.cpp gets a call for each access. It
               reports accesses outside the elements of an array, bytes written twice or never, writes to const, reads
               of shared memory that the block has not written, and races on shared memory. A race is two accesses of
               which one is a write, by threads that no barrier orders; finding it needs no luck with the order.
    sanitized  both sanitizers, in a process of its own; misaligned words and overflowing integers are found here

The machine code that NVRTC makes of a plan is executed as well, by an interpreter (machine.py): its counts are those of
the instructions that a GPU would run, and its results show that the compiler did what the source says.

A Fault names the thread, the block and the lines of the source.

Limits. One thread runs at a time: blocks that race on global memory are noticed only as bytes written twice. A barrier
of a part of a warp counts as one of the whole warp for races. What g++ compiles is not what NVRTC compiles: inline PTX
is replaced by what the sources offer for HOSTCUDA, and rounding is the CPU's (the same but for flushed denormals, which
a CPU keeps). Copies by memcpy of a size unknown to the compiler are not observed. Dynamic shared memory, textures,
cp.async, cooperative groups and __activemask do not compile. Linux only.
"""

from . import cubin, nvcc
from .build import BuildError, unavailable
from .counting import Requests, Traffic, Work, traffic, work
from .cubin import Figures, figures
from .execute import Caches, launch, run
from .memory import Fault
from .prediction import Prediction, predict

__all__ = [
    "BuildError",
    "Caches",
    "Fault",
    "Figures",
    "Prediction",
    "Requests",
    "Traffic",
    "Work",
    "cubin",
    "figures",
    "launch",
    "nvcc",
    "predict",
    "run",
    "traffic",
    "unavailable",
    "work",
]
