"""Comparisons of plans as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.report.figures import MISSING, counted, known, megabytes, share
from gapless.report.terminal_text import table_lines


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.records.comparison import ComparisonReport


# Rounds whose times differ by more than this share of their median are named.
_UNSTEADY = 0.1

_IDENTICAL = {True: "yes", False: "NO", None: "?"}

NO_GAPS = (
    "A CPU has no gaps to close: it works in the host's own order, so waits cost nothing and plans",
    "differ only by noise. Waits are counted here as they would be on a GPU.",
)


def comparison_text(report: ComparisonReport) -> str:
    """Return tables of all plans and the recommendation."""
    lines = [*_host_table(report), "", *_device_part(report)]
    return "\n".join([*lines, "", *_recommendation(report)])


def order_of(report: ComparisonReport) -> str:
    """Return in which order the plans were timed."""
    return "plans in turns" if report.in_turns else "each plan by itself"


def speed_unit(report: ComparisonReport) -> str:
    """Return what the speed of a plan counts, such as tokens/s."""
    return f"{report.unit.removeprefix('target ')}/s"


def _host_table(report: ComparisonReport) -> Iterator[str]:
    same = "same bits" if report.settings.get("tolerance") is None else "same"
    rows = [
        (
            *("plan", same, "ms/step", "spread", speed_unit(report), "waits/step"),
            *("ms waited", "data wait", "launch", "host CPU"),
        )
    ]
    rows += [
        (
            row.plan,
            _IDENTICAL[row.identical],
            known(row.ms_per_step.median, _time),
            f"{row.ms_per_step.relative:.0%}" if len(row.ms_per_step.rounds) > 1 else MISSING,
            f"{row.throughput:,.0f}",
            f"{row.waits_per_step:.2f}",
            known(row.waited_ms_per_step, _time),
            known(row.data_wait_ms_per_step, _time),
            known(row.launch_ms_per_step, _time),
            known(row.host_cpu_percent, whole_percent),
        )
        for row in report.rows
    ]
    yield from table_lines(rows)
    rounds = counted(len(report.rows[0].ms_per_step.rounds), "round")
    yield f"median of {rounds} of {report.settings['steps']} steps, {order_of(report)}; times in ms a step"
    unsteady = [row.plan for row in report.rows if row.ms_per_step.relative > _UNSTEADY]
    if unsteady and report.is_accelerator:
        yield f"rounds differ by more than {_UNSTEADY:.0%}, read with care: {', '.join(unsteady)}"


def _device_part(report: ComparisonReport) -> Iterator[str]:
    if report.is_accelerator:
        yield from table_lines(_device_rows(report))
        yield "busy: time in kernels, from a trace; gap: the rest of the step; NVML: as nvidia-smi shows"
    else:
        yield from NO_GAPS
    yield from notes_of(report)


def notes_of(report: ComparisonReport) -> Iterator[str]:
    """Yield what a reader of the figures has to know, a sentence each."""
    for row in report.rows:
        if row.diagnosis:
            yield row.diagnosis
        if row.capture is not None and row.capture["refusal"]:
            graphs = counted(row.capture["num_graphs"], "graph")
            yield f"{row.plan}: {graphs} captured, then no more: {row.capture['refusal']}"
        if row.late_captures:
            graphs = counted(row.late_captures, "graph")
            yield f"{row.plan}: {graphs} captured within timed rounds; take more warm-up rounds"
    yield from report.notes


def _device_rows(report: ComparisonReport) -> list[tuple[str, ...]]:
    head = ("plan", "busy", "gap", "NVML", "kernels", "peak memory", "held memory")
    return [
        (*head, "capture s", "compile s"),
        *(
            (
                row.plan,
                known(row.busy_ms_per_step, _time),
                share(row.gap_share),
                known(row.nvml_percent, whole_percent),
                known(row.kernels_per_step, _count),
                known(row.peak_memory_bytes, megabytes),
                known(row.held_memory_bytes, megabytes),
                known(row.capture_seconds, _time),
                known(row.compile_seconds, _time),
            )
            for row in report.rows
        ),
    ]


def _recommendation(report: ComparisonReport) -> Iterator[str]:
    found = report.recommendation
    yield f"Recommended: {found.plan or 'none'}"
    for reason in found.reasons:
        yield f"  {reason}"
    for plan, reason in found.excluded.items():
        yield f"  not {plan}: it {reason}"


def _time(value: float) -> str:
    return f"{value:.1f}" if value >= 100.0 else f"{value:.2f}"


def whole_percent(value: float) -> str:
    """Return a figure that is a percentage already, without digits behind the point."""
    return f"{value:.0f}%"


def _count(value: float) -> str:
    return f"{value:,.0f}"
