// Moves elements one by one: thread i takes element i % count, and stores it as the transpose of a matrix
// would be.
//
//   input   (height, width), count elements   read, from end to end
//   output  (width, height)                   written; neighbouring threads write width elements apart
//
// More threads than elements write twice, fewer leave elements out, an offset goes astray.
#include "window.cuh"

struct Parameters {
    int count, width, offset;
};

extern "C" __global__ void store(const float* __restrict__ input, float* __restrict__ output, const Window,
                                 const Parameters parameters)
{
    const int element = int(blockIdx.x * blockDim.x + threadIdx.x) % parameters.count;
    const int height = parameters.count / parameters.width;
    output[element % height * parameters.width + element / height + parameters.offset] = input[element];
#ifdef WRITE_INPUT
    if (element == 5)
        const_cast<float*>(input)[element] = 0;
#endif
}
