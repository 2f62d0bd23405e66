"""A stand-in for CuPy on the host build of the kernels: GPU tests run without a GPU.

    PYTHONPATH=tests python -m pytest -p bench.hostcuda.fake_cupy tests/test_gpu.py

As a plugin of pytest it is what `import cupy` finds; imported otherwise it changes nothing. It has what gpufold and
tests/test_gpu.py call of CuPy 14.2, no more, and raises what CuPy raises. What CuPy lets pass and a GPU would punish
raises Misuse: arguments that are not the kernel's in number or size, memory of another device, bytes written outside an
allocation.

Two devices have memory of their own, in the host's. Work for a device is queued, stream by stream, and done as late as
possible: when the stream or its device is waited for. So a caller that forgets to wait reads garbage on every run, and
a stream that waits holds up no other. Streams do not overlap in time, so a race within a kernel or between two streams
that both were waited for goes unseen. A capture queues nothing, and a graph queues what was captured. Allocating,
waiting and loading a kernel end a capture, whatever its mode. Memory of a pool is freed when its stream has done
what was queued before, and never used again.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import itertools
import os
import re
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from contextlib import contextmanager, suppress
from functools import cache, partial
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np

from gpufold.gpu.parameters import contiguous_strides

from . import module
from .build import build_kernel
from .memory import GUARD, POISON

DEVICES = 2
TOTAL_BYTES = 1 << 30
"""Reported memory of a device."""
UNIT = 512
"""Size and alignment granularity of allocations, in bytes."""
POOLS_OF_DEVICES = True
"""Whether the devices have memory pools for stream-ordered allocation."""
BANNER = "a stand-in for CuPy over the host build: no GPU ran"

_lock = threading.RLock()


class _Thread(threading.local):
    """What is current in a thread."""

    def __init__(self):
        self.device, self.allocator, self.streams, self.hooks = 0, None, [], {}


_thread = _Thread()


class Misuse(AssertionError):
    """An error that CuPy does not detect and a GPU would."""


class _CUDAError(RuntimeError):
    def __init__(self, status):
        self.status = status
        super().__init__(f"{self.NAMES[status]}: of the stand-in")


class CUDARuntimeError(_CUDAError):
    NAMES: ClassVar = {
        101: "cudaErrorInvalidDevice",
        700: "cudaErrorIllegalAddress",
        900: "cudaErrorStreamCaptureUnsupported",
        901: "cudaErrorStreamCaptureInvalidated",
    }


class CUDADriverError(_CUDAError):
    NAMES: ClassVar = {400: "CUDA_ERROR_INVALID_HANDLE", 900: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}


class OutOfMemoryError(MemoryError):
    """A pool or a device is out of memory."""


class CompileException(Exception):
    """NVRTC failed to compile a kernel."""


# ---------------------------------------------------------------------------------------------
# Devices and streams


def get_device():
    return _thread.device


class Device:
    def __init__(self, device=None):
        self.id = get_device() if device is None else int(device)

    def __enter__(self):
        if not 0 <= self.id < DEVICES:
            raise CUDARuntimeError(101)
        self._before, _thread.device = get_device(), self.id
        return self

    def __exit__(self, *_):
        _thread.device = self._before

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def synchronize(self):
        """Do all queued work of the device."""
        _check_alive()
        _forbid_while_capturing(CUDARuntimeError(900))
        _finish(self.id)


_queues = defaultdict(deque)
"""Queued work, by device and stream."""
_captures = {}
"""Captures in progress, by stream."""

LOSES_THE_DEVICE = os.environ.get("FAKE_CUPY_LOSES_THE_DEVICE")
"""The kernel after which every call fails, as after an illegal access."""
_lost = []


def _do(queue):
    while queue:
        _check_alive()
        queue.popleft()()
    _check_alive()


def _finish(device):
    with _lock:
        for (number, _), queue in list(_queues.items()):
            if number == device:
                _do(queue)


def _check_alive():
    if _lost:
        raise CUDARuntimeError(700)


def _forbid_while_capturing(error):
    """Raise an error if there are captures, which are invalid then."""
    for capture in _captures.values():
        capture.is_lost = True
    if _captures:
        raise error


def _queue(work, stream, device):
    """Queue work on the memory of a device, or add it to a capture."""
    stream = get_current_stream() if stream is None else stream
    if stream.ptr and stream._device != device:
        raise Misuse(f"a stream of device {stream._device} got work on memory of device {device}")
    with _lock:
        capture = _captures.get(stream.ptr)
        if capture is None:
            _queues[device, stream.ptr].append(work)
        else:
            capture.work.append(work)


_devices_of_streams = {}
"""The device of a stream by its handle: of CuPy's own, and of those that other libraries lend."""


