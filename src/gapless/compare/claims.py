"""The origin's claims about its plans, checked against what was measured.

The documents that this project was made from say what each plan would gain, before anything was
measured. Every claim is here once, with the numbers of the documents that make it, and is
confirmed if the measured figure reaches the lower end of what was claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gapless.report.comparison import (
    CONFIRMED,
    NOT_MEASURABLE,
    REFUTED,
    ClaimResult,
    PlanRow,
    Verdict,
)


Rows: TypeAlias = Mapping[str, PlanRow]

# What was measured, and whether it confirms the claim; None if it cannot be measured here.
Finding: TypeAlias = "tuple[str, bool | None]"
Check: TypeAlias = Callable[[PlanRow, Rows], Finding]

_BEFORE = "blocking"
_NO_DEVICE = "a CPU works in the host's own order: nothing to wait for, no device to keep busy"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim.

    Attributes:
        sources: numbers of the documents that make it.
        plan: the plan that it is about.
        text: what they say.
        check: compares it with the rows.
        needs_device: whether it says anything of a CPU; counts of waits do.
    """

    sources: tuple[str, ...]
    plan: str
    text: str
    check: Check
    needs_device: bool = True


def check_claims(rows: Rows, *, is_accelerator: bool) -> tuple[ClaimResult, ...]:
    """Return every claim of the origin with its verdict.

    Args:
        rows: of the plans that were compared, by name.
        is_accelerator: whether they ran beside the host.
    """
    return tuple(_checked(claim, rows, is_accelerator=is_accelerator) for claim in CLAIMS)


def _checked(claim: Claim, rows: Rows, *, is_accelerator: bool) -> ClaimResult:
    measured, holds = _finding(claim, rows, is_accelerator=is_accelerator)
    verdict: Verdict = NOT_MEASURABLE
    if holds is not None:
        verdict = CONFIRMED if holds else REFUTED
    return ClaimResult(
        sources=claim.sources,
        plan=claim.plan,
        claim=claim.text,
        measured=measured,
        verdict=verdict,
    )


def _finding(claim: Claim, rows: Rows, *, is_accelerator: bool) -> Finding:
    absent = [name for name in (claim.plan, _BEFORE) if name not in rows]
    if absent:
        return f"{' and '.join(dict.fromkeys(absent))} not compared", None
    if claim.needs_device and not is_accelerator:
        return _NO_DEVICE, None
    return claim.check(rows[claim.plan], rows)


# --- what claims are about ---


def _reduction(ours: float, before: float) -> float | None:
    return 1.0 - ours / before if before else None


def _every_tenth(*, reasons: tuple[str, ...] | None = None) -> Check:
    """Claim that of N host waits of an epoch, of these reasons or all, ceil(N / 10) are left."""

    def count(row: PlanRow) -> float:
        if reasons is None:
            return row.waits_per_step
        return sum(row.waits_by_reason.get(name, {"count": 0.0})["count"] for name in reasons)

    def check(row: PlanRow, rows: Rows) -> Finding:
        ours, before = count(row), count(rows[_BEFORE])
        if not before:
            return f"{before:.2f} a step before, {ours:.2f} after", None
        # One more, because our epochs end with a wait of their own.
        allowed = (math.ceil(row.steps_per_epoch / 10.0) + 1.0) / row.steps_per_epoch
        text = f"{before:.2f} -> {ours:.2f} a step ({ours / before - 1.0:+.0%})"
        return text, ours / before <= allowed

    return check


def _less_waiting(least: float) -> Check:
    def check(row: PlanRow, rows: Rows) -> Finding:
        ours, before = row.waited_ms_per_step, rows[_BEFORE].waited_ms_per_step
        found = _reduction(ours, before)
        text = f"{before:.2f} -> {ours:.2f} ms a step"
        return (text, None) if found is None else (f"{text} ({-found:+.0%})", found >= least)

    return check


def _waiting_between(low: float, high: float) -> Check:
    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        found = row.waited_ms_per_step
        return f"{found:.2f} ms a step", low <= found <= high

    return check


