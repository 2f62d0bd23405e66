// A counting sort: for each tile of an image, the blocks that meet it.
//
//   positions  (count, axes)                read by bins_note, and by bins_list where tiles are crowded
//   scratch    what is noted (see bins.cuh)  read and written, its Bins zeros at first
//
// Four kernels run one after another on a stream. bins_note counts the blocks that meet each tile, and notes
// the first of them that come by; where more come, bins_reserve gives the tile a part of the lists, bins_list
// puts all blocks that meet it there, and bins_order puts them in order. A thread has a block, or a tile in
// bins_reserve; in bins_list it has blocks, and in bins_order a block of threads has crowded tiles, one after
// another. Which part of
// the lists a tile has, and the order of what is noted, change from run to run; what is in it does not. In
// bins_order each block of a list is compared with all of them; where they are very many, they are marked in
// shared memory instead, and the marks are listed. Leading axes that have no position have no tiles.
#include "bins.cuh"

#ifndef CROWD
#define CROWD 1024
#endif
#ifndef MARKS
#define MARKS 64
#endif

constexpr int crowd = CROWD; // blocks of a tile, up to which they are compared with each other

inline __device__ Bin* bins_of(Offset* scratch)
{
    return reinterpret_cast<Bin*>(scratch);
}
inline __device__ Offset crowded_tiles(const BinParameters& p)
{
    return lists_at(true, p) + p.entries;
}
inline __device__ Offset add_to_counter(Offset* counter, Offset number)
{
    return Offset(atomicAdd(reinterpret_cast<UnsignedOffset*>(counter), UnsignedOffset(number)));
}

// The tiles that a block meets, one after another.
struct Meetings {
    Offset first[positioned], last[positioned], at[positioned]; // along each axis
    Offset begin[positioned];                                   // the block's position
    bool more;

