"""The page of `gapless compare`: plans side by side, and their timelines under each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gapless.report.comparison_text import NO_GAPS
from gapless.report.html.figures import count, milliseconds, percent, size, with_unit
from gapless.report.html.markup import Html, element
from gapless.report.html.packed_timeline import packed
from gapless.report.html.page import bullet_list, facts, header, page, section, tiles
from gapless.report.html.table import Cell, Column, Row, table, text_cell
from gapless.report.html.timeline_widget import cut_to_fit, timelines_widget


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.records.comparison import ComparisonReport, PlanRow

    # A column, and its cell in the row of a plan.
    _Drawn: TypeAlias = tuple[Column, Callable[[PlanRow], Cell]]


_SAME = {True: "yes", False: "NO", None: "not known"}


def comparison_page(report: ComparisonReport) -> str:
    """Return a comparison as a page for a browser: one file that loads nothing.

    Args:
        report: of the comparison; its timelines are drawn under each other on one axis.
    """
    drawn, cut = cut_to_fit(report.timelines)
    notes = [*report.notes, *(row.diagnosis for row in report.rows if row.diagnosis), *cut]
    if not report.is_accelerator:
        notes = [" ".join(NO_GAPS), *notes]
    return page(
        f"gapless compare: {report.workload}",
        header(
            "gapless compare",
            report.workload,
            element("p", _verdict(report), class_="verdict"),
            _facts(report),
        ),
        tiles(_tiles(report)),
        _recommendation(report),
        _plans(report),
        None if not drawn else section("Timelines", timelines_widget(drawn), about=_about(report)),
        section("Notes", bullet_list(notes)) if notes else None,
        data={"timelines": [packed(timeline) for timeline in drawn], "rows": []},
    )


def _verdict(report: ComparisonReport) -> str:
    plan = report.recommendation.plan
    return f"Recommended: {plan}" if plan else "No plan is recommended."


def _facts(report: ComparisonReport) -> Html:
    settings = report.settings
    rounds = report.rows[0].ms_per_step.rounds
    order = "plans in turns" if report.in_turns else "each plan by itself"
    commit = "" if report.commit is None else report.commit[:12]
    return facts(
        [
            ("device", f"{report.device} ({report.hardware})"),
            ("rounds", f"{len(rounds)} of {settings['steps']} steps, {order}"),
            ("precision", str(settings.get("precision", ""))),
            ("torch", report.torch),
            ("commit", commit),
        ]
    )


def _tiles(report: ComparisonReport) -> list[tuple[str, str, str]]:
    fastest = min(report.rows, key=lambda row: row.ms_per_step.median)
    slowest = max(report.rows, key=lambda row: row.ms_per_step.median)
    found = [
        _tile("fastest", fastest.ms_per_step.median, fastest.plan),
        _tile("slowest", slowest.ms_per_step.median, slowest.plan),
    ]
    busiest = max(report.rows, key=lambda row: row.busy_share or 0.0)
    if busiest.busy_share is not None:
        found.append(("most busy device", percent(busiest.busy_share), busiest.plan))
    fewest = min(report.rows, key=lambda row: row.waits_per_step)
    found.append(("fewest host waits", count(fewest.waits_per_step), f"a step, {fewest.plan}"))
    return found


def _tile(name: str, ms: float, plan: str) -> tuple[str, str, str]:
    return name, with_unit(milliseconds(ms), "ms"), f"a step, {plan}"


def _recommendation(report: ComparisonReport) -> Html:
    found = report.recommendation
    excluded = [f"Not {plan}: it {reason}" for plan, reason in found.excluded.items()]
    return section("Why", bullet_list([*found.reasons, *excluded]))


def _about(report: ComparisonReport) -> str:
    steps = max(len(timeline.step_starts_us) for timeline in report.timelines)
    told = f"{steps} steps of each plan, taken after the timed rounds, on one axis."
    if report.is_accelerator:
        return f"{told} They were traced, which slows the host down."
    return f"{told} A CPU does the work within the steps of the host."


# --- the table ---


def _plans(report: ComparisonReport) -> Html:
    columns = _columns(report)
    best = report.recommendation.plan
    rows = [
        Row(
            cells=[text_cell(row.plan), *(cell(row) for _, cell in columns)],
            is_marked=row.plan == best,
        )
        for row in report.rows
    ]
    titles = [Column(title="plan"), *(column for column, _ in columns)]
    return section("Plans", table("Plans", titles, rows), about="Medians over the rounds.")


def _columns(report: ComparisonReport) -> list[_Drawn]:
    unit = report.unit.removeprefix("target ")
    is_exact = report.settings.get("tolerance") is None
    found: list[_Drawn] = [
        (
            Column(title="same bits" if is_exact else "same"),
            lambda row: text_cell(_SAME[row.identical]),
        ),
        _times("time", lambda row: row.ms_per_step.median),
        _shares("spread", lambda row: row.ms_per_step.relative),
        _counts("speed", f"{unit}/s", lambda row: row.throughput),
        _counts("host waits", "a step", lambda row: row.waits_per_step),
        _times("waited", lambda row: row.waited_ms_per_step),
        _times("waits for data", lambda row: row.data_wait_ms_per_step),
        _times("launch", lambda row: row.launch_ms_per_step),
    ]
    if report.is_accelerator:
        found += [
            _times("busy", lambda row: row.busy_ms_per_step),
            _shares("gap", lambda row: row.gap_share),
            _counts("kernels", "a step", lambda row: row.kernels_per_step),
            _sizes("peak memory", lambda row: row.peak_memory_bytes),
            _sizes("held memory", lambda row: row.held_memory_bytes),
        ]
    return found


def _times(title: str, value: Callable[[PlanRow], float | None]) -> _Drawn:
    column = Column(title=title, unit="ms a step", is_number=True)
    return column, lambda row: Cell(text=milliseconds(value(row)), value=value(row))


def _shares(title: str, value: Callable[[PlanRow], float | None]) -> _Drawn:
    column = Column(title=title, is_number=True)
    return column, lambda row: Cell(text=percent(value(row)), value=value(row))


def _counts(title: str, unit: str, value: Callable[[PlanRow], float | None]) -> _Drawn:
    column = Column(title=title, unit=unit, is_number=True)
    return column, lambda row: Cell(text=count(value(row)), value=value(row))


def _sizes(title: str, value: Callable[[PlanRow], int | None]) -> _Drawn:
    column = Column(title=title, unit="MiB", is_number=True)
    return column, lambda row: Cell(text=size(value(row)), value=value(row))
