"""The code of a step that is followed, and the functions that have it."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.code_kinds import CodeKind, kind_of
from gapless.graphs.reads.code_reads import reads_of
from gapless.graphs.reads.executed import Executed
from gapless.graphs.reads.value_places import content_of


if TYPE_CHECKING:
    from collections.abc import Iterable


_MOST_UNSEEN = 500


class FollowedCode:
    """Code that ran, and code of functions that are followed without having been seen to run.

    Args:
        executed: the code that ran.

    Attributes:
        executed: the same, by id.
        codes: all code followed, by id.
        functions: functions reached, by id of their code.
        queue: code to be followed.
        again: ids of code of which more is known by now than when it was followed.
        given: first arguments that functions are known to get, by id of the code and name, by their ids.
        is_blind: whether the functions that are found are followed, since nobody saw which of them run.
    """

    def __init__(self, executed: Iterable[Executed]) -> None:
        self.executed = {id(each.code): each for each in executed}
        self.codes: dict[int, Executed] = {}
        self.functions: dict[int, list[FunctionType]] = {}
        self.queue: list[Executed] = []
        self.again: set[int] = set()
        self.given: dict[tuple[int, str], dict[int, Any]] = {}
        self.is_blind = not self.executed
        self._num_unseen = _MOST_UNSEEN

    def note_function(self, function: Any, *, must_follow: bool = False) -> None:
        """Take note of a function, to find its cells; follow it if it has run or may have."""
        while isinstance(function, FunctionType):
            code = function.__code__
            if must_follow or self.is_blind:
                self._add_unseen(function)
            known = self.functions.setdefault(id(code), [])
            if any(each is function for each in known):
                return
            known.append(function)
            self.again.add(id(code))
            for cell in function.__closure__ or ():
                content = content_of(cell)
                if isinstance(content, FunctionType):
                    self.note_function(content, must_follow=must_follow)
            compiled = vars(function).get("_torchdynamo_orig_callable")
            must_follow |= compiled is not None
            function = compiled or vars(function).get("__wrapped__")

    def _add_unseen(self, function: FunctionType) -> None:
        """Follow a function that was not seen to run."""
        code, kind = function.__code__, kind_of(function.__code__, function.__globals__)
        is_known = id(code) in self.executed or id(code) in self.codes
        if kind in (CodeKind.USER, CodeKind.MODULE) and not is_known and self._num_unseen:
            self._num_unseen -= 1
            self.add(Executed(code, function.__globals__, reads_of(code), kind))

    def give(self, function: Any, value: Any) -> None:
        """Let a function's first argument be known, as if it had been seen."""
        if not isinstance(function, FunctionType):
            return
        code = function.__code__
        if code.co_argcount > 0:
            given = self.given.setdefault((id(code), code.co_varnames[0]), {})
            if id(value) not in given:
                given[id(value)] = value
                self.again.add(id(code))

    def add(self, executed: Executed) -> None:
        """Follow code, once."""
        if id(executed.code) not in self.codes:
            self.codes[id(executed.code)] = executed
            self.queue.append(executed)
