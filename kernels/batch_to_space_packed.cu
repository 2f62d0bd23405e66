// batch_to_space into contiguous space: one thread has a piece of a row, and a warp stores its pieces as one
// run of bytes.
//
//   batch  (*block, batch, *grid)  read, any strides
//   space  (batch, *size)          each element written once, contiguous
//   window (always null)           not read
//
// A piece is BLOCKS blocks of the last axis with PHASES pixels each, or PHASES pixels that begin anywhere
// in a block and may end in the next one. The last piece of a row may be shorter. A thread loads a line for
// each phase, in words of LOADED elements, and assembles its piece in words of 4 bytes: the place of each
// byte in the lines is known at compile time. The words go through the warp's tile in shared memory, which
// has the run as space will have it. With LOADED_ANYWHERE, lines begin anywhere in their words. With WHOLE,
// all pieces are whole words of 16 bytes. No warp waits for another.
//
// Wins for narrow elements, which batch_to_space_index_map would store one at a time.
#define L2_FETCH ".L2::128B"
#include "batch_to_space.cuh"
#include "packing.cuh"

constexpr int phases = PHASES, blocks = BLOCKS, piece_pixels = phases * blocks;
constexpr int loaded = LOADED; // of a line, as one word
constexpr bool loaded_anywhere = LOADED_ANYWHERE, whole = WHOLE;
constexpr bool begins_blocks = BEGINS_BLOCKS; // every piece
static_assert(piece_pixels * element_bytes % 4 == 0, "pieces but the last of a row fill words");
static_assert(!loaded_anywhere || loaded * element_bytes == 4, "words of 4 bytes are shifted");
static_assert(blocks % loaded == 0, "lines are whole words");

// The elements of a phase. What is loaded as fewer than 4 bytes is a word by itself.
struct Pieces {
    static constexpr int lines = phases;
    static constexpr int words = piece_pixels * element_bytes / 4;
    static constexpr int loaded_bytes = loaded * element_bytes;
    static constexpr int unit = loaded_bytes < 4 ? loaded_bytes : 4; // bytes in a word of a line
    struct Line {
        unsigned word[blocks * element_bytes / unit];
    };
    static __device__ constexpr Source source_of(int byte)
    {
        const int pixel = byte / element_bytes;
        const int in_line = pixel / phases * element_bytes + byte % element_bytes;
        return {pixel % phases, in_line / unit, in_line % unit};
    }
};
using Line = Pieces::Line;

// The line that begins at an address, as far as it exists.
inline __device__ Line load_line(const Scalar* source, Offset step, int exists)
{
    Line line = {};
    if constexpr (loaded_anywhere) {
        constexpr int words = sizeof(Line) / 4;
        const int past = elements_past<loaded>(source), end = exists > 0 ? past + exists : 0;
        unsigned word[words + 1];
        unrolled_for (int i = 0; i <= words; ++i)
            word[i] = load_word_or_any<4>(source - past + i * loaded, i * loaded < end);
        unrolled_for (int i = 0; i < words; ++i)
            line.word[i] = __funnelshift_r(word[i], word[i + 1], past * element_bytes * 8);
    } else {
        constexpr int bytes = Pieces::loaded_bytes;
        unrolled_for (int i = 0; i < blocks; i += loaded) {
            const auto word = load_word_or_any<bytes>(source + (loaded > 1 ? i : i * step), i < exists);
            memcpy(&line.word[i * element_bytes / Pieces::unit], &word, bytes);
        }
    }
    return line;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    batch_to_space_packed(const Scalar* __restrict__ batch, Scalar* __restrict__ space, const Weights window,
                          const Parameters p)
{
    __shared__ Word<stored_bytes> tiles[warps][tile_bytes<Pieces> / stored_bytes];
    Word<stored_bytes>* const tile = tiles[threadIdx.x / warp_size];
    const Offset first_thread = grid_index() - Offset(threadIdx.x % warp_size);
    if (first_thread >= p.threads)
        return; // the whole warp
    const int pieces = int(min(p.threads - first_thread, Offset(warp_size)));

    const Place place = this_place(batch, space, p);
    const Offset pixel = place.last * piece_pixels;
    const int left = place.exists ? int(min(p.width - pixel, Offset(piece_pixels))) : 0;
    Offset block = pixel + p.crop[last_axis];
    const Offset first_phase = p.block[last_axis].split(block);
    const Scalar* source = place.batch + block * p.grid_step[last_axis];
    opaque(source);

    const int left_blocks = unsigned(left) / phases, left_pixels = unsigned(left) % phases;
    Line lines[phases];
    unrolled_for (int i = 0; i < phases; ++i) {
        const Offset block_width = p.block[last_axis].divisor;
        const Offset phase = begins_blocks ? i : first_phase + i,
                     next = !begins_blocks && phase >= block_width;
        const Offset offset =
            next * p.grid_step[last_axis] + (phase - next * block_width) * p.phase_step[last_axis];
        const int exists = whole ? place.exists * blocks : left_blocks + (i < left_pixels);
        lines[i] = load_line(source + offset, p.grid_step[last_axis], exists);
    }

    const unsigned long long address = reinterpret_cast<unsigned long long>(place.space + pixel);
    const unsigned long long first_address = __shfl_sync(all_lanes, address, 0);
    Scalar* run = reinterpret_cast<Scalar*>(first_address);
    if constexpr (whole) {
        WholeRun<Pieces>::pack(tile, lines);
        __syncwarp();
        WholeRun<Pieces>::store(run, tile, pieces);
    } else {
        unsigned char* bytes = reinterpret_cast<unsigned char*>(tile);
        const unsigned run_begin = unsigned(first_address % line_bytes);
        const unsigned begin = run_begin + unsigned(address - first_address);
        const unsigned end = begin + left * element_bytes;
        const unsigned run_end = __shfl_sync(all_lanes, end, pieces - 1);
        pack_pieces<Pieces>(bytes, lines, begin, end);
        __syncwarp();
        store_run<Pieces>(run, bytes, run_begin, run_end);
    }
}
