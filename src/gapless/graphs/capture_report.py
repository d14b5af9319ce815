"""What is captured and what is not, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from gapless.graphs.refusal import Refusal


@dataclass(kw_only=True)
class CaptureReport:
    """What is captured, and what is not.

    Attributes:
        num_graphs: graphs captured, those that were captured anew included.
        num_replays: steps that ran as a graph.
        num_eager: steps that ran eagerly.
        seconds: time spent capturing, during which the device is idle.
        refusal: why nothing more is captured, None if nothing forbids it. Graphs that exist are
            still replayed.
        note: what else is worth knowing, None if there is nothing.
    """

    num_graphs: int = 0
    num_replays: int = 0
    num_eager: int = 0
    seconds: float = 0.0
    refusal: Refusal | None = None
    note: str | None = None

    def __str__(self) -> str:
        """Return one line: what ran as a graph, what ran eagerly, and why."""
        done = (
            f"captured {_count(self.num_graphs, 'graph')} in {self.seconds:.1f} s, "
            f"{_count(self.num_replays, 'step')} replayed, {self.num_eager} ran eagerly"
        )
        if self.refusal is not None:
            done = f"{done}; no further graph: {self.refusal.text}"
        return done if self.note is None else f"{done}; {self.note}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the refusal is its text."""
        refusal = None if self.refusal is None else self.refusal.text
        return {**vars(self), "refusal": refusal}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
