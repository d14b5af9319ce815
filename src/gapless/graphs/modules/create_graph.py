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
from gapless.graphs.modules.module_refusals import may_differentiate
from gapless.graphs.modules.modules_between import ModulesBetween
from gapless.graphs.reads.code_kinds import site_of
from gapless.graphs.reads.failed_look import Look
from gapless.graphs.reads.static_values import UNKNOWN, StaticValues, arguments_of, truth
from gapless.graphs.reads.user_functions import UserFunctions
from gapless.graphs.refusal import unreadable
from gapless.python_private import getframe


if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.reads.failed_look import FailedLook
    from gapless.graphs.refusal import Refusal


_FLAG = "create_graph"

# Code that names none of these runs no backward pass.
_HINTS = frozenset(["backward", "grad", "hessian", "hvp", "vhp", _FLAG])

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
        self._known: dict[Any, list[_Place]] = {}

    def site(self, frame: FrameType | None, module: torch.nn.Module) -> str:
        """Return file:line of one that the code on the stack leads to, "" if there is none."""
        functions = UserFunctions(self._own)
        try:
            return self._site(functions, frame, module)
        finally:
            functions.forget()

    def _site(
        self, functions: UserFunctions, frame: FrameType | None, module: torch.nn.Module
    ) -> str:
        while frame is not None:
            if self._own.owns(frame.f_code.co_filename, frame.f_globals):
                functions.add_frame(frame)
            frame = frame.f_back
        key = functions.frames_key()
        found = self._known.get(key)
        if found is None:
            functions.follow()
            found = _places_in(functions)
            is_of_any = all(place.modules is None for place in found)
            if is_of_any and len(self._known) < _MOST_KNOWN:
                self._known[key] = found
        return next((place.site for place in found if place.may_be_of(module)), "")


_SEARCH = CreateGraphSearch()


def where_it_may_be(
    module: torch.nn.Module, frame: FrameType | None
) -> tuple[str, FailedLook | None]:
    """Return file:line of a backward pass that may differentiate gradients of a module, and what failed in the search.

    Args:
        module: that is called.
        frame: of the code that calls it.
    """
    site = ""
    with Look(module.forward) as look:
        site = _SEARCH.site(frame, module)
    return site, look.failure


@dataclass(frozen=True)
class _Place:
    """A backward pass whose gradients may be differentiated.

    Attributes:
        site: file and line.
        modules: whose gradients they are; None if that is not known.
    """

    site: str
    modules: list[torch.nn.Module] | None

    def may_be_of(self, module: torch.nn.Module) -> bool:
        """Return whether they may be gradients of a module, or of a part of it."""
        if self.modules is None:
            return True
        within = set(module.modules())
        return any(one in within or module in set(one.modules()) for one in self.modules)


def _places_in(functions: UserFunctions) -> list[_Place]:
    """Return the backward passes whose gradients may be differentiated."""
    mentions = {
        code: found
        for code in functions.places
        if (not _HINTS.isdisjoint(code.co_names) or _names_flag(code))
        and (found := _mentions_of_function(code))
    }
    # What was typed at a prompt has no lines to read.
    unread = [code for code in functions.places if _names_flag(code) and not _text_of(code)]
    places = [_Place(site_of(code, None), None) for code in unread]
    if not mentions:
        return places
    stored = frozenset[str]().union(*map(_attributes_set_by, functions.places))
    for code, found in mentions.items():
        names = functions.names_in(code)
        for mention in found:
            values = StaticValues(names, mention.around, stored, flag=_FLAG)
            if mention.may_ask(values):
                modules = _modules_of(mention, values, functions, stored)
                places.append(_Place(site_of(code, mention.node.lineno), modules))
    return places


def _modules_of(
    mention: _Mention, values: StaticValues, functions: UserFunctions, stored: frozenset[str]
) -> list[torch.nn.Module] | None:
    """Return the modules between outputs and inputs of a gradient; None if that is not known."""
    ends = mention.ends()
    if ends is None or not any(values.value(mention.node.func) is one for one in _BY_PLACE):  # type: ignore[attr-defined]
        return None
    outputs, inputs = ends
    function = values.function()
    given: dict[str, list[Any]] = {}
    if isinstance(function, ast.FunctionDef):
        given = _arguments_given(function, functions, stored)
    return ModulesBetween(values, inputs, given).behind(outputs)


