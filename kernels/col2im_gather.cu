// col2im by gathering: a thread owns neighbouring pixels of a row, in one or several planes, and adds up the
// taps that land on them.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for all planes
//
// Threads are numbered in one of two ways, which share all else.
//
// `pixels`: by the pixels of a row, or by words of pixels, then by rows. Neighbours read neighbouring taps
// of a block or, with a small stride, neighbouring blocks. Words are loaded and stored if taps are
// contiguous and each word of pixels gets words of taps that exist as a whole.
//
// `parts`: by the cells of a plane, each a stride's worth of pixels in any row, then by the parts of a
// cell, and by the phases of the other axes, which are places in a cell. Cells begin where blocks do, so
// their pixels have taps of the same blocks. Neighbours read neighbouring blocks of one tap, whatever the
// stride, and a warp passes its pixels through shared memory, so that neighbouring lanes store neighbouring
// words.
//
// Planes come last: those of a thread share the index arithmetic and have more loads in flight. Taps are
// added in lexicographic order. No atomics and no zero fill.
//
// Pixels win if the taps of a block lie closer in memory than its blocks, or if blocks are one pixel apart;
// otherwise parts win. Parts are refused if a stride has over 128 times as many as a row of pixels can
// meet: the threads of all others would have no pixel.
#define L2_FETCH ".L2::128B"
#include "col2im.cuh"
#include "fusion.cuh"

enum class Numbering { pixels, parts };
constexpr bool of_pixels = Numbering::NUMBERING == Numbering::pixels;
constexpr int part = PART; // neighbouring pixels of a thread; where threads are numbered by pixels, a word
constexpr int row_taps = int(Pattern<last>::taps);
constexpr bool dilated = dilation[last] != 1;
// Whether all pixels of a part have as many taps, which exist together.
constexpr bool alike = of_pixels || (!dilated && stride[last] % part == 0 && kernel[last] % part == 0);

// The taps of the last axis whose loads are in flight together: all of them if they have room in registers.
template <int planes> __device__ constexpr int most_together()
{
    constexpr int loads = of_pixels ? part * planes : part;
    constexpr bool fit = row_taps * loads * element_registers <= unrolled_registers;
    constexpr int some = (looped_loads / (of_pixels ? 1 : element_registers) + loads - 1) / loads;
    return of_pixels && fit ? row_taps : some;
}
template <int planes>
constexpr int together = row_taps <= most_together<planes>() ? row_taps : most_together<planes>();
template <int planes> constexpr Offset loads = together<planes> * part * planes;

// The outer axes whose taps are a loop; as many rows of taps as have room are loaded together. A loop skips
// rows without taps. With `pixels`, all are a loop if a row has no room, or if some are and there is a
// window.
template <int planes> __device__ constexpr int looped()
{
    constexpr int without_room = looped_axes<last - 1>(loads<planes> * element_registers,
                                                       of_pixels ? unrolled_registers : looped_loads);
    constexpr bool all = of_pixels && (together<planes> < row_taps || (windowed && without_room > 0));
    return all ? last : without_room;
}

constexpr int kept_weights = 16; // of a row of taps that a thread keeps for all rows, at most
template <int planes>
constexpr bool keeps_weights = of_pixels && together<planes> == row_taps && row_taps * part <= kept_weights;

struct GatherParameters : Parameters {
    Offset in_front;    // pixels of the first cell of a row that are padding
    Offset first_block; // that begins at such a cell
    Divisor by_cells[rank];
};

// The taps of the last axis that land on a part.
struct PartTaps {
    Offset phase, cell; // the first of the part's
    Taps of[part];

