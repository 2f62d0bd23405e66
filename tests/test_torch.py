"""gpufold.torch: the values of NumPy's path, right gradients of every kind, and the same under compilers."""

from __future__ import annotations

import copy
import pickle
import random
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, DTYPES, random_case
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import gpufold.torch
from gpufold.torch import functions, rules, tensors

pytestmark = pytest.mark.peer("torch")


@dataclass(frozen=True)
class Operation:
    """A call of every function: its name, the shapes of its tensors by argument, and its other arguments."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    arguments: dict[str, Any] = field(default_factory=dict)
    window: tuple[tuple[int, ...], ...] = ()
    """Shapes of the window's tensors: one is a full window, several a separable one."""
    suffix: str = ""
    weights: str = "window"
    """The name of the argument that the window's tensors go to."""

    def __str__(self) -> str:
        return self.name + self.suffix

    @property
    def reduction(self) -> str:
        return self.arguments.get("reduction", "sum")

    def tensors(self, dtype, seed=0, requires_grad=False):
        """Random tensors of the call, the window's last, which are positive."""
        generator = torch.Generator().manual_seed(seed)
        made = [torch.randn(shape, dtype=dtype, generator=generator) for shape in self.shapes.values()]
        real = torch.empty((), dtype=dtype).abs().dtype
        made += [torch.rand(shape, dtype=real, generator=generator) + 0.5 for shape in self.window]
        return [each.requires_grad_(requires_grad) for each in made]

    def __call__(self, *given):
        """Call the function of gpufold.torch."""
        return self.of(gpufold.torch)(*given)

    def of(self, module):
        def call(*given):
            options = dict(self.arguments)
            arrays, window = given[: len(self.shapes)], given[len(self.shapes) :]
            if window:
                options[self.weights] = window[0] if len(self.window) == 1 else list(window)
            return getattr(module, self.name)(**dict(zip(self.shapes, arrays, strict=True)), **options)

        return call


FOLDED = {"output_size": (4, 3), "kernel_size": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (0, 1)}
TAKEN = {"kernel_size": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (0, 1)}
PLACES = [(0, 0), (-1, 2), (2, 1), (9, 9)]
FULL, SEPARABLE = ((3, 2),), ((3,), (2,))
BLOCKS = {"output_shape": (2, 7), "block_shape": (3,), "strides": 2}
COLUMNS, IMAGE = {"data": (2, 6, 6)}, {"image": (2, 1, 4, 3)}
ADDED = {"array": (2, 4, 3), "blocks": (4, 2, 3, 2)}
AT = {"positions": PLACES, "block_shape": (3, 2)}
FAR = {"positions": [(-1, 1), (3, -2), (-(2**63), 2), (2**62, 2**63 - 1)], "block_shape": (3, 2), "mode": "edge"}

LINEAR = [
    Operation("col2im", COLUMNS, FOLDED),
    Operation("col2im", {"data": (12, 6)}, FOLDED, suffix="-unbatched"),
    Operation("im2col", IMAGE, TAKEN),
    Operation("im2col", {"image": (2, 4, 3)}, TAKEN, suffix="-unbatched"),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS),
    Operation("array_to_blocks", {"array": (2, 7)}, {"block_shape": (3,), "strides": 2}),
    Operation("batch_to_space", {"data": (8, 3)}, {"block_shape": (1, 4), "crops_begin": (0, 1), "crops_end": (0, 2)}),
    Operation("space_to_batch", {"data": (2, 9)}, {"block_shape": (1, 4), "pads_begin": (0, 1), "pads_end": (0, 2)}),
    Operation("add_blocks", ADDED, {"positions": PLACES}),
    Operation("add_blocks", {"array": (4, 3), "blocks": (4, 3, 2)}, {"positions": PLACES}, suffix="-without-lead"),
    Operation("take_blocks", {"array": (2, 4, 3)}, AT),
    Operation("take_blocks", {"array": (4, 3)}, FAR, suffix="-edge"),
    Operation("take_blocks", {"array": (2, 1, 1)}, FAR, suffix="-edge-of-one"),
]
WINDOWED = [
    *(
        Operation(name, shapes, arguments, window, f"-{kind}")
        for kind, window in (("full", FULL), ("separable", SEPARABLE))
        for name, shapes, arguments in (
            ("col2im", COLUMNS, FOLDED),
            ("im2col", IMAGE, TAKEN),
            ("add_blocks", ADDED, {"positions": PLACES}),
            ("take_blocks", {"array": (2, 4, 3)}, AT),
            ("take_blocks", {"array": (4, 3)}, FAR),
        )
    ),
    Operation("average", {"numerator": (2, 4, 3)}, window=((4, 3),), weights="weight"),
    Operation("average", {"numerator": (2, 3)}, window=((3,),), weights="weight", suffix="-of-one-axis"),
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS, ((3,),), "-full"),
    Operation("array_to_blocks", {"array": (2, 7)}, {"block_shape": (3,), "strides": 2}, ((3,),), "-full"),
]
AVERAGED = [
    Operation("col2im", COLUMNS, FOLDED | {"reduction": reduction}, window, f"-{reduction}-{kind}")
    for reduction in ("mean", "least_squares")
    for kind, window in (("none", ()), ("full", FULL), ("separable", SEPARABLE))
] + [
    Operation("blocks_to_array", {"blocks": (2, 3, 3)}, BLOCKS | {"reduction": "mean"}, suffix="-mean-none"),
    Operation("col2im", {"data": (4, 2)},
              {"output_size": (9,), "kernel_size": 4, "strides": 5, "reduction": "mean", "fill_value": 0},
              suffix="-mean-with-gaps"),
]  # fmt: skip


def named(operations):
    return pytest.mark.parametrize("operation", operations, ids=str)


def as_array(tensor):
    return tensors.as_numpy(tensor.resolve_conj().resolve_neg())


def as_tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def same_bits(tensor, array):
    got = as_array(tensor)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == np.ascontiguousarray(array).tobytes()


# ---------------------------------------------------------------------------------------------
# Values


def values_of(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if dtype.kind == "c" else values).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@named(LINEAR)
def test_results_have_the_bits_of_the_numpy_path(operation, dtype):
    arrays = [values_of(dtype, shape, seed) for seed, shape in enumerate(operation.shapes.values())]
    got = operation(*map(as_tensor, arrays))
    want = operation.of(gpufold)(*(array.copy() for array in arrays))
    assert got.is_contiguous()
    same_bits(got, want)


@named([*WINDOWED, *AVERAGED])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "complex128"])
def test_windows_and_means_have_the_bits_of_the_numpy_path(operation, name):
    given = operation.tensors(getattr(torch, name))
    got = operation(*given)
    same_bits(got, operation.of(gpufold)(*(as_array(each).copy() for each in given)))
    for each in given[: len(given) if operation.reduction == "sum" else len(operation.shapes)]:
        each.requires_grad_()
    same_bits(operation(*given).detach(), as_array(got))


@pytest.mark.parametrize("case", [*CASES, *map(random_case, range(70_000, 70_030))], ids=str)
def test_named_and_random_cases_agree(case):
    columns = values_of(np.dtype(np.float32), case.columns_shape)
    image = values_of(np.dtype(np.float32), case.image_shape)
    got = gpufold.torch.col2im(torch.from_numpy(columns), case.output_size, case.kernel_size, **case.arguments)
    same_bits(got, gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments))
    got = gpufold.torch.im2col(torch.from_numpy(image), case.kernel_size, **case.arguments)
    same_bits(got, gpufold.im2col(image, case.kernel_size, **case.arguments))


