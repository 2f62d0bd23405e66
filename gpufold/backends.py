"""Array libraries as `Stitcher` uses them: NumPy, CuPy, torch and JAX."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from gpufold import calls, extras
from gpufold.arrays import as_positions, device_of, library_of
from gpufold.calls import Call, check_dtype
from gpufold.compute import run
from gpufold.elements import name_of
from gpufold.geometry import PositionsGeometry, Size
from gpufold.given import is_separable, type_name
from gpufold.names import speaking_for
from gpufold.positions import add_weighted, average
from gpufold.weights import BlockWeights
from gpufold.windows import as_weights, axes_of_window, check_block_weights, weights_of_blocks


class Addition(NamedTuple):
    """A batch of blocks, and what they are added to."""

    out: Any
    blocks: Any
    window: tuple[Any, ...] | None = None
    weight_out: Any = None
    by_block: BlockWeights | None = None


KINDS = {"numpy": "numpy.ndarray", "cupy": "cupy.ndarray"}
"""The type of each library's arrays, for messages."""


class Backend:
    """The array functions that a Stitcher needs, for a batch of blocks; this class serves NumPy and CuPy."""

    library: Any
    kind: str
    shape: Size
    dtype: str
    place: Any
    device: AbstractContextManager[Any]
    """Context manager that makes the blocks' device current."""

    def __init__(self, blocks: Any) -> None:
        library = library_of("Stitcher.add", "blocks", blocks)
        self.library, self._blocks, self.shape, self.dtype = library, blocks, blocks.shape, name_of(blocks.dtype)
        self.kind, self.place, self.device = KINDS[library.__name__], blocks.device, device_of(library, blocks)

    def read(self, name: str, given: Any) -> Any:
        """Return an argument that may be an array of the blocks' type as the library reads it."""
        return given

    def zeros(self, shape: Size, dtype: Any) -> Any:
        """Return zeros on the blocks' device."""
        try:
            return self.library.zeros(shape, dtype)
        except MemoryError as error:
            if self.library is not np:
                raise
            raise MemoryError(f"Stitcher.add: {error}") from None

    def ones(self, like: Any, shape: Size) -> Any:
        """Return ones of a shape, broadcast from one element."""
        return self.library.broadcast_to(self.library.ones((), like.dtype), shape)

    def weights(self, call: Call, window: Any) -> tuple[Any, ...]:
        """Return the weights of a window as kernels can read them."""
        with self.device:
            axes = [self.read("window", each) for each in axes_of_window(call, window)]
            axes = [self.library.asarray(each) if type(each) is np.ndarray else each for each in axes]
        return as_weights(call, self.library, axes if is_separable(window) else axes[0], self._blocks)

    def positions(self, given: Any, on_host: bool) -> Any:
        """Return positions as int64: on the host if `on_host` or unless they are on a GPU."""
        given = self.read("positions", given)
        if self.library is not np and isinstance(given, self.library.ndarray) and not on_host:
            return as_positions("Stitcher.add", self.library, given, self._blocks, "blocks")
        return _on_host(given)

    def to_device(self, places: Any) -> Any:
        """Return positions on the blocks' device."""
        if self.library is np or not isinstance(places, np.ndarray):
            return places
        listed = as_positions("Stitcher.add", self.library, places.tolist(), self._blocks, "blocks")
        return listed.reshape(places.shape)  # an empty list does not show the number of axes

    def weights_of_blocks(self, weights: Any, dtype: str) -> Any:
        """Check the weights of blocks, which are summed in a dtype, and return them in that of the sums of weights."""
        call = Call("Stitcher.add", PositionsGeometry(0, (), (), ()), dtype)
        return weights_of_blocks(call, self.library, self.read("weights", weights), self._blocks)

    def check(self, addition: Addition) -> None:
        """Raise what `add` would raise after another addition."""

    def add(self, addition: Addition, places: Any) -> None:
        """Add blocks to `out`, and their weights to `weight_out`."""
        out, blocks, window, weight_out, by_block = addition
        blocks = self.read("blocks", blocks)
        call = calls.add_blocks(out, blocks, places, window=_as_window(window, places), weight_out=weight_out)
        if by_block is None:
            run(call, self.library, blocks, out, window, places, weight_out)
        else:
            add_weighted(call, self.library, (blocks, out, places, weight_out), window, by_block)

    def average(self, sums: Any, weight: Any) -> Any:
        """Return sums divided by weights, if any, as a new array."""
        return sums.copy() if weight is None else average(sums, weight)


