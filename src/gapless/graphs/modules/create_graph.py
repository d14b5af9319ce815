"""Whether the user's code may differentiate gradients, or retain their graph: what it asks a backward pass for.

A captured module is one node of a backward pass. Gradients that are differentiated later come from a run of
the call as written, apart from that node, and are added up in another order than as written. That shows only
when it has happened, so the code is read before a module is captured: the functions of the user that are on
the stack when it is called, and those that they lead to by the names in them. Code of installed packages is
not read: Lightning, transformers and others hand such flags on for everybody.

What is False in the code speaks against nothing, nor does an argument of that name whose default is False:
whoever passes it is looked at as well. Nor does `is_second_order` of an optimizer, as many scripts ask for it:
an optimizer of second order differentiates gradients from its first step on, which is seen before a capture.

`retain_graph=True`, by its name, is searched for in the same way: torch's compiled code gives away what it has saved.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.user_line import UserCode, module_that_runs
from gapless.graphs.modules.module_refusals import may_differentiate
from gapless.graphs.reads.code_kinds import site_of
from gapless.graphs.reads.failed_look import Look
from gapless.graphs.reads.user_functions import UserFunctions
from gapless.graphs.refusal import unreadable
from gapless.python_private import getframe


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType, FrameType

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.reads.failed_look import FailedLook
    from gapless.graphs.refusal import Refusal


CREATES, RETAINS = _FLAGS = ("create_graph", "retain_graph")

# Code that names none of these runs no backward pass.
_HINTS = frozenset(["backward", "grad", "hessian", "hvp", "vhp", *_FLAGS])

# These differentiate gradients themselves.
_TWICE = tuple([getattr(torch.autograd.functional, name) for name in ("hessian", "hvp", "vhp")])

# Where the flag stands if it is not named: how many arguments there are at least.
_BY_PLACE = {torch.autograd.grad: 5, torch.autograd.backward: 4}
_BY_PLACE_OF_METHOD = 3


_MOST_KNOWN = 1_000

# Calls that may be differentiated, before nobody looks whether the next one may be as well.
_MANY_DIFFERENTIATED = 32


class SecondOrder:
    """Whether gradients of one module may be differentiated, so that its calls with gradients run as written.

    Behind a replay they are summed in another order, so that this is asked before there is one: by the first
    call, and by each that is to be captured.

    Attributes:
        is_asked: whether calls ask: not once the code has said no.
    """

    def __init__(self, module: torch.nn.Module, report: CaptureReport) -> None:
        self.is_asked = True
        self._module = module
        self._report = report
        self._refusal: Refusal | None = None
        self._num_calls = 0

    def is_due(self) -> bool:
        """Return whether a call has to run as written, for that reason."""
        if self._num_calls < _MANY_DIFFERENTIATED:
            before = self._refusal
            site, failure = where_it_may_be(self._module, getframe(1))
            self._refusal = may_differentiate(site) if site else None
            if failure is not None:
                self._refusal = unreadable(failure)
            self.is_asked = self._refusal is not None
            if before is not None and before != self._refusal:
                self._report.withdraw(before)
        if self._refusal is None:
            return False
        self._num_calls += 1
        self._report.refuse(self._refusal)
        return True


class CreateGraphSearch:
    """Looks in the user's code for backward passes whose gradients may be differentiated."""

    def __init__(self) -> None:
        self._own = UserCode(module_that_runs())
        # By the code on the stack, and what its variables hold: a loop calls many modules from few places.
        self._known: dict[Any, str] = {}

    def site(self, frame: FrameType | None, asks_for: str = CREATES) -> str:
        """Return file:line of one that the code on the stack leads to, "" if there is none."""
        functions = UserFunctions(self._own)
        try:
            return self._site(functions, frame, asks_for)
        finally:
            functions.forget()

    def _site(self, functions: UserFunctions, frame: FrameType | None, asks_for: str) -> str:
        while frame is not None:
            if self._own.owns(frame.f_code.co_filename, frame.f_globals):
                functions.add_frame(frame)
            frame = frame.f_back
        key = asks_for, functions.frames_key()
        found = self._known.get(key)
        if found is None:
            functions.follow()
            found = _first_site(functions, asks_for)
            if len(self._known) < _MOST_KNOWN:
                self._known[key] = found
        return found


_SEARCH = CreateGraphSearch()


def where_it_may_be(
    module: torch.nn.Module, frame: FrameType | None, asks_for: str = CREATES
) -> tuple[str, FailedLook | None]:
    """Return file:line of a backward pass that may differentiate gradients of a module, and what failed in the search.

    Args:
        module: that is called.
        frame: of the code that calls it.
        asks_for: what the backward pass is asked for, `RETAINS` for one that may retain the graph.
    """
    site = ""
    with Look(module.forward) as look:
        site = _SEARCH.site(frame, asks_for)
    return site, look.failure