def layouts(tensor):
    """Yield the same values in other layouts."""
    yield tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., ::2] = tensor
    yield wide[..., ::2]
    yield torch.flip(tensor, (0,)).flip((0,))


@named([each for each in LINEAR if each.name != "add_blocks"])
def test_any_layout_is_read_where_it_lies(operation):
    (data,) = operation.tensors(torch.complex64)
    want = operation(data)
    for laid_out in layouts(data):
        assert torch.equal(operation(laid_out), want)
    conjugated = data.conj().resolve_conj().conj()
    assert conjugated.is_conj()
    assert torch.equal(operation(conjugated), want)
    negated = data.conj().imag  # of the negative bit
    assert negated.is_neg()
    assert torch.equal(operation(negated), operation(negated.resolve_neg()))
    assert torch.equal(operation(data[:1].expand_as(data)), operation(data[:1].expand_as(data).contiguous()))


def test_nothing_is_copied_on_the_way_to_numpy(monkeypatch):
    seen = []
    monkeypatch.setattr(tensors, "run", lambda call, library, data, result, *rest: seen.append((data, result)))
    for dtype in (torch.float32, torch.bfloat16, torch.uint16):
        data = torch.zeros(6, 6, dtype=dtype).T
        result = gpufold.torch.col2im(data, (4, 3), (3, 2), **{k: v for k, v in FOLDED.items() if "_size" not in k})
        array, into = seen.pop()
        assert array.__array_interface__["data"][0] == data.data_ptr()
        assert array.strides == tuple(step * data.element_size() for step in data.stride())
        assert into.__array_interface__["data"][0] == result.data_ptr()


# ---------------------------------------------------------------------------------------------
# Gradients


def differentiable(operation):
    """Return the tensors of a call, those of a window under a mean without a gradient."""
    given = operation.tensors(torch.float64, requires_grad=True)
    if operation.reduction != "sum":
        for window in given[len(operation.shapes) :]:
            window.requires_grad_(False)
    return given


@pytest.mark.some(2)
@named([*LINEAR, *WINDOWED, *AVERAGED])
def test_gradients(operation):
    given = differentiable(operation)
    for settings in ({}, {"check_forward_ad": True, "check_backward_ad": False}, {"check_batched_grad": True}):
        assert torch.autograd.gradcheck(operation, given, **settings)
    assert torch.autograd.gradgradcheck(operation, given)


@named([*LINEAR, *WINDOWED, *AVERAGED])
def test_gradients_of_complex_numbers(operation, request):
    given = operation.tensors(torch.complex128, requires_grad=True)
    if operation.reduction != "sum":
        for window in given[len(operation.shapes) :]:
            window.requires_grad_(False)
    fast = not request.config.getoption("--many")
    assert torch.autograd.gradcheck(operation, given, check_forward_ad=True, fast_mode=fast)
    assert torch.autograd.gradgradcheck(operation, given, fast_mode=fast)


@named([*LINEAR, *WINDOWED, *AVERAGED])
def test_transforms_of_functions(operation):
    given = operation.tensors(torch.float64)
    reachable = range(len(given) if operation.reduction == "sum" else len(operation.shapes))

    def loss(*arguments):
        return operation(*arguments).square().sum()

    for number in reachable:
        leaves = [each.clone().requires_grad_(i == number) for i, each in enumerate(given)]
        want = torch.autograd.functional.jacobian(
            lambda it, at=number: operation(*given[:at], it, *given[at + 1 :]), given[number]
        )
        for transform in (torch.func.jacrev, torch.func.jacfwd):
            torch.testing.assert_close(transform(operation, number)(*given), want)
        hessian = torch.func.hessian(loss, number)(*given)
        again = torch.func.jacrev(torch.func.jacrev(loss, number), number)(*given)
        torch.testing.assert_close(hessian, again)
        gradient = torch.func.grad(loss, number)(*given)
        (expected,) = torch.autograd.grad(loss(*leaves), leaves[number])
        torch.testing.assert_close(gradient, expected)


@named([*LINEAR, *WINDOWED, *AVERAGED])
def test_what_a_transform_saved_serves_after_it_ended(operation):
    given = operation.tensors(torch.float64)
    reachable = len(given) if operation.reduction == "sum" else len(operation.shapes)
    if "positions" in operation.arguments:
        places = torch.tensor(operation.arguments["positions"])
        operation = replace(operation, arguments=operation.arguments | {"positions": places})

    def function(*of):
        return operation(*of, *given[reachable:])

    result, back = torch.func.vjp(function, *given[:reachable])
    leaves = [each.clone().requires_grad_() for each in given[:reachable]]
    want = torch.autograd.grad(function(*leaves), leaves, result)
    assert all(map(torch.equal, back(result), want))
    batches = [each[None] for each in given[:reachable]]
    _, back = torch.func.vjp(torch.vmap(function), *batches)
    torch.testing.assert_close([each[0] for each in back(result[None])], [*want])
    _, outer = torch.func.vjp(lambda *of: torch.func.vjp(function, *of)[1](result), *given[:reachable])
    leaves = [each.clone().requires_grad_() for each in given[:reachable]]
    first = torch.autograd.grad(function(*leaves), leaves, result, create_graph=True)
    recorded = [each for each in first if each.requires_grad]
    second = torch.autograd.grad(recorded, leaves, [each.detach() for each in recorded], allow_unused=True,
                                 materialize_grads=True) if recorded else [*map(torch.zeros_like, leaves)]  # fmt: skip
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


@named([*LINEAR, *WINDOWED, *AVERAGED])
def test_vmap(operation):
    given = operation.tensors(torch.float64)
    for number, tensor in enumerate(given):
        for dim in {0, tensor.ndim}:
            stacked = torch.stack([tensor, 2 * tensor, tensor + 1], dim)
            dims = [dim if i == number else None for i in range(len(given))]
            arguments = [stacked if i == number else each for i, each in enumerate(given)]
            got = torch.vmap(operation, tuple(dims))(*arguments)
            want = [
                operation(*(stacked.select(dim, row) if i == number else each for i, each in enumerate(given)))
                for row in range(3)
            ]
            torch.testing.assert_close(got, torch.stack(want), rtol=0, atol=0)
    rows = [torch.stack([each, each.square()]) for each in given]
    want = torch.stack([operation(*(each[row] for each in rows)) for row in range(2)])
    torch.testing.assert_close(torch.vmap(operation)(*rows), want, rtol=0, atol=0)


def test_vmap_over_positions():
    out, blocks = torch.randn(5, 4), torch.randn(2, 3, 2)
    places = torch.tensor([[[0, 0], [1, 1]], [[2, 2], [-1, 3]]])

    def loss(picture, at, mode):
        return gpufold.torch.take_blocks(picture, at, (3, 2), mode=mode).square().sum()

    for function in (
        lambda at: gpufold.torch.add_blocks(out, blocks, at),
        lambda at: gpufold.torch.take_blocks(out, at, (3, 2)),
        lambda at: torch.func.grad(loss)(out, at, "constant"),
        lambda at: torch.func.grad(loss)(out, at, "edge"),
    ):
        assert torch.equal(torch.vmap(function)(places), torch.stack([function(at) for at in places]))


