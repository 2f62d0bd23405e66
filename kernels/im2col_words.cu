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
// Where rows of both arrays are whole words, a line is loaded in words and aligned grains of them, and a word
// lies in the padding, or outside the row of blocks, as a whole or not at all. Where they are not,
// PARTIAL_WORDS, a row of blocks begins anywhere in a word: the line begins as many pixels sooner and is
// loaded pixel by pixel, and the words that only a part of is in the row are stored element by element. Of
// each tap, the words of a row follow each other from a multiple of UNIT elements on, one word or two;
// TAP_SKEW is the distance of two taps in the columns modulo UNIT.
//
// Wins for stride 1, the more the narrower the elements are; with partial words where rows are long.
#include "unfold.cuh"

constexpr int word = WORD;
constexpr int unit = UNIT;
constexpr int tap_skew = TAP_SKEW;
constexpr int tap_distance = TAP_DISTANCE;   // the dilation of the last axis
constexpr int pixels_before = PIXELS_BEFORE; // from the aligned one that a thread counts from to its line
constexpr bool partial_words = PARTIAL_WORDS;
static_assert(chunk_taps == kernel_width, "a chunk of taps is a row of them");
static_assert(unit % word == 0 && (partial_words || unit == word && tap_skew == 0), "words are aligned");
static_assert(!partial_words || pixels_before == 0, "pixels that are loaded one by one are not");

// Where in the line the word of a tap begins: as soon as its place in the columns is the right one.
inline __device__ constexpr int place_in_line(int tap)
{
    return (tap * (tap_distance - tap_skew) % unit + unit) % unit;
}
// The block of the word's first element, counted from the one whose tap 0 is the first pixel of the line.
inline __device__ constexpr int block_in_line(int tap)
{
    return place_in_line(tap) - tap * tap_distance;
}
struct Extent {
    int last_place;
    int first_block, last_block;
};
inline __device__ constexpr Extent extent_of_words()
{
    Extent extent = {};
    for (int tap = 0; tap < kernel_width; ++tap) {
        const int place = place_in_line(tap), block = block_in_line(tap);
        extent.last_place = place > extent.last_place ? place : extent.last_place;
        extent.first_block = block < extent.first_block ? block : extent.first_block;
        extent.last_block = block > extent.last_block ? block : extent.last_block;
    }
    return extent;
}
constexpr Extent extent = extent_of_words();
constexpr bool every_word_exists = !partial_words && extent.first_block == 0;
// The blocks that the first line begins before its row.
constexpr int lead = extent.last_block > 0 ? unit : 0;

// What a line is loaded in: words where they are wanted as a whole, grains else.
constexpr int loaded_pixels = partial_words ? 1 : word;
constexpr int grain_bytes = partial_words || sizeof(Scalar) > 4 ? int(sizeof(Scalar)) : 4;
constexpr int grain_pixels = grain_bytes / int(sizeof(Scalar));
constexpr int loaded_grains = loaded_pixels / grain_pixels;
constexpr int first_grain = pixels_before / grain_pixels;
constexpr int grains = (pixels_before + extent.last_place + word - 1) / grain_pixels - first_grain + 1;
struct Line {
    Word<grain_bytes> grain[grains];
};

constexpr int registers_of_line = (grains * grain_bytes + 3) / 4;
constexpr int planes_at_once = partial_words || registers_of_line > 12 ? 1 : registers_of_line > 6 ? 2 : 4;
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
                const auto loaded = load_word_if<loaded_pixels * sizeof(Scalar)>(
                    image + shift, inside & within(pixel + shift, size));
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

// Stores those of a word's elements that are blocks of the row.
inline __device__ void store_blocks(Scalar* columns, Word<word * sizeof(Scalar)> elements, Offset first,
                                    Offset row_blocks)
{
    if (within(first, row_blocks - (word - 1))) {
        store_word<word * sizeof(Scalar)>(columns, elements);
    } else if constexpr (partial_words) {
        Scalar element[word];
        memcpy(element, &elements, sizeof(element));
#pragma unroll
        for (int i = 0; i < word; ++i)
            if (within(first + i, row_blocks))
                store(columns + i, element[i]);
    }
}

// Stores a line's word of each tap of a row; `first` is the block whose tap 0 is its first pixel.
inline __device__ void store_line(Scalar* columns, const Line& line, Offset first,
                                  const Parameters& parameters)
{
    const bool whole =
        first + extent.first_block >= 0 && first + extent.last_block <= parameters.row_blocks - word;
    if (every_word_exists || whole) {
#pragma unroll
        for (int tap = 0; tap < chunk_taps; ++tap) {
            store_word<word * sizeof(Scalar)>(columns + block_in_line(tap), word_of_tap(line, tap));
            columns += parameters.tap_step;
            keep(columns);
        }
    } else {
#pragma unroll
        for (int tap = 0; tap < chunk_taps; ++tap) {
            store_blocks(columns + block_in_line(tap), word_of_tap(line, tap), first + block_in_line(tap),
                         parameters.row_blocks);
            columns += parameters.tap_step;
            keep(columns);
        }
    }
}

template <int planes>
inline __device__ void take(const Block& block, const Scalar* image, Scalar* columns, const Weights& window,
                            const Parameters& parameters)
{
    const Offset pixel = block.pixel[last_axis], first = pixel + parameters.pad[last_axis];
#pragma unroll 1
    for (Offset number = block.first_chunk; number < block.end_chunk; ++number) {
        const Chunk chunk = chunk_of(block, number, window, parameters);
        const Scalar* source = image + chunk.image_offset;
        Scalar* target = columns + chunk.columns_tap * parameters.tap_step;
        Line lines[planes];
        int before[planes]; // blocks, from where the line begins
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            const Scalar* const row = target + (plane * parameters.columns_plane_step - first);
            before[plane] = partial_words ? lead + elements_past<unit>(row) : 0;
            lines[plane] = load_line(source - before[plane], pixel - before[plane], chunk.inside,
                                     parameters.size[last_axis]);
            source += parameters.image_plane_step;
        }
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            store_line(target - before[plane], lines[plane], first - before[plane], parameters);
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
