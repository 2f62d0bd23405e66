// The two caches of the traffic model, both with the least recently used data leaving first.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "module.h"

namespace hostcuda {

struct SectorAccess {
    uint64_t sector; // number of 32 bytes
    uint32_t mask;   // of its bytes
    bool reads, writes;
    Accesses* counters; // of its kind
};

// What a block asks of the L2 cache, request by request.
struct BlockTrace {
    std::vector<SectorAccess> sectors;
    std::vector<std::size_t> request_ends; // in the sectors
};

// Lines of 128 bytes, filled sector by sector; for loads only, and for one block.
class L1Cache {
  public:
    explicit L1Cache(uint64_t bytes) : capacity_(bytes / 128) {}

    // Whether the sector was there; it is from now on.
    bool holds(uint64_t sector)
    {
        const uint64_t line = sector / 4;
        const uint32_t bit = 1u << sector % 4;
        auto found = lines_.find(line);
        if (found == lines_.end()) {
            if (lines_.size() == capacity_) {
                lines_.erase(age_.back().line);
                age_.pop_back();
            }
            age_.push_front({line, bit});
            lines_[line] = age_.begin();
            return false;
        }
        age_.splice(age_.begin(), age_, found->second);
        const bool held = age_.front().sectors & bit;
        age_.front().sectors |= bit;
        return held;
    }

  private:
    struct Line {
        uint64_t line;
        uint32_t sectors;
    };
    std::size_t capacity_;
    std::list<Line> age_; // the youngest first
    std::unordered_map<uint64_t, std::list<Line>::iterator> lines_;
};

// Sectors of 32 bytes with the bytes that were written; stores fill nothing. A sector that leaves with only
// some of its bytes written is read from memory first.
class L2Cache {
  public:
    void clear(uint64_t bytes)
    {
        capacity_ = bytes / 32;
        age_.clear();
        sectors_.clear();
    }

    void access(const SectorAccess& access)
    {
        auto found = sectors_.find(access.sector);
        if (found == sectors_.end()) {
            if (sectors_.size() == capacity_) {
                write_back(age_.back());
                sectors_.erase(age_.back().sector);
                age_.pop_back();
            }
            age_.push_front({access.sector, 0, false, nullptr});
            found = sectors_.emplace(access.sector, age_.begin()).first;
        } else {
            age_.splice(age_.begin(), age_, found->second);
        }
        Sector& sector = age_.front();
        const bool missing = access.reads && !sector.filled && (access.mask & ~sector.written);
        if (access.writes) {
            sector.written |= access.mask;
            sector.counters = access.counters;
        }
        if (missing) {
            ++access.counters->memory_sectors;
            sector.filled = true;
        }
    }

    void flush()
    {
        for (const Sector& sector : age_)
            write_back(sector);
        age_.clear();
        sectors_.clear();
    }

  private:
    struct Sector {
        uint64_t sector;
        uint32_t written;
        bool filled;
        Accesses* counters;
    };

    void write_back(const Sector& sector)
    {
        if (!sector.written)
            return;
        const bool read_first = !sector.filled && sector.written != ~0u;
        sector.counters->memory_sectors += 1 + read_first;
    }

    std::size_t capacity_ = 0;
    std::list<Sector> age_; // the youngest first
    std::unordered_map<uint64_t, std::list<Sector>::iterator> sectors_;
};

} // namespace hostcuda
