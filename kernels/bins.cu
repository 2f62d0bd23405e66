// A counting sort: for each tile of an image, the blocks that intersect it.
//
//   positions  (count, axes)                read by bins_note, and by bins_list where tiles are crowded
//   scratch    what is noted (see bins.cuh)  read and written, its Bins zeros at first
//
// Four kernels run one after another on a stream. bins_note counts the blocks of each tile and notes the
// first of them; it lists a tile with more blocks as crowded. bins_reserve gives each crowded tile a place
// in the lists, bins_list puts all its blocks there, and bins_order sorts them.
//
// In bins_note a thread has a few blocks, with the loads of all their positions in flight, and then the
// counters of all their tiles. In bins_reserve it has crowded tiles, in bins_list blocks. In bins_order a
// warp has crowded tiles, and a thread block those with very many blocks. Blocks of a list are compared
// with each other; very many are marked in shared memory instead, and the marks are listed. A tile's place
// in the lists and the order of notes change from run to run, the contents of lists do not. Leading axes
// without a position have no tiles.
#include "bins.cuh"

constexpr int at_once = AT_ONCE;
constexpr int crowd = CROWD; // blocks of a tile, up to which they are compared with each other

inline __device__ Bin* bins_of(Offset* scratch)
{
    return reinterpret_cast<Bin*>(scratch);
}
inline __device__ Offset crowded_tiles(const BinParameters& p)
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

// The tiles that a block meets, up to two along each of the last two axes at a time: corners, by their bits.
constexpr int paired = positioned < 2 ? 1 : 2;
constexpr int corners = 1 << paired;

struct Meetings {
    long long given[positioned]; // the block's position
    Offset end[positioned];      // how far its last pixel is from the image's first
    Offset at[positioned];       // the first tile of the corners
    Offset until[positioned];    // the last one that the block meets

    __device__ void load(const long long* positions, Offset block, const BinParameters& p)
    {
        unrolled_for (int axis = 0; axis < positioned; ++axis)
            given[axis] = load_if(positions + lengthened(block) * positioned + axis, block < p.count);
    }
    __device__ void begin(Offset block, const BinParameters& p)
    {
        bool met = block < p.count;
        unrolled_for (int axis = fixed; axis < rank; ++axis) {
            const int number = axis - fixed;
            const Offset position = Offset(given[number]), before = p.block[axis] - 1;
            end[number] = Offset(UnsignedOffset(position) + UnsignedOffset(before));
            met = met && (sizeof(Offset) == 8 || int(given[number] >> 32) == int(position >> 31)) &&
                  UnsignedOffset(end[number]) < UnsignedOffset(p.size[axis] + before);
        }
        unrolled_for (int axis = fixed; axis < rank; ++axis) {
            const int number = axis - fixed;
            end[number] = met ? end[number] : 0;
            at[number] = first(axis, p);
            until[number] = min(end[number], p.size[axis] - 1) >> p.by_side[axis].shift;
        }
        until[0] = met ? until[0] : -1;
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

    __device__ bool meets(int corner) const
    {
        bool met = more();
        unrolled_for (int axis = positioned - paired; axis < positioned; ++axis)
            met = met && at[axis] + (corner >> (positioned - 1 - axis) & 1) <= until[axis];
        return met;
    }

    __device__ Offset bin(const BinParameters& p) const
    {
        Offset number = 0;
        unrolled_for (int axis = fixed; axis < rank; ++axis)
            number = number * p.by_extent[axis].divisor + at[axis - fixed];
        return number;
    }
    __device__ Note note(Offset block, const BinParameters& p) const
    {
        Note note = Note(block);
        unrolled_for (int axis = fixed; axis < rank; ++axis)
            note = (note << p.by_reach[axis].shift) +
                   Note(end[axis - fixed] - (at[axis - fixed] << p.by_side[axis].shift));
        return note;
    }
    // By how much a corner's note is less than the first one's.
    static __device__ Note less(int corner, const BinParameters& p)
    {
        const Note rows = Note(p.by_side[rank - paired].divisor) << p.by_reach[last].shift;
        return (corner & 2 ? rows : 0) + (corner & 1 ? Note(p.by_side[last].divisor) : 0);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    bins_note(const long long* __restrict__ positions, Offset* __restrict__ scratch, const BinParameters p)
{
    const Offset threads = Offset(gridDim.x) * THREADS, first = grid_index();
    const Offset row = p.by_extent[last].divisor; // of tiles
    Meetings met[at_once];
    unrolled_for (int number = 0; number < at_once; ++number)
        met[number].load(positions, first + number * threads, p);
    unrolled_for (int number = 0; number < at_once; ++number)
        met[number].begin(first + number * threads, p);
    bool more;
    do {
        Offset place[at_once][corners]; // of a note
        unrolled_for (int number = 0; number < at_once; ++number) {
            Bin* bin = bins_of(scratch) + lengthened(met[number].bin(p));
            unrolled_for (int corner = 0; corner < corners; ++corner) {
                bin += corner == 2 ? lengthened(row) : 0;
                keep(bin);
                place[number][corner] = count_if(&bin[corner & 1].count, met[number].meets(corner));
            }
        }
        more = false;
        unrolled_for (int number = 0; number < at_once; ++number) {
            const Note note = met[number].note(first + number * threads, p);
            Note* notes = reinterpret_cast<Note*>(scratch + lengthened(notes_at(met[number].bin(p), p)));
            unrolled_for (int corner = 0; corner < corners; ++corner) {
                notes += corner == 2 ? lengthened(row * noted) : 0;
                keep(notes);
                Note* to = notes + lengthened(place[number][corner]);
                keep(to);
                if (within(place[number][corner], noted))
                    to[corner & 1 ? noted : 0] = note - Meetings::less(corner, p);
            }
            bool crowds = false; // a tile, as the first block that it has no room for
            unrolled_for (int corner = 0; corner < corners; ++corner)
                crowds = crowds || place[number][corner] == noted;
            if (crowds)
                unrolled_for (int corner = 0; corner < corners; ++corner)
                    if (place[number][corner] == noted)
                        scratch[crowded_tiles(p) + add_to_counter(&bins_of(scratch)[p.bins].end, 1)] =
                            met[number].bin(p) + (corner & 2 ? row : 0) + (corner & 1);
            met[number].next(p);
            more = more || met[number].more();
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
    const Offset crowds = bins[p.bins].end;
    for (Offset first = Offset(blockIdx.x) * THREADS; first < crowds; first += Offset(gridDim.x) * THREADS) {
        const Offset number = first + threadIdx.x;
        Bin* const bin = bins + (number < crowds ? scratch[crowded_tiles(p) + number] : 0);
        const Offset count = number < crowds ? bin->count : 0; // of its list
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
        Meetings met;
        met.load(positions, block, p);
        for (met.begin(block, p); met.more(); met.next(p))
            unrolled_for (int corner = 0; corner < corners; ++corner)
                if (met.meets(corner)) {
                    const Offset row = corner & 2 ? p.by_extent[last].divisor : 0;
                    Bin& bin = bins[met.bin(p) + row + (corner & 1)];
                    if (bin.count > noted)
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
