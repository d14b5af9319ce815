"""What was refused is tried again if its reason may be gone, and nothing else is."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, batches, on


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


class Settings:
    """What a step reads."""

    factor = 1.0


def scaled(rows):
    return rows.sum() * Settings.factor


@pytest.fixture
def step(device, monkeypatch):
    """A captured step that reads a factor."""
    monkeypatch.setattr(Settings, "factor", 1.0)
    return gapless.capture(scaled, device=device)


def call(step, device, *, rows, times):
    """Call a step some times with so many rows; return how many of the calls were replays."""
    before = step.report.num_replays
    batch = on(device, torch.ones(rows, 3))
    for _ in range(times):
        step(batch)
    return step.report.num_replays - before


# --- rests ---


def let_it_rest(step, device):
    """Change the factor until the step rests."""
    while step.report.refusal is None:
        Settings.factor += 1.0
        call(step, device, rows=4, times=1)
    assert step.report.refusal.kind == "too_many_changes"


def length_of_rest(step, device):
    """Return for how many further calls the step rests, with a factor that stands still."""
    number = 0
    while step.report.refusal is not None:
        call(step, device, rows=4, times=1)
        number += 1
        assert number < 1000
    return number


def test_a_rest_lasts_fifty_calls_and_each_further_one_twice_as_long(step, device):
    """The step runs as written meanwhile."""
    lengths = []
    for _ in range(3):
        let_it_rest(step, device)
        num_replays = step.report.num_replays
        lengths.append(length_of_rest(step, device))
        assert step.report.num_replays == num_replays

    assert lengths == [50, 100, 200]


def test_a_rest_of_groups_ends_while_single_batches_are_replayed(device, monkeypatch):
    """What groups read changes too often; single batches have a graph of the first."""
    first = on(device, torch.ones(3))
    monkeypatch.setattr(Settings, "factor", first)
    step = gapless.capture(scaled, device=device, steps_per_launch=2)
    (batch,) = gapless.prefetch([torch.ones(4, 3)], device)
    for _ in range(4):
        step([batch])
    for _ in range(40):
        step([batch, batch])
        if step.report.refusal is not None:
            break
        if step._group.has_graphs:
            Settings.factor = on(device, torch.ones(3))
    assert (step.report.refusal.kind, step._group.has_graphs) == ("too_many_changes", False)

    Settings.factor = first
    for _ in range(40):
        step([batch, batch])

    assert step.report.refusal is None
    assert step._group.has_graphs


# --- memory ---


@dataclass
class Captures:
    """Captures of a device: what they raise, and how often they were tried."""

    error: Exception | None = None
    num_tried: int = 0


@pytest.fixture
def captures(device, monkeypatch):
    """Captures that raise what a test says."""
    found, capture = Captures(), device.capture

    def tried(*args, **how):
        found.num_tried += 1
        if found.error is not None:
            raise found.error
        return capture(*args, **how)

    monkeypatch.setattr(device, "capture", tried)
    return found


def test_what_found_no_memory_is_captured_once_graphs_were_let_go(step, device, captures):
    """Until then no other try is made, and other kinds of calls are captured."""
    captures.error = torch.OutOfMemoryError("no memory")
    call(step, device, rows=4, times=20)
    captures.error = None
    assert call(step, device, rows=7, times=20) == 17
    assert call(step, device, rows=4, times=20) == 0
    assert (captures.num_tried, step.report.refusal.kind) == (2, "capture_failed")

    step.clear()

    assert call(step, device, rows=4, times=20) == 19
    assert step.report.refusal is None


def test_what_cannot_be_captured_is_not_tried_again(step, device, captures):
    """Letting go of graphs does not mend it."""
    captures.error = RuntimeError("not while a stream is captured")
    call(step, device, rows=4, times=20)
    captures.error = None
    step.clear()

    assert call(step, device, rows=4, times=20) == 0
    assert (captures.num_tried, step.report.refusal.kind) == (1, "capture_failed")


# --- said, where calls run as written for good ---


def test_a_step_that_makes_code_in_each_call_is_refused(device):
    """To watch it again and again would make every call slower."""

    def makes_a_class(rows):
        pair = namedtuple("pair", "x")(rows)  # noqa: PYI024
        return pair.x.sum()

    step = gapless.capture(makes_a_class, device=device)
    with pytest.warns(gapless.CaptureWarning, match="makes new code in each call"):
        assert call(step, device, rows=4, times=20) == 0


def test_views_of_gradients_that_are_kept_are_named(device):
    """A replay would overwrite them, so that calls run as written as long as they are there."""
    training = Training(device)
    step = gapless.capture(training.step, device=device)
    for batch in gapless.prefetch(batches(*[4] * 8), device):
        step(batch)
    kept = [weight.grad.view(-1) for weight in training.model.parameters()]
    before = step.report.num_replays

    for batch in gapless.prefetch(batches(*[4] * 24), device):
        step(batch)

    assert kept
    assert step.report.num_replays == before
    assert step.report.note == (
        "calls ran as written beside their graph: views of its gradients are kept, which a replay would "
        "overwrite"
    )
