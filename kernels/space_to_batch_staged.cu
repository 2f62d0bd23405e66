// space_to_batch with large innermost blocks: one warp takes 32 blocks apart, one chunk of a block's row at a
// time, through a tile in shared memory.
//
//   space  (batch, *size)          read, any strides
//   batch  (*block, batch, *grid)  each element written once, zero where it comes from the padding
//
// Loads run along the rows of the blocks, stores along neighbouring blocks. Wins where loads along the blocks
// would touch a line per lane.
#include "unfold.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, resident_staged)
    space_to_batch_staged(const Scalar* __restrict__ space, Scalar* __restrict__ batch,
                          const Parameters parameters)
{
    __shared__ StagedTile tiles[warps];
    unfold_staged(space, batch, {}, parameters, tiles[threadIdx.x / warp_size]);
}
