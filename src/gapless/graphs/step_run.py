"""What happened to one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal


if TYPE_CHECKING:
    from collections.abc import Hashable

    from gapless.graphs.time_spent import What


@dataclass(slots=True)
class StepRun:
    """What happened to one batch.

    Attributes:
        out: what the step returned, valid until the next batch.
        what: it was, to the account.
        kind: what the batch shares with others that the same graph can take; None if no graph can
            take it.
    """

    out: Any
    what: What
    kind: Hashable | None

    @property
    def way(self) -> Literal["eager", "replay", "capture"]:
        """How it ran: eagerly, as a graph, or eagerly with something beside it, which takes longer."""
        if self.what == "replay":
            return "replay"
        return "eager" if self.what == "plain" else "capture"
