// Half of the threads wait at a barrier, the others at another: never on a GPU, please.
extern "C" __global__ void divergent(float* __restrict__ output)
{
    if (threadIdx.x % 2)
        ONE;
    else
        OTHER;
    output[threadIdx.x] = 1;
}
