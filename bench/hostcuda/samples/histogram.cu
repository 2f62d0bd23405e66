// Counts values, first in shared memory, then in all blocks' histogram.
//
//   input      (count, ), values below 64   read
//   histogram  (64, )                       added to; zero before
extern "C" __global__ void histogram(const unsigned char* __restrict__ input,
                                     unsigned* __restrict__ histogram, const int count)
{
    __shared__ unsigned counts[64];
    if (threadIdx.x < 64)
        counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        atomicAdd(&counts[input[i]], 1);
    __syncthreads();
    if (threadIdx.x < 64)
        atomicAdd(&histogram[threadIdx.x], counts[threadIdx.x]);
}
