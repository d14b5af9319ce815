"""How many calls of Python, in how many files, a captured call is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice


ROOT = f"{Path(gapless.__file__).parent}{os.sep}"
TESTING = f"{ROOT}testing{os.sep}"


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def is_simulated(frame):
    """Return whether the simulated device has called a function, or is it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(TESTING):
            return True
        frame = frame.f_back
    return False


def walk(call):
    """Return the file and the name of each function of the package that a call runs, in order."""
    steps = []

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT) and not is_simulated(frame):
            steps.append((name.removeprefix(ROOT), frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return steps


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_call_like_the_one_before_is_few_calls_in_few_files(device, optimizer):
    """A multilayer perceptron with its optimizer, on a batch of two tensors."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)]
    model = torch.nn.Sequential(*layers).to(device.torch_device)
    update = optimizer(model.parameters(), lr=0.1, fused=True)

    def train(batch):
        update.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        update.step()
        return loss.detach()

    step = gapless.capture(train, device=device)
    batch = {"x": torch.randn(4, 8), "y": torch.zeros(4, dtype=torch.long)}
    batch = {name: tensor.to(device.torch_device) for name, tensor in batch.items()}
    for _ in range(20):
        step(batch)
    num_replays = step.report.num_replays

    steps = walk(lambda: step(batch))

    assert step.report.num_replays == num_replays + 1
    assert len(steps) <= 20, steps
    assert len({file for file, _ in steps}) <= 8, steps
