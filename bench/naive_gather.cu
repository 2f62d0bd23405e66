// col2im as peers ship it, to compare with: one thread per pixel walks over all taps of the kernel, and
// divides to find the block of each that lands on the pixel, if any.
//
//   columns  (planes, *kernel, *blocks), C-contiguous    read
//   image    (planes, *size), C-contiguous               written, each element once
//
// Three axes; a problem with fewer has leading axes of one pixel, one tap and one block.

struct Parameters {
    int planes;
    int size[3], kernel[3], stride[3], dilation[3], pad[3], blocks[3];
};

extern "C" __global__ void naive_gather(const float* __restrict__ columns, float* __restrict__ image,
                                        const Parameters p)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    const int x = index % p.size[2] + p.pad[2]; // in padded coordinates
    const int y = index / p.size[2] % p.size[1] + p.pad[1];
    const int z = index / p.size[2] / p.size[1] % p.size[0] + p.pad[0];
    const int plane = index / p.size[2] / p.size[1] / p.size[0];
    if (plane >= p.planes)
        return;

    float sum = 0;
    for (int tap_z = 0; tap_z < p.kernel[0]; ++tap_z) {
        const int from_z = z - tap_z * p.dilation[0];
        if (from_z < 0 || from_z % p.stride[0] || from_z / p.stride[0] >= p.blocks[0])
            continue;
        for (int tap_y = 0; tap_y < p.kernel[1]; ++tap_y) {
            const int from_y = y - tap_y * p.dilation[1];
            if (from_y < 0 || from_y % p.stride[1] || from_y / p.stride[1] >= p.blocks[1])
                continue;
            for (int tap_x = 0; tap_x < p.kernel[2]; ++tap_x) {
                const int from_x = x - tap_x * p.dilation[2];
                if (from_x < 0 || from_x % p.stride[2] || from_x / p.stride[2] >= p.blocks[2])
                    continue;
                const int tap = ((plane * p.kernel[0] + tap_z) * p.kernel[1] + tap_y) * p.kernel[2] + tap_x;
                const int block = (from_z / p.stride[0] * p.blocks[1] + from_y / p.stride[1]) * p.blocks[2] +
                                  from_x / p.stride[2];
                sum += columns[tap * p.blocks[0] * p.blocks[1] * p.blocks[2] + block];
            }
        }
    }
    image[index] = sum;
}

// The same as PyTorch 2.11 has it: 64-bit indices, a batch apart from its channels, two axes, and a thread that
// walks over the blocks that reach its pixel along each.
struct BatchedParameters {
    long long batch, channels;
    long long size[2], kernel[2], stride[2], dilation[2], pad[2], blocks[2];
};

extern "C" __global__ void __launch_bounds__(512)
    batched_gather(const float* __restrict__ columns, float* __restrict__ image, const BatchedParameters p)
{
    const long long pixels = p.channels * p.size[0] * p.size[1]; // of one image
    const long long step = (long long)(gridDim.x) * blockDim.x;
    for (long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x; i < pixels * p.batch; i += step) {
        const long long index = i % pixels, batch = i / pixels;
        const long long channel = index / (p.size[1] * p.size[0]);
        const long long at[2] = {index / p.size[1] % p.size[0] + p.pad[0], index % p.size[1] + p.pad[1]};
        const float* const own =
            columns + batch * p.channels * p.kernel[0] * p.kernel[1] * p.blocks[0] * p.blocks[1];
        long long begin[2], end[2]; // of the blocks
        for (int axis = 0; axis < 2; ++axis) {
            const long long extent = (p.kernel[axis] - 1) * p.dilation[axis] + 1,
                            last = at[axis] / p.stride[axis] + 1;
            begin[axis] = at[axis] < extent ? 0 : (at[axis] - extent) / p.stride[axis] + 1;
            end[axis] = last < p.blocks[axis] ? last : p.blocks[axis];
        }
        float sum = 0;
        for (long long y = begin[0]; y < end[0]; ++y)
            for (long long x = begin[1]; x < end[1]; ++x) {
                long long tap_y = at[0] - y * p.stride[0], tap_x = at[1] - x * p.stride[1];
                if (tap_y % p.dilation[0] || tap_x % p.dilation[1])
                    continue;
                tap_y /= p.dilation[0];
                tap_x /= p.dilation[1];
                const long long tap = (channel * p.kernel[0] + tap_y) * p.kernel[1] + tap_x;
                sum += own[(tap * p.blocks[0] + y) * p.blocks[1] + x];
            }
        image[i] = sum;
    }
}
