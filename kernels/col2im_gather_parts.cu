// col2im by gathering, for large strides: a thread owns a part of a cell, some neighbouring pixels of it, in
// one or several planes.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for all planes
//
// A cell is a stride's worth of pixels along every axis, a phase a pixel's place in its cell. Along the last
// axis cells begin where blocks do, so that the pixels of a cell have taps of the same blocks. Threads are
// numbered by the cells of a whole plane, whatever their rows, then by their parts, by phases of the other
// axes and by planes: neighbouring threads read neighbouring blocks of one tap. A part is stored in words
// where the image has such words; else a warp passes its parts through shared memory, so that neighbouring
// lanes store neighbouring pixels. Taps are added in lexicographic order. No atomics and no zero fill.
//
// Wins where a stride is too many pixels for one thread, where rows have too few blocks to fill sectors, and
// where the last axis has too many taps to unroll and neighbouring pixels would not read whole sectors.
#include "col2im.cuh"
#include "fusion.cuh"

constexpr int part = PART; // neighbouring phases of a thread
constexpr Offset row_taps = Pattern<last>::taps;
constexpr int looped_taps = (looped_loads / element_registers + part - 1) / part;
constexpr int together = row_taps <= looped_taps ? int(row_taps) : looped_taps; // whose loads are in flight
constexpr bool dilated = dilation[last] != 1;
// Whether all pixels of a part have as many taps, which exist together.
constexpr bool alike = !dilated && stride[last] % part == 0 && kernel[last] % part == 0;

struct PartsParameters : Parameters {
    int in_words;       // whether parts are whole words of the image
    Offset in_front;    // pixels of the first cell of a row that are padding
    Offset first_block; // that begins at such a cell
    Divisor by_cells[rank];
};

// The taps of the last axis that land on a part.
struct PartTaps {
    Offset phase, cell; // the first of the part's
    Taps of[part];

    __device__ PartTaps(Offset phase, Offset cell, const PartsParameters& p) : phase(phase), cell(cell)
    {
#pragma unroll
        for (int i = 0; i < part; ++i)
            if constexpr (!dilated)
                of[i] = {phase + i, p.first_block,
                         (phase + i) * p.tap_stride[last] + p.first_block * p.block_stride[last], true};
            else
                of[i] = Taps::of<last>(phase + i - p.in_front, p);
    }
    __device__ Offset tap(int i, Offset number) const { return of[i].tap + number * Pattern<last>::tap_step; }
    // No `&&`, of which the compiler would make branches around loads.
    __device__ bool exists(int i, Offset number, const Parameters& p) const
    {
        const int like = alike ? 0 : i;
        const bool in_stride = alike || phase + i < stride[last];
        const bool in_blocks =
            within(of[like].block + cell - number * Pattern<last>::block_step, p.blocks[last]);
        return in_stride & of[like].in_kernel<last>(number) & in_blocks;
    }
    // The weights of the number-th taps, in words where they are aligned and exist together.
    template <bool aligned>
    __device__ void weights(Weight (&weights)[part], const Weights& window, const TapWeight& outer,
                            Offset number, bool counts, const Parameters& p) const
    {
        if constexpr (alike) {
            const bool here = counts & exists(0, number, p);
            RowWeights<part, aligned>(window, tap(0, number), here)
                .in_row(weights, outer, tap(0, number), here);
        } else {
#pragma unroll
            for (int i = 0; i < part; ++i)
                weights[i] = outer.value_of(tap(i, number), counts & exists(i, number, p));
        }
    }
};

// Where a lane's part is in the image, which of its pixels are, and in how many planes.
struct alignas(16) Run {
    Result* first;
    short begin, end;
    int planes;
};

// What a warp's parts pass on their way to memory.
template <int planes> struct alignas(16) Tile {
    Result pixels[planes][32][part + WORD];
    Run runs[32];
};

// Stores a part of each lane, `word` pixels at once: more than one only where the image has such words. They
// pass shared memory, so that neighbouring lanes store neighbouring words.
template <int word, int planes>
__device__ void store_parts(Tile<planes>& tile, const Run& own, const Accumulator (&sums)[planes][part],
                            const Parameters& p)
{
    constexpr int words = part / word, bytes = word * sizeof(Result);
    using Stored = AliasedWord<bytes>;
    const int lane = threadIdx.x % 32;
    tile.runs[lane] = own;
#pragma unroll
    for (int k = 0; k < planes; ++k)
#pragma unroll
        for (int i = 0; i < part; i += word) {
            const Result* const address =
                own.first + (lengthened(k) * p.image_channel + i * p.pixel_stride[last]);
            OldPixel old[word];
            OldPixel::load_wide(old, address, k < own.planes && own.begin <= i && i < own.end);
            Result pixels[word];
#pragma unroll
            for (int n = 0; n < word; ++n)
                pixels[n] = narrow(old[n].plus(sums[k][i + n]));
            *reinterpret_cast<Stored*>(&tile.pixels[k][lane][i]) = bit_cast<Word<bytes>>(pixels);
        }
    __syncwarp();
#pragma unroll
    for (int number = 0; number < words; ++number) {
        const int owner = (number * 32 + lane) / words, i = (number * 32 + lane) % words * word;
        const Run run = tile.runs[owner];
        const bool inside = run.begin <= i & i < run.end;
        Result* address = run.first + i * p.pixel_stride[last];
#pragma unroll
        for (int k = 0; k < planes; ++k) {
            if (inside & k < run.planes)
                store_word<bytes>(address, *reinterpret_cast<const Stored*>(&tile.pixels[k][owner][i]));
            address += p.image_channel;
        }
    }
}

