// add_blocks by gathering: a block of threads owns the tiles of a region of pixels and looks for the blocks
// that meet it.
//
//   blocks     (count, batch, channels, *block), any strides     read, each element once
//   image      (batch, channels, *size), any strides             read and written once where a block covers
//                                                                it, not at all elsewhere
//   positions  (count, axes)                                     read by every region
//   window     weights of a block's elements, or null            read, once per pixel for its planes
//   weight_out sums of weights (*size), where they are asked for  read and written as the image
//
// The threads test some hundred blocks at a time and put those that meet the region into a list, in order.
// Then every warp, tile by tile, goes through the list and adds those that meet its own pixels, one after
// another: always in the same order, without atomics. Where the list is too short for a region's blocks, each
// of its tiles tests all blocks, and adds list after list.
// The tests of regions grow with regions times blocks: little beside the sums while a block has hundreds of
// pixels, much where the blocks have a few and the image is too small for large regions.
#include "positions.cuh"

#ifndef CANDIDATES
#define CANDIDATES 4
#endif
#ifndef RESIDENT_BLOCKS
#define RESIDENT_BLOCKS 2
#endif
#ifndef PLANES
#define PLANES 4
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 16
#endif
#ifndef TILE_COLUMNS
#define TILE_COLUMNS 64
#endif

constexpr int threads = THREADS;
constexpr int warps = threads / 32;
constexpr int columns = TILE_COLUMNS; // of a tile
constexpr int rows = TILE_ROWS;
constexpr int thread_rows = rows * columns / threads; // that follow each other and have one column

constexpr int candidates = CANDIDATES; // blocks that a thread tests at a time, with all their loads in flight
constexpr int listed = candidates * threads;
constexpr int groups = candidates * warps; // of blocks that follow each other, tested by a warp
static_assert(groups <= 32, "a warp adds up the groups' counts, a lane each");

// Pixels of a tile, or of what a warp owns of it, along an axis; along one axis alone, the rows follow each
// other.
template <bool warp> __device__ constexpr int tile_extent(int axis)
{
    if (axis == last)
        return (warp ? 32 : columns) * (rank > 1 ? 1 : warp ? thread_rows : rows);
    return axis == last - 1 ? (warp ? thread_rows : rows) : 1;
}

// A thread's pixel of a row, in what its warp owns.
inline __device__ int in_own(int axis, int row, int lane)
{
    return axis == last ? lane + (rank == 1 ? row * 32 : 0) : axis == last - 1 ? row : 0;
}

struct GatherParameters : Parameters {
    Divisor by_region[rank]; // tiles of a region along each axis
};

// Pixels [begin, end) along each axis.
struct Box {
    Offset begin[rank], end[rank];

    __device__ void cut(const Offset (&size)[rank], int axis, Offset first, Offset extent)
    {
        begin[axis] = first;
        end[axis] = min(first + extent, size[axis]);
    }

    // With no sum that could overflow.
    template <typename Position>
    __device__ bool meets(const Position (&position)[positioned], const Parameters& p) const
    {
        bool met = true;
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            met = met && ::meets(position[axis - fixed], p.block[axis], begin[axis], end[axis]);
        return met;
    }
};

// Blocks that meet a box, in order.
struct List {
    Offset block[listed];
    Offset position[listed][positioned]; // from the begin of the box
};

// Makes a list, or goes on with it, of those of the candidates from `first` on that meet a box; gives how
// many these are, in all threads. What does not fit is left out. The list is whole when it returns, and what
// was listed before must be read by all threads before they come to the barrier in here.
__device__ int list_candidates(List& list, int from, Offset first, const long long* positions, const Box& box,
                               const Parameters& p, int (&counts)[groups])
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    long long position[candidates][positioned];
#pragma unroll
    for (int number = 0; number < candidates; ++number) {
        const Offset block = first + number * threads + thread;
#pragma unroll
        for (int axis = 0; axis < positioned; ++axis)
            position[number][axis] =
                load_if(positions + (long long)(block)*positioned + axis, block < p.count);
    }
    unsigned votes[candidates];
#pragma unroll
    for (int number = 0; number < candidates; ++number) {
        const bool exists = first + number * threads + thread < p.count;
        votes[number] = __ballot_sync(~0u, exists && box.meets(position[number], p));
        if (lane == 0)
            counts[number * warps + warp] = __popc(votes[number]);
    }
    __syncthreads();
    // Every warp adds up the groups' counts, a lane each: where a group's part of the list ends.
    const int count = lane < groups ? counts[lane] : 0;
    int until = count;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(~0u, until, step);
        until += lane >= step ? before : 0;
    }
