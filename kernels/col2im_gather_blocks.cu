// col2im by gathering, for columns whose taps lie one after another and whose blocks overlap densely: rows of
// taps come through shared memory.
//
//   columns  (batch, channels, *kernel, *blocks), a block's taps contiguous  read, once per tile reached
//   image    (batch, channels, *size), any strides                           written, each element once
//   window   (*kernel), or an array per axis, or null                        read, once per tap and pixel
//
// A thread block owns ROWS rows of THREADS pixels, a thread one pixel of each row. The taps of the outer
// axes are visited one by one, in lexicographic order. With several rows these are the axes before the last
// two: along the second last axis, the blocks that reach the rows are visited from last to first, so that
// each row gets its taps in order. The threads load a piece of every block that reaches the pixels along
// the last axis into shared memory: TAPS taps of one row, or those of ROWS contiguous rows, so that memory
// is read in long pieces. LANES threads share a piece, neighbours load neighbouring words of VECTOR
// elements, and all words of a tile are in flight together. Then each thread adds the taps that land on its
// pixels, in lexicographic order too. Taps that do not exist are zero in a tile.
//
// With two TILES, one is filled while some threads still read the other, so a tile takes one barrier; a
// single tile takes two. Pieces are PITCH elements apart in a tile, an odd multiple of what neighbouring
// lanes read of one, so lanes have no bank conflicts. No atomics and no zero fill.
//
// Wins if the taps of a block lie closer in memory than its blocks, and blocks overlap densely: threads that
// load one tap of neighbouring blocks would look up a cache line for each element.
#include "col2im.cuh"
#include "fusion.cuh"

using pattern = Pattern<last>;
constexpr int rows = ROWS, vector = VECTOR, pitch = PITCH, tile_count = TILES;
constexpr int above = rows > 1 ? last - 1 : last; // of several rows; axes before it are visited tap by tap
constexpr int row_taps = TAPS;                    // of a block in a tile: a row of them, or a part of one
constexpr int parts = int((kernel[last] + row_taps - 1) / row_taps);
constexpr int pixel_taps = int((row_taps + pattern::tap_step - 1) / pattern::tap_step);
constexpr Offset reach = (row_taps - 1) * dilation[last]; // pixels from the first of these taps to the last
constexpr int tile_blocks = int((THREADS - 1 + reach) / stride[last]) + 1;
constexpr int piece_taps = rows * row_taps;
constexpr Offset all_taps = rows > 1 ? kernel[above] * kernel[last] : kernel[last]; // that pieces are of
static_assert(rows == 1 || (dilation[above] == 1 && parts == 1), "rows of taps lie one after another");
static_assert(row_taps % vector == 0 && piece_taps <= pitch, "a piece is words, and has room");
static_assert(parts == 1 || row_taps % pattern::tap_step == 0, "a pixel has as many taps in each part");

// From one part of a row to the next, and in a tile from one tap of a pixel to the next.
constexpr Offset blocks_step = pixel_taps * pattern::block_step;
constexpr int place_step = pixel_taps > 1 ? int(pattern::tap_step - pattern::block_step * pitch) : 0;

struct alignas(16) Tile {
    Scalar taps[tile_blocks * pitch];
};

// In a turn each thread loads a word: all together turn_taps taps of turn_blocks blocks, and whole pieces in
// piece_turns turns.
constexpr int turn_taps = LANES * vector, turn_blocks = THREADS / LANES;
constexpr int piece_turns = (piece_taps + turn_taps - 1) / turn_taps;
constexpr int turns = (tile_blocks + turn_blocks - 1) / turn_blocks * piece_turns;

// The distance in a tile of a thread's word from its word in the first turn.
struct Turn {
    int blocks, taps;

    __device__ constexpr explicit Turn(int number)
        : blocks(number / piece_turns * turn_blocks), taps(number % piece_turns * turn_taps)
    {
    }
    __device__ bool is_in_tile(int block, int tap) const
    {
        return (THREADS % LANES == 0 || block < turn_blocks) &&
               (blocks + turn_blocks <= tile_blocks || block + blocks < tile_blocks) &&
               (taps + turn_taps <= piece_taps || tap + taps < piece_taps);
    }
};

// Bytes written to a tile at once: words are not aligned there, but elements are, and 4 bytes of narrow ones.
constexpr int word_bytes = vector * int(sizeof(Scalar));
constexpr int put_bytes = sizeof(Scalar) > 4 ? int(sizeof(Scalar)) : word_bytes < 4 ? word_bytes : 4;

// The first block that reaches a segment, which may not exist, by the place of its first pixel in the padded
// row.
__device__ Offset first_block_of(Offset place)
{
    constexpr Offset in_front = (reach + stride[last] - 1) / stride[last]; // blocks
    return (place + (in_front + 1) * stride[last] - 1 - reach) / stride[last] - in_front;
}

