"""What a loop changes between two captured steps: every guard, and every reason for a refusal.

Each training of `toy_steps.CASES` is a scenario: losses, weights and what is read between the steps
are those of the plain loop, and a change leads to other graphs, to new ones or to a refusal.
"""

from __future__ import annotations

import re
from functools import partial

import torch

import gapless
import toy_steps
from gapless.graphs import warm_ups
from simulation.registry import scenario


# These are about values that Python holds, and not about order.
ONE = "asap"


def check_case(device, *, kind, expected):
    """Train plainly on the host, and captured on the device; compare."""
    plain = toy_steps.train(kind, None, captured=False)
    with device.allow_waits():
        found = toy_steps.train(kind, device, captured=True)
    report = found.report
    assert plain.seen == found.seen
    assert plain.weights == found.weights
    refusal = report.refusal and report.refusal.kind
    assert expected == (report.num_graphs, report.num_replays, refusal), str(report)
    num_steps = len(kind.data)
    assert num_steps == report.num_replays + report.num_eager


def in_words(kind):
    """Return the name of a class as the name of a scenario."""
    return "a_loop_that_" + re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


for kind, expected in toy_steps.CASES.items():
    scenario(in_words(kind), only=ONE)(partial(check_case, kind=kind, expected=expected))


@scenario(only=ONE)
def values_that_are_new_in_every_batch_end_capturing(device):
    """Each would be a kind of its own; the report says so, and memory stays bounded."""
    most, warm_ups._MAX_KEYS = warm_ups._MAX_KEYS, 5
    try:
        step = gapless.capture(lambda batch: batch[0] * 1.0, device=device)
        for batch in gapless.prefetch([(torch.ones(1), number) for number in range(20)], device):
            step(batch)
    finally:
        warm_ups._MAX_KEYS = most
    assert step.report.num_eager == 20
    assert step.report.refusal.kind == "too_many_keys"
    assert "more than 5 kinds" in step.report.refusal.text


class TrainsByNadam(toy_steps.Training):
    """The state of its optimizer begins at one. It is not called: its counts are on the host."""

    def step(self, batch):
        return self.loss_of(batch).detach()

    def __init__(self, device):
        super().__init__(device)
        self.optimizer = torch.optim.NAdam(self.model.parameters(), lr=0.05)


class TrainsByDampenedMomentum(toy_steps.Training):
    """The state of its optimizer begins as a gradient."""

    def __init__(self, device):
        super().__init__(device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.9, dampening=0.5
        )


def check_examples_left_out(device, kind):
    """Give an example ahead of a loop; none is captured, and the loop trains as a plain one."""
    plain = toy_steps.train(kind, None, captured=False)
    with device.allow_waits():
        training = kind(device)
        step = gapless.capture(
            training.step,
            example_inputs=training.data[:1],
            model=training.model,
            optimizer=training.optimizer,
            device=device,
        )
        assert step.report.num_graphs == 0
        losses = [step(batch) for batch in gapless.prefetch(training.data, device)]
        losses = [toy_steps.read_back(device, loss).item() for loss in losses]
    assert plain.seen == losses
    assert step.report.num_graphs == 1
    assert step.report.refusal is None
    assert "cannot restore" in step.report.note


@scenario(only=ONE)
def examples_are_left_out_where_state_does_not_begin_at_zero(device):
    """An optimizer that cannot be put back is captured as batches come."""
    check_examples_left_out(device, TrainsByNadam)


@scenario(only=ONE)
def examples_are_left_out_where_momentum_begins_as_a_gradient(device):
    """So is one whose momentum begins as a gradient."""
    check_examples_left_out(device, TrainsByDampenedMomentum)


class TrainsByAdam(toy_steps.Training):
    """Its counts are on the host."""

    def __init__(self, device):
        super().__init__(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)


@scenario(only=ONE)
def counts_of_an_optimizer_on_the_host(device):
    """Runs that only compare are not counted."""
    check_case(device, kind=TrainsByAdam, expected=(1, 9, None))


class ReadOnly(dict):
    """Nobody can put anything into it."""

    def __setitem__(self, name, value):
        raise TypeError("read-only")


@scenario(only=ONE)
def what_a_replay_cannot_return_is_returned_by_the_step(device):
    """Sets, containers that cannot be made anew, tensors on the host: the step goes on running."""
    for value in ({1}, ReadOnly(value=1), torch.ones(1)):
        captured = gapless.capture(lambda batch, value=value: (value, batch * 1.0), device=device)
        found = [captured(batch) for batch in gapless.prefetch([torch.ones(1)] * 5, device)]
        assert all(one is value for one, _ in found)
        assert captured.report.num_replays == 0
        assert captured.report.refusal.kind == "result"


class HasAnotherWeightInEachPeriod(toy_steps.Training):
    """A number that its step reads changes again and again."""

    weight = 0.0

    def loss_of(self, batch):
        return super().loss_of(batch) * (1.0 + self.weight)


@scenario(only=ONE)
def a_number_that_changes_too_often_ends_capturing(device):
    """After four changes the step runs as written, and the report says so."""
    losses = []
    for captured in (False, True):
        with device.allow_waits():
            training = HasAnotherWeightInEachPeriod(device)
            run = gapless.capture(training.step, device=device) if captured else training.step
            losses.append([])
            data = gapless.prefetch(toy_steps.batches(*[4] * 24), device)
            for number, batch in enumerate(data):
                training.weight = number // 4
                losses[-1].append(toy_steps.read_back(device, run(batch).detach()).item())
    assert losses[0] == losses[1]
    assert run.report.num_graphs == 4
    assert run.report.refusal.kind == "too_many_changes"


def normalized(batch):
    """Compute from a batch that is changed on the way."""
    batch["x"] = batch.pop("raw") * 2.0
    batch["y"].add_(1.0)
    return batch["x"].sum() + batch["y"].sum()


@scenario(only=ONE)
def a_step_that_changes_its_batch(device):
    """A replay leaves its own batch as the step as written would."""
    step = gapless.capture(normalized, device=device)
    data = [{"raw": torch.full((3,), float(number)), "y": torch.ones(2)} for number in range(8)]
    left = []
    for batch in gapless.prefetch(data, device):
        step(batch)
        left.append({name: toy_steps.read_back(device, part) for name, part in batch.items()})
    assert step.report.num_replays == 5
    for number, batch in enumerate(left):
        assert list(batch) == ["y", "x"]
        assert batch["x"].tolist() == [2.0 * number] * 3
        assert batch["y"].tolist() == [2.0] * 2
