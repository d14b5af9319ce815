"""When a run with a limit of time has to end: early enough for its final model and its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


# Of the limit, which is kept for the end of a run that nothing is known of yet, and in any case.
_FIRST_SHARE, _LEAST_SHARE = 0.1, 0.02


class TimeLimit:
    """Says when training has to end so that the run is done in its time.

    The end of a run translates the test pairs, and validates a few candidates for the final model.
    How long that takes is known from the newest validation.

    Args:
        limit_seconds: of the whole run, in all its processes; None: it has no limit.
        clock: returns the seconds of the run so far.
        end_validations: that the end of the run takes the time of.
    """

    def __init__(
        self,
        limit_seconds: float | None,
        *,
        clock: Callable[[], float],
        end_validations: float,
    ) -> None:
        self._limit = limit_seconds
        self._clock = clock
        self._end_validations = end_validations
        self._end_seconds: float | None = None

    def note_validation(self, seconds: float) -> None:
        """Take note of how long a validation took."""
        self._end_seconds = self._end_validations * seconds

    @property
    def seconds_left(self) -> float | None:
        """Seconds until training has to end, below 0 when it should have; None without a limit."""
        if self._limit is None:
            return None
        end = self._end_seconds
        reserve = self._limit * _FIRST_SHARE if end is None else end + self._limit * _LEAST_SHARE
        return self._limit - reserve - self._clock()

    @property
    def is_up(self) -> bool:
        """Whether what is left is needed for the end of the run."""
        left = self.seconds_left
        return left is not None and left <= 0
