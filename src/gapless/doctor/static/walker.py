"""What the files of calls are given: the walk through a file, and a call with its arguments gone through."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from gapless.doctor.static.frame import Frame
    from gapless.doctor.static.scope import Function
    from gapless.doctor.static.values import Value


class Walker(Protocol):
    """Goes through a file; `flow.Flow` is the one that does.

    Attributes:
        frame: the function at hand, or the code of the file itself.
        discarded: the expression whose value nobody takes.
        makes_on_host: whether tensors are made on the host where no device is named.
        log_level: below which nothing is logged.
        functions: of the file, as far as they are known.
    """

    frame: Frame
    discarded: ast.expr | None
    makes_on_host: bool
    log_level: int
    functions: list[Function]

    def value(self, node: ast.expr) -> Value:
        """Go through an expression; return what it is."""

    def quietly(self, node: ast.expr) -> Value:
        """Go through an expression again, whose waits are known; return what it is."""

    def report(self, line: int, cause: str, call: str, *, sure: bool) -> None:
        """Note that a line waits."""

    def read(
        self, line: int, cause: str, call: str, value: Value, *, or_unknown: bool = False
    ) -> None:
        """Note that the host asks for a value, if it is on a device or may be."""

    def call_function(
        self,
        function: Function,
        values: list[Value],
        keywords: dict[str, Value],
        level: int | None = None,
    ) -> Value:
        """Go through a function of the file as it is called here; return what it returns."""

    def call_lambda(self, node: ast.Lambda, given: dict[str, Value], level: int) -> Value:
        """Go through the body of a lambda that is called with these values."""

    def note_same(self, one: ast.expr, other: ast.expr) -> None:
        """Note that two expressions are one and the same tensor."""

    def are_the_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Return whether two expressions were seen to be one and the same tensor."""


class Call:
    """A call with its arguments gone through."""

    __slots__ = ("keywords", "name", "node", "values")

    def __init__(self, flow: Walker, node: ast.Call) -> None:
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
