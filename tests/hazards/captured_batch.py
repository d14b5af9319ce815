"""Batches that the step changes, or that are of a peculiar kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import (
    Trainer,
    batch,
    batches,
    host_batch,
    is_capturing,
    kept,
    mlp,
    sgd,
    state,
    updated,
)


NUM = 16


def dicts(place, num, **sizes):
    """Yield batches as dicts of features and classes."""
    for x, y in batches(place, num, **sizes):
        yield {"x": x, "y": y}


def losses_over(step, made):
    """Call the step with each of these batches, and return its results."""
    return [kept(step(one)) for one in made]


# ------------------------------------------------------------------- the step changes its batch


@captured_case("The step puts normalised features into its batch.", expect=CAPTURED)
def features_assigned(place):
    trainer = Trainer(place)

    def step(pair):
        pair["x"] = pair["x"] / 2 + 1
        return trainer.train((pair["x"], pair["y"]))

    return losses_over(place.capture(step), dicts(place, NUM)), trainer.state()


@captured_case("The step writes its loss into the batch, as some frameworks do.", expect=EITHER)
def loss_written_into_the_batch(place):
    trainer, losses = Trainer(place), []

    def step(pair):
        pair["loss"] = trainer.train((pair["x"], pair["y"]))
        return pair

    step = place.capture(step)
    for pair in dicts(place, NUM):
        out = step(pair)
        losses.append((kept(out["loss"]), kept(pair["loss"])))
    return losses, trainer.state()


# ----------------------------------------------------------------------- what is in a batch


@captured_case("A mask is now None and now a tensor.", expect=CAPTURED)
def none_or_a_tensor(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        return trainer.train((x if mask is None else x * mask, y))

    made = (
        (x, y, None if number % 2 else (x > 0).float())
        for number, (x, y) in enumerate(batches(place, 40))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("The batch is a list of samples, four or six of them.", expect=CAPTURED)
def lists_of_two_lengths(place):
    trainer = Trainer(place)

    def step(samples):
        x, y = (torch.stack([sample[part] for sample in samples]) for part in range(2))
        return trainer.train((x, y))

    made = (
        list(zip(*batch(place, number, rows=4 + 2 * (number % 2)), strict=True))
        for number in range(40)
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("Three sizes of batches follow each other.", expect=CAPTURED)
def three_sizes(place):
    trainer = Trainer(place, dropout=0.2)
    made = (batch(place, number, rows=(4, 6, 9)[number % 3]) for number in range(48))
    return losses_over(place.capture(trainer.train), made), trainer.state()


@captured_case("A flag in the batch is now True and now False.", expect=CAPTURED)
def flag_in_the_batch(place):
    trainer = Trainer(place)

    def step(pair):
        x = pair["x"].flip(1) if pair["is_flipped"] else pair["x"]
        return trainer.train((x, pair["y"]))

    made = (
        {**pair, "is_flipped": number % 3 == 0} for number, pair in enumerate(dicts(place, 45))
    )
    return losses_over(place.capture(step), made), trainer.state()


@dataclass
class Sample:
    """A batch as a dataclass."""

    x: Any
    y: Any
    weight: float = 1.0


@captured_case("The batch is a dataclass whose field the step changes.", expect=CAPTURED)
def dataclass_is_changed(place):
    trainer = Trainer(place)

    def step(pair):
        pair.x = pair.x * pair.weight
        pair = replace(pair, weight=2.0)
        return trainer.train((pair.x, pair.y))

    made = (Sample(*pair, weight=0.5) for pair in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


# ------------------------------------------------------------------ whose memory a batch has


@captured_case(
    "The step takes nothing and asks an iterator for its batch.",
    expect=refused(at="pair = next(data)"),
)
def batch_from_an_iterator(place):
    trainer, data = Trainer(place), batches(place, NUM + 1)

    def step():
        pair = next(data)
        return trainer.train(pair)

    step = place.capture(step)
    losses = [kept(step()) for _ in range(NUM)]
    return losses, next(data), trainer.state()


@captured_case("A batch is a slice of data that stays on the device.", expect=CAPTURED)
def slices_of_data_on_the_device(place):
    trainer, losses = Trainer(place), []
    x, y = batch(place, 0, rows=24)
    step = place.capture(trainer.train)
    for _ in range(4):
        losses += [kept(step((x[at : at + 6], y[at : at + 6]))) for at in range(0, 24, 6)]
    return losses, trainer.state()


@captured_case("Batches come on the host, and the step moves them.", expect=EITHER)
def moved_in_the_step(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train(tuple(part.to(place.torch_device) for part in pair))

    made = (host_batch(number) for number in range(NUM))
    return losses_over(place.capture(step), made), trainer.state()


# --------------------------------------------------------------- one memory in each call, written


def queue_step(model, optimizer, factor=lambda: 1.0):
    """Return a step that compares with a queue it is given, and puts what it has seen into it."""

    def step(x, queue):
        seen = model(x)
        loss = ((seen.sum(0) * factor()) @ queue.t()).square().mean()
        updated(optimizer, loss)
        queue[:6] = seen.detach()
        return loss

    return step


def queue_losses(place, step):
    queue = torch.ones(12, 4, device=place.torch_device)
    losses = [kept(step(x, queue)) for x, _ in batches(place, NUM)]
    return losses, queue


@captured_case(
    "The same, and a library rounds otherwise while a graph is captured.",
    expect=refused("computes something else"),
)
def queue_is_an_argument_and_the_graph_rounds_otherwise(place):
    model = mlp(place)
    optimizer = sgd(model, lr=0.01)
    step = queue_step(model, optimizer, lambda: 1.0000002 if is_capturing() else 1.0)
    return queue_losses(place, place.capture(step)), state(model)
