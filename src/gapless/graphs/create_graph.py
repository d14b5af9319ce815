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
import builtins
import dis
import inspect
import linecache
import operator
import sys
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gapless.device.user_line import UserCode, module_that_runs
from gapless.graphs.code_kinds import site_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType


_FLAG = "create_graph"

# Code that names none of these runs no backward pass.
_HINTS = frozenset(["backward", "grad", "hessian", "hvp", "vhp", _FLAG])

# These differentiate gradients themselves.
_TWICE = tuple([getattr(torch.autograd.functional, name) for name in ("hessian", "hvp", "vhp")])

# Where the flag stands if it is not named: how many arguments there are at least.
_BY_PLACE = {torch.autograd.grad: 5, torch.autograd.backward: 4}
_BY_PLACE_OF_METHOD = 3

# A frame, a variable and the call that counts them.
_NUM_HOLDERS = 3

# More is not read: what is beyond is told when it happens.
_MOST_FUNCTIONS = 2_000
_MOST_VALUES = 20_000
_MOST_ITEMS = 64

_PLAIN = (bool, int, float, str, type(None))

_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

_UNKNOWN: Any = object()

_COMPARES = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}  # fmt: skip


class CreateGraphSearch:
    """Looks in the user's code for backward passes whose gradients may be differentiated."""

    def __init__(self) -> None:
        self._own = UserCode(module_that_runs())
        # By the code on the stack: a loop calls from few places.
        self._known: dict[tuple[CodeType, ...], str] = {}

    def site(self, frame: FrameType | None) -> str:
        """Return file:line of one that the code on the stack leads to, "" if there is none.

        Args:
            frame: the innermost of the stack.
        """
        frames = []
        while frame is not None:
            if self._own.owns(frame.f_code.co_filename, frame.f_globals):
                frames.append(frame)
            frame = frame.f_back
        codes = tuple([one.f_code for one in frames])
        found = self._known.get(codes)
        if found is None:
            reach = _Reach(self._own)
            for one in frames:
                reach.add_frame(one)
            reach.follow()
            found = self._known[codes] = reach.site()
        return found


@dataclass(frozen=True)
class _Place:
    """Where a function of the user was found.

    Attributes:
        scopes: variables around it by name, the innermost first.
        frame: of a call of it, or of the function that it stands in; None if there is none.
        owner: the class whose method it is.
    """

    scopes: Sequence[Mapping[str, Any]]
    frame: FrameType | None = None
    owner: type | None = None


