"""How `auto` goes from one phase to the next, with scripted times."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gapless.device.cpu import CpuDevice
from gapless.graphs import warm_ups
from gapless.graphs.callee import Callee
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.captured_step import CapturedStep
from gapless.graphs.refusal import Refusal, host_read
from gapless.graphs.step_run import StepRun
from gapless.loop import auto as autostep
from gapless.loop.auto import AutoSteps
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.tree.flatten import flatten
from gapless.testing.simulated.simulated_device import SimulatedDevice


class ScriptedStep:
    """Takes a set time as written and another as a graph; its shapes are the batches."""

    def __init__(self, clock, *, eager_ms, captured_ms, capture_ms=500.0):
        self.clock = clock
        self.eager_ms, self.captured_ms, self.capture_ms = eager_ms, captured_ms, capture_ms
        self.report = CaptureReport()
        self.step = None
        self.refuses_after = None
        self.seen = {}
        self.num_dropped = 0
        self.num_epochs = 0

    @property
    def has_graphs(self):
        return any(is_captured for is_captured in self.seen.values())

    def run_eagerly(self, tree, *, may_come_again):
        batch = tree.value
        self.seen.setdefault(batch, False)
        self.report.num_eager += 1
        self.clock.now += self.eager_ms
        return StepRun("eager", "plain", batch if may_come_again else None)

    def run(self, tree):
        batch = tree.value
        if batch not in self.seen or self.refuses_after == "capture":
            if batch in self.seen:
                self.report.refuse(Refusal("capture_failed", "train.py:1: no"))
            return self.run_eagerly(tree, may_come_again=True)
        is_new = not self.seen[batch]
        if is_new:
            self.seen[batch] = True
            self.report.num_graphs += 1
            self.clock.now += self.capture_ms
        self.report.num_replays += 1
        self.clock.now += self.captured_ms
        return StepRun("captured", "capture" if is_new else "replay", batch)

    def begin_epoch(self):
        self.num_epochs += 1

    def lift_refusal(self):
        self.report.lift_refusals()

    def drop_graphs(self):
        self.seen = dict.fromkeys(self.seen, False)
        self.num_dropped += 1


class Scripted:
    """A device whose host is always late: a step's time on it is the host's."""

    def __init__(self, *, ranks=None, **times):
        self.now = 0.0
        self.device = CpuDevice()
        self.device.now_ms = lambda: self.now
        self.meter = SimpleNamespace(is_idle=lambda: True)
        self.step = ScriptedStep(self, **times)
        self.auto = AutoSteps(
            self.step,
            device=self.device,
            meter=self.meter,
            host_waits=HostWaits(self.device),
            ranks=ranks,
        )
        self.prefetcher = SimpleNamespace(data_wait_ms=0.0)
        self.auto.begin_epoch(self.prefetcher, [])

    def run(self, batches, *, reads_every=1):
        """Take batches through the step; the meter reads after every so many of them."""
        ran, unread = [], []
        for batch in batches:
            start = self.now
            out, launch = self.auto.run(flatten(batch))
            ran.append(out)
            took = self.now - start
            unread.append((launch, took))
            if len(unread) == reads_every:
                for launch, took in unread:
                    self.auto.observe(launch, took, took)
                unread = []
        return ran


class Meeting:
    """Two ranks in two threads, which wait for each other wherever one of them asks."""

    def __init__(self):
        self.values = [None, None]
        self.barrier = threading.Barrier(2, timeout=30)

    def train(self, *how):
        """Return what each rank ran, and its `Scripted`."""
        ranks = [Scripted(ranks=MetRank(self, number), **how[number][0]) for number in (0, 1)]
        with ThreadPoolExecutor(2) as threads:
            ran = [
                threads.submit(one.run, ["a"] * 120, reads_every=reads_every)
                for one, (_, reads_every) in zip(ranks, how, strict=True)
            ]
            return [one.result() for one in ran], ranks


class MetRank:
    """One of the ranks of a `Meeting`."""

    world = 2

    def __init__(self, meeting, rank):
        self.meeting, self.rank = meeting, rank

    def agree(self, value):
        self.meeting.values[self.rank] = value
        self.meeting.barrier.wait()
        values = list(self.meeting.values)
        self.meeting.barrier.wait()
        return values


@pytest.mark.parametrize("captured_ms", [5.0, 45.0])
def test_ranks_do_as_the_slowest_of_them_at_the_same_steps(captured_ms):
    """They read their times at other steps, and for the faster one the other way is better."""
    slow = {"eager_ms": 40.0, "captured_ms": captured_ms}
    fast = {"eager_ms": 20.0, "captured_ms": 50.0 - captured_ms}
    ran, ranks = Meeting().train((fast, 1), (slow, 7))
    end = "captured" if captured_ms < slow["eager_ms"] else "eager"

    assert ran[0] == ran[1] == ["eager"] * 33 + ["captured"] * 30 + [end] * 57
    assert ranks[0].auto.diagnosis == ranks[1].auto.diagnosis
    assert "40.0 ms to launch a step" in ranks[0].auto.diagnosis.line


def test_ranks_that_measured_too_little_run_as_written():
    """One of them has read no time by then."""
    times = {"eager_ms": 40.0, "captured_ms": 5.0}
    ran, ranks = Meeting().train((times, 1), (times, 1_000))

    assert ran == [["eager"] * 120] * 2
    assert [one.auto.diagnosis.captures for one in ranks] == [False, False]


@pytest.mark.parametrize(("captured_ms", "num_epochs"), [(5.0, 1), (25.0, 0)])
def test_ranks_that_replay_look_for_lost_graphs_at_each_epoch(captured_ms, num_epochs):
    """Those that run as written have none."""
    scripted = Scripted(eager_ms=20.0, captured_ms=captured_ms)
    scripted.run(["a"] * 60)

    scripted.auto.begin_epoch(scripted.prefetcher, [])

    assert scripted.step.num_epochs == num_epochs


def test_each_phase_is_as_long_as_it_is_said_to_be():
    """Three to warm up, ten measured, then graphs: the step that captures is not counted."""
    scripted = Scripted(eager_ms=20.0, captured_ms=5.0)

    ran = scripted.run(["a"] * 40)

    assert ran == ["eager"] * 13 + ["captured"] * 27
    assert scripted.auto.diagnosis.line == (
        "auto: launch-bound: the host needs 20.0 ms to launch a step and the device 5.0 ms to run "
        "it; captured, 5.0 ms a step"
    )
    assert scripted.step.num_dropped == 0


def test_slower_graphs_are_dropped():
    """The trial is over after ten replays, and the step runs as written again."""
    scripted = Scripted(eager_ms=20.0, captured_ms=25.0)

    ran = scripted.run(["a"] * 60)

    assert {"eager"} == set(ran[30:])
    assert ran.count("captured") == 1 + autostep._WINDOW + 1
    assert scripted.step.num_dropped == 1


def test_a_step_that_captures_is_no_reading_of_a_graph():
    """With many shapes, the half second of each capture would make graphs seem slow."""
    scripted = Scripted(eager_ms=20.0, captured_ms=5.0)

    scripted.run([f"shape {n % 6}" for n in range(60)])

    assert scripted.auto.diagnosis.captures
    assert "captured, 5.0 ms a step" in scripted.auto.diagnosis.line


def test_a_refused_capture_ends_the_trial_at_once():
    """The refusal stands in the line, and the rest runs as written."""
    scripted = Scripted(eager_ms=20.0, captured_ms=5.0)
    scripted.step.refuses_after = "capture"

    ran = scripted.run(["a"] * 20)

    assert ran == ["eager"] * 20
    assert scripted.auto.diagnosis.line.endswith("cannot be captured: train.py:1: no")


def test_shapes_that_never_come_again_end_the_trial():
    """After two hundred steps nothing is captured, which is said."""
    scripted = Scripted(eager_ms=20.0, captured_ms=5.0)
    before = autostep._START + autostep._WINDOW + autostep._MAX_TRIAL

    scripted.run(range(before - 1))
    assert scripted.auto.diagnosis is None
    scripted.run([before])

    assert "shapes of batches hardly repeat" in scripted.auto.diagnosis.line


@pytest.mark.parametrize("num_changes", [1, 3, 9])
def test_measuring_again_has_an_end(num_changes):
    """Each change of the pace is measured, up to five times."""
    scripted = Scripted(eager_ms=20.0, captured_ms=25.0)
    scripted.run(["a"] * 260)
    found = [scripted.auto.diagnosis]
    for _ in range(num_changes):
        scripted.step.eager_ms *= 2.0
        scripted.step.captured_ms *= 2.0
        scripted.run(["a"] * 260)
        found.append(scripted.auto.diagnosis)

    assert min(num_changes, autostep._MAX_RECHECKS) + 1 == len(set(map(id, found)))


def test_measuring_again_forgets_what_may_be_gone_alone():
    """Waits are looked for again; a refusal that is final stays."""
    scripted = Scripted(eager_ms=20.0, captured_ms=25.0)
    scripted.run(["a"] * 260)
    final = Refusal("host_write", "it counts", is_of_call=True)
    for refusal in (host_read("train.py:1", is_final=False), final):
        scripted.step.report.refuse(refusal)
    scripted.step.eager_ms *= 2.0
    scripted.run(["a"] * 120)

    assert scripted.step.report.refusals == [final]


def test_an_even_pace_is_not_measured_again():
    """Two thousand steps of nearly the same time are one diagnosis."""
    scripted = Scripted(eager_ms=20.0, captured_ms=5.0)
    scripted.run(["a"] * 200)
    first = scripted.auto.diagnosis
    scripted.step.captured_ms = 6.0
    scripted.run(["a"] * 2000)

    assert first is scripted.auto.diagnosis


def test_waits_for_data_are_taken_step_by_step():
    """Of the prefetcher's total, each step has what was added since the one before."""
    scripted = Scripted(eager_ms=2.0, captured_ms=1.0)

    def batches():
        for _ in range(40):
            scripted.prefetcher.data_wait_ms += 18.0
            scripted.now += 18.0
            yield "a"

    for batch in batches():
        _, launch = scripted.auto.run(flatten(batch))
        scripted.auto.observe(launch, 2.0, 20.0)

    assert scripted.auto.diagnosis.bottleneck == "data"
    assert "the host waits 18.0 of 20.0 ms a step" in scripted.auto.diagnosis.line
    assert scripted.auto.diagnosis.workers_needed == 9


