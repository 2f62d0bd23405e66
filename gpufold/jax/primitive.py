"""JAX's primitive of a call: its result, tangent, transpose and batching, and its lowering to XLA.

Its operands are data, the arrays of a window, positions, and the array that add_blocks adds to. It is linear in each
operand except positions and the weights of averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gpufold import adjoints
from gpufold.calls import Call
from gpufold.compute import check_variant, launcher, run
from gpufold.geometry import PositionsGeometry
from gpufold.rounding import usual_mode

call_p = Primitive("gpufold")


def apply(call: Call, *given: Any) -> Any:
    """Compute a call on (data, window, positions, out), None if absent, which vary alike, as `jax.shard_map` wants."""
    operands = jax.tree.leaves(given)
    axes = [_varying(jax.typeof(each)) for each in operands]
    lacking = [tuple(frozenset().union(*axes) - own) for own in axes]
    vary = partial(lax.pcast, to="varying") if hasattr(lax, "pcast") else lax.pvary  # which JAX 0.7 has
    alike = [vary(each, some) if some else each for each, some in zip(operands, lacking, strict=True)]
    return call_p.bind(*alike, call=call)


def gathered(array: Any) -> Any:
    """Return an array that no explicit axis of a mesh divides; if one did, it divides the gradient too."""
    sharding: Any = jax.typeof(array).sharding
    spec = sharding.spec
    if not (any(getattr(spec, "partitions", spec)) or getattr(spec, "unreduced", None)):
        return array
    return jax.sharding.reshard(array, sharding.update(spec=jax.P(*[None] * array.ndim)))


def _varying(kind: Any) -> frozenset[Any]:
    """Return the axes of a mesh over which an array of a kind varies; JAX 0.7 to 0.9 name them otherwise."""
    return kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", frozenset())


def _kind(data: Any, *_: Any, call: Call) -> Any:
    """Describe the result of a call, which has the mesh of its operands, and varies as they do."""
    shape, dtype = call.result_shape, jnp.dtype(call.dtype)
    sharding = data.sharding.update(spec=jax.P(*[None] * len(shape)))
    return data.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


@contextmanager
def own_promotion() -> Iterator[None]:
    """Let arithmetic broadcast and promote, even if the user of JAX forbids it."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def parted(call: Call, operands: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return operands, or values per operand, as (data, window, positions, out), None if absent."""
    data, *rest = operands
    out = rest.pop() if call.fusion.accumulate else None
    positions = rest.pop() if isinstance(call.geometry, PositionsGeometry) else None
    return data, tuple(rest) or None, positions, out


JAX = adjoints.Library(
    **{name: getattr(jnp, name) for name in ("where", "sign", "stack", "concatenate", "moveaxis", "broadcast_to")},
    split=lambda array, sizes, axis: jnp.split(array, np.cumsum(sizes[:-1]), axis),
    apply=apply,
    axes_of=lambda call, window: window or (),
    window_of=tuple,
    cast=lambda array, dtype: array.astype(dtype),
    full=lambda shape, value, dtype, like: jnp.full(shape, value, dtype),
    arange=lambda size, like: jnp.arange(size, dtype=like.dtype),
    paired=lambda array: array,
    constant="jax.lax.stop_gradient(window)",
)
"""JAX, where a window is a tuple of arrays."""


@own_promotion()
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> tuple[Any, Any]:
    changes = [None if type(each) is ad.Zero else each for each in tangents]
    change = adjoints.tangent(JAX, call, parted(call, primals), parted(call, changes))
    return apply(call, *primals), change


@own_promotion()
def _transpose(cotangent: Any, *operands: Any, call: Call) -> list[Any]:
    """Return the cotangent of each operand that is undefined: of data and `out`, or of one array of a window."""
    results: list[Any] = [None] * len(operands)
    if type(cotangent) is ad.Zero:
        return results
    data, window, positions, _ = parted(call, operands)
    if ad.is_undefined_primal(data):
        results[0] = adjoints.transpose(JAX, call, cotangent, window, positions)
    if call.fusion.accumulate and ad.is_undefined_primal(operands[-1]):
        results[-1] = cotangent
    for axis, each in enumerate(window or ()):
        if ad.is_undefined_primal(each):
            (results[1 + axis],) = adjoints.gradients_of_window(JAX, call, data, cotangent, window, positions, [axis])
    return results