def _arguments_given(
    function: ast.FunctionDef, functions: UserFunctions, stored: frozenset[str]
) -> dict[str, list[Any]]:
    """Return what a function is called with by the code that is known, where all of that is known."""
    found: dict[str, list[Any]] = {name: [] for name in arguments_of(function)}
    if functions.are_given(function.name):  # who calls it then is not known
        return {}
    for code in functions.places:
        calls = list(_calls_of(function.name, code)) if _names(code, function.name) else []
        if _num_uses(code, function.name) > len(calls):
            return {}
        names = functions.names_in(code)
        for call, around in calls:
            values = StaticValues(names, around, stored, flag=_FLAG)
            given = _given_by(call, function)
            for name in found:
                found[name].append(values.value(given[name]) if name in given else UNKNOWN)
    return {name: some for name, some in found.items() if some and UNKNOWN not in some}


def _names(code: CodeType, name: str) -> bool:
    return name in code.co_names or name in code.co_freevars or name in code.co_varnames


def _num_uses(code: CodeType, name: str) -> int:
    """Return how often a function names another one, to call it or to hand it on."""
    if not _names(code, name):
        return 0
    return sum(
        at.argval == name and at.opname.startswith("LOAD") for at in dis.get_instructions(code)
    )


def _given_by(call: ast.Call, function: ast.FunctionDef) -> dict[str, ast.expr]:
    names = list(arguments_of(function))
    if isinstance(call.func, ast.Attribute) and names[:1] == ["self"]:
        del names[0]
    if any(isinstance(one, ast.Starred) for one in call.args):
        return {}
    found = dict(zip(names, call.args, strict=False))
    return found | {one.arg: one.value for one in call.keywords if one.arg is not None}


def _names_flag(code: CodeType) -> bool:
    return any(
        constant == _FLAG or (isinstance(constant, tuple) and _FLAG in constant)
        for constant in code.co_consts
    )


@dataclass(frozen=True)
class _Mention:
    """A call, or a table of arguments, that may ask for gradients that can be differentiated.

    Attributes:
        flag: what is passed, None if it asks for them anyway.
        callee: that has to be one of these functions; None: whatever is called.
        around: what it stands in, the innermost first.
    """

    node: ast.expr
    flag: ast.expr | None
    around: tuple[ast.AST, ...]
    callee: tuple[Any, ...] | None = None

    def ends(self) -> tuple[ast.expr, ast.expr] | None:
        """Return the outputs and the inputs of a call of `torch.autograd.grad`, None if it is none."""
        if not isinstance(self.node, ast.Call):
            return None
        named = {one.arg: one.value for one in self.node.keywords}
        both = [*self.node.args[:2], *[named[n] for n in ("outputs", "inputs") if n in named]]
        return (both[0], both[1]) if len(both) == 2 else None

    def may_ask(self, values: StaticValues) -> bool:
        """Return whether it may ask for gradients that can be differentiated."""
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
    return [
        mention for node, around in _nodes_in(path, text) for mention in _mentions_of(node, around)
    ]


@cache
def _nodes_in(path: str, text: str) -> list[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Return the calls, tables and assignments of a file, and what each stands in."""
    try:
        tree = ast.parse(text, path)
    except (SyntaxError, ValueError):  # magic of notebooks
        return []
    found: list[tuple[ast.AST, tuple[ast.AST, ...]]] = []

    def visit(node: ast.AST, around: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.Call | ast.Dict | ast.Assign):
            found.append((node, around))
        inner = (node, *around)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(tree, ())
    return found


def _calls_of(name: str, code: CodeType) -> Iterator[tuple[ast.Call, tuple[ast.AST, ...]]]:
    """Yield the calls in a function of what has a name, and what each stands in."""
    own = _lines_of(code)
    for node, around in _nodes_in(code.co_filename, _text_of(code)):
        if not isinstance(node, ast.Call) or own.isdisjoint(_range_of(node)):
            continue
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == name:
            yield node, around


def _mentions_of(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[_Mention]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == _FLAG:
                yield _Mention(node, value, around)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            at = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(at, ast.Constant) and at.value == _FLAG:
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


def _mentions_of_function(code: CodeType) -> list[_Mention]:
    own, found = _lines_of(code), _mentions_in(code.co_filename, _text_of(code))
    return [mention for mention in found if not own.isdisjoint(_range_of(mention.node))]


def _text_of(code: CodeType) -> str:
    return "".join(linecache.getlines(code.co_filename))


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def _range_of(node: ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@cache
def _attributes_set_by(code: CodeType) -> frozenset[str]:
    """Return the attributes that a function sets, unless it makes the object."""
    if code.co_name in ("__init__", "__post_init__"):
        return frozenset()
    return frozenset(at.argval for at in dis.get_instructions(code) if at.opname == "STORE_ATTR")
