"""What the rooms of calls ask of the walk through a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    import ast

    from gapless.doctor.static.scope import Function
    from gapless.doctor.static.values import Value


class Walker(Protocol):
    """Goes through a file; `flow.Flow` is the one that does.

    Attributes:
        names: what the names of the function at hand hold.
        discarded: the expression whose value nobody takes.
        makes_on_host: whether tensors are made on the host where no device is named.
    """

    names: dict[str, Value]
    discarded: ast.expr | None
    makes_on_host: bool

    @property
    def is_in_loop(self) -> bool:
        """Whether the code at hand is in a loop of its own function."""

    def value(self, node: ast.expr) -> Value:
        """Go through an expression; return what it is."""

    def look_up(self, name: str) -> Value | None:
        """Return what a name holds; None where nothing was seen to bind it."""

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

    def are_the_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Return whether two expressions were seen to be one and the same tensor."""
