// Additions to memory that other threads add to at the same time: their order is the hardware's.
#pragma once
#include "common.cuh"

template <typename Number> inline __device__ void add_atomically(Number* address, Number value)
{
    atomicAdd(address, value);
}
template <typename Real> inline __device__ void add_atomically(Complex<Real>* address, Complex<Real> value)
{
    atomicAdd(&address->real, value.real);
    atomicAdd(&address->imaginary, value.imaginary);
}
// Bytes have no atomics of their own: the byte's bit is set in the word around it.
inline __device__ void add_atomically(Boolean* address, Boolean value)
{
    const unsigned long long byte = reinterpret_cast<unsigned long long>(address);
    if (value.bits)
        atomicOr(reinterpret_cast<unsigned*>(byte & ~3ull), 1u << 8 * (byte & 3));
}
