// im2col where neighbouring blocks are close: one thread takes one block out of a few planes.
//
//   image    (batch, channels, *size)                read, any strides
//   columns  (batch, channels, *kernel, *blocks)  each element written once
//   window   weights of the taps, or null           read
//
// Neighbouring threads have neighbouring blocks: stores are contiguous whatever the rows' length,
// loads are strided by the stride and find the rest of their sectors in the L1 cache. Wins until the stride
// spreads a warp's load over more lines than the L1 cache serves at the memory's speed.
// Where rows of taps are aligned words of pixels, a thread loads TAPS_AT_ONCE of them at once.
#include "per_block.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, resident)
    im2col_per_block(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                     const Parameters parameters)
{
    unfold<planes_at_once, false>(image, columns, window, parameters);
}
