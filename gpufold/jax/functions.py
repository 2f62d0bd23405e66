"""The functions of gpufold for JAX arrays, with the arguments that immutable arrays support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpufold.arrays import as_positions, check_bytes, check_real, extended_call
from gpufold.calls import Call
from gpufold.coverage import filled
from gpufold.dispatch import Like
from gpufold.given import check_kind
from gpufold.jax.primitive import apply, gathered, own_promotion
from gpufold.names import misfit
from gpufold.operations import OPERATIONS
from gpufold.outside import BY_INDEX, extended, taken
from gpufold.weights import of_elements
from gpufold.windows import axes_of_window, check_block_weights, name_of_axis


def _checked(name: str, argument: str, array: Any) -> Any:
    """Return an array as calls can read it; raise if it is none."""
    check_kind(name, argument, array, jax.Array, "jax.Array", "jax.numpy.asarray")
    return gathered(array)


def function_of(public: Callable[..., Any]) -> Callable[..., jax.Array]:
    """Return a public function for JAX arrays, which are immutable."""
    name, like = public.__name__, Like(public, "jax.Array")

    def function(*given: Any, **named: Any) -> Any:
        try:
            arguments = like.shown.bind(*given, **named).arguments
        except TypeError as error:
            raise misfit(function, name, given, named) or TypeError(f"{name}: {error}") from None
        return _computed(name, **arguments)

    said = "Arguments and errors are those of `gpufold.{name}`, but for `out` and `accumulate`; results are new arrays."
    function.__module__ = "gpufold.jax"
    return like.dress(function, said)


@own_promotion()
def _computed(name: str, /, **given: Any) -> Any:
    """Check the arguments of a call, which may be traced, and compute it."""
    operation, window = OPERATIONS[name], given.get("weight" if name == "average" else "window")
    by_block = given.pop("weights", None)
    for argument in ("array", operation.data, "weight"):
        if argument in given:
            given[argument] = _checked(name, argument, given[argument])
    if "positions" in given:
        given["positions"] = _as_positions(name, given["positions"])
    call, weights = operation.describe(**given), []
    kept = jax.dtypes.canonicalize_dtype(jnp.dtype(call.dtype)).name  # without jax_enable_x64 one of 32 bits
    if kept != call.dtype and given.get("dtype") is not None:
        raise TypeError(f"{name}: dtype must be one that JAX has without jax_enable_x64, got {call.dtype}; enable it")
    call = call._replace(dtype=kept, data_dtype="")
    if name == "array_to_blocks" and call.fusion.mode != "constant":
        call, margins = extended_call(call, call.element.itemsize)
        given["array"] = extended(jnp, jnp.arange, given["array"], margins, given["mode"])
    check_bytes(call, call.result_shape, call.element.itemsize)
    for axis, each in enumerate(() if window is None else axes_of_window(call, window, "jax.numpy.asarray")):
        argument = name_of_axis(call, window, axis)
        each = _checked(name, argument, each)
        check_real(name, argument, each.dtype)
        weights.append(_narrowed(each, call.element.weight, name))
    if call.fusion.mode in BY_INDEX:
        weighted, block = partial(_computed, "array_to_blocks", window=window), call.geometry.block_shape
        return taken(jnp, jnp.arange, weighted, given["array"], given["positions"], block, given["mode"])
    data = given[operation.data].astype(call.dtype)
    if by_block is not None:
        data, weights = _weighed(call, data, by_block, weights), []
        call = call._replace(dtype=data.dtype.name, fusion=call.fusion._replace(window="none"))
    into = given["array"].astype(call.dtype) if name == "add_blocks" else None
    result = apply(call, data, tuple(weights), given.get("positions"), into).astype(kept)
    return filled(call.geometry, result, given.get("fill_value"))


def _weighed(call: Call, blocks: Any, by_block: Any, weights: Sequence[Any]) -> Any:
    """Return blocks times one weight per block and those of a window, in the dtype of their sums."""
    by_block = _checked("add_blocks", "weights", by_block)
    check_block_weights("add_blocks", by_block, call.dtype, len(blocks))
    each = of_elements(jnp, _narrowed(by_block, call.element.weight), weights, blocks.ndim)
    if blocks.dtype.kind == "c":
        return jax.lax.complex(blocks.real * each, blocks.imag * each)
    return blocks * each


def _narrowed(weights: jax.Array, dtype: str, operation: str = "") -> Any:
    """Return weights in a dtype; no nonzero weight becomes zero, except one that `average` divides by."""
    narrow = weights.astype(dtype)
    if weights.dtype != jnp.float64 or dtype != "float32" or operation == "average":
        return narrow
    return jnp.where((narrow == 0) & (weights != 0), jnp.sign(weights).astype(dtype) * np.finfo(dtype).tiny, narrow)


def _as_positions(name: str, positions: Any) -> Any:
    """Return positions in JAX's widest integers; larger values are clipped, far outside any array."""
    widest = np.iinfo(jax.dtypes.canonicalize_dtype(np.int64))
    if isinstance(positions, list | tuple) and any(isinstance(each, jax.Array) for each in jax.tree.leaves(positions)):
        positions = jnp.asarray(positions)
    if not isinstance(positions, jax.Array):
        return jnp.asarray(as_positions(name, np, positions, None).clip(widest.min, widest.max), widest.dtype)
    positions = _checked(name, "positions", positions)
    if not jnp.issubdtype(positions.dtype, jnp.integer):  # a key's has no kind
        raise TypeError(f"{name}: positions must be integers, got dtype {positions.dtype}")
    if positions.dtype.kind == "u" and positions.dtype.itemsize >= widest.dtype.itemsize:
        positions = jnp.minimum(positions, widest.max)
    return (positions[:, None] if positions.ndim == 1 else positions).astype(widest.dtype)
