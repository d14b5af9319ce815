"""Windows of steps: what is watched when, and that all of it is taken out again."""

from __future__ import annotations

import pytest

from gapless.doctor.watching.windows import Phases, longest, plan_windows, start_all, stop_all


class Recorder:
    """A pass that notes what is asked of it."""

    def __init__(self, phase, log):
        self.phase = phase
        self.log = log

    def start(self):
        self.log.append(f"start {self.phase}")

    def next_step(self):
        self.log.append("step")

    def stop(self):
        self.log.append(f"stop {self.phase}")


@pytest.fixture
def log():
    return []


@pytest.fixture
def phases(log):
    """Return a function that makes phases whose clock counts its own calls."""

    def make(windows, **options):
        def start(phase):
            passes = [Recorder(phase, log)] if phase not in ("rest", "plain") else []
            for one in passes:
                one.start()
            return passes

        return Phases(windows, start=start, clock=iter(range(10_000)).__next__, **options)

    return make


def run(phases, num_steps):
    """Let a script make so many steps: one more call than there are steps between calls."""
    for _ in range(num_steps + 1):
        phases.step_ended()


def test_windows_follow_each_other_and_then_nothing_is_watched(phases, log):
    """A pass sees the steps of its window: their beginning, the borders between them, their end."""
    watched = phases(plan_windows(warm_up=2, num_steps=3))
    run(watched, 2 + 3 + 3 + 2 + 1)

    assert watched.is_over
    assert [(one.phase, one.num_steps) for one in watched.seen] == [
        ("rest", 2),
        ("plain", 3),
        ("sites", 3),
        ("parts", 2),
        ("times", 1),
    ]
    assert log == [
        *("start sites", "step", "step", "stop sites"),
        *("start parts", "step", "stop parts", "start times", "stop times"),
    ]
    watched.step_ended()
    assert len(log) == 9


def test_each_step_of_a_window_is_timed(phases):
    """As many times as steps, without what starting and stopping a pass takes."""
    watched = phases(plan_windows(warm_up=0, num_steps=4))
    run(watched, 4)

    (plain,) = watched.seen
    assert plain.step_ns == [1, 1, 1, 1]


def test_a_script_that_ends_early_leaves_what_there_was(phases, log):
    """The pass of the window that is cut short is stopped, and its steps count."""
    watched = phases(plan_windows(warm_up=0, num_steps=5))
    run(watched, 7)
    watched.end()

    assert log[-1] == "stop sites"
    assert longest(watched.seen, "sites").num_steps == 2
    assert longest(watched.seen, "times") is None


def test_a_script_that_ends_in_its_warm_up_had_a_quick_look(phases):
    """Lines of the first steps are better than none."""
    watched = phases(plan_windows(warm_up=10, num_steps=20))
    run(watched, 8)
    watched.end()

    assert longest(watched.seen, "sites").num_steps == 3


def test_the_longest_window_of_a_phase_is_the_one_that_counts(phases):
    """The quick look is forgotten where the real one was had."""
    watched = phases(plan_windows(warm_up=10, num_steps=20))
    run(watched, 65)

    assert watched.is_over
    assert longest(watched.seen, "sites").num_steps == 20
    assert sum(one.num_steps for one in watched.seen) == 65


def test_without_a_device_there_is_no_window_of_times(phases):
    """There is nothing to measure."""
    assert [one.phase for one in plan_windows(warm_up=0, num_steps=2, has_times=False)] == [
        "plain",
        "sites",
        "parts",
    ]


class Broken(Recorder):
    """A pass of which one thing fails."""

    def __init__(self, phase, log, *, fails):
        super().__init__(phase, log)
        self.fails = fails

    def start(self):
        if self.fails == "start":
            raise ArithmeticError
        super().start()

    def stop(self):
        super().stop()
        if self.fails == "stop":
            raise ArithmeticError


def test_where_a_pass_cannot_start_those_before_it_are_stopped(log):
    """Nothing is left running."""
    with pytest.raises(ArithmeticError):
        start_all([Recorder("a", log), Recorder("b", log), Broken("c", log, fails="start")])

    assert log == ["start a", "start b", "stop b", "stop a"]


def test_where_a_pass_cannot_stop_the_others_are_stopped(log):
    """The last was started last, so it is stopped first."""
    with pytest.raises(ArithmeticError):
        stop_all([Recorder("a", log), Broken("b", log, fails="stop"), Recorder("c", log)])

    assert log == ["stop c", "stop b", "stop a"]


@pytest.mark.parametrize("wants", [True, False])
def test_lines_of_backward_passes_are_looked_for_where_they_are_missing(phases, log, wants):
    """Once, after all other windows."""
    watched = phases(plan_windows(warm_up=0, num_steps=1), wants_backward=lambda _: wants)
    run(watched, 20)

    assert watched.is_over
    assert log.count("start backward") == log.count("stop backward") == wants
