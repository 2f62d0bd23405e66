// The blocks that meet each tile of an image, in scratch memory: bins.cu notes them.
//
// The memory holds a Bin for each tile and one more, which counts entries of lists and crowded tiles; then
// `noted` Notes for each tile, of blocks as threads came by, of which a Bin says how many there are. Then,
// for tiles that more blocks meet, which are crowded, there are lists of `entries` blocks in all, twice: as
// threads came by, and in order; and at last the numbers of the crowded tiles.
#pragma once
#include "positions.cuh"

constexpr int noted = 32;

struct BinParameters : Parameters {
    Offset bins;           // one for each tile; by_extent has their number along each axis
    Offset entries;        // of all lists, at most
    Divisor by_side[rank]; // pixels of a tile along each axis
    Divisor by_reach
        [rank]; // positions along each axis at which a block meets a tile, rounded up to a power of two
    Divisor by_batch;
};

struct alignas(2 * sizeof(Offset)) Bin {
    Offset count; // of the blocks that meet the tile
    Offset end;   // of its list, where it is crowded
};

struct alignas(2 * sizeof(Offset)) Note {
    Offset block;
    Offset place; // the number of its position among those at which it meets the tile
};

inline __device__ const Bin* bins_of(const Offset* scratch)
{
    return reinterpret_cast<const Bin*>(scratch);
}
// Offsets from the scratch memory's begin on: what is noted of a tile begins at a multiple of `noted`.
inline __device__ Offset notes_at(Offset number, const BinParameters& p)
{
    return (Offset(UnsignedOffset(p.bins) / (noted / 2)) + 1 + 2 * number) * noted;
}
inline __device__ Offset lists_at(bool ordered, const BinParameters& p)
{
    return notes_at(p.bins, p) + (ordered ? p.entries : 0);
}
