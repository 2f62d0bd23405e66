// add_blocks by gathering: a block of threads owns a tile of pixels and looks for the blocks that meet it.
//
//   blocks     (count, batch, channels, *block), any strides    read, each element once
//   image      (batch, channels, *size), any strides            read and written once, and not at all where
//                                                                no block meets a tile
//   positions  (count, axes)                                     read by every tile
//   window     weights of a block's elements, or null            read, once per pixel for its planes
//
// The threads test some hundred blocks at a time, put the numbers of those that meet the tile into a list, in
// order, and then add one after another to their pixels: always in the same order, without atomics.
// Tests grow with tiles times blocks: little beside the sums while a block has hundreds of pixels, most of
// the time where tens of thousands of blocks have a few.
#include "add_blocks.cuh"

#ifndef CANDIDATES
#define CANDIDATES 4
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
constexpr int columns = TILE_COLUMNS;
constexpr int rows = TILE_ROWS;
constexpr int rows_at_once = threads / columns;
constexpr int thread_rows = rows / rows_at_once; // that a thread owns, rows_at_once apart

constexpr int candidates = CANDIDATES; // blocks that a thread tests at a time, with all their loads in flight
constexpr int listed = candidates * threads;
constexpr int groups = candidates * warps; // of blocks that follow each other, tested by a warp
static_assert(groups <= 32, "a warp adds up the groups' counts, a lane each");

// Pixels of a tile along an axis; where the last axis is alone, the rows follow each other.
__device__ constexpr int tile_extent(int axis)
{
    if (axis == last)
        return rank == 1 ? columns * rows : columns;
    return axis == last - 1 ? rows : 1;
}

extern "C" __global__ void __launch_bounds__(threads, 2)
    add_blocks_gather(const Scalar* __restrict__ blocks, Scalar* __restrict__ image,
                      const long long* __restrict__ positions, const Weight* __restrict__ window,
                      const Parameters p)
{
    constexpr int planes = PLANES; // share the search and the index arithmetic
    Offset rest = blockIdx.x;
    Offset begin[rank], end[rank]; // of the tile
#pragma unroll
    for (int axis = last; axis >= 0; --axis) {
        begin[axis] = p.by_extent[axis].split(rest) * tile_extent(axis);
        end[axis] = min(begin[axis] + tile_extent(axis), p.size[axis]);
    }
    const Offset channel = p.by_channels.split(rest) * planes, batch = rest;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    Offset pixel[thread_rows][rank]; // in the tile
    bool exists[thread_rows];
    Scalar* place[thread_rows];
#pragma unroll
    for (int row = 0; row < thread_rows; ++row) {
        place[row] = image + batch * p.image_batch + channel * p.image_channel;
        exists[row] = true;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            pixel[row][axis] = axis == last       ? thread % columns + (rank == 1 ? row * columns : 0)
                               : axis == last - 1 ? thread / columns + row * rows_at_once
                                                  : 0;
            exists[row] = exists[row] && begin[axis] + pixel[row][axis] < end[axis];
            place[row] += (begin[axis] + pixel[row][axis]) * p.pixel_stride[axis];
        }
    }

    __shared__ Offset list[listed];
    __shared__ Offset firsts[listed][positioned]; // pixels of the listed blocks, in the tile
    __shared__ int counts[groups];
    Accumulator sums[planes][thread_rows] = {};
    bool loaded = false;
    for (Offset first = 0; first < p.count; first += listed) {
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
            bool met = first + number * threads + thread < p.count;
#pragma unroll
            for (int axis = fixed; axis < rank; ++axis)
                met = met && meets(position[number][axis - fixed], p.block[axis], begin[axis], end[axis]);
            votes[number] = __ballot_sync(~0u, met);
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
        const int found = __shfl_sync(~0u, until, 31);
#pragma unroll
        for (int number = 0; number < candidates; ++number) {
            const int before = __shfl_sync(~0u, until - count, number * warps + warp) +
                               __popc(votes[number] & ((1u << lane) - 1));
            if (votes[number] >> lane & 1) {
                list[before] = first + number * threads + thread;
#pragma unroll
                for (int axis = fixed; axis < rank; ++axis)
                    firsts[before][axis - fixed] = Offset(position[number][axis - fixed] - begin[axis]);
            }
        }
        __syncthreads(); // the list is whole; when the next one is begun, this one is read
        if (!found)
            continue;

        if (!loaded) {
            loaded = true;
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int row = 0; row < thread_rows; ++row)
                    sums[plane][row] = widen(load_own_if(place[row] + plane * p.image_channel,
                                                         exists[row] && plane < p.channels - channel));
        }
        for (int number = 0; number < found; ++number) {
            const Offset block = list[number];
            const Scalar* const source =
                blocks + block * p.block_step + batch * p.blocks_batch + channel * p.blocks_channel;
            Offset tap[thread_rows][rank], offset[thread_rows] = {};
            bool covered[thread_rows];
            TapWeight weights[thread_rows];
#pragma unroll
            for (int row = 0; row < thread_rows; ++row) {
                covered[row] = exists[row];
#pragma unroll
                for (int axis = 0; axis < rank; ++axis) {
                    tap[row][axis] =
                        pixel[row][axis] + (axis < fixed ? begin[axis] : -firsts[number][axis - fixed]);
                    covered[row] = covered[row] && within(tap[row][axis], p.block[axis]);
                    offset[row] += tap[row][axis] * p.tap_stride[axis];
                }
                weights[row] = TapWeight(tap[row], covered[row], window, p);
            }
            Scalar elements[planes][thread_rows];
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int row = 0; row < thread_rows; ++row) {
                    trace_iteration((int(first) + number) * planes * thread_rows + plane * thread_rows + row);
                    elements[plane][row] = load_if(source + (plane * p.blocks_channel + offset[row]),
                                                   covered[row] && plane < p.channels - channel);
                }
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int row = 0; row < thread_rows; ++row)
                    sums[plane][row] =
                        add(sums[plane][row],
                            or_nothing(weigh(widen(elements[plane][row]), weights[row]), covered[row]));
        }
    }

    if (!loaded)
        return;
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
        for (int row = 0; row < thread_rows; ++row)
            if (exists[row] && plane < p.channels - channel)
                place[row][plane * p.image_channel] = narrow(sums[plane][row]);
}
