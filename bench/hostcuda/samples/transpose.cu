// Transposes a matrix through shared memory: a block of 32 by 8 threads takes the tiles of 32 by 32 elements
// that lie above each other, one after the other.
//
//   input   (height, width)   read
//   output  (width, height)   written, each element once
//
// Both extents are multiples of 32. DROPPED says which of its two barriers is missing.
#ifndef DROPPED
#define DROPPED 0
#endif
constexpr int dropped_barrier = DROPPED;
constexpr int pitch = 33; // keeps the elements of a column in different banks

struct Parameters {
    int height, width;
};

extern "C" __global__ void transpose(const float* __restrict__ input, float* __restrict__ output,
                                     const Parameters parameters)
{
    __shared__ float tile[32][pitch];
    const int left = blockIdx.x * 32, x = threadIdx.x, y = threadIdx.y;
#pragma unroll 1
    for (int top = 0; top < parameters.height; top += 32) {
        for (int row = 0; row < 32; row += 8)
            tile[y + row][x] = input[(top + y + row) * parameters.width + left + x];
        if (dropped_barrier != 1)
            __syncthreads(); // the tile is full
        for (int row = 0; row < 32; row += 8)
            output[(left + y + row) * parameters.height + top + x] = tile[x][y + row];
        if (dropped_barrier != 2)
            __syncthreads(); // the tile may be written again
    }
}
