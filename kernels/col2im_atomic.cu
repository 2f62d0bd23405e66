// col2im by scattering: a thread adds one element of the columns to its pixel with an atomic operation.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, each element once
//   image    (batch, channels, *size), any strides             zeroed before the launch, or not; added to
//   window   (*kernel), or an array per axis, or null          read, once per element of the columns
//
// The order of addition is the hardware's, so only sums of integers and bool are bitwise reproducible. Atomic
// additions flush denormals of float32.
//
// The plain algorithm, to compare with. `auto` takes it only if no other kernel can serve a call. In
// bench/results/gpu-h100-2026-11-27.json it took 1.3 to 8.3 times as long as the fastest kernel of col2im,
// and 7.1 to 11.3 times as long as that of blocks_to_array.
#include "atomic.cuh"
#include "col2im.cuh"
#include "fusion.cuh"

struct AtomicParameters : Parameters {
    Divisor by_tap[rank]; // extents of the kernel; by_extent has those of the blocks
};

// The weight of a tap, from its place along the axes before this one.
template <int axes> __device__ TapWeight weight_of(const Offset (&taps)[rank], const Weights& window)
{
    if constexpr (axes == 0)
        return {&window};
    else
        return weight_of<axes - 1>(taps, window).template along<axes - 1>(taps[axes - 1], true);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    col2im_atomic(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                  const AtomicParameters p)
{
    Offset rest = grid_index();
    if (rest >= p.items)
        return;
    Offset pixel[rank], taps[rank], offset = 0;
    unrolled_for (int axis = last; axis >= 0; --axis) {
        const Offset block = p.by_extent[axis].split(rest);
        pixel[axis] = block * stride[axis] - p.pad[axis];
        offset += block * p.block_stride[axis];
    }
    unrolled_for (int axis = last; axis >= 0; --axis) {
        taps[axis] = p.by_tap[axis].split(rest);
        pixel[axis] += taps[axis] * dilation[axis];
        offset += taps[axis] * p.tap_stride[axis];
    }
    const Offset channel = p.by_channels.split(rest), batch = rest;

    bool inside = true;
    unrolled_for (int axis = 0; axis < rank; ++axis)
        inside = inside && within(pixel[axis], p.size[axis]);
    if (!inside)
        return;
    image += to_int64(batch) * p.image_batch + to_int64(channel) * p.image_channel;
    columns += to_int64(batch) * p.columns_batch + to_int64(channel) * p.columns_channel;
    unrolled_for (int axis = 0; axis < rank; ++axis)
        image += pixel[axis] * p.pixel_stride[axis];
    const Accumulator element = widen(columns[offset]);
    add_atomically(image, narrow(weigh(element, weight_of<rank>(taps, window).value(true))));
}
