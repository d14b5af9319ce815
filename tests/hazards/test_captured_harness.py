"""The harness of captured steps judges rightly: a loop equals itself, planted mistakes are found."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from types import SimpleNamespace

import pytest
import torch

import gapless
from hazards import captured_harness
from hazards.captured_harness import (
    CAPTURED,
    CPU,
    EITHER,
    SIMULATED,
    CapturedCase,
    judge,
    judge_the_loop_itself,
    line_of,
    refused,
)
from hazards.captured_models import batch, kept
from hazards.themes import CAPTURED_CASES


# One in nine of all loops, for time; on a GPU all of them are compared with themselves.
PLAIN = [
    pytest.param(case, kind, id=f"{case}-{kind}")
    for case in CAPTURED_CASES
    for kind in (CPU, SIMULATED)
    if kind in case.devices and case.holds_plainly
][::9]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kind"), PLAIN)
def test_the_loop_equals_itself(case, kind):
    """No case depends on time, on running first, or on what ran before."""
    assert judge_the_loop_itself(case, kind) == []


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case)) for case in CAPTURED_CASES if case.expect.at]
)
def test_the_line_that_a_refusal_names_exists(case):
    """The text stands in exactly one line."""
    assert line_of(case.loop, case.expect.at)


def counts_and_draws(place):
    """Call a step 14 times that counts on the host and draws on the device; raise at the end."""
    calls, weight = [], torch.ones(8, device=place.torch_device)

    def step(pair):
        calls.append(len(calls))
        if len(calls) == 13:
            raise ValueError("thirteen")
        weight.add_(torch.rand(8, device=place.torch_device))
        return weight * pair[0][0]

    step, results = place.capture(step), []
    for number in range(14):
        with contextlib.suppress(ValueError):
            results.append(kept(step(batch(place, number))))
    return results, len(calls), weight


def raises(place):
    """Raise from a step in the fifth call."""
    calls = []

    def step(pair):
        calls.append(pair)
        if len(calls) == 5:
            raise ValueError("five")
        return pair[0]

    step = place.capture(step)
    for number in range(14):
        step(batch(place, number))


class Fake:
    """A product that has nothing but the step itself, and says that it replayed every call."""

    def __init__(self, step, *, device):
        self.step, self.device, self.last = step, device, None
        self.report = SimpleNamespace(num_replays=0, refusals=[])

    def __call__(self, pair):
        self.report.num_replays += 1
        self.last = self.step(pair)
        return self.last


class Idle(Fake):
    def __call__(self, pair):
        return self.step(pair)


class Stale(Fake):
    def __call__(self, pair):
        return super().__call__(pair) if self.last is None else self.last


class StaleOnce(Fake):
    def __call__(self, pair):
        last = self.last
        now = super().__call__(pair)
        return last if self.report.num_replays == 9 else now


class SkipsHostWrites(Fake):
    def __call__(self, pair):
        result = super().__call__(pair)
        (calls,) = [
            cell.cell_contents
            for cell in self.step.__closure__
            if isinstance(cell.cell_contents, list)
        ]
        if self.report.num_replays == 8:
            calls.pop()
        return result


class Draws(Fake):
    def draw(self):
        torch.rand(1, device=self.device.torch_device)

    def __call__(self, pair):
        if self.report.num_replays == 13:
            self.draw()
        return super().__call__(pair)


class DrawsInPython(Draws):
    def draw(self):
        random.random()


class Swallows(Fake):
    def __call__(self, pair):
        with contextlib.suppress(ValueError):
            return super().__call__(pair)
        return pair[0]


class Wraps(Fake):
    def __call__(self, pair):
        try:
            return super().__call__(pair)
        except ValueError as error:
            raise RuntimeError("the step failed") from error


class Prints(Fake):
    def __call__(self, pair):
        print("replaying", end="")
        return super().__call__(pair)


def case_of(loop, expect):
    return CapturedCase(
        name=loop.__name__,
        theme="planted",
        sentence="A planted mistake.",
        expect=expect,
        devices=(SIMULATED,),
        waits=True,
        holds_plainly=True,
        raises=loop is raises,
        loop=loop,
    )


def test_a_loop_that_raises_by_mistake_is_found():
    """A loop that ends with an exception must say so, and one that says so must do so."""
    good = case_of(raises, EITHER)
    silent = dataclasses.replace(good, raises=False)
    bad = dataclasses.replace(case_of(counts_and_draws, EITHER), raises=True)

    assert judge_the_loop_itself(good, SIMULATED) == []
    assert "ValueError: five" in judge_the_loop_itself(silent, SIMULATED)[0]
    assert "nothing" in judge_the_loop_itself(bad, SIMULATED)[0]


@pytest.mark.parametrize("loop", [counts_and_draws, raises])
def test_a_product_without_mistakes_passes(loop, monkeypatch):
    """What does everything as written and says that it replays is right."""
    monkeypatch.setattr(gapless, "capture", Fake)

    assert judge(case_of(loop, CAPTURED), SIMULATED) == []
    assert judge(case_of(loop, EITHER), SIMULATED) == []


@pytest.mark.parametrize(
    ("mistake", "loop"),
    [
        (Stale, counts_and_draws),
        (StaleOnce, counts_and_draws),
        (SkipsHostWrites, counts_and_draws),
        (Draws, counts_and_draws),
        (DrawsInPython, counts_and_draws),
        (Swallows, counts_and_draws),
        (Swallows, raises),
        (Wraps, raises),
        (Prints, counts_and_draws),
    ],
)
def test_a_planted_mistake_is_found(mistake, loop, monkeypatch):
    """A product with a known mistake fails, whatever its report says."""
    monkeypatch.setattr(gapless, "capture", mistake)

    assert judge(case_of(loop, EITHER), SIMULATED) != []


def test_an_exception_from_another_line_is_found(monkeypatch):
    """An exception must come with the lines of the user's code that it was raised through."""

    class LosesTheTraceback(Fake):
        def __call__(self, pair):
            caught = None
            try:
                return super().__call__(pair)
            except ValueError as error:
                caught = error.with_traceback(None)
            raise caught

    monkeypatch.setattr(gapless, "capture", LosesTheTraceback)
    name = "captured_tries-raises_in_the_tenth_call"
    (one,) = [case for case in CAPTURED_CASES if str(case) == name]
    wrong = judge(one, SIMULATED)

    assert "captured_tries.py:" in wrong[0]