def test_gradients_of_vmapped_calls():
    data = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    function = torch.func.grad(lambda each: LINEAR[0](each).square().sum())
    assert torch.equal(torch.vmap(function)(data), torch.stack([function(each) for each in data]))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precisions_keep_their_dtype_and_are_summed_in_float32(name):
    dtype = getattr(torch, name)
    columns = torch.ones(4096, 1, dtype=dtype, requires_grad=True)
    image = gpufold.torch.col2im(columns, (1,), (4096,), dilations=0, window=torch.ones(4096, dtype=dtype))
    assert image.dtype is dtype
    assert image.item() == 4096
    image.sum().backward()
    assert columns.grad.dtype is dtype
    window = torch.ones(4096, dtype=dtype, requires_grad=True)
    gpufold.torch.col2im(columns.detach(), (1,), (4096,), dilations=0, window=window).sum().backward()
    assert window.grad.dtype is dtype


def test_autocast_changes_no_dtype():
    data = torch.randn(2, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert LINEAR[0](data).dtype is torch.float32


@pytest.mark.parametrize("operation", [each for each in AVERAGED if each.window], ids=str)
def test_a_window_without_a_gradient_says_so(operation):
    given = operation.tensors(torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match=r"window may require a gradient only with reduction='sum'"):
        operation(*given)
    with torch.no_grad():
        operation(*given)
    number = len(operation.shapes)
    with pytest.raises(ValueError, match="window may require a gradient only with"):
        torch.func.jacfwd(operation, number)(*(each.detach() for each in given))
    with pytest.raises(ValueError, match="window may require a gradient only with"):
        torch.func.grad(lambda *each: operation(*each).sum(), number)(*(each.detach() for each in given))


def test_the_data_is_kept_for_a_windows_gradient_alone():
    data = torch.randn(2, 6, 6, requires_grad=True)
    for requires_grad in (False, True):
        kept = []

        def keep(tensor, kept=kept):
            kept.append(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            gpufold.torch.col2im(data, window=torch.rand(3, 2, requires_grad=requires_grad), **FOLDED)
        assert (data.data_ptr() in kept) == requires_grad


def test_integers_have_no_gradient():
    data = torch.ones(2, 6, 6, dtype=torch.int32)
    assert not gpufold.torch.col2im(data, **FOLDED).requires_grad
    picture = torch.zeros(5, 4, requires_grad=True)
    assert gpufold.torch.add_blocks(picture, torch.zeros(1, 2, 2), [(0, 0)]).requires_grad


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_gradients_of_edges_are_summed_in_float32(name):
    picture = torch.ones(2, 4, dtype=getattr(torch, name), requires_grad=True)
    places = torch.full((4096, 2), -(2**40))
    gpufold.torch.take_blocks(picture, places, (1, 1), mode="edge").backward(
        torch.ones(4096, 1, 1, dtype=picture.dtype)
    )
    assert picture.grad.dtype is picture.dtype
    assert picture.grad[0, 0] == 4096


def test_an_average_has_no_gradient_where_nothing_landed():
    sums, weight = torch.randn(2, 3, requires_grad=True), torch.tensor([2.0, 0.0, 1e-39], requires_grad=True)
    gradients = torch.autograd.grad(
        gpufold.torch.average(sums, weight).square().sum(), (sums, weight), create_graph=True
    )
    seconds = torch.autograd.grad(gradients[0].sum() + gradients[1].sum(), (sums, weight))
    for each in (*gradients, *seconds):
        assert each.isfinite().all()
        assert not each[..., 1:].any()
        assert each[..., :1].all()


WIDER = [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"), ("complex64", "complex128")]


@pytest.mark.parametrize(("narrow", "wide"), WIDER)
def test_blocks_are_added_to_a_wider_tensor_as_if_converted_first(narrow, wide):
    added = next(each for each in WINDOWED if str(each) == "add_blocks-full")
    out, blocks, window = added.tensors(getattr(torch, narrow))
    out, window = out.to(getattr(torch, wide)), window.double().requires_grad_()
    want = added(out, blocks.to(out.dtype), window)
    same_bits(added(out, blocks, window.detach()), as_array(want.detach()))
    assert torch.equal(gpufold.torch.add_blocks_(out.clone(), blocks, PLACES, window=window.detach()), want)
    torch.compiler.reset()
    compiled = torch.compile(added.of(gpufold.torch), fullgraph=True, backend="aot_eager")
    results = []
    for function, given in ((added, blocks), (compiled, blocks), (added, blocks.to(out.dtype))):
        leaf = given.clone().requires_grad_()
        result = function(out, leaf, window)
        assert torch.equal(result, want)
        results.append(torch.autograd.grad(result.abs().square().sum(), (leaf, window)))
    for of_blocks, of_window in results[:2]:
        assert torch.equal(of_blocks, results[2][0].to(blocks.dtype))
        assert torch.equal(of_window, results[2][1])


@pytest.mark.parametrize(("narrow", "wide"), WIDER)
@pytest.mark.parametrize("name", ["col2im-full", "col2im-mean-separable", "blocks_to_array-mean-none"])
def test_sums_in_a_wider_dtype_are_those_of_converted_data(name, narrow, wide):
    operation = next(each for each in (*WINDOWED, *AVERAGED) if str(each) == name)
    widening = replace(operation, arguments=operation.arguments | {"dtype": getattr(torch, wide)})
    data, *window = operation.tensors(getattr(torch, narrow))
    named = replace(operation, arguments=operation.arguments | {"dtype": wide if wide != "float32" else np.float32})
    same_bits(widening(data, *window), named.of(gpufold)(*map(as_array, (data, *window))))
    torch.compiler.reset()
    compiled = torch.compile(widening.of(gpufold.torch), fullgraph=True, backend="aot_eager")
    leaves = [
        data.clone().requires_grad_(),
        data.clone().requires_grad_(),
        data.to(getattr(torch, wide)).requires_grad_(),
    ]
    for function, leaf in zip((widening, compiled, operation), leaves, strict=True):
        result = function(leaf, *window)
        assert torch.equal(result, widening(data, *window))
        result.abs().square().sum().backward()
    assert leaves[0].grad.dtype is data.dtype
    assert torch.equal(leaves[0].grad, leaves[2].grad.to(data.dtype))
    assert torch.equal(leaves[1].grad, leaves[0].grad)


def test_the_gradient_of_adding_takes_and_that_of_taking_adds(monkeypatch):
    seen, execute = [], rules.execute

    def record(call, *rest):
        seen.append((call.operation, call.fusion.window))
        return execute(call, *rest)

    monkeypatch.setattr(rules, "execute", record)
    window = torch.rand(3, 2)
    blocks, picture = torch.randn(4, 3, 2, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    gpufold.torch.add_blocks(torch.zeros(5, 4), blocks, PLACES, window=window).sum().backward()
    gpufold.torch.take_blocks(picture, PLACES, (3, 2), window=window).sum().backward()
    assert seen == [("add_blocks", "full"), ("take_blocks", "full"), ("take_blocks", "full"), ("add_blocks", "full")]


# ---------------------------------------------------------------------------------------------
# What a caller changes before the gradient is asked for


def stitch(tiles, places):
    stitcher = gpufold.Stitcher((5, 4), (3, 2))
    stitcher.add(tiles, places)
    return stitcher.result()


class Passing(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function, types, given=(), named=None):
        return function(*given, **named or {})


POSITIONED = {
    "take_blocks": lambda tensor, places: gpufold.torch.take_blocks(tensor, places, (3, 2)),
    "take_blocks-windowed": lambda tensor, places: gpufold.torch.take_blocks(
        tensor, places, (3, 2), window=tensor[:3, :2], mode="edge"),
    "add_blocks": lambda tensor, places: gpufold.torch.add_blocks(torch.zeros(5, 4), tensor.expand(4, 5, 4), places),
    "add_blocks_": lambda tensor, places: gpufold.torch.add_blocks_(
        torch.zeros(5, 4), tensor.expand(4, 5, 4), places, window=tensor, weight_out=torch.zeros(5, 4)),
    "Stitcher": lambda tensor, places: stitch(tensor[:3, :2].expand(4, 3, 2), places),
}  # fmt: skip


@pytest.mark.parametrize("kind", [np.array, memoryview], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("call", POSITIONED.values(), ids=POSITIONED)
@pytest.mark.parametrize("compiled", [False, True])
def test_an_array_of_positions_may_be_used_again_before_the_gradient(call, kind, compiled):
    if compiled and (kind is memoryview or call is POSITIONED["Stitcher"]):
        return
    places, tensor = np.array(PLACES), torch.randn(5, 4, requires_grad=True)
    (want,) = torch.autograd.grad(call(tensor, places.copy()).square().sum(), tensor)
    torch.compiler.reset()
    function = torch.compile(call, backend="aot_eager") if compiled else call
    result = function(tensor, kind(places) if kind is memoryview else places).square().sum()
    places[...] = 0
    torch.testing.assert_close(torch.autograd.grad(result, tensor)[0], want)


def test_a_read_only_array_of_positions_is_taken_without_a_warning():
    places = np.array(PLACES)
    places.flags.writeable = False
    with warnings.catch_warnings(action="error"):
        gpufold.torch.take_blocks(torch.randn(5, 4), places, (3, 2))


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
    "a leaf": lambda: torch.zeros(5, 4, requires_grad=True),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(5, 4)),
    "a view of a leaf": lambda: torch.zeros(2, 5, 4, requires_grad=True)[0],
    "one of several views": lambda: torch.zeros(2, 5, 4).unbind()[0],
    "a view made without gradients": torch.no_grad()(lambda: torch.zeros(2, 5, 4)[0]),
    "a view made in inference mode": lambda: torch.inference_mode()(torch.zeros(2, 5, 4).select)(0, 0),
    "of inference mode": torch.inference_mode()(lambda: torch.zeros(5, 4)),
    "overlapping": lambda: torch.zeros(1).expand(5, 4),
    "freed": lambda: shrunk(torch.zeros(5, 4), 0),
    "sparse": lambda: torch.zeros(5, 4).to_sparse(),
}


@pytest.mark.parametrize("wrong", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("name", ["array", "weight_out"])
@pytest.mark.parametrize("traced", [False, True])
def test_both_are_added_to_or_none(name, wrong, traced):
    window = torch.rand(3, 2, requires_grad=True)
    blocks = torch.randn(4, 3, 2, requires_grad=True)
    right = torch.zeros(5, 4)
    other = "weight_out" if name == "array" else "array"
    if traced and wrong in (FORBIDDEN["overlapping"], FORBIDDEN["sparse"]):
        return
    version = right._version
    given = {name: wrong(), other: right}
    with Passing() if traced else nullcontext(), pytest.raises((TypeError, ValueError), match="add_blocks"):
        gpufold.torch.add_blocks_(blocks=blocks, positions=PLACES, window=window, **given)
    assert (right._version, right.requires_grad, right.any().item()) == (version, False, False)


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


def test_adding_in_place():
    out, blocks = torch.randn(5, 4), torch.randn(4, 3, 2)
    want, version = gpufold.torch.add_blocks(out, blocks, PLACES), out._version
    assert gpufold.torch.add_blocks_(out, blocks, torch.tensor(PLACES)) is out
    assert torch.equal(out, want)
    assert out._version > version
    column = torch.zeros(5, 8).T[:4].T
    gpufold.torch.add_blocks_(column, blocks, PLACES)
    assert torch.equal(column, gpufold.torch.add_blocks(torch.zeros(5, 4), blocks, PLACES))


@pytest.mark.parametrize("window", ["none", "full", "separable"])
@pytest.mark.parametrize("name", ["bfloat16", "float32", "complex128"])
def test_weights_are_added_in_the_same_pass(name, window):
    dtype = getattr(torch, name)
    given = {"none": None, "full": torch.rand(3, 2), "separable": [torch.rand(3), torch.rand(2)]}[window]
    blocks, real = torch.randn(4, 2, 3, 2, dtype=dtype), torch.float64 if name == "complex128" else torch.float32
    arrays = [as_array(each).copy() for each in (torch.ones(2, 5, 4, dtype=dtype), torch.ones(5, 4, dtype=real))]
    weights = None if given is None else given.numpy() if window == "full" else [each.numpy() for each in given]
    gpufold.add_blocks_(arrays[0], as_array(blocks), PLACES, window=weights, weight_out=arrays[1])
    torch.compiler.reset()
    compiled = torch.compile(gpufold.torch.add_blocks_, fullgraph=True, backend="aot_eager")
    for function, leaf in ((gpufold.torch.add_blocks_, False), (gpufold.torch.add_blocks_, True), (compiled, False)):
        out, weight = torch.ones(2, 5, 4, dtype=dtype), torch.ones(4, 5, dtype=real).T
        versions = out._version, weight._version
        function(out, blocks.clone().requires_grad_(leaf), PLACES, window=given, weight_out=weight)
        assert out._version > versions[0]
        assert weight._version > versions[1]
        same_bits(out.detach(), arrays[0])
        same_bits(weight, arrays[1])


def test_sums_and_weights_have_the_gradient_of_a_window():
    blocks = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    window = (torch.rand(3, 2, dtype=torch.float64) + 0.5).requires_grad_()

    def averaged(blocks, window):
        sums, weight = torch.zeros(5, 4).double(), torch.zeros(5, 4).double()
        gpufold.torch.add_blocks_(sums, blocks, PLACES, window=window, weight_out=weight)
        return gpufold.torch.average(sums, weight)

    assert torch.autograd.gradcheck(averaged, (blocks, window))
    assert torch.autograd.gradgradcheck(averaged, (blocks, window))


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


def test_a_leaf_is_not_written_into():
    leaf = torch.zeros(5, 4, requires_grad=True)
    with pytest.raises(ValueError, match="array is a leaf that requires a gradient"):
        gpufold.torch.add_blocks_(leaf, torch.ones(1, 2, 2), [(0, 0)])
    assert not leaf.detach().any()
    with torch.no_grad():
        gpufold.torch.add_blocks_(leaf, torch.ones(1, 2, 2), [(0, 0)])
    assert leaf.detach().sum() == 4


@pytest.mark.parametrize("name", ["array", "weight_out"])
def test_what_overlaps_itself_is_not_added_to(name):
    memory = torch.zeros(20)
    for wrong in (memory[:4, None].expand(4, 3), memory.as_strided((4, 3), (2, 1)), memory.as_strided((4, 3), (1, 1))):
        given = {"array": torch.zeros(4, 3), "weight_out": torch.zeros(4, 3)} | {name: wrong}
        for _ in range(2):
            with pytest.raises(ValueError, match=f"add_blocks_: {name} must not overlap itself, got shape"):
                gpufold.torch.add_blocks_(blocks=torch.ones(1, 2, 2), positions=[(0, 0)], **given)
    assert not any(each.any() for each in given.values())
    interleaved = memory.as_strided((4, 3), (1, 5))
    gpufold.torch.add_blocks_(interleaved, torch.ones(1, 2, 2), [(2, 1)])
    assert interleaved.sum() == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128], ids=str)
def test_results_lie_in_torchs_memory(dtype):
    columns = torch.ones(2, 8, 9, dtype=dtype)
    for result in (gpufold.torch.fold(columns, 4, 2), gpufold.torch.fold(columns.requires_grad_(), 4, 2).detach()):
        assert result.data_ptr() % 64 == 0
        result.untyped_storage().resize_(0)
    columns.detach().untyped_storage().resize_(0)  # that of an argument too


@pytest.mark.parametrize("wrong", [2**63, 2**64 - 1])
def test_positions_beyond_int64_are_outside(wrong):
    places = torch.tensor([[wrong, 0], [1, 1]], dtype=torch.uint64)
    got = gpufold.torch.add_blocks(torch.zeros(5, 4), torch.ones(2, 2, 2), places)
    assert got.sum() == 4
    assert got[1, 1] == 1
    torch.compiler.reset()
    compiled = torch.compile(gpufold.torch.add_blocks, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.zeros(5, 4), torch.ones(2, 2, 2), places), got)


# ---------------------------------------------------------------------------------------------
# Tiles stitched as they come


@pytest.mark.parametrize("slabs", [False, True])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "complex128"])
def test_a_stitcher_takes_tensors_and_gives_the_bits_of_arrays(name, slabs):
    shape, block = (3, 9, 8), (4, 5)
    places = torch.from_numpy(gpufold.grid_positions(shape[1:], block, strides=2, last="over"))
    tiles = torch.randn(len(places), 3, *block, dtype=getattr(torch, name))
    window = torch.rand(block)
    results = []
    for convert in (lambda tensor: tensor, as_array):
        stitcher, rows = gpufold.Stitcher(shape, block, window=convert(window), slabs=slabs), []
        for first in range(0, len(places), 5):
            batch = slice(first, first + 5)
            stitcher.add(convert(tiles[batch]), convert(places[batch]))
            if slabs:
                rows.append(stitcher.finished())
        rows.append(stitcher.result() if slabs else (0, stitcher.result()))
        results.append(rows)
    for (row, tensor), (wanted, array) in zip(*results, strict=True):
        assert row == wanted
        same_bits(tensor, array)


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