class Stream:
    _numbers = itertools.count(1 << 20)

    def __init__(self, null=False, non_blocking=False):
        self.ptr = 0 if null else next(self._numbers)
        if not null:
            _devices_of_streams[self.ptr] = get_device()

    @staticmethod
    def from_external(foreign):
        return _stream_at(foreign.__cuda_stream__()[1])

    @property
    def _device(self):
        """The device, for CUDA's own handles the current one."""
        return get_device() if self.ptr < 3 else _devices_of_streams.get(self.ptr)

    def __enter__(self):
        _thread.streams.append((get_device(), self))
        return self

    def __exit__(self, *_):
        _thread.streams.pop()

    @property
    def done(self):
        return not _queues[self._device, self.ptr]

    def synchronize(self):
        with _lock:
            _forbid_while_capturing(CUDARuntimeError(900))
            _do(_queues[self._device, self.ptr])

    def launch_host_func(self, callback, arg):
        _queue(lambda: callback(arg), self, self._device)

    def begin_capture(self, mode=None):
        with _lock:
            _captures[self.ptr] = SimpleNamespace(work=[], is_lost=False)

    def end_capture(self):
        with _lock:
            capture = _captures.pop(self.ptr)
        if capture.is_lost:
            raise CUDARuntimeError(901)
        return Graph(capture.work, self._device)

    def is_capturing(self):
        return self.ptr in _captures


Stream.null = Stream(null=True)


def _stream_at(handle):
    """Return the stream of a handle, CuPy's own or another library's."""
    stream = Stream(null=True)
    stream.ptr = handle
    if stream._device != get_device():
        raise CUDADriverError(400)
    return stream


class Event:
    """The time at which a stream comes to it, of the host's clock."""

    def record(self, stream=None):
        self._stream = get_current_stream() if stream is None else _stream_at(stream.ptr)
        _queue(lambda: setattr(self, "seconds", time.perf_counter()), self._stream, get_device())

    def synchronize(self):
        self._stream.synchronize()


def get_elapsed_time(start_event, end_event):
    return 1e3 * (end_event.seconds - start_event.seconds)


def get_current_stream():
    return next((stream for device, stream in reversed(_thread.streams) if device == get_device()), Stream.null)


class Graph:
    def __init__(self, work, device):
        self._work, self._device = work, device

    def launch(self, stream=None):
        for work in self._work:
            _queue(work, stream, self._device)


# ---------------------------------------------------------------------------------------------
# Memory


def _host(pointer, shape, strides, dtype):
    """Return the elements of an array in a device's memory, which are valid while work is done."""
    if 0 in shape:
        return np.empty(shape, dtype)
    interface = {"version": 3, "data": (pointer, False), "shape": shape, "strides": strides}
    memory = SimpleNamespace(__array_interface__=interface | {"typestr": f"|V{dtype.itemsize}"})
    return np.asarray(memory).view(dtype)


