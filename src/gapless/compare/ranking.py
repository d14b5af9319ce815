"""Which plan to use: the fastest that computes the same.

Of plans that are equally fast within the spread of the rounds it is the one that holds the least memory.
Whether a plan computes the same is a condition: one that does not is never recommended, and none is if
that could not be found out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.records.comparison import PlanRow, Recommendation


if TYPE_CHECKING:
    from collections.abc import Sequence


DEFAULT_PLAN = "gapless"

_NONE_SAME = "no plan computes the same bits"
_NOT_COMPARED = "bits were not compared"


def recommend(
    rows: Sequence[PlanRow],
    *,
    is_accelerator: bool,
    reference: str = "blocking",
    unknown: Sequence[str] = (),
) -> Recommendation:
    """Return the plan to use, and why.

    Args:
        rows: of all plans.
        is_accelerator: whether plans can differ by more than noise.
        reference: the plan that reasons compare with, if it is there.
        unknown: why it could not be found out which plans compute the same, and what to do; then
            none is recommended. Empty if it was found out or was not to be compared.
    """
    if unknown:
        return Recommendation(plan=None, reasons=tuple(unknown))
    sound = [row for row in rows if row.identical is not False]
    excluded = {
        row.plan: "does not compute the same bits" for row in rows if row.identical is False
    }
    if not sound:
        return Recommendation(plan=None, reasons=(_NONE_SAME,), excluded=excluded)
    plan, reasons = _on_a_cpu(sound)
    if is_accelerator:
        best = _fastest(sound)
        by_name = {row.plan: row for row in sound}
        plan, reasons = best.plan, _reasons(best, sound, by_name.get(reference))
    if any(row.identical is None for row in sound):
        reasons = (*reasons, _NOT_COMPARED)
    return Recommendation(plan=plan, reasons=reasons, excluded=excluded)


def _fastest(rows: Sequence[PlanRow]) -> PlanRow:
    """Return the fastest plan; of those that are as fast within the spread, the one with the least memory."""
    fastest = min(rows, key=lambda row: row.ms_per_step.median)
    equal = [row for row in rows if row.ms_per_step.overlaps(fastest.ms_per_step)]
    if None in map(_memory, equal):
        return fastest
    # Of equal ones the faster, and then the first.
    return min(equal, key=lambda row: (_memory(row) or 0, row.ms_per_step.median))


def _on_a_cpu(rows: Sequence[PlanRow]) -> tuple[str, tuple[str, ...]]:
    noise = "a CPU has no gaps to close: it works in the host's own order, so plans differ only by noise"
    if any(row.plan == DEFAULT_PLAN for row in rows):
        return DEFAULT_PLAN, (noise, f"{DEFAULT_PLAN} needs no change when a GPU is there")
    first = rows[0].plan
    return first, (noise, f"of equal plans, {first} is the first that was given")


def _memory(row: PlanRow) -> int | None:
    return row.held_memory_bytes or row.peak_memory_bytes or None


# --- reasons ---


def _reasons(best: PlanRow, rows: Sequence[PlanRow], reference: PlanRow | None) -> tuple[str, ...]:
    reasons = [_speed(best, reference), _waits(best, reference)]
    reasons += [_busy(best, reference), _costs(best, reference), _equals(best, rows)]
    return tuple(reason for reason in reasons if reason)


def _speed(best: PlanRow, reference: PlanRow | None) -> str:
    own = f"{best.ms_per_step.median:.2f} ms a step"
    if reference is None or reference is best:
        return own
    ratio = reference.ms_per_step.median / best.ms_per_step.median
    return f"{ratio:.2f}x the steps a second of {reference.plan} ({own})"


def _waits(best: PlanRow, reference: PlanRow | None) -> str:
    beside = ""
    if reference is not None and reference is not best:
        beside = f" instead of {reference.waits_per_step:.2f}"
    return f"{best.waits_per_step:.2f} host waits a step{beside}"


def _busy(best: PlanRow, reference: PlanRow | None) -> str:
    if best.busy_share is None:
        return ""
    beside = ""
    if reference is not None and reference is not best and reference.busy_share is not None:
        beside = f" instead of {reference.busy_share:.0%}"
    advice = "; the device is the bottleneck, so no plan makes it faster"
    return f"device busy {best.busy_share:.0%} of the time{beside}" + (
        advice if best.busy_share >= 0.95 else ""
    )


def _costs(best: PlanRow, reference: PlanRow | None) -> str:
    """Return what this plan costs beyond the reference, if the printed figures differ."""
    if reference is None or reference is best:
        return ""
    costs = []
    mine, other = _memory(best), _memory(reference)
    if mine and other and round(mine / other, 2) > 1.0:
        costs.append(f"{mine / other:.2f}x the memory")
    seconds = (best.capture_seconds or 0.0) - (reference.capture_seconds or 0.0)
    if round(seconds, 1) > 0.0:
        costs.append(f"{seconds:.1f} s of capturing at the start")
    return f"costs {' and '.join(costs)}" if costs else ""


def _equals(best: PlanRow, rows: Sequence[PlanRow]) -> str:
    near = [
        row.plan for row in rows if row is not best and row.ms_per_step.overlaps(best.ms_per_step)
    ]
    return f"equally fast within the spread of the rounds: {', '.join(near)}" if near else ""
