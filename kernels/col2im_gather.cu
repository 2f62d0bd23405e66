// col2im by gathering: a thread owns a cell of a row, in one or several planes, and adds up its taps.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for all planes
//
// A cell of a row is a stride's worth of pixels along the last axis. Its pixel r is reached by the same taps
// in every cell, so the taps of the last axis are compiled in, and each reads the block of its cell less a
// constant: neighbouring threads read neighbouring blocks, whatever the stride. Taps are added in
// lexicographic order. No atomics and no zero fill.
//
// A cell of one word, or of two pixels, is stored where it is. Larger ones are staged in shared memory, so
// that a warp writes its 32 cells from end to end. Several planes per thread share the index arithmetic and
// have more loads in flight; one is for images too small, or too few, to fill the device otherwise.
//
// Wins for strides up to 16 and kernels up to 32 along the last axis: each element of the columns is read
// once and each pixel written once, from end to end.
#include "col2im.cuh"
#include "fusion.cuh"

constexpr int cell_width = stride[last];
constexpr int row_taps = kernel[last];
constexpr int phase = PHASE; // of pixel 0 in its padded row: pad modulo stride, on the last axis

struct GatherParameters : Parameters {
    int cells_form_runs; // whether 32 consecutive cells of a plane lie end to end, whatever their rows
};

// As wide as offsets: a tap may land further from its block than an int counts.
__device__ constexpr Offset floor_divide(Offset a, Offset b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

// Where in its cell a tap of the last axis lands.
__device__ constexpr int pixel_of(int tap)
{
    const Offset pixel = tap * dilation[last] - phase;
    return int(pixel - floor_divide(pixel, cell_width) * cell_width);
}

template <int word> using StoredWord = AliasedWord<word * sizeof(Result)>;

template <int word> __device__ StoredWord<word> word_of(const Accumulator* sums)
{
    Result elements[word];
#pragma unroll
    for (int i = 0; i < word; ++i)
        elements[i] = narrow(sums[i]);
    StoredWord<word> stored;
    memcpy(&stored, elements, sizeof(stored));
    return stored;
}

// Writes the cells of a warp from shared memory, so that neighbouring lanes store neighbouring words: of each
// lane `pixels` in its planes that remain, from `first` on, at `in_plane` of its plane.
template <int planes, int word>
__device__ void store_staged(const Accumulator (&sums)[planes][cell_width], Result* first, Result* image,
                             Offset in_plane, int pixels, bool live, Offset remaining,
                             const GatherParameters& p)
{
    constexpr int words = cell_width / word;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Word number n of a warp lies at n + n / 32, which spreads the cells over the banks; without a sign
    // the quotient is one shift. Cells of an odd number of words are spread already.
    constexpr unsigned skipped = words % 2 == 0 ? 1 : 0;
    __shared__ StoredWord<word> tiles[THREADS / 32][words][33];
    __shared__ long long firsts[THREADS / 32][32];
    __shared__ int counts[THREADS / 32][32];
    StoredWord<word>* const tile = tiles[warp][0];
    // Where a warp's cells lie end to end in memory, it writes them as one run. Cells of several planes
    // do not: in the next plane places begin at zero again, and the length is not positive.
    const Offset place_in_run = in_plane - __shfl_sync(~0u, in_plane, 0);
    const Offset run_length = __shfl_sync(~0u, place_in_run + pixels, 31);
    const bool is_run = p.cells_form_runs && run_length > 0;
    const unsigned number = is_run ? unsigned(place_in_run) / word : unsigned(lane * words);
    Result* const run_first = first - place_in_run;
    if (!is_run)
        firsts[warp][lane] = first - image;
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
        if (!is_run)
            counts[warp][lane] = live && plane < remaining ? pixels : 0;
#pragma unroll
        for (int i = 0; i < words; ++i)
            if (live && i * word < pixels)
                tile[number + i + skipped * ((number + i) / 32)] = word_of<word>(sums[plane] + i * word);
        __syncwarp();
        if (is_run) {
#pragma unroll
            for (int i = 0; i < words; ++i)
                if (plane < remaining && (i * 32 + lane) * word < run_length)
                    reinterpret_cast<StoredWord<word>*>(run_first +
                                                        lengthened(plane) * p.image_channel)[i * 32 + lane] =
                        tile[i * (32 + skipped) + lane];
        } else {
#pragma unroll 1
            for (int i = 0; i < words; ++i) {
                trace_iteration(i);
                const int owner = (i * 32 + lane) / words, in_cell = (i * 32 + lane) % words * word;
                Result* const pixel = image + firsts[warp][owner] + lengthened(plane) * p.image_channel +
                                      in_cell * p.pixel_stride[last];
                if (in_cell < counts[warp][owner])
                    *reinterpret_cast<StoredWord<word>*>(pixel) = tile[i * (32 + skipped) + lane];
            }
        }
        __syncwarp();
    }
}

