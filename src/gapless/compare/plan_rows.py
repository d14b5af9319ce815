"""From the rounds of a plan to its row in the report."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING

from gapless.plans import get_plan
from gapless.records.comparison import PlanRow, Spread
from gapless.records.epoch import gap_share


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.compare.bench import Measured
    from gapless.compare.entrant import Round


# Where processor time is counted in ticks of 10 ms, one more or less is five percent of this.
_LEAST_CPU_MS = 200.0


def make_row(
    measured: Measured,
    *,
    identical: bool | None,
    is_accelerator: bool,
    compile_seconds: float | None = None,
) -> PlanRow:
    """Return the row of one plan: medians of its rounds, a step.

    Args:
        measured: at least one round.
        identical: whether it computes what the reference does; None if nobody looked.
        is_accelerator: whether the device has time and memory of its own.
        compile_seconds: time spent compiling the code that all plans share.
    """
    rounds = measured.rounds
    times = Spread.of([found.wall_ms / found.steps for found in rounds])

    def per_step(value: Callable[[Round], float]) -> float:
        return median(value(found) / found.steps for found in rounds)

    row = PlanRow(
        plan=measured.plan,
        identical=identical,
        ms_per_step=times,
        steps_per_epoch=sum(r.steps for r in rounds) / sum(r.epochs for r in rounds),
        throughput=median(
            (found.weight if measured.unit else found.steps) / found.wall_ms * 1000.0
            for found in rounds
        ),
        waits_per_step=per_step(lambda found: found.waits.count),
        waited_ms_per_step=per_step(lambda found: found.waits.ms),
        waits_by_reason=_by_reason(rounds),
        data_wait_ms_per_step=per_step(lambda found: found.data_wait_ms),
        launch_ms_per_step=per_step(lambda found: found.launch_ms),
        host_cpu_percent=_host_cpu_percent(rounds),
        compile_seconds=compile_seconds,
        diagnosis=measured.diagnosis,
        settings=asdict(get_plan(measured.plan)),
    )
    return _with_device_figures(row, measured) if is_accelerator else row


def _host_cpu_percent(rounds: list[Round]) -> float | None:
    """Return it over all rounds together: one may be too short for the clocks of some systems."""
    elapsed_ms = sum(found.elapsed_ms for found in rounds)
    if elapsed_ms < _LEAST_CPU_MS:
        return None
    return 100_000.0 * sum(found.cpu_seconds for found in rounds) / elapsed_ms


def _with_device_figures(row: PlanRow, measured: Measured) -> PlanRow:
    rounds, trace, steps = measured.rounds, measured.trace, measured.trace_steps
    busy_ms = None if trace is None else trace.busy_ms / steps
    meter_busy = median(found.busy_ms / found.steps for found in rounds)
    gaps = [found.gap_ms / found.steps for found in rounds if found.gap_ms is not None]
    capture = measured.capture
    return replace(
        row,
        busy_ms_per_step=busy_ms,
        overlap_share=None if trace is None else 1.0 - trace.busy_ms / trace.kernel_ms,
        kernels_per_step=None if trace is None else trace.num_kernels / steps,
        # Not below 0: the trace is of another round, in which kernels may have taken longer.
        gap_share=None if busy_ms is None else max(0.0, 1.0 - busy_ms / row.ms_per_step.median),
        meter_busy_ms_per_step=meter_busy,
        meter_gap_share=gap_share(meter_busy, median(gaps) if gaps else None),
        nvml_percent=measured.nvml_percent,
        peak_memory_bytes=measured.peak_memory_bytes,
        held_memory_bytes=measured.held_memory_bytes,
        capture=capture,
        capture_seconds=None if capture is None else capture["seconds"],
        late_captures=sum(found.num_graphs for found in rounds),
    )


def _by_reason(rounds: list[Round]) -> dict[str, dict[str, float]]:
    """Return count and time of each reason's waits, a step, over all rounds."""
    steps = sum(found.steps for found in rounds)
    totals: dict[str, dict[str, float]] = {}
    for found in rounds:
        for reason, total in found.waits.by_reason.items():
            into = totals.setdefault(reason, {"count": 0.0, "ms": 0.0})
            into["count"] += total.count / steps
            into["ms"] += total.ms / steps
    return totals
