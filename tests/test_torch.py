"""gpufold.torch: right gradients of every kind and under every transform, what is written into, and refusals."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import sys
import warnings
import weakref
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import assert_same_bits, fold
from fronts import AVERAGED, BEYOND, EMPTY, EVERY, FOLDED, LINEAR, PLACES, as_array, as_tensor, call_by, named
from processes import python
from test_wrong_arguments import TABLE, TORCH, made, names_of, read_only
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import gpufold.torch
from gpufold.calls import MODES
from gpufold.torch import executing

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def tensors_of(call, dtype, seed=0, learns=False):
    """Tensors of a call, of which a window under a mean does not learn."""
    given = [*map(as_tensor, call.arrays(dtype, seed))]
    return [each.requires_grad_(learns and place < call.differentiable) for place, each in enumerate(given)]


def placed(call, to="cpu"):
    """Return a call whose positions, if there are any, are a tensor on a device."""
    return call.with_arrays_of(SimpleNamespace(asarray=partial(torch.asarray, device=to)))


# ---- Values


LAYOUTS = {
    "as it is": torch.clone,
    "one element further": lambda tensor: torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape),
    "every other element": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "repeated": lambda tensor: tensor[:1].expand(tensor.shape),
    "in another order": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "conjugated": lambda tensor: tensor.conj(),
    "negative": lambda tensor: torch._neg_view(tensor.neg()),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "of inference mode": torch.inference_mode()(torch.clone),
}
"""Layouts of tensors in memory, and what else torch knows of them."""


@pytest.mark.parametrize("layout", LAYOUTS)
@named([each for each in LINEAR if each.operation != "add_blocks"])
def test_any_layout_is_read_where_it_lies(call, layout):
    (data,) = tensors_of(call, "complex64")
    laid_out = LAYOUTS[layout](data)
    assert torch.equal(call(laid_out), call(as_tensor(as_array(laid_out))))


def test_nothing_is_copied_on_the_way_to_numpy(monkeypatch):
    seen = []
    monkeypatch.setattr(executing, "run", lambda call, library, data, result, *rest: seen.append((data, result)))
    for dtype in (torch.float32, torch.bfloat16, torch.uint16):
        data = torch.zeros(6, 6, dtype=dtype).T
        result = fold(replace(FOLDED, batch=None), data)
        array, into = seen.pop()
        assert array.__array_interface__["data"][0] == data.data_ptr()
        assert array.strides == tuple(step * data.element_size() for step in data.stride())
        assert into.__array_interface__["data"][0] == result.data_ptr()


# ---- Gradients


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@named([*EVERY, *BEYOND])
def test_gradients(call, dtype, request):
    given = tensors_of(call, dtype, learns=True)
    fast = dtype == "complex128" and not request.config.getoption("--many")
    for settings in ({}, {"check_forward_ad": True, "check_backward_ad": False}, {"check_batched_grad": True}):
        assert torch.autograd.gradcheck(call, given, fast_mode=fast, **settings)
    assert torch.autograd.gradgradcheck(call, given, fast_mode=fast)


@named(EMPTY)
def test_what_has_no_elements_has_gradients_too(call):
    given = tensors_of(call, "float32", learns=True)
    call(*given).sum().backward()
    assert [each.grad.shape for each in given] == [each.shape for each in given]
    assert not any(each.grad.any() for each in given[len(call.numbers) :])


def differentiated(call):
    return call.differentiated(tensors_of(call, "float64"))


def every(given):
    return tuple(range(len(given)))


def energy(function):
    return lambda *of: function(*of).square().sum()


def by_autograd(function, given):
    leaves = [each.clone().requires_grad_() for each in given]
    return torch.autograd.grad(energy(function)(*leaves), leaves)


def doubled(given):
    return tuple([torch.stack([each, each.sin()]) for each in given])


def each_of(function, given):
    """Return a function's results for each row of tensors, stacked."""
    return [*map(torch.stack, zip(*(function(row) for row in zip(*doubled(given), strict=True)), strict=True))]


by = torch.autograd.functional
TRANSFORMS = {
    "grad": (lambda f, given: torch.func.grad(energy(f), every(given))(*given), by_autograd),
    "jvp": (
        lambda f, given: torch.func.jvp(f, given, tuple([each.cos() for each in given])),
        lambda f, given: by.jvp(f, given, tuple([each.cos() for each in given])),
    ),
    "jacrev": (lambda f, given: torch.func.jacrev(f, every(given))(*given), by.jacobian),
    "jacfwd": (lambda f, given: torch.func.jacfwd(f, every(given))(*given), by.jacobian),
    "hessian": (
        lambda f, given: torch.func.hessian(energy(f), every(given))(*given),
        lambda f, given: by.hessian(energy(f), given),
    ),
    "jacrev of jacrev": (
        lambda f, given: torch.func.jacrev(torch.func.jacrev(energy(f), every(given)), every(given))(*given),
        lambda f, given: by.hessian(energy(f), given),
    ),
    "jacfwd of jacfwd": (
        lambda f, given: torch.func.jacfwd(torch.func.jacfwd(energy(f), every(given)), every(given))(*given),
        lambda f, given: by.hessian(energy(f), given),
    ),
    "vmap": (
        lambda f, given: [torch.vmap(f)(*doubled(given))],
        lambda f, given: each_of(lambda row: [f(*row)], given),
    ),
    "vmap of grad": (
        lambda f, given: torch.vmap(torch.func.grad(energy(f), every(given)))(*doubled(given)),
        lambda f, given: each_of(lambda row: by_autograd(f, row), given),
    ),
}
"""What a transform makes of a function at tensors, and the same by calls and autograd alone."""


