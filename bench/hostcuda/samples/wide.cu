// Copies four elements per thread, as one word of 16 bytes.
//
//   input   (first + 4 * threads, )   read from the element `first` on
//   output  (threads, 4)              written, each element once
#include "window.cuh"

extern "C" __global__ void wide(const float* __restrict__ input, float4* __restrict__ output, const Window,
                                const int first)
{
    output[threadIdx.x] = reinterpret_cast<const float4*>(input + first)[threadIdx.x];
}
