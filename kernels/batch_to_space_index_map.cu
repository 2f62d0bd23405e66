// batch_to_space by mapping indices: one thread finds where one pixel of a few planes comes from.
//
//   batch  (*block, batch, *grid)  read, any strides
//   space  (batch, *size)          each element written once, any strides
//   window (always null)           not read
//
// Stores are contiguous whatever the crops and the rows' length; a warp's loads are one run per phase of the
// last axis. Serves every call, and wins where the last axis is not split (an element is then as wide a word
// as its rows allow) or is split into few phases that cannot be stored as words.
#include "batch_to_space.cuh"

constexpr int planes_at_once = sizeof(Scalar) <= 4 ? 4 : 2;

// Moves a pixel of all planes, `at_once` of them in flight together; the rest one by one.
template <int at_once>
inline __device__ void move(const Scalar* batch, Scalar* space, Offset planes, const Parameters& p)
{
#pragma unroll 1
    for (; planes >= at_once; planes -= at_once) {
        Scalar values[at_once];
        unrolled_for (int plane = 0; plane < at_once; ++plane)
            values[plane] = load_if(batch + plane * p.batch_plane_step, true);
        unrolled_for (int plane = 0; plane < at_once; ++plane)
            space[plane * p.space_plane_step] = values[plane];
        batch += at_once * p.batch_plane_step;
        space += at_once * p.space_plane_step;
    }
    if constexpr (at_once > 1)
        move<1>(batch, space, planes, p);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    batch_to_space_index_map(const Scalar* __restrict__ batch, Scalar* __restrict__ space,
                             const Weights window, const Parameters p)
{
    const Place place = this_place(batch, space, p);
    if (!place.exists)
        return;
    Offset block = place.last + p.crop[last_axis];
    const Offset phase = p.block[last_axis].split(block);
    batch = place.batch + (block * p.grid_step[last_axis] + phase * p.phase_step[last_axis]);
    space = place.space + place.last * p.pixel_step[last_axis];
    move<planes_at_once>(batch, space, place.planes, p);
}
