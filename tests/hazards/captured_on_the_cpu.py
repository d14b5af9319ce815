"""Captured steps where there is nothing to capture: all runs as written, and the report says so."""

from __future__ import annotations

import random

from hazards.captured_harness import CPU, EITHER, HOLDS, captured_case, everything_said
from hazards.captured_models import Trainer, batches, kept, losses_of, updated


def on_the_cpu(sentence, expect=EITHER, **options):
    """Register a case for the CPU alone."""
    return captured_case(sentence, expect=expect, devices=(CPU,), **options)


@on_the_cpu("A step that counts, prints, draws and reads.")
def does_everything_on_the_host(place):
    class Busy(Trainer):
        seen = 0

        def step(self, pair):
            self.seen += 1
            print(self.seen)
            loss = random.random() * self.loss(pair)
            self.last = loss.item()
            return updated(self.optimizer, loss)

    trainer = Busy(place)
    losses = losses_of(place, place.capture(trainer.step), 14)
    return losses, trainer.seen, trainer.last, trainer.state()


@on_the_cpu("A step that raises, once, with the user's own traceback.")
def raises(place):
    trainer, config, losses, caught = Trainer(place), {"fails": False}, [], []

    def step(pair):
        if config["fails"]:
            raise ValueError("no")
        return trainer.train(pair)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 14)):
        config["fails"] = number in (0, 6)
        try:
            losses.append(kept(step(pair)))
        except ValueError as error:
            caught.append(error)
    return losses, caught, trainer.state()


@on_the_cpu("The report says that nothing was captured.", HOLDS, holds_plainly=False)
def report_says_so(place):
    trainer = Trainer(place)
    step = place.capture(trainer.train)
    losses_of(place, step, 14)

    assert (step.report.num_replays, step.report.num_eager) == (0, 14)
    assert "CPU" in everything_said(step.report), everything_said(step.report)
