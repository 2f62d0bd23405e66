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

#ifndef BLOCK_WIDTH
#define BLOCK_WIDTH 16
#endif
#ifndef CHUNK_PHASES
#define CHUNK_PHASES 16
#endif
constexpr int block_width = BLOCK_WIDTH;
constexpr int chunk_phases = CHUNK_PHASES; // of a cell; grid row y serves chunk y
constexpr int warps = 8;
constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;

// A pitch that is odd spreads a column of the tile over all banks.
using Tile = Scalar[warp_size][chunk_phases | 1];

extern "C" __global__ void __launch_bounds__(warps* warp_size)
    batch_to_space_staged(const Scalar* __restrict__ batch, Scalar* __restrict__ space,
                          const Parameters parameters)
{
    __shared__ Tile tiles[warps];
    Tile& tile = tiles[threadIdx.x / warp_size];
    const int lane = int(threadIdx.x) % warp_size;
    const Place place = this_place(batch, space, parameters);
    const int first_phase = int(blockIdx.y) * chunk_phases;

    // The cell's first pixel is phase `turn` of its first block; later phases come from the next block.
    Offset first_block = parameters.crop[last_axis];
    const Offset turn = parameters.block[last_axis].split(first_block);
    first_block += place.last;
    // Pixels of the cell from this chunk on; the last cell of a row may be short.
    const Offset first_pixel = place.last * block_width + first_phase;
    const int remaining =
        place.exists ? int(min(parameters.width - first_pixel, Offset(block_width) - first_phase)) : 0;
    Scalar* const target = place.space + first_pixel * parameters.pixel_step[last_axis];

    for (Offset plane = 0; plane < parameters.planes_per_thread; ++plane) {
        trace_iteration(int(plane));
        const Scalar* const source = place.batch + plane * parameters.batch_plane_step;
        const int pixels = plane < place.planes ? remaining : 0;
        // Load with neighbouring lanes on neighbouring blocks.
#pragma unroll
        for (int step = 0; step < chunk_phases; ++step) {
            const Offset phase = first_phase + step + turn;
            const Offset next = phase >= block_width;
            tile[lane][step] =
                load_if(source + ((first_block + next) * parameters.grid_step[last_axis] +
                                  (phase - next * block_width) * parameters.phase_step[last_axis]),
                        step < pixels);
        }
        __syncwarp();
        // Store with neighbouring lanes on neighbouring pixels.
#pragma unroll
        for (int step = 0; step < chunk_phases; ++step) {
            const int element = step * warp_size + lane;
            const int cell = element / chunk_phases, pixel = element % chunk_phases;
            const unsigned long long first = __shfl_sync(
                all_lanes, reinterpret_cast<unsigned long long>(target + plane * parameters.space_plane_step),
                cell);
            if (pixel < __shfl_sync(all_lanes, pixels, cell))
                reinterpret_cast<Scalar*>(first)[pixel * parameters.pixel_step[last_axis]] =
                    tile[cell][pixel];
        }
        __syncwarp();
    }
}
