// Adds to each element the one that the thread `keeper` keeps in shared memory, which it then clears: after a
// barrier of its warp only, so that a second warp may come too late.
//
//   input   (threads, )   read
//   output  (threads, )   written, each element once
#include "window.cuh"

extern "C" __global__ void broadcast(const float* __restrict__ input, float* __restrict__ output,
                                     const Window, const int keeper)
{
    __shared__ float kept;
    if (threadIdx.x == keeper)
        kept = input[keeper];
    __syncthreads();
    output[threadIdx.x] = input[threadIdx.x] + kept;
    __syncwarp();
    if (threadIdx.x == keeper)
        kept = 0;
}
