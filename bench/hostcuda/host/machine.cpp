// Executes the machine code of a GPU on the CPU, warp by warp, and counts what it does.
//
// machine.py has read the instructions from nvdisasm's listing. A warp executes an instruction for all its
// lanes that are there: of lanes that went different ways, those at the lowest address go on first, and BSYNC
// waits for those that its BSSY named. What an instruction means is nowhere published in full; that the
// results are right, bit for bit, is what says that it is understood here.
#include <algorithm>
#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_words.h"

// After those from bra on, lanes may go different ways, or wait.
// clang-format off
#define HOSTCUDA_OPERATIONS(X)                                                                         \
    X(nop) X(mov) X(imad) X(imad_hi) X(imad_wide) X(iadd3) X(iadd_wide) X(lea) X(lea_hi) X(lop3) X(plop3) X(shf)    \
    X(isetp) X(isetp_wide) X(fsetp) X(dsetp) X(sel) X(sel_wide) X(fsel) X(imnmx) X(imnmx_wide) X(viaddmnmx) X(iabs) X(popc) X(flo) X(brev)     \
    X(prmt) X(p2r) X(r2p) X(s2r) X(vote) X(shfl) X(i2f) X(f2i) X(fadd) X(fmul) X(ffma)        \
    X(mufu) X(fchk) X(dadd) X(dmul) X(dfma) X(half_to_float) X(float_to_half) X(float_to_double)       \
    X(ld) X(st) X(red) X(ldc) X(bssy)                                                          \
    X(bra) X(exit) X(bsync) X(breaks) X(call) X(ret) X(bar) X(warpsync)
// clang-format on

