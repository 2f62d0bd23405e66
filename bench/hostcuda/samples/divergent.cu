// Half of the threads wait at a barrier, the others at another: never on a GPU, please.
#include "window.cuh"

extern "C" __global__ void divergent(const float* __restrict__ input, float* __restrict__ output,
                                     const Window, const int)
{
    if (threadIdx.x % 2)
        ONE;
    else
        OTHER;
    output[threadIdx.x] = input[threadIdx.x];
}
