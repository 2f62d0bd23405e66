// A counting sort: for each tile of an image, a list of the blocks that meet it, in their order.
//
//   positions  (count, axes)             read by every kernel but bins_reserve
//   scratch    the lists (see bins.cuh)  read and written, its Bins zeros at first
//
// Four kernels run one after another on a stream: bins_count counts the blocks that meet each tile,
// bins_reserve gives each tile a part of the lists, bins_place puts the blocks' numbers there, and bins_order
// gives each its place among those of its tile. A thread has a block, or a tile in bins_reserve. Which part
// of the lists a tile has changes from run to run, what is in it does not. In bins_order a block is compared
// with all that meet its tile; where a tile is crowded, a block of threads marks its blocks in shared memory
// instead, and lists the marks. Leading axes that have no position have no tiles.
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
inline __device__ Offset* unordered(Offset* scratch, const BinParameters& p)
{
    return scratch + 2 * ((long long)(p.bins) + 1);
}
inline __device__ Offset* crowded(Offset* scratch, const BinParameters& p)
{
    return scratch + ordered(p) + (long long)(p.entries) * (1 + positioned);
}
inline __device__ Offset add_to_counter(Offset* counter, Offset number)
{
    return Offset(atomicAdd(reinterpret_cast<UnsignedOffset*>(counter), UnsignedOffset(number)));
}

// The tiles that a block meets, one after another.
struct Meetings {
    Entry entry;
    Offset first[positioned], last[positioned], at[positioned]; // tiles along each axis
    bool more;

    __device__ Meetings(const long long* positions, Offset block, const BinParameters& p)
        : more(block < p.count)
    {
        entry.block = block;
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
            entry.position[number] = more ? Offset(given[number]) : 0;
            const Offset end = min(entry.position[number] + p.block[axis], p.size[axis]);
            at[number] = first[number] = p.by_side[axis].quotient(max(entry.position[number], Offset(0)));
            last[number] = p.by_side[axis].quotient(end - 1);
        }
    }

    __device__ Offset bin(const BinParameters& p) const
    {
        Offset number = 0;
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            number = number * p.along[axis] + at[axis - fixed];
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
    bins_count(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    for (Meetings met(positions, grid_index(), p); met.more; met.next())
        add_to_counter(&bins_of(scratch)[met.bin(p)].count, 1);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_reserve(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    constexpr int warps = THREADS / 32;
    __shared__ Offset of_warp[warps], begin;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Offset number = grid_index();
    Bin* const bins = bins_of(scratch);
    const Offset count = number < p.bins ? bins[number].count : 0;
    Offset until = count; // the end of this tile's part among those of the thread block
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
    if (count)
        bins[number].end = begin + until - count; // which bins_place moves on to the end
    if (count > crowd)
        crowded(scratch, p)[add_to_counter(&bins[p.bins].end, 1)] = number;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_place(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    for (Meetings met(positions, grid_index(), p); met.more; met.next()) {
        const Offset place = add_to_counter(&bins_of(scratch)[met.bin(p)].end, 1);
        unordered(scratch, p)[place] = met.entry.block;
    }
}

// Write a block down at its place in the lists.
inline __device__ void list_entry(Offset* scratch, Offset place, const Entry& entry, const BinParameters& p)
{
    Offset* const words = scratch + ordered(p) + (long long)(place) * (1 + positioned);
    words[0] = entry.block;
#pragma unroll
    for (int axis = 0; axis < positioned; ++axis)
        words[1 + axis] = entry.position[axis];
}

constexpr int marks_of_thread = MARKS; // for blocks that follow each other
constexpr int marks = THREADS * marks_of_thread;

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_order(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    const Bin* const bins = bins_of(scratch);
    const Offset* const listed = unordered(scratch, p);
    for (Meetings met(positions, grid_index(), p); met.more; met.next()) {
        const Bin bin = bins[met.bin(p)];
        if (bin.count > crowd)
            continue;
        Offset place = bin.end - bin.count;
#pragma unroll 4
        for (Offset other = bin.end - bin.count; other < bin.end; ++other)
            place += listed[other] < met.entry.block;
        list_entry(scratch, place, met.entry, p);
    }

    __shared__ bool marked[marks];
    __shared__ Offset found[THREADS];
    const int thread = threadIdx.x;
    const Offset crowds = bins[p.bins].end;
    for (Offset number = blockIdx.x; number < crowds; number += gridDim.x) {
        const Bin bin = bins[crowded(scratch, p)[number]];
        Offset begin = bin.end - bin.count; // of the marked blocks' places
        for (Offset first = 0; first < p.count; first += marks) {
            for (int mark = thread; mark < marks; mark += THREADS)
                marked[mark] = false;
            __syncthreads();
            for (Offset other = bin.end - bin.count + thread; other < bin.end; other += THREADS)
                if (within(listed[other] - first, marks))
                    marked[listed[other] - first] = true;
            __syncthreads();
            const int own = thread * marks_of_thread;
            found[thread] = 0;
            for (int mark = own; mark < own + marks_of_thread; ++mark)
                found[thread] += marked[mark];
            __syncthreads();
            Offset place = begin;
            for (int other = 0; other < THREADS; ++other) {
                place += other < thread ? found[other] : 0;
                begin += found[other];
            }
            for (int mark = own; mark < own + marks_of_thread; ++mark)
                if (marked[mark])
                    list_entry(scratch, place++, Meetings(positions, first + mark, p).entry, p);
            __syncthreads();
        }
    }
}
