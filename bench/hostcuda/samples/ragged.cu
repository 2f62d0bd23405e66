// Adds up rows of different lengths, from their ends: lane i of a warp joins in at iteration rows - its row's
// length.
//
//   input   (rows, warps * 32)   read, row i of a thread's column for i >= rows - length
//   output  (warps * 32, )     written, each element once
extern "C" __global__ void ragged(const float* __restrict__ input, float* __restrict__ output, const int rows)
{
    const int threads = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
    const int length = 1 + threadIdx.x % 32;
    float sum = 0;
    for (int row = 0; row < rows; ++row) {
        if (row >= rows - length)
            sum += input[row * threads + thread];
    }
    output[thread] = sum;
}
