// Shared by the kernels with a window: its kind, which is compiled in, and the products with its weights.
#pragma once
#include "common.cuh"

enum class Window { none, separable, full };
constexpr bool windowed = Window::WINDOW != Window::none;
constexpr bool separable = Window::WINDOW == Window::separable; // weights for each axis, to be multiplied

// Pointers to the weights, passed by value: an array for each of the last axes of a block in a separable
// window, else one array for the whole window, or null.
struct Weights {
    static constexpr int count = separable ? WINDOW_AXES : 1;
    const Weight* of_axis[count];

    __device__ const Weight* last() const { return of_axis[count - 1]; }
};

// A weight, or zero if it must not count, by a shift that clears all its bits. `?:` would keep the
// condition in a predicate until the weight has arrived; a thread has few predicates, and its loads would
// wait.
template <typename Real> inline __device__ Real or_zero(Real weight, bool counts)
{
#ifdef HOSTCUDA
    return counts ? weight : Real(0);
#else
    auto word = bit_cast<Word<sizeof(Real)>>(weight);
    const unsigned distance = counts ? 0 : 8 * sizeof(Real);
    if constexpr (sizeof(Real) == 4)
        asm("shl.b32 %0, %0, %1;" : "+r"(word) : "r"(distance));
    else
        asm("shl.b64 %0, %0, %1;" : "+l"(word) : "r"(distance));
    return bit_cast<Real>(word);
#endif
}

// Weights that divide sums: the magnitude of a nonzero one counts as at least 2^-exponent, in double
// precision as 2^(-10 exponent), so that no product of them underflows. Magnitudes compare as integers.
using WeightBits = Word<sizeof(Weight)>;
constexpr WeightBits sign_of_weight = WeightBits(1) << (8 * sizeof(Weight) - 1);
template <int exponent> __device__ constexpr WeightBits least_bits()
{
    return WeightBits(sizeof(Weight) == 4 ? (127ull - exponent) << 23 : (1023ull - 10 * exponent) << 52);
}
template <int exponent> inline __device__ Weight at_least(Weight weight)
{
    constexpr WeightBits least = least_bits<exponent>();
    const WeightBits bits = bit_cast<WeightBits>(weight);
    const WeightBits before = (bits & ~sign_of_weight) - 1; // of zero it is the largest
    return bit_cast<Weight>(((before < least ? least - 1 : before) + 1) | (bits & sign_of_weight));
}
template <int exponent> inline __device__ Weight multiply_at_least(Weight a, Weight b)
{
    constexpr WeightBits least = least_bits<exponent>();
    const Weight product = multiply(a, b);
    const WeightBits bits = bit_cast<WeightBits>(product), sign = bits & sign_of_weight;
    const bool counts = (bit_cast<WeightBits>(a) << 1) != 0 && (bit_cast<WeightBits>(b) << 1) != 0;
    return counts && bits - sign < least ? bit_cast<Weight>(least | sign) : product;
}

// A number times its weight, as a term of a sum.
template <typename Number> inline __device__ Number weigh(Number number, Weight weight)
{
    if constexpr (windowed)
        return multiply(number, weight);
    else
        return number;
}

// An element times its weight, rounded once for a store.
template <typename Element> inline __device__ Element weigh_element(Element element, Weight weight)
{
    if constexpr (windowed)
        return narrow(multiply(widen(element), weight));
    else
        return element;
}

// A mean, which is zero if the divisor's magnitude is below the smallest normal number.
template <typename Number> inline __device__ Number divide_or_zero(Number sum, Weight divisor)
{
    constexpr Weight least = Weight(sizeof(Weight) == 4 ? 0x1p-126 : 0x1p-1022);
    const bool covered = !(divisor < least && divisor > -least);
    return covered ? divide(sum, divisor) : Number{};
}