def test_tiles_that_are_a_parameter_have_positions_of_any_kind():
    results = []
    for places in ([(0,), (2,)], np.array([(0,), (2,)]), torch.tensor([(0,), (2,)])):
        stitcher = gpufold.Stitcher((8,), (4,))
        stitcher.add(torch.nn.Parameter(torch.ones(2, 4)), places)
        results.append(stitcher.result())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_first_tiles_decide_where_a_stitchers_sums_live():
    tensors_first, arrays_first = gpufold.Stitcher((8,), (4,)), gpufold.Stitcher((8,), (4,))
    tensors_first.add(torch.ones(1, 4), [(0,)])
    with pytest.raises(TypeError, match=r"blocks must be a torch.Tensor, got numpy.ndarray"):
        tensors_first.add(np.ones((1, 4), np.float32), [(0,)])
    arrays_first.add(np.ones((1, 4), np.float32), [(0,)])
    with pytest.raises(TypeError, match=r"blocks must be a numpy.ndarray, got torch.Tensor"):
        arrays_first.add(torch.ones(1, 4), [(0,)])
    assert tensors_first.result().sum() == arrays_first.result().sum() == 4
    with pytest.raises(TypeError, match=r"Stitcher.add: blocks must be of dtype float32, .* got int64"):
        tensors_first.add(torch.ones(1, 4).long(), [(0,)])