@pytest.mark.some(3)
@pytest.mark.parametrize("name", TRANSFORMS)
@named(EVERY)
def test_transforms_of_functions(call, name):
    function, given = differentiated(call)
    transform, plain = TRANSFORMS[name]
    got = transform(function, given)
    torch.testing.assert_close([*got], [*plain(function, given)])
    functionalized = torch.func.functionalize(lambda *of: transform(function, of))(*given)
    torch.testing.assert_close([*functionalized], [*got], rtol=0, atol=0)


@named(EVERY)
def test_what_a_transform_saved_serves_after_it_ended(call):
    function, given = differentiated(placed(call))

    def leaves():
        return [each.clone().requires_grad_() for each in given]

    result, back = torch.func.vjp(function, *given)
    of = leaves()
    want = torch.autograd.grad(function(*of), of, result)
    assert all(map(torch.equal, back(result), want))
    _, back = torch.func.vjp(torch.vmap(function), *[each[None] for each in given])
    torch.testing.assert_close([each[0] for each in back(result[None])], [*want])
    _, outer = torch.func.vjp(lambda *of: torch.func.vjp(function, *of)[1](result), *given)
    of = leaves()
    first = torch.autograd.grad(function(*of), of, result, create_graph=True)
    recorded = [each for each in first if each.requires_grad]
    second = torch.autograd.grad(recorded, of, [each.detach() for each in recorded], allow_unused=True,
                                 materialize_grads=True) if recorded else [*map(torch.zeros_like, of)]  # fmt: skip
    torch.testing.assert_close([*outer(tuple([each.detach() for each in first]))], [*second])


