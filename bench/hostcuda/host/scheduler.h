// Interface between scheduler.cpp and observer.cpp.
#pragma once

#include "module.h"

namespace hostcuda {

// The thread that runs now, and how far it has come.
struct Position {
    uint32_t thread;     // of its block
    uint32_t block;      // from 1, counted in all launches
    uint32_t block_step; // grows with every block and every barrier of a block
    uint32_t warp_step;  // grows with every barrier of the thread's warp that orders memory
    const char* stack_begin;
    const char* stack_end;
};
Position position();

extern const Launch* launch;

// Ends the launch, of whose block a message says where it was. The kernel's code addresses go into the message as {%zx}, from code_offset.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

} // namespace hostcuda
