"""Which object is captured where it stands, and by what: the object itself keeps it.

Graphs hold on to the weights that they train. In a table of objects elsewhere they would keep the
object alive, even if the table held it weakly; so they live in the object's own `__dict__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol


if TYPE_CHECKING:
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.capture_settings import CaptureSettings


# Where an object keeps what captures it.
ATTRIBUTE = "_gapless_captor"


class Captor(Protocol):
    """What runs an object's calls as graphs.

    Copies and files of the object are ordinary objects: a captor becomes None there.
    """

    target: Any
    settings: CaptureSettings

    @property
    def report(self) -> CaptureReport:
        """What is captured, and what is not."""

    def attach(self) -> None:
        """Let calls of the object come here."""

    def detach(self) -> None:
        """Let calls of the object go where they went before."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return `left_out()`."""


def captor_of(target: Any) -> Captor | None:
    """Return what captures an object, None if nothing does."""
    found: Captor | None = getattr(target, "__dict__", {}).get(ATTRIBUTE)
    # A shallow copy has the captor of the original.
    return found if found is not None and found.target is target else None


def set_captor(target: Any, captor: Captor | None) -> None:
    """Let an object be captured by this from now on; None: by nothing."""
    vars(target).pop(ATTRIBUTE, None)
    if captor is not None:
        vars(target)[ATTRIBUTE] = captor


def left_out() -> tuple[Any, ...]:
    """Return what a captor's `__reduce__` returns."""
    return type(None), ()
