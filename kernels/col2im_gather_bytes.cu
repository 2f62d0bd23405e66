// col2im of int8, uint8 and bool by gathering bytes four to a register: a thread owns a few words of pixels
// of one or several planes and adds up the taps that land on them, four at a time.
//
//   columns  (batch, channels, *kernel, *blocks)  read, contiguous along the last axis
//   image    (batch, channels, *size)             written, each element once, contiguous along the last axis
//   window   weights of the taps, always null     not read
//
// Where the stride of the last axis is 1, the tap of neighbouring pixels is that of neighbouring blocks, from
// any byte on. A thread reads the aligned words around them, shifts the bytes into place and clears those of
// blocks that do not exist. Sums wrap and may be made in any order. The columns begin and end with whole
// words, and so do planes, so that no word reaches beyond them. Wins wherever it serves: with a byte to an
// instruction, instructions would be what binds.
#ifndef SCALAR
#define SCALAR unsigned char
#define ACCUMULATOR unsigned int
#endif
#include "col2im.cuh"
#include "fusion.cuh"

#ifndef PLANES
#define PLANES 4
#endif
#ifndef WORDS
#define WORDS 2
#endif

#ifndef ROWS_OF_WORDS
#define ROWS_OF_WORDS 0
#endif
#ifndef PAD_BYTES
#define PAD_BYTES 0
#endif

constexpr int words = WORDS;                  // of four pixels, of a thread
constexpr bool rows_of_words = ROWS_OF_WORDS; // every row of blocks begins and ends with a word
constexpr int pad_bytes = PAD_BYTES; // then, of the pad in front of the last axis those beyond whole words
constexpr int row_taps = kernel[last];
static_assert(sizeof(Scalar) == 1 && stride[last] == 1 && !fuses, "bytes of neighbouring pixels, added");

// The bytes of a word from one on, and none of them from the fourth on.
inline __device__ unsigned bytes_from(Offset first)
{
    const int byte = int(min(max(first, Offset(0)), Offset(4)));
    return byte == 4 ? 0 : ~0u << 8 * byte;
}

// Sums of four bytes that wrap: of the even bytes in lanes of 16 bits, and of the whole words, from which the
// odd ones follow. Enough for as many taps as MAX_BYTE_TAPS of gpufold/gpu/variants/col2im.py.
template <typename Sum> struct Bytes {
    unsigned even = 0, all = 0;

    __device__ void add_word(unsigned word)
    {
        even += word & 0x00ff00ffu;
        all += word;
    }
    __device__ unsigned sums() const { return (even & 0x00ff00ffu) | ((all - even) & 0xff00ff00u); }
};

// Whether any of the bytes is not zero: one, else zero.
template <> struct Bytes<bool> {
    unsigned any = 0;

    __device__ void add_word(unsigned word) { any |= word; }
    __device__ unsigned sums() const
    {
        unsigned bits = (any | any >> 4) & 0x0f0f0f0fu;
        bits = (bits | bits >> 2) & 0x03030303u;
        return (bits | bits >> 1) & 0x01010101u;
    }
};

template <int planes>
__device__ void gather_bytes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                             const Weights& window, const Parameters& p)
{
    const Offset item = grid_index();
    if (item >= p.items)
        return;
    const Place<planes> place(item, p);
    Offset pixel[rank], in_plane = 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
        pixel[axis] = axis == last ? place.along[axis] * (4 * words) : place.along[axis];
        in_plane += pixel[axis] * p.pixel_stride[axis];
    }
    const Scalar* plane_columns[planes];
    place.point_at(plane_columns, columns, p);
    Taps taps[rank];
    find_taps<0, last>(taps, pixel, p);
    unsigned exist[row_taps][words]; // the bytes of blocks that do, where a word has those of several rows
#pragma unroll
    for (int tap = 0; tap < row_taps; ++tap)
#pragma unroll
        for (int i = 0; i < words; ++i) {
            const Offset block = pixel[last] + p.pad[last] - tap * dilation[last] + 4 * i;
            exist[tap][i] = rows_of_words ? ~0u : bytes_from(-block) & ~bytes_from(p.blocks[last] - block);
        }

    Bytes<Accumulator> bytes[planes][words];
    for_each_tap<0, last, planes * row_taps*(words + 1)>(
        taps, p, 0, true, 0, TapWeight{&window},
        [&](Offset offset, bool exists, int iteration, const TapWeight&) {
            unsigned loaded[planes][row_taps][words + 1];
            int shift[row_taps];
#pragma unroll
            for (int tap = 0; tap < row_taps; ++tap) {
                const Offset block = pixel[last] + p.pad[last] - tap * dilation[last];
                const Offset first = offset + tap * p.tap_stride[last] + block;
                // Bytes of the first word that are not wanted.
                const int before = rows_of_words ? int(pad_bytes - tap * dilation[last] & 3) : int(first & 3);
                shift[tap] = 8 * before;
#pragma unroll
                for (int i = 0; i <= words; ++i) {
                    if (rows_of_words && i == words && before == 0) { // not read: the last word has all
#pragma unroll
                        for (int plane = 0; plane < planes; ++plane)
                            loaded[plane][tap][i] = 0;
                        continue;
                    }
                    // Some of its blocks exist.
                    const bool wanted = exists && within(block - before + 4 * i + 3, p.blocks[last] + 3);
#pragma unroll
                    for (int plane = 0; plane < planes; ++plane) {
                        trace_iteration((iteration * row_taps + tap) * (words + 1) * planes + i * planes +
                                        plane);
                        loaded[plane][tap][i] =
                            load_word_if<4>(plane_columns[plane] + (first - before) + 4 * i, wanted);
                    }
                }
            }
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
#pragma unroll
                for (int tap = 0; tap < row_taps; ++tap)
#pragma unroll
                    for (int i = 0; i < words; ++i)
                        bytes[plane][i].add_word(
                            __funnelshift_r(loaded[plane][tap][i], loaded[plane][tap][i + 1], shift[tap]) &
                            exist[tap][i]);
        });

    Result* first = place.first_plane(image, p) + in_plane;
#pragma unroll
    for (int plane = 0; plane < planes; ++plane) {
        if (plane < p.channels - place.channel) {
            unsigned sums[words];
#pragma unroll
            for (int i = 0; i < words; ++i)
                sums[i] = bytes[plane][i].sums();
            store_word<4 * words>(first + plane * p.image_channel, bit_cast<Word<4 * words>>(sums));
        }
    }
}

// For images too small to fill the device otherwise.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    col2im_gather_bytes(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                        const Parameters p)
{
    gather_bytes<1>(columns, image, window, p);
}

// Planes share the index arithmetic.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    col2im_gather_bytes_planes(const Scalar* __restrict__ columns, Result* __restrict__ image,
                               const Weights window, const Parameters p)
{
    if constexpr (PLANES > 1)
        gather_bytes<PLANES>(columns, image, window, p);
}
