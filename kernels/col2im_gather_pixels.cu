// col2im by gathering: a thread owns a pixel of one or several planes and adds up the taps that land on it.
//
//   columns  (batch, channels, *kernel, *blocks), any strides     read, a predicated load per tap
//   image    (batch, channels, *size), any strides                written, each element once
//   window   weights of the taps, or null                         read, once per tap for all planes
//
// Neighbouring threads read neighbouring taps of the same block, or, where the stride is small, neighbouring
// blocks. For columns whose blocks are contiguous, and for long kernels, whose taps are a loop here. Taps are
// added in lexicographic order. No atomics and no zero fill.
#include "col2im.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef PLANES
#define PLANES 4
#endif

template <int planes>
__device__ void gather_pixels(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                              const Weights& window, const Parameters& p)
{
    const Offset thread = grid_index();
    if (thread >= p.items)
        return;
    const Place<planes> place(thread, p);
    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, rank>(taps, place.along, p);

    Accumulator sums[planes] = {};
    Weight divisor = 0;
    for_each_tap<0, rank, planes>(
        taps, p, window, 0, true, 0, {},
        [&](Offset offset, bool exists, int iteration, const TapWeight& tap_weight) {
            const Weight weight = tap_weight.value(exists, window);
            Scalar elements[planes];
#pragma unroll
            for (int plane = 0; plane < planes; ++plane) {
                trace_iteration(iteration * planes + plane);
                elements[plane] = load_if(plane_columns[plane] + offset, exists);
            }
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
                sums[plane] = add(sums[plane], weigh(widen(elements[plane]), weight));
            if constexpr (divides_by_taps)
                divisor = add(divisor, divisor_of(weight));
        });
    if constexpr (divides_by_axes)
        divisor = Weight(share_of<0, rank>(taps, window, p));

    Scalar* first = place.first_plane(image, p);
#pragma unroll
    for (int axis = 0; axis < rank; ++axis)
        first += place.along[axis] * p.pixel_stride[axis];
    const Offset remaining = p.channels - place.channel; // planes
    Scalar before[planes];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
        before[plane] = load_own_if(first + plane * p.image_channel, accumulates && plane < remaining);
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
        if (plane < remaining)
            first[plane * p.image_channel] = narrow(on(before[plane], finish(sums[plane], divisor)));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_gather_pixels(const Scalar* __restrict__ columns, Scalar* __restrict__ image, const Weights window,
                         const Parameters p)
{
    gather_pixels<1>(columns, image, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    col2im_gather_pixels_planes(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                                const Weights window, const Parameters p)
{
    gather_pixels<PLANES>(columns, image, window, p);
}
