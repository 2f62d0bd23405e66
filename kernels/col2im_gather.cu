// col2im by gathering: one thread owns one cell of one or several planes and adds up the taps that land on
// it.
//
//   columns  (batch, channels, *kernel, *blocks), any strides     read, a predicated load per tap
//   image    (batch, channels, *size)                             written, each element once
//
// A cell is a stride's worth of pixels along the last axis: cell c holds pixels c*stride ... c*stride +
// stride-1. Its pixel r is reached by the same taps in every cell, which is why the taps of the last axis are
// compiled in, and tap k reads block c + const - k's cell shift, so that neighbouring threads read
// neighbouring blocks whatever the stride. Taps are added in lexicographic order. No atomics and no zero
// fill.
//
// The pixels of a cell are stored one by one (stride 1), as one wide word, or staged in shared memory so that
// a warp writes its 32 cells from end to end. Several planes per thread share the index arithmetic and put
// more loads in flight; one plane per thread is for images too small to fill the device otherwise.
#include "col2im.cuh"

#ifndef PHASE
#define PHASE 0
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef PLANES
#define PLANES 4
#endif
#ifndef WORD
#define WORD 1
#endif

constexpr int cell = stride[last];
constexpr int row_taps = kernel[last];
constexpr int phase = PHASE; // pad modulo stride, on the last axis

struct GatherParameters : Parameters {
    Offset full_cells;   // of a row whose pixels lie end to end in memory, else 0
    int cells_form_runs; // whether every 32 cells that a warp owns lie end to end
};

__device__ constexpr int floor_divide(int a, int b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

template <int word> using StoredWord = AliasedWord<word * sizeof(Scalar)>;

template <int word> __device__ StoredWord<word> word_of(const Accumulator* sums)
{
    Scalar elements[word];
#pragma unroll
    for (int i = 0; i < word; ++i)
        elements[i] = narrow(sums[i]);
    StoredWord<word> stored;
    memcpy(&stored, elements, sizeof(stored));
    return stored;
}

// Stores `word` elements at once, which divide a cell; more than one only where all cells are whole and
// aligned.
template <int planes, int word>
__device__ void gather(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                       const GatherParameters& p)
{
    // Lanes past the end do the last item's work and store nothing: staging needs every lane of a warp.
    constexpr int words = cell / word;
    constexpr bool staged = words > 2;
    const Offset item = grid_index();
    const bool live = item < p.items;
    if (!staged && !live)
        return;
    const Place<planes> place(live ? item : p.items - 1, p);
    const Offset cell_number = place.along[last];
    Offset pixel[rank]; // of the last axis, the first of the cell
#pragma unroll
    for (int axis = 0; axis < last; ++axis)
        pixel[axis] = place.along[axis];
    pixel[last] = cell_number * cell;

    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, last>(taps, pixel, p);
    Offset row_offset[row_taps];
    bool row_exists[row_taps];
#pragma unroll
    for (int tap = 0; tap < row_taps; ++tap) {
        const Offset block =
            cell_number + p.pad[last] / cell - floor_divide(tap * dilation[last] - phase, cell);
        row_offset[tap] = tap * p.tap_stride[last] + block * p.block_stride[last];
        row_exists[tap] = within(block, p.blocks[last]);
    }

    Accumulator sums[planes][cell] = {};
    for_each_tap<0, last, planes * row_taps>(
        taps, p, 0, true, 0, [&](Offset offset, bool exists, int iteration) {
            Scalar elements[planes][row_taps];
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int tap = 0; tap < row_taps; ++tap) {
                    trace_iteration((iteration * planes + plane) * row_taps + tap);
                    elements[plane][tap] =
                        load_if(plane_columns[plane] + (offset + row_offset[tap]), exists && row_exists[tap]);
                }
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int tap = 0; tap < row_taps; ++tap) {
                    const int pixel = tap * dilation[last] - phase;
                    Accumulator& sum = sums[plane][pixel - floor_divide(pixel, cell) * cell];
                    sum = add(sum, widen(elements[plane][tap]));
                }
        });

    Scalar* first = place.first_plane(image, p);
#pragma unroll
    for (int axis = 0; axis < rank; ++axis)
        first += pixel[axis] * p.pixel_stride[axis];
    const Offset remaining = live ? p.channels - place.channel : 0; // planes to store

    const Offset pixels = min(p.size[last] - pixel[last], Offset(cell));
    if constexpr (!staged) {
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
#pragma unroll
            for (int i = 0; i < words; ++i)
                if (plane < remaining && i * word < pixels)
                    *reinterpret_cast<StoredWord<word>*>(first + plane * p.image_channel +
                                                         i * word * p.pixel_stride[last]) =
                        word_of<word>(sums[plane] + i * word);
    } else {
        // An odd pitch spreads the cells over the banks.
        using Tile = StoredWord<word>[32][words | 1];
        __shared__ Tile tiles[THREADS / 32];
        __shared__ long long firsts[THREADS / 32][32];
        __shared__ int counts[THREADS / 32][32];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        Tile& tile = tiles[warp];
        // Where a warp's cells lie end to end in memory it writes them as one run.
        const bool run =
            p.cells_form_runs || (live && cell_number >= lane && cell_number - lane + 32 <= p.full_cells);
        if (!run)
            firsts[warp][lane] = first - image;
        first -= lane * cell;
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            if (!run)
                counts[warp][lane] = plane < remaining ? int(pixels) : 0;
#pragma unroll
            for (int i = 0; i < words; ++i)
                tile[lane][i] = word_of<word>(sums[plane] + i * word);
            __syncwarp();
            if (run) {
                const auto row = reinterpret_cast<StoredWord<word>*>(first + plane * p.image_channel);
#pragma unroll
                for (int i = 0; i < words; ++i) {
                    const int number = i * 32 + lane;
                    if (plane < remaining)
                        row[number] = tile[number / words][number % words];
                }
            } else {
#pragma unroll 1
                for (int i = 0; i < words; ++i) {
                    trace_iteration(i);
                    const int owner = (i * 32 + lane) / words, place = (i * 32 + lane) % words;
                    Scalar* const cell_first = image + firsts[warp][owner] + plane * p.image_channel;
                    if (place * word < counts[warp][owner])
                        *reinterpret_cast<StoredWord<word>*>(
                            cell_first + place * word * p.pixel_stride[last]) = tile[owner][place];
                }
            }
            __syncwarp();
        }
    }
}

// A thread for each cell of each plane.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_gather(const Scalar* __restrict__ columns, Scalar* __restrict__ image, const GatherParameters p)
{
    gather<1, 1>(columns, image, p);
}

// A thread for each cell of several planes.
extern "C" __global__ void __launch_bounds__(THREADS, PLANES > 1 ? 3 : 2)
    col2im_gather_planes(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                         const GatherParameters p)
{
    if constexpr (PLANES > 1)
        gather<PLANES, 1>(columns, image, p);
}

// The same for rows of whole cells, in words.
extern "C" __global__ void __launch_bounds__(THREADS, PLANES > 1 ? 3 : 2)
    col2im_gather_words(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                        const GatherParameters p)
{
    if constexpr (WORD > 1)
        gather<PLANES, WORD>(columns, image, p);
}
