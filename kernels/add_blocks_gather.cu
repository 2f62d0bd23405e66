// add_blocks by gathering: a block of threads owns a tile of pixels and looks for the blocks that meet it.
//
//   blocks     (count, batch, channels, *block), any strides    read, each element once
//   image      (batch, channels, *size), any strides            read and written once, and not at all where
//                                                                no block meets a tile
//   positions  (count, axes)                                     read by every tile
//   window     weights of a block's elements, or null            read, once per pixel for its planes
//
// The threads test as many blocks at a time as they are, put the numbers of those that meet the tile into a
// list, in order, and then add one after another to their pixels: always in the same order, without atomics.
// Tests grow with tiles times blocks, but are one in a thousand of the work while blocks have some hundred
// pixels.
#include "add_blocks.cuh"

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

    __shared__ Offset list[threads];
    __shared__ Offset firsts[threads][positioned]; // pixels of the listed blocks, in the tile
    __shared__ int counts[warps];
    Accumulator sums[planes][thread_rows] = {};
    bool loaded = false;
    for (Offset first = 0; first < p.count; first += threads) {
        const Offset candidate = first + thread;
        bool met = candidate < p.count;
        long long position[positioned];
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis) {
            position[axis - fixed] =
                load_if(positions + (long long)(candidate)*positioned + (axis - fixed), candidate < p.count);
            met = met && meets(position[axis - fixed], p.block[axis], begin[axis], end[axis]);
        }
        const unsigned votes = __ballot_sync(~0u, met);
        if (lane == 0)
            counts[warp] = __popc(votes);
        __syncthreads();
        int before = __popc(votes & ((1u << lane) - 1)), found = 0;
#pragma unroll
        for (int other = 0; other < warps; ++other) {
            before += other < warp ? counts[other] : 0;
            found += counts[other];
        }
        if (met) {
            list[before] = candidate;
#pragma unroll
            for (int axis = fixed; axis < rank; ++axis)
                firsts[before][axis - fixed] = Offset(position[axis - fixed] - begin[axis]);
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
                for (int row = 0; row < thread_rows; ++row) {
                    const Accumulator sum =
                        add(sums[plane][row], weigh(widen(elements[plane][row]), weights[row]));
                    sums[plane][row] =
                        covered[row] ? sum : sums[plane][row]; // -0.0 stays where nothing lands
                }
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
