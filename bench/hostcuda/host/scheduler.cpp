// Runs a kernel block by block, thread by thread, on one CPU core.
//
// A thread that never waits is a plain function call. A thread that waits at a barrier is a fiber and keeps
// its stack; the next thread starts on another stack. A barrier opens when each of its threads has reached it
// or returned. Threads take turns at barriers only, in order or shuffled by a seed.
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
#include <unistd.h>

#include "cuda_words.h"
#include "scheduler.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace hostcuda {

const Launch* launch;

namespace {

constexpr std::size_t kStackSize = 256 * 1024; // only the pages that a kernel touches become real

// A stack that threads run on, one after the other.
struct Fiber {
    jmp_buf resume;
    std::unique_ptr<char[]> stack{new char[kStackSize]};
    void* sanitizer_stack = nullptr;
    bool started = false;
};

enum class State { fresh, ready, waits_for_warp, waits_for_block, done };

struct Thread {
    State state;
    Fiber* fiber;
    int line;       // of the barrier it waits at
    unsigned mask;  // of the warp barrier it waits at
    bool orders;    // whether that barrier orders accesses to memory
    uint64_t value; // that it brings there
    unsigned lanes; // that met there
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
std::size_t place;           // in that order
uint32_t current;            // thread
uint32_t block_step;

std::vector<std::unique_ptr<Fiber>> all_fibers;
std::vector<Fiber*> idle_fibers;
Fiber* running;
jmp_buf scheduler;
jmp_buf abandon;
const void* scheduler_stack;
std::size_t scheduler_stack_size;

// AddressSanitizer must know which stack is in use; `own` keeps its state of the stack that is left.
void leave(void** own, const void* stack, std::size_t size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(own, stack, size);
#endif
}

void arrive(void* own, const void** left_stack, std::size_t* left_size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(own, left_stack, left_size);
#endif
}

void enter(uint32_t thread)
{
    current = thread;
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / blockDim.x / blockDim.y;
}

void to_scheduler()
{
    Fiber* const fiber = running;
    leave(&fiber->sanitizer_stack, scheduler_stack, scheduler_stack_size);
    if (!_setjmp(fiber->resume))
        _longjmp(scheduler, 1);
    arrive(fiber->sanitizer_stack, nullptr, nullptr);
}

// The main function of a fiber: the thread whose turn it is, and the following ones that have not started.
void fiber_main()
{
    arrive(nullptr, &scheduler_stack, &scheduler_stack_size);
    for (;;) {
        for (;;) {
            enter(order[place]);
            launch->module->call(launch->arguments);
            threads[current].state = State::done;
            if (place + 1 == order.size() || threads[order[place + 1]].state != State::fresh)
                break;
            threads[order[++place]].fiber = running;
        }
        idle_fibers.push_back(running);
        to_scheduler();
    }
}

Fiber* idle_fiber()
{
    if (idle_fibers.empty()) {
        all_fibers.push_back(std::make_unique<Fiber>());
        return all_fibers.back().get();
    }
    Fiber* const fiber = idle_fibers.back();
    idle_fibers.pop_back();
    return fiber;
}

// Runs the thread whose turn it is until it waits or returns.
void take_turn()
{
    Thread& thread = threads[order[place]];
    if (thread.state == State::fresh)
        thread.fiber = idle_fiber();
    running = thread.fiber;
    enter(order[place]);
    void* own_stack = nullptr;
    leave(&own_stack, running->stack.get(), kStackSize);
    if (!_setjmp(scheduler)) {
        if (running->started)
            _longjmp(running->resume, 1);
        running->started = true;
        static ucontext_t first;
        getcontext(&first);
        first.uc_stack.ss_sp = running->stack.get();
        first.uc_stack.ss_size = kStackSize;
        makecontext(&first, fiber_main, 0);
        setcontext(&first);
    }
    arrive(own_stack, nullptr, nullptr);
}

void wait(State state, int line)
{
    threads[current].state = state;
    threads[current].line = line;
    to_scheduler();
}

// Opens the barrier that a thread waits at, if all threads that it names and that have not returned wait
// there.
bool open_barrier(uint32_t waiting)
{
    const Thread first = threads[waiting];
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
            fault("block (%u, %u, %u): a thread waits at the barrier of line %d, another at that of line %d",
                  blockIdx.x, blockIdx.y, blockIdx.z, first.line, thread.line);
        }
        thread.state = State::ready;
        thread.lanes = lanes;
        warps[number / 32].values[number % 32] = thread.value;
    }
    (of_warp ? warps[waiting / 32].step : block_step) += of_warp ? first.orders : 1;
    return true;
}

void run_block(std::minstd_rand& random)
{
    // Shared memory starts as garbage on a GPU; nothing of the block before may help this one.
    memset(launch->module->shared_begin, 0xff, launch->module->shared_end - launch->module->shared_begin);
    for (Thread& thread : threads)
        thread = {State::fresh};
    ++block_step;
    observe_block();
    for (;;) {
        if (launch->seed)
            std::shuffle(order.begin(), order.end(), random);
        for (place = 0; place < order.size(); ++place) {
            const State state = threads[order[place]].state;
            if (state == State::fresh || state == State::ready)
                take_turn();
        }
        bool finished = true, ready = false;
        for (const Thread& thread : threads) {
            finished &= thread.state == State::done;
            ready |= thread.state == State::ready;
        }
        if (finished)
            return;
        if (ready)
            continue;
        bool opened = false;
        for (uint32_t number = 0; number < threads.size(); ++number) {
            if (threads[number].state == State::waits_for_warp)
                opened |= open_barrier(number);
        }
        const auto is_live = [](const Thread& thread) { return thread.state != State::done; };
        const auto live = std::find_if(threads.begin(), threads.end(), is_live) - threads.begin();
        if (!opened && !open_barrier(uint32_t(live))) {
            int lines[2] = {0, 0};
            for (const Thread& thread : threads) {
                if (thread.state != State::done)
                    lines[thread.state == State::waits_for_warp] = thread.line;
            }
            fault(
                "block (%u, %u, %u): threads wait for ever: some at the warp barrier of line %d, some at the "
                "block barrier of line %d",
                blockIdx.x, blockIdx.y, blockIdx.z, lines[1], lines[0]);
        }
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
    const char* const stack = running->stack.get();
    return {current, block_step, warps[current / 32].step, stack, stack + kStackSize};
}

void yield()
{
    threads[current].state = State::ready;
    to_scheduler();
}

void fault(const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(launch->message, launch->message_size, format, arguments);
    va_end(arguments);
#if defined(__SANITIZE_ADDRESS__)
    fprintf(stderr, "%s\n", launch->message);
    _exit(1);
#endif
    _longjmp(abandon, 1);
}

} // namespace hostcuda

extern "C" void hostcuda_launch(const hostcuda::Launch* what)
{
    using namespace hostcuda;
    launch = what;
    blockDim = dim3(what->block[0], what->block[1], what->block[2]);
    gridDim = dim3(what->grid[0], what->grid[1], what->grid[2]);
    threads.resize(std::size_t(blockDim.x) * blockDim.y * blockDim.z);
    warps.assign((threads.size() + 31) / 32, Warp{});
    order.resize(threads.size());
    std::iota(order.begin(), order.end(), 0);
    what->message[0] = 0;
    if (_setjmp(abandon)) { // the fibers hold unfinished threads
        all_fibers.clear();
        idle_fibers.clear();
        return;
    }
    observe_launch();
    std::minstd_rand random(what->seed % 2147483646 + 1);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
                run_block(random);
}
