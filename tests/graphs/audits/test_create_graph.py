"""Gradients of gradients that first come after replays have begun have the bits of the loop as written."""

from __future__ import annotations

import warnings

import pytest
import torch

import gapless
from graphs.audits.harness import Place, batch, values


CALLS = 16


def slope_of_the_critic(model, weights, x, loss):
    """WGAN-GP: the slope of the critic between two batches is one."""
    between = (x * 0.5).requires_grad_()
    (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
    (loss + (slope.norm() - 1.0).square()).backward()


def norm_of_gradients(model, weights, x, loss):
    """A penalty on gradients that are asked for."""
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    (loss + sum(gradient.square().sum() for gradient in gradients)).backward()


def backward_with_a_graph(model, weights, x, loss):
    """A penalty on gradients that a backward pass left."""
    loss.backward(create_graph=True)
    sum(weight.grad.square().sum() for weight in weights).backward()


PENALTIES = [slope_of_the_critic, norm_of_gradients, backward_with_a_graph]

WHEN = {
    "late": lambda number: number >= 8,
    "once": lambda number: number == 8,
    "every fourth": lambda number: number % 4 == 3,
    "every fourth, late": lambda number: number >= 8 and number % 4 == 3,
}


def trained(penalty, is_due, form, folder):
    """Return losses and weights; `form` is None for the loop as written."""
    with Place(folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a cycle that create_graph makes
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        ).to(place.device.torch_device)
        weights = list(model.parameters())
        optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)

        def step(x, penalised):
            # Each weight has three uses, whose gradients are summed in an order.
            loss = model(x).square().mean() + model(x + 0.3).mean() * model(x * 0.7).mean()
            optimizer.zero_grad()
            if penalised:
                penalty(model, weights, x, loss)
            else:
                loss.backward()
            optimizer.step()
            return loss.detach()

        if form == "step":
            step = gapless.capture(step, device=place.device)
        if form == "in_place":
            gapless.capture(model, optimizer, device=place.device)
        found = []
        for number in range(CALLS):
            found.append(values(step(batch(place, number), is_due(number))))
        for weight in weights:
            found.append(values(weight))
            weight.grad = None
    return found


each_penalty = pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.__name__)


@pytest.mark.slow
@each_penalty
def test_the_loop_as_written_repeats_itself(penalty, tmp_path):
    """And the penalty counts."""
    plain = trained(penalty, WHEN["once"], None, tmp_path)

    assert trained(penalty, WHEN["once"], None, tmp_path) == plain
    assert trained(penalty, lambda number: False, None, tmp_path) != plain


@pytest.mark.quick_cases(2)
@each_penalty
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("form", ["step", "in_place"])
def test_penalties_after_replays_have_the_bits_as_written(penalty, when, form, tmp_path):
    """Losses of all calls, and the weights at the end."""
    plain = trained(penalty, WHEN[when], None, tmp_path)

    assert trained(penalty, WHEN[when], form, tmp_path) == plain
