"""What the runs say of the defaults: a verdict for each cut, and the table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.newcomers.cuts import FIRST_LESSON
from benchmarks.newcomers.lesson import LEAST_BLEU, MOST_SECONDS
from benchmarks.newcomers.order import DEFAULTS


if TYPE_CHECKING:
    from collections.abc import Sequence


LEAST_SHARE = 0.95

# A run may end this much after its time before the table says so.
_OVERRUN = 1.1


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """On the defaults of one cut.

    Attributes:
        cut: its name.
        seconds: the defaults took.
        bleu: of the defaults, on pairs never seen; None if they failed.
        best: run with the highest score on the same pairs, None if no configuration has a score.
        chosen: run with the highest score on other pairs, as a user would choose it.
        others: scores of all configurations.
        num_missing: configurations that were asked for, and not made for as long as the defaults.
        notes: what else is to be known.
    """

    cut: str
    seconds: float | None
    bleu: float | None
    best: dict[str, Any] | None
    chosen: dict[str, Any] | None
    others: list[float]
    num_missing: int
    notes: list[str]

    @property
    def share(self) -> float | None:
        """The score of the defaults over the best one."""
        return _share(self.bleu, self.best)

    @property
    def share_of_chosen(self) -> float | None:
        """The score of the defaults over that of the chosen configuration."""
        return _share(self.bleu, self.chosen)

    @property
    def word(self) -> str:
        """The verdict: passes, fails or incomplete."""
        if self.bleu is None:
            return "fails"
        if self.num_missing or self.share is None:
            return "incomplete"
        return "passes" if self.share >= LEAST_SHARE else "fails"


def judge(found: Sequence[dict[str, Any]], *, cut: str, num_configurations: int) -> Verdict:
    """Return the verdict on a cut whose defaults have been run."""
    own = [one for one in found if one["cut"] == cut]
    defaults = next(one for one in own if one["run"] == DEFAULTS)
    began = [one for one in own if one["max_time"] is not None]
    others = [one for one in began if _seconds(one) >= math.floor(defaults.get("seconds", 0.0))]
    scored = [one for one in others if one["problem"] is None]
    return Verdict(
        cut=cut,
        seconds=defaults.get("seconds"),
        bleu=defaults.get("bleu"),
        best=max(scored, key=lambda one: one["bleu"], default=None),
        chosen=max(scored, key=lambda one: one["choosing_bleu"], default=None),
        others=[one["bleu"] for one in scored],
        num_missing=num_configurations - len(others),
        notes=[*_seeds(own), *_problems(own), *_overruns(scored), *_short(began, others)],
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a Markdown table, and the notes below it."""
    lines = [
        "| cut | seconds | BLEU of the defaults | best configuration | share | share of the "
        "one chosen on other pairs | median of configurations | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in verdicts:
        best = f"{one.best['bleu']:.2f} ({one.best['run']})" if one.best else "-"
        middle = f"{median(one.others):.2f} of {len(one.others)}" if one.others else "-"
        cells = [one.cut, _number(one.seconds, ".0f"), _number(one.bleu, ".2f"), best]
        cells += [_percent(one.share), _percent(one.share_of_chosen), middle, one.word]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"* {one.cut}: {note}" for one in verdicts for note in one.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def lesson_line(found: dict[str, Any]) -> str:
    """Return what came of the first lesson, in one line."""
    if found["problem"]:
        return f"{FIRST_LESSON}: fails: {found['problem']}"
    return (
        f"{FIRST_LESSON}: {'passes' if lesson_passes(found) else 'fails'}: BLEU {found['bleu']:.2f} "
        f"(at least {LEAST_BLEU:.0f}) in {found['seconds']:.0f} s (at most {MOST_SECONDS:.0f}), "
        f"{found['processor_seconds']:.0f} s of the processor"
    )


def lesson_passes(found: dict[str, Any]) -> bool:
    """Return whether the first lesson was learned in its time."""
    return (
        found["problem"] is None
        and found["bleu"] >= LEAST_BLEU
        and found["seconds"] <= MOST_SECONDS
    )


def _share(bleu: float | None, other: dict[str, Any] | None) -> float | None:
    return bleu / other["bleu"] if bleu is not None and other and other["bleu"] else None


def _seeds(own: list[dict[str, Any]]) -> list[str]:
    repeats = [one for one in own if one["run"].startswith(f"{DEFAULTS}, ") and not one["problem"]]
    scores = ", ".join(f"{one['bleu']:.2f}" for one in repeats)
    return [f"the defaults with other seeds have {scores}"] if repeats else []


def _problems(own: list[dict[str, Any]]) -> list[str]:
    return [f"{one['run']}: {one['problem']}" for one in own if one["problem"]]


def _overruns(scored: list[dict[str, Any]]) -> list[str]:
    return [
        f"{one['run']} took {one['seconds']:.0f} s and was given {one['max_time']}"
        for one in scored
        if one["seconds"] > _OVERRUN * _seconds(one)
    ]


def _short(began: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[str]:
    short = len(began) - len(others)
    return [f"configurations with less time than the defaults took: {short}"] if short else []


def _seconds(one: dict[str, Any]) -> float:
    return float(one["max_time"].removesuffix("s"))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
