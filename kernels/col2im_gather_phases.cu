// col2im by gathering, for strides too large for one thread and for short rows: a thread block owns some
// phases of the last axis in each of many cells.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for many cells
//
// A cell is a stride's worth of pixels along every axis, a phase a pixel's place in its cell. The cells of a
// whole plane are numbered, whatever their rows, and a warp adds up its phases of 32 of them at a time, a
// lane per cell: its lanes read neighbouring blocks of one tap, and taps that no pixel of these phases has
// are skipped by the whole warp. A lane's phases share the index arithmetic and have their loads in flight
// together. The thread block then writes its tile from shared memory, cell by cell, where a thread has the
// same phases of each and divides by denominators whose reciprocals it has made once. It goes through some
// planes, which share all this but the elements. Taps are added in lexicographic order. No atomics and no
// zero fill.
//
// Wins where a stride is too many pixels for one thread, unless a row of pixels is shorter than a stride,
// where rows have too few blocks to fill sectors, and where the last axis has too many taps to unroll and a
// warp of pixels would not read whole sectors.
#include "col2im.cuh"
#include "fusion.cuh"
#include "tile.cuh"

#ifndef LANE_PHASES
#define LANE_PHASES 4
#endif
#ifndef CELLS
#define CELLS 256
#endif
#ifndef MOST_CELLS
#define MOST_CELLS 1
#endif
#ifndef WORD
#define WORD 1
#endif
#ifndef RESIDENT_BLOCKS
#define RESIDENT_BLOCKS 2
#endif

constexpr int lane_phases = LANE_PHASES;
constexpr int phases = warps * lane_phases; // of a tile
constexpr int phase_tiles = (stride[last] + phases - 1) / phases;
constexpr Offset row_taps = Pattern<last>::taps;
constexpr int tile_cells = MOST_CELLS > 1 ? MOST_CELLS * warp_size : 64; // summed up before they are stored
static_assert(CELLS % tile_cells == 0, "all tiles are whole");

// Cells of a lane whose loads are in flight together, where so many taps of the last axis land on a phase.
__device__ constexpr int cells_at_once(Offset count)
{
    int cells = MOST_CELLS;
    while (cells > 1 && cells * count * lane_phases * element_registers > looped_loads)
        cells /= 2;
    return cells;
}

struct PhasesParameters : Parameters {
    Offset in_front;    // pixels of the first cell of a row that are padding
    Offset first_block; // that begins at such a cell
    Offset block_cells; // of a thread block, a multiple of 32, CELLS at most
    Offset cells;       // of a plane
    Offset planes;
    Offset plane_step; // from a plane of a thread block to its next one
    Divisor by_cells[rank];
};

// The taps of the last axis that land on neighbouring phases of cell 0. Along the last axis cells begin where
// blocks do, so that without a dilation neighbouring phases have neighbouring taps of one block.
template <int count> struct RowTaps {
    using pattern = Pattern<last>;
    static constexpr bool dilated = dilation[last] != 1;
    // Whether all of these phases have as many taps.
    static constexpr bool alike = !dilated && stride[last] % phases == 0 && kernel[last] % count == 0;

    Offset phase; // the first
    Taps of[count];

    __device__ RowTaps(Offset first_phase, const PhasesParameters& p) : phase(first_phase)
    {
#pragma unroll
        for (int i = 0; i < count; ++i)
            if constexpr (dilated)
                of[i] = Taps::of<last>(phase + i - p.in_front, p);
            else
                of[i] = {phase + i, p.first_block,
                         (phase + i) * p.tap_stride[last] + p.first_block * p.block_stride[last], true};
    }

    // Whether the number-th tap of a phase is one of the kernel's.
    __device__ bool in_kernel(int i, Offset number) const
    {
        const Taps& taps = of[alike ? 0 : i];
        return (alike || phase + i < stride[last]) && taps.reached &&
               (number + 1 < row_taps || taps.in_kernel<last>(number));
    }
    // Whether that of any phase is.
    __device__ bool any_in_kernel(Offset number) const
    {
        bool any = false;
#pragma unroll
        for (int i = 0; i < count; ++i)
            any = any || in_kernel(i, number);
        return any;
    }
    // Whether it is one of an existing block's, in a cell of the row.
    __device__ bool in_block(int i, Offset number, Offset cell, const Parameters& p) const
    {
        return within(of[i].block + cell - number * pattern::block_step, p.blocks[last]);
    }
    // Whether all blocks that could reach a cell of the row exist.
    __device__ bool is_whole(Offset cell, const Parameters& p) const
    {
        bool whole = true;
#pragma unroll
        for (int i = 0; i < count; ++i)
            whole = whole && in_block(i, 0, cell, p) && in_block(i, row_taps - 1, cell, p);
        return whole;
    }
    // These taps in a cell that is whole, where there is one.
    __device__ RowTaps of_whole() const
    {
        RowTaps taps = *this;
#pragma unroll
        for (int i = 0; i < count; ++i)
            taps.of[i].block = (row_taps - 1) * pattern::block_step;
        return taps;
    }
};
using LaneTaps = RowTaps<lane_phases>;

