// im2col and space_to_batch where neighbouring blocks are close: one thread takes one block out of a few
// planes, and stores what it loads.
//
//   image    (batch, planes, *size)             read, any strides
//   columns  (batch, planes, *kernel, *blocks)  each element written once, any strides, but taps evenly apart
//   window   weights of the taps, or null       read
//
// Neighbouring threads have neighbouring blocks: stores are contiguous whatever the rows' length,
// loads are strided by the stride and find the rest of their sectors in the L1 cache. Wins until the stride
// spreads a warp's load over more lines than the L1 cache serves at the memory's speed.
//
// A thread serves its block in up to planes_per_thread planes, so that they share the index arithmetic, and
// chunks_per_thread chunks of taps: CHUNK_TAPS taps along the last axis, the unit that is unrolled. The last
// axis has KERNEL_WIDTH taps; the last chunk of its row may be short. TAPS_AT_ONCE taps are loaded as one word,
// aligned in the array, which pads and ends do not cut. It is the only kernel of space_to_batch, whose blocks
// touch; if the last axis is not split, an element is as wide a word as its rows allow.
#include "sliding.cuh"

constexpr Offset kernel_width = KERNEL_WIDTH;
constexpr int chunk_taps = CHUNK_TAPS;
constexpr int taps_at_once = TAPS_AT_ONCE; // that a thread loads as one aligned word of pixels
static_assert(kernel_width % taps_at_once == 0 && chunk_taps % taps_at_once == 0, "words of taps are whole");
constexpr Offset chunks_per_row = (kernel_width + chunk_taps - 1) / chunk_taps;
constexpr bool last_chunk_is_short = kernel_width % chunk_taps != 0;

// Thread blocks per multiprocessor in the launch bounds: with more the compiler spills, and without a bound
// it waits for some loads before it issues others. Weights and wide offsets take registers.
constexpr bool takes_more_registers = windowed || sizeof(Offset) > 4;
constexpr int resident = takes_more_registers ? 2 : 3;
constexpr int planes_at_once = sizeof(Scalar) <= 4 && taps_at_once == 1 ? 4 : 2;

struct Parameters : Sliding {
    Offset block_step[spatial_rank];
    Offset tap_step;
    Divisor blocks[spatial_rank];
    Divisor kernel[spatial_rank];
    Divisor plane_groups;
    Offset planes;
    Offset planes_per_thread;
    Offset chunks; // of all taps of a block
    Offset chunks_per_thread;
    Offset threads; // along x, one per block and group of planes
    long long image_batch_step, image_plane_step;
    long long columns_batch_step, columns_plane_step;
};

// Where a thread works; tap 0 of its block may lie outside the image.
struct Block {
    bool exists;
    Offset pixel[spatial_rank]; // of tap 0
    const Scalar* image;        // tap 0 in the first plane
    Scalar* columns;            // tap 0 in the first plane
    Offset planes;              // from the first plane on
    Offset first_chunk, end_chunk;
};

inline __device__ Block this_block(const Scalar* image, Scalar* columns, const Parameters& p)
{
    Block block;
    Offset number = grid_index();
    block.exists = number < p.threads;
    Offset image_offset = 0, columns_offset = 0;
    unrolled_for (int axis = last_axis; axis >= 0; --axis) {
        const Offset along = p.blocks[axis].split(number);
        block.pixel[axis] = along * p.stride[axis] - p.pad[axis];
        image_offset += block.pixel[axis] * p.pixel_step[axis];
        columns_offset += along * p.block_step[axis];
    }
    const Offset plane = p.plane_groups.split(number) * p.planes_per_thread;
    block.planes = min(p.planes - plane, p.planes_per_thread);
    block.image = image + (number * p.image_batch_step + plane * p.image_plane_step + image_offset);
    block.columns = columns + (number * p.columns_batch_step + plane * p.columns_plane_step + columns_offset);
    block.first_chunk = Offset(blockIdx.y) * p.chunks_per_thread;
    block.end_chunk = min(block.first_chunk + p.chunks_per_thread, p.chunks);
    return block;
}

// A chunk of taps of one block: the taps of all axes but the last are the same for all of it.
struct Chunk {
    bool inside;         // the axes but the last
    Offset image_offset; // from tap 0 to the same tap of the last axis here
    Offset first_tap;    // of the last axis
    Offset columns_tap;  // the chunk's first tap, counted through all axes
    Weight weight;       // separable: of the axes but the last
    Offset row_weights;  // else: where in the window the weights of its row of taps are
};