# ---------------------------------------------------------------------------------------------
# Compilers


@pytest.mark.some(3)
@named([*LINEAR, *WINDOWED, *AVERAGED])
@pytest.mark.parametrize("name", ["float32", "complex64"])
def test_operators_pass_torchs_own_checks(operation, name):
    """Of schema, fake tensors, gradients under compilers and dynamic sizes."""
    calls = []
    given = operation.tensors(getattr(torch, name))
    with pytest.MonkeyPatch.context() as patch:
        operator = getattr(torch.ops.gpufold, operation.name).default
        patch.setattr(functions, "is_traced", lambda *tensors: True)
        patch.setattr(torch.ops.gpufold, operation.name, Recorder(operator, calls))
        operation(*given)
    arguments = calls[0]
    leaves = [
        each.detach().clone().requires_grad_(
            (each.is_floating_point() or each.is_complex()) and not (place == 1 and operation.reduction != "sum")
        )
        if isinstance(each, torch.Tensor)
        else each
        for place, each in enumerate(arguments)
    ]  # fmt: skip
    torch.library.opcheck(operator, tuple(leaves))


class Recorder:
    """An operator that keeps its arguments."""

    def __init__(self, operator, calls):
        self.operator, self.calls = operator, calls

    @property
    def default(self):
        return lambda *arguments: self.calls.append(arguments) or self.operator(*arguments)


@pytest.mark.some(3)
@named([*(LINEAR[number] for number in (0, 2, 4, 5, 6, 7, 8, 10, 11)), WINDOWED[0], WINDOWED[10], AVERAGED[2]])
def test_compiled_calls_have_eagers_bits(operation):
    torch.compiler.reset()
    given = [each.requires_grad_(number < len(operation.shapes)) for number, each in enumerate(
        operation.tensors(torch.float32))]  # fmt: skip
    compiled = torch.compile(operation.of(gpufold.torch), fullgraph=True, dynamic=True, backend="aot_eager")
    for scale in (1, 2):
        arguments = [(each.detach() * scale).requires_grad_(each.requires_grad) for each in given]
        results, gradients = [], []
        for function in (operation, compiled):
            result = function(*arguments)
            asked = [each for each in arguments if each.requires_grad]
            gradients.append(torch.autograd.grad(result.square().sum(), asked))
            results.append(result.detach())
        assert torch.equal(*results)
        for eager, traced in zip(*gradients, strict=True):
            torch.testing.assert_close(eager, traced)


def network(columns, window):
    image = gpufold.torch.fold(columns.sin(), (columns.shape[-1] + 2, 6), (3, 6), window=window)
    return gpufold.torch.unfold(image, (3, 6)).cos()


@pytest.mark.some(5)
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize(
    "transform",
    ["grad", "jvp", "vmap", "vmap of grad", "jacfwd", "hessian"],
)
def test_transforms_compile(transform, windowed):
    if torch.__version__ < (2, 6) and transform in ("jacfwd", "hessian"):
        pytest.xfail("torch 2.5 compiles no jacfwd, whatever it is of")
    data, window = torch.randn(2, 4, 9), torch.rand(2, 2) + 0.5

    def function(given):
        columns, weights = (data, given) if windowed else (given, window)
        return gpufold.torch.fold(columns, 4, 2, window=weights)

    def loss(given):
        return function(given).square().sum()

    def tangent(given):
        return torch.func.jvp(function, (given,), (given.cos(),))[1]

    transformed = {
        "grad": torch.func.grad(loss),
        "jvp": tangent,
        "vmap": torch.vmap(function),
        "vmap of grad": torch.vmap(torch.func.grad(loss)),
        "jacfwd": torch.func.jacfwd(function),
        "hessian": torch.func.hessian(loss),
    }[transform]
    given = window if windowed else data
    if "vmap" in transform:
        given = torch.stack([given, given.sin()])
    torch.compiler.reset()
    compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(given), transformed(given))


