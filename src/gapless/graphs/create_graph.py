"""Whether the user's code may differentiate gradients: a backward pass with `create_graph=True`.

A captured module is one node of a backward pass. Gradients that are differentiated later come from a run of
the call as written, apart from that node, and are added up in another order than as written. That shows only
when it has happened, so the code is read before a module is captured: the functions of the user that are on
the stack when it is called, and those that they lead to by the names in them. Code of installed packages is
not read: Lightning, transformers and others hand such flags on for everybody.

A flag is followed as far as that needs no run of anybody's code: through variables, attributes that no
function sets, and `hasattr`. What is False now and stays so, and branches that are never taken, speak
against nothing.
"""

from __future__ import annotations

import ast
import dis
import linecache
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.user_line import UserCode, module_that_runs
from gapless.graphs.code_kinds import site_of
from gapless.graphs.static_values import UNKNOWN, StaticValues, truth
from gapless.graphs.user_functions import UserFunctions


if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType


_FLAG = "create_graph"

# Code that names none of these runs no backward pass.
_HINTS = frozenset(["backward", "grad", "hessian", "hvp", "vhp", _FLAG])

# These differentiate gradients themselves.
_TWICE = tuple([getattr(torch.autograd.functional, name) for name in ("hessian", "hvp", "vhp")])

# Where the flag stands if it is not named: how many arguments there are at least.
_BY_PLACE = {torch.autograd.grad: 5, torch.autograd.backward: 4}
_BY_PLACE_OF_METHOD = 3


_MOST_KNOWN = 1_000


class CreateGraphSearch:
    """Looks in the user's code for backward passes whose gradients may be differentiated."""

    def __init__(self) -> None:
        self._own = UserCode(module_that_runs())
        # By the code on the stack, and what its variables hold: a loop calls many modules from few places.
        self._known: dict[Any, str] = {}

    def site(self, frame: FrameType | None) -> str:
        """Return file:line of one that the code on the stack leads to, "" if there is none.

        Args:
            frame: the innermost of the stack.
        """
        functions = UserFunctions(self._own)
        while frame is not None:
            if self._own.owns(frame.f_code.co_filename, frame.f_globals):
                functions.add_frame(frame)
            frame = frame.f_back
        key = functions.frames_key()
        found = self._known.get(key)
        if found is None:
            functions.follow()
            found = _site_in(functions)
            if len(self._known) < _MOST_KNOWN:
                self._known[key] = found
        return found


def _site_in(functions: UserFunctions) -> str:
    """Return file:line of the first backward pass whose gradients may be differentiated."""
    mentions = {
        code: found
        for code in functions.places
        if _is_worth_reading(code) and (found := _mentions_of_function(code))
    }
    if not mentions:
        return ""
    stored = frozenset[str]().union(*map(_attributes_set_by, functions.places))
    for code, found in mentions.items():
        names = functions.names_in(code)
        for mention in found:
            values = StaticValues(names, mention.around, stored, flag=_FLAG)
            if mention.may_ask(values):
                return site_of(code, mention.node.lineno)
    return ""


def _is_worth_reading(code: CodeType) -> bool:
    return not _HINTS.isdisjoint(code.co_names) or any(
        constant == _FLAG or (isinstance(constant, tuple) and _FLAG in constant)
        for constant in code.co_consts
    )


@dataclass(frozen=True)
class _Mention:
    """A call, or a table of arguments, that may ask for gradients that can be differentiated.

    Attributes:
        node: of it.
        flag: what is passed, None if it asks for them anyway.
        callee: that has to be one of these functions; None: whatever is called.
        around: what it stands in, the innermost first.
    """

    node: ast.expr
    flag: ast.expr | None
    around: tuple[ast.AST, ...]
    callee: tuple[Any, ...] | None = None

    def may_ask(self, values: StaticValues) -> bool:
        """Return whether it may ask for gradients that can be differentiated.

        Args:
            values: around it.
        """
        if not values.may_run():
            return False
        if self.callee is not None and isinstance(self.node, ast.Call):
            called = values.value(self.node.func)
            if not any(called is one for one in self.callee):
                return False
        if self.flag is None:
            return True
        value = values.value(self.flag)
        return value is UNKNOWN or truth(value)


@cache
def _mentions_in(path: str, text: str) -> list[_Mention]:
    try:
        tree = ast.parse(text, path)
    except (SyntaxError, ValueError):  # magic of notebooks
        return []
    found: list[_Mention] = []

    def visit(node: ast.AST, around: tuple[ast.AST, ...]) -> None:
        found.extend(_mentions_of(node, around))
        inner = (node, *around)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(tree, ())
    return found


def _mentions_of(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[_Mention]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == _FLAG:
                yield _Mention(node, value, around)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_flag(target.slice):
                yield _Mention(target, node.value, around)
    elif isinstance(node, ast.Call):
        yield from _mentions_of_call(node, around)


def _mentions_of_call(node: ast.Call, around: tuple[ast.AST, ...]) -> Iterator[_Mention]:
    for keyword in node.keywords:
        if keyword.arg == _FLAG:
            yield _Mention(node, keyword.value, around)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in ("hessian", "hvp", "vhp"):
        yield _Mention(node, None, around, callee=_TWICE)
    for function, least in _BY_PLACE.items():
        if name == function.__name__ and len(node.args) >= least:
            yield _Mention(node, node.args[least - 1], around, callee=(function,))
    if name == "backward" and len(node.args) == _BY_PLACE_OF_METHOD:
        yield _Mention(node, node.args[-1], around)


def _is_flag(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == _FLAG


def _mentions_of_function(code: CodeType) -> list[_Mention]:
    text = "".join(linecache.getlines(code.co_filename))
    own = {line for _, _, line in code.co_lines() if line is not None}
    return [
        mention
        for mention in _mentions_in(code.co_filename, text)
        if not own.isdisjoint(
            range(mention.node.lineno, (mention.node.end_lineno or mention.node.lineno) + 1)
        )
    ]


@cache
def _attributes_set_by(code: CodeType) -> frozenset[str]:
    """Return the attributes that a function sets, unless it makes the object."""
    if code.co_name in ("__init__", "__post_init__"):
        return frozenset()
    return frozenset(at.argval for at in dis.get_instructions(code) if at.opname == "STORE_ATTR")
