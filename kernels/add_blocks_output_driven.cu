// add_blocks driven by its output: a thread block owns a tile of pixels and finds the blocks that intersect
// it.
//
//   blocks     (count, batch, channels, *block), any strides     read, each element once
//   image      (batch, channels, *size), any strides             read where a block intersects a warp's pixels,
//                                                                and written once where a block covers it
//   positions  (count, axes)                                     read by every tile
//   window     weights of a block's elements, or null            read, once per pixel for its planes
//   weight_out sums of weights (*size), if requested             read and written as the image
//
// The threads test CANDIDATES blocks each at a time, 256 to 1,024 together, and list those that intersect the
// tile, in order. Then each warp goes through the list. A lane has a few rows of one column in some planes,
// and loads its elements of several blocks before it adds the first: the loads are in flight together, and
// the additions are in the order of the blocks, without atomics. The kernel is one function: list and sums
// take turns at the same barriers, and share what a thread knows of its pixels.
//
// Tiles are small, so that many are in progress and none with many blocks takes long. Every tile tests
// every block: little work beside the sums if a block has many more elements than the image has tiles.
#define L2_FETCH ".L2::128B"
#include "bits.cuh"
#include "positions.cuh"

constexpr int warps = THREADS / 32;
constexpr int planes = PLANES;             // of a thread, which divide the channels
constexpr int thread_rows = ROWS;          // that follow each other; along one axis, 32 apart
constexpr int at_once = AT_ONCE;           // blocks whose elements are in flight
constexpr int candidates = CANDIDATES;     // blocks that a thread tests at a time, which follow each other
constexpr int most = candidates * THREADS; // blocks of a list
constexpr bool one_axis = rank == 1;
constexpr int along = one_axis ? last : last - 1; // the axis that a thread's pixels differ on
constexpr int row_step = one_axis ? 32 : 1;
constexpr int warps_along_rows = one_axis || warps % 2 ? 1 : 2; // beside each other

// Pixels of a warp, or of all warps of a tile, along an axis.
template <bool tile> __device__ constexpr int extent(int axis)
{
    if (one_axis)
        return 32 * thread_rows * (tile ? warps : 1);
    if (axis == last)
        return 32 * (tile ? warps_along_rows : 1);
    return axis == along ? thread_rows * (tile ? warps / warps_along_rows : 1) : 1;
}

// A bit for each of some rows, `step` apart from `first` on, that is in [0, extent). The extent is not
// negative.
template <int rows, int step> inline __device__ unsigned rows_within(Offset first, Offset extent)
{
    unsigned bits = 0;
    if constexpr (step > 1) {
        unrolled_for (int row = 0; row < rows; ++row)
            bits |= within(first + row * step, extent) ? 1u << row : 0;
    } else {
        const Offset end = min(extent - first, Offset(rows));
        bits = run_of_bits(max(-first, Offset(0)), max(end, Offset(0)));
    }
    return bits;
}

// Whether a word has a bit: one instruction, where the compiler would shift the bit down to guard a load.
inline __device__ bool has_bit(unsigned word, int number)
{
    unsigned bit = 1u << number;
    opaque(bit);
    return word & bit;
}

// A block that intersects the tile.
struct Listed {
    const Scalar* origin;        // where an element for the tile's first pixel would be
    Offset position[positioned]; // from that pixel
};

// A thread's pixels.
struct Pixels {
    Offset at
        [rank]; // of the first, from the tile's first one on; along axes without a position, from the image's
    Offset tap; // of a block's origin, where its element for the first pixel would be
    unsigned exist; // bits of rows
};

// A thread's elements of a block, with their weights.
struct LoadedTaps {
    unsigned covered; // bits of rows
    Scalar elements[planes][thread_rows];
    TapWeight weights[thread_rows];