class Memory:
    """A separate allocation, as by cudaMalloc; a free waits for work in progress."""

    def __init__(self, size, in_order=False):
        if not in_order:
            _forbid_while_capturing(CUDARuntimeError(900))
        self.size, self.device_id = size, get_device()
        if size > TOTAL_BYTES:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
        self._bytes = np.full(GUARD + UNIT + size + GUARD, POISON, np.uint8)
        start = self._bytes.__array_interface__["data"][0]
        self.ptr = start + GUARD + -(start + GUARD) % UNIT if size else 0
        self._first = self.ptr - start
        if size:
            _allocations[id(self)] = self

    def check_guards(self):
        around = self._bytes[: self._first], self._bytes[self._first + self.size :]
        if any((part != POISON).any() for part in around):
            for part in around:
                part[...] = POISON
            raise Misuse(f"a kernel wrote outside an allocation of {self.size} bytes")

    def __del__(self):
        if getattr(self, "size", 0) and _lock is not None:  # None when the interpreter ends
            with suppress(CUDARuntimeError):
                _finish(self.device_id)


_allocations = weakref.WeakValueDictionary()


def _allocated():
    """Return the current allocations; unlike values(), safe while other threads allocate or free."""
    return [memory for reference in _allocations.valuerefs() if (memory := reference()) is not None]


class UnownedMemory:
    """Memory that another library allocated."""

    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = get_device() if device_id == -1 else device_id


class PooledMemory:
    """An allocation that ends when the work that was queued on its stream before is done; of a pool, or of none."""

    def __init__(self, size, stream, pool=None):
        self._chunk, self._stream, self._pool = Memory(size, in_order=pool is None), stream, pool
        self.ptr, self.size, self.device_id = self._chunk.ptr, size, self._chunk.device_id
        if pool is not None:
            pool._used[self.device_id] += size

    def __del__(self):
        if hasattr(self, "_chunk"):
            chunk = self._chunk
            with suppress(CUDARuntimeError):  # of a lost capture
                _queue(lambda: chunk, self._stream, self.device_id)
            if self._pool is not None:
                self._pool._used[self.device_id] -= self.size
                for hook in _thread.hooks.values():
                    hook.free_postprocess(mem_size=self.size)


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.device_id = mem, mem.device_id
        self.ptr = mem.ptr + offset

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def memset_async(self, value, size, stream=None):
        pointer = self.ptr
        if size:
            _queue(lambda: ctypes.memset(pointer, value, size), stream, self.device_id)

    def copy_from_device_async(self, src, size, stream=None):
        to, origin = self.ptr, src.ptr
        if size:
            _queue(lambda: ctypes.memmove(to, origin, size), stream, self.device_id)


