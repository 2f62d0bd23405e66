// col2im by gathering, for columns whose taps lie one after another and whose blocks overlap densely: whole
// blocks come through shared memory.
//
//   columns  (batch, channels, *kernel, *blocks), a block's taps contiguous  read, once per tile
//   image    (batch, channels, *size), any strides                           written, each element once
//   window   (*kernel), or an array per axis, or null                        read, once per tap for a row
//
// A thread block owns a tile of one plane: box[last] pixels along a row, of box[axis] rows along each other
// axis, whose sums are in shared memory. It walks the rows of blocks that reach the tile from the last to the
// first, so that the taps of a pixel are added in lexicographic order; dilations of the outer axes are
// therefore at least 1 where their kernel is longer than a tap. Of each row it brings the taps that land in
// the tile, in chunks of CHUNK rows of taps, with loads that run along the blocks. Then each thread adds the
// chunk's taps to pixels of its own column of the tile, one row of taps after another. In one chunk a pixel
// gets taps from one row alone, so no two threads add to one sum. No atomics and no zero fill.
//
// Wins where the taps of a block lie closer in memory than its blocks, and these overlap densely: threads
// that read one tap of neighbouring blocks would waste most of each sector.
#include "col2im.cuh"
#include "fusion.cuh"

#ifndef CHUNK
#define CHUNK 3
#endif
#ifndef PIXELS
#define PIXELS 1024
#endif
#ifndef COLUMNS
#define COLUMNS 128
#endif
#ifndef STAGED
#define STAGED 1171
#endif

struct BlocksParameters : Parameters {
    // Pixels of a tile: PIXELS at most, powers of two, from 32 to COLUMNS along the last axis.
    Offset box[rank];
};

// Blocks in front of a pixel's own that may reach it, and blocks of a row that may reach a tile at most.
constexpr Offset blocks_before = ((kernel[last] - 1) * dilation[last] + stride[last] - 1) / stride[last];
constexpr int reaching_blocks = (COLUMNS - 1 + stride[last] - 1) / stride[last] + int(blocks_before) + 1;

// Elements that a thread brings before it stores the first: all of a chunk, or one of few even parts.
constexpr int most_loads = (reaching_blocks * CHUNK * int(kernel[last]) + THREADS - 1) / THREADS;
constexpr int parts = (most_loads + 7) / 8;
constexpr int loads_at_once = (most_loads + parts - 1) / parts;

// Where elements are staged: threads that read the same tap of neighbouring blocks meet in few banks. Blocks
// of an odd number of taps are apart as they are.
__device__ constexpr Offset staged_at(Offset element)
{
    return kernel[last] % 2 == 0 ? element + element / 32 : element;
}

template <int axis> __device__ constexpr Offset taps_from()
{
    if constexpr (axis >= last)
        return 1;
    else
        return kernel[axis] * taps_from<axis + 1>();
}

static_assert(staged_at(reaching_blocks * CHUNK * int(kernel[last])) < STAGED,
              "there is a place for every tap of a chunk");

struct Tile {
    Accumulator sums[PIXELS];
    SharedDenominators<PIXELS> denominators;
    Scalar staged[STAGED];
};

// Consecutive rows of taps, by their number in lexicographic order.
struct Rows {
    Offset first, end;
};

// Where a thread works.
struct Worker {
    const Weights& window;
    const BlocksParameters& p;
    Tile& tile;
    Offset origin[rank];       // the tile's first pixel
    Offset first_block, count; // along the last axis, those that do not exist included
    Taps row;                  // of this thread's column
    int column, group, groups; // of threads, each with rows of its own
};

