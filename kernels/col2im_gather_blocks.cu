// col2im by gathering, for columns whose taps lie one after another and whose blocks overlap densely: the
// blocks stay where they are, and the sums move along them.
//
//   columns  (batch, channels, *kernel, *blocks), a block's taps contiguous  read, once per strip
//   image    (batch, channels, *size), any strides                           written, each element once
//   window   (*kernel), or an array per axis, or null                        read, once per row of taps
//
// A warp owns a tile of one plane: box[last] pixels along a row, of box[axis] rows along each other axis. Its
// lanes are groups, each with a strip of the tile's columns. A lane of a group has LANE_TAPS consecutive taps
// of one of ROWS rows of taps, and walks the blocks that reach its strip from the last to the first, BATCH at
// a time. It holds the sums of the pixels that its taps land on: from one block to the next each sum moves on
// by the taps that part two that land on one pixel, so that a pixel gets its taps of the row in lexicographic
// order. Sums that enter come from shared memory, and sums that leave go there. Those of pixels beside a
// strip, which whole batches reach too, go to places that nobody reads.
//
// The warp walks the rows of blocks that reach the tile from the last to the first, so that the rows of taps
// of a pixel are in lexicographic order too. Dilations are at least 1 where the kernel is longer than a tap:
// of one row of blocks a pixel gets taps from one row alone, so no two lanes have its sum at a time. Taps are
// loaded in words of VECTOR elements: a lane has one, so that the lanes of a group load what follows in
// memory, or the warp brings them through shared memory where words or groups are narrow. PITCH is what parts
// two blocks along the last axis where they follow each other, else zero. No atomics and no zero fill.
//
// Wins where the taps of a block lie closer in memory than its blocks, and these overlap densely: threads
// that read one tap of neighbouring blocks would waste most of each sector.
#include "col2im.cuh"
#include "fusion.cuh"

constexpr int lane_taps = LANE_TAPS, vector = VECTOR;
constexpr int row_lanes = (int(kernel[last]) + lane_taps - 1) / lane_taps; // of a row of taps
constexpr int group_lanes = ROWS * row_lanes;
constexpr int groups = 32 / group_lanes;
static_assert(lane_taps % vector == 0 && groups > 0, "words fill a lane, and a warp has a group");

// Taps by which a sum moves on from one block to the next, or all of a lane: then none stays with its lane.
constexpr int moved = Pattern<last>::tap_step < lane_taps ? int(Pattern<last>::tap_step) : lane_taps;

constexpr int batch = BATCH; // blocks whose taps a lane has in flight

// Where words are narrow the warp brings them through shared memory, so that it loads along the taps of a
// group: its lanes take words that follow each other, of one block or of several.
constexpr bool staged = STAGED > 1;
constexpr int chunk_taps = ROWS * int(kernel[last]);
constexpr int chunk_words = chunk_taps / vector;
constexpr int word_lanes = chunk_words < 32 ? chunk_words : 32;
constexpr int block_lanes = 32 / word_lanes;
static_assert(!staged || groups * batch * chunk_taps <= STAGED, "there is a place for every tap of a batch");

struct BlocksParameters : Parameters {
    Offset box[rank]; // pixels of a tile
    Divisor strip;    // pixels of a group along the last axis: the groups' are box[last] together
    int strip_sums;   // places in shared memory from one strip to the next
    int spare;        // places between rows of a strip, and before the first, whose sums nobody needs
};

template <int axis> __device__ constexpr Offset taps_from()
{
    if constexpr (axis >= last)
        return 1;
    else
        return kernel[axis] * taps_from<axis + 1>();
}

// A strip's rows lie one after another, each an odd number of places, so that the lanes of a group meet in no
// bank.
struct Tile {
    Accumulator sums[PIXELS];
    SharedDenominators<PIXELS> denominators;
    alignas(vector * sizeof(Scalar)) Scalar staged[STAGED];
};

// Consecutive rows of taps, by their number in lexicographic order.
struct Rows {
    Offset first, end;
};

// Where a lane works.
struct Worker {
    const Weights& window;
    const BlocksParameters& p;
    Tile& tile;
    Offset origin[rank]; // the tile's first pixel
    int group;           // of lanes; those that are left over work for none
    int row;             // of taps, in a chunk
    Offset tap;          // the first of this lane's
    Offset chains;       // of blocks that hand on sums: block_step apart, where that many reach a strip
    int steps;           // blocks of a chain
    Offset missing, end; // of the blocks from a strip's last one on: those before do not exist in some strip,
                         // and those past the end do not reach one
};

