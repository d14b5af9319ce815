"""Which plan to use, from measured figures and weights that the user can set.

A plan's score is a weighted sum of marks from 0 to 1. By default speed and memory have weight.
Memory is a share of what the device has: it costs nothing until something else has no room. Host
waits, utilisation and the time of capturing are measured too, and can be given weight. They have
none by default, because what they are worth shows in the speed.

Difficulty, complexity and maintainability of a plan decide nothing: every plan is built, and one
setting selects it. Its risk is whether it computes the same. That is a condition, not a mark: a plan
that does not is never recommended, and none is if that could not be found out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from gapless.errors import UserError
from gapless.records.comparison import PlanRow, Recommendation
from gapless.report.figures import megabytes


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


DEFAULT_PLAN = "gapless"

# The first two are conventions; their ratio decides, as all weights are divided by their sum.
DEFAULT_WEIGHTS = {
    "speed": 0.30,
    "memory": 0.10,
    "waits": 0.0,
    "utilisation": 0.0,
    "startup": 0.0,
}

_NONE_SAME = "no plan computes the same bits"
_NOT_COMPARED = "bits were not compared"

_EQUAL_FOR_ALL = ("difficulty", "complexity", "maintainability", "risk")

# Capturing for this time halves the mark.
_STARTUP_SECONDS = 60.0


def make_weights(given: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of all criteria, summing to 1.

    Args:
        given: weights by the name of a criterion; what is not named keeps its default.

    Raises:
        UserError: a name is no criterion, a weight is no number of 0 or more, or all are 0.
    """
    for name, value in given.items():
        if name in _EQUAL_FOR_ALL:
            raise UserError(
                f"weight of {name} has no effect, because {name} is equal for all plans; choose "
                f"from {', '.join(DEFAULT_WEIGHTS)}"
            )
        if name not in DEFAULT_WEIGHTS:
            raise UserError(
                f"weight of {name!r} is unknown; the criteria are {', '.join(DEFAULT_WEIGHTS)}"
            )
        if not 0.0 <= value < math.inf:
            raise UserError(
                f"weight of {name} must be a finite number of 0 or more, but is {value}"
            )
    weights = {**DEFAULT_WEIGHTS, **given}
    total = sum(weights.values())
    if not total:
        raise UserError("all weights are 0, expected at least one above; set that of speed to 1")
    return {name: value / total for name, value in weights.items()}


def recommend(
    rows: Sequence[PlanRow],
    *,
    weights: Mapping[str, float],
    is_accelerator: bool,
    total_memory_bytes: int | None = None,
    reference: str = "blocking",
    unknown: Sequence[str] = (),
) -> Recommendation:
    """Return the plan with the best weighted score, and why.

    The marks are: the least time of a step among the plans over a plan's own, the share of the
    device's memory that a plan leaves free, 1 / (1 + host waits a step), the share of time in which
    the device is busy, and 1 / (1 + minutes of capturing). A criterion that was not measured for
    every plan is left out. If the plan is not the fastest, the reasons name the one that is, and
    what decided.

    Args:
        rows: of all plans.
        weights: of the criteria, summing to 1.
        is_accelerator: whether plans can differ by more than noise.
        total_memory_bytes: memory of the device; None if it is not known, and memory counts for
            nothing.
        reference: the plan that reasons compare with, if it is there.
        unknown: why it could not be found out which plans compute the same, and what to do; then
            none is recommended. Empty if it was found out or was not to be compared.
    """
    if unknown:
        return _none(unknown, weights)
    sound = [row for row in rows if row.identical is not False]
    excluded = {
        row.plan: "does not compute the same bits" for row in rows if row.identical is False
    }
    if not sound:
        return _none([_NONE_SAME], weights, excluded)
    marks = _marks(sound, total_memory_bytes)
    in_force = _measured_weights(marks, weights)
    scores = {
        row.plan: sum(weight * marks[name][row.plan] for name, weight in in_force.items())
        for row in sound
    }
    # Sorting keeps the order of the rows, so of equal plans the first one wins.
    ranked = dict(sorted(scores.items(), key=lambda item: -item[1]))
    by_name = {row.plan: row for row in sound}
    plan, reasons = _on_a_cpu(sound)
    if is_accelerator:
        plan = next(iter(ranked))
        reasons = (
            *_reasons(by_name[plan], sound, by_name.get(reference)),
            *_why_not_fastest(by_name[plan], sound, marks=marks, weights=in_force),
        )
    if any(row.identical is None for row in sound):
        reasons = (*reasons, _NOT_COMPARED)
    return Recommendation(
        plan=plan, reasons=reasons, scores=ranked, weights=in_force, excluded=excluded
    )


