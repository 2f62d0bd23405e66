// add_blocks by owners: a thread has an element of a block, and the first block that covers a pixel owns it.
//
//   blocks     (count, batch, channels, *block), any strides     read, each element once
//   image      (batch, channels, *size), any strides             read and written once where a block covers
//                                                                it, not at all elsewhere
//   positions  (count, axes)                                     read by every thread, from the L1 cache
//   window     weights of a block's elements, or null            read, once for the planes of a thread
//   weight_out sums of weights (*size), where they are asked for  read and written as the image
//   scratch    the lists of blocks (see bins.cuh)                read by every thread
//
// A thread goes through the list of the tile that its pixel is in. Where a block before its own covers the
// pixel it has nothing to do; else it adds its own element and those of the blocks after it, in their order,
// without atomics. For many small blocks that cover few pixels more than once: an image's rest costs nothing.
#include "bins.cuh"

#ifndef PLANES
#define PLANES 4
#endif
#ifndef RESIDENT_BLOCKS
#define RESIDENT_BLOCKS 4
#endif

constexpr int planes = PLANES; // of a thread, at a time

// Those of 32 blocks of a list, from `begin` on, that cover a pixel: a bit for each.
inline __device__ unsigned covering_blocks(const Offset (&pixel)[rank], Offset begin, Offset end,
                                           const Offset* scratch, const BinParameters& p)
{
    const int count = int(min(end - begin, Offset(32)));
    unsigned covering = 0;
#pragma unroll 4
    for (int number = 0; number < count; ++number)
        covering |= unsigned(entry_of(scratch, begin + number, p).covers(pixel, p)) << number;
    return covering;
}

// An element of a block, by its tap.
struct Element {
    Offset block, tap[rank];
};

// A pixel's.
struct Sums {
    Accumulator elements[planes];
    Weight weights;
};

inline __device__ void add_element(const Element& element, Sums& sums, const Scalar* source, Offset channels,
                                   const Weights& window, const Parameters& p)
{
    Offset offset = 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis)
        offset += element.tap[axis] * p.tap_stride[axis];
    const TapWeight weight(element.tap, true, window, p);
    source += element.block * p.block_step + offset;
    Scalar elements[planes];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
        trace_iteration(plane);
        elements[plane] = load_if(source + plane * p.blocks_channel, plane < channels);
    }
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
        sums.elements[plane] = add(sums.elements[plane], weigh(widen(elements[plane]), weight));
    if constexpr (weighs_out)
        sums.weights = add(sums.weights, weight_of(weight, true));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    add_blocks_owners(const Scalar* __restrict__ blocks, Result* __restrict__ image,
                      const long long* __restrict__ positions, const Weights window,
                      WEIGHT_OUT_ARGUMENT const Offset* __restrict__ scratch, const BinParameters p)
{
    Offset rest = grid_index();
    if (rest >= p.items)
        return;
    Element own;
#pragma unroll
    for (int axis = last; axis >= 0; --axis)
        own.tap[axis] = p.by_extent[axis].split(rest);
    const Offset share = p.by_channels.split(rest); // of the groups of planes
    const Offset batch = p.by_batch.split(rest);
    own.block = rest;

    Offset pixel[rank], number = 0, weight_place = 0;
    bool inside = true, weighing = batch == 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
        const long long position =
            axis < fixed ? 0 : positions[(long long)(own.block) * positioned + (axis - fixed)];
        const bool met = position >= -(long long)(own.tap[axis]) && position < p.size[axis] - own.tap[axis];
        inside = inside && met;
        pixel[axis] = met ? Offset(position + own.tap[axis]) : 0;
        image += pixel[axis] * p.pixel_stride[axis];
        weight_place += pixel[axis] * p.weight_stride[axis];
        weighing = weighing && (axis >= fixed || pixel[axis] == 0);
        if (axis >= fixed)
            number = number * p.along[axis] + p.by_side[axis].quotient(pixel[axis]);
    }
    if (!inside)
        return;

    const Bin* const bin = bins_of(scratch) + number;
    const Offset end = load_if(&bin->end, true), count = load_if(&bin->count, true);
    Offset part = end - count; // of the list, 32 blocks
    unsigned covering = 1;     // of which these cover the pixel
    if (count > 1) {
        while (!(covering = covering_blocks(pixel, part, end, scratch, p)))
            part += 32;
        const Offset first = part + __ffs(covering) - 1;
        if (entry_of(scratch, first, p).block != own.block)
            return;
    }

    image += batch * p.image_batch;
    blocks += batch * p.blocks_batch;
    for (Offset channel = share * planes; channel < p.channels; channel += p.by_channels.divisor * planes) {
        Result* const target = image + channel * p.image_channel;
        const Scalar* const source = blocks + channel * p.blocks_channel;
        Sums sums;
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
            sums.elements[plane] =
                widen(load_own_if(target + plane * p.image_channel, plane < p.channels - channel));
        if constexpr (weighs_out)
            sums.weights = load_own_if(weight_out + weight_place, weighing && channel == 0);
        add_element(own, sums, source, p.channels - channel, window, p);
        unsigned others = covering & (covering - 1);
        for (Offset begin = part;;) {
            for (; others; others &= others - 1) {
                const Entry entry = entry_of(scratch, begin + __ffs(others) - 1, p);
                Element other = own;
                other.block = entry.block;
#pragma unroll
                for (int axis = fixed; axis < rank; ++axis)
                    other.tap[axis] = pixel[axis] - entry.position[axis - fixed];
                add_element(other, sums, source, p.channels - channel, window, p);
            }
            begin += 32;
            if (begin >= end)
                break;
            others = covering_blocks(pixel, begin, end, scratch, p);
        }
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
            if (plane < p.channels - channel)
                target[plane * p.image_channel] = narrow(sums.elements[plane]);
        if constexpr (weighs_out)
            if (weighing && channel == 0)
                weight_out[weight_place] = sums.weights;
    }
}
