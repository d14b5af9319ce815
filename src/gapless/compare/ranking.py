"""Which plan to use, from measured figures and weights that the user can set.

The origin weighed performance 30 %, difficulty of building 25 %, complexity 15 %, maintainability
15 %, memory 10 % and risk 5 %, with marks that were guessed. Here speed stands for performance,
and speed and memory keep their weights. The others say nothing about a choice any more: every plan
is built, and one flag, so they are equal for all. What is left of risk is whether a plan computes
the same: one that does not is never recommended.

Three further criteria are measured and can be given weight: they have none by themselves, because
what they are worth shows in the speed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gapless.errors import UserError
from gapless.report.comparison import PlanRow, Recommendation


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


DEFAULT_PLAN = "gapless"

# Source: origin/002, section 3.2.
DEFAULT_WEIGHTS = {
    "speed": 0.30,
    "memory": 0.10,
    "waits": 0.0,
    "utilisation": 0.0,
    "startup": 0.0,
}

_EQUAL_FOR_ALL = ("difficulty", "complexity", "maintainability", "risk")

# A start-up of so many seconds halves its score.
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
    reference: str = "blocking",
) -> Recommendation:
    """Return the plan with the best weighted score, and why.

    Each criterion gives 0 to 1: the best speed or least memory among the plans over a plan's own,
    1 / (1 + host waits a step), the share of time in which the device is busy, and 1 / (1 +
    minutes of capturing and compiling). What was not measured of any plan counts for none.

    Args:
        rows: of all plans.
        weights: of the criteria, summing to 1.
        is_accelerator: whether plans can differ by more than noise.
        reference: the plan that reasons compare with, if it is there.
    """
    sound = [row for row in rows if row.identical is not False]
    excluded = {
        row.plan: "does not compute the same bits" for row in rows if row.identical is False
    }
    if not sound:
        return Recommendation(
            plan=None,
            reasons=("no plan computes the same bits",),
            scores={},
            weights=dict(weights),
            excluded=excluded,
        )
    in_force = _measured_weights(sound, weights)
    scores = {row.plan: _score(row, sound, in_force) for row in sound}
    # Sorting keeps the order of the rows, so of equal plans the simpler one comes first.
    ranked = dict(sorted(scores.items(), key=lambda item: -item[1]))
    by_name = {row.plan: row for row in sound}
    if is_accelerator:
        plan = next(iter(ranked))
        reasons = _reasons(by_name[plan], sound, by_name.get(reference))
    else:
        plan = DEFAULT_PLAN if DEFAULT_PLAN in by_name else sound[0].plan
        reasons = (
            "a CPU has no gaps to close: work runs in the host's own order, so plans differ by "
            "noise alone",
            f"{plan} needs no change when a GPU is there"
            if plan == DEFAULT_PLAN
            else f"of equal plans, {plan} is the first that was asked for",
        )
    return Recommendation(
        plan=plan, reasons=reasons, scores=ranked, weights=in_force, excluded=excluded
    )


# --- scores ---


def _memory(row: PlanRow) -> float | None:
    return row.held_memory_bytes or row.peak_memory_bytes or None


def _utilisation(row: PlanRow) -> float | None:
    if row.busy_share is not None:
        return row.busy_share
    return None if row.nvml_percent is None else row.nvml_percent / 100.0


def _startup(row: PlanRow) -> float | None:
    return (row.capture_seconds or 0.0) + (row.compile_seconds or 0.0)


_READ: dict[str, Callable[[PlanRow], float | None]] = {
    "speed": lambda row: row.ms_per_step.median,
    "memory": _memory,
    "waits": lambda row: row.waits_per_step,
    "utilisation": _utilisation,
    "startup": _startup,
}


def _measured_weights(rows: Sequence[PlanRow], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of what was measured of every plan, summing to 1."""
    known = {
        name: weight
        for name, weight in weights.items()
        if all(_READ[name](row) is not None for row in rows)
    }
    total = sum(known.values())
    if not total:
        # What was asked for cannot be measured here; speed always can.
        return {"speed": 1.0}
    return {name: weight / total for name, weight in known.items()}


def _score(row: PlanRow, rows: Sequence[PlanRow], weights: Mapping[str, float]) -> float:
    return sum(weight * _criterion(name, row, rows) for name, weight in weights.items())


def _criterion(name: str, row: PlanRow, rows: Sequence[PlanRow]) -> float:
    read = _READ[name]
    value = read(row) or 0.0
    if name in ("speed", "memory"):
        least = min(read(other) or 0.0 for other in rows)
        return least / value if value else 1.0
    if name == "utilisation":
        return min(1.0, max(0.0, value))
    scale = _STARTUP_SECONDS if name == "startup" else 1.0
    return 1.0 / (1.0 + value / scale)


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
    costs = []
    mine, other = _memory(best), None if reference is None else _memory(reference)
    if mine and other and reference is not best:
        costs.append(f"{mine / other:.2f}x the memory")
    seconds = _startup(best)
    if seconds:
        costs.append(f"{seconds:.1f} s of capturing and compiling at the start")
    return f"costs {' and '.join(costs)}" if costs else ""


def _equals(best: PlanRow, rows: Sequence[PlanRow]) -> str:
    near = [
        row.plan for row in rows if row is not best and row.ms_per_step.overlaps(best.ms_per_step)
    ]
    return f"as fast within the spread of the rounds: {', '.join(near)}" if near else ""
