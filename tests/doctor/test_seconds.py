"""Seconds stand for steps where a script has none."""

from __future__ import annotations

import threading
from dataclasses import replace
from time import sleep
from types import SimpleNamespace

from gapless.doctor.seen_waits import SeenWait
from gapless.doctor.session.make_session import make_session
from gapless.doctor.session.private import private
from gapless.doctor.watching.seconds import Seconds
from gapless.doctor.watching.watch import Watch, WatchSettings
from gapless.doctor.watching.windows import SeenWindow
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
    assert seen.num_steps == len(seen.step_ns) == later.steps + 1
    assert min(seen.step_ns) > 0
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
    watch.seen_seconds = SeenWindow(phase="sites", num_steps=4, passes=[ItemPass()])

    session = make_session(watch, command=["infer.py"])

    assert session.step == "a second"
    found = [one for one in session.findings if one.certainty == "seen"]
    assert [(one.code, one.site.line, one.per_step) for one in found] == [("GAP001", 7, 2.0)]


def waits_of(line, *ends_ms):
    """Return waits of half a millisecond of a line."""
    return [
        SeenWait(
            cause="item",
            call="Tensor.item",
            site=Site(path="zara/infer.py", line=line),
            thread="main",
            step=int(end // 1000),
            start_ns=int((end - 0.5) * 1_000_000),
            end_ns=int(end * 1_000_000),
        )
        for end in ends_ms
    ]


def concluded(waits, *, seconds=2):
    """Return the session of a script without steps."""
    watch = Watch(WatchSettings())
    watch.has_torch = watch.has_gpu = True
    one = SimpleNamespace(waits=waits)
    watch.seen_seconds = SeenWindow(
        phase="sites", num_steps=seconds, passes=[one], step_ns=[1_000_000_000] * seconds
    )
    return make_session(watch, command=["infer.py"])


def test_what_is_done_once_is_a_note_and_no_finding():
    """A line before the loop and a print behind it; what the loop reads stays."""
    session = concluded(
        [
            *waits_of(3, 5),
            *waits_of(7, *range(20, 1900, 50)),
            *waits_of(9, *(1950 + n / 10 for n in range(12))),
        ]
    )

    assert [(one.site.line, one.per_step) for one in session.findings] == [(7, 19.0)]
    (note,) = [one for one in session.notes if "held the host up" in one]
    assert note.startswith("2 lines ")
    assert note.endswith("zara/infer.py:3, zara/infer.py:9.")


def test_where_all_is_done_once_nothing_is_found():
    """And no verdict speaks of lines below."""
    session = concluded(waits_of(9, *(1950 + n / 10 for n in range(8))))

    assert session.findings == ()
    assert "below" not in session.verdict


def test_without_what_is_done_once_there_is_no_note_of_it():
    """A line that waits now and then is a finding."""
    session = concluded(waits_of(7, 100, 900, 1700))

    assert [one.site.line for one in session.findings] == [7]
    assert not any("held the host up" in note for note in session.notes)


def test_a_private_session_does_not_say_where_what_is_done_once_was():
    """Files that have a finding have a number; no others are named."""
    found = concluded([*waits_of(3, 5), *waits_of(7, 20, 1900)])
    elsewhere = replace(found, findings=())

    (note,) = [one for one in private(found).notes if "held the host up" in one]
    assert note.endswith("and no finding: file 1:3.")
    assert note.startswith("1 line held the host up at one moment of the watched time only, ")
    assert not any("zara" in note or "infer" in note for note in private(elsewhere).notes)


def test_of_a_window_of_steps_nothing_is_left_out():
    """What happens once in twenty steps is a finding there: they are the same every time."""
    watch = Watch(WatchSettings())
    watch.has_torch = watch.has_gpu = True
    one = SimpleNamespace(waits=waits_of(3, 5))
    watch.seen.append(
        SeenWindow(phase="sites", num_steps=20, passes=[one], step_ns=[100_000_000] * 20)
    )

    assert [one.site.line for one in make_session(watch, command=["train.py"]).findings] == [3]
