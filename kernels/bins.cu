// A counting sort: for each tile of an image, the blocks that intersect it.
//
//   positions  (count, axes)     read by bins_fill, and by bins_list where tiles overflow
//   scratch    (see bins.cuh)    read and written, its Bins zeros at first
//
// Four kernels run one after another on a stream. bins_fill counts the blocks of each tile and stores the
// first of them in its slots; a tile with more blocks overflows. bins_reserve gives each overflowing tile a
// place in the lists, bins_list puts all its blocks there, and bins_order sorts them.
//
// In bins_fill a thread has a few blocks, with the loads of all their positions in flight, and then the
// counters of all their tiles. In bins_reserve it has overflowing tiles, in bins_list blocks. In bins_order a
// warp has overflowing tiles, and a thread block those with very many blocks. Blocks of a list are compared
// with each other; very many are marked in shared memory instead, and the marks are listed. A tile's place
// in the lists and the order of slots change from run to run, the contents of lists do not. Leading axes
// without a position have no tiles.
#include "bins.cuh"

constexpr int at_once = AT_ONCE;
constexpr int most_compared = MOST_COMPARED; // blocks of a tile, of which each is compared with all others

inline __device__ Bin* bins_of(Offset* scratch)
{
    return reinterpret_cast<Bin*>(scratch);
}
inline __device__ Offset overflowing_tiles(const BinParameters& p)
{
    return lists_at(true, p) + p.entries;
}
// Increments a counter if the guard holds and returns its previous value, else -1. A thread does not wait for
// one counter before it asks for the next.
inline __device__ Offset count_if(Offset* counter, bool guard)
{
#ifdef HOSTCUDA
    return guard ? Offset(atomicAdd(reinterpret_cast<UnsignedOffset*>(counter), UnsignedOffset(1))) : -1;
#else
    if constexpr (sizeof(Offset) == 8) {
        long long before;
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b64 %0, %3; @p atom.global.add.u64 %0, [%1], 1;}"
            : "=&l"(before)
            : "l"(counter), "r"(int(guard)), "n"(-1)
            : "memory");
        return before;
    } else {
        int before;
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, %3; @p atom.global.add.u32 %0, [%1], 1;}"
            : "=&r"(before)
            : "l"(counter), "r"(int(guard)), "n"(-1)
            : "memory");
        return before;
    }
#endif
}
inline __device__ Offset add_to_counter(Offset* counter, Offset number)
{
    return Offset(atomicAdd(reinterpret_cast<UnsignedOffset*>(counter), UnsignedOffset(number)));
}

// The tiles that a block intersects, up to two along each of the last two axes at a time: corners, by their
// bits.
constexpr int paired = positioned < 2 ? 1 : 2;
constexpr int corners = 1 << paired;

struct Intersections {
    long long given[positioned]; // the block's position
    Offset end[positioned];      // how far its last pixel is from the image's first
    Offset at[positioned];       // the first tile of the corners
    Offset until[positioned];    // the last one that the block intersects

    __device__ void load(const long long* positions, Offset block, const BinParameters& p)
    {
        unrolled_for (int axis = 0; axis < positioned; ++axis)
            given[axis] = load_if(positions + to_int64(block) * positioned + axis, block < p.count);
    }
    __device__ void begin(Offset block, const BinParameters& p)
    {
        bool hits = block < p.count;
        unrolled_for (int axis = fixed; axis < rank; ++axis) {
            const int number = axis - fixed;
            const Offset position = Offset(given[number]), before = p.block[axis] - 1;
            end[number] = Offset(UnsignedOffset(position) + UnsignedOffset(before));
            hits = hits && (sizeof(Offset) == 8 || int(given[number] >> 32) == int(position >> 31)) &&
                   UnsignedOffset(end[number]) < UnsignedOffset(p.size[axis] + before);
        }
        unrolled_for (int axis = fixed; axis < rank; ++axis) {
            const int number = axis - fixed;
            end[number] = hits ? end[number] : 0;
            at[number] = first(axis, p);
            until[number] = min(end[number], p.size[axis] - 1) >> p.by_side[axis].shift;
        }
        until[0] = hits ? until[0] : -1;
    }
    __device__ Offset first(int axis, const BinParameters& p) const
    {
        return max(end[axis - fixed] - (p.block[axis] - 1), Offset(0)) >> p.by_side[axis].shift;
    }

