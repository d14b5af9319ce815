"""When a run ends before its last update: signals, a failure of the loader, and a limit of time."""

from __future__ import annotations

import signal
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Self

from gapless.errors import LoaderError
from gapless.pipeline.loaders import end_loader


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from gapless.nmt.data.batch import AnyBatch


_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class StopNow(Exception):  # noqa: N818  (nothing went wrong)
    """Work that nothing is lost by is given up, since the run was asked to stop."""


class StopRequest:
    """Takes SIGTERM, SIGINT and SIGHUP as a request to stop.

    SIGUSR1 asks to save.

    What was ignored at start stays so: SIGHUP under nohup, SIGINT in the background of a script.

    Args:
        second_raises: a second SIGINT raises KeyboardInterrupt. Otherwise somebody else sees to it, and
            the process ends once the run has stopped: signals that come then mean nothing.

    Attributes:
        number: of the signal that asked the run to stop; None: it was not asked.
        failure: of the loader, at the end of an update, which stops the run as well.
    """

    def __init__(self, *, second_raises: bool = True) -> None:
        self.number: int | None = None
        self.failure: LoaderError | None = None
        self._second_raises = second_raises
        self._is_save_due = False
        self._former: dict[int, object] = {}
        self._tell: Callable[[int], object] | None = None

    def tell_others(self, tell: Callable[[int], object] | None) -> None:
        """Pass signals on to other ranks; all of them set `number` when they agree.

        A failure of the loader is then raised at once: a rank alone cannot end in good order.

        Args:
            tell: is called with the number of the signal that asks the run to stop; None: a signal
                is a request at once, as for a process alone.
        """
        self._tell = tell

    @property
    def has_several_ranks(self) -> bool:
        """Whether several ranks agree on a stop."""
        return self._tell is not None

    @property
    def is_set(self) -> bool:
        """Whether the run was asked to stop, or has to."""
        return self.number is not None or self.failure is not None

    def check(self) -> None:
        """Give up what is under way if the run was asked to stop.

        Raises:
            StopNow: it was.
        """
        if self.is_set:
            raise StopNow

    def take_save(self) -> bool:
        """Return whether the run was asked to save since the last call."""
        is_due, self._is_save_due = self._is_save_due, False
        return is_due

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGUSR1:
            self._is_save_due = True
        elif self.number is None and self._tell is not None:
            self._tell(number)
        elif self.number is None:
            self.number = number
        elif number == signal.SIGINT and self._second_raises:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        # Python allows signal handlers to be set in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in _TAKEN:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._former[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        while self._former:
            number, handler = self._former.popitem()
            ends = self.number is not None and not self._second_raises
            # Not SIG_IGN: the command line is still to hear of a second SIGINT, which ends the process.
            signal.signal(number, _ignore if ends else handler)  # type: ignore[arg-type]


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def until_stopped(
    batches: Iterable[AnyBatch],
    stop: StopRequest,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[AnyBatch]:
    """Yield batches until a stop is requested, or the loader fails, and an update is complete.

    Args:
        batches: of a loader.
        stop: the request.
        is_over: is asked after each update whether this is the last.

    Raises:
        LoaderError: the loader failed within an update, or of one of several ranks. At the end of
            an update of a process alone, the request takes it.
    """
    source = iter(batches)
    batch = None
    try:
        for batch in source:
            yield batch
            if batch.ends_update and (stop.is_set or is_over()):
                return
    except LoaderError as failure:
        if stop.has_several_ranks or (batch is not None and not batch.ends_update):
            raise
        stop.failure = failure
    finally:
        end_loader(source)


# --- time ---


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

    So what depends on time is decided the same on all ranks.

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