def _none(
    reasons: Iterable[str],
    weights: Mapping[str, float],
    excluded: Mapping[str, str] | None = None,
) -> Recommendation:
    return Recommendation(
        plan=None,
        reasons=tuple(reasons),
        scores={},
        weights=dict(weights),
        excluded=dict(excluded or {}),
    )


def _on_a_cpu(rows: Sequence[PlanRow]) -> tuple[str, tuple[str, ...]]:
    noise = "a CPU has no gaps to close: it works in the host's own order, so plans differ only by noise"
    if any(row.plan == DEFAULT_PLAN for row in rows):
        return DEFAULT_PLAN, (noise, f"{DEFAULT_PLAN} needs no change when a GPU is there")
    first = rows[0].plan
    return first, (noise, f"of equal plans, {first} is the first that was given")


# --- scores ---


def _memory(row: PlanRow) -> int | None:
    return row.held_memory_bytes or row.peak_memory_bytes or None


def _utilisation(row: PlanRow) -> float | None:
    if row.busy_share is not None:
        return row.busy_share
    return None if row.nvml_percent is None else row.nvml_percent / 100.0


# By criterion, then by plan: 0 to 1, more is better.
Marks: TypeAlias = "dict[str, dict[str, float]]"


def _marks(rows: Sequence[PlanRow], total_memory_bytes: int | None) -> Marks:
    """Return the marks of each criterion that was measured for every plan."""
    fastest = min(row.ms_per_step.median for row in rows)

    def speed(row: PlanRow) -> float:
        return fastest / row.ms_per_step.median if row.ms_per_step.median else 1.0

    def memory(row: PlanRow) -> float | None:
        held = _memory(row)
        if held is None or not total_memory_bytes:
            return None
        return max(0.0, 1.0 - held / total_memory_bytes)

    def utilisation(row: PlanRow) -> float | None:
        busy = _utilisation(row)
        return None if busy is None else min(1.0, max(0.0, busy))

    criteria: dict[str, Callable[[PlanRow], float | None]] = {
        "speed": speed,
        "memory": memory,
        "waits": lambda row: 1.0 / (1.0 + row.waits_per_step),
        "utilisation": utilisation,
        # Compiling favours no plan: all share the compiled code.
        "startup": lambda row: 1.0 / (1.0 + (row.capture_seconds or 0.0) / _STARTUP_SECONDS),
    }
    found = {name: {row.plan: mark(row) for row in rows} for name, mark in criteria.items()}
    return {
        name: {plan: mark for plan, mark in marks.items() if mark is not None}
        for name, marks in found.items()
        if None not in marks.values()
    }


def _measured_weights(marks: Marks, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of what was measured for every plan, summing to 1."""
    known = {name: weight for name, weight in weights.items() if name in marks}
    total = sum(known.values())
    if not total:
        # What has weight cannot be measured here; speed always can.
        return {"speed": 1.0}
    return {name: weight / total for name, weight in known.items()}


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


_SHOWN: dict[str, Callable[[PlanRow], str]] = {
    "memory": lambda row: f"{megabytes(_memory(row) or 0)} held",
    "waits": lambda row: f"{row.waits_per_step:.2f} host waits a step",
    "utilisation": lambda row: f"device busy {_utilisation(row) or 0.0:.0%}",
    "startup": lambda row: f"{row.capture_seconds or 0.0:.1f} s of capturing",
}


def _why_not_fastest(
    best: PlanRow, rows: Sequence[PlanRow], *, marks: Marks, weights: Mapping[str, float]
) -> Iterator[str]:
    """Name the fastest plan and what outweighed its speed; nothing if it is the best."""
    fastest = min(rows, key=lambda row: row.ms_per_step.median)
    if fastest.ms_per_step.median == best.ms_per_step.median:
        return
    ratio = best.ms_per_step.median / fastest.ms_per_step.median
    yield (
        f"not the fastest: {fastest.plan} takes {fastest.ms_per_step.median:.2f} ms a step, "
        f"{ratio:.2f}x the steps a second"
    )
    decided = [
        name
        for name, weight in weights.items()
        if weight * (marks[name][best.plan] - marks[name][fastest.plan]) > 0.0
    ]
    if not decided:
        yield "speed has no weight; of plans that are equal in what has, the first was taken"
        return
    figures = [f"{name} ({_SHOWN[name](best)}, not {_SHOWN[name](fastest)})" for name in decided]
    yield f"decided by {' and '.join(figures)}; a weight of 0 leaves that out"
