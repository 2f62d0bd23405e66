// Sees every access that a kernel makes, through the calls that g++ -fsanitize=thread puts in front of them.
//
// The thread sanitizer's own runtime is not linked. Here an access is checked (inside its array? written
// once? shared memory initialised? ordered by a barrier after what it conflicts with?) and, for traffic.py,
// recorded. What a thread reads and writes on its own stack does not count: it would be registers on a GPU.
#include <algorithm>
#include <bitset>
#include <cstring>
#include <random>
#include <vector>

#include "caches.h"
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

// Two warps are enough to remember: whoever comes next is unordered to at least one of them.
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
    Parties readers, adders;
};

std::vector<SharedByte> shared_bytes;
uint32_t block_number; // from 1
std::minstd_rand preemption;

uint32_t code_offset(const void* site)
{
    return uint32_t(static_cast<const char*>(site) - launch->module->image_begin);
}

void check_shared(const char* address, int size, Kind kind, uint32_t code)
{
    if (launch->seed && preemption() % 8 == 0)
        yield();
    const Position now = position();
    for (const char* byte = address; byte < address + size; ++byte) {
        SharedByte& shared = shared_bytes[byte - launch->module->shared_begin];
        const long offset = byte - launch->module->shared_begin;
        if (kind != Kind::store && shared.block != block_number) {
            fault("thread %u of block (%u, %u, %u) reads shared memory that nobody wrote, byte %ld, at {%x}",
                  now.thread, blockIdx.x, blockIdx.y, blockIdx.z, offset, code);
        }
        const Party* other = shared.writer.unordered(now) ? &shared.writer : nullptr;
        if (!other && kind != Kind::atomic)
            other = shared.adders.unordered(now);
        if (!other && kind != Kind::load)
            other = shared.readers.unordered(now);
        if (other) {
            fault("race on shared memory: thread %u of block (%u, %u, %u) %s byte %ld at {%x}, and no "
                  "barrier lies "
                  "between this and warp %u's access at {%x}",
                  now.thread, blockIdx.x, blockIdx.y, blockIdx.z, kVerb[int(kind)], offset, code, other->warp,
                  other->code);
        }
        if (kind == Kind::load)
            shared.readers.join(now, code);
        if (kind == Kind::atomic)
            shared.adders.join(now, code);
        if (kind == Kind::store) {
            shared.writer.join(now, code);
            shared.block = block_number;
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
        const auto offset = byte - array.begin;
        if (byte >= array.end || !array.elements[offset]) {
            fault("thread %u of block (%u, %u, %u) %s argument %u outside its elements, %d bytes at byte "
                  "%ld, at {%x}",
                  thread, blockIdx.x, blockIdx.y, blockIdx.z, kVerb[int(kind)], array.argument, size,
                  long(address - array.first), code);
        }
        if (kind == Kind::load)
            continue;
        if (!array.writable) {
            fault("thread %u of block (%u, %u, %u) writes to argument %u, which is const, at {%x}", thread,
                  blockIdx.x, blockIdx.y, blockIdx.z, array.argument, code);
        }
        if (array.writes && array.writes[offset]++) {
            fault("thread %u of block (%u, %u, %u) writes byte %ld of argument %u, which was written before, "
                  "at {%x}",
                  thread, blockIdx.x, blockIdx.y, blockIdx.z, long(byte - array.first), array.argument, code);
        }
    }
}

// ---- traffic: accesses become requests of warps, and requests go through the caches --------------

struct Access {
    uint32_t code;
    uint32_t iteration;
    uint32_t occurrence; // of this code in this iteration of this thread
    uint32_t lane;
    uint32_t index; // in the thread
    uint32_t size;
    uint64_t address;
    Kind kind;
    bool shared;

    bool same_request(const Access& other) const
    {
        return code == other.code && iteration == other.iteration && occurrence == other.occurrence;
    }
};

struct Request {
    std::vector<Access> lanes;
    uint32_t index; // in the warp
};

std::vector<std::vector<Access>> accesses;    // by thread of the block
std::vector<uint32_t> iterations;             // by thread, the one it is in
std::vector<std::vector<MemoryRequest>> wave; // what the blocks that run at a time ask of the L2 cache
L2Cache l2;

std::vector<Request> requests_of_warp(std::size_t warp)
{
    std::vector<Access> all;
    for (std::size_t thread = warp * 32; thread < accesses.size() && thread < warp * 32 + 32; ++thread) {
        std::vector<Access>& own = accesses[thread];
        std::stable_sort(own.begin(), own.end(), [](const Access& a, const Access& b) {
            return a.code != b.code ? a.code < b.code : a.iteration < b.iteration;
        });
        for (std::size_t i = 0; i < own.size(); ++i) {
            const bool again =
                i && own[i - 1].code == own[i].code && own[i - 1].iteration == own[i].iteration;
            own[i].occurrence = again ? own[i - 1].occurrence + 1 : 0;
        }
        all.insert(all.end(), own.begin(), own.end());
        own.clear();
    }
    std::stable_sort(all.begin(), all.end(), [](const Access& a, const Access& b) {
        if (a.code != b.code)
            return a.code < b.code;
        return a.iteration != b.iteration ? a.iteration < b.iteration : a.occurrence < b.occurrence;
    });
    std::vector<Request> requests;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!i || !all[i].same_request(all[i - 1]))
            requests.push_back({{}, 0});
        Request& request = requests.back();
        request.lanes.push_back(all[i]);
        request.index = std::max(request.index, all[i].index); // a lane that skips iterations is early
    }
    std::stable_sort(requests.begin(), requests.end(),
                     [](const Request& a, const Request& b) { return a.index < b.index; });
    return requests;
}

