"""Guards: what each says of itself, how they fail, and how often they may."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch

import gapless
from gapless.graphs.reads import weight_guards
from gapless.graphs.reads.guard_rows import GuardRows
from gapless.graphs.reads.read_check import Change
from gapless.graphs.reads.weight_guards import GradientsInPlace, WeightsInPlace
from gapless.graphs.replay.step_guards import StepGuards
from gapless.graphs.updates.update_changes import UpdateChange
from gapless.testing.simulated.simulated_device import SimulatedDevice
from simulation.mutations import guards, modules as modules_of_rooms, name_of_module
from toy_steps import Training, batches


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def all_guards():
    """Return every class of the room that is a guard."""
    modules = [import_module(name_of_module(path)) for path in modules_of_rooms()]
    homes = {name: module for module in modules for name in vars(module)}
    return [getattr(homes[name], name) for name in guards()]


@pytest.mark.parametrize("kind", all_guards(), ids=lambda kind: kind.__name__)
def test_each_guard_says_what_it_watches_in_one_line(kind):
    """It also says what to do if it fails too often, and whether memory is gone."""
    texts = [kind.watches, kind.advice]

    assert all(text and len(text) < 80 and "\n" not in text for text in texts)
    assert isinstance(kind.is_memory, bool)


def test_guards_are_found_by_the_mutants():
    """The tool that takes guards away finds them all by their base."""
    source = Path(weight_guards.__file__).read_text(encoding="utf-8")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    protocols = [one.name for one in classes if "Protocol" in map(ast.unparse, one.bases)]

    assert protocols == ["Guard"]
    assert set(all_guards()) == {GradientsInPlace, WeightsInPlace}


# --- the guards of one graph ---


@dataclass
class Reads:
    """What the code of a step reads."""

    change: Change | None = None

    def __post_init__(self):
        self.rows = GuardRows()
        self.rows.hold_too("reads", [lambda: self.change is None])

    def first_changed(self, *, in_environment=True):
        return self.change


@dataclass
class Updates:
    """Optimizers inside a graph."""

    change: UpdateChange | None = None
    inside: bool = True

    def changed(self):
        return self.change

    def compare_in(self, rows):
        rows.hold_too("updates", [lambda: self.change is None])


class Level:
    """Watches a number."""

    watches = "the level"
    is_memory = True
    advice = "keep it"

    def __init__(self, value):
        self.value = value

    def check(self):
        found = self.value
        return lambda: self.value == found


@dataclass
class Place:
    name: str


class Kept:
    """Places of a step."""

    paths = (Place("self.h"),)

    def __init__(self):
        self.alike = True

    def are_alike(self):
        return self.alike


OPTIMIZER = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def change_what_is_read(reads, **_):
    reads.change = Change("self.alpha", "train.py:3", "0.5", "0.25", is_memory=False)


def change_the_memory_that_is_read(reads, **_):
    reads.change = Change("self.table", "train.py:4", "a tensor", "a tensor", is_memory=True)


def change_the_level(level, **_):
    level.value = 7


def change_a_number_of_the_optimizer(updates, **_):
    updates.change = UpdateChange(OPTIMIZER, "lr", "0.1", "0.2", is_number=True)


def change_the_state_of_the_optimizer(updates, **_):
    updates.change = UpdateChange(OPTIMIZER, "its state", "some tensors", "others")


def change_the_shape_of_a_kept_tensor(kept, **_):
    kept.alike = False


CHANGES = {
    change_what_is_read: ("self.alpha (train.py:3) changed from 0.5 to 0.25", False, None),
    change_the_memory_that_is_read: ("self.table (train.py:4) changed", True, None),
    change_the_level: ("the level", True, None),
    change_a_number_of_the_optimizer: ("lr of SGD changed from 0.1 to 0.2", False, OPTIMIZER),
    change_the_state_of_the_optimizer: (
        "its state of SGD changed from some tensors to others",
        True,
        None,
    ),
    change_the_shape_of_a_kept_tensor: ("the shapes in self.h", False, None),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_guards_of_a_graph_say_what_has_changed(change):
    """In one line, with what to do, and whether the graph reads memory that is gone."""
    parts = {"reads": Reads(), "level": Level(1), "updates": Updates(), "kept": Kept()}
    checks = StepGuards(parts["reads"], [parts["level"]], parts["updates"], parts["kept"])
    assert checks.hold()
    assert checks.failure() is None

    change(**parts)

    assert not checks.hold()
    failure = checks.failure()
    assert (failure.text, failure.is_memory, failure.optimizer) == CHANGES[change]
    assert failure.advice


# --- changes in a loop ---


class Annealing(Training):
    """A number of its own is another one in every period of the loop."""

    alpha = 1.0

    def loss_of(self, batch):
        return super().loss_of(batch) * self.alpha


def anneal(device, values):
    """Return the report of a step, and its refusal after each call, one for each value."""
    training, refusals = Annealing(device), []
    step = gapless.capture(training.step, device=device)
    data = gapless.prefetch(batches(*[4] * len(values)), device)
    for batch, training.alpha in zip(data, values, strict=True):
        step(batch)
        refusals.append(step.report.refusal)
    return step.report, refusals


def test_a_number_that_changes_too_often_ends_capturing(device):
    """A refusal says how often it has changed, and what to do; three changes are allowed."""
    report, refusals = anneal(device, [number // 4 for number in range(24)])

    assert report.num_graphs == 4
    assert refusals[15] is None
    assert refusals[-1].kind == "too_many_changes"
    assert "self.alpha" in refusals[-1].text
    assert "changes so far: 4 times" in refusals[-1].text
    assert "pass it to the step as a tensor on the device" in refusals[-1].text


def test_after_too_many_changes_a_step_is_tried_again(device):
    """A loop may come to rest: 50 calls later the step is captured."""
    report, refusals = anneal(device, [*range(8), *[8.0] * 80])

    assert refusals[20].kind == "too_many_changes"
    assert refusals[-1] is None
    assert report.num_replays > 20


def test_at_most_eight_values_have_a_graph_at_one_time(device):
    """The one that was not used for longest goes."""
    values = [float(number) for number in range(12) for _ in range(60)]
    training = Annealing(device)
    step = gapless.capture(lambda batch: batch.sum() * training.alpha, device=device)
    (batch,) = gapless.prefetch(batches(4), device)
    for training.alpha in values:
        step(batch)

    assert step.report.num_graphs == 12
    assert len(step._captured.entries.graphs()) == 8
    num_replays = step.report.num_replays
    training.alpha = 11.0
    step(batch)
    assert step.report.num_replays == num_replays + 1
