// add_blocks by bins: a warp owns a tile of pixels, rows of 32 columns, and has a list of the blocks that
// intersect it.
//
//   blocks     (count, batch, channels, *block), any strides     read, each element once
//   image      (batch, channels, *size), any strides             read and written once where a block covers
//                                                                it, not at all elsewhere
//   positions  (count, axes)                                     read for the blocks of overflowing tiles
//   window     weights of a block's elements, or null            read, once for the planes of a thread
//   weight_out sums of weights (*size), if requested             read and written as the image
//   scratch    the lists of blocks (see bins.cuh)                read by the warps of a tile
//
// Each lane has one of up to 32 listed blocks, and one column of the tile. The rows and the columns that
// its block covers are bits of words. Votes and shuffles transpose these words: then each lane knows the
// blocks that cover its pixel of a row, as bits with the first block highest. It adds them in order,
// without atomics, with the loads of some rows in flight. Lists of at most 32 blocks are sorted here; lists
// of overflowing tiles are sorted already and added part by part. Wins for many small blocks: a warp
// whose tile has none reads its bin and ends.
#include "bins.cuh"
#include "bits.cuh"

constexpr int planes = PLANES;    // of a thread
constexpr bool alone = ALONE;     // whether there are no others
constexpr int thread_rows = ROWS; // at a time
constexpr int tile_rows = TILE_ROWS;
constexpr int warps = THREADS / 32;
static_assert(thread_rows <= tile_rows && tile_rows <= 32, "a bit for each row");
constexpr bool one_axis = positioned == 1; // rows follow each other along it

// Rows of a thread that get elements of the same block at a time: most blocks that cover some of these rows
// cover all, so they need one look-up. Planes share a look-up anyway.
constexpr int together = one_axis || planes > 1 ? 1 : thread_rows < 4 ? thread_rows : 4;

// A tile's pixels; a lane has one column.
struct Tile {
    Offset begin[rank];
    Offset end[rank]; // of those inside the image, from begin on
};

// The blocks of a warp's lanes, by bit number; the first entry stands for no block.
struct Listed {
    const Scalar* origin[1 + slots]; // where an element for the tile's first pixel would be
    struct alignas(sizeof(Scalar*)) Covered {
        unsigned rows, columns; // by their bits
    } covered[1 + slots];       // as far apart as origins, so that one index finds both
    Offset position[windowed ? 1 + slots : 1][positioned]; // from that pixel
};

// The lanes' slots, sorted: the lowest is the last lane's.
inline __device__ Slot in_order(Slot number)
{
    const Slot before = __shfl_down_sync(~0u, number, 1);
    if (__any_sync(~0u, number < before))
        unrolled_for (int size = 2; size <= 32; size *= 2)
            unrolled_for (int step = size / 2; step > 0; step /= 2) {
                const int others = step == size / 2 ? size - 1 : step;
                const Slot other = __shfl_xor_sync(~0u, number, others);
                number = threadIdx.x & step ? min(number, other) : max(number, other);
            }
    return number;
}

// A lane's block in a part of a list.
struct ListPart {
    unsigned rows;         // that it covers
    Offset first, columns; // where those that it covers begin and end
    unsigned covering;     // the blocks that cover its column, in every row

    // `position` is the block's, from the tile's first pixel.
    __device__ ListPart(Listed& list, Offset number, const Offset (&position)[positioned],
                        const Scalar* blocks, const Tile& tile, const BinParameters& p)
    {
        const int lane = threadIdx.x % 32;
        const bool exists = number < p.count;
        const Scalar* origin = blocks + to_int64(exists ? number : 0) * p.block_step;
        Offset offset = 0;
        unrolled_for (int axis = fixed; axis < rank; ++axis)
            offset -= position[axis - fixed] * p.tap_stride[axis];
        first = max(position[positioned - 1], Offset(0));
        columns = min(position[positioned - 1] + p.block[last], tile.end[last]);
        if constexpr (one_axis) {
            columns = exists ? columns : 0;
            rows = run_of_bits(first / 32, (columns + 31) / 32);
        } else {
            rows = exists;
            int step = 1; // rows
            unrolled_for (int axis = last - 1; axis >= fixed; --axis) {
                const Offset begin = max(position[axis - fixed], Offset(0));
                const Offset end = min(position[axis - fixed] + p.block[axis], tile.end[axis]);
                if (axis == last - 1) {
                    rows = exists ? run_of_bits(begin, end) : 0;
                } else {
                    const unsigned of_one = rows;
                    rows = 0;
                    for (Offset at = begin; at < end; ++at)
                        rows |= of_one << int(at * step);
                }
                step *= int(p.by_side[axis].divisor);
            }
            covering = of_column(0);
        }

        __syncwarp();
        list.origin[1 + lane] = origin + offset;
        list.covered[1 + lane] = {rows, columns_in(0)};
        if (lane == 0) {
            list.origin[0] = blocks;
            list.covered[0] = {};
        }
        if constexpr (windowed)
            unrolled_for (int axis = 0; axis < positioned; ++axis) {
                list.position[1 + lane][axis] = position[axis];
                if (lane == 0)
                    list.position[0][axis] = 0;
            }
        __syncwarp();
    }