def test_epochs_of_one_batch_leave_nothing_to_measure_and_it_is_said():
    """No step follows another: after some, the diagnosis says so, and steps run as written."""
    scripted = Scripted(eager_ms=20.0, captured_ms=5.0)
    for _ in range(40):
        out, launch = scripted.auto.run(flatten("a"))
        assert out == "eager"
        scripted.auto.observe(launch, 20.0, None)

    assert scripted.auto.diagnosis.bottleneck == "none"
    assert "an epoch ended after each of 20 steps" in scripted.auto.diagnosis.line


def test_a_step_that_is_measured_is_watched_no_more(monkeypatch):
    """Only the first two runs of a kind of batch are watched, for what a capture has to know."""
    watched = []
    real = warm_ups.observed

    def counted(*args, sees_reads, **how):
        watched.append(sees_reads)
        return real(*args, sees_reads=sees_reads, **how)

    monkeypatch.setattr(warm_ups, "observed", counted)
    with SimulatedDevice(scheduler="asap") as device:
        captured = CapturedStep(
            Callee(lambda batch: batch + 1, device=device, host_waits=HostWaits(device))
        )
        for _ in range(6):
            captured.run_eagerly(flatten(device.device_buffer(4)))

    assert watched == [True, True]
    assert captured.report.num_eager == 6