// The weights of these taps, where the last axis has weights of its own and registers hold them.
constexpr bool keeps_weights = windowed && separable && row_taps * lane_phases <= looped_loads;
template <bool kept = keeps_weights> struct LaneWeights {
    __device__ LaneWeights(const LaneTaps&, const Weights&) {}
    __device__ Weight get(const TapWeight& outer, const LaneTaps& row, int i, Offset number,
                          bool exists) const
    {
        return outer.value_of(row.of[i].tap + number * Pattern<last>::tap_step, exists);
    }
};
template <> struct LaneWeights<true> {
    Weight of[row_taps][lane_phases];

    __device__ LaneWeights(const LaneTaps& row, const Weights& window)
    {
#pragma unroll
        for (int number = 0; number < row_taps; ++number)
#pragma unroll
            for (int i = 0; i < lane_phases; ++i)
                of[number][i] = load_if(window.last() + row.of[i].tap + number * Pattern<last>::tap_step,
                                        row.in_kernel(i, number));
    }
    __device__ Weight get(const TapWeight& outer, const LaneTaps&, int i, Offset number, bool) const
    {
        return outer.times(of[number][i]);
    }
};

// A plane's columns at the first tap of each phase of a lane, in cell 0.
using LaneColumns = const Scalar* [lane_phases];

// What the thread block's cells have in common for all phases.
struct Cells {
    Offset along[rank][CELLS]; // the last is past all blocks where a cell has no pixels
    Offset block[CELLS];       // offsets of their own blocks in the columns
    Offset pixel[CELLS];       // and of their phase 0 in the image
    Offset row_pixel[CELLS];   // phase 0 along the last axis, past the row where a cell has no pixels

    // `count` cells from this one on, and as many without pixels as fill the last tile.
    __device__ void find(Offset first_cell, Offset count, const Place<1>& place, const PhasesParameters& p)
    {
        const Offset end = (count + tile_cells - 1) / tile_cells * tile_cells;
#pragma unroll 1
        for (int cell = threadIdx.x; cell < end; cell += THREADS) {
            Offset number = first_cell + min(Offset(cell), count - 1), at[rank];
            bool live = cell < count;
#pragma unroll
            for (int axis = last; axis > 0; --axis)
                at[axis] = p.by_cells[axis].split(number);
            at[0] = number;
            Offset block_offset = 0, pixel_offset = 0;
#pragma unroll
            for (int axis = 0; axis < rank; ++axis) {
                block_offset += at[axis] * p.block_stride[axis];
                pixel_offset += at[axis] * stride[axis] * p.pixel_stride[axis];
                live = live && (axis == last || place.along[axis] + at[axis] * stride[axis] < p.size[axis]);
                along[axis][cell] = at[axis];
            }
            block[cell] = block_offset;
            pixel[cell] = pixel_offset;
            row_pixel[cell] = live ? at[last] * stride[last] - p.in_front : p.size[last];
            if (!live)
                along[last][cell] = p.blocks[last] + (row_taps + 1) * Pattern<last>::block_step;
        }
    }
};

// What a lane knows for all cells.
struct Lane {
    const PhasesParameters& p;
    const Weights& window;
    const Cells& cells;
    Taps taps[rank]; // of cell 0 along all axes but the last one, the same for the thread block
    LaneTaps row;
    LaneWeights<> weights;

