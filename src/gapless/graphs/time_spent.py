"""What one captured object has cost and saved, and in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias


# What a call is, as its time goes.
What: TypeAlias = Literal["plain", "watch", "capture", "audit", "replay"]


@dataclass
class TimeSpent:
    """What one captured object has cost and saved, in seconds of the host.

    Attributes:
        watching_s: more than as written, in calls that were watched.
        capturing_s: likewise, in calls that were captured and proved.
        auditing_s: likewise, in audits.
        beside_s: likewise, in plain calls.
        saved_s: less than as written, in replays.
        replayed_s: what these would have taken as written.
        waiting: calls that ran as written since there was no room for what comes next, by what that is.
        num_captures: calls that were captured and proved.
    """

    watching_s: float = 0.0
    capturing_s: float = 0.0
    auditing_s: float = 0.0
    beside_s: float = 0.0
    saved_s: float = 0.0
    replayed_s: float = 0.0
    waiting: Counter[What] = field(default_factory=Counter)
    num_captures: int = 0

    @property
    def num_waiting(self) -> int:
        """How many calls ran as written since there was no room for what comes next."""
        return self.waiting.total()

    @property
    def is_worth_a_line(self) -> bool:
        """Whether there is anything to say."""
        times = (self.watching_s, self.capturing_s, self.auditing_s, self.beside_s, self.saved_s)
        return self.num_waiting > 0 or max(times) >= _WORTH_A_WORD_S

    def add(self, what: What, more_s: float) -> None:
        """Add the time of an action beyond that of a plain call; those of replays are told by themselves."""
        if what == "watch":
            self.watching_s += more_s
        elif what == "capture":
            self.capturing_s += more_s
            self.num_captures += 1
        elif what == "audit":
            self.auditing_s += more_s

    def add_all(self, others: TimeSpent) -> None:
        """Take in what another object has cost and saved."""
        for one in fields(TimeSpent):
            setattr(self, one.name, getattr(self, one.name) + getattr(others, one.name))

    def __str__(self) -> str:
        """Return one line."""
        parts = [
            f"{seconds:.1f} s {what}"
            for seconds, what in (
                (self.watching_s, "watching"),
                (self.capturing_s, "capturing and proving"),
                (self.auditing_s, "auditing"),
                (self.beside_s, "beside calls as written"),
            )
            if seconds >= _WORTH_A_WORD_S
        ]
        return (
            f"spent {', '.join(parts) or 'no time'}, saved {self.saved_s:.1f} s{self._waiting()}"
        )

    def _waiting(self) -> str:
        if not self.waiting:
            return ""
        found = ", ".join(f"{num} to be {_DONE[what]}" for what, num in self.waiting.items())
        return f"; {self.num_waiting} calls waited for room: {found}"


_WORTH_A_WORD_S = 0.05
_DONE: dict[What, str] = {"watch": "watched", "capture": "captured", "audit": "audited"}