    explicit __device__ PartTaps(const Taps& first) : phase(0), cell(0)
    {
        unrolled_for (int i = 0; i < part; ++i)
            of[i] = {first.tap + i, first.block, 0, first.reached};
    }
    __device__ PartTaps(Offset phase, Offset cell, const GatherParameters& p) : phase(phase), cell(cell)
    {
        unrolled_for (int i = 0; i < part; ++i) {
            const Offset tap = phase + i, block = p.first_block;
            if constexpr (!dilated)
                of[i] = {tap, block, tap * p.tap_stride[last] + block * p.block_stride[last], true};
            else
                of[i] = Taps::at<last>(tap, block, p);
        }
    }
    __device__ Offset tap(int i, Offset number) const { return of[i].tap + number * Pattern<last>::tap_step; }
    // No `&&`, for which the compiler would branch around loads.
    __device__ bool exists(int i, Offset number, const Parameters& p) const
    {
        const int like = alike ? 0 : i;
        const bool in_stride = alike || phase + i < stride[last];
        const bool in_blocks =
            within(of[like].block + cell - number * Pattern<last>::block_step, p.blocks[last]);
        return in_stride & of[like].in_kernel<last>(number) & in_blocks;
    }
    // The weights of the number-th taps on the last axis, in words where they are aligned and exist together.
    template <bool aligned>
    __device__ RowWeights<part, aligned> last_weights(const Weights& window, Offset number, bool counts,
                                                      const Parameters& p) const
    {
        return RowWeights<part, aligned>(window, tap(0, number), counts & exists(0, number, p));
    }
};

// Where a lane's part is in the image, which of its pixels exist, and in how many planes.
struct alignas(16) Run {
    Result* first;
    short begin, end;
    int planes;
};

// Shared memory that a warp's parts pass on their way to the image.
template <int planes> struct alignas(16) Tile {
    Result pixels[planes][33 * part];
    Run runs[32];
};

// The sums of neighbouring pixels, plus old pixels if it accumulates, as a word to store at an address.
template <int word> __device__ auto word_of(const Accumulator* sums, const Result* address, bool exists)
{
    OldPixel old[word];
    OldPixel::load_wide(old, address, exists);
    Result pixels[word];
    unrolled_for (int i = 0; i < word; ++i)
        pixels[i] = narrow(old[i].plus(sums[i]));
    return bit_cast<Word<word * sizeof(Result)>>(pixels);
}

// Stores a part of each lane, `word` pixels at once: more than one only if the image has such words and cells
// are whole words. With `pixels`, a lane stores its own word.
template <int word, int planes>
__device__ void store_parts(Tile<planes>& tile, const Run& own, const Accumulator (&sums)[planes][part],
                            const GatherParameters& p)
{
    constexpr int words = part / word, bytes = word * sizeof(Result);
    if constexpr (of_pixels) {
        Result* address = own.first;
        unrolled_for (int k = 0; k < planes; ++k, address += p.image_channel) {
            const bool exists = k < own.planes;
            const auto stored = word_of<word>(sums[k], address, exists);
            if (exists)
                store_word<bytes>(address, stored);
        }
    } else {
        const auto within_run = [](const Run& run, int i) { return run.begin <= i & i < run.end; };
        using Stored = AliasedWord<bytes>;
        // Word number n of a warp lies at n + n / 32, which spreads the parts over the banks; without a sign
        // the quotient is one shift. Parts of an odd number of words are spread already.
        constexpr unsigned skipped = words % 2 == 0 ? 1 : 0;
        const int lane = threadIdx.x % 32;
        tile.runs[lane] = own;
        unrolled_for (int k = 0; k < planes; ++k)
            unrolled_for (int i = 0; i < words; ++i) {
                const unsigned number = unsigned(lane * words + i);
                const Result* const address =
                    own.first + (to_int64(k) * p.image_channel + i * word * p.pixel_stride[last]);
                reinterpret_cast<Stored*>(tile.pixels[k])[number + skipped * (number / 32)] =
                    word_of<word>(sums[k] + i * word, address, k < own.planes & within_run(own, i * word));
            }
        __syncwarp();
#pragma unroll(words)
        for (int number = 0; number < words; ++number) {
            const int owner = (number * 32 + lane) / words, i = (number * 32 + lane) % words * word;
            const Run run = tile.runs[owner];
            Result* address = run.first + i * p.pixel_stride[last];
            unrolled_for (int k = 0; k < planes; ++k, address += p.image_channel)
                if (k < run.planes & within_run(run, i))
                    store_word<bytes>(address, reinterpret_cast<const Stored*>(
                                                   tile.pixels[k])[number * (32 + skipped) + unsigned(lane)]);
        }
    }
}