@own_promotion()
def _batch(operands: Sequence[Any], dims: Sequence[int | None], *, call: Call) -> tuple[Any, int]:
    data_dim, window_dims, positions_dim, out_dim = parted(call, dims)
    operands = [*map(gathered, operands)]
    size = next(each.shape[dim] for each, dim in zip(operands, dims, strict=True) if dim is not None)
    if not any(dim is not None for dim in window_dims or ()):
        if positions_dim is None:
            return adjoints.batched(JAX, size, (data_dim, out_dim), parted(call, operands), call)
        return adjoints.batched_positions(JAX, size, (data_dim, positions_dim, out_dim), parted(call, operands), call)

    def compute(row: Sequence[Any]) -> Any:
        return apply(call, *(each if of is None else of for each, of in zip(operands, row, strict=True)))

    rows = [None if dim is None else jnp.moveaxis(each, dim, 0) for each, dim in zip(operands, dims, strict=True)]
    return lax.map(compute, rows), 0


call_p.def_impl(jax.disable_jit(False)(jax.jit(call_p.bind, static_argnames="call")))  # even if its caller disables it
call_p.def_abstract_eval(_kind)
ad.primitive_jvps[call_p] = _jvp
ad.primitive_transposes[call_p] = _transpose
batching.primitive_batchers[call_p] = _batch


def on_cpu(call: Call, _: Any, result: Any, *operands: Any) -> None:
    """Compute a call on XLA's buffers without waiting for JAX; the result's buffer has the array to add to."""
    data, window, positions, _ = parted(call, [*map(np.asarray, operands)])
    places = None if positions is None else positions.astype(np.int64)
    with usual_mode():  # XLA's threads flush denormals
        run(call, np, data, np.asarray(result), window, places)


def on_gpu(call: Call, context: Any, result: Any, *operands: Any) -> None:
    """Launch a call on XLA's stream, with buffers as in `on_cpu`, but positions as int64."""
    of_result, *addresses = [each.__cuda_array_interface__["data"][0] for each in (result, *operands)]
    data, window, positions, _ = parted(call, addresses)
    stream = launcher().stream_of(result.__dlpack_device__()[1], context.stream)
    launcher().execute_dense(call, (data, of_result, None, positions, window or ()), stream)


def _called(callback: Callable[..., None], call: Call, operands: Sequence[Any]) -> Any:
    """Return the result of a callback, of the data's dtype, in the buffer of the array that it is added to."""
    aliases = {len(operands) - 1: 0} if call.fusion.accumulate else {}
    result = jax.ShapeDtypeStruct(call.result_shape, operands[0].dtype)
    return buffer_callback(partial(callback, call), result, input_output_aliases=aliases)(*operands)


def _for_cpu(*operands: Any, call: Call) -> Any:
    check_variant(call, True, "jax.Array on the CPU", "jax.device_put({}, jax.devices('cuda')[0])")
    return _called(on_cpu, call, operands)


def _for_gpu(*operands: Any, call: Call) -> Any:
    """Compute a call on a GPU; bfloat16 is passed as uint16, because the CUDA array interface does not have it."""
    data, window, positions, out = parted(call, operands)
    if 0 in call.result_shape or (out is not None and 0 in data.shape):
        return jnp.zeros(call.result_shape, call.dtype) if out is None else out
    if positions is not None and positions.dtype == jnp.int32:
        positions = jnp.stack((positions, positions >> 31), -1)  # the memory of int64
    given = jax.tree.leaves((data, window, positions, out))
    given = [each.view(jnp.uint16) if each.dtype == jnp.bfloat16 else each for each in given]
    result = _called(on_gpu, call, given)
    return result.view(call.dtype) if call.dtype == "bfloat16" else result


for _platform, _compute in (("cpu", _for_cpu), ("cuda", _for_gpu)):
    mlir.register_lowering(call_p, mlir.lower_fun(_compute, multiple_results=False), platform=_platform)
