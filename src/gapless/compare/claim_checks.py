"""What a claim can say of a plan, and how a row of figures bears it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from gapless.records.comparison import PlanRow


Rows: TypeAlias = Mapping[str, PlanRow]

# What was measured, and whether it confirms the claim; None if it cannot be measured here.
Finding: TypeAlias = "tuple[str, bool | None]"
Check: TypeAlias = Callable[[PlanRow, Rows], Finding]

# The plan that the origin started from.
BEFORE = "blocking"


_WITHIN_SPREAD = "within the spread of the rounds"

# What a trace of kernels that never overlap may show all the same.
_LEAST_OVERLAP = 0.01

# Of a figure and of an end of a range, so that 1 - 95 / 100 is five percent.
_ROUNDING = 1e-9


def _judge(text: str, found: float, low: float, high: float = math.inf) -> Finding:
    """Return the verdict on a figure: confirmed within the claimed range, both ends included.

    A claim that names one end alone, such as "a tenth is left", has a range that is open or ends
    where the figure does. Beyond the other end a claim is as wrong as before it, and says so.
    """
    if found > high + _ROUNDING:
        return f"{text}, more than claimed", False
    if found < low - _ROUNDING:
        return f"{text}, less than claimed", False
    return text, True


def _reduction(ours: float, before: float) -> float | None:
    return 1.0 - ours / before if before else None


def every_tenth(*, reasons: tuple[str, ...] | None = None) -> Check:
    """Claim that of N host waits of an epoch, of these reasons or all, ceil(N / 10) are left."""

    def count(row: PlanRow) -> float:
        if reasons is None:
            return row.waits_per_step
        return sum(row.waits_by_reason.get(name, {"count": 0.0})["count"] for name in reasons)

    def check(row: PlanRow, rows: Rows) -> Finding:
        ours, before = count(row), count(rows[BEFORE])
        if not before:
            return f"{before:.2f} a step before, {ours:.2f} after", None
        # One more, because our epochs end with a wait of their own.
        allowed = (math.ceil(row.steps_per_epoch / 10.0) + 1.0) / row.steps_per_epoch
        text = f"{before:.2f} -> {ours:.2f} a step ({ours / before - 1.0:+.0%})"
        return _judge(text, 1.0 - ours / before, 1.0 - allowed)

    return check


def less_waiting(least: float) -> Check:
    """Claim that the host is blocked less, by this share of its former waiting."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        ours, before = row.waited_ms_per_step, rows[BEFORE].waited_ms_per_step
        found = _reduction(ours, before)
        text = f"{before:.2f} -> {ours:.2f} ms a step"
        return (text, None) if found is None else _judge(f"{text} ({-found:+.0%})", found, least)

    return check


def waiting_between(low: float, high: float) -> Check:
    """Claim that the host is blocked so many milliseconds a batch."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        found = row.waited_ms_per_step
        return _judge(f"{found:.2f} ms a step", found, low, high)

    return check


def shorter(low: float, high: float, *, than: str = BEFORE) -> Check:
    """Claim that an epoch becomes shorter by a share in this range."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        if than not in rows:
            return f"{than} not compared", None
        ours, theirs = row.ms_per_step, rows[than].ms_per_step
        found = 1.0 - ours.median / theirs.median
        text = f"{theirs.median:.2f} -> {ours.median:.2f} ms a step ({-found:+.1%})"
        if ours.overlaps(theirs):
            return f"{text}, {_WITHIN_SPREAD}", False
        return _judge(text, found, low, high)

    return check


def utilisation_between(low: float, high: float) -> Check:
    """Claim that the device is in use for so many percent of the time."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        text, found = _utilisation_of(row)
        return (text, None) if found is None else _judge(text, found, low, high)

    return check


def utilisation_rises(low: float, high: float = math.inf, *, than: str = BEFORE) -> Check:
    """Claim that the device is in use for so many percentage points more of the time."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        if than not in rows:
            return f"{than} not compared", None
        (ours, mine), (theirs, other) = _utilisation_of(row), _utilisation_of(rows[than])
        if mine is None or other is None:
            return "no device utilisation here", None
        rise = mine - other
        return _judge(f"{theirs} -> {ours} ({rise:+.0f} points)", rise, low, high)

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


def host_cpu_between(low: float, high: float) -> Check:
    """Claim that the host uses so many percent of a core."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        found = row.host_cpu_percent
        if found is None:
            return "rounds too short to tell processor time", None
        return _judge(f"{found:.0f} % of one core", found, low, high)

    return check


def memory_times(low: float, high: float) -> Check:
    """Claim that device memory becomes so many times that of before."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        ours, before = row.peak_memory_bytes, rows[BEFORE].peak_memory_bytes
        if not ours or not before:
            return "no memory of its own here", None
        times = ours / before
        return _judge(f"{times:.2f} times the peak memory", times, low, high)

    return check


def kernels_overlap(row: PlanRow, rows: Rows) -> Finding:
    """Claim that transfer, forward and backward partly overlap; kernels show the latter two."""
    before = rows[BEFORE].overlap_share
    if row.overlap_share is None or before is None:
        return "no kernel trace here", None
    text = f"{before:.1%} -> {row.overlap_share:.1%} of kernel time runs beside other kernels"
    return _judge(text, row.overlap_share - before, _LEAST_OVERLAP)


def read_costs(low: float, high: float) -> Check:
    """Claim that one read of a loss blocks the host so many milliseconds."""

    def check(row: PlanRow, rows: Rows) -> Finding:
        del rows
        reads = row.waits_by_reason.get("loss_read")
        if reads is None or not reads["count"]:
            return "no loss was read by itself", None
        found = reads["ms"] / reads["count"]
        return _judge(f"{found:.3f} ms a read", found, low, high)

    return check


def same_losses(row: PlanRow, rows: Rows) -> Finding:
    """Claim that training does not change; ours are bits, where the origin looks at means."""
    del rows
    if row.identical is None:
        return "bits not compared", None
    return ("bit-identical" if row.identical else "different"), row.identical


def pays_best(row: PlanRow, rows: Rows) -> Finding:
    """Claim that the origin's recommendation pays best: it is faster than its other plans."""
    others = [name for name in _ORIGINS if name in rows and name != row.plan]
    best = min(others, key=lambda name: rows[name].ms_per_step.median, default=None)
    if best is None:
        return "no other of the origin's plans compared", None
    theirs, ours = rows[best].ms_per_step, row.ms_per_step
    text = (
        f"{ours.median:.2f} ms a step; the best of the others is {best} with {theirs.median:.2f}"
    )
    near = [name for name in others if ours.overlaps(rows[name].ms_per_step)]
    if near:
        text += f"; {_WITHIN_SPREAD}: {', '.join(near)}"
    return text, not near and ours.median < theirs.median


_ORIGINS = ("deferred-loss", "events", "interval", "events-interval", "four-stream", "full")