template <int planes, int word, bool aligned>
__device__ void gather(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights& window,
                       Tile<planes>& tile, const GatherParameters& p)
{
    const Offset thread = grid_index();
    if (of_pixels && thread >= p.items)
        return;
    bool live = of_pixels || thread < p.items; // others repeat the last one's work and store nothing
    Offset item = live ? thread : p.items - 1;
    Offset cell[rank], pixel[rank], in_plane = 0;
    unrolled_for (int axis = last; axis >= 0; --axis)
        cell[axis] = of_pixels ? 0 : p.by_cells[axis].split(item);
    const Place<planes> place(item, p);
    const Offset along_last = place.along[last] * part;
    const Offset phase = !of_pixels && stride[last] > part ? along_last : 0; // known where a cell is one part
    unrolled_for (int axis = 0; axis < rank; ++axis) {
        pixel[axis] = cell[axis] * stride[axis] + (axis < last ? place.along[axis]
                                                   : of_pixels ? along_last
                                                               : phase - p.in_front);
        live = live && (of_pixels || axis == last || pixel[axis] < p.size[axis]);
        in_plane += pixel[axis] * p.pixel_stride[axis];
    }
    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, of_pixels ? rank : last>(taps, pixel, p);
    const PartTaps row = of_pixels ? PartTaps(taps[last]) : PartTaps(phase, cell[last], p);
    const Offset first_tap = of_pixels ? taps[last].offset : cell[last] * p.block_stride[last];

    constexpr bool keeps = keeps_weights<planes>;
    constexpr int at_once = together<planes>;
    RowWeights<part, aligned> kept[keeps ? row_taps : 1];
    if constexpr (keeps)
        unrolled_for (int number = 0; number < row_taps; ++number)
            kept[number] = row.last_weights<aligned>(window, number, true, p);

    Denominator denominators[part];
    const auto find_denominators = [&] {
        if constexpr (divides_by_axes) {
            RowFactors<part> factors(taps, window, p);
#pragma unroll(at_once)
            for (Offset number = 0; number < row_taps; ++number) {
                if constexpr (of_pixels) {
                    factors.add_taps(keeps ? kept[number]
                                           : row.last_weights<aligned>(window, number, true, p),
                                     row.exists(0, number, p));
                } else {
                    unrolled_for (int i = 0; i < part; ++i)
                        factors.add_tap(i, row.tap(i, number), row.exists(i, number, p));
                }
            }
            unrolled_for (int i = 0; i < part; ++i)
                denominators[i].from_axes(factors.product(i));
        }
    };
    // Before the sums if both use the last axis's conditions; else after them, because sums need registers.
    if constexpr (of_pixels)
        find_denominators();

    Accumulator sums[planes][part] = {};
    for_each_tap<0, last, loads<planes>, looped<planes>()>(
        taps, p, first_tap, live, TapWeight{&window},
        [&](Offset offset, bool exists, const TapWeight& outer) {
#pragma unroll 1
            for (Offset begin = 0; begin < row_taps; begin += at_once) {
                Scalar elements[at_once][planes][part];
                Weight weights[at_once][part];
                unrolled_for (int n = 0; n < at_once; ++n) {
                    const Offset number = begin + n;
                    const bool counts = exists && (row_taps % at_once == 0 || number < row_taps);
                    const bool here = counts && row.exists(0, number, p);
                    if constexpr (alike) {
                        (keeps ? kept[n] : row.last_weights<aligned>(window, number, counts, p))
                            .in_row(weights[n], outer, row.tap(0, number), here);
                    } else {
                        unrolled_for (int i = 0; i < part; ++i)
                            weights[n][i] =
                                outer.value_of(row.tap(i, number), counts & row.exists(i, number, p));
                    }
                    const Offset step = number * p.tap_step_stride[last];
                    const Scalar* element[planes];
                    unrolled_for (int k = 0; k < planes; ++k) {
                        element[k] = plane_columns[k] + (offset + (step + row.of[0].offset));
                        if constexpr (of_pixels)
                            load_wide_if(elements[n][k], element[k], here);
                    }
                    unrolled_for (int i = 0; i < (of_pixels ? 0 : part); ++i)
                        unrolled_for (int k = 0; k < planes; ++k) {
                            const Scalar* const address =
                                dilated ? plane_columns[k] + (offset + (step + row.of[i].offset))
                                        : element[k];
                            elements[n][k][i] = load_if(address, counts & row.exists(i, number, p));
                            element[k] += p.tap_stride[last];
                        }
                }
                unrolled_for (int n = 0; n < at_once; ++n)
                    unrolled_for (int i = 0; i < part; ++i) {
                        unrolled_for (int k = 0; k < planes; ++k)
                            sums[k][i] = add(sums[k][i], weigh(widen(elements[n][k][i]), weights[n][i]));
                        denominators[i].add_tap(weights[n][i]);
                    }
            }
        });

    if constexpr (!of_pixels)
        find_denominators();
    average(sums, denominators);

    const auto clamped = [](Offset count) { return short(count < 0 ? 0 : count < part ? count : part); };
    const Run run = {
        place.first_plane(image, p) + in_plane, of_pixels ? short(0) : clamped(-pixel[last]),
        clamped(min(p.size[last] - pixel[last], of_pixels ? Offset(part) : stride[last] - phase)),
        live ? int(min(p.channels - place.channel, Offset(planes))) : 0};
    store_parts<word>(tile, run, sums, p);
}

