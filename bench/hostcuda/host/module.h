// Interface between Python, the scheduler and a compiled kernel; mirrored in module.py.
#pragma once

#include <cstdint>

namespace hostcuda {

struct Module {
    void (*call)(void** arguments); // one thread of the kernel; arguments as cuLaunchKernel takes them
    const uint32_t* parameter_sizes;
    uint32_t parameter_count;
    char* image_begin;
    char* shared_begin; // all static shared memory of the kernel, then the image ends
    char* shared_end;
};

// An array in memory, between guards that belong to it too.
struct Array {
    char* begin; // of the front guard
    char* end;   // of the back guard
    uint32_t argument;
    uint32_t writable; // whether kernels may write to it
    char* first;       // byte of the array, from which messages count
    uint8_t* flags;    // per byte from begin
};

// Flags of a byte: whether it is in an element, whether it was ever written, and whether this launch may
// write it only once, and has.
constexpr uint8_t kElement = 1, kKnown = 2, kOnce = 4, kWritten = 8;

struct Launch {
    const Module* module;
    void** arguments;
    uint32_t grid[3];
    uint32_t block[3];
    uint64_t seed; // 0: threads run in order; else they are shuffled by it
    const Array* arrays;
    uint32_t array_count;
};

} // namespace hostcuda
