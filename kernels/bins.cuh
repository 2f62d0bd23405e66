// The blocks that intersect each tile of an image, in scratch memory, where bins.cu puts them:
//
//   Bin[bins + 1]       per tile, the number of its blocks, and where its list ends if it is crowded; the
//                       last one counts entries of lists, and crowded tiles
//   Note[bins][noted]   per tile, the blocks that were noted first
//   Offset[2][entries]  per crowded tile, which has more blocks, a list of all: in any order, then sorted
//   Offset[]            the numbers of the crowded tiles
#pragma once
#include "positions.cuh"

// A block that intersects a tile: its number, then along each axis the distance of its last pixel from the
// tile's first, in as many bits as by_reach says. Notes sort as their blocks do.
using Note = NOTE;
constexpr int noted = 32;

struct BinParameters : Parameters {
    Offset bins;            // one for each tile; by_extent has their number along each axis
    Offset entries;         // of all lists, at most
    Divisor by_side[rank];  // pixels of a tile along each axis, a power of two
    Divisor by_reach[rank]; // positions there at which a block meets a tile, or a power of two above
    Divisor by_batch;
};

struct alignas(2 * sizeof(Offset)) Bin {
    Offset count; // of the blocks that meet the tile
    Offset end;   // of its list, where it is crowded
};

// Offsets in the scratch memory: the notes of a tile begin at a multiple of `noted`.
inline __device__ Offset notes_at(Offset number, const BinParameters& p)
{
    constexpr int offsets = sizeof(Note) / sizeof(Offset);
    return (Offset(UnsignedOffset(p.bins) / (noted / 2)) + 1 + offsets * number) * noted;
}
inline __device__ Offset lists_at(bool ordered, const BinParameters& p)
{
    return notes_at(p.bins, p) + (ordered ? p.entries : 0);
}
