"""Steps that read a value on the host, but not while they are captured, and then do something else.

As written the value decides what is computed. In a capture nobody can read it, so the code takes a
default, as the masks of transformers do. A value of the batch alone may choose among graphs; one of
weights, of states or of random draws cannot. Batches of the default's kind, `a`, come first, so that
captures are proved on them alone; those of another kind come late.
"""

from __future__ import annotations

import math

import torch

from hazards.captured_harness import EITHER, captured_case, refused
from hazards.captured_models import (
    Trainer,
    batch,
    is_capturing,
    kept,
    updated,
)


LATE = "aaaaaaaa" + "bbab" + "aabbabab" + "bbbbaaab"
MIXED = "abbaabab" * 3


def results_of(place, step, batch_of, kinds=LATE, **options):
    """Capture the step, call it with `batch_of(number, kind)` for each kind; return its results."""
    step = place.capture(step, **options)
    return [kept(step(batch_of(number, kind))) for number, kind in enumerate(kinds)]


def masked(place, number, kind, *, dtype=torch.bool):
    """Return features, classes and a mask, which has padding in batches of kind a alone."""
    (x, y), mask = batch(place, number), torch.ones(6, 8, dtype=dtype)
    if kind == "a":
        mask[number % 6, 2 + number % 5 :] = 0
    return x, y, place.moved(mask)


def ragged(place, number, kind):
    """Return features, classes and lengths of rows, all of which are short in batches of kind b."""
    x, y = batch(place, number)
    lengths = (
        torch.full((6,), 8) if kind == "a" else 2 + (torch.arange(6) + number) % (number % 5 + 1)
    )
    return x, y, place.moved(lengths)


def train_masked(trainer, x, y, mask):
    """Train on masked features, or on all of them, twice as hard."""
    if mask is None:
        return updated(trainer.optimizer, 2 * trainer.loss((x, y)))
    return trainer.train((x * mask, y))


# ------------------------------------------------------------------------ values of the batch


def _without_padding(place, kinds):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        if not is_capturing() and mask.all():
            mask = None
        return train_masked(trainer, x, y, mask)

    losses = results_of(place, step, lambda *one: masked(place, *one), kinds)
    return losses, trainer.state()


@captured_case("The first batch without padding comes late: `mask.all()`.", expect=EITHER)
def batches_without_padding_come_late(place):
    return _without_padding(place, LATE)


# ---------------------------------------------------------------------- what is read, and how


@captured_case("A batch with infinite features is refused by the user's own check.", expect=EITHER)
def check_that_raises(place):
    trainer, losses, caught = Trainer(place), [], []

    def step(pair):
        x, y = pair
        if not is_capturing() and not x.isfinite().all():
            raise ValueError(f"{len(x)} rows, not all of them finite")
        return trainer.train((x.clamp(-4, 4), y))

    step = place.capture(step)
    for number, kind in enumerate("aaaaaaaa" + "aabaabbaaaab"):
        x, y = batch(place, number)
        if kind == "b":
            x[2, 3] = math.inf
        try:
            losses.append(kept(step((x, y))))
        except ValueError as error:
            caught.append((number, str(error)))
    return losses, caught, trainer.state()


# ---------------------------------------------------------------------------- peculiar values


@captured_case("The value that is read is another one in each of 240 batches.", expect=EITHER)
def always_another_value(place):
    trainer = Trainer(place)

    def step(three):
        x, y, total = three
        num = 1 if is_capturing() else total.sum().item()
        return updated(trainer.optimizer, trainer.loss((x, y)) / num)

    def batch_of(number, kind):
        total = torch.tensor([1, 0] if kind == "a" else [number, 1])
        return (*batch(place, number), place.moved(total))

    return results_of(place, step, batch_of, "a" * 8 + "b" * 232), trainer.state()


@captured_case("A small tensor is copied to the host, and numpy computes with it.", expect=EITHER)
def numpy_computes(place):
    trainer = Trainer(place)

    def step(three):
        x, y, lengths = three
        spread = 0.0 if is_capturing() else lengths.cpu().numpy().std()
        return trainer.train((x + float(spread), y))

    return results_of(place, step, lambda *one: ragged(place, *one)), trainer.state()


# ---------------------------------------------------------------------- groups of several steps


@captured_case("Groups of four batches, some with padding and some without.", expect=EITHER)
def groups_of_four(place):
    trainer, losses = Trainer(place), []

    def step(three):
        x, y, mask = three
        if not is_capturing() and mask.all():
            mask = None
        return train_masked(trainer, x, y, mask)

    step, number = place.capture(step, steps_per_launch=4), 0
    for kinds in ["aaaa"] * 8 + ["bbbb", "aaaa", "abab", "aaab", "bbbb", "baaa", "aba"] * 2:
        group = [masked(place, number + one, kind) for one, kind in enumerate(kinds)]
        losses += [kept(loss) for loss in step(group)]
        number += len(kinds)
    return losses, trainer.state()


# --------------------------------------------------- values that no batch tells: not replayed


@captured_case(
    "The norm of a weight decides how hard is trained.",
    expect=refused(at="if not is_capturing() and weight.norm().item() > limit:"),
)
def norm_of_a_weight(place):
    trainer = Trainer(place)
    weight = trainer.model[3].weight
    limit = 1.15 * weight.norm().item()

    def step(pair):
        loss = trainer.loss(pair)
        if not is_capturing() and weight.norm().item() > limit:
            loss = loss + weight.square().sum()
        return updated(trainer.optimizer, loss)

    return results_of(place, step, lambda number, _: batch(place, number)), trainer.state()
