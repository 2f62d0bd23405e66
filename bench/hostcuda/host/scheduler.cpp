// Runs a kernel block by block, thread by thread, on one CPU core.
//
// A thread that waits at a barrier keeps its stack while others run on theirs. A barrier opens when each of
// its threads has reached it or returned. Threads take turns at barriers only, in order or shuffled by a seed.
//
// Every access of an observed kernel is checked, through the calls that g++ -fsanitize=thread inserts before
// it: inside its array? written once? scratch and shared memory initialised? ordered by a barrier after
// conflicting accesses? Accesses to a thread's own stack do not count: they would be registers on a GPU.
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
#include "module.h"

extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace hostcuda {
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
    uint32_t steps; // grow with every barrier that orders memory
    // Brought to the barrier that opened last. Barriers open when no thread is ready, so all have read it by
    // then.
    uint64_t values[32];
};

std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<uint32_t> order; // in which threads get their turn
const Launch* launch;
uint32_t current;     // thread
uint32_t blocks;      // of all launches, so far
uint32_t block_steps; // grow with every block and every barrier of a block
jmp_buf scheduler;
jmp_buf abandon;
char message[4096]; // of the fault, empty if there was none

// Ends the launch; the message names the block. Offsets of a kernel's code go into it as {%x}.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int start =
        snprintf(message, sizeof message, "block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
    vsnprintf(message + start, sizeof message - start, format, arguments);
    va_end(arguments);
    _longjmp(abandon, 1);
}

// Ends the turn of the thread that runs now, until its next one.
void stop(State state, int line = 0)
{
    Thread& thread = threads[current];
    thread.state = state;
    thread.line = line;
    if (!_setjmp(thread.resume))
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
    (of_warp ? warps[waiting / 32].steps : block_steps) += of_warp ? first.orders : 1;
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
    fault("threads wait for ever: some at the warp barrier of line %d, some at the block barrier of line %d",
          lines[1], lines[0]);
}

void run_block(std::minstd_rand& random)
{
    // Shared memory starts as garbage on a GPU; nothing of the block before may help this one.
    memset(launch->module->shared_begin, 0xff, launch->module->shared_end - launch->module->shared_begin);
    for (Thread& thread : threads)
        thread.state = State::ready;
    ++blocks;
    ++block_steps;
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
    stop(State::waits_for_block, line);
}

