// im2col where neighbouring blocks are neighbouring pixels: one thread takes a word of block positions out of
// a few planes.
//
//   image    (batch, channels, *size)                read, contiguous along the last axis
//   columns  (batch, channels, *kernel, *positions)  each element written once, last axis contiguous
//   window   weights of the taps, always null        not read
//
// A word is WORD elements, 16 bytes at most; rows of both arrays are whole words, so that one lies in the
// padding as a whole or not at all. For each row of taps a thread loads the pixels of all its blocks at once,
// as aligned words and pieces of words, and shifts them into the word of each tap: every pixel is loaded once
// for all the taps of a row that want it, and an instruction serves a word. Wins for stride 1, the more the
// narrower the elements are.
#include "unfold.cuh"

#ifndef WORD
#define WORD 4
#endif
#ifndef TAP_DISTANCE
#define TAP_DISTANCE 1
#endif
#ifndef PIXELS_BEFORE
#define PIXELS_BEFORE 0
#endif
constexpr int word = WORD;
constexpr int tap_distance = TAP_DISTANCE;   // the dilation of the last axis
constexpr int pixels_before = PIXELS_BEFORE; // of the aligned pixel that a thread counts from, before tap 0
static_assert(chunk_taps == kernel_width, "a chunk of taps is a row of them");

// The pixels that a thread loads for a row of taps: from the first piece on that tap 0 wants.
constexpr int piece_bytes = sizeof(Scalar) > 4 ? int(sizeof(Scalar)) : 4;
constexpr int piece_pixels = piece_bytes / int(sizeof(Scalar));
constexpr int word_pieces = word / piece_pixels;
constexpr int first_piece = pixels_before / piece_pixels;
constexpr int pieces =
    (pixels_before + (int(kernel_width) - 1) * tap_distance + word - 1) / piece_pixels - first_piece + 1;
struct Line {
    Word<piece_bytes> piece[pieces];
};

constexpr int registers_of_line = pieces * piece_bytes / 4;
constexpr int planes_at_once = registers_of_line > 12 ? 1 : registers_of_line > 6 ? 2 : 4;
constexpr int resident_words = sizeof(Offset) > 4 ? 2 : 4; // blocks of threads, as registers allow

// The pixels from an aligned one on, as wide as they are aligned and wanted.
inline __device__ Line load_line(const Scalar* image, Offset pixel, bool inside, Offset size)
{
    Line line;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int number = first_piece + i, in_word = number % word_pieces;
        const Offset shift = number * piece_pixels;
        if (i >= in_word && i - in_word + word_pieces <= pieces) { // its word is wanted as a whole
            if (in_word == 0) {
                const auto loaded =
                    load_word_if<word * sizeof(Scalar)>(image + shift, inside & within(pixel + shift, size));
                memcpy(line.piece + i, &loaded, sizeof(loaded));
            }
        } else {
            line.piece[i] = load_word_if<piece_bytes>(image + shift, inside & within(pixel + shift, size));
        }
    }
    return line;
}

// The word of a tap, which begins at any byte of the line.
inline __device__ Word<word * sizeof(Scalar)> word_of_tap(const Line& line, int tap)
{
    constexpr int units = int(sizeof(Line)) / 4, count = word * int(sizeof(Scalar)) / 4;
    const int byte = (pixels_before + tap * tap_distance - first_piece * piece_pixels) * int(sizeof(Scalar));
    unsigned from[units + 1], to[count];
    memcpy(from, &line, sizeof(line));
    from[units] = 0;
#pragma unroll
    for (int i = 0; i < count; ++i)
        to[i] = byte % 4 ? __funnelshift_r(from[byte / 4 + i], from[byte / 4 + i + 1], byte % 4 * 8)
                         : from[byte / 4 + i];
    return bit_cast<Word<word * sizeof(Scalar)>>(to);
}

template <int planes>
inline __device__ void take(const Block& block, const Scalar* image, Scalar* columns, const Weights& window,
                            const Parameters& parameters)
{
#pragma unroll 1
    for (Offset number = block.first_turn; number < block.end_turn; ++number) {
        trace_iteration(int(number));
        const Chunk chunk = chunk_of(block, number, window, parameters);
        const Scalar* source = image + chunk.image_offset;
        Line lines[planes];
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            lines[plane] =
                load_line(source, block.pixel[last_axis], chunk.inside, parameters.size[last_axis]);
            source += parameters.image_plane_step;
        }
        Scalar* target = columns + chunk.columns_tap * parameters.tap_step;
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            Scalar* of_tap = target;
#pragma unroll
            for (int tap = 0; tap < chunk_taps; ++tap) {
                store_word<word * sizeof(Scalar)>(of_tap, word_of_tap(lines[plane], tap));
                of_tap += parameters.tap_step;
            }
            target += parameters.columns_plane_step;
        }
    }
}

// Takes all planes, `at_once` of them in flight together; the rest by halves.
template <int at_once>
inline __device__ void take_all(const Block& block, const Scalar* image, Scalar* columns, Offset planes,
                                const Weights& window, const Parameters& parameters)
{
#pragma unroll 1
    for (; planes >= at_once; planes -= at_once) {
        take<at_once>(block, image, columns, window, parameters);
        image += at_once * parameters.image_plane_step;
        columns += at_once * parameters.columns_plane_step;
    }
    if constexpr (at_once > 1)
        take_all<at_once / 2>(block, image, columns, planes, window, parameters);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_words)
    im2col_words(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                 const Parameters parameters)
{
    const Block block = this_block(image, columns, parameters);
    if (block.exists)
        take_all<planes_at_once>(block, block.image, block.columns, block.planes, window, parameters);
}
