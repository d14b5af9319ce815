"""How long torch spends compiling."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Self


if TYPE_CHECKING:
    from types import TracebackType


class CompileClock:
    """Add up the time that torch.compile spends in a `with` body, on any thread.

    Source: the callbacks of torch._dynamo, which are called around every compilation, once for
    those inside one another. They are private; torch 2.11 to 2.13 have them.

    Attributes:
        seconds: spent so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started_at: float | None = None

    def _start(self, *_: object) -> None:
        self._started_at = perf_counter()

    def _end(self, *_: object) -> None:
        if self._started_at is not None:
            self.seconds += perf_counter() - self._started_at
        self._started_at = None

    def __enter__(self) -> Self:
        # Here, because it takes seconds that other commands need not spend.
        from torch._dynamo.callback import callback_handler

        self._handler = callback_handler
        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handler.remove_start_callback(self._start)
        self._handler.remove_end_callback(self._end)