// The most words that one of the 32 banks has to give.
uint64_t wavefronts(const Request& request)
{
    std::vector<uint64_t> words;
    for (const Access& access : request.lanes) {
        for (uint64_t word = access.address / 4; word <= (access.address + access.size - 1) / 4; ++word) {
            words.push_back(word);
        }
    }
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    uint64_t banks[32] = {}, most = 0;
    for (uint64_t word : words)
        most = std::max(most, ++banks[word % 32]);
    return most;
}

// Counts a request to global memory, and gives what remains of it after the L1 cache.
MemoryRequest count(const Request& request, L1Cache& l1)
{
    const Kind kind = request.lanes.front().kind;
    Traffic& traffic = *launch->traffic;
    Accesses& counters = kind == Kind::load    ? traffic.loads
                         : kind == Kind::store ? traffic.stores
                                               : traffic.atomics;
    MemoryRequest sectors;
    for (const Access& access : request.lanes) {
        counters.bytes += access.size;
        for (uint64_t byte = access.address; byte < access.address + access.size;) {
            const uint64_t sector = byte / 32,
                           stop = std::min((sector + 1) * 32, access.address + access.size);
            const uint64_t mask = ((uint64_t(1) << (stop - byte)) - 1) << byte % 32;
            sectors.push_back({sector, uint32_t(mask), kind != Kind::store, kind != Kind::load, &counters});
            byte = stop;
        }
    }
    std::stable_sort(sectors.begin(), sectors.end(),
                     [](const SectorAccess& a, const SectorAccess& b) { return a.sector < b.sector; });
    std::size_t distinct = 0;
    for (const SectorAccess& access : sectors) {
        if (distinct && sectors[distinct - 1].sector == access.sector) {
            sectors[distinct - 1].mask |= access.mask;
        } else {
            sectors[distinct++] = access;
        }
    }
    sectors.resize(distinct);
    uint64_t lines = 0;
    for (std::size_t i = 0; i < distinct; ++i)
        lines += !i || sectors[i].sector / 4 != sectors[i - 1].sector / 4;
    counters.requests += 1;
    counters.lanes += request.lanes.size();
    counters.sectors += distinct;
    counters.lines += lines;
    // Loads look into the L1 cache; stores and atomics go through to the L2 cache.
    if (kind == Kind::load) {
        sectors.erase(std::remove_if(sectors.begin(), sectors.end(),
                                     [&](const SectorAccess& access) { return l1.holds(access.sector); }),
                      sectors.end());
    }
    counters.l2_sectors += sectors.size();
    return sectors;
}

// The blocks of a wave take turns at the L2 cache, request by request.
void end_wave()
{
    std::size_t longest = 0;
    for (const auto& block : wave)
        longest = std::max(longest, block.size());
    for (std::size_t request = 0; request < longest; ++request) {
        for (const auto& block : wave) {
            if (request >= block.size())
                continue;
            for (const SectorAccess& access : block[request])
                l2.access(access);
        }
    }
    wave.clear();
}

