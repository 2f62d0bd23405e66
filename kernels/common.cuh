// Shared by all kernels: element types, exact addition, guarded loads, wide stores, division by an invariant.
// Most functions are a line of PTX, with its C++ equivalent on a host, for each dtype or width: they read as
// one table, so they are one file.
//
// A specialisation is chosen by macros, all of which the plan defines. Five end here: SCALAR is an element in
// memory, ACCUMULATOR the type it is summed in, RESULT what a sum is stored as, WEIGHT what it may be
// multiplied with or divided by, OFFSET the signed type of coordinates, thread numbers and offsets inside one
// plane. The offset of a plane itself is always 64 bits wide. THREADS is the size of a thread block, which
// the planner launches and kernels declare their bounds by.
//
// The host build of the kernels (HOSTCUDA) brings the CUDA words with it and gets plain C++ where a GPU gets
// PTX.
#pragma once

// A loop that is unrolled, so that arrays which it indexes are registers.
#define unrolled_for _Pragma("unroll") for

// Element types that C++ lacks. Integers are unsigned: two's complement sums wrap alike.
struct Boolean {
    unsigned char bits;
};
struct Float16 {
    unsigned short bits;
};
struct BFloat16 {
    unsigned short bits;
};
template <typename Real> struct alignas(2 * sizeof(Real)) Complex {
    Real real, imaginary;
};

// One of two types.
template <bool first, typename First, typename Second> struct EitherOf {
    using type = First;
};
template <typename First, typename Second> struct EitherOf<false, First, Second> {
    using type = Second;
};
template <bool first, typename First, typename Second>
using Either = typename EitherOf<first, First, Second>::type;

// The unsigned integer of a size in bytes.
#ifdef HOSTCUDA
using Word16 = unsigned __int128;
#else
struct alignas(16) Word16 {
    unsigned long long low, high;
};
#endif
template <int bytes>
using UpToWord4 = Either<bytes == 1, unsigned char, Either<bytes == 2, unsigned short, unsigned>>;
template <int bytes>
using Word = Either<(bytes <= 4), UpToWord4<bytes>, Either<bytes == 8, unsigned long long, Word16>>;

using Scalar = SCALAR;
using Accumulator = ACCUMULATOR;
using Result = RESULT; // where it is wider than a Scalar, the type that sums are made in
using Weight = WEIGHT;
using Offset = OFFSET;
using UnsignedOffset = Word<sizeof(Offset)>;

template <typename First, typename Second> constexpr bool same = false;
template <typename Type> constexpr bool same<Type, Type> = true;

template <typename To, typename From> inline __device__ To bit_cast(const From& from)
{
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// ---- numbers -----------------------------------------------------------------------------------

// A number in a type that holds it. CuPy compiles with -ftz=true, under which a conversion of float32 to
// float64 would flush denormals.
template <typename To, typename From> inline __device__ To convert(From number)
{
    return To(number);
}
#ifndef HOSTCUDA
template <> inline __device__ double convert<double, float>(float number)
{
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(number));
    return wide;
}
#endif

// An element as it is summed.
template <typename Element> inline __device__ Accumulator widen(Element element)
{
    return convert<Accumulator>(element);
}
template <typename Real, typename Sum = Accumulator> inline __device__ Sum widen(Complex<Real> element)
{
    return {convert<decltype(Sum::real)>(element.real), convert<decltype(Sum::imaginary)>(element.imaginary)};
}
template <typename Sum = Accumulator> inline __device__ Sum widen(Boolean element)
{
    return convert<Sum>(element.bits != 0);
}
template <typename Sum = Accumulator> inline __device__ Sum widen(BFloat16 element)
{
    return convert<Sum>(bit_cast<float>(unsigned(element.bits) << 16));
}
template <typename Sum = Accumulator> inline __device__ Sum widen(Float16 element)
{
#ifdef HOSTCUDA
    return convert<Sum>(float(bit_cast<_Float16>(element.bits)));
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element.bits));
    return convert<Sum>(value);
#endif
}

