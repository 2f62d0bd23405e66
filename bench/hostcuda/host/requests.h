// Counts what requests of warps ask of the memory system.
//
// An Access has an address and a size in bytes; what the lanes of a warp access with one instruction is a
// request.
#pragma once

#include <algorithm>
#include <vector>

#include "module.h"

namespace hostcuda {

enum class Kind : uint8_t { load, store, atomic };

// The distinct units of so many bytes that a request touches, in order.
template <typename Access>
const std::vector<uint64_t>& touched(const Access* begin, const Access* end, uint64_t bytes)
{
    static std::vector<uint64_t> units;
    units.clear();
    for (const Access* access = begin; access < end; ++access)
        for (uint64_t unit = access->address / bytes; unit * bytes < access->address + access->size; ++unit)
            if (units.empty() || units.back() != unit)
                units.push_back(unit);
    if (!std::is_sorted(units.begin(), units.end()))
        std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
    return units;
}

// A request to shared memory passes over the 32 banks as often as one of them has a word to give.
template <typename Access> void count_shared(Traffic& traffic, const Access* begin, const Access* end)
{
    uint64_t banks[32] = {}, most = 0;
    for (uint64_t word : touched(begin, end, 4))
        most = std::max(most, ++banks[word % 32]);
    traffic.shared_requests += 1;
    traffic.shared_wavefronts += most;
}

template <typename Access>
void count_global(Traffic& traffic, Kind kind, const Access* begin, const Access* end)
{
    Accesses& counters = kind == Kind::load    ? traffic.loads
                         : kind == Kind::store ? traffic.stores
                                               : traffic.atomics;
    const std::vector<uint64_t>& sectors = touched(begin, end, 32);
    counters.requests += 1;
    counters.lanes += end - begin;
    for (const Access* access = begin; access < end; ++access)
        counters.bytes += access->size;
    counters.sectors += sectors.size();
    for (std::size_t i = 0; i < sectors.size(); ++i)
        counters.lines += !i || sectors[i - 1] / 4 != sectors[i] / 4;
}

} // namespace hostcuda
