"""The stack of what each value of some code may be, while its instructions are followed."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.graphs.reads.chains import Chain, CodeReads, Store, not_too_many


if TYPE_CHECKING:
    from types import CodeType


MOST_LINKS = 10

NO_CONSTANT: Any = object()


class Value(NamedTuple):
    """A value, by the chains that may stand for it, or a constant."""

    chains: frozenset[Chain] = frozenset()
    constant: Any = NO_CONSTANT
    # Of a text that is made at run time.
    begin: str = ""
    code: CodeType | None = None
    method: tuple[frozenset[Chain], str] | None = None


UNKNOWN = Value()
NULL = Value(constant=object())
RESULT = Chain("result", "")
# An operator of the user's may return an object.
OF_OPERATOR = Value(frozenset({RESULT}))


# How many values an instruction takes from the stack and puts on it, where it is not the number of
# values that the stack loses.
TO_ONE = dict.fromkeys(("COMPARE_OP", "CONTAINS_OP", "IS_OP"), 2) | {"BINARY_SLICE": 3}
BUILDS = {"BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_STRING", "BUILD_SLICE"}
UPDATES = {"LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "LIST_APPEND", "SET_ADD"}
TO_ONE |= dict.fromkeys(
    (
        "GET_AWAITABLE", "GET_LEN", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_NOT",
        "UNARY_POSITIVE", "TO_BOOL", "CONVERT_VALUE", "FORMAT_SIMPLE", "YIELD_VALUE",
    ),
    1,
)  # fmt: skip


def begin_of(text: Value) -> str:
    """Return how a text begins that is made of this one and others; empty if that is not known."""
    return text.constant if isinstance(text.constant, str) else text.begin


class OperandStack:
    """The values, and what of them is read, used and stored.

    Args:
        line: the first of the code.

    Attributes:
        out: what the code names.
        line: that is followed.
        values: the last of them is the next to be taken.
        at: by offset, the values with which others jump there.
    """

    def __init__(self, line: int) -> None:
        self.out = CodeReads()
        self.line = line
        self.values: list[Value] = []
        self.at: dict[int, list[Value]] = {}

    def pop(self) -> Value:
        """Return the last value."""
        return self.values.pop() if self.values else UNKNOWN

    def remember(self, at: dis.Instruction) -> None:
        """Keep the values for where an instruction jumps to."""
        target = at.argval
        if isinstance(target, int) and target > at.offset and target not in self.at:
            stack = list(self.values)
            if at.opname == "FOR_ITER":
                stack = stack[:-2]
            self.at[target] = stack

    def join(self, other: list[Value], *, replace: bool) -> None:
        """Go on with the values of another branch, or with those of both."""
        if replace or len(other) != len(self.values):
            self.values = list(other)
            return
        self.values = [
            mine if mine == theirs else Value(not_too_many(mine.chains | theirs.chains))
            for mine, theirs in zip(self.values, other, strict=True)
        ]

    def by_effect(self, at: dis.Instruction) -> None:
        """Take as many values as an instruction takes, of which nothing else is known."""
        try:
            effect = dis.stack_effect(at.opcode, at.arg, jump=False)
        except ValueError:
            effect = 0
        for _ in range(-effect):
            self.use(self.pop())
        self.values.extend([UNKNOWN] * effect)

    def use(self, value: Value) -> None:
        """Note that a value is used as a whole."""
        if value.method is not None:
            self.read(value.chains)
        self.out.whole.update(value.chains)

    def read(self, chains: frozenset[Chain]) -> None:
        """Note that chains are read."""
        for chain in chains:
            if chain.kind != "result" or chain.links:
                self.out.reads.setdefault(chain, self.line)

    def push(self, chains: frozenset[Chain], **more: Any) -> None:
        """Put a value there that chains stand for."""
        chains = not_too_many(chain for chain in chains if len(chain.links) <= MOST_LINKS)
        self.values.append(Value(chains, **more))

    def store(self, kind: str, bases: frozenset[Chain], key: Any) -> None:
        """Note that something is stored."""
        store = Store(kind, bases, key, self.line)
        if store not in self.out.stores:
            self.out.stores.append(store)