    __device__ Lane(const Place<1>& place, Offset first_phase, const Cells& cells, const Weights& window,
                    const PhasesParameters& p)
        : p(p), window(window), cells(cells), taps(), row(first_phase, p), weights(row, window)
    {
        find_taps<0, last>(taps, place.along, p);
    }
};

// How far a tap of a cell is known: whether it exists, as far as its axes are known, and its weight.
struct Reach {
    bool exists;
    TapWeight weight;
};

// The sums of a lane's phases in `cells` of the thread block's cells, 32 apart. `count` taps of the last axis
// land on some of the phases.
template <Offset count, int cells> struct Sums {
    const Lane& lane;
    LaneColumns& columns;
    Offset along[cells][rank];
    Offset block[cells]; // offset of the cell's own block
    Accumulator of[cells][lane_phases];

    __device__ Sums(const Lane& lane, LaneColumns& columns, int first) : lane(lane), columns(columns), of()
    {
        Reach reach[cells];
#pragma unroll
        for (int c = 0; c < cells; ++c) {
            reach[c] = {true, {&lane.window, 0, 0}};
            block[c] = lane.cells.block[first + c * warp_size];
#pragma unroll
            for (int axis = 0; axis < rank; ++axis)
                along[c][axis] = lane.cells.along[axis][first + c * warp_size];
        }
        add_taps(0, reach, 0);
    }

    __device__ void add_row(Offset offset, const Reach (&reach)[cells], int iteration)
    {
        constexpr int loads = cells * lane_phases; // of a tap
        constexpr int together = count * loads * element_registers <= unrolled_registers
                                     ? int(count)
                                     : (looped_loads + loads - 1) / loads;
        // A weight may be infinite: what does not exist is not added, or weighs nothing where there are more
        // taps than predicates, which would have to be kept until their elements have come.
        constexpr bool keeps_found = windowed && LaneTaps::alike && together * cells <= 5;
#pragma unroll 1
        for (Offset first = 0; first < count; first += together) {
            bool found[together][cells][lane_phases];
            Scalar elements[together][cells][lane_phases];
#pragma unroll
            for (int n = 0; n < together; ++n)
#pragma unroll
                for (int c = 0; c < cells; ++c) {
                    const Offset number = first + n;
#pragma unroll
                    for (int i = 0; i < lane_phases; ++i) {
                        const bool here = (count % together == 0 || number < count) &
                                          lane.row.in_kernel(i, number) & reach[c].exists &
                                          lane.row.in_block(i, number, along[c][last], lane.p);
                        trace_iteration(int(((iteration * row_taps + number) * lane_phases + i) * cells + c));
                        const Scalar* const element =
                            columns[i] + (block[c] + offset + number * lane.p.tap_step_stride[last]);
                        elements[n][c][i] = load_if(element, here);
                        found[n][c][i] = here;
                    }
                }
#pragma unroll
            for (int n = 0; n < together; ++n)
#pragma unroll
                for (int i = 0; i < lane_phases; ++i)
#pragma unroll
                    for (int c = 0; c < cells; ++c) {
                        const bool here = found[n][c][i];
                        Weight weight = lane.weights.get(reach[c].weight, lane.row, i, first + n, here);
                        if constexpr (windowed && !keeps_found)
                            weight = or_zero(weight, here);
                        if (!keeps_found || here)
                            of[c][i] = add(of[c][i], weigh(widen(elements[n][c][i]), weight));
                    }
        }
    }

    // Adds up the taps of the axes from this one on.
    template <int axis = 0>
    __device__ void add_taps(Offset offset, const Reach (&reach)[cells], int iteration)
    {
        if constexpr (count == 0) {
        } else if constexpr (axis == last) {
            add_row(offset, reach, iteration);
        } else {
            using pattern = Pattern<axis>;
            constexpr Offset registers = count * cells * lane_phases * element_registers;
            constexpr bool loop = kernel[axis] % pattern::tap_step != 0 ||
                                  axis < looped_axes<last - 1>(registers, looped_loads);
            const Taps& taps = lane.taps[axis];
#pragma unroll(loop ? 1 : pattern::taps)
            for (Offset number = 0; number < pattern::taps; ++number) {
                if (loop && !taps.template in_kernel<axis>(number))
                    break;
                Reach further[cells];
                bool any = false;
#pragma unroll
                for (int c = 0; c < cells; ++c) {
                    const Offset block = taps.block + along[c][axis] - number * pattern::block_step;
                    further[c].exists = reach[c].exists & taps.template in_kernel<axis>(number) &
                                        within(block, lane.p.blocks[axis]);
                    further[c].weight = reach[c].weight.template along<axis>(
                        taps.tap + number * pattern::tap_step, further[c].exists);
                    any = any || further[c].exists;
                }
                if (loop && !any)
                    continue; // what no lane has is skipped by the warp
                add_taps<axis + 1>(offset + taps.offset + number * lane.p.tap_step_stride[axis], further,
                                   int(iteration * pattern::taps + number));
            }
        }
    }
};

