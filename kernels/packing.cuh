// How the threads of a warp assemble one run of bytes in a tile of shared memory, and how the warp stores
// it in words of 16 bytes.
//
// A thread holds lines of words of 4 bytes. A Layout says at compile time where in them each byte of the
// thread's piece of the run is:
//
//   Line         a struct with an array `word` of unsigned
//   lines        how many
//   words        of 4 bytes in a whole piece; the last piece may be shorter
//   source_of    a byte of the piece: its line, its word in that and its byte in that
#pragma once
#include "common.cuh"

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;
constexpr int warps = THREADS / warp_size; // each with a tile of its own
static_assert(THREADS % warp_size == 0, "every warp is whole: its lanes wait for each other");

constexpr int element_bytes = sizeof(Scalar);
constexpr int stored_bytes = 16;

struct Source {
    int line, word, byte;
};
inline __device__ constexpr bool are_in_one_word(Source a, Source b)
{
    return a.line == b.line && a.word == b.word;
}

// A tile begins with the line of the array in which its run begins, so that the warp stores whole lines, and
// has room for the word of 16 bytes after its end.
constexpr int line_bytes = 128;
template <typename Layout> __device__ constexpr int tile_bytes = warp_size * 4 * Layout::words + line_bytes;

// A word of a thread's piece. Each word of the lines that it has bytes of is permuted into it.
template <typename Layout>
inline __device__ unsigned word_of_piece(const typename Layout::Line (&lines)[Layout::lines], int number)
{
    const Source first = Layout::source_of(4 * number);
    unsigned word = lines[first.line].word[first.word];
    int place[4]; // of each byte, as far as the word has it
    bool found[4], in_place = true;
    unrolled_for (int i = 0; i < 4; ++i) {
        const Source source = Layout::source_of(4 * number + i);
        place[i] = source.byte;
        found[i] = are_in_one_word(source, first);
        in_place = in_place && found[i] && place[i] == i;
    }
    unrolled_for (int i = 0; i < 4; ++i) {
        const Source next = Layout::source_of(4 * number + i);
        if (!found[i] || (i == 3 && !in_place)) {
            unsigned selector = 0;
            unrolled_for (int k = 0; k < 4; ++k) {
                const Source source = Layout::source_of(4 * number + k);
                const bool is_next = are_in_one_word(source, next);
                selector |= unsigned(is_next ? 4 + source.byte : found[k] ? place[k] : k) << 4 * k;
                found[k] = found[k] || is_next;
                place[k] = k;
            }
            word = __byte_perm(word, lines[next.line].word[next.word], selector);
            in_place = true;
        }
    }
    return word;
}

// Puts the piece of a thread into the tile, from a byte on. A thread whose piece begins within a word leaves
// the bytes before to the thread before it, which writes this word first: no piece is less than a word.
template <typename Layout>
inline __device__ void pack_piece(unsigned* to, const typename Layout::Line (&lines)[Layout::lines],
                                  unsigned shift, unsigned count)
{
    constexpr int words = Layout::words;
    if constexpr (element_bytes == 4) {
        unrolled_for (int i = 0; i < words; ++i)
            if (unsigned(i) < count)
                to[i] = word_of_piece<Layout>(lines, i);
    } else {
        const unsigned first = word_of_piece<Layout>(lines, 0);
        unsigned before = first;
        unrolled_for (int i = 1; i <= words; ++i) {
            const unsigned word = i < words ? word_of_piece<Layout>(lines, i) : 0;
            if (unsigned(i) <= count)
                to[i] = __funnelshift_l(before, word, shift);
            before = word;
        }
        __syncwarp();
        if (count > 0) {
            const bool is_first = threadIdx.x % warp_size == 0;
            to[0] = first << shift | (is_first ? 0 : to[0] & ((1u << shift) - 1));
        }
    }
}

// The same if all threads of the warp have whole pieces, which then begin at the same byte of a word.
template <typename Layout>
inline __device__ void pack_whole_piece(unsigned* to, const typename Layout::Line (&lines)[Layout::lines],
                                        unsigned shift)
{
    constexpr int words = Layout::words;
    unsigned before = 0;
    if constexpr (element_bytes < 4)
        before = __shfl_up_sync(all_lanes, word_of_piece<Layout>(lines, words - 1), 1);
    unrolled_for (int i = 0; i < words; ++i) {
        const unsigned word = word_of_piece<Layout>(lines, i);
        to[i] = element_bytes < 4 ? __funnelshift_l(before, word, shift) : word;
        before = word;
    }
    if (element_bytes < 4 && threadIdx.x % warp_size == warp_size - 1)
        to[words] = __funnelshift_l(before, 0, shift);
}