// A sum as it is stored, rounded once to nearest even if the element is narrower.
template <typename Sum, typename Element = Result> inline __device__ Element narrow(Sum sum)
{
    if constexpr (same<Element, Boolean>) {
        return {static_cast<unsigned char>(sum)};
    } else if constexpr (same<Element, Float16>) {
#ifdef HOSTCUDA
        return {bit_cast<unsigned short>(_Float16(sum))};
#else
        Element element;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element.bits) : "f"(sum));
        return element;
#endif
    } else if constexpr (same<Element, BFloat16>) {
#if __CUDA_ARCH__ >= 800
        Element element;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element.bits) : "f"(sum));
        return element;
#else
        const unsigned bits = bit_cast<unsigned>(sum);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            return {0x7fff}; // not a number
        return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
    } else {
        return Element(sum);
    }
}

// The only additions of elements. CuPy compiles with -ftz=true, under which `+` would flush float32
// denormals.
template <typename Number> inline __device__ Number add(Number sum, Number value)
{
    return sum + value;
}
inline __device__ bool add(bool sum, bool value)
{
    return sum | value;
}
inline __device__ float add(float sum, float value)
{
#ifdef HOSTCUDA
    return sum + value;
#else
    float result;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(sum), "f"(value));
    return result;
#endif
}
template <typename Real> inline __device__ Complex<Real> add(Complex<Real> sum, Complex<Real> value)
{
    return {add(sum.real, value.real), add(sum.imaginary, value.imaginary)};
}

// The only products and quotients of elements, each rounded by itself: never fused with an addition, as `*`
// would be, and with denormals. Integers and bool have neither.
inline __device__ float multiply(float a, float b)
{
#ifdef HOSTCUDA
    return a * b;
#else
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
#endif
}
inline __device__ double multiply(double a, double b)
{
    return __dmul_rn(a, b);
}
inline __device__ float divide(float a, float b)
{
#ifdef HOSTCUDA
    return a / b;
#else
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
    return quotient;
#endif
}
inline __device__ double divide(double a, double b)
{
    return __ddiv_rn(a, b);
}
template <typename Real> inline __device__ Complex<Real> multiply(Complex<Real> a, Real b)
{
    return {multiply(a.real, b), multiply(a.imaginary, b)};
}
template <typename Real> inline __device__ Complex<Real> divide(Complex<Real> a, Real b)
{
    return {divide(a.real, b), divide(a.imaginary, b)};
}

// ---- memory ------------------------------------------------------------------------------------

#ifdef HOSTCUDA
template <int bytes> using AliasedWord __attribute__((may_alias)) = Word<bytes>;
#else
template <int bytes> using AliasedWord = Word<bytes>;
#endif
template <int bytes> using InRegisters = Word<(bytes < 4 ? 4 : bytes)>;

// A suffix of load instructions, which says what else to fetch into the L2 cache; by default nothing. A
// kernel whose threads read whole lines defines it as ".L2::128B", the rest of the line.
#ifndef L2_FETCH
#define L2_FETCH ""
#endif
// A predicated load, never a branch: a thread has all its loads in flight before it waits for the first. The
// word is set before the address is read, so it is marked (&) to share no register with it.
template <int bytes>
inline __device__ Word<bytes> load_word_if(const void* address, bool guard,
                                           Word<bytes> otherwise = Word<bytes>())
{
#ifdef HOSTCUDA
    return guard ? *static_cast<const AliasedWord<bytes>*>(address) : otherwise;
#else
    InRegisters<bytes> word;
    if constexpr (bytes == 16)
        asm("{.reg .pred p; setp.ne.b32 p, %3, 0; mov.b64 %0, %4; mov.b64 %1, %5; "
            "@p ld.global.nc" L2_FETCH ".v2.u64 {%0, %1}, [%2];}"
            : "=&l"(word.low), "=&l"(word.high)
            : "l"(address), "r"(int(guard)), "l"(otherwise.low), "l"(otherwise.high));
    else if constexpr (bytes == 8)
        asm("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b64 %0, %3; @p ld.global.nc" L2_FETCH ".u64 %0, [%1];}"
            : "=&l"(word)
            : "l"(address), "r"(int(guard)), "l"(otherwise));
    else if constexpr (bytes == 4)
        asm("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, %3; @p ld.global.nc" L2_FETCH ".u32 %0, [%1];}"
            : "=&r"(word)
            : "l"(address), "r"(int(guard)), "r"(otherwise));
    else if constexpr (bytes == 2)
        asm("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, %3; @p ld.global.nc" L2_FETCH ".u16 %0, [%1];}"
            : "=&r"(word)
            : "l"(address), "r"(int(guard)), "r"(unsigned(otherwise)));
    else
        asm("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, %3; @p ld.global.nc" L2_FETCH ".u8 %0, [%1];}"
            : "=&r"(word)
            : "l"(address), "r"(int(guard)), "r"(unsigned(otherwise)));
    if constexpr (bytes == 1)
        __builtin_assume(word < 256);
    return static_cast<Word<bytes>>(word);
#endif
}

