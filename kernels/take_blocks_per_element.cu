// take_blocks: a thread takes a few elements of the blocks, each out of a few planes.
//
//   image      (batch, channels, *size), any strides            read where blocks lie on it
//   blocks     (count, batch, channels, *block), any strides    each element written once
//   positions  (count, axes)                                     read by every thread
//   window     weights of a block's elements, or null            read, once for all planes of a thread
//
// A thread has up to 8 planes, 32 bytes of elements at most, and half as many if planes are many and rows
// short. They share everything but their addresses, which are a step apart. If planes are few, it also has
// elements of several rows of a block, or of several parts of a row if there is one axis. Neighbouring
// threads have neighbouring elements of a row, so loads and stores are as long as rows are, and longer if the
// rows of a block are contiguous. Outside the image, elements are zero, and not loaded, or the nearest pixel.
#include "positions.cuh"

enum class Mode { constant, edge };
constexpr bool nearest = Mode::MODE == Mode::edge; // what lies outside is the nearest pixel, else zero

// A block's first pixel along an axis, clipped to where the whole block lies outside the image.
inline __device__ Offset first_pixel(long long position, int axis, const Parameters& p)
{
    return Offset(max(-(long long)(p.block[axis]), min(position, (long long)(p.size[axis]))));
}

// The pixel to read for a coordinate along an axis, which may lie outside.
inline __device__ Offset taken_pixel(Offset pixel, int axis, const Parameters& p)
{
    if constexpr (nearest)
        return max(Offset(0), min(pixel, p.size[axis] - 1));
    else
        return pixel;
}

constexpr int elements = ELEMENTS;                // of a thread in each plane, of one block and column
constexpr int planes = PLANES;                    // share the index arithmetic
constexpr bool all_planes = ALL_PLANES;           // exist for every thread: they divide the channels
constexpr int along = rank > 1 ? last - 1 : last; // the axis that a thread's elements differ on

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    take_blocks_per_element(const Scalar* __restrict__ image, Scalar* __restrict__ blocks,
                            const long long* __restrict__ positions, const Weights window,
                            const ElementParameters p)
{
    Offset rest = grid_index();
    if (rest >= p.items)
        return;
    Offset tap[rank]; // of the first element
    unrolled_for (int axis = last; axis >= 0; --axis)
        tap[axis] = p.by_extent[axis].split(rest);
    const Offset step = p.by_extent[along].divisor; // from one element to the next
    const Offset channel = p.by_channels.split(rest) * planes;
    const Offset batch = p.by_batch.split(rest), block = rest;

    Offset first[rank] = {};
    unrolled_for (int axis = fixed; axis < rank; ++axis)
        first[axis] = first_pixel(positions[(long long)(block)*positioned + (axis - fixed)], axis, p);

    const Scalar* own_image = image + (to_int64(batch) * p.image_batch + to_int64(channel) * p.image_channel);
    Scalar* own_blocks = blocks + (to_int64(block) * p.block_step + to_int64(batch) * p.blocks_batch +
                                   to_int64(channel) * p.blocks_channel);
    bool inside = true;
    Offset pixels = 0, taps = tap[along] * p.tap_stride[along];
    unrolled_for (int axis = 0; axis < rank; ++axis) {
        if (axis == along)
            continue;
        const Offset pixel = taken_pixel(first[axis] + tap[axis], axis, p);
        inside = inside && within(pixel, p.size[axis]);
        pixels += pixel * p.pixel_stride[axis];
        taps += tap[axis] * p.tap_stride[axis];
    }
    own_image += pixels + (nearest ? 0 : (first[along] + tap[along]) * p.pixel_stride[along]);
    own_blocks += taps;

    const auto exists = [&](int plane) { return all_planes || plane < p.channels - channel; };
    Scalar taken[elements][planes];
    TapWeight weights[elements];
    unrolled_for (int number = 0; number < elements; ++number) {
        Offset of_tap[rank];
        unrolled_for (int axis = 0; axis < rank; ++axis)
            of_tap[axis] = tap[axis] + (axis == along ? number * step : 0);
        const Offset pixel = taken_pixel(first[along] + of_tap[along], along, p);
        const bool covered = inside && of_tap[along] < p.block[along] && within(pixel, p.size[along]);
        weights[number] = TapWeight(of_tap, covered, window, p);
        const Scalar* source = own_image;
        if constexpr (nearest)
            source += pixel * p.pixel_stride[along];
        unrolled_for (int plane = 0; plane < planes; ++plane, source += p.image_channel) {
            taken[number][plane] = load_if(source, covered && exists(plane));
        }
        if constexpr (!nearest) {
            own_image += step * p.pixel_stride[along];
            opaque(own_image);
        }
    }
    unrolled_for (int number = 0; number < elements; ++number) {
        Scalar* target = own_blocks;
        unrolled_for (int plane = 0; plane < planes; ++plane, target += p.blocks_channel) {
            opaque(target);
            if (tap[along] + number * step < p.block[along] && exists(plane))
                *target = weigh_element(taken[number][plane], weights[number].value());
        }
        own_blocks += step * p.tap_stride[along];
        opaque(own_blocks);
    }
}
