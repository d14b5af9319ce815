"""Small models and batches for the cases about captured steps."""

from __future__ import annotations

import gc

import torch
from torch import nn
from torch.nn import functional as F


def mlp(place, *, dropout=0.0, num_in=8, num_out=4):
    """Return a small classifier on the place's device, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Linear(num_in, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, num_out)]
        return nn.Sequential(*layers).to(place.torch_device)


def sgd(model, **settings):
    """Return plain SGD with a rate of 0.1, unless the settings say otherwise."""
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **settings})


def host_batch(number, *, rows=6, num_in=8, num_out=4):
    """Return features and classes of this number, on the host."""
    draw = torch.Generator("cpu").manual_seed(100 + number)
    x = torch.randn(rows, num_in, generator=draw, dtype=torch.float32, device="cpu")
    return x, torch.randint(0, num_out, (rows,), generator=draw, device="cpu")


def batch(place, number, **sizes):
    """Return features and classes of this number, on the device."""
    x, y = host_batch(number, **sizes)
    return place.moved(x), place.moved(y)


def batches(place, num, **sizes):
    """Yield so many batches of one kind."""
    for number in range(num):
        yield batch(place, number, **sizes)


def kept(loss):
    """Return a copy of a result, as logging keeps it."""
    return loss.detach().clone()


class Headed(nn.Module):
    """A body and a head, the usual shape of what is fine-tuned."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


def training_step(model, optimizer, *, loss_of=F.cross_entropy):
    """Return the plainest step: zero, forward, backward, update."""

    def step(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def run(step, batches):
    """Call the step with each batch; return copies of the losses."""
    return [kept(step(batch)) for batch in batches]


def state(model, *optimizers):
    """Return all that training leaves behind."""
    parameters = list(model.parameters())
    return (
        parameters,
        [parameter.grad for parameter in parameters],
        list(model.buffers()),
        [optimizer.state_dict() for optimizer in optimizers],
    )


def poison(place, *shapes):
    """Fill memory that was let go with values that no training gives; return what holds it."""
    gc.collect()
    return [
        torch.full(shape, 1e9, device=place.torch_device) for shape in shapes for _ in range(4)
    ]


def updated(optimizer, loss):
    """Update the weights by the loss's gradient, and return the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def losses_of(place, step, num, *, before=None, **sizes):
    """Call the step with so many batches, each after `before(number)`, and return its results."""
    losses = []
    for number, pair in enumerate(batches(place, num, **sizes)):
        if before is not None:
            before(number)
        losses.append(kept(step(pair)))
    return losses


class Trainer:
    """A trainer as people write it, whose step is `train(batch)`."""

    def __init__(self, place, **settings):
        self.model = mlp(place, **settings)
        self.optimizer = sgd(self.model, momentum=0.9)

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def train(self, batch):
        return updated(self.optimizer, self.loss(batch))

    def state(self):
        return self.model.state_dict(), self.optimizer.state_dict()


def is_capturing():
    """Answer as libraries do: whether a capture goes on, and no where torch knows of no CUDA."""
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:
        return False