void wait_for_warp(unsigned mask, int line, bool orders)
{
    if (!(mask >> lane() & 1))
        fault("line %d: lane %u waits at a warp barrier whose mask is %#x", line, lane(), mask);
    threads[current].mask = mask;
    threads[current].orders = orders;
    stop(State::waits_for_warp, line);
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

// ---- observed accesses ---------------------------------------------------------------------------

namespace {

enum class Kind : uint8_t { load, store, atomic };

const char* const kVerb[] = {"reads", "writes", "adds to"};

// ---- shared memory: who touched a byte since the last barrier ------------------------------------

// Lanes of one warp between two barriers of theirs.
struct Party {
    uint32_t block_step, warp_step, warp, lanes, code;

    // Whether nothing orders them before the thread that runs now.
    bool unordered() const
    {
        if (block_step != block_steps)
            return false;
        return warp != current / 32 || (warp_step == warps[warp].steps && (lanes & ~(1u << lane())));
    }

    bool admits() const { return block_step != block_steps || warp == current / 32; }

    void join(uint32_t at)
    {
        const uint32_t steps = warps[current / 32].steps;
        const bool same = block_step == block_steps && warp_step == steps && warp == current / 32;
        *this = {block_steps, steps, current / 32, (same ? lanes : 0) | 1u << lane(), at};
    }
};

// Two warps are enough to remember: any other one is unordered to at least one of them.
struct Parties {
    Party two[2];

    const Party* unordered() const
    {
        return two[0].unordered() ? &two[0] : two[1].unordered() ? &two[1] : nullptr;
    }

    void join(uint32_t at)
    {
        for (Party& party : two) {
            if (party.admits())
                return party.join(at);
        }
    }
};

struct SharedByte {
    uint32_t block; // that wrote it last
    Party writer;
    Parties readers;
};

void check_shared(const char* address, int size, Kind kind, uint32_t code)
{
    static std::vector<SharedByte> shared_bytes; // what other launches left is of other blocks and steps
    const std::size_t most = launch->module->shared_end - launch->module->shared_begin;
    shared_bytes.resize(std::max(shared_bytes.size(), most));
    for (const char* byte = address; byte < address + size; ++byte) {
        const long offset = byte - launch->module->shared_begin;
        SharedByte& shared = shared_bytes[offset];
        if (kind != Kind::store && shared.block != blocks) {
            fault("thread %u reads shared memory that nobody wrote, byte %ld, at {%x}", current, offset,
                  code);
        }
        const Party* other = shared.writer.unordered() ? &shared.writer : nullptr;
        if (!other && kind != Kind::load)
            other = shared.readers.unordered();
        if (other) {
            fault(
                "race on shared memory: thread %u %s byte %ld at {%x}, and no barrier lies between this and "
                "warp %u's access at {%x}",
                current, kVerb[int(kind)], offset, code, other->warp, other->code);
        }
        if (kind == Kind::load) {
            shared.readers.join(code);
        } else {
            shared.writer.join(code);
            shared.block = blocks;
        }
    }
}

// ---- global memory: inside the array, and written once -------------------------------------------

void check_array(const Array& array, const char* address, int size, Kind kind, uint32_t code)
{
    for (const char* byte = address; byte < address + size; ++byte) {
        uint8_t& flags = array.flags[byte - array.begin];
        if (byte >= array.end || !(flags & kElement)) {
            fault("thread %u %s argument %u outside its elements, %d bytes at byte %ld, at {%x}", current,
                  kVerb[int(kind)], array.argument, size, long(address - array.first), code);
        }
        if (kind != Kind::store && !(flags & kKnown)) {
            fault("thread %u %s byte %ld of argument %u, which nobody wrote, at {%x}", current,
                  kVerb[int(kind)], long(byte - array.first), array.argument, code);
        }
        if (kind == Kind::load)
            continue;
        if (!array.writable) {
            fault("thread %u writes to argument %u, which is const, at {%x}", current, array.argument, code);
        }
        if (flags & kOnce && flags & kWritten) {
            fault("thread %u writes byte %ld of argument %u, which was written before, at {%x}", current,
                  long(byte - array.first), array.argument, code);
        }
        flags |= kKnown | kWritten;
    }
}

// ---- every access comes here ---------------------------------------------------------------------

void access(const void* pointer, int size, Kind kind, const void* site)
{
    const char* const address = static_cast<const char*>(pointer);
    const Module& module = *launch->module;
    const char* const stack = threads[current].stack.get();
    if (address >= stack && address < stack + kStackSize)
        return;
    const uint32_t code = uint32_t(static_cast<const char*>(site) - 1 - module.image_begin); // in the call
    if (address >= module.shared_begin && address < module.shared_end)
        return check_shared(address, size, kind, code);
    for (const Array* array = launch->arrays; array < launch->arrays + launch->array_count; ++array) {
        if (address >= array->begin && address < array->end)
            return check_array(*array, address, size, kind, code);
    }
    // threadIdx and the like, and constants
    const bool own_data = address >= __ehdr_start && address < _end;
    const bool constant =
        kind == Kind::load && address >= module.image_begin && address < module.shared_begin;
    if (own_data || constant)
        return;
    fault("thread %u %s memory that belongs to no array, at {%x}", current, kVerb[int(kind)], code);
}

} // namespace

void observe_atomic(void* address, int size, void* site)
{
    access(address, size, Kind::atomic, site);
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

// ---- the calls of -fsanitize=thread --------------------------------------------------------------

#define HOSTCUDA_CALL(name, size, kind)                                                                      \
    void __tsan_##name##size(void* address)                                                                  \
    {                                                                                                        \
        hostcuda::access(address, size, hostcuda::Kind::kind, __builtin_return_address(0));                  \
    }
#define HOSTCUDA_CALLS(size)                                                                                 \
    HOSTCUDA_CALL(read, size, load)                                                                          \
    HOSTCUDA_CALL(write, size, store)                                                                        \
    HOSTCUDA_CALL(unaligned_read, size, load)                                                                \
    HOSTCUDA_CALL(unaligned_write, size, store)

extern "C" {
HOSTCUDA_CALLS(1)
HOSTCUDA_CALLS(2)
HOSTCUDA_CALLS(4)
HOSTCUDA_CALLS(8)
HOSTCUDA_CALLS(16)
void __tsan_read_range(void* address, std::size_t size)
{
    hostcuda::access(address, int(size), hostcuda::Kind::load, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t size)
{
    hostcuda::access(address, int(size), hostcuda::Kind::store, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
}
