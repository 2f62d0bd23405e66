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
// together; in an image of one axis neighbouring cells share addresses too. The thread block then writes its
// tile from shared memory, cell by cell, where a thread has the same phases of each and divides by
// denominators whose reciprocals it has made once. Thread blocks come in full waves and share out pieces of
// planes evenly; planes share all this but the elements. Taps are added in lexicographic order. No atomics
// and no zero fill.
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
#ifndef BLOCKS_FOLLOW
#define BLOCKS_FOLLOW 0
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
constexpr bool one_row = rank == 1;           // of cells, in a plane
constexpr bool blocks_follow = BLOCKS_FOLLOW; // each other in memory, along the last axis

// Registers that the loads of a lane fill, which are in flight together.
constexpr int most_loads = one_row ? 2 * looped_loads : looped_loads;

// Cells of a lane whose loads are in flight together, where so many taps of the last axis land on a phase.
__device__ constexpr int cells_at_once(Offset count)
{
    int cells = MOST_CELLS;
    while (cells > 1 && cells * count * lane_phases * element_registers > most_loads)
        cells /= 2;
    return cells;
}

struct PhasesParameters : Parameters {
    Offset in_front;    // pixels of the first cell of a row that are padding
    Offset first_block; // that begins at such a cell
    Offset cells;       // of a plane
    Offset piece_cells; // of a piece of a plane, a multiple of 32, CELLS at most
    Offset pieces;      // of a plane
    Offset planes;
    Offset own_pieces;                          // of a thread block, at least
    Offset longer;                              // thread blocks that have one more, spread over all
    long long columns_to_batch, image_to_batch; // from the last plane of a batch to the first of the next
    Divisor by_pieces, by_planes, by_items;
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
        constexpr Offset reach = (row_taps - 1) * pattern::block_step;
        const Offset wholes = max(p.blocks[last] - reach, Offset(0));
        bool whole = true;
#pragma unroll
        for (int i = 0; i < count; ++i)
            whole = whole && within(of[i].block + cell - reach, wholes);
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

// Whether all blocks exist along all axes but the last one that could reach a cell.
template <int axis = 0>
__device__ bool are_whole(const Taps (&taps)[rank], const Offset (&cell)[rank], const Parameters& p)
{
    if constexpr (axis == last) {
        return true;
    } else {
        const Offset block = taps[axis].block + cell[axis];
        return within(block, p.blocks[axis]) &&
               within(block - (Pattern<axis>::taps - 1) * Pattern<axis>::block_step, p.blocks[axis]) &&
               are_whole<axis + 1>(taps, cell, p);
    }
}

// A plane's columns at the first tap of each phase of a lane, in cell 0. Of the first phase alone, where the
// address of each is made of that of the phase before.
constexpr bool walks_phases = !LaneTaps::dilated && MOST_CELLS > 1;
using LaneColumns = const Scalar * [walks_phases ? 1 : lane_phases];

// Where the pixels of a cell are.
struct alignas(2 * sizeof(Offset)) CellPixels {
    Offset row;    // phase 0 along the last axis, past the row where a cell has no pixels
    Offset offset; // of phase 0 in the image
};

// Where averages are made, cells along the last axis, past all blocks where other axes lack some of theirs.
template <bool averaging = averages> struct WholeCells {
    Offset whole[CELLS];

    __device__ void set_whole(int cell, Offset at) { whole[cell] = at; }
    __device__ Offset whole_at(int cell) const { return whole[cell]; }
};
template <> struct WholeCells<false> {
    __device__ void set_whole(int, Offset) {}
    __device__ Offset whole_at(int) const { return 0; }
};

// What a piece's cells have in common for all phases.
template <bool found = !one_row> struct CellsOf : WholeCells<> {
    Offset along[rank][CELLS]; // the last is past all blocks where a cell has no pixels
    Offset blocks[CELLS];      // offsets of their own blocks in the columns
    CellPixels in_image[CELLS];

    // Those of a piece, and as many without pixels as fill its last tile.
    __device__ void find(Offset piece, const Place<1>& place, const Taps (&taps)[rank],
                         const PhasesParameters& p)
    {
        const Offset first_cell = piece * p.piece_cells, count = this->count(piece, p);
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
            const Offset past = p.blocks[last] + (row_taps + 1) * Pattern<last>::block_step;
            blocks[cell] = block_offset;
            in_image[cell] = {live ? at[last] * stride[last] - p.in_front : p.size[last], pixel_offset};
            this->set_whole(cell, are_whole(taps, at, p) ? at[last] : past);
            if (!live)
                along[last][cell] = past;
        }
    }

