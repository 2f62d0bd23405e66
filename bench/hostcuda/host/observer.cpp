// Checks every access of a kernel, through the calls that g++ -fsanitize=thread inserts before them.
//
// The thread sanitizer's own runtime is not linked. An access is checked: inside its array? written once?
// scratch and shared memory initialised? ordered by a barrier after conflicting accesses? Accesses to a
// thread's own stack do not count: they would be registers on a GPU.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda_words.h"
#include "scheduler.h"

extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

namespace hostcuda {
namespace {

enum class Kind : uint8_t { load, store, atomic };

const char* const kVerb[] = {"reads", "writes", "adds to"};

// ---- shared memory: who touched a byte since the last barrier ------------------------------------

// Lanes of one warp between two barriers of theirs.
struct Party {
    uint32_t block_step, warp_step, warp, lanes, code;

    // Whether nothing orders them before the thread that runs now.
    bool unordered(const Position& now) const
    {
        if (block_step != now.block_step)
            return false;
        if (warp != now.thread / 32)
            return true;
        return warp_step == now.warp_step && (lanes & ~(1u << now.thread % 32));
    }

    bool admits(const Position& now) const { return block_step != now.block_step || warp == now.thread / 32; }

    void join(const Position& now, uint32_t at)
    {
        const uint32_t lane = 1u << now.thread % 32;
        const bool same =
            block_step == now.block_step && warp_step == now.warp_step && warp == now.thread / 32;
        *this = {now.block_step, now.warp_step, now.thread / 32, same ? lanes | lane : lane, at};
    }
};

// Two warps are enough to remember: any other one is unordered to at least one of them.
struct Parties {
    Party two[2];

    const Party* unordered(const Position& now) const
    {
        return two[0].unordered(now) ? &two[0] : two[1].unordered(now) ? &two[1] : nullptr;
    }

    void join(const Position& now, uint32_t at)
    {
        for (Party& party : two) {
            if (party.admits(now))
                return party.join(now, at);
        }
    }
};

struct SharedByte {
    uint32_t block; // that wrote it last
    Party writer;
    Parties readers;
};

uint32_t code_offset(const void* site)
{
    return uint32_t(static_cast<const char*>(site) - launch->module->image_begin);
}

void check_shared(const char* address, int size, Kind kind, uint32_t code)
{
    static std::vector<SharedByte> shared_bytes; // what other launches left is of other blocks and steps
    const std::size_t most = launch->module->shared_end - launch->module->shared_begin;
    shared_bytes.resize(std::max(shared_bytes.size(), most));
    const Position now = position();
    for (const char* byte = address; byte < address + size; ++byte) {
        const long offset = byte - launch->module->shared_begin;
        SharedByte& shared = shared_bytes[offset];
        if (kind != Kind::store && shared.block != now.block) {
            fault("thread %u reads shared memory that nobody wrote, byte %ld, at {%x}", now.thread, offset,
                  code);
        }
        const Party* other = shared.writer.unordered(now) ? &shared.writer : nullptr;
        if (!other && kind != Kind::load)
            other = shared.readers.unordered(now);
        if (other) {
            fault(
                "race on shared memory: thread %u %s byte %ld at {%x}, and no barrier lies between this and "
                "warp %u's access at {%x}",
                now.thread, kVerb[int(kind)], offset, code, other->warp, other->code);
        }
        if (kind == Kind::load) {
            shared.readers.join(now, code);
        } else {
            shared.writer.join(now, code);
            shared.block = now.block;
        }
    }
}

// ---- global memory: inside the array, and written once -------------------------------------------

const Array* array_at(const char* address)
{
    for (uint32_t index = 0; index < launch->array_count; ++index) {
        const Array& array = launch->arrays[index];
        if (address >= array.begin && address < array.end)
            return &array;
    }
    return nullptr;
}

void check_array(const Array& array, const char* address, int size, Kind kind, uint32_t code)
{
    const uint32_t thread = position().thread;
    for (const char* byte = address; byte < address + size; ++byte) {
        uint8_t& flags = array.flags[byte - array.begin];
        if (byte >= array.end || !(flags & kElement)) {
            fault("thread %u %s argument %u outside its elements, %d bytes at byte "
                  "%ld, at {%x}",
                  thread, kVerb[int(kind)], array.argument, size, long(address - array.first), code);
        }
        if (kind != Kind::store && !(flags & kKnown)) {
            fault("thread %u %s byte %ld of argument %u, which nobody wrote, at {%x}", thread,
                  kVerb[int(kind)], long(byte - array.first), array.argument, code);
        }
        if (kind == Kind::load)
            continue;
        if (!array.writable) {
            fault("thread %u writes to argument %u, which is const, at {%x}", thread, array.argument, code);
        }
        if (flags & kOnce && flags & kWritten) {
            fault("thread %u writes byte %ld of argument %u, which was written before, "
                  "at {%x}",
                  thread, long(byte - array.first), array.argument, code);
        }
        flags |= kKnown | kWritten;
    }
}

// ---- every access comes here ---------------------------------------------------------------------

void access(const void* pointer, int size, Kind kind, const void* site)
{
    const char* const address = static_cast<const char*>(pointer);
    const Module& module = *launch->module;
    const Position now = position();
    if (address >= now.stack_begin && address < now.stack_end)
        return;
    const uint32_t code = code_offset(site) - 1; // inside the call
    if (address >= module.shared_begin && address < module.shared_end) {
        check_shared(address, size, kind, code);
        return;
    }
    if (const Array* const array = array_at(address)) {
        check_array(*array, address, size, kind, code);
        return;
    }
    // threadIdx and the like, and constants
    const bool own_data = address >= __ehdr_start && address < _end;
    const bool constant =
        kind == Kind::load && address >= module.image_begin && address < module.shared_begin;
    if (own_data || constant)
        return;
    fault("thread %u %s memory that belongs to no array, at {%x}", now.thread, kVerb[int(kind)], code);
}

} // namespace

void observe_atomic(void* address, int size, void* site)
{
    access(address, size, Kind::atomic, site);
}

} // namespace hostcuda

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
