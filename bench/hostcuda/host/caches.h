// The two caches of the traffic model, both with the least recently used data leaving first.
#pragma once

#include <cstdint>
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

// Numbers with a value each, of which the least recently used leaves first.
template <typename Value> class Recent {
  public:
    explicit Recent(std::size_t capacity = 0) { clear(capacity); }

    void clear(std::size_t capacity)
    {
        capacity_ = capacity;
        entries_.clear();
        places_.clear();
        oldest_ = youngest_ = kNone;
    }

    // The value of a number, which is now the youngest; a new one is empty, and for it `leaves` is called
    // with what has to go.
    template <typename Leaves> Value& operator()(uint64_t number, Leaves leaves)
    {
        const auto found = places_.find(number);
        if (found != places_.end()) {
            const uint32_t place = found->second;
            if (place != youngest_) {
                unlink(place);
                append(place);
            }
            return entries_[place].value;
        }
        uint32_t place;
        if (entries_.size() < capacity_) {
            place = uint32_t(entries_.size());
            entries_.emplace_back();
        } else {
            place = oldest_;
            leaves(entries_[place].value);
            places_.erase(entries_[place].number);
            unlink(place);
        }
        entries_[place].number = number;
        entries_[place].value = Value{};
        append(place);
        places_.emplace(number, place);
        return entries_[place].value;
    }

    template <typename Function> void each(Function function)
    {
        for (uint32_t place = youngest_; place != kNone; place = entries_[place].older)
            function(entries_[place].value);
    }

  private:
    static constexpr uint32_t kNone = ~0u;

    struct Entry {
        uint64_t number;
        uint32_t older, younger;
        Value value;
    };

    void unlink(uint32_t place)
    {
        const Entry& entry = entries_[place];
        (entry.older == kNone ? oldest_ : entries_[entry.older].younger) = entry.younger;
        (entry.younger == kNone ? youngest_ : entries_[entry.younger].older) = entry.older;
    }

    void append(uint32_t place)
    {
        entries_[place].older = youngest_;
        entries_[place].younger = kNone;
        (youngest_ == kNone ? oldest_ : entries_[youngest_].younger) = place;
        youngest_ = place;
    }

    std::size_t capacity_ = 0;
    std::vector<Entry> entries_;
    std::unordered_map<uint64_t, uint32_t> places_;
    uint32_t oldest_ = kNone, youngest_ = kNone;
};

// Lines of 128 bytes, filled sector by sector; for loads only, and for one block.
class L1Cache {
  public:
    // At least one line.
    explicit L1Cache(uint64_t bytes) : lines_(bytes < 128 ? 1 : bytes / 128) {}

    // Whether the sector was there; it is from now on.
    bool holds(uint64_t sector)
    {
        const uint32_t bit = 1u << sector % 4;
        uint32_t& sectors = lines_(sector / 4, [](uint32_t) {});
        const bool held = sectors & bit;
        sectors |= bit;
        return held;
    }

  private:
    Recent<uint32_t> lines_;
};

// Sectors of 32 bytes with the bytes that were written; stores fill nothing. A sector that leaves with only
// some of its bytes written is read from memory first.
class L2Cache {
  public:
    void clear(uint64_t bytes) { sectors_.clear(bytes / 32); }

    void access(const SectorAccess& access)
    {
        Sector& sector = sectors_(access.sector, write_back);
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
        sectors_.each(write_back);
        sectors_.clear(0);
    }

  private:
    struct Sector {
        uint32_t written;
        bool filled;
        Accesses* counters;
    };

    static void write_back(const Sector& sector)
    {
        if (!sector.written)
            return;
        const bool read_first = !sector.filled && sector.written != ~0u;
        sector.counters->memory_sectors += 1 + read_first;
    }

    Recent<Sector> sectors_;
};

} // namespace hostcuda
