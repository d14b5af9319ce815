"""The plain records of a comparison of plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.epoch_record import EpochRecord
    from gapless.records.verification import Verification


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over several rounds.

    Attributes:
        median: of the rounds.
        min: the smallest.
        max: the largest.
        q1: a quarter of the rounds are below it.
        q3: a quarter are above it.
        rounds: every value, in the order in which it was measured.
    """

    median: float
    min: float
    max: float
    q1: float
    q3: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of the values of all rounds, at least one."""
        quarters = quantiles(values, method="inclusive") if len(values) > 1 else [values[0]] * 3
        return cls(
            median=median(values),
            min=min(values),
            max=max(values),
            q1=quarters[0],
            q3=quarters[2],
            rounds=tuple(values),
        )

    @property
    def relative(self) -> float:
        """Distance of the largest to the smallest, as a share of the median."""
        return (self.max - self.min) / self.median if self.median else 0.0

    def overlaps(self, other: Spread) -> bool:
        """Whether the middle halves have a value in common, so that one bad round decides nothing."""
        return self.q1 <= other.q3 and other.q1 <= self.q3


@dataclass(frozen=True, kw_only=True)
class Round:
    """What some steps of a workload did that were taken one after the other.

    Attributes:
        total: the record of all passes over the batches together, without `start_ms`.
        passes: number of batches in each pass.
        start_ms: time in which the loader started workers, until the first batch of each pass.
        elapsed_ms: all of the round, with starting and ending workers.
        cpu_seconds: processor time of this process and its loader workers in `elapsed_ms`.
        num_graphs: number of graphs captured in this round.
    """

    total: EpochRecord
    passes: tuple[int, ...]
    start_ms: float
    elapsed_ms: float
    cpu_seconds: float
    num_graphs: int

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.total.num_batches


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """What one plan did with the workload; None stands for what cannot be measured there.

    Attributes:
        plan: its name.
        identical: whether losses and tensors equal those of the reference, bit by bit (or within
            the tolerance that was asked for); None if that was not looked at.
        ms_per_step: wall time of a step, from the rounds' own first batch to their last loss.
        steps_per_epoch: mean; every epoch ends with a wait for its losses.
        throughput: what the steps' weights count, a second; steps if they count nothing.
        waits_per_step: host waits, and by reason below.
        waited_ms_per_step: time the host was blocked in them.
        waits_by_reason: `{reason: {"count": ..., "ms": ...}}`, each a step.
        data_wait_ms_per_step: time the host waited for the loader.
        launch_ms_per_step: time the host spent in steps, queueing them (on a CPU: doing them).
        host_cpu_percent: processor time of this process and its loader workers over the time of
            all rounds together; 100 is one core. None if they are too short to tell.
        busy_ms_per_step: time in which the device ran kernels, by a trace of them.
        overlap_share: share of kernel time in which another kernel ran as well, by that trace.
        kernels_per_step: number of kernels, by that trace.
        gap_share: 1 - busy / wall, 0 to 1: idle time inside steps and between them.
        meter_busy_ms_per_step: time from the first to the last work of a step, by event pairs.
        meter_gap_share: idle time between steps alone, by event pairs.
        nvml_percent: device utilisation as the driver reports it, what nvidia-smi shows.
        peak_memory_bytes: most device memory that tensors of this plan held, from before it was
            built to its last round.
        held_memory_bytes: device memory that torch took for this plan: tensors, what is cached
            for the next step, and the memory of captured graphs.
        capture_seconds: time spent capturing.
        compile_seconds: time spent compiling the code that all plans share.
        capture: what was captured, `CaptureReport` as a dictionary.
        diagnosis: what a plan that measures by itself found out; None for others.
        late_captures: captures that fell into timed rounds.
        settings: the plan's fields.
    """

    plan: str
    identical: bool | None
    ms_per_step: Spread
    steps_per_epoch: float
    throughput: float
    waits_per_step: float
    waited_ms_per_step: float
    waits_by_reason: dict[str, dict[str, float]]
    data_wait_ms_per_step: float
    launch_ms_per_step: float
    host_cpu_percent: float | None
    busy_ms_per_step: float | None = None
    overlap_share: float | None = None
    kernels_per_step: float | None = None
    gap_share: float | None = None
    meter_busy_ms_per_step: float | None = None
    meter_gap_share: float | None = None
    nvml_percent: float | None = None
    peak_memory_bytes: int | None = None
    held_memory_bytes: int | None = None
    capture_seconds: float | None = None
    compile_seconds: float | None = None
    capture: dict[str, Any] | None = None
    diagnosis: str | None = None
    late_captures: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def busy_share(self) -> float | None:
        """Share of wall time in which the device ran kernels, 0 to 1."""
        return None if self.gap_share is None else 1.0 - self.gap_share


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Which plan to use for this workload, and why.

    Attributes:
        plan: its name; None if no plan can be recommended.
        reasons: one line each.
        scores: weighted, 0 to 1, of every plan that can be recommended, best first.
        weights: of the criteria, summing to 1.
        excluded: plans that cannot be recommended, with the reason.
    """

    plan: str | None
    reasons: tuple[str, ...]
    scores: dict[str, float]
    weights: dict[str, float]
    excluded: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """Everything that a comparison found.

    Attributes:
        workload: what was trained.
        device: name of the device, such as `cuda:0`.
        hardware: what it is.
        is_accelerator: whether the device works beside the host.
        torch: version.
        commit: of the source tree; None outside one.
        unit: what throughput counts, such as "target tokens"; "steps" if nothing else.
        settings: what was asked for.
        rows: one a plan, in the order that was asked for.
        recommendation: the plan to use.
        notes: what a reader has to know about these figures.
        reproducible: whether the reference equals itself; None if that is not known.
        in_turns: whether each round took every plan; otherwise one plan was timed after the other.
        verification: what the comparison of bits found; None if bits were not compared.
    """

    workload: str
    device: str
    hardware: str
    is_accelerator: bool
    torch: str
    commit: str | None
    unit: str
    settings: dict[str, Any]
    rows: tuple[PlanRow, ...]
    recommendation: Recommendation
    notes: tuple[str, ...] = ()
    reproducible: bool | None = None
    in_turns: bool = True
    verification: Verification | None = None

    @property
    def holds(self) -> bool:
        """Whether a plan can be recommended, and none was excluded because it computes otherwise."""
        found = self.recommendation
        return found.plan is not None and not found.excluded
