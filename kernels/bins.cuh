// The blocks that intersect each tile of an image, in scratch memory, where bins.cu puts them:
//
//   Bin[bins + 1]       per tile, the number of its blocks, and where its list ends if it overflows; the
//                       last one counts entries of lists, and overflowing tiles
//   Slot[bins][slots]   per tile, the blocks that were counted first
//   Offset[2][entries]  per overflowing tile, which has more blocks, a list of all: in any order, then sorted
//   Offset[]            the numbers of the overflowing tiles
#pragma once
#include "positions.cuh"

// A block that intersects a tile: its number, then along each axis the distance of its last pixel from the
// tile's first, in as many bits as by_reach says. Slots sort as their blocks do.
using Slot = SLOT;
constexpr int slots = 32; // of a tile

struct BinParameters : Parameters {
    Offset bins;            // one for each tile; by_extent has their number along each axis
    Offset entries;         // of all lists, at most
    Divisor by_side[rank];  // pixels of a tile along each axis, a power of two
    Divisor by_reach[rank]; // positions there at which a block intersects a tile, or a power of two above
    Divisor by_batch;
};

struct alignas(2 * sizeof(Offset)) Bin {
    Offset count; // of the blocks that intersect the tile
    Offset end;   // of its list, if it overflows
};

// Offsets in the scratch memory: those of a tile begin at a multiple of `slots`.
inline __device__ Offset slots_at(Offset number, const BinParameters& p)
{
    constexpr int offsets = sizeof(Slot) / sizeof(Offset);
    return (Offset(UnsignedOffset(p.bins) / (slots / 2)) + 1 + offsets * number) * slots;
}
inline __device__ Offset lists_at(bool ordered, const BinParameters& p)
{
    return slots_at(p.bins, p) + (ordered ? p.entries : 0);
}
