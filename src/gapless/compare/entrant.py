"""One plan of a comparison: a loop and a workload of its own, and the rounds that they take."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gapless.compare.process_state import seed_generators
from gapless.compare.rounds import pass_over, take_steps
from gapless.device.instruments.clocks import cpu_seconds
from gapless.device.instruments.nvml import Sampler
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.loaders import end_kept_workers
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.compare.rounds import StepsTaken
    from gapless.compare.settings import RunSettings
    from gapless.compare.workload import PlanWorkloadFunction, Workload
    from gapless.device.base import UtilisationMeter
    from gapless.device.instruments.kernel_trace import KernelTrace
    from gapless.plans import Plan


# Steps of warming up after which a plan that measures by itself is timed although it has not
# decided. Trying graphs takes it 200 steps, and what it waits for are readings of the device.
_MOST_WARM_UP_STEPS = 900

# A launch-bound step is a thousand kernels and more, at some hundred bytes each.
_MAX_TRACED_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round did.

    Attributes:
        steps: that were taken.
        epochs: passes over the batches that they took.
        wall_ms: from the first batch asked for to the last loss read, without `start_ms`.
        start_ms: time in which the loader started workers, until the first batch was there.
        elapsed_ms: all of the round, with starting and ending workers.
        weight: sum of the steps' weights.
        waits: host waits by reason.
        data_wait_ms: time the host waited for the loader.
        launch_ms: time the host spent in steps.
        busy_ms: time from the first to the last work of each step, summed.
        gap_ms: device time between steps; None on a CPU.
        cpu_seconds: processor time of this process and its loader workers in `elapsed_ms`.
        num_graphs: shapes captured in this round.
    """

    steps: int
    epochs: int
    wall_ms: float
    start_ms: float
    elapsed_ms: float
    weight: float
    waits: WaitStats
    data_wait_ms: float
    launch_ms: float
    busy_ms: float
    gap_ms: float | None
    cpu_seconds: float
    num_graphs: int


