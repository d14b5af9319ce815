"""The page of `gapless compare`: plans side by side, and which to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.report.comparison_text import NO_GAPS, notes_of, order_of, speed_unit, whole_percent
from gapless.report.figures import count, known, megabytes, milliseconds, share
from gapless.report.html.bars import Bar, Part, bars
from gapless.report.html.page import notes, page, section, timeline_note
from gapless.report.html.table import Column, table


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.records.comparison import ComparisonReport, PlanRow
    from gapless.report.html.page import Html


_SAME = {True: "yes", False: "NO", None: "not known"}


def comparison_page(report: ComparisonReport, *, timeline_file: str = "") -> str:
    """Return a comparison as a page for a browser: one file that loads nothing.

    Args:
        report: of the comparison.
        timeline_file: name of the file that the timelines were written to; empty for none.
    """
    found = report.recommendation
    on_a_cpu = [] if report.is_accelerator else [" ".join(NO_GAPS)]
    return page(
        "gapless compare",
        report.workload,
        notes(
            "Why",
            [*found.reasons, *(f"not {plan}: it {why}" for plan, why in found.excluded.items())],
        ),
        _plans(report),
        _device(report),
        timeline_note(timeline_file),
        notes("Notes", [*on_a_cpu, *notes_of(report)]),
        verdict=f"Recommended: {found.plan}" if found.plan else "No plan is recommended.",
        facts=_facts(report),
    )


def _facts(report: ComparisonReport) -> list[tuple[str, str]]:
    settings = report.settings
    rounds = report.rows[0].ms_per_step.rounds
    return [
        ("device", f"{report.device} ({report.hardware})"),
        ("rounds", f"{len(rounds)} of {settings['steps']} steps, {order_of(report)}"),
        ("precision", str(settings.get("precision", ""))),
        ("torch", report.torch),
        ("commit", (report.commit or "")[:12]),
    ]


def _plans(report: ComparisonReport) -> Html:
    best = report.recommendation.plan
    marked = next((row for row in report.rows if row.plan == best), None)
    drawn = [Bar(title=row.plan, parts=_parts(row)) for row in report.rows]
    return section(
        "Plans",
        table("Plans", [_PLAN, *_host_columns(report)], report.rows, marked=marked),
        bars(drawn, has_figures=False),
        about="Medians over the rounds.",
    )


def _device(report: ComparisonReport) -> Html | None:
    if not report.is_accelerator:
        return None
    return section(
        "Device",
        table("Device", [_PLAN, *_DEVICE_COLUMNS], report.rows),
        about="Busy: time in kernels, from a trace. Gap: the rest of the step. NVML: as nvidia-smi shows.",
    )


def _figure(
    title: str, value: Callable[[PlanRow], float | None], write: Callable[..., str], unit: str = ""
) -> Column[PlanRow]:
    return Column(title=title, unit=unit, cell=lambda row: known(value(row), write))


def _time(title: str, value: Callable[[PlanRow], float | None]) -> Column[PlanRow]:
    return _figure(title, value, milliseconds, "ms a step")


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def _host_columns(report: ComparisonReport) -> list[Column[PlanRow]]:
    is_exact = report.settings.get("tolerance") is None
    return [
        Column(
            title="same bits" if is_exact else "same",
            cell=lambda row: _SAME[row.identical],
            is_number=False,
        ),
        _time("time", lambda row: row.ms_per_step.median),
        _figure("spread", _spread, share),
        _figure("speed", lambda row: row.throughput, count, speed_unit(report)),
        _figure("host waits", lambda row: row.waits_per_step, "{:.2f}".format, "a step"),
        _time("waited", lambda row: row.waited_ms_per_step),
        _time("data wait", lambda row: row.data_wait_ms_per_step),
        _time("launch", lambda row: row.launch_ms_per_step),
        _figure("host CPU", lambda row: row.host_cpu_percent, whole_percent),
    ]


def _spread(row: PlanRow) -> float | None:
    return row.ms_per_step.relative if len(row.ms_per_step.rounds) > 1 else None


_PLAN: Column[PlanRow] = Column(title="plan", cell=lambda row: row.plan, is_number=False)
_DEVICE_COLUMNS = (
    _time("busy", lambda row: row.busy_ms_per_step),
    _figure("gap", lambda row: row.gap_share, share),
    _figure("NVML", lambda row: row.nvml_percent, whole_percent),
    _figure("kernels", lambda row: row.kernels_per_step, count, "a step"),
    _figure("peak memory", lambda row: row.peak_memory_bytes, megabytes),
    _figure("held memory", lambda row: row.held_memory_bytes, megabytes),
    _figure("capture", lambda row: row.capture_seconds, _seconds, "s"),
    _figure("compile", lambda row: row.compile_seconds, _seconds, "s"),
)


def _parts(row: PlanRow) -> list[Part]:
    ms = row.ms_per_step.median
    if row.gap_share is None:
        return [Part(name="a step", colour="busy", ms=ms)]
    return [
        Part(name="the device is busy", colour="busy", ms=ms * (1.0 - row.gap_share)),
        Part(name="the device is idle", colour="idle", ms=ms * row.gap_share),
    ]
