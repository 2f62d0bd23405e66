// col2im by gathering, for few pixels under very many taps, which the warps of a thread block split.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for each pixel
//
// A thread block owns 32 pixels, a lane each. In every round its loading warps bring the next taps into
// shared memory, while the adding warp adds up those of the round before. It alone adds, in lexicographic
// order, and writes the pixels. No atomics and no zero fill.
//
// Wins where the pixels of all planes are too few to fill the device with a thread each, and each has very
// many taps.
#include "col2im.cuh"
#include "fusion.cuh"

#ifndef TAPS
#define TAPS 8
#endif

constexpr int loaders = THREADS / 32 - 1;
constexpr int round_taps = loaders * TAPS;

// A tap of a pixel: where its element is in the columns, and its weight as far as its axes are known.
struct Found {
    Offset offset;
    bool exists;
    TapWeight weight;
};

// The number-th of all taps that may land on a pixel, in lexicographic order.
template <int axis = last>
__device__ Found find_tap(Offset number, const Taps (&taps)[rank], const Weights& window, const Parameters& p)
{
    if constexpr (axis < 0) {
        return {0, number == 0, {&window}};
    } else {
        constexpr Offset count = Pattern<axis>::taps;
        const Offset here = number % count;
        const Found outer = find_tap<axis - 1>(number / count, taps, window, p);
        const bool exists = outer.exists && taps[axis].template exists<axis>(here, p);
        const Offset tap = taps[axis].tap + here * Pattern<axis>::tap_step;
        return {outer.offset + taps[axis].offset + here * p.tap_step_stride[axis], exists,
                outer.weight.along<axis>(tap, exists)};
    }
}

template <int axis = last> __device__ constexpr Offset count_taps()
{
    if constexpr (axis < 0)
        return 1;
    else
        return Pattern<axis>::taps * count_taps<axis - 1>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_split(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                 const Parameters p)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Offset item = Offset(blockIdx.x) * 32 + lane;
    const Place<1> place(min(item, p.items - 1), p);
    const Scalar* plane_columns[1];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, rank>(taps, place.along, p);

    __shared__ Scalar loaded[2][round_taps][32];
    __shared__ Weight weights[windowed ? 2 : 1][windowed ? round_taps : 1][32]; // zero where there is no tap
    constexpr Offset rounds = (count_taps() + round_taps - 1) / round_taps;
    Accumulator sum = {};
    Denominator denominator;
    for (Offset round = 0; round <= rounds; ++round) {
        // Every warp reaches the barrier: what was loaded in this round is added in the next.
        if (warp < loaders && round < rounds) {
#pragma unroll
            for (int i = 0; i < TAPS; ++i) {
                const int slot = warp * TAPS + i;
                const Found tap = find_tap(round * round_taps + slot, taps, window, p);
                trace_iteration(int(round) * TAPS + i);
                loaded[round % 2][slot][lane] = load_if(plane_columns[0] + tap.offset, tap.exists);
                if constexpr (windowed)
                    weights[round % 2][slot][lane] = tap.weight.value(tap.exists);
            }
        } else if (warp == loaders && round > 0) {
#pragma unroll 8
            for (int slot = 0; slot < round_taps; ++slot) {
                const Weight weight = windowed ? weights[(round + 1) % 2][slot][lane] : Weight(0);
                sum = add(sum, weigh(widen(loaded[(round + 1) % 2][slot][lane]), weight));
                denominator.add_tap(weight);
            }
        }
        __syncthreads();
    }

    if (warp == loaders && item < p.items) {
        image = place.first_plane(image, p);
#pragma unroll
        for (int axis = 0; axis < rank; ++axis)
            image += place.along[axis] * p.pixel_stride[axis];
        denominator.from_axes(taps, window, p);
        OldPixel old;
        old.load(image, true);
        *image = narrow(old.plus(denominator.finish(sum)));
    }
}
