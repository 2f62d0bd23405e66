// im2col through shared memory: a thread block brings the pixels under a run of blocks there, for a row of
// taps or several, and stores the run of each tap from sector to sector.
//
//   image    (batch, channels, *size)             read, any strides
//   columns  (batch, channels, *kernel, *blocks)  each written once; taps evenly apart, of contiguous blocks
//   window   weights of the taps, or null         read, once per tap and thread block
//
// Run r has RUN blocks. For each tap it begins at a sector of the columns, the one that block r * RUN lies
// in. So a sector is written in part only at the ends of a tap.
//
// TAPS taps of a row are brought together, or all of those of PIECES rows. Neighbouring threads read
// neighbouring words of LOADED pixels, the first of which lies LEAD pixels before a tap; what lies in the
// padding is zero. In shared memory a block's pixels are STEP elements behind those of the block before, and
// more where a row of blocks begins. Either STEP is the stride, and a row of blocks has its pixels as the image
// has them. Or blocks are APART: each has the pixels of its own taps, which TURNS - 1 blocks before it share,
// for the taps a stride, two strides and so on behind. Rows of taps that are a stride apart read the same
// pixels, and follow each other in ROW_TURNS. Where SKEWED, since STEP is an even number of words, a word is
// left out after each 128 bytes, for neighbours to lie in different banks; rows begin with whole lines then.
//
// A warp stores a share of a run of one tap at a time.
//
// Wins where blocks lie far apart, of which threads that load their own taps look up a line of the cache each,
// and where rows have many taps.
#include "runs.cuh"

constexpr int run = RUN, taps = TAPS, turns = TURNS, pieces = PIECES, row_turns = ROW_TURNS;
constexpr int loaded = LOADED, lead = LEAD, step = STEP;
constexpr int reach = REACH; // pixels under the taps of a piece
constexpr bool apart = APART, skewed = SKEWED;
constexpr int slots = pieces * turns * taps; // of taps, not all of which need exist

constexpr int stored =
    sizeof(Scalar) < 4 ? 4 / int(sizeof(Scalar)) : 1; // elements that a lane stores as a word
constexpr int lane_words = run / (32 * stored) < 4 ? run / (32 * stored) : 4;  // of a share
constexpr int share = lane_words * 32 * stored, shares = run / share;          // elements; shares of a run
constexpr int line = 128 / int(sizeof(Scalar)), skipped = skewed ? stored : 0; // elements, behind each line
constexpr int word_step = stored * step * (line + skipped) * 32 / line; // from a lane's word to its next
constexpr bool rows_begin_anew = !apart || turns > 1; // with pixels behind the last block of the row before
static_assert(run % share == 0, "shares are whole");
static_assert(!apart || step >= lead + reach, "blocks that are apart share no pixel");

constexpr int block_words = (lead + reach + loaded - 1) / loaded; // of a block that is apart
constexpr int loads = ((sizeof(Scalar) * loaded > 8 ? 6 : 8) + pieces - 1) / pieces; // of a piece, in flight
constexpr int resident_threads = sizeof(Offset) > 4 ? 512 : sizeof(Scalar) < 4 ? 768 : 1024; // for registers

struct Parameters : Runs {
    Divisor row_words; // that a row of blocks has; where these are apart, blocks, with those of further turns
    Divisor turned_rows; // rows of taps along the second last axis, with those that ROW_TURNS adds
};

// Where an element is in shared memory. One before the first, to which a lane adds whole lines, is no case of
// its own.
inline __device__ int skew(int place)
{
    constexpr int bits = line == 128 ? 7 : line == 64 ? 6 : line == 32 ? 5 : line == 16 ? 4 : 3;
    return place + (place >> bits) * skipped;
}

// The number of a row of taps, by that of its turn; negative where there is none.
inline __device__ Offset row_of(Offset turn, const Parameters& p)
{
    if constexpr (row_turns == 1)
        return turn;
    constexpr int axis = last_axis > 0 ? last_axis - 1 : 0;
    const Offset number = p.turned_rows.split(turn);
    const Offset along = number % row_turns * p.stride[axis] + number / row_turns;
    return along < p.kernel[axis].divisor ? turn * p.kernel[axis].divisor + along : -1;
}

