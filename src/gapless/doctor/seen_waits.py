"""What is noted while a script is watched. No torch: the diagnosis rests on this alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gapless.records.finding import PartTimes


if TYPE_CHECKING:
    from gapless.doctor.advice.causes import Cause
    from gapless.records.finding import Site


# Before each wait that is seen under the profiler a mark of this name and the wait's place in the list
# is written into the trace: the next blocking call of that thread is the wait's.
MARK = "gapless wait "

# Torch's warnings come when the call that waited returns. Such a wait is marked then: it is the last
# synchronisation of a stream on that thread before this mark that no other mark has.
MARK_AFTER = "gapless waited "

# A call that may hold waits which nothing tells of: those in it that no other mark has are its own.
MARK_WITHIN = "gapless within "

# Likewise where a step begins.
STEP_MARK = "gapless step"


# A node of a backward pass: its name, such as "IndexBackward0", and its place among the nodes of that
# name of one step, in the order in which the forward pass made them.
NodeKey = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class SeenWait:
    """One call that waited for the device, or lost host time for another known reason.

    Every `next()` of a loader is noted, fast or slow. A wait of the autograd engine that torch only
    tells of when `.backward()` ends has the thread "autograd", no site and no mark.

    Attributes:
        cause: why it waits.
        call: that waits, such as "Tensor.item".
        site: the user's line that made the call; None where nobody knows.
        thread: "main", "autograd" or the name of another thread.
        step: number of the step, from 0 in each pass.
        start_ns: by `time.perf_counter_ns`.
        end_ns: likewise; None where only the beginning was seen.
        detail: what was found in this very call, such as the size of a copy; empty if nothing.
        count: of calls that this stands for: a loop that asks `query()` is noted once.
    """

    cause: Cause
    call: str
    site: Site | None
    thread: str
    step: int
    start_ns: int
    end_ns: int | None = None
    detail: str = ""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What the host does in a step, as its loop's lines show.

    Attributes:
        ms: of each part.
        data_line: the line of the loop that takes most of the time of data.
        data_line_ms: what it takes.
    """

    ms: PartTimes
    data_line: Site | None = None
    data_line_ms: float = 0.0

    def of(self, step_ms: float) -> StepParts:
        """Return the same shares of a step of another length: what follows lines costs time itself."""
        times = step_ms / max(1e-9, sum(vars(self.ms).values()))
        ms = PartTimes(**{part: times * one for part, one in vars(self.ms).items()})
        return replace(self, ms=ms, data_line_ms=times * self.data_line_ms)


class Pass(Protocol):
    """What watches a stretch of steps for one kind of finding."""

    def start(self) -> None:
        """Begin to watch; a step begins."""

    def next_step(self) -> None:
        """Note that one step has ended and the next begins."""

    def stop(self) -> None:
        """Take everything out again; the last step has ended."""