// Brings rows of taps of all blocks that reach the tile into shared memory; zeros where there is no block.
__device__ void stage(const Worker& w, const Scalar* columns, Rows rows)
{
    const int length = int(rows.end - rows.first) * int(kernel[last]), total = int(w.count) * length;
    const int begin = int(max(Offset(0), -w.first_block)) * length;
    const int end = int(min(w.count, w.p.blocks[last] - w.first_block)) * length;
    const Offset step = w.p.block_stride[last];
    columns += w.first_block * step + rows.first * kernel[last];
    const bool dense = step == length;
    const int next_block = THREADS / length, next_tap = THREADS - next_block * length;
    int block = int(threadIdx.x) / length, tap = int(threadIdx.x) - block * length;
    for (int first = threadIdx.x; first < total; first += loads_at_once * THREADS) {
        Scalar elements[loads_at_once];
        if (dense) {
#pragma unroll
            for (int i = 0; i < loads_at_once; ++i) {
                trace_iteration(first / THREADS + i);
                const int element = first + i * THREADS;
                elements[i] = load_if(columns + element, element >= begin && element < end);
            }
        } else {
#pragma unroll
            for (int i = 0; i < loads_at_once; ++i) {
                trace_iteration(first / THREADS + i);
                const int element = first + i * THREADS;
                elements[i] = load_if(columns + (block * step + tap), element >= begin && element < end);
                block += next_block;
                tap += next_tap;
                if (tap >= length) {
                    tap -= length;
                    ++block;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < loads_at_once; ++i)
            if (first + i * THREADS < total)
                w.tile.staged[staged_at(first + i * THREADS)] = elements[i];
    }
}

// The pixel's row in the tile that a row of taps lands on, or -1, and its weight so far.
template <int axis = 0>
__device__ int row_of(const Worker& w, const Offset (&block)[rank], Offset number, TapWeight& weight,
                      int row = 0)
{
    if constexpr (axis == last) {
        return row;
    } else {
        const Offset tap = number / taps_from<axis + 1>() % kernel[axis];
        const Offset pixel =
            block[axis] * stride[axis] + tap * dilation[axis] - w.p.pad[axis] - w.origin[axis];
        weight = weight.along<axis>(tap, true);
        if (!within(pixel, w.p.box[axis]))
            return -1;
        return row_of<axis + 1>(w, block, number, weight, row * int(w.p.box[axis]) + int(pixel));
    }
}

// Adds what is staged of one row of blocks.
__device__ void add_staged(const Worker& w, const Offset (&block)[rank], Rows rows)
{
    using pattern = Pattern<last>;
    constexpr int count = pattern::taps;
    const int length = int(rows.end - rows.first) * int(kernel[last]);
    const Offset step = pattern::tap_step - pattern::block_step * length;
    const Offset first = (w.row.block - w.first_block) * length + w.row.tap;
    for (Offset number = rows.first + w.group; number < rows.end; number += w.groups) {
        TapWeight outer{&w.window};
        const int row = row_of(w, block, number, outer);
        if (row < 0)
            continue;
        const int pixel = row * int(w.p.box[last]) + w.column;
        const Offset element = first + (number - rows.first) * kernel[last];
        Accumulator sum = w.tile.sums[pixel];
        Denominator denominator = w.tile.denominators.get(pixel);
#pragma unroll(count <= 32 ? count : 8)
        for (int i = 0; i < count; ++i) {
            const bool in_kernel = w.row.in_kernel<last>(i);
            const bool exists =
                in_kernel && (!windowed || within(w.row.block - i * pattern::block_step, w.p.blocks[last]));
            const Weight weight = outer.value_of(w.row.tap + i * pattern::tap_step, exists);
            const Scalar tap = in_kernel ? w.tile.staged[staged_at(element + i * step)] : Scalar{};
            sum = add(sum, weigh(widen(tap), weight));
            if (exists)
                denominator.add_tap(weight);
        }
        w.tile.sums[pixel] = sum;
        w.tile.denominators.put(pixel, denominator);
    }
}

// Walks the rows of blocks that reach the tile in descending order; `rows` are the rows of taps that may land
// in it, by the axes so far.
template <int axis = 0>
__device__ void walk(const Worker& w, const Scalar* columns, Offset (&block)[rank], Rows rows)
{
    if constexpr (axis == last) {
        for (Rows chunk = rows; chunk.first < rows.end; chunk.first += CHUNK) {
            chunk.end = min(chunk.first + CHUNK, rows.end);
            stage(w, columns, chunk);
            __syncthreads();
            add_staged(w, block, chunk);
            __syncthreads();
        }
    } else {
        constexpr Offset step = dilation[axis] > 0 ? dilation[axis] : 1;
        const Offset begin = w.origin[axis] + w.p.pad[axis];
        const Offset end = min(w.origin[axis] + w.p.box[axis], w.p.size[axis]) + w.p.pad[axis];
        const Offset reach = (kernel[axis] - 1) * dilation[axis];
        const Offset first_block = max(Offset(0), begin - reach + stride[axis] - 1) / stride[axis];
        for (block[axis] = min(w.p.blocks[axis] - 1, (end - 1) / stride[axis]); block[axis] >= first_block;
             --block[axis]) {
            const Offset start = block[axis] * stride[axis];
            const Offset first_tap = max(Offset(0), begin - start + step - 1) / step;
            const Offset end_tap = min(kernel[axis], (end - 1 - start) / step + 1);
            if (first_tap < end_tap)
                walk<axis + 1>(w, columns + block[axis] * w.p.block_stride[axis], block,
                               {rows.first + first_tap * taps_from<axis + 1>(),
                                rows.end + (end_tap - 1) * taps_from<axis + 1>()});
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_gather_blocks(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const BlocksParameters p)
{
    const Place<1> place(blockIdx.x, p);
    const Scalar* plane_columns[1];
    place.point_at(plane_columns, columns, p);
    image = place.first_plane(image, p);

    __shared__ Tile tile;
    Worker w{window, p, tile};
    const int width = int(p.box[last]);
    int rows = 1;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
        w.origin[axis] = place.along[axis] * p.box[axis];
        if (axis < last)
            rows *= int(p.box[axis]);
    }
    w.column = int(threadIdx.x) % width;
    w.group = int(threadIdx.x) / width;
    w.groups = THREADS / width;
    w.row = Taps::of<last>(w.origin[last] + w.column, p);
    const Offset begin = w.origin[last] + p.pad[last];
    w.first_block = begin / stride[last] - blocks_before;
    w.count = (begin + width - 1) / stride[last] + 1 - w.first_block;

    for (int row = w.group; row < rows; row += w.groups) {
        tile.sums[row * width + w.column] = {};
        tile.denominators.put(row * width + w.column, {});
    }
    __syncthreads();
    Offset block[rank];
    walk(w, plane_columns[0], block, {0, 1});

    for (int row = w.group; row < rows; row += w.groups) {
        trace_iteration(row / w.groups);
        Offset pixel[rank], offset = 0;
        bool inside = true;
        int rest = row;
#pragma unroll
        for (int axis = last; axis >= 0; --axis) {
            const int along = axis == last ? w.column : rest % int(p.box[axis]);
            if (axis < last)
                rest /= int(p.box[axis]);
            pixel[axis] = w.origin[axis] + along;
            inside = inside && pixel[axis] < p.size[axis];
            offset += pixel[axis] * p.pixel_stride[axis];
        }
        if (!inside)
            continue;
        Taps taps[rank];
        find_taps<0, rank>(taps, pixel, p);
        Denominator denominator = tile.denominators.get(row * width + w.column);
        denominator.from_axes(taps, window, p);
        OldPixel old;
        old.load(image + offset, true);
        image[offset] = narrow(old.plus(denominator.finish(tile.sums[row * width + w.column])));
    }
}