// Stores `word` elements at once, which divide a cell; more than one only where all cells are whole and
// aligned.
template <int planes, int word>
__device__ void gather(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights& window,
                       const GatherParameters& p)
{
    constexpr int words = cell_width / word;
    constexpr bool staged = words > (word == 1 ? 2 : 1);
    const int lane = threadIdx.x % 32;
    const Offset item = grid_index();
    const bool live = item < p.items;
    // Staging needs every lane of a warp: those past the end do the last item's work over.
    if (staged ? item - lane >= p.items : !live)
        return;
    const Place<planes> place(live ? item : p.items - 1, p);
    const Offset cell_number = place.along[last];
    Offset pixel[rank]; // of the last axis, the first of the cell
#pragma unroll
    for (int axis = 0; axis < last; ++axis)
        pixel[axis] = place.along[axis];
    pixel[last] = cell_number * cell_width;

    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, last>(taps, pixel, p);
    Offset row_offset[row_taps];
    bool row_exists[row_taps];
#pragma unroll
    for (int tap = 0; tap < row_taps; ++tap) {
        const Offset block =
            cell_number + p.pad[last] / cell_width - floor_divide(tap * dilation[last] - phase, cell_width);
        row_offset[tap] = tap * p.tap_stride[last] + block * p.block_stride[last];
        row_exists[tap] = within(block, p.blocks[last]);
    }

    Accumulator sums[planes][cell_width] = {};
    Denominator denominators[cell_width];
    for_each_tap<0, last, planes * row_taps>(
        taps, p, 0, true, 0, TapWeight{&window},
        [&](Offset offset, bool exists, int iteration, const TapWeight& outer) {
            Weight weights[row_taps];
#pragma unroll
            for (int tap = 0; tap < row_taps; ++tap)
                weights[tap] = outer.value_of(tap, exists && row_exists[tap]);
            Scalar elements[planes][row_taps];
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int tap = 0; tap < row_taps; ++tap) {
                    trace_iteration((iteration * planes + plane) * row_taps + tap);
                    elements[plane][tap] =
                        load_if(plane_columns[plane] + (offset + row_offset[tap]), exists && row_exists[tap]);
                }
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int tap = 0; tap < row_taps; ++tap) {
                    Accumulator& sum = sums[plane][pixel_of(tap)];
                    sum = add(sum, weigh(widen(elements[plane][tap]), weights[tap]));
                }
#pragma unroll
            for (int tap = 0; tap < row_taps; ++tap)
                denominators[pixel_of(tap)].add_tap(weights[tap]);
        });
    RowFactors<cell_width> factors(taps, window, p);
#pragma unroll
    for (int tap = 0; tap < row_taps; ++tap)
        factors.add_tap(pixel_of(tap), tap, row_exists[tap]);
#pragma unroll
    for (int i = 0; i < cell_width; ++i)
        denominators[i].from_axes(factors, i);

    Offset in_plane = 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis)
        in_plane += pixel[axis] * p.pixel_stride[axis];
    constexpr bool whole = cell_width == 1 || word > 1; // all cells are
    const int pixels = whole ? cell_width : int(min(p.size[last] - pixel[last], Offset(cell_width)));
    const Offset remaining = p.channels - place.channel; // planes
    Result* first = place.first_plane(image, p) + in_plane;

#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
        for (int i = 0; i < cell_width; ++i)
            sums[plane][i] = denominators[i].finish(sums[plane][i]);
    OldPixel old[planes][cell_width];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
        for (int i = 0; i < cell_width; ++i)
            old[plane][i].load(first + lengthened(plane) * p.image_channel + i * p.pixel_stride[last],
                               plane < remaining && i < pixels);
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
        for (int i = 0; i < cell_width; ++i)
            sums[plane][i] = old[plane][i].plus(sums[plane][i]);

    if constexpr (!staged) {
        Result* plane_first = first;
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
#pragma unroll
            for (int i = 0; i < words; ++i)
                if (plane < remaining && i * word < pixels) {
                    Result* const address = plane_first + i * word * p.pixel_stride[last];
                    if constexpr (word == 1 &&
                                  sizeof(Result) > 4) // nothing to split, and complex64 would spill
                        *address = narrow(sums[plane][i]);
                    else
                        store_word<word * sizeof(Result)>(address, word_of<word>(sums[plane] + i * word));
                }
            plane_first += p.image_channel;
        }
    } else {
        store_staged<planes, word>(sums, first, image, in_plane, pixels, live, remaining, p);
    }
}

// Where planes share a thread, registers are those that so many threads of a multiprocessor have. What is
// fused needs more, and so do bytes, which are held widened.
constexpr int resident_threads = PLANES == 1 || fuses || sizeof(Scalar) == 1 ? 512
                                 : sizeof(Scalar) == 4                       ? 896
                                                                             : 768;

// A thread for each cell of each plane.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    col2im_gather(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                  const GatherParameters p)
{
    gather<1, 1>(columns, image, window, p);
}

// A thread for each cell of several planes.
extern "C" __global__ void __launch_bounds__(THREADS, resident_threads / THREADS)
    col2im_gather_planes(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const GatherParameters p)
{
    if constexpr (PLANES > 1)
        gather<PLANES, 1>(columns, image, window, p);
}

// The same for rows of whole cells, in words.
extern "C" __global__ void __launch_bounds__(THREADS, resident_threads / THREADS)
    col2im_gather_words(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                        const GatherParameters p)
{
    if constexpr (WORD > 1)
        gather<PLANES, WORD>(columns, image, window, p);
}
