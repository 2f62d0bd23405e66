// space_to_batch of contiguous rows: one thread loads a few blocks of a row of space, of a few images, and
// deinterleaves them in registers.
//
//   space  (batch, *size)          read, contiguous along the last axis
//   batch  (*block, batch, *grid)  each element written once, zero where it comes from the padding
//   window                         weights of nothing, always null, not read
//
// A word is blocks_per_word blocks of the last axis, which are loaded LOADED elements at once; rows of
// space are whole words, so that one lies in the padding as a whole or not at all. The elements of a phase
// are stored as one word of 16 bytes at most. If the padding in front is not whole blocks, a word has as
// many pixels as one block, and the first of them belong to the block before. Wins for narrow elements, for
// which an instruction per element is too many, and if neighbouring threads would load pixels a block's
// width apart.
#include "packing.cuh"
#include "unfold.cuh"

constexpr int block_width = int(kernel_width);
constexpr int blocks_per_word = BLOCKS_PER_WORD;
constexpr int pixels_before = PIXELS_BEFORE; // of a word, which end the block before
constexpr int word_pixels = block_width * blocks_per_word;
constexpr int word_bytes = word_pixels * element_bytes;
constexpr int planes_at_once = word_bytes > 64 ? 1 : word_bytes > 32 ? 2 : word_bytes > 8 ? 4 : 8;
constexpr int loaded = LOADED;
constexpr int resident_blocks = sizeof(Offset) > 4 ? 3 : 4; // of threads, as registers allow
static_assert(!pixels_before || blocks_per_word == 1, "what ends a block is stored by itself");

// The blocks of a word, and where in them each byte of its phases is.
struct Phases {
    static constexpr int lines = 1, words = word_bytes / 4;
    struct Line {
        unsigned word[words > 0 ? words : 1];
    };
    static __device__ constexpr Source source_of(int byte)
    {
        const int element = byte / element_bytes, phase = element / blocks_per_word;
        const int pixel = element % blocks_per_word * block_width + phase;
        const int in_word = pixel * element_bytes + byte % element_bytes;
        return {0, in_word / 4, in_word % 4};
    }
};

// The elements of a word as they are deinterleaved: narrow ones are permuted in words of 4 bytes if as many
// are stored together.
constexpr bool by_words = sizeof(Scalar) <= 2 && blocks_per_word * element_bytes % 4 == 0;
using Unit = Either<by_words, unsigned, Scalar>;
struct Elements {
    Unit unit[word_bytes / sizeof(Unit)];
};

inline __device__ void take_apart(Elements& elements)
{
    const Elements blocks = elements;
    if constexpr (by_words) {
        const Phases::Line line[1] = {bit_cast<Phases::Line>(blocks)};
        unrolled_for (int i = 0; i < Phases::words; ++i)
            elements.unit[i] = word_of_piece<Phases>(line, i);
    } else {
        unrolled_for (int i = 0; i < word_pixels; ++i)
            elements.unit[i] = blocks.unit[i % blocks_per_word * block_width + i / blocks_per_word];
    }
}

template <int planes>
inline __device__ void unfold_planes(const Block& block, const Scalar* space, Scalar* batch,
                                     const Weights& window, const Parameters& p)
{
    const bool in_row = within(block.pixel[last_axis], p.size[last_axis]);
    const Offset word = block.pixel[last_axis] + p.pad[last_axis]; // its first pixel
    const bool ends_block = word > 0;
    const bool begins_block = word < (p.blocks[last_axis].divisor - 1) * word_pixels;
#pragma unroll 1
    for (Offset number = block.first_chunk; number < block.end_chunk; ++number) {
        const Chunk chunk = chunk_of(block, number, window, p);
        Elements elements[planes];
        const Scalar* source = space + chunk.image_offset;
        unrolled_for (int plane = 0; plane < planes; ++plane) {
            unrolled_for (int i = 0; i < word_pixels; i += loaded) {
                const auto word = load_word_if<loaded * element_bytes>(source + i, chunk.inside & in_row);
                memcpy(elements[plane].unit + i * element_bytes / int(sizeof(Unit)), &word, sizeof(word));
            }
            source += p.image_plane_step;
            take_apart(elements[plane]);
        }
        unrolled_for (int pixel = 0; pixel < block_width; ++pixel) {
            const bool before = pixel < pixels_before;
            const int phase = (pixel - pixels_before + block_width) % block_width;
            const Offset offset = (chunk.columns_tap + phase) * p.tap_step - before * p.block_step[last_axis];
            Scalar* target = batch + offset;
            unrolled_for (int plane = 0; plane < planes; ++plane) {
                constexpr int bytes = blocks_per_word * element_bytes;
                Word<bytes> of_phase;
                memcpy(&of_phase, elements[plane].unit + pixel * bytes / int(sizeof(Unit)), bytes);
                if (!pixels_before || (before ? ends_block : begins_block))
                    store_word<bytes>(target, of_phase);
                target += p.columns_plane_step;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_blocks)
    space_to_batch_deinterleave(const Scalar* __restrict__ space, Scalar* __restrict__ batch,
                                const Weights window, const Parameters p)
{
    unfold<planes_at_once, true>(space, batch, window, p);
}
