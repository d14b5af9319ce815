"""What happened to one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal


if TYPE_CHECKING:
    from collections.abc import Hashable

    from gapless.graphs.account import What


@dataclass(slots=True)
class StepRun:
    """What happened to one batch.

    Attributes:
        out: what the step returned, valid until the next batch.
        way: how it ran: eagerly, as a graph (`replay`), or eagerly while it was watched or a graph
            was captured for it (`capture`), which takes longer.
        kind: what the batch shares with others that the same graph can take; None if no graph can
            take it.
        action: what was done beside it, None if nothing was.
    """

    out: Any
    way: Literal["eager", "replay", "capture"]
    kind: Hashable | None
    action: Literal["watch", "capture", "audit"] | None = None

    @property
    def what(self) -> What:
        """What it is to the account."""
        if self.way == "replay":
            return "replay"
        return self.action or "plain"