    static __device__ Offset count(Offset piece, const PhasesParameters& p)
    {
        return min(p.piece_cells, p.cells - piece * p.piece_cells);
    }
    __device__ Offset at(int axis, int cell) const { return along[axis][cell]; }
    __device__ Offset block(int cell, const PhasesParameters&) const { return blocks[cell]; }
    template <int> __device__ CellPixels pixels(int cell, const PhasesParameters&) const
    {
        return in_image[cell];
    }
};
// The same of a row, whose cells a thread need not look up.
template <> struct CellsOf<false> {
    Offset first;

    __device__ void find(Offset piece, const Place<1>&, const Taps (&)[rank], const PhasesParameters&)
    {
        first = piece * tile_cells;
    }

    static __device__ Offset count(Offset piece, const PhasesParameters& p)
    {
        return min(Offset(tile_cells), p.cells - piece * tile_cells);
    }
    __device__ Offset at(int, int cell) const { return first + cell; }
    __device__ Offset block(int cell, const PhasesParameters& p) const
    {
        return (first + cell) * (blocks_follow ? 1 : p.block_stride[last]);
    }
    template <int word> __device__ CellPixels pixels(int cell, const PhasesParameters& p) const
    {
        const Offset pixel = (first + cell) * stride[last];
        return {pixel - p.in_front, pixel * (word > 1 ? 1 : p.pixel_stride[last])};
    }
    __device__ Offset whole_at(int cell) const { return first + cell; }
};
using Cells = CellsOf<>;

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

