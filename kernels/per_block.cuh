// Shared by the per_block kernels of im2col and space_to_batch, in which a thread stores what it loads.
#pragma once
#include "unfold.cuh"

// Thread blocks per multiprocessor in the launch bounds: with more the compiler spills, and without a bound
// it waits for some loads before it issues others. Weights and wide offsets take registers.
constexpr bool takes_more_registers = windowed || sizeof(Offset) > 4;
constexpr int resident = takes_more_registers ? 2 : 3;
constexpr int planes_at_once = sizeof(Scalar) <= 4 && taps_at_once == 1 ? 4 : 2;

template <int planes>
inline __device__ void unfold_planes(const Block& block, const Scalar* image, Scalar* columns,
                                     const Weights& window, const Parameters& parameters)
{
    const Scalar* images[planes];
    Scalar* columns_of[planes];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
        images[plane] = image + plane * parameters.image_plane_step;
        columns_of[plane] = columns + plane * parameters.columns_plane_step;
        keep(images[plane]);
        keep(columns_of[plane]);
    }
    for (Offset number = block.first_chunk; number < block.end_chunk; ++number) {
        const Chunk chunk = chunk_of(block, number, window, parameters);
        Scalar values[chunk_taps][planes];
        Weight weights[chunk_taps];
#pragma unroll
        for (int tap = 0; tap < chunk_taps; tap += taps_at_once) {
            const Offset shift = (chunk.first_tap + tap) * parameters.dilation[last_axis];
            const bool inside = chunk.inside & in_row(chunk.first_tap + tap) &
                                within(block.pixel[last_axis] + shift, parameters.size[last_axis]);
            const Offset offset = chunk.image_offset + shift * parameters.pixel_step[last_axis];
#pragma unroll
            for (int i = 0; i < taps_at_once; ++i)
                weights[tap + i] = weight_of(chunk, chunk.first_tap + tap + i, inside, window);
#pragma unroll
            for (int plane = 0; plane < planes; ++plane) {
                Scalar pixels[taps_at_once];
                load_wide_if(pixels, images[plane] + offset, inside);
#pragma unroll
                for (int i = 0; i < taps_at_once; ++i)
                    values[tap + i][plane] = pixels[i];
            }
        }
#pragma unroll
        for (int tap = 0; tap < chunk_taps; ++tap) {
            const Offset offset = (chunk.columns_tap + tap) * parameters.tap_step;
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
                if (in_row(chunk.first_tap + tap))
                    store(columns_of[plane] + offset, weigh_element(values[tap][plane], weights[tap]));
        }
    }
}
