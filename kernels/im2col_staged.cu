// im2col where neighbouring blocks are far apart: one warp takes 32 blocks, one chunk of taps at a
// time, through a tile in shared memory.
//
//   image    (batch, channels, *size)                read, any strides
//   columns  (batch, channels, *kernel, *blocks)  each element written once
//   window   weights of the taps, or null           read
//
// Loads run along the taps, which are neighbours in the image, stores along the blocks, which are
// neighbours in the columns. Where rows of taps are aligned words of pixels, these are loaded, and pass the
// tile, as words. Wins for large strides, where loads along the blocks would touch a line per lane.
#include "unfold.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, resident_staged)
    im2col_staged(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                  const Parameters parameters)
{
    __shared__ StagedTile tiles[warps];
    unfold_staged(image, columns, window, parameters, tiles[threadIdx.x / warp_size]);
}
