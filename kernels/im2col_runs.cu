// im2col for overlapping blocks, or taps that do not begin where sectors do: a thread block takes the taps of
// a run of blocks out of one plane, and stores the run of each tap from sector to sector.
//
//   image    (batch, channels, *size)             read, any strides
//   columns  (batch, channels, *kernel, *blocks)  each written once; taps evenly apart, of contiguous blocks
//   window   weights of the taps, or null         read by every thread, once per tap
//
// A run is BLOCKS * THREADS blocks that follow each other in the columns, whatever their rows. Neighbouring
// threads load the taps of neighbouring blocks, PIECES pieces of rows of PIECE_TAPS taps at a time, of which
// TAPS_AT_ONCE are an aligned word of pixels that pads and ends do not cut. These pass through shared memory:
// of each tap, neighbouring threads store neighbouring elements, and those of a warp begin where a sector
// does. So a sector is written in part only at the ends of a run.
//
// Wins where warps that store what they load would write two of five sectors in part. In
// bench/results/gpu-h100-2026-11-27.json it took 0.52 of the time of im2col_per_block for patches-8x8-s1, and
// 0.92 and 0.96 of it for the overlapping blocks of volume-3x3x3 and resnet-3x3-s1.
#include "runs.cuh"

constexpr int blocks = BLOCKS; // of a thread
constexpr int run = blocks * THREADS;
constexpr int piece_taps = PIECE_TAPS; // of a row, or all of its taps
constexpr int pieces = PIECES;         // that are in flight together
constexpr int taps_at_once = TAPS_AT_ONCE;
constexpr bool rows_are_pieces = WHOLE_PIECES; // else the last piece of a row is short
constexpr bool all_are_chunks = WHOLE_CHUNKS;  // else of the last pieces there are fewer
constexpr int resident = sizeof(Offset) > 4 ? 2 : 3;
static_assert(piece_taps % taps_at_once == 0, "words of taps are whole");

using Parameters = Runs;

// Stores the run of a tap, or those of its elements that exist.
template <bool whole> inline __device__ void store_run(Scalar* to, const Scalar (&elements)[run], int count)
{
    const int begin = int(threadIdx.x) - elements_past<sector>(to); // past a sector's begin
    const Scalar* const from = elements + begin;
    to += begin;
    opaque(to);
    unrolled_for (int i = 0; i <= blocks; ++i) {
        const bool exists = i == 0 ? begin >= 0 : i < blocks || begin < 0;
        if (whole ? exists : unsigned(begin + i * THREADS) < unsigned(count))
            store(to + i * THREADS, from[i * THREADS]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, resident)
    im2col_runs(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                const Parameters p)
{
    __shared__ Scalar staged[pieces][piece_taps][run];
    const int thread = threadIdx.x;
    Offset rest = blockIdx.x;
    const Offset first = p.runs.split(rest) * run;
    const Offset plane = p.planes.split(rest), batch = rest;
    image += batch * p.image_batch_step + plane * p.image_plane_step;
    columns += batch * p.columns_batch_step + plane * p.columns_plane_step + first;
    const int count = int(min(p.plane_blocks - first, Offset(run)));

    Offset pixel[blocks][spatial_rank]; // of tap 0, which may lie outside the image
    const Scalar* from[blocks];
    unrolled_for (int i = 0; i < blocks; ++i) {
        Offset number = first + min(i * THREADS + thread, count - 1), offset = 0;
        unrolled_for (int axis = last_axis; axis >= 0; --axis) {
            pixel[i][axis] = p.blocks[axis].split(number) * p.stride[axis] - p.pad[axis];
            offset += pixel[i][axis] * p.pixel_step[axis];
        }
        from[i] = image + offset;
        opaque(from[i]);
    }

    const Offset width = p.kernel[last_axis].divisor;
    const Offset begin = Offset(blockIdx.y) * p.own_pieces, end = min(begin + p.own_pieces, p.all_pieces);
    for (Offset chunk = begin; chunk < end; chunk += pieces) {
        Scalar elements[pieces][piece_taps][blocks];
        Offset first_tap[pieces], row[pieces]; // of taps
        unrolled_for (int n = 0; n < pieces; ++n) {
            const bool exists = all_are_chunks || chunk + n < p.all_pieces;
            row[n] = chunk + n;
            first_tap[n] = p.pieces.split(row[n]) * piece_taps;
            Offset rest = row[n], taps[spatial_rank], offset = 0;
            bool in_rows[blocks];
            unrolled_for (int i = 0; i < blocks; ++i)
                in_rows[i] = exists;
            unrolled_for (int axis = last_axis - 1; axis >= 0; --axis) {
                taps[axis] = p.kernel[axis].split(rest);
                const Offset shift = taps[axis] * p.dilation[axis];
                offset += shift * p.pixel_step[axis];
                unrolled_for (int i = 0; i < blocks; ++i)
                    in_rows[i] &= !padded || within(pixel[i][axis] + shift, p.size[axis]);
            }
            unrolled_for (int t = 0; t < piece_taps; t += taps_at_once) {
                const Offset tap = first_tap[n] + t, shift = tap * p.dilation[last_axis];
                const bool in_row = rows_are_pieces || tap < width;
                Weight weights[taps_at_once] = {};
                if constexpr (windowed)
                    unrolled_for (int k = 0; k < taps_at_once; ++k) {
                        taps[last_axis] = tap + k;
                        weights[k] = weight_of(window, taps, row[n] * width + tap + k, exists & in_row);
                    }
                unrolled_for (int i = 0; i < blocks; ++i) {
                    const bool inside = in_rows[i] & in_row &
                                        (!padded || within(pixel[i][last_axis] + shift, p.size[last_axis]));
                    Scalar loaded[taps_at_once];
                    load_wide_if(loaded, from[i] + (offset + shift * p.pixel_step[last_axis]), inside);
                    unrolled_for (int k = 0; k < taps_at_once; ++k)
                        elements[n][t + k][i] = weigh_element(loaded[k], inside ? weights[k] : Weight(0));
                }
            }
        }
        __syncthreads(); // all have stored the taps before
        unrolled_for (int n = 0; n < pieces; ++n)
            unrolled_for (int t = 0; t < piece_taps; ++t)
                unrolled_for (int i = 0; i < blocks; ++i)
                    staged[n][t][i * THREADS + thread] = elements[n][t][i];
        __syncthreads();
        unrolled_for (int n = 0; n < pieces; ++n) {
            Scalar* to = columns + (row[n] * width + first_tap[n]) * p.tap_step;
            unrolled_for (int t = 0; t < piece_taps; ++t, to += p.tap_step)
                if ((all_are_chunks || chunk + n < p.all_pieces) &
                    (rows_are_pieces || first_tap[n] + t < width)) {
                    if (count == run)
                        store_run<true>(to, staged[n][t], count);
                    else
                        store_run<false>(to, staged[n][t], count);
                }
        }
    }
}
