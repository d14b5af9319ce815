"""What a loop does between two captured steps, on one GPU: the plain loop's bits."""

from __future__ import annotations

import copy

import pytest
import torch

import gapless
from gapless.device.find import find_device
from gapless.device.numerics import set_numerics


pytestmark = [
    pytest.mark.gpu,
    # Torch says where a backward pass finds a graph of gradients that another stream has made.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]


def train(kind, *, captured):
    """Return losses, weights and the report of forty steps."""
    set_numerics(find_device("cuda"), "fp32", deterministic=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

    def add_gradients(batch):
        loss = model(batch).square().mean()
        loss.backward()
        return loss.detach()

    def update(batch):
        optimizer.zero_grad()
        loss = add_gradients(batch)
        optimizer.step()
        return loss

    step = update if kind == "reload" else add_gradients
    step = gapless.capture(step) if captured else step
    losses, kept = [], None
    for number, batch in enumerate(gapless.prefetch([torch.randn(16, 32)] * 40, "cuda")):
        losses.append(step(batch).item())
        if kind == "update outside" or (kind == "update after two" and number % 2):
            optimizer.step()
            optimizer.zero_grad()
        if kind == "reload" and number == 10:
            kept = copy.deepcopy(optimizer.state_dict())
        if kind == "reload" and number == 20:
            optimizer.load_state_dict(kept)
    weights = [weight.detach().cpu() for weight in model.parameters()]
    return losses, weights, step.report if captured else None


CASES = {"update outside": (1, 38), "update after two": (4, 4), "reload": (2, 38)}


@pytest.mark.parametrize("kind", CASES)
def test_what_the_loop_does_between_steps_counts(kind):
    """Gradients set to None, or a checkpoint loaded: replays follow, or end."""
    losses, weights, _ = train(kind, captured=False)

    found, found_weights, report = train(kind, captured=True)

    assert losses == found
    assert all(map(torch.equal, weights, found_weights))
    assert CASES[kind] == (report.num_graphs, report.num_replays), report
