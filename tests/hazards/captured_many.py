"""Loops that give several batches at once: `steps_per_launch=K`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import (
    batch,
    batches,
    host_batch,
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


@captured_case("Groups of one batch.", expect=CAPTURED)
def groups_of_one(place):
    return _plain(place, 1)


@captured_case("Groups of two batches, with momentum.", expect=CAPTURED)
def groups_of_two(place):
    return _plain(place, 2, optimizer_of=lambda model: sgd(model, momentum=0.9))


@captured_case("Groups of four batches, with dropout: each step draws its own.", expect=CAPTURED)
def groups_of_four_with_dropout(place):
    return _plain(place, 4, dropout=0.4), torch.rand(3, device=place.torch_device)


@captured_case("Groups of eight batches, with a fused AdamW.", expect=CAPTURED)
def groups_of_eight(place):
    return _plain(
        place,
        8,
        num_groups=13,
        optimizer_of=lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    )


@captured_case("Groups of four batches, with Adam as people make it.", expect=CAPTURED)
def groups_with_plain_adam(place):
    return _plain(
        place, 4, optimizer_of=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2)
    )


@captured_case("Each epoch ends with fewer batches than a group has.", expect=CAPTURED)
def remainder(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    step = place.capture(training_step(model, optimizer), steps_per_launch=4)
    losses = []
    for _ in range(4):
        losses += losses_of(step, groups(batches(place, 19), 4))
    return losses, state(model, optimizer)


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


@captured_case("Each batch of a group brings the rate of its step as a tensor.", expect=CAPTURED)
def rates_in_the_batches(place):
    model = mlp(place)

    def train(one):
        x, y, rate = one
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(rate * grad)
        return loss

    step = place.capture(train, steps_per_launch=4)
    with_rates = [
        (x, y, torch.tensor(0.1 / (1 + number)).to(place.torch_device))
        for number, (x, y) in enumerate(batches(place, 56))
    ]
    return losses_of(step, groups(with_rates, 4)), state(model)


@captured_case(
    "Results of all groups are kept and changed in place, without copies.", expect=CAPTURED
)
def results_of_groups_are_kept(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        optimizer.zero_grad()
        scores = model(one["x"])
        loss = F.cross_entropy(scores, one["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss.detach(), "scores": scores.detach(), "rows": len(scores)}

    step = place.capture(train, steps_per_launch=4)
    results = []
    for group in groups(({"x": x, "y": y} for x, y in batches(place, 56)), 4):
        results += step(group)
        results[-2]["scores"].zero_()
        results[-3]["loss"] += 1
    return results, state(model, optimizer)


@captured_case("The batches of a group are one and the same object.", expect=CAPTURED)
def one_batch_many_times(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer), steps_per_launch=4)
    losses = [losses_of(step, [[one] * 4]) for one in batches(place, 14)]
    return losses, state(model, optimizer)


@captured_case("Groups are tuples, as `zip(*[iter(loader)] * 4)` makes them.", expect=EITHER)
def groups_are_tuples(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer), steps_per_launch=4)
    loader = iter(list(batches(place, 56)))
    losses = losses_of(step, zip(*[loader] * 4, strict=True))
    return losses, state(model, optimizer)


@captured_case("A weight of the loss changes between groups, once.", expect=CAPTURED)
def number_changes_between_groups(place):
    model = mlp(place)
    optimizer = sgd(model)
    settings = {"smoothing": 0.0}

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=settings["smoothing"])
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train, steps_per_launch=2)
    losses = losses_of(step, groups(batches(place, 40), 2))
    settings["smoothing"] = 0.2
    losses += losses_of(step, groups(batches(place, 40), 2))
    return losses, state(model, optimizer)


@captured_case(
    "The steps of a group count themselves in an attribute.",
    expect=refused("num_seen", at="self.num_seen += 1"),
)
def groups_that_count(place):
    class Trainer:
        def __init__(self):
            self.model = mlp(place)
            self.optimizer = sgd(self.model)
            self.num_seen = 0

        def train(self, one):
            self.num_seen += 1
            return training_step(self.model, self.optimizer)(one)

    trainer = Trainer()
    step = place.capture(trainer.train, steps_per_launch=4)
    losses = losses_of(step, groups(batches(place, 56), 4))
    return losses, trainer.num_seen, state(trainer.model, trainer.optimizer)


@captured_case(
    "A flag of the second and the fourth batch of a group says: update.", expect=CAPTURED
)
def accumulation_within_groups(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def train(one):
        x, y, last = one
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss

    step = place.capture(train, steps_per_launch=4)
    flagged = [(x, y, number % 2 == 1) for number, (x, y) in enumerate(batches(place, 60))]
    return losses_of(step, groups(flagged, 4)), state(model, optimizer)


@captured_case("A hidden state goes from step to step, within groups and across.", expect=CAPTURED)
def hidden_state_across_groups(place):
    class Trainer:
        def __init__(self):
            self.model = nn.GRU(8, 8).to(place.torch_device)
            self.optimizer = sgd(self.model)
            self.hidden = torch.zeros(1, 6, 8, device=place.torch_device)

        def train(self, one):
            self.optimizer.zero_grad()
            states, hidden = self.model(one[0].unsqueeze(0), self.hidden)
            loss = states.square().mean()
            loss.backward()
            self.optimizer.step()
            self.hidden = hidden.detach()
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train, steps_per_launch=4)
    losses = losses_of(step, groups(batches(place, 60), 4))
    return losses, trainer.hidden, state(trainer.model, trainer.optimizer)


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


@captured_case("Prefetched batches are grouped, and losses are read late.", expect=CAPTURED)
def prefetched_groups(place):
    model = mlp(place, dropout=0.2)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer), steps_per_launch=4)
    losses, waiting = place.losses(), []
    for one in place.prefetch([host_batch(number) for number in range(58)]):
        waiting.append(one)
        if len(waiting) == 4:
            for loss in step(waiting):
                losses.add(loss)
            waiting = []
    for loss in step(waiting):
        losses.add(loss)
    return losses.mean(), losses.history, state(model, optimizer)


@captured_case("One step is captured for single batches and for groups.", expect=CAPTURED)
def singly_and_in_groups(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    train = training_step(model, optimizer)
    single, many = place.capture(train), place.capture(train, steps_per_launch=2)
    losses = []
    for number in range(16):
        losses.append(kept(single(batch(place, 3 * number))))
        group = [batch(place, 3 * number + 1), batch(place, 3 * number + 2)]
        losses += losses_of(many, [group])
    return losses, state(model, optimizer)


@captured_case("Groups follow one another without a wait.", expect=EITHER, waits=False)
def groups_without_a_wait(place):
    model = mlp(place, dropout=0.3)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer), steps_per_launch=4)
    losses = [step(group) for group in groups(batches(place, 160), 4)]
    return [[loss.detach() for loss in group] for group in losses], state(model, optimizer)