namespace hostcuda {
namespace {

enum class Op : uint8_t {
#define HOSTCUDA_NAME(name) name,
    HOSTCUDA_OPERATIONS(HOSTCUDA_NAME)
#undef HOSTCUDA_NAME
};

constexpr uint32_t kLanes = 32, kAll = ~0u, kZeroRegister = 255, kTrue = 7, kLocalBytes = 4096;

enum class From : uint8_t { nothing, vector, uniform, immediate, constant };

constexpr uint8_t kNegative = 1, kAbsolute = 2, kInverted = 4; // flags of a source

struct Source {
    uint8_t from, index, flags, part; // part: the first bit that counts
    uint32_t value;                   // or the place among the constants
    uint32_t high;                    // of a number of 64 bits
};

struct Predicate {
    uint8_t index, negated, uniform;
};

} // namespace

// The structs of machine.py.
struct Instruction {
    uint8_t op, uniform, to, unused;
    Predicate guard, to_predicate[2], predicate[3];
    Source source[4];
    int32_t mode[4];
    int32_t target; // of a branch, an instruction; of an access, what is added to the address
};

struct MemoryArray {
    char *begin, *end;
    uint32_t writable, unused;
};

// Accesses of one kind to global memory. A request is one instruction of one warp.
struct Accesses {
    uint64_t requests;
    uint64_t bytes;   // that threads asked for
    uint64_t sectors; // of 32 bytes, distinct in a request
};

struct Counters {
    Accesses loads, stores, atomics;
    uint64_t warps;
    uint64_t instructions; // issued to a warp, whether its lanes took part or not
};

struct MachineLaunch {
    const Instruction* code;
    uint32_t count, shared_bytes, array_count, constant_bytes;
    uint32_t grid[3], block[3];
    const char* constants;
    const MemoryArray* arrays;
    Counters* counters;
    char* message;
    uint32_t message_size;
};

namespace {

const MachineLaunch* launch;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw std::runtime_error(text);
}

template <typename To, typename From> To converted(From from)
{
    To to;
    static_assert(sizeof to == sizeof from);
    memcpy(&to, &from, sizeof to);
    return to;
}
constexpr auto as_float = converted<float, uint32_t>;
constexpr auto as_double = converted<double, uint64_t>;
template <typename Real> auto as_bits(Real value)
{
    return converted<std::conditional_t<sizeof value == 4, uint32_t, uint64_t>>(value);
}
float flushed(float value, bool flush)
{
    return flush && std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// Modes of rounding, in the order of machine.py.
struct Rounding {
    explicit Rounding(int mode) : changed(mode != 0)
    {
        constexpr int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
        if (changed)
            fesetround(modes[mode]);
    }
    ~Rounding()
    {
        if (changed)
            fesetround(FE_TONEAREST);
    }
    bool changed;
};

enum class Kind : uint8_t { load, store, atomic };

using Words = uint32_t[kLanes];

// Calls a function for each lane of a mask.
template <typename Function> void for_lanes(uint32_t mask, Function function)
{
    for (; mask; mask &= mask - 1)
        function(uint32_t(__builtin_ctz(mask)));
}

struct Warp {
    uint32_t first_thread, lanes;
    uint32_t running, at_block_barrier, at_sync, done; // masks of lanes
    Words place;                                       // the instruction of each lane
    Words reconvergence[17]; // who waits for whom, per register of BSSY; the last: WARPSYNC
    Words waits_at;
    Words vector[256];
    uint32_t uniform[256];
    uint32_t predicates[8], uniform_predicates[8]; // masks of lanes
    std::vector<char> local;

    uint32_t mask(const Predicate& predicate) const
    {
        const uint32_t lanes_of = (predicate.uniform ? uniform_predicates : predicates)[predicate.index];
        return predicate.negated ? ~lanes_of : lanes_of;
    }

    void set(const Predicate& predicate, uint32_t value, uint32_t active)
    {
        if (predicate.index == kTrue)
            return;
        if (predicate.uniform) {
            if (active)
                uniform_predicates[predicate.index] = value & active ? kAll : 0;
        } else {
            uint32_t& lanes_of = predicates[predicate.index];
            lanes_of = (lanes_of & ~active) | (value & active);
        }
    }
};

uint32_t constant(uint32_t place)
{
    uint32_t value;
    if (place + 4 > launch->constant_bytes)
        fail("constant at %#x, of %#x", place, launch->constant_bytes);
    memcpy(&value, launch->constants + place, 4);
    return value;
}

// One word of a source for every lane, as it is.
const uint32_t* raw(Warp& warp, const Source& source, Words& space, uint32_t word = 0)
{
    uint32_t value = 0;
    switch (From(source.from)) {
    case From::vector:
        if (source.index == kZeroRegister)
            break;
        return warp.vector[source.index + word];
    case From::uniform:
        value = source.index == kZeroRegister ? 0 : warp.uniform[source.index + word];
        break;
    case From::immediate:
        value = word ? source.high : source.value;
        break;
    case From::constant:
        value = constant(source.value + 4 * word);
        break;
    case From::nothing:
        break;
    }
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        space[lane] = value;
    return space;
}

const uint32_t* integers(Warp& warp, const Source& source, Words& space)
{
    const uint32_t* const words = raw(warp, source, space);
    if (!(source.flags & (kNegative | kInverted)))
        return words;
    const uint32_t all = source.flags & kInverted ? kAll : 0, sign = source.flags & kNegative ? kAll : 0;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        space[lane] = ((words[lane] ^ all) ^ sign) - sign;
    return space;
}

const uint32_t* floats(Warp& warp, const Source& source, Words& space)
{
    const uint32_t* const words = raw(warp, source, space);
    if (!source.flags)
        return words;
    const uint32_t keep = source.flags & kAbsolute ? 0x7fffffff : kAll;
    const uint32_t sign = source.flags & kNegative ? 0x80000000 : 0;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        space[lane] = (words[lane] & keep) ^ sign;
    return space;
}

struct Pairs {
    Pairs(Warp& warp, const Source& source)
        : low(raw(warp, source, low_space)), high(raw(warp, source, high_space, 1))
    {
        inverted = source.flags & kInverted ? ~uint64_t(0) : 0;
        negative = source.flags & kNegative ? ~uint64_t(0) : 0;
    }
    uint64_t operator[](uint32_t lane) const
    {
        return (((uint64_t(high[lane]) << 32 | low[lane]) ^ inverted) ^ negative) - negative;
    }
    Words low_space, high_space;
    const uint32_t *low, *high;
    uint64_t inverted, negative;
};

struct Doubles {
    Doubles(Warp& warp, const Source& source)
        : pairs(warp, {source.from, source.index, 0, 0, source.value, source.high}),
          negative(source.flags & kNegative)
    {
    }
    double operator[](uint32_t lane) const
    {
        const double value = as_double(pairs[lane]);
        return negative ? -value : value;
    }
    Pairs pairs;
    bool negative;
};

void put(Warp& warp, const Instruction& what, const uint32_t* values, uint32_t active, uint32_t word = 0)
{
    if (what.to == kZeroRegister)
        return;
    if (what.uniform) {
        if (active)
            warp.uniform[what.to + word] = values[__builtin_ctz(active)];
        return;
    }
    uint32_t* const to = warp.vector[what.to + word];
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        to[lane] = active >> lane & 1 ? values[lane] : to[lane];
}

template <typename Function>
void each(Warp& warp, const Instruction& what, uint32_t active, Function function)
{
    Words result;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        result[lane] = function(lane);
    put(warp, what, result, active);
}

template <typename Function>
void each_pair(Warp& warp, const Instruction& what, uint32_t active, Function function)
{
    Words low, high;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
        const uint64_t value = function(lane);
        low[lane] = uint32_t(value);
        high[lane] = uint32_t(value >> 32);
    }
    put(warp, what, low, active);
    put(warp, what, high, active, 1);
}

template <typename Function> uint32_t lanes_where(Function function)
{
    uint32_t mask = 0;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        mask |= uint32_t(bool(function(lane))) << lane;
    return mask;
}

// Comparisons: 1 less, 2 equal, 4 greater, 8 unordered; what holds is one of them.
template <typename Value> int order(Value first, Value second)
{
    return first < second ? 1 : first == second ? 2 : first > second ? 4 : 8;
}

uint32_t combine(int how, uint32_t first, uint32_t second)
{
    return how == 0 ? first & second : how == 1 ? first | second : first ^ second;
}

char* memory_at(uint64_t address, uint32_t size, bool write)
{
    for (uint32_t index = 0; index < launch->array_count; ++index) {
        const MemoryArray& array = launch->arrays[index];
        if (address < uint64_t(array.begin) || address + size > uint64_t(array.end))
            continue;
        if (write && !array.writable)
            fail("a write to argument %u, which is const", index);
        return reinterpret_cast<char*>(address);
    }
    fail("%u bytes at %#lx are in no array", size, long(address));
}

std::vector<char> shared_memory;

enum Space { kGlobal, kShared, kLocal };

char* locate(Warp& warp, int space, uint32_t lane, uint64_t address, uint32_t size, bool write)
{
    if (address % size)
        fail("%u bytes at %#lx, which is no multiple of that", size, long(address));
    if (space == kGlobal)
        return memory_at(address, size, write);
    std::vector<char>& memory = space == kShared ? shared_memory : warp.local;
    const uint64_t per_lane = space == kShared ? memory.size() : kLocalBytes;
    if (address + size > per_lane)
        fail("%u bytes at %#lx of %s memory, which has %#lx", size, long(address),
             space == kShared ? "shared" : "local", long(per_lane));
    return memory.data() + (space == kShared ? 0 : lane * kLocalBytes) + address;
}

// Where each lane accesses memory; of global memory that is counted too, as a request of the warp.
void find_addresses(Warp& warp, const Instruction& what, Kind kind, uint32_t active,
                    uint64_t (&addresses)[kLanes])
{
    const int space = what.mode[0];
    const bool wide = space == kGlobal && what.mode[3];
    const Pairs base(warp, what.source[0]), uniform(warp, what.source[1]);
    const bool uniform_wide = space == kGlobal && From(what.source[1].from) == From::uniform;
    static std::vector<uint64_t> sectors;
    sectors.clear();
    for_lanes(active, [&](uint32_t lane) {
        uint64_t address = wide ? base[lane] : uint64_t(base.low[lane]) << what.source[0].part;
        address += (uniform_wide ? uniform[lane] : uniform.low[lane]) + int64_t(what.target);
        addresses[lane] = space == kGlobal ? address : uint32_t(address);
        sectors.push_back(address / 32); // an access is aligned, and so lies in one
    });
    if (!active || space != kGlobal)
        return;
    Accesses& requests = kind == Kind::load    ? launch->counters->loads
                         : kind == Kind::store ? launch->counters->stores
                                               : launch->counters->atomics;
    std::sort(sectors.begin(), sectors.end());
    requests.requests += 1;
    requests.bytes += what.mode[1] * sectors.size();
    requests.sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
}

void load(Warp& warp, const Instruction& what, uint32_t active)
{
    uint64_t addresses[kLanes];
    find_addresses(warp, what, Kind::load, active, addresses);
    const int size = what.mode[1];
    const uint32_t words = std::max(size / 4, 1);
    for_lanes(active, [&](uint32_t lane) {
        const char* const from = locate(warp, what.mode[0], lane, addresses[lane], size, false);
        uint32_t values[4] = {};
        memcpy(values, from, size);
        if (what.mode[2])
            values[0] = size == 1 ? int8_t(values[0]) : int16_t(values[0]);
        for (uint32_t word = 0; what.to != kZeroRegister && word < words; ++word)
            warp.vector[what.to + word][lane] = values[word];
    });
}

// Types of atomic operations, in the order of machine.py.
enum AtomicType { kFloat, kInteger, kDouble };

// What an atomic operation leaves in memory.
uint64_t combined(const Instruction& what, uint64_t old, uint64_t value)
{
    switch (what.mode[2]) {
    case kFloat:
        return as_bits(as_float(uint32_t(old)) + as_float(uint32_t(value)));
    case kDouble:
        return as_bits(as_double(old) + as_double(value));
    default:
        return what.source[3].value ? old | value : old + value;
    }
}

// Stores words, or combines them with what is there.
void store(Warp& warp, const Instruction& what, uint32_t active)
{
    const bool is_atomic = Op(what.op) == Op::red;
    uint64_t addresses[kLanes];
    find_addresses(warp, what, is_atomic ? Kind::atomic : Kind::store, active, addresses);
    const int size = what.mode[1];
    const uint32_t words = std::max(size / 4, 1);
    Words space[4];
    const uint32_t* values[4];
    for (uint32_t word = 0; word < words; ++word)
        values[word] = raw(warp, what.source[2], space[word], word);
    for_lanes(active, [&](uint32_t lane) {
        uint32_t value[4] = {};
        for (uint32_t word = 0; word < words; ++word)
            value[word] = values[word][lane];
        char* const at = locate(warp, what.mode[0], lane, addresses[lane], size, true);
        if (is_atomic) {
            uint64_t old = 0;
            memcpy(&old, at, size);
            const uint64_t made = combined(what, old, uint64_t(value[1]) << 32 | value[0]);
            memcpy(value, &made, sizeof made);
            for (uint32_t word = 0; what.to != kZeroRegister && word < words; ++word)
                warp.vector[what.to + word][lane] = uint32_t(old >> 32 * word);
        }
        memcpy(at, value, size);
    });
}

uint32_t special(const Warp& warp, int which, const uint32_t (&block)[3], uint32_t lane)
{
    switch (which) {
    case 0:
        return warp.first_thread + lane; // kernels have blocks of one axis
    case 1:
    case 2:
    case 3:
        return block[which - 1];
    case 4:
        return lane;
    case 5:
        return (1u << lane) - 1;
    default:
        return 0;
    }
}

// Whether a division may leave the range of the fast way, as FCHK says.
bool is_hard(float dividend, float divisor)
{
    const int first = int(as_bits(dividend) >> 23 & 0xff), second = int(as_bits(divisor) >> 23 & 0xff);
    if (second == 0 || second == 255 || first == 255)
        return true;
    if (dividend == 0)
        return (as_bits(dividend) ^ as_bits(divisor)) >> 31; // the fast way makes no zero below zero
    return first <= 24 || second >= 253 || first - second >= 126 || first - second <= -126;
}

// Everything after which a warp goes on with the next instruction.
void execute(Warp& warp, const Instruction& what, uint32_t active, const uint32_t (&block)[3])
{
    const int32_t (&mode)[4] = what.mode;
    Words space[4];
    const auto integer = [&](int i) { return integers(warp, what.source[i], space[i]); };
    const auto real = [&](int i) { return floats(warp, what.source[i], space[i]); };
    const auto given = [&](int i) { return warp.mask(what.predicate[i]); };
    const auto make = [&](auto function, const auto*... words) {
        each(warp, what, active, [=](uint32_t lane) { return function(words[lane]...); });
    };
    // Puts the lower halves of sums, and says in predicates whether the upper one is at least one, or two.
    const auto put_and_carry = [&](auto sum) {
        uint64_t sums[kLanes];
        for (uint32_t lane = 0; lane < kLanes; ++lane)
            sums[lane] = sum(lane);
        each(warp, what, active, [&](uint32_t lane) { return uint32_t(sums[lane]); });
        for (uint32_t number = 0; number < 2; ++number)
            warp.set(what.to_predicate[number],
                     lanes_where([&](uint32_t lane) { return sums[lane] >> 32 > number; }), active);
    };
    const auto compare = [&](auto function) {
        const uint32_t holds = lanes_where(function), with = given(0);
        warp.set(what.to_predicate[0], combine(mode[2], holds, with), active);
        warp.set(what.to_predicate[1], combine(mode[2], ~holds, with), active);
    };
    switch (Op(what.op)) {
    case Op::nop:
        break;
    case Op::mov:
        return make([](uint32_t a) { return a; }, integer(0));
    case Op::imad: {
        const uint32_t *const a = integer(0), *const b = integer(1), *const c = integer(2);
        const uint32_t carry = mode[0] ? given(0) : 0;
        return each(warp, what, active,
                    [=](uint32_t lane) { return a[lane] * b[lane] + c[lane] + (carry >> lane & 1); });
    }
    case Op::imad_hi:
    case Op::imad_wide: {
        const uint32_t *const a = integer(0), *const b = integer(1);
        const Pairs c(warp, what.source[2]);
        const uint32_t carry = mode[1] ? given(0) : 0;
        const bool is_signed = mode[0];
        uint64_t sums[kLanes];
        uint32_t overflow = 0;
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const uint64_t product = is_signed ? uint64_t(int64_t(int32_t(a[lane])) * int32_t(b[lane]))
                                               : uint64_t(a[lane]) * b[lane];
            const unsigned __int128 sum = (unsigned __int128)(product) + c[lane] + (carry >> lane & 1);
            sums[lane] = uint64_t(sum);
            overflow |= uint32_t(sum >> 64) << lane;
        }
        warp.set(what.to_predicate[0], overflow, active);
        if (Op(what.op) == Op::imad_hi)
            return each(warp, what, active, [&](uint32_t lane) { return uint32_t(sums[lane] >> 32); });
        return each_pair(warp, what, active, [&](uint32_t lane) { return sums[lane]; });
    }
    case Op::iadd3:
    case Op::lea: {
        // What is subtracted is added inverted, after a shift, and one more, so that the carry says whether
        // nothing was borrowed.
        const bool shifts = Op(what.op) == Op::lea, carries = !shifts && mode[0];
        const uint32_t* words[3];
        uint32_t inverted[3];
        uint64_t ones = 0;
        for (int i = 0; i < 3; ++i) {
            const Source& source = what.source[i];
            words[i] = raw(warp, source, space[i]);
            inverted[i] = source.flags & (kNegative | kInverted) ? kAll : 0;
            ones += (source.flags & kNegative) != 0;
        }
        const uint32_t first = carries ? given(0) : 0, second = carries ? given(1) : 0;
        const int shift = shifts ? mode[0] : 0;
        return put_and_carry([&](uint32_t lane) {
            const uint64_t carried = ones + (first >> lane & 1) + (second >> lane & 1);
            return carried + ((words[0][lane] << shift) ^ inverted[0]) + (words[1][lane] ^ inverted[1]) +
                   (words[2][lane] ^ inverted[2]);
        });
    }
    case Op::iadd_wide: {
        const Pairs a(warp, what.source[0]), b(warp, what.source[1]), c(warp, what.source[2]);
        return each_pair(warp, what, active, [&](uint32_t lane) { return a[lane] + b[lane] + c[lane]; });
    }
    case Op::lea_hi: {
        const uint32_t *const a = integer(0), *const b = integer(1), *const c = integer(2);
        const bool extended = mode[1];
        const int shift = mode[0];
        const uint32_t carry = mode[2] ? given(0) : 0;
        return put_and_carry([&](uint32_t lane) {
            const uint64_t wide =
                extended ? uint64_t(int64_t(int32_t(a[lane]))) : uint64_t(c[lane]) << 32 | a[lane];
            return (wide << shift >> 32) + b[lane] + (carry >> lane & 1);
        });
    }
    case Op::lop3: {
        const uint32_t *const a = integer(0), *const b = integer(1), *const c = integer(2);
        Words result = {};
        for (int row = 0; row < 8; ++row) {
            if (!(mode[0] >> row & 1))
                continue;
            const uint32_t not_a = row & 4 ? 0 : kAll, not_b = row & 2 ? 0 : kAll, not_c = row & 1 ? 0 : kAll;
            for (uint32_t lane = 0; lane < kLanes; ++lane)
                result[lane] |= (a[lane] ^ not_a) & (b[lane] ^ not_b) & (c[lane] ^ not_c);
        }
        put(warp, what, result, active);
        const uint32_t other = lanes_where([&](uint32_t lane) { return result[lane] != 0; });
        return warp.set(what.to_predicate[0], other | given(0), active);
    }
    case Op::plop3: {
        const uint32_t a = given(0), b = given(1), c = given(2);
        for (int table = 0; table < 2; ++table) {
            uint32_t made = 0;
            for (int row = 0; row < 8; ++row)
                if (mode[table] >> row & 1)
                    made |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
            warp.set(what.to_predicate[table], made, active);
        }
        return;
    }
    case Op::shf: {
        const bool right = mode[0], is_signed = mode[1], upper = mode[2], wraps = mode[3];
        const auto shift = [=](uint32_t low, uint32_t by, uint32_t high) {
            const uint64_t wide = uint64_t(high) << 32 | low;
            const uint32_t distance = wraps ? by & 31 : by;
            const uint64_t moved = !right          ? distance > 63 ? 0 : wide << distance
                                   : is_signed     ? uint64_t(int64_t(wide) >> std::min(distance, 63u))
                                   : distance > 63 ? 0
                                                   : wide >> distance;
            return uint32_t(upper ? moved >> 32 : moved);
        };
        return make(shift, integer(0), integer(1), integer(2));
    }
    case Op::isetp: {
        const uint32_t *const a = integer(0), *const b = integer(1), below = given(1);
        const bool is_signed = mode[1], extended = mode[3];
        return compare([=](uint32_t lane) {
            const int found = is_signed ? order(int32_t(a[lane]), int32_t(b[lane])) : order(a[lane], b[lane]);
            return extended && found == 2 ? below >> lane & 1 : uint32_t((mode[0] & found) != 0);
        });
    }
    case Op::isetp_wide: {
        const Pairs a(warp, what.source[0]), b(warp, what.source[1]);
        return compare([&](uint32_t lane) {
            return mode[0] & (mode[1] ? order(int64_t(a[lane]), int64_t(b[lane])) : order(a[lane], b[lane]));
        });
    }
    case Op::fsetp: {
        const uint32_t *const a = real(0), *const b = real(1);
        return compare([=](uint32_t lane) {
            return mode[0] & order(flushed(as_float(a[lane]), mode[3]), flushed(as_float(b[lane]), mode[3]));
        });
    }
    case Op::dsetp: {
        const Doubles a(warp, what.source[0]), b(warp, what.source[1]);
        return compare([&](uint32_t lane) { return mode[0] & order(a[lane], b[lane]); });
    }
    case Op::sel:
    case Op::fsel: {
        const bool is_real = Op(what.op) == Op::fsel;
        const uint32_t *const a = is_real ? real(0) : integer(0), *const b = is_real ? real(1) : integer(1);
        const uint32_t first = given(0);
        return each(warp, what, active, [=](uint32_t lane) { return first >> lane & 1 ? a[lane] : b[lane]; });
    }
    case Op::sel_wide:
    case Op::imnmx_wide: {
        const Pairs a(warp, what.source[0]), b(warp, what.source[1]);
        const bool compares = Op(what.op) == Op::imnmx_wide, is_signed = mode[0];
        const uint32_t first = given(0);
        return each_pair(warp, what, active, [&](uint32_t lane) {
            const bool less = is_signed ? int64_t(a[lane]) < int64_t(b[lane]) : a[lane] < b[lane];
            return (!compares || less) == bool(first >> lane & 1) ? a[lane] : b[lane];
        });
    }
    case Op::imnmx:
    case Op::viaddmnmx: {
        const bool adds = Op(what.op) == Op::viaddmnmx, is_signed = mode[0], not_below_zero = mode[1];
        const uint32_t *const a = integer(0), *const b = integer(1), *const c = adds ? integer(2) : b;
        const uint32_t least = given(0);
        return each(warp, what, active, [=](uint32_t lane) {
            const uint32_t first = adds ? a[lane] + b[lane] : a[lane], second = c[lane];
            const bool less = is_signed ? int32_t(first) < int32_t(second) : first < second;
            const uint32_t taken = less == bool(least >> lane & 1) ? first : second;
            return not_below_zero && int32_t(taken) < 0 ? 0 : taken;
        });
    }
    case Op::iabs:
        return make([](uint32_t a) { return int32_t(a) < 0 ? 0 - a : a; }, integer(0));
    case Op::popc:
        return make(__popc, integer(0));
    case Op::flo: {
        const bool as_shift = mode[0];
        const auto leading = [=](uint32_t a) { return !a ? kAll : as_shift ? __clz(a) : 31 - __clz(a); };
        return make(leading, integer(0));
    }
    case Op::brev:
        return make(__brev, integer(0));
    case Op::prmt:
        return make(__byte_perm, integer(0), integer(2), integer(1));
    case Op::p2r: {
        const uint32_t* const a = integer(0);
        const uint32_t mask = uint32_t(mode[0]);
        const int shift = mode[1];
        return each(warp, what, active, [&](uint32_t lane) {
            uint32_t set = 0;
            for (int index = 0; index < 7; ++index)
                set |= ((mode[2] ? warp.uniform_predicates : warp.predicates)[index] >> lane & 1) << index;
            return (a[lane] & ~(mask << shift)) | (set & mask) << shift;
        });
    }
    case Op::r2p: {
        const uint32_t* const a = integer(0);
        for (uint8_t index = 0; index < 7; ++index)
            if (mode[0] >> index & 1)
                warp.set({index, 0, 0}, lanes_where([&](uint32_t lane) {
                             return a[lane] >> (what.source[0].part + index) & 1;
                         }),
                         active);
        return;
    }
    case Op::s2r: {
        const auto value = [&](uint32_t lane) { return special(warp, mode[0], block, lane); };
        return mode[1] ? each_pair(warp, what, active, value) : each(warp, what, active, value);
    }
    case Op::vote: {
        const uint32_t for_it = given(0) & active;
        each(warp, what, active, [=](uint32_t) { return for_it; });
        const bool holds = mode[0] == 0 ? for_it != 0 : for_it == active;
        return warp.set(what.to_predicate[0], holds ? kAll : 0, active);
    }
    case Op::shfl: {
        const uint32_t *const value = integer(0), *const by = integer(1), *const limits = integer(2);
        Words result;
        uint32_t inside = 0;
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const uint32_t clamp = limits[lane] & 31, segment = limits[lane] >> 8 & 31,
                           distance = by[lane] & 31;
            const uint32_t least = lane & segment, most = least | (clamp & ~segment);
            const int from = mode[0] == 0   ? int(least | (distance & ~segment))
                             : mode[0] == 1 ? int(lane) - int(distance)
                             : mode[0] == 2 ? int(lane + distance)
                                            : int(lane ^ distance);
            const bool valid = mode[0] == 1 ? from >= int(most) : from <= int(most);
            result[lane] = value[valid ? from : int(lane)];
            inside |= uint32_t(valid) << lane;
        }
        put(warp, what, result, active);
        return warp.set(what.to_predicate[0], inside, active);
    }
    case Op::i2f: {
        const bool is_signed = mode[0], absolute = what.source[0].flags & kAbsolute;
        const Rounding rounding(mode[1]);
        const auto converted = [=](uint32_t a) {
            const int64_t value = is_signed ? int64_t(int32_t(a)) : int64_t(a);
            volatile float made = float(absolute && value < 0 ? -value : value);
            return as_bits(float(made));
        };
        return make(converted, integer(0));
    }
    case Op::f2i: {
        const auto converted = [](uint32_t a) {
            return uint32_t(std::min(std::max(std::trunc(double(as_float(a))), 0.0), 4294967295.0));
        };
        return make(converted, real(0));
    }
    case Op::fadd:
    case Op::fmul:
    case Op::ffma: {
        const uint32_t *const a = real(0), *const b = real(1),
                              *const c = Op(what.op) == Op::ffma ? real(2) : b;
        const bool flush = mode[0];
        const Op op = Op(what.op);
        if (op == Op::fadd && !flush && !mode[1])
            return make([](uint32_t a, uint32_t b) { return as_bits(as_float(a) + as_float(b)); }, a, b);
        const Rounding rounding(mode[1]);
        const auto computed = [=](uint32_t a, uint32_t b, uint32_t c) {
            volatile float first = flushed(as_float(a), flush), second = flushed(as_float(b), flush);
            volatile float third = flushed(as_float(c), flush);
            volatile float made = op == Op::fadd   ? first + second
                                  : op == Op::fmul ? first * second
                                                   : std::fma(first, second, third);
            return as_bits(flushed(made, flush));
        };
        return make(computed, a, b, c);
    }
    case Op::mufu: {
        const auto computed = [=](uint32_t a) {
            if (mode[0] == 2) // the upper half of a double's reciprocal
                return uint32_t(as_bits(1.0 / as_double(uint64_t(a) << 32)) >> 32);
            return as_bits(mode[0] == 0 ? 1.0f / as_float(a) : 1.0f / std::sqrt(as_float(a)));
        };
        return make(computed, real(0));
    }
    case Op::fchk: {
        const uint32_t *const a = real(0), *const b = real(1);
        const auto hard = [=](uint32_t lane) { return is_hard(as_float(a[lane]), as_float(b[lane])); };
        return warp.set(what.to_predicate[0], lanes_where(hard), active);
    }
    case Op::dadd:
    case Op::dmul:
    case Op::dfma: {
        const Doubles a(warp, what.source[0]), b(warp, what.source[1]), c(warp, what.source[2]);
        const Op op = Op(what.op);
        return each_pair(warp, what, active, [&](uint32_t lane) {
            return as_bits(op == Op::dadd   ? a[lane] + b[lane]
                           : op == Op::dmul ? a[lane] * b[lane]
                                            : std::fma(a[lane], b[lane], c[lane]));
        });
    }
    case Op::half_to_float: {
        const Source source = what.source[0];
        const auto converted = [=](uint32_t a) {
            const float value = __half2float(__half_raw{uint16_t(a >> source.part)});
            return as_bits(source.flags & kNegative ? -value : value);
        };
        return make(converted, raw(warp, source, space[0]));
    }
    case Op::float_to_double: {
        const uint32_t* const a = real(0);
        return each_pair(warp, what, active,
                         [=](uint32_t lane) { return as_bits(double(as_float(a[lane]))); });
    }
    case Op::float_to_half: {
        const bool brain = mode[0];
        const auto half = [=](uint32_t bits) {
            return brain ? __bfloat16_as_ushort(__float2bfloat16_rn(as_float(bits)))
                         : __half_as_ushort(__float2half_rn(as_float(bits)));
        };
        return make([=](uint32_t high, uint32_t low) { return uint32_t(half(high)) << 16 | half(low); },
                    real(0), real(1));
    }
    case Op::ld:
        return load(warp, what, active);
    case Op::st:
    case Op::red:
        return store(warp, what, active);
    case Op::ldc: {
        const uint32_t* const index = integer(1);
        const int size = mode[1];
        for (int word = 0; word < std::max(size / 4, 1); ++word) {
            Words result;
            for (uint32_t lane = 0; lane < kLanes; ++lane) {
                if (!(active >> lane & 1))
                    continue;
                result[lane] = constant(what.source[0].value + index[lane] + 4 * word);
            }
            put(warp, what, result, active, word);
        }
        return;
    }
    case Op::bssy:
        return for_lanes(active, [&](uint32_t lane) { warp.reconvergence[mode[0]][lane] = active; });
    default:
        fail("operation %d does not belong here", int(what.op));
    }
}

