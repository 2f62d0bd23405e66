// batch_to_space with any blocks innermost: a thread block puts a tile of space together in shared memory, as
// many neighbouring blocks of each of a few rows.
//
//   batch  (*block, batch, *grid)  read, any strides
//   space  (batch, *size)          each element written once, any strides
//
// Rows are numbered as they lie in the batch: blocks of an axis before its phases, planes last. A thread
// loads the same words of several rows, LOADED blocks of a phase wherever these begin, and puts each element
// where it belongs in its row. It then stores words of STORED elements along rows, aligned wherever these
// begin; what is no whole word at their ends is stored in parts. Wins where blocks cannot be put together in
// registers: their width is no power of two, or more than 16 bytes.
#include "common.cuh"

#ifndef SPATIAL_RANK
#define SPATIAL_RANK 2
#endif
#ifndef BLOCK_WIDTH
#define BLOCK_WIDTH 3
#endif
#ifndef LOADED
#define LOADED 1
#endif
#ifndef STORED
#define STORED 1
#endif
#ifndef ROWS_AT_ONCE
#define ROWS_AT_ONCE 16
#endif
#ifndef WORDS_AT_ONCE
#define WORDS_AT_ONCE 1
#endif
#ifndef ROWS_ALIKE
#define ROWS_ALIKE 0
#endif
#ifndef TILE
#define TILE 5120
#endif
constexpr int spatial_rank = SPATIAL_RANK;
constexpr int last_axis = spatial_rank - 1;
constexpr int block_width = BLOCK_WIDTH;
constexpr int loaded =
    LOADED; // more than one need neighbouring blocks to be so in memory, and a batch of words
constexpr int stored = STORED; // more than one need neighbouring pixels to be so in memory
constexpr int rows_at_once = ROWS_AT_ONCE, words_at_once = WORDS_AT_ONCE; // of a thread, in flight together
constexpr bool rows_alike = ROWS_ALIKE; // rows of either array begin at the same place in a word
constexpr int loaded_bytes = loaded * int(sizeof(Scalar));
constexpr int resident_blocks = sizeof(Offset) > 4 ? 3 : 4; // as registers allow

// So many phases are loaded by neighbouring lanes, so that what these put into the tile at once is of
// different banks.
constexpr int most_phases = loaded_bytes < 16 ? 16 / loaded_bytes : 1;
constexpr int phases_together = block_width % most_phases == 0       ? most_phases
                                : 2 * block_width % most_phases == 0 ? most_phases / 2
                                                                     : 1;

// For the same reason 16 bytes of a row are left free after each word's blocks, where these are an even
// number of 16 bytes.
constexpr int free_elements = 16 / int(sizeof(Scalar));
constexpr int word_pixels = loaded * block_width;
constexpr bool leaves_free = word_pixels % (2 * free_elements) == 0;
inline __device__ int place_of(int pixel)
{
    return leaves_free ? pixel + int(unsigned(pixel) / word_pixels) * free_elements : pixel;
}

struct Parameters {
    Offset crop[spatial_rank]; // in the first block
    Offset size[spatial_rank];
    Offset grid_step[spatial_rank];  // elements of the batch array from one block to the next
    Offset phase_step[spatial_rank]; // elements of the batch array from one phase to the next
    Offset pixel_step[spatial_rank]; // elements of the image from one pixel to the next
    Divisor blocks[spatial_rank];    // that have pixels; on the last axis, tiles of them
    Divisor block[spatial_rank];
    Offset rows;
    Offset row_blocks;              // of the last axis
    Divisor phase_words;            // that a tile loads of a row and phase
    Divisor loaded_words;           // of a row
    Divisor stored_words;           // of a row
    int loading_rows, storing_rows; // at a time, by all threads
    int tile_rows;                  // of which each thread loads rows_at_once at a time
    int tile_blocks;
    int row_pitch;
    long long batch_start, batch_plane_step, space_plane_step;
};

// A row of the tile: phase 0 of its first block, and that block's first pixel, or null where space has no
// such row.
struct Row {
    const Scalar* source;
    Scalar* target;
};

#ifndef HOSTCUDA
inline __device__ void store_shared(unsigned address, Word<1> word)
{
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(unsigned(word)) : "memory");
}
inline __device__ void store_shared(unsigned address, Word<2> word)
{
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(word) : "memory");
}
inline __device__ void store_shared(unsigned address, Word<4> word)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
inline __device__ void store_shared(unsigned address, Word<8> word)
{
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(word) : "memory");
}
inline __device__ void store_shared(unsigned address, Word<16> word)
{
    asm volatile("st.shared.v2.u64 [%0], {%1, %2};" ::"r"(address), "l"(word.low), "l"(word.high) : "memory");
}
#endif

