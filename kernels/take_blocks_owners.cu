// take_blocks by owners: a block of threads owns a tile of pixels in a few planes, and stores them into every
// block that covers them.
//
//   image      (batch, channels, *size), any strides            read where blocks lie on it, once for a chunk
//                                                                of these
//   blocks     (count, batch, channels, *block), any strides    each element written once
//   positions  (count, axes)                                     read by every tile
//   window     weights of a block's elements, or null            read, once for all planes of a thread
//
// A thread block has a chunk of the blocks, one for each thread to test; those that meet its tile are listed
// in shared memory. Then a thread loads its pixels, some rows of one column, and goes through the list. As
// each block is stored by itself, chunks need not know of each other, and however many blocks lie in one
// place, no tile has more than a chunk of them. What lies outside of the image is tiled too, as far as blocks
// reach: pixels there are zeros, or the nearest ones. Where there are thread blocks enough, those of tiles
// inside take these tiles too: one test and one list serve all, and a tile that no block meets is passed
// over.
// The kernel is one function: what makes the list and what goes through it share memory and a dozen values.
//
// For blocks with long rows that overlap: an element is not loaded again for each block that has it. The
// tests grow with tiles times blocks: little beside the stores while most tiles meet some of their chunk.
#include "take_blocks.cuh"

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

// Where a thread block's first tile begins along an axis, or the one that is as many further on as there are
// thread blocks. Tiles before the image come last.
inline __device__ Offset tile_begin(Offset own, bool further, int axis, const OwnersParameters& p)
{
    const Offset tile = own + (further ? p.by_extent[axis].divisor : 0);
    const bool before = tile >= p.tiles[axis] - p.margin[axis];
    return (tile - (before ? p.tiles[axis] : 0)) * tile_extent(axis);
}

// A thread block's tiles: a bit of their number says that they are further on along the last axis, another
// along the one before.
constexpr int tiles = !takes_turns ? 1 : one_axis ? 2 : 4;
inline __device__ bool is_further(int tile, int axis)
{
    return takes_turns && axis >= last - 1 && (tile >> (last - axis) & 1);
}

// The first plane of a group.
template <typename Element>
inline __device__ Element* first_plane(Element* array, Offset group, long long batch_step,
                                       long long channel_step, const Parameters& p)
{
    if (group) {
        const Offset channel = p.by_channels.split(group) * planes, batch = group;
        array += batch * batch_step + channel * channel_step;
    }
    return array;
}

// Whether a block meets a tile along an axis.
inline __device__ bool meets_tile(Offset position, Offset begin, int axis, const Parameters& p)
{
    return within(position - begin + (p.block[axis] - 1), tile_extent(axis) + (p.block[axis] - 1));
}

// What warps have found is added up in one number: below this the blocks, from it on, with 4 bits for each
// tile, the warps with one that meets it.
constexpr unsigned first_tile = 1 << 12;

static_assert(threads < first_tile && warps < 16, "sums do not overflow");

// What a thread has to know again for each tile: pixels need the registers.
struct Owner {
    unsigned found;
    Offset group; // of planes
    Offset tile[rank];
};

// A block that meets a tile.
struct Listed {
    Scalar* target;              // where an element for the image's first pixel would be
    Offset position[positioned]; // of its first pixel
};

// Rows that are whole are stored without a look at each.
constexpr bool has_whole_rows = !one_axis && (!windowed || separable);
constexpr unsigned all_rows = ~0u >> (32 - thread_rows);

// Loads a thread's pixels, zeros where they lie outside of the image. `whole` where all are inside.
template <bool whole>
__device__ void load_rows(Scalar (&pixels)[planes][thread_rows], const Scalar* column, Offset first,
                          unsigned inside, const Parameters& p)
{
#pragma unroll
    for (int row = 0; row < thread_rows; ++row) {
        const Scalar* const source =
            column + taken_pixel(first + row * step, along, p) * p.pixel_stride[along];
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            trace_iteration(row * planes + plane);
            pixels[plane][row] = load_if(source + plane * p.image_channel, whole || has_bit(inside, row));
        }
    }
}