template <int planes, int word>
__device__ void gather(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights& window,
                       const GatherParameters& p)
{
    __shared__ Tile<planes> tiles[THREADS / 32];
    Tile<planes>& tile = tiles[threadIdx.x / 32];
    if (!(windowed && alike && part > 1) || aligned_weights<part>(window))
        gather<planes, word, true>(columns, image, window, tile, p);
    else
        gather<planes, word, false>(columns, image, window, tile, p);
}

// Threads per multiprocessor for which there are registers: fewer if much is fused, elements are wide, or
// pixels of other than four bytes would spill.
constexpr int few_threads = !of_pixels && windowed && sizeof(Scalar) > 4 ? 384 : 512;
constexpr bool many = of_pixels && !fuses && part == 1 && sizeof(Scalar) == 4;
constexpr int resident_threads = many ? 768 : few_threads;

extern "C" __global__ void __launch_bounds__(THREADS, few_threads / THREADS)
    col2im_gather(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                  const GatherParameters p)
{
    gather<1, 1>(columns, image, window, p);
}

// For images that have such words.
extern "C" __global__ void __launch_bounds__(THREADS, few_threads / THREADS)
    col2im_gather_words(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                        const GatherParameters p)
{
    if constexpr (WORD > 1)
        gather<1, WORD>(columns, image, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_threads / THREADS)
    col2im_gather_planes(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const GatherParameters p)
{
    if constexpr (PLANES > 1)
        gather<PLANES, 1>(columns, image, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident_threads / THREADS)
    col2im_gather_words_planes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                               const Weights window, const GatherParameters p)
{
    if constexpr (PLANES > 1 && WORD > 1)
        gather<PLANES, WORD>(columns, image, window, p);
}