    __device__ bool more() const { return at[0] <= until[0]; }
    __device__ void next(const BinParameters& p)
    {
        bool moves = true;
        unrolled_for (int axis = last; axis >= fixed; --axis) {
            const int number = axis - fixed;
            const Offset beyond = at[number] + (axis > last - paired ? 2 : 1);
            const bool ends = number > 0 && beyond > until[number];
            at[number] = !moves ? at[number] : ends ? first(axis, p) : beyond;
            moves = moves && ends;
        }
    }

    __device__ bool intersects(int corner) const
    {
        bool hits = more();
        unrolled_for (int axis = positioned - paired; axis < positioned; ++axis)
            hits = hits && at[axis] + (corner >> (positioned - 1 - axis) & 1) <= until[axis];
        return hits;
    }

    __device__ Offset bin(const BinParameters& p) const
    {
        Offset number = 0;
        unrolled_for (int axis = fixed; axis < rank; ++axis)
            number = number * p.by_extent[axis].divisor + at[axis - fixed];
        return number;
    }
    __device__ Slot slot(Offset block, const BinParameters& p) const
    {
        Slot slot = Slot(block);
        unrolled_for (int axis = fixed; axis < rank; ++axis)
            slot = (slot << p.by_reach[axis].shift) +
                   Slot(end[axis - fixed] - (at[axis - fixed] << p.by_side[axis].shift));
        return slot;
    }
    // By how much a corner's slot is less than the first one's.
    static __device__ Slot less(int corner, const BinParameters& p)
    {
        const Slot rows = Slot(p.by_side[rank - paired].divisor) << p.by_reach[last].shift;
        return (corner & 2 ? rows : 0) + (corner & 1 ? Slot(p.by_side[last].divisor) : 0);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_fill(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    const Offset threads = Offset(gridDim.x) * THREADS, first = grid_index();
    const Offset row = p.by_extent[last].divisor; // of tiles
    Intersections tiles[at_once];
    unrolled_for (int number = 0; number < at_once; ++number)
        tiles[number].load(positions, first + number * threads, p);
    unrolled_for (int number = 0; number < at_once; ++number)
        tiles[number].begin(first + number * threads, p);
    bool more;
    do {
        Offset place[at_once][corners]; // of a slot
        unrolled_for (int number = 0; number < at_once; ++number) {
            Bin* bin = bins_of(scratch) + to_int64(tiles[number].bin(p));
            unrolled_for (int corner = 0; corner < corners; ++corner) {
                bin += corner == 2 ? to_int64(row) : 0;
                opaque(bin);
                place[number][corner] = count_if(&bin[corner & 1].count, tiles[number].intersects(corner));
            }
        }
        more = false;
        unrolled_for (int number = 0; number < at_once; ++number) {
            const Slot slot = tiles[number].slot(first + number * threads, p);
            Slot* of_tile = reinterpret_cast<Slot*>(scratch + to_int64(slots_at(tiles[number].bin(p), p)));
            unrolled_for (int corner = 0; corner < corners; ++corner) {
                of_tile += corner == 2 ? to_int64(row * slots) : 0;
                opaque(of_tile);
                Slot* to = of_tile + to_int64(place[number][corner]);
                opaque(to);
                if (within(place[number][corner], slots))
                    to[corner & 1 ? slots : 0] = slot - Intersections::less(corner, p);
            }
            bool overflows = false; // a tile, which has no slot for the block, its first such
            unrolled_for (int corner = 0; corner < corners; ++corner)
                overflows = overflows || place[number][corner] == slots;
            if (overflows)
                unrolled_for (int corner = 0; corner < corners; ++corner)
                    if (place[number][corner] == slots)
                        scratch[overflowing_tiles(p) + add_to_counter(&bins_of(scratch)[p.bins].end, 1)] =
                            tiles[number].bin(p) + (corner & 2 ? row : 0) + (corner & 1);
            tiles[number].next(p);
            more = more || tiles[number].more();
        }
    } while (more);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_reserve(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    constexpr int warps = THREADS / 32;
    __shared__ Offset of_warp[warps], begin;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Bin* const bins = bins_of(scratch);
    const Offset lists = bins[p.bins].end;
    for (Offset first = Offset(blockIdx.x) * THREADS; first < lists; first += Offset(gridDim.x) * THREADS) {
        const Offset number = first + threadIdx.x;
        Bin* const bin = bins + (number < lists ? scratch[overflowing_tiles(p) + number] : 0);
        const Offset count = number < lists ? bin->count : 0; // of its list
        Offset until = count; // the end of this tile's part among those of the thread block
        unrolled_for (int step = 1; step < 32; step *= 2) {
            const Offset before = __shfl_up_sync(~0u, until, step);
            until += lane >= step ? before : 0;
        }
        if (lane == 31)
            of_warp[warp] = until;
        __syncthreads();
        Offset total = 0;
        unrolled_for (int other = 0; other < warps; ++other) {
            until += other < warp ? of_warp[other] : 0;
            total += of_warp[other];
        }
        if (threadIdx.x == 0)
            begin = add_to_counter(&bins[p.bins].count, total);
        __syncthreads();
        if (count)
            bin->end = begin + until - count; // which bins_list moves on to the end
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_list(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    Bin* const bins = bins_of(scratch);
    if (!bins[p.bins].end)
        return;
    for (Offset block = grid_index(); block < p.count; block += Offset(gridDim.x) * THREADS) {
        Intersections tiles;
        tiles.load(positions, block, p);
        for (tiles.begin(block, p); tiles.more(); tiles.next(p))
            unrolled_for (int corner = 0; corner < corners; ++corner)
                if (tiles.intersects(corner)) {
                    const Offset row = corner & 2 ? p.by_extent[last].divisor : 0;
                    Bin& bin = bins[tiles.bin(p) + row + (corner & 1)];
                    if (bin.count > slots)
                        scratch[lists_at(false, p) + add_to_counter(&bin.end, 1)] = block;
                }
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
    const Offset* const overflowing = scratch + overflowing_tiles(p);
    const Offset lists = bins[p.bins].end;
    for (Offset number = Offset(blockIdx.x) * warps + thread / 32; number < lists;
         number += Offset(gridDim.x) * warps) {
        const Bin bin = bins[overflowing[number]];
        const Offset* const blocks = scratch + lists_at(false, p) + (bin.end - bin.count);
        Offset* const ordered = scratch + lists_at(true, p) + (bin.end - bin.count);
        constexpr int of_lane = 4; // blocks at a time
        for (Offset first = thread % 32; bin.count <= most_compared && first < bin.count;
             first += 32 * of_lane) {
            Offset own[of_lane], place[of_lane] = {};
            unrolled_for (int number = 0; number < of_lane; ++number)
                own[number] = load_if(blocks + first + number * 32, first + number * 32 < bin.count);
#pragma unroll 8
            for (Offset other = 0; other < bin.count; ++other) {
                const Offset block = load_if(blocks + other, true);
                unrolled_for (int number = 0; number < of_lane; ++number)
                    place[number] += block < own[number];
            }
            unrolled_for (int number = 0; number < of_lane; ++number)
                if (first + number * 32 < bin.count)
                    ordered[place[number]] = own[number];
        }
    }
    for (Offset number = blockIdx.x; number < lists; number += gridDim.x) {
        const Bin bin = bins[overflowing[number]];
        if (bin.count <= most_compared)
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