// The element at an address if the guard holds, else `otherwise`; the address is then never touched. For
// arrays that the kernel does not write.
template <typename Element>
inline __device__ Element load_if(const Element* address, bool guard, Element otherwise = Element{})
{
    return bit_cast<Element>(
        load_word_if<sizeof(Element)>(address, guard, bit_cast<Word<sizeof(Element)>>(otherwise)));
}

// A word if the guard holds, else an undefined one: it is not zeroed before the load.
template <int bytes> inline __device__ Word<bytes> load_word_or_any(const void* address, bool guard)
{
#ifndef HOSTCUDA
    if constexpr (bytes >= 4) {
        Word<bytes> word;
        if constexpr (bytes == 16)
            asm("{.reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.nc" L2_FETCH ".v2.u64 {%0, %1}, [%2];}"
                : "=l"(word.low), "=l"(word.high)
                : "l"(address), "r"(int(guard)));
        else if constexpr (bytes == 8)
            asm("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.nc" L2_FETCH ".u64 %0, [%1];}"
                : "=l"(word)
                : "l"(address), "r"(int(guard)));
        else
            asm("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.nc" L2_FETCH ".u32 %0, [%1];}"
                : "=r"(word)
                : "l"(address), "r"(int(guard)));
        return word;
    }
#endif
    return load_word_if<bytes>(address, guard);
}

// Consecutive elements, at most 16 bytes in all, as one word if the guard holds, else zero; the address is
// a multiple of its size.
template <int count, typename Element>
inline __device__ void load_wide_if(Element (&elements)[count], const Element* address, bool guard)
{
    const Word<sizeof(elements)> word = load_word_if<sizeof(elements)>(address, guard);
    memcpy(elements, &word, sizeof(elements));
}

// The same if the guard holds, else undefined elements.
template <int count, typename Element>
inline __device__ void load_wide(Element (&elements)[count], const Element* address, bool guard)
{
    const Word<sizeof(elements)> word = load_word_or_any<sizeof(elements)>(address, guard);
    memcpy(elements, &word, sizeof(elements));
}

// A word if the guard holds, else zero. The compiler leaves the load before a barrier: otherwise it would
// move the load to the use of the word, after other uses, and fewer loads would be in flight.
template <int bytes> inline __device__ Word<bytes> load_word_here_if(const void* address, bool guard)
{
#ifdef HOSTCUDA
    return load_word_if<bytes>(address, guard);
#else
    const unsigned loads = guard;
    InRegisters<bytes> word;
    if constexpr (bytes == 16)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; mov.b64 %0, 0; mov.b64 %1, 0; "
                     "@p ld.global.v2.u64 {%0, %1}, [%2];}"
                     : "=&l"(word.low), "=&l"(word.high)
                     : "l"(address), "r"(loads));
    else if constexpr (bytes == 8)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b64 %0, 0; @p ld.global.u64 %0, [%1];}"
                     : "=&l"(word)
                     : "l"(address), "r"(loads));
    else if constexpr (bytes == 4)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.u32 %0, [%1];}"
                     : "=&r"(word)
                     : "l"(address), "r"(loads));
    else if constexpr (bytes == 2)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.u16 %0, [%1];}"
                     : "=&r"(word)
                     : "l"(address), "r"(loads));
    else
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.u8 %0, [%1];}"
                     : "=&r"(word)
                     : "l"(address), "r"(loads));
    return static_cast<Word<bytes>>(word);
#endif
}

// An element if the guard holds, else zero. Only this thread writes the element, later.
template <typename Element> inline __device__ Element load_own_if(const Element* address, bool guard)
{
    return guard ? *address : Element{};
}

