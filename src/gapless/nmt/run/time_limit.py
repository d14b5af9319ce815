"""The time of a run, and when one with a limit has to end its training."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


# Share of the limit that is kept for the end of a run while nothing is known of it, and in any case.
_FIRST_SHARE, _LEAST_SHARE = 0.1, 0.02
# Python and torch start before the clock does. More than this share is not kept for them.
_START_SECONDS, _START_SHARE = 4.0, 0.05


class WallClock:
    """Counts the seconds of a run, in all its processes.

    Attributes:
        earlier_seconds: of the processes before this one.
    """

    def __init__(self) -> None:
        self._started_at = perf_counter()
        self.earlier_seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds of the run so far."""
        return self.earlier_seconds + perf_counter() - self._started_at


class AgreedClock:
    """Counts the seconds of a run of several ranks: those of rank 0 when all last agreed on them.

    So what depends on time is decided alike on all ranks.

    Args:
        own: clock of this rank.

    Attributes:
        earlier_seconds: of the processes before these.
    """

    def __init__(self, own: WallClock) -> None:
        self._own = own
        self.earlier_seconds = 0.0
        self._agreed = 0.0

    def own_seconds(self) -> float:
        """Return the seconds of the run so far, as this rank counts them."""
        return self.earlier_seconds + self._own.seconds()

    def agree(self, seconds: float) -> None:
        """Take note of the seconds that all ranks agree on; the clock never goes back."""
        self._agreed = max(self._agreed, seconds)

    def seconds(self) -> float:
        """Return the seconds of the run when the ranks last agreed on them."""
        return max(self._agreed, self.earlier_seconds)


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
        self._was_up = False

    def note_validation(self, seconds: float) -> None:
        """Take note of how long a validation took."""
        self._end_seconds = self._end_validations * seconds

    @property
    def seconds_left(self) -> float | None:
        """Seconds until training has to end, below 0 when it should have; None without a limit."""
        if self._limit is None:
            return None
        end, limit = self._end_seconds, self._limit
        reserve = limit * _FIRST_SHARE if end is None else end + limit * _LEAST_SHARE
        reserve += min(_START_SECONDS, limit * _START_SHARE)
        return limit - reserve - self._clock()

    @property
    def seconds_over(self) -> float:
        """Seconds by which the end of the run will probably exceed the limit; 0 if it will not."""
        if self._limit is None or self._end_seconds is None:
            return 0.0
        return max(0.0, self._clock() + self._end_seconds - self._limit)

    @property
    def is_up(self) -> bool:
        """Whether what is left is needed for the end of the run; once it is, that does not change.

        A quick last validation leaves more time than was thought, but training has ended by then.
        """
        left = self.seconds_left
        self._was_up = self._was_up or (left is not None and left <= 0)
        return self._was_up