def test_modes_of_torch_see_operators_and_get_gradients():
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def loss(data):
        return gpufold.torch.fold(data, 4, 2).square().sum()

    seen, data = [], torch.randn(1, 4, 9)
    leaf = data.clone().requires_grad_()
    with Recording():
        loss(leaf).backward()
    assert {"gpufold.col2im.default", "gpufold.im2col.default"} <= set(seen)
    want = torch.func.grad(loss)(data)
    assert torch.equal(leaf.grad, want)
    traced = make_fx(torch.func.grad(loss))(data)
    assert "gpufold.im2col" in traced.code
    assert torch.equal(traced(data), want)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_positions_of_every_kind_compile(kind):
    given = [[-1, 1], [3, -2], [-(2**63), 2], [2**62, 2**63 - 1]]
    places, picture = kind(given), torch.randn(4, 3)

    def function(picture):
        return gpufold.torch.take_blocks(picture, places, (3, 2), mode="edge")

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    assert torch.equal(compiled(picture), function(picture))


def test_dtypes_that_do_not_fit_are_refused_by_compilers_too():
    out, blocks, places = torch.zeros(5, 4), torch.ones(1, 2, 2, dtype=torch.int32), torch.zeros(1, 2).long()
    compiled = torch.compile(gpufold.torch.add_blocks, backend="eager")
    with pytest.raises(TypeError, match="array must have the result's dtype int32 or int64 or float64, got float32"):
        compiled(out, blocks, places)
    with pytest.raises(TypeError, match="array must have the result's dtype int32, got float32"):
        torch.ops.gpufold.add_blocks(blocks, None, places, out, "sum", False, "auto", True, True)
    compiled = torch.compile(gpufold.torch.add_blocks_, backend="eager")
    with pytest.raises(TypeError, match="weight_out must have the dtype float32 of weights, got float64"):
        compiled(out, blocks.float(), places, weight_out=out.double())
    with pytest.raises(TypeError, match="weight_out needs an array of floats or complex numbers, got int32"):
        compiled(out.int(), blocks, places, weight_out=out)
    assert not out.any()


def test_compile_serves_other_sizes_without_compiling_again():
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend="aot_eager")
    window = torch.rand(3, 6)
    for batch, length in ((2, 7), (3, 9), (5, 4)):
        columns = torch.randn(batch, 18, length)
        assert torch.equal(compiled(columns, window), network(columns, window))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_a_dynamic_batch_and_size(strict):
    class Model(torch.nn.Module):
        def forward(self, columns, window):
            return network(columns, window)

    columns, window = torch.randn(2, 18, 7), torch.rand(3, 6)
    sizes = {0: torch.export.Dim("batch", min=1), 2: torch.export.Dim("length", min=2)}
    program = torch.export.export(Model(), (columns, window), dynamic_shapes=(sizes, None), strict=strict)
    for batch, length in ((2, 7), (5, 11)):
        columns = torch.randn(batch, 18, length)
        assert torch.equal(program.module()(columns, window), network(columns, window))


def test_fake_and_meta_tensors_have_the_shapes_of_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    empty = [Operation("col2im", {"data": (0, 6, 6)}, FOLDED), Operation("im2col", {"image": (0, 3, 4, 3)}, TAKEN)]
    for operation in (*LINEAR, *WINDOWED, *AVERAGED, *empty):
        given = operation.tensors(torch.float32)
        want = operation(*given)
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(each) for each in given]
            got = operation(*fakes)
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
        if operation.name != "add_blocks":
            assert operation(*(each.to("meta") for each in given)).shape == want.shape


# ---------------------------------------------------------------------------------------------
# torch's fold and unfold, and those who use them


@pytest.mark.peer("expecttest")
@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "bfloat16"])
def test_unfold_passes_torchs_own_samples(name):
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (each for each in op_db if each.name == "nn.functional.unfold")
    samples = list(info.sample_inputs("cpu", getattr(torch, name), requires_grad=True))
    assert len(samples) == 163
    for sample in samples:
        results, gradients = [], []
        for function in (torch.nn.functional.unfold, gpufold.torch.unfold):
            image = sample.input.detach().clone().requires_grad_()
            result = function(image, *sample.args, **sample.kwargs)
            result.backward(torch.ones_like(result))
            results.append(result.detach())
            gradients.append(image.grad)
        assert torch.equal(*results), sample
        assert results[0].shape == results[1].shape
        assert torch.equal(*gradients), sample


