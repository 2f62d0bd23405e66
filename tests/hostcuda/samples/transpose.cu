// Transposes a matrix through shared memory, 32 by 32 elements per block of 32 by 8 threads.
//
//   input   (height, width)   read
//   output  (width, height)   written, each element once
//
// Both extents are multiples of 32. Defining MISSING_BARRIER drops the barrier between writing and reading
// the tile.
#ifndef SCALAR
#define SCALAR float
#endif
using Scalar = SCALAR;

struct Parameters {
    int height, width;
};

extern "C" __global__ void transpose(const Scalar* __restrict__ input, Scalar* __restrict__ output,
                                     const Parameters parameters)
{
    __shared__ Scalar tile[32][33];
    const int top = blockIdx.y * 32, left = blockIdx.x * 32;
    for (int row = threadIdx.y; row < 32; row += 8) {
        tile[row][threadIdx.x] = input[(top + row) * parameters.width + left + threadIdx.x];
    }
#ifndef MISSING_BARRIER
    __syncthreads();
#endif
    for (int row = threadIdx.y; row < 32; row += 8) {
        output[(left + row) * parameters.height + top + threadIdx.x] = tile[threadIdx.x][row];
    }
}
