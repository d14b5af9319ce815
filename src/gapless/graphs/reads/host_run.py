"""What one watched run did on the host: what it wrote, and what can be put there again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.value_places import MISSING, Place


if TYPE_CHECKING:
    import torch

    from gapless.graphs.reads.failed_look import FailedLook
    from gapless.graphs.reads.odd_reads import OddRead


@dataclass(frozen=True)
class HostWrite:
    """Something that a run changed or did on the host.

    Attributes:
        name: as the code says it, such as `self.count`, or what was called, such as `print`.
        site: where, as `file:line`.
        before: a short text for the value before the run, "" for a call.
        after: the same after it.
        advice: what to do about it.
    """

    name: str
    site: str
    before: str
    after: str
    advice: str


@dataclass(frozen=True, eq=False)
class KeptPath:
    """A place in which a run has put something that can be put there again after a replay.

    These are other tensors of the device than stood there, or a plain value that every run of a
    kind leaves there, such as `self.num_rows = len(x)`: what it follows from is guarded.

    Attributes:
        place: where.
        name: as the code says it, such as `self.hidden`.
        site: where it is stored, as `file:line`.
        is_plain: whether it is a plain value.
        before: what stood there before the run, if it is a plain value.
    """

    place: Place
    name: str
    site: str
    is_plain: bool = False
    before: Any = None

    def get(self) -> Any:
        """Return what stands there now, None if nothing does."""
        value = self.place.read()
        return None if value is MISSING else value

    def set(self, value: Any) -> None:
        """Put a value there."""
        self.place.write(value)


@dataclass
class HostRun:
    """What one watched run did on the host; complete once the watch is over.

    The first run of a kind of arguments may fill caches and set what is set once; its writes are
    not told. What they change is read by the next runs as it is then.

    Attributes:
        writes: what it changed or did, each once; empty in the first run of a kind.
        kept: places that can be given again after a replay what it has put there.
        only_computed: whether it ran known code alone, which read the same as in runs before, and did nothing
            on the host: another run would show nothing else.
        is_complete: False if torch compiled something, so that the watch was cut short, or if a
            cache was filled: look once more.
        runs_compiled: whether compiled code ran.
        found_code: whether code ran that no watched run had shown before.
        odd: ways to read that are not followed.
        forward_modes: `file:line` of every derivative in forward mode; "" if the step itself is
            one of torch's.
        got_gradients: tensors whose gradient is another tensor than before.
        failure: an error of the watch itself; what else is here says little then.
    """

    writes: list[HostWrite] = field(default_factory=list)
    kept: list[KeptPath] = field(default_factory=list)
    only_computed: bool = False
    is_complete: bool = True
    runs_compiled: bool = False
    found_code: bool = False
    odd: list[OddRead] = field(default_factory=list)
    forward_modes: list[str] = field(default_factory=list)
    got_gradients: list[torch.Tensor] = field(default_factory=list)
    failure: FailedLook | None = None
