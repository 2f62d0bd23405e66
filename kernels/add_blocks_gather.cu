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
// another: always in the same order, without atomics. Most cover all pixels of the warp, and are added
// without a guard. Where the list is too short for a region's blocks, each of its tiles tests all blocks, and
// adds list after list.
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
#define TILE_ROWS 32
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
    __device__ bool meets(const long long (&position)[positioned], const Parameters& p) const
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
    const int thread = threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
    for (int step = 1; step < groups; step *= 2) {
        const int before = __shfl_up_sync(~0u, until, step);
        until += lane >= step ? before : 0;
    }
#pragma unroll
    for (int number = 0; number < candidates; ++number) {
        const int place = from + __shfl_sync(~0u, until - count, number * warps + warp) +
                          __popc(votes[number] & ((1u << lane) - 1));
        if ((votes[number] >> lane & 1) && place < listed) {
            const Scalar* origin = blocks + lengthened(first + number * threads + thread) * p.block_step;
#pragma unroll
            for (int axis = fixed; axis < rank; ++axis) {
                const Offset begin = Offset(position[number][axis - fixed] - box.begin[axis]);
                list.position[place][axis - fixed] = begin;
                origin -= begin * p.tap_stride[axis];
            }
            list.origin[place] = origin;
        }
    }
    const int found = __shfl_sync(~0u, until, groups - 1);
    __syncthreads();
    return found;
}

// The weights of a thread's elements of a block, loaded first and multiplied when they are needed. In a
// separable window, axes that its rows do not differ on have one weight for all of them.
struct RowWeights {
    static constexpr int differing = along - fixed; // an axis without weights where it is negative
    Weight before[separable && differing > 0 ? differing : 1], each[thread_rows], after;

    // Of the tap of the first row on; zeros, unread, where a row is not covered.
    template <bool whole>
    __device__ void load(const Offset (&tap)[rank], unsigned covered, const Weights& window,
                         const Parameters& p)
    {
        const Weight* of_row = window.last();
        Offset step = row_step;
        if constexpr (separable) {
#pragma unroll
            for (int axis = 0; axis < differing; ++axis)
                before[axis] = load_if(window.of_axis[axis] + tap[fixed + axis], whole || covered);
            if constexpr (along < last)
                after = load_if(window.last() + tap[last], whole || covered);
            of_row = window.of_axis[max(differing, 0)] + tap[along];
        } else {
            Offset number = 0;
#pragma unroll
            for (int axis = fixed; axis < rank; ++axis)
                number = number * p.block[axis] + tap[axis];
            of_row += number;
            step = differing < 0 ? 0 : along < last ? p.block[last] : row_step;
        }
        if constexpr (!separable || differing >= 0)
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                each[row] = load_if(of_row + row * (long long)(step), whole || has_bit(covered, row));
    }

    // Of a row that is covered.
    __device__ Weight value(int row) const
    {
        if constexpr (!separable)
            return each[row];
        if constexpr (differing < 0)
            return after;
        Weight product = differing > 0 ? before[0] : each[row];
#pragma unroll
        for (int axis = 1; axis < differing; ++axis)
            product = multiply(product, before[axis]);
        if constexpr (differing > 0)
            product = multiply(product, each[row]);
        return along < last ? multiply(product, after) : product;
    }
};

// The elements of a block that a thread adds to its pixels, and their weights. Where they are `whole`, every
// lane's rows are covered, and no load or sum has a guard.
struct Layer {
    int entry;        // of the list
    Offset tap[rank]; // of the thread's first pixel, on the block or not
    unsigned covered; // of its rows, a bit each
    Scalar elements[planes][thread_rows];
    RowWeights weights;

