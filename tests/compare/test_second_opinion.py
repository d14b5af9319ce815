"""A second opinion: what TorchDynamo names of a step, beside what gapless compares."""

from __future__ import annotations

import math

import pytest
import torch

from gapless.compare import second_opinion as opinions
from gapless.compare.second_opinion import opinion_on_workload, second_opinion
from gapless.compare.settings import RunSettings
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.errors import DeviceError
from gapless.graphs.reads.read_guards import ReadGuards
from gapless.records.verification import SecondOpinion
from gapless.report.verification_text import second_opinion_lines


CPU = find_device("cpu")
RATE = 2.0


class Settings:
    def __init__(self):
        self.scale, self.seen = 3.0, 0


def test_places_are_known_by_what_they_are_not_by_what_frames_call_them():
    """A closure, a global and an attribute are named by both; a library's function by TorchDynamo alone."""
    settings = Settings()

    def scaled(given, x):
        return x * given.scale

    def step(x):
        settings.seen += 1
        return scaled(settings, x) * RATE * math.cos(1.0)

    opinion = second_opinion(step, torch.ones(2), device=CPU)

    assert {"G['RATE']", "L['settings'].scale", "L['scaled']"} <= set(opinion.both)
    assert opinion.only_dynamo == ()
    assert "G['math'].cos" in opinion.of_libraries
    assert opinion.written == ("settings.seen",)
    assert opinion.written_only_by_dynamo == ()


def test_a_read_that_guards_do_not_compare_is_named(monkeypatch):
    """So a hole in what is watched shows."""
    named = ReadGuards.named
    monkeypatch.setattr(
        ReadGuards,
        "named",
        lambda guards: {
            place: name for place, name in named(guards).items() if not name.endswith(".scale")
        },
    )
    settings = Settings()

    opinion = second_opinion(lambda x: x * settings.scale, torch.ones(2), device=CPU)

    assert opinion.only_dynamo == ("L['settings'].scale",)


def test_a_step_that_torchdynamo_leaves_is_followed_on():
    """A backward pass and an update end a graph; what comes after them is read as well."""
    layer, settings = torch.nn.Linear(2, 1), Settings()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)

    def step(x):
        loss = layer(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach() * settings.scale

    opinions = [second_opinion(step, torch.ones(2), device=CPU) for _ in range(2)]
    opinion = opinions[-1]

    assert opinions[0].failures == opinion.failures
    assert any("backward" in failure for failure in opinion.failures)
    assert {"L['settings'].scale", "L['layer']._parameters['weight']"} <= set(opinion.both)
    assert "L['self'].param_groups[0]['lr']" in opinion.of_updates
    assert opinion.only_dynamo == ()


@pytest.mark.parametrize("error", [DeviceError("torch has none"), RuntimeError("first\nsecond")])
def test_a_failure_is_one_line(monkeypatch, error):
    """Of torch, of which the rest of a verification knows nothing."""

    def fails(function, note):
        raise error

    monkeypatch.setattr(opinions, "trace_with_dynamo", fails)
    opinion = second_opinion(lambda x: x * RATE, torch.ones(2), device=CPU)
    (line,) = second_opinion_lines(opinion)

    first = str(error).splitlines()[0]
    assert line == f"second opinion: none by TorchDynamo: {type(error).__name__}: {first}"


def test_a_workload_is_built_for_it_alone():
    """With its first batch; a step in two parts is one step."""
    made = []

    def make(device):
        layer = torch.nn.Linear(2, 1)

        class Step:
            def forward(self, batch):
                return layer(batch["x"]).sum()

            def backward(self, loss):
                loss.backward()

        made.append(layer)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        batches = [{"x": torch.ones(2)}]
        return Workload(model=layer, optimizer=optimizer, batches=batches, step=Step())

    opinion = opinion_on_workload(make, RunSettings(device=CPU, seed=1))

    assert len(made) == 1
    assert "L['layer']._parameters['weight']" in opinion.both
    assert opinion.only_dynamo == ()


def test_the_text_counts_and_names():
    """Only what TorchDynamo alone names is listed, and not more than a few."""
    opinion = SecondOpinion(
        both=("a", "b"),
        only_dynamo=tuple("cdefghijkl"),
        only_gapless=("m",),
        of_updates=(),
        of_libraries=("n", "o"),
        written=("p",),
        written_only_by_dynamo=(),
        failures=("a call", "another"),
    )

    assert second_opinion_lines(opinion) == [
        "second opinion: TorchDynamo on one step",
        "  reads: 2 named by both, 1 only by gapless, 10 only by TorchDynamo: "
        "c, d, e, f, g, h, i, j and 2 more",
        "  compared in other ways: 0 of optimizers and gradients by themselves, "
        "2 of libraries by audits",
        "  writes: gapless saw 1, 0 only by TorchDynamo",
        "  TorchDynamo stopped at: a call; another",
    ]
