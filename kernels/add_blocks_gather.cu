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
static_assert(thread_rows <= 32, "a bit for each row");
constexpr int along = rank == 1 ? last : last - 1; // the axis that a thread's pixels differ on
constexpr int row_step = rank == 1 ? 32 : 1;
constexpr int planes = PLANES; // share the search and the index arithmetic

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
    const Scalar* origin[listed];        // where an element for the box's first pixel would be
    Offset position[listed][positioned]; // from that pixel
};

// Makes a list, or goes on with it, of those of the candidates from `first` on that meet a box; gives how
// many these are, in all threads. What does not fit is left out. The list is whole when it returns, and what
// was listed before must be read by all threads before they come to the barrier in here.
__device__ int list_candidates(List& list, int from, Offset first, const Scalar* blocks,
                               const long long* positions, const Box& box, const Parameters& p,
                               int (&counts)[groups])
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
            const Scalar* origin = blocks + (first + number * threads + thread) * p.block_step;
#pragma unroll
            for (int axis = fixed; axis < rank; ++axis) {
                const Offset begin = Offset(position[number][axis - fixed] - box.begin[axis]);
                list.position[place][axis - fixed] = begin;
                origin -= begin * p.tap_stride[axis];
            }
            list.origin[place] = origin;
        }
    }
    const int found = __shfl_sync(~0u, until, 31);
    __syncthreads();
    return found;
}

// What a thread has to know of a listed block.
struct Met {
    Offset tap[rank]; // of the thread's first pixel, on it or not
    unsigned covered; // of the thread's rows, a bit each

    // `first` is that pixel, from where the list's positions count from; along axes without a position, its
    // own.
    __device__ Met(const List& list, int entry, const Offset (&first)[rank], unsigned exists,
                   const Parameters& p)
    {
        bool meets = true;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            tap[axis] = first[axis] - (axis < fixed ? 0 : list.position[entry][max(axis - fixed, 0)]);
            meets = meets && (axis == along || within(tap[axis], p.block[axis]));
        }
        if constexpr (rank == 1) {
            covered = 0;
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                covered |= within(tap[along] + row * row_step, p.block[along]) ? 1u << row : 0;
        } else {
            const Offset end = min(p.block[along] - tap[along], Offset(thread_rows));
            covered = run_of_bits(max(-tap[along], Offset(0)), max(end, Offset(0)));
        }
        covered = meets ? covered & exists : 0;
    }
};

// Blocks whose loads a thread has in flight; weights, and sums of them, need the registers of more.
constexpr int layers = windowed || weighs_out ? 1 : 3;

// The elements of a block that a thread adds to its pixels, and their weights.
struct Layer {
    Scalar elements[planes][thread_rows];
    TapWeight taps[thread_rows];
    unsigned covered;