inline __device__ Chunk chunk_of(const Block& block, Offset number, const Weights& window,
                                 const Parameters& p)
{
    Chunk chunk;
    Offset row = number / chunks_per_row;
    chunk.first_tap = (number - row * chunks_per_row) * chunk_taps;
    chunk.columns_tap = row * kernel_width + chunk.first_tap;
    chunk.inside = block.exists;
    chunk.image_offset = 0;
    chunk.row_weights = separable ? 0 : row * kernel_width;
    Offset taps[spatial_rank];
    unrolled_for (int axis = last_axis - 1; axis >= 0; --axis) {
        taps[axis] = axis ? p.kernel[axis].split(row) : row;
        const Offset shift = taps[axis] * p.dilation[axis];
        chunk.inside &= within(block.pixel[axis] + shift, p.size[axis]);
        chunk.image_offset += shift * p.pixel_step[axis];
    }
    if constexpr (separable)
        unrolled_for (int axis = unweighted; axis < last_axis; ++axis) {
            const Weight weight = load_if(window.of_axis[axis - unweighted] + taps[axis], true);
            chunk.weight = axis > unweighted ? multiply(chunk.weight, weight) : weight;
        }
    return chunk;
}

inline __device__ bool in_row(Offset tap)
{
    return !last_chunk_is_short || tap < kernel_width;
}

// The weight of a tap of the last axis, zero in the padding.
inline __device__ Weight weight_of(const Chunk& chunk, Offset tap, bool inside, const Weights& window)
{
    if constexpr (!windowed)
        return 0;
    const Weight weight = load_if(window.last() + (chunk.row_weights + tap), inside);
    return separable && Weights::count > 1 ? multiply(inside ? chunk.weight : Weight(0), weight) : weight;
}

template <int planes>
inline __device__ void unfold_planes(const Block& block, const Scalar* image, Scalar* columns,
                                     const Weights& window, const Parameters& p)
{
    const Scalar* images[planes];
    Scalar* columns_of[planes];
    unrolled_for (int plane = 0; plane < planes; ++plane) {
        images[plane] = image + plane * p.image_plane_step;
        columns_of[plane] = columns + plane * p.columns_plane_step;
        opaque(images[plane]);
        opaque(columns_of[plane]);
    }
    for (Offset number = block.first_chunk; number < block.end_chunk; ++number) {
        const Chunk chunk = chunk_of(block, number, window, p);
        Scalar values[chunk_taps][planes];
        Weight weights[chunk_taps];
        unrolled_for (int tap = 0; tap < chunk_taps; tap += taps_at_once) {
            const Offset shift = (chunk.first_tap + tap) * p.dilation[last_axis];
            const bool inside = chunk.inside & in_row(chunk.first_tap + tap) &
                                within(block.pixel[last_axis] + shift, p.size[last_axis]);
            const Offset offset = chunk.image_offset + shift * p.pixel_step[last_axis];
            unrolled_for (int i = 0; i < taps_at_once; ++i)
                weights[tap + i] = weight_of(chunk, chunk.first_tap + tap + i, inside, window);
            unrolled_for (int plane = 0; plane < planes; ++plane) {
                Scalar pixels[taps_at_once];
                load_wide_if(pixels, images[plane] + offset, inside);
                unrolled_for (int i = 0; i < taps_at_once; ++i)
                    values[tap + i][plane] = pixels[i];
            }
        }
        unrolled_for (int tap = 0; tap < chunk_taps; ++tap) {
            const Offset offset = (chunk.columns_tap + tap) * p.tap_step;
            unrolled_for (int plane = 0; plane < planes; ++plane)
                if (in_row(chunk.first_tap + tap))
                    store(columns_of[plane] + offset, weigh_element(values[tap][plane], weights[tap]));
        }
    }
}

// Serves all planes, `at_once` of them in flight together, and the rest one by one.
template <int at_once>
inline __device__ void unfold(const Block& block, const Scalar* image, Scalar* columns, Offset planes,
                              const Weights& window, const Parameters& p)
{
#pragma unroll 1
    for (; planes >= at_once; planes -= at_once) {
        unfold_planes<at_once>(block, image, columns, window, p);
        image += at_once * p.image_plane_step;
        columns += at_once * p.columns_plane_step;
    }
    if constexpr (at_once > 1)
        unfold<1>(block, image, columns, planes, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident)
    im2col_per_block(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                     const Parameters p)
{
    const Block block = this_block(image, columns, p);
    if (block.exists)
        unfold<planes_at_once>(block, block.image, block.columns, block.planes, window, p);
}
