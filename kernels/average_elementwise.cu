// average: a thread divides a few elements of an array by their weights.
//
//   numerator  (*extents), any strides   read, each element once; it may be the result itself
//   result     (*extents), any strides   each element written once, after it was read
//   window     (weights,), contiguous    read by every thread, once per element; broadcast over leading axes
//
// Neighbouring threads have neighbouring elements along the last axis.
#include "window.cuh"

constexpr int rank = RANK;
constexpr int elements = ELEMENTS; // of a thread, THREADS apart

struct Parameters {
    Offset items; // elements of the array
    Offset numerator_stride[rank], result_stride[rank];
    Divisor by_extent[rank];
    Divisor by_weights; // by their number
};

extern "C" __global__ void __launch_bounds__(THREADS)
    average_elementwise(const Scalar* numerator, Scalar* result, const Weights window, const Parameters p)
{
    const Offset first = Offset(blockIdx.x) * (THREADS * elements) + threadIdx.x;
    Scalar element[elements];
    Weight weight[elements];
    Offset target[elements];
    unrolled_for (int number = 0; number < elements; ++number) {
        const Offset item = first + number * THREADS;
        Offset planes = item, rest = item, source = 0;
        target[number] = 0;
        unrolled_for (int axis = rank - 1; axis >= 0; --axis) {
            const Offset place = p.by_extent[axis].split(rest);
            source += place * p.numerator_stride[axis];
            target[number] += place * p.result_stride[axis];
        }
        element[number] = load_own_if(numerator + source, item < p.items);
        weight[number] = load_if(window.last() + p.by_weights.split(planes), item < p.items);
    }
    unrolled_for (int number = 0; number < elements; ++number)
        if (first + number * THREADS < p.items)
            result[target[number]] = narrow(divide_or_zero(widen(element[number]), weight[number]));
}
