// CUDA's keywords for g++: included before the first line of a kernel, which is unmodified.
//
// A kernel compiled with this header is an ordinary function of one thread. scheduler.cpp calls it once per
// thread of the grid; where threads wait for each other they are fibers. What is missing here does not
// compile: dynamic shared memory, textures, cp.async, cooperative groups, __activemask.
#ifndef HOSTCUDA_CUDA_WORDS_H
#define HOSTCUDA_CUDA_WORDS_H

// Not read: special functions, which no kernel calls, would take g++ as long as half a kernel.
#define _GLIBCXX_BITS_SPECFUN_H 1

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#define __global__ inline // so that those of a file that nobody asked for are not compiled
#define __device__
#define __shared__ static __attribute__((aligned(128)))
#define __launch_bounds__(...)
#define __builtin_assume(condition) ((void)0)

#ifndef HOSTCUDA_OBSERVED
#define HOSTCUDA_OBSERVED 0 // 1: every access to memory calls scheduler.cpp
#endif

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace hostcuda {

void wait_for_block(int line);
void wait_for_warp(unsigned mask, int line, bool orders);
// The value of the lane `source`; garbage if that lane does not participate, as on a GPU.
uint64_t shuffle(unsigned mask, uint64_t value, int source, int line);
unsigned ballot(unsigned mask, bool vote, int line);
unsigned lane();

// An atomic operation is one access; what it reads and writes inside does not count again.
#if HOSTCUDA_OBSERVED
void observe_atomic(void* address, int size, void* site);
#else
inline void observe_atomic(void*, int, void*) {}
#endif

template <typename To, typename From> __forceinline__ To bits(From from)
{
    To to{};
    memcpy(&to, &from, sizeof(from) < sizeof(to) ? sizeof(from) : sizeof(to));
    return to;
}

template <typename Value, typename Operation>
[[gnu::noinline, gnu::no_sanitize("thread")]] Value atomic(Value* address, Operation operation)
{
    observe_atomic(address, sizeof(Value), __builtin_return_address(0));
    const Value old = *address;
    *address = operation(old);
    return old;
}

template <typename Value> Value shuffle_value(unsigned mask, Value value, int source, int line)
{
    static_assert(sizeof(Value) <= 8, "a shuffle moves at most 8 bytes");
    return bits<Value>(shuffle(mask, bits<uint64_t>(value), source, line));
}

} // namespace hostcuda

// Barriers and warp collectives

__forceinline__ void __syncthreads(int line = __builtin_LINE())
{
    hostcuda::wait_for_block(line);
}

__forceinline__ void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE())
{
    hostcuda::wait_for_warp(mask, line, true);
}

template <typename Value>
Value __shfl_sync(unsigned mask, Value value, int source, int width = 32, int line = __builtin_LINE())
{
    const int first = hostcuda::lane() / width * width;
    return hostcuda::shuffle_value(mask, value, first + (source & (width - 1)), line);
}

template <typename Value>
Value __shfl_up_sync(unsigned mask, Value value, unsigned delta, int width = 32, int line = __builtin_LINE())
{
    const int lane = hostcuda::lane(), source = lane - int(delta);
    return hostcuda::shuffle_value(mask, value, source < lane / width * width ? lane : source, line);
}

template <typename Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned delta, int width = 32,
                       int line = __builtin_LINE())
{
    const int lane = hostcuda::lane(), source = lane + int(delta);
    return hostcuda::shuffle_value(mask, value, source >= lane / width * width + width ? lane : source, line);
}

template <typename Value>
Value __shfl_xor_sync(unsigned mask, Value value, int lanes, int width = 32, int line = __builtin_LINE())
{
    const int lane = hostcuda::lane(), source = lane ^ lanes;
    return hostcuda::shuffle_value(mask, value, source >= lane / width * width + width ? lane : source, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return hostcuda::ballot(mask, predicate, line);
}

inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, !predicate, line) == 0;
}

// Atomic operations

template <typename Value> __forceinline__ Value atomicAdd(Value* address, std::common_type_t<Value> value)
{
    return hostcuda::atomic(address, [=](Value old) { return Value(old + value); });
}

template <typename Value> __forceinline__ Value atomicOr(Value* address, std::common_type_t<Value> value)
{
    return hostcuda::atomic(address, [=](Value old) { return old | value; });
}

// Arithmetic

template <typename First, typename Second>
__forceinline__ constexpr std::common_type_t<First, Second> min(First first, Second second)
{
    using Common = std::common_type_t<First, Second>;
    return Common(second) < Common(first) ? Common(second) : Common(first);
}

template <typename First, typename Second>
__forceinline__ constexpr std::common_type_t<First, Second> max(First first, Second second)
{
    using Common = std::common_type_t<First, Second>;
    return Common(first) < Common(second) ? Common(second) : Common(first);
}

__forceinline__ double __dmul_rn(double first, double second)
{
    return first * second;
}
__forceinline__ double __ddiv_rn(double first, double second)
{
    return first / second;
}

__forceinline__ unsigned __umulhi(unsigned first, unsigned second)
{
    return unsigned(uint64_t(first) * second >> 32);
}
__forceinline__ unsigned long long __umul64hi(unsigned long long first, unsigned long long second)
{
    return (unsigned long long)((unsigned __int128)(first)*second >> 64);
}

__forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
__forceinline__ unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift)
{
    return shift < 32 ? __funnelshift_l(low, high, shift) : low;
}
__forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned first, unsigned second, unsigned selector)
{
    const uint64_t bytes = uint64_t(second) << 32 | first;
    unsigned result = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const unsigned choice = selector >> (4 * byte);
        unsigned chosen = unsigned(bytes >> (8 * (choice & 7)) & 0xff);
        if (choice & 8)
            chosen = chosen & 0x80 ? 0xff : 0; // the sign of the byte, repeated
        result |= chosen << (8 * byte);
    }
    return result;
}

__forceinline__ unsigned __brev(unsigned value)
{
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit)
        reversed |= (value >> bit & 1u) << (31 - bit);
    return reversed;
}

__forceinline__ int __popc(unsigned value)
{
    return __builtin_popcount(value);
}
__forceinline__ int __ffs(int value)
{
    return __builtin_ffs(value);
}
__forceinline__ int __clz(int value)
{
    return value ? __builtin_clz(unsigned(value)) : 32;
}

#endif // HOSTCUDA_CUDA_WORDS_H
