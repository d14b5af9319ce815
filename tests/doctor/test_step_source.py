"""Which of the calls that a script repeats are its steps."""

from __future__ import annotations

import datetime as dt
import sys
from collections import OrderedDict

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from gapless.doctor.watching.step_hooks import StepHooks
from gapless.doctor.watching.step_source import Caller, StepSource


ADAM = Caller("optimizer", "AdamW.step", 1)
SGD = Caller("optimizer", "SGD.step", 2)
LOADER = Caller("loader", "DataLoader", 3)
VALIDATION = Caller("loader", "DataLoader", 4)
BACKWARD = Caller("backward", "backward")
REPLAY = Caller("replay", "CUDAGraph.replay")
CALL = Caller("call", "gapless.doctor.step")
FUNCTION = Caller("function", "train_step")


def steps_of(source, iteration, times):
    """Return after how many steps each iteration was over, of the last ones."""
    ended = [sum(source.called(caller) for caller in iteration) for _ in range(times)]
    return ended[-3:]


@pytest.mark.parametrize(
    ("iteration", "chosen"),
    [
        ([LOADER, BACKWARD, ADAM], ADAM),
        # Of a GAN: both once, the first one; the discriminator five times.
        ([BACKWARD, ADAM, BACKWARD, SGD], ADAM),
        ([BACKWARD, SGD, BACKWARD, SGD, BACKWARD, ADAM], SGD),
        # Gradients of many batches are added up.
        ([LOADER, BACKWARD] * 64 + [ADAM], ADAM),
        # No optimizer of torch's: a batch, a graph, weights that are changed by hand.
        ([LOADER, BACKWARD, BACKWARD], LOADER),
        ([REPLAY], REPLAY),
        ([BACKWARD], BACKWARD),
        # What the script itself says counts.
        ([LOADER, BACKWARD, ADAM, BACKWARD, ADAM, CALL], CALL),
    ],
)
def test_a_step_is_a_call_of_the_most_frequent_optimizer_or_what_stands_in_for_one(
    iteration, chosen
):
    """Each call of it ends a step, and no other call does."""
    source = StepSource()

    ended = steps_of(source, iteration, 12)

    assert source.chosen == chosen
    assert ended == [iteration.count(chosen)] * 3


def test_an_optimizer_takes_over_from_a_loader_that_was_read_before():
    """Statistics of a data set, or a first validation, are no training."""
    source = StepSource()
    steps_of(source, [VALIDATION], 100)

    assert source.chosen == VALIDATION
    assert steps_of(source, [LOADER, BACKWARD, ADAM], 3) == [1, 1, 1]
    assert source.chosen == ADAM


def test_an_optimizer_that_is_called_no_more_makes_way():
    """Such as that of a first stage, or one whose steps are replays of a graph from now on."""
    source = StepSource()
    steps_of(source, [BACKWARD, ADAM], 30)
    steps_of(source, [BACKWARD, SGD], 12)
    first = source.chosen
    steps_of(source, [REPLAY], 20)

    assert (first, source.chosen) == (SGD, REPLAY)


def test_replays_after_a_few_steps_are_the_steps():
    """A graph is captured in the fourth step; the optimizer is not called again."""
    source = StepSource()
    steps_of(source, [BACKWARD, ADAM], 4)
    steps_of(source, [REPLAY], 20)

    assert source.chosen == REPLAY


def test_a_validation_between_two_steps_is_no_change_of_steps():
    """An optimizer that waits for a thousand batches of another loader is called again."""
    source = StepSource()
    steps_of(source, [LOADER, BACKWARD, ADAM], 30)

    assert steps_of(source, [VALIDATION], 1000) == [0, 0, 0]
    assert source.chosen == ADAM


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("optimizer", ADAM),
        ("loader", LOADER),
        ("SGD", SGD),
        ("SGD.step", SGD),
        ("train_step", FUNCTION),
        ("nothing_of_the_kind", None),
    ],
)
def test_what_was_asked_for_is_the_step(asked, chosen):
    """Only calls of it are; if there is none, there are no steps."""
    source = StepSource(asked)

    ended = steps_of(source, [LOADER, BACKWARD, ADAM, ADAM, SGD, FUNCTION], 20)

    assert source.chosen == chosen
    assert ended == [2 if chosen == ADAM else int(chosen is not None)] * 3


class Slots:
    """An object that holds its function in a slot."""

    __slots__ = ("step",)


class Raises:
    """A property that raises."""

    @property
    def step(self):
        raise LookupError


@pytest.mark.parametrize(
    "asked", ["slots.step", "raises.step", "datetime.datetime.now", "none.at.all"]
)
def test_a_function_that_cannot_be_counted_harms_no_script(monkeypatch, asked):
    """Then there is no step, and the report says so."""
    main = sys.modules["__main__"]
    slots = Slots()
    slots.step = print
    for name, value in {"slots": slots, "raises": Raises(), "datetime": dt}.items():
        monkeypatch.setattr(main, name, value, raising=False)
    weight = torch.ones((), requires_grad=True)
    source = StepSource(asked)
    hooks = StepHooks(source, on_step=lambda: None)
    hooks.install()
    try:
        (weight * 2).backward()
    finally:
        hooks.remove()

    assert weight.grad == 2
    assert slots.step is print


def test_replays_are_seen_by_a_hook_of_torch_where_it_has_one(monkeypatch):
    """Since torch 2.14, whoever has made the graph; then its class is as it was, and at the end nothing is left."""
    found, replay = OrderedDict(), torch.cuda.CUDAGraph.replay

    def register(hook):
        handle = RemovableHandle(found)
        found[handle.id] = hook
        return handle

    monkeypatch.setattr(
        torch.cuda.graphs, "register_graph_replay_end_hook", register, raising=False
    )
    source = StepSource()
    hooks = StepHooks(source, on_step=lambda: None)
    hooks.install()
    try:
        for hook in list(found.values()) * 12:
            hook(None)
        is_as_it_was = torch.cuda.CUDAGraph.replay is replay
    finally:
        hooks.remove()

    assert source.chosen == REPLAY
    assert is_as_it_was
    assert not found
