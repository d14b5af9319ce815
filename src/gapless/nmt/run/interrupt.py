"""Stop a run at the end of an update, so that it can be resumed exactly."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

from gapless.pipeline.loaders import end_loader


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, TracebackType

    from gapless.nmt.data.batch import AnyBatch


class StopRequest:
    """Takes SIGTERM, SIGINT and SIGHUP as a request to stop, and SIGUSR1 as one to save.

    What was ignored at start stays so: SIGHUP under nohup, SIGINT in the background of a script.

    Args:
        second_raises: a second SIGINT raises KeyboardInterrupt. Otherwise somebody else sees to it.

    Attributes:
        number: of the signal that asked the run to stop; None: it was not asked.
    """

    def __init__(self, *, second_raises: bool = True) -> None:
        self.number: int | None = None
        self._second_raises = second_raises
        self._is_save_due = False
        self._former: dict[int, object] = {}

    @property
    def is_set(self) -> bool:
        """Whether the run was asked to stop."""
        return self.number is not None

    def take_save(self) -> bool:
        """Return whether the run was asked to save since the last call."""
        is_due, self._is_save_due = self._is_save_due, False
        return is_due

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGUSR1:
            self._is_save_due = True
        elif self.number is None:
            self.number = number
        elif number == signal.SIGINT and self._second_raises:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        # Python allows signal handlers to be set in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._former[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]


def until_stopped(batches: Iterable[AnyBatch], stop: StopRequest) -> Iterator[AnyBatch]:
    """Yield batches until a stop is requested and an update is complete."""
    source = iter(batches)
    try:
        for batch in source:
            yield batch
            if stop.is_set and batch.ends_update:
                return
    finally:
        end_loader(source)
