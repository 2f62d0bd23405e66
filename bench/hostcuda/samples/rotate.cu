// Gives each thread of a block the element of the thread `distance` further on, and then stores the next
// elements where the first were: barriers must name all threads whose elements are exchanged.
//
//   input   (2, threads)        read
//   output  (blocks, threads)   written, each element once
#include "window.cuh"

extern "C" __global__ void rotate(const float* __restrict__ input, float* __restrict__ output, const Window,
                                  const int distance)
{
    __shared__ float elements[256];
    const int thread = threadIdx.x, threads = blockDim.x;
    elements[thread] = input[thread];
    WRITTEN; // a barrier, as READ
    const float first = elements[(thread + distance) % threads];
    READ;
    elements[thread] = input[threads + thread];
    __syncthreads();
    output[blockIdx.x * threads + thread] = first + elements[(thread + distance) % threads];
}
