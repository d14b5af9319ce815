"""Which plan to use, from measured figures and weights that the user can set.

The origin weighed performance 30 %, difficulty of building 25 %, complexity 15 %, maintainability
15 %, memory 10 % and risk 5 %, with marks that were guessed. Here speed stands for performance,
and speed and memory keep their weights, with memory as a share of what the device has: held memory
costs nothing until something else has no room. The others say nothing about a choice any more: every plan
is built, and one flag, so they are equal for all. What is left of risk is whether a plan computes
the same: one that does not is never recommended, and none is if that could not be found out.

Three further criteria are measured and can be given weight: they have none by themselves, because
what they are worth shows in the speed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from gapless.errors import UserError
from gapless.records.comparison import PlanRow, Recommendation
from gapless.report.text import megabytes


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


DEFAULT_PLAN = "gapless"

# Source: origin/002, section 3.2.
DEFAULT_WEIGHTS = {
    "speed": 0.30,
    "memory": 0.10,
    "waits": 0.0,
    "utilisation": 0.0,
    "startup": 0.0,
}

_NONE_SOUND = "no plan computes the same bits"
_NOT_COMPARED = "bits were not compared"

_EQUAL_FOR_ALL = ("difficulty", "complexity", "maintainability", "risk")

# Capturing for so many seconds halves the score.
_STARTUP_SECONDS = 60.0


def parse_weights(items: Iterable[str]) -> dict[str, float]:
    """Return the weights of all criteria, from texts such as `speed=0.5`; they sum to 1.

    What is not named keeps its default.

    Raises:
        UserError: a text is no such pair, names no criterion, or all weights are 0.
    """
    weights = dict(DEFAULT_WEIGHTS)
    for item in items:
        name, _, text = item.partition("=")
        if name in _EQUAL_FOR_ALL:
            raise UserError(
                f"weight {name} is equal for all plans, since each is one flag; choose from "
                f"{', '.join(weights)}"
            )
        if name not in weights:
            raise UserError(
                f"weight must be NAME=NUMBER with a name of {', '.join(weights)}, but is {item!r}"
            )
        weights[name] = _number(text, item)
    total = sum(weights.values())
    if not total:
        raise UserError("all weights are 0, expected at least one above; give --weight speed=1")
    return {name: value / total for name, value in weights.items()}


def _number(text: str, item: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise UserError(f"weight must be NAME=NUMBER with a number of 0 or more, but is {item!r}")
    return value


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

    Each criterion gives 0 to 1: the least time of a step among the plans over a plan's own, the
    share of the device's memory that a plan leaves free, 1 / (1 + host waits a step), the share of
    time in which the device is busy, and 1 / (1 + minutes of capturing). What was not measured of
    every plan counts for none. If the plan is not the fastest, the reasons name the one that is,
    and what decided.

    Args:
        rows: of all plans.
        weights: of the criteria, summing to 1.
        is_accelerator: whether plans can differ by more than noise.
        total_memory_bytes: memory of the device; None if it is not known, and memory counts for
            nothing.
        reference: the plan that reasons compare with, if it is there.
        unknown: why it could not be found out which plans compute the same, and what to do; then
            none is recommended. What nobody wanted to know is no such reason.
    """
    if unknown:
        return _none(unknown, weights)
    sound = [row for row in rows if row.identical is not False]
    excluded = {
        row.plan: "does not compute the same bits" for row in rows if row.identical is False
    }
    if not sound:
        return _none([_NONE_SOUND], weights, excluded)
    marks = _marks(sound, total_memory_bytes)
    in_force = _measured_weights(marks, weights)
    scores = {
        row.plan: sum(weight * marks[name][row.plan] for name, weight in in_force.items())
        for row in sound
    }
    # Sorting keeps the order of the rows, so of equal plans the simpler one comes first.
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
    noise = (
        "a CPU has no gaps to close: work runs in the host's own order, so plans differ by noise "
        "alone"
    )
    if any(row.plan == DEFAULT_PLAN for row in rows):
        return DEFAULT_PLAN, (noise, f"{DEFAULT_PLAN} needs no change when a GPU is there")
    first = rows[0].plan
    return first, (noise, f"of equal plans, {first} is the first that was asked for")


# --- scores ---


def _memory(row: PlanRow) -> int | None:
    return row.held_memory_bytes or row.peak_memory_bytes or None


def _utilisation(row: PlanRow) -> float | None:
    if row.busy_share is not None:
        return row.busy_share
    return None if row.nvml_percent is None else row.nvml_percent / 100.0


# By criterion, of every plan: 0 to 1, the more the better.
Marks: TypeAlias = "dict[str, dict[str, float]]"


def _marks(rows: Sequence[PlanRow], total_memory_bytes: int | None) -> Marks:
    """Return the marks of each criterion that was measured of every plan."""
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
        # Compiled code is shared by all plans, so that it favours none.
        "startup": lambda row: 1.0 / (1.0 + (row.capture_seconds or 0.0) / _STARTUP_SECONDS),
    }
    found = {name: {row.plan: mark(row) for row in rows} for name, mark in criteria.items()}
    return {
        name: {plan: mark for plan, mark in marks.items() if mark is not None}
        for name, marks in found.items()
        if None not in marks.values()
    }


def _measured_weights(marks: Marks, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of what was measured of every plan, summing to 1."""
    known = {name: weight for name, weight in weights.items() if name in marks}
    total = sum(known.values())
    if not total:
        # What was asked for cannot be measured here; speed always can.
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
    advice = "; the device is the bottleneck, and no plan helps further"
    return f"device busy {best.busy_share:.0%} of the time{beside}" + (
        advice if best.busy_share >= 0.95 else ""
    )


def _costs(best: PlanRow, reference: PlanRow | None) -> str:
    """Return what this plan takes beyond the reference, as far as printed figures show it."""
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
    return f"as fast within the spread of the rounds: {', '.join(near)}" if near else ""


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
        yield "speed has no weight, and by what has some the first of equal plans was taken"
        return
    figures = [f"{name} ({_SHOWN[name](best)}, not {_SHOWN[name](fastest)})" for name in decided]
    without = " ".join(f"--weight {name}=0" for name in decided)
    yield f"decided by {' and '.join(figures)}; {without} leaves that out"