class MemoryPool:
    def __init__(self):
        self._used, self._limit = Counter(), 0

    def malloc(self, size):
        rounded = -(-size // UNIT) * UNIT
        if not rounded:
            return MemoryPointer(Memory(0), 0)
        memory = None
        try:
            if self._limit and self.used_bytes() + rounded > self._limit:
                raise OutOfMemoryError(f"Out of memory allocating {rounded:,} bytes")
            memory = PooledMemory(rounded, get_current_stream(), self)
        finally:
            for hook in _thread.hooks.values():
                hook.malloc_postprocess(size=size, mem_size=rounded, mem_ptr=memory.ptr if memory else 0)
        return MemoryPointer(memory, 0)

    def free_all_blocks(self, stream=None):
        """Nothing is kept."""

    def used_bytes(self):
        return self._used[get_device()]

    total_bytes = used_bytes

    def set_limit(self, size):
        self._limit = size


class MemoryHook:
    name = "MemoryHook"

    def __enter__(self):
        _thread.hooks[self.name] = self
        return self

    def __exit__(self, *_):
        del _thread.hooks[self.name]

    def malloc_postprocess(self, **kwargs):
        """Do nothing, as the other one."""

    free_postprocess = malloc_postprocess


_default_pool = MemoryPool()


def alloc(size):
    return (_thread.allocator or _default_pool.malloc)(size)


def malloc_async(size):
    return MemoryPointer(PooledMemory(size, get_current_stream()), 0)


@contextmanager
def using_allocator(allocator=None):
    before = _thread.allocator
    _thread.allocator = allocator or (lambda size: MemoryPointer(Memory(size), 0))
    try:
        yield
    finally:
        _thread.allocator = before


# ---------------------------------------------------------------------------------------------
# Arrays


class ndarray:
    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        self.shape = tuple(map(int, shape)) if isinstance(shape, tuple | list) else (int(shape),)
        self.dtype = np.dtype(dtype)
        self.ndim, self.size, self.itemsize = len(self.shape), prod(self.shape), self.dtype.itemsize
        self.nbytes = self.size * self.itemsize
        if strides is None:
            turn = 1 if order == "C" else -1
            strides = [self.itemsize * step for step in contiguous_strides(self.shape[::turn])][::turn]
        self.strides = tuple(strides)
        self.data = alloc(self.nbytes) if memptr is None else memptr
        self._elements = _host(self.data.ptr, self.shape, self.strides, self.dtype)

    def _view(self, change):
        """Return NumPy's view of an array like this, without reading elements."""
        view = change(self._elements)
        offset = view.ctypes.data - self._elements.ctypes.data if view.size else 0
        return ndarray(view.shape, view.dtype, self.data + offset, view.strides)

    @property
    def device(self):
        return Device(self.data.device_id)

    @property
    def flags(self):
        return self._elements.flags

    @property
    def __cuda_array_interface__(self):
        strides = None if self.flags.c_contiguous else self.strides
        return {"shape": self.shape, "typestr": self.dtype.str, "strides": strides, "data": (self.data.ptr, False)}

    @property
    def real(self):
        return self._view(lambda array: array.real)

    @property
    def imag(self):
        return self._view(lambda array: array.imag)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, slices):
        slices = slices if isinstance(slices, tuple) else (slices,)
        if places := [each for each in slices if isinstance(each, ndarray)]:
            assert slices == (..., *places)
            return _combine(lambda array, *index: array[(..., *index)], self, *places)
        if not any(each is ... for each in slices):
            slices = (*slices, ...)  # one element is an array of no axes, not a number
        return self._view(lambda array: array[slices])

    def __setitem__(self, slices, value):
        _elementwise(lambda got: got, self[slices], value)

    def transpose(self, *axes):
        return self._view(lambda array: array.transpose(*axes))

    @property
    def T(self):
        return self.transpose()

    def reshape(self, *shape):
        try:
            return self._view(lambda array: array.reshape(*shape, copy=False))
        except ValueError:
            return ascontiguousarray(self)._view(lambda array: array.reshape(*shape, copy=False))

    def ravel(self):
        return self.reshape(-1)

    def view(self, dtype=None):
        viewed = self._elements.view(self.dtype if dtype is None else dtype)
        return ndarray(viewed.shape, viewed.dtype, self.data, viewed.strides)

    def astype(self, dtype, copy=True):
        return _elementwise(_cast(self.dtype, dtype), empty_like(self, dtype), self)

    def copy(self, order="C"):
        return _elementwise(lambda got: got, ndarray(self.shape, self.dtype), self)

    def fill(self, value):
        _elementwise(lambda got: got, self, value)

    def get(self, stream=None):
        stream = get_current_stream() if stream is None else stream
        with self.device, stream if stream.ptr else Stream.null:
            source = ascontiguousarray(self) if self.ndim else self
            stream.synchronize()
            return source._elements.copy()

    def set(self, arr, stream=None):
        assert (arr.dtype, arr.shape) == (self.dtype, self.shape)
        copied, elements = arr.copy(), self._elements
        _queue(lambda: np.copyto(elements, copied), stream, self.data.device_id)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __int__(self):
        return int(self.get().item())

    def __bool__(self):
        return bool(self.get().item())


def _cast(origin, dtype):
    """Cast elements as CuPy does: its casts flush float32 denormals."""
    if {np.dtype(origin), np.dtype(dtype)} != {np.dtype(np.float32), np.dtype(np.float64)}:
        return lambda got: got
    return lambda got: _flushed(got.astype(np.float32))


