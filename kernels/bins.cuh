// The blocks that meet each tile of an image, in scratch memory, where bins.cu puts them:
//
//   Bin[bins + 1]       of each tile, how many blocks meet it, and where its list ends if it is crowded; the
//                       last one counts entries of lists, and crowded tiles
//   Note[bins][noted]   of each tile, the first blocks that threads came by with
//   Offset[2][entries]  of each crowded tile, which more blocks meet, a list of all of them: first as threads
//                       came by, then in order
//   Offset[]            the numbers of the crowded tiles
#pragma once
#include "positions.cuh"

// A block that meets a tile: its number, and then along each axis how far its last pixel is from the tile's
// first, by as many bits as by_reach says. Notes have the order of their blocks.
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

// Offsets from the scratch memory's begin on: what is noted of a tile begins at a multiple of `noted`.
inline __device__ Offset notes_at(Offset number, const BinParameters& p)
{
    constexpr int offsets = sizeof(Note) / sizeof(Offset);
    return (Offset(UnsignedOffset(p.bins) / (noted / 2)) + 1 + offsets * number) * noted;
}
inline __device__ Offset lists_at(bool ordered, const BinParameters& p)
{
    return notes_at(p.bins, p) + (ordered ? p.entries : 0);
}
