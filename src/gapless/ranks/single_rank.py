"""A process that trains alone: nothing is sent, and nothing is waited for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeVar

from gapless.ranks.flags import OwnFlags


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from gapless.ranks.protocol import Agreement, Blocking, GradientSum


T = TypeVar("T")


class SingleRank:
    """Implements `Ranks` for a process that trains alone."""

    rank = 0
    world = 1
    is_first = True

    def sum_gradients(self, params: Iterable[torch.nn.Parameter]) -> GradientSum:
        """Return what leaves gradients as they are."""
        del params
        return _NoSum()

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a view of the rows with a first dimension of 1."""
        return rows.unsqueeze(0)

    def agree(self, value: T) -> list[T]:
        """Return the value alone."""
        return [value]

    def share(self, value: T) -> T:
        """Return the value."""
        return value

    def agreement(
        self,
        flags: Sequence[str],
        *,
        blocking: Blocking,
        every: int | None = None,
    ) -> Agreement:
        """Return an agreement with nobody, which answers at once."""
        del blocking, every
        return OwnFlags(flags)

    def note_updates(self, updates: int) -> None:
        """Tell nobody."""

    def pause(self, reason: str, *, may_be_silent: bool = True) -> AbstractContextManager[None]:
        """Tell nobody."""
        del reason, may_be_silent
        return nullcontext()

    def note_stop(self) -> None:
        """Tell nobody."""

    def note_done(self) -> None:
        """Tell nobody."""

    def fail(self, tell: Callable[[], None] | None, *, code: int) -> None:
        """Tell the error; the caller ends the process."""
        del code
        if tell is not None:
            tell()

    def end(self) -> None:
        """Leave nobody."""


class _NoSum:
    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass
