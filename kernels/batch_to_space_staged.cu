// batch_to_space with large innermost blocks: one warp puts 32 blocks together, one chunk of a block's row at
// a time, through a tile in shared memory.
//
//   batch  (*block, batch, *grid)  read, any strides
//   space  (batch, *size)          each element written once, any strides
//
// Loads run along neighbouring blocks, stores along the rows of the blocks. Cells of one block's width are
// laid on the pixels from the first on, so the crop only turns the phases. Wins where loads along the pixels
// would touch a line per lane, and where words are narrow.
#include "batch_to_space.cuh"
#include "tile.cuh"

#ifndef BLOCK_WIDTH
#define BLOCK_WIDTH 16
#endif
#ifndef CHUNK_PHASES
#define CHUNK_PHASES 16
#endif
constexpr int block_width = BLOCK_WIDTH;
constexpr int chunk_phases = CHUNK_PHASES; // of a cell; grid row y serves chunk y

extern "C" __global__ void __launch_bounds__(THREADS)
    batch_to_space_staged(const Scalar* __restrict__ batch, Scalar* __restrict__ space,
                          const Parameters parameters)
{
    using Walk = RowWalk<chunk_phases>;
    __shared__ Tile<chunk_phases> tiles[warps];
    Tile<chunk_phases>& tile = tiles[threadIdx.x / warp_size];
    const unsigned lane = threadIdx.x % warp_size;
    const Walk walk(lane);
    const Place place = this_place(batch, space, parameters);
    const int first_phase = int(blockIdx.y) * chunk_phases;

    // The cell's first pixel is phase `turn` of its first block; later phases come from the next block.
    Offset first_block = parameters.crop[last_axis];
    const Offset turn = parameters.block[last_axis].split(first_block);
    const Scalar* source = place.batch + (first_block + place.last) * parameters.grid_step[last_axis];

    // Pixels of the cell from this chunk on; the last cell of a row may be short.
    const Offset first_pixel = place.last * block_width + first_phase;
    const int pixels = int(min(parameters.width - first_pixel, Offset(block_width - first_phase)));

    // The walk stores for the cells of other lanes: their places, as seen from the first lane's.
    const long long lane_place = place.space - space + first_pixel * parameters.pixel_step[last_axis];
    const long long first_place = __shfl_sync(all_lanes, lane_place, 0);
    const Offset lane_offset = Offset(lane_place - first_place);
    Scalar* target = space + first_place + walk.column * parameters.pixel_step[last_axis];
    Offset offset[Walk::steps];
    unsigned inside_row = 0;
#pragma unroll
    for (int step = 0; step < Walk::steps; ++step) {
        offset[step] = __shfl_sync(all_lanes, lane_offset, walk.row(step));
        if (walk.takes_part() & (walk.column < __shfl_sync(all_lanes, pixels, walk.row(step))))
            inside_row |= Walk::bit(step);
    }

#pragma unroll 1
    for (Offset plane = 0; plane < parameters.planes_per_thread; ++plane) {
        trace_iteration(int(plane));
        const bool exists = place.exists && plane < place.planes;
        const unsigned inside = inside_row & __ballot_sync(all_lanes, exists) >> walk.first_row;
        Scalar values[chunk_phases];
#pragma unroll
        for (int step = 0; step < chunk_phases; ++step) {
            const Offset phase = first_phase + step + turn;
            const Offset next = phase >= block_width;
            values[step] = load_if(source + (next * parameters.grid_step[last_axis] +
                                             (phase - next * block_width) * parameters.phase_step[last_axis]),
                                   exists & (step < pixels));
        }
#pragma unroll
        for (int step = 0; step < chunk_phases; ++step)
            tile.at(lane, step) = values[step];
        __syncwarp();
#pragma unroll
        for (int step = 0; step < Walk::steps; ++step)
            if (Walk::contains(inside, step))
                target[offset[step]] = tile.at(walk.row(step), walk.column);
        __syncwarp(); // the next loads overwrite the tile
        source += parameters.batch_plane_step;
        target += parameters.space_plane_step;
    }
}