// Where a thread puts elements of the tile: an address of shared memory in 32 bits, which the compiler would
// make anew of the window of shared memory for every element.
struct Tile {
#ifdef HOSTCUDA
    Scalar* elements;
    explicit Tile(void* memory) : elements(static_cast<Scalar*>(memory)) {}
    Tile from(int place) const { return Tile(elements + place); }
    void put(int place, Scalar element) const { elements[place] = element; }
#else
    unsigned address;
    explicit __device__ Tile(Word<16>* words) : address(unsigned(__cvta_generic_to_shared(words)))
    {
        keep(address);
    }
    explicit __device__ Tile(unsigned address) : address(address) {}
    __device__ Tile from(int place) const { return Tile(address + place * unsigned(sizeof(Scalar))); }
    __device__ void put(int place, Scalar element) const
    {
        store_shared(from(place).address, bit_cast<Word<sizeof(Scalar)>>(element));
    }
#endif
};

// The elements between an address and a multiple of a word of `count`.
template <int count> inline __device__ int past_word(const Scalar* address)
{
    return int(reinterpret_cast<unsigned long long>(address) / sizeof(Scalar)) & (count - 1);
}

// A word that a thread loads: the first block of it, which may be in front of the tile's, and that one's
// pixel as seen from the beginning of the row in the tile.
struct LoadedWord {
    int block, pixel;

    // Moves it to where words begin, back by as many elements as it returns, in the row that begins at a
    // target.
    __device__ int begin_at(const Scalar* source, const Scalar* target)
    {
        const int past = past_word<loaded>(source);
        block -= past;
        pixel += past_word<stored>(target) - past * block_width;
        return past;
    }
    __device__ bool has(int element, int blocks) const
    {
        return loaded > 1 ? unsigned(block + element) < unsigned(blocks) : block < blocks;
    }
    __device__ int place(int element) const { return place_of(pixel + element * block_width); }
};

// Where a thread begins: its word of a row, and its row.
struct Start {
    int word, row;

    __device__ Start(const Divisor& words, int rows, int end)
    {
        Offset number = threadIdx.x;
        word = words.divisor < THREADS ? int(words.split(number)) : int(threadIdx.x);
        row = words.divisor >= THREADS ? 0 : int(number) < rows ? int(number) : end;
    }
};

inline __device__ Row row_of(const Scalar* batch, Scalar* space, Offset number, Offset first_block,
                             const Parameters& parameters)
{
    bool exists = number < parameters.rows;
    number = exists ? number : 0;
    Offset batch_offset = first_block * parameters.grid_step[last_axis];
    Offset space_offset =
        (first_block * block_width - parameters.crop[last_axis]) * parameters.pixel_step[last_axis];
#pragma unroll
    for (int axis = last_axis - 1; axis >= 0; --axis) {
        const Offset block = parameters.blocks[axis].split(number);
        const Offset phase = parameters.block[axis].split(number);
        const Offset pixel = block * parameters.block[axis].divisor + phase - parameters.crop[axis];
        exists &= within(pixel, parameters.size[axis]);
        batch_offset += block * parameters.grid_step[axis] + phase * parameters.phase_step[axis];
        space_offset += pixel * parameters.pixel_step[axis];
    }
    batch += number * parameters.batch_plane_step + parameters.batch_start + batch_offset;
    space += number * parameters.space_plane_step + space_offset;
    return {batch, exists ? space : nullptr};
}