// The sums of a lane's phases in `cells` of a piece's cells, 32 apart. `count` taps of the last axis land on
// some of the phases. Where the cells of a row are `whole`, their blocks exist.
template <Offset count, int cells, bool whole> struct Sums {
    const Lane& lane;
    LaneColumns& columns;
    int first; // cell
    Offset along[cells][rank];
    Offset block[cells]; // offset of the cell's own block
    Accumulator of[cells][lane_phases];

    __device__ Sums(const Lane& lane, LaneColumns& columns, int first)
        : lane(lane), columns(columns), first(first), of()
    {
        Reach reach[cells];
#pragma unroll
        for (int c = 0; c < cells; ++c) {
            reach[c] = {true, {&lane.window, 0, 0}};
            if (cells == 1 || one_row)
                block[c] = lane.cells.block(first + c * warp_size, lane.p);
#pragma unroll
            for (int axis = 0; axis < (cells == 1 || one_row ? rank : last); ++axis)
                along[c][axis] = lane.cells.at(axis, first + c * warp_size);
        }
        add_taps(0, reach, 0);
    }

    __device__ void add_row(Offset offset, const Reach (&reach)[cells], int iteration)
    {
        if constexpr (cells > 1 && !one_row) { // looked up row by row, for want of registers
            int cell = first;
            forget(cell);
#pragma unroll
            for (int c = 0; c < cells; ++c) {
                block[c] = lane.cells.block(cell + c * warp_size, lane.p);
                along[c][last] = lane.cells.at(last, cell + c * warp_size);
            }
        }
        constexpr int loads = cells * lane_phases; // of a tap
        constexpr int together = count * loads * element_registers <= unrolled_registers
                                     ? int(count)
                                     : (looped_loads + loads - 1) / loads;
        // A weight may be infinite: what does not exist is not added, or weighs nothing where there are more
        // taps than predicates, which would have to be kept until their elements have come.
        constexpr bool keeps_found = LaneTaps::alike && (whole || together * cells <= 5);
#pragma unroll 1
        for (Offset begin = 0; begin < count; begin += together) {
            bool found[together][lane_phases][cells];
            Scalar elements[together][lane_phases][cells];
#pragma unroll
            for (int n = 0; n < together; ++n) {
                const Offset number = begin + n;
                const Offset of_tap = offset + number * lane.p.tap_step_stride[last];
                const Scalar* element[cells];
#pragma unroll
                for (int c = 0; c < cells; ++c)
                    element[c] = columns[0] + (block[c] + of_tap);
#pragma unroll
                for (int i = 0; i < lane_phases; ++i) {
                    const Scalar* const of_first = element[0];
#pragma unroll
                    for (int c = 0; c < cells; ++c) {
                        const bool here = (count % together == 0 || number < count) &
                                          (LaneTaps::alike || lane.row.in_kernel(i, number)) &
                                          reach[c].exists &
                                          (whole || lane.row.in_block(i, number, along[c][last], lane.p));
                        trace_iteration(int(((iteration * row_taps + number) * lane_phases + i) * cells + c));
                        const Scalar* const address = !walks_phases ? columns[i] + (block[c] + of_tap)
                                                      : one_row     ? of_first + (block[c] - block[0])
                                                                    : element[c];
                        if constexpr (keeps_found)
                            elements[n][i][c] =
                                bit_cast<Scalar>(load_word_or_any<sizeof(Scalar)>(address, here));
                        else
                            elements[n][i][c] = load_if(address, here);
                        found[n][i][c] = here;
                        element[c] += lane.p.tap_stride[last];
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < together; ++n)
#pragma unroll
                for (int i = 0; i < lane_phases; ++i)
#pragma unroll
                    for (int c = 0; c < cells; ++c) {
                        const bool here = found[n][i][c];
                        Weight weight = lane.weights.get(reach[c].weight, lane.row, i, begin + n, here);
                        if constexpr (windowed && !keeps_found)
                            weight = or_zero(weight, here);
                        if (!keeps_found || here)
                            of[c][i] = add(of[c][i], weigh(widen(elements[n][i][c]), weight));
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
#pragma unroll(4)
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
#pragma unroll(4)
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

// Moves the taps of all axes but the last one into a cell.
template <int axis = 0> __device__ void move_taps(Taps (&taps)[rank], const Cells& cells, int cell)
{
    if constexpr (axis < last) {
        taps[axis].block += cells.at(axis, cell);
        move_taps<axis + 1>(taps, cells, cell);
    }
}
// The same into a cell that is whole, where there is one.
template <int axis = 0> __device__ void make_whole(Taps (&taps)[rank])
{
    if constexpr (axis < last) {
        taps[axis].block = (Pattern<axis>::taps - 1) * Pattern<axis>::block_step;
        make_whole<axis + 1>(taps);
    }
}

// Neighbouring pixels in shared memory.
__device__ constexpr int aligned(int bytes)
{
    return bytes < 16 ? bytes : 16;
}
template <int word> struct alignas(aligned(word * sizeof(TiledSum))) Pixels {
    TiledSum of[word];
};

// Puts a lane's sums into the tile.
template <int word, int cells, int pitch>
__device__ void put(Pixels<word> (&tile)[tile_cells][pitch], int cell,
                    const Accumulator (&sums)[cells][lane_phases])
{
    const int column = threadIdx.x / warp_size * (lane_phases / word);
#pragma unroll
    for (int c = 0; c < cells; ++c)
#pragma unroll
        for (int i = 0; i < lane_phases / word; ++i) {
            Pixels<word> pixels;
#pragma unroll
            for (int j = 0; j < word; ++j)
                pixels.of[j] = TiledSum::of(sums[c][i * word + j]);
            tile[cell + c * warp_size][column + i] = pixels;
        }
}

// Fills a lane's part of the tile, cell by cell, up to that of `end` of the piece.
template <int word, Offset count, int pitch>
__device__ void fill_tile(Pixels<word> (&tile)[tile_cells][pitch], int first_cell, int end, const Lane& lane,
                          LaneColumns& columns)
{
    constexpr int cells = cells_at_once(count);
#pragma unroll 1
    for (int cell = 0; cell < end; cell += cells * warp_size) {
        const int own = cell + threadIdx.x % warp_size;
        const Offset at = lane.cells.at(last, first_cell + cell);
        if (one_row && lane.row.is_whole(at, lane.p) &&
            lane.row.is_whole(at + (cells * warp_size - 1), lane.p)) {
            put(tile, own, Sums<count, cells, true>(lane, columns, first_cell + own).of);
        } else {
            constexpr int at_once = cells;
#pragma unroll 1
            for (int c = 0; c < cells && cell + c * warp_size < end; c += at_once)
                put(tile, own + c * warp_size,
                    Sums<count, at_once, false>(lane, columns, first_cell + own + c * warp_size).of);
        }
    }
}

// Divides the sums of a thread's phases. Where all blocks exist that could reach a cell, its denominators are
// those of all such cells.
template <int word, bool averaging = averages> struct Averages {
    __device__ Averages(Offset, const Lane&) {}
};
template <int word> struct Averages<word, true> {
    const Lane& lane;
    RowTaps<word> row;
    Divisors<word> of_whole;

    __device__ Averages(Offset phase, const Lane& lane)
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

    __device__ bool is_whole(int cell) const { return row.is_whole(lane.cells.whole_at(cell), lane.p); }
    // Whether these sums of whole cells have the quotients of of_whole.
    template <int batch> __device__ bool divides(const Accumulator (&sums)[batch][word]) const
    {
        MiddleBits bits = ~0u;
#pragma unroll
        for (int i = 0; i < batch; ++i)
            bits &= of_whole.bits(sums[i]);
        if (in_middle(bits))
            return true;
        bool right = true; // where they are zero, or else
#pragma unroll
        for (int i = 0; i < batch; ++i)
            right = right & of_whole.divides(sums[i]);
        return right;
    }
    // Gives the averages of any cell.
    __device__ void divide(Accumulator (&sums)[word], int cell) const
    {
        if (is_whole(cell) && of_whole.divides(sums)) {
            Accumulator quotients[word];
            of_whole.divide(quotients, sums);
            memcpy(sums, quotients, sizeof(sums));
        } else {
            Taps taps[rank];
            memcpy(taps, lane.taps, sizeof(taps));
            move_taps(taps, lane.cells, cell);
            const Denominators<word> denominators(taps, row, lane.cells.at(last, cell), lane.window, lane.p);
#pragma unroll
            for (int j = 0; j < word; ++j)
                sums[j] = denominators.of[j].finish(sums[j]);
        }
    }
};

// What a thread stores of a tile: the same `word` neighbouring pixels, which divide a stride, of many cells.
template <int word> struct Storer {
    static constexpr int row_words = phases / word;
    static constexpr int at_once = THREADS / row_words; // cells that the thread block stores at once
    static constexpr int batch = 4;                     // of cells that a thread stores together
    static constexpr bool fits = tile_cells % (batch * at_once) == 0;
    // Lanes fill words of neighbouring cells and read neighbouring words of a cell: an odd pitch serves both.
    using Tile = Pixels<word>[tile_cells][row_words | 1];

    const Lane& lane;
    int first, column; // cell and word of the tile
    Offset phase;
    Averages<word> averages_of;

    __device__ Storer(Offset first_phase, const Lane& lane)
        : lane(lane), first(threadIdx.x / row_words), column(threadIdx.x % row_words),
          phase(first_phase + column * word), averages_of(phase, lane)
    {
        if (first >= at_once || phase >= stride[last])
            first = tile_cells;
    }

    // The tile holds the cells from `begin` of the piece on; the first pixel is that of phase 0 in cell 0.
    __device__ void store(const Tile& tile, Result* first_pixel, int begin, int piece) const
    {
#pragma unroll 1
        for (int start = first; start < tile_cells; start += batch * at_once) {
            const int number = (piece * CELLS + begin + start) / at_once;
            OldPixel old[batch][word];
            Result* address[batch];
            bool exists[batch], whole = true;
#pragma unroll
            for (int i = 0; i < batch; ++i) {
                const int cell = begin + cell_of(start, i);
                const CellPixels in_image = lane.cells.template pixels<word>(cell, lane.p);
                exists[i] = (fits || start + i * at_once < tile_cells) && has(in_image);
                address[i] = first_pixel + in_image.offset;
                trace_iteration(number + i);
                OldPixel::load_wide(old[i], address[i], exists[i]);
                if constexpr (averages)
                    if (!one_row || i == 0 || i + 1 == batch) // cells between two of a row are as they are
                        whole = whole & exists[i] & averages_of.is_whole(cell);
            }
            if constexpr (averages) {
                if (!(whole && store_wholes(tile, start, address, old)))
#pragma unroll 1
                    for (int cell = start; cell < min(start + batch * at_once, tile_cells); cell += at_once)
                        store_any(tile[cell][column], first_pixel, begin + cell);
            } else {
#pragma unroll
                for (int i = 0; i < batch; ++i) {
                    trace_iteration(number + i);
                    const Pixels<word> sums = exists[i] ? tile[cell_of(start, i)][column] : Pixels<word>{};
                    if (exists[i])
                        store_sums(address[i], sums.of, old[i]);
                }
            }
        }
    }

  private:
    static __device__ int cell_of(int start, int i)
    {
        return fits ? start + i * at_once : min(start + i * at_once, tile_cells - 1);
    }
    __device__ bool has(const CellPixels& in_image) const
    {
        return within(in_image.row + phase, lane.p.size[last]);
    }

    static __device__ void store_sums(Result* address, const TiledSum (&sums)[word],
                                      const OldPixel (&old)[word])
    {
        Result pixels[word];
#pragma unroll
        for (int j = 0; j < word; ++j)
            if constexpr (rounds_in_tile)
                pixels[j] = sums[j].value;
            else
                pixels[j] = narrow(old[j].plus(sums[j].value));
        store_wide(address, pixels);
    }

    static __device__ void store_averages(Result* address, const Accumulator (&values)[word],
                                          const OldPixel (&old)[word])
    {
        Result pixels[word];
#pragma unroll
        for (int j = 0; j < word; ++j)
            pixels[j] = narrow(old[j].plus(values[j]));
        store_wide(address, pixels);
    }

    // Cells that are whole, unless a sum is extreme; whether it did.
    __device__ bool store_wholes(const Tile& tile, int start, Result* const (&address)[batch],
                                 const OldPixel (&old)[batch][word]) const
    {
        Accumulator sums[batch][word];
#pragma unroll
        for (int i = 0; i < batch; ++i)
            memcpy(sums[i], &tile[cell_of(start, i)][column], sizeof(sums[i]));
        if (!averages_of.divides(sums))
            return false;
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            Accumulator quotients[word];
            averages_of.of_whole.divide(quotients, sums[i]);
            store_averages(address[i], quotients, old[i]);
        }
        return true;
    }
    // Any cell.
    __device__ void store_any(const Pixels<word>& sums, Result* first_pixel, int cell) const
    {
        const CellPixels in_image = lane.cells.template pixels<word>(cell, lane.p);
        if (!has(in_image))
            return;
        trace_iteration(cell);
        OldPixel old[word];
        OldPixel::load_wide(old, first_pixel + in_image.offset, true);
        Accumulator pixels[word];
        memcpy(pixels, &sums, sizeof(pixels));
        averages_of.divide(pixels, cell);
        store_averages(first_pixel + in_image.offset, pixels, old);
    }
};

// The first piece of a thread block, by their number: they count places, planes and pieces of a plane.
inline __device__ Offset first_piece(Offset item, const PhasesParameters& p)
{
    return item * p.own_pieces + p.by_items.quotient(item * p.longer);
}

template <int word>
__device__ void gather_pieces(const Scalar* __restrict__ columns, Result* __restrict__ image,
                              const Weights& window, const PhasesParameters& p, Cells& cells)
{
    __shared__ typename Storer<word>::Tile tile;
    Offset number = first_piece(blockIdx.x, p), left = first_piece(blockIdx.x + 1, p) - number;
    Offset piece = p.by_pieces.split(number), plane = p.by_planes.split(number);
#pragma unroll 1
    for (; left > 0; ++number, plane = 0) {
        const Place<1> place(number, p);
        const Offset first_phase = place.along[last] * phases;
        const Lane lane(place, first_phase + threadIdx.x / warp_size * lane_phases, cells, window, p);
        const bool has_last =
            kernel[last] % Pattern<last>::tap_step == 0 || lane.row.any_in_kernel(row_taps - 1);
        const Storer<word> storer(first_phase, lane);

        Offset batch = plane, channel = p.by_channels.split(batch);
        LaneColumns lane_columns;
#pragma unroll
        for (int i = 0; i < (walks_phases ? 1 : lane_phases); ++i)
            lane_columns[i] =
                columns + batch * p.columns_batch + channel * p.columns_channel + lane.row.of[i].offset;
        Offset first_offset = (storer.phase - p.in_front) * p.pixel_stride[last];
#pragma unroll
        for (int axis = 0; axis < last; ++axis)
            first_offset += place.along[axis] * p.pixel_stride[axis];
        Result* first_pixel = image + batch * p.image_batch + channel * p.image_channel + first_offset;
        bool found = false;

#pragma unroll 1
        for (; left > 0 && plane < p.planes; ++plane, piece = 0) {
#pragma unroll
            for (int i = 0; i < (walks_phases ? 1 : lane_phases); ++i)
                keep(lane_columns[i]);
            if constexpr (!accumulates) // what is loaded must be known to lie in global memory
                keep(first_pixel);
#pragma unroll 1
            for (; left > 0 && piece < p.pieces; ++piece, --left) {
                if (one_row || !found || p.pieces > 1) {
                    if constexpr (!one_row)
                        __syncthreads();
                    cells.find(piece, place, lane.taps, p);
                    found = true;
                }
                const int count = int(Cells::count(piece, p));
#pragma unroll 1
                for (int begin = 0; begin < count; begin += tile_cells) {
                    __syncthreads();
                    const int end = min(count - begin, tile_cells);
                    if (has_last)
                        fill_tile<word, row_taps>(tile, begin, end, lane, lane_columns);
                    else
                        fill_tile<word, row_taps - 1>(tile, begin, end, lane, lane_columns);
                    __syncthreads();
                    storer.store(tile, first_pixel, begin, int(piece));
                }
            }
            const bool last_of_batch = ++channel == p.channels;
            channel = last_of_batch ? 0 : channel;
#pragma unroll
            for (int i = 0; i < (walks_phases ? 1 : lane_phases); ++i)
                lane_columns[i] += last_of_batch ? p.columns_to_batch : p.columns_channel;
            first_pixel += last_of_batch ? p.image_to_batch : p.image_channel;
        }
    }
}

template <int word>
__device__ void gather_phases(const Scalar* __restrict__ columns, Result* __restrict__ image,
                              const Weights& window, const PhasesParameters& p)
{
    if constexpr (one_row) {
        Cells cells;
        gather_pieces<word>(columns, image, window, p, cells);
    } else {
        __shared__ Cells cells;
        gather_pieces<word>(columns, image, window, p, cells);
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
