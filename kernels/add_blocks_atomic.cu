// add_blocks by scattering: a thread adds one element of a block to its pixel with an atomic operation.
//
//   blocks     (count, batch, channels, *block), any strides    read once, unless clipped
//   image      (batch, channels, *size), any strides            added to
//   positions  (count, axes)                                     read
//   window     weights of a block's elements, or null            read
//   weight_out sums of weights (*size), if requested             added to
//
// The order of addition is the hardware's, so only sums of integers and bool are bitwise reproducible.
//
// `auto` takes it first for at most BINNED_MIN_TESTS elements whose sums are exact, see
// gpufold/gpu/choice.py. No saved run has measured so few. It wins for many small blocks of integers: for
// particles-7x7 in int32 it took 0.83 and 0.93 of the time of add_blocks_binned in the two
// bench/results/tuned-*.jsonl. In float32 and complex64 it took 1.02 to 2.2 times as long as the fastest
// kernel, in bench/results/gpu-h100-2026-11-27.json.
#include "positions.cuh"
#include "atomic.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    add_blocks_atomic(const Scalar* __restrict__ blocks, Result* __restrict__ image,
                      const long long* __restrict__ positions, const Weights window,
                      WEIGHT_OUT_ARGUMENT const ElementParameters p)
{
    Offset rest = grid_index();
    if (rest >= p.items)
        return;
    Offset tap[rank];
    unrolled_for (int axis = last; axis >= 0; --axis)
        tap[axis] = p.by_extent[axis].split(rest);
    const Offset channel = p.by_channels.split(rest);
    const Offset batch = p.by_batch.split(rest), block = rest;

    blocks += block * p.block_step + batch * p.blocks_batch + channel * p.blocks_channel;
    image += batch * p.image_batch + channel * p.image_channel;
    bool inside = true, weighing = batch == 0 && channel == 0;
    Offset weight_place = 0;
    unrolled_for (int axis = 0; axis < rank; ++axis) {
        const long long position =
            axis < fixed ? 0 : positions[(long long)(block)*positioned + (axis - fixed)];
        inside = inside && position >= -(long long)(tap[axis]) && position < p.size[axis] - tap[axis];
        blocks += tap[axis] * p.tap_stride[axis];
        image += (inside ? position + tap[axis] : 0) * p.pixel_stride[axis];
        weight_place += (inside ? Offset(position + tap[axis]) : 0) * p.weight_stride[axis];
        weighing = weighing && (axis >= fixed || tap[axis] == 0);
    }
    if (!inside)
        return;
    const Accumulator element = widen(*blocks);
    const TapWeight weight(tap, true, window, p);
    add_atomically(image, narrow(weigh(element, weight.value())));
    if constexpr (weighs_out)
        if (weighing)
            add_atomically(weight_out + weight_place, weight_of(weight, true));
}
