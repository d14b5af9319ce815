"""What is known while one function of a file is gone through, or the code of the file itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.doctor.static.scope import ONCE, Wait
from gapless.doctor.static.values import NONE, join, list_of


if TYPE_CHECKING:
    from gapless.doctor.static.scope import Function
    from gapless.doctor.static.values import Value


@dataclass(eq=False, repr=False, slots=True)
class Frame:
    """The state of one function that is gone through.

    Attributes:
        function: itself; None for the code of the file.
        outer: what the names around it hold, the innermost first.
        names: what its own names hold.
        waits: that were found, by line.
        level: how often the code at hand runs.
        may_be_none: whether the values at hand are asked only where they are something.
        num_loops: around it.
        returned: the values of its `return`s.
        yielded: the values of its `yield`s.
    """

    function: Function | None = None
    outer: list[dict[str, Value]] = field(default_factory=list)
    names: dict[str, Value] = field(default_factory=dict)
    waits: dict[int, Wait] = field(default_factory=dict)
    level: int = ONCE
    may_be_none: bool = False
    num_loops: int = 0
    returned: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)

    @property
    def is_in_loop(self) -> bool:
        """Whether the code at hand is in a loop of its own function."""
        return self.num_loops > 0

    def look_up(self, name: str) -> Value | None:
        """Return what a name holds; None where nothing was seen to bind it."""
        value = self.names.get(name)
        if value is None:
            for scope in self.outer:
                value = scope.get(name)
                if value is not None:
                    break
        return value

    def report(self, line: int, cause: str, call: str, *, sure: bool) -> None:
        """Note that a line waits."""
        if self.level > ONCE:
            sure = sure and not self.may_be_none
            name = self.function.name if self.function else "<module>"
            keep(self.waits, Wait(line, cause, call, sure, name))

    def result(self) -> Value:
        """Return what a call of the function returns, as far as it was gone through."""
        values = self.yielded or self.returned
        if not values:
            return NONE
        joined = values[0]
        for value in values[1:]:
            joined = join(joined, value)
        return list_of(joined) if self.yielded else joined


def keep(waits: dict[int, Wait], wait: Wait) -> None:
    """Note a wait, unless a surer or earlier one of its line is there."""
    former = waits.get(wait.line)
    if former is None or (wait.sure and not former.sure):
        waits[wait.line] = wait


def joined_names(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    """Return what names hold where two paths come together."""
    joined = dict(one)
    for name, value in other.items():
        former = one.get(name)
        joined[name] = value if former is None or former is value else join(former, value)
    return joined