def _elementwise(function, result, *operands):
    """Queue `result[...] = function(*operands)` on the current device, which all arrays must be on."""
    for array in (result, *operands):
        if isinstance(array, ndarray) and array.data.device_id != get_device():
            raise ValueError(f"an array of device {array.data.device_id}, and the current one is {get_device()}")
        if isinstance(array, ndarray) and not array.flags.aligned:
            raise Misuse("elements off their size")  # an unaligned read ends a process on a GPU
    into, given = result._elements, [each._elements if isinstance(each, ndarray) else each for each in operands]

    def work():
        with np.errstate(all="ignore"):
            into[...] = function(*given)

    if result.size:
        _queue(work, None, get_device())
    return result


def _combine(function, *operands):
    """Queue a NumPy function; its result has the shape and dtype that it gives for zeros like the operands."""
    zeros = [np.zeros(each.shape, each.dtype) if isinstance(each, ndarray) else each for each in operands]
    with np.errstate(all="ignore"):
        like = np.asarray(function(*zeros))
    return _elementwise(function, ndarray(like.shape, like.dtype), *operands)


def _flushed(array):
    """Return elements as CuPy's kernels read them: float32 denormals are zeros."""
    if getattr(array, "dtype", None) != np.float32:
        return array
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.copysign(0, array), array)


def _flushing(function):
    return lambda *operands: _flushed(function(*map(_flushed, operands)))


for _name, _function in {"__abs__": np.abs, "any": np.any, "sum": np.sum}.items():
    setattr(ndarray, _name, lambda self, of=_function: _combine(of, self))
for _name in ["eq", "ne", "gt", "ge", "lt", "le", "add", "sub", "rsub", "mul", "rmul", "truediv", "mod", "and"]:
    _function = getattr(np.ndarray, f"__{_name}__")
    setattr(ndarray, f"__{_name}__", lambda self, other, of=_function: _combine(_flushing(of), self, other))


class RandomNumbers:
    def __init__(self, seed):
        self._host = np.random.default_rng(seed)

    def integers(self, low, high, size, dtype, endpoint):
        return asarray(self._host.integers(low, high, size, dtype, endpoint))


ADDED_AT = ("float16", "float32", "float64", "int32", "int64", "uint32", "uint64")


def _viewed(function, array, *arguments, **options):
    return array._view(lambda like: function(like, *arguments, **options))


def _add_at(array, indices, values):
    if array.dtype.name not in ADDED_AT:
        raise TypeError(f"cupy.add.at only supports {', '.join(ADDED_AT)}")
    _elementwise(lambda got, places, terms: (np.add.at(got, places, terms), got)[1], array, array, indices, values)


def empty(shape, dtype=float):
    return ndarray(shape, dtype)


def zeros(shape, dtype=float):
    array = ndarray(shape, dtype)
    array.data.memset_async(0, array.nbytes)
    return array


def copyto(dst, src):
    _elementwise(lambda got: got, dst, src)


def empty_like(prototype, dtype=None):
    order = "F" if prototype.flags.fnc else "C"
    return ndarray(prototype.shape, prototype.dtype if dtype is None else dtype, order=order)


def asarray(a, dtype=None):
    host = np.array(a, dtype)
    host = host.astype(host.dtype.newbyteorder("="), copy=False)
    array = ndarray(host.shape, host.dtype, order="F" if host.flags.fnc else "C")
    if host.size:
        array.set(host)
    return array


def ascontiguousarray(a, dtype=None):
    wanted = np.dtype(a.dtype if dtype is None else dtype)
    if wanted == a.dtype and a.flags.c_contiguous:
        return a
    return _elementwise(_cast(a.dtype, wanted), ndarray(a.shape, wanted), a)


def asnumpy(a, stream=None):
    return a.get(stream) if isinstance(a, ndarray) else np.asarray(a)


# ---------------------------------------------------------------------------------------------
# Kernels


_lent = {}
"""Memory of other libraries: end and device by the first address."""


