// Interleaving elements in registers: a power of two of rows, one behind the other, become columns, and back.
// Narrow elements share registers, whose bytes are permuted.
#pragma once
#include "common.cuh"

constexpr bool elements_share_registers = sizeof(Scalar) <= 2;

// Two halves become pairs: a0 a1 .. b0 b1 .. is then a0 b0 a1 b1 ..
template <int count> inline __device__ void zip(Scalar (&elements)[count])
{
    constexpr int registers = int(sizeof(elements) / sizeof(unsigned)), half = count / 2;
    if constexpr (elements_share_registers && registers > 1) {
        constexpr bool bytes = sizeof(Scalar) == 1;
        unsigned halves[registers], pairs[registers];
        memcpy(halves, elements, sizeof(elements));
#pragma unroll
        for (int i = 0; i < registers / 2; ++i) {
            pairs[2 * i] = __byte_perm(halves[i], halves[registers / 2 + i], bytes ? 0x5140 : 0x5410);
            pairs[2 * i + 1] = __byte_perm(halves[i], halves[registers / 2 + i], bytes ? 0x7362 : 0x7632);
        }
        memcpy(elements, pairs, sizeof(elements));
    } else {
        Scalar pairs[count];
#pragma unroll
        for (int i = 0; i < half; ++i) {
            pairs[2 * i] = elements[i];
            pairs[2 * i + 1] = elements[half + i];
        }
        memcpy(elements, pairs, sizeof(elements));
    }
}

// Pairs become two halves.
template <int count> inline __device__ void unzip(Scalar (&elements)[count])
{
    constexpr int registers = int(sizeof(elements) / sizeof(unsigned)), half = count / 2;
    if constexpr (elements_share_registers && registers > 1) {
        constexpr bool bytes = sizeof(Scalar) == 1;
        unsigned pairs[registers], halves[registers];
        memcpy(pairs, elements, sizeof(elements));
#pragma unroll
        for (int i = 0; i < registers / 2; ++i) {
            halves[i] = __byte_perm(pairs[2 * i], pairs[2 * i + 1], bytes ? 0x6420 : 0x5410);
            halves[registers / 2 + i] = __byte_perm(pairs[2 * i], pairs[2 * i + 1], bytes ? 0x7531 : 0x7632);
        }
        memcpy(elements, halves, sizeof(elements));
    } else {
        Scalar halves[count];
#pragma unroll
        for (int i = 0; i < half; ++i) {
            halves[i] = elements[2 * i];
            halves[half + i] = elements[2 * i + 1];
        }
        memcpy(elements, halves, sizeof(elements));
    }
}

// Rows become columns: the first element of each row, then the second of each.
template <int rows, int count> inline __device__ void interleave(Scalar (&elements)[count])
{
    if constexpr (rows > 1) {
        zip(elements);
        interleave<rows / 2>(elements);
    }
}

// Columns become rows.
template <int rows, int count> inline __device__ void deinterleave(Scalar (&elements)[count])
{
    if constexpr (rows > 1) {
        unzip(elements);
        deinterleave<rows / 2>(elements);
    }
}