// A strip and the blocks that reach it, along the last axis.
struct Strip {
    Offset begin;      // its first pixel, in the padded row
    Offset first, end; // of the blocks that exist
    Offset last_block; // which may not

    __device__ Strip(const Worker& w, int group)
    {
        begin = w.origin[last] + group * w.p.strip.divisor + w.p.pad[last];
        last_block = (begin + w.p.strip.divisor - 1) / stride[last];
        const Offset reach = (kernel[last] - 1) * dilation[last];
        first = max(Offset(0), begin - reach + stride[last] - 1) / stride[last];
        end = min(last_block + 1, w.p.blocks[last]);
    }
};

__device__ int row_places(const Worker& w)
{
    return (int(w.p.strip.divisor) + w.p.spare) | 1;
}

// Whether the lane has a tap of the kernel at this place among its own.
__device__ bool has_taps(const Worker& w, int place)
{
    return kernel[last] % lane_taps == 0 || w.tap + place < kernel[last];
}

// The pixel's row in the tile that a row of taps lands on, or -1, and its weight so far.
template <int axis = 0>
__device__ int row_of(const Worker& w, const Offset (&block)[rank], Offset number, TapWeight& weight,
                      int row = 0)
{
    if constexpr (axis == last) {
        return row;
    } else {
        const Offset tap = number / taps_from<axis + 1>() % kernel[axis];
        const Offset pixel =
            block[axis] * stride[axis] + tap * dilation[axis] - w.p.pad[axis] - w.origin[axis];
        weight = weight.along<axis>(tap, true);
        if (!within(pixel, w.p.box[axis]))
            return -1;
        return row_of<axis + 1>(w, block, number, weight, row * int(w.p.box[axis]) + int(pixel));
    }
}

// Brings a batch of each group's blocks into shared memory, from that many blocks before its last one; what
// does not exist repeats what does.
__device__ void stage(const Worker& w, const Scalar* columns, Rows rows, Offset before)
{
    constexpr int block_turns = (batch + block_lanes - 1) / block_lanes, turns = (chunk_words + 31) / 32;
    const int lane = threadIdx.x, lane_block = lane / word_lanes, lane_word = lane % word_lanes;
    const Offset last_tap = (rows.end - rows.first) * kernel[last] - vector;
    keep(columns);
    Scalar elements[groups][block_turns][turns][vector];
#pragma unroll
    for (int group = 0; group < groups; ++group) {
        const Strip strip(w, group);
#pragma unroll
        for (int i = 0; i < block_turns; ++i) {
            const Offset from =
                strip.last_block - before - (i * block_lanes + lane_block) * Pattern<last>::block_step;
            const Offset block = max(Offset(0), min(from, w.p.blocks[last] - 1));
#pragma unroll
            for (int turn = 0; turn < turns; ++turn) {
                const Offset tap = min(Offset(turn * 32 + lane_word) * vector, last_tap);
                load_wide(elements[group][i][turn], columns + (block * w.p.block_stride[last] + tap),
                          lane_block < block_lanes);
            }
        }
    }
    __syncwarp(); // all lanes have read the last batch
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
        for (int i = 0; i < block_turns; ++i)
#pragma unroll
            for (int turn = 0; turn < turns; ++turn) {
                const int block = i * block_lanes + lane_block, word = turn * 32 + lane_word;
                if (lane_block < block_lanes && block < batch && word < chunk_words)
                    memcpy(w.tile.staged + ((group * batch + block) * chunk_words + word) * vector,
                           elements[group][i][turn], sizeof(elements[group][i][turn]));
            }
    __syncwarp();
}

// A lane's way along the blocks that reach a strip, from its last one.
struct Way {
    bool used;             // whether its row of taps exists and lands in the tile; else it may read another
    Offset room, existing; // blocks before the last one that reach the strip, and those that exist
    int place;             // of the sum that the last block's first tap of this lane is added to
    const Scalar* columns; // the lane's taps of the last block
    Weight weights[lane_taps];
};

// The sums of the pixels that a lane's taps land on.
struct Sums {
    Accumulator values[lane_taps] = {};
    Denominator denominators[lane_taps];
};