// The weights of a thread's rows in one block; those of the other axes are the same for all. `whole` where
// the block covers all of these rows, which lie in the image.
template <bool whole> struct RowWeights {
    Weight of_row[thread_rows];

    __device__ RowWeights(const Offset (&first)[rank], unsigned covered, unsigned inside,
                          const Weights& window, const Parameters& p)
    {
        if constexpr (windowed) {
            TapWeight weight;
            const Weight* of_rows = window.last();
            Offset row_step = step;
            if constexpr (separable) {
#pragma unroll
                for (int axis = fixed; axis < rank; ++axis)
                    if (axis != along)
                        weight.factor[axis - fixed] =
                            load_if(window.of_axis[axis - fixed] + first[axis], whole || covered);
                of_rows = window.of_axis[max(along - fixed, 0)] + first[along];
            } else {
                Offset number = 0;
#pragma unroll
                for (int axis = fixed; axis < rank; ++axis)
                    number = number * p.block[axis] + first[axis];
                of_rows += number;
                row_step = along < fixed ? 0 : along < last ? p.block[last] : step;
            }
#pragma unroll
            for (int row = 0; row < thread_rows; ++row) {
                const bool exists = covered >> row & 1;
                if constexpr (!separable || along >= fixed)
                    weight.factor[separable ? along - fixed : 0] =
                        load_if(of_rows + (long long)(row)*row_step, whole || exists);
                const bool counts = whole || nearest || (inside >> row & 1);
                if constexpr (takes_turns)
                    of_row[row] = counts ? weight.value() : Weight(0);
                else
                    of_row[row] = or_zero(weight.value(), counts); // with fewer waits, and more registers
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
            if (whole || has_bit(covered, row))
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
    __shared__ unsigned counts[warps];
    __shared__ Owner owner;
    const int thread = threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Offset rest = blockIdx.x;
    const Offset block = p.by_chunks.split(rest) * p.chunk + thread;
    Offset tile[rank];
#pragma unroll
    for (int axis = last; axis >= 0; --axis)
        tile[axis] = p.by_extent[axis].split(rest);
    Offset group = rest; // of planes

    // Each thread tests a block; warps that have none skip it.
    Offset placed[rank] = {}; // its first pixel
    unsigned met = 0;         // a bit for each tile
    if (warp * 32 < p.chunk) {
        const bool exists = thread < p.chunk && block < p.count;
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis)
            placed[axis] = first_pixel(
                load_if(positions + (long long)(block)*positioned + (axis - fixed), exists), axis, p);
        met = exists;
#pragma unroll
        for (int axis = last; axis >= fixed; --axis) {
            const auto meets = [&](bool further) {
                return meets_tile(placed[axis], tile_begin(tile[axis], further, axis, p), axis, p);
            };
            unsigned met_further = 0;
            if (takes_turns && axis >= last - 1 && tile[axis] + p.by_extent[axis].divisor < p.tiles[axis])
                met_further = meets(true) ? met << (1 << (last - axis)) : 0;
            met = (meets(false) ? met : 0) | met_further;
        }
    }
    const unsigned votes = __ballot_sync(~0u, met);
    unsigned of_warp = __popc(votes);
    if (votes)
#pragma unroll
        for (int number = 0; number < tiles; ++number)
            of_warp += __any_sync(~0u, met >> number & 1) ? first_tile << 4 * number : 0;
    if (lane == 0)
        counts[warp] = of_warp;
    __syncthreads();
    const unsigned count = counts[lane % warps]; // lanes beyond are not looked at
    unsigned until = count;
#pragma unroll
    for (int distance = 1; distance < warps; distance *= 2) {
        const unsigned before = __shfl_up_sync(~0u, until, distance);
        until += lane >= distance ? before : 0;
    }
    const int place =
        (__shfl_sync(~0u, until - count, warp) & (first_tile - 1)) + __popc(votes & ((1u << lane) - 1));
    const unsigned found = __shfl_sync(~0u, until, warps - 1);
    if (thread == 0) {
        owner.found = found;
        owner.group = group;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis)
            owner.tile[axis] = tile[axis];
    }
    if (met) {
        Offset taps = 0;
#pragma unroll
        for (int axis = fixed; axis < rank; ++axis) {
            taps -= placed[axis] * p.tap_stride[axis];
            list[place].position[axis - fixed] = placed[axis];
        }
        list[place].target =
            first_plane(blocks, group, p.blocks_batch, p.blocks_channel, p) + (block * p.block_step + taps);
    }
    __syncthreads();

#pragma unroll 1
    for (int number = 0; number < tiles && owner.found / first_tile >> 4 * number; ++number) {
        if (!(owner.found / first_tile >> 4 * number & 15))
            continue;
        // A thread's first pixel.
        Offset first_own[rank];
#pragma unroll
        for (int axis = 0; axis < rank; ++axis)
            first_own[axis] =
                tile_begin(takes_turns ? owner.tile[axis] : tile[axis], is_further(number, axis), axis, p);
        first_own[last] += one_axis ? warp * 32 * thread_rows + lane : warp % (columns / 32) * 32 + lane;
        if (!one_axis)
            first_own[along] += warp / (columns / 32) * thread_rows;
        Offset own_tap = 0, pixel = 0;
        bool in_image = true;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
            own_tap += first_own[axis] * p.tap_stride[axis];
            if (axis == along)
                continue;
            const Offset of_axis = taken_pixel(first_own[axis], axis, p);
            in_image = in_image && within(of_axis, p.size[axis]);
            pixel += of_axis * p.pixel_stride[axis];
        }
        const Scalar* own_image =
            first_plane(image, takes_turns ? owner.group : group, p.image_batch, p.image_channel, p);
        Scalar pixels[planes][thread_rows];
        const unsigned inside = nearest    ? all_rows
                                : in_image ? rows_within<thread_rows, step>(first_own[along], p.size[along])
                                           : 0;
        if (inside == all_rows)
            load_rows<true>(pixels, own_image + pixel, first_own[along], inside, p);
        else
            load_rows<false>(pixels, own_image + pixel, first_own[along], inside, p);

        int entry = owner.found % first_tile;
        do { // at least one is listed
            --entry;
            trace_iteration(entry * planes * thread_rows);
            const Listed& listed = list[entry];
            Offset first[rank]; // the tap of the first pixel
            bool covers = true;
#pragma unroll
            for (int axis = 0; axis < rank; ++axis) {
                first[axis] = first_own[axis] - (axis < fixed ? 0 : listed.position[max(axis - fixed, 0)]);
                covers = covers && (axis == along || within(first[axis], p.block[axis]));
            }
            if (!covers)
                continue;
            keep_here(own_tap);
            if (has_whole_rows && inside == all_rows && within(first[along], p.block[along]) &&
                within(first[along] + (thread_rows - 1), p.block[along])) {
                store_rows<true>(listed.target + own_tap, pixels, first, all_rows, inside, window, p);
            } else {
                const unsigned covered = rows_within<thread_rows, step>(first[along], p.block[along]);
                if (covered)
                    store_rows<false>(listed.target + own_tap, pixels, first, covered, inside, window, p);
            }
        } while (entry);
    }
}