    template <bool whole>
    __device__ void load(const List& list, Offset own_tap, Offset channels, const Weights& window, int number,
                         const Parameters& p)
    {
        if constexpr (windowed)
            weights.load<whole>(tap, covered, window, p);
        const Scalar* source = list.origin[entry] + own_tap;
        Offset step = row_step * p.tap_stride[along];
        keep(step);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            const unsigned loaded = plane < channels ? covered : 0;
#pragma unroll
            for (int row = 0; row < thread_rows; ++row) {
                trace_iteration((number * planes + plane) * thread_rows + row);
                elements[plane][row] =
                    load_if(source + (long long)(row)*step, whole || has_bit(loaded, row), nothing(Scalar{}));
            }
            source += p.blocks_channel;
        }
    }

    template <bool whole>
    __device__ void add_to(Accumulator (&sums)[planes][thread_rows], Weight (&weight_sums)[thread_rows]) const
    {
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
            const bool exists = whole || has_bit(covered, row);
            Weight weight = Weight(exists);
            if constexpr (windowed)
                weight = whole ? weights.value(row) : or_zero(weights.value(row), exists);
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
                sums[plane][row] = add(sums[plane][row], weigh(widen(elements[plane][row]), weight));
            if constexpr (weighs_out)
                weight_sums[row] = add(weight_sums[row], or_nothing(weight, exists));
        }
    }
};

// Blocks whose loads a thread has in flight, as far as registers suffice for them.
constexpr int layer_bytes = thread_rows * (planes * (sizeof(Scalar) < 4 ? 4 : int(sizeof(Scalar))) +
                                           (windowed ? int(sizeof(Weight)) : 0));
constexpr int layers = weighs_out || layer_bytes > 96 ? 1 : layer_bytes > 64 ? 2 : 3;

constexpr unsigned all_rows = ~0u >> (32 - thread_rows);

// A thread's pixels of a tile, rows of some planes.
struct Pixels {
    Result* image;      // the first
    Weight* weight;     // the first's sum of weights, in a kernel that has them
    Offset first[rank]; // from where the list's positions count from; along axes without a position, its own
    Offset tap;         // of a block's origin, where its element for the first pixel would be
    Offset channels;    // from the first plane on
    unsigned exists, weighed, touched; // bits of rows
    Accumulator sums[planes][thread_rows];
    Weight weight_sums[thread_rows]; // compiled only where they are asked for

    // Finds what a block of the list covers.
    __device__ void meet(Layer& layer, const List& list, int entry, const Parameters& p) const
    {
        layer.entry = entry;
        bool meets = true;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            layer.tap[axis] = first[axis] - (axis < fixed ? 0 : list.position[entry][max(axis - fixed, 0)]);
            meets = meets && (axis == along || within(layer.tap[axis], p.block[axis]));
        }
        const Offset tap = layer.tap[along];
        unsigned covered = 0;
        if constexpr (rank == 1) {
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                covered |= within(tap + row * row_step, p.block[along]) ? 1u << row : 0;
        } else {
            const Offset end = min(p.block[along] - tap, Offset(thread_rows));
            covered = run_of_bits(max(-tap, Offset(0)), max(end, Offset(0)));
        }
        layer.covered = meets ? covered & exists : 0;
    }

    // Calls a function with the pixels of some rows.
    template <bool whole, typename Visitor>
    __device__ void visit(unsigned rows, const Parameters& p, Visitor visitor)
    {
        Result* of_plane = image;
        Offset step = row_step * p.pixel_stride[along];
        keep_here(of_plane);
        keep_here(step);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            const unsigned visited = plane < channels ? rows : 0;
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                if (whole || has_bit(visited, row))
                    visitor(of_plane + (long long)(row)*step, sums[plane][row]);
            of_plane += p.image_channel;
            // Rows are counted from there, with an instruction each; along a lone axis loads would wait.
            if constexpr (rank > 1)
                keep(of_plane);
        }
    }
    template <typename Visitor> __device__ void visit(unsigned rows, const Parameters& p, Visitor visitor)
    {
        if (__all_sync(~0u, rows == all_rows) && planes <= channels)
            visit<true>(rows, p, visitor);
        else
            visit<false>(rows, p, visitor);
    }

    // Start sums with what is there, before the first block is added that covers them.
    __device__ void start(unsigned rows, const Parameters& p)
    {
        visit(rows, p, [](const Result* pixel, Accumulator& sum) { sum = widen(*pixel); });
        if constexpr (weighs_out)
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                if (has_bit(rows & weighed, row))
                    weight_sums[row] = weight[row * row_step * p.weight_stride[along]];
        touched |= rows;
    }

    template <bool whole>
    __device__ void add(Layer (&layer)[layers], int count, const List& list, const Weights& window,
                        int number, const Parameters& p)
    {
#pragma unroll
        for (int of = 0; of < layers; ++of)
            if (whole || of < count)
                layer[of].load<whole>(list, tap, channels, window, number + of, p);
#pragma unroll
        for (int of = 0; of < layers; ++of)
            if (whole || of < count)
                layer[of].add_to<whole>(sums, weight_sums);
    }

    __device__ void write(const Parameters& p)
    {
        visit(touched, p, [](Result* pixel, Accumulator sum) { store(pixel, narrow(sum)); });
        if constexpr (weighs_out)
#pragma unroll
            for (int row = 0; row < thread_rows; ++row)
                if (has_bit(touched & weighed, row))
                    weight[row * row_step * p.weight_stride[along]] = weight_sums[row];
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
    image += lengthened(batch) * p.image_batch + lengthened(channel) * p.image_channel;
    blocks += lengthened(batch) * p.blocks_batch + lengthened(channel) * p.blocks_channel;

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

        Pixels pixels{image, weight_out, {}, 0, p.channels - channel, 0, 0, 0, {}, {}};
        bool inside = true, weighing = batch == 0 && channel == 0;
        Offset at[rank];
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            at[axis] = own.begin[axis] + (axis == last ? lane : 0);
            pixels.first[axis] = at[axis] - origin[axis];
            pixels.tap += pixels.first[axis] * p.tap_stride[axis];
            inside = inside && (axis == along || at[axis] < own.end[axis]);
            pixels.image += at[axis] * p.pixel_stride[axis];
            pixels.weight += at[axis] * p.weight_stride[axis];
            weighing = weighing && (axis >= fixed || axis == along || at[axis] == 0);
        }
