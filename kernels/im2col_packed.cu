// im2col into contiguous columns in which the taps of a block are adjacent: one thread has a few neighbouring
// blocks, and a warp stores its blocks as one run of bytes.
//
//   image    (batch, channels, *size)             read, contiguous along the last axis
//   columns  (batch, channels, *blocks, *kernel)  each element written once, contiguous
//   window   weights of the taps, always null     not read
//
// A thread has BLOCKS blocks of a row, or what is left of it. It loads the pixels under them once, a line
// for each row of taps, in words of LOADED pixels, the first of which begins PIXELS_BEFORE pixels before
// tap 0. It assembles its blocks in words of 4 bytes: the place of each byte in the lines is known at
// compile time. Where in a word its blocks begin is not, so words are shifted on their way into the warp's
// tile in shared memory, which has the run as the columns will have it. The warp stores it from there, in
// words of 16 bytes except at its ends. No warp waits for another. Elements have 4 bytes at most.
//
// Wins if rows of taps are not whole words, so that a thread of im2col_taps would store element by element.
#define L2_FETCH ".L2::128B"
#include "packing.cuh"
#include "sliding.cuh"

__device__ constexpr int kernel[] = {KERNEL};
constexpr int rank = spatial_rank, last = last_axis;
constexpr Offset stride = STRIDE, dilation = DILATION; // of the last axis
constexpr int blocks = BLOCKS;
constexpr int at_once = LOADED, pixels_before = PIXELS_BEFORE;
constexpr bool padded = PADDED; // along any axis; else undefined loads are not used

constexpr int width = kernel[last], rows = ROWS; // of taps
constexpr int block_bytes = rows * width * element_bytes;
static_assert(blocks * block_bytes % 4 == 0 && block_bytes >= 4, "threads but the last of a row fill words");

// The pixels under a row of taps, in words.
constexpr int line_pixels = pixels_before + (blocks - 1) * stride + (width - 1) * dilation + 1;
constexpr int loads = (line_pixels + at_once - 1) / at_once;
constexpr int line_words = (loads * at_once * element_bytes + 3) / 4;

// The blocks of a thread.
struct Blocks {
    static constexpr int lines = rows;
    static constexpr int words = blocks * block_bytes / 4;
    struct Line {
        unsigned word[line_words];
    };
    static __device__ constexpr Source source_of(int byte)
    {
        const int block = byte / block_bytes, tap = byte % block_bytes / element_bytes;
        const int pixel = pixels_before + block * stride + tap % width * dilation;
        const int in_line = pixel * element_bytes + byte % element_bytes;
        return {tap / width, in_line / 4, in_line % 4};
    }
};
using Line = Blocks::Line;

struct Parameters : Sliding {
    Divisor places[rank]; // blocks, along the last axis what threads have of them
    Offset row_blocks;    // along the last axis
    Divisor planes;
    Offset threads;
    long long image_batch_step, image_plane_step;
};

// The compiler leaves out what no tap takes.
inline __device__ Line load_line(const Scalar* image, Offset pixel, Offset size)
{
    Scalar pixels[sizeof(Line) / element_bytes] = {};
    unrolled_for (int i = 0; i < loads; ++i) {
        Scalar loaded[at_once];
        const bool inside = within(pixel + i * at_once, size);
        if constexpr (padded)
            load_wide_if(loaded, image + i * at_once, inside);
        else
            load_wide(loaded, image + i * at_once, inside);
        unrolled_for (int k = 0; k < at_once; ++k)
            pixels[i * at_once + k] = loaded[k];
    }
    return bit_cast<Line>(pixels);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    im2col_packed(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                  const Parameters p)
{
    __shared__ Word<stored_bytes> tiles[warps][tile_bytes<Blocks> / stored_bytes];
    unsigned char* tile = reinterpret_cast<unsigned char*>(tiles[threadIdx.x / warp_size]);
    const unsigned lane = threadIdx.x % warp_size;
    const Offset thread = grid_index(), threads_left = p.threads - (thread - Offset(lane));
    if (threads_left <= 0)
        return; // the whole warp
    const unsigned last_lane = threads_left < warp_size ? unsigned(threads_left) - 1 : warp_size - 1;
    Offset rest = lane <= last_lane ? thread : p.threads - 1;

    const Offset in_row = p.places[last].split(rest) * blocks, row = rest;
    Offset pixel[rank];
    pixel[last] = in_row * stride - p.pad[last] - pixels_before;
    Offset image_offset = pixel[last];
    unrolled_for (int axis = last - 1; axis >= 0; --axis) {
        pixel[axis] = p.places[axis].split(rest) * p.stride[axis] - p.pad[axis];
        image_offset += pixel[axis] * p.pixel_step[axis];
    }
    const Offset plane = p.planes.split(rest), batch = rest;
    const Scalar* from = image + batch * p.image_batch_step + plane * p.image_plane_step + image_offset;
    opaque(from);

    Line lines[rows];
    unrolled_for (int number = 0; number < rows; ++number) {
        Offset offset = 0;
        bool inside = true; // along the axes but the last
        int taps = number;
        unrolled_for (int axis = last - 1; axis >= 0; --axis) {
            const Offset distance = taps % kernel[axis] * p.dilation[axis];
            taps /= kernel[axis];
            inside = inside && (!padded || within(pixel[axis] + distance, p.size[axis]));
            offset += distance * p.pixel_step[axis];
        }
        lines[number] = load_line(from + offset, pixel[last], inside ? p.size[last] : 0);
    }

    // In bytes from the begin of the tile on.
    const Offset block = row * p.row_blocks + in_row, left = p.row_blocks - in_row;
    const Offset run_block = __shfl_sync(all_lanes, block, 0);
    Scalar* run = columns + (long long)(run_block) * (block_bytes / element_bytes);
    const unsigned run_begin = unsigned(reinterpret_cast<unsigned long long>(run) % line_bytes);
    const unsigned begin = run_begin + unsigned(block - run_block) * block_bytes;
    const unsigned end = begin + unsigned(left < blocks ? left : blocks) * block_bytes;
    const unsigned run_end = __shfl_sync(all_lanes, end, last_lane);

    pack_pieces<Blocks>(tile, lines, begin, lane <= last_lane ? end : begin);
    __syncwarp();
    store_run<Blocks>(run, tile, run_begin, run_end);
}
