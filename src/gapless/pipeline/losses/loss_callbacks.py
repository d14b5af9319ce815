"""Report losses that have arrived: by calls of `on_values`, and by a warning of the first that is not finite."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gapless.pipeline.losses.loss_history import LossHistory, NonFinite, StepValues


class LossCallbacks:
    """Calls `on_values` every so many steps, and warns of the first value that is not finite.

    Args:
        every: steps between two calls; None: nobody asks for values.
        on_values: is called with the values of a step; None: rows are sent, and nobody is called.
        warns: whether to warn.
        lock: guards the history.

    Attributes:
        on_values: as given.
    """

    def __init__(
        self,
        every: int | None,
        on_values: Callable[[StepValues], object] | None,
        *,
        warns: bool,
        lock: AbstractContextManager[bool],
    ) -> None:
        self._every = every
        self.on_values = on_values
        self._warns = warns
        self._lock = lock
        self._is_calling = False
        self._warned_of: NonFinite | None = None

    def are_due(self, num_added: int) -> bool:
        """Return whether the values of the step that was added last are asked for."""
        return self._every is not None and num_added % self._every == 0

    def can_call(self, history: LossHistory) -> bool:
        """Return whether values have arrived that `on_values` is to be called with."""
        assert self._every is not None
        return history.num_reported + self._every <= history.num_read

    def call(self, current: Callable[[], LossHistory]) -> None:
        """Call `on_values` with the steps that are due and have arrived; not under the lock.

        Args:
            current: returns the history as it is, which a call may reset.

        Raises:
            Exception: what `on_values` raises.
        """
        if self.on_values is None:
            return
        while (values := self._next(current)) is not None:
            try:
                self.on_values(values)
            finally:
                self._is_calling = False

    def _next(self, current: Callable[[], LossHistory]) -> StepValues | None:
        # One call at a time, in whichever thread, keeps them in order.
        assert self._every is not None
        with self._lock:
            history = current()
            if self._is_calling or not self.can_call(history):
                return None
            self._is_calling = True
            history.num_reported += self._every
            return history.step(history.num_reported - 1)

    def warn(self, found: NonFinite | None) -> None:
        """Warn of the first value that is NaN or infinite, once; called by what the user called."""
        if found is None or found is self._warned_of or not self._warns:
            return
        self._warned_of = found
        warnings.warn(
            f"`{found.name}` of step {found.step} is {found.value}, expected a finite number",
            RuntimeWarning,
            stacklevel=3,
        )
