"""What no block covers: said beforehand, refused in an average or filled, and covered by blocks beyond the end."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from cases import assert_same_bits, values
from executors import Call, run
from test_kinds import KINDS, kinds

import gpufold
from gpufold.calls import Unsupported
from gpufold.geometry import over_the_end
from gpufold.operations import variants


def random_case(seed):
    """Draw sizes, blocks and strides, some of which leave gaps, and axes smaller than a block."""
    rng = random.Random(seed)
    rank = rng.randint(1, 3)
    size = tuple(rng.randint(1, {1: 40, 2: 14, 3: 8}[rank]) for _ in range(rank))
    block = tuple(rng.randint(1, 6) for _ in range(rank))
    strides = tuple(rng.randint(1, 7) for _ in range(rank))
    return rng, tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2))), size, block, strides


def padded(array, size, block, strides, mode="constant"):
    """Pad an array to the end of the blocks that cover it."""
    margins = [(0, over_the_end(*axis)) for axis in zip(size, block, strides, strict=True)]
    return np.pad(array, [*[(0, 0)] * (array.ndim - len(size)), *margins], mode)


def coverage(size, block, strides, last):
    """Count the blocks on each element, one by one."""
    counts = np.zeros(size, int)
    for position in gpufold.grid_positions(size, block, strides=strides, last=last):
        counts[tuple(slice(start, start + side) for start, side in zip(position, block, strict=True))] += 1
    return counts


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_blocks_that_hang_over_are_those_of_a_padded_array(first):
    for seed in range(first, first + 50):
        _, lead, size, block, strides = random_case(seed)
        array = values((*lead, *size), np.float32, seed)
        whole = padded(array, size, block, strides)
        blocks = gpufold.array_to_blocks(array, block, strides=strides, last="over")
        assert_same_bits(blocks, gpufold.array_to_blocks(whole, block, strides=strides), f"seed {seed}")
        inside = (..., *map(slice, size))
        want = gpufold.blocks_to_array(blocks, whole.shape, block, strides=strides)[inside]
        got = gpufold.blocks_to_array(blocks, array.shape, block, strides=strides, last="over")
        assert_same_bits(got, want, f"seed {seed}")


@pytest.mark.parametrize("reduction", ["mean", "least_squares"])
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_an_average_of_what_is_not_covered_is_refused_or_filled(first, reduction):
    for seed in range(first, first + 50):
        rng, lead, size, block, strides = random_case(seed)
        last = "over" if any(side > extent for side, extent in zip(block, size, strict=True)) else rng.choice(LASTS)
        array = values((*lead, *size), np.float64, seed)
        blocks = gpufold.array_to_blocks(array, block, strides=strides, last=last)
        covered = coverage(size, block, strides, last) > 0

        def stitched(last=last, blocks=blocks, shape=array.shape, block=block, strides=strides, **options):
            return gpufold.blocks_to_array(
                blocks, shape, block, strides=strides, reduction=reduction, last=last, **options
            )

        if covered.all():
            np.testing.assert_allclose(stitched(), array, rtol=1e-14, err_msg=f"seed {seed}")
        else:
            with pytest.raises(
                ValueError,
                match=r"got .* use blocks with (last='over' .*|smaller strides), or fill_value=0 to fill",
            ):
                stitched()
        for fill_value in (0, 7, np.nan):
            want = np.where(covered, array, fill_value)
            np.testing.assert_allclose(stitched(fill_value=fill_value), want, rtol=1e-14, err_msg=f"seed {seed}")


LASTS = ("drop", "over")


@pytest.mark.parametrize("reduction", ["mean", "least_squares"])
def test_pixels_that_no_block_covers_are_refused_or_filled(reduction):
    """Of columns too, with dilations and pads: by geometry alone, and the pads that the message names cover all."""
    refused = 0
    for seed in range(300):
        rng = random.Random(seed)
        size, kernel, strides, dilations, begins, ends = (
            tuple(rng.randint(*most) for _ in range(2)) for most in ((1, 9), (1, 4), (1, 5), (0, 3), (0, 3), (0, 3))
        )
        try:
            columns = gpufold.im2col(np.ones((1, *size)), kernel, strides=strides, dilations=dilations,
                                     pads_begin=begins, pads_end=ends)  # fmt: skip
        except ValueError:
            continue  # no block fits
        steps = {"strides": strides, "dilations": dilations, "pads_begin": begins}
        folded = partial(gpufold.col2im, columns, size, kernel, **steps, pads_end=ends, reduction=reduction)
        covered = gpufold.col2im(columns, size, kernel, **steps, pads_end=ends) > 0
        assert_same_bits(folded(fill_value=np.nan), np.where(covered, 1, np.nan), f"seed {seed}")
        if covered.all():
            assert_same_bits(folded(), np.ones((1, *size)), f"seed {seed}")
            continue
        refused += 1
        with pytest.raises(ValueError, match=r"^col2im: .* use .*, or fill_value=0 to fill") as caught:
            folded()
        if found := re.search(r"on spatial axis (\d) \(image .* pads_end=(\d+), or", str(caught.value)):
            axis, pad = map(int, found.groups())
            image = np.ones((1, size[axis]))
            along = {name: value[axis] for name, value in steps.items()} | {"pads_end": pad}
            columns = gpufold.im2col(image, (kernel[axis],), **along)
            assert_same_bits(
                gpufold.col2im(columns, image.shape[1:], (kernel[axis],), reduction="mean", **along), image
            )
    assert refused > 50


@pytest.mark.peer("torch")
def test_tensors_are_folded_by_torch_s_names_with_what_was_named():
    import torch

    columns = torch.ones(1, 4, 4)
    with pytest.raises(ValueError, match=r"^fold: .* \(image axis 2\), .* fill_value=0 to fill"):
        gpufold.torch.fold(columns, 5, 2, stride=2, reduction="mean")
    filled = gpufold.torch.fold(columns, 5, 2, stride=2, reduction="mean", fill_value=7)
    assert filled[0, 0, 4].tolist() == [7] * 5
    module = gpufold.torch.Fold(5, 2, stride=2, reduction="mean", fill_value=7)
    assert torch.equal(module(columns), filled)


@kinds("torch", "jax", "dask")
@pytest.mark.parametrize("mode", ["reflect", "symmetric", "wrap"])
def test_what_lies_outside_is_the_same_in_every_array(mode, kind):
    """Positions are far outside too, and a window is multiplied in."""
    it = KINDS[kind]
    for seed in range(8):
        rng, lead, size, block, _ = random_case(seed)
        positions = [tuple(rng.randint(-most, most) for _ in size) for most in (4, 40, 40, 1 << 30)]
        array, window = values((*lead, *size), np.float32, seed), [values((side,), np.float32, seed) for side in block]
        want = gpufold.take_blocks(array, positions, block, mode=mode, window=window)
        given, weights = it.to(array), window if kind == "dask" else [*map(it.to, window)]
        got = gpufold.take_blocks(given, positions, block, mode=mode, window=weights)
        assert_same_bits(it.back(got), want, f"seed {seed}")
        assert type(got) is type(given)


@pytest.mark.peer("torch")
def test_gradients_of_what_lies_outside_go_to_where_it_came_from():
    import torch

    array = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    positions, blocks = [(-5, 2), (1, -9), (7, 8)], partial(gpufold.take_blocks, block_shape=(3, 2), mode="reflect")
    assert torch.autograd.gradcheck(lambda x: blocks(x, positions), (array,))
    traced = torch.compile(lambda x: blocks(x, positions), backend="eager", fullgraph=True)
    assert torch.equal(traced(array), blocks(array, positions))


@kinds("numpy", "torch", "jax")
def test_a_stitcher_shows_what_no_tile_covers(kind):
    it = KINDS[kind]
    stitcher = gpufold.Stitcher((2, 7), (3,))
    stitcher.add(it.to(np.ones((2, 2, 3), np.float32)), [(0,), (2,)])
    assert it.back(stitcher.result())[..., 5:].tolist() == [[0, 0]] * 2
    shown = it.back(stitcher.result(fill_value=np.nan))
    assert np.isnan(shown).sum(-1).tolist() == [2, 2]
    assert (shown[..., :5] == 1).all()
    slabs = gpufold.Stitcher((None,), 2)
    slabs.add(it.to(np.ones((2, 2), np.float32)), [(0,), (4,)])
    assert it.back(slabs.result(fill_value=-1)[1]).tolist() == [1, 1, -1, -1, 1, 1]


def put_back(blocks, like, block, strides, **options):
    options = {"strides": strides, "reduction": "mean", "last": "over", "fill_value": 3, **options}
    return gpufold.blocks_to_array(blocks, like.shape, block, **options)


@pytest.mark.hostcuda
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("executor", ["plain", "observed"])
def test_kernels_take_and_put_blocks_that_hang_over(seed, executor):
    _, lead, size, block, strides = random_case(seed)
    array = values((*lead, *size), np.float32, seed)
    taken = Call("array_to_blocks", array, (block,), {"strides": strides, "last": "over"})
    blocks = taken.on(array)
    options = {"strides": strides, "reduction": "mean", "last": "over", "fill_value": 0}
    for call in (taken, Call("blocks_to_array", blocks, (array.shape, block), options)):
        for variant in variants(call.operation):
            with suppress(Unsupported):
                _, arrays = run(call, variant, executor=executor)
                assert_same_bits(arrays.result, call.on(call.data), f"{variant}: {call}")


@kinds("torch", "jax", "dask")
@pytest.mark.parametrize("seed", range(12))
def test_arrays_of_every_kind_are_covered_alike(seed, kind):
    it, (_, lead, size, block, strides) = KINDS[kind], random_case(seed)
    array = values((*lead, *size), np.float32, seed)
    blocks = gpufold.array_to_blocks(array, block, strides=strides, last="over")
    chunks = {"chunks": 1 + seed % 5} if kind == "dask" else {}
    got = put_back(it.to(blocks), array, block, strides, **chunks)
    assert_same_bits(it.back(got), put_back(blocks, array, block, strides))


@pytest.mark.peer("torch")
@pytest.mark.parametrize("seed", range(12))
def test_gradients_are_of_what_is_covered(seed):
    import torch

    _, lead, size, block, strides = random_case(seed)
    tensor = torch.rand(*lead, *size, requires_grad=True)
    put_back(
        gpufold.array_to_blocks(tensor, block, strides=strides, last="over"), tensor, block, strides
    ).sum().backward()
    covered = np.broadcast_to(coverage(size, block, strides, "over") > 0, tensor.shape)
    np.testing.assert_allclose(tensor.grad, covered, rtol=1e-5)


@pytest.mark.peer("torch")
def test_a_compiled_mean_of_what_is_not_covered_is_refused_or_filled():
    """As soon as sizes have values: where they are symbols, when the program runs."""
    import torch

    def mean(blocks, like, **options):
        return gpufold.blocks_to_array(blocks, like.shape, (3,), strides=3, reduction="mean", **options)

    blocks, said = torch.ones(2, 3), "blocks must cover every element with reduction='mean', got 2 of 8 uncovered"
    for dynamic in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(mean, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        assert compiled(blocks, torch.ones(6)).tolist() == [1] * 6
        with pytest.raises(Exception, match=said):
            compiled(blocks, torch.ones(8))
        assert compiled(blocks, torch.ones(8), fill_value=0).tolist() == [1] * 6 + [0] * 2
    with pytest.raises(Exception, match=said):
        torch.jit.trace(lambda blocks: mean(blocks, torch.ones(8)), blocks)