// Keeps the compiler from recomputing an address, which must be in global memory, for each use.
template <typename Element> inline __device__ void opaque(Element*& address)
{
#ifndef HOSTCUDA
    const void* any = address; // NVRTC fails on the question below where it is of Booleans
    asm("" : "+l"(any));
    __builtin_assume(__isGlobal(any));
    address = static_cast<Element*>(const_cast<void*>(any));
#endif
}

// The same for a number, which may be part of an address.
template <typename Number> inline __device__ void opaque(Number& number)
{
#ifndef HOSTCUDA
    if constexpr (sizeof(Number) == 8)
        asm("" : "+l"(number));
    else
        asm("" : "+r"(number));
#endif
}

// Keeps the compiler from computing what depends on a number any earlier: that would take registers from
// there on or, for a step between addresses, more instructions than a conversion to 64 bits beside its use.
template <typename Number> inline __device__ void opaque_here(Number& number)
{
#ifndef HOSTCUDA
    if constexpr (sizeof(Number) == 8)
        asm volatile("" : "+l"(number));
    else
        asm volatile("" : "+r"(number));
#endif
}

// `opaque` for an address in shared memory.
template <typename Element> inline __device__ void opaque_shared(Element*& address)
{
#ifndef HOSTCUDA
    unsigned in_shared = unsigned(__cvta_generic_to_shared(address));
    opaque(in_shared);
    address = static_cast<Element*>(__cvta_shared_to_generic(in_shared));
#endif
}

// One store as wide as the word, at a multiple of its size in an array: of `=` the compiler would make two
// stores if it has halves in registers.
template <int bytes> inline __device__ void store_word(void* address, Word<bytes> word)
{
#ifdef HOSTCUDA
    *static_cast<AliasedWord<bytes>*>(address) = word;
#else
    if constexpr (bytes == 16)
        asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(word.low), "l"(word.high)
                     : "memory");
    else if constexpr (bytes == 8)
        asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
    else if constexpr (bytes == 4)
        asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
    else if constexpr (bytes == 2)
        asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(word) : "memory");
    else
        asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(unsigned(word)) : "memory");
#endif
}

template <typename Element> inline __device__ void store(Element* address, Element element)
{
    store_word<sizeof(Element)>(address, bit_cast<Word<sizeof(Element)>>(element));
}

// Stores consecutive elements, at most 16 bytes in all, as one word; the address is a multiple of its size.
template <int count, typename Element>
inline __device__ void store_wide(Element* address, const Element (&elements)[count])
{
    store_word<sizeof(elements)>(address, bit_cast<Word<sizeof(elements)>>(elements));
}

// How many elements an address is past a multiple of `count` of them.
template <int count> inline __device__ int elements_past(const Scalar* address)
{
    return int(reinterpret_cast<unsigned long long>(address) / sizeof(Scalar) % count);
}

// ---- indices -----------------------------------------------------------------------------------

// This thread's number in a one-dimensional grid.
inline __device__ Offset grid_index()
{
    return Offset(blockIdx.x) * Offset(blockDim.x) + Offset(threadIdx.x);
}

// A nonnegative number in 64 bits: its products need not consider a sign. Of a negative number the result is
// wrong, and may only be part of an address that is not used.
inline __device__ long long to_int64(Offset number)
{
    return static_cast<long long>(UnsignedOffset(number));
}

// 0 <= value < extent, in one comparison.
inline __device__ bool within(Offset value, Offset extent)
{
    return UnsignedOffset(value) < UnsignedOffset(extent);
}

// Division of any n >= 0 by a number known on the host, by a product and a shift: two instructions if offsets
// have 32 bits, more if 64. gpufold/gpu/parameters.py makes the constants.
struct Divisor {
    Offset divisor;
    UnsignedOffset multiplier;
    int shift;

    __device__ Offset quotient(Offset n) const
    {
        const UnsignedOffset high = sizeof(n) == 8 ? __umul64hi(n, multiplier) : __umulhi(n, multiplier);
        return Offset((high + UnsignedOffset(n)) >> shift);
    }
    // Replaces n by its quotient and gives the remainder.
    __device__ Offset split(Offset& n) const
    {
        const Offset dividend = n;
        n = quotient(n);
        return dividend - n * divisor;
    }
};
