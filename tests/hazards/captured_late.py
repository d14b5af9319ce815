"""Loops that never wait: what gapless learns of a graph arrives while the loop is far ahead."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from hazards.captured_harness import EITHER, captured_case
from hazards.captured_models import (
    batch,
    batches,
    mlp,
    sgd,
    state,
    training_step,
)


@captured_case(
    "The batch is overwritten in place right after each call.", expect=EITHER, waits=False
)
def batch_is_overwritten_at_once(place):
    model = mlp(place, dropout=0.2)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    (x, y), losses = next(batches(place, 1)), []
    for number in range(44):
        x.mul_(0.9).add_(0.01 * number)
        losses.append(step((x, y)).detach())
        x.neg_()
        y.add_(1).remainder_(4)
    return losses, state(model, optimizer)


@captured_case("Results are changed in place right after each call.", expect=EITHER, waits=False)
def results_are_changed_at_once(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), scores.detach()

    step, kept_losses, total = place.capture(train), [], None
    for one in batches(place, 44):
        loss, scores = step(one)
        total = scores if total is None else total.add_(scores)
        kept_losses.append(loss.mul_(2))
        scores.zero_()
    return kept_losses, total, state(model, optimizer)


@captured_case("Four shapes come in turns.", expect=EITHER, waits=False)
def shapes_come_in_turns(place):
    model = mlp(place, dropout=0.3)
    optimizer = sgd(model)
    step, losses = place.capture(training_step(model, optimizer)), []
    for number in range(64):
        one = batch(place, number, rows=3 + number % 4)
        losses.append(step(one).detach())
    return losses, state(model, optimizer), torch.rand(2, device=place.torch_device)


@captured_case("The step raises in some calls.", expect=EITHER, waits=False)
def step_raises_in_some_calls(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        if x.size(0) == 5:
            raise RuntimeError("five rows")
        return training_step(model, optimizer)((x, y))

    step, results = place.capture(train), []
    for number in range(48):
        one = batch(place, number, rows=5 if number % 9 == 7 else 6)
        try:
            results.append(step(one).detach())
        except RuntimeError as error:
            results.append(error)
    return results, state(model, optimizer)
