// col2im by gathering from shared memory, for planes of few large blocks: a thread block brings the taps that
// land on some phases of a plane there, of all blocks, and adds them up.
//
//   columns  (batch, channels, *kernel, *blocks), planes C-contiguous  read, each element once
//   image    (batch, channels, *size), any strides                     written, each element once
//   window   weights of the taps, always null                          not read
//
// A cell is a stride's worth of pixels along every axis, a phase a pixel's place in its cell. A thread block
// has one phase of each axis but the last, and neighbouring ones of that. The taps that land on them follow
// each other in memory with all their blocks, in runs: threads read runs from end to end, whichever lane adds
// an element up, and have all loads of a plane in flight together. Then a warp has a row of cells at a time,
// which a tap of the other axes reaches or misses as a whole, and a lane the same phase of some cells of the
// row. What a cell has no block for is a zero in shared memory, so that nothing is asked of a tap along the
// last axis. Thread blocks come in full waves and share out planes evenly; what is known of rows and lanes
// holds for all planes. The numbers of blocks are compiled in, so that taps are constants apart. Taps are
// added in lexicographic order. No atomics and no zero fill.
//
// Wins where so few blocks follow each other in memory that a warp's lanes would read parts of sectors and
// many of them nothing, as long as the taps that land on a plane's pixels fit shared memory.
#include "col2im.cuh"
#include "fusion.cuh"
#include "tile.cuh"

#ifndef PHASES
#define PHASES 1
#endif
#ifndef BLOCKS
#define BLOCKS 1, 1
#endif
#ifndef ROW_PITCH
#define ROW_PITCH 2
#endif
#ifndef PITCH
#define PITCH 3
#endif
#ifndef ROWS
#define ROWS 128
#endif
#ifndef PIXELS_FOLLOW
#define PIXELS_FOLLOW 0
#endif
#ifndef CHUNKS
#define CHUNKS 1
#endif
#ifndef RESIDENT_BLOCKS
#define RESIDENT_BLOCKS 1
#endif

__device__ constexpr int blocks_along[] = {BLOCKS};
static_assert(sizeof(blocks_along) / sizeof(blocks_along[0]) == rank, "a number for each axis");

// Rows of blocks from one block of an axis but the last to the next one.
template <int axis> __device__ constexpr int rows_of_blocks()
{
    if constexpr (axis >= last - 1)
        return 1;
    else
        return rows_of_blocks<axis + 1>() * blocks_along[axis + 1];
}

constexpr int phases = PHASES; // of a tile, along the last axis
constexpr int row_blocks = blocks_along[last];
constexpr int blocks = (last > 0 ? rows_of_blocks<0>() * blocks_along[0] : 1) * row_blocks; // of a plane
constexpr int row_pitch = ROW_PITCH;          // from a row of blocks to the next one in shared memory
constexpr int zeros = row_pitch - row_blocks; // between these, which a cell reads that a row has no block for
constexpr int pitch = PITCH;                  // from a tap to the next one there
constexpr int row_taps = int(Pattern<last>::taps);
constexpr int chunks = CHUNKS;                        // of 32 pixels, that the thread block has in a row
constexpr int chunk_cells = warp_size / phases;       // that a warp's lanes are in at once
constexpr int staged_row = row_taps * phases * pitch; // elements of a row of taps in shared memory
static_assert(warp_size % phases == 0 && stride[last] % phases == 0 && kernel[last] % phases == 0,
              "tiles are whole, and a lane is in the same phase of each chunk");

// Taps of the axes from the first up to the end that may land on a pixel.
template <int end = last> __device__ constexpr int taps_of()
{
    if constexpr (end == 0)
        return 1;
    else
        return taps_of<end - 1>() * int(Pattern<end - 1>::taps);
}
constexpr int outer_taps = taps_of();
static_assert(outer_taps < 32, "a bit for each, and one more");

// The number along an axis of such a tap of all of them, which count in lexicographic order.
template <int axis, int end = last> __device__ constexpr int number_along(int tap)
{
    if constexpr (end - 1 == axis)
        return tap % int(Pattern<axis>::taps);
    else
        return number_along<axis, end - 1>(tap / int(Pattern<end - 1>::taps));
}

// From the first of them to that one, in the columns.
template <int axis = last - 1> __device__ constexpr Offset tap_offset(int tap, Offset taps = kernel[last])
{
    if constexpr (axis < 0)
        return 0;
    else
        return number_along<axis>(tap) * stride[axis] * taps * blocks +
               tap_offset<axis - 1>(tap, taps * kernel[axis]);
}

// The taps of a row follow each other where all phases are one tile's: else each tap that lands on a pixel
// has a run of its own.
constexpr bool joined = phases == stride[last] && kernel[last] % stride[last] == 0;
constexpr int runs = joined ? 1 : row_taps;
constexpr int run_taps = joined ? int(kernel[last]) : phases;
constexpr int run = run_taps * blocks; // elements
constexpr int steps = (run + THREADS - 1) / THREADS;

