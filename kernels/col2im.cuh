// Shared by the col2im kernels: the tap pattern, which is compiled in, and the parameters, which are not.
// fusion.cuh has the arithmetic that is fused into the sums.
//
// Tap k of block b lands on pixel b * stride + k * dilation - pad of each axis. The taps that land on one
// pixel of an axis are tap_step apart and their blocks block_step, so that they are found without a search.
#pragma once
#include "common.cuh"

// One value per axis, height before width.
__device__ constexpr Offset kernel[] = {KERNEL};
__device__ constexpr Offset stride[] = {STRIDE};
__device__ constexpr Offset dilation[] = {DILATION};
constexpr int rank = sizeof(kernel) / sizeof(kernel[0]);
constexpr int last = rank - 1;

// The distances of the taps of an axis that land on the same pixel, and of their blocks; and the inverse of
// the latter modulo the former.
__device__ constexpr Offset tap_steps[] = {TAP_STEP};
__device__ constexpr Offset block_steps[] = {BLOCK_STEP};
__device__ constexpr Offset inverses[] = {INVERSE};

template <int axis> struct Pattern {
    static constexpr Offset tap_step = tap_steps[axis], block_step = block_steps[axis];
    static constexpr Offset inverse = inverses[axis];
    static constexpr Offset common = stride[axis] / tap_step; // divisor of stride and dilation
    static constexpr Offset taps = (kernel[axis] + tap_step - 1) / tap_step;
};

struct Parameters {
    long long columns_batch, image_batch; // strides in elements, as all below
    Offset columns_channel, image_channel;
    Offset channels;
    Offset items;      // parts, pixels or elements of all planes, or tiles: each has one owner
    Offset size[rank]; // pixels
    Offset blocks[rank];
    Offset pad[rank];        // in front of pixel 0
    Offset tap_stride[rank]; // of the columns
    Offset block_stride[rank];
    Offset tap_step_stride[rank]; // from a tap that lands on a pixel to the next one that does
    Offset pixel_stride[rank];    // of the image
    Divisor by_extent[rank];      // extents to unravel a thread's number by, as np.unravel_index does
    Divisor by_channels;          // groups of them
};

// What a thread owns: a place along each axis, in each of some adjacent planes.
template <int planes> struct Place {
    Offset batch, channel;
    Offset along[rank];

    // The number of a thread, or of a thread block, counts places, then groups of channels, then the batch.
    __device__ Place(Offset thread, const Parameters& p)
    {
        unrolled_for (int axis = last; axis >= 0; --axis)
            along[axis] = p.by_extent[axis].split(thread);
        channel = p.by_channels.split(thread) * planes;
        batch = thread;
    }

    // A group's missing planes repeat its last one and are not stored.
    __device__ void point_at(const Scalar* (&plane_columns)[planes], const Scalar* columns,
                             const Parameters& p) const
    {
        columns += to_int64(batch) * p.columns_batch + to_int64(channel) * p.columns_channel;
        unrolled_for (int plane = 0; plane < planes; ++plane) {
            plane_columns[plane] = columns;
            opaque(plane_columns[plane]);
            columns += plane + 1 < p.channels - channel ? p.columns_channel : 0;
        }
    }

    __device__ Result* first_plane(Result* image, const Parameters& p) const
    {
        return image + to_int64(batch) * p.image_batch + to_int64(channel) * p.image_channel;
    }
};

// The taps of one axis that land on one pixel.
struct Taps {
    Offset tap, block; // of the first, which may not exist
    Offset offset;     // of the first, in the columns
    bool reached;      // false where the stride and the dilation leave the pixel out

    template <int axis> static __device__ Taps of(Offset pixel, const Parameters& p)
    {
        return at<axis>(pixel + p.pad[axis], 0, p);
    }

    // The same for a pixel by its place after the begin of a block, which is not negative: that takes fewer
    // instructions.
    template <int axis>
    static __device__ Taps at(UnsignedOffset place, Offset first_block, const Parameters& p)
    {
        using pattern = Pattern<axis>;
        constexpr UnsignedOffset common = pattern::common, step = pattern::tap_step;
        const UnsignedOffset multiple = place / common;
        const Offset tap = multiple % step * UnsignedOffset(pattern::inverse) % step;
        const Offset block = first_block + (Offset(multiple) - tap * pattern::block_step) / pattern::tap_step;
        return {tap, block, tap * p.tap_stride[axis] + block * p.block_stride[axis],
                common == 1 || place % common == 0};
    }

    // Whether the number-th tap is in the kernel.
    template <int axis> __device__ bool in_kernel(Offset number) const
    {
        using pattern = Pattern<axis>;
        return reached &&
               (kernel[axis] % pattern::tap_step == 0 || tap + number * pattern::tap_step < kernel[axis]);
    }

    // Whether its block exists, too.
    template <int axis> __device__ bool exists(Offset number, const Parameters& p) const
    {
        return in_kernel<axis>(number) && within(block - number * Pattern<axis>::block_step, p.blocks[axis]);
    }
};

// Most registers for the unrolled loads of a thread; beyond, taps of the outer axes are a loop.
constexpr int unrolled_registers = 112;
constexpr int looped_loads = 32; // that the body of such a loop has at least
constexpr int element_registers = sizeof(Scalar) <= 4 ? 1 : sizeof(Scalar) / 4;

// The number of leading axes, up to this one, whose taps are a loop, if each tap of all axes needs
// `registers` registers.
template <int axis>
__device__ constexpr int looped_axes(Offset registers, Offset unrolled = unrolled_registers)
{
    if constexpr (axis < 0)
        return 0;
    else
        return registers * Pattern<axis>::taps > unrolled
                   ? axis + 1
                   : looped_axes<axis - 1>(registers * Pattern<axis>::taps, unrolled);
}

// Visits the taps of the axes [axis, end) that land on a pixel in lexicographic order, each with `loads`
// loads, in loops for the first `looped` axes: visit(offset in the columns, whether it exists, its
// weight so far). TapWeight is fusion.cuh's.
template <int axis, int end, Offset loads, int looped = looped_axes<end - 1>(loads * element_registers),
          typename TapWeight, typename Visit>
__device__ void for_each_tap(const Taps (&taps)[rank], const Parameters& p, Offset offset, bool exists,
                             const TapWeight& weight, const Visit& visit)
{
    if constexpr (axis == end) {
        visit(offset, exists, weight);
    } else {
        constexpr Offset count = Pattern<axis>::taps;
        constexpr bool loop = axis < looped;
        constexpr bool skip = loop && (axis + 1 < end || loads >= looped_loads);
#pragma unroll(skip ? (count == 2 ? 2 : 1) : loop ? looped_loads / loads : count)
        for (Offset number = 0; number < count; ++number) {
            const bool found = taps[axis].template exists<axis>(number, p);
            if (skip && !found)
                continue;
            const TapWeight here = weight.template along<axis>(
                taps[axis].tap + number * Pattern<axis>::tap_step, exists && found);
            for_each_tap<axis + 1, end, loads, looped>(
                taps, p, offset + taps[axis].offset + number * p.tap_step_stride[axis], exists && found, here,
                visit);
        }
    }
}

template <int axis = 0, int end>
__device__ void find_taps(Taps (&taps)[rank], const Offset (&pixel)[rank], const Parameters& p)
{
    if constexpr (axis < end) {
        taps[axis] = Taps::of<axis>(pixel[axis], p);
        find_taps<axis + 1, end>(taps, pixel, p);
    }
}
