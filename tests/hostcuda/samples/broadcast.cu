// Adds to each element the one that thread 0 keeps in shared memory, which it then clears: after a barrier of
// its warp only, so that a second warp may come too late.
//
//   input   (threads, )   read
//   output  (threads, )   written, each element once
extern "C" __global__ void broadcast(const float* __restrict__ input, float* __restrict__ output)
{
    __shared__ float kept;
    if (threadIdx.x == 0)
        kept = input[0];
    __syncthreads();
    output[threadIdx.x] = input[threadIdx.x] + kept;
    __syncwarp();
    if (threadIdx.x == 0)
        kept = 0;
}
