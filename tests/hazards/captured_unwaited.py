"""Loops that never wait for the device: whatever gapless finds out arrives late, or in the end."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import Trainer, batch, batches, kept, losses_of, updated


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


@late("Nothing is read before the end.")
def nothing_is_read(place):
    trainer = Trainer(place, dropout=0.3)
    return losses_of(place, place.capture(trainer.train), NUM), trainer.state()


@late("Results are kept as they are, without a copy, and read in the end.")
def results_are_kept(place):
    trainer = Trainer(place)

    def step(pair):
        out = trainer.model(pair[0])
        return updated(trainer.optimizer, F.cross_entropy(out, pair[1])).detach(), out.detach()

    step = place.capture(step)
    return [step(pair) for pair in batches(place, NUM)], trainer.state()


@late("The step counts, and nothing is read.")
def the_step_counts(place):
    trainer, seen = Trainer(place), []

    def step(pair):
        seen.append(len(seen))
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), seen, trainer.state()


@late("The step updates by a counter of its own, and nothing is read.")
def the_step_accumulates(place):
    class Accumulating(Trainer):
        it = 0

        def step(self, pair):
            loss = self.loss(pair) / 8
            loss.backward()
            self.it += 1
            if self.it % 8 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss

    trainer = Accumulating(place)
    return losses_of(place, place.capture(trainer.step), NUM), trainer.it, trainer.state()


@late("A number changes while the verdict may still be on its way.")
def a_number_changes_early(place):
    trainer, config = Trainer(place), {"weight": 1.0}

    def step(pair):
        return updated(trainer.optimizer, config["weight"] * trainer.loss(pair))

    def change(number):
        config["weight"] = 1.0 if number < 4 or number % 10 else 0.2

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


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


@late("A scheduler runs after each step, and nothing is read.")
def scheduler_outside(place):
    trainer, losses = Trainer(place), []
    scheduler = lr_scheduler.CosineAnnealingLR(trainer.optimizer, NUM)
    step = place.capture(trainer.train)
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        scheduler.step()
    return losses, trainer.state()


@late("Validation follows every eighth step, with dropout off and nothing read.")
def validation_between(place):
    trainer, seen, losses = Trainer(place, dropout=0.5), [], []
    step = place.capture(trainer.train)
    for number, pair in enumerate(batches(place, NUM)):
        losses.append(kept(step(pair)))
        if number % 8 == 7:
            trainer.model.eval()
            with torch.no_grad():
                seen.append(trainer.loss(batch(place, 80)))
            trainer.model.train()
    return losses, seen, trainer.state()


@late("The step raises once, early, and nothing is read.")
def raises_early(place):
    trainer, config, losses, caught = Trainer(place, dropout=0.2), {"fails": False}, [], []

    def step(pair):
        loss = trainer.loss(pair)
        if config["fails"]:
            raise ValueError("no")
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        config["fails"] = number in (3, 4, 17)
        try:
            losses.append(kept(step(pair)))
        except ValueError as error:
            caught.append(error)
    return losses, caught, trainer.state()


@late("The step is let go while the verdict may still be on its way, and made anew.")
def captured_anew(place):
    trainer, losses = Trainer(place, dropout=0.2), []
    for start in range(0, NUM, 4):
        step = place.capture(trainer.train)
        losses += [kept(step(batch(place, start + number))) for number in range(4)]
    return losses, trainer.state()