    // The columns that a lane's block covers in a row, and the blocks that cover a lane's column there.
    __device__ unsigned columns_in(int row) const
    {
        const Offset begin = one_axis ? Offset(row) * 32 : 0;
        return run_of_bits(max(first - begin, Offset(0)), max(columns - begin, Offset(0)));
    }
    __device__ unsigned of_column(int row) const { return transposed(columns_in(row)); }
};

// A lane's pixels: in some rows of its column of a tile.
template <int rows> struct Pixels {
    static constexpr bool known = rows == tile_rows && positioned == 2; // the rows' numbers, when compiled
    unsigned bit[rows];                                                 // of the row's number, or none
    int number[rows];                                                   // zero where there is none

    // Takes the lowest of the rows that are left.
    __device__ Pixels(unsigned& left)
    {
        unrolled_for (int row = 0; row < rows; ++row) {
            bit[row] = rows == tile_rows ? 1u << row : left & -left;
            number[row] = rows == tile_rows ? row : max(31 - __clz(bit[row]), 0);
            left &= ~bit[row];
            opaque(bit[row]);
        }
    }

    // The distance along an axis from a tile's first row.
    __device__ Offset along(int row, int axis, const BinParameters& p) const
    {
        if (one_axis)
            return axis == last ? Offset(number[row]) * 32 : 0;
        Offset rest = number[row];
        unrolled_for (int inner = last - 1; inner > axis; --inner)
            rest = p.by_side[inner].quotient(rest);
        return axis == last || axis < fixed ? 0 : axis == fixed ? rest : p.by_side[axis].split(rest);
    }

    // A row's offset from a tile's first row.
    __device__ auto offset(int row, const Offset (&stride)[rank], const BinParameters& p) const
    {
        if constexpr (known) {
            Offset step = stride[last - 1];
            opaque(step);
            return (long long)(number[row]) * step; // one instruction, the sum with an address included
        } else {
            Offset offset = 0;
            unrolled_for (int axis = fixed; axis < rank; ++axis)
                offset += along(row, axis, p) * stride[axis];
            opaque_here(offset);
            return offset;
        }
    }

    // The blocks of a part that cover each row.
    __device__ void cover(unsigned (&covering)[rows], const ListPart& part) const
    {
        unrolled_for (int row = 0; row < rows; ++row)
            covering[row] = __ballot_sync(~0u, part.rows & bit[row]) &
                            (one_axis ? part.of_column(number[row]) : part.covering);
    }
};

// The addresses of a lane's column in the tile's first row.
struct Column {
    Result* image[planes];
    Weight* weight;
    Offset tap; // from an origin on
    bool weighing;
};

// The blocks whose elements a lane has yet to add.
template <int rows> struct Pending {
    static constexpr int group = together < rows ? together : rows;
    unsigned covering[rows / group] = {}; // some of these rows

    __device__ Pending(const unsigned (&each)[rows])
    {
        unrolled_for (int row = 0; row < rows; ++row)
            covering[row / group] |= each[row];
    }

    __device__ bool any() const // in the warp
    {
        unsigned some = 0;
        unrolled_for (int number = 0; number < rows / group; ++number)
            some |= covering[number];
        return __any_sync(~0u, some);
    }
};

