// Where the kernel is right now, for observer.cpp.
#pragma once

#include "module.h"

namespace hostcuda {

struct Position {
    uint32_t thread;     // of its block
    uint64_t block_step; // grows with every block and with every barrier of a block
    uint64_t warp_step;  // grows with every barrier of the thread's warp as well
};

// Ends the launch with this message; callable from inside a kernel and from the scheduler.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

} // namespace hostcuda
