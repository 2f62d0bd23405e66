// im2col where blocks are far apart and overlap: one thread block takes the same few taps of many blocks
// whose positions follow each other in the columns, through a tile in shared memory.
//
//   image    (batch, channels, *size)                read, contiguous along the last axis
//   columns  (batch, channels, *kernel, *positions)  each element written once, last axis contiguous
//   window   weights of the taps, always null        not read
//
// A cell is STRIDE pixels of a row, from a block's tap 0 on; its block reaches into the cells behind it too,
// and tap k is pixel k%STRIDE of the k/STRIDE-th. A tile holds PART pixels of each cell, loaded once for all
// taps that want them. Taps of the row axis share the tile where the blocks of another row meet the same
// pixels: a class of taps, class_step apart. The further the tap, the earlier are the positions that want
// these pixels, so that positions are counted as those of the class's first tap.
//
// A thread takes a word of positions, WORD elements or 16 bytes, of CHUNK_TAPS taps. Words are aligned in the
// columns, so that a tap's begin TAP_SKEW positions earlier than those of the tap before, modulo WORD. The
// positions of all rows are one run, and only its ends are stored in parts of words.
//
// Wins for strides of some pixels, where a row of the columns begins at any byte of a sector and planes have
// enough blocks to keep a thread block busy.
#include "common.cuh"
#include "window.cuh"

#ifndef SPATIAL_RANK
#define SPATIAL_RANK 2
#endif
#ifndef KERNEL_WIDTH
#define KERNEL_WIDTH 16
#endif
#ifndef STRIDE
#define STRIDE 8
#endif
#ifndef CHUNK_TAPS
#define CHUNK_TAPS 8
#endif
#ifndef PART
#define PART 8
#endif
#ifndef PIECE
#define PIECE 1
#endif
#ifndef LOADS_AT_ONCE
#define LOADS_AT_ONCE 8
#endif
#ifndef PITCH
#define PITCH 1028
#endif
#ifndef WORD
#define WORD 4
#endif
#ifndef TAP_SKEW
#define TAP_SKEW 0
#endif
#ifndef ONE_ROW
#define ONE_ROW 0
#endif
constexpr int spatial_rank = SPATIAL_RANK; // two at least: an axis of one pixel where there is no other
constexpr int last_axis = spatial_rank - 1, row_axis = spatial_rank - 2;
constexpr int kernel_width = KERNEL_WIDTH, stride = STRIDE;
constexpr int chunk_taps = CHUNK_TAPS; // of a part, that a thread stores
constexpr int part = PART;             // pixels of a cell in a tile
constexpr int piece = PIECE;           // of them, loaded as one aligned word, which pads and ends do not cut
constexpr int loads_at_once = LOADS_AT_ONCE; // of a thread
constexpr int pitch = PITCH;                 // from a pixel of the tile's cells to the next
constexpr int word = WORD;                   // positions
constexpr int tap_skew = TAP_SKEW;           // the distance of two taps in the columns modulo WORD
constexpr bool one_row = ONE_ROW;            // of positions in a run
static_assert(part % piece == 0 && part % chunk_taps == 0, "a part is whole pieces and chunks");
constexpr int wanted_pixels = kernel_width < stride ? kernel_width : stride; // of a cell
constexpr int parts = (wanted_pixels + part - 1) / part;
constexpr int chunks = part / chunk_taps;
constexpr bool chunks_are_whole = kernel_width % chunk_taps == 0 && stride % chunk_taps == 0;
constexpr int reach = (kernel_width - 1) / stride; // cells that a block reaches into behind its own
constexpr int lead = 2 * word - 2; // positions by which a word may begin before those that a thread counts
constexpr int pieces_of_part = part / piece;
constexpr int cells_at_once = THREADS / pieces_of_part; // that a thread block loads, a piece for each thread
// Blocks of threads, as registers allow: words of narrow elements are made from more places.
constexpr int resident = sizeof(Offset) > 4 ? 2 : sizeof(Scalar) < 4 ? 3 : 4;

struct Parameters {
    Offset size[spatial_rank]; // pixels of the image
    Offset stride[spatial_rank];
    Offset dilation[spatial_rank];
    Offset pad[spatial_rank];
    Offset pixel_step[spatial_rank];    // elements of the image from one pixel to the next
    Offset tap_step[spatial_rank];      // elements of the columns from one tap to the next
    Offset position_step[spatial_rank]; // elements of the columns from one position to the next
    Divisor positions[spatial_rank];
    Divisor kernel[spatial_rank];
    Divisor row_classes;  // of taps of the row axis
    Offset class_step;    // from a tap of a class to the next one
    Offset class_shift;   // positions by which the same pixels are then wanted earlier
    Offset run_positions; // of all rows
    Divisor row_cells;    // that the blocks of a row of positions reach into
    Offset cells;         // of a tile
    Divisor words;        // of a tile, for each tap
    Divisor tiles;        // of a run
    Divisor channels;
    long long image_batch_step, image_channel_step;
    long long columns_batch_step, columns_channel_step;
};

