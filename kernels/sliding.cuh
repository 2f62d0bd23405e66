// Sliding blocks along SPATIAL_RANK axes: what the kernels that take them out of an image have in common.
#pragma once
#include "common.cuh"
#include "window.cuh"

constexpr int spatial_rank = SPATIAL_RANK;
constexpr int last_axis = spatial_rank - 1;
constexpr int unweighted =
    spatial_rank - Weights::count; // axes in front for which a separable window has none

// Tap k of block number l is pixel l*stride + k*dilation - pad, zero where that lies outside the image.
struct Sliding {
    Offset size[spatial_rank]; // pixels of the image
    Offset stride[spatial_rank];
    Offset dilation[spatial_rank];
    Offset pad[spatial_rank];
    Offset pixel_step[spatial_rank]; // elements of the image from one pixel to the next
};

// Of a tap, by its place along each axis and by its number.
inline __device__ Weight weight_of(const Weights& window, const Offset (&taps)[spatial_rank], Offset number,
                                   bool exists)
{
    Weight weight =
        load_if(separable ? window.of_axis[0] + taps[unweighted] : window.last() + number, exists);
    if constexpr (separable)
#pragma unroll
        for (int axis = unweighted + 1; axis < spatial_rank; ++axis)
            weight = multiply(weight, load_if(window.of_axis[axis - unweighted] + taps[axis], exists));
    return weight;
}