// Adds the taps of a batch of blocks, from that many blocks before the strip's last one on; `guarded` where
// some do not exist, or do not reach the strip.
template <bool guarded> __device__ void add_batch(const Worker& w, const Way& way, Offset before, Sums& sums)
{
    constexpr Offset step = Pattern<last>::block_step;
    const auto exists = [&](int i) { return within(way.room - before - i * step, way.existing); };
    Scalar elements[batch][lane_taps / vector][vector];
    if constexpr (staged) {
        const Scalar* taps =
            w.tile.staged + (w.group * batch * chunk_taps + w.row * int(kernel[last]) + int(w.tap));
#pragma unroll
        for (int i = 0; i < batch; ++i)
#pragma unroll
            for (int tap = 0; tap < lane_taps; ++tap)
                if (way.used && has_taps(w, tap))
                    elements[i][tap / vector][tap % vector] = taps[i * chunk_taps + tap];
    } else {
        const Offset pitch = PITCH > 0 ? PITCH : w.p.block_stride[last];
        const Scalar* taps = way.columns - before * pitch;
        keep(taps);
#pragma unroll
        for (int i = 0; i < batch; ++i)
#pragma unroll
            for (int word = 0; word < lane_taps / vector; ++word) {
                const Scalar* address = taps + (word * vector - i * (step * pitch));
                if constexpr (guarded || kernel[last] % lane_taps != 0)
                    load_wide_if(elements[i][word], address,
                                 (guarded ? exists(i) : way.used) && has_taps(w, word * vector));
                else
                    load_wide_here(elements[i][word], address);
            }
        __syncwarp(); // all sums are there; and keeps the loads together
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
        const int place = way.place - int((before + i * step) * stride[last]);
#pragma unroll
        for (int tap = 0; tap < moved; ++tap) {
            Accumulator entering;
            if (way.used) {
                entering = w.tile.sums[place + tap * int(dilation[last])];
                sums.denominators[tap] = w.tile.denominators.get(place + tap * int(dilation[last]));
            }
            sums.values[tap] = entering;
        }
#pragma unroll
        for (int tap = 0; tap < lane_taps; ++tap)
            if ((!guarded || exists(i)) && has_taps(w, tap)) {
                sums.values[tap] = add(sums.values[tap], weigh(widen(elements[i][tap / vector][tap % vector]),
                                                               way.weights[tap]));
                sums.denominators[tap].add_tap(way.weights[tap]);
            }
#pragma unroll
        for (int tap = lane_taps - moved; tap < lane_taps; ++tap)
            if (way.used) {
                w.tile.sums[place + tap * int(dilation[last])] = sums.values[tap];
                w.tile.denominators.put(place + tap * int(dilation[last]), sums.denominators[tap]);
            }
#pragma unroll
        for (int tap = lane_taps - 1; tap >= moved; --tap) {
            sums.values[tap] = sums.values[tap - moved];
            sums.denominators[tap] = sums.denominators[tap - moved];
        }
        if constexpr (row_lanes > 1)
            __syncwarp(); // the next lane takes the sums that left this one
    }
}

// Adds a chunk of the rows of taps of a row of blocks.
__device__ void add_rows(const Worker& w, const Scalar* columns, const Offset (&block)[rank], Rows rows)
{
    constexpr Offset step = Pattern<last>::block_step;
    const Offset number = rows.first + w.row;
    TapWeight outer{&w.window};
    const int row = w.group < groups && number < rows.end ? row_of(w, block, number, outer) : -1;
    const Strip strip(w, min(w.group, groups - 1));
    Way way{row >= 0, strip.last_block - strip.first};
    way.existing = way.used ? max(Offset(0), strip.end - strip.first) : 0;
    way.place = w.p.spare + w.group * w.p.strip_sums + max(row, 0) * row_places(w) +
                int(strip.last_block * stride[last] + w.tap * dilation[last] - strip.begin);
    way.columns = columns + ((way.used ? number : rows.first) * kernel[last] + w.tap) +
                  strip.last_block * w.p.block_stride[last];
    keep(way.columns);
#pragma unroll
    for (int i = 0; i < lane_taps; ++i)
        way.weights[i] = outer.value_of(w.tap + i, way.used && w.tap + i < kernel[last]);

    for (Offset chain = 0; chain < (step > 1 ? w.chains : 1); ++chain) {
        Sums sums;
        for (int first = 0; first < w.steps; first += batch) {
            const Offset before = chain + first * step;
            if constexpr (staged)
                stage(w, columns + rows.first * kernel[last], rows, before);
            if (before >= w.missing && before + (batch - 1) * step < w.end)
                add_batch<false>(w, way, before, sums);
            else
                add_batch<true>(w, way, before, sums);
        }
    }
}

