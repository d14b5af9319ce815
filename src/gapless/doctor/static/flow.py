"""Follow values through a file, and note the lines that would wait for a GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gapless.doctor.static.frame import Frame, keep
from gapless.doctor.static.scope import ONCE, Function, Wait
from gapless.doctor.static.values import UNKNOWN, Value


if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_TIMES = 3  # that a function is gone through, for calls with other values
_DEEPEST = 25  # calls within calls


class Flow:
    """Goes through a file once; a loop whose values change, and a function called anew, again.

    `Statements` and `Expressions` go through the code of one function, `Flow` from function to function.

    Args:
        makes_on_host: whether tensors are made on the host where no device is named.
        log_level: below which nothing is logged.

    Attributes:
        makes_on_host: the same.
        log_level: the same.
        frame: the function at hand, or the code of the file itself.
        discarded: the expression whose value nobody takes.
        functions: of the file, as far as they are known.
        value: goes through an expression; returns what it is.
        block: goes through statements; returns whether the flow leaves.
    """

    def __init__(self, *, makes_on_host: bool = True, log_level: int = 0) -> None:
        self.makes_on_host, self.log_level = makes_on_host, log_level
        self.frame = Frame()
        self.discarded: ast.expr | None = None
        self.functions: list[Function] = []
        self._depth = 0
        self.value: Callable[[ast.expr], Value]
        self.block: Callable[[list[ast.stmt]], bool]

    def waits(self, tree: ast.Module) -> list[Wait]:
        """Return the waits of a file, one a line, in order."""
        self.block(tree.body)
        for function in self.functions:  # grows: functions within functions follow
            self._look_at_uncalled(function)
        found = dict(self.frame.waits)
        for function in self.functions:
            for wait in function.waits.values():
                keep(found, wait)
        return [found[line] for line in sorted(found)]

    # --- what the other files ask of the walk

    def report(self, line: int, cause: str, call: str, *, sure: bool) -> None:
        """Note that a line waits."""
        self.frame.report(line, cause, call, sure=sure)

    def read(
        self, line: int, cause: str, call: str, value: Value, *, or_unknown: bool = False
    ) -> None:
        """Note that the host asks for a value, if it is on a device or may be."""
        kind = value.kind
        if kind == "device":
            self.report(line, cause, call, sure=True)
        elif kind in ("output", "tensor") or (or_unknown and kind == "unknown"):
            if value.form == "hint" and cause in ("format", "print"):
                return  # a number is more often written than a tensor
            self.report(line, cause, call, sure=False)

    # --- from function to function

    def call_function(
        self,
        function: Function,
        values: list[Value],
        keywords: dict[str, Value],
        level: int | None = None,
    ) -> Value:
        """Go through a function of the file as it is called here; return what it returns."""
        given = {
            parameter.arg: value
            for parameter, value in zip(function.parameters(), values, strict=False)
        }
        changed = function.note_call(
            given | keywords, self.frame.level if level is None else level
        )
        if (
            changed
            and not function.is_busy
            and function.times < _MOST_TIMES
            and self._depth < _DEEPEST
        ):
            self._go_through(function)
        return function.returned or UNKNOWN

    def call_lambda(self, node: ast.Lambda, given: dict[str, Value], level: int) -> Value:
        """Go through the body of a lambda that is called with these values."""
        frame = self.frame
        names, frame.names = frame.names, dict(frame.names)
        former, frame.level = frame.level, level
        for one in node.args.args:
            frame.names[one.arg] = given.get(one.arg, UNKNOWN)
        self.value(node.body)
        frame.names, frame.level = names, former
        return UNKNOWN

    def _look_at_uncalled(self, function: Function) -> None:
        if function.times and not function.is_passed_on:
            return
        if function.note_call({}, function.level_by_itself()):
            self._go_through(function)

    def _go_through(self, function: Function) -> None:
        caller = self.frame
        # What is beside a loop of training runs once an epoch, or once.
        level = ONCE if function.level > ONCE and function.trains() else function.level
        self.frame = Frame(
            function=function,
            outer=function.outer,
            names=function.names_at_start(),
            waits=function.waits,
            level=level,
        )
        function.is_busy = True
        function.times += 1
        self._depth += 1
        self.block(function.node.body)
        function.returned = self.frame.result()
        function.is_busy = False
        self._depth -= 1
        self.frame = caller


class Call:
    """A call with its arguments gone through."""

    __slots__ = ("keywords", "name", "node", "values")

    def __init__(self, flow: Flow, node: ast.Call) -> None:
        self.node = node
        function = node.func
        self.name = (
            function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        )
        self.values = [flow.value(one) for one in node.args]
        self.keywords = {
            one.arg or "**": flow.value(one.value)
            for one in node.keywords
            if one.arg != "map_location"  # is called while a file is read
        }

    @property
    def line(self) -> int:
        """Of the function's name: a chain of calls may stand on several lines."""
        return self.node.func.end_lineno or self.node.lineno

    @property
    def first(self) -> Value:
        """The first argument; unknown where there is none."""
        return self.values[0] if self.values else UNKNOWN

    def has(self, place: int, name: str) -> bool:
        """Whether an argument is given, by place or by name."""
        return len(self.values) > place or name in self.keywords

    def flag(self, name: str) -> bool:
        """Whether a keyword is given that is not plainly false."""
        for one in self.node.keywords:
            if one.arg == name:
                return not isinstance(one.value, ast.Constant) or bool(one.value.value)
        return False

    def everything(self) -> list[Value]:
        """All arguments."""
        return [*self.values, *self.keywords.values()]
