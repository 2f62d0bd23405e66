// take_blocks: a thread takes a few elements of the blocks, each out of a few planes.
//
//   image      (batch, channels, *size), any strides            read where blocks lie on it
//   blocks     (count, batch, channels, *block), any strides    each element written once
//   positions  (count, axes)                                     read by every thread, from the L1 cache
//   window     weights of a block's elements, or null            read, once for all planes of a thread
//
// A thread's elements are of several rows of one block, or of several parts of a row where there is one axis;
// neighbouring threads have neighbouring elements of a row, so that loads and stores are as long as rows are,
// and longer where the rows of a block follow each other. What lies outside the image is zero, and never
// loaded, or the nearest pixel.
#include "take_blocks.cuh"

#ifndef PLANES
#define PLANES 1
#endif
#ifndef ELEMENTS
#define ELEMENTS 4
#endif

constexpr int elements = ELEMENTS;                // of a thread in each plane, of one block and column
constexpr int planes = PLANES;                    // share the index arithmetic
constexpr int along = rank > 1 ? last - 1 : last; // the axis that a thread's elements differ on

struct DirectParameters : Parameters {
    Divisor by_batch;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    take_blocks_direct(const Scalar* __restrict__ image, Scalar* __restrict__ blocks,
                       const long long* __restrict__ positions, const Weights window,
                       const DirectParameters p)
{
    Offset rest = grid_index();
    if (rest >= p.items)
        return;
    Offset tap[rank]; // of the first element
#pragma unroll
    for (int axis = last; axis >= 0; --axis)
        tap[axis] = p.by_extent[axis].split(rest);
    const Offset step = p.by_extent[along].divisor; // from one element to the next
    const Offset channel = p.by_channels.split(rest) * planes;
    const Offset batch = p.by_batch.split(rest), block = rest;

    Offset first[rank] = {};
#pragma unroll
    for (int axis = fixed; axis < rank; ++axis)
        first[axis] = first_pixel(positions[(long long)(block)*positioned + (axis - fixed)], axis, p);

    image += batch * p.image_batch + channel * p.image_channel;
    blocks += block * p.block_step + batch * p.blocks_batch + channel * p.blocks_channel;
    bool inside = true, exists[elements];
    Offset pixels = 0, taps = 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
        if (axis == along)
            continue;
        const Offset pixel = taken_pixel(first[axis] + tap[axis], axis, p);
        inside = inside && within(pixel, p.size[axis]);
        pixels += pixel * p.pixel_stride[axis];
        taps += tap[axis] * p.tap_stride[axis];
    }

    Scalar taken[elements][planes];
    TapWeight weights[elements];
#pragma unroll
    for (int number = 0; number < elements; ++number) {
        Offset of_tap[rank];
#pragma unroll
        for (int axis = 0; axis < rank; ++axis)
            of_tap[axis] = tap[axis] + (axis == along ? number * step : 0);
        exists[number] = of_tap[along] < p.block[along];
        const Offset pixel = taken_pixel(first[along] + of_tap[along], along, p);
        const bool covered = inside && exists[number] && within(pixel, p.size[along]);
        weights[number] = TapWeight(of_tap, covered, window, p);
        const Scalar* const source = image + (pixels + pixel * p.pixel_stride[along]);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            trace_iteration(number * planes + plane);
            taken[number][plane] =
                load_if(source + plane * p.image_channel, covered && plane < p.channels - channel);
        }
    }
#pragma unroll
    for (int number = 0; number < elements; ++number) {
        Scalar* const target = blocks + (taps + (tap[along] + number * step) * p.tap_stride[along]);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            trace_iteration(number * planes + plane);
            if (exists[number] && plane < p.channels - channel)
                target[plane * p.blocks_channel] = weighed(taken[number][plane], weights[number]);
        }
    }
}