template <int planes, bool aligned>
__device__ void gather_parts(const Scalar* __restrict__ columns, Result* __restrict__ image,
                             const Weights& window, Tile<planes>& tile, const PartsParameters& p)
{
    const Offset thread = grid_index();
    bool live = thread < p.items; // others do the last one's work over and store nothing
    Offset item = live ? thread : p.items - 1;
    Offset cell[rank], pixel[rank], in_plane = 0;
#pragma unroll
    for (int axis = last; axis >= 0; --axis)
        cell[axis] = p.by_cells[axis].split(item);
    const Place<planes> place(item, p);
    const Offset phase = stride[last] > part ? place.along[last] * part : 0; // known where a cell is one part
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
        pixel[axis] = cell[axis] * stride[axis] + (axis == last ? phase - p.in_front : place.along[axis]);
        live = live && (axis == last || pixel[axis] < p.size[axis]);
        in_plane += pixel[axis] * p.pixel_stride[axis];
    }
    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, last>(taps, pixel, p);
    const PartTaps row(phase, cell[last], p);

    Accumulator sums[planes][part] = {};
    Denominator denominators[part];
    // Rows of blocks are a loop where they have this many loads together, which skips those without taps.
    constexpr int loads = together * part * planes;
    constexpr int looped = looped_axes<last - 1>(loads * element_registers, looped_loads);
    for_each_tap<0, last, loads, looped>(
        taps, p, cell[last] * p.block_stride[last], live, 0, TapWeight{&window},
        [&](Offset offset, bool exists, int iteration, const TapWeight& outer) {
#pragma unroll 1
            for (Offset begin = 0; begin < row_taps; begin += together) {
                Scalar elements[together][planes][part];
                Weight weights[together][part];
#pragma unroll
                for (int n = 0; n < together; ++n) {
                    const Offset number = begin + n;
                    const bool counts = exists & (row_taps % together == 0 || number < row_taps);
                    row.weights<aligned>(weights[n], window, outer, number, counts, p);
                    const Offset at = offset + number * p.tap_step_stride[last];
                    const Scalar* element[planes];
#pragma unroll
                    for (int k = 0; k < planes; ++k)
                        element[k] = plane_columns[k] + (at + row.of[0].offset);
#pragma unroll
                    for (int i = 0; i < part; ++i)
#pragma unroll
                        for (int k = 0; k < planes; ++k) {
                            trace_iteration(int(((iteration * row_taps + number) * part + i) * planes + k));
                            const Scalar* const address =
                                dilated ? plane_columns[k] + (at + row.of[i].offset) : element[k];
                            elements[n][k][i] = load_if(address, counts & row.exists(i, number, p));
                            element[k] += p.tap_stride[last];
                        }
                }
#pragma unroll
                for (int n = 0; n < together; ++n)
#pragma unroll
                    for (int i = 0; i < part; ++i) {
#pragma unroll
                        for (int k = 0; k < planes; ++k)
                            sums[k][i] = add(sums[k][i], weigh(widen(elements[n][k][i]), weights[n][i]));
                        denominators[i].add_tap(weights[n][i]);
                    }
            }
        });

    if constexpr (divides_by_axes) {
        RowFactors<part> factors(taps, window, p);
#pragma unroll(together)
        for (Offset number = 0; number < row_taps; ++number)
#pragma unroll
            for (int i = 0; i < part; ++i) {
                trace_iteration(int(number * part + i));
                factors.add_tap(i, row.tap(i, number), row.exists(i, number, p));
            }
#pragma unroll
        for (int i = 0; i < part; ++i)
            denominators[i].from_axes(factors, i);
    }
    average(sums, denominators);

    const auto clamped = [](Offset count) { return short(count < 0 ? 0 : count < part ? count : part); };
    const Run run = {place.first_plane(image, p) + in_plane, clamped(-pixel[last]),
                     clamped(min(p.size[last] - pixel[last], stride[last] - phase)),
                     live ? int(min(p.channels - place.channel, Offset(planes))) : 0};
    if (WORD > 1 && p.in_words)
        store_parts<WORD>(tile, run, sums, p);
    else
        store_parts<1>(tile, run, sums, p);
}

template <int planes>
__device__ void gather_parts_of(const Scalar* __restrict__ columns, Result* __restrict__ image,
                                const Weights& window, const PartsParameters& p)
{
    __shared__ Tile<planes> tiles[THREADS / 32];
    Tile<planes>& tile = tiles[threadIdx.x / 32];
    if (!(windowed && alike) || aligned_weights<part>(window))
        gather_parts<planes, true>(columns, image, window, tile, p);
    else
        gather_parts<planes, false>(columns, image, window, tile, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    col2im_gather_parts(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                        const PartsParameters p)
{
    gather_parts_of<1>(columns, image, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    col2im_gather_parts_planes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                               const Weights window, const PartsParameters p)
{
    if constexpr (PLANES > 1)
        gather_parts_of<PLANES>(columns, image, window, p);
}