#pragma unroll
        for (int row = 0; row < thread_rows; ++row) {
            const Offset of_row = at[along] + row * row_step;
            pixels.exists |= inside && of_row < own.end[along] ? 1u << row : 0;
            pixels.weighed |= weighing && (along >= fixed || of_row == 0) ? 1u << row : 0;
        }
        if constexpr (rank > 1) // the same, as rows follow each other
            pixels.exists = inside ? run_of_bits(0, max(own.end[along] - at[along], Offset(0))) : 0;

        for (Offset first = 0; first < lists; first += listed) {
            if (!fits)
                found = list_candidates(list, 0, first, blocks, positions, tile, p, counts);
            for (int of_lanes = 0; of_lanes < found; of_lanes += 32) {
                // A lane tests a block of the list; those that meet the warp's pixels are added by all lanes.
                bool met = of_lanes + lane < found;
#pragma unroll
                for (int axis = fixed; axis < rank; ++axis) {
                    const Offset begin =
                        (met ? list.position[of_lanes + lane][axis - fixed] : 0) + origin[axis];
                    met = met && begin < own.end[axis] && begin + p.block[axis] > own.begin[axis];
                }
                unsigned votes = __ballot_sync(~0u, met);
                while (votes) {
                    const int count = min(layers, __popc(votes));
                    Layer layer[layers];
                    unsigned some = 0, all = count == layers && planes <= pixels.channels ? ~0u : 0;
#pragma unroll
                    for (int number = 0; number < layers; ++number)
                        if (number < count) {
                            pixels.meet(layer[number], list, of_lanes + __ffs(votes) - 1, p);
                            votes &= votes - 1;
                            some |= layer[number].covered;
                            all &= layer[number].covered;
                        }
                    const unsigned untouched = some & ~pixels.touched;
                    const bool whole = __all_sync(~0u, all == all_rows);
                    if (__any_sync(~0u, untouched))
                        pixels.start(untouched, p);
                    const int number = int(tile_number * lists + first) + layer[0].entry;
                    if (whole)
                        pixels.add<true>(layer, count, list, window, number, p);
                    else
                        pixels.add<false>(layer, count, list, window, number, p);
                }
            }
        }
        pixels.write(p);
    }
}
