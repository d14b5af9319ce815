"""The plain records of a comparison of plans: rounds, rows, a recommendation, the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.epoch_record import EpochRecord
    from gapless.records.timeline import Timeline
    from gapless.records.verification import Verification


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over several rounds.

    Attributes:
        median: median over the rounds.
        min: smallest value.
        max: largest value.
        q1: first quartile.
        q3: third quartile.
        rounds: value of every round, in the order of measurement.
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
        """Distance from the smallest to the largest value, as a share of the median."""
        return (self.max - self.min) / self.median if self.median else 0.0

    def overlaps(self, other: Spread) -> bool:
        """Whether the ranges from q1 to q3 overlap; one bad round decides nothing."""
        return self.q1 <= other.q3 and other.q1 <= self.q3


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a number of consecutive steps of a workload did.

    Attributes:
        total: record of all passes over the batches together, without `start_ms`.
        passes: number of batches in each pass.
        start_ms: time until the first batch of each pass, if the loader started workers for it.
        elapsed_ms: time of the whole round, starting and ending workers included.
        cpu_seconds: processor time of this process and its loader workers in `elapsed_ms`.
        own_cpu_seconds: of this process alone.
        num_graphs: number of graphs captured in this round.
    """

    total: EpochRecord
    passes: tuple[int, ...]
    start_ms: float
    elapsed_ms: float
    cpu_seconds: float
    own_cpu_seconds: float
    num_graphs: int

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.total.num_batches


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """What one plan did with the workload; None is a figure that cannot be measured there.

    Attributes:
        plan: name of the plan.
        identical: whether losses and tensors equal those of the reference, bit by bit or within
            the tolerance; None if that was not compared or is not known.
        ms_per_step: wall time of a step, from a round's first batch to its last loss.
        steps_per_epoch: mean number of steps in a pass over the batches, which ends with a wait.
        throughput: what the steps' weights count, a second; steps if they count nothing.
        waits_per_step: host waits a step.
        waited_ms_per_step: time a step in which the host was blocked by them.
        waits_by_reason: `{reason: {"count": ..., "ms": ...}}`, both a step.
        data_wait_ms_per_step: time the host waited for the loader.
        launch_ms_per_step: time the host spent in steps, queueing them (on a CPU: doing them).
        host_cpu_percent: processor time of this process and its loader workers over the time of
            all rounds together; 100 is one core. None if the rounds are too short to tell.
        own_cpu_percent: the same of this process alone, without loader workers.
        busy_ms_per_step: time in which the device ran kernels, from a trace.
        overlap_share: share of kernel time in which another kernel ran as well, from the trace.
        stream_shares: share of the kernel time on each stream that ran kernels, largest first, from
            the trace.
        kernels_per_step: number of kernels, from the trace.
        gap_share: 1 - busy / wall, 0 to 1: idle time inside steps and between them.
        meter_busy_ms_per_step: time from the first to the last work of a step, from event pairs.
        meter_gap_share: idle time between steps alone, from event pairs.
        nvml_percent: device utilisation as the driver reports it and nvidia-smi shows it.
        peak_memory_bytes: most device memory that tensors of this plan held, from before it was
            built to its last round.
        held_memory_bytes: device memory that torch took for this plan: tensors, blocks cached for
            the next step, and the memory of captured graphs.
        grown_memory_bytes: by how much the memory that its tensors hold grew over the timed rounds.
        capture_seconds: time spent capturing.
        compile_seconds: time spent compiling the code that all plans share.
        capture: what was captured, `CaptureReport` as a dictionary.
        diagnosis: what plan `auto` found out; None for other plans.
        late_captures: number of captures within timed rounds.
        settings: the plan's fields, under the names that they have in files.
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
    own_cpu_percent: float | None = None
    busy_ms_per_step: float | None = None
    overlap_share: float | None = None
    stream_shares: tuple[float, ...] | None = None
    kernels_per_step: float | None = None
    gap_share: float | None = None
    meter_busy_ms_per_step: float | None = None
    meter_gap_share: float | None = None
    nvml_percent: float | None = None
    peak_memory_bytes: int | None = None
    held_memory_bytes: int | None = None
    grown_memory_bytes: int | None = None
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
        plan: name of the plan; None if no plan can be recommended.
        reasons: one line each.
        excluded: plans that cannot be recommended, with the reason.
    """

    plan: str | None
    reasons: tuple[str, ...]
    excluded: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """Everything that a comparison found.

    Attributes:
        workload: name of the workload.
        device: name of the device, such as `cuda:0`.
        hardware: name of the hardware, such as "NVIDIA H200".
        is_accelerator: whether the device works beside the host.
        torch: version of torch.
        commit: commit of gapless's source tree; None outside one.
        unit: what throughput counts, such as "target tokens"; "steps" if weights count nothing.
        settings: what was asked for.
        rows: one for each plan, in the order that was asked for.
        recommendation: the plan to use.
        notes: what a reader has to know about these figures.
        reproducible: whether a plain loop equals itself; None if that is not known.
        in_turns: whether each round took every plan; otherwise each plan was timed by itself.
        verification: what the comparison of bits found; None if bits were not compared.
        timelines: of a few steps of each plan, in the order of the rows; empty if none were recorded.
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
    timelines: tuple[Timeline, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether a plan can be recommended, and no plan computes something else."""
        found = self.recommendation
        return found.plan is not None and not found.excluded
