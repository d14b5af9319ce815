"""One plan of a comparison, with its own loop and workload, and the rounds it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gapless.compare.plan_timeline import plan_timeline
from gapless.compare.report_row import row_of_rounds, with_device_times
from gapless.compare.take_steps import skip_round, take_round
from gapless.device.instruments.nvml import Sampler
from gapless.device.numerics import seed_generators
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.loaders import end_kept_workers


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.compare.settings import RunSettings
    from gapless.compare.workload import PlanWorkloadFunction, Workload
    from gapless.device.base import UtilisationMeter
    from gapless.device.instruments.kernel_trace import KernelTrace
    from gapless.plans import Plan
    from gapless.records.comparison import PlanRow, Round
    from gapless.records.timeline import Timeline


# After this many warm-up steps `auto` is timed although it has not decided. It needs 200 steps to
# try graphs, and waits for readings of the device.
_MOST_WARMUP_STEPS = 900

# A launch-bound step is a thousand kernels and more, at some hundred bytes each.
_MAX_TRACED_STEPS = 50

# Twice the interval at which plans wait or read losses.
_TIMELINE_STEPS = 20


class TimedPlan:
    """A plan with its own loop, model and optimizer, built from the seed.

    Several of them live side by side, so that their rounds can take turns.

    Args:
        plan: how its loop moves work.
        make: builds the workload.
        settings: where it runs, and from which seed it is built.
        steps: number of steps of a round.

    Attributes:
        rounds: the timed rounds so far.
        peak_memory_bytes: most memory that its tensors held so far, what others hold left out.
        held_memory_bytes: memory that torch took from the device for it, after the warm-up rounds.
        grown_memory_bytes: by how much the memory that its tensors hold grew in the timed rounds.
        num_warmup_rounds: warm-up rounds that ran, or whose batches were skipped.
    """

    def __init__(
        self, plan: Plan, *, make: PlanWorkloadFunction, settings: RunSettings, steps: int
    ) -> None:
        self.plan = plan
        self._seed = settings.seed
        self._device = settings.device
        self._steps = steps
        self._make = make
        self._loop = TrainLoop(plan=plan, device=settings.device)
        self._workload: Workload | None = None
        self._kept_bytes = 0
        self.rounds: list[Round] = []
        self.peak_memory_bytes = 0
        self.held_memory_bytes = 0
        self.grown_memory_bytes = 0
        self.num_warmup_rounds = 0

    @property
    def workload(self) -> Workload:
        """The workload, once it is built."""
        assert self._workload is not None
        return self._workload

    @property
    def capture(self) -> dict[str, Any] | None:
        """What was captured; None if the plan captures nothing here."""
        return None if self._loop.capture_report is None else self._loop.capture_report.as_dict()

    @property
    def diagnosis(self) -> str | None:
        """What plan `auto` found out; None for others."""
        found = self._loop.diagnosis
        return None if found is None else found.line

    @property
    def is_undecided(self) -> bool:
        """Whether the plan is `auto` and has not decided yet how its steps run."""
        return self.plan.graphs == "auto" and self._loop.diagnosis is None

    def prepare(self, *, rounds: int, on_work: Callable[[], None] = lambda: None) -> None:
        """Build the workload, capture what the plan captures ahead, and take warm-up rounds.

        Plan `auto` takes more of them until it has decided, up to a limit: the times before are of both
        eager steps and replays, not of the plan.

        Args:
            rounds: least number of warm-up rounds.
            on_work: called after each part of it that may take seconds.

        Sync: Blocks the host.
        """
        device = self._device
        device.release_cached_memory()
        held_before = device.reserved_memory_bytes()
        device.reset_peak_memory()
        kept_before = device.peak_memory_bytes()
        self._build(on_work)
        while self.num_warmup_rounds < rounds or self._needs_more():
            self._take()
            self.num_warmup_rounds += 1
            on_work()
        self.peak_memory_bytes = device.peak_memory_bytes() - kept_before
        # Right after a reset the peak is the memory that is held now.
        device.reset_peak_memory()
        self._kept_bytes = device.peak_memory_bytes() - kept_before
        self.held_memory_bytes = device.reserved_memory_bytes() - held_before

    def _needs_more(self) -> bool:
        return self.is_undecided and self.num_warmup_rounds * self._steps < _MOST_WARMUP_STEPS

    def catch_up(self, num_warmup_rounds: int) -> None:
        """Skip the batches of the warm-up rounds that another plan took beyond this one's.

        A loader that shuffles then gives both plans the same batches in the timed rounds. No step runs:
        it would cost time, and this plan is warm.

        Sync: Does not block the host on the device; waits for the loader.
        """
        for _ in range(num_warmup_rounds - self.num_warmup_rounds):
            skip_round(self.workload.batches, steps=self._steps)
        self.num_warmup_rounds = max(self.num_warmup_rounds, num_warmup_rounds)

    def _build(self, on_work: Callable[[], None]) -> None:
        seed_generators(self._seed)
        with self._loop.on_compute_stream():
            self._workload = self._make(self._device.torch_device, self.plan)
        on_work()
        first = self._first_batches()
        if self._loop.captures_ahead:
            self._loop.capture_ahead(
                first,
                self.workload.step,
                model=self.workload.model,
                optimizer=self.workload.optimizer,
                is_measured_alone=True,
                on_batch=lambda done: on_work(),
            )
        else:
            # As many passes as under a plan that captures, so that a loader that shuffles gives
            # all plans the same order in each round.
            for _ in first:
                pass

    def _first_batches(self) -> Iterator[Any]:
        """Yield the batches that a round begins with; a generator, which the loop closes."""
        yield from islice(self.workload.batches, self._steps)

    def take_round(self) -> None:
        """Take the steps of one timed round; it is added to `rounds`.

        Sync: Blocks the host as the plan says.
        """
        device = self._device
        device.reset_peak_memory()
        held = device.peak_memory_bytes()
        self.rounds.append(self._take())
        peak = device.peak_memory_bytes() - (held - self._kept_bytes)
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak)
        device.reset_peak_memory()
        self.grown_memory_bytes += device.peak_memory_bytes() - held

    def row(self) -> PlanRow:
        """Return what the rounds of this plan did, without what is measured apart from them.

        Sync: Does not block the host.
        """
        row = row_of_rounds(self.plan, self.rounds, unit=self.workload.unit)
        row = replace(row, diagnosis=self.diagnosis)
        if not self._device.is_accelerator:
            return row
        capture = self.capture
        return replace(
            with_device_times(row, self.rounds),
            peak_memory_bytes=self.peak_memory_bytes,
            held_memory_bytes=self.held_memory_bytes,
            grown_memory_bytes=self.grown_memory_bytes,
            capture=capture,
            capture_seconds=None if capture is None else capture["seconds"],
        )

    def utilisation(self, nvml: UtilisationMeter, *, seconds: float) -> float | None:
        """Return the mean device utilisation while rounds run for some time, in percent.

        The first second is left out, because the driver's figure still covers what ran before.

        Sync: Blocks the host as the plan says.
        """
        until = perf_counter() + seconds
        with Sampler(nvml.utilisation) as sampler:
            while perf_counter() < until:
                self._take()
        return sampler.mean

    def trace(self) -> tuple[KernelTrace | None, int]:
        """Trace the kernels of one round, or of its first steps if it is long.

        Returns:
            The trace, None if no kernel was seen; and the number of steps.

        Sync: Blocks the host.
        """
        steps = min(self._steps, _MAX_TRACED_STEPS)
        return self._device.trace_kernels(lambda: self._take(steps)), steps

    def timeline(self) -> Timeline:
        """Take a few steps and return what host and streams did meanwhile.

        Sync: Blocks the host.
        """
        steps = min(self._steps, _TIMELINE_STEPS)
        with self._loop.host_waits.logged() as log:
            trace = self._device.trace_kernels(lambda: self._take(steps))
            if not log.spans:  # nothing was traced, so nothing was called
                self._take(steps)
        return plan_timeline(self.plan.name, log.spans, () if trace is None else trace.lanes)

    def close(self) -> None:
        """Release the workload, the loop and their memory. The plan cannot be used afterwards.

        Sync: Does not block the host on the device; waits for workers that a loader keeps to end.
        """
        self._loop.close()
        if self._workload is not None:
            end_kept_workers(self._workload.batches)
        # They hold graphs and rings, and whoever holds an error may hold this object.
        del self._loop, self._workload

    def _take(self, steps: int | None = None) -> Round:
        workload = self.workload
        return take_round(self._loop, workload.batches, workload.step, steps=steps or self._steps)