// The denominators of neighbouring phases in one cell.
template <int count> struct Denominators {
    Denominator of[count];

    __device__ Denominators(const Taps (&taps)[rank], const RowTaps<count>& row, Offset cell,
                            const Weights& window, const Parameters& p)
    {
        if constexpr (divides_by_taps)
            for_each_tap<0, last, looped_loads>(
                taps, p, 0, true, 0, TapWeight{&window},
                [&](Offset, bool exists, int iteration, const TapWeight& outer) {
#pragma unroll 1
                    for (Offset number = 0; number < row_taps; ++number)
#pragma unroll
                        for (int i = 0; i < count; ++i) {
                            trace_iteration(int((iteration * row_taps + number) * count + i));
                            of[i].add_tap(outer.value_of(row.of[i].tap + number * Pattern<last>::tap_step,
                                                         exists && row.in_kernel(i, number) &&
                                                             row.in_block(i, number, cell, p)));
                        }
                });
        RowFactors<count> factors(taps, window, p);
#pragma unroll 1
        for (Offset number = 0; number < row_taps; ++number)
#pragma unroll
            for (int i = 0; i < count; ++i) {
                trace_iteration(int(number) * count + i);
                factors.add_tap(i, row.of[i].tap + number * Pattern<last>::tap_step,
                                row.in_kernel(i, number) && row.in_block(i, number, cell, p));
            }
#pragma unroll
        for (int i = 0; i < count; ++i)
            of[i].from_axes(factors, i);
    }
};

// Moves the taps of all axes but the last one into a cell, or into one that is whole, where there is one.
template <int axis = 0> __device__ void move_taps(Taps (&taps)[rank], const Cells& cells, int cell)
{
    if constexpr (axis < last) {
        taps[axis].block += cells.along[axis][cell];
        move_taps<axis + 1>(taps, cells, cell);
    }
}
template <int axis = 0> __device__ void make_whole(Taps (&taps)[rank])
{
    if constexpr (axis < last) {
        taps[axis].block = (Pattern<axis>::taps - 1) * Pattern<axis>::block_step;
        make_whole<axis + 1>(taps);
    }
}

// Whether all blocks exist that could reach a cell, from its taps along all axes but the last one.
template <int axis = 0> __device__ bool is_whole(const Taps (&taps)[rank], const Parameters& p)
{
    if constexpr (axis == last)
        return true;
    else
        return within(taps[axis].block, p.blocks[axis]) &&
               within(taps[axis].block - (Pattern<axis>::taps - 1) * Pattern<axis>::block_step,
                      p.blocks[axis]) &&
               is_whole<axis + 1>(taps, p);
}

// Neighbouring pixels in shared memory.
__device__ constexpr int aligned(int bytes)
{
    return bytes < 16 ? bytes : 16;
}
template <int word> struct alignas(aligned(word * sizeof(TiledSum))) Pixels {
    TiledSum of[word];
};

// Fills a lane's part of the tile, cell by cell.
template <int word, Offset count, int pitch>
__device__ void fill_tile(Pixels<word> (&tile)[tile_cells][pitch], Offset first_cell, Offset end,
                          const Lane& lane, LaneColumns& columns)
{
    const int column = threadIdx.x / warp_size * (lane_phases / word);
    constexpr int cells = cells_at_once(count);
#pragma unroll 1
    for (int cell = threadIdx.x % warp_size; cell < end; cell += cells * warp_size) {
        Sums<count, cells> sums(lane, columns, first_cell + cell);
#pragma unroll
        for (int c = 0; c < cells; ++c)
#pragma unroll
            for (int i = 0; i < lane_phases / word; ++i) {
                Pixels<word> pixels;
#pragma unroll
                for (int j = 0; j < word; ++j)
                    pixels.of[j] = TiledSum::of(sums.of[c][i * word + j]);
                tile[cell + c * warp_size][column + i] = pixels;
            }
    }
}

