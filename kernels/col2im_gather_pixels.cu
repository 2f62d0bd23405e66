// col2im by gathering: a thread owns a pixel, or a word of them, of one or several planes and adds up the
// taps that land on it.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for all planes, the last
//                                                             axis's weights once where they are few
//
// Neighbouring threads read neighbouring taps of the same block, or, where the stride is small, neighbouring
// blocks. Where taps follow each other in memory and words of pixels get words of them, all of which exist or
// none, they are loaded and stored so, and the pixels of a word share the index arithmetic. Taps are added in
// lexicographic order. No atomics and no zero fill.
//
// Serves everything. Wins where the taps of a block lie closer in memory than its blocks, where the last axis
// has too many taps to unroll, which are a loop here, and where a row of pixels is shorter than a large
// stride.
#include "col2im.cuh"
#include "fusion.cuh"

constexpr int row_taps = int(Pattern<last>::taps); // that land on a pixel along the last axis
constexpr int kept_weights = 16; // of a row of taps that a thread keeps for all rows, at most

// More than one pixel at once only where pixels, taps and blocks are whole words of so many; `aligned` is
// said of a window's weights.
template <int planes, int word, bool aligned>
__device__ void gather_pixels(const Scalar* __restrict__ columns, Result* __restrict__ image,
                              const Weights& window, const Parameters& p)
{
    const Offset thread = grid_index();
    if (thread >= p.items)
        return;
    Place<planes> place(thread, p);
    place.along[last] *= word;
    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, rank>(taps, place.along, p);

    // The taps of all rows are loaded together, or of as many rows as have room in registers, one after
    // another where a window needs some of these: rows without taps are skipped then. Of a row that has no
    // room itself, some taps are.
    constexpr Offset loads = planes * word, row_registers = row_taps * loads * element_registers;
    constexpr bool whole_rows = row_registers <= unrolled_registers;
    constexpr int without_room = whole_rows ? looped_axes<last - 1>(row_registers) : last;
    constexpr int looped = windowed && without_room > 0 ? last : without_room;
    constexpr int together = whole_rows ? row_taps : (looped_loads + loads - 1) / loads;
    constexpr bool keeps_weights = whole_rows && row_taps * word <= kept_weights;
    const auto load_row_weights = [&](Offset number) {
        return RowWeights<word, aligned>(window, taps[last].tap + number * Pattern<last>::tap_step,
                                         taps[last].template exists<last>(number, p));
    };
    RowWeights<word, aligned> kept[keeps_weights ? row_taps : 1];
    if constexpr (keeps_weights)
#pragma unroll
        for (int number = 0; number < row_taps; ++number)
            kept[number] = load_row_weights(number);
    const auto row_weights = [&](Offset number) {
        if constexpr (keeps_weights)
            return kept[number];
        else
            return load_row_weights(number);
    };

    Accumulator sums[planes][word] = {};
    Denominator denominators[word];
    for_each_tap<0, last, together * loads, looped>(
        taps, p, taps[last].offset, true, TapWeight{&window},
        [&](Offset offset, bool row_exists, const TapWeight& outer) {
#pragma unroll(together)
            for (int number = 0; number < row_taps; ++number) {
                const bool exists = row_exists && taps[last].template exists<last>(number, p);
                Weight weights[word] = {};
                row_weights(number).in_row(weights, outer, taps[last].tap + number * Pattern<last>::tap_step,
                                           exists);
                Scalar elements[planes][word];
#pragma unroll
                for (int plane = 0; plane < planes; ++plane)
                    load_wide_if(elements[plane],
                                 plane_columns[plane] + (offset + number * p.tap_step_stride[last]), exists);
#pragma unroll
                for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                    for (int i = 0; i < word; ++i)
                        sums[plane][i] = add(sums[plane][i], weigh(widen(elements[plane][i]), weights[i]));
#pragma unroll
                for (int i = 0; i < word; ++i)
                    denominators[i].add_tap(weights[i]);
            }
        });
    if constexpr (divides_by_axes) {
        RowFactors<word> factors(taps, window, p);
#pragma unroll(keeps_weights ? row_taps : 4)
        for (int number = 0; number < row_taps; ++number) {
            factors.add_taps(row_weights(number), taps[last].template exists<last>(number, p));
        }
#pragma unroll
        for (int i = 0; i < word; ++i)
            denominators[i].from_axes(factors, i);
    }

    Offset offset = 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis)
        offset += place.along[axis] * p.pixel_stride[axis];
    Result* first = place.first_plane(image, p) + offset;
    const Offset remaining = p.channels - place.channel; // planes
    OldPixel old[planes][word];
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
        OldPixel::load_wide(old[plane], first + lengthened(plane) * p.image_channel, plane < remaining);
    average(sums, denominators);
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
        Result pixels[word];
#pragma unroll
        for (int i = 0; i < word; ++i)
            pixels[i] = narrow(old[plane][i].plus(sums[plane][i]));
        if (plane < remaining)
            store_wide(first + lengthened(plane) * p.image_channel, pixels);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    col2im_gather_pixels(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const Parameters p)
{
    gather_pixels<1, 1, true>(columns, image, window, p);
}

// Of a multiprocessor, with the registers that planes need: more where sums are fused or bytes are widened.
constexpr int resident_threads = fuses || sizeof(Scalar) == 1 ? 512 : 768;

extern "C" __global__ void __launch_bounds__(THREADS, resident_threads / THREADS)
    col2im_gather_pixels_planes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                                const Weights window, const Parameters p)
{
    gather_pixels<PLANES, 1, true>(columns, image, window, p);
}

template <int planes>
__device__ void gather_words(const Scalar* __restrict__ columns, Result* __restrict__ image,
                             const Weights& window, const Parameters& p)
{
    if (!windowed || aligned_weights<WORD>(window))
        gather_pixels<planes, WORD, true>(columns, image, window, p);
    else
        gather_pixels<planes, WORD, false>(columns, image, window, p);
}

// For words of pixels.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    col2im_gather_pixels_words(const Scalar* __restrict__ columns, Result* __restrict__ image,
                               const Weights window, const Parameters p)
{
    if constexpr (WORD > 1)
        gather_words<1>(columns, image, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    col2im_gather_pixels_words_planes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                                      const Weights window, const Parameters p)
{
    if constexpr (WORD > 1)
        gather_words<WORD_PLANES>(columns, image, window, p);
}
