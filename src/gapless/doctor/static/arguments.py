"""A call with its arguments gone through."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.doctor.static.values import Value
    from gapless.doctor.static.walker import Walker


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
