"""Windows of a script as written and of a variant, in turns, by a clock that the test sets."""

from __future__ import annotations

import pytest

from gapless.doctor.watching.variant_trials import VariantTrials, those_for
from gapless.records.finding import Finding


class FakeVariant:
    """Makes a step take another time; notes what happens to it."""

    name = "quick"
    change = "Steps are quick."

    def __init__(self, *, settles_after=0, to_recover=0, refuses_at=None, raises_at=None):
        self.refusal = ""
        self.details = ("all was well",)
        self.num_steps_to_recover = to_recover
        self.is_in = False
        self.log = []
        self._settles_after = settles_after
        self._refuses_at = refuses_at
        self._raises_at = raises_at
        self._num_asked = 0
        self._num_starts = 0

    @property
    def is_settled(self):
        self._num_asked += 1
        return self._num_asked > self._settles_after

    def is_for(self, findings):
        return any(finding.code == "GAP001" for finding in findings)

    def start(self, step_ended):
        self.is_in = True
        self._num_starts += 1
        self.log.append("start")
        if self._num_starts == self._raises_at:
            raise ValueError("no such thing")
        if self._num_starts == self._refuses_at:
            self.refusal = "it changes what is printed"

    def stop(self):
        if self.is_in:
            self.log.append("stop")
        self.is_in = False

    def close(self):
        self.log.append("close")


class Script:
    """Takes steps on a clock of its own: a slow device that a wait at the end of a window waits for."""

    def __init__(self, *variants, written=0.5, changed=0.25, behind=0.125, **options):
        self.time = 0.0
        self.behind = 0.0
        self.num_waits = 0
        self.sides = []
        self._variants = variants
        self._written, self._changed, self._late = written, changed, behind
        self.variant_trials = VariantTrials(
            variants,
            synchronize=self.synchronize,
            step_ended=lambda optimizer: None,
            now=lambda: self.time,
            **options,
        )

    def synchronize(self):
        self.num_waits += 1
        self.time += self.behind
        self.behind = 0.0

    def run(self, num_steps):
        self.variant_trials.start()
        for _ in range(num_steps):
            if self.variant_trials.is_over:
                break
            is_in = any(variant.is_in for variant in self._variants)
            self.sides.append("B" if is_in else "A")
            self.time += self._changed if is_in else self._written
            self.behind = self._late
            self.variant_trials.next_step()
        self.variant_trials.stop()
        return self.variant_trials.trials


def test_both_sides_are_measured_by_turns():
    """Each side has its windows, and the time of a window has its steps and the work left at its end."""
    script = Script(FakeVariant(), num_windows=3, num_steps=4)

    (trial,) = script.run(1000)

    assert trial.refusal == ""
    assert trial.baseline.rounds == (4 / (4 * 0.5 + 0.125),) * 3
    assert trial.steps_per_second.rounds == (4 / (4 * 0.25 + 0.125),) * 3
    assert trial.details == ("all was well",)
    assert "".join(script.sides) == ("A" * 6 + "B" * 6) * 3
    assert script.num_waits == 2 * 2 * 3


def test_quick_steps_have_longer_windows():
    """The host's hiccups are shorter than a window; a script of few steps is still measured."""
    script = Script(
        FakeVariant(), written=0.0625, changed=0.001, behind=0.0, num_windows=2, num_steps=4
    )

    (trial,) = script.run(1000)

    assert "".join(script.sides) == ("A" * (2 + 4) + "B" * (2 + 12)) * 2
    assert trial.steps_per_second.median == pytest.approx(1000)
    assert trial.baseline.median == pytest.approx(16)


def test_steps_before_a_variant_has_settled_are_in_no_window():
    """A variant that needs steps to become what it is to be is measured after them."""
    script = Script(FakeVariant(settles_after=7), num_windows=2, num_steps=4)

    (trial,) = script.run(1000)

    assert "".join(script.sides) == "A" * 6 + "B" * (2 + 7 + 4) + "A" * 6 + "B" * 6
    assert trial.steps_per_second.median > 1.5 * trial.baseline.median


def test_what_a_variant_leaves_behind_is_in_no_window():
    """Steps as written that still gain from a variant are not measured."""
    script = Script(FakeVariant(to_recover=9), num_windows=2, num_steps=4)

    script.run(1000)

    assert "".join(script.sides) == "A" * 6 + "B" * 6 + "A" * (9 + 4) + "B" * 6


def test_variants_come_one_after_the_other():
    """The second variant is put in when the first is gone."""
    first, second = FakeVariant(), FakeVariant()

    trials = Script(first, second, num_windows=2, num_steps=4).run(1000)

    assert [trial.refusal for trial in trials] == ["", ""]
    assert first.log == second.log == ["start", "stop", "start", "stop", "close"]


def test_a_variant_that_raises_is_taken_out():
    """The reason is in its trial, and the next variant is measured."""
    broken, sound = FakeVariant(raises_at=2), FakeVariant()

    trials = Script(broken, sound, num_windows=3, num_steps=4).run(1000)

    assert trials[0].refusal == "it raised ValueError: no such thing"
    assert trials[0].steps_per_second is None
    assert trials[0].gain is None
    assert broken.log == ["start", "stop", "start", "stop", "close"]
    assert trials[1].gain > 1.5


def test_a_variant_may_refuse_in_the_midst():
    """What it says is in its trial, and it is not put in again."""
    variant = FakeVariant(refuses_at=2)

    (trial,) = Script(variant, num_windows=5, num_steps=4).run(1000)

    assert trial.refusal == "it changes what is printed"
    assert trial.baseline is None
    assert variant.log == ["start", "stop", "start", "stop", "close"]


def test_a_script_may_end_in_the_midst():
    """Windows that there are count if both sides have two; everything is out when it has ended."""
    enough, too_few, never = FakeVariant(), FakeVariant(), FakeVariant()

    (trial,) = Script(enough, num_windows=5, num_steps=4).run(2 * 12 + 3)
    short = Script(too_few, never, num_windows=5, num_steps=4).run(12 + 8)

    assert trial.refusal == ""
    assert len(trial.baseline.rounds) == len(trial.steps_per_second.rounds) == 2
    assert [one.refusal for one in short] == ["the script ended before it was measured"] * 2
    assert too_few.log == ["start", "stop", "start", "stop", "close"]
    assert never.log == ["close"]


def test_variants_are_chosen_by_findings():
    """A variant comes with a finding that it may mend."""
    variant = FakeVariant()
    read = Finding(code="GAP001", site=None, call="", per_step=1, cause="", mend="")
    other = Finding(code="GAP016", site=None, call="", per_step=1, cause="", mend="")

    assert those_for([variant], [read]) == [variant]
    assert those_for([variant], [other]) == []
