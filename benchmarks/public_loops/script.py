"""What a training script is to the runner, and how many of its lines gapless changes."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


# Trains for as long as it is asked to: yields the model and the numbers that it has read, by name or
# losses alone, after every turn of `Run.steps` steps.
Script: TypeAlias = "Callable[[Run], Iterator[tuple[torch.nn.Module, Any]]]"


@dataclass(kw_only=True)
class Run:
    """What a script is told.

    Attributes:
        device: where it trains.
        steps: of a turn.
        is_tiny: whether sizes are for a CPU, to see that it runs.
        screen: where progress is written.
        loaders: that the script made; the runner ends their workers.
    """

    device: torch.device
    steps: int
    is_tiny: bool
    screen: TextIO
    loaders: list[Any] = field(default_factory=list)

    def progress(self, text: str) -> None:
        """Write a line over the one before, as a progress bar does."""
        self.screen.write(f"\r{text}")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training script, twice.

    Attributes:
        name: for `--only`.
        title: for people.
        as_written: the script as people publish it.
        with_gapless: the same with prefetch and deferred metrics.
        steps: of a timed turn on a GPU.
    """

    name: str
    title: str
    as_written: Script
    with_gapless: Script
    steps: int

    def changed_lines(self) -> dict[str, int]:
        """Return how many lines the second script has that the first has not, and vice versa."""
        # The first two lines are the name and the docstring.
        sources = [
            inspect.getsource(script).splitlines()[2:]
            for script in (self.as_written, self.with_gapless)
        ]
        signs = [line[0] for line in difflib.ndiff(*sources)]
        return {"added": signs.count("+"), "removed": signs.count("-")}
