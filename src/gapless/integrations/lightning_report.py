"""What became of the steps of a fit of Lightning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.graphs.capture_report import CaptureReport


@dataclass(kw_only=True)
class LightningReport:
    """What was captured in a fit, and what was not; as a text it is a few lines.

    Attributes:
        steps: a report for each way in which the trainer had its steps done, such as before and after it
            accumulated other numbers of batches.
        reasons: why steps ran as Lightning runs them.
        num_as_written: steps that ran so.
    """

    steps: list[CaptureReport] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    num_as_written: int = 0

    @property
    def num_graphs(self) -> int:
        """Graphs captured."""
        return sum(report.num_graphs for report in self.steps)

    @property
    def num_replays(self) -> int:
        """Steps that ran as a graph."""
        return sum(report.num_replays for report in self.steps)

    @property
    def num_eager(self) -> int:
        """Steps that ran as written."""
        return self.num_as_written + sum(report.num_eager for report in self.steps)

    @property
    def refusals(self) -> list[str]:
        """All that forbids to capture more."""
        found = [refusal.text for report in self.steps for refusal in report.refusals]
        return [*self.reasons, *found]

    def refuse(self, reason: str) -> None:
        """Add a reason, unless it is there already."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def __str__(self) -> str:
        """Return what ran as a graph and what ran as written, and why."""
        lines = [f"as written: {reason}" for reason in self.reasons]
        if self.num_as_written:
            lines.append(f"{self.num_as_written} steps ran as Lightning runs them")
        return "\n".join([*map(str, self.steps), *lines])
