"""Tiny models, data and loops of Accelerate, for the cases."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from hazards.captured_harness import snapshot


class Net(nn.Module):
    """A small network that classifies."""

    def __init__(self, *, dropout=0.2, norm=False, seed=5):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


class Rows(Dataset):
    """So many rows with their classes, as a dictionary each."""

    def __init__(self, num, seed=1):
        draw = torch.Generator().manual_seed(seed)
        self.x = torch.randn(num, 6, generator=draw)
        self.y = torch.randint(0, 3, (num,), generator=draw)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        return {"x": self.x[number], "y": self.y[number]}


def loader(num=40, *, batch_size=4, seed=1, **settings):
    """Return a loader of so many rows."""
    return DataLoader(Rows(num, seed), batch_size=batch_size, **{"shuffle": True, **settings})


def make_accelerator(place, **settings):
    """Return a new accelerator of this place, after forgetting the one before."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    set_seed(3)
    return Accelerator(cpu=not place.is_gpu, **settings)


def prepared(place, accelerator, *objects):
    """Prepare these objects, and capture what was prepared."""
    found = accelerator.prepare(*objects)
    place.capture_prepared(accelerator)
    return found


def plain_sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def loss_of(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def train_epochs(accelerator, model, optimizer, batches, num=3, *, scheduler=None, clip=None):
    """Train as the manual shows; return the losses and norms that are logged."""
    logged = []
    model.train()
    for epoch in range(num):
        for batch in batches:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                if clip and accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                    logged.append(("norm", epoch, norm.item()))
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                optimizer.zero_grad()
            logged.append((epoch, accelerator.sync_gradients, loss.item()))
    return logged


def told(place, accelerator, model, optimizer, *more):
    """Return all that a user could compare of a model that was trained."""
    plain = accelerator.unwrap_model(model)
    inner = getattr(optimizer, "optimizer", optimizer)
    place.watch("model", plain)
    place.watch("optimizer", inner)
    held = [dict(plain.state_dict()), inner.state_dict(), accelerator.sync_gradients, *more]
    return snapshot(place, held)
