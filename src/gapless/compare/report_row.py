"""From the rounds of a plan to its row in the report."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from gapless.records.comparison import PlanRow, Spread
from gapless.records.epoch_record import gap_share


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.instruments.kernel_trace import KernelTrace
    from gapless.plans import Plan
    from gapless.records.comparison import Round


# Where processor time is counted in ticks of 10 ms, one more or less is five percent of this.
_LEAST_CPU_MS = 200.0


def row_of_rounds(plan: Plan, rounds: Sequence[Round], *, unit: str) -> PlanRow:
    """Return the row of one plan with what its rounds tell: mostly medians, a step.

    Args:
        plan: under which the rounds ran.
        rounds: the timed rounds, at least one.
        unit: what the weights of the steps count; empty if they count nothing.
    """

    def per_step(value: Callable[[Round], float]) -> float:
        return median(value(found) / found.num_steps for found in rounds)

    def amount(found: Round) -> float:
        return found.total.weight if unit else found.num_steps

    return PlanRow(
        plan=plan.name,
        identical=None,
        ms_per_step=Spread.of([found.total.wall_ms / found.num_steps for found in rounds]),
        steps_per_epoch=sum(found.num_steps for found in rounds)
        / sum(len(found.passes) for found in rounds),
        throughput=median(amount(found) / found.total.wall_ms * 1000.0 for found in rounds),
        waits_per_step=per_step(lambda found: found.total.waits.count),
        waited_ms_per_step=per_step(lambda found: found.total.waits.ms),
        waits_by_reason=_by_reason(rounds),
        data_wait_ms_per_step=per_step(lambda found: found.total.data_wait_ms),
        launch_ms_per_step=per_step(lambda found: found.total.launch_ms),
        host_cpu_percent=_percent_of_time(rounds, lambda found: found.cpu_seconds),
        own_cpu_percent=_percent_of_time(rounds, lambda found: found.own_cpu_seconds),
        settings=_settings_of(plan),
    )


def _settings_of(plan: Plan) -> dict[str, Any]:
    """Return the plan's fields under the names that they have in files."""
    fields = asdict(plan)
    graphs = fields.pop("graphs")
    return {**fields, "capture": graphs == "always", "auto": graphs == "auto"}


def with_device_times(row: PlanRow, rounds: Sequence[Round]) -> PlanRow:
    """Return the row with what event pairs on the device tell of its rounds."""
    busy_ms = median(found.total.busy_ms / found.num_steps for found in rounds)
    gaps = [
        found.total.gap_ms / found.num_steps for found in rounds if found.total.gap_ms is not None
    ]
    return replace(
        row,
        meter_busy_ms_per_step=busy_ms,
        meter_gap_share=gap_share(busy_ms, median(gaps) if gaps else None),
        late_captures=sum(found.num_graphs for found in rounds),
    )


def with_kernels(row: PlanRow, trace: KernelTrace, *, steps: int) -> PlanRow:
    """Return the row with what a trace of the kernels of some steps tells."""
    busy_ms = trace.busy_ms / steps
    return replace(
        row,
        busy_ms_per_step=busy_ms,
        overlap_share=1.0 - trace.busy_ms / trace.kernel_ms,
        stream_shares=tuple(ms / trace.kernel_ms for ms in trace.ms_of_streams),
        kernels_per_step=trace.num_kernels / steps,
        # Not below 0: the trace is of another round, in which kernels may have run longer.
        gap_share=max(0.0, 1.0 - busy_ms / row.ms_per_step.median),
    )


def _percent_of_time(rounds: Sequence[Round], used: Callable[[Round], float]) -> float | None:
    """Return it over all rounds together: one may be too short for the clocks of some systems."""
    elapsed_ms = sum(found.elapsed_ms for found in rounds)
    if elapsed_ms < _LEAST_CPU_MS:
        return None
    return 100_000.0 * sum(used(found) for found in rounds) / elapsed_ms


def _by_reason(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Return count and time of each reason's waits, a step, over all rounds."""
    steps = sum(found.num_steps for found in rounds)
    totals: dict[str, dict[str, float]] = {}
    for found in rounds:
        for reason, wait in found.total.waits.by_reason.items():
            into = totals.setdefault(reason, {"count": 0.0, "ms": 0.0})
            into["count"] += wait.count / steps
            into["ms"] += wait.ms / steps
    return totals