// Makes pixels of the sums of a thread's phases in a cell. Where all blocks exist that could reach a cell,
// its denominators are those of all such cells.
template <int word, bool averaging = averages> struct Finish {
    __device__ Finish(Offset, const Lane&) {}

    // Whether these are the pixels; else they must be made with care.
    __device__ bool operator()(Result (&pixels)[word], const Pixels<word>& sums, const OldPixel (&old)[word],
                               int) const
    {
#pragma unroll
        for (int j = 0; j < word; ++j)
            if constexpr (rounds_in_tile)
                pixels[j] = sums.of[j].value;
            else
                pixels[j] = narrow(old[j].plus(sums.of[j].value));
        return true;
    }
};
template <int word> struct Finish<word, true> {
    const Lane& lane;
    RowTaps<word> row;
    Divisors<word> of_whole;

    __device__ Finish(Offset phase, const Lane& lane)
        : lane(lane), row(phase, lane.p), of_whole(denominators_of_whole().of)
    {
    }
    __device__ Denominators<word> denominators_of_whole() const
    {
        Taps taps[rank];
        memcpy(taps, lane.taps, sizeof(taps));
        make_whole(taps);
        return {taps, row.of_whole(), 0, lane.window, lane.p};
    }

    __device__ bool operator()(Result (&pixels)[word], const Pixels<word>& sums, const OldPixel (&old)[word],
                               int cell) const
    {
        Taps taps[rank];
        memcpy(taps, lane.taps, sizeof(taps));
        move_taps(taps, lane.cells, cell);
        Accumulator averages_of[word];
#pragma unroll
        for (int j = 0; j < word; ++j)
            averages_of[j] = sums.of[j].value;
        const bool divided = of_whole.divides(averages_of);
#pragma unroll
        for (int j = 0; j < word; ++j)
            pixels[j] = narrow(old[j].plus(averages_of[j]));
        return divided & is_whole(taps, lane.p) & row.is_whole(lane.cells.along[last][cell], lane.p);
    }
    __device__ void with_care(Result (&pixels)[word], const Pixels<word>& sums, const OldPixel (&old)[word],
                              int cell) const
    {
        Taps taps[rank];
        memcpy(taps, lane.taps, sizeof(taps));
        move_taps(taps, lane.cells, cell);
        const Denominators<word> denominators(taps, row, lane.cells.along[last][cell], lane.window, lane.p);
#pragma unroll
        for (int j = 0; j < word; ++j)
            pixels[j] = narrow(old[j].plus(denominators.of[j].finish(sums.of[j].value)));
    }
};

