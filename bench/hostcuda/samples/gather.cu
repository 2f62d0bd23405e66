// col2im in its plainest form: one thread per pixel adds up the taps that land on it, in lexicographic order.
//
//   columns  (planes, kernel_h, kernel_w, blocks_h, blocks_w)   read
//   image    (planes, height, width)                            written, each element once
struct Parameters {
    int planes, height, width;
    int kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    int blocks_h, blocks_w;
};

extern "C" __global__ void gather(const float* __restrict__ columns, float* __restrict__ image,
                                  const Parameters p)
{
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= p.planes * p.height * p.width)
        return;
    const int x = pixel % p.width + p.pad_w; // in padded coordinates
    const int y = pixel / p.width % p.height + p.pad_h;
    const int plane = pixel / p.width / p.height;
    float sum = 0;
    for (int tap_y = 0; tap_y < p.kernel_h; ++tap_y) {
        const int from_y = y - tap_y * p.dilation_h;
        if (from_y < 0 || from_y % p.stride_h || from_y / p.stride_h >= p.blocks_h)
            continue;
        for (int tap_x = 0; tap_x < p.kernel_w; ++tap_x) {
            const int from_x = x - tap_x * p.dilation_w;
            if (from_x < 0 || from_x % p.stride_w || from_x / p.stride_w >= p.blocks_w)
                continue;
            const int tap = (plane * p.kernel_h + tap_y) * p.kernel_w + tap_x;
            sum += columns[(tap * p.blocks_h + from_y / p.stride_h) * p.blocks_w + from_x / p.stride_w];
        }
    }
    image[pixel] = sum;
}