// The elements of the next block of each of a lane's pixels, and their weights.
template <int rows> struct LoadedTaps {
    Scalar elements[planes][rows];
    bool covered[rows];
    TapWeight taps[rows];

    __device__ LoadedTaps(Pending<rows>& left, const Listed& list, const Pixels<rows>& pixels,
                          const Column& column, const Weights& window, const BinParameters& p)
    {
        constexpr int group = Pending<rows>::group;
        const Scalar* source[rows];
        int entry;
        unsigned of_entry; // the rows that it covers
        unrolled_for (int row = 0; row < rows; ++row) {
            unsigned& covering = left.covering[row / group];
            if constexpr (group == 1)
                covered[row] = covering;
            if (row % group == 0) {
                entry = take_highest(covering);
                of_entry = (list.covered + 1)[entry].rows;
            }
            if constexpr (group > 1)
                covered[row] = of_entry & pixels.bit[row];
            Offset offset = Offset(pixels.offset(row, p.tap_stride, p)) + column.tap;
            opaque(offset);
            source[row] = (list.origin + 1)[entry] + offset;
            Offset tap[rank];
            if constexpr (windowed)
                unrolled_for (int axis = fixed; axis < rank; ++axis)
                    tap[axis] = pixels.along(row, axis, p) + (axis == last ? int(threadIdx.x % 32) : 0) -
                                (list.position + 1)[entry][axis - fixed];
            taps[row] = TapWeight(tap, covered[row], window, p);
        }
        unrolled_for (int plane = 0; plane < planes; ++plane)
            unrolled_for (int row = 0; row < rows; ++row)
                elements[plane][row] = load_if(source[row] + plane * p.blocks_channel, covered[row],
                                               additive_identity(Scalar{}));
    }
};

