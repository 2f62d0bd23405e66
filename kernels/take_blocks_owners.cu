// take_blocks by owners: a block of threads owns a tile of pixels in a few planes, and stores them into every
// block that covers them.
//
//   image      (batch, channels, *size), any strides            read where blocks lie on it, once for a chunk
//                                                                of these
//   blocks     (count, batch, channels, *block), any strides    each element written once
//   positions  (count, axes)                                     read by every tile
//   window     weights of a block's elements, or null            read, once for all planes of a thread
//
// A tile has a chunk of the blocks, one for each thread to test; those that meet the tile are listed in
// shared memory. Then a thread loads its pixels, some rows of one column, and goes through the list. As each
// block is stored by itself, chunks need not know of each other, and however many blocks lie in one place, no
// tile has more than a chunk of them. What lies outside of the image is tiled too, as far as blocks reach:
// pixels there are zeros, or the nearest ones. Where that is half as much again, the thread blocks of tiles
// inside take these tiles too, one after another.
// For blocks with long rows that overlap: an element is not loaded again for each block that has it. The
// tests grow with tiles times blocks: little beside the stores while most tiles meet some of their chunk.
#include "take_blocks.cuh"

#ifndef PLANES
#define PLANES 1
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 32
#endif
#ifndef TILE_COLUMNS
#define TILE_COLUMNS 128
#endif
#ifndef TURNS
#define TURNS 0
#endif
#ifndef RESIDENT_BLOCKS
#define RESIDENT_BLOCKS 4
#endif

constexpr int planes = PLANES;      // of a thread, which divide the channels
constexpr bool takes_turns = TURNS; // with tiles outside of the image, which have no thread blocks then
constexpr int threads = THREADS;
constexpr int warps = threads / 32;
constexpr int columns = TILE_COLUMNS;
constexpr int thread_rows = TILE_ROWS * columns / threads; // that follow each other; along one axis, 32 apart
constexpr bool one_axis = rank == 1;
constexpr int along = one_axis ? last : last - 1; // the axis that a thread's pixels differ on
constexpr int step = one_axis ? 32 : 1;

// Pixels of a tile along an axis.
__device__ constexpr int tile_extent(int axis)
{
    if (axis == last)
        return one_axis ? columns * TILE_ROWS : columns;
    return axis == last - 1 ? TILE_ROWS : 1;
}

struct OwnersParameters : Parameters {
    Offset tiles[rank];  // of the image and of what is outside
    Offset margin[rank]; // of tiles before the image
    Offset chunk;        // of the blocks, a thread each
    Divisor by_chunks;
};

// A block that meets a tile.
struct Listed {
    Scalar* target;              // where an element for the tile's first pixel would be
    Offset position[positioned]; // from that pixel
    unsigned rows;               // of the tile that it covers, a bit each; unused along one axis
};

// Rows that are whole are stored without a look at each, where there are registers for what is then in
// flight.
constexpr bool has_whole_rows = !one_axis && (!windowed || separable);
constexpr unsigned all_rows = ~0u >> (32 - thread_rows);

// The weights of a thread's rows in one block; those of the other axes are the same for all. `whole` where
// the block covers all of these rows, which lie in the image.
template <bool whole> struct RowWeights {
    Weight of_row[thread_rows];

    __device__ RowWeights(const Offset (&first)[rank], unsigned covered, unsigned inside,
                          const Weights& window, const Parameters& p)
    {
        if constexpr (windowed) {
            TapWeight weight;
            if constexpr (separable)
#pragma unroll
                for (int axis = fixed; axis < rank; ++axis)
                    if (axis != along)
                        weight.factor[axis - fixed] =
                            load_if(window.of_axis[axis - fixed] + first[axis], covered);
#pragma unroll
            for (int row = 0; row < thread_rows; ++row) {
                const bool exists = whole || covered >> row & 1;
                Offset tap[rank];
#pragma unroll
                for (int axis = 0; axis < rank; ++axis)
                    tap[axis] = first[axis] + (axis == along ? row * step : 0);
                if constexpr (!separable)
                    weight = TapWeight(tap, exists, window, p);
                else if constexpr (along >= fixed)
                    weight.factor[along - fixed] =
                        load_if(window.of_axis[along - fixed] + tap[along], exists);
                of_row[row] = whole || nearest || (inside >> row & 1) ? weight.value() : Weight(0);
            }
        }
    }
};

