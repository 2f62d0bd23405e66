// Shared by the batch_to_space kernels: where blocks of the batch go in space.
//
// Along every axis, pixel e of an image is phase (e + crop) % block of block number (e + crop) / block.
// Elements are copied without arithmetic: Scalar is the unsigned integer of their size.
//
// A thread serves one place of up to planes_per_thread planes (images and the unsplit axes merged with them),
// so that they share the index arithmetic.
#pragma once
#include "window.cuh"

constexpr int spatial_rank = SPATIAL_RANK;
constexpr int last_axis = spatial_rank - 1;

struct Parameters {
    Offset crop[spatial_rank];
    Offset grid_step[spatial_rank];  // elements of the batch array from one block to the next
    Offset phase_step[spatial_rank]; // elements of the batch array from one phase to the next
    Offset pixel_step[spatial_rank]; // elements of the image from one pixel to the next
    Divisor block[spatial_rank];
    Divisor places[spatial_rank]; // pixels, or on the last axis what a thread serves
    Offset width;                 // pixels of the last axis
    Offset planes;
    Offset planes_per_thread;
    Offset threads; // along x, one per place and group of planes
    long long batch_plane_step, space_plane_step;
};

// Where a thread works: its place along the last axis, and the rest as an offset into both arrays.
struct Place {
    bool exists;
    Offset last;
    const Scalar* batch; // block 0, phase 0 of the last axis, in the first plane
    Scalar* space;       // pixel 0 of the last axis, in the first plane
    Offset planes;       // from the first plane on
};

inline __device__ Place this_place(const Scalar* batch, Scalar* space, const Parameters& p)
{
    Place place;
    Offset number = grid_index();
    place.exists = number < p.threads;
    place.last = p.places[last_axis].split(number);
    Offset batch_offset = 0, space_offset = 0;
    unrolled_for (int axis = last_axis - 1; axis >= 0; --axis) {
        const Offset pixel = p.places[axis].split(number);
        Offset block = pixel + p.crop[axis];
        const Offset phase = p.block[axis].split(block);
        batch_offset += block * p.grid_step[axis] + phase * p.phase_step[axis];
        space_offset += pixel * p.pixel_step[axis];
    }
    const Offset plane = number * p.planes_per_thread;
    place.planes = min(p.planes - plane, p.planes_per_thread);
    place.batch = batch + (to_int64(plane) * p.batch_plane_step + batch_offset);
    place.space = space + (to_int64(plane) * p.space_plane_step + space_offset);
    return place;
}
