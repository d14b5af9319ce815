"""What a step does not read may change: it is captured all the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gapless
from gapless.testing import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def num_replays(step, after, device):
    """Return how many of twelve calls are replayed, after each of which something is done."""
    for number in range(12):
        step(torch.full((2, 2), number + 1.0).to(device.torch_device))
        after(number)
    return step.report.num_replays


def by_expression(model, state):
    def step(x):
        return model(x).sum().detach() * state["weight"]

    return step


def by_variable(model, state):
    def step(x):
        weight = state["weight"]
        loss = model(x).sum().detach()
        return loss * weight

    return step


def by_several_variables(model, state):
    def step(x):
        weight, loss = state["weight"], model(x).sum().detach()
        return loss * weight

    return step


@pytest.mark.parametrize("make", [by_expression, by_variable, by_several_variables])
@pytest.mark.parametrize(
    "grow",
    [
        lambda state, number: state["losses"].append(number),
        lambda state, number: state.update({f"epoch {number}": number}),
    ],
    ids=["an entry", "the dictionary"],
)
def test_what_grows_beside_an_entry_that_is_read(device, make, grow):
    """Variables that an enclosing function holds are not what a call has returned."""
    state = {"weight": 2.0, "losses": []}
    model = nn.Linear(2, 2).to(device.torch_device)
    step = gapless.capture(make(model, state), device=device)

    assert num_replays(step, lambda number: grow(state, number), device) >= 6


class Trainer:
    """Holds the captured step, as trainers do, and is read as a whole within it."""

    def __init__(self, read, device):
        self.scale, self.read = 2.0, read
        self.model = nn.Linear(2, 2).to(device)

    def train_step(self, x):
        return self.model(x).sum().detach() * self.read(self)


@pytest.mark.parametrize(
    "read",
    [
        lambda trainer: sum(one for one in vars(trainer).values() if isinstance(one, float)),
        lambda trainer: getattr(trainer, trainer.name),
        lambda trainer: copy.copy(trainer).scale,
        lambda trainer: 2.0 if trainer.step is not None else 1.0,
    ],
    ids=["vars", "getattr", "copy", "attribute"],
)
def test_a_captured_step_that_its_own_code_comes_to(device, read):
    """What it counts as it is watched is no change of the step's."""
    trainer = Trainer(read, device.torch_device)
    trainer.name = "scale"
    trainer.step = gapless.capture(trainer.train_step, device=device)

    assert num_replays(trainer.step, lambda _: None, device) >= 6
    trainer.scale = 3.0
    x = torch.ones(2, 2).to(device.torch_device)
    assert trainer.step(x).item() == trainer.train_step(x).item()
