// Counts what requests of warps ask of the memory system, and sends them through the caches of the model.
//
// An Access has an address and a size in bytes; what the lanes of a warp access with one instruction is a
// request.
#pragma once

#include <algorithm>
#include <vector>

#include "caches.h"

namespace hostcuda {

enum class Kind : uint8_t { load, store, atomic };

// Passes over the 32 banks of shared memory that a request takes: the most words that one of them has to
// give.
template <typename Access> uint64_t wavefronts(const Access* begin, const Access* end)
{
    static std::vector<uint64_t> words;
    words.clear();
    for (const Access* access = begin; access < end; ++access)
        for (uint64_t word = access->address / 4; word <= (access->address + access->size - 1) / 4; ++word)
            words.push_back(word);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    uint64_t banks[32] = {}, most = 0;
    for (uint64_t word : words)
        most = std::max(most, ++banks[word % 32]);
    return most;
}

// Global memory behind an L1 cache of each block and one L2 cache.
class GlobalMemory {
  public:
    void start(const Caches& caches, Traffic& traffic)
    {
        caches_ = &caches;
        traffic_ = &traffic;
        wave_.clear();
        l2_.clear(caches.l2_bytes);
    }

    BlockTrace& start_block() { return wave_.emplace_back(); }

    // Counts a request, and adds what remains of it after the L1 cache to the block's; the number of sectors
    // that remain.
    template <typename Access>
    uint64_t count(Kind kind, const Access* begin, const Access* end, L1Cache& l1, BlockTrace& block)
    {
        Accesses& counters = kind == Kind::load    ? traffic_->loads
                             : kind == Kind::store ? traffic_->stores
                                                   : traffic_->atomics;
        static std::vector<SectorAccess> sectors;
        sectors.clear();
        for (const Access* access = begin; access < end; ++access) {
            const uint64_t stop_of_access = access->address + access->size;
            counters.bytes += access->size;
            for (uint64_t byte = access->address; byte < stop_of_access;) {
                const uint64_t sector = byte / 32, stop = std::min((sector + 1) * 32, stop_of_access);
                const uint32_t mask = uint32_t(((uint64_t(1) << (stop - byte)) - 1) << byte % 32);
                if (!sectors.empty() && sectors.back().sector == sector)
                    sectors.back().mask |= mask;
                else
                    sectors.push_back({sector, mask, kind != Kind::store, kind != Kind::load, &counters});
                byte = stop;
            }
        }
        const auto by_sector = [](const SectorAccess& a, const SectorAccess& b) {
            return a.sector < b.sector;
        };
        if (!std::is_sorted(sectors.begin(), sectors.end(), by_sector))
            std::sort(sectors.begin(), sectors.end(), by_sector);
        std::size_t distinct = 0;
        uint64_t lines = 0;
        for (const SectorAccess& access : sectors) {
            if (distinct && sectors[distinct - 1].sector == access.sector) {
                sectors[distinct - 1].mask |= access.mask;
                continue;
            }
            lines += !distinct || sectors[distinct - 1].sector / 4 != access.sector / 4;
            sectors[distinct++] = access;
        }
        sectors.resize(distinct);
        counters.requests += 1;
        counters.lanes += end - begin;
        counters.sectors += distinct;
        counters.lines += lines;
        // Loads look into the L1 cache; stores and atomics go through to the L2 cache.
        uint64_t remaining = 0;
        for (const SectorAccess& access : sectors) {
            if (kind == Kind::load && l1.holds(access.sector))
                continue;
            remaining += 1;
            block.sectors.push_back(access);
        }
        counters.l2_sectors += remaining;
        block.request_ends.push_back(block.sectors.size());
        return remaining;
    }

    void end_block()
    {
        if (wave_.size() == caches_->blocks_at_a_time)
            end_wave();
    }

    void end()
    {
        end_wave();
        l2_.flush();
    }

  private:
    // The blocks of a wave take turns at the L2 cache, request by request.
    void end_wave()
    {
        std::size_t longest = 0;
        for (const BlockTrace& block : wave_)
            longest = std::max(longest, block.request_ends.size());
        for (std::size_t request = 0; request < longest; ++request)
            for (const BlockTrace& block : wave_) {
                if (request >= block.request_ends.size())
                    continue;
                for (std::size_t i = request ? block.request_ends[request - 1] : 0;
                     i < block.request_ends[request]; ++i)
                    l2_.access(block.sectors[i]);
            }
        wave_.clear();
    }

    const Caches* caches_ = nullptr;
    Traffic* traffic_ = nullptr;
    std::vector<BlockTrace> wave_; // what the blocks that run at a time ask of the L2 cache
    L2Cache l2_;
};

} // namespace hostcuda
