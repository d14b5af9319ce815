"""`compile=True` on a GPU: the bits are those of the same layers compiled by hand, and not captured."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gapless


# Torch's compiler looks at whatever may warn; as errors those stop it.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

VOCABULARY, LENGTH = 64, 32


class Block(nn.Module):
    """Attention and a feed-forward part with dropout."""

    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """Blocks in a list."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.blocks = nn.ModuleList([Block(64) for _ in range(3)])
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Encoder(nn.Module):
    """Layers of a class of torch's own."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


class Perceptron(nn.Module):
    """Nothing repeats, and a buffer is written."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        x = F.gelu(self.embed(tokens))
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


class Words(nn.Module):
    """Compiled pieces around an LSTM, whose dropout has a state of its own on the device."""

    def __init__(self):
        super().__init__()
        self.embed, self.drop = nn.Embedding(VOCABULARY, 64), nn.Dropout(0.2)
        self.rnn = nn.LSTM(64, 64, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        x = self.drop(F.gelu(self.embed(tokens)))
        x, _ = self.rnn(x)
        return self.head(self.drop(F.gelu(x)))


class Sums(nn.Module):
    """Many rows are added to few, in any order."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        x = F.gelu(self.embed(tokens))
        rows = tokens.flatten() % 4
        sums = x.new_zeros(4, 64).index_add(0, rows, x.flatten(0, 1))
        return self.head(x + sums[rows].unflatten(0, tokens.shape).tanh())


class Drawn(nn.Module):
    """Convolutions of a GAN: torch's compiler is mistaken in the strides of some of them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 100)
        sizes = (100, 32, 16, 8)
        self.net = nn.Sequential(
            *(
                nn.Sequential(
                    nn.ConvTranspose2d(a, b, 4, 1 + (a < 100), int(a < 100), bias=False),
                    nn.BatchNorm2d(b),
                    nn.ReLU(inplace=True),
                )
                for a, b in pairwise(sizes)
            ),
            nn.Conv2d(8, VOCABULARY, 4, 2, 1, bias=False),
        )

    def forward(self, tokens):
        images = self.net(self.embed(tokens).mean(1)[:, :, None, None])
        return images.mean((2, 3))[:, None, :].expand(-1, tokens.shape[1], -1)


def blocks_by_hand(model):
    for block in model.blocks:
        block.compile(dynamic=False)


def layers_by_hand(model):
    layers = model.encoder.layers
    for number, layer in enumerate(layers):
        layers[number] = torch.compile(layer, dynamic=False)


def whole_by_hand(model):
    model.compile(dynamic=False)


MODELS = {
    "gpt": (Gpt, blocks_by_hand),
    "encoder": (Encoder, layers_by_hand),
    "whole": (Perceptron, whole_by_hand),
}


def train(
    make, *, form="written", by_hand=None, is_bf16=False, num=40, lengths=(LENGTH,), **options
):
    """Train a model; return its losses and its weights, and the report of its capture."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if by_hand is not None:
        by_hand(model)

    def step(tokens):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_bf16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if form == "in place":
        gapless.capture(model, **options)
    elif form == "step":
        step = gapless.capture(step, **options)
    draw, losses = torch.Generator().manual_seed(1), []
    torch.manual_seed(2)
    for number in range(num):
        shape = 8, lengths[number % len(lengths)]
        losses.append(step(torch.randint(VOCABULARY, shape, generator=draw).cuda()).clone())
    values = [one.detach().cpu() for one in (*losses, *model.state_dict().values())]
    if form == "written":
        return values, None
    return values, gapless.capture_report(model) if form == "in place" else step.report


def assert_equal(one, other):
    assert len(one) == len(other)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_bits_are_those_of_the_same_layers_compiled_and_not_captured(kind, is_bf16, numerics):
    """In place and as a step, in training with dropout; audits agree."""
    # Compiled gradients of embeddings would add atomically.
    torch.use_deterministic_algorithms(True, warn_only=True)
    make, by_hand = MODELS[kind]
    expected, _ = train(make, by_hand=by_hand, is_bf16=is_bf16)

    for form in ("in place", "step"):
        found, report = train(make, form=form, is_bf16=is_bf16, compile=True, audit_every=8)

        assert_equal(expected, found)
        assert report.num_graphs >= 1, report
        assert report.num_replays > 20, report
        assert not report.audits.differences, report
        assert report.num_compiled >= 1, report


@pytest.mark.parametrize("setting", [True, "dynamic"])
@pytest.mark.parametrize("form", ["in place", "step"])
def test_lengths_that_change(form, setting, monkeypatch):
    """Compiled for each, or once for all; `GAPLESS_CAPTURE=off` is the loop to compare with."""
    options = {"form": form, "compile": setting, "num": 60, "lengths": (32, 24, 17)}
    found, report = train(Gpt, **options)
    monkeypatch.setenv("GAPLESS_CAPTURE", "off")

    expected, of_off = train(Gpt, **options)

    assert_equal(expected, found)
    assert report.num_replays > 20, report
    assert of_off.num_graphs == 0
    assert report.num_compiled == of_off.num_compiled
    assert (report.num_compiled == 3) == (setting is True)


@pytest.mark.parametrize("make", [Words, Drawn])
@pytest.mark.parametrize("form", ["in place", "step"])
def test_the_bits_are_those_without_captures(form, make, monkeypatch, numerics):
    """Where the compiler leaves out a part, or is mistaken."""
    # Compiled gradients of embeddings would add atomically.
    torch.use_deterministic_algorithms(True, warn_only=True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    found, report = train(make, form=form, compile=True)
    monkeypatch.setenv("GAPLESS_CAPTURE", "off")

    expected, of_off = train(make, form=form, compile=True)
    again, _ = train(make, form=form, compile=True)

    assert_equal(expected, again)
    assert_equal(expected, found)
    assert report.num_replays > 20, report
    assert report.not_compiled == of_off.not_compiled, report


@pytest.mark.parametrize("form", ["in place", "step"])
def test_kernels_that_add_in_any_order_are_known(form):
    """As an operator that does not repeat its bits is, outside of compiled code."""
    found, report = train(Sums, form=form, compile=True, num=60)

    assert report.num_replays > 20, report
    assert report.num_compiled >= 1, report
    assert report.note is None or "atomic_add" in report.note, report
    assert found[59] < found[0]
