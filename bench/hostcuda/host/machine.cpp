// Executes the machine code of a GPU on the CPU, warp by warp, and counts what it moves.
//
// machine.py has read the instructions from nvdisasm's listing. A warp executes an instruction for all its
// active lanes. After a divergent branch, the lanes at the lowest address go first, and BSYNC waits for the
// lanes that its BSSY named. The meaning of instructions is not fully published; bitwise correct results show
// that it is right here.
#include <algorithm>
#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_words.h"
#include "module.h"

// After those from bra on, lanes may diverge, or wait.
// clang-format off
#define HOSTCUDA_OPERATIONS(X)                                                                         \
    X(nop) X(mov) X(imad) X(imad_hi) X(imad_wide) X(iadd3) X(iadd_wide) X(lea) X(lea_hi) X(lop3) X(plop3) X(shf)    \
    X(isetp) X(isetp_wide) X(fsetp) X(dsetp) X(sel) X(sel_wide) X(imnmx) X(imnmx_wide) X(viaddmnmx) X(iabs) X(popc) X(flo) X(brev)     \
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

// Flags of a source: that of floats has a sign of its own.
constexpr uint8_t kNegative = 1, kInverted = 2, kOpposite = 4, kAbsolute = 8;

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

// Accesses of one kind to global memory. A request is one instruction of one warp.
struct Accesses {
    uint64_t requests;
    uint64_t bytes;   // that threads asked for
    uint64_t sectors; // of 32 bytes, distinct in a request
};

struct Counters {
    Accesses loads, stores, atomics;
};

struct MachineLaunch : Launch {
    const Instruction* code;
    const char* constants;
    uint32_t count, constant_bytes, shared_bytes;
    Counters* counters;
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

constexpr auto as_float = bits<float, uint32_t>;
constexpr auto as_double = bits<double, uint64_t>;
template <typename Real> auto as_bits(Real value)
{
    return bits<std::conditional_t<sizeof value == 4, uint32_t, uint64_t>>(value);
}

// Modes of rounding, in the order of machine.py.
struct Rounding {
    explicit Rounding(int mode)
    {
        constexpr int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
        fesetround(modes[mode]);
    }
    ~Rounding() { fesetround(FE_TONEAREST); }
};

// A value for each lane.
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Signed = int32_t __attribute__((vector_size(4 * kLanes)));
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Pairs = uint64_t __attribute__((vector_size(8 * kLanes)));
using SignedPairs = int64_t __attribute__((vector_size(8 * kLanes)));
using Doubles = double __attribute__((vector_size(8 * kLanes)));

// The same numbers, of another type.
template <typename To, typename From> To as(const From& from)
{
    return __builtin_convertvector(from, To);
}

// A function's value for each lane.
template <typename Values = Words, typename Function> Values each(Function function)
{
    Values made;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        made[lane] = function(lane);
    return made;
}

const Words kNumbers = each([](uint32_t lane) { return lane; });

// One or zero for each lane of a mask, and the mask of nonzero values.
Words bits_of(uint32_t mask)
{
    return mask >> kNumbers & 1;
}
template <typename Values> uint32_t mask_of(const Values& values)
{
    uint32_t mask = 0;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
        mask |= uint32_t(values[lane] != 0) << lane;
    return mask;
}

// The first values where a mask has its lanes, and the second elsewhere.
template <typename Values> Values choose(uint32_t mask, const Values& first, const Values& second)
{
    return as<Values>(bits_of(mask)) != 0 ? first : second;
}

// Calls a function for each lane of a mask.
template <typename Function> void for_lanes(uint32_t mask, Function function)
{
    for (; mask; mask &= mask - 1)
        function(uint32_t(__builtin_ctz(mask)));
}

struct Warp {
    Warp(uint32_t first_thread, uint32_t count)
        : first_thread(first_thread), lanes(count < kLanes ? (1u << count) - 1 : kAll), running(lanes),
          local(kLanes * kLocalBytes, char(0xff))
    {
        memset(vector, 0xa5, sizeof vector); // no instruction may rely on what was there
        memset(uniform, 0xa5, sizeof uniform);
        predicates[kTrue] = uniform_predicates[kTrue] = kAll;
    }