def _first_site(functions: UserFunctions, asks_for: str) -> str:
    """Return the first backward pass that may be asked for something, "" if there is none."""
    mentions = {
        code: found
        for code in functions.places
        if (not _HINTS.isdisjoint(code.co_names) or _names_flag(code, asks_for))
        and (found := _mentions_of_function(code))
    }
    # What was typed at a prompt has no lines to read.
    unread = (
        code for code in functions.places if _names_flag(code, asks_for) and not _text_of(code)
    )
    for code in unread:
        return site_of(code, None)
    for code, found in mentions.items():
        for mention in found:
            if mention.asks_for == asks_for and mention.may_ask(functions.places[code]):
                return site_of(code, mention.node.lineno)
    return ""


def _names_flag(code: CodeType, flag: str) -> bool:
    return any(
        constant == flag or (isinstance(constant, tuple) and flag in constant)
        for constant in code.co_consts
    )


@dataclass(frozen=True)
class _Mention:
    """A call, or a table of arguments, that may ask for gradients that can be differentiated, or a graph that is kept.

    Attributes:
        flag: what is passed, None if it asks for them anyway.
        callee: that has to be one of these functions; None: whatever is called.
        around: what it stands in, the innermost first.
        asks_for: the name of the flag.
    """

    node: ast.expr
    flag: ast.expr | None
    around: tuple[ast.AST, ...]
    callee: tuple[Any, ...] | None = None
    asks_for: str = CREATES

    def may_ask(self, scopes: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether it may ask for that.

        Args:
            scopes: variables around the function that it stands in.
        """
        if self.callee is not None and isinstance(self.node, ast.Call):
            called = _value_of(self.node.func, scopes)
            if not any(called is one for one in self.callee):
                return False
        return self.flag is None or not _is_false(self.flag, self.around)


def _value_of(node: ast.expr, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """Return what a name stands for, or one in a module; None if that is not known."""
    if isinstance(node, ast.Name):
        return next((scope[node.id] for scope in scopes if node.id in scope), None)
    base = _value_of(node.value, scopes) if isinstance(node, ast.Attribute) else None
    return vars(base).get(node.attr) if isinstance(base, ModuleType) else None  # type: ignore[attr-defined]


def _is_false(flag: ast.expr, around: tuple[ast.AST, ...]) -> bool:
    """Return whether a flag is False, in what it stands in, the innermost first."""
    if not isinstance(flag, ast.Name):
        return _says_no(flag)
    for place in around:
        stores = _assigned(place).get(flag.id, [])
        if isinstance(place, _FUNCTIONS) and flag.id in _arguments_of(place):
            default = _arguments_of(place)[flag.id]
            return flag.id in _FLAGS and not stores and (default is None or _says_no(default))
        if stores:
            return all(map(_says_no, stores))
    return False


def _says_no(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Constant):
        return not node.value
    return node is not None and "is_second_order" in ast.unparse(node)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _arguments_of(place: Any) -> dict[str, ast.expr | None]:
    """Return the names of a function's arguments, each with its default."""
    given = place.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(named) - len(given.defaults)), *given.defaults]
    pairs = [*zip(named, defaults, strict=True)]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return {one.arg: default for one, default in pairs}


@cache
def _assigned(place: ast.AST) -> dict[str, list[ast.expr | None]]:
    """Return what variables are assigned in a function or a file; None where that is not plain."""
    plain: dict[int, ast.expr | None] = {}
    found: dict[str, list[ast.expr | None]] = {}
    if not isinstance(place, (*_FUNCTIONS, ast.Module)):
        return found
    for node in ast.walk(place):
        if isinstance(node, ast.Assign):
            plain |= {id(target): node.value for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            plain[id(node.target)] = node.value
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.setdefault(node.id, []).append(plain.get(id(node)))
    return found


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
            if isinstance(key, ast.Constant) and key.value in _FLAGS:
                yield _Mention(node, value, around, asks_for=key.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            at = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(at, ast.Constant) and at.value in _FLAGS:
                yield _Mention(target, node.value, around, asks_for=at.value)
    elif isinstance(node, ast.Call):
        yield from _mentions_of_call(node, around)


def _mentions_of_call(node: ast.Call, around: tuple[ast.AST, ...]) -> Iterator[_Mention]:
    for keyword in node.keywords:
        if keyword.arg in _FLAGS:
            yield _Mention(node, keyword.value, around, asks_for=keyword.arg)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in ("hessian", "hvp", "vhp"):
        yield _Mention(node, None, around, callee=_TWICE)
    for function, least in _BY_PLACE.items():
        if name == function.__name__ and len(node.args) >= least:
            yield _Mention(node, node.args[least - 1], around, callee=(function,))
    if name == "backward" and len(node.args) == _BY_PLACE_OF_METHOD:
        yield _Mention(node, node.args[-1], around)


def _mentions_of_function(code: CodeType) -> list[_Mention]:
    own, found = _lines_of(code), _mentions_in(code.co_filename, _text_of(code))
    return [mention for mention in found if not own.isdisjoint(_range_of(mention.node))]


def _text_of(code: CodeType) -> str:
    return "".join(linecache.getlines(code.co_filename))


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def _range_of(node: ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
