// im2col and space_to_batch where neighbouring blocks are close: one thread takes one block out of a few
// planes, and stores what it loads.
//
//   image    (batch, planes, *size)                read, any strides
//   columns  (batch, planes, *kernel, *blocks)  each element written once
//   window   weights of the taps, or null           read
//
// Neighbouring threads have neighbouring blocks: stores are contiguous whatever the rows' length,
// loads are strided by the stride and find the rest of their sectors in the L1 cache. Wins until the stride
// spreads a warp's load over more lines than the L1 cache serves at the memory's speed.
// Where rows of taps are aligned words of pixels, a thread loads TAPS_AT_ONCE of them at once. The blocks of
// space_to_batch, whose stride is their size, are small or not split along the last axis: an element is then
// as wide a word as its rows allow.
#include "unfold.cuh"

// Thread blocks per multiprocessor in the launch bounds: with more the compiler spills, and without a bound
// it waits for some loads before it issues others. Weights and wide offsets take registers.
constexpr bool takes_more_registers = windowed || sizeof(Offset) > 4;
constexpr int resident = takes_more_registers ? 2 : 3;
constexpr int planes_at_once = sizeof(Scalar) <= 4 && taps_at_once == 1 ? 4 : 2;

template <int planes>
inline __device__ void unfold_planes(const Block& block, const Scalar* image, Scalar* columns,
                                     const Weights& window, const Parameters& p)
{
    const Scalar* images[planes];
    Scalar* columns_of[planes];
    unrolled_for (int plane = 0; plane < planes; ++plane) {
        images[plane] = image + plane * p.image_plane_step;
        columns_of[plane] = columns + plane * p.columns_plane_step;
        keep(images[plane]);
        keep(columns_of[plane]);
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

extern "C" __global__ void __launch_bounds__(THREADS, resident)
    im2col_per_block(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                     const Parameters p)
{
    unfold<planes_at_once>(image, columns, window, p);
}
