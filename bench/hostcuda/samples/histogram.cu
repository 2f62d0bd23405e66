// Counts values in scratch memory.
//
//   input    (count, ), values below 64   read
//   output   (64, )                       written, each element once
//   scratch  (64, )                       added to; zero before
#include "window.cuh"

extern "C" __global__ void histogram(const unsigned char* __restrict__ input, unsigned* __restrict__ output,
                                     const Window, unsigned* __restrict__ scratch, const int count)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        atomicAdd(&scratch[input[i]], 1);
    __syncthreads();
    output[threadIdx.x] = scratch[threadIdx.x];
}