// Where a cell is in the tile, `further` cells from another. Threads store and load cells that are next to
// each other, and load cells that are a word apart: so cells change places within words, each run of 128
// bytes in its own way, and a warp finds every bank once, wherever its first word begins.
inline __device__ int place_of(int cell, int further = 0)
{
    constexpr int run = 128 / int(sizeof(Scalar)), bank = sizeof(Scalar) < 4 ? 4 / int(sizeof(Scalar)) : 1;
    constexpr int runs = word < 4 ? word : 4;
    if (further % run) // known as it is compiled
        return place_of(cell + further);
    return (cell ^ int((unsigned(cell) / run + further / run) % runs) * bank) + further;
}

// How many positions earlier the words of a tap begin than those of its chunk's first tap.
inline __device__ constexpr int skew_of(int tap)
{
    return tap * tap_skew % word;
}

// Stores a word.
template <typename Element, int count>
inline __device__ void store_elements(Element* target, const Element (&elements)[count])
{
    store_wide(target, elements);
}
#ifndef HOSTCUDA
// Elements that have a register each are stored from those: of halves of a word the compiler would make
// copies first.
inline __device__ void store_elements(Word<4>* target, const Word<4> (&elements)[4])
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(elements[0]), "r"(elements[1]),
                 "r"(elements[2]), "r"(elements[3])
                 : "memory");
}
#endif

