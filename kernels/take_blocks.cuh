// What the kernels of take_blocks share: what lies outside of the image, and what is stored of a pixel.
#pragma once
#include "positions.cuh"

enum class Mode { constant, edge };
constexpr bool nearest = Mode::MODE == Mode::edge; // what lies outside is the nearest pixel, else zero

// A block's first pixel along an axis; no nearer than where the block lies outside of the image as a whole.
inline __device__ Offset first_pixel(long long position, int axis, const Parameters& p)
{
    return Offset(max(-(long long)(p.block[axis]), min(position, (long long)(p.size[axis]))));
}

// The pixel that is taken for one along an axis, which may lie outside.
inline __device__ Offset taken_pixel(Offset pixel, int axis, const Parameters& p)
{
    if constexpr (nearest)
        return max(Offset(0), min(pixel, p.size[axis] - 1));
    else
        return pixel;
}

template <typename Element> inline __device__ Element weighed(Element element, const TapWeight& weight)
{
    if constexpr (windowed)
        return narrow(weigh(widen(element), weight));
    else
        return element;
}
