"""Guards: what each says of itself, how they fail, and which modules are found for them."""

from __future__ import annotations

import ast
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from gapless.graphs.mode_guards import modules_of

import gapless
from gapless import graphs
from gapless.graphs.guards import Guard, GuardSet
from gapless.testing.simulated.simulated_device import SimulatedDevice
from simulation.mutations import guards
from toy_steps import AlwaysChangesTheRate, Training, UpdatesOutsideAfterTwo, batches, train


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def all_guards():
    """Return every class of the room that is a guard."""
    modules = [
        import_module(f"gapless.graphs.{path.stem}")
        for path in sorted(Path(graphs.__path__[0]).glob("*.py"))
    ]
    homes = {name: module for module in modules for name in vars(module)}
    return [getattr(homes[name], name) for name in guards()]


@pytest.mark.parametrize("kind", all_guards(), ids=lambda kind: kind.__name__)
def test_each_guard_says_what_it_watches_in_one_line(kind):
    """A guard of graphs also says what to do if it fails too often."""
    assert kind.on_failure in ("select", "recapture", "refuse")
    texts = [kind.watches] if kind.on_failure == "select" else [kind.watches, kind.advice]
    assert all(text and len(text) < 80 and "\n" not in text for text in texts)


class Level(Guard):
    """Watches a number."""

    watches: ClassVar[str] = "the level"
    advice: ClassVar[str] = "keep it"

    def __init__(self, value):
        self.value = value

    def check(self):
        found = self.value
        return lambda: self.value == found


def test_a_set_of_guards_names_the_first_that_fails():
    """Checks begin with the set: a set that is made later holds."""
    levels = [Level(1), Level(2), Level(3)]
    checks = GuardSet(levels)
    assert checks.first_failed() is None

    levels[1].value = levels[2].value = 5

    assert checks.first_failed() is levels[1]
    assert GuardSet(levels).first_failed() is None


class LevelThatRefuses(Level):
    """Ends capturing with its first change."""

    on_failure: ClassVar[str] = "refuse"


@pytest.mark.parametrize(("kind", "most"), [(Level, 3), (LevelThatRefuses, 0)])
def test_guards_that_fail_too_often_end_capturing(device, kind, most):
    """A guard that recaptures may fail three times, one that refuses never."""
    level, refusals = kind(0), []
    step = gapless.capture(lambda batch: batch * 2.0, device=device)
    step._captured._guards.append(level)
    for number, batch in enumerate(gapless.prefetch(batches(*[4] * 12), device)):
        level.value = number // 2
        step(batch)
        refusals.append(step.report.refusal)

    times = "once" if most == 0 else "4 times"
    assert refusals[-1].kind == "too_many_changes"
    assert f"the level, changed {times}" in refusals[-1].text
    assert "keep it" in refusals[-1].text
    assert step.report.num_graphs == max(most, 1) + (most > 0)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (AlwaysChangesTheRate, "make the learning rate a tensor on the device"),
        (UpdatesOutsideAfterTwo, "set_to_none=False"),
    ],
)
def test_a_refusal_for_changes_says_how_many_and_what_to_do(device, kind, named):
    """It has the count and the advice of the guard."""
    text = train(kind, device, captured=True).report.refusal.text

    assert "changed 4 times" in text
    assert named in text


# --- modules behind a step ---


class Step:
    def __init__(self, model):
        self.parts = {"model": model}

    def __call__(self, batch):
        return self.parts["model"](batch).sum()


HERE = {}


def calls_the_model(batch):
    return HERE["model"](batch)


@pytest.mark.parametrize("way", ["lambda", "partial", "object", "global", "method"])
def test_modules_are_found_behind_whatever_a_step_is(way, monkeypatch):
    """They are found by name, also behind a function that the step calls."""
    training = Training(None)
    monkeypatch.setitem(HERE, "model", training.model)
    step = {
        "lambda": lambda batch: training.model(batch).sum(),
        "partial": partial(lambda model, batch: model(batch).sum(), training.model),
        "object": Step(training.model),
        "global": lambda batch: calls_the_model(batch).sum(),
        "method": training.step,
    }[way]

    assert modules_of(step) == list(training.model.modules())


def test_names_that_are_not_bound_yet_are_passed_over():
    """A closure may name what is assigned later."""

    def step(batch):
        return model(batch)

    assert modules_of(step) == []
    model = torch.nn.Linear(1, 1)
    assert modules_of(step) == [model]


def test_guards_are_found_by_the_mutants():
    """The tool that takes guards away finds them all by their bases."""
    source = Path(graphs.__path__[0], "guards.py").read_text(encoding="utf-8")
    protocols = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]

    assert {"Guard", "SelectingGuard"} < set(protocols)
    assert len(set(guards())) == 8
