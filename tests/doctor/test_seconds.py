"""Seconds stand for steps where a script has none."""

from __future__ import annotations

import threading
from time import sleep

from gapless.doctor.conclusion import conclude
from gapless.doctor.phases import Seen
from gapless.doctor.seconds import Seconds
from gapless.doctor.seen import SeenWait
from gapless.doctor.watch_settings import WatchSettings
from gapless.doctor.watching import Watch
from gapless.records.finding import Site


class Counter:
    """A pass that counts; it tells when it has seen three borders of seconds."""

    def __init__(self):
        self.steps = 0
        self.is_on = False
        self.has_seen_three = threading.Event()

    def start(self):
        self.is_on = True

    def next_step(self):
        self.steps += 1
        if self.steps == 3:
            self.has_seen_three.set()

    def stop(self):
        self.is_on = False


def test_each_second_is_a_step_until_there_is_an_end():
    """What was seen is returned, and the passes are stopped; the first second is forgotten."""
    counters = []

    def make_pass():
        counters.append(Counter())
        return counters[-1]

    seconds = Seconds(make_pass, on_problem=lambda error: None, seconds=0.001)
    seconds.start()
    while len(counters) < 2:
        sleep(0.001)
    assert counters[1].has_seen_three.wait(60)
    seen = seconds.end()

    first, later = counters
    assert not first.is_on
    assert not later.is_on
    assert seen.num_steps == later.steps + 1
    assert seen.passes == [later]


def test_of_a_script_that_ends_in_the_first_second_that_is_what_was_seen():
    """It has had no time for more."""
    counter = Counter()
    seconds = Seconds(lambda: counter, on_problem=lambda error: None, seconds=600.0)
    seconds.start()
    while not counter.is_on:
        sleep(0.001)
    seen = seconds.end()

    assert (seen.num_steps, seen.passes, counter.is_on) == (1, [counter], False)


def test_a_pass_that_fails_is_told_of():
    """And ends nothing but the watching."""
    problems = []
    seconds = Seconds(lambda: 1 / 0, on_problem=problems.append, seconds=0.001)
    seconds.start()
    seconds._thread.join(60)

    assert seconds.end() is None
    assert [type(problem) for problem in problems] == [ZeroDivisionError]


class ItemPass:
    """Has seen one line read two values in each of four seconds."""

    def __init__(self):
        self.waits = [
            SeenWait(
                cause="item",
                call="Tensor.item",
                site=Site(path="infer.py", line=7),
                thread="main",
                step=number // 2,
                start_ns=0,
                end_ns=1_000_000,
            )
            for number in range(8)
        ]


def test_what_was_seen_in_seconds_is_found():
    """A script without steps has findings too, counted by the second."""
    watch = Watch(WatchSettings())
    watch.has_torch = True
    watch.seen_seconds = Seen(phase="sites", num_steps=4, passes=[ItemPass()])

    session = conclude(watch, command=["infer.py"])

    assert session.step == "a second"
    found = [one for one in session.findings if one.certainty == "seen"]
    assert [(one.code, one.site.line, one.per_step) for one in found] == [("GAP001", 7, 2.0)]
