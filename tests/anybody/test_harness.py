"""The harness judges rightly: a loop equals itself, and planted mistakes are found."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gapless
from anybody import (
    batches,
    methods,
    objects,
    optimizers,
    reports,
    test_averages,
    test_run_command,
)
from anybody.harness import AnybodyCase, judge, ran, replayed, told
from anybody.not_yet import NOT_YET
from hazards.captured_harness import differences
from hazards.in_place_models import made


THEMES = [batches.case, methods.case, objects.case, reports.case, optimizers.case]


def test_rows_of_what_fails_name_cases():
    """Each names one that exists."""
    names = {str(case) for cases in THEMES for case in cases}
    for test, known in (("prefetch", batches.KINDS), ("hidden", batches.HIDDEN)):
        names |= {f"{test}-{one}" for one in known}
    for test, programs in (("run", test_run_command.RUNS), ("off", test_run_command.OFF)):
        names |= {f"{test}-{one}" for one in programs}
    names |= {f"average-{one}" for one in test_averages.FORMS}
    names |= {"order-lightning", "order-thrown_away", "run-missing.py", "run-torchrun"}

    assert [name for name in NOT_YET if name not in names] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for cases in THEMES[:-1] for case in cases if not case.needs_gpu], ids=str
)
def test_the_loop_equals_itself(case):
    """No case depends on time, or on what ran before."""
    first, second = ran(case, is_plain=True), ran(case, is_plain=True)

    assert first.error == ""
    assert differences(first.result, second.result) == []


def loop(place):
    model = made(place, lambda: nn.Linear(8, 4))
    return objects.in_place(place, model, objects.of_classes)


def judged(expect):
    return judge(AnybodyCase("planted", "A loop.", loop, expect))


def test_a_right_product_passes():
    """Verdicts ask for replays or for words."""
    assert judged(replayed()) == []
    assert judged(told("no such words"))[0] == "no line says all of ('no such words',)"


def test_a_product_that_captures_nothing_is_found(monkeypatch):
    """It has the same bits, but no replays."""
    report = gapless.capture_report(gapless.capture(copy.deepcopy(nn.Linear(1, 1))))
    monkeypatch.setattr(gapless, "capture", lambda *captured, device: captured)
    monkeypatch.setattr(gapless, "capture_report", lambda one: report)

    assert judged(replayed())[0] == "0 of 0 calls of the model were replays"


def test_other_bits_are_found(monkeypatch):
    """A product that rounds one weight otherwise fails, whatever it replays."""
    capture = gapless.capture

    def rounding(model, *others, device):
        with torch.no_grad():
            model.weight[0, 0].mul_(1.0 + 2.0**-22)
        return capture(model, *others, device=device)

    monkeypatch.setattr(gapless, "capture", rounding)

    assert "was expected" in judged(replayed())[0]
