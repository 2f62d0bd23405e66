"""What people do with a model besides running it: transforms, tracers, profilers, and torch's own habits of calling."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from processes import python

import gpufold.torch

COLUMNS = torch.arange(72.0).reshape(2, 4, 9).cos()
WINDOW = torch.rand(2, 2)


def fold(columns, window=None):
    return gpufold.torch.fold(columns, 4, 2, window=window)


# ---- Transforms and tracers


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fold = gpufold.torch.Fold(4, 2, window=torch.rand(2, 2))
        self.unfold = gpufold.torch.Unfold(2)
        self.window = torch.nn.Parameter(torch.rand(2, 2))

    def forward(self, columns):
        again = self.unfold(self.fold(columns)).reshape(columns.shape[0], 1, 4, 9)
        return gpufold.torch.unfold(again, 2, window=self.window) + gpufold.im2col(again, (2, 2))


def test_fx_has_modules_as_leaves_and_functions_by_name():
    network = Network()
    graph = torch.fx.symbolic_trace(network)
    assert torch.equal(graph(COLUMNS), network(COLUMNS))
    modules = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    functions = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert modules == ["fold", "unfold"]
    assert {gpufold.torch.unfold, gpufold.torch.im2col} <= {*functions}
    again = pickle.loads(pickle.dumps(graph))
    assert torch.equal(again(COLUMNS), network(COLUMNS))


class Named(torch.Tensor):
    """A subclass that does nothing."""


class Unit:
    """What is no tensor, and is asked for every function of torch."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function, args, kwargs


def test_subclasses_of_tensors_take_calls_over():
    result = fold(COLUMNS.as_subclass(Named))
    assert type(result) is Named
    assert torch.equal(result.as_subclass(torch.Tensor), fold(COLUMNS))
    assert type(fold(COLUMNS, WINDOW.as_subclass(Named))) is Named
    assert type(gpufold.im2col(COLUMNS.as_subclass(Named), (2,))) is Named
    unit = Unit()
    assert gpufold.torch.fold(unit, 4, kernel_size=2) == (gpufold.torch.fold, (unit, 4), {"kernel_size": 2})
    assert gpufold.torch.take_blocks(COLUMNS, unit, 2)[0] is gpufold.torch.take_blocks


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
def test_script_says_what_to_use_instead():
    def model(columns):
        return gpufold.torch.fold(columns, 4, 2)

    for scripted, name in ((model, "fold"), (Network(), "Fold"), (gpufold.torch.Unfold(2), "Unfold")):
        with pytest.raises(RuntimeError, match=rf"gpufold.torch.{name} .* call torch.jit.trace, .* torch.export"):
            torch.jit.script(scripted)


LOADED = """
import sys
sys.stderr = sys.stdout  # where torch says what did not load
import torch
for path in sys.argv[1:]:
    try:
        torch.export.load(path).module()
    except Exception:
        print("---")
import gpufold.torch
for path in sys.argv[1:]:
    torch.export.load(path).module()
"""


def test_a_saved_program_says_what_to_import(tmp_path):
    paths = [str(tmp_path / f"{name}.pt2") for name in ("plain", "strict")]
    for path in paths:
        torch.export.save(torch.export.export(Network(), (COLUMNS,), strict="strict" in path), path)
    *failed, rest = python("-c", LOADED, *paths).split("---")
    assert ["exported programs load after: import gpufold.torch" in said for said in failed] == [True, True]
    assert rest.strip() == ""


# ---- Habits


