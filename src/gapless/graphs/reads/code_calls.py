"""Calls in the code that is followed: what they read of what they are given, and what they may return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.graphs.reads.chains import CHANGING_METHODS, Chain, each_of
from gapless.graphs.reads.operand_stack import (
    MOST_LINKS,
    NULL,
    RESULT,
    UNKNOWN,
    OperandStack,
    Value,
)


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    _Enter = Callable[[CodeType | None, list[Value]], None]


GETS = ("get", "setdefault")

_STORING = frozenset(Chain("global", name) for name in ("setattr", "delattr", "vars"))

# Methods of modules that return its parts.
_PARTS = frozenset(
    [
        "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules",
        "children", "named_children", "get_submodule", "get_parameter", "get_buffer",
    ]
)  # fmt: skip


@dataclass
class Scope:
    """What names of enclosing functions stand for, for a function that is defined inside."""

    cells: dict[str, frozenset[Chain]] = field(default_factory=dict)
    arguments: dict[str, frozenset[Chain]] = field(default_factory=dict)


class Calls:
    """Follows the calls of one code object.

    Args:
        code: whose calls these are.
        scope: around it.
        ops: what its values may be.
    """

    def __init__(self, code: CodeType, scope: Scope, ops: OperandStack) -> None:
        self._code = code
        self._scope = scope
        self._ops = ops

    def call(self, callee: list[Value], arguments: list[Value], enter: _Enter) -> None:
        """Follow a call: what it reads of what it is given, and what it may return.

        Args:
            callee: what is called, with the object whose method it is.
            arguments: that it is given.
            enter: follows a function that is defined in the code, with what it is given.
        """
        method = next((value.method for value in callee if value.method is not None), None)
        if method is not None and method[1] in GETS:
            self._call_get(callee, method, arguments)
            return
        names = callee[0].chains | callee[1].chains
        for chain in names:
            self._ops.out.called.setdefault(chain, self._ops.line)
        if self._call_by_name(names, arguments):
            return
        self._give(names, arguments)
        for value in callee:
            self._ops.read(value.chains)
        callee_chains = [chain for chain in names if len(chain.links) < MOST_LINKS]
        self._enter_callee(callee, arguments, enter)
        result: set[Chain] = {RESULT}
        # What is called may be a partial that another call has made of it.
        result |= {chain for chain in callee_chains if chain.links[-1:] == (("each", None),)}
        if method is not None:
            if method[1] in CHANGING_METHODS or method[1].endswith("_"):
                self._ops.store("call", method[0], method[1])
            result |= each_of(method[0])
            if method[1] in _PARTS:
                result |= {chain.then("parts") for chain in method[0]}
        for value in arguments:
            self._ops.use(value)
            result |= each_of(value.chains)
            if value.code is not None:
                enter(value.code, [])
        self._ops.push(frozenset(result))

    def _give(self, names: frozenset[Chain], arguments: list[Value]) -> None:
        """Note what a function is given, and the functions that it is given."""
        given = {chain for value in arguments for chain in value.chains}
        for chain in {*names, *given}:
            if given and chain.kind != "result":
                self._ops.out.given.setdefault(chain, set()).update(given)

    def _call_by_name(self, names: frozenset[Chain], arguments: list[Value]) -> bool:
        """Follow a call of a built-in function that leads to attributes; say whether it is one."""
        first = arguments[0] if arguments else UNKNOWN
        if names & _STORING:
            name = arguments[1] if len(arguments) > 1 else UNKNOWN
            self._ops.out.stores_any_name |= not isinstance(name.constant, str)
        if Chain("global", "getattr") in names or Chain("global", "hasattr") in names:
            name = arguments[1] if len(arguments) > 1 else UNKNOWN
            if Chain("global", "hasattr") in names or len(arguments) > 2:
                # One that is missing may come later.
                name = name._replace(begin="")
            self._attribute_by_name(first, name)
            for default in arguments[2:]:
                self._ops.use(default)
                self._ops.push(self._ops.pop().chains | default.chains)
        elif Chain("global", "vars") in names and arguments:
            self._attribute_by_name(first, Value(constant="__dict__"))
        else:
            return False
        return True

    def _call_get(
        self,
        callee: list[Value],
        method: tuple[frozenset[Chain], str],
        arguments: list[Value],
    ) -> None:
        """Follow a call of `get` and the like, which of a dictionary reads one item."""
        base, name = method
        if name in CHANGING_METHODS:
            self._ops.store("call", base, name)
        for value in callee:
            self._ops.read(value.chains)
        for value in arguments:
            self._ops.use(value)
        key = arguments[0].constant if arguments else None
        if isinstance(key, str | int):
            chains = frozenset(chain.then("item", key) for chain in base)
            self._ops.read(chains)
            self._ops.out.whole |= chains
        else:
            self._ops.out.whole |= base
            chains = each_of(base)
        # A default, which for a context variable is the only one.
        for default in arguments:
            chains |= default.chains
        self._ops.push(chains | {RESULT})

    def _enter_callee(self, callee: list[Value], arguments: list[Value], enter: _Enter) -> None:
        if callee[0].code is not None:
            # A comprehension is called with its iterator, which stands where `self` would.
            given = arguments if callee[1] is NULL else [callee[1], *arguments]
            enter(callee[0].code, given)
        elif callee[1].code is not None:
            enter(callee[1].code, arguments)

    def _attribute_by_name(self, base: Value, name: Value) -> None:
        if isinstance(name.constant, str):
            chains = frozenset(chain.then("attr", name.constant) for chain in base.chains)
        else:
            self._ops.use(name)
            chains = frozenset(chain.then("any", name.begin) for chain in base.chains)
        self._ops.read(chains)
        self._ops.push(chains)
