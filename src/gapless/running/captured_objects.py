"""What of a script ran as graphs: plain records, no torch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.graphs.capture_report import CaptureReport


# Nobody reads more.
_MOST_NAMES = 6
_MOST_LINES = 6


@dataclass(frozen=True, kw_only=True)
class CapturedObjects:
    """What was captured in a run, and what was not.

    Attributes:
        reports: of each object, with the name of its class.
        why_nothing: why no object was captured; empty if one was.
        problem: what went wrong with gapless itself; empty if nothing.
    """

    reports: Sequence[tuple[str, CaptureReport]] = ()
    why_nothing: str = ""
    problem: str = ""

    @property
    def saved_s(self) -> float:
        """Seconds that replays have saved, by the account."""
        return sum(report.spent.saved_s for _, report in self.reports)

    @property
    def spent_s(self) -> float:
        """Seconds that it took to watch, capture and audit, by the account."""
        spent = [report.spent for _, report in self.reports]
        return sum(
            one.watching_s + one.capturing_s + one.auditing_s + one.beside_s for one in spent
        )

    def text(self) -> str:
        """Return one paragraph."""
        lines = [f"gapless run: {self._what_ran()}"]
        if self.reports:
            lines.append(
                f"  by the account: {self.saved_s:.1f} s saved, {self.spent_s:.1f} s spent on watching, "
                "capturing and auditing"
            )
        told = list(dict.fromkeys(self._told()))
        lines += [f"  {line}" for line in told[:_MOST_LINES]]
        if len(told) > _MOST_LINES:
            lines.append(f"  and {len(told) - _MOST_LINES} more")
        if self.problem:
            lines.append(f"  gapless itself failed, the script did not: {self.problem}")
        return "".join(f"{line}\n" for line in lines)

    def _what_ran(self) -> str:
        if not self.reports:
            return f"nothing ran as a graph: {self.why_nothing}"
        calls: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for name, report in self.reports:
            num_graphs, num = calls[name]
            calls[name] = (
                num_graphs + report.num_replays,
                num + report.num_steps,
            )
        if not any(num for _, num in calls.values()):
            return "nothing ran as a graph: the script ended before further calls"
        names = [f"{name} {_share(*counts)}" for name, counts in calls.items()]
        rest = len(names) - _MOST_NAMES
        more = [f"and {rest} more"] if rest > 0 else []
        total = _share(*map(sum, zip(*calls.values(), strict=True)))
        return f"{total} ran as graphs: {', '.join([*names[:_MOST_NAMES], *more])}"

    def _told(self) -> Iterator[str]:
        for name, report in self.reports:
            for difference in report.audits.differences:
                yield f"{name}: {difference}"
        for name, report in self.reports:
            for refusal in report.refusals:
                yield f"as written, {name}: {refusal.text}"
            if report.in_its_place:
                yield f"{name}: {report.parts_text}"
            if report.note:
                yield f"{name}: {report.note}"
            elif report.num_eager and not report.num_graphs and not report.refusals:
                yield (
                    f"as written, {name}: no kind of its calls came often enough; a graph takes calls of one shape, "
                    "and the first four of each run as written"
                )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "objects": [{"name": name, **report.as_dict()} for name, report in self.reports],
            "saved_seconds": self.saved_s,
            "spent_seconds": self.spent_s,
            "why_nothing": self.why_nothing,
            "problem": self.problem,
        }


def _share(num_graphs: int, num: int) -> str:
    return f"{num_graphs / max(num, 1):.0%} of {num:,} calls"
