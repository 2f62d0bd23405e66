// What a compiled kernel tells scheduler.cpp and execute.py about itself.
#pragma once

#include <cstdint>

namespace hostcuda {

struct Parameter {
    uint32_t size;    // of the value, or of a pointer
    uint32_t pointer; // 0: a value, 1: a pointer to const, 2: a pointer to what the kernel writes
};

struct Module {
    void (*call)(void** arguments); // one thread of the kernel; arguments as cuLaunchKernel takes them
    const Parameter* parameters;
    uint32_t parameter_count;
    char* shared_begin; // all static shared memory of the kernel
    char* shared_end;
};

struct Launch {
    const Module* module;
    void** arguments;
    uint32_t grid[3];
    uint32_t block[3];
    uint64_t seed; // 0: threads run in order; else they are shuffled by it
    char* fault;   // what went wrong, for the caller; empty if nothing
    uint32_t fault_size;
};

} // namespace hostcuda
