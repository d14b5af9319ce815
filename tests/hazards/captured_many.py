"""Loops that give several batches at once: `steps_per_launch=K`."""

from __future__ import annotations

import torch
from torch.optim import lr_scheduler

from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import (
    batch,
    batches,
    kept,
    mlp,
    sgd,
    state,
    training_step,
)


def groups(items, size):
    """Return lists of this many items; the last may be shorter."""
    items = list(items)
    return [items[start : start + size] for start in range(0, len(items), size)]


def losses_of(step, all_groups):
    """Call the step with each group; return copies of all losses."""
    return [[kept(loss) for loss in step(group)] for group in all_groups]


def _plain(place, size, *, num_groups=16, dropout=0.0, optimizer_of=sgd):
    model = mlp(place, dropout=dropout)
    optimizer = optimizer_of(model)
    step = place.capture(training_step(model, optimizer), steps_per_launch=size)
    losses = losses_of(step, groups(batches(place, num_groups * size), size))
    return losses, state(model, optimizer)


@captured_case("Groups of four batches, with dropout: each step draws its own.", expect=CAPTURED)
def groups_of_four_with_dropout(place):
    return _plain(place, 4, dropout=0.4), torch.rand(3, device=place.torch_device)


@captured_case("In some groups one batch is shorter than the others.", expect=CAPTURED)
def other_shape_inside_a_group(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer), steps_per_launch=4)
    losses = []
    for number in range(20):
        group = [batch(place, 4 * number + one) for one in range(4)]
        if number % 4 == 1:
            group[number % 3] = batch(place, number, rows=3)
        losses += losses_of(step, [group])
    return losses, state(model, optimizer)


@captured_case("A scheduler steps between groups.", expect=CAPTURED)
def scheduler_between_groups(place):
    model = mlp(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    step = place.capture(training_step(model, optimizer), steps_per_launch=2)
    losses = []
    for group in groups(batches(place, 40), 2):
        losses += losses_of(step, [group])
        schedule.step()
    return losses, state(model, optimizer)


@captured_case(
    "A batch in the middle of a group is refused by the step, which raises.", expect=EITHER
)
def step_raises_within_a_group(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y, is_bad = one
        if is_bad:
            raise ValueError("a bad batch")
        return training_step(model, optimizer)((x, y))

    step = place.capture(train, steps_per_launch=4)
    results = []
    for number in range(16):
        group = [(*batch(place, 4 * number + one), number == 12 and one == 2) for one in range(4)]
        try:
            results += [kept(loss) for loss in step(group)]
        except ValueError as error:
            results.append(error)
    return results, state(model, optimizer)
