"""The functions of gpufold on JAX arrays, traced or not: each is one primitive, under `jit`, `grad`, `jvp` and `vmap`.

>>> import jax, jax.numpy as jnp, gpufold.jax
>>> @jax.jit
... def energy(columns):  # one channel of 4 blocks of 3 samples
...     return (gpufold.jax.col2im(columns, (9,), (3,), strides=(2,)) ** 2).sum()
>>> jax.grad(energy)(jnp.ones((3, 4)))[:, 0].tolist()
[2.0, 2.0, 4.0]

CPU arrays use the NumPy path without a copy, and CUDA arrays use CuPy's kernels on XLA's stream. Results are bitwise
identical to those of NumPy and CuPy arrays. Sizes are checked while JAX traces. JAX arrays are immutable: there is no
`out` and no `accumulate`, and `add_blocks` returns a new array.
"""

from __future__ import annotations

from importlib.util import find_spec

from gpufold import blocks, extras, positions, sliding, space

try:
    from jax import __version__
except ImportError as error:
    raise extras.missing("gpufold.jax", "jax", "jax") from error
if find_spec("jax.experimental.buffer_callback") is None:
    raise extras.outdated("gpufold.jax", "jax", __version__, "0.7")

from gpufold.jax.functions import function_of
from gpufold.operations import OPERATIONS

__all__ = [*OPERATIONS]

col2im, im2col = function_of(sliding.col2im), function_of(sliding.im2col)
blocks_to_array, array_to_blocks = function_of(blocks.blocks_to_array), function_of(blocks.array_to_blocks)
add_blocks, take_blocks = function_of(positions.add_blocks), function_of(positions.take_blocks)
average = function_of(positions.average)
batch_to_space, space_to_batch = function_of(space.batch_to_space), function_of(space.space_to_batch)
