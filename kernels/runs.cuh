// Shared by im2col_runs and im2col_staged, whose thread blocks take the taps of a run of blocks: blocks of a
// plane that follow each other in the columns, from row to row. Rows of taps are cut into pieces.
#pragma once
#include "sliding.cuh"

constexpr int sector = 32 / int(sizeof(Scalar)); // elements
constexpr bool padded = PADDED;                  // else every tap of a block is a pixel

struct Runs : Sliding {
    Divisor kernel[spatial_rank];
    Divisor blocks[spatial_rank];
    Divisor pieces;    // of a row
    Offset all_pieces; // of a block
    Offset own_pieces; // of these, of a row of thread blocks: whole chunks of them
    Offset tap_step;
    Offset plane_blocks; // of all axes
    Divisor runs;        // of a plane
    Divisor planes;
    long long image_batch_step, image_plane_step;
    long long columns_batch_step, columns_plane_step;
};