    __device__ void load(const Listed& block, const Pixels& own, const Weights& window, const Parameters& p)
    {
        Offset tap[rank]; // of the first pixel, on the block or not
        bool hits = true;
        unrolled_for (int axis = 0; axis < rank; ++axis) {
            tap[axis] = own.at[axis] - (axis < fixed ? 0 : block.position[max(axis - fixed, 0)]);
            hits = hits && (axis == along || within(tap[axis], p.block[axis]));
        }
        covered = hits ? rows_within<thread_rows, row_step>(tap[along], p.block[along]) & own.exist : 0;
        const Scalar* source = block.origin + own.tap;
        const Offset step = row_step * p.tap_stride[along];
        unrolled_for (int row = 0; row < thread_rows; ++row) {
            weights[row] = TapWeight(tap, has_bit(covered, row), window, p);
            tap[along] += row_step;
        }
        unrolled_for (int plane = 0; plane < planes; ++plane, source += p.blocks_channel) {
            opaque(source);
            unrolled_for (int row = 0; row < thread_rows; ++row)
                elements[plane][row] = load_if(source + (long long)(row)*step, has_bit(covered, row),
                                               additive_identity(Scalar{}));
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    add_blocks_output_driven(const Scalar* __restrict__ blocks, Result* __restrict__ image,
                             const long long* __restrict__ positions, const Weights window,
                             WEIGHT_OUT_ARGUMENT const Parameters p)
{
    __shared__ Listed list[most + 1];
    __shared__ int counts[warps];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Offset rest = blockIdx.x, begin[rank], first[rank]; // pixels of the tile and of the warp
    Pixels own{{}, 0, 0};
    unrolled_for (int axis = last; axis >= 0; --axis) {
        begin[axis] = p.by_extent[axis].split(rest) * extent<true>(axis);
        const int place = one_axis        ? warp
                          : axis == last  ? warp % warps_along_rows
                          : axis == along ? warp / warps_along_rows
                                          : 0;
        first[axis] = place * extent<false>(axis);
    }
    const Offset channel = p.by_channels.split(rest) * planes, batch = rest;
    image += to_int64(batch) * p.image_batch + to_int64(channel) * p.image_channel;
    blocks += to_int64(batch) * p.blocks_batch + to_int64(channel) * p.blocks_channel;
    bool inside = true, weighing = batch == 0 && channel == 0;
    Offset pixel = 0, weight_pixel = 0;
    unrolled_for (int axis = 0; axis < rank; ++axis) {
        const Offset from_tile = first[axis] + (axis == last ? lane : 0), at = begin[axis] + from_tile;
        own.at[axis] = axis < fixed ? at : from_tile;
        own.tap += own.at[axis] * p.tap_stride[axis];
        inside = inside && (axis == along || at < p.size[axis]);
        weighing = weighing && (axis >= fixed || axis == along || at == 0);
        pixel += at * p.pixel_stride[axis];
        weight_pixel += at * p.weight_stride[axis];
    }
    Result* column = image + pixel; // of the first plane
    const Offset image_step = row_step * p.pixel_stride[along];
    const Offset at_along = begin[along] + first[along] + (one_axis ? lane : 0);
    own.exist = inside ? rows_within<thread_rows, row_step>(0, max(p.size[along] - at_along, Offset(0))) : 0;
    const unsigned weighed = !weighing ? 0 : along >= fixed ? ~0u : at_along == 0; // bits of rows
    Accumulator sums[planes][thread_rows];
    Weight weight_sums[thread_rows];
    unsigned touched = 0; // bits of rows
    bool started = false;

    for (Offset tested = 0; tested < p.count; tested += most) {
        // Each thread tests some blocks. Warps count theirs, and then know where these are in the list.
        const Offset number = tested + threadIdx.x * candidates;
        long long position[candidates][positioned];
        unrolled_for (int of = 0; of < candidates; ++of)
            unrolled_for (int axis = 0; axis < positioned; ++axis)
                position[of][axis] =
                    load_if(positions + to_int64(number + of) * positioned + axis, number + of < p.count);
        bool hits[candidates];
        int place = 0, of_warp = 0, found = 0;
        unrolled_for (int of = 0; of < candidates; ++of) {
            hits[of] = number + of < p.count;
            unrolled_for (int axis = fixed; axis < rank; ++axis)
                hits[of] = hits[of] && intersects(position[of][axis - fixed], p.block[axis], begin[axis],
                                                  min(begin[axis] + extent<true>(axis), p.size[axis]));
            const unsigned votes = __ballot_sync(~0u, hits[of]);
            place += __popc(votes & ((1u << lane) - 1));
            of_warp += __popc(votes);
        }
        if (lane == 0)
            counts[warp] = of_warp;
        __syncthreads();
        unrolled_for (int other = 0; other < warps; ++other) {
            place += other < warp ? counts[other] : 0;
            found += counts[other];
        }
        unrolled_for (int of = 0; of < candidates; ++of)
            if (hits[of]) {
                Listed& block = list[place++];
                block.origin = blocks + to_int64(number + of) * p.block_step;
                unrolled_for (int axis = fixed; axis < rank; ++axis) {
                    const Offset from_tile = Offset(position[of][axis - fixed] - begin[axis]);
                    block.position[axis - fixed] = from_tile;
                    block.origin -= from_tile * p.tap_stride[axis];
                }
            }
        if (threadIdx.x == 0) { // one that covers nothing comes after the last
            list[found].origin = blocks;
            unrolled_for (int axis = fixed; axis < rank; ++axis)
                list[found].position[axis - fixed] = extent<true>(axis);
        }
        __syncthreads();

        for (int of_lanes = 0; of_lanes < found; of_lanes += 32) {
            // A lane tests a block of the list; those that intersect the warp's pixels are added by all lanes.
            bool hits = of_lanes + lane < found;
            unrolled_for (int axis = max(fixed, last - 1); axis < rank; ++axis)
                hits = hits && within(first[axis] + extent<false>(axis) - 1 -
                                          list[hits ? of_lanes + lane : 0].position[axis - fixed],
                                      p.block[axis] + extent<false>(axis) - 1);
            unsigned votes = __ballot_sync(~0u, hits);
            if (votes && !started) {
                started = true;
                unrolled_for (int plane = 0; plane < planes; ++plane) {
                    const Result* of_plane = column + plane * p.image_channel;
                    opaque(of_plane);
                    unrolled_for (int row = 0; row < thread_rows; ++row)
                        sums[plane][row] = widen(
                            load_own_if(of_plane + (long long)(row)*image_step, has_bit(own.exist, row)));
                }
                if constexpr (weighs_out)
                    unrolled_for (int row = 0; row < thread_rows; ++row)
                        weight_sums[row] =
                            load_own_if(weight_out + (weight_pixel + row * row_step * p.weight_stride[along]),
                                        has_bit(own.exist & weighed, row));
            }
            while (votes) {
                LoadedTaps loaded[at_once];
                unrolled_for (int of = 0; of < at_once; ++of) {
                    loaded[of].load(list[votes ? of_lanes + __ffs(votes) - 1 : found], own, window, p);
                    votes &= votes - 1;
                }
                unrolled_for (int of = 0; of < at_once; ++of) {
                    touched |= loaded[of].covered;
                    unrolled_for (int row = 0; row < thread_rows; ++row) {
                        const bool exists = has_bit(loaded[of].covered, row);
                        unrolled_for (int plane = 0; plane < planes; ++plane)
                            sums[plane][row] =
                                add(sums[plane][row], term_of(loaded[of].elements[plane][row],
                                                              loaded[of].weights[row], exists));
                        if constexpr (weighs_out)
                            weight_sums[row] = add(
                                weight_sums[row], masked(weight_of(loaded[of].weights[row], exists), exists));
                    }
                }
            }
        }
    }
    unrolled_for (int plane = 0; plane < planes; ++plane, column += p.image_channel) {
        opaque(column);
        unrolled_for (int row = 0; row < thread_rows; ++row)
            if (has_bit(touched, row))
                store(column + (long long)(row)*image_step, narrow(sums[plane][row]));
    }
    if constexpr (weighs_out)
        unrolled_for (int row = 0; row < thread_rows; ++row)
            if (has_bit(touched & weighed, row))
                weight_out[weight_pixel + row * row_step * p.weight_stride[along]] = weight_sums[row];
}
