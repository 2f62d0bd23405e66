// col2im by gathering, for strides too large for one thread: a thread block owns some cells of a row, or some
// of their phases.
//
//   columns  (batch, channels, *kernel, *blocks), any strides  read, a predicated load per tap
//   image    (batch, channels, *size), any strides             written, each element once
//   window   (*kernel), or an array per axis, or null          read, once per tap for all of a lane
//
// A cell is a stride's worth of pixels along the last axis, a phase a pixel's place in its cell. A warp adds
// up one phase at a time, a lane per cell, so that its lanes read neighbouring blocks of one tap. A lane's
// cells, or planes, share the index arithmetic and have more loads in flight. The thread block then writes
// its tile from shared memory along the row. Taps are added in lexicographic order. No atomics and no zero
// fill.
//
// Wins where a stride is too many pixels for one thread, unless a row of pixels is shorter than a stride, and
// where the last axis has too many taps to unroll and a warp of pixels would not read whole sectors.
#include "col2im.cuh"
#include "fusion.cuh"

#ifndef SHARE
#define SHARE 4
#endif

constexpr int warps = THREADS / 32;
constexpr int phase_tiles = (stride[last] + 31) / 32;
constexpr int phases = (stride[last] + phase_tiles - 1) / phase_tiles; // of one tile

template <int cells, int planes>
__device__ void gather_phases(const Scalar* __restrict__ columns, Result* __restrict__ image,
                              const Weights& window, const Parameters& p)
{
    const Place<planes> place(blockIdx.x, p);
    const Offset first_phase = place.along[last] % phase_tiles * phases;
    const Offset first_cell = place.along[last] / phase_tiles * (32 * cells);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, last>(taps, place.along, p);

    __shared__ OldPixel::Tiled tile[planes][32 * cells][phases | 1];
    using pattern = Pattern<last>;
    constexpr Offset row_taps = pattern::taps;
    constexpr int loads = planes * cells; // per tap
    constexpr int unrolled =
        row_taps * loads * element_registers <= unrolled_registers ? row_taps : looped_loads / loads;
    for (int phase = warp; phase < phases; phase += warps) {
        Taps row = Taps::of<last>(first_phase + phase, p); // of cell 0
        row.block += first_cell + lane;
        row.offset += (first_cell + lane) * p.block_stride[last];
        Accumulator sums[planes][cells] = {};
        Denominator denominators[cells];
        for_each_tap<0, last, row_taps * loads>(
            taps, p, row.offset, true, phase / warps, TapWeight{&window},
            [&](Offset offset, bool exists, int iteration, const TapWeight& outer) {
#pragma unroll(unrolled)
                for (Offset number = 0; number < row_taps; ++number) {
                    const Offset block = row.block - number * pattern::block_step;
                    const bool found =
                        exists && row.in_kernel<last>(number) && (cells > 1 || within(block, p.blocks[last]));
                    const Offset tap_offset = offset + number * p.tap_step_stride[last];
                    const Weight weight = outer.value_of(row.tap + number * pattern::tap_step, found);
                    Weight weights[cells]; // zero where the cell's tap does not exist, as its element is
#pragma unroll
                    for (int i = 0; i < cells; ++i)
                        weights[i] =
                            cells == 1 ? weight : or_zero(weight, within(block + 32 * i, p.blocks[last]));
                    Scalar elements[planes][cells];
#pragma unroll
                    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                        for (int i = 0; i < cells; ++i) {
                            trace_iteration(
                                int(((iteration * row_taps + number) * planes + plane) * cells + i));
                            elements[plane][i] =
                                load_if(plane_columns[plane] + (tap_offset + 32 * i * p.block_stride[last]),
                                        found && within(block + 32 * i, p.blocks[last]));
                        }
#pragma unroll
                    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                        for (int i = 0; i < cells; ++i)
                            sums[plane][i] =
                                add(sums[plane][i], weigh(widen(elements[plane][i]), weights[i]));
#pragma unroll
                    for (int i = 0; i < cells; ++i)
                        denominators[i].add_tap(weights[i]);
                }
            });
        RowFactors<cells> factors(taps, window, p);
#pragma unroll(unrolled)
        for (Offset number = 0; number < row_taps; ++number)
#pragma unroll
            for (int i = 0; i < cells; ++i)
                factors.add_tap(
                    i, row.tap + number * pattern::tap_step,
                    row.in_kernel<last>(number) &&
                        within(row.block + 32 * i - number * pattern::block_step, p.blocks[last]));
#pragma unroll
        for (int i = 0; i < cells; ++i)
            denominators[i].from_axes(factors, i);
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
#pragma unroll
            for (int i = 0; i < cells; ++i)
                tile[plane][32 * i + lane][phase] = OldPixel::to_tile(denominators[i].finish(sums[plane][i]));
    }
    __syncthreads();

    // A warp stores the phases of as many cells as it has lanes for.
    constexpr int group = 32 / phases;
    const int phase = lane % phases, first = warp * group + lane / phases;
    Offset pixel = (first_cell + first) * stride[last] + first_phase + phase;
    image = place.first_plane(image, p);
#pragma unroll
    for (int axis = 0; axis < last; ++axis)
        image += place.along[axis] * p.pixel_stride[axis];
    image += pixel * p.pixel_stride[last];
    const bool stores = lane < group * phases && first_phase + phase < stride[last];
    const Offset remaining = stores ? p.channels - place.channel : 0; // planes
    constexpr int batch = planes == 1 ? 4 : 1; // of cells whose pixels are in flight together
    constexpr int step = warps * group;
    for (int cell = first; cell < 32 * cells; cell += batch * step) {
        OldPixel old[batch][planes];
#pragma unroll
        for (int i = 0; i < batch; ++i)
#pragma unroll
            for (int plane = 0; plane < planes; ++plane) {
                const bool exists = cell + i * step < 32 * cells && plane < remaining &&
                                    pixel + i * step * stride[last] < p.size[last];
                trace_iteration((cell / step + i) * planes + plane);
                old[i][plane].load(
                    image + (i * step * stride[last] * p.pixel_stride[last] + plane * p.image_channel),
                    exists);
            }
#pragma unroll
        for (int i = 0; i < batch; ++i)
#pragma unroll
            for (int plane = 0; plane < planes; ++plane) {
                const bool exists = cell + i * step < 32 * cells && plane < remaining &&
                                    pixel + i * step * stride[last] < p.size[last];
                trace_iteration((cell / step + i) * planes + plane);
                if (exists)
                    image[i * step * stride[last] * p.pixel_stride[last] + plane * p.image_channel] =
                        old[i][plane].plus_tiled(tile[plane][cell + i * step][phase]);
            }
        pixel += batch * step * stride[last];
        image += batch * step * stride[last] * p.pixel_stride[last];
    }
}

// For few planes of short rows.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_gather_phases(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const Parameters p)
{
    gather_phases<1, 1>(columns, image, window, p);
}

// For rows of many cells.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_gather_phases_cells(const Scalar* __restrict__ columns, Result* __restrict__ image,
                               const Weights window, const Parameters p)
{
    gather_phases<SHARE, 1>(columns, image, window, p);
}

// For many planes.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    col2im_gather_phases_planes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                                const Weights window, const Parameters p)
{
    gather_phases<1, SHARE>(columns, image, window, p);
}
