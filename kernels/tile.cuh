// How a warp turns a tile through shared memory: 32 rows, each filled or emptied by a lane of its own on one
// side, walked by neighbouring lanes along the rows on the other.
#pragma once
#include "common.cuh"

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;
constexpr int warps = THREADS / warp_size; // each with a tile of its own
static_assert(THREADS % warp_size == 0, "every warp is whole: its lanes wait for each other");

// 32 rows of a width. Those that a warp walks along at once lie end to end, and a step of the walk is a pitch
// from the next: where the width divides the warp, one bank more than there are, so that neither the walk nor
// a column meets a bank twice; else rows are an odd pitch apart.
template <int width> struct Tile {
    static constexpr bool fills_banks = warp_size % width == 0;
    static constexpr int rows_at_once = warp_size / width;
    static constexpr int row_pitch = fills_banks ? width : width | 1;
    static constexpr int step_pitch = fills_banks ? warp_size + 1 : rows_at_once * row_pitch;
    Scalar elements[fills_banks ? width * step_pitch : warp_size * row_pitch];

    __device__ Scalar& at(int row, int column)
    {
        return elements[row / rows_at_once * step_pitch + row % rows_at_once * row_pitch + column];
    }
};

// The walk along rows of `width` elements, as many rows at once as a warp can: a lane stays in its column.
template <int width> struct RowWalk {
    static_assert(width <= warp_size, "a row has a lane for each element");
    static constexpr int rows_at_once = warp_size / width;
    static constexpr int steps = (warp_size + rows_at_once - 1) / rows_at_once;

    int first_row, column;

    explicit __device__ RowWalk(unsigned lane) : first_row(lane / width), column(lane % width) {}

    __device__ int row(int step) const { return step * rows_at_once + first_row; }

    // The lanes beyond the last whole row have nothing to do, where the width does not divide the warp.
    __device__ bool takes_part() const { return warp_size % width == 0 || first_row < rows_at_once; }

    // Whether this lane has an element in a step: the last one may be past the tile.
    __device__ bool has(int step) const
    {
        return warp_size % width == 0 || (takes_part() && row(step) < warp_size);
    }

    // The bit of a row in a set whose bit 0 is this lane's first row.
    static __device__ unsigned bit(int step) { return 1u << step * rows_at_once; }

    // Whether a row is in the set, as a test of the bit: the compiler would shift it down first.
    static __device__ bool contains(unsigned set, int step)
    {
        unsigned row = set & bit(step);
#ifndef HOSTCUDA
        asm("" : "+r"(row));
#endif
        return row != 0;
    }
};

// An offset that is the same in every round of a loop, for an address that is not: kept in 32 bits, so that
// the compiler widens it and adds it to the address in one instruction.
inline __device__ int narrow_offset(int offset)
{
#ifndef HOSTCUDA
    asm("" : "+r"(offset));
#endif
    return offset;
}
inline __device__ long long narrow_offset(long long offset)
{
    return offset;
}
