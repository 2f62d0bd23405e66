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

constexpr int cell = stride[last];
constexpr int row_taps = kernel[last];
constexpr int phase = PHASE; // pad modulo stride, on the last axis

struct GatherParameters : Parameters {
    Offset full_cells;   // of a row whose pixels lie end to end in memory, else 0
    int cells_form_runs; // whether every 32 cells that a warp owns lie end to end
};

enum class Store { direct, wide, staged };

__device__ constexpr int floor_divide(int a, int b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

template <Store store, int planes>
__device__ void gather(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                       const GatherParameters& p)
{
    // Lanes past the end do the last thread's work and store nothing: staging needs every lane of a warp.
    const Offset thread = grid_index();
    const bool live = thread < p.items;
    if (store != Store::staged && !live)
        return;
    const Place<planes> place(live ? thread : p.items - 1, p);
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

    if constexpr (store == Store::direct) {
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
            if (plane < remaining)
                first[plane * p.image_channel] = narrow(sums[plane][0]);
    } else if constexpr (store == Store::wide) {
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            Scalar elements[cell];
#pragma unroll
            for (int i = 0; i < cell; ++i)
                elements[i] = narrow(sums[plane][i]);
            if (plane < remaining)
                store_wide(first + plane * p.image_channel, elements);
        }
    } else {
        // An odd pitch spreads the cells over the banks.
        constexpr int warps = THREADS / 32;
        __shared__ Scalar tiles[warps][32][cell | 1];
        __shared__ long long firsts[warps][32];
        __shared__ int counts[warps][32];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        // Where a warp's cells lie end to end in memory it writes them as one run.
        const bool run =
            p.cells_form_runs || (live && cell_number >= lane && cell_number - lane + 32 <= p.full_cells);
        Scalar* const run_first = first - lane * cell;
        firsts[warp][lane] = first - image;
#pragma unroll
        for (int plane = 0; plane < planes; ++plane) {
            counts[warp][lane] = plane < remaining ? int(min(p.size[last] - pixel[last], Offset(cell))) : 0;
#pragma unroll
            for (int i = 0; i < cell; ++i)
                tiles[warp][lane][i] = narrow(sums[plane][i]);
            __syncwarp();
            if (run) {
#pragma unroll
                for (int i = 0; i < cell; ++i) {
                    const int element = i * 32 + lane;
                    if (plane < remaining)
                        run_first[plane * p.image_channel + element] =
                            tiles[warp][element / cell][element % cell];
                }
            } else {
#pragma unroll 1
                for (int i = 0; i < cell; ++i) {
                    trace_iteration(i);
                    const int owner = (i * 32 + lane) / cell, place = (i * 32 + lane) % cell;
                    if (place < counts[warp][owner])
                        image[firsts[warp][owner] + plane * p.image_channel + place * p.pixel_stride[last]] =
                            tiles[warp][owner][place];
                }
            }
            __syncwarp();
        }
    }
}

constexpr Store store = cell == 1 ? Store::direct : Store::staged;
constexpr int cell_bytes = cell * sizeof(Scalar);
constexpr bool cell_is_word = cell > 1 && cell_bytes <= 16 && (cell_bytes & (cell_bytes - 1)) == 0;

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    col2im_gather(const Scalar* __restrict__ columns, Scalar* __restrict__ image, const GatherParameters p)
{
    gather<store, 1>(columns, image, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    col2im_gather_planes(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                         const GatherParameters p)
{
    gather<store, PLANES>(columns, image, p);
}

// For rows of whole cells, each a word in place.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    col2im_gather_planes_wide(const Scalar* __restrict__ columns, Scalar* __restrict__ image,
                              const GatherParameters p)
{
    if constexpr (cell_is_word)
        gather<Store::wide, PLANES>(columns, image, p);
}
