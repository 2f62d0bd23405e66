// im2col where neighbouring blocks are neighbouring pixels: one thread takes a word of blocks out of
// a few planes.
//
//   image    (batch, channels, *size)                read, contiguous along the last axis
//   columns  (batch, channels, *kernel, *blocks)  each element written once, last axis contiguous
//   window   weights of the taps, always null        not read
//
// A word is WORD elements, 16 bytes at most, and aligned in the columns. For each row of taps a thread loads
// a line of neighbouring pixels and cuts the word of each tap out of it: the further the tap, the earlier are
// the blocks that want these pixels. So a line is hardly longer than a word, however many taps a row has,
// and an instruction serves a word.
//
// Rows of both arrays are whole words: a line is loaded in words and aligned grains of them, and a word lies in
// the padding, or outside the row of blocks, as a whole or not at all.
//
// Wins for stride 1 and elements of a byte.
#include "unfold.cuh"

constexpr int word = WORD;
constexpr int tap_distance = TAP_DISTANCE;   // the dilation of the last axis
constexpr int pixels_before = PIXELS_BEFORE; // from the aligned one that a thread counts from to its line
static_assert(chunk_taps == kernel_width, "a chunk of taps is a row of them");

// Where in the line the word of a tap begins.
inline __device__ constexpr int place_in_line(int tap)
{
    return tap * tap_distance % word;
}
// The block of the word's first element, counted from the one whose tap 0 is the first pixel of the line.
inline __device__ constexpr int block_in_line(int tap)
{
    return place_in_line(tap) - tap * tap_distance;
}
inline __device__ constexpr int last_place_in_line()
{
    int last = 0;
    for (int tap = 0; tap < kernel_width; ++tap)
        last = place_in_line(tap) > last ? place_in_line(tap) : last;
    return last;
}
constexpr int first_block = block_in_line(kernel_width - 1); // in the line, of all words

// What a line is loaded in: words where they are wanted as a whole, grains else.
constexpr int grain_bytes = sizeof(Scalar) > 4 ? int(sizeof(Scalar)) : 4;
constexpr int grain_pixels = grain_bytes / int(sizeof(Scalar));
constexpr int loaded_grains = word / grain_pixels;
constexpr int first_grain = pixels_before / grain_pixels;
constexpr int grains = (pixels_before + last_place_in_line() + word - 1) / grain_pixels - first_grain + 1;
struct Line {
    Word<grain_bytes> grain[grains];
};

constexpr int registers_of_line = (grains * grain_bytes + 3) / 4;
constexpr int planes_at_once = registers_of_line > 12 ? 1 : registers_of_line > 6 ? 2 : 4;
constexpr int resident_words = sizeof(Offset) > 4 ? 2 : 4; // blocks of threads, as registers allow

// The pixels from the one on that a thread counts from, as wide as they are aligned and wanted.
inline __device__ Line load_line(const Scalar* image, Offset pixel, bool inside, Offset size)
{
    Line line;
#pragma unroll
    for (int i = 0; i < grains; ++i) {
        const int number = first_grain + i, in_word = number % loaded_grains;
        const Offset shift = number * grain_pixels;
        if (i >= in_word && i - in_word + loaded_grains <= grains) { // its word is wanted as a whole
            if (in_word == 0) {
                const auto loaded =
                    load_word_if<word * sizeof(Scalar)>(image + shift, inside & within(pixel + shift, size));
                memcpy(line.grain + i, &loaded, sizeof(loaded));
            }
        } else {
            line.grain[i] = load_word_if<grain_bytes>(image + shift, inside & within(pixel + shift, size));
        }
    }
    return line;
}

// The word of a tap, which begins at any byte of the line.
inline __device__ Word<word * sizeof(Scalar)> word_of_tap(const Line& line, int tap)
{
    constexpr int units = registers_of_line, count = word * int(sizeof(Scalar)) / 4;
    const int pixel = pixels_before + place_in_line(tap) - first_grain * grain_pixels;
    const int byte = pixel * int(sizeof(Scalar));
    unsigned from[units + 1] = {}, to[count];
    memcpy(from, &line, sizeof(line));
#pragma unroll
    for (int i = 0; i < count; ++i)
        to[i] = byte % 4 ? __funnelshift_r(from[byte / 4 + i], from[byte / 4 + i + 1], byte % 4 * 8)
                         : from[byte / 4 + i];
    return bit_cast<Word<word * sizeof(Scalar)>>(to);
}

// Stores a line's word of each tap of a row; `first` is the block whose tap 0 is its first pixel.
inline __device__ void store_line(Scalar* columns, const Line& line, Offset first,
                                  const Parameters& parameters)
{
    const bool all = first_block == 0 || (first + first_block >= 0 && first <= parameters.row_blocks - word);
#pragma unroll
    for (int tap = 0; tap < chunk_taps; ++tap) {
        if (all || within(first + block_in_line(tap), parameters.row_blocks - (word - 1)))
            store_word<word * sizeof(Scalar)>(columns + block_in_line(tap), word_of_tap(line, tap));
        columns += parameters.tap_step;
        keep(columns);
    }
}

template <int planes>
inline __device__ void unfold_planes(const Block& block, const Scalar* image, Scalar* columns,
                                     const Weights& window, const Parameters& parameters)
{
    const Offset pixel = block.pixel[last_axis], first = pixel + parameters.pad[last_axis];
#pragma unroll 1
    for (Offset number = block.first_chunk; number < block.end_chunk; ++number) {
        const Chunk chunk = chunk_of(block, number, window, parameters);
        const Scalar* source = image + chunk.image_offset;
        Scalar* target = columns + chunk.columns_tap * parameters.tap_step;
        Line lines[planes];
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            lines[plane] = load_line(source, pixel, chunk.inside, parameters.size[last_axis]);
            source += parameters.image_plane_step;
        }
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            store_line(target, lines[plane], first, parameters);
            target += parameters.columns_plane_step;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_words)
    im2col_words(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                 const Parameters parameters)
{
    unfold<planes_at_once, true>(image, columns, window, parameters);
}
