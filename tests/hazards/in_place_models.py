"""Small models and loops for the cases about capture in place."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import batch


NUM = 20


def made(place, make, *args, **settings):
    """Return `make(...)` on the place's device, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return make(*args, **settings).to(place.torch_device)


def update(optimizer, loss):
    """Update by the loss's gradient as the plainest loop does; return the loss as it is logged."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def fit(place, model, optimizer, num=NUM, *, start=0, loss_of=F.cross_entropy, **sizes):
    """Train in the plainest loop; return what it logs."""
    losses = []
    for number in range(start, start + num):
        x, y = batch(place, number, **sizes)
        losses.append(update(optimizer, loss_of(model(x), y)))
    return losses


def floats(place, number, *shape):
    """Return so many normal numbers on the device, of this number."""
    draw = torch.Generator().manual_seed(900 + number)
    return place.moved(torch.randn(*shape, generator=draw, dtype=torch.float32))


def tokens(place, number, *shape, most=11):
    """Return tokens on the device, of this number."""
    draw = torch.Generator().manual_seed(700 + number)
    return place.moved(torch.randint(0, most, shape, generator=draw))


def on_host(value):
    """Return a state_dict with copies of its tensors on the host."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    return [on_host(item) for item in value] if isinstance(value, list) else value


def through_a_file(value):
    """Return what was saved on the host and loaded again."""
    file = io.BytesIO()
    torch.save(on_host(value), file)
    file.seek(0)
    return torch.load(file)


class Normed(nn.Module):
    """Batch norm and dropout, which differ between training and evaluation."""

    def __init__(self, p=0.3):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(p)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


class Tied(nn.Module):
    """A small language model whose head has the weight of its embedding."""

    def __init__(self, vocab=11, width=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embed(ids))))


class Recurrent(nn.Module):
    """An LSTM that takes and gives its state."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x, state=None):
        out, state = self.lstm(x, state)
        return self.head(out), state


@dataclass
class Output:
    """What a model of the Hugging Face kind returns."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None
    extra: Any = None
