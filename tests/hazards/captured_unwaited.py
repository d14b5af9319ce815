"""Loops that never wait for the device: whatever gapless finds out arrives late, or in the end."""

from __future__ import annotations

import torch

from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import Trainer, batches, kept, losses_of, updated


NUM = 48


def late(sentence, expect=EITHER):
    """Register a case that does not wait after each call."""
    return captured_case(sentence, expect=expect, waits=False)


@late("The loop reads every fifth loss, and a number changes once.", expect=CAPTURED)
def a_number_changes(place):
    trainer, config, read, losses = Trainer(place), {"weight": 1.0}, [], []

    def step(pair):
        return updated(trainer.optimizer, config["weight"] * trainer.loss(pair))

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        if number == 30:
            config["weight"] = 0.1
        losses.append(kept(step(pair)))
        if number % 5 == 4:
            read.append(losses[-1].item())
    return losses, read, trainer.state()


@late("Weights are scaled by the loop while the verdict may still be on its way.")
def weights_change_early(place):
    trainer = Trainer(place)

    def change(number):
        if number in (3, 4, 5, 20):
            with torch.no_grad():
                for weight in trainer.model.parameters():
                    weight.mul_(0.5)

    losses = losses_of(place, place.capture(trainer.train), NUM, before=change)
    return losses, trainer.state()
