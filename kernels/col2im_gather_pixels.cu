// col2im by gathering: a thread owns a pixel of one or several planes and adds up the taps that land on it.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for all planes
//
// Neighbouring threads read neighbouring taps of the same block, or, where the stride is small, neighbouring
// blocks. Taps are added in lexicographic order. No atomics and no zero fill.
//
// Serves everything. Wins where the taps of a block lie closer in memory than its blocks, where the last axis
// has too many taps to unroll, which are a loop here, and where a row of pixels is shorter than a large
// stride.
#include "col2im.cuh"
#include "fusion.cuh"

#ifndef PLANES
#define PLANES 4
#endif

template <int planes>
__device__ void gather_pixels(const Scalar* __restrict__ columns, Result* __restrict__ image,
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
    Denominator denominator;
    for_each_tap<0, rank, planes>(
        taps, p, 0, true, 0, TapWeight{&window},
        [&](Offset offset, bool exists, int iteration, const TapWeight& tap_weight) {
            const Weight weight = tap_weight.value(exists);
            Scalar elements[planes];
#pragma unroll
            for (int plane = 0; plane < planes; ++plane) {
                trace_iteration(iteration * planes + plane);
                elements[plane] = load_if(plane_columns[plane] + offset, exists);
            }
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
                sums[plane] = add(sums[plane], weigh(widen(elements[plane]), weight));
            denominator.add_tap(weight);
        });
    denominator.from_axes(taps, window, p);

    Result* first = place.first_plane(image, p);
#pragma unroll
    for (int axis = 0; axis < rank; ++axis)
        first += place.along[axis] * p.pixel_stride[axis];
    const Offset remaining = p.channels - place.channel; // planes
    OldPixel old[planes];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
        old[plane].load(first + plane * p.image_channel, plane < remaining);
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
        if (plane < remaining)
            first[plane * p.image_channel] = narrow(old[plane].plus(denominator.finish(sums[plane])));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_gather_pixels(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const Parameters p)
{
    gather_pixels<1>(columns, image, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    col2im_gather_pixels_planes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                                const Weights window, const Parameters p)
{
    gather_pixels<PLANES>(columns, image, window, p);
}
