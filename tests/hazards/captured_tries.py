"""Steps that raise or read in the middle, and what a failed try leaves behind."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import (
    CAPTURED,
    EITHER,
    GPU,
    HOLDS,
    SIMULATED,
    captured_case,
    everything_said,
    refused,
)
from hazards.captured_models import Trainer, batch, batches, kept, losses_of, mlp, updated


NUM = 16


# ------------------------------------------------------------------------- exceptions of users


@captured_case("The step raises the user's own error in the tenth call.", expect=EITHER)
def raises_in_the_tenth_call(place):
    trainer, losses, caught = Trainer(place), [], []

    def step(pair):
        if number == 10:
            raise ValueError(f"no labels in batch {number}")
        return trainer.train(pair)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):  # noqa: B007  # the step reads it
        try:
            losses.append(kept(step(pair)))
        except ValueError as error:
            caught.append(error)
    return losses, caught, trainer.state()


class Failing(Trainer):
    """A trainer whose step raises where the loop tells it to."""

    fails = False

    def step(self, pair):
        loss = self.loss(pair)
        self.check(loss)
        return updated(self.optimizer, loss)

    def check(self, loss):
        if self.fails:
            raise ValueError(f"a loss of shape {tuple(loss.shape)}")


def raises_in_call(number_that_fails):
    """Register a case whose step raises in one call, which may be a warm-up or a try."""

    def loop(place):
        trainer, losses, caught = Failing(place, dropout=0.3), [], []
        step = place.capture(trainer.step)
        for number, pair in enumerate(batches(place, 20)):
            trainer.fails = number == number_that_fails
            try:
                losses.append(kept(step(pair)))
            except ValueError as error:
                caught.append(error)
        return losses, caught, trainer.state()

    loop.__name__ = f"raises_in_call_{number_that_fails}"
    sentence = f"A check of the user's raises in call {number_that_fails} and in no other."
    captured_case(sentence, expect=EITHER)(loop)


for call in (0, 12):
    raises_in_call(call)


@captured_case("The step raises, and nobody catches it.", expect=EITHER, raises=True)
def nobody_catches(place):
    trainer = Failing(place)

    def fail(number):
        trainer.fails = number == 9

    losses_of(place, place.capture(trainer.step), NUM, before=fail)


@captured_case("Out of memory: the loop halves the batch and goes on.", expect=EITHER)
def out_of_memory_and_halved(place):
    trainer, budget, losses, caught = Trainer(place), {"rows": 8}, [], []

    def step(pair):
        if len(pair[0]) > budget["rows"]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return trainer.train(pair)

    step = place.capture(step)
    for number, (x, y) in enumerate(batches(place, 24)):
        budget["rows"] = 4 if number in (2, 13) else 8
        try:
            losses.append(kept(step((x, y))))
        except torch.cuda.OutOfMemoryError as error:
            caught.append(error)
            losses += [kept(step((x[at : at + 3], y[at : at + 3]))) for at in (0, 3)]
    return losses, caught, trainer.state()


@captured_case(
    "Ctrl-C comes in the middle of a step, and the loop saves and goes on.", expect=EITHER
)
def keyboard_interrupt(place):
    trainer, flags, losses, caught = Trainer(place), {"stop": False}, [], []

    def step(pair):
        loss = trainer.loss(pair)
        if flags["stop"]:
            raise KeyboardInterrupt
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        flags["stop"] = number in (1, 2, 9)
        try:
            losses.append(kept(step(pair)))
        except KeyboardInterrupt as error:
            caught.append(error)
    return losses, caught, trainer.state()


# -------------------------------------------------------------------- reads in the middle


@captured_case(
    "The step reads its loss by `.item()`, after dropout.",
    expect=refused(at="value = loss.item()"),
)
def reads_by_item(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        loss = trainer.loss(pair)
        value = loss.item()
        return updated(trainer.optimizer, loss), value

    step, results = place.capture(step), []
    for pair in batches(place, NUM):
        loss, value = step(pair)
        results.append((kept(loss), value))
    return results, trainer.state()


@captured_case(
    "The step asks whether its loss is finite, and skips the update if not.",
    expect=refused(at="if not torch.isfinite(loss):"),
)
def reads_by_bool(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        loss = trainer.loss(pair)
        if not torch.isfinite(loss):
            return loss
        return updated(trainer.optimizer, loss)

    def poison(number):
        if number == 9:
            with torch.no_grad():
                trainer.model[3].bias[0] = float("inf")
        if number == 11:
            with torch.no_grad():
                trainer.model[3].bias[0] = 0.0

    losses = losses_of(place, place.capture(step), NUM, before=poison)
    return losses, trainer.state()


@captured_case(
    "The step picks rows by a mask of booleans.",
    expect=refused(at="x, y = x[mask], y[mask]"),
)
def reads_by_a_mask(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        x, y = pair
        mask = x[:, 0] > -0.5
        x, y = x[mask], y[mask]
        return trainer.train((x, y))

    return losses_of(place, place.capture(step), NUM, rows=12), trainer.state()


@captured_case(
    "A read is skipped while a stream is captured, as transformers skips it for masks.",
    expect=CAPTURED,
    devices=(SIMULATED, GPU),
)
def read_that_is_skipped_in_a_capture(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        is_capturing = torch.cuda.is_current_stream_capturing()
        if not is_capturing and mask.all():
            mask = None
        return trainer.train((x if mask is None else x * mask, y))

    step, losses = place.capture(step), []
    for x, y in batches(place, 24):
        losses.append(kept(step((x, y, torch.ones_like(x)))))
    return losses, trainer.state()


# ---------------------------------------------------------------- what a failed try leaves


class Reading(Trainer):
    """A trainer whose step reads in the middle: between backward and update."""

    def step(self, pair):
        self.optimizer.zero_grad()
        loss = self.loss(pair)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if norm > 1e4:  # read here
            return loss
        self.optimizer.step()
        return loss


@captured_case(
    "After a refusal the loop draws dropout and random numbers as written.",
    expect=refused(at="if norm > 1e4:  # read here"),
)
def dropout_after_a_refusal(place):
    trainer, drawn, losses = Reading(place, dropout=0.5), [], []
    step = place.capture(trainer.step)
    for number, pair in enumerate(batches(place, NUM)):
        losses.append(kept(step(pair)))
        if number % 2:
            drawn.append(kept(trainer.loss(pair)))
            drawn.append(torch.rand(3, device=place.torch_device))
    return losses, drawn, trainer.state()


def megabytes(place):
    """Return how much memory of the device is in use, and how much is held."""
    gc.collect()
    place.settle()
    torch.cuda.empty_cache()
    return SimpleNamespace(
        used=torch.cuda.memory_allocated() / 2**20, held=torch.cuda.memory_reserved() / 2**20
    )


def big_trainer(place):
    """Return a trainer with weights and activations of megabytes, after one step."""
    trainer = Trainer(place)
    trainer.model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))
    trainer.model.to(place.torch_device)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
    return trainer


def big_batches(place, num):
    """Yield batches of 64 MB each: more than what libraries keep for each stream."""
    for number in range(num):
        yield batch(place, number, rows=16384, num_in=1024)


@captured_case(
    "Memory after a captured step is let go, is what it was.",
    expect=HOLDS,
    holds_plainly=False,
    devices=(GPU,),
)
def memory_is_let_go(place):
    trainer = big_trainer(place)
    for pair in big_batches(place, 2):
        trainer.train(pair)
    del pair
    before = megabytes(place)
    step = place.capture(trainer.train)
    for pair in big_batches(place, 14):
        step(pair)
    assert step.report.num_replays, everything_said(step.report)
    place.steps.clear()
    del step, pair
    trainer.optimizer.zero_grad()
    trainer.train(next(big_batches(place, 1)))
    after = megabytes(place)

    assert after.used - before.used < 80, (before, after)
    assert after.held - before.held < 160, (before, after)


@captured_case(
    "A try with a host write is not made: the step never runs more often than called.",
    expect=EITHER,
)
def calls_are_counted_from_outside(place):
    trainer, log = Trainer(place), []
    trainer.model[0].register_forward_hook(lambda module, args, out: log.append(len(args[0])))
    step = place.capture(trainer.train)
    losses = losses_of(place, step, NUM)
    return losses, log, trainer.state()


@captured_case("The step makes a new model and trains it, each time anew.", expect=EITHER)
def makes_a_model_each_time(place):
    def step(pair):
        model = mlp(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))
        return loss

    return losses_of(place, place.capture(step), NUM)