// Stores `word` neighbouring pixels at once, which divide a stride.
template <int word>
__device__ void gather_phases(const Scalar* __restrict__ columns, Result* __restrict__ image,
                              const Weights& window, const PhasesParameters& p)
{
    constexpr int row_words = phases / word;
    // Lanes fill words of neighbouring cells and read neighbouring words of a cell: an odd pitch serves both.
    __shared__ Pixels<word> tile[tile_cells][row_words | 1];
    __shared__ Cells cells;
    const Place<1> place(blockIdx.x, p);
    const Offset first_phase = place.along[last] % phase_tiles * phases;
    const Offset block_cell = place.along[last] / phase_tiles * p.block_cells;
    const Offset count = min(p.block_cells, p.cells - block_cell);
    cells.find(block_cell, count, place, p);
    const Lane lane(place, first_phase + threadIdx.x / warp_size * lane_phases, cells, window, p);

    constexpr int at_once = THREADS / row_words;          // cells that the thread block stores at once
    constexpr int batch = lane_phases / word < 2 ? 2 : 4; // of cells whose old pixels are in flight together
    constexpr bool fits = tile_cells % (batch * at_once) == 0;
    const int column = threadIdx.x % row_words;
    const Offset phase = first_phase + column * word;
    const bool stores = threadIdx.x < at_once * row_words && phase < stride[last];
    Offset own_pixel = (phase - p.in_front) * p.pixel_stride[last]; // of cell 0
#pragma unroll
    for (int axis = 0; axis < last; ++axis)
        own_pixel += place.along[axis] * p.pixel_stride[axis];
    const Finish<word> finish(phase, lane);

#pragma unroll 1
    for (Offset plane = place.batch * p.channels + place.channel; plane < p.planes; plane += p.plane_step) {
        Offset of_batch = plane;
        const Offset channel = p.by_channels.split(of_batch);
        LaneColumns lane_columns;
#pragma unroll
        for (int i = 0; i < lane_phases; ++i) {
            lane_columns[i] =
                columns + of_batch * p.columns_batch + channel * p.columns_channel + lane.row.of[i].offset;
            keep(lane_columns[i]);
        }
        Result* first_pixel = image + of_batch * p.image_batch + channel * p.image_channel + own_pixel;
        if constexpr (!accumulates) // what is loaded must be known to lie in global memory
            keep(first_pixel);
#pragma unroll 1
        for (Offset first_cell = 0; first_cell < count; first_cell += tile_cells) {
            __syncthreads();
            const Offset end = min(count - first_cell, Offset(tile_cells));
            if (kernel[last] % Pattern<last>::tap_step == 0 || lane.row.any_in_kernel(row_taps - 1))
                fill_tile<word, row_taps>(tile, first_cell, end, lane, lane_columns);
            else
                fill_tile<word, row_taps - 1>(tile, first_cell, end, lane, lane_columns);
            __syncthreads();
#pragma unroll 1
            for (int first = stores ? threadIdx.x / row_words : tile_cells; first < tile_cells;
                 first += batch * at_once) {
                OldPixel old[batch][word];
                Result* address[batch];
                bool exists[batch];
#pragma unroll
                for (int i = 0; i < batch; ++i) {
                    const int cell = fits ? first + i * at_once : min(first + i * at_once, tile_cells - 1);
                    exists[i] = (fits || first + i * at_once < tile_cells) &&
                                within(cells.row_pixel[first_cell + cell] + phase, p.size[last]);
                    address[i] = first_pixel + cells.pixel[first_cell + cell];
                    trace_iteration(int((first_cell + first) / at_once) + i);
                    OldPixel::load_wide(old[i], address[i], exists[i]);
                }
                unsigned ragged = 0; // cells that are not whole, or whose sums are extreme
#pragma unroll
                for (int i = 0; i < batch; ++i) {
                    const int cell = fits ? first + i * at_once : min(first + i * at_once, tile_cells - 1);
                    const Pixels<word> pixels = exists[i] ? tile[cell][column] : Pixels<word>{};
                    Result elements[word];
                    const bool stored = finish(elements, pixels, old[i], int(first_cell) + cell) & exists[i];
                    trace_iteration(int((first_cell + first) / at_once) + i);
                    if (stored)
                        store_wide(address[i], elements);
                    ragged |= unsigned(exists[i] & !stored) << i;
                }
                if constexpr (averages)
#pragma unroll 1
                    for (int i = 0; ragged >> i != 0; ++i)
                        if (ragged >> i & 1) {
                            const int cell = first + i * at_once;
                            Result* const pixel = first_pixel + cells.pixel[first_cell + cell];
                            OldPixel old_of_cell[word];
                            trace_iteration(int((first_cell + first) / at_once) + i);
                            OldPixel::load_wide(old_of_cell, pixel, true);
                            Result elements[word];
                            finish.with_care(elements, tile[cell][column], old_of_cell,
                                             int(first_cell) + cell);
                            store_wide(pixel, elements);
                        }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    col2im_gather_phases(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const PhasesParameters p)
{
    gather_phases<1>(columns, image, window, p);
}

// The same for pixels that lie in words.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    col2im_gather_phases_words(const Scalar* __restrict__ columns, Result* __restrict__ image,
                               const Weights window, const PhasesParameters p)
{
    if constexpr (WORD > 1)
        gather_phases<WORD>(columns, image, window, p);
}
