"""What a step reads from Python, and that changes or stays between its calls.

Where a value changes once, it changes late: even a step that runs as written from then on has been
replayed in a third of its calls.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional as F

from hazards.captured_harness import (
    CAPTURED,
    EITHER,
    HOLDS,
    captured_case,
    everything_said,
)
from hazards.captured_models import (
    Trainer,
    batch,
    batches,
    kept,
    losses_of,
    mlp,
    sgd,
    updated,
)


NUM, LATE = 30, 18


@captured_case(
    "A plain step of a classifier, where nothing but the weights changes.", expect=CAPTURED
)
def nothing_changes(place):
    trainer = Trainer(place)
    return losses_of(place, place.capture(trainer.train), 16), trainer.state()


# -------------------------------------------------------------------- where a number can stand


@captured_case("A number of the closure changes once, in the middle of training.", expect=CAPTURED)
def closure_number(place):
    model, alpha, losses = mlp(place), 0.1, []
    optimizer = sgd(model)

    def step(pair):
        out = model(pair[0])
        return updated(optimizer, F.cross_entropy(out, pair[1]) + alpha * out.square().mean())

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        if number == LATE:
            alpha = 0.7
        losses.append(kept(step(pair)))
    return losses, model.state_dict()


class Weighted(Trainer):
    """A trainer whose loss has a weight: an attribute, or one of the class."""

    weight = 1.0

    def step(self, pair):
        return updated(self.optimizer, self.weight * self.loss(pair))


# -------------------------------------------------------------------------- how often it changes


@captured_case("Two values take turns in every step, as two tasks do.", expect=CAPTURED)
def back_and_forth(place):
    trainer = Weighted(place)

    def change(number):
        trainer.weight = (0.5, 2.0)[number % 2]

    return losses_of(place, place.capture(trainer.step), 40, before=change), trainer.state()


@captured_case(
    "Three phases follow each other, fifteen steps each, and then the first again.",
    expect=CAPTURED,
)
def three_phases_and_the_first_again(place):
    trainer = Weighted(place)

    def change(number):
        trainer.weight = (1.0, 0.5, 0.25, 1.0)[number // 15]

    return losses_of(place, place.capture(trainer.step), 60, before=change), trainer.state()


@captured_case(
    "The number of the epoch is a variable of the loop that the step reads.", expect=CAPTURED
)
def epoch_is_read(place):
    trainer, losses = Trainer(place), []

    def step(pair):
        loss = trainer.loss(pair)
        if epoch > 0:
            loss = loss + 0.1 * trainer.model[0].weight.abs().sum()
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for epoch in range(2):  # noqa: B007  # the step reads it
        for pair in batches(place, 20):
            losses.append(kept(step(pair)))
    return losses, trainer.state(), epoch


@captured_case(
    "What changed is named in the report, with both values.", expect=HOLDS, holds_plainly=False
)
def both_values_are_named(place):
    trainer = Trainer(place)
    trainer.aux_weight = 0.125

    def step(pair):
        return updated(trainer.optimizer, trainer.aux_weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            trainer.aux_weight = 0.375

    step = place.capture(step)
    losses_of(place, step, NUM, before=change)
    for word in ("aux_weight", "0.125", "0.375", "captured_reads.py"):
        assert word in everything_said(step.report), everything_said(step.report)


# ------------------------------------------------------------------------- modules and modes


@captured_case("A forward hook is added, and removed later.", expect=CAPTURED)
def forward_hook_comes_and_goes(place):
    trainer, handles = Trainer(place), []

    def change(number):
        if number == LATE:
            double = lambda module, args, out: out * 2  # noqa: E731
            handles.append(trainer.model[0].register_forward_hook(double))
        if number == LATE + 6:
            handles.pop().remove()

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case(
    "Autocast in bf16 within the step, and validation in autocast between steps.", expect=CAPTURED
)
def validation_in_autocast(place):
    trainer, losses, seen = Trainer(place), [], []
    autocast = functools.partial(torch.autocast, place.torch_device.type, torch.bfloat16)

    def step(pair):
        with autocast():
            loss = trainer.loss(pair)
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        losses.append(kept(step(pair)))
        if number % 4 == 3:
            with torch.no_grad(), autocast():
                seen.append(trainer.loss(batch(place, 50)))
    return losses, seen, trainer.state()


@captured_case("Noise is drawn from a generator of the device that the loop made.", expect=EITHER)
def generator_of_the_user(place):
    trainer = Trainer(place)
    noise = torch.Generator(device=place.torch_device).manual_seed(7)

    def step(pair):
        x, y = pair
        extra = torch.randn(x.shape, device=x.device, generator=noise)
        return trainer.train((x + 0.1 * extra, y))

    losses = losses_of(place, place.capture(step), 20)
    return losses, trainer.state(), noise.get_state()
