// Shared by the kernels that extract sliding blocks along SPATIAL_RANK axes. Elements are copied without
// arithmetic: Scalar is the unsigned integer of their size, or their type if there is a window.
#pragma once
#include "common.cuh"
#include "window.cuh"

constexpr int spatial_rank = SPATIAL_RANK;
constexpr int last_axis = spatial_rank - 1;
constexpr int unweighted =
    spatial_rank - Weights::count; // leading axes without weights in a separable window

// Tap k of block number l is pixel l*stride + k*dilation - pad, zero where that lies outside the image.
struct Sliding {
    Offset size[spatial_rank]; // pixels of the image
    Offset stride[spatial_rank];
    Offset dilation[spatial_rank];
    Offset pad[spatial_rank];
    Offset pixel_step[spatial_rank]; // in elements, as all steps
};

// The weight of a tap, by its place along each axis and by its number.
inline __device__ Weight weight_of(const Weights& window, const Offset (&taps)[spatial_rank], Offset number,
                                   bool exists)
{
    Weight weight =
        load_if(separable ? window.of_axis[0] + taps[unweighted] : window.last() + number, exists);
    if constexpr (separable)
        unrolled_for (int axis = unweighted + 1; axis < spatial_rank; ++axis)
            weight = multiply(weight, load_if(window.of_axis[axis - unweighted] + taps[axis], exists));
    return weight;
}