def test_captured_without_replays_is_found(monkeypatch):
    """A case that must be captured fails if everything ran as written."""
    monkeypatch.setattr(gapless, "capture", Idle)
    wrong = judge(case_of(counts_and_draws, CAPTURED), SIMULATED)

    assert wrong[0] == "0 of 14 calls were replays"


@pytest.mark.parametrize(
    ("texts", "num_missing"),
    [
        (["captured.py:1 writes calls"], 1),
        (["{line} writes calls"], 0),
        (["{line} writes something", "calls is a list"], 0),
        ([], 1),
    ],
)
def test_a_refusal_must_say_its_words(texts, num_missing, monkeypatch):
    """Each word and the line must stand in one of the refusals."""
    line = line_of(counts_and_draws, "calls.append(len(calls))")

    class Refusing(Idle):
        def __init__(self, step, *, device):
            super().__init__(step, device=device)
            told = [SimpleNamespace(text=text.format(line=line)) for text in texts]
            self.report = SimpleNamespace(num_replays=0, refusals=told)

    monkeypatch.setattr(gapless, "capture", Refusing)
    verdict = refused("calls", at="calls.append(len(calls))")
    wrong = judge(case_of(counts_and_draws, verdict), SIMULATED)

    assert len(wrong) == num_missing + bool(num_missing)


def test_each_case_is_of_one_verdict_and_has_a_sentence():
    """Names are unique within a theme, and sentences end as sentences do."""
    assert len({str(case) for case in CAPTURED_CASES}) == len(CAPTURED_CASES)
    for case in CAPTURED_CASES:
        assert case.sentence.endswith("."), case
        assert case.devices, case


def test_floats_are_compared_by_their_bits():
    """The last bit of a Python float counts."""
    place = captured_harness.CpuPlace(is_plain=True)
    one = captured_harness.freeze(place, {"lr": 0.1 + 0.2})

    assert one != captured_harness.freeze(place, {"lr": 0.3})
    assert dataclasses.is_dataclass(CAPTURED)
