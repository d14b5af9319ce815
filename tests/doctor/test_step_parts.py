"""A step is split into its parts by the lines of its loop, whatever makes the batches."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
import torch

from gapless.doctor.diagnose.diagnosis import diagnose
from gapless.doctor.diagnose.verdict import Figures, verdict_of
from gapless.doctor.diagnose.watched_run import WatchedRun
from gapless.doctor.lines.step_parts import StepPartsPass
from gapless.doctor.seen_waits import SeenWait, StepParts
from gapless.doctor.session.rank_sessions import together
from gapless.records.comparison import Spread
from gapless.records.finding import PartTimes, Session, Site, StepTimes
from gapless.report.session_text import session_text


PAUSE = 0.01
NUM_STEPS = 8


def slow_batch(_=None):
    time.sleep(PAUSE)
    return torch.ones(2, 4)


class Watched:
    """A loop's steps, with the pass told of their ends by the optimizer as in a run."""

    def __init__(self):
        self.passes = StepPartsPass()
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.num_steps = 0
        self._hook = self.optimizer.register_step_post_hook(self._ended)

    def _ended(self, *_):
        self.num_steps += 1
        if self.num_steps == 1:
            self.passes.start()
        elif self.num_steps < NUM_STEPS:
            self.passes.next_step()
        else:
            self.passes.stop()

    def parts(self):
        self._hook.remove()
        self.passes.stop()
        return self.passes.parts

    def step(self, x):
        loss = self.model(x).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def from_a_generator(watched):
    for x in (slow_batch() for _ in range(NUM_STEPS)):
        watched.step(x)


def from_map(watched):
    for x in map(slow_batch, range(NUM_STEPS)):
        watched.step(x)


def from_a_function(watched):
    for _ in range(NUM_STEPS):
        x = slow_batch()
        watched.step(x)


def within_one_line(watched):
    for _ in range(NUM_STEPS):
        watched.step(slow_batch())


def in_the_function_that_takes_the_step(watched):
    def step():
        x = slow_batch()
        loss = watched.model(x).sum()
        loss.backward()
        watched.optimizer.step()

    for _ in range(NUM_STEPS):
        step()


SLOW_DATA = [
    *(from_a_generator, from_map, from_a_function, within_one_line),
    in_the_function_that_takes_the_step,
]


@pytest.mark.parametrize("loop", SLOW_DATA)
def test_batches_are_timed_whatever_makes_them(loop):
    """They are nearly all of the step."""
    watched = Watched()

    loop(watched)
    parts = watched.parts()

    assert parts.ms.data > 0.9 * 1e3 * PAUSE
    assert parts.ms.data > 0.5 * sum(vars(parts.ms).values())
    assert all(ms > 0 for ms in vars(parts.ms).values())
    assert "loop" not in parts.data_line.source
    assert sys.gettrace() is None


def test_what_a_loop_does_after_its_update_is_no_data():
    """Nor is what it does between its passes."""
    watched = Watched()

    for _ in range(NUM_STEPS):
        loss = watched.model(torch.ones(2, 4)).sum()
        time.sleep(PAUSE)
        loss.backward()
        watched.optimizer.step()
        time.sleep(PAUSE)
    parts = watched.parts()

    assert parts.ms.other > 1.8 * 1e3 * PAUSE
    assert parts.ms.data < 1e3 * PAUSE


def test_a_pass_that_is_slow_is_told_from_the_others():
    """A hook of a gradient is in the backward pass, one of an optimizer in the update."""
    watched = Watched()
    watched.model.weight.register_hook(lambda _: time.sleep(PAUSE))
    watched.optimizer.register_step_pre_hook(lambda *_: None)

    for _ in range(NUM_STEPS):
        watched.step(torch.ones(2, 4))
    parts = watched.parts()

    assert parts.ms.backward > 0.9 * 1e3 * PAUSE


def test_another_tracer_is_left_alone():
    """Then nothing is timed."""
    watched = Watched()

    def trace(*_):
        return None

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        from_a_function(watched)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(former)

    assert watched.parts() is None