    uint32_t first_thread, lanes;
    uint32_t running, at_block_barrier = 0, at_sync = 0, done = 0; // masks of lanes
    Words place = {};                                              // the instruction of each lane
    Words reconvergence[17] = {}; // who waits for whom, per register of BSSY; the last: WARPSYNC
    Words waits_at = {};
    Words vector[256];
    uint32_t uniform[256];
    uint32_t predicates[8] = {}, uniform_predicates[8] = {}; // masks of lanes
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
Words raw(const Warp& warp, const Source& source, uint32_t word = 0)
{
    switch (From(source.from)) {
    case From::vector:
        return source.index == kZeroRegister ? Words{} : warp.vector[source.index + word];
    case From::uniform:
        return Words{} + (source.index == kZeroRegister ? 0 : warp.uniform[source.index + word]);
    case From::immediate:
        return Words{} + (word ? source.high : source.value);
    case From::constant:
        return Words{} + constant(source.value + 4 * word);
    default:
        return Words{};
    }
}

template <typename Values> Values with_flags(Values values, uint8_t flags)
{
    const Values sign = (Values{} + 1) << (8 * sizeof values[0] - 1);
    values = flags & kAbsolute ? values & ~sign : values;
    values = flags & kOpposite ? values ^ sign : values;
    values = flags & kInverted ? ~values : values;
    return flags & kNegative ? -values : values;
}

// Integers, or the bits of floats.
Words words(const Warp& warp, const Source& source)
{
    return with_flags(raw(warp, source), source.flags);
}

Pairs pairs(const Warp& warp, const Source& source)
{
    return with_flags(as<Pairs>(raw(warp, source, 1)) << 32 | as<Pairs>(raw(warp, source)), source.flags);
}

Words flushed(const Words& floats, bool flush)
{
    return flush ? (floats & 0x7f800000) == 0 ? floats & 0x80000000 : floats : floats;
}

void put(Warp& warp, const Instruction& what, const Words& values, uint32_t active, uint32_t word = 0)
{
    if (what.to == kZeroRegister || !active)
        return;
    if (what.uniform)
        warp.uniform[what.to + word] = values[__builtin_ctz(active)];
    else
        warp.vector[what.to + word] = choose(active, values, warp.vector[what.to + word]);
}

void put(Warp& warp, const Instruction& what, const Pairs& values, uint32_t active)
{
    put(warp, what, as<Words>(values), active);
    put(warp, what, as<Words>(values >> 32), active, 1);
}

// The lanes for which one of these holds: 1 less, 2 equal, 4 greater, 8 unordered.
template <typename Values> uint32_t compared(int wanted, const Values& first, const Values& second)
{
    const auto less = (first < second), equal = (first == second), greater = (first > second);
    const auto none = less ^ less;
    return mask_of((wanted & 1 ? less : none) | (wanted & 2 ? equal : none) | (wanted & 4 ? greater : none) |
                   (wanted & 8 ? ~(less | equal | greater) : none));
}

uint32_t combine(int how, uint32_t first, uint32_t second)
{
    return how == 0 ? first & second : how == 1 ? first | second : first ^ second;
}

char* memory_at(uint64_t address, uint32_t size, bool write)
{
    for (uint32_t index = 0; index < launch->array_count; ++index) {
        const Array& array = launch->arrays[index];
        if (address < uint64_t(array.begin) || address + size > uint64_t(array.end))
            continue;
        if (write && !array.writable)
            fail("a write to argument %u, which is const", array.argument);
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

// The address of each lane's access; for global memory it is counted, as a request of the warp.
Pairs addresses_of(const Warp& warp, const Instruction& what, Accesses& requests, uint32_t active)
{
    const bool global = what.mode[0] == kGlobal;
    const Source &base = what.source[0], &uniform = what.source[1];
    Pairs addresses = global && what.mode[3] ? pairs(warp, base) : as<Pairs>(raw(warp, base)) << base.part;
    addresses +=
        global && From(uniform.from) == From::uniform ? pairs(warp, uniform) : as<Pairs>(raw(warp, uniform));
    addresses += int64_t(what.target);
    if (!global)
        return addresses & kAll;
    static std::vector<uint64_t> sectors;
    sectors.clear();
    for_lanes(active, [&](uint32_t lane) {
        sectors.push_back(addresses[lane] / 32); // an access is aligned, and so lies in one
    });
    std::sort(sectors.begin(), sectors.end());
    requests.requests += active != 0;
    requests.bytes += what.mode[1] * sectors.size();
    requests.sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
    return addresses;
}

void load(Warp& warp, const Instruction& what, uint32_t active)
{
    const Pairs addresses = addresses_of(warp, what, launch->counters->loads, active);
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

// The value that an atomic operation stores.
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
    Accesses& requests = is_atomic ? launch->counters->atomics : launch->counters->stores;
    const Pairs addresses = addresses_of(warp, what, requests, active);
    const int size = what.mode[1];
    const uint32_t words = std::max(size / 4, 1);
    Words values[4];
    for (uint32_t word = 0; word < words; ++word)
        values[word] = raw(warp, what.source[2], word);
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

// Whether a division may leave the range of the fast algorithm, as FCHK says.
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
    const Op op = Op(what.op);
    const auto word = [&](int i) { return words(warp, what.source[i]); };
    const auto pair = [&](int i) { return pairs(warp, what.source[i]); };
    const auto number = [&](int i) { return Doubles(pair(i)); };
    const auto given = [&](int i) { return warp.mask(what.predicate[i]); };
    const auto made = [&](const auto& values) { put(warp, what, values, active); };
    const auto set = [&](int i, uint32_t mask) { warp.set(what.to_predicate[i], mask, active); };
    const auto by_lane = [&](auto function, const auto&... words) {
        made(each([&](uint32_t lane) { return function(words[lane]...); }));
    };
    // Puts the lower halves of sums, and says in predicates whether the upper one is at least one, or two.
    const auto put_and_carry = [&](const Pairs& sums) {
        made(as<Words>(sums));
        set(0, mask_of(sums >> 32 > 0));
        set(1, mask_of(sums >> 32 > 1));
    };
    const auto compare = [&](uint32_t holds) {
        const auto before = given(0); // set(0) may write the predicate that it reads
        set(0, combine(mode[2], holds, before));
        set(1, combine(mode[2], ~holds, before));
    };
    switch (op) {
    case Op::nop:
        break;
    case Op::mov:
        return made(word(0));
    case Op::imad:
        return made(word(0) * word(1) + word(2) + bits_of(mode[0] ? given(0) : 0));
    case Op::imad_hi:
    case Op::imad_wide: {
        const Words a = word(0), b = word(1);
        const Pairs c = pair(2), carry = as<Pairs>(bits_of(mode[1] ? given(0) : 0));
        const Pairs product = mode[0] ? Pairs(as<SignedPairs>(Signed(a)) * as<SignedPairs>(Signed(b)))
                                      : as<Pairs>(a) * as<Pairs>(b);
        const Pairs sum = product + c, sums = sum + carry;
        set(0, mask_of((sum < product) | (sums < carry)));
        return op == Op::imad_hi ? made(as<Words>(sums >> 32)) : made(sums);
    }
    case Op::iadd3:
    case Op::lea: {
        // To subtract, add the inverted operand, after a shift, and one: the carry then says whether nothing
        // was borrowed.
        const bool shifts = op == Op::lea, carries = !shifts && mode[0];
        Pairs sums = as<Pairs>(bits_of(carries ? given(0) : 0) + bits_of(carries ? given(1) : 0));
        for (int i = 0; i < 3; ++i) {
            const Source& source = what.source[i];
            const Words words = raw(warp, source) << (shifts && i == 0 ? mode[0] : 0);
            sums += as<Pairs>(source.flags & (kNegative | kInverted) ? ~words : words);
            sums += uint64_t((source.flags & kNegative) != 0);
        }
        return put_and_carry(sums);
    }
    case Op::iadd_wide:
        return made(pair(0) + pair(1) + pair(2));
    case Op::lea_hi: {
        const Words a = word(0);
        const Pairs wide =
            mode[1] ? Pairs(as<SignedPairs>(Signed(a))) : as<Pairs>(word(2)) << 32 | as<Pairs>(a);
        const Words carry = bits_of(mode[2] ? given(0) : 0);
        return put_and_carry((wide << mode[0] >> 32) + as<Pairs>(word(1)) + as<Pairs>(carry));
    }
    case Op::lop3: {
        const Words a = word(0), b = word(1), c = word(2);
        Words result = {};
        for (int row = 0; row < 8; ++row)
            if (mode[0] >> row & 1)
                result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
        made(result);
        return set(0, mask_of(result) | given(0));
    }
    case Op::plop3: {
        const uint32_t a = given(0), b = given(1), c = given(2);
        for (int table = 0; table < 2; ++table) {
            uint32_t result = 0;
            for (int row = 0; row < 8; ++row)
                if (mode[table] >> row & 1)
                    result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
            set(table, result);
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
        return by_lane(shift, word(0), word(1), word(2));
    }
    case Op::isetp: {
        const Words a = word(0), b = word(1);
        const auto holds = [&](int wanted) {
            return mode[1] ? compared(wanted, Signed(a), Signed(b)) : compared(wanted, a, b);
        };
        return compare(mode[3] ? holds(mode[0] & ~2) | (holds(2) & given(1)) : holds(mode[0]));
    }
    case Op::isetp_wide:
        return compare(mode[1] ? compared(mode[0], SignedPairs(pair(0)), SignedPairs(pair(1)))
                               : compared(mode[0], pair(0), pair(1)));
    case Op::fsetp:
        return compare(
            compared(mode[0], Floats(flushed(word(0), mode[3])), Floats(flushed(word(1), mode[3]))));
    case Op::dsetp:
        return compare(compared(mode[0], number(0), number(1)));
    case Op::sel:
        return made(choose(given(0), word(0), word(1)));
    case Op::sel_wide:
        return made(choose(given(0), pair(0), pair(1)));
    case Op::imnmx_wide: {
        const Pairs a = pair(0), b = pair(1);
        const uint32_t less = mode[0] ? mask_of(SignedPairs(a) < SignedPairs(b)) : mask_of(a < b);
        return made(choose(~(less ^ given(0)), a, b));
    }
    case Op::imnmx:
    case Op::viaddmnmx: {
        const bool adds = op == Op::viaddmnmx;
        const Words a = adds ? word(0) + word(1) : word(0), b = word(1 + adds);
        const uint32_t less = mode[0] ? mask_of(Signed(a) < Signed(b)) : mask_of(a < b);
        const Words taken = choose(~(less ^ given(0)), a, b);
        return made(mode[1] ? choose(mask_of(Signed(taken) < 0), Words{}, taken) : taken);
    }
    case Op::iabs:
        return by_lane([](uint32_t a) { return int32_t(a) < 0 ? 0 - a : a; }, word(0));
    case Op::popc:
        return by_lane(__popc, word(0));
    case Op::flo: {
        const bool as_shift = mode[0];
        const auto leading = [=](uint32_t a) { return !a ? kAll : as_shift ? __clz(a) : 31 - __clz(a); };
        return by_lane(leading, word(0));
    }
    case Op::brev:
        return by_lane(__brev, word(0));
    case Op::prmt:
        return by_lane(__byte_perm, word(0), word(2), word(1));
    case Op::p2r: {
        const uint32_t mask = uint32_t(mode[0]);
        Words bits = {};
        for (int index = 0; index < 7; ++index)
            bits |= bits_of((mode[2] ? warp.uniform_predicates : warp.predicates)[index]) << index;
        return made((word(0) & ~(mask << mode[1])) | (bits & mask) << mode[1]);
    }
    case Op::r2p: {
        const Words a = word(0) >> what.source[0].part;
        for (uint8_t index = 0; index < 7; ++index)
            if (mode[0] >> index & 1)
                warp.set({index, 0, 0}, mask_of(a >> index & 1), active);
        return;
    }
    case Op::s2r: {
        const Words threads = warp.first_thread + kNumbers, below = (1u << kNumbers) - 1, zero = {};
        const Words known[] = {threads, zero + block[0], zero + block[1], zero + block[2], kNumbers, below};
        const Words value = mode[0] < 6 ? known[mode[0]] : zero; // kernels have blocks of one axis
        return mode[1] ? made(as<Pairs>(value)) : made(value);
    }
    case Op::vote: {
        const uint32_t for_it = given(0) & active;
        made(Words{} + for_it);
        return set(0, (mode[0] == 0 ? for_it != 0 : for_it == active) ? kAll : 0);
    }
    case Op::shfl: {
        const Words value = word(0), by = word(1), limits = word(2);
        uint32_t inside = 0;
        made(each([&](uint32_t lane) {
            const uint32_t clamp = limits[lane] & 31, segment = limits[lane] >> 8 & 31,
                           distance = by[lane] & 31;
            const uint32_t least = lane & segment, most = least | (clamp & ~segment);
            const int from = mode[0] == 0   ? int(least | (distance & ~segment))
                             : mode[0] == 1 ? int(lane) - int(distance)
                             : mode[0] == 2 ? int(lane + distance)
                                            : int(lane ^ distance);
            const bool valid = mode[0] == 1 ? from >= int(most) : from <= int(most);
            inside |= uint32_t(valid) << lane;
            return value[valid ? from : int(lane)];
        }));
        return set(0, inside);
    }
    case Op::i2f: {
        const bool is_signed = mode[0];
        const Rounding rounding(mode[1]);
        const auto converted = [=](uint32_t a) {
            volatile float made = float(is_signed ? int64_t(int32_t(a)) : int64_t(a));
            return as_bits(float(made));
        };
        return by_lane(converted, word(0));
    }
    case Op::f2i: {
        const auto converted = [](uint32_t a) {
            return uint32_t(std::min(std::max(std::trunc(double(as_float(a))), 0.0), 4294967295.0));
        };
        return by_lane(converted, word(0));
    }
    case Op::fadd:
    case Op::fmul:
    case Op::ffma: {
        const auto flush = [&](const Words& floats) { return flushed(floats, mode[0]); };
        const Words a = flush(word(0)), b = flush(word(1)), c = flush(word(2));
        if (op != Op::ffma && !mode[1])
            return made(flush(Words(op == Op::fadd ? Floats(a) + Floats(b) : Floats(a) * Floats(b))));
        const Rounding rounding(mode[1]);
        const auto computed = [&](uint32_t lane) {
            volatile float first = as_float(a[lane]), second = as_float(b[lane]), third = as_float(c[lane]);
            volatile float result = op == Op::fadd   ? first + second
                                    : op == Op::fmul ? first * second
                                                     : std::fma(first, second, third);
            return as_bits(float(result));
        };
        return made(flush(each(computed)));
    }
    case Op::mufu: {
        const auto computed = [=](uint32_t a) {
            if (mode[0] == 2) // the upper half of a double's reciprocal
                return uint32_t(as_bits(1.0 / as_double(uint64_t(a) << 32)) >> 32);
            return as_bits(mode[0] == 0 ? 1.0f / as_float(a) : 1.0f / std::sqrt(as_float(a)));
        };
        return by_lane(computed, word(0));
    }
    case Op::fchk: {
        const Words a = word(0), b = word(1);
        return set(
            0, mask_of(each([&](uint32_t lane) { return is_hard(as_float(a[lane]), as_float(b[lane])); })));
    }
    case Op::dadd:
        return made(Pairs(number(0) + number(1)));
    case Op::dmul:
        return made(Pairs(number(0) * number(1)));
    case Op::dfma: {
        const Doubles a = number(0), b = number(1), c = number(2);
        return made(each<Pairs>([&](uint32_t lane) { return as_bits(std::fma(a[lane], b[lane], c[lane])); }));
    }
    case Op::half_to_float: {
        const Source source = what.source[0];
        const auto converted = [=](uint32_t a) {
            return as_bits(__half2float(__half_raw{uint16_t(a >> source.part)}));
        };
        return by_lane(converted, raw(warp, source));
    }
    case Op::float_to_double:
        return made(Pairs(as<Doubles>(Floats(word(0)))));
    case Op::float_to_half: {
        const bool brain = mode[0];
        const auto half = [=](uint32_t bits) {
            return brain ? __bfloat16_as_ushort(__float2bfloat16_rn(as_float(bits)))
                         : __half_as_ushort(__float2half_rn(as_float(bits)));
        };
        return by_lane([=](uint32_t high, uint32_t low) { return uint32_t(half(high)) << 16 | half(low); },
                       word(0), word(1));
    }
    case Op::ld:
        return load(warp, what, active);
    case Op::st:
    case Op::red:
        return store(warp, what, active);
    case Op::ldc: {
        const Words places = what.source[0].value + word(1);
        for (int word = 0; word < std::max(mode[1] / 4, 1); ++word) {
            Words result = {};
            for_lanes(active, [&](uint32_t lane) { result[lane] = constant(places[lane] + 4 * word); });
            put(warp, what, result, active, word);
        }
        return;
    }
    case Op::bssy:
        warp.reconvergence[mode[0]] = choose(active, Words{} + active, warp.reconvergence[mode[0]]);
        return;
    default:
        fail("operation %d does not belong here", int(what.op));
    }
}

// Resumes lanes that have waited for each other.
void release(Warp& warp)
{
    for_lanes(warp.at_sync, [&](uint32_t lane) {
        const uint32_t which = warp.waits_at[lane];
        const uint32_t party = warp.reconvergence[which][lane] & ~warp.done;
        if (party & ~(warp.at_sync & mask_of(warp.waits_at == which)))
            return; // or it went on with another
        warp.place = choose(party, warp.place + 1, warp.place);
        warp.at_sync &= ~party;
        warp.running |= party;
    });
}

// Runs a warp until its lanes wait for the block or are done.
constexpr uint32_t kEndless = 1 << 24; // instructions of a warp between two barriers of its block

void run(Warp& warp, const uint32_t (&block)[3])
{
    uint32_t instructions = 0;
    while (warp.running) {
        uint32_t place = kAll;
        for_lanes(warp.running, [&](uint32_t lane) { place = std::min(place, uint32_t(warp.place[lane])); });
        const uint32_t mask = warp.running & mask_of(warp.place == place);
        const bool together = mask == warp.running;
        bool straight = true;
        const auto send = [&](uint32_t lanes, const Words& where) {
            warp.place = choose(lanes, where, warp.place);
        };
        while (straight) {
            if (place >= launch->count)
                fail("instruction %u of %u", place, launch->count);
            const Instruction& what = launch->code[place];
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
                send(mask, Words{} + place + 1);
                switch (Op(what.op)) {
                case Op::bra:
                    send(chosen, Words{} + what.target);
                    break;
                case Op::call:
                    send(active, Words{} + what.target);
                    break;
                case Op::ret:
                    send(active, raw(warp, what.source[0]) / 16);
                    break;
                case Op::exit:
                    warp.done |= chosen;
                    warp.running &= ~chosen;
                    release(warp);
                    break;
                case Op::breaks:
                    warp.reconvergence[what.mode[0]] &= ~chosen;
                    release(warp);
                    break;
                case Op::bar:
                    warp.running &= ~active;
                    warp.at_block_barrier |= active;
                    break;
                default: // BSYNC and WARPSYNC
                    send(active, Words{} + place);
                    warp.waits_at = choose(active, Words{} + what.mode[0], warp.waits_at);
                    if (Op(what.op) == Op::warpsync)
                        warp.reconvergence[16] = Words{} + warp.lanes;
                    warp.running &= ~active;
                    warp.at_sync |= active;
                    release(warp);
                }
                break;
            }
            if (!straight)
                send(mask, Words{} + place);
        }
    }
    if (warp.at_sync)
        fail("lanes %#x wait for ever for others of their warp", warp.at_sync);
}

void run_block(const uint32_t (&block)[3])
{
    const uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    memset(shared_memory.data(), 0xff, shared_memory.size());
    static std::vector<Warp> warps;
    warps.clear();
    for (uint32_t first = 0; first < threads; first += kLanes)
        warps.emplace_back(first, threads - first);
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
}

} // namespace
} // namespace hostcuda

extern "C" const char* hostcuda_machine_operations()
{
#define HOSTCUDA_NAME(name) #name " "
    return HOSTCUDA_OPERATIONS(HOSTCUDA_NAME);
#undef HOSTCUDA_NAME
}

// Returns what a thread did wrong; nothing if all is right.
extern "C" const char* hostcuda_machine_launch(const hostcuda::MachineLaunch* what)
{
    using namespace hostcuda;
    static char message[1024];
    launch = what;
    message[0] = 0;
    *what->counters = {};
    shared_memory.assign(what->shared_bytes, 0);
    uint32_t block[3] = {};
    const uint32_t* const grid = what->grid;
    const uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
    try {
        for (uint64_t number = 0; number < blocks; ++number) {
            block[0] = uint32_t(number % grid[0]);
            block[1] = uint32_t(number / grid[0] % grid[1]);
            block[2] = uint32_t(number / grid[0] / grid[1]);
            run_block(block);
        }
    } catch (const std::exception& error) {
        snprintf(message, sizeof message, "block (%u, %u, %u): %s", block[0], block[1], block[2],
                 error.what());
    }
    return message;
}
