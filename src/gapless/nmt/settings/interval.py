"""How often a run saves or validates: every so many updates, or after so much time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Callable


_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)?")


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What is between two saves or validations: updates, or seconds; the other is None."""

    updates: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, text: str, *, name: str = "save_every") -> Interval:
        """Return the interval that a text such as `200`, `30s`, `10min` or `2h` names.

        Args:
            text: the interval.
            name: of the setting that holds it.

        Raises:
            UserError: it names none.
        """
        found = _TIME.fullmatch(text.strip())
        number = float(found[1]) if found else 0.0
        if found and found[2] and 0 < number * _SECONDS[found[2]] < inf:
            return cls(seconds=number * _SECONDS[found[2]])
        if found and not found[2] and 0 < number < inf and number.is_integer():
            return cls(updates=int(number))
        raise UserError(
            f"`{name}` must be a number of updates such as 200, or a time such as 30s, 10min or "
            f"2h, but is {text!r}"
        )


def seconds_of(text: str, *, name: str) -> float:
    """Return the seconds that a text such as `90s`, `10min` or `2h` names.

    Args:
        text: the time.
        name: of the setting that holds it.

    Raises:
        UserError: it names none.
    """
    found = _TIME.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found and found[2] else 0.0
    if 0 < seconds < inf:
        return seconds
    raise UserError(f"`{name}` must be a time such as 90s, 10min or 2h, but is {text!r}")


class DueClock:
    """Says when the next save or validation is due.

    The clock is one that nobody sets, so a machine whose time of day jumps saves as before.

    Args:
        interval: between two.
        updates: done when the run starts or resumes.
        now: returns seconds from some moment on; None: those of this process.
    """

    def __init__(
        self,
        interval: Interval,
        *,
        updates: int,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._interval = interval
        self._now = now or (lambda: perf_counter())
        self.done(updates)

    @property
    def is_timed(self) -> bool:
        """Whether time says when one is due, and not the number of updates."""
        return self._interval.seconds is not None

    def is_due(self, updates: int) -> bool:
        """Return whether one is due after this many updates."""
        if self._is_owed:
            return True
        if self._interval.updates is not None:
            # Not those since the last one: a save at an epoch's end does not shift the others.
            return updates // self._interval.updates > self._updates // self._interval.updates
        assert self._interval.seconds is not None
        return self._now() - self._at >= self._interval.seconds

    def done(self, updates: int) -> None:
        """Take note that it is done after this many updates."""
        self._updates = updates
        self._at = self._now()
        self._is_owed = False

    def owe(self) -> None:
        """Let one be due, because it could not be done when it was."""
        self._is_owed = True