#pragma unroll
    for (int number = 0; number < candidates; ++number) {
        const int place = from + __shfl_sync(~0u, until - count, number * warps + warp) +
                          __popc(votes[number] & ((1u << lane) - 1));
        if ((votes[number] >> lane & 1) && place < listed) {
            list.block[place] = first + number * threads + thread;
#pragma unroll
            for (int axis = fixed; axis < rank; ++axis)
                list.position[place][axis - fixed] = Offset(position[number][axis - fixed] - box.begin[axis]);
        }
    }
    const int found = __shfl_sync(~0u, until, 31);
    __syncthreads();
    return found;
}

// A warp's way to look at the list: its pixels, and where the list's positions count from.
struct Reader {
    const List& list;
    Box own;
    Offset origin[rank];

    // Whether a block of the list has a thread's pixel of a row, as this tap of the block.
    __device__ bool covers(int entry, int row, const Parameters& p, Offset (&tap)[rank]) const
    {
        bool covered = true;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            tap[axis] = own.begin[axis] + in_own(axis, row, threadIdx.x % 32);
            if (axis >= fixed)
                tap[axis] -= list.position[entry][axis - fixed] + origin[axis];
            covered = covered && within(tap[axis], p.block[axis]);
        }
        return covered;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    add_blocks_gather(const Scalar* __restrict__ blocks, Result* __restrict__ image,
                      const long long* __restrict__ positions, const Weights window,
                      WEIGHT_OUT_ARGUMENT const GatherParameters p)
{
    constexpr int planes = PLANES; // share the search and the index arithmetic
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Offset rest = blockIdx.x;
    Box region;
    Offset tiles = 1; // of the region
#pragma unroll
    for (int axis = last; axis >= 0; --axis) {
        const Offset extent = p.by_region[axis].divisor * tile_extent<false>(axis);
        region.cut(p.size, axis, p.by_extent[axis].split(rest) * extent, extent);
        tiles *= p.by_region[axis].divisor;
    }
    const Offset channel = p.by_channels.split(rest) * planes, batch = rest;
    image += batch * p.image_batch + channel * p.image_channel;
    blocks += batch * p.blocks_batch + channel * p.blocks_channel;

    __shared__ List list;
    __shared__ int counts[groups];
    int found = 0; // blocks that the list has
    bool fits = true;
    for (Offset first = 0; fits && first < p.count; first += listed) {
        found += list_candidates(list, found, first, positions, region, p, counts);
        fits = found <= listed;
    }
    if (fits && !found)
        return;

    for (Offset number = 0; number < tiles; ++number) {
        Box tile;
        Reader reader{list, {}, {}};
        Box& own = reader.own;
        Offset(&origin)[rank] = reader.origin;
        Offset tile_rest = number, lists = fits ? 1 : p.count;
#pragma unroll
        for (int axis = last; axis >= 0; --axis) {
            tile.cut(p.size, axis,
                     region.begin[axis] + p.by_region[axis].split(tile_rest) * tile_extent<false>(axis),
                     tile_extent<false>(axis));
            const int place = rank == 1          ? warp
                              : axis == last     ? warp % (columns / 32)
                              : axis == last - 1 ? warp / (columns / 32)
                                                 : 0;
            own.cut(p.size, axis, tile.begin[axis] + place * tile_extent<true>(axis),
                    tile_extent<true>(axis));
            origin[axis] = fits ? region.begin[axis] : tile.begin[axis];
            if (tile.begin[axis] >= p.size[axis])
                lists = 0; // all threads alike
        }

        Result* pixel[thread_rows];
        bool exists[thread_rows], weighing[thread_rows];
        Offset weight_place[thread_rows];
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
            pixel[row] = image;
            exists[row] = true;
            weighing[row] = batch == 0 && channel == 0;
            weight_place[row] = 0;
#pragma unroll
            for (int axis = 0; axis < rank; ++axis) {
                const Offset place = own.begin[axis] + in_own(axis, row, lane);
                exists[row] = exists[row] && place < own.end[axis];
                pixel[row] += place * p.pixel_stride[axis];
                weight_place[row] += place * p.weight_stride[axis];
                weighing[row] = weighing[row] && (axis >= fixed || place == 0);
            }
        }

        Accumulator sums[planes][thread_rows] = {};
        bool touched[thread_rows] = {};
        Weight weight_sums[thread_rows] = {}; // compiled only where they are asked for
        for (Offset first = 0; first < lists; first += listed) {
            if (!fits)
                found = list_candidates(list, 0, first, positions, tile, p, counts);
            for (int of_lanes = 0; of_lanes < found; of_lanes += 32) {
                // A lane tests a block of the list; those that meet the warp's pixels are added by all lanes.
                bool met = of_lanes + lane < found;
                Offset position[positioned];
#pragma unroll
                for (int axis = fixed; axis < rank; ++axis)
                    position[axis - fixed] =
                        met ? list.position[of_lanes + lane][axis - fixed] + origin[axis] : 0;
                unsigned votes = __ballot_sync(~0u, met && own.meets(position, p));
                // What these blocks are the first to cover is read before they are added.
                bool covered_first[thread_rows] = {}, missing = false;
#pragma unroll
                for (int row = 0; row < thread_rows; ++row)
                    missing = missing || (exists[row] && !touched[row]);
                for (unsigned left = votes; left && __any_sync(~0u, missing); left &= left - 1) {
                    missing = false;
#pragma unroll
                    for (int row = 0; row < thread_rows; ++row) {
                        Offset tap[rank];
                        if (exists[row] && !touched[row])
                            covered_first[row] =
                                reader.covers(of_lanes + __ffs(left) - 1, row, p, tap) || covered_first[row];
                        missing = missing || (exists[row] && !touched[row] && !covered_first[row]);
                    }
                }
                bool any_first = false;
#pragma unroll
                for (int row = 0; row < thread_rows; ++row)
                    any_first = any_first || covered_first[row];
                if (__any_sync(~0u, any_first)) {
#pragma unroll
                    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                        for (int row = 0; row < thread_rows; ++row) {
                            const Result before =
                                load_own_if(pixel[row] + plane * p.image_channel,
                                            covered_first[row] && plane < p.channels - channel);
                            sums[plane][row] = covered_first[row] ? widen(before) : sums[plane][row];
                        }
#pragma unroll
                    for (int row = 0; row < thread_rows; ++row) {
                        if constexpr (weighs_out)
                            weight_sums[row] =
                                covered_first[row]
                                    ? load_own_if(weight_out + weight_place[row], weighing[row])
                                    : weight_sums[row];
                        touched[row] = touched[row] || covered_first[row];
                    }
                }
                for (; votes; votes &= votes - 1) {
                    const int entry = of_lanes + __ffs(votes) - 1;
                    const Scalar* const source = blocks + list.block[entry] * p.block_step;
                    Offset tap[thread_rows][rank], offset[thread_rows] = {};
                    bool covered[thread_rows];
                    TapWeight weights[thread_rows];
#pragma unroll
                    for (int row = 0; row < thread_rows; ++row) {
                        covered[row] = reader.covers(entry, row, p, tap[row]) && exists[row];
#pragma unroll
                        for (int axis = 0; axis < rank; ++axis)
                            offset[row] += tap[row][axis] * p.tap_stride[axis];
                        weights[row] = TapWeight(tap[row], covered[row], window, p);
                    }
                    Scalar elements[planes][thread_rows];
#pragma unroll
                    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                        for (int row = 0; row < thread_rows; ++row) {
                            trace_iteration((int(number * lists + first) + entry) * planes * thread_rows +
                                            plane * thread_rows + row);
                            elements[plane][row] = load_if(source + (plane * p.blocks_channel + offset[row]),
                                                           covered[row] && plane < p.channels - channel);
                        }
#pragma unroll
                    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                        for (int row = 0; row < thread_rows; ++row)
                            sums[plane][row] = add(
                                sums[plane][row],
                                or_nothing(weigh(widen(elements[plane][row]), weights[row]), covered[row]));
                    if constexpr (weighs_out)
#pragma unroll
                        for (int row = 0; row < thread_rows; ++row)
                            weight_sums[row] =
                                add(weight_sums[row],
                                    or_nothing(weight_of(weights[row], covered[row]), covered[row]));
                }
            }
        }

#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                if (touched[row] && plane < p.channels - channel)
                    pixel[row][plane * p.image_channel] = narrow(sums[plane][row]);
        if constexpr (weighs_out)
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                if (touched[row] && weighing[row])
                    weight_out[weight_place[row]] = weight_sums[row];
    }
}
