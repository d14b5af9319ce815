"""Plan `auto`: time a step eager and as a graph, and run it as the faster of the two.

Both give the same bits, so a run may change between them after any step. The device's times come from
the events of the gap meter, which are read late: measuring adds no wait, and steps go on as before
until enough times were read.

    start      kernels are loaded and chosen; nothing is measured
    measure    eager steps: what is the bottleneck?
    trial      steps as graphs: are they faster?
    settled    the faster of both; measured again when the pace changes, a few times at most

Ranks read their times after different steps. So several ranks end a phase at a step that counts alone
decide on: they wait for the device there, and decide together. The slowest rank counts.
"""

from __future__ import annotations

from contextlib import nullcontext
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from gapless.device.instruments.processor import num_cores
from gapless.graphs.refusal import host_read
from gapless.pipeline.loaders import num_workers
from gapless.pipeline.step import call_host_part
from gapless.ranks import CollectiveDecision, SingleRank
from gapless.records.bottleneck import (
    Diagnosis,
    Launch,
    Pace,
    Readings,
    Sample,
    Trial,
    diagnose,
    nothing_measured,
    trial_of,
)


if TYPE_CHECKING:
    from gapless.device.base import Device
    from gapless.graphs.captured_step import CapturedStep
    from gapless.graphs.step_run import StepRun
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.meter import GapMeter
    from gapless.pipeline.prefetch import Pass, Prefetcher
    from gapless.pipeline.tree.flatten import Tree
    from gapless.ranks import Ranks


# Steps before the first measurement.
_START = 3

# Eager steps and replays that are measured before the decision, each.
_WINDOW = 10

# After this many steps that follow no other, there is nothing to measure.
_MAX_UNMEASURED = 20

# A trial ends after this many steps, also if hardly any shape of batch came twice.
_MAX_TRIAL = 200

# The pace of this many steps is compared with the pace of the first ones after a decision.
_SETTLED_WINDOW = 100

_MAX_RECHECKS = 5

# Steps of several ranks in a phase, or from one question whether a trial is over to the next.
_STEPS_OF_RANKS = 30

_Phase = Literal["start", "measure", "trial", "settled"]


