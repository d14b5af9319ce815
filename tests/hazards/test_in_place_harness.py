"""The harness of capture in place judges rightly: a loop equals itself, planted mistakes are found."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import gapless
from hazards.captured_harness import line_of
from hazards.captured_models import batch, mlp, sgd, state
from hazards.harness import CPU, SIMULATED
from hazards.in_place_harness import (
    CAPTURED,
    InPlaceCase,
    captured,
    either,
    judge,
    judge_the_loop_itself,
    refused,
)
from hazards.in_place_models import fit
from hazards.themes import IN_PLACE_CASES


# One in nine of all loops, for time; on a GPU all of them are compared with themselves.
PLAIN = [
    pytest.param(case, kind, id=f"{case}-{kind}")
    for case in IN_PLACE_CASES
    for kind in (CPU, SIMULATED)
    if kind in case.devices and case.holds_plainly
][::9]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kind"), PLAIN)
def test_the_loop_equals_itself(case, kind):
    """No case depends on time, on running first, or on what ran before."""
    assert judge_the_loop_itself(case, kind) == []


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case))
        for case in IN_PLACE_CASES
        if getattr(case.expect, "at", "")
    ],
)
def test_the_line_that_a_report_names_exists(case):
    """The text stands in exactly one line."""
    assert line_of(case.loop, case.expect.at)


def test_each_case_has_a_name_of_its_own_and_a_sentence():
    """Names are unique within a theme, and sentences end as sentences do."""
    assert len({str(case) for case in IN_PLACE_CASES}) == len(IN_PLACE_CASES)
    for case in IN_PLACE_CASES:
        assert case.sentence.endswith("."), case
        assert case.devices, case


# ------------------------------------------------------------------------- planted mistakes


def plain(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = fit(place, model, optimizer, 14)
    x, y = batch(place, 14)
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    return losses, state(model, optimizer)


def case_of(expect):
    return InPlaceCase("plain", "planted", "A loop.", expect, (SIMULATED,), False, True, plain)


class Fake:
    """Stands for gapless: counts the calls of what it captures, and says that all were replays."""

    texts = ()
    is_idle = ()

    def __init__(self):
        self.reports = {}

    def capture(self, one, *, device):
        is_optimizer = isinstance(one, torch.optim.Optimizer)
        name = "step" if is_optimizer else "forward"
        report = SimpleNamespace(num_replays=0, refusals=list(self.texts))
        self.reports[id(one)] = report
        setattr(one, name, self.wrap(getattr(one, name), report, name))
        return one

    def wrap(self, call, report, name):
        @functools.wraps(call)
        def counting(*args, **kwargs):
            report.num_replays += name not in self.is_idle
            return self.call(call, name, *args, **kwargs)

        return counting

    def call(self, call, name, *args, **kwargs):
        return call(*args, **kwargs)

    def capture_report(self, one):
        return self.reports[id(one)]


class IdleOptimizer(Fake):
    is_idle = ("step",)


class Refusing(Fake):
    is_idle = ("step", "forward")
    texts = ("Model.forward at x.py:3 is called under create_graph",)


class AnotherObject(Fake):
    def capture(self, one, *, device):
        super().capture(one, device=device)
        return one if isinstance(one, torch.optim.Optimizer) else torch.nn.Sequential(one)


class SkipsAStep(Fake):
    num = 0

    def call(self, call, name, *args, **kwargs):
        self.num += name == "step"
        return None if name == "step" and self.num == 9 else call(*args, **kwargs)


class StaleOutput(Fake):
    last = None
    num = 0

    def call(self, call, name, *args, **kwargs):
        if name == "step":
            return call(*args, **kwargs)
        before, self.last, self.num = self.last, call(*args, **kwargs), self.num + 1
        return self.last + 0 * before if self.num == 15 else self.last


class Draws(Fake):
    num = 0

    def call(self, call, name, *args, **kwargs):
        out = call(*args, **kwargs)
        self.num += name == "forward"
        if self.num == 15:
            torch.rand_like(out)
        return out


class AddsToGradients(Fake):
    """Hands one gradient out twice."""

    num = 0

    def call(self, call, name, *args, **kwargs):
        self.num += name == "forward"
        out = call(*args, **kwargs)
        if self.num == 15:
            out.register_hook(lambda grad: grad * 2)
        return out


def judged(fake, expect, monkeypatch):
    """Return what is wrong with a loop if `fake` stands for gapless."""
    fake = fake()
    monkeypatch.setattr(gapless, "capture", fake.capture)
    monkeypatch.setattr(gapless, "capture_report", fake.capture_report, raising=False)
    return judge(case_of(expect), SIMULATED)


def test_a_product_without_mistakes_passes(monkeypatch):
    """What does everything as written and says that it replays is right."""
    assert judged(Fake, CAPTURED, monkeypatch) == []
    assert judged(Fake, either("create_graph"), monkeypatch) == []


@pytest.mark.parametrize(
    "mistake", [AnotherObject, SkipsAStep, StaleOutput, Draws, AddsToGradients]
)
def test_a_planted_mistake_is_found(mistake, monkeypatch):
    """A product with a known mistake fails, whatever its reports say."""
    assert judged(mistake, either(), monkeypatch) != []


def test_too_few_replays_are_found(monkeypatch):
    """Each captured object must be replayed, unless the case names others."""
    wrong = judged(IdleOptimizer, CAPTURED, monkeypatch)

    assert wrong[0] == "0 of 14 calls of 'optimizer' were replays"
    assert judged(IdleOptimizer, captured("model"), monkeypatch) == []


def test_a_report_must_say_its_words(monkeypatch):
    """Words are regular expressions; without most calls replayed, `either` asks for them too."""
    assert judged(Refusing, refused("CREATE_GRAPH", r"x\.py:\d"), monkeypatch) == []
    assert judged(Refusing, refused("hook|tied"), monkeypatch)[0] == "no report says 'hook|tied'"
    assert judged(Refusing, either("create_graph|hook"), monkeypatch) == []
    assert judged(Refusing, either("hook"), monkeypatch)[-2] == "no report says 'hook'"
    assert judged(Refusing, either(), monkeypatch) == []
    assert judged(Fake, refused(), monkeypatch)[0] == "nothing was refused"