def lend(address, size, device):
    """Register memory of another library as a device's."""
    _lent[address] = address + size, device


def check_lent(address, where):
    """Raise unless an address lies in allocated memory, of another library too, on the current device."""
    own = [(each.ptr, (each.ptr + each.size, each.device_id)) for each in _allocated()]
    for begin, (end, device) in (*own, *_lent.items()):
        if begin <= address < end:
            if device != get_device():
                raise Misuse(f"{where} lies on device {device}, the kernel runs on {get_device()}")
            return
    raise Misuse(f"{where} is an address of no memory: {address}")


def memset_async(address, value, size, stream):
    check_lent(address, "what is set")
    _queue(lambda: ctypes.memset(address, value, size), _stream_at(stream), get_device())


def memcpy_async(to, origin, size, kind, stream):
    assert kind == 3, "within a device"
    check_lent(to, "what is copied to")
    check_lent(origin, "what is copied")
    _queue(lambda: ctypes.memmove(to, origin, size), _stream_at(stream), get_device())


class RawKernel:
    """A kernel of a file of kernels/ with a specialisation, as gpufold.gpu.sources gives them."""

    def __init__(self, code, name, options=()):
        macros, _, source = code.partition("\n#line 1 ")
        (file,) = re.match(r'"\w+/(\w+\.cu)"', source).groups()
        defines = tuple(re.findall(r"^#define (\w+) (.+)$", macros, re.MULTILINE))
        self.name, self._program = name, (Path(options[1].removeprefix("-I")) / file, name, defines)

    @property
    def kernel(self):
        """Return the function on the current device, loaded now or earlier."""
        key = (*self._program, get_device())
        if key not in _loaded:
            _forbid_while_capturing(CUDADriverError(900))
            _loaded[key] = Function(self.name, module.load(build_kernel(*self._program, "plain")))
        return _loaded[key]

    def __call__(self, grid, block, args):
        self.kernel(grid, block, args)


_loaded = {}
"""Loaded functions, by file, kernel, specialisation and device: CuPy loads none twice in a process."""


class Function:
    """A kernel compiled for a device, launched on a stream of CuPy or any stream with a handle."""

    def __init__(self, name, kernel):
        self.name, self._kernel = name, kernel

    def __call__(self, grid, block, args, shared_mem=0, stream=None):
        assert not shared_mem, "a kernel declares its shared memory"
        grid, block = ((*size, 1, 1)[:3] for size in (grid, block))
        values = list(map(self._value, args))

        def work():
            if message := self._kernel.launch(grid, block, values):
                raise Misuse(f"{self.name}: {message}")
            if self.name == LOSES_THE_DEVICE:
                _lost.append(self.name)
            for allocation in _allocated():
                allocation.check_guards()

        _queue(work, None if stream is None else _stream_at(stream.ptr), get_device())

    def _value(self, argument):
        """Return an argument as bytes, as CuPy converts it."""
        if isinstance(argument, np.ndarray):
            return argument.tobytes()
        address = argument.data.ptr if isinstance(argument, ndarray) else argument or 0
        if address:  # zero for an empty array
            check_lent(address, f"an argument of {self.name}")
        return address.to_bytes(8, "little")


# ---------------------------------------------------------------------------------------------
# The module

PROPERTIES = {"name": b"no GPU: the stand-in for CuPy", "major": 9, "minor": 0, "l2CacheSize": 50 << 20}
PROPERTIES |= {"multiProcessorCount": 132, "maxThreadsPerMultiProcessor": 2048}
"""Those of an H200, as are the attributes that `cupy` gives by number."""


