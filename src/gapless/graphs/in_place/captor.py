"""Which object is captured where it stands, and by what: the object itself keeps it.

Graphs hold on to the weights that they train. In a table of objects elsewhere they would keep the
object alive, even if the table held it weakly; so they live in the object's own `__dict__`. Copies and files of
the object are ordinary objects: a captor becomes None there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import nn

    from gapless.graphs.capture_settings import CaptureSettings
    from gapless.graphs.graph_limits import GraphLimits
    from gapless.graphs.in_place.shared_casts import AutocastBlocks
    from gapless.graphs.side_stream import SideStream


# Where an object keeps what captures it.
ATTRIBUTE = "_gapless_captor"


class CaptorOfModule(Protocol):
    """What captures a module, for the calls of its methods; see `ModuleInPlace`."""

    target: nn.Module
    settings: CaptureSettings
    side: SideStream
    limits: GraphLimits
    kind_of_call: Callable[[], Hashable]
    is_awaited: bool
    is_listener: bool
    was_called: bool
    num_steps_before: int

    @property
    def parts(self) -> Sequence[Any]:
        """Children that the loop calls."""

    @property
    def autocast(self) -> AutocastBlocks:
        """What knows of blocks of autocast."""

    def tell_not_called(self, text: str) -> None:
        """Warn the user that nothing of the module is called."""

    def listen(self) -> None:
        """Hear of the calls of parts."""

    def capture_called_parts(self) -> None:
        """Capture the parts that were called."""

    def listen_no_more(self) -> None:
        """Leave parts alone."""


def captor_of(target: Any) -> Any:
    """Return what captures an object, such as a `ModuleInPlace`; None if nothing does."""
    found = getattr(target, "__dict__", {}).get(ATTRIBUTE)
    # A shallow copy has the captor of the original.
    return found if found is not None and found.target is target else None


def set_captor(target: Any, captor: Any) -> None:
    """Let an object be captured by this from now on; None: by nothing."""
    vars(target).pop(ATTRIBUTE, None)
    if captor is not None:
        vars(target)[ATTRIBUTE] = captor


def left_out(_: Any = None) -> tuple[Any, ...]:
    """Return what a captor's `__reduce__` returns, which this can be: graphs are left out."""
    return type(None), ()
