// Arithmetic that col2im fuses into its sums: a window's weights, an average's division, and accumulation.
//
//   pixel = sum of (weight * element) / denominator + old pixel
//
// Each of the three is compiled in only if a call requests it.
//
//   reduction      denominator of a pixel
//   sum            none
//   mean           the weights of the taps that land on it, added up; without a window the number of the taps
//   least_squares  the squares of these weights, added up; without a window the number of the taps
//
// Nonzero weights of an average count as at least 2^-96 in magnitude, those of float64 as 2^-960: weights of
// an axis as a root of that, and weights that are squared as its square root, 2^-48 and 2^-480.
#pragma once
#include "col2im.cuh"
#include "window.cuh"

enum class Reduction { sum, mean, least_squares };
constexpr Reduction reduction = Reduction::REDUCTION;
constexpr bool averages = reduction != Reduction::sum;
constexpr bool accumulates = ACCUMULATE;
constexpr bool fuses = windowed || averages || accumulates;

// ---- a window's weights ------------------------------------------------------------------------

constexpr int unweighted = rank - Weights::count; // leading axes without weights in a separable window

// A loaded weight, and the product of two weights, as averages count them.
constexpr bool squares = reduction == Reduction::least_squares;
constexpr int least_exponent = squares ? 48 : 96 / Weights::count;
inline __device__ Weight counted(Weight weight)
{
    if constexpr (windowed && averages)
        return at_least<least_exponent>(weight);
    else
        return weight;
}
inline __device__ Weight joined(Weight product, Weight weight)
{
    if constexpr (squares)
        return multiply_at_least<least_exponent>(product, weight);
    else
        return multiply(product, weight);
}

// The weight of a tap, as far as its axes are known: the product of their weights, or the tap's number in
// the window. If the tap does not exist, no weight is read and the product is zero: weights of other axes
// must not count, because infinity times zero is not zero.
struct TapWeight {
    const Weights* window;
    Weight product;
    Offset number;

    // The same with one more axis, along which the tap has this number.
    template <int axis> __device__ TapWeight along(Offset tap, bool exists) const
    {
        if constexpr (!separable) {
            return {window, 0, number * kernel[axis] + tap};
        } else if constexpr (axis < unweighted) {
            return {window, 0, 0};
        } else {
            const Weight weight = counted(load_if(window->of_axis[axis - unweighted] + tap, exists));
            return {window, axis == unweighted ? weight : joined(or_zero(product, exists), weight), 0};
        }
    }

    // The weight, if all axes are known.
    __device__ Weight value(bool exists) const
    {
        return separable || !windowed ? product : counted(load_if(window->last() + number, exists));
    }

    // The weight, if all axes but the last are known.
    __device__ Weight value_of(Offset row_tap, bool exists) const
    {
        return along<last>(row_tap, exists).value(exists);
    }
};

// The weights of consecutive taps of a row, which all exist or none. If the window is aligned, `first` is a
// multiple of their bytes, or of 16.
template <bool aligned, int taps>
__device__ void load_weights(Weight (&weights)[taps], const Weight* first, bool exists)
{
    constexpr int most = int(16 / sizeof(Weight));
    constexpr int word = !aligned ? 1 : taps < most ? taps : most;
    unrolled_for (int begin = 0; begin < taps; begin += word) {
        Weight of_word[word];
        load_wide_if(of_word, first + begin, exists);
        unrolled_for (int i = 0; i < word; ++i)
            weights[begin + i] = counted(of_word[i]);
    }
}

// Whether words of `taps` weights are aligned in the last axis's array, or in the array for all axes.
template <int taps> __device__ bool aligned_weights(const Weights& window)
{
    return reinterpret_cast<unsigned long long>(window.last()) % (taps * sizeof(Weight)) == 0;
}

// The weights of the taps of a row that a thread adds at once.
template <int taps, bool aligned> struct RowWeights {
    Weight of_axis[taps]; // separable: of the last axis, zero if the taps do not exist

    RowWeights() = default;
    __device__ RowWeights(const Weights& window, Offset tap, bool exists)
    {
        if constexpr (separable)
            load_weights<aligned>(of_axis, window.last() + tap, exists);
    }

    // The weights in one row, which `outer` knows by the other axes.
    __device__ void in_row(Weight (&weights)[taps], const TapWeight& outer, Offset tap, bool exists) const
    {
        if constexpr (separable) {
            unrolled_for (int i = 0; i < taps; ++i) {
                const Weight weight = last == unweighted ? of_axis[i] : joined(outer.product, of_axis[i]);
                weights[i] = rank == 1 ? weight : or_zero(weight, exists); // of one axis it is zero already
            }
        } else if constexpr (windowed) {
            load_weights<aligned>(weights, outer.window->last() + (outer.number * kernel[last] + tap),
                                  exists);
        }
    }
};

// ---- an average's denominators -----------------------------------------------------------------

// A denominator is summed tap by tap if every tap has its own weight, or a square. Otherwise it is a
// product of one factor per axis: the number of its taps that land on the pixel, or the sum of their
// weights. For a single axis both are the same sum.
constexpr bool divides_by_taps = averages && windowed && (!separable || rank == 1 || squares);
constexpr bool divides_by_axes = averages && !divides_by_taps;

