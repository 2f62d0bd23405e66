// im2col for columns whose taps lie closer than their blocks, as in a block-major layout: one thread takes
// one word of taps of a few adjacent blocks of a row.
//
//   image    (batch, channels, *size)             read, any strides
//   columns  (batch, channels, *kernel, *blocks)  each element written once, any strides
//   window   weights of the taps, or null         read, once per thread; one tap is a word then
//
// Neighbouring threads take neighbouring words, so that stores are contiguous where blocks are, and loads
// run along the rows of a block. A word is WORD taps of the last axis, 16 bytes at most and aligned in the
// columns. The pixels of a word are loaded at once if they are aligned in the image too. If blocks are less
// than a word apart, LINE_STRIDE, the words of a thread's blocks are cut from one line of pixels, which are
// loaded once: in words of LOADED pixels, the first of which begins PIXELS_BEFORE pixels before tap 0. A
// thread's blocks share the index arithmetic.
#define L2_FETCH ".L2::128B"
#include "sliding.cuh"

constexpr int most_blocks = BLOCKS;
constexpr int word = WORD;
constexpr int line_stride = LINE_STRIDE; // 0 where each block's word is loaded by itself
constexpr bool takes_more_registers = windowed || sizeof(Offset) > 4;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int most_threads = 1024; // of a multiprocessor
#else
constexpr int most_threads = 1536;
#endif
// Blocks of threads, as registers allow.
constexpr int resident = takes_more_registers ? 2 : word > 1 && 5 * THREADS <= most_threads ? 5 : 4;
static_assert(word == 1 || !windowed, "taps have weights one by one");

struct Parameters : Sliding {
    Offset tap_step[spatial_rank], block_step[spatial_rank];
    Divisor kernel[spatial_rank]; // taps, along the last axis words of them
    Divisor places[spatial_rank]; // blocks, along the last axis what threads have of them
    Offset row_blocks;            // along the last axis
    Divisor planes;
    Offset threads; // one per word of taps, place and plane
    long long image_batch_step, image_plane_step;
    long long columns_batch_step, columns_plane_step;
};

template <int blocks>
inline __device__ void take_taps(const Scalar* __restrict__ image, Scalar* __restrict__ columns,
                                 const Weights& window, const Parameters& p)
{
    Offset rest = grid_index();
    if (rest >= p.threads)
        return;
    Offset tap[spatial_rank], block[spatial_rank], pixel[spatial_rank];
    Offset image_offset = 0, columns_offset = 0;
    unrolled_for (int axis = last_axis; axis >= 0; --axis)
        tap[axis] = p.kernel[axis].split(rest) * (axis == last_axis ? word : 1);
    bool inside = true; // along the axes but the last
    unrolled_for (int axis = last_axis; axis >= 0; --axis) {
        block[axis] = p.places[axis].split(rest) * (axis == last_axis ? blocks : 1);
        pixel[axis] = block[axis] * p.stride[axis] + tap[axis] * p.dilation[axis] - p.pad[axis];
        inside = inside && (axis == last_axis || within(pixel[axis], p.size[axis]));
        image_offset += pixel[axis] * p.pixel_step[axis];
        columns_offset += tap[axis] * p.tap_step[axis] + block[axis] * p.block_step[axis];
    }
    const Offset plane = p.planes.split(rest), batch = rest;
    image += batch * p.image_batch_step + plane * p.image_plane_step + image_offset;
    columns += batch * p.columns_batch_step + plane * p.columns_plane_step + columns_offset;

    Weight weight = 0;
    if constexpr (windowed) {
        Offset number = 0; // of the tap, which is a word by itself
        unrolled_for (int axis = 0; axis < spatial_rank; ++axis)
            number = number * p.kernel[axis].divisor + tap[axis];
        weight = weight_of(window, tap, number, true);
    }

    const Scalar* from = image;
    Scalar* to = columns;
    const Offset remaining = p.row_blocks - block[last_axis]; // blocks
    const Offset size = inside ? p.size[last_axis] : 0;
    Scalar elements[blocks][word];
    if constexpr (line_stride) {
        constexpr bool aligned = blocks * line_stride % LOADED == 0; // for every thread alike
        constexpr int at_once = aligned ? LOADED : 1, pixels_before = aligned ? PIXELS_BEFORE : 0;
        constexpr int loads = (pixels_before + (blocks - 1) * line_stride + word + at_once - 1) / at_once;
        Scalar line[loads * at_once];
        const Offset first = pixel[last_axis] - pixels_before;
        from -= pixels_before * p.pixel_step[last_axis];
        opaque(from);
        unrolled_for (int i = 0; i < loads; ++i) {
            Scalar loaded[at_once];
            load_wide_if(loaded, from + i * at_once * p.pixel_step[last_axis],
                         within(first + i * at_once, size));
            unrolled_for (int k = 0; k < at_once; ++k)
                line[i * at_once + k] = loaded[k];
        }
        unrolled_for (int i = 0; i < blocks; ++i)
            unrolled_for (int k = 0; k < word; ++k)
                elements[i][k] = line[pixels_before + i * line_stride + k];
    } else {
        const Offset stride = p.stride[last_axis], image_step = stride * p.pixel_step[last_axis];
        opaque(from);
        unrolled_for (int i = 0; i < blocks; ++i) {
            const bool exists = within(pixel[last_axis] + i * stride, size);
            load_wide_if(elements[i], from + i * image_step, exists);
            if constexpr (windowed)
                elements[i][0] = weigh_element(elements[i][0], exists ? weight : Weight(0));
        }
    }
    opaque(to);
    unrolled_for (int i = 0; i < blocks; ++i) {
        if (i < remaining)
            store_wide(to + i * p.block_step[last_axis], elements[i]);
    }
}

// For rows of several blocks.
extern "C" __global__ void __launch_bounds__(THREADS, resident)
    im2col_taps_of_several(const Scalar* __restrict__ image, Scalar* __restrict__ columns,
                           const Weights window, const Parameters p)
{
    take_taps<most_blocks>(image, columns, window, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, resident)
    im2col_taps(const Scalar* __restrict__ image, Scalar* __restrict__ columns, const Weights window,
                const Parameters p)
{
    take_taps<1>(image, columns, window, p);
}