@dataclass
class _Reach:
    """The user's functions that code leads to, by the names in it.

    A method counts once its name stands somewhere, or if a class of a package has one of that name, which
    calls it.

    Attributes:
        places: of these functions.
    """

    own: UserCode
    places: dict[CodeType, _Place] = field(default_factory=dict)
    _variables: dict[FrameType, dict[str, Any]] = field(default_factory=dict)
    _todo: list[CodeType] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    # What adds functions of classes and modules whose names stand nowhere yet.
    _waiting: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)

    def add_frame(self, frame: FrameType) -> None:
        """Add a function that is on the stack, and the class that it stands in."""
        variables = self._variables[frame] = _variables_of(frame)
        for value in variables.values():
            for part in (value, *_items_of(value)):
                self._add(part, 2)
        owner: Any = None
        *outer, _ = frame.f_code.co_qualname.split(".")
        for number, name in enumerate(outer):
            owner = vars(owner).get(name) if number else frame.f_globals.get(name)
            if not isinstance(owner, type):
                break
            self._add_class(owner)
        self._add_code(frame.f_code, _Place([frame.f_globals], frame))

    def follow(self) -> None:
        """Add all that the functions so far lead to."""
        while self._todo:
            code = self._todo.pop()
            for name in code.co_names:
                for scope in self.places[code].scopes:
                    self._add(scope.get(name), 2)
                self._add(sys.modules.get(name), 2)
                if name not in self._names:
                    self._names.add(name)
                    for add in self._waiting.pop(name, ()):
                        add()

    def site(self) -> str:
        """Return file:line of the first backward pass whose gradients may be differentiated."""
        mentions = {
            code: found
            for code in self.places
            if _is_worth_reading(code) and (found := _mentions_of_function(code))
        }
        if not mentions:
            return ""
        stored = frozenset[str]().union(*map(_attributes_set_by, self.places))
        for code, found in mentions.items():
            names = self._names_in(code)
            for mention in found:
                if _Known(names, mention.around, stored).may_differentiate(mention):
                    return site_of(code, mention.node.lineno)
        return ""

    def _names_in(self, code: CodeType) -> _Names:
        """Return what names in a function stand for: of a method that is not on the stack, its object too."""
        place = self.places[code]
        if place.frame is not None:
            return _Names(self._variables[place.frame], place.scopes)
        if place.owner is not None and code.co_argcount:
            objects = _objects_in([*self._variables.values(), *place.scopes], place.owner)
            if len(objects) == 1:
                return _Names({code.co_varnames[0]: objects[0]}, place.scopes)
        return _Names({}, place.scopes)

    def _add_code(self, code: CodeType, place: _Place) -> None:
        if code in self.places or len(self.places) >= _MOST_FUNCTIONS:
            return
        self.places[code] = place
        self._todo.append(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant, place)

    def _add(self, value: Any, depth: int) -> None:
        """Add what a value holds that can be called, if it is the user's."""
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        if len(self._seen) >= _MOST_VALUES:
            return
        self._seen[id(value)] = value  # held, so that no other gets its id
        if isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, ModuleType):
            self._add_later(value)
        else:
            for part in self._parts_of(value) if depth > 0 else ():
                self._add(part, depth - 1)

    def _parts_of(self, value: Any) -> list[Any]:
        if isinstance(value, MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, partial):
            return [value.func, *value.args, *value.keywords.values()]
        if not self._owns_class(type(value)):
            return []
        return [type(value), *list(getattr(value, "__dict__", {}).values())[:_MOST_ITEMS]]

    def _add_function(self, function: FunctionType, owner: type | None = None) -> None:
        cells = dict(zip(function.__code__.co_freevars, _contents(function), strict=True))
        if self.own.owns(function.__code__.co_filename, function.__globals__):
            place = _Place([cells, function.__globals__], owner=owner)
            self._add_code(function.__code__, place)
        # A package's decorator may stand around the user's function.
        for value in [*cells.values(), vars(function).get("__wrapped__")]:
            self._add(value, 2)

    def _add_class(self, kind: type) -> None:
        if not self._owns_class(kind):
            return
        others = [one for one in kind.__mro__ if one is not object and not self._owns_class(one)]
        for name, value in vars(kind).items():
            function = _function_of(value)
            if function is None:
                continue
            is_called = name.startswith("__") or any(hasattr(other, name) for other in others)
            self._add_by_name(
                name, partial(self._add_function, function, kind), is_named=is_called
            )
        for base in kind.__bases__:
            self._add(base, 1)

    def _add_later(self, module: ModuleType) -> None:
        names = vars(module)
        if not self.own.owns(names.get("__file__") or "<", names):
            return
        for name, value in list(names.items()):
            self._add_by_name(name, partial(self._add, value, 1))

    def _add_by_name(self, name: str, add: Callable[[], None], *, is_named: bool = False) -> None:
        if is_named or name in self._names:
            add()
        else:
            self._waiting.setdefault(name, []).append(add)

    def _owns_class(self, kind: type) -> bool:
        module = sys.modules.get(kind.__module__)
        names = {} if module is None else vars(module)
        return self.own.owns(names.get("__file__") or "<", names)


def _variables_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a function that runs; those of a file are its globals."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    kept = frame.f_locals
    found = dict(kept)
    # Up to Python 3.12 the frame keeps this table, and with it objects that the function lets go of. It may
    # be the result of somebody's `locals()`.
    if type(kept) is dict and sys.getrefcount(kept) <= _NUM_HOLDERS:
        kept.clear()
    return found


def _items_of(value: Any) -> list[Any]:
    """Return what a small container holds, such as the losses of a loop."""
    if type(value) not in (list, tuple, dict) or len(value) > _MOST_ITEMS:
        return []
    return list(value.values() if type(value) is dict else value)


def _objects_in(tables: Iterable[Mapping[str, Any]], kind: type) -> list[Any]:
    """Return the objects of a class that variables hold, or objects of theirs."""
    found: dict[int, Any] = {}
    values = [value for table in tables for value in list(table.values())]
    inner = [
        part
        for value in values
        if not isinstance(value, type | ModuleType)
        for part in getattr(value, "__dict__", {}).values()
    ]
    for value in (*values, *inner):
        if issubclass(type(value), kind):
            found[id(value)] = value
    return list(found.values())


