"""An error of our own look at a step: it is noted, and never reaches the loop.

To read what a step uses may run code of the user's that the step does not run, such as the `__len__` of a
class of their own, and that may raise. The call then runs as written, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Self

from gapless.graphs.reads.code_kinds import CodeKind, kind_of, site_of


if TYPE_CHECKING:
    from types import TracebackType


_LONGEST = 200


@dataclass(frozen=True)
class FailedLook:
    """An error that came while a step was looked at.

    Attributes:
        step: name of the step, or of the module's method.
        error: its type and text, in one line.
        raised_by: the user's function that was come to, with its class, such as `Config.__len__`; "" if there
            was none.
        site: the line in it, as `file:line`; "" likewise.
    """

    step: str
    error: str
    raised_by: str
    site: str


class Look:
    """A context for a look at a step: an `Exception` of its body is noted, and goes no further.

    Args:
        step: what is looked at.

    Attributes:
        failure: the first error, None if there was none.
    """

    def __init__(self, step: object) -> None:
        self._step = step
        self.failure: FailedLook | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.note(error)
        return True

    def note(self, error: Exception) -> None:
        """Take note of an error; nothing of its frames is kept alive."""
        if self.failure is None:
            raised_by, site = _raised_by(error.__traceback__)
            self.failure = FailedLook(_name_of(self._step), text_of(error), raised_by, site)


def text_of(error: Exception) -> str:
    """Return the type and text of an error in one line; making the text may raise again."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _raised_by(traceback: TracebackType | None) -> tuple[str, str]:
    """Return the function of the user's that was come to, and the line in it; "" and "" without one."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if kind_of(code, traceback.tb_frame.f_globals) is CodeKind.USER:
            return _without_outer(code.co_qualname), site_of(code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return "", ""


def _without_outer(name: str) -> str:
    """Return a name without the functions that it was defined in."""
    return name.rpartition("<locals>.")[2]


def _name_of(step: Any) -> str:
    if isinstance(step, MethodType):
        step = step.__func__
    if isinstance(step, FunctionType):
        return _without_outer(step.__qualname__)
    return type(step).__name__
