// Sums each warp's 32 numbers by shuffles: one thread per element.
//
//   input   (warps, 32)   read
//   output  (warps, )     written, each element once, by lane 0
extern "C" __global__ void reduce(const float* __restrict__ input, float* __restrict__ output)
{
    const int element = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = input[element];
    for (int distance = 16; distance; distance /= 2)
        sum += __shfl_down_sync(~0u, sum, distance);
    if (threadIdx.x % 32 == 0)
        output[element / 32] = sum;
}