// Whether a tap of a block is a pixel, by the numbers of both.
inline __device__ bool is_inside(Offset block, Offset tap, const Parameters& p)
{
    bool inside = true;
    unrolled_for (int axis = last_axis; axis >= 0; --axis) {
        const Offset pixel = p.blocks[axis].split(block) * p.stride[axis] +
                             p.kernel[axis].split(tap) * p.dilation[axis] - p.pad[axis];
        inside &= within(pixel, p.size[axis]);
    }
    return inside;
}

// Stores a lane's words of a share: of a tap, those blocks from one on that exist, or all where that is known.
template <bool whole>
inline __device__ void store_share(Scalar* to, const Scalar* const (&from)[stored], Offset block,
                                   Offset row_begin, int row_step, Offset tap, Weight weight,
                                   const Parameters& p)
{
    Scalar elements[lane_words][stored];
    unrolled_for (int i = 0; i < lane_words; ++i)
        unrolled_for (int k = 0; k < stored; ++k) {
            const Offset own = block + i * 32 * stored + k;
            const bool exists = whole || within(own, p.plane_blocks);
            int place = i * word_step;
            if constexpr (rows_begin_anew)
                place += int(p.blocks[last_axis].quotient(exists ? own - row_begin : 0)) * row_step;
            elements[i][k] = exists ? from[k][place] : Scalar{};
            if constexpr (windowed) {
                const bool counts = exists && (!padded || is_inside(own, tap, p));
                elements[i][k] = weigh_element(elements[i][k], counts ? weight : Weight(0));
            }
        }
    unrolled_for (int i = 0; i < lane_words; ++i, to += 32 * stored)
        if constexpr (whole)
            store_wide(to, elements[i]);
        else
            unrolled_for (int k = 0; k < stored; ++k)
                if (within(block + i * 32 * stored + k, p.plane_blocks))
                    store(to + k, elements[i][k]);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_threads / THREADS)
    im2col_staged(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                  const Parameters p)
{
    struct alignas(16) Piece {
        Scalar pixels[SIZE];
    };
    __shared__ Piece staged[pieces];
    __shared__ Offset numbers[slots]; // of taps, negative where there is none
    __shared__ Weight weights[windowed ? slots : 1];
    const int thread = threadIdx.x;
    Offset rest = blockIdx.x;
    const Offset first = p.runs.split(rest) * run;
    const Offset plane = p.planes.split(rest), batch = rest;
    image += batch * p.image_batch_step + plane * p.image_plane_step;
    columns += batch * p.columns_batch_step + plane * p.columns_plane_step;
    const int past = elements_past<sector>(columns); // of tap 0

    // The blocks whose pixels are brought, the row of the first, and what of this row lies before them: words, or
    // blocks where these are apart.
    const Offset begin = max(first - (sector - 1), Offset(0)), end = min(first + run, p.plane_blocks);
    const Divisor& row_blocks = p.blocks[last_axis];
    Offset first_row = begin;
    const Offset in_row = row_blocks.split(first_row), row_begin = begin - in_row;
    const Offset before = apart ? in_row : (in_row * step + lead) / loaded;
    const int start =
        apart ? lead : int(in_row * step + lead - before * loaded); // of the first block's first tap
    const int row_extra =
        apart ? (turns - 1) * step : int(p.row_words.divisor * loaded - row_blocks.divisor * step);
    const int row_step = row_extra + row_extra / line * skipped;
    const int blocks = int(end - begin), more_rows = int(row_blocks.quotient(end - 1 - row_begin));
    const int words =
        apart ? (blocks + (more_rows + 1) * (turns - 1)) * block_words
              : (start + (blocks - 1) * step + more_rows * row_extra + reach + loaded - 1) / loaded;

    const Offset width = p.kernel[last_axis].divisor;
    const Offset pieces_end = min(Offset(blockIdx.y + 1) * p.own_pieces, p.all_pieces);
#pragma unroll 1
    for (Offset number = Offset(blockIdx.y) * p.own_pieces; number < pieces_end; number += pieces) {
        Offset first_turn = number;
        const Offset first_tap = p.pieces.split(first_turn) * taps; // of its row
        const auto row_of_piece = [&](int piece) {
            return number + piece < pieces_end ? row_of(first_turn + piece, p) : -1;
        };

        Scalar pixels[loads][pieces][loaded];
        int places[loads];
        const auto load = [&](int first_word) {
            unrolled_for (int i = 0; i < loads; ++i) {
                const int word = first_word + i * THREADS;
                const int in_block = apart ? word % block_words * loaded : 0;
                places[i] = apart ? word / block_words * step + in_block : skew(word * loaded);
                Offset row = (apart ? word / block_words : word) + before;
                const Offset pixel = p.row_words.split(row) * (apart ? p.stride[last_axis] : loaded) +
                                     in_block + first_tap * p.dilation[last_axis] - p.pad[last_axis] - lead;
                const bool in_image = word < words && within(pixel, p.size[last_axis]);
                row += first_row;
                Offset origins[spatial_rank]; // of these blocks, along the axes but the last
                unrolled_for (int axis = last_axis - 1; axis >= 0; --axis)
                    origins[axis] = p.blocks[axis].split(row) * p.stride[axis] - p.pad[axis];
                unrolled_for (int piece = 0; piece < pieces; ++piece) {
                    const Offset taps_row = row_of_piece(piece);
                    bool inside = in_image && taps_row >= 0;
                    Offset tap = max(taps_row, Offset(0)), offset = pixel * p.pixel_step[last_axis];
                    unrolled_for (int axis = last_axis - 1; axis >= 0; --axis) {
                        const Offset along = origins[axis] + p.kernel[axis].split(tap) * p.dilation[axis];
                        inside &= within(along, p.size[axis]);
                        offset += along * p.pixel_step[axis];
                    }
                    load_wide_if(pixels[i][piece], image + offset, inside);
                }
            }
        };
        const auto put = [&](int first_word) {
            unrolled_for (int i = 0; i < loads; ++i)
                if (first_word + i * THREADS < words)
                    unrolled_for (int piece = 0; piece < pieces; ++piece) {
                        Scalar* const to = staged[piece].pixels + places[i];
                        if constexpr (skewed || apart) {
                            unrolled_for (int k = 0; k < loaded; ++k)
                                to[k] = pixels[i][piece][k];
                        } else {
                            constexpr int bytes = loaded * sizeof(Scalar);
                            *reinterpret_cast<AliasedWord<bytes>*>(to) =
                                bit_cast<Word<bytes>>(pixels[i][piece]);
                        }
                    }
        };
        load(thread);
        __syncthreads(); // all have stored the taps before
        put(thread);
#pragma unroll 1
        for (int word = thread + loads * THREADS; word < words; word += loads * THREADS) {
            load(word);
            put(word);
        }

        for (int slot = thread; slot < slots; slot += THREADS) {
            const int turn = slot / taps; // or piece
            const Offset row = row_of_piece(pieces > 1 ? turn : 0), phase = first_tap + slot % taps;
            const Offset in_row = turns > 1 ? phase + turn * p.stride[last_axis] : phase;
            const bool exists = row >= 0 && in_row < width && (turns == 1 || phase < p.stride[last_axis]);
            numbers[slot] = exists ? row * width + in_row : -1;
            if constexpr (windowed) {
                Offset along[spatial_rank], rest = max(numbers[slot], Offset(0));
                unrolled_for (int axis = last_axis; axis >= 0; --axis)
                    along[axis] = p.kernel[axis].split(rest);
                weights[slot] = weight_of(window, along, numbers[slot], exists);
            }
        }
        __syncthreads();

#pragma unroll 1
        for (int part = thread / 32; part < slots * shares; part += THREADS / 32) {
            const int slot = part / shares, turn = slot / taps;
            const Offset tap = numbers[slot];
            if (tap < 0)
                continue;
            const Offset offset = tap * p.tap_step;
            const int ahead = int(unsigned(past + int(offset)) % sector); // of the run's number
            const Offset share_begin = first - ahead + part % shares * share;
            const Offset block = share_begin + thread % 32 * stored;
            const int in_piece =
                start + slot % taps * int(p.dilation[last_axis]) + (turns > 1 ? turn * step : 0);
            const Scalar* from[stored];
            unrolled_for (int k = 0; k < stored; ++k)
                from[k] =
                    staged[pieces > 1 ? turn : 0].pixels + skew(int(block + k - begin) * step + in_piece);
            Scalar* to = columns + (offset + block);
            opaque(to);
            const Weight weight = weights[windowed ? slot : 0];
            if (share_begin >= 0 && share_begin + share <= p.plane_blocks)
                store_share<true>(to, from, block, row_begin, row_step, tap, weight, p);
            else
                store_share<false>(to, from, block, row_begin, row_step, tap, weight, p);
        }
    }
}