// Fills the tile with a piece of each block from `first_block` on: taps from `first_tap` on, or zeros.
__device__ void fill(Tile& tile, const Scalar* taps, Offset first_tap, Offset first_block,
                     const Parameters& p)
{
    int place = int(threadIdx.x) / LANES;
    opaque_here(place); // what the turns make of it would take registers all the time
    const int in_piece = int(threadIdx.x) % LANES * vector;
    const Offset block = first_block + place, tap = first_tap + in_piece;
    const Scalar* from = taps + (block * p.block_stride[last] + tap);
    Word<word_bytes> words[turns];
    unrolled_for (int number = 0; number < turns; ++number) {
        const Turn turn(number);
        const bool exists = within(block + turn.blocks, p.blocks[last]) & within(tap + turn.taps, all_taps);
        words[number] =
            load_word_here_if<word_bytes>(from + turn.taps, exists & turn.is_in_tile(place, in_piece));
        if ((number + 1) % piece_turns == 0)
            from += turn_blocks * p.block_stride[last];
    }
    if (tile_count == 1)
        __syncthreads(); // until all have read what is there
    Scalar* const put = tile.taps + (place * pitch + in_piece);
    unrolled_for (int number = 0; number < turns; ++number) {
        const Turn turn(number);
        auto* const to = reinterpret_cast<AliasedWord<put_bytes>*>(put + (turn.blocks * pitch + turn.taps));
        Word<put_bytes> pieces[word_bytes / put_bytes];
        memcpy(pieces, &words[number], word_bytes);
        if (turn.is_in_tile(place, in_piece))
            unrolled_for (int i = 0; i < word_bytes / put_bytes; ++i)
                to[i] = pieces[i];
    }
    __syncthreads(); // until all of it is there
}

extern "C" __global__ void __launch_bounds__(THREADS)
    col2im_gather_blocks(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const Parameters p)
{
    __shared__ Tile tiles[tile_count];
    const Place<1> place(blockIdx.x, p);
    const Scalar* plane_columns[1];
    place.point_at(plane_columns, columns, p);
    image = place.first_plane(image, p);
    const Offset segment = place.along[last] * THREADS; // its first pixel
    Offset pixel[rank];                                 // of the first row
    unrolled_for (int axis = 0; axis < rank; ++axis) {
        pixel[axis] = axis < above ? place.along[axis] : place.along[axis] * rows;
        if (axis == last)
            pixel[axis] = segment + Offset(threadIdx.x);
        image += pixel[axis] * p.pixel_stride[axis];
    }
    Taps taps[rank];
    find_taps<0, rank>(taps, pixel, p);
    const Offset first_block = first_block_of(segment + p.pad[last]);
    const int first = int(taps[last].block - first_block) * pitch + int(taps[last].tap); // in every tile

    Accumulator sums[rows] = {};
    Denominator denominators[rows];
    int filled = 0;
    const auto add_tile = [&](const Scalar* from, Offset tap_above, Offset part, const TapWeight& outer) {
        Tile& tile = tiles[filled];
        filled ^= tile_count - 1;
        fill(tile, from, tap_above * kernel[last] + part * row_taps, first_block - part * blocks_step, p);
        unrolled_for (int row = 0; row < rows; ++row) {
            if (rows > 1 && !within(tap_above + row, kernel[above]))
                continue;
            const TapWeight of_row = rows > 1 ? outer.along<above>(tap_above + row, true) : outer;
            unrolled_for (int i = 0; i < pixel_taps; ++i) {
                const Offset number = part * pixel_taps + i;
                const bool exists = number < pattern::taps && taps[last].exists<last>(number, p);
                Scalar element = {};
                if (taps[last].in_kernel<last>(number))
                    element = tile.taps[first + row * row_taps + i * place_step];
                const Weight weight = of_row.value_of(taps[last].tap + number * pattern::tap_step, exists);
                sums[row] = add(sums[row], weigh(widen(element), weight));
                denominators[row].add_tap(weight);
            }
        }
    };
    for_each_tap<0, above, looped_loads, above>(
        taps, p, 0, true, TapWeight{&window}, [&](Offset offset, bool, const TapWeight& outer) {
            const Scalar* const from = plane_columns[0] + offset;
            if constexpr (rows == 1) {
#pragma unroll 1
                for (Offset part = 0; part < parts; ++part)
                    add_tile(from, 0, part, outer);
            } else {
                const Offset behind = pixel[above] + p.pad[above];
                Offset block = (behind + rows - 1) / stride[above];
#pragma unroll 1
                for (Offset tap = behind - block * stride[above]; tap < kernel[above]; tap += stride[above]) {
                    if (within(block, p.blocks[above]))
                        add_tile(from + block * p.block_stride[above], tap, 0, outer);
                    --block;
                }
            }
        });

    const auto is_inside = [&](int row) {
        return pixel[last] < p.size[last] && (rows == 1 || pixel[above] + row < p.size[above]);
    };
    OldPixel olds[rows][1];
    unrolled_for (int row = 0; row < rows; ++row)
        OldPixel::load_wide(olds[row], image + row * p.pixel_stride[above], is_inside(row));
    const Factor of_last = factor_of<last>(taps[last], window, p);
    unrolled_for (int row = 0; row < rows; ++row) {
        if (row > 0)
            taps[above] = Taps::of<above>(pixel[above] + row, p);
        denominators[row].from_axes(join<last>(outer_factor(taps, window, p), of_last));
        const Accumulator sum = denominators[row].finish(sums[row]);
        if (is_inside(row))
            store(image + row * p.pixel_stride[above], narrow(olds[row][0].plus(sum)));
    }
}
