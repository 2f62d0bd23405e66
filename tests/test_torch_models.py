"""Published models whose F.fold and F.unfold are gpufold's: the same results, in every tool.

Their weights are random, and their packages' code is as it is.
"""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch.nn import functional

import gpufold.torch
from bench import clients

pytestmark = [pytest.mark.peer("torch"), pytest.mark.filterwarnings("ignore")]


def volo():
    """Outlook attention: unfold, weigh, fold."""
    with clients._stood_in(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "timm.data", clients._StandIn("timm.data"))  # names of data sets and transforms
        from timm.models.volo import VOLO
    sizes = {"img_size": 32, "embed_dims": (16, 16), "num_heads": (2, 2), "stem_hidden_dim": 8}
    layers = {"layers": (1, 1), "downsamples": (True, False), "outlook_attention": (True, False)}
    network = VOLO(**layers, **sizes, num_classes=5, patch_size=8, use_aux_head=False)
    return network, torch.randn(2, 3, 32, 32)


def t2t():
    """Tokens to tokens: torch.nn.Unfold."""
    with clients._stood_in():
        from vit_pytorch.t2t import T2TViT
    network = T2TViT(image_size=16, num_classes=5, dim=16, depth=1, heads=2, mlp_dim=16, t2t_layers=((3, 2), (3, 2)))
    return network, torch.randn(2, 3, 16, 16)


def convbert():
    """Span-based dynamic convolution: torch.nn.functional.unfold of one axis."""
    from transformers import ConvBertConfig, ConvBertModel

    network = ConvBertModel(ConvBertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=16,
        embedding_size=8, max_position_embeddings=16))  # fmt: skip
    return Embedded(network), torch.randn(2, 7, 8)


class Embedded(torch.nn.Module):
    """A language model from its embeddings on, which have gradients."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, embedded):
        return self.network(inputs_embeds=embedded, attention_mask=torch.ones_like(embedded[..., 0])).last_hidden_state


def mobilevitv2():
    """Separable self-attention over patches: unfold and fold."""
    from transformers import MobileViTV2Config, MobileViTV2Model

    network = MobileViTV2Model(MobileViTV2Config(
        image_size=32, base_attn_unit_dims=[8, 8, 8], n_attn_blocks=[1, 1, 1], width_multiplier=0.25))  # fmt: skip
    return Pixels(network), torch.randn(1, 3, 64, 64)


def vocos():
    """A vocoder's head: an inverse short-time Fourier transform by two folds, of frames and their envelope."""
    return clients.client("vocos.heads").ISTFTHead(dim=24, n_fft=96, hop_length=40, padding="same"), torch.randn(
        2, 30, 24
    )


class Pixels(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pixels):
        return self.network(pixels).last_hidden_state


MODELS = [
    pytest.param(model, marks=[pytest.mark.peer(package), pytest.mark.all], id=model.__name__)
    for model, package in (
        (volo, "timm"),
        (t2t, "vit_pytorch"),
        (convbert, "transformers"),
        (mobilevitv2, "transformers"),
    )
]


@contextmanager
def replaced():
    """Have torch.nn.functional's fold and unfold be gpufold's, which note that they were called."""
    called = []

    def note(function, *given, **named):
        called.append(function.__name__)
        return function(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fold", "unfold"):
            patch.setattr(functional, name, partial(note, getattr(gpufold.torch, name)))
        yield called
    assert called


def made(model):
    torch.manual_seed(0)
    network, given = model()
    return network.eval(), given


def difference(first, second):
    """The largest difference of two tensors."""
    assert first.shape == second.shape
    return (first - second).abs().max().item()


@pytest.mark.parametrize("model", [*MODELS, pytest.param(vocos, marks=pytest.mark.peer("vocos"), id="vocos")])
def test_forward_and_backward_have_torchs_bits(model):
    network, given = made(model)

    def run():
        network.zero_grad()
        leaf = given.clone().requires_grad_()
        result = network(leaf)
        result.square().sum().backward()
        weights = [each.grad.clone() for each in network.parameters() if each.grad is not None]
        return [result.detach(), leaf.grad, *weights]

    want = run()
    with replaced():
        got = run()
    assert len(got) == len(want) >= 3
    assert max(map(difference, got, want)) == 0.0


def traced(network, given):
    program = torch.jit.trace(network, given, check_trace=False)
    assert "gpufold::" in str(program.inlined_graph)
    return program


def exported(network, given):
    program = torch.export.export(network, (given,))
    assert "gpufold." in program.graph_module.code
    return program.module()


def in_onnx(network, given, dynamo):
    import onnxruntime

    file = io.BytesIO()
    torch.onnx.export(network, (given,), file, dynamo=dynamo, opset_version=18, verbose=False)
    session = onnxruntime.InferenceSession(file.getvalue())
    name = session.get_inputs()[0].name
    return lambda other: torch.from_numpy(session.run(None, {name: other.numpy()})[0])


ONNX = [pytest.mark.peer("onnxruntime"), pytest.mark.peer("onnxscript")]


@pytest.mark.parametrize(
    ("recorder", "most"),
    [
        pytest.param(traced, 1e-6, id="trace"),  # torch.jit fuses
        pytest.param(exported, 0, id="export"),
        pytest.param(partial(in_onnx, dynamo=False), 2e-5, marks=ONNX, id="ONNX by trace"),  # in another order
        pytest.param(partial(in_onnx, dynamo=True), 2e-5, marks=ONNX, id="ONNX by export"),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_what_is_recorded_computes_what_torch_does(model, recorder, most):
    network, given = made(model)
    with replaced(), torch.no_grad():
        program = recorder(network, given)
    other = torch.randn_like(given)
    assert difference(program(other), network(other)) <= most
