"""Whether what the doctor reported is what was measured: arithmetic alone."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any


# Of what removing a wait saves, and of the step.
RELATIVE, OF_THE_STEP = 0.10, 0.02
# What saves no more than the first is reported as no more than the second.
NOTHING, REPORTED_NOTHING = 0.005, 0.01
OF_A_TRIAL = 0.10
OVERHEAD = 0.15


def saved_share(with_wait: list[float], without: list[float]) -> float:
    """Return which share of the step is saved by leaving a wait out, by medians."""
    return 1.0 - median(without) / median(with_wait)


def is_near(reported: float, saved: float) -> bool:
    """Return whether a reported share of the step is near enough to the one that is saved."""
    if saved <= NOTHING:
        return reported <= REPORTED_NOTHING
    return abs(reported - saved) <= max(RELATIVE * saved, OF_THE_STEP)


def lines_that_wait(source: str) -> set[int]:
    """Return the lines of a planted loop that are labelled as waits, from 1."""
    return {
        number for number, line in enumerate(source.splitlines(), start=1) if "# waits:" in line
    }


def of_lines(session: dict[str, Any], script: Path, lines: set[int]) -> list[dict[str, Any]]:
    """Return the findings of a session at lines of a script."""
    return [
        finding
        for finding in session["findings"]
        if (site := finding["site"])
        and Path(site["path"]).name == script.name
        and site["line"] in lines
    ]


def step_ms(session: dict[str, Any]) -> float | None:
    """Return the median ms of a step that a session watched; None if it saw none."""
    steps = session.get("steps")
    return steps["wall_ms"]["median"] if steps else None


def share_of(session: dict[str, Any], findings: list[dict[str, Any]], key: str) -> float | None:
    """Return the share of the step that findings have of a time; None if it was not measured."""
    whole = step_ms(session)
    values = [finding.get(key) for finding in findings]
    if not whole or not values or any(value is None for value in values):
        return None
    return float(sum(values)) / whole


def overhead_of(steps: list[tuple[float, str]]) -> dict[str, float | None]:
    """Return what watching costs, from the ms and the phase of each step in their order.

    Steps before the watching are the reference; a phase's first step, in which it is put in or taken
    out, and the script's first ten, with the doctor's early look, stand for nothing.
    """
    phases: dict[str, list[float]] = {}
    kind, began = "before", False
    for place, (ms, phase) in enumerate(steps):
        began = began or (phase != "plain" and place >= 10)
        now = phase if phase != "plain" else "after" if began else "before"
        if now == kind and place >= 10:
            phases.setdefault(now, []).append(ms)
        kind = now
    found = {name: median(values) for name, values in phases.items()}
    before = found.get("before")
    return {f"{name}_ms": found.get(name) for name in ("before", "sites", "times", "after")} | {
        f"{name}_overhead": found[name] / before - 1.0 if before and name in found else None
        for name in ("sites", "times", "after")
    }


def trial_gain(session: dict[str, Any], word: str) -> tuple[float | None, str]:
    """Return the gain of the trial whose name or change holds a word, and why there is none."""
    for trial in session.get("trials", []):
        if word in f"{trial['name']} {trial['change']}".lower():
            speeds = [trial["steps_per_second"], trial["baseline"]]
            if None in speeds:
                return None, trial["refusal"] or "it did not run"
            return speeds[0]["median"] / speeds[1]["median"], ""
    return None, f"no trial named {word!r}"