// Walks the rows of blocks that reach the tile in descending order; `rows` are the rows of taps that may land
// in it, by the axes so far.
template <int axis = 0>
__device__ void walk(const Worker& w, const Scalar* columns, Offset (&block)[rank], Rows rows)
{
    if constexpr (axis == last) {
        for (Rows chunk = rows; chunk.first < rows.end; chunk.first += ROWS) {
            chunk.end = min(chunk.first + ROWS, rows.end);
            add_rows(w, columns, block, chunk);
        }
    } else {
        constexpr Offset step = dilation[axis] > 0 ? dilation[axis] : 1;
        const Offset begin = w.origin[axis] + w.p.pad[axis];
        const Offset end = min(w.origin[axis] + w.p.box[axis], w.p.size[axis]) + w.p.pad[axis];
        const Offset reach = (kernel[axis] - 1) * dilation[axis];
        const Offset first_block = max(Offset(0), begin - reach + stride[axis] - 1) / stride[axis];
        for (block[axis] = min(w.p.blocks[axis] - 1, (end - 1) / stride[axis]); block[axis] >= first_block;
             --block[axis]) {
            const Offset start = block[axis] * stride[axis];
            const Offset first_tap = max(Offset(0), begin - start + step - 1) / step;
            const Offset end_tap = min(kernel[axis], (end - 1 - start) / step + 1);
            if (first_tap < end_tap)
                walk<axis + 1>(w, columns + block[axis] * w.p.block_stride[axis], block,
                               {rows.first + first_tap * taps_from<axis + 1>(),
                                rows.end + (end_tap - 1) * taps_from<axis + 1>()});
        }
    }
}

// Stores a row of the tile.
__device__ void store_row(const Worker& w, Result* image, int row)
{
    constexpr int at_once = 4; // pixels of a lane, whose old values are loaded together
    const int lane = threadIdx.x;
    Offset pixel[rank], offset = 0;
    bool inside = true;
    int rest = row;
#pragma unroll
    for (int axis = last - 1; axis >= 0; --axis) {
        pixel[axis] = w.origin[axis] + rest % int(w.p.box[axis]);
        rest /= int(w.p.box[axis]);
        inside = inside && pixel[axis] < w.p.size[axis];
        offset += pixel[axis] * w.p.pixel_stride[axis];
    }
    const Offset end = inside ? min(w.p.box[last], w.p.size[last] - w.origin[last]) : 0;
    image += offset + w.origin[last] * w.p.pixel_stride[last];
    Taps taps[rank];
    find_taps<0, last>(taps, pixel, w.p);
    RowFactors<1> factors(taps, w.window, w.p);
    for (Offset first = lane; first < end; first += 32 * at_once) {
        OldPixel old[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const Offset column = first + 32 * i;
            old[i].load(image + column * w.p.pixel_stride[last], column < end);
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const Offset column = first + 32 * i;
            if (column >= end)
                continue;
            Offset strip = column;
            const int in_strip = int(w.p.strip.split(strip));
            const int place = w.p.spare + int(strip) * w.p.strip_sums + row * row_places(w) + in_strip;
            factors.set_taps(0, Taps::of<last>(w.origin[last] + column, w.p), w.p);
            Denominator denominator = w.tile.denominators.get(place);
            denominator.from_axes(factors, 0);
            image[column * w.p.pixel_stride[last]] =
                narrow(old[i].plus(denominator.finish(w.tile.sums[place])));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 16)
    col2im_gather_blocks(const Scalar* __restrict__ columns, Result* __restrict__ image, const Weights window,
                         const BlocksParameters p)
{
    __shared__ Tile tile;
    const int lane = threadIdx.x;
    const Place<1> place(blockIdx.x, p);
    const Scalar* plane_columns[1];
    place.point_at(plane_columns, columns, p);
    image = place.first_plane(image, p);

    Worker w{window, p, tile};
    int rows = 1;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
        w.origin[axis] = place.along[axis] * p.box[axis];
        if (axis < last)
            rows *= int(p.box[axis]);
    }
    w.group = lane / group_lanes;
    w.row = lane % group_lanes / row_lanes;
    w.tap = lane % row_lanes * lane_taps;
    const Offset before = (p.strip.divisor - 1 + (row_lanes * lane_taps - 1) * dilation[last]) /
                          stride[last]; // the last that reaches
    w.chains = min(Pattern<last>::block_step, before + 1);
    w.steps = int(before / Pattern<last>::block_step) + 1;
    w.missing = max(Offset(0), Strip(w, groups - 1).last_block + 1 - p.blocks[last]);
    w.end = min(Strip(w, 0).last_block + 1,
                (p.strip.divisor + (kernel[last] - 1) * dilation[last]) / stride[last]);

    for (int i = lane; i < p.spare + groups * p.strip_sums; i += 32) {
        tile.sums[i] = {};
        tile.denominators.put(i, {});
    }
    Offset block[rank];
    walk(w, plane_columns[0], block, {0, 1});
    __syncwarp();
    for (int row = 0; row < rows; ++row)
        store_row(w, image, row);
}