// Stores a thread's pixels into a block.
template <bool whole>
__device__ void store_rows(Scalar* target, const Scalar (&pixels)[planes][thread_rows],
                           const Offset (&first)[rank], unsigned covered, unsigned inside,
                           const Weights& window, const Parameters& p)
{
    const RowWeights<whole> weights(first, covered, inside, window, p);
    const Offset row_step = step * p.tap_stride[along];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
        keep(target);
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
            trace_iteration(plane * thread_rows + row);
            if (whole || covered >> row & 1)
                target[(long long)(row)*row_step] = weigh_element(pixels[plane][row], weights.of_row[row]);
        }
        target += p.blocks_channel;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    take_blocks_owners(const Scalar* __restrict__ image, Scalar* __restrict__ blocks,
                       const long long* __restrict__ positions, const Weights window,
                       const OwnersParameters p)
{
    __shared__ Listed list[threads];
    __shared__ int counts[2][warps]; // of this tile, and of the one before or after
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    Offset rest = blockIdx.x;
    Offset block = p.by_chunks.split(rest) * p.chunk + thread;
    Offset tile[rank]; // the thread block's of the image, then others as many as these further on
#pragma unroll
    for (int axis = last; axis >= 0; --axis)
        tile[axis] = p.by_extent[axis].split(rest);
    if (rest) {
        const Offset channel = p.by_channels.split(rest) * planes, batch = rest;
        image += batch * p.image_batch + channel * p.image_channel;
        blocks += batch * p.blocks_batch + channel * p.blocks_channel;
    }

    int turn = 0;
    for (bool more = true; more; turn ^= 1) {
        Offset begin[rank]; // of the tile; those before the image come last
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            const bool before = tile[axis] >= p.tiles[axis] - p.margin[axis];
            begin[axis] = (tile[axis] - (before ? p.tiles[axis] : 0)) * tile_extent(axis);
        }
        more = false;
        if constexpr (takes_turns)
#pragma unroll
            for (int axis = last; axis >= 0; --axis)
                if (!more) {
                    tile[axis] += p.by_extent[axis].divisor;
                    more = tile[axis] < p.tiles[axis];
                    if (!more)
                        tile[axis] = p.by_extent[axis].split(tile[axis]);
                }

        // Each thread tests a block, whose position it looks up anew each time: pixels need the registers.
        keep_here(block);
        bool met = thread < p.chunk && block < p.count;
        Offset placed[rank] = {}; // its first pixel
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            placed[axis] = first_pixel(
                load_if(positions + (long long)(block)*positioned + (axis - fixed), met), axis, p);
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            met = met && within(placed[axis] - begin[axis] + (p.block[axis] - 1),
                                tile_extent(axis) + (p.block[axis] - 1));
        const unsigned votes = __ballot_sync(~0u, met);
        if (lane == 0)
            counts[turn][warp] = __popc(votes);
        __syncthreads();
        int found = 0, place = __popc(votes & ((1u << lane) - 1));
#pragma unroll
        for (int other = 0; other < warps; ++other) {
            place += other < warp ? counts[turn][other] : 0;
            found += counts[turn][other];
        }
        if (!found)
            continue;
        if (met) {
            Offset taps = 0;
#pragma unroll
            for (int axis = 0; axis < rank; ++axis) {
                const Offset from = placed[axis] - begin[axis];
                taps -= from * p.tap_stride[axis];
                if (axis >= fixed)
                    list[place].position[axis - fixed] = from;
            }
            list[place].target = blocks + (block * p.block_step + taps);
            if (!one_axis) {
                const Offset from = placed[along] - begin[along];
                list[place].rows =
                    run_of_bits(max(from, Offset(0)), min(from + p.block[along], Offset(TILE_ROWS)));
            }
        }

        // A thread's first pixel, from the tile's on.
        Offset own[rank] = {};
        own[last] = one_axis ? warp * 32 * thread_rows + lane : warp % (columns / 32) * 32 + lane;
        if (!one_axis)
            own[along] = warp / (columns / 32) * thread_rows;
        Offset own_tap = 0, pixel = 0;
        bool exists = true;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            own_tap += own[axis] * p.tap_stride[axis];
            if (axis == along)
                continue;
            const Offset of_axis = taken_pixel(begin[axis] + own[axis], axis, p);
            exists = exists && within(of_axis, p.size[axis]);
            pixel += of_axis * p.pixel_stride[axis];
        }
        Scalar pixels[planes][thread_rows];
        unsigned inside = 0; // a bit for each row
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
            const Offset of_row = taken_pixel(begin[along] + own[along] + row * step, along, p);
            const bool read = exists && within(of_row, p.size[along]);
            inside |= read ? 1u << row : 0;
            const Scalar* const source = image + (pixel + of_row * p.pixel_stride[along]);
#pragma unroll
            for (int plane = 0; plane < planes; ++plane) {
                trace_iteration(row * planes + plane);
                pixels[plane][row] = load_if(source + plane * p.image_channel, read);
            }
        }

        __syncthreads();
        for (int entry = 0; entry < found; ++entry) {
            trace_iteration(entry * planes * thread_rows);
            const Listed& listed = list[entry];
            Offset first[rank]; // the tap of the first pixel
#pragma unroll
            for (int axis = 0; axis < rank; ++axis)
                first[axis] = own[axis] + (axis < fixed ? begin[axis] : -listed.position[axis - fixed]);
            unsigned covered = 0; // a bit for each row
            if (one_axis) {
#pragma unroll
                for (int row = 0; row < thread_rows; ++row)
                    covered |= within(first[last] + row * step, p.block[last]) ? 1u << row : 0;
            } else if (within(first[last], p.block[last])) {
                covered = listed.rows >> own[along] & ((1u << thread_rows) - 1);
            }
            if (!covered)
                continue;
            if (has_whole_rows && covered == all_rows && inside == all_rows)
                store_rows<true>(listed.target + own_tap, pixels, first, covered, inside, window, p);
            else
                store_rows<false>(listed.target + own_tap, pixels, first, covered, inside, window, p);
        }
    }
}
