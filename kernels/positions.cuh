// Shared by the kernels of add_blocks and take_blocks: where blocks lie, and their weights.
//
// Element t of block b belongs to pixel positions[b] + t of each axis of an image. The first FIXED axes are
// leading axes of both arrays that are not part of batch and channels: a block spans them from end to end and
// has no position there.
#pragma once
#include "common.cuh"
#include "window.cuh"

constexpr int rank = RANK;
constexpr int last = rank - 1;
constexpr int fixed = FIXED;
constexpr int positioned = rank - fixed; // axes

// If sums of weights are requested, kernels take an array (*size) for them after the window: the weight of an
// element of a block, or one, is added to its pixel there too.
#if WEIGHT_OUT
#define WEIGHT_OUT_ARGUMENT Weight* __restrict__ weight_out,
#else
#define WEIGHT_OUT_ARGUMENT
constexpr Weight* weight_out = nullptr;
#endif
constexpr bool weighs_out = WEIGHT_OUT;
constexpr int least_exponent = 96; // of weights whose sums will divide

struct Parameters {
    long long block_step, blocks_batch, blocks_channel; // strides in elements, as all below
    long long image_batch, image_channel;
    Offset count; // of blocks
    Offset channels;
    Offset items; // that have an owner: tiles of all planes, or elements of all blocks
    Offset size[rank];
    Offset block[rank]; // extents
    Offset tap_stride[rank];
    Offset pixel_stride[rank];
    Offset weight_stride[rank]; // of the sums of weights
    Divisor by_extent[rank];    // extents to unravel an item's number by, as np.unravel_index does
    Divisor by_channels;        // groups of them
};
// Of kernels whose threads own elements of blocks.
struct ElementParameters : Parameters {
    Divisor by_batch;
};

// Whether a block at a position intersects pixels [begin, end), without a sum that could overflow.
inline __device__ bool intersects(long long position, Offset block, Offset begin, Offset end)
{
    return position < end && position > (long long)(begin)-block;
}

// The factors of an element's weight: loaded first and multiplied when needed, so that a thread has the loads
// of all its elements in flight. They are zero, and not read, if the element does not exist.
struct TapWeight {
    Weight factor[separable ? positioned : 1];

    TapWeight() = default;
    __device__ TapWeight(const Offset (&tap)[rank], bool exists, const Weights& window, const Parameters& p)
    {
        Offset number = 0;
        unrolled_for (int axis = fixed; axis < rank; ++axis) {
            if constexpr (separable) {
                factor[axis - fixed] = load_if(window.of_axis[axis - fixed] + tap[axis], exists);
            } else {
                number = number * p.block[axis] + tap[axis];
            }
        }
        if constexpr (windowed && !separable)
            factor[0] = load_if(window.last() + number, exists);
    }

    // Not used without a window.
    __device__ Weight value() const
    {
        Weight product = !windowed ? 0 : weighs_out ? at_least<least_exponent>(factor[0]) : factor[0];
        unrolled_for (int axis = 1; axis < (separable ? positioned : 1); ++axis)
            product = weighs_out
                          ? multiply_at_least<least_exponent>(product, at_least<least_exponent>(factor[axis]))
                          : multiply(product, factor[axis]);
        return product;
    }
};

// The term of an element in a sum of weights.
inline __device__ Weight weight_of(const TapWeight& weight, bool exists)
{
    if constexpr (windowed)
        return weight.value();
    else
        return Weight(exists);
}

// Types whose highest bit is the sign, so that zero has one too.
template <typename Number>
constexpr bool has_negative_zero =
    same<Number, float> || same<Number, double> || same<Number, Float16> || same<Number, BFloat16>;
template <typename Real> constexpr bool has_negative_zero<Complex<Real>> = true;

// A term or, if it does not exist and is zero so far, -0.0, which changes no sum. For a choice between two
// sums the compiler would branch, and wait for each load before the next.
template <typename Number> inline __device__ Number masked(Number term, bool exists)
{
    using Bits = Word<sizeof(Number)>;
    if constexpr (has_negative_zero<Number>)
        return bit_cast<Number>(
            Bits(bit_cast<Bits>(term) | (exists ? 0 : Bits(1) << (8 * sizeof(Number) - 1))));
    else
        return term;
}
template <typename Real> inline __device__ Complex<Real> masked(Complex<Real> term, bool exists)
{
    return {masked(term.real, exists), masked(term.imaginary, exists)};
}

// An element that changes no sum, even after it was multiplied by a weight of zero.
template <typename Element> inline __device__ Element additive_identity(Element)
{
    return masked(Element{}, false);
}

// An element as a term of a sum, if it exists. Integers that become floats have no negative zero for missing
// elements, and get its sign here.
template <typename Element>
inline __device__ Accumulator term_of(Element element, const TapWeight& weight, bool exists)
{
    const Accumulator term = weigh(widen(element), weight.value());
    return has_negative_zero<Element> ? term : masked(term, exists);
}