// Puts the pieces of a warp's threads into its tile, from byte `begin` to `end`; threads without a piece have
// an empty one.
template <typename Layout>
inline __device__ void pack_pieces(unsigned char* tile, const typename Layout::Line (&lines)[Layout::lines],
                                   unsigned begin, unsigned end)
{
    unsigned* to = reinterpret_cast<unsigned*>(tile) + begin / 4;
    opaque_shared(to);
    unsigned shift = begin % 4 * 8;
    opaque(shift);
    if (__all_sync(all_lanes, end - begin == 4 * Layout::words))
        pack_whole_piece<Layout>(to, lines, shift);
    else
        pack_piece<Layout>(to, lines, shift, end / 4 - begin / 4);
}

// Stores what a warp's tile has from a byte of its first line on, to the array from `run` on.
template <typename Layout>
inline __device__ void store_run(Scalar* run, const unsigned char* tile, unsigned begin, unsigned end)
{
    constexpr int round_bytes = warp_size * stored_bytes;
    constexpr int rounds = (tile_bytes<Layout> + round_bytes - 1) / round_bytes;
    const unsigned lane = threadIdx.x % warp_size;
    const unsigned first = (begin + stored_bytes - 1) / stored_bytes, whole = end / stored_bytes; // words
    const unsigned char* from = tile + lane * stored_bytes;
    Scalar* to = run - begin / element_bytes + lane * (stored_bytes / element_bytes);
    opaque(to);
    unrolled_for (int i = 0; i < rounds; ++i) {
        if ((i > 0 || lane >= first) && lane + i * warp_size < whole)
            store_word<stored_bytes>(
                to + i * (round_bytes / element_bytes),
                *reinterpret_cast<const AliasedWord<stored_bytes>*>(from + i * round_bytes));
    }
    // Half of the lanes have the elements of the partial word before, the other half those of the partial
    // word after.
    const unsigned half = warp_size / 2;
    const bool is_last = lane >= half;
    const unsigned at = (is_last ? whole : first - 1) * stored_bytes + lane % half * element_bytes;
    const bool in_parts = is_last ? whole >= first : begin % stored_bytes > 0;
    if (in_parts && lane % half * element_bytes < stored_bytes && at >= begin && at < end)
        store(run + (at - begin) / element_bytes, *reinterpret_cast<const Scalar*>(tile + at));
}

// The same if all pieces are whole words of 16 bytes, one after another from such a word on. Words change
// places within their piece, so that neither stores to the tile nor loads from it have bank conflicts.
template <typename Layout> struct WholeRun {
    static constexpr int words = Layout::words / (stored_bytes / 4); // of a piece
    static constexpr int alike = words % 8 == 0 ? 8 : words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
    static constexpr int turn = words * 8 / alike; // words from which on the banks are the same again

    static __device__ unsigned place(unsigned word) { return word ^ word / turn % alike; }

    static __device__ void pack(Word<stored_bytes>* tile, const typename Layout::Line (&lines)[Layout::lines])
    {
        const unsigned lane = threadIdx.x % warp_size, change = lane * words / turn % alike;
        unrolled_for (int i = 0; i < words; ++i) {
            unsigned word[stored_bytes / 4];
            unrolled_for (int k = 0; k < stored_bytes / 4; ++k)
                word[k] = word_of_piece<Layout>(lines, i * (stored_bytes / 4) + k);
            tile[lane * words + (i ^ change)] = bit_cast<Word<stored_bytes>>(word);
        }
    }

    static __device__ void store(Scalar* run, const Word<stored_bytes>* tile, unsigned pieces)
    {
        const unsigned lane = threadIdx.x % warp_size;
        Scalar* to = run + lane * (stored_bytes / element_bytes);
        opaque(to);
        unrolled_for (int i = 0; i < words; ++i) {
            const unsigned word = lane + i * warp_size;
            if (word < pieces * words)
                store_word<stored_bytes>(to + i * (warp_size * stored_bytes / element_bytes),
                                         tile[place(word)]);
        }
    }
};