def random_fold(seed):
    rng = random.Random(seed)
    sizes = {name: [rng.randint(1, most) for _ in range(2)] for name, most in
             (("output_size", 14), ("kernel_size", 4), ("dilation", 2), ("stride", 3))}  # fmt: skip
    sizes["padding"] = [rng.randint(0, 3) for _ in range(2)]
    blocks = 1
    for size, kernel, dilation, stride, padding in zip(*(sizes[name] for name in (
        "output_size", "kernel_size", "dilation", "stride", "padding")), strict=True):  # fmt: skip
        blocks *= max(0, (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
    if not blocks:
        return random_fold(seed + 1_000_000)
    if rng.random() < 0.5:
        sizes["padding"] = sizes["padding"][0] if len(set(sizes["padding"])) == 1 else sizes["padding"]
    lead = rng.choice(((), (1,), (3,)))
    taps = sizes["kernel_size"][0] * sizes["kernel_size"][1]
    return (*lead, rng.randint(1, 3) * taps, blocks), sizes


@pytest.mark.parametrize("seed", range(100))
def test_fold_agrees_with_torchs_on_random_calls(seed):
    shape, sizes = random_fold(seed)
    columns = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    results, gradients = [], []
    for function in (torch.nn.functional.fold, gpufold.torch.fold):
        data = columns.clone().requires_grad_()
        result = function(data, **sizes)
        result.square().sum().backward()
        results.append(result.detach())
        gradients.append(data.grad)
    assert torch.equal(*results), sizes
    assert torch.equal(*gradients), sizes


@pytest.mark.parametrize("sizes", [(4, 2), ((4, 4), 2), (4, (2, 2)), ([4, 4], [2, 2])], ids=str)
def test_modules_are_torchs(sizes):
    columns = torch.randn(2, 12, 9)
    for name, arguments, data in (("Fold", sizes, columns), ("Unfold", sizes[1:], torch.randn(2, 3, 4, 4))):
        theirs, ours = getattr(torch.nn, name)(*arguments), getattr(gpufold.torch, name)(*arguments)
        assert torch.equal(theirs(data), ours(data))
        assert repr(theirs) == repr(ours)
        assert theirs.state_dict().keys() == ours.state_dict().keys()


def test_a_window_moves_and_learns_with_its_module():
    moved = gpufold.torch.Fold((9,), (3,), stride=(2,), window=torch.rand(3), reduction="mean").double()
    assert moved.window.dtype is torch.float64
    assert not moved.state_dict()
    learned = gpufold.torch.Unfold((3, 2), window=[torch.nn.Parameter(torch.rand(3)), torch.ones(2)])
    assert [name for name, _ in learned.named_parameters()] == ["window_0"]
    learned(torch.randn(1, 4, 4)).sum().backward()
    assert learned.window_0.grad.shape == (3,)


@pytest.mark.peer("unfoldNd")
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("dilation", "padding", "stride"), [(1, 0, 1), (1, 1, 2), (2, 2, 1)])
def test_modules_are_unfoldnds(rank, dilation, padding, stride):
    import unfoldNd

    size, kernel = (9, 8, 7)[:rank], (3, 2, 2)[:rank]
    image = torch.randint(-9, 10, (2, 3, *size)).float()
    theirs = unfoldNd.UnfoldNd(kernel, dilation, padding, stride)
    assert torch.equal(theirs(image), gpufold.torch.Unfold(kernel, dilation, padding, stride)(image))
    columns = theirs(image)
    results = []
    for module in (unfoldNd.FoldNd, gpufold.torch.Fold):
        data = columns.clone().requires_grad_()
        result = module(size, kernel, dilation, padding, stride)(data)
        result.square().sum().backward()
        results.append((result.detach(), data.grad))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


@pytest.mark.peer("kornia")
@pytest.mark.parametrize("sizes", [(8, 4, 0), (8, 8, 0), ((6, 4), (3, 2), (3, 2))], ids=str)
def test_kornias_patches_are_combined_by_gpufolds_fold(monkeypatch, sizes):
    """Its module is as it is but for the import of `F`."""
    import kornia.contrib
    from kornia.contrib import extract_patches

    window, stride, padding = sizes
    image = torch.randn(2, 3, 24, 16, dtype=torch.float64)
    patches = kornia.contrib.extract_tensor_patches(image, window, stride, padding)
    arguments = {"original_size": (24, 16), "window_size": window, "stride": stride, "unpadding": padding}
    want = kornia.contrib.combine_tensor_patches(patches, **arguments)
    folded = []

    class Functional:
        @staticmethod
        def fold(*given, **options):
            folded.append(given)
            return gpufold.torch.fold(*given, **options)

        def __getattr__(self, name):
            return getattr(torch.nn.functional, name)

    monkeypatch.setattr(extract_patches, "F", Functional())
    got = kornia.contrib.combine_tensor_patches(patches, **arguments)
    assert folded
    assert torch.equal(got, want)


def inverse_short_time_fourier_transform(spectrum, window, hop, fold):
    """A vocoder's head: overlap-add of windowed frames, divided by the overlap of the squared window."""
    frames = torch.fft.irfft(spectrum, dim=1) * window[:, None]
    length = (frames.shape[-1] - 1) * hop + len(window)
    options = {"output_size": (1, length), "kernel_size": (1, len(window)), "stride": (1, hop)}
    envelope = window.square().expand(1, frames.shape[-1], -1).transpose(1, 2)
    return fold(frames, **options)[:, 0, 0] / fold(envelope, **options).squeeze()


def test_an_istft_head_is_a_fold_and_a_least_squares_fold():
    hop, window = 64, torch.hann_window(256) + 1e-3
    signal = torch.randn(2, 64 * 20 + 256)
    frames = signal.unfold(1, 256, hop).transpose(1, 2) * window[:, None]
    spectrum = torch.fft.rfft(frames, dim=1)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        torch.istft(spectrum, 256, hop, window=torch.hann_window(256), center=False)
    want = inverse_short_time_fourier_transform(spectrum, window, hop, torch.nn.functional.fold)
    assert torch.equal(want, inverse_short_time_fourier_transform(spectrum, window, hop, gpufold.torch.fold))
    torch.testing.assert_close(want, signal, rtol=1e-3, atol=1e-3)
    frames = torch.fft.irfft(spectrum, dim=1)
    ours = gpufold.torch.fold(
        frames, (signal.shape[1],), (256,), stride=(hop,), window=window, reduction="least_squares"
    )
    torch.testing.assert_close(ours[:, 0], want)


# ---------------------------------------------------------------------------------------------
# Errors

COLUMN = torch.zeros(4, 9)


def shrunk(tensor, size):
    """Return a tensor whose storage has so many bytes."""
    tensor.untyped_storage().resize_(size)
    return tensor


def calls_of_memory():
    """Yield calls, by tensors of their own, and the names of the arguments that these are."""
    yield gpufold.torch.col2im, {"data": (4, 9), "window": (2, 2)}, {"output_size": (4, 4), "kernel_size": (2, 2)}
    yield gpufold.torch.im2col, {"image": (1, 4, 4)}, {"kernel_size": (2, 2)}
    yield gpufold.torch.fold, {"input": (1, 4, 9)}, {"output_size": 4, "kernel_size": 2}
    yield gpufold.torch.unfold, {"input": (1, 1, 4, 4), "window": (2, 2)}, {"kernel_size": 2}
    yield gpufold.torch.blocks_to_array, {"blocks": (3, 3)}, {"output_shape": (5,), "block_shape": (3,)}
    yield gpufold.torch.array_to_blocks, {"array": (2, 7), "window": (3,)}, {"block_shape": (3,)}
    yield gpufold.torch.add_blocks, {"array": (5, 4), "blocks": (4, 3, 2), "positions": None, "window": (3, 2)}, {}
    yield (gpufold.torch.add_blocks_, {"array": (5, 4), "blocks": (4, 3, 2), "positions": None, "window": (3, 2),
                                       "weight_out": (5, 4)}, {})  # fmt: skip
    yield gpufold.torch.take_blocks, {"array": (5, 4), "positions": None, "window": (3, 2)}, {"block_shape": (3, 2)}
    yield gpufold.torch.average, {"numerator": (2, 3), "weight": (2, 3)}, {}
    yield gpufold.torch.batch_to_space, {"data": (8, 3)}, {"block_shape": (1, 4)}
    yield gpufold.torch.space_to_batch, {"data": (2, 8)}, {"block_shape": (1, 4)}


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("way", ["first", "again", "learning", "operator", "transformed"])
@pytest.mark.parametrize(
    ("function", "shapes", "options", "name"),
    [(*call, name) for call in calls_of_memory() for name in call[1]],
    ids=lambda value: getattr(value, "__name__", "") if callable(value) else value if isinstance(value, str) else "",
)
def test_nothing_is_read_behind_a_storage(function, shapes, options, name, way, size):
    def made():
        return {each: torch.tensor(PLACES) if shape is None else torch.ones(shape) for each, shape in shapes.items()}

    if way == "again":
        function(**made(), **options)
    given = made()
    if way == "learning":
        given |= {each: given[each].requires_grad_() for each in ("data", "blocks", "array", "window") if each in given}
    shrunk(given[name].detach(), size)
    before = {each: tensor.detach().clone() for each, tensor in given.items() if each != name}
    call = partial(function, **given, **options)
    if way == "transformed":
        call = partial(torch.func.vjp, lambda _: function(**given, **options), torch.ones(()))
    with (
        Passing() if way == "operator" else nullcontext(),
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
        (TypeError, "data must be a torch.Tensor, got numpy.ndarray", lambda: gpufold.torch.col2im(
            np.zeros((4, 9)), (4, 4), (2, 2))),
        (TypeError, "must be a dense tensor, got .* torch.sparse_coo", lambda: gpufold.torch.col2im(
            COLUMN.to_sparse(), (4, 4), (2, 2))),
        (TypeError, "col2im: .*[Ss]parse", lambda: make_fx(lambda data: gpufold.torch.col2im(data, (4, 4), (2, 2)))(
            COLUMN.to_sparse())),
        (TypeError, "data has dtype quint8", lambda: gpufold.torch.col2im(
            torch.quantize_per_tensor(COLUMN, 0.1, 0, torch.quint8), (4, 4), (2, 2))),
        (TypeError, "data has dtype float8_e5m2, but the supported", lambda: gpufold.torch.col2im(
            COLUMN.to(torch.float8_e5m2), (4, 4), (2, 2))),
        (TypeError, "data has dtype complex32", lambda: gpufold.torch.col2im(
            COLUMN.to(torch.complex32), (4, 4), (2, 2))),
        (TypeError, "strides must be an integer", lambda: gpufold.torch.col2im(COLUMN, (4, 4), (2, 2), strides=1.5)),
        (ValueError, "input axis 1 must be the number of blocks, got 9", lambda: gpufold.torch.fold(COLUMN, 5, 2)),
        (ValueError, "stride must be at least 1", lambda: gpufold.torch.fold(COLUMN, 4, 2, stride=0)),
        (ValueError, "reduction must be one of", lambda: gpufold.torch.fold(COLUMN, 4, 2, reduction="max")),
        (TypeError, "reduction 'mean' needs a dtype of floats", lambda: gpufold.torch.col2im(
            COLUMN.int(), (4, 4), (2, 2), reduction="mean", dtype="int32")),
        (TypeError, "window must be a torch.Tensor, got numpy", lambda: gpufold.torch.fold(
            COLUMN, 4, 2, window=np.ones((2, 2)))),
        (ValueError, r"window must have the shape \(2, 2\)", lambda: gpufold.torch.fold(
            COLUMN, 4, 2, window=torch.ones(2, 3))),
        (ValueError, "one array per axis, 2 in all, got 1", lambda: gpufold.torch.fold(
            COLUMN, 4, 2, window=[torch.ones(2)])),
        (TypeError, "window must hold real numbers, got dtype complex64", lambda: gpufold.torch.fold(
            COLUMN, 4, 2, window=torch.ones(2, 2, dtype=torch.complex64))),
        (TypeError, "window must be on the CPU or a CUDA device, got device meta", lambda: gpufold.torch.fold(
            COLUMN, 4, 2, window=torch.ones(2, 2, device="meta"))),
        (ValueError, "variant 'gather' is a GPU kernel, but data is a tensor on the CPU", lambda: gpufold.torch.col2im(
            COLUMN, (4, 4), (2, 2), variant="gather")),
        (ValueError, "variant must be one of auto, ", lambda: gpufold.torch.col2im(
            COLUMN, (4, 4), (2, 2), variant="fast")),
        (TypeError, "array must have the result's dtype int32 or int64 or float64", lambda: gpufold.torch.add_blocks(
            COLUMN, torch.zeros(1, 2, 2, dtype=torch.int32), [(0, 0)])),
        (TypeError, "dtype must be that of data, float32 or float64, got float16", lambda: gpufold.torch.col2im(
            COLUMN, (4, 4), (2, 2), dtype=torch.float16)),
        (ValueError, "take_blocks: mode must be one of constant, edge, reflect, symmetric, wrap, got 'zeros'",
            lambda: gpufold.torch.take_blocks(COLUMN, [(0, 0)], 2, mode="zeros")),
        (ValueError, "take_blocks: mode .edge. takes elements of array", lambda: gpufold.torch.take_blocks(
            COLUMN[:0], [(0, 0)], 2, mode="edge")),
        (TypeError, "take_blocks: array must be a torch.Tensor", lambda: gpufold.torch.take_blocks(
            COLUMN.numpy(), [(0, 0)], 2)),
        (TypeError, "positions must be integers, got dtype bool", lambda: gpufold.torch.take_blocks(
            COLUMN, torch.zeros(1, 2, dtype=torch.bool), 2)),
        (TypeError, "average: numerator must be of floats", lambda: gpufold.torch.average(COLUMN.int(), COLUMN)),
        (ValueError, "average: weight must have the shape of numerator's last axes", lambda: gpufold.torch.average(
            COLUMN, COLUMN.T)),
        (TypeError, "average: weight must hold real numbers", lambda: gpufold.torch.average(
            COLUMN, COLUMN.to(torch.complex64))),
        (TypeError, "positions must be integers", lambda: gpufold.torch.add_blocks(
            COLUMN, torch.zeros(1, 2, 2), torch.zeros(1, 2))),
        (TypeError, "positions must be integers", lambda: gpufold.torch.add_blocks(
            COLUMN, torch.zeros(1, 2, 2), [(0.5, 0)])),
        (ValueError, "array must share no memory with blocks", lambda: gpufold.torch.add_blocks_(
            COLUMN, COLUMN[None, :2, :2], [(0, 0)])),
        (ValueError, "weight_out must have the shape", lambda: gpufold.torch.add_blocks_(
            COLUMN, torch.ones(1, 2, 2), [(0, 0)], weight_out=torch.zeros(4, 8))),
        (TypeError, "weight_out must have the dtype float32 of weights, got float64", lambda: gpufold.torch.add_blocks_(
            COLUMN, torch.ones(1, 2, 2), [(0, 0)], weight_out=torch.zeros(4, 9).double())),
        (TypeError, "weight_out must be a torch.Tensor", lambda: gpufold.torch.add_blocks_(
            COLUMN, torch.ones(1, 2, 2), [(0, 0)], weight_out=np.zeros((4, 9), np.float32))),
        (ValueError, "weight_out must share no memory with array", lambda: gpufold.torch.add_blocks_(
            COLUMN, torch.ones(1, 2, 2), [(0, 0)], weight_out=COLUMN)),
        (ValueError, "weight_out is a leaf that requires a gradient", lambda: gpufold.torch.add_blocks_(
            COLUMN, torch.ones(1, 2, 2), [(0, 0)], weight_out=torch.zeros(4, 9, requires_grad=True))),
        (ValueError, "more than .* that an array can have", lambda: gpufold.torch.space_to_batch(
            torch.zeros(1, 1), (1, 1), pads_end=(0, 2**62))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_input_is_refused_in_gpufolds_words(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_bfloat16_needs_ml_dtypes_on_the_cpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensors._dtype_of_array.cache_clear()
    with pytest.raises(ImportError, match=re.escape('pip install "gpufold[torch]"')):
        gpufold.torch.fold(COLUMN.bfloat16(), 4, 2)
    tensors._dtype_of_array.cache_clear()


def test_a_torch_that_is_too_old_is_an_error_that_says_which_is_needed():
    script = "import torch; del torch.library.register_vmap; import gpufold.torch"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"ImportError: gpufold.torch needs torch 2.5 or newer, got {torch.__version__}: upgrade it" in run.stderr


@pytest.mark.parametrize("learns", [False, True])
def test_results_of_zero_batches_have_the_strides_of_meta_tensors(learns):
    columns, image = torch.zeros(0, 4, 9), torch.zeros(0, 1, 4, 4)
    for function, given in (
        (lambda each: gpufold.torch.fold(each, 4, 2), columns),
        (lambda each: gpufold.torch.unfold(each, 2), image),
        (lambda each: gpufold.torch.array_to_blocks(each, (2, 2)), image),
        (lambda each: gpufold.torch.batch_to_space(each, (1, 2, 2)), torch.zeros(0, 3, 4)),
    ):
        for _ in range(2):
            result = function(given.clone().requires_grad_(learns))
            assert result.stride() == function(given.to("meta")).stride()
            assert result.shape == function(given.to("meta")).shape


def test_empty_tensors():
    for shape in ((0, 4, 9), (2, 0, 9)):
        data = torch.zeros(shape, requires_grad=True)
        image = gpufold.torch.fold(data, 4, 2)
        assert image.shape == (shape[0], shape[1] // 4, 4, 4)
        image.sum().backward()
        assert data.grad.shape == shape
    window = torch.rand(2, 2, requires_grad=True)
    gpufold.torch.fold(torch.zeros(0, 4, 9), 4, 2, window=window).sum().backward()
    assert torch.equal(window.grad, torch.zeros(2, 2))
    out = gpufold.torch.add_blocks(torch.ones(3), torch.zeros(0, 2, requires_grad=True), torch.zeros(0, 1).long())
    assert torch.equal(out, torch.ones(3))
    out.sum().backward()
