// Runs a kernel block by block, thread by thread, on one CPU core.
//
// A thread that waits at a barrier keeps its stack while others run on theirs. A barrier opens when each of its
// threads has reached it or returned. Threads take turns at barriers only, in order or shuffled by a seed.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <ucontext.h>

#include "cuda_words.h"
#include "scheduler.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace hostcuda {

const Launch* launch;

namespace {

constexpr std::size_t kStackSize = 256 * 1024; // only the pages that a kernel touches become real

enum class State { ready, waits_for_warp, waits_for_block, done };

struct Thread {
    State state;
    int line;       // of the barrier it waits at
    unsigned mask;  // of the warp barrier it waits at
    bool orders;    // whether that barrier orders accesses to memory
    uint64_t value; // that it brings there
    unsigned lanes; // that met there
    jmp_buf resume;
    std::unique_ptr<char[]> stack; // the same in every block
};

struct Warp {
    uint32_t step;
    // Brought to the barrier that opened last. Barriers open when no thread is ready, so all have read it by
    // then.
    uint64_t values[32];
};

std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<uint32_t> order; // in which threads get their turn
uint32_t current;            // thread
uint32_t block_number;
uint32_t block_step;
jmp_buf scheduler;
jmp_buf abandon;
char message[4096]; // of the fault, empty if there was none

// Ends the turn of the thread that runs now, until its next one.
void stop(State state)
{
    threads[current].state = state;
    if (!_setjmp(threads[current].resume))
        _longjmp(scheduler, 1);
}

// The main function of a stack: its thread of one block after the other.
void run_thread()
{
    for (;;) {
        launch->module->call(launch->arguments);
        stop(State::done);
    }
}

// Runs a thread until it waits or returns.
void take_turn(uint32_t number)
{
    Thread& thread = threads[number];
    current = number;
    threadIdx.x = number; // kernels have blocks of one axis
    if (_setjmp(scheduler))
        return;
    if (thread.stack)
        _longjmp(thread.resume, 1);
    thread.stack.reset(new char[kStackSize]);
    static ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = thread.stack.get();
    first.uc_stack.ss_size = kStackSize;
    makecontext(&first, run_thread, 0);
    setcontext(&first);
}

void wait(State state, int line)
{
    threads[current].line = line;
    stop(state);
}

// Opens the barrier that a thread waits at, if all threads that it names and that have not returned wait
// there.
bool open_barrier(uint32_t waiting)
{
    const Thread& first = threads[waiting];
    const bool of_warp = first.state == State::waits_for_warp;
    const uint32_t begin = of_warp ? waiting / 32 * 32 : 0, count = uint32_t(threads.size());
    static std::vector<uint32_t> named;
    named.clear();
    unsigned lanes = 0;
    for (uint32_t number = begin; number < (of_warp ? std::min(begin + 32, count) : count); ++number) {
        const Thread& thread = threads[number];
        if (thread.state == State::done || (of_warp && !(first.mask >> number % 32 & 1)))
            continue;
        if (thread.state != first.state || (of_warp && thread.mask != first.mask))
            return false;
        named.push_back(number);
        lanes |= 1u << number % 32;
    }
    for (const uint32_t number : named) {
        Thread& thread = threads[number];
        if (thread.line != first.line) {
            fault("a thread waits at the barrier of line %d, another at that of line %d", first.line,
                  thread.line);
        }
        thread.state = State::ready;
        thread.lanes = lanes;
        warps[number / 32].values[number % 32] = thread.value;
    }
    (of_warp ? warps[waiting / 32].step : block_step) += of_warp ? first.orders : 1;
    return true;
}

// Opens the barriers of warps that all their threads wait at or, if there is none, that of the block.
void open_barriers()
{
    bool opened = false;
    for (uint32_t number = 0; number < threads.size(); ++number) {
        if (threads[number].state == State::waits_for_warp)
            opened |= open_barrier(number);
    }
    const auto is_live = [](const Thread& thread) { return thread.state != State::done; };
    const auto live = std::find_if(threads.begin(), threads.end(), is_live) - threads.begin();
    if (opened || open_barrier(uint32_t(live)))
        return;
    int lines[2] = {0, 0};
    for (const Thread& thread : threads) {
        if (is_live(thread))
            lines[thread.state == State::waits_for_warp] = thread.line;
    }
    fault("threads wait for ever: some at the warp barrier of line %d, some at the block "
          "barrier of line %d",
          lines[1], lines[0]);
}

void run_block(std::minstd_rand& random)
{
    // Shared memory starts as garbage on a GPU; nothing of the block before may help this one.
    memset(launch->module->shared_begin, 0xff, launch->module->shared_end - launch->module->shared_begin);
    for (Thread& thread : threads)
        thread.state = State::ready;
    ++block_number;
    ++block_step;
    for (;;) {
        if (launch->seed)
            std::shuffle(order.begin(), order.end(), random);
        for (const uint32_t number : order) {
            if (threads[number].state == State::ready)
                take_turn(number);
        }
        const auto count = [](State state) {
            return std::count_if(threads.begin(), threads.end(),
                                 [=](const Thread& thread) { return thread.state == state; });
        };
        if (count(State::done) == long(threads.size()))
            return;
        if (!count(State::ready))
            open_barriers();
    }
}

} // namespace

void wait_for_block(int line)
{
    wait(State::waits_for_block, line);
}

void wait_for_warp(unsigned mask, int line, bool orders)
{
    if (!(mask >> lane() & 1))
        fault("line %d: lane %u waits at a warp barrier whose mask is %#x", line, lane(), mask);
    threads[current].mask = mask;
    threads[current].orders = orders;
    wait(State::waits_for_warp, line);
}

unsigned lane()
{
    return current % 32;
}

uint64_t shuffle(unsigned mask, uint64_t value, int source, int line)
{
    threads[current].value = value;
    wait_for_warp(mask, line, false);
    const bool takes_part = threads[current].lanes >> source & 1;
    return takes_part ? warps[current / 32].values[source] : ~uint64_t(0);
}

unsigned ballot(unsigned mask, bool vote, int line)
{
    threads[current].value = vote;
    wait_for_warp(mask, line, false);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        votes |= (threads[current].lanes >> lane & 1) * unsigned(warps[current / 32].values[lane]) << lane;
    return votes;
}

Position position()
{
    const char* const stack = threads[current].stack.get();
    return {current, block_number, block_step, warps[current / 32].step, stack, stack + kStackSize};
}

void fault(const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int start =
        snprintf(message, sizeof message, "block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
    vsnprintf(message + start, sizeof message - start, format, arguments);
    va_end(arguments);
    _longjmp(abandon, 1);
}

} // namespace hostcuda

// Returns what a thread did wrong; nothing if all is right.
extern "C" const char* hostcuda_launch(const hostcuda::Launch* what)
{
    using namespace hostcuda;
    launch = what;
    blockDim = dim3(what->block[0], what->block[1], what->block[2]);
    gridDim = dim3(what->grid[0], what->grid[1], what->grid[2]);
    threads.resize(blockDim.x);
    warps.assign((threads.size() + 31) / 32, Warp{});
    order.resize(threads.size());
    std::iota(order.begin(), order.end(), 0);
    message[0] = 0;
    if (_setjmp(abandon)) {
        threads.clear(); // whose stacks hold unfinished calls
        return message;
    }
    std::minstd_rand random(what->seed % 2147483646 + 1);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
                run_block(random);
    return message;
}