class AutoSteps:
    """Choose how a step runs, from measurements of its first batches.

    Args:
        captured: the step, which can run eager or as a replay.
        device: where it runs.
        meter: of the same steps.
        ranks: that run the same steps; None: this process trains alone.
        host_waits: the door for waits for other ranks, and for the device before them
            ("agreement").

    Attributes:
        captured: the step, as given.
        diagnosis: the last one made, None before the first.
    """

    def __init__(
        self,
        captured: CapturedStep,
        *,
        device: Device,
        meter: GapMeter[Launch],
        host_waits: HostWaits,
        ranks: Ranks | None = None,
    ) -> None:
        self.captured = captured
        ranks = SingleRank() if ranks is None else ranks
        self._is_alone = ranks.world == 1
        self._decision = CollectiveDecision(ranks, host_waits.blocking)
        self._host_waits = host_waits
        self.diagnosis: Diagnosis | None = None
        self._device = device
        self._meter = meter
        self._prefetcher: Prefetcher[Any] | None = None
        self._num_workers: int | None = None
        self._data_wait_ms = 0.0
        self._phase: _Phase = "start"
        self._round = 0
        self._num_launched = 0
        self._num_unmeasured = 0
        self._eager: list[Sample] = []
        self._replays: list[Sample] = []
        self._recent: list[Sample] = []
        self._pace: Pace | None = None
        self._num_rechecks = 0

    def begin_epoch(self, prefetcher: Prefetcher[Any], batches: object) -> None:
        """Take data waits from this prefetcher from here on, and workers from its loader.

        Sync: With several ranks, may block the host until all are here ("agreement").
        """
        if self._captures():
            self.captured.begin_epoch()
        self._prefetcher = prefetcher
        self._data_wait_ms = prefetcher.data_wait_ms
        self._num_workers = num_workers(batches)

    def start_pass(self, prefetcher: Prefetcher[Any]) -> Pass[Tree]:
        """Start a pass over batches with their tensors listed, by which a graph is found."""
        return prefetcher.trees()

    def run(self, batch: Tree) -> tuple[Any, Launch]:
        """Train on a batch; return what the step returned, and how it was launched.

        Sync: Does not block the host, but where a graph is captured ("capture"), and where the
            step does so itself.
        """
        assert self._prefetcher is not None
        sites = list[str]()
        data_wait_ms = self._prefetcher.data_wait_ms - self._data_wait_ms
        self._data_wait_ms = self._prefetcher.data_wait_ms
        found_idle = self._meter.is_idle()
        start = self._device.now_ms()
        done = self._run(batch, sites)
        launch = Launch(
            round=self._round,
            ran_as=done.way,
            key=done.kind,
            host_ms=self._device.now_ms() - start,
            data_wait_ms=data_wait_ms,
            found_idle=found_idle,
            waits=tuple(sites),
        )
        self._after_launch()
        return done.out, launch

    def _run(self, tree: Tree, sites: list[str]) -> StepRun:
        call_host_part(self.captured.step, tree.value)
        if self._captures():
            return self.captured.run(tree)
        is_watched = self._phase == "measure" and self._num_launched < _WINDOW
        with self._device.watch_reads(sites.append) if is_watched else nullcontext():
            return self.captured.run_eagerly(tree, may_come_again=self._phase != "settled")

    def _captures(self) -> bool:
        if self._phase == "settled":
            return self.diagnosis is not None and self.diagnosis.captures
        return self._phase == "trial"

    def _after_launch(self) -> None:
        self._num_launched += 1
        if self._phase == "start" and self._num_launched >= _START:
            self._enter("measure")
        elif not self._is_alone:
            self._after_launch_of_all()
        elif self._phase == "trial" and self._is_trial_over():
            self._decide()

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        # Steps that were launched before are read later, and are not of this phase.
        self._round += 1
        self._num_launched = 0

    def observe(self, launch: Launch, busy_ms: float, period_ms: float | None) -> None:
        """Take in the device's times of a step that `run` launched.

        Sync: Does not block the host.
        """
        if launch.round != self._round or launch.ran_as == "capture":
            return
        if period_ms is None:
            self._note_unmeasured()
            return
        sample = Sample(launch=launch, busy_ms=busy_ms, period_ms=period_ms)
        if self._phase == "measure":
            self._eager.append(sample)
            if self._is_alone and len(self._eager) >= _WINDOW:
                self._end_measurement()
        elif self._phase == "trial" and launch.ran_as == "replay":
            self._replays.append(sample)
        elif self._phase == "settled" and self._is_alone:
            self._watch_pace(sample)

    def _note_unmeasured(self) -> None:
        self._num_unmeasured += 1
        if (
            self._is_alone
            and self._phase == "measure"
            and not self._eager
            and self._num_unmeasured >= _MAX_UNMEASURED
        ):
            self.diagnosis = nothing_measured(self._num_unmeasured)
            self._enter("settled")

    def _end_measurement(self) -> None:
        waits = [site for sample in self._eager for site in sample.launch.waits]
        if waits and self.captured.report.refusal is None:
            # Known without an attempt, which would fail there.
            self.captured.report.refuse(host_read(waits[0], is_final=False))
        if self._decision.any_rank(bool(waits) or self._cannot_capture()):
            self._decide()
        else:
            self._enter("trial")

    def _cannot_capture(self) -> bool:
        return self.captured.report.refusal is not None and not self.captured.has_graphs

    def _is_trial_over(self) -> bool:
        return (
            len(self._replays) >= _WINDOW
            or self._num_launched >= _MAX_TRIAL
            or self._cannot_capture()
        )

    def _decide(self) -> None:
        readings = Readings.of(self._eager, num_workers=self._num_workers, num_cores=num_cores())
        trial = trial_of(self._eager, self._replays)
        if trial.captured_ms is None:
            refusal = self.captured.report.refusal
            trial = Trial(refusal=None if refusal is None else refusal.text)
        self.diagnosis = self._of_the_slowest(diagnose(readings, trial))
        if not self.diagnosis.captures:
            self.captured.drop_graphs()
        self._eager, self._replays, self._recent = [], [], []
        self._pace = None
        self._enter("settled")

    def _watch_pace(self, sample: Sample) -> None:
        self._recent.append(sample)
        if len(self._recent) < _SETTLED_WINDOW:
            return
        pace, self._recent = Pace.of(self._recent), []
        if self._pace is None:
            self._pace = pace
        elif pace.has_changed(self._pace) and self._num_rechecks < _MAX_RECHECKS:
            self._num_rechecks += 1
            # The waits that a measurement found are looked for again.
            self.captured.lift_refusal()
            self._enter("measure")

    # --- several ranks ---

    def _after_launch_of_all(self) -> None:
        """End a phase where all ranks do.

        Sync: Blocks the host every so many steps until the phases are over ("agreement").
        """
        if self._phase == "settled":
            return
        since = self._num_launched % _STEPS_OF_RANKS
        if since == _STEPS_OF_RANKS - 1:
            # The times of the steps so far are read with the next one.
            self._host_waits.wait_stream(self._device.current_stream(), reason="agreement")
        elif not since and self._phase == "measure":
            self._end_measurement_of_all()
        elif not since and not self._decision.any_rank(not self._is_trial_over()):
            self._decide()

    def _end_measurement_of_all(self) -> None:
        if self._decision.any_rank(not self._eager):
            self.diagnosis = nothing_measured(self._num_unmeasured)
            self._enter("settled")
        else:
            self._end_measurement()

    def _of_the_slowest(self, diagnosis: Diagnosis) -> Diagnosis:
        pace = Pace.of(self._eager).step_ms if self._eager else 0.0
        return max(self._decision.values((pace, diagnosis)), key=itemgetter(0))[1]