class Entrant:
    """A plan with a loop, a model and an optimizer of its own, built from the seed.

    Several live side by side, so that their rounds can take turns.

    Args:
        plan: how its loop moves work.
        make: builds the workload.
        settings: where it runs, and from which seed it is built.
        steps: number of steps of a round.

    Attributes:
        peak_memory_bytes: most memory that its tensors held so far, what others hold left out.
        held_memory_bytes: memory that torch took from the device for it, after the warm-up.
        num_warm_ups: rounds that it took for warming up, or only went through.
        unit: what the weights of its steps count.
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
        self.peak_memory_bytes = 0
        self.held_memory_bytes = 0
        self.num_warm_ups = 0

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
        """What a plan that measures by itself found out; None for others."""
        found = self._loop.diagnosis
        return None if found is None else found.line

    @property
    def is_undecided(self) -> bool:
        """Whether the plan measures by itself, and has not chosen yet how its steps run."""
        return self.plan.graphs == "auto" and self._loop.diagnosis is None

    def prepare(self, *, rounds: int) -> None:
        """Build the workload, capture what the plan captures, and take rounds for warming up.

        A plan that measures by itself takes more of them until it has decided, up to a limit:
        what it tries until then is no measure of it.

        Sync: Blocks the host.
        """
        device = self._device
        device.release_cached_memory()
        held_before = device.reserved_memory_bytes()
        device.reset_peak_memory()
        kept_before = device.peak_memory_bytes()
        self._build()
        while self.num_warm_ups < rounds or self._needs_more():
            self._take()
            self.num_warm_ups += 1
        self.peak_memory_bytes = device.peak_memory_bytes() - kept_before
        # Right after a reset the peak is what is held now.
        device.reset_peak_memory()
        self._kept_bytes = device.peak_memory_bytes() - kept_before
        self.held_memory_bytes = device.reserved_memory_bytes() - held_before

    def _needs_more(self) -> bool:
        return self.is_undecided and self.num_warm_ups * self._steps < _MOST_WARM_UP_STEPS

    def catch_up(self, num_warm_ups: int) -> None:
        """Go through the batches of warm-up rounds that another plan took beyond this one's.

        A loader that shuffles then gives both the same batches in the rounds that count. No step
        is taken, which would take longer and change nothing: this plan is warm.

        Sync: Does not block the host on the device; waits for the loader.
        """
        for _ in range(num_warm_ups - self.num_warm_ups):
            pass_over(self.workload.batches, steps=self._steps)
        self.num_warm_ups = max(self.num_warm_ups, num_warm_ups)

    def _build(self) -> None:
        seed_generators(self._seed)
        with self._loop.on_compute_stream():
            self._workload = self._make(self._device.torch_device, self.plan)
        first = self._first_batches()
        if self._loop.captures_ahead:
            self._loop.capture_ahead(
                first,
                self.workload.step,
                model=self.workload.model,
                optimizer=self.workload.optimizer,
            )
        else:
            # Every plan goes through the batches as often, so that a loader that shuffles gives
            # all of them the same order in each round.
            for _ in first:
                pass

    def _first_batches(self) -> Iterator[Any]:
        """Yield the batches that a round begins with; a generator, which the loop closes."""
        yield from islice(self.workload.batches, self._steps)

    def take_round(self) -> Round:
        """Take the steps of one round, and say what they did.

        Sync: Blocks the host as the plan says.
        """
        device = self._device
        device.reset_peak_memory()
        held_by_others = device.peak_memory_bytes() - self._kept_bytes
        graphs, start, cpu = self._num_graphs(), perf_counter(), cpu_seconds()
        taken = self._take()
        found = _sum_of(
            taken,
            cpu_seconds=cpu_seconds() - cpu,
            elapsed_ms=(perf_counter() - start) * 1000.0,
            num_graphs=self._num_graphs() - graphs,
        )
        peak = device.peak_memory_bytes() - held_by_others
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak)
        return found

    def utilisation(self, nvml: UtilisationMeter, *, seconds: float) -> float | None:
        """Return the mean device utilisation of rounds that take so long, in percent.

        The first second is left out: the driver's figure still tells of what ran before.

        Sync: Blocks the host as the plan says.
        """
        until = perf_counter() + seconds
        with Sampler(nvml.utilisation) as sampler:
            while perf_counter() < until:
                self._take()
        return sampler.mean

    def trace(self) -> tuple[KernelTrace | None, int]:
        """Trace the kernels of a round, as far as a trace should go.

        Returns:
            What was found, and the number of steps.

        Sync: Blocks the host.
        """
        steps = min(self._steps, _MAX_TRACED_STEPS)
        return self._device.trace_kernels(lambda: self._take(steps)), steps

    def close(self) -> None:
        """Let go of the workload, its loop and their memory; nothing can be asked afterwards.

        Sync: Does not block the host on the device; waits for workers that a loader keeps to end.
        """
        self._loop.close()
        if self._workload is not None:
            end_kept_workers(self._workload.batches)
        # Graphs and rings are the loop's, and whoever holds an error may hold this.
        del self._loop, self._workload

    def _take(self, steps: int | None = None) -> StepsTaken:
        workload = self.workload
        return take_steps(self._loop, workload.batches, workload.step, steps=steps or self._steps)

    def _num_graphs(self) -> int:
        return 0 if self._loop.capture_report is None else self._loop.capture_report.num_graphs


def _sum_of(taken: StepsTaken, *, cpu_seconds: float, elapsed_ms: float, num_graphs: int) -> Round:
    results, waits = taken.epochs, WaitStats()
    for result in results:
        waits.merge(result.waits)
    gaps = [result.gap_ms for result in results if result.gap_ms is not None]
    return Round(
        steps=sum(result.num_batches for result in results),
        epochs=len(results),
        wall_ms=sum(result.wall_ms for result in results),
        start_ms=taken.start_ms,
        elapsed_ms=elapsed_ms,
        weight=sum(result.weight for result in results),
        waits=waits,
        data_wait_ms=sum(result.data_wait_ms for result in results),
        launch_ms=sum(result.launch_ms for result in results),
        busy_ms=sum(result.busy_ms for result in results),
        gap_ms=sum(gaps) if gaps else None,
        cpu_seconds=cpu_seconds,
        num_graphs=num_graphs,
    )