def _contents(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def _function_of(value: Any) -> Any:
    """Return the function of a method, a property or the like; None if there is none."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


# --- what a file says ---


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


@dataclass(frozen=True)
class _Names:
    """What names in a function stand for.

    Attributes:
        own: its variables, as far as they are known.
        scopes: those around it by name, the innermost first.
    """

    own: Mapping[str, Any]
    scopes: Sequence[Mapping[str, Any]]

    def around(self, name: str) -> Any:
        """Return what a name stands for outside of the function, `_UNKNOWN` if that is not known."""
        for scope in self.scopes:
            if name in scope:
                return scope[name]
        return getattr(builtins, name, _UNKNOWN)


@dataclass(frozen=True)
class _Known:
    """What is known of the values around a place in the code, now and for all calls.

    Attributes:
        names: what names stand for there.
        around: what it stands in.
        stored: attributes that functions set.
    """

    names: _Names
    around: tuple[ast.AST, ...]
    stored: frozenset[str]

    def may_differentiate(self, mention: _Mention) -> bool:
        """Return whether a call may ask for gradients that can be differentiated."""
        if not self._may_run():
            return False
        if mention.callee is not None and isinstance(mention.node, ast.Call):
            called = self.value(mention.node.func)
            if not any(called is one for one in mention.callee):
                return False
        if mention.flag is None:
            return True
        value = self.value(mention.flag)
        return value is _UNKNOWN or _truth(value)

    def _may_run(self) -> bool:
        """Return whether no branch that is never taken stands around the place."""
        inner: ast.AST | None = None
        for node in self.around:
            if isinstance(node, ast.If | ast.IfExp) and inner is not None:
                value = self.value(node.test)
                is_body = inner is node.body if isinstance(node, ast.IfExp) else inner in node.body
                if (
                    value is not _UNKNOWN
                    and inner is not node.test
                    and _truth(value) is not is_body
                ):
                    return False
            if isinstance(node, _FUNCTIONS):
                break
            inner = node
        return True

    def value(self, node: ast.expr, *, depth: int = 8) -> Any:
        """Return what an expression is in all calls, `_UNKNOWN` if that is not known.

        None of the user's code runs.
        """
        method = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        return _UNKNOWN if method is None or depth == 0 else method(node, depth - 1)

    def _of_constant(self, node: ast.Constant, _: int) -> Any:
        return node.value

    def _of_name(self, node: ast.Name, depth: int) -> Any:
        for place in self.around:
            if isinstance(place, ast.ClassDef) or not isinstance(place, (*_FUNCTIONS, ast.Module)):
                continue
            if isinstance(place, _FUNCTIONS) and node.id in _arguments_of(place):
                return self._of_argument(node.id, place, depth)
            stores = _stores_in(place).get(node.id)
            if stores is not None:
                return self._of_stores(node.id, stores, place, depth)
        return self.names.around(node.id)

    def _of_argument(self, name: str, place: _Function, depth: int) -> Any:
        if name in _stores_in(place):
            return _UNKNOWN
        value = self.names.own.get(name, _UNKNOWN)
        if value is not _UNKNOWN and not isinstance(value, _PLAIN):
            return value
        # Whoever passes a flag of this name is looked at as well.
        default = _arguments_of(place)[name]
        if name == _FLAG and default is not None:
            return self.value(default, depth=depth)
        return False if name == _FLAG else _UNKNOWN

    def _of_stores(
        self, name: str, stores: Sequence[ast.expr | None], place: ast.AST, depth: int
    ) -> Any:
        is_global = isinstance(place, ast.Module)
        value = self.names.around(name) if is_global else self.names.own.get(name, _UNKNOWN)
        if value is not _UNKNOWN and not isinstance(value, _PLAIN):
            return value
        if name in _set_within(place):
            return _UNKNOWN
        values = [_UNKNOWN if one is None else self.value(one, depth=depth) for one in stores]
        is_one = all(value is values[0] or value == values[0] for value in values)
        return values[0] if is_one else _UNKNOWN

    def _of_attribute(self, node: ast.Attribute, depth: int) -> Any:
        if node.attr in self.stored or node.attr == "training":
            return _UNKNOWN
        base = self.value(node.value, depth=depth)
        return _UNKNOWN if base is _UNKNOWN else _attribute_of(base, node.attr, _UNKNOWN)

    def _of_subscript(self, node: ast.Subscript, depth: int) -> Any:
        base, key = self.value(node.value, depth=depth), self.value(node.slice, depth=depth)
        return base.get(key, _UNKNOWN) if type(base) is dict and isinstance(key, str) else _UNKNOWN

    def _of_unaryop(self, node: ast.UnaryOp, depth: int) -> Any:
        value = self.value(node.operand, depth=depth)
        return not value if isinstance(node.op, ast.Not) and value is not _UNKNOWN else _UNKNOWN

    def _of_boolop(self, node: ast.BoolOp, depth: int) -> Any:
        values = [self.value(part, depth=depth) for part in node.values]
        ends = isinstance(node.op, ast.Or)
        for value in values:
            if value is not _UNKNOWN and _truth(value) is ends:
                return value
        return _UNKNOWN if _UNKNOWN in values else values[-1]

    def _of_ifexp(self, node: ast.IfExp, depth: int) -> Any:
        test = self.value(node.test, depth=depth)
        if test is _UNKNOWN:
            return _UNKNOWN
        return self.value(node.body if _truth(test) else node.orelse, depth=depth)

    def _of_compare(self, node: ast.Compare, depth: int) -> Any:
        compare: Any = _COMPARES.get(type(node.ops[0]))
        values = [self.value(part, depth=depth) for part in (node.left, *node.comparators)]
        if len(values) != 2 or compare is None or not all(isinstance(v, _PLAIN) for v in values):
            return _UNKNOWN
        try:
            return compare(*values)
        except TypeError:  # a number and a text
            return _UNKNOWN

    def _of_call(self, node: ast.Call, depth: int) -> Any:
        name = getattr(node.func, "id", "")
        values = [self.value(part, depth=depth) for part in node.args]
        if node.keywords or not values or values[0] is _UNKNOWN:
            return _UNKNOWN
        if name == "bool" and len(values) == 1:
            return _truth(values[0])
        if name in ("hasattr", "getattr") and len(values) > 1 and isinstance(values[1], str):
            if values[1] in self.stored:
                return _UNKNOWN
            missing: Any = object()
            found = _attribute_of(values[0], values[1], missing)
            if name == "hasattr":
                return found is not missing
            return found if found is not missing else values[2] if len(values) > 2 else _UNKNOWN
        return _UNKNOWN


def _truth(value: Any) -> bool:
    """Return whether a value counts as true, without a call of its code."""
    return bool(value) if isinstance(value, _PLAIN) or type(value) in (list, tuple, dict) else True


def _attribute_of(base: Any, name: str, missing: Any) -> Any:
    found = inspect.getattr_static(base, name, missing)
    is_computed = hasattr(type(found), "__get__") and not isinstance(found, FunctionType | type)
    return _UNKNOWN if is_computed and found is not missing else found


@cache
def _arguments_of(place: _Function) -> dict[str, ast.expr | None]:
    """Return the names of a function's arguments, each with its default."""
    given = place.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(named) - len(given.defaults)), *given.defaults]
    found: dict[str, ast.expr | None] = {
        one.arg: default for one, default in zip(named, defaults, strict=True)
    }
    found.update(
        {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    )
    found.update({one.arg: None for one in (given.vararg, given.kwarg) if one is not None})
    return found


@cache
def _stores_in(place: ast.AST) -> dict[str, list[ast.expr | None]]:
    """Return the variables of a function or a file: what is assigned, None where that is not plain."""
    found: dict[str, list[ast.expr | None]] = {}
    todo: list[ast.AST] = list(ast.iter_child_nodes(place))
    plain: dict[int, ast.expr] = {}
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            plain[id(node.targets[0])] = node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            plain[id(node.target)] = node.value
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.setdefault(node.id, []).append(plain.get(id(node)))
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)
    return found


@cache
def _set_within(place: ast.AST) -> frozenset[str]:
    """Return the variables around them that functions within a function or a file set."""
    nodes = [node for node in ast.walk(place) if isinstance(node, ast.Global | ast.Nonlocal)]
    return frozenset(chain.from_iterable([node.names for node in nodes]))