// Stores elements [first, end) of a word in the widest words that they consist of: up to the middle of it
// wider and wider ones, then narrower and narrower ones.
template <int size, bool wider>
inline __device__ void store_parts(Scalar* target, const Scalar* source, int& first, int end)
{
    constexpr int bytes = size * int(sizeof(Scalar));
    if ((!wider || first & size) && first + size <= end) {
        store_word<bytes>(target + first, *reinterpret_cast<const AliasedWord<bytes>*>(source + first));
        first += size;
    }
    if constexpr (wider && 2 * size < stored)
        store_parts<2 * size, true>(target, source, first, end);
    else if constexpr (wider)
        store_parts<size, false>(target, source, first, end);
    else if constexpr (size > 1)
        store_parts<size / 2, false>(target, source, first, end);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_blocks)
    batch_to_space_staged(const Scalar* __restrict__ batch, Scalar* __restrict__ space,
                          const Parameters parameters)
{
    __shared__ Word<16> words_of_tile[TILE * sizeof(Scalar) / 16];
    __shared__ Row rows[THREADS];
    const Tile tile(words_of_tile);

    Offset first_row = blockIdx.x;
    const Offset first_block = parameters.blocks[last_axis].split(first_row) * parameters.tile_blocks;
    const int blocks = int(min(parameters.row_blocks - first_block, Offset(parameters.tile_blocks)));
    const Offset first_pixel = first_block * block_width - parameters.crop[last_axis];
    const int tile_rows = parameters.tile_rows;
    if (int(threadIdx.x) < tile_rows)
        rows[threadIdx.x] =
            row_of(batch, space, first_row * tile_rows + Offset(threadIdx.x), first_block, parameters);
    __syncthreads();

    const Scalar* first_source =
        batch + (parameters.batch_start + first_block * parameters.grid_step[last_axis]);
    const Scalar* first_target = space + first_pixel * parameters.pixel_step[last_axis];
    const Start load(parameters.loaded_words, parameters.loading_rows, tile_rows);
    const unsigned loaded_words = unsigned(parameters.loaded_words.divisor);
#pragma unroll 1
    for (unsigned first = load.word; first < loaded_words; first += words_at_once * THREADS) {
        Offset offset[words_at_once];
        LoadedWord words[words_at_once];
#pragma unroll
        for (int word = 0; word < words_at_once; ++word) {
            const unsigned number = first + word * THREADS;
            Offset phase = number / phases_together;
            words[word].block = int(parameters.phase_words.split(phase)) * loaded;
            phase = phase * phases_together + number % phases_together;
            offset[word] = phase * parameters.phase_step[last_axis] +
                           words[word].block * (loaded > 1 ? 1 : parameters.grid_step[last_axis]);
            words[word].pixel = words[word].block * block_width + int(phase);
            if (number >= loaded_words)
                words[word].block = blocks + loaded; // none
            if constexpr (rows_alike)
                offset[word] -= words[word].begin_at(first_source + offset[word], first_target);
        }
#pragma unroll 1
        for (int row = load.row; row < tile_rows; row += rows_at_once * parameters.loading_rows) {
            trace_iteration(int(first) * THREADS + row);
            Word<loaded_bytes> values[rows_at_once][words_at_once];
            LoadedWord of_rows[rows_at_once][words_at_once];
            const Row* of_tile = rows + row;
#pragma unroll
            for (int step = 0; step < rows_at_once; ++step) {
#pragma unroll
                for (int word = 0; word < words_at_once; ++word) {
                    const Scalar* source = of_tile->source + offset[word];
                    LoadedWord& of_row = of_rows[step][word];
                    of_row = words[word];
                    if constexpr (!rows_alike)
                        source -= of_row.begin_at(source, of_tile->target);
                    values[step][word] = load_word_or_any<loaded_bytes>(source, of_row.block < blocks);
                }
                of_tile += parameters.loading_rows;
            }
            Tile of_row = tile.from(row * parameters.row_pitch);
#pragma unroll
            for (int step = 0; step < rows_at_once; ++step) {
#pragma unroll
                for (int word = 0; word < words_at_once; ++word) {
                    Scalar elements[loaded];
                    memcpy(elements, &values[step][word], sizeof(elements));
#pragma unroll
                    for (int i = 0; i < loaded; ++i)
                        if (of_rows[step][word].has(i, blocks))
                            of_row.put(of_rows[step][word].place(i), elements[i]);
                }
                of_row = of_row.from(parameters.loading_rows * parameters.row_pitch);
            }
        }
    }
    __syncthreads();

    // Pixels from the first block's first one on that are not cropped.
    const int begin = int(max(-first_pixel, Offset(0)));
    const int end = int(min(parameters.size[last_axis] - first_pixel, Offset(blocks * block_width)));
    const Start store_from(parameters.stored_words, parameters.storing_rows, tile_rows);
#pragma unroll 1
    for (int word = store_from.word; word < int(parameters.stored_words.divisor); word += THREADS) {
        const int of_word = place_of(word * stored);
#pragma unroll 1
        for (int row = store_from.row; row < tile_rows; row += parameters.storing_rows) {
            trace_iteration(word * THREADS + row);
            Scalar* const target = rows[row].target;
            const int pixel = word * stored - past_word<stored>(rows_alike ? first_target : target);
            const Scalar* source =
                reinterpret_cast<const Scalar*>(words_of_tile) + (row * parameters.row_pitch + of_word);
            if (target && pixel >= begin && pixel + stored <= end)
                store_word<stored * sizeof(Scalar)>(
                    target + pixel * (stored > 1 ? 1 : parameters.pixel_step[last_axis]),
                    *reinterpret_cast<const AliasedWord<stored * sizeof(Scalar)>*>(source));
        }
    }
    const int past_first = past_word<stored>(first_target);
    const bool all_whole =
        rows_alike && (begin + past_first) % stored == 0 && (end + past_first) % stored == 0;
    if (stored > 1 && !all_whole) // all threads alike
#pragma unroll 1
        for (int number = threadIdx.x; number < 2 * tile_rows; number += THREADS) {
            Scalar* target = rows[number / 2].target;
            const int past = past_word<stored>(target);
            const int word = (number % 2 ? end + past - 1 : begin + past) / stored;
            int first = max(begin + past - word * stored, 0);
            const int last = min(end + past - word * stored, stored);
            const bool once = number % 2 == 0 || (begin + past) / stored < word;
            if (target && once && last - first < stored) {
                const int place = number / 2 * parameters.row_pitch + place_of(word * stored);
                const Scalar* source = reinterpret_cast<const Scalar*>(words_of_tile) + place;
                store_parts<1, true>(target + (word * stored - past), source, first, last);
            }
        }
}
