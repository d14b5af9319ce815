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
    """Takes the first Ctrl-C or SIGTERM as a request to stop; the second one acts as usual.

    Attributes:
        is_set: whether the run was asked to stop.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._former: dict[signal.Signals, object] = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.is_set = True
        self._restore()

    def _restore(self) -> None:
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        # Python allows signal handlers to be set in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()


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