def test_a_tensor_that_left_a_transform_is_what_it_stood_for():
    left = []

    def leave(*tensors):
        left[:] = tensors
        return tensors[0].sum()

    picture, tiles, window, places = torch.randn(5, 4), torch.randn(4, 3, 2), torch.rand(3, 2), torch.tensor(PLACES)
    torch.func.grad(lambda picture: torch.func.grad(leave)(picture, tiles * picture.sum(), window, places))
    torch.func.vjp(lambda *of: torch.func.vjp(leave, *of)[0], picture, tiles, window)
    array, blocks, weights = left
    want = gpufold.torch.add_blocks(picture, tiles, places, window=window)
    assert torch.equal(gpufold.torch.add_blocks(array, blocks, places, window=weights), want)
    assert torch.equal(gpufold.torch.take_blocks(array, places, (3, 2), window=weights),
                       gpufold.torch.take_blocks(picture, places, (3, 2), window=window))  # fmt: skip
    gpufold.torch.add_blocks_(array, blocks, places, window=weights)
    assert torch.equal(picture, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precisions_and_their_gradients_are_summed_in_float32(dtype):
    given = columns, window, picture = [
        torch.ones(shape, dtype=dtype, requires_grad=True) for shape in ((4096, 1), 4096, (2, 4))
    ]
    image = gpufold.torch.col2im(columns, (1,), (4096,), dilations=0, window=window)
    taken = gpufold.torch.take_blocks(picture, torch.full((4096, 2), -(2**40)), (1, 1), mode="edge")
    (image.sum() + taken.sum()).backward()
    assert image.item() == picture.grad[0, 0] == 4096
    assert {each.dtype for each in (image, taken, *(leaf.grad for leaf in given))} == {dtype}


@named([each for each in AVERAGED if each.weights])
def test_a_window_without_a_gradient_says_so(call):
    given, number = [each.requires_grad_() for each in tensors_of(call, "float64")], len(call.numbers)
    detached = [each.detach() for each in given]
    for refused in (
        lambda: call(*given),
        lambda: torch.func.jacfwd(call, number)(*detached),
        lambda: torch.func.grad(lambda *each: call(*each).sum(), number)(*detached),
    ):
        with pytest.raises(ValueError, match=r"window may require a gradient only with reduction='sum'"):
            refused()
    with torch.no_grad():
        call(*given)


def test_a_weight_that_no_float32_holds_has_a_gradient():
    window = torch.tensor([1e-60, -1e-60, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    gpufold.torch.fold(torch.ones(1, 4, 3), (6,), (4,), window=window).sum().backward()
    assert window.grad.tolist() == [3, 3, 3, 3]


def test_the_data_is_kept_for_a_windows_gradient_alone():
    data = torch.randn(2, 6, 6, requires_grad=True)
    for requires_grad in (False, True):
        kept = []

        def keep(tensor, kept=kept):
            kept.append(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            fold(FOLDED, data, window=torch.rand(3, 2, requires_grad=requires_grad))
        assert (data.data_ptr() in kept) == requires_grad


def test_what_is_added_to_may_alone_require_a_gradient():
    picture = torch.zeros(5, 4, requires_grad=True)
    assert gpufold.torch.add_blocks(picture, torch.zeros(1, 2, 2), [(0, 0)]).requires_grad


def test_a_result_that_is_changed_leaves_the_tangent_of_what_was_added_to():
    picture, tangent = torch.zeros(5, 4), torch.ones(5, 4)

    def tripled(picture):
        return gpufold.torch.add_blocks(picture, torch.zeros(1, 2, 2), [(0, 0)]).mul_(3)

    _, of_result = torch.func.jvp(tripled, (picture,), (tangent,))
    assert (of_result == 3).all()
    assert (tangent == 1).all()


def test_an_average_has_no_gradient_where_nothing_landed():
    given = torch.randn(2, 3, requires_grad=True), torch.tensor([2.0, 0.0, 1e-39], requires_grad=True)
    gradients = torch.autograd.grad(gpufold.torch.average(*given).square().sum(), given, create_graph=True)
    seconds = torch.autograd.grad(gradients[0].sum() + gradients[1].sum(), given)
    for each in (*gradients, *seconds):
        assert each.isfinite().all()
        assert not each[..., 1:].any()
        assert each[..., :1].all()


WIDER = [("float32", "float64"), ("bfloat16", "float32"), ("float16", "float32"), ("complex64", "complex128")]


@pytest.mark.some(3, all=3)
@pytest.mark.parametrize(("narrow", "wide"), WIDER)
@pytest.mark.parametrize(
    "name", ["col2im-symmetric", "col2im-full", "col2im-mean-separable", "blocks_to_array-mean", "add_blocks-full"]
)
def test_sums_in_a_wider_dtype_are_those_of_converted_data(name, narrow, wide):
    call = widening = call_by(name)
    (data, *others), first = tensors_of(call, narrow), []
    if name == "add_blocks-full":  # into a tensor of the wider dtype
        first, data, others = [data.to(getattr(torch, wide))], others[0], [others[1].double()]
    else:
        widening = call.with_options(dtype=wide)
    want = widening(*first, data, *others)
    assert_same_bits(as_array(want), widening(*map(as_array, (*first, data, *others))))
    torch.compiler.reset()
    compiled = torch.compile(widening.of(gpufold.torch), fullgraph=True, backend="aot_eager")
    gradients = []
    for function, summed in ((widening, data), (compiled, data), (call, data.to(getattr(torch, wide)))):
        leaf, *window = [each.clone().requires_grad_() for each in (summed, *others)]
        window = [each.requires_grad_(not call.averages) for each in window]
        result = function(*first, leaf, *window)
        assert torch.equal(result, want)
        asked = [each for each in (leaf, *window) if each.requires_grad]
        gradients.append(torch.autograd.grad(result.abs().square().sum(), asked))
    for of_data, *of_window in gradients[:2]:
        assert torch.equal(of_data, gradients[2][0].to(data.dtype))
        assert all(map(torch.equal, of_window, gradients[2][1:]))


# ---- What a caller changes before the gradient is asked for


def stitch(tiles, places):
    stitcher = gpufold.Stitcher((5, 4), (3, 2))
    stitcher.add(tiles, places)
    return stitcher.result()


class Mode(TorchDispatchMode):
    """Remembers the operators that it sees, and their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append((function, args))
        return function(*args, **kwargs or {})


POSITIONED = {
    "take_blocks": lambda tensor, places: gpufold.torch.take_blocks(tensor, places, (3, 2)),
    "take_blocks-windowed": lambda tensor, places: gpufold.torch.take_blocks(
        tensor, places, (3, 2), window=tensor[:3, :2], mode="edge"),
    "add_blocks": lambda tensor, places: gpufold.torch.add_blocks(torch.zeros(5, 4), tensor.expand(4, 5, 4), places),
    "add_blocks_": lambda tensor, places: gpufold.torch.add_blocks_(
        torch.zeros(5, 4), tensor.expand(4, 5, 4), places, window=tensor, weight_out=torch.zeros(5, 4)),
    "Stitcher": lambda tensor, places: stitch(tensor[:3, :2].expand(4, 3, 2), places),
}  # fmt: skip


@pytest.mark.filterwarnings("error:The given NumPy array is not writable:UserWarning")
@pytest.mark.parametrize("kind", [np.asarray, memoryview, read_only], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("call", POSITIONED.values(), ids=POSITIONED)
@pytest.mark.parametrize("compiled", [False, True])
def test_an_array_of_positions_may_be_used_again_before_the_gradient(call, kind, compiled):
    if compiled and (kind is not np.asarray or call is POSITIONED["Stitcher"]):
        return
    places, tensor = np.array(PLACES), torch.randn(5, 4, requires_grad=True)
    (want,) = torch.autograd.grad(call(tensor, places.copy()).square().sum(), tensor)
    torch.compiler.reset()
    function = torch.compile(call, backend="aot_eager") if compiled else call
    result = function(tensor, kind(places)).square().sum()
    places[...] = 0
    torch.testing.assert_close(torch.autograd.grad(result, tensor)[0], want)


def test_a_traced_array_of_positions_is_a_constant():
    places, picture = np.array(PLACES), torch.randn(5, 4)
    want = gpufold.torch.take_blocks(picture, PLACES, (3, 2))
    programs = [
        record(lambda given: gpufold.torch.take_blocks(given, places, (3, 2)), picture)
        for record in (torch.jit.trace, lambda function, given: make_fx(function)(given))
    ]
    places[...] = 0
    assert all(torch.equal(program(picture), want) for program in programs)


@pytest.mark.parametrize("call", POSITIONED.values(), ids=POSITIONED)
def test_a_tensor_of_positions_that_is_written_into_is_noticed(call):
    places, tensor = torch.tensor(PLACES), torch.randn(5, 4, requires_grad=True)
    result = call(tensor, places).sum()
    places.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


# In place


FORBIDDEN = {
    "a leaf": ("is a leaf that requires", lambda: torch.zeros(5, 4, requires_grad=True)),
    "a parameter": ("is a leaf that requires", lambda: torch.nn.Parameter(torch.zeros(5, 4))),
    "a view of a leaf": ("is a view of a leaf", lambda: torch.zeros(2, 5, 4, requires_grad=True)[0]),
    "one of several views": ("is a view that was made", lambda: torch.zeros(2, 5, 4).unbind()[0]),
    "a view made without gradients": ("is a view that", torch.no_grad()(lambda: torch.zeros(2, 5, 4)[0])),
    "a view made in inference mode": (
        "is a view that", lambda: torch.inference_mode()(torch.zeros(2, 5, 4).select)(0, 0)),
    "of inference mode": ("is of inference mode", torch.inference_mode()(lambda: torch.zeros(5, 4))),
    "one element": ("must not overlap itself", lambda: torch.zeros(1).expand(5, 4)),
    "one row": ("must not overlap itself", lambda: torch.zeros(4).expand(5, 4)),
    "rows that overlap": ("must not overlap itself", lambda: torch.zeros(20).as_strided((5, 4), (3, 1))),
    "diagonals": ("must not overlap itself", lambda: torch.zeros(20).as_strided((5, 4), (1, 1))),
    "freed": ("must have its elements in memory", lambda: shrunk(torch.zeros(5, 4), 0)),
    "sparse": ("must be a dense tensor", lambda: torch.zeros(5, 4).to_sparse()),
}  # fmt: skip
"""Tensors that nothing may be added to, each with what is said of it."""


@pytest.mark.parametrize("name", ["array", "weight_out"])
@pytest.mark.parametrize(
    ("traced", "kind"), [*((False, kind) for kind in FORBIDDEN), *((True, kind) for kind in [*FORBIDDEN][:7])]
)
def test_both_are_added_to_or_none(name, kind, traced):
    message, wrong = FORBIDDEN[kind]
    blocks, window = torch.randn(4, 3, 2, requires_grad=True), torch.rand(3, 2, requires_grad=True)
    right, other = torch.zeros(5, 4), "weight_out" if name == "array" else "array"
    version = right._version
    for _ in range(2):
        given = {name: wrong(), other: right}
        with (
            Mode() if traced else nullcontext(),
            pytest.raises((TypeError, ValueError), match=f"add_blocks_?: {name} {message}"),
        ):
            gpufold.torch.add_blocks_(blocks=blocks, positions=PLACES, window=window, **given)
    assert (right._version, right.requires_grad, right.any().item()) == (version, False, False)


def test_with_weights_per_block_what_overlaps_is_refused_too():
    """Sums were written over by weights."""
    room = torch.zeros(8)
    for array, weight_out, message in (
        (room, room, "weight_out must share no memory with array"),
        (room[:5], room[3:], "weight_out must share no memory with array"),
        (room[:5], torch.zeros(1).expand(5), "weight_out must not overlap itself"),
        (torch.zeros(1).expand(5), None, "array must not overlap itself"),
        (room, None, "array must share no memory with weights"),
        (torch.zeros(5), torch.zeros(5).to_sparse(), "weight_out must be a dense tensor"),
    ):
        weights = room[:1] if message.endswith("weights") else torch.ones(1)
        with pytest.raises((TypeError, ValueError), match=f"^add_blocks_: {message}"):
            gpufold.torch.add_blocks_(array, torch.ones(1, 2), [0], weights=weights, weight_out=weight_out)
    assert not room.any()
    with Mode(), pytest.raises(ValueError, match="weight_out must share no memory with array"):
        gpufold.torch.add_blocks_(room, torch.ones(1, 2), [0], weight_out=room)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda image: gpufold.torch.im2col(image, (2,)), [(4, 9)]),
        (lambda data, window: gpufold.torch.col2im(data, (9,), (2,), window=window), [(4, 8), (2,)]),
        (lambda array: gpufold.torch.take_blocks(array, [0, 1], 2), [(9,)]),
        (lambda array, blocks: gpufold.torch.add_blocks(array, blocks, [0, 1]), [(9,), (2, 2)]),
        (gpufold.torch.average, [(3, 9), (9,)]),
        (lambda data: gpufold.torch.space_to_batch(data, (1, 2)), [(2, 8)]),
    ],
)
def test_a_batch_of_nothing_has_a_batch_of_no_results(function, shapes):
    one = function(*map(torch.ones, shapes))
    for dim in (0, 1):
        none = [torch.ones(*shape[:dim], 0, *shape[dim:]) for shape in shapes]
        assert torch.vmap(function, dim)(*none).shape == (0, *one.shape)
        gradient = torch.func.grad(lambda *given: function(*given).sum())
        assert torch.vmap(gradient, dim)(*none).shape == (0, *shapes[0])


@pytest.mark.parametrize("positions", [[0, 2], (0, 2), [], [(0,), (2,)]], ids=str)
def test_compiled_calls_take_positions_along_one_axis_as_eager_ones_do(positions):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda array: gpufold.torch.take_blocks(array, positions, 2), backend="aot_eager", fullgraph=True
    )
    array = torch.arange(9.0)
    assert torch.equal(compiled(array), gpufold.torch.take_blocks(array, positions, 2))


def test_transforms_add_to_both_or_none():
    out, weight = torch.zeros(2, 5, 4), torch.zeros(5, 4)

    def add(out, window):
        return gpufold.torch.add_blocks_(out, torch.ones(4, 3, 2), PLACES, window=window, weight_out=weight)

    with pytest.raises(RuntimeError, match="vmap: inplace"):
        torch.vmap(add)(out, torch.ones(2, 3, 2))
    with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
        torch.func.grad(lambda window: add(out[0] + 0, window).sum())(torch.ones(3, 2))
    assert not out.any()
    assert not weight.any()


def test_adding_in_place_returns_the_tensor_whatever_its_layout():
    blocks = torch.randn(4, 3, 2)
    for out in (torch.randn(5, 4), torch.zeros(5, 8).T[:4].T, torch.zeros(40).as_strided((5, 4), (1, 6))):
        want, version = gpufold.torch.add_blocks(out, blocks, PLACES), out._version
        assert gpufold.torch.add_blocks_(out, blocks, torch.tensor(PLACES)) is out
        assert torch.equal(out, want)
        assert out._version > version


@pytest.mark.parametrize("window", ["none", "full", "separable"])
@pytest.mark.parametrize("name", ["bfloat16", "float32", "complex128"])
def test_weights_are_added_in_the_same_pass(on, name, window):
    dtype = getattr(torch, name)
    given = {"none": None, "full": torch.rand(3, 2), "separable": [torch.rand(3), torch.rand(2)]}[window]
    blocks, real = torch.randn(4, 2, 3, 2, dtype=dtype), torch.float64 if name == "complex128" else torch.float32
    arrays = [as_array(each).copy() for each in (torch.ones(2, 5, 4, dtype=dtype), torch.ones(5, 4, dtype=real))]
    weights = None if given is None else given.numpy() if window == "full" else [each.numpy() for each in given]
    gpufold.add_blocks_(arrays[0], as_array(blocks), PLACES, window=weights, weight_out=arrays[1])
    torch.compiler.reset()
    compiled = torch.compile(gpufold.torch.add_blocks_, fullgraph=True, backend="aot_eager")
    ways = (gpufold.torch.add_blocks_, False), (gpufold.torch.add_blocks_, True), (compiled, False)
    for function, leaf in ways[: 3 if (on, name) == ("cpu", "float32") else 2]:
        out, weight = torch.ones(2, 5, 4, dtype=dtype), torch.ones(4, 5, dtype=real).T
        versions = out._version, weight._version
        function(out, blocks.clone().requires_grad_(leaf), PLACES, window=given, weight_out=weight)
        assert out._version > versions[0]
        assert weight._version > versions[1]
        assert_same_bits(as_array(out), arrays[0])
        assert_same_bits(as_array(weight), arrays[1])


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_weights_stay_as_they_are_where_sums_have_no_elements(traced, learns, weighed):
    weight, blocks = torch.zeros(5, 4), torch.ones(4, 0, 3, 2, requires_grad=learns)
    weights = torch.ones(4) if weighed else None
    with Mode() if traced else nullcontext():
        gpufold.torch.add_blocks_(torch.zeros(0, 5, 4), blocks, PLACES, weights=weights, weight_out=weight)
    assert not weight.any()
    given, weight = blocks.detach().numpy(), weight.numpy()
    weights = np.ones(4, np.float32) if weighed else None
    gpufold.add_blocks_(np.zeros((0, 5, 4), np.float32), given, PLACES, weights=weights, weight_out=weight)
    assert not weight.any()


def test_autograd_sees_what_is_added_in_place():
    out = torch.ones(5, 4, requires_grad=True)
    squared = out.clone()
    result = squared.square()
    gpufold.torch.add_blocks_(squared, torch.ones(1, 2, 2), [(0, 0)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    plain = torch.ones(5, 4)
    result = (out * plain).sum()
    gpufold.torch.add_blocks_(plain, torch.ones(1, 2, 2), [(0, 0)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    blocks = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    base = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: gpufold.torch.add_blocks_(a.clone(), b, PLACES), (base, blocks))
    view = base.clone()
    gpufold.torch.add_blocks_(view[1:4], blocks, PLACES)
    view.sum().backward()
    assert torch.equal(base.grad, torch.ones_like(base))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128], ids=str)
def test_results_lie_in_torchs_memory(dtype):
    columns = torch.ones(2, 8, 9, dtype=dtype)
    for result in (gpufold.torch.fold(columns, 4, 2), gpufold.torch.fold(columns.requires_grad_(), 4, 2).detach()):
        assert result.data_ptr() % 64 == 0
        result.untyped_storage().resize_(0)
    columns.detach().untyped_storage().resize_(0)  # that of an argument too


# ---- Tiles stitched as they come


def test_what_is_stitched_has_gradients():
    tiles = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    window = (torch.rand(4, dtype=torch.float64) + 0.5).requires_grad_()

    def stitched(tiles, window):
        stitcher = gpufold.Stitcher((2, 8), (4,), window=window)
        stitcher.add(tiles[:2], [(0,), (2,)])
        stitcher.add(tiles[2:], torch.tensor([[4]]))
        return stitcher.result()

    assert torch.autograd.gradcheck(stitched, (tiles, window))


@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
@pytest.mark.parametrize("learns", ["tiles", "window"])
def test_sums_that_have_gradients_are_not_pickled(learns, reduction):
    tiles, window = torch.randn(2, 4), torch.rand(4) + 0.5
    stitcher = gpufold.Stitcher((8,), (4,), window=window, reduction=reduction)
    stitcher.add(tiles, [(0,), (2,)])
    for same in (pickle.loads(pickle.dumps(stitcher)), copy.deepcopy(stitcher)):
        same.add(tiles, torch.tensor([[1], [4]]))
        assert same.result().shape == (8,)
    learned = {"tiles": tiles, "window": window}
    learned[learns] = learned[learns].requires_grad_()
    with torch.no_grad():
        stitcher.add(learned["tiles"], [(4,), (4,)], window=learned["window"])
    assert torch.equal(pickle.loads(pickle.dumps(stitcher)).result(), stitcher.result())
    stitcher.add(learned["tiles"], [(4,), (4,)], window=learned["window"])
    for save in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="Stitcher: sums that have gradients cannot be pickled or copied"):
            save(stitcher)


# ---- torch's fold and unfold, and those who use them


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lead", [(2, 3), (3,)], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [(4, 2), ((4, 4), (2, 2)), ([4, 4], [2, 2]), (5, 2, 2), ((6, 5), (2, 3), (2, 1), 1, 3), (5, 3, 1, (2, 1), 2)],
    ids=str,
)
def test_modules_are_torchs(sizes, lead, dtype):
    size = (sizes[0],) * 2 if type(sizes[0]) is int else sizes[0]
    image = torch.randint(-4, 5, (*lead, *size)).to(dtype)
    columns = torch.nn.functional.unfold(image, *sizes[1:])
    for name, arguments, data in (("Fold", sizes, columns), ("Unfold", sizes[1:], image)):
        theirs, ours = getattr(torch.nn, name)(*arguments), getattr(gpufold.torch, name)(*arguments)
        assert isinstance(ours, type(theirs))
        assert repr(theirs) == repr(ours)
        assert theirs.state_dict().keys() == ours.state_dict().keys()
        leaves = [data.clone().requires_grad_() for _ in range(2)]
        results = [module(leaf) for module, leaf in zip((theirs, ours), leaves, strict=True)]
        assert torch.equal(*results)
        for result in results:
            result.backward(torch.ones_like(result))
        assert torch.equal(*[leaf.grad for leaf in leaves])


# ---- Errors

COLUMN = torch.zeros(4, 9)
with warnings.catch_warnings(action="ignore"):
    NESTED = torch.nested.nested_tensor([torch.ones(2)] * 2)


def shrunk(tensor, size):
    """Return a tensor whose storage has so many bytes."""
    tensor.untyped_storage().resize_(size)
    return tensor


CALLS = {name.removeprefix("gpufold.torch."): call for name, call in TABLE[TORCH]}
CALLS["take_blocks by index"] = CALLS["take_blocks"] | {"mode": "'reflect'"}
TENSORS = [
    (name, each)
    for name, call in CALLS.items()
    for each, value in call.items()
    if name.islower() and ("torch." in value or each == "positions")
]
"""Of each function, the arguments that are tensors."""


def given_to(name):
    """Return a function and arguments, tensors with memory of their own; a window under a mean could not learn."""
    code = {each: value for each, value in CALLS[name].items() if each != "reduction"}
    function, given = made(f"gpufold.torch.{name.partition(' ')[0]}", code, names_of(TORCH))
    tensors = {each: torch.as_tensor(value).clone() for each, value in given.items() if (name, each) in TENSORS}
    return function, given | tensors


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("way", ["first", "again", "learning", "operator", "transformed"])
@pytest.mark.parametrize(("name", "argument"), TENSORS)
def test_nothing_is_read_behind_a_storage(name, argument, way, size):
    function, given = given_to(name)
    if way == "again":
        function(**given_to(name)[1])
    if way == "learning":
        given |= {each: given[each].requires_grad_() for each in ("data", "blocks", "window") if each in given}
    shrunk(given[argument].detach(), size)
    before = {each: given[each].detach().clone() for of, each in TENSORS if of == name and each != argument}
    call = partial(function, **given)
    if way == "transformed":
        call = partial(torch.func.vjp, lambda _: function(**given), torch.ones(()))
    with (
        Mode() if way == "operator" else nullcontext(),
        pytest.raises(ValueError, match="must have its elements in memory, but its storage"),
    ):
        call()
    assert all(torch.equal(given[each].detach(), tensor) for each, tensor in before.items())


def test_a_view_of_a_larger_storage_is_read_as_far_as_it_goes():
    memory = torch.arange(40.0)
    view = memory[4:40].view(4, 9)
    memory.untyped_storage().resize_(160)
    want = gpufold.torch.col2im(view.clone(), (4, 4), (2, 2))
    for _ in range(2):
        assert torch.equal(gpufold.torch.col2im(view, (4, 4), (2, 2)), want)
    memory.untyped_storage().resize_(156)
    with pytest.raises(ValueError, match=r"col2im: data must have its elements in memory.* 156 bytes of the 160"):
        gpufold.torch.col2im(view, (4, 4), (2, 2))
    assert gpufold.torch.col2im(view[:0], (4, 4), (2, 2)).shape == (0, 4, 4)


def test_what_a_gradient_needs_may_not_be_freed_before():
    places, picture = torch.tensor(PLACES), torch.randn(5, 4, requires_grad=True)
    result = gpufold.torch.take_blocks(picture, places, (3, 2)).sum()
    shrunk(places, 8)
    with pytest.raises(ValueError, match="take_blocks: positions must have its elements in memory"):
        result.backward()


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "col2im: .*[Ss]parse", lambda: make_fx(lambda data: gpufold.torch.col2im(data, (4, 4), (2, 2)))(
            COLUMN.to_sparse())),
        (TypeError, "data has dtype quint8", lambda: gpufold.torch.col2im(
            torch.quantize_per_tensor(COLUMN, 0.1, 0, torch.quint8), (4, 4), (2, 2))),
        (TypeError, "data has dtype float8_e5m2, but the supported", lambda: gpufold.torch.col2im(
            COLUMN.to(torch.float8_e5m2), (4, 4), (2, 2))),
        (TypeError, "data has dtype complex32", lambda: gpufold.torch.col2im(
            COLUMN.to(torch.complex32), (4, 4), (2, 2))),
        *(
            (TypeError, r"input must be a dense tensor, got a nested one; pass each of input.unbind\(\)",
                lambda layout=layout: gpufold.torch.fold(torch.nested.nested_tensor([COLUMN], layout=layout), 4, 2))
            for layout in (torch.strided, torch.jagged)
        ),
        *(
            (TypeError, r"im2col: window must be a dense tensor, got a nested one; pass each of window.unbind\(\)",
                lambda window=window: gpufold.torch.im2col(COLUMN[None], (2, 2), window=window))
            for window in (NESTED, (torch.ones(2), NESTED))
        ),
        (TypeError, "Fold: window must be a dense tensor, got a nested", lambda: gpufold.torch.Fold(
            4, 2, window=NESTED)),
        (TypeError, "Stitcher: window must be a dense tensor, got a nested", lambda: gpufold.Stitcher(
            (4,), (2,), window=(NESTED,))),
        (TypeError, "weights must be on the CPU or a CUDA device, got device meta", lambda: gpufold.torch.add_blocks(
            COLUMN, torch.ones(1, 2, 2), [(0, 0)], weights=torch.ones(1, device="meta"))),
        (ValueError, "blocks must be on the device of array, cpu, got meta", lambda: gpufold.torch.add_blocks(
            COLUMN, torch.ones(1, 2, 2, device="meta"), [(0, 0)], weights=torch.ones(1))),
        (TypeError, "blocks has dtype float8_e5m2, but the supported ones are", lambda: gpufold.torch.add_blocks(
            COLUMN, torch.ones(1, 2, 2).to(torch.float8_e5m2), [(0, 0)], weights=torch.ones(1))),
        (TypeError, "weight_out must be a torch.Tensor", lambda: gpufold.torch.add_blocks_(
            COLUMN, torch.ones(1, 2, 2), [(0, 0)], weight_out=np.zeros((4, 9), np.float32))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_input_is_refused_in_gpufolds_words(error, message, call):
    with pytest.raises(error, match=message):
        call()


NOT_DENSE = {
    "sparse": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "mkldnn": torch.Tensor.to_mkldnn,
    "jagged": lambda tensor: torch.nested.nested_tensor([tensor[:1], tensor], layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", NOT_DENSE)
def test_what_is_not_dense_is_refused_in_every_mode(layout, mode):
    """In some torch itself would read it, and say so in its own words."""
    wrong = NOT_DENSE[layout](torch.ones(4, 9))
    message = "array must be a dense tensor, got (a nested one|layout torch)"
    with pytest.raises(TypeError, match=f"take_blocks: {message}"):
        gpufold.take_blocks(wrong, torch.tensor([(0, 0)]), (2, 2), mode=mode)
    with pytest.raises(TypeError, match=f"array_to_blocks: {message}"):
        gpufold.array_to_blocks(wrong, (2, 2), strides=2, last="over", mode=mode)
    with pytest.raises(TypeError, match="take_blocks: positions must be a dense tensor"):
        gpufold.take_blocks(torch.ones(4, 9), torch.tensor([(0, 0)]).to_sparse(), (2, 2), mode=mode)


@pytest.mark.parametrize(("like", "other"), [("cpu", "meta"), ("meta", "cpu")])
def test_tensors_with_elements_are_not_mixed_with_those_of_device_meta(like, other):
    column, blocks, weight = COLUMN.to(like), torch.ones(1, 2, 2, device=other), torch.ones(4, 9, device=other)
    for name, call in (
        ("add_blocks: blocks", lambda: gpufold.torch.add_blocks(column, blocks, [(0, 0)])),
        ("add_blocks_: blocks", lambda: gpufold.torch.add_blocks_(column, blocks, [(0, 0)])),
        ("average: weight", lambda: gpufold.torch.average(column, weight)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must be on the device of \w+, {like}, got {other}$"):
            call()
    with pytest.raises(ValueError, match=r"^im2col: window must be on the device of image, meta, got cpu$"):
        gpufold.torch.im2col(COLUMN[None].to("meta"), (2, 2), window=torch.ones(2, 2))


def test_bfloat16_needs_ml_dtypes_on_the_cpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    executing._dtype_of_array.cache_clear()
    with pytest.raises(ImportError, match=re.escape('pip install "gpufold[torch]"')):
        gpufold.torch.fold(COLUMN.bfloat16(), 4, 2)
    executing._dtype_of_array.cache_clear()


def test_a_torch_that_is_too_old_is_an_error_that_says_which_is_needed():
    script = "import torch; torch.__version__ = torch.torch_version.TorchVersion('2.5.1'); import gpufold.torch"
    with pytest.raises(AssertionError, match=r"ImportError: gpufold.torch needs torch 2.6 or newer, got 2.5.1"):
        python("-c", script)


class Wrapper(torch.Tensor):
    """A tensor that has another one, and no memory of its own."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, function(*args, **kwargs))


ARGUMENTS = {
    "col2im": ({"data": (4, 9), "output_size": (4, 4), "kernel_size": (2, 2)}, {"window": (2, 2)}),
    "array_to_blocks": ({"array": (4, 5), "block_shape": (2, 2)}, {"window": (2, 2)}),
    "take_blocks": ({"array": (4, 5), "positions": None, "block_shape": (2, 2)}, {"window": (2, 2)}),
    "add_blocks": ({"array": (4, 5), "blocks": (3, 2, 2), "positions": None}, {"window": (2, 2), "weights": (3,)}),
    "average": ({"numerator": (4, 5), "weight": (5,)}, {}),
}


@pytest.mark.parametrize(("name", "wrapped"), [
    (name, each) for name, (given, options) in ARGUMENTS.items() for each in (*given, *options)
    if not each.endswith(("_size", "_shape"))
])  # fmt: skip
def test_tensors_without_memory_of_their_own_are_asked(name, wrapped):
    given, options = ARGUMENTS[name]
    made = {
        each: torch.tensor([[0, 0], [1, 1], [2, -1]]) if each == "positions" else torch.rand(shape) + 0.5
        if not each.endswith(("_size", "_shape")) else shape for each, shape in {**given, **options}.items()
    }  # fmt: skip
    function = getattr(gpufold, name)
    result = function(**made | {wrapped: Wrapper(made[wrapped])})
    assert type(result) is Wrapper
    assert torch.equal(result.inner, function(**made))


def test_what_is_added_to_tensors_without_memory_of_their_own_is_not_lost():
    array, total = Wrapper(torch.zeros(4, 5)), Wrapper(torch.zeros(4, 5))
    gpufold.add_blocks_(array, torch.ones(1, 2, 2), [(0, 0)], weight_out=total)
    assert array.inner.sum() == total.inner.sum() == 4


def test_errors_keep_no_tensor():
    gc.disable()
    try:
        columns = torch.zeros(1, 8, 10)
        kept = weakref.ref(columns)
        with suppress(ValueError):
            gpufold.torch.fold(columns, 5, 2)
        del columns
        assert kept() is None
    finally:
        gc.enable()
