"""What a script is told by whoever runs it, and what its loop calls."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from gapless import DeferredLoss, StepValues


_ItemT = TypeVar("_ItemT")


class Turns(Protocol):
    """How long a script trains, and what is measured meanwhile."""

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs that are asked for."""


@dataclass
class FixedTurns:
    """So many epochs."""

    count: int

    def epochs(self) -> Iterator[int]:
        """Yield their numbers."""
        yield from range(self.count)


@dataclass(kw_only=True)
class Args:
    """The arguments of a script, as `argparse` would give them, and its progress bar and log.

    Attributes:
        device: where it trains.
        steps: of an epoch.
        is_small: whether sizes are for a CPU, to see that it runs.
        is_changing: whether batches have shapes that change, in scripts that can have both.
        num_workers: of a loader.
        turns: how many epochs it trains.
        before_step: is called with the number of each step as it begins.
        numbers: all that it has logged, by name.
        marks: when each step began, by the host's clock in seconds.
    """

    device: torch.device
    steps: int
    is_small: bool
    turns: Turns
    is_changing: bool = False
    num_workers: int = 4
    before_step: Callable[[int], None] | None = None
    numbers: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    marks: list[float] = field(default_factory=list)

    @property
    def workers(self) -> int:
        """Return how many processes load batches."""
        return 0 if self.is_small else self.num_workers

    @property
    def epochs(self) -> Iterator[int]:
        """Yield the number of each epoch."""
        return self.turns.epochs()

    @property
    def iterations(self) -> Iterator[int]:
        """Yield the number of each step, for scripts without epochs."""
        for epoch in self.epochs:
            yield from self.progress(range(epoch * self.steps, (epoch + 1) * self.steps))

    def progress(self, items: Iterable[_ItemT]) -> Iterator[_ItemT]:
        """Yield the items, as a progress bar does."""
        for item in items:
            if self.before_step is not None:
                self.before_step(len(self.marks))
            self.marks.append(perf_counter())
            yield item

    def log(self, **numbers: float) -> None:
        """Take numbers that are on the host."""
        for name, number in numbers.items():
            self.numbers[name].append(number)

    def show(self, values: StepValues) -> None:
        """Take numbers that have come late, for the progress bar alone."""

    def log_late(self, losses: DeferredLoss) -> None:
        """Take all that was added to `losses`, which begins anew."""
        losses.drain()
        history: Any = losses.history
        columns = history if isinstance(history, dict) else {"loss": history}
        for name, column in columns.items():
            self.numbers[name].extend(column)
        losses.reset()