void record(const void* address, int size, Kind kind, uint32_t code, bool shared)
{
    const uint32_t thread = position().thread;
    std::vector<Access>& own = accesses[thread];
    own.push_back({code, iterations[thread], 0, thread % 32, uint32_t(own.size()), uint32_t(size),
                   uint64_t(address), kind, shared});
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
        if (launch->traffic)
            record(address, size, kind, code, true);
        return;
    }
    if (const Array* const array = array_at(address)) {
        check_array(*array, address, size, kind, code);
        if (launch->traffic)
            record(address, size, kind, code, false);
        return;
    }
    // threadIdx and the like, and constants
    const bool own_data = address >= __ehdr_start && address < _end;
    const bool constant =
        kind == Kind::load && address >= module.image_begin && address < module.shared_begin;
    if (own_data || constant)
        return;
    fault("thread %u of block (%u, %u, %u) %s memory that belongs to no array, at {%x}", now.thread,
          blockIdx.x, blockIdx.y, blockIdx.z, kVerb[int(kind)], code);
}

} // namespace

void observe_atomic(void* address, int size, void* site)
{
    access(address, size, Kind::atomic, site);
}

void observe_iteration(int iteration)
{
    iterations[position().thread] = uint32_t(iteration);
}

void observe_launch()
{
    const Module& module = *launch->module;
    shared_bytes.assign(module.shared_end - module.shared_begin, SharedByte{});
    block_number = 0;
    preemption.seed(launch->seed % 2147483646 + 1);
    const std::size_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    accesses.assign(threads, {});
    iterations.assign(threads, 0);
    wave.clear();
    if (launch->traffic) {
        *launch->traffic = {};
        launch->traffic->shared_bytes = shared_bytes.size();
        l2.clear(launch->caches->l2_bytes);
    }
}

void observe_block()
{
    ++block_number;
    std::fill(iterations.begin(), iterations.end(), 0);
}

void observe_end_of_block()
{
    if (!launch->traffic)
        return;
    std::vector<std::vector<Request>> warps;
    for (std::size_t warp = 0; warp * 32 < accesses.size(); ++warp)
        warps.push_back(requests_of_warp(warp));
    L1Cache l1(launch->caches->l1_bytes);
    std::vector<MemoryRequest>& block = wave.emplace_back();
    std::size_t longest = 0;
    for (const auto& warp : warps)
        longest = std::max(longest, warp.size());
    for (std::size_t index = 0; index < longest; ++index) { // the warps take turns
        for (const auto& warp : warps) {
            if (index >= warp.size())
                continue;
            if (warp[index].lanes.front().shared) {
                launch->traffic->shared_requests += 1;
                launch->traffic->shared_wavefronts += wavefronts(warp[index]);
            } else {
                block.push_back(count(warp[index], l1));
            }
        }
    }
    if (wave.size() == launch->caches->blocks_at_a_time)
        end_wave();
}

void observe_end_of_launch()
{
    if (!launch->traffic)
        return;
    end_wave();
    l2.flush();
}

} // namespace hostcuda

// ---- the calls of -fsanitize=thread --------------------------------------------------------------

#define HOSTCUDA_CALLS(size)                                                                                 \
    void __tsan_read##size(void* address)                                                                    \
    {                                                                                                        \
        hostcuda::access(address, size, hostcuda::Kind::load, __builtin_return_address(0));                  \
    }                                                                                                        \
    void __tsan_write##size(void* address)                                                                   \
    {                                                                                                        \
        hostcuda::access(address, size, hostcuda::Kind::store, __builtin_return_address(0));                 \
    }                                                                                                        \
    void __tsan_unaligned_read##size(void* address)                                                          \
    {                                                                                                        \
        hostcuda::access(address, size, hostcuda::Kind::load, __builtin_return_address(0));                  \
    }                                                                                                        \
    void __tsan_unaligned_write##size(void* address)                                                         \
    {                                                                                                        \
        hostcuda::access(address, size, hostcuda::Kind::store, __builtin_return_address(0));                 \
    }

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
