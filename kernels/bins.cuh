// Lists of the blocks that meet each tile of an image, in scratch memory: bins.cu makes them.
//
// The memory holds a Bin for each tile and one more, which counts entries and crowded tiles; then lists of
// `entries` in all, twice: of blocks' numbers as threads come by, and of Entry in order; then the numbers of
// the crowded tiles.
#pragma once
#include "positions.cuh"

struct BinParameters : Parameters {
    Offset bins;           // one for each tile
    Offset entries;        // of all lists, at most
    Offset along[rank];    // tiles along each axis
    Divisor by_side[rank]; // pixels of a tile along each axis
    Divisor by_batch;
};

struct Bin {
    Offset count; // of the blocks that meet the tile
    Offset end;   // of its part of the lists
};

// A block that meets the image, so that Offsets hold its position.
struct Entry {
    Offset block, position[positioned];

    __device__ bool covers(const Offset (&pixel)[rank], const Parameters& p) const
    {
        bool covered = true;
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            covered = covered && within(pixel[axis] - position[axis - fixed], p.block[axis]);
        return covered;
    }
};

inline __device__ const Bin* bins_of(const Offset* scratch)
{
    return reinterpret_cast<const Bin*>(scratch);
}
inline __device__ long long ordered(const BinParameters& p)
{
    return 2 * ((long long)(p.bins) + 1) + p.entries;
}
inline __device__ Entry entry_of(const Offset* scratch, Offset number, const BinParameters& p)
{
    const Offset* const words = scratch + ordered(p) + (long long)(number) * (1 + positioned);
    Entry entry;
    entry.block = load_if(words, true);
#pragma unroll
    for (int axis = 0; axis < positioned; ++axis)
        entry.position[axis] = load_if(words + 1 + axis, true);
    return entry;
}