// An axis's factor of a denominator, with weights or without.
template <bool weighted> struct FactorOf {
    Either<weighted, Weight, Offset> sum; // of weights, or of the taps
    bool covers; // whether a tap landed: else pixels stay zero beside an infinite sum

    __device__ FactorOf times(FactorOf other) const
    {
        const bool both = covers && other.covers;
        if constexpr (weighted)
            return {both ? multiply(sum, other.sum) : Weight(0), both};
        else
            return {sum * other.sum, both};
    }
    // With one more tap of the axis, if it exists.
    __device__ FactorOf with_weight(Weight weight, bool exists) const
    {
        if constexpr (weighted)
            return {add(sum, weight), covers || exists};
        else
            return {sum + exists, covers || exists};
    }
    template <int axis> __device__ FactorOf with_tap(Offset tap, bool exists, const Weights& window) const
    {
        if constexpr (weighted && axis >= unweighted)
            return with_weight(counted(load_if(window.of_axis[axis - unweighted] + tap, exists)), exists);
        else
            return with_weight(Weight(exists), exists);
    }
};
using Factor = FactorOf<windowed>;

// The product of the factors of the axes up to this one, from that of the axes before.
template <int axis> __device__ Factor join(Factor before, Factor factor)
{
    return axis == 0 ? factor : before.times(factor);
}

// The factor of a pixel that these taps of an axis may land on.
template <int axis> __device__ Factor factor_of(const Taps& taps, const Weights& window, const Parameters& p)
{
    Factor factor = {};
    if constexpr (divides_by_axes)
#pragma unroll(4)
        for (Offset number = 0; number < Pattern<axis>::taps; ++number)
            factor = factor.with_tap<axis>(taps.tap + number * Pattern<axis>::tap_step,
                                           taps.exists<axis>(number, p), window);
    return factor;
}

// The product of the factors of all axes but the last.
template <int axis = 0>
__device__ Factor outer_factor(const Taps (&taps)[rank], const Weights& window, const Parameters& p,
                               Factor before = {})
{
    if constexpr (axis == last)
        return before;
    else
        return outer_factor<axis + 1>(taps, window, p,
                                      join<axis>(before, factor_of<axis>(taps[axis], window, p)));
}

// The factors of pixels of one row; a kernel adds the taps of the last axis.
template <int pixels> struct RowFactors {
    const Weights& window;
    Factor outer;
    Factor of_last[pixels] = {};

    __device__ RowFactors(const Taps (&taps)[rank], const Weights& window, const Parameters& p)
        : window(window), outer(outer_factor(taps, window, p))
    {
    }
    // For each tap that may land on a pixel.
    __device__ void add_tap(int pixel, Offset tap, bool exists)
    {
        of_last[pixel] = of_last[pixel].template with_tap<last>(tap, exists, window);
    }
    // For as many taps, each on a pixel of its own.
    template <bool aligned> __device__ void add_taps(const RowWeights<pixels, aligned>& weights, bool exists)
    {
        unrolled_for (int pixel = 0; pixel < pixels; ++pixel)
            of_last[pixel] = of_last[pixel].with_weight(weights.of_axis[pixel], exists);
    }
    __device__ Factor product(int pixel) const { return join<last>(outer, of_last[pixel]); }
};

// The divisor of one pixel's sum. A kernel calls add_tap for each tap that may land on the pixel, with zero
// if the tap does not exist, and then from_axes once.
struct Denominator {
    Weight value = 0;

    __device__ void add_tap(Weight weight)
    {
        if constexpr (divides_by_taps)
            value = add(value, squares ? multiply(weight, weight) : weight);
    }
    __device__ void from_axes(Factor product)
    {
        if constexpr (divides_by_axes)
            value = Weight(product.sum);
    }
    // The average, which is zero if the denominator's magnitude is below the smallest normal number.
    template <typename Number> __device__ Number finish(Number sum) const
    {
        if constexpr (averages)
            return divide_or_zero(sum, value);
        else
            return sum;
    }
};

// Divides the sums of neighbouring pixels of some planes.
template <int planes, int pixels>
__device__ void average(Accumulator (&sums)[planes][pixels], const Denominator (&denominators)[pixels])
{
    unrolled_for (int plane = 0; plane < planes; ++plane)
        unrolled_for (int i = 0; i < pixels; ++i)
            sums[plane][i] = denominators[i].finish(sums[plane][i]);
}

// ---- the image that is added to ----------------------------------------------------------------

// A pixel's value before the launch, to which its sum is added.
struct OldPixel {
    Result element;

    // Neighbouring pixels, 16 bytes at most in all; the address is a multiple of their size.
    template <int count>
    static __device__ void load_wide(OldPixel (&pixels)[count], const Result* address, bool exists)
    {
        if constexpr (accumulates) {
            using Wide = AliasedWord<count * sizeof(Result)>;
            const Word<sizeof(pixels)> word = load_own_if(reinterpret_cast<const Wide*>(address), exists);
            memcpy(pixels, &word, sizeof(word));
        }
    }
    __device__ Accumulator plus(Accumulator pixel) const
    {
        return accumulates ? add(widen(element), pixel) : pixel;
    }
};