@cache
def cupy():
    """Return the module that stands in for CuPy."""
    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDevice=get_device,
        getDeviceCount=lambda: DEVICES,
        getDeviceProperties=lambda device: PROPERTIES,
        deviceGetAttribute=lambda attribute, device: {38: 50 << 20, 115: POOLS_OF_DEVICES}[attribute],
        deviceSynchronize=lambda: Device().synchronize(),
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        memsetAsync=memset_async,
        memcpyAsync=memcpy_async,
        streamIsCapturing=lambda handle: _stream_at(handle).is_capturing(),
        memGetInfo=lambda: (TOTAL_BYTES - _default_pool.used_bytes(), TOTAL_BYTES),
        streamCaptureModeGlobal=0,
        cudaDevAttrL2CacheSize=38,
        cudaDevAttrMemoryPoolsSupported=115,
        memcpyDeviceToDevice=3,
    )
    classes = (Device, Stream, Event, Graph, MemoryHook, MemoryPool, MemoryPointer, UnownedMemory)
    cuda = SimpleNamespace(
        **{each.__name__: each for each in classes},
        alloc=alloc,
        compiler=SimpleNamespace(CompileException=CompileException),
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        get_current_stream=get_current_stream,
        get_elapsed_time=get_elapsed_time,
        malloc_async=malloc_async,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=runtime,
        using_allocator=using_allocator,
    )
    result = ModuleType("cupy", __doc__)
    for each in (asarray, ascontiguousarray, asnumpy, copyto, empty, empty_like, ndarray, RawKernel, zeros):
        setattr(result, each.__name__, each)
    for name in ("arange", "copysign", "count_nonzero", "minimum", "ones", "pad", "rint", "sign", "where"):
        setattr(result, name, partial(_combine, getattr(np, name)))
    for name in ("broadcast_to", "moveaxis"):
        setattr(result, name, partial(_viewed, getattr(np, name)))
    result.add = SimpleNamespace(at=_add_at)
    result.random = SimpleNamespace(default_rng=RandomNumbers)
    of_windows = partial(_viewed, np.lib.stride_tricks.sliding_window_view)
    result.lib = SimpleNamespace(stride_tricks=SimpleNamespace(sliding_window_view=of_windows))
    result.cuda, result.get_default_memory_pool, result.float32 = cuda, lambda: _default_pool, np.float32
    result.get_default_pinned_memory_pool = result.get_default_memory_pool
    result.__version__ = "14.2.0, a stand-in"
    result.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    ndarray.__module__ = "cupy"
    return result


# ---------------------------------------------------------------------------------------------
# The plugin

NOT_HERE = {
    "test_dask_chunks_on_the_gpu": "dask asks more of CuPy than is stood in for",
    "test_past_two_to_the_31": "needs many GB",
    "fills-the-device": "needs the speed of a GPU",
}
"""Parts of names of tests that are meaningless here, and why."""

ALL_OF = ("test_smoke",)
"""Tests that run with all problems, because each problem has another kernel."""


def pytest_plugin_registered(plugin, manager):
    """Stand in as soon as this is a plugin, because other modules import CuPy if they find it."""
    if plugin is sys.modules[__name__]:
        if sys.modules.setdefault("cupy", cupy()) is not cupy():
            raise RuntimeError("CuPy is imported already, so it cannot be stood in for")
        import pytest  # which others who import this do without

        last = pytest.hookimpl(trylast=True)(leave_out)
        manager.register(SimpleNamespace(pytest_collection_modifyitems=last))


def pytest_addoption(parser):
    parser.addoption("--of-each", type=int, help="run no more than this many of the problems of a test, first and last")


def leave_out(config, items):
    """Skip tests that are meaningless here, and all but some problems of each test."""
    import pytest

    of_each, most = defaultdict(list), config.getoption("--of-each")
    for item in items:
        of_each[getattr(item, "originalname", item.name)].append(item)
        for reason in (reason for name, reason in NOT_HERE.items() if name in item.name):
            item.add_marker(pytest.mark.skip(reason=reason))
    if most is not None:
        chosen = []
        for name, problems in of_each.items():
            last, count = len(problems) - 1, len(problems) if name in ALL_OF else most
            chosen += [problems[place] for place in np.unique(np.linspace(0, last, count).astype(int))]
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(BANNER)