CPU = {"has_device": False, "step_ms": 10.0}
VERDICTS = {
    "CPU-BOUND: no accelerator": Figures(**CPU),
    "HOST WAITS: on a GPU 2 lines would surely wait in each step": Figures(
        **CPU, num_would_wait=2
    ),
    "HOST WAITS: on a GPU 1 line would surely": Figures(**CPU, num_would_wait=1, has_loader=True),
    "DEVICE-BOUND: removing": Figures(has_device=True, step_ms=10.0, busy_share=0.95),
    "LAUNCH-BOUND: the device is idle 60 %": Figures(
        has_device=True, step_ms=10.0, busy_share=0.4, idle_ms={"launch": 5.0}
    ),
    "LAUNCH-BOUND: the device is idle 60 % of the time: it pauses between short": Figures(
        has_device=True, step_ms=10.0, busy_share=0.4, idle_ms={"device": 5.0}
    ),
    "DEVICE-BOUND: something else has the device": Figures(
        has_device=True, step_ms=10.0, busy_share=0.4, idle_ms={"device": 1.0, "held": 5.0}
    ),
    "HOST WAITS: the device is idle": Figures(
        has_device=True, step_ms=10.0, busy_share=0.4, all_waits_ms=5.0
    ),
    "LOADER-BOUND: the device is idle 60 % of the time: it waits for batches, which take 7.0 ms": Figures(
        has_device=True, step_ms=10.0, busy_share=0.4, idle_ms={"loader": 5.0}, data_ms=7.0
    ),
}


@pytest.mark.parametrize("begins", VERDICTS)
def test_a_verdict_begins_with_its_word(begins):
    """One of five."""
    is_busy = VERDICTS[begins].busy_share == 0.95

    said = verdict_of(VERDICTS[begins], [None] if is_busy else [])

    assert said.startswith(begins)
    assert not said.startswith("DEVICE-BOUND") or "idle" not in said


def test_no_loader_keeps_up_that_was_not_seen():
    """And one that was does."""
    assert "no loader was seen" in verdict_of(Figures(**CPU), [])
    assert "the loader keeps up" in verdict_of(Figures(**CPU, has_loader=True), [])


def rank_session(**parts):
    whole = {"data": 0.0, "forward": 1.0, "backward": 1.0, "update": 1.0, "other": 0.0} | parts
    wall = Spread.of([sum(whole.values())])
    steps = StepTimes(num_steps=5, wall_ms=wall, parts_ms=PartTimes(**whole))
    return Session(command=("a",), device="cpu", versions={}, steps=steps, verdict="first")


def test_the_slowest_of_several_processes_is_named():
    """With what is slow there; the others wait for it in their backward pass."""
    found = together({0: rank_session(backward=11.0), 1: rank_session(data=10.0)})

    assert found.verdict.startswith("STRAGGLER: rank 1 takes 10.0 ms longer")
    assert "its batches" in found.verdict
    assert [(one.rank, one.data_ms) for one in found.ranks] == [(0, 0.0), (1, 10.0)]


def on_nccl(collective_ms):
    session = rank_session()
    return replace(session, steps=replace(session.steps, collective_ms=collective_ms))


def test_the_slowest_device_is_the_one_on_which_nccl_waits_least():
    """Nothing of it is seen on the host: the others wait for it within a kernel."""
    found = together({rank: on_nccl(0.5 if rank == 2 else 3.5) for rank in range(4)})

    assert found.verdict.startswith(
        "STRAGGLER: rank 2 takes 3.0 ms longer than the others, on its"
    )
    assert "rank 2: a step takes 3.00 ms" in session_text(found)
    assert "0.50 in kernels of NCCL\n" in session_text(found, columns=200)
    assert together({rank: on_nccl(3.5) for rank in range(4)}).verdict == "first"


def test_who_reads_its_loss_is_not_late_for_it():
    """The quick process waits there for the slow one, on its device."""
    quick, slow = rank_session(other=11.0), rank_session(data=10.0, other=1.0)
    quick = replace(quick, steps=replace(quick.steps, wait_ms=10.0))

    assert together({0: quick, 1: slow}).verdict.startswith("STRAGGLER: rank 1 takes 10.0 ms")


def test_processes_that_are_as_quick_have_no_straggler():
    """The verdict is that of the first."""
    assert together({0: rank_session(), 1: rank_session()}).verdict == "first"


def test_data_is_at_least_what_loaders_were_waited_for():
    """As one number in all of a report, though both were seen in windows of their own; the step is as long."""
    late = SeenWait(
        cause="loader",
        call="next",
        site=Site(path="train.py", line=3),
        thread="main",
        step=0,
        start_ns=0,
        end_ns=4_000_000,
    )
    parts = StepParts(ms=PartTimes(data=3.0, forward=4.0, update=3.0), data_line=None)

    found = diagnose(
        WatchedRun(
            has_device=False, step_ms=(10.0,), seen=(late,), num_seen_steps=1, step_parts=parts
        )
    )

    assert found.steps.parts_ms.data == pytest.approx(4.0)
    assert sum(vars(found.steps.parts_ms).values()) == pytest.approx(10.0)
    assert found.verdict.startswith("LOADER-BOUND: batches take 4.0 ms of 10.0 ms")
    assert [one.waited_ms for one in found.findings] == [4.0]