@pytest.mark.parametrize("of", [np.int64, np.uint8, int], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_integers_of_numpy_are_sizes(of, on):
    image, columns = torch.zeros(1, 3, 6, 6, device=on), torch.zeros(1, 12, 9, device=on)
    for module in (torch.nn.functional, gpufold.torch):
        assert module.unfold(image, of(2), of(1), of(1), of(2)).shape == (1, 12, 16)
        assert module.unfold(image, (of(2), 2), stride=np.array([2, 2])).shape == (1, 12, 9)
        assert module.fold(columns, of(4), of(2)).shape == (1, 3, 4, 4)
        assert module.fold(columns, (of(4), of(4)), [of(2), 2], padding=of(0)).shape == (1, 3, 4, 4)


@pytest.mark.parametrize("name", ["kernel_size", "dilation", "padding", "stride"])
@pytest.mark.parametrize("wrong", [True, (True, 2), 2.0, torch.tensor(2), np.array(2)], ids=repr)
def test_what_torch_takes_for_no_size_is_none(wrong, name):
    for module in (torch.nn.functional, gpufold.torch):
        with pytest.raises(TypeError) as refused:
            module.unfold(COLUMNS[:, None], **{"kernel_size": 2} | {name: wrong})
    assert str(refused.value).startswith(f"unfold: {name} must be")
    with pytest.raises(TypeError, match=r"^fold: output_size must be"):
        gpufold.torch.fold(COLUMNS, wrong, 2)


@pytest.mark.parametrize("dilation", [0, (1, 0), [0, 0]])
def test_a_dilation_of_zero_is_refused_by_torchs_names_alone(dilation):
    image = torch.ones(1, 1, 4, 4)
    for module in (torch.nn.functional, gpufold.torch):
        for function, given in ((module.unfold, (image, 2)), (module.fold, (COLUMNS, 4, 2))):
            with pytest.raises(RuntimeError, match="dilation"):
                function(*given, dilation=dilation)
    assert gpufold.torch.im2col(image, (2, 2), dilations=0).shape == (1, 4, 16)


def test_a_module_shows_what_it_has():
    module = gpufold.torch.Fold((9,), (3,), stride=2, window=np.hanning(3), reduction="mean")
    assert repr(module) == (
        "Fold(output_size=(9,), kernel_size=(3,), dilation=1, padding=0, stride=2, window=(3,), reduction='mean')"
    )
    assert repr(gpufold.torch.Unfold(3, window=[WINDOW[0], WINDOW[1]])).endswith("stride=1, window=(2,) x (2,))")


@pytest.mark.parametrize("module", [partial(gpufold.torch.Fold, 4), gpufold.torch.Unfold], ids=["Fold", "Unfold"])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, lambda given: given.astype(">f4")[::-1]])
def test_a_module_keeps_a_window_of_its_own(module, kind):
    given = kind(np.array([1, 2], np.float32))
    for window in (given, [given, given]):
        kept = module(2 if type(window) is list else (2,), window=window)
        same = [kept, copy.deepcopy(kept), pickle.loads(pickle.dumps(kept)), kept.to("cpu")]
        before = [buffer.clone() for buffer in kept.buffers()]
        assert len(before) == (2 if type(window) is list else 1)
        assert not kept.state_dict()
        given[:] = given + 4
        for each in same:
            assert type(each) is type(kept)
            assert all(map(torch.equal, each.buffers(), before))
        assert {buffer.dtype for buffer in kept.half().buffers()} == {torch.float16}


def test_a_window_that_learns_is_not_copied():
    window = torch.ones(2, requires_grad=True)
    assert gpufold.torch.Fold(4, (2,), window=window).window is window
    module = gpufold.torch.Fold(4, 2, window=[torch.nn.Parameter(window), window * 2])
    assert [name for name, _ in module.named_parameters()] == ["window_0"]
    module(COLUMNS).sum().backward()
    assert module.window_0.grad.shape == window.grad.shape


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], "must be a torch.Tensor or .* got list; convert lists with torch.as_tensor"),
        ("hann", "must be a torch.Tensor or numpy.ndarray, .* got str$"),
        (range(10**12), "must be a torch.Tensor or numpy.ndarray, .* got int$"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "got a masked array"),
        (np.matrix([[1.0, 2.0], [1.0, 2.0]]), r"got numpy\.matrix"),
        (np.ones((2, 2), complex), "must hold real numbers that torch has, got dtype complex128"),
        (np.array(["a", "b"]), "must hold real numbers that torch has, got dtype <U1"),
    ],
)
def test_a_module_takes_no_window_that_is_none(window, message):
    for module in (partial(gpufold.torch.Fold, 4), gpufold.torch.Unfold):
        with pytest.raises(TypeError, match=f"^(Fold|Unfold): .*{message}"):
            module(2, window=window)


def test_without_memory_an_error_is_what_arrays_and_what_torch_raise():
    for kind in (MemoryError, torch.OutOfMemoryError, gpufold.torch.NoMemory):
        with pytest.raises(kind, match=r"^take_blocks: "):
            gpufold.take_blocks(torch.ones(8), [(0,)], 2**57)
        with pytest.raises(kind, match=r"^Stitcher\.add: "):
            gpufold.Stitcher((2**57,), 4).add(torch.ones(1, 4), [(0,)])


def test_a_dtype_is_named_on_every_device():
    for on in ("cpu", "meta"):
        for dtype in ("float64", torch.float64, np.float64, np.dtype("f8")):
            assert gpufold.torch.col2im(COLUMNS[0].to(on), (4, 4), (2, 2), dtype=dtype).dtype is torch.float64
        with pytest.raises(TypeError, match="col2im: dtype must be that of data, float32 or float64, got float16"):
            gpufold.torch.col2im(COLUMNS[0].to(on), (4, 4), (2, 2), dtype=torch.float16)