// The sums of a lane's pixels.
template <int rows> struct Sums {
    Accumulator elements[planes][rows] = {};
    Weight weights[rows] = {}; // compiled only where they are asked for
    bool touched[rows] = {};

    // Loads the old values of pixels that are covered for the first time.
    __device__ void start(const unsigned (&covering)[rows], const Pixels<rows>& pixels, const Column& column,
                          const BinParameters& p)
    {
        unrolled_for (int plane = 0; plane < planes; ++plane)
            unrolled_for (int row = 0; row < rows; ++row) {
                const Result before = load_own_if(column.image[plane] + pixels.offset(row, p.pixel_stride, p),
                                                  covering[row] && !touched[row]);
                elements[plane][row] = touched[row] ? elements[plane][row] : widen(before);
            }
        unrolled_for (int row = 0; row < rows; ++row) {
            if constexpr (weighs_out)
                if (covering[row] && !touched[row] && column.weighing)
                    weights[row] = column.weight[pixels.offset(row, p.weight_stride, p)];
            touched[row] = touched[row] || covering[row];
        }
    }

    __device__ void add(const LoadedTaps<rows>& loaded)
    {
        unrolled_for (int plane = 0; plane < planes; ++plane)
            unrolled_for (int row = 0; row < rows; ++row)
                elements[plane][row] =
                    ::add(elements[plane][row],
                          term_of(loaded.elements[plane][row], loaded.taps[row], loaded.covered[row]));
        if constexpr (weighs_out)
            unrolled_for (int row = 0; row < rows; ++row)
                weights[row] = ::add(weights[row], masked(weight_of(loaded.taps[row], loaded.covered[row]),
                                                          loaded.covered[row]));
    }

    // The loads of two blocks are in flight if there are two, and registers for them: bytes take more.
    __device__ void add_blocks(const unsigned (&covering)[rows], const Listed& list,
                               const Pixels<rows>& pixels, const Column& column, const Weights& window,
                               const BinParameters& p)
    {
        constexpr bool two = Pixels<rows>::known && planes == 1 && !windowed && sizeof(Scalar) > 1;
        Pending<rows> left(covering);
        do {
            const LoadedTaps<rows> loaded(left, list, pixels, column, window, p);
            if (two && left.any()) {
                const LoadedTaps<rows> next(left, list, pixels, column, window, p);
                add(loaded);
                add(next);
            } else {
                add(loaded);
            }
        } while (left.any());
    }

    __device__ void write(const Pixels<rows>& pixels, const Column& column, const BinParameters& p) const
    {
        unrolled_for (int plane = 0; plane < planes; ++plane)
            unrolled_for (int row = 0; row < rows; ++row) {
                Result* pixel = column.image[plane] + pixels.offset(row, p.pixel_stride, p);
                if constexpr (Pixels<rows>::known)
                    opaque(pixel); // or each row would load the stride anew
                if (touched[row])
                    store(pixel, narrow(elements[plane][row]));
            }
        if constexpr (weighs_out)
            unrolled_for (int row = 0; row < rows; ++row)
                if (touched[row] && column.weighing)
                    column.weight[pixels.offset(row, p.weight_stride, p)] = weights[row];
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    add_blocks_binned(const Scalar* __restrict__ blocks, Result* __restrict__ image,
                      const long long* __restrict__ positions, const Weights window,
                      WEIGHT_OUT_ARGUMENT const Offset* __restrict__ scratch, const BinParameters p)
{
    __shared__ Listed lists[warps];
    Listed& list = lists[threadIdx.x / 32];
    const int lane = threadIdx.x % 32, place = slots - 1 - lane;
    Offset rest = Offset(blockIdx.x) * warps + Offset(threadIdx.x / 32);
    if (rest >= p.items)
        return;
    Tile tile;
    Offset number = 0, step = 1, pixel = 0, weight_pixel = 0, tap = 0;
    bool weighing = true;
    unrolled_for (int axis = last; axis >= 0; --axis) {
        const Offset at = p.by_extent[axis].split(rest);
        if (axis >= fixed) {
            number += at * step;
            step *= p.by_extent[axis].divisor;
        } else {
            tap += at * p.tap_stride[axis];
            weighing = weighing && at == 0;
        }
        const Offset side = axis < fixed ? 1 : p.by_side[axis].divisor;
        tile.begin[axis] = at * side;
        tile.end[axis] = min(p.size[axis] - tile.begin[axis], side);
        const Offset own = tile.begin[axis] + (axis == last ? lane : 0);
        pixel += own * p.pixel_stride[axis];
        weight_pixel += own * p.weight_stride[axis];
    }
    const Bin bin = load_if(reinterpret_cast<const Bin*>(scratch) + number, true);
    const Slot* const of_tile = reinterpret_cast<const Slot*>(scratch + slots_at(number, p));
    const Slot slot = load_if(of_tile + place, place < bin.count, ~Slot(0)); // nobody wrote the others
    if (__all_sync(~0u, slot == ~Slot(0)))
        return;
    if (!alone && rest) {
        const Offset channel = p.by_channels.split(rest) * planes, batch = p.by_batch.split(rest);
        image += batch * p.image_batch + channel * p.image_channel;
        blocks += batch * p.blocks_batch + channel * p.blocks_channel;
        weighing = weighing && batch == 0 && channel == 0;
    }
    Column column{{}, weight_out + weight_pixel, tap + lane * p.tap_stride[last], weighing};
    unrolled_for (int plane = 0; plane < planes; ++plane) {
        column.image[plane] = image + plane * p.image_channel + pixel;
        opaque(column.image[plane]);
    }

    const bool overflowing = __any_sync(~0u, bin.count > slots);
    if (!overflowing) {
        Slot rest = in_order(slot);
        Offset position[positioned];
        unrolled_for (int axis = last; axis >= fixed; --axis) {
            position[axis - fixed] = Offset(rest) & (p.by_reach[axis].divisor - 1);
            position[axis - fixed] -= p.block[axis] - 1;
            rest >>= p.by_reach[axis].shift;
        }
        const ListPart own(list, Offset(rest), position, blocks, tile, p);
        unsigned left = own.rows;
        if constexpr (tile_rows > thread_rows)
            unrolled_for (int step = 16; step > 0; step /= 2)
                left |= __shfl_xor_sync(~0u, left, step);
        do {
            const Pixels<thread_rows> pixels(left);
            unsigned covering[thread_rows];
            pixels.cover(covering, own);
            Sums<thread_rows> sums;
            sums.start(covering, pixels, column, p);
            sums.add_blocks(covering, list, pixels, column, window, p);
            sums.write(pixels, column, p);
        } while (tile_rows > thread_rows && __any_sync(~0u, left));
    } else {
        constexpr int few = tile_rows == thread_rows && !one_axis ? thread_rows : 1;
        const Offset* const numbers = scratch + lists_at(true, p) + (bin.end - bin.count);
        unsigned left = run_of_bits(0, tile_rows);
        do {
            const Pixels<few> pixels(left);
            Sums<few> sums;
            for (Offset first = 0; __any_sync(~0u, first < bin.count); first += slots) {
                const Offset listed = load_if(numbers + first + place, place < bin.count - first, p.count);
                Offset position[positioned];
                unrolled_for (int axis = fixed; axis < rank; ++axis)
                    position[axis - fixed] =
                        Offset(load_if(positions + to_int64(listed) * positioned + (axis - fixed),
                                       listed < p.count)) -
                        tile.begin[axis];
                const ListPart own(list, listed, position, blocks, tile, p);
                unsigned covering[few];
                pixels.cover(covering, own);
                sums.start(covering, pixels, column, p);
                sums.add_blocks(covering, list, pixels, column, window, p);
            }
            sums.write(pixels, column, p);
        } while (__any_sync(~0u, left));
    }
}
