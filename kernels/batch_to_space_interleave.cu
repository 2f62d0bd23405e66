// batch_to_space with a small power of two innermost: one thread interleaves a few blocks of a few planes in
// registers and stores them as one word.
//
//   batch  (*block, batch, *grid)  read, any strides
//   space  (batch, *size)          each element written once, contiguous along the last axis
//
// A word is blocks_per_word blocks of the last axis, 16 bytes at most; rows of the image are whole words.
// With WIDE_LOADS a thread loads the blocks of a phase as one word too, which needs their alignment and a
// crop of whole blocks. Wins for narrow elements, where an instruction per element is too many.
#include "batch_to_space.cuh"
#include "interleave.cuh"

#ifndef BLOCK_WIDTH
#define BLOCK_WIDTH 2
#endif
#ifndef BLOCKS_PER_WORD
#define BLOCKS_PER_WORD 2
#endif
#ifndef WIDE_LOADS
#define WIDE_LOADS 0
#endif
constexpr int block_width = BLOCK_WIDTH;
constexpr int blocks_per_word = BLOCKS_PER_WORD;
constexpr bool wide_loads = WIDE_LOADS;
constexpr int word_pixels = block_width * blocks_per_word;
constexpr int planes_at_once = word_pixels * sizeof(Scalar) == 16 ? 4 : 8;
// Of threads, as registers allow.
constexpr bool takes_few_registers = wide_loads && elements_share_registers && block_width == 2;
constexpr int resident_blocks = sizeof(Offset) > 4 ? 3 : takes_few_registers ? 6 : 4;

// The elements that a phase has in `blocks_per_word` neighbouring blocks.
inline __device__ void load_phase(const Scalar* address, Offset step, Scalar* elements)
{
    if constexpr (wide_loads) {
        const auto word = load_word_if<blocks_per_word * sizeof(Scalar)>(address, true);
        memcpy(elements, &word, sizeof(word));
    } else {
#pragma unroll
        for (int block = 0; block < blocks_per_word; ++block)
            elements[block] = load_if(address + block * step, true);
    }
}

template <int planes>
inline __device__ void move(const Scalar* batch, Scalar* space, const Parameters& parameters, Offset turn)
{
    Scalar pixels[planes][word_pixels]; // phase by phase, until they are interleaved
#pragma unroll
    for (int pixel = 0; pixel < block_width; ++pixel) {
        const Offset phase = pixel + turn;
        const Offset next = phase >= block_width;
        const Scalar* source = batch + (next * parameters.grid_step[last_axis] +
                                        (phase - next * block_width) * parameters.phase_step[last_axis]);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            load_phase(source, parameters.grid_step[last_axis], pixels[plane] + pixel * blocks_per_word);
            source += parameters.batch_plane_step;
        }
    }
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
        interleave<block_width>(pixels[plane]);
        store_wide(space, pixels[plane]);
        space += parameters.space_plane_step;
    }
}

// Moves all planes, `at_once` of them in flight together; the rest by halves.
template <int at_once>
inline __device__ void move_all(const Scalar* batch, Scalar* space, Offset planes,
                                const Parameters& parameters, Offset turn)
{
#pragma unroll 1
    for (; planes >= at_once; planes -= at_once) {
        move<at_once>(batch, space, parameters, turn);
        batch += at_once * parameters.batch_plane_step;
        space += at_once * parameters.space_plane_step;
    }
    if constexpr (at_once > 1)
        move_all<at_once / 2>(batch, space, planes, parameters, turn);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_blocks)
    batch_to_space_interleave(const Scalar* __restrict__ batch, Scalar* __restrict__ space,
                              const Parameters parameters)
{
    const Place place = this_place(batch, space, parameters);
    if (!place.exists)
        return;
    // A word's first pixel is phase `turn` of its first block; later phases come from the next block.
    Offset first_block = parameters.crop[last_axis];
    const Offset turn = parameters.block[last_axis].split(first_block);
    first_block += place.last * blocks_per_word;
    batch = place.batch + first_block * parameters.grid_step[last_axis];
    space = place.space + place.last * word_pixels;
    move_all<planes_at_once>(batch, space, place.planes, parameters, turn);
}