def _shorter(least: float, *, than: str = _BEFORE) -> Check:
    """Claim that an epoch becomes shorter by this share."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        if than not in rows:
            return f"{than} not compared", None
        ours, theirs = row.ms_per_step, rows[than].ms_per_step
        found = 1.0 - ours.median / theirs.median
        text = f"{theirs.median:.2f} -> {ours.median:.2f} ms a step ({-found:+.1%})"
        if ours.overlaps(theirs):
            text += ", within the spread of the rounds"
        return text, found >= least and not ours.overlaps(theirs)

    return check


def _utilisation(low: float, high: float | None = None) -> Check:
    """Claim that the device is in use for so many percent of the time."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        text, found = _utilisation_of(row)
        if found is None:
            return text, None
        return text, low <= found and (high is None or found <= high)

    return check


def _utilisation_up(points: float, *, than: str = _BEFORE) -> Check:
    """Claim that the device is in use for so many percentage points more of the time."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        if than not in rows:
            return f"{than} not compared", None
        (ours, mine), (theirs, other) = _utilisation_of(row), _utilisation_of(rows[than])
        if mine is None or other is None:
            return "no device utilisation here", None
        return f"{theirs} -> {ours} ({mine - other:+.0f} points)", mine - other >= points

    return check


def _utilisation_of(row: PlanRow) -> tuple[str, float | None]:
    """Return what nvidia-smi shows, which the origin went by; a kernel trace in its place."""
    busy = None if row.busy_share is None else 100.0 * row.busy_share
    if row.nvml_percent is None:
        return (
            ("no device utilisation here", None) if busy is None else (f"busy {busy:.0f} %", busy)
        )
    beside = "" if busy is None else f", kernels {busy:.0f} %"
    return f"NVML {row.nvml_percent:.0f} %{beside}", row.nvml_percent


def _host_cpu(low: float, high: float | None = None) -> Check:
    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        found = row.host_cpu_percent
        return f"{found:.0f} % of one core", low <= found and (high is None or found <= high)

    return check


def _memory(low: float, high: float) -> Check:
    """Claim that device memory becomes so many times that of before."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        ours, before = row.peak_memory_bytes, rows[_BEFORE].peak_memory_bytes
        if not ours or not before:
            return "no memory of its own here", None
        return f"{ours / before:.2f} times the peak memory", low <= ours / before <= high

    return check


def _overlaps(row: PlanRow, rows: Rows) -> Finding:
    """Claim that transfer, forward and backward partly overlap; kernels show the latter two."""
    before = rows[_BEFORE].overlap_share
    if row.overlap_share is None or before is None:
        return "no kernel trace here", None
    text = f"{before:.1%} -> {row.overlap_share:.1%} of kernel time runs beside other kernels"
    return text, row.overlap_share >= before + 0.01


def _read_costs(low: float, high: float) -> Check:
    """Claim that one read of a loss blocks the host so many milliseconds."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        reads = row.waits_by_reason.get("loss_read")
        if reads is None or not reads["count"]:
            return "no loss was read by itself", None
        found = reads["ms"] / reads["count"]
        return f"{found:.3f} ms a read", low <= found <= high

    return check


def _same_losses(row: PlanRow, rows: Rows) -> Finding:
    """Claim that training does not change; ours are bits, where the origin looks at means."""
    del rows
    if row.identical is None:
        return "bits not compared", None
    return ("bit-identical" if row.identical else "different"), row.identical


def _best_of_its_four(row: PlanRow, rows: Rows) -> Finding:
    """Claim that the origin's recommendation pays best: no other plan of its is faster."""
    others = [name for name in _ORIGINS if name in rows and name != row.plan]
    best = min(others, key=lambda name: rows[name].ms_per_step.median, default=None)
    if best is None:
        return "no other of the origin's plans compared", None
    theirs, ours = rows[best].ms_per_step, row.ms_per_step
    text = (
        f"{ours.median:.2f} ms a step; the best of the others is {best} with {theirs.median:.2f}"
    )
    is_beaten = theirs.median < ours.median and not theirs.overlaps(ours)
    return text, not is_beaten