// Stores a word of each tap of a chunk, or what of it is in the run; `first` is the position that the first
// tap's word begins at. The tile has the word's positions, and those before that the other taps' words begin
// at, `places` bytes from its begin.
template <bool whole>
inline __device__ void store_words(Scalar* columns, const Scalar* tile, const int (&places)[lead + 1],
                                   Offset first, int taps, const Parameters& p)
{
#pragma unroll
    for (int tap = 0; tap < chunk_taps; ++tap) {
        if (!chunks_are_whole && tap >= taps)
            break;
        Scalar elements[word];
#pragma unroll
        for (int i = 0; i < word; ++i) {
            const int place = places[word - 1 - skew_of(tap) + i] + tap * pitch * int(sizeof(Scalar));
            elements[i] = *reinterpret_cast<const Scalar*>(reinterpret_cast<const char*>(tile) + place);
        }
        Scalar* const target = columns - skew_of(tap);
        const Offset position = first - skew_of(tap);
        if (whole || within(position, p.run_positions - (word - 1)))
            store_elements(target, elements);
        else
#pragma unroll
            for (int i = 0; i < word; ++i)
                if (within(position + i, p.run_positions))
                    store(target + i, elements[i]);
        columns += p.tap_step[last_axis];
        keep(columns);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, resident)
    im2col_cells(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                 const Parameters p)
{
    __shared__ Scalar tile[part * pitch];
    Offset rest = Offset(blockIdx.x);
    const Offset first_position = p.tiles.split(rest) * (p.words.divisor * word);
    const int first_pixel = int(rest % parts) * part; // of a cell
    rest /= parts;
    const Offset first_row_tap = p.row_classes.split(rest);
    Offset tap[spatial_rank];
#pragma unroll
    for (int axis = row_axis - 1; axis >= 0; --axis)
        tap[axis] = p.kernel[axis].split(rest);
    bool inside = true; // along the axes outside of rows
#pragma unroll
    for (int axis = row_axis - 1; axis >= 0; --axis) {
        const Offset position = p.positions[axis].split(rest);
        const Offset pixel = position * p.stride[axis] + tap[axis] * p.dilation[axis] - p.pad[axis];
        inside &= within(pixel, p.size[axis]);
        image += pixel * p.pixel_step[axis];
        columns += position * p.position_step[axis] + tap[axis] * p.tap_step[axis];
    }
    const Offset channel = p.channels.split(rest), batch = rest;
    image += batch * p.image_batch_step + channel * p.image_channel_step;
    columns += batch * p.columns_batch_step + channel * p.columns_channel_step;

    // The first tile begins before the first row: rows are counted from one more before.
    const Offset row_positions = p.positions[last_axis].divisor, row_cells = p.row_cells.divisor;
    Offset first_row = one_row ? 1 : first_position - lead + row_positions;
    const Offset first_of_row = one_row ? first_position - lead : p.positions[last_axis].split(first_row);

    if (threadIdx.x < cells_at_once * pieces_of_part) {
        const Scalar* plane = image;
        keep(plane);
        const int first_cell = int(threadIdx.x) / pieces_of_part;
        const int pixel = (int(threadIdx.x) - first_cell * pieces_of_part) * piece; // of a part
        Scalar* const place = tile + pixel * pitch;
        const Offset first_column = first_pixel + pixel - p.pad[last_axis];
        const Offset rows = inside ? p.size[row_axis] : 0;
        Offset row_step = cells_at_once;
        const Offset step = one_row ? cells_at_once : p.row_cells.split(row_step);
        Offset row = one_row ? 0 : first_of_row + first_cell;
        Offset cell_of_row = one_row ? first_of_row + first_cell : p.row_cells.split(row);
        row = (first_row - 1 + row) * p.stride[row_axis] + first_row_tap * p.dilation[row_axis] -
              p.pad[row_axis];
        const Scalar* from = plane + (row * p.pixel_step[row_axis] + (cell_of_row * stride + first_column));
        keep(from);
#pragma unroll 1
        for (int cell = first_cell; cell < int(p.cells); cell += loads_at_once * cells_at_once) {
            trace_iteration(cell);
            Scalar pixels[loads_at_once][piece];
#pragma unroll
            for (int i = 0; i < loads_at_once; ++i) {
                const Offset column = cell_of_row * stride + first_column;
                if (!one_row)
                    from = plane + (row * p.pixel_step[row_axis] + column);
                load_wide_if(pixels[i], from + (one_row ? i * cells_at_once * Offset(stride) : 0),
                             within(row, rows) & within(column, p.size[last_axis]) &
                                 (cell + i * cells_at_once < int(p.cells)));
                cell_of_row += step;
                if (!one_row) {
                    const bool next = cell_of_row >= row_cells;
                    cell_of_row -= next ? row_cells : 0;
                    row += (row_step + next) * p.stride[row_axis];
                }
            }
            from += loads_at_once * cells_at_once * Offset(stride);
#pragma unroll
            for (int i = 0; i < loads_at_once; ++i)
#pragma unroll
                for (int k = 0; k < piece; ++k)
                    place[place_of(cell, i * cells_at_once) + k * pitch] = pixels[i][k];
        }
    }
    __syncthreads();

    const Offset tasks = p.words.divisor * chunks;
    for (Offset task = threadIdx.x; task < tasks; task += THREADS) {
        Offset chunk = task;
        const Offset position = first_position + p.words.split(chunk) * word;
        const int first_of_chunk = first_pixel + (chunks > 1 ? int(chunk) * chunk_taps : 0);
        if (first_of_chunk >= wanted_pixels)
            continue;
        const int chunk_place = (first_of_chunk - first_pixel) * pitch;
        // The earliest position that a word may begin at.
        Offset row = one_row ? 1 : position - lead + row_positions;
        const Offset of_row = one_row ? position - lead : p.positions[last_axis].split(row);
        int earliest = int((row - first_row) * row_cells + (of_row - first_of_row)); // cell
        Offset to_row_end = row_positions - of_row;
        keep(earliest);
        keep(to_row_end);
        Scalar* row_target = columns + first_row_tap * p.tap_step[row_axis] +
                             first_of_chunk * p.tap_step[last_axis] + position;
        Offset in_run = position;
#pragma unroll 1
        for (Offset row_tap = first_row_tap; row_tap < p.kernel[row_axis].divisor; row_tap += p.class_step) {
            keep(row_target);
            int past = elements_past<word>(row_target);
            keep(past);
            Scalar* target = row_target;
#pragma unroll 1
            for (int behind = 0; behind <= reach; ++behind) { // cells
                trace_iteration(int((task * p.kernel[row_axis].divisor + row_tap) * (reach + 1) + behind));
                const int first_tap = behind * stride + first_of_chunk;
                if (first_tap >= kernel_width)
                    break;
                const int before = int(unsigned(past + behind * (stride % word * tap_skew % word)) % word);
                const Offset first = in_run - before;
                if (within(first + (word - 1), p.run_positions + lead)) {
                    const int skipped = word - 1 - before;
                    int cell = earliest + skipped + behind, places[lead + 1];
                    Offset row_end = to_row_end - skipped;
                    keep(cell);
                    keep(row_end);
#pragma unroll
                    for (int i = 0; i <= lead; ++i) {
                        const int between = !one_row && i >= row_end ? reach : 0; // rows, cells of none
                        places[i] = (place_of(cell + i + between) + chunk_place) * int(sizeof(Scalar));
                        keep(places[i]);
                    }
                    const int taps = min(stride - first_of_chunk, kernel_width - first_tap);
                    if (first >= word - 1 && first <= p.run_positions - word)
                        store_words<true>(target - before, tile, places, first, taps, p);
                    else
                        store_words<false>(target - before, tile, places, first, taps, p);
                }
                target += stride * p.tap_step[last_axis];
                keep(target);
            }
            row_target += p.class_step * p.tap_step[row_axis] - p.class_shift;
            in_run -= p.class_shift;
        }
    }
}