    __device__ void load(const Met& met, const Scalar* element, Offset channels, const Weights& window,
                         int number, const Parameters& p)
    {
        covered = met.covered;
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
            Offset tap[rank];
#pragma unroll
            for (int axis = 0; axis < rank; ++axis)
                tap[axis] = met.tap[axis] + (axis == along ? row * row_step : 0);
            taps[row] = TapWeight(tap, has_bit(covered, row), window, p);
        }
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            const Scalar* const source = element + plane * p.blocks_channel;
            const unsigned loaded = plane == 0 || plane < channels ? covered : 0;
            Offset step = row_step * p.tap_stride[along];
            keep(step);
#pragma unroll
            for (int row = 0; row < thread_rows; ++row) {
                trace_iteration((number * planes + plane) * thread_rows + row);
                elements[plane][row] =
                    load_if(source + (long long)(row)*step, has_bit(loaded, row), nothing(Scalar{}));
            }
        }
    }

    __device__ void add_to(Accumulator (&sums)[planes][thread_rows], Weight (&weight_sums)[thread_rows]) const
    {
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
                sums[plane][row] = add(sums[plane][row], weigh(widen(elements[plane][row]), taps[row]));
            const bool exists = has_bit(covered, row);
            if constexpr (weighs_out)
                weight_sums[row] = add(weight_sums[row], or_nothing(weight_of(taps[row], exists), exists));
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    add_blocks_gather(const Scalar* __restrict__ blocks, Result* __restrict__ image,
                      const long long* __restrict__ positions, const Weights window,
                      WEIGHT_OUT_ARGUMENT const GatherParameters p)
{
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
        found += list_candidates(list, found, first, blocks, positions, region, p, counts);
        fits = found <= listed;
    }
    if (fits && !found)
        return;

    for (Offset tile_number = 0; tile_number < tiles; ++tile_number) {
        Box tile;
        Box own;
        Offset origin[rank]; // where the list's positions count from
        Offset tile_rest = tile_number, lists = fits ? 1 : p.count;
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
            origin[axis] = axis < fixed ? 0 : fits ? region.begin[axis] : tile.begin[axis];
            if (tile.begin[axis] >= p.size[axis])
                lists = 0; // all threads alike
        }

        // A thread's first pixel, from where the list's positions count from, and which of its rows exist.
        Offset first_pixel[rank], at[rank];
        unsigned exists = 0, weighed = 0, touched = 0; // a bit for each row
        bool inside = true, weighing = batch == 0 && channel == 0;
        Result* pixel = image;
        Offset weight_place = 0, own_tap = 0;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            at[axis] = own.begin[axis] + (axis == last ? lane : 0);
            first_pixel[axis] = at[axis] - origin[axis];
            own_tap += first_pixel[axis] * p.tap_stride[axis];
            inside = inside && (axis == along || at[axis] < own.end[axis]);
            pixel += at[axis] * p.pixel_stride[axis];
            weight_place += at[axis] * p.weight_stride[axis];
            weighing = weighing && (axis >= fixed || axis == along || at[axis] == 0);
        }
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
            const Offset of_row = at[along] + row * row_step;
            exists |= inside && of_row < own.end[along] ? 1u << row : 0;
            weighed |= weighing && (along >= fixed || of_row == 0) ? 1u << row : 0;
        }

        Accumulator sums[planes][thread_rows] = {};
        Weight weight_sums[thread_rows] = {}; // compiled only where they are asked for
        for (Offset first = 0; first < lists; first += listed) {
            if (!fits)
                found = list_candidates(list, 0, first, blocks, positions, tile, p, counts);
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
                unsigned missing = exists & ~touched, covered_first = 0;
                for (unsigned left = votes; left && __any_sync(~0u, missing); left &= left - 1) {
                    const Met met(list, of_lanes + __ffs(left) - 1, first_pixel, missing, p);
                    covered_first |= met.covered;
                    missing &= ~met.covered;
                }
                if (__any_sync(~0u, covered_first)) {
                    Offset step = row_step * p.pixel_stride[along];
                    keep(step);
#pragma unroll
                    for (int row = 0; row < thread_rows; ++row) {
                        const bool read = has_bit(covered_first, row);
#pragma unroll
                        for (int plane = 0; plane < planes; ++plane) {
                            const Result before =
                                load_own_if(pixel + plane * p.image_channel + (long long)(row)*step,
                                            read && (plane == 0 || plane < p.channels - channel));
                            sums[plane][row] = read ? widen(before) : sums[plane][row];
                        }
                        if constexpr (weighs_out)
                            if (read && has_bit(weighed, row))
                                weight_sums[row] =
                                    weight_out[weight_place + row * row_step * p.weight_stride[along]];
                    }
                    touched |= covered_first;
                }
                while (votes) {
                    const int count = min(layers, __popc(votes));
                    Layer layer[layers];
#pragma unroll
                    for (int number = 0; number < layers; ++number)
                        if (number < count) {
                            const int entry = of_lanes + __ffs(votes) - 1;
                            votes &= votes - 1;
                            const Met met(list, entry, first_pixel, exists, p);
                            layer[number].load(met, list.origin[entry] + own_tap, p.channels - channel,
                                               window, int(tile_number * lists + first) + entry, p);
                        }
#pragma unroll
                    for (int number = 0; number < layers; ++number)
                        if (number < count)
                            layer[number].add_to(sums, weight_sums);
                }
            }
        }

        Offset step = row_step * p.pixel_stride[along];
        keep(step);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                if (has_bit(touched, row) && (plane == 0 || plane < p.channels - channel))
                    (pixel + plane * p.image_channel)[(long long)(row)*step] = narrow(sums[plane][row]);
        if constexpr (weighs_out)
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                if (has_bit(touched & weighed, row))
                    weight_out[weight_place + row * row_step * p.weight_stride[along]] = weight_sums[row];
    }
}