struct StagedParameters : Parameters {
    Offset in_front;    // pixels of the first cell of a row that are padding
    Offset first_block; // that begins at such a cell
    Offset rows;        // of cells
    Offset planes;
    Offset own_planes;                          // of a thread block, at least, of all places together
    Offset longer;                              // thread blocks that have one more, spread over all
    long long columns_to_batch, image_to_batch; // from the last plane of a batch to the first of the next
    Divisor by_planes, by_items;
    Divisor by_cells[rank];
};

// A row of cells, and the pixels that the thread block has in it.
struct alignas(16) Row {
    Offset pixel;  // offset of the row in the image
    int from;      // offset, in shared memory, of the row of blocks of the first taps of the other axes
    unsigned taps; // which of the other axes' have blocks there; the last bit says whether there are pixels

    static constexpr unsigned live = 1u << 31;

    static __device__ Row of(Offset number, const Place<1>& place, const Taps (&taps)[rank],
                             const StagedParameters& p)
    {
        Row row = {0, zeros, ~0u};
        add_axis<last - 1>(row, number, place, taps, p);
        return row;
    }

  private:
    template <int axis>
    static __device__ void add_axis(Row& row, Offset number, const Place<1>& place, const Taps (&taps)[rank],
                                    const StagedParameters& p)
    {
        if constexpr (axis >= 0) {
            const Offset cell = p.by_cells[axis].split(number), block = taps[axis].block + cell;
            const Offset pixel = place.along[axis] + cell * stride[axis];
            row.pixel += pixel * p.pixel_stride[axis];
            row.from += int(block) * (rows_of_blocks<axis>() * row_pitch);
            if (pixel >= p.size[axis])
                row.taps = 0;
#pragma unroll
            for (int tap = 0; tap < outer_taps; ++tap) {
                const Offset along = number_along<axis>(tap);
                if (!taps[axis].template in_kernel<axis>(along) || !within(block - along, p.blocks[axis]))
                    row.taps &= ~(1u << tap);
            }
            add_axis<axis - 1>(row, number, place, taps, p);
        }
    }
};

// Whether the taps of the other axes are the kernel's.
template <int axis = 0> __device__ bool in_kernel(const Taps (&taps)[rank], int tap)
{
    if constexpr (axis == last)
        return true;
    else
        return taps[axis].template in_kernel<axis>(number_along<axis>(tap)) && in_kernel<axis + 1>(taps, tap);
}

// From the row of blocks of these taps to that of the first of them, in shared memory.
template <int axis = 0> __device__ constexpr int rows_back(int tap)
{
    if constexpr (axis == last)
        return 0;
    else
        return number_along<axis>(tap) * rows_of_blocks<axis>() * row_pitch + rows_back<axis + 1>(tap);
}

// Whether a row's taps that are this number-th to land on the tile's pixels are the kernel's.
inline __device__ bool in_row(Offset first_tap, int number)
{
    return kernel[last] % stride[last] == 0 || first_tap + number * stride[last] < kernel[last];
}

// Lanes whose cells are past the row read behind the last tap.
constexpr int staged_elements = zeros + outer_taps * staged_row + chunk_cells;
using Staged = Scalar[staged_elements];

// Where a thread puts what it loads, in a run.
struct Steps {
    int to[steps];

    __device__ Steps()
    {
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            const int element = step * THREADS + int(threadIdx.x);
            const int tap = element / blocks, row = element % blocks / row_blocks;
            to[step] = zeros + tap * pitch + row * row_pitch + element % row_blocks;
        }
    }
};

// Brings the taps of a plane that land on the tile's pixels to shared memory.
inline __device__ void stage(Staged& staged, const Scalar* columns, const Steps& own,
                             const Taps (&taps)[rank], Offset first_tap)
{
    constexpr int all = outer_taps * runs;
    constexpr int most = 64 / (steps * element_registers);
    constexpr int together = most < 1 ? 1 : most < all ? most : all;
#pragma unroll
    for (int begin = 0; begin < all; begin += together) {
        Scalar elements[together][steps];
        bool here[together];
#pragma unroll
        for (int i = 0; i < together; ++i) {
            const int number = (begin + i) % runs, tap = (begin + i) / runs;
            here[i] = begin + i < all && in_kernel(taps, tap) && in_row(first_tap, number);
            if (!here[i])
                continue;
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                const int element = step * THREADS + int(threadIdx.x);
                trace_iteration((begin + i) * steps + step);
                elements[i][step] = bit_cast<Scalar>(load_word_or_any<sizeof(Scalar)>(
                    columns + (tap_offset(tap) + number * stride[last] * blocks + element),
                    (step + 1) * THREADS <= run || element < run));
            }
        }
#pragma unroll
        for (int i = 0; i < together; ++i)
#pragma unroll
            for (int step = 0; step < steps; ++step)
                if (here[i] && ((step + 1) * THREADS <= run || step * THREADS + int(threadIdx.x) < run))
                    staged[(begin + i) * (run_taps * pitch) + own.to[step]] = elements[i][step];
    }
}

