"""Decides which of the calls that a script repeats is its step, and hears those that it tells of itself.

No torch, and nothing that loads it: calls in, steps out.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol


if TYPE_CHECKING:
    from collections.abc import Iterator


Kind = Literal["backward", "replay", "loader", "optimizer", "function", "call"]

# Of two kinds the calls of the higher one are steps.
_RANK: dict[Kind, int] = {
    "backward": 0,
    "replay": 0,
    "loader": 1,
    "optimizer": 2,
    "function": 3,
    "call": 4,
}

# Another call marks the steps only after so many calls without an optimizer: a loader that is read before
# the training begins, or many batches of one update, are not yet a reason.
_CALLS_WITHOUT_OPTIMIZER = 8
_STANDS_IN: tuple[Kind, ...] = ("backward", "replay", "loader")

# Another optimizer is the more frequent one if it is ahead by more than this, or has been called so
# often since the last call of the chosen one.
_AHEAD = 2
_SILENT_CALLS = 8


@dataclass(frozen=True)
class Caller:
    """Something that is called again and again.

    Attributes:
        kind: of what is called.
        name: for people, such as "AdamW.step".
        key: distinguishes it from others of the same kind and name.
    """

    kind: Kind
    name: str
    key: int = 0

    def __str__(self) -> str:
        """Return what one call of it is, in a few words."""
        return f"a batch of {self.name}" if self.kind == "loader" else f"a call of {self.name}"


@dataclass
class StepSource:
    """Which caller's calls are steps: that which was asked for, or the most frequent optimizer.

    Attributes:
        asked: "auto", "optimizer" or "loader", the class of an optimizer, or the name of a function.
        chosen: the caller whose calls are steps; None as long as nobody knows.
        calls: of every caller that was seen.
    """

    asked: str = "auto"
    chosen: Caller | None = None
    calls: Counter[Caller] = field(default_factory=Counter)
    _since_chosen: Counter[Caller] = field(default_factory=Counter)

    def called(self, caller: Caller) -> bool:
        """Note a call and return whether a step has ended with it."""
        self.calls[caller] += 1
        if caller != self.chosen and self._is_better(caller):
            self.chosen = caller
        if caller != self.chosen:
            self._since_chosen[caller] += 1
            return False
        self._since_chosen.clear()
        return True

    @property
    def num_earlier_calls(self) -> int:
        """Calls of the chosen one before the newest."""
        return 0 if self.chosen is None else self.calls[self.chosen] - 1

    def _is_better(self, caller: Caller) -> bool:
        if not self._may_be(caller):
            return False
        if self.chosen is None:
            return self._needs_no_optimizer(caller)
        if _RANK[caller.kind] != _RANK[self.chosen.kind]:
            is_higher = _RANK[caller.kind] > _RANK[self.chosen.kind]
            return (is_higher and self._needs_no_optimizer(caller)) or self._is_silent(caller)
        return self.calls[caller] > self.calls[self.chosen] + _AHEAD or self._is_silent(caller)

    def _may_be(self, caller: Caller) -> bool:
        if caller.kind == "call":  # somebody says it outright
            return True
        if self.asked == "auto":
            return True
        if self.asked in ("optimizer", "loader"):
            return caller.kind == self.asked
        return self.asked in (caller.name, caller.name.partition(".")[0])

    def _needs_no_optimizer(self, caller: Caller) -> bool:
        """Whether calls of this one are steps although no optimizer has been called so far."""
        if caller.kind not in _STANDS_IN or self.asked == caller.kind:
            return True
        return self.calls[caller] > _CALLS_WITHOUT_OPTIMIZER

    def _is_silent(self, caller: Caller) -> bool:
        """Whether the chosen one has not been called for many calls of this one.

        An optimizer that waits while a loader is read waits for a validation.
        """
        if self.chosen is not None and (caller.kind, self.chosen.kind) == ("loader", "optimizer"):
            return False
        since = self._since_chosen[caller]
        before = self.calls[caller] - since
        per_step = before / max(1, self.calls[self.chosen]) if self.chosen else 0
        return since >= _SILENT_CALLS + 4 * per_step


class StepListener(Protocol):
    """Hears of each step of the script."""

    def step(self) -> None:
        """Note that a step has ended."""


_watches: list[StepListener] = []


def step() -> None:
    """Say that a step of the script has ended, for `gapless doctor --step` and `watch`.

    Where nobody watches, nothing happens. Only these calls are steps from then on.

    Sync: Does not block the host.
    """
    for watch in _watches:
        watch.step()


@contextmanager
def watched_by(watch: StepListener) -> Iterator[None]:
    """Let a watch hear of the steps in the body."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)