// Lets the lanes go on that have waited for each other.
void release(Warp& warp)
{
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
        if (!(warp.at_sync >> lane & 1))
            continue;
        const uint32_t which = warp.waits_at[lane];
        const uint32_t party = warp.reconvergence[which][lane] & ~warp.done;
        uint32_t there = 0;
        for (uint32_t other = 0; other < kLanes; ++other)
            there |= uint32_t(warp.at_sync >> other & 1 && warp.waits_at[other] == which) << other;
        if (party & ~there)
            continue;
        for_lanes(party, [&](uint32_t other) { ++warp.place[other]; });
        warp.at_sync &= ~party;
        warp.running |= party;
    }
}

// Runs a warp until its lanes wait for the block or are done.
constexpr uint32_t kEndless = 1 << 24; // instructions of a warp between two barriers of its block

void run(Warp& warp, const uint32_t (&block)[3])
{
    uint32_t instructions = 0;
    while (warp.running) {
        uint32_t place = kAll, mask = 0;
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            if (!(warp.running >> lane & 1) || warp.place[lane] > place)
                continue;
            mask = warp.place[lane] < place ? 1u << lane : mask | 1u << lane;
            place = warp.place[lane];
        }
        const bool together = mask == warp.running;
        bool straight = true;
        const auto send = [&](uint32_t lanes, uint32_t where) {
            for_lanes(lanes, [&](uint32_t lane) { warp.place[lane] = where; });
        };
        while (straight) {
            if (place >= launch->count)
                fail("instruction %u of %u", place, launch->count);
            const Instruction& what = launch->code[place];
            launch->counters->instructions += 1;
            if (++instructions == kEndless)
                fail("a warp runs for ever");
            const uint32_t active = mask & warp.mask(what.guard);
            const uint32_t chosen = active & warp.mask(what.predicate[0]);
            straight = together;
            if (Op(what.op) == Op::bra && (!chosen || chosen == mask)) {
                place = chosen ? what.target : place + 1;
            } else if (Op(what.op) < Op::bra) {
                execute(warp, what, active, block);
                ++place;
            } else { // lanes may go different ways, or wait
                send(mask, place + 1);
                switch (Op(what.op)) {
                case Op::bra:
                    send(chosen, what.target);
                    break;
                case Op::call:
                    send(active, what.target);
                    break;
                case Op::ret: {
                    Words space;
                    const uint32_t* const where = raw(warp, what.source[0], space);
                    for_lanes(active, [&](uint32_t lane) { warp.place[lane] = where[lane] / 16; });
                    break;
                }
                case Op::exit:
                    warp.done |= chosen;
                    warp.running &= ~chosen;
                    release(warp);
                    break;
                case Op::breaks:
                    for (uint32_t& party : warp.reconvergence[what.mode[0]])
                        party &= ~chosen;
                    release(warp);
                    break;
                case Op::bar:
                    warp.running &= ~active;
                    warp.at_block_barrier |= active;
                    break;
                default: // BSYNC and WARPSYNC
                    send(active, place);
                    for_lanes(active, [&](uint32_t lane) {
                        warp.waits_at[lane] = what.mode[0];
                        if (Op(what.op) == Op::warpsync)
                            warp.reconvergence[16][lane] = warp.lanes;
                    });
                    warp.running &= ~active;
                    warp.at_sync |= active;
                    release(warp);
                }
                break;
            }
            if (!straight)
                send(mask, place);
        }
    }
    if (warp.at_sync)
        fail("lanes %#x wait for ever for others of their warp", warp.at_sync);
}

