// space_to_batch with small or unsplit innermost blocks: one thread takes one block of a few images apart.
//
//   space  (batch, *size)          read, any strides
//   batch  (*block, batch, *grid)  each element written once, zero where it comes from the padding
//
// The blocks are sliding ones whose stride is their size. Neighbouring threads have neighbouring blocks:
// stores are contiguous, loads are strided by the block and find the rest of their sectors in the L1 cache.
// If the last axis is not split, an element is as wide a word as its rows allow; if a block's rows are
// aligned words, a thread loads TAPS_AT_ONCE elements of them at once.
#include "per_block.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, resident)
    space_to_batch_per_block(const Scalar* __restrict__ space, Scalar* __restrict__ batch,
                             const Parameters parameters)
{
    unfold<planes_at_once, false>(space, batch, {}, parameters);
}
