// Words of 32 bits as sets of rows, columns or blocks.
#pragma once
#include "common.cuh"

// A word in which bits begin, begin + 1, ..., end - 1 are ones, as far as it has them. Neither number is
// negative.
inline __device__ unsigned run_of_bits(Offset begin, Offset end)
{
    return __funnelshift_lc(0, ~0u, unsigned(begin)) & ~__funnelshift_lc(0, ~0u, unsigned(end));
}

// Clears the highest bit of a word and returns its number, -1 if there is none.
inline __device__ int take_highest(unsigned& word)
{
#ifdef HOSTCUDA
    const int number = 31 - __clz(word);
    word &= ~(word ? 1u << number : 0);
#else
    int number;
    unsigned bit;
    asm("bfind.u32 %0, %2; shl.b32 %1, 1, %0;" : "=&r"(number), "=r"(bit) : "r"(word));
    word ^= bit;
#endif
    return number;
}

// The bits of a word, or those of another where a mask has ones: one instruction, for which the compiler
// would use two.
template <unsigned mask> inline __device__ unsigned with_bits_of(unsigned word, unsigned other)
{
#ifdef HOSTCUDA
    return (word & ~mask) | (other & mask);
#else
    unsigned mixed;
    asm("lop3.b32 %0, %1, %2, %3, 0xd8;" : "=r"(mixed) : "r"(word), "r"(other), "n"(mask));
    return mixed;
#endif
}

// Transposes a matrix of bits with a row in each lane: bit i of lane k becomes bit k of lane i. Rows are
// rotated so that each bit comes from the lane as far on as its number says, in five steps, and then back.
inline __device__ unsigned transposed(unsigned word)
{
    const int lane = threadIdx.x; // modulo 32, as shuffles and rotations take it
    word = __brev(word);
    word = __funnelshift_l(word, word, lane + 1);
    // Each mask has the bits whose numbers have the bit that is the step.
    word = with_bits_of<0xaaaaaaaa>(word, __shfl_sync(~0u, word, lane + 1));
    word = with_bits_of<0xcccccccc>(word, __shfl_sync(~0u, word, lane + 2));
    word = with_bits_of<0xf0f0f0f0>(word, __shfl_sync(~0u, word, lane + 4));
    word = with_bits_of<0xff00ff00>(word, __shfl_sync(~0u, word, lane + 8));
    word = with_bits_of<0xffff0000>(word, __shfl_xor_sync(~0u, word, 16));
    return __funnelshift_l(word, word, lane);
}
