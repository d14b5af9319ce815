"""The plain loop that plans are compared with: nothing of theirs is in it."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import gapless
from gapless.compare.plain_loop import move, tensors_of
from gapless.compare.recorded_run import run_plain_loop
from gapless.compare.settings import RunSettings
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.loop.engine import Engine
from gapless.pipeline.step import StepLoss
from gapless.report.verification_text import verification_text


META = torch.device("meta")


class Pair(NamedTuple):
    """A batch with names."""

    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A batch whose fields nobody may set."""

    x: torch.Tensor
    ids: list[str]


class Movable:
    """A batch that moves itself, and holds itself."""

    def __init__(self, x):
        self.x = x
        self.me = self

    def to(self, device):
        return Movable(self.x.to(device))


class MovesItself(Movable):
    """A batch whose `to` returns nothing."""

    def to(self, device):
        self.x = self.x.to(device)


def split(model, optimizer):
    """Return a step in two parts that trains like the whole step below."""

    def forward(batch):
        return StepLoss(loss=model(batch["x"]).square().mean(), weight=4.0)

    def backward(out):
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()

    return SimpleNamespace(forward=forward, backward=backward)


def whole(model, optimizer):
    """Return the two parts as one step."""
    parts = split(model, optimizer)

    def step(batch):
        out = parts.forward(batch)
        parts.backward(out)
        return out.loss

    return step


def workload(make_step=whole):
    """Return a function that builds a small regression with batches in dictionaries."""

    def make(device):
        model = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        batches = [{"x": torch.randn(4, 8), "ids": [str(n)]} for n in range(6)]
        return Workload(
            model=model, optimizer=optimizer, batches=batches, step=make_step(model, optimizer)
        )

    return make


def plain(make, *, steps=10):
    return run_plain_loop(make, settings=RunSettings(device=find_device("cpu")), steps=steps)


# --- the loop ---


def test_nothing_that_moves_batches_or_losses_of_plans_is_called():
    """Of the pipeline only what calls a step, checks its loss and ends a loader takes part."""
    pipeline = Path(gapless.__file__).parent / "pipeline"
    called = set()

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(pipeline):
            called.add(path.name)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        plain(workload())
    finally:
        sys.setprofile(before)
        threading.setprofile(None)

    assert called == {"step.py", "loss_numbers.py", "loaders.py"}


def test_its_losses_and_weights_are_those_of_a_loop_by_hand():
    """Ten steps in two passes, each loss as `item` reads it."""
    run = plain(workload())

    torch.manual_seed(1)
    by_hand = workload()(torch.device("cpu"))
    losses = [by_hand.step(by_hand.batches[number % 6]).item() for number in range(10)]
    assert run.summary.losses == losses
    assert run.summary.passes == (6, 4)
    assert [len(row) for row in run.checksums] == [2] + [11] * 10


def test_a_step_in_two_parts_runs_in_it():
    """Forward and then backward, as a whole step would."""
    found = gapless.verify_plan(workload(split), "full", device="cpu", steps=10)

    assert found.holds
    assert plain(workload(split)).summary.losses == plain(workload()).summary.losses


@pytest.mark.parametrize(
    ("out", "what"),
    [(None, "None"), ("0.5", "a str"), (torch.ones(3), r"a tensor of shape \(3,\)")],
)
def test_what_is_no_loss_is_refused(out, what):
    """With what came back instead."""
    make = workload(lambda model, optimizer: lambda batch: out)

    with pytest.raises(gapless.errors.LossError, match=f"one number, but is {what}"):
        plain(make)


def test_the_logged_loss_is_read():
    """It is what a step names as its loss for the history."""
    for out in (torch.tensor(0.5), StepLoss(loss=torch.ones(()), logged=torch.tensor(0.5))):
        make = workload(lambda model, optimizer, out=out: lambda batch: out)
        assert plain(make, steps=2).summary.losses == [0.5, 0.5]


# --- what it shows ---


def test_a_prefetch_that_hands_out_a_wrong_batch_is_found(monkeypatch):
    """Plans agree with each other then; only the plain loop tells."""
    prefetch = Engine.prefetch

    def wrong(self, batches):
        def spoiled():
            for number, batch in enumerate(batches):
                yield {**batch, "x": batch["x"] + 1.0} if number == 2 else batch

        return prefetch(self, spoiled())

    monkeypatch.setattr(Engine, "prefetch", wrong)
    found = gapless.verify_plan(workload(), device="cpu", steps=6)

    assert not found.holds
    assert found.is_reproducible
    assert not found.is_same("gapless")
    blocking, ours, both = found.plans
    assert (blocking.holds, ours.holds, both.holds) == (False, False, True)
    assert (ours.difference.step, ours.difference.tensor.name) == (3, "batch tensor 0")
    text = verification_text(found)
    assert "blocking against a plain loop: different, from step 3 on\n" in text
    assert "gapless against a plain loop: different, from step 3 on\n" in text
    assert "gapless against blocking: bit-identical" in text


def test_a_comparison_marks_plans_that_differ_from_it(monkeypatch):
    """`blocking` as well, which is a plan like the others."""
    monkeypatch.setattr(Engine, "prefetch", lambda self, batches: _reversed(self, batches))

    report = gapless.compare_plans(
        workload(), ["blocking", "gapless"], device="cpu", steps=2, rounds=1, verify_steps=4
    )

    assert [row.identical for row in report.rows] == [False, False]
    assert not report.holds


def _reversed(engine, batches, prefetch=Engine.prefetch):
    return prefetch(engine, list(batches)[::-1])


# --- moving a batch ---


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        (torch.ones(2), [torch.ones(3), {"y": torch.ones(4), "n": 3}], None, "text"),
        Pair(torch.ones(2), torch.ones(3)),
        OrderedDict(y=torch.ones(2), x=torch.ones(3)),
        Frozen(torch.ones(2), ["a"]),
        Movable(torch.ones(2)),
        MovesItself(torch.ones(2)),
        torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_of_any_structure_is_moved(batch):
    """Type, tensors and plain values are the same, on another device."""
    shapes = [tensor.shape for tensor in tensors_of(batch)]

    moved = move(batch, META)

    assert type(moved) is type(batch)
    assert [tensor.shape for tensor in tensors_of(moved)] == shapes
    assert shapes
    on_device = [tensor for tensor in tensors_of(moved) if tensor.device == META]
    # The lengths of packed sequences belong on the host.
    assert len(on_device) >= len(shapes) - isinstance(batch, torch.nn.utils.rnn.PackedSequence)


def test_what_is_no_tensor_stays_as_it_is():
    """Strings, sets, classes, and the containers of the loader's own."""
    ids, batch = {1, 2}, {"x": torch.ones(2), "kind": Movable}
    batch["ids"] = ids

    moved = move(batch, META)

    assert (moved["ids"] is ids, moved["kind"]) == (True, Movable)
    assert (batch["x"].device.type, moved["x"].device.type) == ("cpu", "meta")