_ORIGINS = ("deferred-loss", "events", "interval", "events-interval", "four-stream", "full")

_SAME_LOSSES = "the losses stay what they were"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        sources=("000", "001", "002"),
        plan="blocking",
        text="the host waits 20 to 30 ms a batch",
        check=_waiting_between(20.0, 30.0),
    ),
    Claim(
        sources=("001", "002"),
        plan="blocking",
        text="device utilisation is 70 to 80 %",
        check=_utilisation(70.0, 80.0),
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="blocking",
        text="host CPU utilisation is 60 to 70 %",
        check=_host_cpu(60.0, 70.0),
    ),
    Claim(
        sources=("004",),
        plan="blocking",
        text="a read of the loss blocks the host 0.1 to 0.5 ms",
        check=_read_costs(0.1, 0.5),
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text=_SAME_LOSSES,
        check=_same_losses,
        needs_device=False,
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="of N reads of the loss ceil(N/10) are left (-90 %)",
        check=_every_tenth(reasons=("loss_read",)),
        needs_device=False,
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="device utilisation rises by 5 to 10 points",
        check=_utilisation_up(5.0),
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="an epoch takes 2 to 5 % less time",
        check=_shorter(0.02),
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="memory does not change",
        check=_memory(0.95, 1.05),
    ),
    Claim(
        sources=("001", "002"),
        plan="events",
        text="an epoch takes 3 to 5 % less time",
        check=_shorter(0.03),
    ),
    Claim(
        sources=("002",),
        plan="events",
        text="memory does not change",
        check=_memory(0.95, 1.05),
    ),
    Claim(
        sources=("002",),
        plan="interval",
        text="of N host waits ceil(N/10) are left (-90 %)",
        check=_every_tenth(),
        needs_device=False,
    ),
    Claim(
        sources=("001", "002"),
        plan="interval",
        text="an epoch takes 3 to 5 % less time",
        check=_shorter(0.03),
    ),
    Claim(
        sources=("000",),
        plan="events-interval",
        text=_SAME_LOSSES,
        check=_same_losses,
        needs_device=False,
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="of N host waits ceil(N/10) are left (-90 %)",
        check=_every_tenth(),
        needs_device=False,
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="the host waits 2 to 3 ms a batch (-90 %)",
        check=_less_waiting(0.9),
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="host CPU utilisation is 80 to 85 %",
        check=_host_cpu(80.0),
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="an epoch takes 3 to 5 % less time",
        check=_shorter(0.03),
    ),
    Claim(
        sources=("001", "002"),
        plan="events-interval",
        text="it pays best of the origin's plans",
        check=_best_of_its_four,
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text=_SAME_LOSSES,
        check=_same_losses,
        needs_device=False,
    ),
    Claim(
        sources=("002",),
        plan="four-stream",
        text="device utilisation is 90 to 95 %",
        check=_utilisation(90.0),
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text="device utilisation rises by 10 points over the stage before it",
        check=_utilisation_up(10.0, than="events-interval"),
    ),
    Claim(
        sources=("001", "002"),
        plan="four-stream",
        text="an epoch takes 10 to 15 % less time",
        check=_shorter(0.1),
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text="an epoch takes 6 to 10 % less time, both stages together",
        check=_shorter(0.06),
    ),
    Claim(
        sources=("002", "003"),
        plan="four-stream",
        text="an epoch takes 3 to 10 % less time than in the stage before it",
        check=_shorter(0.03, than="events-interval"),
    ),
    Claim(
        sources=("002",),
        plan="four-stream",
        text="memory becomes 2 to 3 times as much",
        check=_memory(2.0, 3.0),
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text="forward and backward overlap in part",
        check=_overlaps,
    ),
    Claim(
        sources=("001", "002"),
        plan="full",
        text="an epoch takes 10 to 15 % less time",
        check=_shorter(0.1),
    ),
    Claim(
        sources=("002",),
        plan="full",
        text="memory becomes 2 to 3 times as much",
        check=_memory(2.0, 3.0),
    ),
)