// A lane's pixels: in each row those that are whole cells apart from its own.
struct Lane {
    const Scalar* staged; // the first tap of its own pixel in the first row
    Offset pixel;         // offset in a row of the image
    unsigned stored;      // a bit for each of them that the image has

    __device__ Lane(const Staged& staged, Offset first_tap, const StagedParameters& p)
    {
        const int lane = threadIdx.x % warp_size, phase = lane % phases, cell = lane / phases;
        const Offset number = cell * stride[last] + first_tap + phase - p.in_front;
        this->staged = staged + (phase * pitch + cell + int(p.first_block));
        pixel = number * pixel_step(p);
        stored = 0;
#pragma unroll
        for (int chunk = 0; chunk < chunks; ++chunk)
            if (within(number + chunk * chunk_cells * stride[last], p.size[last]))
                stored |= 1u << chunk;
        keep_shared(this->staged);
        keep(pixel);
        keep(stored);
    }
    static __device__ Offset pixel_step(const StagedParameters& p)
    {
        return PIXELS_FOLLOW ? 1 : p.pixel_stride[last];
    }
};

// Adds up a plane's taps in shared memory, a warp the rows of its own, and stores the pixels.
inline __device__ void add_up(const Lane& lane, const Row (&rows)[ROWS], Result* image, Offset first_tap,
                              const StagedParameters& p)
{
#pragma unroll 1
    for (int number = threadIdx.x / warp_size; number < p.rows; number += warps) {
        const Row row = rows[number];
        if (!(row.taps & Row::live))
            continue;
        Accumulator sums[chunks] = {};
        const Scalar* const from = lane.staged + row.from;
#pragma unroll
        for (int tap = 0; tap < outer_taps; ++tap) {
            if (!(row.taps & 1u << tap))
                continue;
#pragma unroll
            for (int i = 0; i < row_taps; ++i)
                if (in_row(first_tap, i))
#pragma unroll
                    for (int chunk = 0; chunk < chunks; ++chunk)
                        sums[chunk] =
                            add(sums[chunk], widen(from[tap * staged_row - rows_back(tap) +
                                                        i * (phases * pitch - 1) + chunk * chunk_cells]));
        }
        Result* first = image + (lane.pixel + row.pixel);
        keep(first);
#pragma unroll
        for (int chunk = 0; chunk < chunks; ++chunk) {
            trace_iteration(number * chunks + chunk);
            if (lane.stored & 1u << chunk)
                store(first + chunk * chunk_cells * stride[last] * Lane::pixel_step(p), narrow(sums[chunk]));
        }
    }
}

// The first plane of a thread block, by their number: they count places and planes.
inline __device__ Offset first_plane(Offset item, const StagedParameters& p)
{
    return item * p.own_planes + p.by_items.quotient(item * p.longer);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    col2im_gather_staged(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const StagedParameters p)
{
    __shared__ Staged staged;
    __shared__ Row rows[ROWS];
    const Steps own;
#pragma unroll 1
    for (int element = threadIdx.x; element < staged_elements; element += THREADS)
        staged[element] = Scalar{};
    Offset number = first_plane(blockIdx.x, p), left = first_plane(blockIdx.x + 1, p) - number;
    Offset plane = p.by_planes.split(number);
#pragma unroll 1
    for (; left > 0; ++number, plane = 0) {
        const Place<1> place(number, p);
        Offset first_tap = place.along[last] * phases;
        keep(first_tap);
        const Lane lane(staged, first_tap, p);
        Taps taps[rank];
        find_taps<0, last>(taps, place.along, p);
        __syncthreads();
#pragma unroll 1
        for (int row = threadIdx.x; row < p.rows; row += THREADS)
            rows[row] = Row::of(row, place, taps, p);

        Offset batch = plane, channel = p.by_channels.split(batch);
        Offset first_offset = first_tap * p.tap_stride[last];
#pragma unroll
        for (int axis = 0; axis < last; ++axis)
            first_offset += taps[axis].tap * p.tap_stride[axis];
        const Scalar* of_plane =
            columns + batch * p.columns_batch + channel * p.columns_channel + first_offset;
        Result* first_pixel = image + batch * p.image_batch + channel * p.image_channel;
#pragma unroll 1
        for (; left > 0 && plane < p.planes; ++plane, --left) {
            keep(of_plane);
            keep(first_pixel);
            __syncthreads();
            stage(staged, of_plane, own, taps, first_tap);
            __syncthreads();
            add_up(lane, rows, first_pixel, first_tap, p);
            const bool last_of_batch = ++channel == p.channels;
            channel = last_of_batch ? 0 : channel;
            of_plane += last_of_batch ? p.columns_to_batch : p.columns_channel;
            first_pixel += last_of_batch ? p.image_to_batch : p.image_channel;
        }
    }
}
