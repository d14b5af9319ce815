"""Ways of writing Python that lead a step to a value past its names: found by trying to break it."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, captured_case, refused
from hazards.captured_models import (
    batch,
    batches,
    kept,
    losses_of,
    mlp,
    run,
    sgd,
    state,
    training_step,
    updated,
)


def weighted(place, weight, change):
    """Train with `weight()` as a weight of the loss; the loop calls `change()` once."""
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y) * weight())

    def before(number):
        if number == 15:
            change()

    step = place.capture(train)
    return losses_of(place, step, 30, before=before), state(model, optimizer)


class Weights:
    """An object with a weight."""

    def __init__(self, weight=1.0):
        self.weight = weight


@captured_case(
    "Some steps run under anomaly detection, and one of them raises.",
    expect=refused("set_detect_anomaly"),
)
def anomalies_are_detected_for_a_while(place):
    model = mlp(place)
    step = place.capture(training_step(model, sgd(model)))
    results = []
    for number, (x, y) in enumerate(batches(place, 20)):
        if number == 12:
            x[0, 0] = float("nan")
        with torch.autograd.set_detect_anomaly(number in range(9, 13)):
            try:
                results.append(kept(step((x, y))))
            except RuntimeError as error:
                results.append(type(error).__name__)
    return results


@captured_case(
    "Operations of some steps are counted by a mode of the user.", expect=refused("Counting")
)
def operations_are_counted(place):
    seen = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    model = mlp(place)
    step = place.capture(training_step(model, sgd(model)))
    losses = run(step, batches(place, 10))
    with Counting():
        losses += [step(pair) for pair in batches(place, 4)]
    return [kept(loss) for loss in losses], seen.count("cross_entropy")


def with_kept_gradients(place, keep, *, zeroes_outside=False):
    """Train; the loop keeps something of each gradient until after the next step."""
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        if not zeroes_outside:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    found, last = [], []
    for number in range(30):
        if zeroes_outside:
            optimizer.zero_grad()
        found.append(kept(step(batch(place, number))))
        found.append([kept(gradient) for gradient in last])
        last = [keep(parameter.grad) for parameter in model.parameters()]
    return found, state(model, optimizer)


@captured_case("Gradients are kept as they are, and as copies on the host.", expect=CAPTURED)
def gradients_are_kept_as_they_are(place):
    return with_kept_gradients(place, lambda gradient: gradient)