    __device__ Meetings(const long long* positions, Offset block, const BinParameters& p)
        : more(block < p.count)
    {
        long long given[positioned];
#pragma unroll
        for (int axis = 0; axis < positioned; ++axis)
            given[axis] = load_if(positions + (long long)(block)*positioned + axis, more);
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            more = more && meets(given[axis - fixed], p.block[axis], 0, p.size[axis]);
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis) {
            const int number = axis - fixed;
            begin[number] = more ? Offset(given[number]) : 0;
            const Offset end = min(begin[number] + p.block[axis], p.size[axis]);
            at[number] = first[number] = p.by_side[axis].quotient(max(begin[number], Offset(0)));
            last[number] = p.by_side[axis].quotient(end - 1);
        }
    }

    __device__ Offset bin(const BinParameters& p) const
    {
        Offset number = 0;
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            number = number * p.by_extent[axis].divisor + at[axis - fixed];
        return number;
    }

    // Of the block's position, among those at which it meets the tile.
    __device__ Offset place(const BinParameters& p) const
    {
        Offset number = 0;
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis) {
            const Offset from_tile = begin[axis - fixed] - at[axis - fixed] * p.by_side[axis].divisor;
            number = number * p.by_reach[axis].divisor + (from_tile + p.block[axis] - 1);
        }
        return number;
    }

    __device__ void next()
    {
        more = false;
#pragma unroll
        for (int axis = positioned - 1; axis >= 0; --axis) {
            if (more)
                continue;
            more = at[axis] < last[axis];
            at[axis] = more ? at[axis] + 1 : first[axis];
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_note(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    const Offset block = grid_index();
    for (Meetings met(positions, block, p); met.more; met.next()) {
        const Offset number = met.bin(p), place = add_to_counter(&bins_of(scratch)[number].count, 1);
        if (place < noted)
            reinterpret_cast<Note*>(scratch + notes_at(number, p))[place] = {block, met.place(p)};
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_reserve(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    constexpr int warps = THREADS / 32;
    __shared__ Offset of_warp[warps], begin;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Offset number = grid_index();
    Bin* const bins = bins_of(scratch);
    const Offset met = number < p.bins ? bins[number].count : 0;
    const Offset count = met > noted ? met : 0; // of its list
    Offset until = count;                       // the end of this tile's part among those of the thread block
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Offset before = __shfl_up_sync(~0u, until, step);
        until += lane >= step ? before : 0;
    }
    if (lane == 31)
        of_warp[warp] = until;
    __syncthreads();
    Offset total = 0;
#pragma unroll
    for (int other = 0; other < warps; ++other) {
        until += other < warp ? of_warp[other] : 0;
        total += of_warp[other];
    }
    if (threadIdx.x == 0)
        begin = total ? add_to_counter(&bins[p.bins].count, total) : 0;
    __syncthreads();
    if (count) {
        bins[number].end = begin + until - count; // which bins_list moves on to the end
        scratch[crowded_tiles(p) + add_to_counter(&bins[p.bins].end, 1)] = number;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_list(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    Bin* const bins = bins_of(scratch);
    if (!bins[p.bins].end)
        return;
    for (Offset block = grid_index(); block < p.count; block += Offset(gridDim.x) * THREADS)
        for (Meetings met(positions, block, p); met.more; met.next()) {
            Bin& bin = bins[met.bin(p)];
            if (bin.count > noted)
                scratch[lists_at(false, p) + add_to_counter(&bin.end, 1)] = block;
        }
}

constexpr int marks_of_thread = MARKS; // for blocks that follow each other
constexpr int marks = THREADS * marks_of_thread;

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_order(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    __shared__ bool marked[marks];
    __shared__ Offset found[THREADS];
    constexpr int warps = THREADS / 32;
    const int thread = threadIdx.x;
    const Bin* const bins = bins_of(scratch);
    const Offset* const crowded = scratch + crowded_tiles(p);
    const Offset crowds = bins[p.bins].end;
    for (Offset number = Offset(blockIdx.x) * warps + thread / 32; number < crowds;
         number += Offset(gridDim.x) * warps) {
        const Bin bin = bins[crowded[number]];
        const Offset* const blocks = scratch + lists_at(false, p) + (bin.end - bin.count);
        Offset* const ordered = scratch + lists_at(true, p) + (bin.end - bin.count);
        constexpr int of_lane = 4; // blocks at a time
        for (Offset first = thread % 32; bin.count <= crowd && first < bin.count; first += 32 * of_lane) {
            Offset own[of_lane], place[of_lane] = {};
#pragma unroll
            for (int number = 0; number < of_lane; ++number)
                own[number] = load_if(blocks + first + number * 32, first + number * 32 < bin.count);
#pragma unroll 8
            for (Offset other = 0; other < bin.count; ++other) {
                const Offset block = load_if(blocks + other, true);
#pragma unroll
                for (int number = 0; number < of_lane; ++number)
                    place[number] += block < own[number];
            }
#pragma unroll
            for (int number = 0; number < of_lane; ++number)
                if (first + number * 32 < bin.count)
                    ordered[place[number]] = own[number];
        }
    }
    for (Offset number = blockIdx.x; number < crowds; number += gridDim.x) {
        const Bin bin = bins[crowded[number]];
        if (bin.count <= crowd)
            continue;
        const Offset* const blocks = scratch + lists_at(false, p) + (bin.end - bin.count);
        Offset* ordered = scratch + lists_at(true, p) + (bin.end - bin.count);
        for (Offset first = 0; first < p.count; first += marks) {
            for (int mark = thread; mark < marks; mark += THREADS)
                marked[mark] = false;
            __syncthreads();
            for (Offset other = thread; other < bin.count; other += THREADS)
                if (within(blocks[other] - first, marks))
                    marked[blocks[other] - first] = true;
            __syncthreads();
            const int own = thread * marks_of_thread;
            found[thread] = 0;
            for (int mark = own; mark < own + marks_of_thread; ++mark)
                found[thread] += marked[mark];
            __syncthreads();
            Offset* place = ordered; // of this thread's marked blocks
            for (int other = 0; other < THREADS; ++other) {
                place += other < thread ? found[other] : 0;
                ordered += found[other];
            }
            for (int mark = own; mark < own + marks_of_thread; ++mark)
                if (marked[mark])
                    *place++ = first + mark;
            __syncthreads();
        }
    }
}