class TorchBackend(Backend):
    """Tensors of torch, with gradients."""

    kind = "torch.Tensor"
    device = nullcontext()

    def __init__(self, blocks: Any) -> None:
        self.library, self._ours = sys.modules["torch"], extras.load("torch")
        described = self._ours.tensors.described("Stitcher.add", "blocks", blocks)
        self.shape, self.dtype = described.shape, described.dtype.name
        self._ours.tensors.check_read("Stitcher.add", blocks=blocks)
        self._blocks, self.place = blocks, blocks.device

    def zeros(self, shape: Size, dtype: Any) -> Any:
        known = getattr(self.library, dtype) if isinstance(dtype, str) else dtype
        try:
            return self.library.zeros(shape, dtype=known, device=self.place)
        except RuntimeError as error:
            if not self._ours.door.is_of_memory(error):
                raise
            raise self._ours.NoMemory(f"Stitcher.add: {error}") from None

    def ones(self, like: Any, shape: Size) -> Any:
        return like.new_ones(()).expand(shape)

    def weights(self, call: Call, window: Any) -> tuple[Any, ...]:
        axes = [
            self.library.tensor(each.astype(np.float64), device=self.place) if type(each) is np.ndarray else each
            for each in axes_of_window(call, window)
        ]
        weights: tuple[Any, ...] = self._ours.tensors.checked_window(call, self._blocks, axes, window)
        return weights

    def positions(self, given: Any, on_host: bool) -> Any:
        if isinstance(given, self.library.Tensor):
            if not on_host:
                return self._ours.tensors.checked_positions("Stitcher.add", given, self._blocks, "blocks")
            if given.is_cpu:
                given = given.numpy()
        return _on_host(given)

    def to_device(self, places: Any) -> Any:
        if isinstance(places, np.ndarray):
            return self.library.from_numpy(places.copy()).to(self.place)  # a copy, which gradients need later
        return places

    def weights_of_blocks(self, weights: Any, dtype: str) -> Any:
        tensors = self._ours.tensors
        tensors.check_tensor("Stitcher.add", "weights", weights)
        tensors.check_like("Stitcher.add", "weights", weights, self._blocks, "blocks")
        check_block_weights("Stitcher.add", weights, dtype, len(self._blocks))
        return tensors.as_kernel_weights(weights, tensors.WEIGHTS[dtype])

    def check(self, addition: Addition) -> None:
        out, blocks, window, weight_out, by_block = addition
        values = (blocks, *(window or ()), *([] if by_block is None else [by_block.weights]))
        if self._ours.tensors.has_gradient(out, weight_out, *values):
            with speaking_for("Stitcher.add", "add_blocks_"):
                for each in (out, weight_out):
                    self._ours.tensors.check_recordable("the sum of tiles or weights", each, *values)

    def add(self, addition: Addition, places: Any) -> None:
        out, blocks, window, weight_out, by_block = addition
        if by_block is None:
            self._ours.add_blocks_(out, blocks, places, window=_as_window(window, places), weight_out=weight_out)
            return
        terms, each = self._ours.tensors.weighed(blocks, by_block.weights, window or (), out.dtype, by_block.least)
        self._ours.add_blocks_(out, terms * each if by_block.squared else terms, places)
        if weight_out is not None:
            lead = blocks.ndim - weight_out.ndim
            each = each.reshape(len(each), *each.shape[lead:]).expand(len(each), *blocks.shape[lead:])
            self._ours.add_blocks_(weight_out, each, places)

    def average(self, sums: Any, weight: Any) -> Any:
        if weight is None:
            return sums.clone()
        if sums.requires_grad or weight.requires_grad:  # gradients need the values of now
            sums, weight = sums.clone(), weight.clone()
        return self._ours.average(sums, weight)


class JaxBackend(Backend):
    """JAX arrays on the CPU, read without a copy; their sums are NumPy arrays."""

    def __init__(self, blocks: Any) -> None:
        super().__init__(self.read("blocks", blocks))
        self.kind = JAX

    def read(self, name: str, given: Any) -> Any:
        """Return a JAX array as a NumPy view; raise if it is traced or on a GPU. Others are returned unchanged."""
        if not _is_of_jax(given):
            return given
        if isinstance(given, sys.modules["jax"].core.Tracer):
            raise TypeError(f"Stitcher.add: {name} must not be traced: sums are kept between calls; trace add_blocks")
        if any(each.platform != "cpu" for each in given.devices()):
            raise TypeError(
                f"Stitcher.add: {name} must be on the CPU, got {given.device}; pass cupy.from_dlpack({name})"
            )
        return np.asarray(given)

    def average(self, sums: Any, weight: Any) -> Any:
        return sys.modules["jax"].numpy.asarray(super().average(sums, weight))


JAX = "jax.Array"


def _is_of_jax(array: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def backend_of(blocks: Any, kind: str = "") -> Backend:
    """Return the backend of a batch of blocks, or of its sums if the batch's `kind` is given."""
    if kind == JAX or _is_of_jax(blocks):
        backend: Backend = JaxBackend(blocks)
    else:
        backend = TorchBackend(blocks) if _is_tensor(blocks) else Backend(blocks)
    check_dtype("Stitcher.add", "blocks", backend.dtype)
    return backend


def copy_of_window(where: str, window: Any) -> Any:
    """Return a copy of a checked window, which later changes do not affect; tensors keep their gradients."""
    if is_separable(window):
        return tuple([_copy(where, f"window[{axis}]", weights) for axis, weights in enumerate(window)])
    return _copy(where, "window", window)


def _copy(where: str, name: str, weights: Any) -> Any:
    if _is_tensor(weights):
        return weights.clone()
    if _is_of_jax(weights):  # immutable
        return weights
    with device_of(library_of(where, name, weights), weights):
        return weights.copy()


def _on_host(given: Any) -> Any:
    """Return positions as int64 in host memory."""
    if hasattr(given, "dtype") and not isinstance(given, np.ndarray):
        raise TypeError(
            "Stitcher.add: positions must be in the memory of the host with slabs=True, a numpy.ndarray or a sequence, "
            f"got {type_name(given)}"
        )
    return as_positions("Stitcher.add", np, given, None, "blocks")


def _as_window(weights: tuple[Any, ...] | None, places: Any) -> Any:
    """Return weights as calls take them: one array per axis, or one for the block."""
    return weights if weights is None or len(weights) == places.shape[1] else weights[0]