void run_block(std::vector<Warp>& warps, const uint32_t (&block)[3])
{
    const uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    memset(shared_memory.data(), 0xff, shared_memory.size());
    for (std::size_t index = 0; index < warps.size(); ++index) {
        Warp& warp = warps[index];
        warp.first_thread = uint32_t(index) * kLanes;
        const uint32_t count = std::min(kLanes, threads - warp.first_thread);
        warp.lanes = count == kLanes ? kAll : (1u << count) - 1;
        warp.running = warp.lanes;
        warp.at_block_barrier = warp.at_sync = warp.done = 0;
        memset(warp.place, 0, sizeof warp.place);
        memset(warp.reconvergence, 0, sizeof warp.reconvergence);
        memset(warp.vector, 0xa5, sizeof warp.vector); // no instruction may rely on what was there
        memset(warp.uniform, 0xa5, sizeof warp.uniform);
        memset(warp.predicates, 0, sizeof warp.predicates);
        memset(warp.uniform_predicates, 0, sizeof warp.uniform_predicates);
        warp.predicates[kTrue] = warp.uniform_predicates[kTrue] = kAll;
        warp.local.assign(kLanes * kLocalBytes, char(0xff));
    }
    for (;;) {
        uint32_t waiting = 0, live = 0;
        for (Warp& warp : warps) {
            run(warp, block);
            waiting |= warp.at_block_barrier;
            live |= warp.lanes & ~warp.done & ~warp.at_block_barrier;
        }
        if (live)
            fail("threads wait for ever at a barrier of the block");
        if (!waiting)
            break;
        for (Warp& warp : warps) {
            warp.running = warp.at_block_barrier;
            warp.at_block_barrier = 0;
        }
    }
    launch->counters->warps += warps.size();
}

} // namespace
} // namespace hostcuda

extern "C" const char* hostcuda_machine_operations()
{
#define HOSTCUDA_NAME(name) #name " "
    return HOSTCUDA_OPERATIONS(HOSTCUDA_NAME);
#undef HOSTCUDA_NAME
}

extern "C" void hostcuda_machine_launch(const hostcuda::MachineLaunch* what)
{
    using namespace hostcuda;
    launch = what;
    what->message[0] = 0;
    *what->counters = {};
    shared_memory.assign(what->shared_bytes, 0);
    const uint32_t threads = what->block[0] * what->block[1] * what->block[2];
    std::vector<Warp> warps((threads + kLanes - 1) / kLanes);
    uint32_t block[3] = {};
    const uint32_t* const grid = what->grid;
    const uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
    try {
        for (uint64_t number = 0; number < blocks; ++number) {
            block[0] = uint32_t(number % grid[0]);
            block[1] = uint32_t(number / grid[0] % grid[1]);
            block[2] = uint32_t(number / grid[0] / grid[1]);
            run_block(warps, block);
        }
    } catch (const std::exception& error) {
        snprintf(what->message, what->message_size, "block (%u, %u, %u): %s", block[0], block[1], block[2],
                 error.what());
    }
}
